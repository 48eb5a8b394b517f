/* Rows for experts: a stable counting sort of the choices, and rows moved there and back. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"

#include <omp.h>

/* ---- the rows ---- */

/* Counts of each thread's choices by expert, those of none last. */
static size_t dispatch_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) graph, (void) prepared;
  return (size_t) target->threads * ((size_t) node->attr.experts.n + 1) * sizeof(int32_t);
}

/* chosen: counted from the first expert. */
static int32_t expert_of(int32_t chosen, int32_t experts) {
  return chosen >= 0 && chosen < experts ? chosen : experts;
}

/* From counts to the rows where each thread's choices of each expert begin. */
static void begin_rows(int32_t *count, int threads, int32_t experts, int32_t *first) {
  int32_t row = 0;
  for (int32_t e = 0; e <= experts; ++e) {
    first[e] = row;
    for (int t = 0; t < threads; ++t) {
      int32_t n = count[t * (experts + 1) + e];
      count[t * (experts + 1) + e] = row;
      row += n;
    }
  }
}

static void dispatch_run(const ts_kernel_call *call) {
  const int32_t *chosen = call->in[0], experts = call->node->attr.experts.n, lowest = call->node->attr.experts.first;
  int32_t *order = call->out[0], *place = call->out[1], *first = call->out[2], *all = call->workspace;
  int64_t n = ts_call_count(call, 1), room = ts_call_count(call, 0);
#pragma omp parallel num_threads(ts_call_threads(call, ts_pieces(n, TS_TILE)))
  {
    int threads = omp_get_num_threads(), me = omp_get_thread_num();
    int32_t *count = all + me * (experts + 1);
    int64_t begin = n * me / threads, end = n * (me + 1) / threads;
    memset(count, 0, ((size_t) experts + 1) * sizeof *count);
    for (int64_t i = begin; i < end; ++i) {
      ++count[expert_of(chosen[i] - lowest, experts)];
    }
#pragma omp barrier
#pragma omp single
    begin_rows(all, threads, experts, first);
    for (int64_t i = begin; i < end; ++i) {
      int32_t row = count[expert_of(chosen[i] - lowest, experts)]++;
      place[i] = row;
      if (row < room) {
        order[row] = (int32_t) i;
      }
    }
  }
}
TS_CPU_KERNEL(dispatch) = {.prepare = dispatch_prepare, .run = dispatch_run};

static void first_of_all_run(const ts_kernel_call *call) {
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  const int32_t *firsts = (const int32_t *) call->in[0] + call->node->attr.experts.first;
  int32_t *first = call->out[0];
  for (int32_t e = 0; e <= call->node->attr.experts.n; ++e) {
    first[e] = 0;
    for (int64_t r = 0; r < shape->d[0]; ++r) {
      first[e] += firsts[r * shape->d[1] + e] - firsts[r * shape->d[1]];
    }
  }
}
TS_CPU_KERNEL(first_of_all) = {.run = first_of_all_run};

/* ---- rows there and back ---- */

/* What the other three have. */
typedef struct choices {
  const int32_t *order, *place;
  const float *weight; /* NULL: 1 */
  int64_t tokens, k, columns;
  int32_t taken; /* rows that have an expert */
} choices;

static choices choices_of(const ts_kernel_call *call) {
  enum { ORDER = 1, PLACE, FIRST, WEIGHT };
  const ts_shape *place = &ts_call_in(call, PLACE)->shape, *first = &ts_call_in(call, FIRST)->shape;
  int64_t k = place->d[place->n - 1];
  return (choices){.order = call->in[ORDER], /* of dots: y */
                   .place = call->in[PLACE],
                   .weight = call->node->n_in > WEIGHT ? call->in[WEIGHT] : NULL,
                   .tokens = k > 0 ? ts_shape_count(place) / k : 0,
                   .k = k,
                   .columns = ts_call_columns(call, 0),
                   .taken = ((const int32_t *) call->in[FIRST])[first->d[0] - 1]};
}

/* Row `to` = by x row `from`. */
static void move_row(const choices *c, const ts_sink *y, int64_t to, const ts_source *x, int64_t from, float by) {
  for (int64_t at = 0; at < c->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, c->columns - at);
    ts_tile in, out;
    const float *v = ts_source_read(x, from * c->columns + at, n, in);
    float *values = ts_sink_open(y, to * c->columns + at, out);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      values[i] = by * v[i];
    }
    ts_sink_write(y, to * c->columns + at, n, values);
  }
}

