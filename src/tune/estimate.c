#include "tune/estimate.h"

#include "base/random.h"
#include "family/stack.h"
#include "graph/op.h"

#include <math.h>

/* All of them, or those that are trained. */
static double parameters_of_experts(const ts_program *program, bool trained) {
  double count = 0;
  for (int i = 0; i < program->layout->n_parameters; ++i) {
    const ts_parameter *p = &program->layout->parameter[i];
    bool counts = ts_stack_is(p->name, p->shape.n) && !(trained && ts_parameter_is_frozen(program->deck, p->name));
    count += counts ? (double) ts_shape_count(&p->shape) : 0;
  }
  return count;
}

ts_tune_model ts_tune_model_of(const ts_program *alone, int64_t batch) {
  const ts_deck *deck = alone->deck;
  const double parameters = (double) ts_layout_parameter_count(alone->layout, false),
               trained = fmax((double) ts_layout_parameter_count(alone->layout, true), 1);
  const int64_t *bytes = alone->plan->bytes;
  return (ts_tune_model){.flops = ts_program_model_flops(alone, NULL) * (double) batch / (double) alone->batch,
                         .parameters = parameters,
                         .experts = parameters_of_experts(alone, false),
                         .trained = trained,
                         .trained_experts = parameters_of_experts(alone, true),
                         .bytes = (double) bytes[TS_PURPOSE_PARAMETER] / parameters,
                         .gradient_bytes = (double) bytes[TS_PURPOSE_GRADIENT] / trained,
                         .state_bytes = (double) bytes[TS_PURPOSE_OPTIMIZER] / trained,
                         .layers = (double) deck->model.num_hidden_layers,
                         .hidden = (double) deck->model.hidden_size,
                         .length = (double) deck->data.sequence_length,
                         .wire = ts_deck_wire(deck),
                         .low = ts_deck_products(deck) != TS_F32,
                         .keeps =
                             !deck->activation_checkpointing.cpu_checkpointing && !deck->compile.offload_activation,
                         .of_token = (double) ts_deck_experts_of_token(deck)};
}

typedef struct shape {
  double tp, sp, ep, pp, dp, stage, micro, steps, recompute, offload;
} shape;

static shape grid_of(const ts_tune_space *s, const ts_candidate *c) {
  return (shape){.tp = ts_candidate_number(s, c, TS_TUNED_TP),
                 .sp = ts_candidate_number(s, c, TS_TUNED_SP),
                 .ep = ts_candidate_number(s, c, TS_TUNED_EP),
                 .pp = ts_candidate_number(s, c, TS_TUNED_PP),
                 .dp = ts_candidate_replicas(s, c),
                 .stage = ts_candidate_number(s, c, TS_TUNED_STAGE),
                 .micro = ts_candidate_number(s, c, TS_TUNED_MICRO),
                 .steps = (double) ts_candidate_accumulation(s, c),
                 .recompute = ts_candidate_number(s, c, TS_TUNED_RECOMPUTE),
                 .offload = ts_candidate_number(s, c, TS_TUNED_OFFLOAD)};
}

/* As ts_measured_seconds, which looks at all samples; the same work comes again and again. */
static double remembered_seconds(const ts_tune_model *m, const ts_measured *by, const ts_work *work) {
  uint64_t place = ts_hash_name(work->kind);
  for (int i = 0; i < TS_WORK_EXTENTS; ++i) {
    place = ts_mix(place, (uint64_t) work->extent[i]);
  }
  ts_sample *known = m->memo != NULL ? &m->memo[place % TS_TUNE_MEMO] : NULL;
  if (known != NULL && known->seconds > 0 && ts_work_order(&known->work, work) == 0) {
    return known->seconds;
  }
  double seconds = ts_measured_seconds(by, work, NULL);
  if (known != NULL) {
    *known = (ts_sample){*work, seconds};
  }
  return seconds;
}

/* Seconds of one collective among ranks that are `apart` from each other. */
static double message(const ts_tune_model *m, const ts_timing *t, ts_op op, ts_dtype wire, double ranks, double apart,
                      double bytes) {
  const double together = fmin(fmax(floor(t->node / apart), 1), ranks);
  const ts_work work = ts_message_work(op, wire, (int) ranks, (int) together, bytes * (ranks - 1) / ranks);
  return ranks > 1 ? remembered_seconds(m, t->by[0], &work) : 0;
}

/* Of so many parameters, some of them trained, among ranks that have the same. */
static double part_messages(const shape *x, const ts_tune_model *m, const ts_timing *t, double part, double trained,
                            double ranks, double apart) {
  const double times = x->stage >= 2 ? x->steps : 1, gathers = x->stage == 3 ? 2 * x->steps : 1;
  return times * message(m, t, TS_OP_REDUCE_SCATTER, m->wire, ranks, apart, trained * m->gradient_bytes) +
         gathers * message(m, t, TS_OP_ALL_GATHER, m->wire, ranks, apart, part * m->bytes);
}

