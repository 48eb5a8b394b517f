/* Steps that a program goes through by itself: forward, backward, step, in the order it likes.
 *
 * Gradients are in one of three places.  `local`: sums over this rank's micro-batches that nobody else has seen;
 * `reduced`: sums over ranks too; or nowhere, after an update.  A backward adds to the first (at ZeRO stages 2 and 3
 * without TS_CAN_DEFER it reduces and adds to the second), a reduction moves the first to the second, an update takes
 * the second:
 *
 *      ts_forward ──▶ ts_backward ──▶ local ──▶ reduction ──▶ reduced ──▶ ts_step at a boundary ──▶ updated
 *                     (no_sync, coalesce: stays here)  ▲
 *                                                      └── the end of a step, of coalesce, or ts_step
 *
 * All ranks make the same calls, so each finds the same order wrong; nothing is sent to agree on that. */
#include "engine/engine.h"

#include "base/memory.h"
#include "ops/build.h"

#include <math.h>
#include <string.h>

typedef enum ts_block_kind { NO_BLOCK, NO_SYNC, COALESCE } ts_block_kind;

static const char *const block_name[] = {"", "ts_no_sync", "ts_coalesce_grad_reduction"};

static int program_of(bool evaluating) {
  return evaluating ? TS_PROGRAM_EVALUATE : TS_PROGRAM_TRAIN;
}

ts_status ts_engine_check_no_feed(const ts_engine *e, const char *call, ts_error *err) {
  return !e->feeding.is_on ? TS_OK
                           : ts_error_add(err, "%s: not from a feed: its step or evaluation is under way", call);
}

