/* Loss scaling in whole steps: what it must not change, that all ranks agree on an overflow of one, and what a run that
 * goes on remembers.  Values are fp32 or bf16, in which a power of two changes no bit, so runs are compared bit for
 * bit; an overflow is a token whose embedding is NaN, in the samples of one rank. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/save.h"
#include "io/publication.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 66 /* a token */, WIDTH = 36, MOST = 32 };

#define SCHEDULE " scheduler.type=WarmupLR scheduler.params.warmup_type=linear scheduler.params.warmup_num_steps=40"

static const ts_loss_scaler by_two = {
    .rule = TS_LOSS_SCALE_DYNAMIC, .initial = 256, .minimum = 1, .window = 2, .hysteresis = 2};

typedef struct job {
  ts_deck *deck;
  ts_engine *engine;
  int64_t samples; /* made so far */
  double scale[MOST], lr[MOST];
  bool skipped[MOST], stuck[MOST], overflow[MOST];
  double norm[MOST];
  int n;
} job;

/* ---- an engine whose embedding of one token is NaN ---- */

static void poison(void *user, int64_t first, int64_t count, bool owned, float *value) {
  (void) owned;
  for (int64_t i = 0; i < count; ++i) {
    bool bad = user != NULL && (first + i) / WIDTH == POISON;
    value[i] = bad ? NAN : user != NULL ? 0.1f * sinf((float) (first + i)) : 0;
  }
}

static job begin(ts_world *world, const ts_loss_scaler *scaler, const char *sets) {
  job j = {.deck = train_run_deck(world, train_run_llama, sets)};
  ts_error err = {0};
  const ts_engine_options options = {.world = world, .deck = j.deck, .abilities = TS_CAN_TRAIN};
  ts_deck_test_loss_scaler(scaler);
  TS_CHECK(ts_engine_create(&options, &j.engine, &err) == TS_OK, "%s", err.text);
  ts_deck_test_loss_scaler(NULL);
  const ts_parameter *p = ts_layout_find(ts_engine_layout(j.engine), "model.embed_tokens.weight");
  ts_engine_write_parameter(j.engine, p, poison, &j);
  return j;
}

static void end(job *j) {
  ts_engine_destroy(&j->engine);
  ts_deck_destroy(&j->deck);
}

/* This rank's samples; those of the last rank have the token. */
static ts_batch *make_batch(const job *j, bool poisoned) {
  const ts_mesh *mesh = ts_engine_mesh(j->engine);
  const ts_deck *deck = j->deck;
  int64_t groups = ts_mesh_group_size(mesh, TS_AXES_BATCH), group = ts_mesh_group_rank(mesh, TS_AXES_BATCH);
  int64_t each = deck->train_micro_batch_size_per_gpu, n = deck->data.sequence_length + 1;
  ts_batch *batch = ts_batch_create(each * deck->gradient_accumulation_steps, n - 1, TS_INPUTS_ALL);
  int32_t *tokens = ts_malloc((size_t) n * sizeof *tokens);
  for (int64_t i = 0; i < batch->samples; ++i) {
    int64_t sample = j->samples + (i / each * groups + group) * each + i % each;
    for (int64_t t = 0; t < n; ++t) {
      tokens[t] = (int32_t) ((7 * sample + 3 * t) % 61);
    }
    tokens[2] = poisoned && group == groups - 1 && i == 0 ? POISON : tokens[2];
    ts_batch_set(batch, i, sample, tokens, -1);
  }
  ts_free(tokens);
  return batch;
}

/* A poisoned step leaves the samples to the next one. */
static void step(job *j, bool poisoned) {
  ts_batch *batch = make_batch(j, poisoned);
  ts_step_result r = ts_engine_train_step(j->engine, &(ts_step_input){.batch = batch});
  j->samples += poisoned ? 0 : j->deck->train_batch_size;
  j->scale[j->n] = r.loss_scale;
  j->lr[j->n] = r.lr;
  j->norm[j->n] = r.grad_norm;
  j->overflow[j->n] = r.overflow;
  j->skipped[j->n] = r.skipped;
  j->stuck[j->n++] = r.stuck;
  ts_batch_destroy(&batch);
}

