/* Steps that a program goes through by itself: the bits of whole steps, of accumulation at stage 1 where reductions are
 * put off, how many collectives that takes, every wrong order of calls, and models of a program's own, whose gradients
 * are those of finite differences. */
#include "regression/subject.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include "base/heartbeat.h"
#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

enum { STEPS = 2, MICRO_BATCHES = 3 };

/* Which parts there are decides the order of the norm's sum. */
#define SMALL_PARTS "zero_optimization.stage3_param_persistence_threshold=100"

/* Three micro-batches of two samples on each rank, and what else is said; ts_free. */
static char *accumulating(const ts_world *world, const char *more) {
  return ts_format("train_batch_size=%d train_micro_batch_size_per_gpu=2 gradient_accumulation_steps=%d %s",
                   2 * MICRO_BATCHES * ts_world_size(world), MICRO_BATCHES, more);
}

/* ---- engines ---- */

static uint64_t entered(const subject *s) {
  ts_beat beat;
  ts_heartbeat_read(ts_world_heartbeat(s->world), &beat);
  return beat.entered;
}

/* ---- the decks' models ---- */

static void set_micro_batch(const subject *s, const ts_batch *batch, int m) {
  ts_error err = {0};
  int64_t each = s->deck->train_micro_batch_size_per_gpu;
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    size_t bytes = ts_batch_bytes(batch, (ts_input_kind) i) * (size_t) each;
    if ((ts_engine_inputs(s->engine) >> i & 1) != 0) {
      must(ts_set_input(s->engine, ts_input_get((ts_input_kind) i)->name, (char *) batch->input[i] + bytes * (size_t) m,
                        &err),
           &err);
    }
  }
}

typedef enum way { PLAIN, NO_SYNC, COALESCE, TWICE, N_WAYS } way; /* TWICE: two blocks of coalesce */
static const char *const way_name[] = {"one by one", "no_sync", "coalesce", "coalesce twice"};

/* A step of three micro-batches.  \return collectives of the end of a block */
static uint64_t go(const subject *s, way how, int64_t step, ts_step_result *result) {
  ts_error err = {0};
  ts_batch *batch = train_run_batch(s->engine, s->deck, step);
  uint64_t reductions = 0;
  for (int m = 0; m < MICRO_BATCHES; ++m) {
    bool first_ends = how == TWICE && m == 0, last = m == MICRO_BATCHES - 1;
    bool begins = m == 0 || (how == TWICE && m == 1);
    bool ends = first_ends || (how == NO_SYNC ? m == MICRO_BATCHES - 2 : last);
    if (begins && how != PLAIN) {
      must((how == NO_SYNC ? ts_no_sync_begin : ts_coalesce_grad_reduction_begin)(s->engine, &err), &err);
    }
    set_micro_batch(s, batch, m);
    must(ts_forward(s->engine, &err), &err);
    must(ts_backward(s->engine, 1, &err), &err);
    if (ends && how != PLAIN) {
      uint64_t before = entered(s);
      must((how == NO_SYNC ? ts_no_sync_end : ts_coalesce_grad_reduction_end)(s->engine, &err), &err);
      reductions = entered(s) - before;
    }
    if (how == PLAIN) {
      must(ts_step(s->engine, result, &err), &err);
    }
  }
  if (how != PLAIN) {
    must(ts_set_gradient_accumulation_boundary(s->engine, true, &err), &err);
    must(ts_step(s->engine, result, &err), &err);
  }
  ts_batch_destroy(&batch);
  return reductions;
}

typedef struct course {
  double loss[STEPS], norm[STEPS];
  uint64_t digest;
} course;

static bool is_equal(const course *a, const course *b) {
  return memcmp(a->loss, b->loss, sizeof a->loss) == 0 && memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
         a->digest == b->digest;
}

/* Sums in another order, of gradients that are \a rounded: in fp32 (1e-5), or in messages or all along in bf16, by 2^-9
 * each, of which a norm of many has a part (1e-3). */
static bool is_near(const course *a, const course *b, double rounded) {
  bool near = true;
  for (int i = 0; i < STEPS; ++i) {
    near =
        near && fabs(a->loss[i] - b->loss[i]) < 1e-3 && fabs(a->norm[i] / b->norm[i] - 1) < (i == 0 ? rounded : 1e-2);
  }
  return near;
}

/* Reductions are what a step sends once, by nodes of the program. */
static uint64_t count_reductions(const subject *s) {
  const ts_graph *g = ts_engine_program(s->engine)->graph;
  uint64_t n = 0;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    n += ts_node_is_collective(&g->node[i]) && g->node[i].segment == TS_SEGMENT_REDUCE;
  }
  return n;
}

static course whole_steps(ts_world *world, const char *text, const char *sets, unsigned more) {
  subject s = open_subject(world, text, sets, TS_CAN_TRAIN | more, NULL);
  course c = {0};
  for (int64_t step = 0; step < STEPS; ++step) {
    ts_step_result r = train_run_step(s.engine, s.deck, step);
    c.loss[step] = r.loss;
    c.norm[step] = r.grad_norm;
  }
  c.digest = train_run_digest(s.engine);
  close_subject(&s);
  return c;
}

