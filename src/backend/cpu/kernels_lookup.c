/* Rows moved as they are, and the one sum over equal ids. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"

#include "base/status.h"

/* Rows of several tensors, which lie side by side in one. */
typedef struct beside {
  const ts_kernel_call *call;
  bool joins; /* the parts are read, the whole is written */
  int n;
  int64_t rows, groups;
} beside;

static const ts_tensor *part_beside(const beside *b, int i) {
  return b->joins ? ts_call_in(b->call, i) : ts_call_out(b->call, i);
}

/* Bytes of a row: of groups there are as many as of rows of a tensor that is so much longer and narrower. */
static int64_t row_bytes(const ts_tensor *tensor, int64_t groups) {
  return tensor->shape.d[tensor->shape.n - 1] * (int64_t) ts_dtype_size(tensor->dtype) / groups;
}

/* Bytes [first, last) of row `row` of the whole. */
static void move_stretch(const beside *b, int64_t whole, int64_t row, int64_t first, int64_t last) {
  int64_t begin = 0;
  for (int i = 0; i < b->n && begin < last; ++i) {
    int64_t bytes = row_bytes(part_beside(b, i), b->groups), end = begin + bytes;
    int64_t from = begin > first ? begin : first, to = end < last ? end : last;
    if (from < to) {
      int64_t in_part = row * bytes + from - begin, in_whole = row * whole + from;
      const void *x = b->joins ? b->call->in[i] : b->call->in[0];
      void *y = b->joins ? b->call->out[0] : b->call->out[i];
      memcpy((char *) y + (b->joins ? in_whole : in_part), (const char *) x + (b->joins ? in_part : in_whole),
             (size_t) (to - from));
    }
    begin = end;
  }
}

/* Few long rows are moved in pieces. */
static void move_beside(const beside *b) {
  enum { PIECE = 1 << 18 };
  int64_t whole = row_bytes(b->joins ? ts_call_out(b->call, 0) : ts_call_in(b->call, 0), b->groups);
  int64_t pieces = whole > PIECE ? ts_pieces(whole, PIECE) : 1, all = b->rows * pieces;
#pragma omp parallel for num_threads(ts_call_threads(b->call, all)) schedule(static)
  for (int64_t k = 0; k < all; ++k) {
    int64_t first = pieces > 1 ? k % pieces * PIECE : 0, last = pieces > 1 ? ts_min(first + PIECE, whole) : whole;
    move_stretch(b, whole, k / pieces, first, last);
  }
}

static void split_run(const ts_kernel_call *call) {
  int64_t groups = call->node->attr.split.groups, rows = ts_shape_rows(&ts_call_in(call, 0)->shape) * groups;
  move_beside(&(beside){call, false, call->node->n_out, rows, groups});
}
TS_CPU_KERNEL(split) = {.run = split_run};

static void concat_run(const ts_kernel_call *call) {
  int64_t groups = call->node->attr.concat.groups, rows = ts_shape_rows(&ts_call_out(call, 0)->shape) * groups;
  move_beside(&(beside){call, true, call->node->n_in, rows, groups});
}
TS_CPU_KERNEL(concat) = {.run = concat_run};

/* Rows are what lies behind the dimension: `outer` times `extent` in the whole, `outer` times `taken` in the part. */
typedef struct takes {
  const ts_node *node;
  int64_t outer, extent, taken;
  size_t row;
} takes;

static takes takes_of(const ts_kernel_call *call, const ts_tensor *some) {
  takes t = {call->node, 1, call->node->attr.take.extent, some->shape.d[call->node->attr.take.dim],
             ts_dtype_size(some->dtype)};
  for (int i = 0; i < some->shape.n; ++i) {
    t.outer *= i < t.node->attr.take.dim ? some->shape.d[i] : 1;
    t.row *= i > t.node->attr.take.dim ? (size_t) some->shape.d[i] : 1;
  }
  return t;
}

/* Move rows [first, last) of what is taken, a run of neighbours at a time: from the whole, or with `back` into it. */
static void move_rows(const takes *t, char *whole, char *some, bool back, int64_t first, int64_t last) {
  for (int64_t at = first, run; at < last; at += run) {
    const ts_interval *interval = t->node->attr.take.interval;
    int64_t skip = at % t->taken;
    for (; skip >= interval->length; ++interval) {
      skip -= interval->length;
    }
    run = ts_min(interval->length - skip, last - at);
    char *there = whole + (size_t) (at / t->taken * t->extent + interval->begin + skip) * t->row;
    char *here = some + (size_t) at * t->row;
    memcpy(back ? there : here, back ? here : there, (size_t) run * t->row);
  }
}

