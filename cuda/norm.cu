/* LayerNorm and RMSNorm: one family, RMSNorm has no mean and no bias.  A warp does a row: its elements stay in registers where
 * the row has at most MOST columns, so that each is read from memory once; longer rows are read again, from the cache.
 *
 * Bytes: forward 2 N C, dx 3 N C (4 with a prior), dw 2 N C elements, for N rows; statistics 8 N. */
#include "cuda/kernel.cuh"

enum { ROWS = 4 /* of a block: one a warp */, DW_ROWS = 128 /* of a partial sum of dw */, DW_COLUMNS = 32 * 4 };

/* ---- forward ---- */

/* Each lane takes vectors of W elements lane, lane + 32, ... of the row. */
template <typename T, int W, bool MEAN>
__global__ void __launch_bounds__(ROWS *TS_WARP)
norm_forward(T *__restrict__ y, float *__restrict__ mean, float *__restrict__ rstd, const T *__restrict__ x, const T *__restrict__ w,
             const T *__restrict__ bias, int64_t rows, int columns, float eps) {
  int64_t row = (int64_t) blockIdx.x * ROWS + threadIdx.x / TS_WARP;
  if (row >= rows) {
    return;
  }
  int first = (int) (threadIdx.x % TS_WARP) * W;
  const T *from = x + row * columns;
  float m = 0, v[W];
  if (MEAN) {
    for (int c = first; c < columns; c += TS_WARP * W) {
      ts_load<W>(v, from + c);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        m += v[i];
      }
    }
    m = ts_warp_sum(m) / (float) columns;
  }
  float squares = 0;
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(v, from + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      squares += (v[i] - m) * (v[i] - m);
    }
  }
  float r = 1.0f / sqrtf(ts_warp_sum(squares) / (float) columns + eps);
  for (int c = first; c < columns; c += TS_WARP * W) {
    float weight[W], b[W];
    ts_load<W>(v, from + c);
    ts_load<W>(weight, w + c);
    if (MEAN) {
      ts_load<W>(b, bias + c);
    }
#pragma unroll
    for (int i = 0; i < W; ++i) {
      v[i] = (v[i] - m) * r * weight[i] + (MEAN ? b[i] : 0.0f);
    }
    ts_store<W>(y + row * columns + c, v);
  }
  if (first == 0) {
    rstd[row] = r;
    if (MEAN) {
      mean[row] = m;
    }
  }
}

template <typename T, int W, bool MEAN>
static void launch_forward(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 0));
  ts_launch(norm_forward<T, W, MEAN>, ts_blocks(rows, ROWS), ROWS * TS_WARP, 0, ts_call_stream(call), (T *) call->out[0],
            MEAN ? (float *) call->out[1] : (float *) NULL, (float *) call->out[MEAN ? 2 : 1], (const T *) call->in[0],
            (const T *) call->in[1], MEAN ? (const T *) call->in[2] : (const T *) NULL, rows, columns, call->node->attr.norm.eps);
}

template <typename T, bool MEAN>
static void choose_forward(const ts_kernel_call *call) {
  const void *pointer[] = {call->out[0], call->in[0], call->in[1], MEAN ? call->in[2] : NULL};
  if (ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), pointer, 4)) {
    launch_forward<T, ts_lanes<T>, MEAN>(call);
  } else {
    launch_forward<T, 1, MEAN>(call);
  }
}

template <typename T>
static void forward(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_LAYERNORM) {
    choose_forward<T, true>(call);
  } else {
    choose_forward<T, false>(call);
  }
}

static void forward_run(const ts_kernel_call *call) { TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, forward, call); }

/* ---- dx = rstd (g - mean (g) - z mean (g z)) with g = dy w and z = (x - mean) rstd; mean (g) only where there is a mean ---- */

template <typename T, int W, bool MEAN>
__global__ void __launch_bounds__(ROWS *TS_WARP)
norm_dx(T *dx, const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ w, const float *__restrict__ mean,
        const float *__restrict__ rstd, ts_prior<T> prior, int64_t rows, int columns) {
  int64_t row = (int64_t) blockIdx.x * ROWS + threadIdx.x / TS_WARP;
  if (row >= rows) {
    return;
  }
  int first = (int) (threadIdx.x % TS_WARP) * W;
  int64_t start = row * columns;
  float m = MEAN ? mean[row] : 0.0f, r = rstd[row], sum = 0, projection = 0, g[W], z[W], weight[W];
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(g, dy + start + c);
    ts_load<W>(z, x + start + c);
    ts_load<W>(weight, w + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum += g[i] * weight[i];
      projection += g[i] * weight[i] * ((z[i] - m) * r);
    }
  }
  sum = MEAN ? ts_warp_sum(sum) / (float) columns : 0.0f;
  projection = ts_warp_sum(projection) / (float) columns;
  float beta = ts_prior_beta(prior);
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(g, dy + start + c);
    ts_load<W>(z, x + start + c);
    ts_load<W>(weight, w + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      g[i] = r * (g[i] * weight[i] - sum - (z[i] - m) * r * projection);
    }
    ts_add_prior<W>(g, prior, beta, start + c);
    ts_store<W>(dx + start + c, g);
  }
}