static course steps_by_hand(ts_world *world, const char *text, const char *sets, way how, bool *counts) {
  subject s = open_subject(world, text, sets, TS_CAN_TRAIN | TS_CAN_STEP | (how != PLAIN ? TS_CAN_DEFER : 0), NULL);
  course c = {0};
  *counts = true;
  for (int64_t step = 0; step < STEPS; ++step) {
    ts_step_result r = {0};
    uint64_t reductions = go(&s, how, step, &r), wanted = how >= COALESCE ? count_reductions(&s) : 0;
    bool counted = reductions == wanted || is_stand_in; /* where runs are counted, not collectives */
    *counts = *counts && counted && (how < COALESCE || ts_world_size(world) == 1 || wanted > 0);
    c.loss[step] = r.loss;
    c.norm[step] = r.grad_norm;
  }
  c.digest = train_run_digest(s.engine);
  close_subject(&s);
  return c;
}

static void test_decks(ts_world *world, const char *name, const char *text, const char *precision, double rounded) {
  char *more = ts_format("%s " SMALL_PARTS " zero_optimization.stage=1", precision);
  char *first = accumulating(world, more);
  ts_free(more);
  course stage_1 = whole_steps(world, text, first, 0), twice = {0};
  for (int stage = 0; stage <= 3; stage += is_stand_in ? 3 : 1) {
    more = ts_format("%s " SMALL_PARTS " zero_optimization.stage=%d", precision, stage);
    char *sets = accumulating(world, more);
    course whole = whole_steps(world, text, sets, 0);
    course deferring = whole_steps(world, text, sets, TS_CAN_STEP | TS_CAN_DEFER);
    tap_ok_all(MPI_COMM_WORLD, is_equal(&deferring, &stage_1),
               "%s, %s, stage %d: whole steps of an engine that can defer: the bits of accumulation at stage 1", name,
               precision, stage);
    for (way how = PLAIN; how < N_WAYS; ++how) {
      bool counts;
      course c = steps_by_hand(world, text, sets, how, &counts);
      if (how == TWICE) {
        twice = stage == 0 ? c : twice;
        tap_ok_all(MPI_COMM_WORLD, is_near(&c, &stage_1, rounded) && is_equal(&c, &twice) && counts,
                   "%s, %s, stage %d, %s: near accumulation at stage 1, the bits of stage 0", name, precision, stage,
                   way_name[how]);
        continue;
      }
      tap_ok_all(MPI_COMM_WORLD, is_equal(&c, how == PLAIN ? &whole : &stage_1) && counts,
                 "%s, %s, stage %d, %s: the bits of %s", name, precision, stage, way_name[how],
                 how == PLAIN ? "whole steps" : "accumulation at stage 1");
    }
    ts_free(sets);
    ts_free(more);
  }
  ts_free(first);
}

/* ---- wrong orders ---- */

static void refused(ts_status status, ts_error *err, const char *rule) {
  tap_ok_all(MPI_COMM_WORLD, status == TS_BAD_INPUT && err->count > 0 && strstr(err->text, rule) != NULL, "%s",
             err->count > 0 ? err->text : "nothing is refused");
  ts_error_clear(err);
}

static void test_orders(ts_world *world) {
  ts_error err = {0};
  char *sets = accumulating(world, "");
  subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN | TS_CAN_STEP | TS_CAN_DEFER, NULL);
  ts_batch *batch = train_run_batch(s.engine, s.deck, 0);
  float number = 0;
  double a, b;
  set_micro_batch(&s, batch, 0);
  refused(ts_backward(s.engine, 1, &err), &err, "call ts_forward before");
  refused(ts_step(s.engine, NULL, &err), &err, "there is no gradient");
  refused(ts_get_loss(s.engine, &a, &b, &err), &err, "call ts_forward before");
  refused(ts_set_input(s.engine, "pixels", &number, &err), &err, "no input pixels");
  refused(ts_no_sync_end(s.engine, &err), &err, "there was no ts_no_sync_begin");
  refused(ts_coalesce_grad_reduction_end(s.engine, &err), &err, "there was no");
  refused(ts_set_training(s.engine, false, &err), &err, "without TS_CAN_EVALUATE");
  must(ts_forward(s.engine, &err), &err);
  refused(ts_get_output(s.engine, "y", &number, &err), &err, "no output y");
  refused(ts_set_output_gradient(s.engine, "y", &number, &err), &err, "without TS_CAN_SEED");
  must(ts_backward(s.engine, 1, &err), &err);
  refused(ts_backward(s.engine, 1, &err), &err, "call ts_forward before");
  must(ts_no_sync_begin(s.engine, &err), &err);
  refused(ts_no_sync_begin(s.engine, &err), &err, "do not nest");
  refused(ts_coalesce_grad_reduction_begin(s.engine, &err), &err, "do not nest");
  refused(ts_coalesce_grad_reduction_end(s.engine, &err), &err, "there was no");
  refused(ts_step(s.engine, NULL, &err), &err, "not inside of ts_no_sync");
  refused(ts_zero_grad(s.engine, &err), &err, "not inside of");
  refused(ts_set_gradient_accumulation_boundary(s.engine, true, &err), &err, "not inside of");
  must(ts_no_sync_end(s.engine, &err), &err);
  must(ts_step(s.engine, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, !ts_was_step_applied(s.engine), "the first of three micro-steps updates nothing");
  close_subject(&s);
  s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN | TS_CAN_STEP, NULL);
  refused(ts_no_sync_begin(s.engine, &err), &err, "without TS_CAN_DEFER");
  must(ts_set_gradient_accumulation_boundary(s.engine, true, &err), &err);
  set_micro_batch(&s, batch, 0);
  must(ts_forward(s.engine, &err), &err);
  must(ts_backward(s.engine, 1, &err), &err);
  must(ts_forward(s.engine, &err), &err);
  refused(ts_backward(s.engine, 1, &err), &err, "reduced its gradients");
  must(ts_step(s.engine, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_was_step_applied(s.engine) && ts_global_grad_norm(s.engine) > 0,
             "a micro-step that the caller calls the last one updates");
  ts_batch_destroy(&batch);
  close_subject(&s);
  s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN, NULL);
  refused(ts_forward(s.engine, &err), &err, "without TS_CAN_STEP");
  close_subject(&s);
  ts_free(sets);
}

