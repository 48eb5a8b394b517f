/* Gradients on their way to their owners: summed over micro-batches, packed by part, reduced by bucket. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/record.h"
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

/* Of a part whose sums, or shard of them, live elsewhere: the copy that is added to, brought for the first. */
static ts_tid sums_of(ts_zero *z, ts_site at, ts_part_state *s, ts_tid home) {
  if (!ts_zero_is_elsewhere(z, home)) {
    return home;
  }
  s->sum = s->sum == TS_NONE ? ts_zero_bring(z, at, home) : s->sum;
  return s->sum;
}

/* Likewise, but room for what begins anew: nothing is brought. */
static ts_tid room_for_sums(ts_zero *z, ts_site at, ts_part_state *s, ts_tid home) {
  if (ts_zero_is_elsewhere(z, home) && s->sum == TS_NONE) {
    const ts_tensor *tensor = &at.graph->tensor[home];
    char *name = ts_format("%s.room", tensor->name);
    s->sum = ts_build_room(at, name, tensor->dtype, ts_tensor_count(at.graph, home));
    ts_free(name);
  }
  return sums_of(z, at, s, home);
}

/* Is what is reduced now the first of a step, to which no other run has come before? */
static bool begins_anew(const ts_zero *z) {
  return z->beta_of_bucket == z->beta && !ts_step_accumulates(z->context->step);
}

/* The record wants the squares of what goes elsewhere: made while it is at hand, and kept for that.  Of several
 * micro-batches the last one's is the sum's.  A program that goes through a step by hand may write gradients before the
 * record. */
static void keep_squares(ts_zero *z, ts_site at, int index, ts_tid home, ts_tid x) {
  const ts_part *part = &z->layout->part[index];
  if (ts_zero_is_elsewhere(z, home) && ts_part_has_norm(part) && !z->context->by_hand) {
    char *name = ts_format("%s.squares_sum", part->name);
    ts_tid kept = ts_graph_state(at.graph, name, (ts_held){TS_STATE_SUM, -1, true}, TS_F64, TS_SHAPE(1), part->unit);
    z->part[index].squares =
        ts_build_accumulate(at, name, kept, ts_record_squares(at, z->layout, part, x), ts_zero_nought(z));
    ts_free(name);
  }
}

/* With one piece more reduced.  It goes back with the last of all. */
static void keep_reduced(ts_zero *z, ts_site at, int index, ts_tid reduced, bool last) {
  ts_part_state *s = &z->part[index];
  bool stays = !last && ts_zero_is_elsewhere(z, s->shard);
  if (!stays) {
    keep_squares(z, at, index, s->shard, reduced);
  }
  s->shard = stays ? s->shard : ts_zero_put_back(z, at, s->shard, reduced);
  s->sum = stays ? reduced : TS_NONE;
}