static void take_rows_run(const ts_kernel_call *call) {
  choices c = choices_of(call);
  ts_source x = ts_source_of(call, 0);
  ts_sink y = ts_sink_of(call, 0);
  int64_t rows = c.taken;
  size_t bytes = (size_t) c.columns * ts_dtype_size(x.dtype);
#pragma omp parallel for num_threads(ts_call_threads(call, rows)) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    int64_t token = c.order[row] / c.k;
    if (c.weight == NULL) {
      memcpy((char *) y.data + (size_t) row * bytes, (const char *) x.data + (size_t) token * bytes, bytes);
    } else {
      move_row(&c, &y, row, &x, token, c.weight[c.order[row]]);
    }
  }
}
TS_CPU_KERNEL(take_rows) = {.run = take_rows_run};

/* Columns [at, at + n) of a token's sum. */
static void add_choices(const choices *c, const ts_source *y, int64_t token, int64_t at, int64_t n, float *sum) {
  memset(sum, 0, (size_t) n * sizeof *sum);
  for (int64_t j = token * c->k; j < (token + 1) * c->k; ++j) {
    if (c->place[j] < c->taken) {
      ts_tile in;
      const float *v = ts_source_read(y, c->place[j] * c->columns + at, n, in);
      float by = c->weight != NULL ? c->weight[j] : 1.0f;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        sum[i] += by * v[i];
      }
    }
  }
}

static void combine_run(const ts_kernel_call *call) {
  choices c = choices_of(call);
  ts_source y = ts_source_of(call, 0);
  ts_sink x = ts_sink_of(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, c.tokens)) schedule(static)
  for (int64_t token = 0; token < c.tokens; ++token) {
    for (int64_t at = 0; at < c.columns; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, c.columns - at);
      ts_tile out;
      float *sum = ts_sink_open(&x, token * c.columns + at, out);
      add_choices(&c, &y, token, at, n, sum);
      ts_sink_write(&x, token * c.columns + at, n, sum);
    }
  }
}
TS_CPU_KERNEL(combine) = {.run = combine_run};

static float dot_rows(const choices *c, const ts_source *x, int64_t a, const ts_source *y, int64_t b) {
  double dot = 0;
  for (int64_t at = 0; at < c->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, c->columns - at);
    ts_tile in, other;
    const float *v = ts_source_read(x, a * c->columns + at, n, in);
    const float *w = ts_source_read(y, b * c->columns + at, n, other);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = 0; i < n; ++i) {
      part += v[i] * w[i];
    }
    dot += (double) part;
  }
  return (float) dot;
}

static void combine_dots_run(const ts_kernel_call *call) {
  choices c = choices_of(call);
  ts_source x = ts_source_of(call, 0), y = ts_source_of(call, 1);
  float *dot = call->out[0];
#pragma omp parallel for num_threads(ts_call_threads(call, c.tokens)) schedule(static)
  for (int64_t token = 0; token < c.tokens; ++token) {
    for (int64_t j = token * c.k; j < (token + 1) * c.k; ++j) {
      dot[j] = c.place[j] < c.taken ? dot_rows(&c, &x, token, &y, c.place[j]) : 0.0f;
    }
  }
}
TS_CPU_KERNEL(combine_dots) = {.run = combine_dots_run};

/* ---- biases of experts ---- */

/* The expert whose row it is. */
static int64_t owner_of(const int32_t *first, int64_t experts, int64_t row) {
  int64_t low = 0, high = experts;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    *(first[middle] <= row ? &low : &high) = middle;
  }
  return low;
}

static void grouped_bias_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0), b = ts_source_of(call, 1);
  ts_sink y = ts_sink_of(call, 0);
  const int32_t *first = call->in[2];
  int64_t experts = ts_call_in(call, 1)->shape.d[0], columns = ts_call_columns(call, 0), rows = first[experts];
#pragma omp parallel for num_threads(ts_call_threads(call, rows)) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    int64_t e = owner_of(first, experts, row);
    for (int64_t at = 0; at < columns; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, columns - at);
      ts_tile in, other, out;
      const float *v = ts_source_read(&x, row * columns + at, n, in);
      const float *w = ts_source_read(&b, e * columns + at, n, other);
      float *values = ts_sink_open(&y, row * columns + at, out);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        values[i] = v[i] + w[i];
      }
      ts_sink_write(&y, row * columns + at, n, values);
    }
  }
}
TS_CPU_KERNEL(grouped_bias) = {.run = grouped_bias_run};