/* ---- state in files ---- */

/* Between the last backward and the step the program doubles the gradient of a matrix: the norm is that of what it
 * wrote. */
static void double_gradient(ts_engine *engine) {
  ts_error err = {0};
  int64_t extent[TS_MAX_DIMS];
  int i = 0;
  while (strcmp(ts_parameter_name(engine, i), "model.layers.1.mlp.down_proj.weight") != 0) {
    ++i;
  }
  int64_t n = 1;
  for (int d = ts_parameter_shape(engine, i, extent) - 1; d >= 0; --d) {
    n *= extent[d];
  }
  float *g = ts_malloc((size_t) n * sizeof *g);
  must(ts_get_full_fp32_gradient(engine, ts_parameter_name(engine, i), g, &err), &err);
  for (int64_t k = 0; k < n; ++k) {
    g[k] *= 2;
  }
  must(ts_set_full_fp32_gradient(engine, ts_parameter_name(engine, i), g, &err), &err);
  ts_free(g);
}

/* Steps of two micro-batches, of an engine that was made for steps of one. */
static course in_twos(ts_world *world, const char *sets) {
  ts_error err = {0};
  subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN | TS_CAN_STEP, NULL);
  course c = {0};
  for (int64_t step = 0; step < STEPS; ++step) {
    ts_step_result r = {0};
    for (int m = 0; m < 2; ++m) {
      ts_batch *batch = train_run_batch(s.engine, s.deck, 2 * step + m);
      set_micro_batch(&s, batch, 0);
      must(ts_set_gradient_accumulation_boundary(s.engine, m == 1, &err), &err);
      must(ts_forward(s.engine, &err), &err);
      must(ts_backward(s.engine, 1, &err), &err);
      if (m == 1 && step % 2 == 1) {
        double_gradient(s.engine);
      }
      must(ts_step(s.engine, &r, &err), &err);
      ts_batch_destroy(&batch);
    }
    c.loss[step] = r.loss;
    c.norm[step] = r.grad_norm;
  }
  c.digest = train_run_digest(s.engine);
  close_subject(&s);
  return c;
}

/* What the forward stores, and what a rank is planned to need. */
static int64_t stored_ahead(ts_world *world, const char *sets, int64_t *peak) {
  subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN | TS_CAN_STEP, NULL);
  const ts_program *program = ts_engine_program(s.engine);
  int64_t n = 0;
  for (ts_nid i = 0; i < program->graph->n_nodes; ++i) {
    n += program->graph->node[i].op == TS_OP_STORE && program->graph->node[i].segment == TS_SEGMENT_FORWARD;
  }
  *peak = program->plan->peak_bytes;
  close_subject(&s);
  return n;
}

/* Whether it runs within so many bytes. */
static bool fits(ts_world *world, const char *sets, int64_t limit) {
  ts_error err = {0};
  char *all = ts_format(DEVICE "%s run.memory_limit=%lldL", sets, (long long) limit);
  ts_deck *deck = train_run_deck(world, train_run_llama, all);
  ts_engine *engine = NULL;
  bool yes = ts_initialize(NULL, deck, world, TS_CAN_TRAIN | TS_CAN_STEP, &engine, &err) == TS_OK;
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  ts_error_clear(&err);
  ts_free(all);
  return yes;
}

