/* Several engines in one program: in turn on one world, at the same time on halves of the processes, on some and on all
 * of them, with the bits of each alone; trained from one loss, and gone back through from their outputs, against torch
 * (regression/golden/make_joint.py); and saved side by side.
 *
 * TEST_ONLY takes "turn", "halves", "joint", "from", "saved", "limits". */
#include "regression/files.h"
#include "regression/subject.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include "base/cgroup.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/comm_join.h"
#include "engine/checkpoints.h"
#include "engine/values.h"
#include "io/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_named(const char *name) {
  const char *only = getenv("TEST_ONLY");
  return only == NULL || strstr(only, name) != NULL;
}

/* ---- what a job may have ---- */

/* An engine where each rank is in a group of processes that has so much, its own one or one of all.
 * \param [out] run  Where it trains, which gives NULL; train_run_free. */
static char *try_limited(ts_world *world, const char *root, const char *group, const char *limit, const char *sets,
                         train_run *run) {
  const char *const files[][2] = {{"memory.max", limit}, {"memory.current", "0"}};
  char *mine = ts_format("%s/%d", root, ts_world_rank(world)), *line = ts_format("0::%s\n", group);
  put_file(mine, "proc/self/cgroup", line);
  for (int i = 0; i < 2; ++i) {
    char *file = ts_format("sys/fs/cgroup%s/%s", group, files[i][0]);
    put_file(mine, file, files[i][1]);
    ts_free(file);
  }
  ts_cgroups_look_below(mine);
  *run = (train_run){0};
  char *wrong = train_run_try(world, train_run_llama, sets, 1, run);
  ts_cgroups_look_below("");
  ts_free(line);
  ts_free(mine);
  return wrong;
}

/* A model with some 100 MB of state, of which what has no room in the group leaves. */
#define WIDE                                                                                                     \
  "model.hidden_size=576 model.intermediate_size=1024 run.save_every=0 zero_optimization.sub_group_size=100000 " \
  "aio={block_size=4096;queue_depth=1;}"

static void test_leaving(ts_world *world, const char *root, const char *own) {
  char *away = ts_format(WIDE " zero_optimization.offload_optimizer={device=\"auto\";nvme_path=\"%s\";}",
                         tap_directory_all(MPI_COMM_WORLD));
  train_run roomy, fitted;
  char *wrong = try_limited(world, root, own, "300000000", WIDE, &roomy);
  char *refused = try_limited(world, root, own, "100000000", WIDE, &fitted);
  tap_ok_all(MPI_COMM_WORLD, wrong == NULL && refused != NULL, "a model that such a group has no room for: %s",
             refused != NULL ? refused : "it runs");
  ts_free(refused);
  train_run_free(&fitted);
  refused = try_limited(world, root, own, "100000000", away, &fitted);
  tap_ok_all(MPI_COMM_WORLD, refused == NULL && train_run_equal(&roomy, &fitted),
             "with device = auto it has, by what leaves to files, with the same bits: %s",
             refused != NULL ? refused : "it runs");
  train_run_free(&roomy);
  train_run_free(&fitted);
  ts_free(wrong);
  ts_free(refused);
  ts_free(away);
}

/* An engine of this model takes some 20 MB, most of it for libraries. */
static void test_limits(ts_world *world) {
  char *root = ts_format("%s/limits", tap_directory()), *own = ts_format("/job/rank_%d", ts_world_rank(world));
  train_run run;
  char *wrong = try_limited(world, root, own, "30000000", "", &run);
  tap_ok_all(MPI_COMM_WORLD, wrong == NULL, "ranks that may have enough each: %s", wrong != NULL ? wrong : "they run");
  ts_free(wrong);
  train_run_free(&run);
  test_leaving(world, root, own);
  wrong = try_limited(world, root, "/job", "30000000", "", &run);
  bool refused = wrong != NULL && strstr(wrong, "of the 30.00 MB that the group of processes /job may have") != NULL;
  tap_ok_all(MPI_COMM_WORLD, ts_world_size(world) == 1 ? wrong == NULL : refused, "and not enough together: %s",
             wrong != NULL ? wrong : "they run");
  ts_free(wrong);
  train_run_free(&run);
  ts_free(own);
  ts_free(root);
}

