/* Buckets: which columns of which parts travel together.  There is one for each set of axes and each type, so that what
 * is in one does not depend on another: ranks that share one set have the same messages, whatever else each of them
 * has.
 */
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

/* The bucket of these axes and this type, a new one where there is none. */
static ts_bucket *find_bucket(ts_buckets *set, const ts_part *part, ts_dtype wire) {
  int i = 0;
  while (i < set->n && (set->item[i].axes != part->axes || set->item[i].wire != wire)) {
    ++i;
  }
  if (i == set->n) {
    TS_GROW(set->item, set->n, set->capacity);
    set->item[set->n++] = (ts_bucket){.axes = part->axes, .wire = wire, .group = part->group};
  }
  return &set->item[i];
}

static void emit_bucket(ts_zero *z, ts_site at, ts_bucket *b, ts_bucket_emit *emit) {
  if (b->n > 0) {
    emit(z, at, b);
    b->n = 0;
    b->columns = 0;
  }
}

void ts_bucket_add(ts_zero *z, ts_site at, ts_buckets *set, int part_index, ts_tid x, ts_dtype wire, int64_t limit,
                   int64_t early, ts_bucket_emit *emit) {
  const ts_part *part = &z->layout->part[part_index];
  ts_bucket *b = find_bucket(set, part, wire);
  int64_t most = limit / part->group / TS_LAYOUT_ALIGN * TS_LAYOUT_ALIGN;
  most = most < TS_LAYOUT_ALIGN ? TS_LAYOUT_ALIGN : most;
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
      emit_bucket(z, at, b, emit);
    }
  }
  if (b->columns * b->group >= early) {
    emit_bucket(z, at, b, emit);
  }
}

void ts_bucket_flush(ts_zero *z, ts_site at, ts_buckets *set, ts_bucket_emit *emit) {
  for (int i = 0; i < set->n; ++i) {
    emit_bucket(z, at, &set->item[i], emit);
  }
}

void ts_bucket_free(ts_buckets *set) {
  for (int i = 0; i < set->n; ++i) {
    ts_free(set->item[i].x);
    ts_free(set->item[i].part);
    ts_free(set->item[i].piece);
  }
  ts_free(set->item);
  *set = (ts_buckets){0};
}

char *ts_bucket_name(const ts_zero *z, const ts_bucket *b, const char *what) {
  return ts_format("%s.%s.%lld", z->layout->part[b->part[0]].name, what, (long long) b->piece[0].begin);
}