static void reduce(ts_zero *z, ts_site at, ts_bucket *b) {
  bool every_micro_batch = z->stage >= 2 && !z->context->defers; /* a bucket is of parts that are shared */
  bool last = !every_micro_batch || z->reduced == ts_zero_together(z) - 1;
  at.segment = every_micro_batch ? TS_SEGMENT_BACKWARD_WEIGHT : TS_SEGMENT_REDUCE;
  bool anew = every_micro_batch && begins_anew(z);
  ts_tid *into = ts_malloc((size_t) b->n * sizeof *into);
  for (int i = 0; i < b->n; ++i) {
    ts_part_state *s = &z->part[b->part[i]];
    into[i] = anew ? room_for_sums(z, at, s, s->shard) : sums_of(z, at, s, s->shard);
  }
  ts_tid beta = anew ? TS_NONE : every_micro_batch ? z->beta_of_bucket : z->beta_reduced;
  char *name = ts_bucket_name(z, b, "reduce");
  ts_tid y = ts_build_reduce_scatter(at, name, b->axes, b->group, b->wire,
                                     ts_deck_wire_divisor(z->context->deck, b->wire, b->group), b->n, b->x, into, beta,
                                     b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    bool ends = b->piece[i].end == z->layout->part[b->part[i]].shard;
    keep_reduced(z, at, b->part[i], y + i, last && ends);
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

/* What is reduced together is of one micro-batch. */
static void turn_to(ts_zero *z, ts_site at, int64_t m) {
  if (z->reduced != m) {
    ts_zero_flush(z, at);
    z->reduced = m;
    z->beta_of_bucket = m == 0 ? z->beta : ts_zero_one(z);
  }
}

static void complete_gradient(ts_zero *z, ts_site at, int part_index, int64_t m) {
  const ts_part *part = &z->layout->part[part_index];
  ts_part_state *s = &z->part[part_index];
  const ts_tid *produced = s->produced + m * part->n_parameters;
  if (!ts_zero_sums_whole(z, part)) {
    turn_to(z, at, m);
    send(z, at, part_index, pack(z, at, part, produced, part->count));
    return;
  }
  ts_tid packed = pack(z, at, part, produced, ts_zero_whole(part));
  keep_squares(z, at, part_index, s->gradient, packed);
  s->gradient = ts_zero_put_back(z, at, s->gradient, packed);
  if (ts_zero_is_spread(part)) {
    s->shard = z->context->defers ? s->shard : ts_zero_my_window(at, part, s->gradient);
    send(z, at, part_index, s->gradient);
  } else {
    s->shard = s->gradient;
  }
}

/* What this rank sums of a parameter, with one micro-batch's more.  Of a step's first nothing is brought where no other
 * run comes. */
static ts_tid add_to_sum(ts_zero *z, ts_site at, int index, ts_tid prior, ts_tid gradient, ts_tid beta) {
  char *name = ts_format("%s.sum%s", z->layout->parameter[index].name, prior != TS_NONE ? ".other" : "");
  const ts_parameter *p = &z->layout->parameter[index];
  ts_part_state *s = &z->part[p->part];
  ts_tid sum = prior;
  if (prior == TS_NONE) { /* made as in memory, so that products have the same forms */
    const bool anew = !ts_step_accumulates(z->context->step);
    ts_tid sums = anew ? room_for_sums(z, at, s, s->gradient) : sums_of(z, at, s, s->gradient);
    sum = ts_build_view(at, name, sums, p->offset, p->held);
  }
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
  z->beta_of_bucket = z->reduced == 0 ? z->beta : ts_zero_one(z);
}

/* To which of a parameter's sums a gradient is added, TS_NONE for what the step has so far; and times what that is. */
static ts_tid beta_of(ts_zero *z, const ts_part *part, ts_tid prior) {
  return prior != TS_NONE ? ts_zero_one(z) : ts_zero_is_spread(part) ? z->beta_local : z->beta;
}

void ts_zero_add_earlier(ts_zero *z, ts_site at, int index, ts_tid gradient) {
  int part_index = z->layout->parameter[index].part;
  const ts_part *part = &z->layout->part[part_index];
  ts_part_state *s = &z->part[part_index];
  ts_tid *earlier = &s->earlier[index - part->first];
  at.segment = TS_SEGMENT_BACKWARD_WEIGHT;
  if (ts_zero_sums_whole(z, part)) {
    *earlier = add_to_sum(z, at, index, *earlier, gradient, beta_of(z, part, *earlier));
  } else {
    TS_CHECK(part->n_parameters == 1, "%s is not a part alone", z->layout->parameter[index].name);
    reduce_alone(z, at, part_index, gradient, z->beta);
    *earlier = s->shard;
  }
}

void ts_zero_add_gradient(ts_zero *z, ts_site at, int index, int64_t m, ts_tid gradient) {
  const ts_parameter *p = &z->layout->parameter[index];
  const ts_part *part = &z->layout->part[p->part];
  ts_part_state *s = &z->part[p->part];
  ts_tid *produced = &s->produced[m * part->n_parameters + index - part->first];
  bool sums = ts_zero_sums_whole(z, part);
  at.segment = TS_SEGMENT_BACKWARD_WEIGHT; /* also of what a node for gradients of inputs makes beside them */
  if (sums) {
    ts_tid prior = m > 0 ? produced[-part->n_parameters] : s->earlier[index - part->first];
    gradient = add_to_sum(z, at, index, prior, gradient, beta_of(z, part, prior));
  } else if (s->earlier[index - part->first] != TS_NONE) {
    reduce_alone(z, at, p->part, gradient, ts_zero_one(z));
    return;
  }
  *produced = gradient;
  if (--s->missing[m] == 0 && (!sums || m == ts_zero_together(z) - 1)) {
    complete_gradient(z, at, p->part, m);
  }
}
