/* Gradients on their way to their owners: summed over micro-batches, packed by part, reduced by bucket. */
#include "pass/zero.h"

#include "base/memory.h"

/* A unit that fills this many elements is reduced at once even where the bucket would hold more: reductions then run
 * while the backward goes on, and stage 2 and 3 do not keep the gradients of the whole model.  Bits do not depend on
 * it. */
#define TS_REDUCE_EARLY ((int64_t) 1 << 21)

/* Stage 0: everybody gets the sums the bucket's owners hold. */
static void gather_gradients(ts_zero *z, const ts_bucket *b) {
  ts_tid *x = ts_malloc((size_t) b->n * sizeof *x), *into = ts_malloc((size_t) b->n * sizeof *into);
  for (int i = 0; i < b->n; ++i) {
    x[i] = z->part[b->part[i]].shard;
    into[i] = z->part[b->part[i]].gradient;
  }
  char *name = ts_bucket_name(z, b, "gather_gradient");
  ts_tid y = ts_build_all_gather(z->to, name, TS_AXES_DENSE, z->layout->n_shards, b->n, x, into, b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    z->part[b->part[i]].gradient = y + i;
  }
  ts_free(name);
  ts_free(x);
  ts_free(into);
}

static void reduce(ts_zero *z, ts_bucket *b) {
  bool every_micro_batch = z->stage >= 2;
  ts_segment segment = z->to->segment;
  z->to->segment = every_micro_batch ? TS_SEGMENT_BACKWARD_WEIGHT : TS_SEGMENT_REDUCE;
  ts_tid *into = ts_malloc((size_t) b->n * sizeof *into);
  for (int i = 0; i < b->n; ++i) {
    into[i] = z->part[b->part[i]].shard;
  }
  char *name = ts_bucket_name(z, b, "reduce");
  ts_tid y = ts_build_reduce_scatter(z->to, name, TS_AXES_DENSE, z->layout->n_shards,
                                     z->context->deck->communication_data_type, b->n, b->x, into,
                                     every_micro_batch ? z->beta : TS_NONE, b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    z->part[b->part[i]].shard = y + i;
  }
  if (z->stage == 0) {
    gather_gradients(z, b);
  }
  ts_free(name);
  ts_free(into);
  z->to->segment = segment;
}

void ts_zero_flush(ts_zero *z) {
  if (z->reduce.n > 0) {
    reduce(z, &z->reduce);
    z->reduce.n = 0;
    z->reduce.columns = 0;
  }
}

static void send(ts_zero *z, int part_index, ts_tid flat) {
  ts_bucket_add(z, &z->reduce, part_index, flat, z->context->deck->zero_optimization.reduce_bucket_size, reduce);
  if (z->reduce.columns * z->layout->n_shards >= TS_REDUCE_EARLY) {
    ts_zero_flush(z);
  }
}

/* The flat gradient of a part from the gradients of its parameters, once all are there. */
static ts_tid pack(ts_zero *z, const ts_part *part, const ts_tid *produced, int64_t count) {
  int64_t *offset = ts_malloc((size_t) part->n_parameters * sizeof *offset);
  for (int i = 0; i < part->n_parameters; ++i) {
    offset[i] = z->layout->parameter[part->first + i].offset;
  }
  char *name = ts_format("%s.pack", part->name);
  ts_tid flat = ts_build_pack(z->to, name, part->n_parameters, produced, offset, count);
  ts_free(name);
  ts_free(offset);
  return flat;
}

static void complete(ts_zero *z, int part_index) {
  const ts_part *part = &z->layout->part[part_index];
  ts_part_state *s = &z->part[part_index];
  if (z->stage >= 2) {
    send(z, part_index, pack(z, part, s->produced, part->count));
    return;
  }
  s->gradient = pack(z, part, s->produced, ts_zero_whole(z, part));
  if (ts_zero_is_shared(z)) {
    s->shard = ts_zero_my_window(z, part, s->gradient);
    send(z, part_index, s->gradient);
  } else {
    s->shard = s->gradient;
  }
}

void ts_zero_add_gradient(ts_zero *z, int index, ts_tid gradient) {
  const ts_parameter *p = &z->layout->parameter[index];
  const ts_part *part = &z->layout->part[p->part];
  ts_part_state *s = &z->part[p->part];
  if (z->stage < 2) {
    ts_segment segment = z->to->segment;
    z->to->segment = TS_SEGMENT_BACKWARD_WEIGHT;
    char *name = ts_format("%s.sum", p->name);
    ts_tid sum = ts_build_view(z->to, name, s->gradient, p->offset, p->shape);
    gradient = ts_build_accumulate(z->to, name, sum, gradient, z->beta);
    ts_free(name);
    z->to->segment = segment;
  }
  s->produced[index - part->first] = gradient;
  if (--s->missing == 0) {
    complete(z, p->part);
  }
}