/* ---- families, each with the bits it has alone ---- */

enum { STEPS = 2, MICRO_BATCHES = 2, N_FAMILIES = 2 };

static const struct {
  const char *text, *sets;
} families[N_FAMILIES] = {
    {train_run_llama, "zero_optimization.stage=3 bf16.enabled=true"},
    {train_run_gpt2, "zero_optimization.stage=1 tensor_parallel.autotp_size=1 fp16.enabled=true"},
};

static subject open_family(ts_world *world, int i) {
  char *sets = ts_format("train_batch_size=%d train_micro_batch_size_per_gpu=2 gradient_accumulation_steps=%d %s",
                         2 * MICRO_BATCHES * ts_world_size(world), MICRO_BATCHES, families[i].sets);
  subject s = open_subject(world, families[i].text, sets, TS_CAN_STEP, NULL);
  ts_free(sets);
  return s;
}

static void set_micro_batch(const subject *s, const ts_batch *batch, int m) {
  ts_error err = {0};
  int64_t each = ts_train_micro_batch_size(s->engine);
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    if ((ts_engine_inputs(s->engine) >> i & 1) != 0) {
      size_t bytes = ts_batch_bytes(batch, (ts_input_kind) i) * (size_t) (each * m);
      must(ts_set_input(s->engine, ts_input_get((ts_input_kind) i)->name, (char *) batch->input[i] + bytes, &err),
           &err);
    }
  }
}

typedef struct course {
  double loss[STEPS], norm[STEPS];
  uint64_t digest;
} course;

static bool is_equal(const course *a, const course *b) {
  return memcmp(a, b, sizeof *a) == 0;
}

/* A step of \a n engines, whose calls come in turn: none waits for another. */
static void step_in_turn(const subject *s, int n, int64_t step, course *c) {
  ts_batch *batch[N_FAMILIES] = {NULL};
  ts_error err = {0};
  for (int i = 0; i < n; ++i) {
    batch[i] = train_run_batch(s[i].engine, s[i].deck, step);
  }
  for (int m = 0; m < MICRO_BATCHES; ++m) {
    for (int i = 0; i < n; ++i) {
      set_micro_batch(&s[i], batch[i], m);
      must(ts_forward(s[i].engine, &err), &err);
    }
    for (int i = n - 1; i >= 0; --i) {
      must(ts_backward(s[i].engine, 1, &err), &err);
    }
    for (int i = 0; i < n; ++i) {
      ts_step_result r = {0};
      must(ts_step(s[i].engine, &r, &err), &err);
      c[i].loss[step] = r.loss;
      c[i].norm[step] = r.grad_norm;
    }
  }
  for (int i = 0; i < n; ++i) {
    ts_batch_destroy(&batch[i]);
  }
}

static course train_alone(ts_world *world, int i) {
  subject s = open_family(world, i);
  course c = {0};
  for (int64_t step = 0; step < STEPS; ++step) {
    step_in_turn(&s, 1, step, &c);
  }
  c.digest = train_run_digest(s.engine);
  close_subject(&s);
  return c;
}

static void test_in_turn(ts_world *world) {
  course alone[N_FAMILIES], together[N_FAMILIES] = {0};
  subject s[N_FAMILIES];
  bool same = true;
  for (int i = 0; i < N_FAMILIES; ++i) {
    alone[i] = train_alone(world, i);
  }
  for (int i = 0; i < N_FAMILIES; ++i) {
    s[i] = open_family(world, i);
  }
  for (int64_t step = 0; step < STEPS; ++step) {
    step_in_turn(s, N_FAMILIES, step, together);
  }
  for (int i = 0; i < N_FAMILIES; ++i) {
    together[i].digest = train_run_digest(s[i].engine);
    same = same && is_equal(&alone[i], &together[i]);
    close_subject(&s[i]);
  }
  tap_ok_all(MPI_COMM_WORLD, same && alone[0].digest != alone[1].digest,
             "two engines on one world, forwards and backwards in turn: the bits of each alone");
}

