/* Element by element.  Bound by memory: the arithmetic, one exp and one division at most, hides behind the loads. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/philox.h"
#include "backend/cpu/tile.h"
#include "backend/update_rules.h"

/* n elements of all outputs from all inputs. */
typedef void tile_body(float *const y[], const float *const x[], int64_t n);
enum { MAX_IN = 3, MAX_OUT = 2 };

/* Elements at a time: five buffers, and what they are read from, stay in 32 KiB of first-level cache.  With twice as
 * many glu_dx takes 1.5 times as long. */
enum { STEP = TS_TILE / 2 };

static void run_tiles(const ts_kernel_call *call, tile_body *body) {
  int n_in = call->node->n_in - (ts_node_extent(call->node) >= 0), n_out = call->node->n_out;
  ts_source x[MAX_IN];
  ts_sink y[MAX_OUT];
  for (int i = 0; i < n_in; ++i) {
    x[i] = ts_source_of(call, i);
  }
  for (int i = 0; i < n_out; ++i) {
    y[i] = ts_sink_of(call, i);
  }
  int64_t count = ts_call_written(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, ts_pieces(count, STEP))) schedule(static)
  for (int64_t at = 0; at < count; at += STEP) {
    int64_t n = ts_min(STEP, count - at);
    float buffer[MAX_IN + MAX_OUT][STEP] __attribute__((aligned(64)));
    float *to[MAX_OUT];
    const float *from[MAX_IN];
    for (int i = 0; i < n_in; ++i) {
      from[i] = ts_source_read(&x[i], at, n, buffer[i]);
    }
    for (int i = 0; i < n_out; ++i) {
      to[i] = ts_sink_open(&y[i], at, buffer[MAX_IN + i]);
    }
    body(to, from, n);
    for (int i = 0; i < n_out; ++i) {
      ts_sink_write(&y[i], at, n, to[i]);
    }
  }
}

static void add_tile(float *const y[], const float *const x[], int64_t n) {
  float *sum = y[0];
  const float *a = x[0], *b = x[1];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    sum[i] = a[i] + b[i];
  }
}

/* Sums of losses, a few numbers in fp64: y = beta prior + by x + z, z where there is a second input. */
static void run_doubles(const ts_kernel_call *call, double by) {
  const double *x = call->in[0], *z = call->node->n_in > 1 ? call->in[1] : NULL;
  ts_sink sink = ts_sink_of(call, 0);
  const double *prior = sink.prior;
  double *y = call->out[0];
  for (int64_t i = 0; i < ts_call_count(call, 0); ++i) {
    double value = by * x[i] + (z != NULL ? z[i] : 0);
    y[i] = prior != NULL ? (double) sink.beta * prior[i] + value : value;
  }
}

static void add_run(const ts_kernel_call *call) {
  if (ts_call_out(call, 0)->dtype == TS_F64) {
    run_doubles(call, 1);
  } else {
    run_tiles(call, add_tile);
  }
}
TS_CPU_KERNEL(add) = {.run = add_run};

static void multiply_tile(float *const y[], const float *const x[], int64_t n) {
  float *product = y[0];
  const float *a = x[0], *b = x[1];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    product[i] = a[i] * b[i];
  }
}

static void multiply_run(const ts_kernel_call *call) {
  run_tiles(call, multiply_tile);
}
TS_CPU_KERNEL(multiply) = {.run = multiply_run};

static void bias_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0), b = ts_source_of(call, 1);
  ts_sink y = ts_sink_of(call, 0);
  int64_t columns = ts_call_columns(call, 0), rows = ts_shape_rows(&ts_call_in(call, 0)->shape);
#pragma omp parallel for num_threads(ts_call_threads(call, rows)) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; c += STEP) {
      int64_t n = ts_min(STEP, columns - c), at = row * columns + c;
      float buffer[3][STEP] __attribute__((aligned(64)));
      float *to = ts_sink_open(&y, at, buffer[2]);
      add_tile(&to, (const float *[]){ts_source_read(&x, at, n, buffer[0]), ts_source_read(&b, c, n, buffer[1])}, n);
      ts_sink_write(&y, at, n, to);
    }
  }
}
TS_CPU_KERNEL(bias) = {.run = bias_run};