/* A limit a little above the smallest sends activations to files, too: of blocks whose inputs take most. */
static void test_activations_in_files(ts_world *world) {
  int64_t most, peak, least = 0, limit = (int64_t) 1 << 30;
  const char *directory = tap_directory_all(MPI_COMM_WORLD);
  char *deep = ts_format("gradient_accumulation_steps=1 model.num_hidden_layers=12 model.hidden_size=120 "
                         "model.intermediate_size=120 data.sequence_length=32 train_micro_batch_size_per_gpu=128 "
                         "activation_checkpointing.enabled=true zero_optimization.stage=3 train_batch_size=%d",
                         128 * ts_world_size(world));
  char *blocks = ts_format("%s zero_optimization.offload_optimizer={device=\"auto\";nvme_path=\"%s\";} "
                           "activation_checkpointing.cpu_checkpointing=true aio={block_size=65536;queue_depth=1;}",
                           deep, directory);
  course expected = in_twos(world, deep);
  int64_t before = stored_ahead(world, blocks, &most);
  while (limit - least > 16384) {
    int64_t middle = least + (limit - least) / 2;
    *(fits(world, blocks, middle) ? &limit : &least) = middle;
  }
  limit += 2 << 20; /* what the process takes beside its plan differs from one engine to the next */
  char *limited = ts_format("%s run.memory_limit=%lldL", blocks, (long long) limit);
  int64_t stored = stored_ahead(world, limited, &peak);
  course c = in_twos(world, limited);
  tap_ok_all(
      MPI_COMM_WORLD, before == 0 && stored > 0 && peak < most && is_equal(&c, &expected),
      "steps of twice as many, %lld activations in files under %lld bytes, a plan of %lld for %lld: the same bits",
      (long long) stored, (long long) limit, (long long) peak, (long long) most);
  ts_free(limited);
  ts_free(blocks);
  ts_free(deep);
}

static void test_files(ts_world *world) {
  const char *directory = tap_directory_all(MPI_COMM_WORLD);
  char *memory = ts_format("gradient_accumulation_steps=1 zero_optimization.stage=3 "
                           "zero_optimization.stage3_param_persistence_threshold=0 train_batch_size=%d",
                           2 * ts_world_size(world));
  course expected = in_twos(world, memory);
  char *sets =
      ts_format("%s zero_optimization.offload_optimizer={device=\"nvme\";nvme_path=\"%s\";}", memory, directory);
  for (int i = 0; i < 2; ++i) {
    course c = in_twos(world, sets);
    tap_ok_all(MPI_COMM_WORLD, is_equal(&c, &expected), "steps of twice as many, %s in files: the same bits",
               i == 0 ? "states" : "states and parameters");
    char *all = ts_format("%s zero_optimization.offload_param={device=\"nvme\";nvme_path=\"%s\";}", sets, directory);
    ts_free(sets);
    sets = all;
  }
  ts_free(sets);
  ts_free(memory);
}

/* ---- inputs ---- */

typedef struct other_samples {
  const subject *subject;
  const ts_batch *batch;
} other_samples;

static void give_others(ts_engine *engine, int64_t micro_batch, void *user) {
  const other_samples *others = user;
  (void) engine;
  set_micro_batch(others->subject, others->batch, (int) micro_batch);
}

/* What was set stays, though an evaluation of other samples and a forward without training come between.  With dropout
 * the two programs have other inputs. */
static void test_inputs_stay(ts_world *world) {
  ts_error err = {0};
  char *sets = accumulating(world, "");
  subject s = open_subject(world, train_run_gpt2, sets, TS_CAN_STEP | TS_CAN_EVALUATE, NULL);
  ts_batch *batch = train_run_batch(s.engine, s.deck, 0), *other = train_run_batch(s.engine, s.deck, 1);
  other_samples others = {&s, other};
  double loss[4], labels;
  set_micro_batch(&s, batch, 0);
  for (int i = 0; i < 4; ++i) { /* trained, evaluated, and the same after other samples */
    must(ts_set_training(s.engine, i % 2 == 0, &err), &err);
    must(ts_forward(s.engine, &err), &err);
    must(ts_get_loss(s.engine, &loss[i], &labels, &err), &err);
    if (i == 1) {
      double sum;
      must(ts_eval_batch(s.engine, &(ts_feed){give_others, NULL, &others}, 2, &sum, &labels, &err), &err);
    }
  }
  tap_ok_all(MPI_COMM_WORLD, loss[0] == loss[2] && loss[0] != loss[1], "inputs stay through evaluations: %.6g, %.6g",
             loss[0], loss[2]);
  ts_batch_destroy(&batch);
  ts_batch_destroy(&other);
  ts_free(sets);
  close_subject(&s);
}

/* What forwards say of the loss is what the step says, with the part for the balance of experts. */
static void test_balance(ts_world *world) {
  ts_error err = {0};
  char *sets = accumulating(world, "moe={num_experts=4;k=2;aux_loss_coef=0.1;z_loss_coef=0.01;drop_tokens=false;}");
  subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN | TS_CAN_STEP, NULL);
  ts_batch *batch = train_run_batch(s.engine, s.deck, 0);
  ts_step_result result = {0};
  double sum[2] = {0, 0}, all[2];
  for (int m = 0; m < MICRO_BATCHES; ++m) {
    double loss, labels;
    set_micro_batch(&s, batch, m);
    must(ts_forward(s.engine, &err), &err);
    must(ts_get_loss(s.engine, &loss, &labels, &err), &err);
    sum[0] += loss;
    sum[1] += labels;
    must(ts_backward(s.engine, 1, &err), &err);
    must(ts_step(s.engine, &result, &err), &err);
  }
  MPI_Allreduce(sum, all, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  tap_ok_all(MPI_COMM_WORLD, result.balance > 0.01 && fabs(all[0] / all[1] / result.loss - 1) < 1e-12,
             "the loss of forwards has the balance of experts: %.9g, of which %.3g", all[0] / all[1], result.balance);
  ts_batch_destroy(&batch);
  ts_free(sets);
  close_subject(&s);
}