static void steps(job *j, const char *pattern) {
  for (; *pattern != 0; ++pattern) {
    step(j, *pattern == '1');
  }
}

/* ---- what a scale must not change ---- */

static void test_exact(ts_world *world, const char *sets) {
  static const ts_loss_scaler fixed = {.rule = TS_LOSS_SCALE_STATIC, .initial = 0x1p20, .window = 1};
  train_run plain = train_run_do(world, train_run_llama, sets, 3);
  ts_deck_test_loss_scaler(&fixed);
  train_run scaled = train_run_do(world, train_run_llama, sets, 3);
  ts_deck_test_loss_scaler(NULL);
  train_difference apart = train_run_difference(&scaled, &plain);
  if (ts_world_size(world) % 3 != 0) {
    tap_ok_all(MPI_COMM_WORLD, train_run_equal(&plain, &scaled), "%s: a scale of 2^20 changes no bit", sets);
  } else { /* divided by the ranks elsewhere, gradients are rounded otherwise: to 24 bits or to 8 */
    bool bf16 = strstr(sets, "bf16") != NULL;
    tap_ok_all(MPI_COMM_WORLD, apart.loss < (bf16 ? 0x1p-12 : 1e-6) && apart.norm < (bf16 ? 0x1p-7 : 1e-5),
               "%s: a scale of 2^20 changes roundings alone: %.1e %.1e", sets, apart.loss, apart.norm);
  }
  train_run_free(&plain);
  train_run_free(&scaled);
}

/* ---- an overflow on one rank ---- */

static bool equal_all(const double *a, const double *b, int n) {
  return memcmp(a, b, (size_t) n * sizeof *a) == 0;
}

static void test_overflow(ts_world *world, const char *sets) {
  char *all = ts_format("%s" SCHEDULE, sets);
  job j = begin(world, &by_two, all), plain = begin(world, &by_two, all);
  steps(&j, "00");
  uint64_t before = train_run_digest(j.engine);
  steps(&j, "11");
  bool kept = train_run_digest(j.engine) == before;
  steps(&j, "00000");
  steps(&plain, "0000000");
  static const double scales[] = {256, 256, 256, 256, 128, 128, 128, 256, 256};
  tap_ok_all(MPI_COMM_WORLD, j.skipped[2] && j.skipped[3] && !j.skipped[1] && !j.skipped[4] && kept,
             "%s: NaN on one rank: all ranks skip, and no parameter changes", sets);
  tap_ok_all(MPI_COMM_WORLD, equal_all(j.scale, scales, 9),
             "%s: the second one halves the scale; 2 good steps double it", sets);
  tap_ok_all(MPI_COMM_WORLD, j.lr[2] == j.lr[3] && j.lr[3] == j.lr[4] && equal_all(&j.lr[4], &plain.lr[2], 5),
             "%s: the schedule waits", sets);
  tap_ok_all(MPI_COMM_WORLD,
             train_run_digest(j.engine) == train_run_digest(plain.engine) && equal_all(&j.norm[4], &plain.norm[2], 5),
             "%s: the run is the one without these steps", sets);
  end(&j);
  end(&plain);
  ts_free(all);
}

/* ---- at the minimum ---- */

static void test_stuck(ts_world *world) {
  static const ts_loss_scaler small = {
      .rule = TS_LOSS_SCALE_DYNAMIC, .initial = 4, .minimum = 2, .window = 100, .hysteresis = 1};
  job j = begin(world, &small, "");
  steps(&j, "111");
  tap_ok_all(MPI_COMM_WORLD,
             j.scale[0] == 4 && !j.stuck[0] && j.scale[1] == 2 && j.stuck[1] && j.stuck[2] && j.scale[2] == 2,
             "an overflow at the smallest scale is told on every rank");
  end(&j);
}

/* ---- steps that are done whatever the norm is, and gradients of zero ---- */

