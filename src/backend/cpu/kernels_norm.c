/* LayerNorm and RMSNorm are one family: RMSNorm has no mean and no bias.  A row is read from memory once, and from the
 * cache for each further pass over it. */
#include "backend/cpu/columns.h"
#include "backend/cpu/kernels.h"

#include <math.h>

static const ts_tile zeros;

/* What a row is made from; mean is NULL for RMSNorm, and only that has an offset, which is added to w, and may have
 * some columns of rows of \a width: sums has what is known of these, one a row, else it is NULL. */
typedef struct norm_input {
  ts_source x, w;
  float offset;
  const float *mean, *rstd, *sums;
  int64_t rows, columns, width;
} norm_input;

static norm_input norm_of(const ts_kernel_call *call, int x) {
  const ts_shape *shape = &ts_call_in(call, x)->shape;
  return (norm_input){.x = ts_source_of(call, x), .rows = ts_shape_rows(shape), .columns = shape->d[shape->n - 1]};
}

static void read_rms(norm_input *in, const ts_kernel_call *call) {
  int64_t width = call->node->attr.norm.width;
  int sums = ts_norm_sums(call->node);
  in->offset = call->node->attr.norm.offset;
  in->sums = sums < 0 ? NULL : call->in[sums];
  in->width = width > 0 ? width : in->columns;
}

/* x - mean of columns [at, at + n) of a row. */
static void read_centred(float *centred, const norm_input *in, int64_t row, int64_t at, int64_t n, float mean) {
  const float *x = ts_source_read(&in->x, row * in->columns + at, n, centred);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    centred[i] = x[i] - mean;
  }
}

/* offset + w of columns [at, at + n). */
static const float *read_weight(const norm_input *in, int64_t at, int64_t n, float *buffer) {
  const float *w = ts_source_read(&in->w, at, n, buffer);
  if (in->offset == 0.0f) {
    return w;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    buffer[i] = in->offset + w[i];
  }
  return buffer;
}

static float row_mean(const norm_input *in, int64_t row) {
  ts_lanes lane = {0};
  ts_tile buffer;
  for (int64_t at = 0; at < in->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at);
    ts_lanes_add(lane, ts_source_read(&in->x, row * in->columns + at, n, buffer), n);
  }
  return ts_lanes_sum(lane) / (float) in->columns;
}

static float row_squares(const norm_input *in, int64_t row, float mean) {
  ts_lanes lane = {0};
  ts_tile centred;
  for (int64_t at = 0; at < in->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at);
    read_centred(centred, in, row, at, n, mean);
    ts_lanes_add_product(lane, centred, centred, n);
  }
  return ts_lanes_sum(lane);
}

/* y = (x - mean) rstd (offset + w) + bias */
static void row_forward(const ts_sink *y, const norm_input *in, const ts_source *bias, int64_t row, float mean,
                        float rstd) {
  ts_tile centred, w_buffer, bias_buffer, y_buffer;
  for (int64_t at = 0; at < in->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at), element = row * in->columns + at;
    read_centred(centred, in, row, at, n, mean);
    const float *w = read_weight(in, at, n, w_buffer);
    const float *b = bias == NULL ? zeros : ts_source_read(bias, at, n, bias_buffer);
    float *to = ts_sink_open(y, element, y_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      to[i] = centred[i] * rstd * w[i] + b[i];
    }
    ts_sink_write(y, element, n, to);
  }
}

static void layernorm_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 0);
  in.w = ts_source_of(call, 1);
  ts_source bias = ts_source_of(call, 2);
  ts_sink y = ts_sink_of(call, 0);
  float *mean = call->out[1], *rstd = call->out[2];
#pragma omp parallel for num_threads(ts_call_threads(call, in.rows)) schedule(static)
  for (int64_t row = 0; row < in.rows; ++row) {
    mean[row] = row_mean(&in, row);
    rstd[row] = 1.0f / sqrtf(row_squares(&in, row, mean[row]) / (float) in.columns + call->node->attr.norm.eps);
    row_forward(&y, &in, &bias, row, mean[row], rstd[row]);
  }
}
TS_CPU_KERNEL(layernorm) = {.run = layernorm_run};

static void rmsnorm_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 0);
  in.w = ts_source_of(call, 1);
  read_rms(&in, call);
  ts_sink y = ts_sink_of(call, 0);
  float *rstd = call->out[1];
#pragma omp parallel for num_threads(ts_call_threads(call, in.rows)) schedule(static)
  for (int64_t row = 0; row < in.rows; ++row) {
    float squares = in.sums == NULL ? row_squares(&in, row, 0.0f) : in.sums[row];
    rstd[row] = 1.0f / sqrtf(squares / (float) in.width + call->node->attr.norm.eps);
    row_forward(&y, &in, NULL, row, 0.0f, rstd[row]);
  }
}
TS_CPU_KERNEL(rmsnorm) = {.run = rmsnorm_run};

