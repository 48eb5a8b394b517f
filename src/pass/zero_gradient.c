/* Gradients on their way to their owners: summed over micro-batches, packed by part, reduced by bucket. */
#include "pass/zero.h"

#include "base/memory.h"

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
    into[i] = z->part[b->part[i]].shard;
  }
  char *name = ts_bucket_name(z, b, "reduce");
  ts_tid y = ts_build_reduce_scatter(at, name, b->axes, b->group, b->wire,
                                     ts_deck_wire_divisor(z->context->deck, b->wire, b->group), b->n, b->x, into,
                                     every_micro_batch ? z->beta : z->beta_reduced, b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    z->part[b->part[i]].shard = y + i;
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
  s->gradient = pack(z, at, part, s->produced, ts_zero_whole(part));
  if (ts_zero_is_spread(part)) {
    s->shard = z->context->defers ? s->shard : ts_zero_my_window(at, part, s->gradient);
    send(z, at, part_index, s->gradient);
  } else {
    s->shard = s->gradient;
  }
}

void ts_zero_add_gradient(ts_zero *z, ts_site at, int index, ts_tid gradient) {
  const ts_parameter *p = &z->layout->parameter[index];
  const ts_part *part = &z->layout->part[p->part];
  ts_part_state *s = &z->part[p->part];
  at.segment = TS_SEGMENT_BACKWARD_WEIGHT; /* also of what a node for gradients of inputs makes beside them */
  if (ts_zero_sums_whole(z, part)) {
    char *name = ts_format("%s.sum", p->name);
    ts_tid sum = ts_build_view(at, name, s->gradient, p->offset, p->held);
    gradient = ts_build_accumulate(at, name, sum, gradient, ts_zero_is_spread(part) ? z->beta_local : z->beta);
    ts_free(name);
  }
  s->produced[index - part->first] = gradient;
  if (--s->missing == 0) {
    complete_gradient(z, at, p->part);
  }
}
