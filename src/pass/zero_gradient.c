/* Gradients on their way to their owners: summed over micro-batches, packed by part, reduced by bucket. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/step.h"

/* A unit that fills this many elements is reduced at once even where the bucket would hold more: reductions then run
 * while the backward goes on, and stage 2 and 3 do not keep the gradients of the whole model.  Bits do not depend on
 * it. */
#define TS_REDUCE_EARLY ((int64_t) 1 << 21)

/* Stage 0: everybody gets the sums the bucket's owners hold. */
static void gather_gradients(ts_zero *z, ts_site at, const ts_bucket *b) {
  ts_tid *x = ts_malloc((size_t) b->n * sizeof *x), *into = ts_malloc((size_t) b->n * sizeof *into);
  for (int i = 0; i < b->n; ++i) {
    x[i] = z->part[b->part[i]].shard;
    into[i] = z->part[b->part[i]].gradient;
  }
  char *name = ts_bucket_name(z, b, "gather_gradient");
  ts_tid y = ts_build_all_gather(at, name, b->axes, b->group, b->n, x, into, b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    z->part[b->part[i]].gradient = y + i;
  }
  ts_free(name);
  ts_free(x);
  ts_free(into);
}

static void reduce(ts_zero *z, ts_site at, ts_bucket *b) {
  bool every_micro_batch = z->stage >= 2 && !z->context->defers; /* a bucket is of parts that are shared */
  at.segment = every_micro_batch ? TS_SEGMENT_BACKWARD_WEIGHT : TS_SEGMENT_REDUCE;
  ts_tid *into = ts_malloc((size_t) b->n * sizeof *into);
  for (int i = 0; i < b->n; ++i) {
    into[i] = ts_zero_bring(z, at, z->part[b->part[i]].shard);
  }
  char *name = ts_bucket_name(z, b, "reduce");
  ts_tid y = ts_build_reduce_scatter(at, name, b->axes, b->group, b->wire,
                                     ts_deck_wire_divisor(z->context->deck, b->wire, b->group), b->n, b->x, into,
                                     every_micro_batch ? z->beta_of_bucket : z->beta_reduced, b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    z->part[b->part[i]].shard = ts_zero_put_back(z, at, z->part[b->part[i]].shard, y + i);
  }
  if (z->stage == 0) {
    gather_gradients(z, at, b);
  }
  ts_free(name);
  ts_free(into);
}

void ts_zero_flush(ts_zero *z, ts_site at) {
  ts_bucket_flush(z, at, &z->reduce, reduce);
}

static void send(ts_zero *z, ts_site at, int part_index, ts_tid flat) {
  ts_bucket_add(z, at, &z->reduce, part_index, flat, z->layout->part[part_index].wire,
                z->context->deck->zero_optimization.reduce_bucket_size, TS_REDUCE_EARLY, reduce);
}

/* The flat gradient of a part from the gradients of its parameters, once all are there. */
static ts_tid pack(const ts_zero *z, ts_site at, const ts_part *part, const ts_tid *produced, int64_t count) {
  int64_t *offset = ts_malloc((size_t) part->n_parameters * sizeof *offset);
  for (int i = 0; i < part->n_parameters; ++i) {
    offset[i] = z->layout->parameter[part->first + i].offset;
  }
  char *name = ts_format("%s.pack", part->name);
  ts_tid flat = ts_build_pack(at, name, part->n_parameters, produced, offset, count);
  ts_free(name);
  ts_free(offset);
  return flat;
}

static void complete_gradient(ts_zero *z, ts_site at, int part_index) {
  const ts_part *part = &z->layout->part[part_index];
  ts_part_state *s = &z->part[part_index];
  if (!ts_zero_sums_whole(z, part)) {
    send(z, at, part_index, pack(z, at, part, s->produced, part->count));
    return;
  }
  s->gradient = ts_zero_put_back(z, at, s->gradient, pack(z, at, part, s->produced, ts_zero_whole(part)));
  if (ts_zero_is_spread(part)) {
    s->shard = z->context->defers ? s->shard : ts_zero_my_window(at, part, s->gradient);
    send(z, at, part_index, s->gradient);
  } else {
    s->shard = s->gradient;
  }
}