/* ---- a model of one's own ---- */

enum { IN = 6, HIDDEN = 40, OUT = 5 };

/* y [batch][5] of x [batch][6], through a hidden layer twice. */
static void write_model(ts_builder *b, void *user) {
  double *dropout = user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){IN}, 0);
  ts_builder_module(b, "net", "Net");
  ts_builder_unit(b, "net.first");
  ts_tid h = ts_builder_linear(b, "in", x, HIDDEN, true);
  h = ts_builder_activation(b, "act", h, TS_ACTIVATION_GELU);
  h = ts_builder_reshape(b, "rows", h, 3, (int64_t[]){ts_builder_batch(b), 1, HIDDEN});
  h = ts_builder_dropout(b, "drop", h, *dropout);
  ts_builder_unit(b, "net.second");
  h = ts_builder_rmsnorm(b, "norm", h, 1e-6);
  ts_tid y = ts_builder_linear(b, "out", h, OUT, true);
  ts_builder_output(b, "y", y);
}

static const char own_deck[] = "model = { model_type = \"own\"; };\n"
                               "run = { directory = \"none\"; seed = 5; threads = 1; };\n"
                               "gradient_clipping = 0.0;\n"
                               "optimizer = { type = \"SGD\"; params = { lr = 1.0; weight_decay = 0.0; }; };\n";

static double number_at(int64_t sample, int64_t element, uint64_t what) {
  uint32_t w[4];
  ts_philox(what, (uint64_t) sample, (uint64_t) element, w);
  return w[0] / 4294967296.0 - 0.5;
}

/* Half the squared distance to the targets, over all samples of all ranks, and the gradient of this rank's outputs. */
static double loss_of(const subject *s, int64_t each, float *gradient) {
  ts_error err = {0};
  float *x = ts_calloc((size_t) (each * IN), sizeof *x), *y = ts_calloc((size_t) (each * OUT), sizeof *y);
  int64_t *numbers = ts_calloc((size_t) each, sizeof *numbers);
  int64_t first = ts_world_rank(s->world) * each;
  double loss = 0;
  for (int64_t i = 0; i < each * IN; ++i) {
    x[i] = (float) number_at(first + i / IN, i % IN, 1);
  }
  for (int64_t i = 0; i < each; ++i) {
    numbers[i] = first + i;
  }
  must(ts_set_input(s->engine, "x", x, &err), &err);
  ts_set_input(s->engine, "sample", numbers, NULL);
  must(ts_forward(s->engine, &err), &err);
  must(ts_get_output(s->engine, "y", y, &err), &err);
  for (int64_t i = 0; i < each * OUT; ++i) {
    double d = y[i] - number_at(first + i / OUT, i % OUT, 2);
    loss += d * d / 2;
    if (gradient != NULL) {
      gradient[i] = (float) d;
    }
  }
  double *all = ts_world_gather(s->world, &loss, sizeof loss);
  loss = 0;
  for (int r = 0; r < ts_world_size(s->world); ++r) {
    loss += all[r];
  }
  ts_free(all);
  ts_free(x);
  ts_free(y);
  ts_free(numbers);
  return loss;
}

/* One element of a parameter, changed by hand. */
static double loss_beside(const subject *s, int64_t each, const char *name, int64_t element, float by) {
  const ts_parameter *p = ts_layout_find(ts_engine_layout(s->engine), name);
  float *value = ts_calloc((size_t) ts_shape_count(&p->shape), sizeof *value);
  ts_error err = {0};
  must(ts_get_full_fp32_parameter(s->engine, name, value, &err), &err);
  value[element] += by;
  must(ts_set_full_fp32_parameter(s->engine, name, value, &err), &err);
  double loss = loss_of(s, each, NULL);
  value[element] -= by;
  must(ts_set_full_fp32_parameter(s->engine, name, value, &err), &err);
  ts_free(value);
  return loss;
}

static const struct {
  const char *name;
  int64_t element;
} looked_at[] = {{"net.first.in.weight", 17},
                 {"net.first.in.bias", 3},
                 {"net.second.norm.weight", 11},
                 {"net.second.out.weight", 77},
                 {"net.second.out.bias", 2}};
enum { N_LOOKED_AT = sizeof looked_at / sizeof *looked_at };