/* Among those that have the same part of the model; ranks along tp are next to each other. */
static double data_messages(const shape *x, const ts_tune_model *m, const ts_timing *t) {
  const double ranks = x->dp * x->sp, cut = x->tp * x->pp, dense = (m->parameters - m->experts) / cut,
               trained = (m->trained - m->trained_experts) / cut, experts = m->experts / (cut * x->ep),
               trained_experts = m->trained_experts / (cut * x->ep);
  return part_messages(x, m, t, dense, trained, ranks, x->tp) +
         (experts > 0 ? part_messages(x, m, t, experts, trained_experts, ranks / x->ep, x->tp * x->sp * x->ep) : 0);
}

/* Of blocks, which nothing hides: two sums forward and two backward of ranks that share products, as many exchanges of
 * those that share samples, and as many of the rows of experts. */
static double block_messages(const shape *x, const ts_tune_model *m, const ts_timing *t) {
  const double times = 4 * x->steps * m->layers / x->pp, bytes = x->micro * m->length / x->sp * m->hidden * m->bytes;
  double sums = message(m, t, TS_OP_ALL_REDUCE, m->wire, x->tp, 1, 2 * bytes),
         exchanges = message(m, t, TS_OP_ALL_TO_ALL, m->wire, x->sp, x->tp, 2 * bytes / x->tp),
         rows = message(m, t, TS_OP_ALL_TO_ALL, m->wire, x->ep, x->tp * x->sp, m->of_token * bytes / x->tp);
  return times * (0.5 * sums + exchanges + rows);
}

/* A step as so many times its work: what a pipeline waits while it fills and empties. */
static double bubble(const shape *x, double divides) {
  return x->pp > 1 ? 1 + (x->pp - 1) / divides / x->steps : 1;
}

/* Of a block's product, which a small micro-batch makes slower. */
static double rate_of_products(const shape *x, const ts_tune_model *m, const ts_measured *by) {
  const char *type = ts_dtype_name(m->low ? TS_BF16 : TS_F32);
  ts_work work = {.extent = {x->micro * m->length / x->sp, fmax(m->hidden / x->tp, 1), m->hidden}};
  snprintf(work.kind, sizeof work.kind, "%s.nt %s>%s", ts_op_get(TS_OP_MATMUL)->name, type, type);
  work.flops = 2 * work.extent[0] * work.extent[1] * work.extent[2];
  work.bytes = m->bytes * (work.extent[0] * (work.extent[1] + work.extent[2]) + work.extent[1] * work.extent[2]);
  return work.flops / remembered_seconds(m, by, &work);
}

/* A rank's of so many, but for what tp and pp cut and what others of the same part have. */
static double own_part(const shape *x, double all, double experts) {
  return all - experts + experts / x->ep;
}

enum { NODES = 50 }; /* of a block, forward and backward, about */

double ts_tune_estimate(const ts_tune_space *s, const ts_tune_model *m, const ts_candidate *c, const ts_timing *t) {
  const shape x = grid_of(s, c);
  const ts_measured *by = t->by[0];
  const double computed = (1 + x.recompute) * m->flops / s->ranks / rate_of_products(&x, m, by) +
                          x.steps * NODES * m->layers / x.pp * by->instruction,
               own = own_part(&x, m->trained, m->trained_experts),
               updated = (x.stage >= 1 ? m->trained / (x.dp * x.sp) : own) / (x.tp * x.pp) *
                         (2 * m->state_bytes + m->gradient_bytes + m->bytes) / by->copy,
               beside = data_messages(&x, m, t);
  return (computed + block_messages(&x, m, t)) * bubble(&x, ts_candidate_number(s, c, TS_TUNED_SCHEDULE)) +
         fmax(beside - computed, 0) + updated;
}

/* From forward to backward: a block's input at least, where nothing is computed again six of its size; a pipeline's
 * first stage has as many micro-batches under way as there are stages, of a part of the blocks each. */
static double least_kept(const shape *x, const ts_tune_model *m) {
  const double input = x->micro * m->length / x->sp * m->hidden * m->bytes / x->tp, times = x->recompute > 0 ? 1 : 6;
  return !m->keeps ? 0 : input * times * m->layers / x->pp * fmin(x->pp, x->steps);
}

double ts_tune_least_bytes(const ts_tune_space *s, const ts_tune_model *m, const ts_candidate *c) {
  const shape x = grid_of(s, c);
  const double cut = x.tp * x.pp, ranks = x.dp * x.sp, whole = own_part(&x, m->parameters, m->experts) / cut,
               trained = own_part(&x, m->trained, m->trained_experts) / cut, shared = m->trained / (cut * ranks);
  double values = (x.stage == 3 ? m->parameters / (cut * ranks) : whole) * m->bytes,
         gradients = (x.stage >= 2 ? shared : trained) * m->gradient_bytes,
         states = (x.stage >= 1 ? shared : trained) * m->state_bytes;
  return (x.offload < 2 ? values : 0) + (x.offload < 1 ? gradients + states : 0) + least_kept(&x, m);
}