/* Whose turn it is trains while the others wait; then all at once. */
static void test_halves(ts_world *all, int rank, int size) {
  int mine = 2 * rank / size;
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, mine, rank, &half);
  ts_world *world = join(half);
  MPI_Comm_free(&half);
  course alone = {0};
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == mine) {
      alone = train_alone(world, mine);
    }
    tap_barrier(MPI_COMM_WORLD);
  }
  course at_once = train_alone(world, mine);
  tap_ok_all(MPI_COMM_WORLD, is_equal(&alone, &at_once),
             "two engines, each on a half of %d processes, at the same time: the bits of each alone", size);
  course of_all = train_alone(all, 1), of_part = mine == 0 ? alone : (course){0};
  subject on_all = open_family(all, 1), on_part = mine == 0 ? open_family(world, 0) : (subject){0};
  course together[2] = {0};
  for (int64_t step = 0; step < STEPS; ++step) {
    if (mine == 0) {
      step_in_turn(&on_part, 1, step, &together[0]);
    }
    step_in_turn(&on_all, 1, step, &together[1]);
  }
  together[0].digest = mine == 0 ? train_run_digest(on_part.engine) : 0;
  together[1].digest = train_run_digest(on_all.engine);
  tap_ok_all(MPI_COMM_WORLD, is_equal(&of_part, &together[0]) && is_equal(&of_all, &together[1]),
             "an engine on a half of them beside one on all: the bits of each alone");
  close_subject(&on_all);
  close_subject(&on_part);
  ts_world_destroy(&world);
}

/* ---- side by side on the disk ---- */

static void test_saved(ts_world *world) {
  char *directory = ts_strdup(tap_directory_all(MPI_COMM_WORLD));
  subject s[N_FAMILIES];
  course c[N_FAMILIES];
  uint64_t went_on[N_FAMILIES];
  bool same = true;
  ts_error err = {0};
  for (int i = 0; i < N_FAMILIES; ++i) {
    s[i] = open_family(world, i);
  }
  step_in_turn(s, N_FAMILIES, 0, c);
  for (int again = 0; again < 2; ++again) {
    for (int i = 0; i < N_FAMILIES; ++i) {
      char *path = ts_format("%s/%d", directory, i);
      must(again ? ts_load_checkpoint(s[i].engine, path, NULL, NULL, NULL, NULL, NULL, &err)
                 : ts_save_checkpoint(s[i].engine, path, NULL, NULL, 0, &err),
           &err);
      ts_free(path);
    }
    step_in_turn(s, N_FAMILIES, 1, c);
    for (int i = 0; i < N_FAMILIES; ++i) {
      uint64_t digest = train_run_digest(s[i].engine);
      same = same && (!again || digest == went_on[i]);
      went_on[i] = digest;
    }
  }
  tap_ok_all(MPI_COMM_WORLD, same, "two engines saved side by side go on from what each was");
  for (int i = 0; i < N_FAMILIES; ++i) {
    close_subject(&s[i]);
  }
  ts_free(directory);
}

/* ---- two models of a program's own, against torch ---- */

enum { SAMPLES = 8, IN = 6, HIDDEN = 16, OUT = 4, OTHER = 12, JOINT_STEPS = 3, N = SAMPLES * OUT };
static const double weight_a = 0.5, weight_b = 2;

/* h and y of x; the squared distance of y to the target is a loss. */
static void write_a(ts_builder *b, void *user) {
  const bool *has_loss = user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){IN}, 0);
  ts_builder_unit(b, "net");
  ts_tid h = ts_builder_activation(b, "act", ts_builder_linear(b, "in", x, HIDDEN, true), TS_ACTIVATION_GELU);
  ts_builder_output(b, "h", h);
  ts_tid y = ts_builder_linear(b, "out", h, OUT, true);
  ts_builder_output(b, "y", y);
  if (*has_loss) {
    ts_tid target = ts_builder_input(b, "target", TS_F32, 1, (int64_t[]){OUT}, 0);
    ts_builder_loss(b, "loss", ts_builder_squared_error(b, "error", y, target), TS_NONE, 1);
  }
}

static void write_b(ts_builder *b, void *user) {
  (void) user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){OUT}, 0);
  ts_tid target = ts_builder_input(b, "target", TS_F32, 1, (int64_t[]){OUT}, 0);
  ts_builder_unit(b, "net");
  ts_tid h = ts_builder_activation(b, "act", ts_builder_linear(b, "in", x, OTHER, true), TS_ACTIVATION_RELU);
  ts_tid y = ts_builder_linear(b, "out", h, OUT, false);
  ts_builder_output(b, "y", y);
  ts_builder_loss(b, "loss", ts_builder_squared_error(b, "error", y, target), TS_NONE, 1);
}