static void read_looked_at(const subject *s, double *value) {
  ts_error err = {0};
  float all[HIDDEN * IN + HIDDEN * OUT];
  for (int i = 0; i < N_LOOKED_AT; ++i) {
    must(ts_get_full_fp32_parameter(s->engine, looked_at[i].name, all, &err), &err);
    value[i] = all[looked_at[i].element];
  }
}

/* With SGD at a rate of 1 a step is the gradient. */
static void test_own(ts_world *world, int stage, double dropout) {
  const int64_t each = 12 / ts_world_size(world);
  char *sets = ts_format("train_micro_batch_size_per_gpu=%lld zero_optimization.stage=%d "
                         "zero_optimization.stage3_param_persistence_threshold=10",
                         (long long) each, stage);
  const ts_own_model model = {"two_layers", write_model, &dropout};
  subject s = open_subject(world, own_deck, sets, TS_CAN_STEP | TS_CAN_SEED | TS_CAN_EVALUATE, &model);
  ts_error err = {0};
  float *gradient = ts_calloc((size_t) (each * OUT), sizeof *gradient);
  double numeric[N_LOOKED_AT], before[N_LOOKED_AT], after[N_LOOKED_AT], worst = 0;
  const float h = 0.02f;
  for (int i = 0; i < N_LOOKED_AT; ++i) {
    const char *name = looked_at[i].name;
    int64_t at = looked_at[i].element;
    numeric[i] = (8 * (loss_beside(&s, each, name, at, h) - loss_beside(&s, each, name, at, -h)) -
                  (loss_beside(&s, each, name, at, 2 * h) - loss_beside(&s, each, name, at, -2 * h))) /
                 (12 * (double) h);
  }
  read_looked_at(&s, before);
  must(ts_set_training(s.engine, false, &err), &err);
  double evaluated = loss_of(&s, each, NULL);
  refused(ts_backward(s.engine, 1, &err), &err, "the last forward was an evaluation");
  must(ts_set_training(s.engine, true, &err), &err);
  double loss = loss_of(&s, each, gradient), again = loss_of(&s, each, gradient);
  must(ts_backward_from(s.engine, "y", gradient, &err), &err);
  ts_step_result r;
  must(ts_step(s.engine, &r, &err), &err);
  read_looked_at(&s, after);
  for (int i = 0; i < N_LOOKED_AT; ++i) {
    worst = fmax(worst, fabs(before[i] - after[i] - numeric[i]) / (fabs(numeric[i]) + 0.01));
  }
  /* fp32 losses near 3 differ by some 1e-6, over a step of 0.02 */
  tap_ok_all(MPI_COMM_WORLD, worst < 1e-3 && loss == again && r.valid_tokens > 0 && ts_was_step_applied(s.engine),
             "a model of one's own, stage %d, dropout %g: gradients of finite differences (%.1e)", stage, dropout,
             worst);
  tap_ok_all(MPI_COMM_WORLD, (evaluated == loss) == (dropout == 0), "evaluated without dropout: %.6g, trained %.6g",
             evaluated, loss);
  ts_free(gradient);
  ts_free(sets);
  close_subject(&s);
}

/* ---- what an engine refuses to be made of ---- */

static const struct {
  const char *what, *told;
  unsigned abilities;
} unfit[] = {{"no gradient reaches a parameter without TS_CAN_SEED", "no gradient of a loss comes to", TS_CAN_STEP},
             {"a parameter of the evaluation alone", "where the model is trained", TS_CAN_STEP | TS_CAN_SEED},
             {"a rule that the evaluation alone breaks", "one dtype and shape", TS_CAN_STEP | TS_CAN_SEED},
             {"a parameter behind soft labels alone",
              "no gradient of the loss or of an output comes to net.second.soft.weight", TS_CAN_STEP | TS_CAN_SEED}};

static void write_unfit(ts_builder *b, void *user) {
  const int *what = user;
  double dropout = 0;
  write_model(b, &dropout);
  if (*what == 3) {
    ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){IN}, 0),
           hard = ts_builder_linear(b, "hard", x, 3, false);
    ts_tid soft = ts_builder_linear(b, "soft", x, 3, false);
    ts_builder_loss(b, "loss", ts_builder_soft_cross_entropy(b, "both", hard, soft, 1), TS_NONE, 1);
  } else if (ts_builder_use(b) == TS_MODEL_LOSS && *what > 0) {
    ts_tid h = ts_builder_parameter(b, "late", 1, (int64_t[]){3}, (ts_init){TS_INIT_ONE, 0});
    ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){IN}, 0);
    ts_builder_output(b, "late", *what == 1 ? ts_builder_scale(b, "z", h, 2) : ts_builder_add(b, "z", h, x));
  }
}

static void test_unfit(ts_world *world) {
  for (int i = 0; i < (int) (sizeof unfit / sizeof *unfit); ++i) {
    const ts_own_model model = {"unfit", write_unfit, &i};
    ts_deck *deck = train_run_deck(world, own_deck, DEVICE "train_micro_batch_size_per_gpu=2");
    ts_engine *engine = NULL;
    ts_error err = {0};
    ts_status status = ts_initialize(&model, deck, world, unfit[i].abilities | TS_CAN_EVALUATE, &engine, &err);
    tap_ok_all(MPI_COMM_WORLD, status == TS_BAD_INPUT && strstr(err.text, unfit[i].told) != NULL, "%s: %s",
               unfit[i].what, err.count > 0 ? err.text : "taken");
    ts_error_clear(&err);
    ts_engine_destroy(&engine);
    ts_deck_destroy(&deck);
  }
}