/* ---- activations: act (x) and *slope = act' (x), a function for each kind ---- */

TS_INLINE float gelu_tanh(float x, float *slope) {
  float rise, s = ts_sigmoid_slope(ts_gelu_argument(x), &rise);
  *slope = s + x * rise * ts_gelu_slope(x);
  return x * s;
}

TS_INLINE float gelu(float x, float *slope) {
  float density, below = ts_normal(x, &density);
  *slope = below + x * density;
  return x * below;
}

TS_INLINE float silu(float x, float *slope) {
  float rise, s = ts_sigmoid_slope(x, &rise);
  *slope = s + x * rise;
  return x * s;
}

TS_INLINE float relu(float x, float *slope) {
  *slope = x <= 0.0f ? 0.0f : 1.0f;
  return x < 0.0f ? 0.0f : x;
}

/* The bodies of a kind: each has its function inside its loop, so that both are vectors. */
#define EACH_ELEMENT _Pragma("omp simd") for (int64_t i = 0; i < n; ++i)
#define BODIES(act)                                                                    \
  static void act##_tile(float *const y[], const float *const x[], int64_t n) {        \
    float *to = y[0];                                                                  \
    const float *from = x[0];                                                          \
    EACH_ELEMENT {                                                                     \
      float slope;                                                                     \
      to[i] = act(from[i], &slope);                                                    \
    }                                                                                  \
  }                                                                                    \
  static void act##_dx_tile(float *const y[], const float *const x[], int64_t n) {     \
    float *dx = y[0];                                                                  \
    const float *dy = x[0], *from = x[1];                                              \
    EACH_ELEMENT {                                                                     \
      float slope;                                                                     \
      act(from[i], &slope);                                                            \
      dx[i] = dy[i] * slope;                                                           \
    }                                                                                  \
  }                                                                                    \
  static void act##_glu_tile(float *const y[], const float *const x[], int64_t n) {    \
    float *to = y[0];                                                                  \
    const float *gate = x[0], *up = x[1];                                              \
    EACH_ELEMENT {                                                                     \
      float slope;                                                                     \
      to[i] = act(gate[i], &slope) * up[i];                                            \
    }                                                                                  \
  }                                                                                    \
  static void act##_glu_dx_tile(float *const y[], const float *const x[], int64_t n) { \
    float *dgate = y[0], *dup = y[1];                                                  \
    const float *dy = x[0], *gate = x[1], *up = x[2];                                  \
    EACH_ELEMENT {                                                                     \
      float slope, value = act(gate[i], &slope);                                       \
      dgate[i] = dy[i] * up[i] * slope;                                                \
      dup[i] = dy[i] * value;                                                          \
    }                                                                                  \
  }
BODIES(gelu_tanh)
BODIES(gelu)
BODIES(silu)
BODIES(relu)

#define KIND(act) \
  { act##_tile, act##_dx_tile, act##_glu_tile, act##_glu_dx_tile }
static const struct kind {
  tile_body *value, *dx, *glu, *glu_dx;
} kinds[TS_N_ACTIVATIONS] = {[TS_ACTIVATION_GELU_TANH] = KIND(gelu_tanh),
                             [TS_ACTIVATION_GELU] = KIND(gelu),
                             [TS_ACTIVATION_SILU] = KIND(silu),
                             [TS_ACTIVATION_RELU] = KIND(relu)};

static const struct kind *activation_of(const ts_kernel_call *call) {
  return &kinds[call->node->attr.activation.kind];
}

static void activation_run(const ts_kernel_call *call) {
  run_tiles(call, activation_of(call)->value);
}
TS_CPU_KERNEL(activation) = {.run = activation_run};

static void activation_dx_run(const ts_kernel_call *call) {
  run_tiles(call, activation_of(call)->dx);
}
TS_CPU_KERNEL(activation_dx) = {.run = activation_dx_run};

static void glu_run(const ts_kernel_call *call) {
  run_tiles(call, activation_of(call)->glu);
}
TS_CPU_KERNEL(glu) = {.run = glu_run};

static void glu_dx_run(const ts_kernel_call *call) {
  run_tiles(call, activation_of(call)->glu_dx);
}
TS_CPU_KERNEL(glu_dx) = {.run = glu_dx_run};

/* ---- the others ---- */

static void copy_tiles(const ts_kernel_call *call, ts_sink y, ts_source x) {
  int64_t count = ts_call_count(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, ts_pieces(count, TS_TILE))) schedule(static)
  for (int64_t at = 0; at < count; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, count - at);
    ts_tile buffer;
    ts_sink_write(&y, at, n, ts_source_read(&x, at, n, buffer));
  }
}