static void move_all(const ts_kernel_call *call, const takes *t, void *whole, void *some, bool back) {
  int64_t rows = t->outer * t->taken, threads = ts_call_threads(call, rows);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < threads; ++i) {
    move_rows(t, whole, some, back, rows * i / threads, rows * (i + 1) / threads);
  }
}

static void take_run(const ts_kernel_call *call) {
  takes t = takes_of(call, ts_call_out(call, 0));
  move_all(call, &t, (void *) call->in[0], call->out[0], false);
}
TS_CPU_KERNEL(take) = {.run = take_run};

static void place_run(const ts_kernel_call *call) {
  takes t = takes_of(call, ts_call_in(call, 0));
  int64_t rows = t.taken < t.extent ? t.outer * t.extent : 0, threads = ts_call_threads(call, rows);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < threads; ++i) {
    int64_t first = rows * i / threads, last = rows * (i + 1) / threads;
    memset((char *) call->out[0] + (size_t) first * t.row, 0, (size_t) (last - first) * t.row);
  }
  move_all(call, &t, call->out[0], (void *) call->in[0], true);
}
TS_CPU_KERNEL(place) = {.run = place_run};

/* The row of a share of the table that an id names, -1 for none. */
TS_INLINE int64_t row_of(const ts_kernel_call *call, int32_t id, int64_t rows) {
  int64_t row = id - call->node->attr.embedding.first;
  return row >= 0 && row < rows ? row : -1;
}

static void embedding_run(const ts_kernel_call *call) {
  size_t bytes = (size_t) row_bytes(ts_call_in(call, 0), 1);
  const int32_t *id = call->in[1];
  int64_t tokens = ts_shape_count(&ts_call_in(call, 1)->shape), rows = ts_call_in(call, 0)->shape.d[0];
#pragma omp parallel for num_threads(ts_call_threads(call, tokens)) schedule(static)
  for (int64_t i = 0; i < tokens; ++i) {
    char *to = (char *) call->out[0] + (size_t) i * bytes;
    int64_t row = row_of(call, id[i], rows);
    if (row >= 0) {
      memcpy(to, (const char *) call->in[0] + (size_t) row * bytes, bytes);
    } else {
      memset(to, 0, bytes);
    }
  }
}
TS_CPU_KERNEL(embedding) = {.run = embedding_run};

/* ---- tokens of samples: one, or the mean of those of a mask ---- */

typedef struct picks {
  const int32_t *which;
  const ts_tokens *tokens;                /* of a sample, that x has */
  int64_t samples, rows, length, columns; /* length 0: `which` has a token of each sample, else a mask of as many */
  float *count;                           /* of each sample's mask */
} picks;

static picks picks_of(const ts_kernel_call *call, const ts_tensor *x) {
  const ts_shape *which = &ts_call_in(call, 1)->shape;
  picks p = {.which = call->in[1],
             .tokens = &call->node->attr.pick.tokens,
             .samples = x->shape.d[0],
             .rows = x->shape.d[1],
             .columns = x->shape.d[2],
             .length = which->n == 2 ? which->d[1] : 0,
             .count = call->workspace};
  for (int64_t b = 0; b < p.samples; ++b) {
    int64_t count = 0;
    for (int64_t t = 0; t < p.length; ++t) {
      count += p.which[b * p.length + t] != 0;
    }
    p.count[b] = p.length > 0 ? (float) count : 1.0f;
  }
  return p;
}

TS_INLINE bool is_picked(const picks *p, int64_t b, int64_t row) {
  int64_t token = ts_tokens_at(p->tokens, row);
  return p->length > 0 ? p->which[b * p->length + token] != 0 : p->which[b] == token;
}

static size_t pick_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) target, (void) prepared;
  return ts_cpu_align((size_t) graph->tensor[node->in[0]].shape.d[0] * sizeof(float));
}

/* Columns [at, at + n) of a sample's mean; of one token that is the token. */
static void pick_tile(const ts_sink *y, const ts_source *x, const picks *p, int64_t b, int64_t at, int64_t n) {
  ts_tile sum = {0}, buffer;
  for (int64_t row = 0; row < p->rows; ++row) {
    if (is_picked(p, b, row)) {
      const float *from = ts_source_read(x, (b * p->rows + row) * p->columns + at, n, buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        sum[i] += from[i];
      }
    }
  }
  float count = ts_max(1, (int64_t) p->count[b]);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    sum[i] /= count;
  }
  ts_sink_write(y, b * p->columns + at, n, sum);
}