/* Of a part whose sums live elsewhere: the copy that one micro-batch's are added to, brought for the first of them. */
static ts_tid sums_of(ts_zero *z, ts_site at, ts_part_state *s) {
  s->sum = s->sum == TS_NONE ? ts_zero_bring(z, at, s->gradient) : s->sum;
  return s->sum;
}

/* What this rank sums of a parameter, with one micro-batch's more.  Of a step's only one nothing is brought. */
static ts_tid add_to_sum(ts_zero *z, ts_site at, int index, ts_tid prior, ts_tid gradient, ts_tid beta) {
  char *name = ts_format("%s.sum%s", z->layout->parameter[index].name, prior != TS_NONE ? ".other" : "");
  const ts_parameter *p = &z->layout->parameter[index];
  ts_part_state *s = &z->part[p->part];
  if (ts_zero_is_elsewhere(z, s->gradient) && prior == TS_NONE && !ts_step_accumulates(z->context->step)) {
    ts_dtype sums = z->rewrite.to->tensor[s->gradient].dtype;
    ts_tid alone = z->rewrite.to->tensor[gradient].dtype == sums ? gradient : ts_build_cast(at, name, gradient, sums);
    ts_free(name);
    return alone;
  }
  ts_tid sum = prior != TS_NONE ? prior : ts_build_view(at, name, sums_of(z, at, s), p->offset, p->held);
  sum = ts_build_accumulate(at, name, sum, gradient, beta);
  ts_free(name);
  return sum;
}

/* Reduced at once, so that both are: the second one adds to what the first has made. */
static void reduce_alone(ts_zero *z, ts_site at, int index, ts_tid gradient, ts_tid beta) {
  const ts_part *part = &z->layout->part[index];
  ts_zero_flush(z, at);
  z->beta_of_bucket = beta;
  send(z, at, index, pack(z, at, part, &gradient, part->count));
  ts_zero_flush(z, at);
  z->beta_of_bucket = z->beta;
}

void ts_zero_add_earlier(ts_zero *z, ts_site at, int index, ts_tid gradient) {
  int part_index = z->layout->parameter[index].part;
  const ts_part *part = &z->layout->part[part_index];
  ts_part_state *s = &z->part[part_index];
  TS_CHECK(part->n_parameters == 1, "%s is not a part alone", z->layout->parameter[index].name);
  at.segment = TS_SEGMENT_BACKWARD_WEIGHT;
  if (ts_zero_sums_whole(z, part)) {
    s->earlier = add_to_sum(z, at, index, TS_NONE, gradient, ts_zero_is_spread(part) ? z->beta_local : z->beta);
  } else {
    reduce_alone(z, at, part_index, gradient, z->beta);
    s->earlier = s->shard;
  }
}

void ts_zero_add_gradient(ts_zero *z, ts_site at, int index, ts_tid gradient) {
  const ts_parameter *p = &z->layout->parameter[index];
  const ts_part *part = &z->layout->part[p->part];
  ts_part_state *s = &z->part[p->part];
  bool second = s->earlier != TS_NONE;
  at.segment = TS_SEGMENT_BACKWARD_WEIGHT; /* also of what a node for gradients of inputs makes beside them */
  if (ts_zero_sums_whole(z, part)) {
    ts_tid beta = second ? ts_zero_one(z) : ts_zero_is_spread(part) ? z->beta_local : z->beta;
    gradient = add_to_sum(z, at, index, s->earlier, gradient, beta);
  } else if (second) {
    reduce_alone(z, at, p->part, gradient, ts_zero_one(z));
    return;
  }
  s->produced[index - part->first] = gradient;
  if (--s->missing == 0) {
    complete_gradient(z, at, p->part);
  }
}