/* One tile of a row of the backward pass: g = dy (offset + w) and z = (x - mean) rstd. */
static void read_backward(float *g, float *z, const norm_input *in, const ts_source *dy, int64_t row, int64_t at,
                          int64_t n) {
  ts_tile dy_buffer, w_buffer;
  const float *from = ts_source_read(dy, row * in->columns + at, n, dy_buffer);
  const float *w = read_weight(in, at, n, w_buffer);
  float rstd = in->rstd[row];
  read_centred(z, in, row, at, n, in->mean == NULL ? 0.0f : in->mean[row]);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    g[i] = from[i] * w[i];
    z[i] *= rstd;
  }
}

/* dx = rstd (g - mean (g) - z mean (g z)); mean (g) is absent where the norm has no mean; mean (g z) is rstd times
 * mean (g x), which is known where there are sums. */
static void row_backward(const ts_sink *dx, const norm_input *in, const ts_source *dy, int64_t row) {
  ts_tile g, z, dx_buffer;
  ts_lanes lane_g = {0}, lane_gz = {0};
  bool again = in->columns > TS_TILE || in->sums != NULL; /* else g and z are still there */
  for (int64_t at = 0; at < in->columns && in->sums == NULL; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at);
    read_backward(g, z, in, dy, row, at, n);
    ts_lanes_add(lane_g, g, n);
    ts_lanes_add_product(lane_gz, g, z, n);
  }
  float mean_g = in->mean == NULL ? 0.0f : ts_lanes_sum(lane_g) / (float) in->columns;
  float rstd = in->rstd[row], gz = in->sums == NULL ? ts_lanes_sum(lane_gz) : rstd * in->sums[row];
  float mean_gz = gz / (float) in->width;
  for (int64_t at = 0; at < in->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at), element = row * in->columns + at;
    if (again) {
      read_backward(g, z, in, dy, row, at, n);
    }
    float *to = ts_sink_open(dx, element, dx_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      to[i] = rstd * (g[i] - mean_g - z[i] * mean_gz);
    }
    ts_sink_write(dx, element, n, to);
  }
}

static void run_dx(const ts_kernel_call *call, const norm_input *in) {
  ts_source dy = ts_source_of(call, 0);
  ts_sink dx = ts_sink_of(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, in->rows)) schedule(static)
  for (int64_t row = 0; row < in->rows; ++row) {
    row_backward(&dx, in, &dy, row);
  }
}

static void layernorm_dx_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 1);
  in.w = ts_source_of(call, 2);
  in.mean = call->in[3];
  in.rstd = call->in[4];
  in.width = in.columns;
  run_dx(call, &in);
}
TS_CPU_KERNEL(layernorm_dx) = {.run = layernorm_dx_run};

static void rmsnorm_dx_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 1);
  in.w = ts_source_of(call, 2);
  read_rms(&in, call);
  in.rstd = call->in[3];
  run_dx(call, &in);
}
TS_CPU_KERNEL(rmsnorm_dx) = {.run = rmsnorm_dx_run};

/* Sums over rows [first, last) of dy z and of dy, columns [at, at + n). */
static void block_dw(float *dw, float *db, const norm_input *in, const ts_source *dy, int64_t first, int64_t last,
                     int64_t at, int64_t n) {
  ts_tile dy_buffer, centred;
  memset(dw, 0, (size_t) n * sizeof *dw);
  memset(db, 0, (size_t) n * sizeof *db);
  for (int64_t row = first; row < last; ++row) {
    const float *from = ts_source_read(dy, row * in->columns + at, n, dy_buffer);
    float rstd = in->rstd[row];
    read_centred(centred, in, row, at, n, in->mean == NULL ? 0.0f : in->mean[row]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      dw[i] += from[i] * (centred[i] * rstd);
      db[i] += from[i];
    }
  }
}

static void run_dw(const ts_kernel_call *call, const norm_input *in) {
  ts_source dy = ts_source_of(call, 0);
  int64_t blocks = ts_pieces(in->rows, TS_ROW_BLOCK), columns = in->columns;
  float *dw = call->workspace, *db = dw + blocks * columns;
#pragma omp parallel for collapse(2) num_threads(call->threads) schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t at = 0; at < columns; at += TS_TILE) {
      ts_tile w_sum, b_sum;
      int64_t n = ts_min(TS_TILE, columns - at), first = block * TS_ROW_BLOCK;
      block_dw(w_sum, b_sum, in, &dy, first, ts_min(first + TS_ROW_BLOCK, in->rows), at, n);
      memcpy(dw + block * columns + at, w_sum, (size_t) n * sizeof(float));
      if (in->mean != NULL) {
        memcpy(db + block * columns + at, b_sum, (size_t) n * sizeof(float));
      }
    }
  }
  ts_columns_finish(call, 0, dw, in->rows, columns);
  if (in->mean != NULL) {
    ts_columns_finish(call, 1, db, in->rows, columns);
  }
}

static size_t norm_dw_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) target, (void) prepared;
  const ts_shape *shape = &graph->tensor[node->in[1]].shape;
  return ts_columns_workspace(ts_shape_rows(shape), shape->d[shape->n - 1], node->n_out);
}

