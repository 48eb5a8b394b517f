/* A shape of layer_specs laid over a weight. */
#include "base/memory.h"
#include "base/text.h"
#include "pass/dealing.h"
#include "pass/marks_rules.h"

typedef struct ts_fit {
  const ts_tp_query *q;
  int spec;
  int n, cut;
  int64_t extent[TS_DECK_DIMS]; /* 0: to be counted. */
  int inputs;                   /* First dimension of in. */
} ts_fit;

static ts_status misfit(const ts_fit *f, const char *key, const char *problem) {
  const ts_tp_query *q = f->q;
  char *path = ts_format(TS_LAYER_SPECS "[%d].%s", f->spec, key), *value = ts_deck_value(q->deck, path);
  ts_status status = ts_deck_error(q->deck, path, q->err, "%.80s does not fit %s [%lld][%lld]: %s", value, q->name,
                                   (long long) q->out, (long long) q->in, problem);
  ts_free(value);
  ts_free(path);
  return status;
}

/* Of dimensions that together have the weight's elements. */
static int64_t elements_of(const int64_t *extent, int n) {
  int64_t total = 1;
  for (int d = 0; d < n; ++d) {
    total *= extent[d];
  }
  return total;
}

static void take_extents(ts_fit *f, const ts_deck_tp_spec *spec) {
  f->n = spec->shape.n;
  f->cut = (int) spec->partition_dim;
  for (int d = 0; d < f->n; ++d) {
    const ts_deck_extent *e = &spec->shape.items[d];
    f->extent[d] = d != f->cut && e->count > 0 ? e->count : 0;
    for (int i = 0; i < e->sizes.n; ++i) {
      f->extent[d] += e->sizes.items[i];
    }
  }
}

/* The dimensions that are still to be counted. */
static ts_status count_open(ts_fit *f) {
  int64_t total = f->q->out * f->q->in, known = 1;
  int open = 0, last = -1;
  for (int d = 0; d < f->n; ++d) {
    if (f->extent[d] == 0) {
      ++open;
      last = d;
    } else if (__builtin_mul_overflow(known, f->extent[d], &known)) {
      return misfit(f, "shape", "its extents make more elements than can be counted");
    }
  }
  if (open == 2 && f->n == 2) {
    f->extent[0] = f->q->out;
    f->extent[1] = f->q->in;
    return TS_OK;
  }
  if (open > 1) {
    return misfit(
        f, "shape",
        "a count at partition_dim is of blocks, so with -1 elsewhere two extents are open; accepted: sizes of "
        "the blocks, or an extent for -1");
  }
  if (total % known != 0 || (open == 0 && total != known)) {
    char *problem = ts_format("its extents make %lld%s elements, the weight has %lld", (long long) known,
                              open > 0 ? " x -1" : "", (long long) total);
    ts_status status = misfit(f, "shape", problem);
    ts_free(problem);
    return status;
  }
  if (open == 1) {
    f->extent[last] = total / known;
  }
  return TS_OK;
}

/* Which dimensions are of out: the first that make it; extents of 1 between them and in are on the side of the cut. */
static ts_status find_sides(ts_fit *f, bool row) {
  int first = 0, last = 0;
  for (int s = 1; s < f->n; ++s) {
    if (elements_of(f->extent, s) == f->q->out) {
      first = first == 0 ? s : first;
      last = s;
    }
  }
  if (first == 0) {
    return misfit(f, "shape", "its first dimensions must make out, and the rest in");
  }
  f->inputs = row ? first : last;
  if ((f->cut >= f->inputs) != row) {
    return misfit(f, "partition_dim",
                  row ? "a dimension of out, and a row is cut along in; accepted: a dimension of in"
                      : "a dimension of in, and a column is cut along out; accepted: one of out");
  }
  return TS_OK;
}

static ts_status refuse_unequal(const ts_fit *f, int64_t extent, int64_t n) {
  char *problem = ts_format("%lld along partition_dim are not %lld equal blocks; accepted: a count that divides it, or "
                            "the sizes of the blocks",
                            (long long) extent, (long long) n);
  ts_status status = misfit(f, "shape", problem);
  ts_free(problem);
  return status;
}

/* More than a dimension has runs: a mistake, as interleaved units are. */
static ts_status refuse_many(const ts_fit *f, int64_t n) {
  char *problem =
      ts_format("it makes %lld blocks; accepted: at most %d, as a cut of a dimension further in front makes",
                (long long) n, TS_MOST_RUNS);
  ts_status status = misfit(f, "shape", problem);
  ts_free(problem);
  return status;
}

/* Blocks of the cut dimension, in their own units, as often as the dimensions in front of it say.  A count is of
 * blocks, as in DeepSpeed; blocks of one unit each could not be shared, so the extent itself means one block. */
static ts_status cut_blocks(ts_fit *f, const ts_deck_extent *cut, ts_tp_mark *mark) {
  int side = f->cut >= f->inputs ? f->inputs : 0, end = f->cut >= f->inputs ? f->n : f->inputs;
  int64_t times = elements_of(f->extent + side, f->cut - side), extent = f->extent[f->cut];
  bool whole = cut->sizes.n == 0 && (cut->count == -1 || cut->count == extent);
  int64_t n = cut->sizes.n > 0 ? cut->sizes.n : whole ? 1 : cut->count;
  mark->unit = elements_of(f->extent + f->cut + 1, end - f->cut - 1);
  if (cut->sizes.n == 0 && extent % n != 0) {
    return refuse_unequal(f, extent, n);
  }
  if (times * n > TS_MOST_RUNS) {
    return refuse_many(f, times * n);
  }
  if (times * n > 1) {
    ts_tp_mark_blocks(mark, (int) (times * n));
  }
  for (int64_t i = 0; i < mark->n_sizes; ++i) {
    mark->size[i] = (cut->sizes.n > 0 ? cut->sizes.items[i % n] : extent / n) * mark->unit;
  }
  return TS_OK;
}

ts_status ts_tp_view_fit(const ts_tp_query *q, int spec, ts_tp_mark *mark) {
  const ts_deck_tp_spec *s = &q->deck->tensor_parallel.partition_config.layer_specs.items[spec];
  ts_fit fit = {.q = q, .spec = spec};
  take_extents(&fit, s);
  ts_status status = count_open(&fit);
  status = status == TS_OK ? find_sides(&fit, mark->style == TS_TP_ROW) : status;
  return status == TS_OK ? cut_blocks(&fit, &s->shape.items[s->partition_dim], mark) : status;
}