static const char own_deck[] = "model = { model_type = \"own\"; };\n"
                               "run = { directory = \"none\"; seed = 5; threads = 1; };\n"
                               "train_batch_size = 8;\n"
                               "gradient_clipping = 0.0;\n"
                               "zero_optimization = { stage3_param_persistence_threshold = 10; };\n"
                               "optimizer = { type = \"SGD\"; params = { lr = 0.0625; weight_decay = 0.0; }; };\n";

static ts_safetensors *golden;

/* Values are the caller's. */
static float *read_golden(const char *kind, const char *name, int64_t *count) {
  char *full = ts_format("%s/%s", kind, name);
  const ts_safetensor *t = ts_safetensors_find(golden, full);
  TS_CHECK(t != NULL, "there is no golden %s", full);
  float *value = ts_malloc((size_t) t->count * sizeof *value);
  ts_safetensors_read_f32(t, 0, t->count, value);
  *count = t->count;
  ts_free(full);
  return value;
}

static subject open_own(ts_world *world, char letter, const ts_own_model *model, const char *sets) {
  int each = SAMPLES / ts_world_size(world) < 4 ? 1 : 2;
  char *all = ts_format("train_micro_batch_size_per_gpu=%d %s", each, sets);
  subject s = open_subject(world, own_deck, all, TS_CAN_STEP | TS_CAN_SEED, model);
  ts_free(all);
  ts_error err = {0};
  for (int i = 0; i < ts_parameter_count(s.engine); ++i) {
    int64_t count;
    char *name = ts_format("%c.%s", letter, ts_parameter_name(s.engine, i));
    float *value = read_golden("parameter", name, &count);
    must(ts_set_full_fp32_parameter(s.engine, ts_parameter_name(s.engine, i), value, &err), &err);
    ts_free(value);
    ts_free(name);
  }
  return s;
}

/* The first of this rank's samples of a micro-batch. */
static int64_t first_of(const subject *s, int64_t m) {
  return (ts_data_parallel_rank(s->engine) * ts_gradient_accumulation_steps(s->engine) + m) *
         ts_train_micro_batch_size(s->engine);
}

/* Rows of a golden tensor of all samples, \a width each. */
static float *rows_of(const subject *s, int64_t m, const char *kind, const char *name, int64_t width) {
  int64_t count;
  float *all = read_golden(kind, name, &count);
  TS_CHECK(count == SAMPLES * width, "golden %s is of another shape", name);
  memmove(all, all + first_of(s, m) * width, (size_t) (ts_train_micro_batch_size(s->engine) * width) * sizeof *all);
  return all;
}

static void set_rows(const subject *s, int64_t m, const char *input, const char *name, int64_t width) {
  ts_error err = {0};
  float *rows = rows_of(s, m, "input", name, width);
  must(ts_set_input(s->engine, input, rows, &err), &err);
  ts_free(rows);
}

/* Farthest from golden, in units of the largest of the tensor. */
static double apart(const subject *s, const char *kind, const char *prefix, bool gradients) {
  ts_error err = {0};
  double worst = 0;
  for (int i = 0; i < ts_parameter_count(s->engine); ++i) {
    int64_t count;
    const char *name = ts_parameter_name(s->engine, i);
    char *full = ts_format("%s%s", prefix, name);
    float *wanted = read_golden(kind, full, &count), *value = ts_malloc((size_t) count * sizeof *value);
    must((gradients ? ts_get_full_fp32_gradient : ts_get_full_fp32_parameter)(s->engine, name, value, &err), &err);
    double most = 0, largest = 0;
    for (int64_t k = 0; k < count; ++k) {
      most = fmax(most, fabs((double) value[k] - wanted[k]));
      largest = fmax(largest, fabs((double) wanted[k]));
    }
    worst = fmax(worst, most / largest);
    ts_free(wanted);
    ts_free(value);
    ts_free(full);
  }
  return worst;
}

