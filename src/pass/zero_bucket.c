/* Buckets: which columns of which parts travel together. */
#include "pass/zero.h"

#include "base/memory.h"

static void reserve(ts_bucket *b) {
  if (b->n >= b->capacity) {
    b->capacity = b->capacity > 0 ? 2 * b->capacity : 8;
    b->x = ts_realloc(b->x, (size_t) b->capacity, sizeof *b->x);
    b->part = ts_realloc(b->part, (size_t) b->capacity, sizeof *b->part);
    b->piece = ts_realloc(b->piece, (size_t) b->capacity, sizeof *b->piece);
  }
}

void ts_bucket_add(ts_zero *z, ts_site at, ts_bucket *b, int part_index, ts_tid x, int64_t limit,
                   ts_bucket_emit *emit) {
  const ts_part *part = &z->layout->part[part_index];
  int64_t most = limit / part->group / TS_LAYOUT_ALIGN * TS_LAYOUT_ALIGN;
  most = most < TS_LAYOUT_ALIGN ? TS_LAYOUT_ALIGN : most;
  if (b->axes != part->axes) {
    ts_bucket_flush(z, at, b, emit);
    b->axes = part->axes;
    b->group = part->group;
  }
  for (int64_t begin = 0, end; begin < part->shard; begin = end) {
    int64_t room = most - b->columns;
    end = part->shard - begin < room ? part->shard : begin + room;
    reserve(b);
    b->x[b->n] = x;
    b->part[b->n] = part_index;
    b->piece[b->n] = (ts_piece){.input = b->n, .cuts = part->cuts, .begin = begin, .end = end};
    ++b->n;
    b->columns += end - begin;
    if (b->columns >= most) {
      ts_bucket_flush(z, at, b, emit);
    }
  }
}

void ts_bucket_flush(ts_zero *z, ts_site at, ts_bucket *b, ts_bucket_emit *emit) {
  if (b->n > 0) {
    emit(z, at, b);
    b->n = 0;
    b->columns = 0;
  }
}

void ts_bucket_free(ts_bucket *b) {
  ts_free(b->x);
  ts_free(b->part);
  ts_free(b->piece);
  *b = (ts_bucket){0};
}

char *ts_bucket_name(const ts_zero *z, const ts_bucket *b, const char *what) {
  return ts_format("%s.%s.%lld", z->layout->part[b->part[0]].name, what, (long long) b->piece[0].begin);
}