static void test_unchecked(ts_world *world) {
  job j = begin(world, NULL, "bf16.enabled=true bf16.check_grad_overflow=false");
  step(&j, false);
  uint64_t before = train_run_digest(j.engine);
  step(&j, true);
  tap_ok_all(MPI_COMM_WORLD, !j.skipped[1] && j.overflow[1] && train_run_digest(j.engine) != before && j.lr[1] > 0,
             "bf16.check_grad_overflow = false: a step that is not finite is done");
  end(&j);
  j = begin(world, NULL, "bf16.enabled=true");
  step(&j, false);
  before = train_run_digest(j.engine);
  step(&j, true);
  tap_ok_all(MPI_COMM_WORLD, j.skipped[1] && j.overflow[1] && train_run_digest(j.engine) == before,
             "true: it is skipped");
  end(&j);
}

/* Gradients of this size are infinite on an fp16 wire, and what is left of them when they are divided is not. */
static void test_predivided(ts_world *world) {
  static const ts_loss_scaler large = {.rule = TS_LOSS_SCALE_STATIC, .initial = 0x1p26, .window = 1};
  job plain = begin(world, &large, "communication_data_type=fp16 zero_optimization.stage=2");
  job j =
      begin(world, &large, "communication_data_type=fp16 gradient_predivide_factor=1048576 zero_optimization.stage=2");
  job wide = begin(world, &large, "zero_optimization.stage=2");
  step(&plain, false);
  step(&j, false);
  step(&wide, false);
  /* each gradient is rounded to 11 bits, on its own */
  bool near = fabs(j.norm[0] - wide.norm[0]) < 0x1p-11 * wide.norm[0];
  tap_ok_all(MPI_COMM_WORLD, plain.skipped[0] && !j.skipped[0] && near,
             "gradient_predivide_factor: gradients fit an fp16 wire, and their norm is what it was: %g, %g", j.norm[0],
             wide.norm[0]);
  end(&plain);
  end(&j);
  end(&wide);
}

static void test_zero(ts_world *world, const ts_loss_scaler *scaler) {
  job j = begin(world, scaler, "optimizer.params.weight_decay=0");
  const ts_layout *layout = ts_engine_layout(j.engine);
  for (int i = 0; i < layout->n_parameters; ++i) {
    ts_engine_write_parameter(j.engine, &layout->parameter[i], poison, NULL);
  }
  uint64_t before = train_run_digest(j.engine);
  step(&j, false);
  tap_ok_all(MPI_COMM_WORLD, !j.skipped[0] && !j.overflow[0] && j.norm[0] == 0 && train_run_digest(j.engine) == before,
             "%s: a gradient of zeros is a step like any other", scaler != NULL ? "scaled" : "not scaled");
  end(&j);
}

/* Under autocast to fp16 the rule is GradScaler's: an overflow halves the scale at once, not the second one. */
static void test_autocast(ts_world *world) {
  job j = begin(world, NULL, "torch_autocast.enabled=true torch_autocast.dtype=fp16 zero_optimization.stage=3");
  steps(&j, "01010");
  static const double scales[] = {65536, 65536, 32768, 32768, 16384};
  tap_ok_all(MPI_COMM_WORLD, equal_all(j.scale, scales, 5) && j.skipped[1] && !j.skipped[2] && j.skipped[3],
             "autocast to fp16: %g after two overflows", j.scale[4]);
  end(&j);
  j = begin(world, NULL, "torch_autocast.enabled=true");
  steps(&j, "01");
  tap_ok_all(MPI_COMM_WORLD, j.scale[1] == 1 && !j.skipped[0] && j.skipped[1], "autocast to bf16 has no scale");
  end(&j);
}

/* ---- going on ---- */

static const char sequence[] = "001101000110000010";

static void save(job *j) {
  ts_saver *saver = ts_saver_create(j->engine);
  ts_saver_begin(saver, &(ts_position){.step = j->n, .samples = j->samples});
  TS_CHECK(ts_saver_finish(saver), "not saved");
  ts_saver_destroy(&saver);
}

static char *parent;