/* Roundings of each type, at three places one behind another, in units of the largest of some dozens of numbers. */
typedef struct precision {
  const char *sets;
  double most;
} precision;
static const precision precisions[] = {
    {"bf16.enabled=false", 2e-6}, {"bf16.enabled=true", 2e-2}, {"fp16.enabled=true fp16.initial_scale_power=8", 3e-3}};
enum { N_PRECISIONS = sizeof precisions / sizeof *precisions };

/* ---- one loss of both: w_a mean |y_a - t_a|^2 + w_b mean |y_b - t_b|^2 + mean |y_a - y_b|^2 ---- */

static double joint_micro_batch(const subject *a, const subject *b, int64_t m) {
  enum { MOST = 2 * OUT };
  ts_error err = {0};
  float y[MOST], z[MOST], of_y[MOST], of_z[MOST];
  double distance = 0, scale_a, scale_b;
  set_rows(a, m, "x", "x", IN);
  set_rows(a, m, "target", "target_a", OUT);
  must(ts_forward(a->engine, &err), &err);
  must(ts_get_output(a->engine, "y", y, &err), &err);
  must(ts_set_input(b->engine, "x", y, &err), &err);
  set_rows(b, m, "target", "target_b", OUT);
  must(ts_forward(b->engine, &err), &err);
  must(ts_get_output(b->engine, "y", z, &err), &err);
  scale_a = ts_scale(a->engine, 1);
  scale_b = ts_scale(b->engine, 1);
  for (int64_t i = 0; i < ts_train_micro_batch_size(a->engine) * OUT; ++i) {
    double d = (double) y[i] - z[i];
    distance += d * d / N;
    of_y[i] = (float) (scale_a * 2 * d / N);
    of_z[i] = (float) (scale_b * -2 * d / N);
  }
  must(ts_set_output_gradient(a->engine, "y", of_y, &err), &err);
  must(ts_backward(a->engine, weight_a, &err), &err);
  must(ts_set_output_gradient(b->engine, "y", of_z, &err), &err);
  must(ts_backward(b->engine, weight_b, &err), &err);
  return distance;
}

/* \return how far its loss is from golden. */
static double joint_step(const subject *a, const subject *b, float wanted) {
  ts_error err = {0};
  ts_step_result of_a = {0}, of_b = {0};
  double distance = 0;
  for (int64_t m = 0; m < ts_gradient_accumulation_steps(a->engine); ++m) {
    distance += joint_micro_batch(a, b, m);
    must(ts_step(a->engine, &of_a, &err), &err);
    must(ts_step(b->engine, &of_b, &err), &err);
  }
  tap_sum_all(MPI_COMM_WORLD, &distance, 1, MPI_DOUBLE);
  return fabs((weight_a * of_a.loss + weight_b * of_b.loss + distance) / wanted - 1);
}

static void test_joint(ts_world *world, const precision *p, int stage_a, int stage_b) {
  bool has_loss = true;
  const ts_own_model model_a = {"a", write_a, &has_loss}, model_b = {"b", write_b, NULL};
  char *sets_a = ts_format("%s zero_optimization.stage=%d", p->sets, stage_a);
  char *sets_b = ts_format("%s zero_optimization.stage=%d", p->sets, stage_b);
  subject a = open_own(world, 'a', &model_a, sets_a), b = open_own(world, 'b', &model_b, sets_b);
  int64_t n;
  float *wanted = read_golden("joint", "loss", &n);
  double loss = 0;
  for (int step = 0; step < JOINT_STEPS; ++step) {
    loss = fmax(loss, joint_step(&a, &b, wanted[step]));
  }
  double of_a = apart(&a, "joint", "a.", false), of_b = apart(&b, "joint", "b.", false);
  tap_ok_all(MPI_COMM_WORLD, loss <= p->most && of_a <= p->most && of_b <= p->most,
             "%s, stages %d and %d: two engines trained from one loss: torch's losses (%.1e) and parameters (%.1e, "
             "%.1e)",
             p->sets, stage_a, stage_b, loss, of_a, of_b);
  ts_free(wanted);
  close_subject(&a);
  close_subject(&b);
  ts_free(sets_a);
  ts_free(sets_b);
}

/* ---- tensor.backward (gradient) ---- */