/* A loss scale without a loss: gradients of outputs have it, and the step divides by it. */
static void test_scaled_outputs(ts_world *world) {
  double norm[2], dropout = 0;
  const int64_t each = 12 / ts_world_size(world);
  const ts_own_model model = {"two_layers", write_model, &dropout};
  float gradient[12 * OUT];
  for (int i = 0; i < 2; ++i) {
    char *sets = ts_format("train_micro_batch_size_per_gpu=%lld %s", (long long) each,
                           i == 1 ? "fp16.enabled=true fp16.initial_scale_power=8" : "");
    subject s = open_subject(world, own_deck, sets, TS_CAN_STEP | TS_CAN_SEED, &model);
    ts_error err = {0};
    loss_of(&s, each, gradient);
    for (int k = 0; k < each * OUT; ++k) {
      gradient[k] = (float) ts_scale(s.engine, gradient[k]);
    }
    must(ts_backward_from(s.engine, "y", gradient, &err), &err);
    must(ts_step(s.engine, NULL, &err), &err);
    norm[i] = ts_global_grad_norm(s.engine);
    close_subject(&s);
    ts_free(sets);
  }
  /* fp16 has 11 bits: 2^-11 = 5e-4, at some ten places one behind another */
  tap_ok_all(MPI_COMM_WORLD, norm[0] > 0 && fabs(norm[1] / norm[0] - 1) < 5e-3,
             "outputs alone, in fp16: a norm of %.6g, %.6g in fp32", norm[1], norm[0]);
}

/* ---- what a step begins with ---- */

/* Samples that are there already; a feed begins nothing. */
static void feed_same(ts_engine *engine, int64_t micro_batch, void *user) {
  const subject *s = user;
  ts_error err = {0};
  ts_batch *batch = train_run_batch(engine, s->deck, 0);
  set_micro_batch(s, batch, (int) micro_batch);
  ts_batch_destroy(&batch);
  const char *const why = "not from a feed";
  float values[64];
  refused(ts_forward(engine, &err), &err, why);
  refused(ts_zero_grad(engine, &err), &err, why);
  refused(ts_set_train_batch_size(engine, ts_train_batch_size(engine), &err), &err, why);
  refused(ts_set_gradient_accumulation_boundary(engine, true, &err), &err, why);
  refused(ts_set_training(engine, true, &err), &err, why);
  refused(ts_set_full_fp32_parameter(engine, ts_parameter_name(engine, 0), values, &err), &err, why);
  refused(ts_save_checkpoint(engine, "none", NULL, NULL, 0, &err), &err, why);
  refused(ts_load_checkpoint(engine, "none", NULL, NULL, NULL, NULL, NULL, &err), &err, why);
  refused(ts_save_16bit_model(engine, "none", NULL, false, NULL, &err), &err, why);
}

/* Micro-steps of a step that ts_zero_grad gave up count for no other one. */
static void test_counts(ts_world *world) {
  char *sets = accumulating(world, "");
  subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN | TS_CAN_STEP, NULL);
  ts_batch *batch = train_run_batch(s.engine, s.deck, 0);
  const ts_feed feed = {.feed = feed_same, .user = &s};
  ts_error err = {0};
  set_micro_batch(&s, batch, 0);
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < MICRO_BATCHES - 1; ++k) {
      must(ts_forward(s.engine, &err), &err);
      must(ts_backward(s.engine, 1, &err), &err);
      must(ts_step(s.engine, NULL, &err), &err);
    }
    must(ts_zero_grad(s.engine, &err), &err);
    bool was_last = ts_is_gradient_accumulation_boundary(s.engine);
    must(i == 0 ? ts_train_batch(s.engine, &feed, NULL, &err)
                : ts_set_train_batch_size(s.engine, ts_train_batch_size(s.engine), &err),
         &err);
    tap_ok_all(MPI_COMM_WORLD, was_last && !ts_is_gradient_accumulation_boundary(s.engine), "%s begins a step anew",
               i == 0 ? "a whole step" : "another batch");
  }
  ts_batch_destroy(&batch);
  close_subject(&s);
  ts_free(sets);
}

/* An engine whose micro-batches go by unit takes steps of as many. */
static void test_sizes(ts_world *world) {
  char *sets = accumulating(world, "run.accumulation_order=unit");
  subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN, NULL);
  ts_error err = {0};
  int64_t size = ts_train_batch_size(s.engine);
  must(ts_set_train_batch_size(s.engine, size, &err), &err);
  refused(ts_set_train_batch_size(s.engine, 2 * size, &err), &err, "puts 3 together");
  refused(ts_set_train_batch_size(s.engine, size / MICRO_BATCHES, &err), &err, "puts 3 together");
  tap_ok_all(MPI_COMM_WORLD, ts_train_batch_size(s.engine) == size, "another size is refused");
  close_subject(&s);
  ts_free(sets);
}