template <typename T, int W, bool MEAN>
static void launch_dx(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 1)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 1));
  ts_launch(norm_dx<T, W, MEAN>, ts_blocks(rows, ROWS), ROWS * TS_WARP, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const T *) call->in[1], (const T *) call->in[2],
            MEAN ? (const float *) call->in[3] : (const float *) NULL, (const float *) call->in[MEAN ? 4 : 3],
            ts_call_prior<T>(call, 0), rows, columns);
}

template <typename T, bool MEAN>
static void choose_dx(const ts_kernel_call *call) {
  const void *pointer[] = {call->out[0], call->in[0], call->in[1], call->in[2], ts_call_prior<T>(call, 0).data};
  if (ts_is_wide<T>(ts_columns_of(ts_call_in(call, 1)), pointer, 5)) {
    launch_dx<T, ts_lanes<T>, MEAN>(call);
  } else {
    launch_dx<T, 1, MEAN>(call);
  }
}

template <typename T>
static void dx(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_LAYERNORM_DX) {
    choose_dx<T, true>(call);
  } else {
    choose_dx<T, false>(call);
  }
}

static void dx_run(const ts_kernel_call *call) { TS_FOR_FLOAT(ts_call_in(call, 1)->dtype, dx, call); }

/* ---- dw = sum over rows of dy z, db = sum over rows of dy ----
 * A block sums DW_ROWS rows of DW_COLUMNS columns; a second kernel adds the blocks in order. */

template <typename T, bool MEAN>
__global__ void __launch_bounds__(DW_COLUMNS)
norm_dw_partial(float *__restrict__ dw, float *__restrict__ db, const T *__restrict__ dy, const T *__restrict__ x,
                const float *__restrict__ mean, const float *__restrict__ rstd, int64_t rows, int columns) {
  int c = (int) blockIdx.y * DW_COLUMNS + (int) threadIdx.x;
  if (c >= columns) {
    return;
  }
  int64_t first = (int64_t) blockIdx.x * DW_ROWS, last = first + DW_ROWS < rows ? first + DW_ROWS : rows;
  float w_sum = 0, b_sum = 0;
#pragma unroll 8
  for (int64_t row = first; row < last; ++row) {
    float g = ts_float(dy[row * columns + c]);
    w_sum += g * ((ts_float(x[row * columns + c]) - (MEAN ? mean[row] : 0.0f)) * rstd[row]);
    b_sum += g;
  }
  dw[(int64_t) blockIdx.x * columns + c] = w_sum;
  if (MEAN) {
    db[(int64_t) blockIdx.x * columns + c] = b_sum;
  }
}

template <typename T, bool MEAN>
static void launch_dw(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 1)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 1));
  unsigned blocks = ts_blocks(rows, DW_ROWS);
  float *dw = (float *) call->workspace, *db = dw + (int64_t) blocks * columns;
  ts_launch(norm_dw_partial<T, MEAN>, dim3(blocks, ts_blocks(columns, DW_COLUMNS)), DW_COLUMNS, 0, ts_call_stream(call), dw, db,
            (const T *) call->in[0], (const T *) call->in[1], MEAN ? (const float *) call->in[2] : (const float *) NULL,
            (const float *) call->in[MEAN ? 3 : 2], rows, columns);
  ts_cuda_add_rows(call, 0, dw, blocks, columns);
  if (MEAN) {
    ts_cuda_add_rows(call, 1, db, blocks, columns);
  }
}

template <typename T>
static void dw(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_LAYERNORM_DW) {
    launch_dw<T, true>(call);
  } else {
    launch_dw<T, false>(call);
  }
}

static void dw_run(const ts_kernel_call *call) { TS_FOR_FLOAT(ts_call_in(call, 1)->dtype, dw, call); }

static size_t dw_prepare(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  const ts_tensor *x = &graph->tensor[node->in[1]];
  return (size_t) node->n_out * ts_blocks(ts_shape_rows(&x->shape), DW_ROWS) * (size_t) ts_columns_of(x) * sizeof(float);
}

const ts_kernel *ts_cuda_norm(ts_op op) {
  static const ts_kernel forward = {NULL, forward_run, NULL}, dx = {NULL, dx_run, NULL}, dw = {dw_prepare, dw_run, NULL}, none = {};
  switch (op) {
    case TS_OP_LAYERNORM:
    case TS_OP_RMSNORM: return &forward;
    case TS_OP_LAYERNORM_DX:
    case TS_OP_RMSNORM_DX: return &dx;
    case TS_OP_LAYERNORM_DW:
    case TS_OP_RMSNORM_DW: return &dw;
    default: return &none;
  }
}