static void scale_tiles(const ts_kernel_call *call, float by, float softcap) {
  ts_source x = ts_source_of(call, 0);
  ts_sink y = ts_sink_of(call, 0);
  int64_t count = ts_call_count(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, ts_pieces(count, TS_TILE))) schedule(static)
  for (int64_t at = 0; at < count; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, count - at);
    ts_tile in_buffer, out_buffer;
    const float *from = ts_source_read(&x, at, n, in_buffer);
    float *to = ts_sink_open(&y, at, out_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      to[i] = by * from[i];
    }
    if (softcap > 0.0f) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        to[i] = ts_softcap(to[i], softcap);
      }
    }
    ts_sink_write(&y, at, n, to);
  }
}

static void scale_run(const ts_kernel_call *call) {
  if (ts_call_out(call, 0)->dtype == TS_F64) {
    run_doubles(call, call->node->attr.scale.by);
  } else {
    scale_tiles(call, call->node->attr.scale.by, call->node->attr.scale.softcap);
  }
}
TS_CPU_KERNEL(scale) = {.run = scale_run};

static void over_norm_run(const ts_kernel_call *call) {
  scale_tiles(call, ts_update_over_norm(*(const double *) call->in[1], call->node->attr.over_norm.eps), 0);
}
TS_CPU_KERNEL(over_norm) = {.run = over_norm_run};

static void add_diagonal_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0);
  ts_sink y = ts_sink_of(call, 0);
  float by = call->node->attr.diagonal.by;
  int64_t count = ts_call_count(call, 0), columns = ts_call_columns(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, ts_pieces(count, TS_TILE))) schedule(static)
  for (int64_t at = 0; at < count; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, count - at), next = ts_pieces(at, columns + 1) * (columns + 1);
    ts_tile in_buffer, out_buffer;
    float *to = ts_sink_open(&y, at, out_buffer);
    memmove(to, ts_source_read(&x, at, n, in_buffer), (size_t) n * sizeof *to);
    for (int64_t i = next - at; i < n; i += columns + 1) {
      to[i] += by;
    }
    ts_sink_write(&y, at, n, to);
  }
}
TS_CPU_KERNEL(add_diagonal) = {.run = add_diagonal_run};

static void cast_run(const ts_kernel_call *call) {
  copy_tiles(call, ts_sink_of(call, 0), ts_source_of(call, 0));
}
TS_CPU_KERNEL(cast) = {.run = cast_run};

/* Sums of losses and token counts: a few elements. */
static void accumulate_doubles(const ts_kernel_call *call, float beta) {
  const double *prior = call->in[0], *x = call->in[1];
  double *y = call->out[0];
  for (int64_t i = 0; i < ts_call_count(call, 0); ++i) {
    y[i] = beta == 0.0f ? x[i] : beta * prior[i] + x[i];
  }
}

static void accumulate_run(const ts_kernel_call *call) {
  float beta = *(const float *) call->in[2];
  ts_dtype dtype = ts_call_out(call, 0)->dtype;
  if (dtype == TS_F64) {
    accumulate_doubles(call, beta);
  } else {
    copy_tiles(call, (ts_sink){call->out[0], dtype, beta == 0.0f ? NULL : call->in[0], beta}, ts_source_of(call, 1));
  }
}
TS_CPU_KERNEL(accumulate) = {.run = accumulate_run};

/* Elements of all samples one after another: those [first, end) that x has, in the samples [sample, samples).  A sample
 * has `each` elements, those of some of its tokens. */