static void give_seed(const subject *s, int64_t m, const char *output, int64_t width, bool back) {
  ts_error err = {0};
  float *seed = rows_of(s, m, "seed", output, width);
  double scale = ts_scale(s->engine, 1);
  for (int64_t i = 0; i < ts_train_micro_batch_size(s->engine) * width; ++i) {
    seed[i] = (float) (seed[i] * scale);
  }
  must((back ? ts_backward_from : ts_set_output_gradient)(s->engine, output, seed, &err), &err);
  ts_free(seed);
}

/* y alone by ts_backward_from; or both, of which the last goes back. */
static double gradients_from(const subject *s, bool both, bool has_loss) {
  ts_error err = {0};
  int64_t n = ts_gradient_accumulation_steps(s->engine);
  for (int64_t m = 0; m < n; ++m) {
    set_rows(s, m, "x", "x", IN);
    if (has_loss) {
      set_rows(s, m, "target", "target_a", OUT);
    }
    must(ts_forward(s->engine, &err), &err);
    if (both) {
      give_seed(s, m, "h", HIDDEN, false);
    }
    give_seed(s, m, "y", OUT, true);
    if (m < n - 1) {
      must(ts_step(s->engine, NULL, &err), &err);
    }
  }
  double worst = apart(s, both ? "from_both" : "from_y", "", true);
  must(ts_step(s->engine, NULL, &err), &err);
  return worst;
}

static void test_backward_from(ts_world *world, const precision *p, int stage, bool has_loss) {
  const ts_own_model model = {"a", write_a, &has_loss};
  char *sets = ts_format("%s zero_optimization.stage=%d", p->sets, stage);
  for (int both = 0; both < 2; ++both) {
    subject s = open_own(world, 'a', &model, sets);
    double worst = gradients_from(&s, both, has_loss);
    tap_ok_all(MPI_COMM_WORLD, worst <= p->most && ts_was_step_applied(s.engine),
               "%s%s: from %s: torch's gradients (%.1e)", sets, has_loss ? ", a loss of weight 0" : "",
               both ? "both outputs" : "one output", worst);
    close_subject(&s);
  }
  ts_free(sets);
}

static void test_unscaled(ts_world *world) {
  bool has_loss = false;
  const ts_own_model model = {"a", write_a, &has_loss};
  subject s = open_own(world, 'a', &model, "fp16.enabled=true");
  ts_error err = {0};
  float gradient[2 * OUT] = {1};
  set_rows(&s, 0, "x", "x", IN);
  must(ts_forward(s.engine, &err), &err);
  ts_status status = ts_backward_from(s.engine, "y", gradient, &err);
  tap_ok_all(MPI_COMM_WORLD,
             status == TS_BAD_INPUT && strstr(err.text, "gradients in fp16 need the loss scale") != NULL, "%s",
             err.count > 0 ? err.text : "a gradient without the loss scale is taken in fp16");
  ts_error_clear(&err);
  close_subject(&s);
}

static void test_torch(ts_world *world) {
  ts_error err = {0};
  must(ts_safetensors_open(tap_path("regression/golden/joint.safetensors"), &golden, &err), &err);
  for (int i = 0; i < N_PRECISIONS; ++i) {
    for (int stage = 0; stage <= 3; ++stage) {
      if (is_named("joint")) {
        test_joint(world, &precisions[i], stage, 3 - stage);
      }
      for (int has_loss = 0; has_loss < 2 && is_named("from"); ++has_loss) {
        test_backward_from(world, &precisions[i], stage, has_loss);
      }
    }
  }
  if (is_named("from")) {
    test_unscaled(world);
  }
  ts_safetensors_close(&golden);
}

int main(int argc, char **argv) {
  int provided, rank, size;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  ts_world *world = join(MPI_COMM_WORLD);
  if (is_named("turn")) {
    test_in_turn(world);
  }
  if (is_named("halves")) {
    test_halves(world, rank, size);
  }
  if (is_named("saved")) {
    test_saved(world);
  }
  if (is_named("limits")) {
    test_limits(world);
  }
  test_torch(world);
  ts_world_destroy(&world);
  int status = tap_done_all(MPI_COMM_WORLD);
  MPI_Finalize();
  return status;
}