/* ---- leaf modules ---- */

/* A step of the model; \return how many units are gathered. */
static int step_with(ts_world *world, const char *set, double after[N_LOOKED_AT]) {
  const int64_t each = 12 / ts_world_size(world);
  double dropout = 0;
  char *sets = ts_format("train_micro_batch_size_per_gpu=%lld zero_optimization.stage=3 "
                         "zero_optimization.stage3_param_persistence_threshold=10 %s",
                         (long long) each, set);
  const ts_own_model model = {"two_layers", write_model, &dropout};
  subject s = open_subject(world, own_deck, sets, TS_CAN_STEP | TS_CAN_SEED, &model);
  ts_error err = {0};
  float *gradient = ts_calloc((size_t) (each * OUT), sizeof *gradient);
  loss_of(&s, each, gradient);
  must(ts_backward_from(s.engine, "y", gradient, &err), &err);
  must(ts_step(s.engine, NULL, &err), &err);
  read_looked_at(&s, after);
  int units = ts_engine_program(s.engine)->graph->n_units;
  close_subject(&s);
  ts_free(gradient);
  ts_free(sets);
  return units;
}

static void test_leaf_modules(ts_world *world) {
  static const char *const named[] = {"names=net", "classes=Net", "name_suffixes=et"};
  double apart[N_LOOKED_AT], together[N_LOOKED_AT];
  int units = step_with(world, "", apart);
  for (size_t i = 0; i < sizeof named / sizeof *named; ++i) {
    char *set = ts_format("zero_optimization.leaf_module.%s", named[i]);
    bool one = step_with(world, set, together) == 1;
    tap_ok_all(MPI_COMM_WORLD, units == 2 && one && memcmp(apart, together, sizeof apart) == 0,
               "leaf_module.%s: one unit, the same bits", named[i]);
    ts_free(set);
  }
}

/* ---- the plan ---- */

/* Of the llama on two ranks; what abilities cost is in it. */
static ts_planned_memory planned(int stage, unsigned abilities) {
  char *at_stage = ts_format("zero_optimization.stage=%d", stage);
  char *sets[] = {"train_micro_batch_size_per_gpu=2", "gradient_accumulation_steps=3", "bf16.enabled=false",
                  "run.device=cpu", at_stage};
  ts_deck *deck;
  ts_planned_memory memory;
  ts_error err = {0};
  must(ts_deck_read_text("test", train_run_llama, sets, sizeof sets / sizeof *sets, &deck, &err), &err);
  must(ts_plan_memory(NULL, deck, 2, abilities, &memory, &err), &err);
  ts_deck_destroy(&deck);
  ts_free(at_stage);
  return memory;
}

static bool is_sum(const ts_planned_memory *m) {
  return m->peak ==
         m->parameters + m->gradients + m->optimizer + m->activations + m->buffers + m->checkpoint + m->reserve;
}

static void test_plan(void) {
  for (int stage = 0; stage <= 3; ++stage) {
    ts_planned_memory plain = planned(stage, TS_CAN_STEP), defers = planned(stage, TS_CAN_STEP | TS_CAN_DEFER);
    int64_t whole = planned(0, TS_CAN_STEP).parameters, more = defers.gradients - plain.gradients;
    /* fp32 gradients are as large as parameters: of the model at stages 2 and 3, else a shard */
    double wanted = stage < 2 ? 0.5 * (double) whole : (double) whole;
    tap_ok_all(MPI_COMM_WORLD, fabs((double) more / wanted - 1) < 0.25 && is_sum(&plain) && is_sum(&defers),
               "stage %d: what blocks keep is planned: %lld bytes of gradients more than %lld", stage, (long long) more,
               (long long) plain.gradients);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  test_decks(world, "llama", train_run_llama, "bf16.enabled=true", 1e-5);
  if (!is_stand_in) { /* a hundred times as slow */
    test_decks(world, "llama", train_run_llama, "bf16.enabled=false", 1e-5);
    test_decks(world, "gpt2", train_run_gpt2, "fp16.enabled=true", 1e-5);
    test_decks(world, "llama", train_run_llama, "torch_autocast.enabled=true", 1e-3);
    test_decks(world, "llama", train_run_llama, "bf16.enabled=true bf16.bf16_master_weights_and_grads=true", 1e-3);
  }
  test_orders(world);
  if (!is_stand_in) { /* files are not there yet on GPUs */
    test_files(world);
    if (!is_stand_in) { /* beside a device they leave without a limit, and first to the host */
      test_activations_in_files(world);
    }
  }
  test_inputs_stay(world);
  test_balance(world);
  for (int stage = 0; stage <= 3; ++stage) {
    test_own(world, stage, stage % 2 == 0 ? 0.2 : 0);
  }
  test_unfit(world);
  test_scaled_outputs(world);
  test_counts(world);
  test_sizes(world);
  test_leaf_modules(world);
  test_plan();
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return status;
}