/* A run in a directory of its own is cut after some steps, and goes on with another scaler. */
static job resume(ts_world *world, const ts_loss_scaler *scaler, const ts_loss_scaler *now, int cut) {
  static int n;
  char *directory = ts_format("%s/%d", parent, n++);
  char *sets = ts_format("run.directory=%s zero_optimization.stage=2" SCHEDULE, directory);
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  tap_barrier(MPI_COMM_WORLD);
  job first = begin(world, scaler, sets), j = begin(world, now, sets);
  char *head = ts_format("%.*s", cut, sequence), *path = ts_step_directory(j.deck->run.directory, cut, "");
  steps(&first, head);
  save(&first);
  ts_error err = {0};
  ts_checkpoint *c;
  TS_CHECK(ts_checkpoint_check(world, path, &c, &err) == TS_OK &&
               ts_engine_load(j.engine, path, c, TS_LOAD_ALL, &err) == TS_OK,
           "%s", err.text);
  j.samples = c->samples;
  ts_checkpoint_destroy(&c);
  ts_free(path);
  ts_free(head);
  ts_free(sets);
  ts_free(directory);
  end(&first);
  return j;
}

static void test_resume(ts_world *world, const ts_loss_scaler *scaler, const char *what) {
  job whole = begin(world, scaler, "zero_optimization.stage=2" SCHEDULE);
  steps(&whole, sequence);
  int n = whole.n;
  bool same = true, moved = false;
  for (int cut = 3; cut < n; cut += 4) {
    job j = resume(world, scaler, scaler, cut);
    steps(&j, sequence + cut);
    same = same && train_run_digest(j.engine) == train_run_digest(whole.engine) &&
           equal_all(j.scale, whole.scale + cut, j.n) && equal_all(j.lr, whole.lr + cut, j.n) &&
           equal_all(j.norm, whole.norm + cut, j.n);
    moved = moved || j.scale[0] != scaler->initial;
    end(&j);
  }
  tap_ok_all(MPI_COMM_WORLD, same && moved, "%s: a run that goes on in the middle has the same bits, scales and rates",
             what);
  end(&whole);
}

/* Another way to scale than the checkpoint's: what it cannot say begins anew. */
static void test_change(ts_world *world) {
  static const ts_loss_scaler fixed = {.rule = TS_LOSS_SCALE_STATIC, .initial = 8, .window = 1, .hysteresis = 2};
  job j = resume(world, &by_two, &fixed, 7);
  step(&j, false);
  bool deck = j.scale[0] == 8;
  end(&j);
  j = resume(world, &fixed, &by_two, 7);
  step(&j, false);
  bool anew = j.scale[0] == 256;
  end(&j);
  j = resume(world, NULL, &by_two, 7);
  step(&j, false);
  anew = anew && j.scale[0] == 256;
  end(&j);
  j = resume(world, &by_two, NULL, 7);
  step(&j, false);
  tap_ok_all(MPI_COMM_WORLD, deck && anew && j.scale[0] == 1,
             "a static scale is the deck's; a dynamic one that the checkpoint has not begins anew");
  end(&j);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_log_configure(TS_LOG_ERROR, ts_world_rank(world) == 0);
  parent = ts_strdup(tap_directory_all(MPI_COMM_WORLD));
  static const char *const stages[] = {"zero_optimization.stage=0", "zero_optimization.stage=1",
                                       "zero_optimization.stage=2 gradient_accumulation_steps=2",
                                       "zero_optimization.stage=3", "bf16.enabled=true zero_optimization.stage=3"};
  for (int i = 0; i < 5; ++i) {
    test_exact(world, stages[i]);
    test_overflow(world, stages[i]);
  }
  if (ts_world_size(world) == 2) {
    test_overflow(world, "tensor_parallel.autotp_size=2");
    test_overflow(world, "sequence_parallel_size=2");
    test_exact(world, "sequence_parallel_size=2");
  }
  test_stuck(world);
  test_unchecked(world);
  test_predivided(world);
  test_zero(world, NULL);
  test_zero(world, &by_two);
  test_autocast(world);
  static const ts_loss_scaler torch = {
      .rule = TS_LOSS_SCALE_TORCH, .initial = 256, .minimum = 1, .window = 2, .hysteresis = 1};
  static const ts_loss_scaler again = {
      .rule = TS_LOSS_SCALE_DYNAMIC, .initial = 256, .minimum = 1, .window = 2, .hysteresis = 3, .consecutive = true};
  test_resume(world, &by_two, "dynamic");
  test_resume(world, &again, "consecutive hysteresis");
  test_resume(world, &torch, "GradScaler's rule");
  test_change(world);
  ts_free(parent);
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