ts_status ts_engine_check_ability(const ts_engine *e, unsigned ability, const char *call, const char *name,
                                  ts_error *err) {
  if (ts_engine_check_no_feed(e, call, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  return (e->abilities & ability) != 0 ? TS_OK : ts_error_add(err, "%s: the engine was made without %s", call, name);
}

#define CHECK_ABILITY(e, ability, call, err)                                         \
  do {                                                                               \
    if (ts_engine_check_ability((e), (ability), (call), #ability, (err)) != TS_OK) { \
      return TS_BAD_INPUT;                                                           \
    }                                                                                \
  } while (0)

ts_status ts_engine_check_idle(const ts_engine *e, const char *call, ts_error *err) {
  if (ts_engine_check_no_feed(e, call, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (e->hand.block != NO_BLOCK) {
    return ts_error_add(err, "%s: not inside of %s: end it before", call, block_name[e->hand.block]);
  }
  return e->hand.backwards == 0 ? TS_OK
                                : ts_error_add(err,
                                               "%s: a step by hand has gradients: call ts_step until it updates, or "
                                               "ts_zero_grad, before",
                                               call);
}

/* ---- inputs and outputs ---- */

ts_tid ts_engine_find_input(const ts_program *p, const char *name, int64_t m) {
  char *of_m = ts_together_name(name, m);
  ts_tid t = p != NULL ? ts_graph_find(p->graph, of_m) : TS_NONE;
  ts_free(of_m);
  return t != TS_NONE && p->graph->tensor[t].role == TS_ROLE_INPUT ? t : TS_NONE;
}

static bool declares(const ts_program *p, const char *name) {
  bool found = false;
  for (int i = 0; p != NULL && i < p->declared.n; ++i) {
    found = found || strcmp(p->declared.items[i], name) == 0;
  }
  return found;
}

ts_status ts_set_input(ts_engine *e, const char *name, const void *samples, ts_error *err) {
  ts_feeding *f = &e->feeding;
  bool found = false;
  for (int which = TS_PROGRAM_TRAIN; which <= TS_PROGRAM_EVALUATE; ++which) {
    ts_tid input = ts_engine_find_input(e->program[which], name, f->is_on ? f->member : 0);
    if (input != TS_NONE && (!f->is_on || f->which == which)) {
      ts_engine_write_input(e, which, f->is_on ? f->slot : 0, input, samples);
    }
    /* one feed is for both, and dropout's numbers are of training alone; an input that nothing reads is one, too */
    found = found || input != TS_NONE || declares(e->program[which], name);
  }
  if (!found && f->is_on && err != f->err) { /* the feed may not look */
    ts_error_add(f->err, "ts_set_input: the model has no input %s", name);
  }
  f->failed = f->failed || !found;
  return found ? TS_OK : ts_error_add(err, "ts_set_input: the model has no input %s", name);
}

/* The marked tensor of the last forward, in fp32. */
static void read_marked(ts_engine *e, const char *mark, float *value) {
  int which = program_of(e->hand.was_evaluated);
  const ts_graph *g = e->program[which]->graph;
  ts_tid t = ts_graph_marked(g, mark);
  size_t count = (size_t) ts_tensor_count(g, t);
  void *copy = ts_malloc((size_t) ts_tensor_bytes(g, t) + 1);
  ts_executor_read_result(e->executor, e->index[which], mark, copy);
  ts_convert(value, TS_F32, copy, g->tensor[t].dtype, count);
  ts_free(copy);
}

static ts_status check_forwarded(const ts_engine *e, const char *call, ts_error *err) {
  return e->hand.forwarded ? TS_OK
                           : ts_error_add(err,
                                          "%s: there are no values: call ts_forward before (a backward, a step and "
                                          "an evaluation end them)",
                                          call);
}

/* The tensor of an output, in the program of the last forward. */
static ts_status find_output(const ts_engine *e, const char *call, const char *name, char **mark, ts_tid *t,
                             ts_error *err) {
  const ts_program *p = e->program[program_of(e->hand.was_evaluated)];
  *mark = ts_format(TS_OUTPUT_MARK "%s", name);
  *t = p != NULL ? ts_graph_marked(p->graph, *mark) : TS_NONE;
  return *t != TS_NONE ? TS_OK : ts_error_add(err, "%s: the model has no output %s", call, name);
}

ts_status ts_get_output(ts_engine *e, const char *name, float *value, ts_error *err) {
  char *mark = NULL;
  ts_tid t;
  ts_status status = check_forwarded(e, "ts_get_output", err);
  status = status == TS_OK ? find_output(e, "ts_get_output", name, &mark, &t, err) : status;
  if (status == TS_OK) {
    read_marked(e, mark, value);
  }
  ts_free(mark);
  return status;
}

/* ---- forward ---- */

ts_status ts_set_training(ts_engine *e, bool training, ts_error *err) {
  if (ts_engine_check_no_feed(e, "ts_set_training", err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (!training) {
    CHECK_ABILITY(e, TS_CAN_EVALUATE, "ts_set_training", err);
  }
  e->hand.evaluating = !training;
  return TS_OK;
}

ts_status ts_forward(ts_engine *e, ts_error *err) {
  ts_hand_steps *h = &e->hand;
  if (h->evaluating) {
    CHECK_ABILITY(e, TS_CAN_EVALUATE, "ts_forward", err);
  } else {
    CHECK_ABILITY(e, TS_CAN_STEP, "ts_forward", err);
  }
  int which = program_of(h->evaluating);
  ts_engine_set_scalar(e, which, 0, "accumulate", h->backwards > 0);
  int64_t *seed = ts_executor_input(e->executor, e->index[which], 0, "seed");
  if (seed != NULL) {
    *seed = e->deck->run.seed;
  }
  if (h->evaluating) {
    ts_engine_set_control(e, which, 0, (const double[TS_N_FLAGS]){0});
    ts_step_runs *step = &e->program[which]->step;
    TS_CHECK(ts_step_set_micro_batches(step, 1), "an evaluation takes any number of micro-batches");
    for (int64_t i = 0; i < step->n; ++i) {
      ts_executor_run(e->executor, e->index[which], i);
    }
  } else {
    ts_executor_run_one(e->executor, e->index[which], ts_step_run_by_hand(TS_HAND_FORWARD));
  }
  h->forwarded = true;
  h->was_evaluated = h->evaluating;
  h->seeded = false;
  return TS_OK;
}

ts_status ts_get_loss(ts_engine *e, double *sum, double *valid, ts_error *err) {
  if (check_forwarded(e, "ts_get_loss", err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  int which = program_of(e->hand.was_evaluated);
  if (ts_graph_marked(e->program[which]->graph, "loss") == TS_NONE) {
    return ts_error_add(err, "ts_get_loss: the model has no loss");
  }
  double balance = 0; /* in training, of experts */
  ts_executor_read_result(e->executor, e->index[which], "loss", sum);
  ts_executor_read_result(e->executor, e->index[which], "valid", valid);
  if (ts_graph_marked(e->program[which]->graph, "balance") != TS_NONE) {
    ts_executor_read_result(e->executor, e->index[which], "balance", &balance);
  }
  *sum += balance;
  return TS_OK;
}

/* ---- backward ---- */

bool ts_is_gradient_accumulation_boundary(const ts_engine *e) {
  const ts_hand_steps *h = &e->hand;
  return h->boundary >= 0 ? h->boundary != 0 : (h->micro_steps + 1) % h->accumulation == 0;
}

ts_status ts_set_gradient_accumulation_boundary(ts_engine *e, bool is_boundary, ts_error *err) {
  if (ts_engine_check_no_feed(e, "ts_set_gradient_accumulation_boundary", err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (e->hand.block != NO_BLOCK) {
    return ts_error_add(err, "ts_set_gradient_accumulation_boundary: not inside of %s", block_name[e->hand.block]);
  }
  e->hand.boundary = is_boundary;
  return TS_OK;
}

double ts_scale(ts_engine *e, double loss) {
  double state[TS_LOSS_SCALE_SIZE];
  e->hand.scaled = true;
  return loss * (ts_engine_read_scale(e, state) ? state[TS_LOSS_SCALE] : 1);
}

static bool has_loss(const ts_engine *e) {
  return ts_graph_marked(e->program[TS_PROGRAM_TRAIN]->graph, "loss") != TS_NONE;
}

static ts_status check_backward(const ts_engine *e, const char *call, ts_error *err) {
  const ts_hand_steps *h = &e->hand;
  CHECK_ABILITY(e, TS_CAN_STEP, call, err);
  if (check_forwarded(e, call, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (h->was_evaluated) {
    return ts_error_add(err, "%s: the last forward was an evaluation, which keeps nothing to go back through", call);
  }
  if (h->reduced && (e->abilities & TS_CAN_DEFER) == 0 && e->deck->zero_optimization.stage < 2) {
    return ts_error_add(err,
                        "%s: the backward before was the step's last, which reduced its gradients: call ts_step, or "
                        "make the engine with TS_CAN_DEFER",
                        call);
  }
  return TS_OK;
}

/* The reductions of what is local. */
static void note_reduction(ts_hand_steps *h) {
  h->local = false;
  h->reduced = true;
}

static void set_betas(ts_engine *e) {
  const ts_hand_steps *h = &e->hand;
  ts_engine_set_scalar(e, TS_PROGRAM_TRAIN, 0, "accumulate", h->backwards > 0);
  ts_engine_set_scalar(e, TS_PROGRAM_TRAIN, 0, "accumulate_local", h->local);
  ts_engine_set_scalar(e, TS_PROGRAM_TRAIN, 0, "accumulate_reduced", h->reduced);
  ts_engine_set_scalar(e, TS_PROGRAM_TRAIN, 0, "nought", 0);
}

static void run_backward(ts_engine *e, double weight) {
  ts_hand_steps *h = &e->hand;
  bool last = h->block == NO_BLOCK && ts_is_gradient_accumulation_boundary(e);
  set_betas(e);
  ts_engine_set_scalar(e, TS_PROGRAM_TRAIN, 0, "gradient_seed", weight / ts_engine_static_tokens(e, TS_PROGRAM_TRAIN));
  ts_executor_run_one(e->executor, e->index[TS_PROGRAM_TRAIN],
                      ts_step_run_by_hand(last ? TS_HAND_LAST_BACKWARD : TS_HAND_BACKWARD));
  ++h->backwards;
  ++h->in_block;
  h->local = true;
  if (last) {
    note_reduction(h);
  }
  h->forwarded = h->seeded = h->scaled = false;
}

/* In fp16 the loss is not divided by the ranks before its backward, but behind it, with all gradients: those of outputs
 * are multiplied by them before. */
static void write_seed(ts_engine *e, ts_tid seed, const float *gradient) {
  const ts_graph *g = e->program[TS_PROGRAM_TRAIN]->graph;
  size_t count = (size_t) ts_tensor_count(g, seed);
  bool divided = has_loss(e) && e->scaler.rule != TS_LOSS_SCALE_NONE;
  float by = divided ? (float) ts_data_parallel_size(e) : 1;
  float *scaled = ts_malloc(count * sizeof *scaled);
  for (size_t i = 0; i < count; ++i) {
    scaled[i] = gradient[i] * by;
  }
  void *to = ts_executor_input(e->executor, e->index[TS_PROGRAM_TRAIN], 0, g->tensor[seed].name);
  ts_convert(to, g->tensor[seed].dtype, scaled, TS_F32, count);
  ts_free(scaled);
}

ts_status ts_set_output_gradient(ts_engine *e, const char *name, const float *gradient, ts_error *err) {
  const char *call = "ts_set_output_gradient";
  CHECK_ABILITY(e, TS_CAN_SEED, call, err);
  if (check_backward(e, call, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (e->scaler.rule != TS_LOSS_SCALE_NONE && !e->hand.scaled) {
    return ts_error_add(err,
                        "%s: gradients in fp16 need the loss scale: the gradient of ts_scale (engine, loss) is wanted, "
                        "and ts_scale was not called since the last backward",
                        call);
  }
  char *seed = ts_format(TS_SEED_LEAF "%s", name);
  const ts_program *p = e->program[TS_PROGRAM_TRAIN];
  ts_tid t = ts_engine_find_input(p, seed, 0);
  ts_status status = TS_OK;
  if (t == TS_NONE) {
    status = ts_error_add(err, "%s: the model has no output %s that depends on a trainable parameter", call, name);
  } else {
    if (!e->hand.seeded) {
      ts_engine_forget_seeds(e, 0);
    }
    write_seed(e, t, gradient);
    e->hand.seeded = true;
  }
  ts_free(seed);
  return status;
}

ts_status ts_backward(ts_engine *e, double weight, ts_error *err) {
  if (check_backward(e, "ts_backward", err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (!isfinite(weight)) {
    return ts_error_add(err, "ts_backward: the loss times %g has no gradient; accepted: a number", weight);
  }
  if (!has_loss(e) && !e->hand.seeded) {
    return ts_error_add(err, "ts_backward: the model has no loss, and no gradient of an output was given "
                             "(ts_set_output_gradient)");
  }
  if (!e->hand.seeded && (e->abilities & TS_CAN_SEED) != 0) {
    ts_engine_forget_seeds(e, 0);
  }
  run_backward(e, weight);
  return TS_OK;
}

ts_status ts_backward_from(ts_engine *e, const char *output, const float *gradient, ts_error *err) {
  ts_status status = ts_set_output_gradient(e, output, gradient, err);
  return status == TS_OK ? ts_backward(e, 0, err) : status;
}

/* ---- blocks ---- */

static ts_status begin_block(ts_engine *e, ts_block_kind kind, ts_error *err) {
  char *call = ts_format("%s_begin", block_name[kind]);
  ts_status status = ts_engine_check_ability(e, TS_CAN_DEFER, call, "TS_CAN_DEFER", err);
  if (status == TS_OK && e->hand.block != NO_BLOCK) {
    status = ts_error_add(err, "%s: inside of %s: blocks do not nest", call, block_name[e->hand.block]);
  }
  if (status == TS_OK) {
    e->hand.block = kind;
    e->hand.in_block = 0;
  }
  ts_free(call);
  return status;
}

static ts_status end_block(ts_engine *e, ts_block_kind kind, ts_error *err) {
  if (e->hand.block != (int) kind) {
    return ts_error_add(err, "%s_end: there was no %s_begin", block_name[kind], block_name[kind]);
  }
  e->hand.block = NO_BLOCK;
  return TS_OK;
}

static void reduce_local(ts_engine *e) {
  set_betas(e);
  ts_executor_run_one(e->executor, e->index[TS_PROGRAM_TRAIN], ts_step_run_by_hand(TS_HAND_REDUCE));
  note_reduction(&e->hand);
}

ts_status ts_no_sync_begin(ts_engine *e, ts_error *err) {
  return begin_block(e, NO_SYNC, err);
}

ts_status ts_no_sync_end(ts_engine *e, ts_error *err) {
  return end_block(e, NO_SYNC, err);
}

ts_status ts_coalesce_grad_reduction_begin(ts_engine *e, ts_error *err) {
  return begin_block(e, COALESCE, err);
}

ts_status ts_coalesce_grad_reduction_end(ts_engine *e, ts_error *err) {
  if (end_block(e, COALESCE, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (e->hand.in_block > 0) {
    reduce_local(e);
  }
  return TS_OK;
}

/* ---- step ---- */

static void forget_gradients(ts_hand_steps *h) {
  h->backwards = 0;
  h->local = h->reduced = false;
}

ts_status ts_zero_grad(ts_engine *e, ts_error *err) {
  if (ts_engine_check_no_feed(e, "ts_zero_grad", err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (e->hand.block != NO_BLOCK) {
    return ts_error_add(err, "ts_zero_grad: not inside of %s", block_name[e->hand.block]);
  }
  forget_gradients(&e->hand);
  return TS_OK;
}

static ts_status check_turn_to_step(const ts_engine *e, ts_error *err) {
  const ts_hand_steps *h = &e->hand;
  CHECK_ABILITY(e, TS_CAN_STEP, "ts_step", err);
  if (h->block != NO_BLOCK) {
    return ts_error_add(err, "ts_step: not inside of %s: end it before", block_name[h->block]);
  }
  if (h->backwards == 0) {
    return ts_error_add(err, "ts_step: there is no gradient: call ts_forward and ts_backward before");
  }
  return TS_OK;
}

ts_status ts_step(ts_engine *e, ts_step_result *result, ts_error *err) {
  ts_hand_steps *h = &e->hand;
  if (check_turn_to_step(e, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  bool last = ts_is_gradient_accumulation_boundary(e);
  ++h->micro_steps;
  h->boundary = -1;
  h->forwarded = h->applied = false;
  if (!last) {
    return TS_OK;
  }
  if (h->local) {
    reduce_local(e);
  }
  ts_engine_forget(e);
  ts_engine_set_update(e, NULL, 0);
  ts_executor_run_one(e->executor, e->index[TS_PROGRAM_TRAIN], ts_step_run_by_hand(TS_HAND_UPDATE));
  ts_step_result r = ts_engine_end_step(e);
  h->micro_steps = 0;
  forget_gradients(h);
  if (result != NULL) {
    *result = r;
  }
  return TS_OK;
}

double ts_global_grad_norm(const ts_engine *e) {
  return e->hand.result.grad_norm;
}

bool ts_was_step_applied(const ts_engine *e) {
  return e->hand.applied;
}

double ts_learning_rate(const ts_engine *e) {
  return ts_engine_learning_rate(e);
}