static void pick_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0);
  ts_sink y = ts_sink_of(call, 0);
  picks p = picks_of(call, ts_call_in(call, 0));
  const int64_t width = TS_TILE / 4;
#pragma omp parallel for collapse(2) num_threads(call->threads) schedule(static)
  for (int64_t b = 0; b < p.samples; ++b) {
    for (int64_t at = 0; at < p.columns; at += width) {
      pick_tile(&y, &x, &p, b, at, ts_min(width, p.columns - at));
    }
  }
}
TS_CPU_KERNEL(pick) = {.prepare = pick_prepare, .run = pick_run};

static void pick_dx_run(const ts_kernel_call *call) {
  ts_source dy = ts_source_of(call, 0);
  ts_sink dx = ts_sink_of(call, 0);
  picks p = picks_of(call, ts_call_out(call, 0));
  int64_t rows = p.samples * p.rows;
#pragma omp parallel for num_threads(ts_call_threads(call, rows)) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    int64_t b = row / p.rows;
    bool picked = is_picked(&p, b, row % p.rows);
    for (int64_t at = 0; at < p.columns; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, p.columns - at);
      ts_tile value = {0}, buffer;
      const float *from = picked ? ts_source_read(&dy, b * p.columns + at, n, buffer) : value;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        value[i] = picked ? from[i] / p.count[b] : 0.0f;
      }
      ts_sink_write(&dx, row * p.columns + at, n, value);
    }
  }
}
TS_CPU_KERNEL(pick_dx) = {.prepare = pick_prepare, .run = pick_dx_run};

/* Tokens by row, in order within a row: those of row v are token[start[v]] to token[start[v + 1] - 1].  A counting
 * sort: start holds rows + 2 numbers while it is built. */
static void sort_tokens(const ts_kernel_call *call, int32_t *start, int32_t *token, int64_t rows) {
  const int32_t *id = call->in[1];
  int64_t tokens = ts_shape_count(&ts_call_in(call, 1)->shape), row;
  memset(start, 0, (size_t) (rows + 2) * sizeof *start);
  for (int64_t i = 0; i < tokens; ++i) {
    row = row_of(call, id[i], rows);
    start[row + 2] += row >= 0;
  }
  for (int64_t v = 2; v < rows + 2; ++v) {
    start[v] += start[v - 1];
  }
  for (int64_t i = 0; i < tokens; ++i) {
    row = row_of(call, id[i], rows);
    if (row >= 0) {
      token[start[row + 1]++] = (int32_t) i;
    }
  }
}

static size_t embedding_dw_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                   void **prepared) {
  (void) target, (void) prepared;
  int64_t tokens = ts_tensor_count(graph, node->in[1]);
  return ts_cpu_align((size_t) (node->attr.embedding.rows + 2 + tokens) * sizeof(int32_t));
}

/* Columns [at, at + n) of one row of the table. */
static void embedding_dw_tile(const ts_sink *dw, const ts_source *dy, const int32_t *token, int32_t n_tokens,
                              int64_t row, int64_t columns, int64_t at, int64_t n) {
  ts_tile sum = {0}, buffer;
  for (int32_t t = 0; t < n_tokens; ++t) {
    const float *from = ts_source_read(dy, token[t] * columns + at, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      sum[i] += from[i];
    }
  }
  ts_sink_write(dw, row * columns + at, n, sum);
}

static void embedding_dw_run(const ts_kernel_call *call) {
  ts_source dy = ts_source_of(call, 0);
  ts_sink dw = ts_sink_of(call, 0);
  int64_t rows = call->node->attr.embedding.rows, columns = ts_call_columns(call, 0);
  int32_t *start = call->workspace, *token = start + rows + 2;
  sort_tokens(call, start, token, rows);
  bool untouched_stay = dw.prior == dw.data && dw.beta == 1.0f;
  /* Short tiles share the work of a frequent id among threads. */
  const int64_t width = TS_TILE / 4;
#pragma omp parallel for num_threads(call->threads) schedule(dynamic, 64)
  for (int64_t v = 0; v < rows; ++v) {
    int32_t n_tokens = start[v + 1] - start[v];
    for (int64_t at = 0; at < columns && !(untouched_stay && n_tokens == 0); at += width) {
      embedding_dw_tile(&dw, &dy, token + start[v], n_tokens, v, columns, at, ts_min(width, columns - at));
    }
  }
}
TS_CPU_KERNEL(embedding_dw) = {.prepare = embedding_dw_prepare, .run = embedding_dw_run};