typedef struct dropout_rows {
  int64_t each, first, end, sample, samples, columns;
  ts_tokens tokens;
} dropout_rows;

static dropout_rows dropout_rows_of(const ts_kernel_call *call) {
  const ts_shape *x = &ts_call_in(call, 0)->shape;
  int64_t length = call->node->attr.dropout.length, columns = ts_call_columns(call, 0);
  length = length > 0 ? length : x->d[1];
  dropout_rows r = {.each = length * columns,
                    .first = call->node->attr.dropout.first * columns,
                    .columns = columns,
                    .tokens = call->node->attr.dropout.tokens};
  if (r.tokens.n == 0) {
    r.tokens = (ts_tokens){1, {{0, length}}};
  }
  r.end = r.first + ts_call_count(call, 0);
  r.sample = r.each > 0 ? r.first / r.each : 0;
  r.samples = r.each > 0 ? ts_pieces(r.end, r.each) : 0;
  return r;
}

/* How elements of a tensor are kept: what ts_dropout_factors takes. */
typedef struct dropout_rule {
  ts_noise kind;
  uint64_t key;
  uint32_t threshold;
  float p, scale;
} dropout_rule;

/* Factors, or numbers u, of elements [begin, begin + n) of a sample, which are numbered by tokens. */
static void draw_numbers(const dropout_rows *rows, const dropout_rule *rule, float *number, int64_t sample,
                         int64_t begin, int64_t n) {
  int64_t at = 0; /* where a stretch begins here */
  for (int i = 0; i < rows->tokens.n; ++i) {
    const ts_interval *s = &rows->tokens.stretch[i];
    int64_t end = at + s->length * rows->columns, from = ts_max(begin, at), until = ts_min(begin + n, end);
    int64_t first = s->begin * rows->columns + from - at;
    if (from < until && rule->kind == TS_NOISE_DROP) {
      ts_dropout_factors(number + (from - begin), rule->key, sample, first, until - from, rule->threshold, rule->scale);
    } else if (from < until) {
      ts_noise_numbers(number + (from - begin), rule->key, sample, first, until - from);
    }
    at = end;
  }
}

static void add_noise(const dropout_rule *rule, const float *x, const float *number, float *y, int64_t n) {
  if (rule->kind == TS_NOISE_DROP) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      y[i] = x[i] * number[i];
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    y[i] = rule->kind == TS_NOISE_JITTER   ? x[i] * (1.0f - rule->p + 2.0f * rule->p * number[i])
           : rule->kind == TS_NOISE_GUMBEL ? x[i] - logf(-logf(number[i]))
                                           : number[i];
  }
}

static void dropout_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0);
  ts_sink y = ts_sink_of(call, 0);
  const int64_t *sample = call->in[2];
  float p = call->node->attr.dropout.p;
  const dropout_rule rule = {.kind = call->node->attr.dropout.kind,
                             .p = p,
                             .key = ts_dropout_key(*(const int64_t *) call->in[1], call->node->attr.dropout.name),
                             .threshold = ts_dropout_threshold(p),
                             .scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f};
  dropout_rows rows = dropout_rows_of(call);
#pragma omp parallel for collapse(2) num_threads(call->threads) schedule(static)
  for (int64_t b = rows.sample; b < rows.samples; ++b) {
    for (int64_t tile = 0; tile < rows.each; tile += TS_TILE) {
      int64_t begin = ts_max(tile, rows.first - b * rows.each);
      int64_t n = ts_min(ts_min(tile + TS_TILE, rows.each), rows.end - b * rows.each) - begin;
      if (n <= 0) {
        continue;
      }
      int64_t at = b * rows.each + begin - rows.first;
      ts_tile in_buffer, out_buffer, number;
      draw_numbers(&rows, &rule, number, sample[b], begin, n);
      const float *from = ts_source_read(&x, at, n, in_buffer);
      float *to = ts_sink_open(&y, at, out_buffer);
      add_noise(&rule, from, number, to, n);
      ts_sink_write(&y, at, n, to);
    }
  }
}
TS_CPU_KERNEL(dropout) = {.run = dropout_run};