static void layernorm_dw_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 1);
  in.mean = call->in[2];
  in.rstd = call->in[3];
  run_dw(call, &in);
}
TS_CPU_KERNEL(layernorm_dw) = {.prepare = norm_dw_prepare, .run = layernorm_dw_run};

static void rmsnorm_dw_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 1);
  in.rstd = call->in[2];
  run_dw(call, &in);
}
TS_CPU_KERNEL(rmsnorm_dw) = {.prepare = norm_dw_prepare, .run = rmsnorm_dw_run};

/* ---- rows of length 1 ---- */

static void normalize_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 0);
  ts_sink y = ts_sink_of(call, 0);
  float *r = call->out[1];
#pragma omp parallel for num_threads(ts_call_threads(call, in.rows)) schedule(static)
  for (int64_t row = 0; row < in.rows; ++row) {
    r[row] = 1.0f / fmaxf(sqrtf(row_squares(&in, row, 0.0f)), call->node->attr.norm.eps);
    for (int64_t at = 0; at < in.columns; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, in.columns - at), element = row * in.columns + at;
      ts_tile x_buffer, y_buffer;
      const float *x = ts_source_read(&in.x, element, n, x_buffer);
      float *to = ts_sink_open(&y, element, y_buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        to[i] = x[i] * r[row];
      }
      ts_sink_write(&y, element, n, to);
    }
  }
}
TS_CPU_KERNEL(normalize) = {.run = normalize_run};

/* r (dy - x by). */
static void normalize_row_dx(const ts_sink *dx, const norm_input *in, const ts_source *dy, int64_t row, float by) {
  float r = in->rstd[row];
  for (int64_t at = 0; at < in->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at), element = row * in->columns + at;
    ts_tile dy_buffer, x_buffer, dx_buffer;
    const float *g = ts_source_read(dy, element, n, dy_buffer), *x = ts_source_read(&in->x, element, n, x_buffer);
    float *to = ts_sink_open(dx, element, dx_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      to[i] = r * (g[i] - x[i] * by);
    }
    ts_sink_write(dx, element, n, to);
  }
}

static float row_dot_plain(const norm_input *in, const ts_source *dy, int64_t row) {
  ts_lanes lane = {0};
  ts_tile dy_buffer, x_buffer;
  for (int64_t at = 0; at < in->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at), element = row * in->columns + at;
    const float *g = ts_source_read(dy, element, n, dy_buffer);
    ts_lanes_add_product(lane, g, ts_source_read(&in->x, element, n, x_buffer), n);
  }
  return ts_lanes_sum(lane);
}

/* r^2 dots as (r dots) r: r alone may be 1e12. */
static void normalize_dx_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 1);
  ts_source dy = ts_source_of(call, 0);
  ts_sink dx = ts_sink_of(call, 0);
  in.rstd = call->in[2];
  float most = 1.0f / call->node->attr.norm.eps;
#pragma omp parallel for num_threads(ts_call_threads(call, in.rows)) schedule(static)
  for (int64_t row = 0; row < in.rows; ++row) {
    float r = in.rstd[row];
    normalize_row_dx(&dx, &in, &dy, row, r < most ? r * row_dot_plain(&in, &dy, row) * r : 0.0f);
  }
}
TS_CPU_KERNEL(normalize_dx) = {.run = normalize_dx_run};

static void row_squares_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 0);
  float *y = call->out[0];
#pragma omp parallel for num_threads(ts_call_threads(call, in.rows)) schedule(static)
  for (int64_t row = 0; row < in.rows; ++row) {
    y[row] = row_squares(&in, row, 0.0f);
  }
}
TS_CPU_KERNEL(row_squares) = {.run = row_squares_run};

/* The sum over a row of dy (offset + w) x. */
static float row_dot(const norm_input *in, const ts_source *dy, int64_t row) {
  ts_lanes lane = {0};
  ts_tile dy_buffer, w_buffer, x_buffer, g;
  for (int64_t at = 0; at < in->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, in->columns - at), element = row * in->columns + at;
    const float *from = ts_source_read(dy, element, n, dy_buffer);
    const float *w = read_weight(in, at, n, w_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      g[i] = from[i] * w[i];
    }
    ts_lanes_add_product(lane, g, ts_source_read(&in->x, element, n, x_buffer), n);
  }
  return ts_lanes_sum(lane);
}

static void row_dots_run(const ts_kernel_call *call) {
  norm_input in = norm_of(call, 1);
  in.w = ts_source_of(call, 2);
  in.offset = call->node->attr.norm.offset;
  ts_source dy = ts_source_of(call, 0);
  float *y = call->out[0];
#pragma omp parallel for num_threads(ts_call_threads(call, in.rows)) schedule(static)
  for (int64_t row = 0; row < in.rows; ++row) {
    y[row] = row_dot(&in, &dy, row);
  }
}
TS_CPU_KERNEL(row_dots) = {.run = row_dots_run};