static void grouped_sum_run(const ts_kernel_call *call) {
  ts_source dy = ts_source_of(call, 0);
  ts_sink db = ts_sink_of(call, 0);
  const int32_t *first = call->in[1];
  int64_t experts = ts_call_in(call, 1)->shape.d[0] - 1, columns = ts_call_columns(call, 0);
#pragma omp parallel for collapse(2) num_threads(call->threads) schedule(dynamic, 1)
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t at = 0; at < columns; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, columns - at);
      double sum[TS_TILE] = {0};
      ts_tile in, out;
      for (int32_t row = first[e]; row < first[e + 1]; ++row) {
        const float *v = ts_source_read(&dy, row * columns + at, n, in);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          sum[i] += (double) v[i];
        }
      }
      float *values = ts_sink_open(&db, e * columns + at, out);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        values[i] = (float) sum[i];
      }
      ts_sink_write(&db, e * columns + at, n, values);
    }
  }
}
TS_CPU_KERNEL(grouped_sum) = {.run = grouped_sum_run};

/* ---- experts and an MLP beside them ---- */

/* The first of the softmax of two logits. */
static float share_of_first(const float *logits) {
  return ts_sigmoidf(logits[0] - logits[1]);
}

static void blend_run(const ts_kernel_call *call) {
  ts_source a = ts_source_of(call, 0), b = ts_source_of(call, 1);
  ts_sink y = ts_sink_of(call, 0);
  const float *logits = call->in[2];
  int64_t columns = ts_call_columns(call, 0), tokens = ts_shape_rows(&ts_call_in(call, 0)->shape);
#pragma omp parallel for num_threads(ts_call_threads(call, tokens)) schedule(static)
  for (int64_t t = 0; t < tokens; ++t) {
    float share = share_of_first(logits + 2 * t);
    for (int64_t at = 0; at < columns; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, columns - at), first = t * columns + at;
      ts_tile in, other, out;
      const float *v = ts_source_read(&a, first, n, in), *w = ts_source_read(&b, first, n, other);
      float *values = ts_sink_open(&y, first, out);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        values[i] = share * v[i] + (1.0f - share) * w[i];
      }
      ts_sink_write(&y, first, n, values);
    }
  }
}
TS_CPU_KERNEL(blend) = {.run = blend_run};

typedef struct blend {
  ts_source dy, a, b;
  ts_sink da, db;
  int64_t columns;
} blend;

/* The gradients of a token's a and b.  \return dy . (a - b). */
static double blend_dx_token(const blend *x, int64_t t, float share) {
  double dot = 0;
  for (int64_t at = 0; at < x->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, x->columns - at), first = t * x->columns + at;
    ts_tile buffer[3], out[2];
    const float *dy = ts_source_read(&x->dy, first, n, buffer[0]), *v = ts_source_read(&x->a, first, n, buffer[1]),
                *w = ts_source_read(&x->b, first, n, buffer[2]);
    float *da = ts_sink_open(&x->da, first, out[0]), *db = ts_sink_open(&x->db, first, out[1]), part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = 0; i < n; ++i) {
      part += dy[i] * (v[i] - w[i]);
      da[i] = share * dy[i];
      db[i] = (1.0f - share) * dy[i];
    }
    ts_sink_write(&x->da, first, n, da);
    ts_sink_write(&x->db, first, n, db);
    dot += (double) part;
  }
  return dot;
}

static void blend_dx_run(const ts_kernel_call *call) {
  const blend x = {ts_source_of(call, 0), ts_source_of(call, 1), ts_source_of(call, 2),
                   ts_sink_of(call, 0),   ts_sink_of(call, 1),   ts_call_columns(call, 0)};
  const float *logits = call->in[3];
  float *dlogits = call->out[2];
  int64_t tokens = ts_shape_rows(&ts_call_in(call, 0)->shape);
#pragma omp parallel for num_threads(ts_call_threads(call, tokens)) schedule(static)
  for (int64_t t = 0; t < tokens; ++t) {
    float share = share_of_first(logits + 2 * t);
    dlogits[2 * t] = share * (1.0f - share) * (float) blend_dx_token(&x, t, share);
    dlogits[2 * t + 1] = -dlogits[2 * t];
  }
}
TS_CPU_KERNEL(blend_dx) = {.run = blend_dx_run};
