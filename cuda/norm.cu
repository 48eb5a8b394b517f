/* LayerNorm and RMSNorm: one family, RMSNorm has no mean and no bias, but an offset that is added to w.  TPR threads do
 * a row and keep it in registers, up to 8 vectors of 16 bytes each, so that every element is read once; rows of heads
 * are one vector each of 8 or 16 threads, and a warp does several; rows that are too long or not aligned are done by a
 * warp that reads them again, from the cache.  A warp has no barrier to wait at: it does rows of up to 4 kB.
 *
 * Bytes: forward 2 N C, dx 3 N C (4 with a prior), dw 2 N C elements, for N rows; statistics 8 N. */
#include "cuda/columns.cuh"

#include <string.h>

enum { ROWS = 4 /* of a block where a warp does a row */, SHORT = ROWS * TS_WARP /* threads of it */ };

/* Threads of a block, and the row that the calling thread works on, with its place in it. */
template <int TPR> constexpr int block_threads = TPR <= TS_WARP ? (int) SHORT : TPR;

template <int TPR> static __device__ __forceinline__ int64_t my_row(void) {
  return TPR <= TS_WARP ? (int64_t) blockIdx.x * (SHORT / TPR) + threadIdx.x / TPR : (int64_t) blockIdx.x;
}

/* Vectors of a thread: of short rows one. */
template <int TPR, int LONG> constexpr int row_vectors = TPR < TS_WARP ? 1 : LONG;

/* Where the threads are fewer, the same sum: that of a warp whose other lanes have nothing. */
template <int TPR> static __device__ __forceinline__ float row_sum(float x, float *scratch) {
  if constexpr (TPR > TS_WARP) {
    return ts_block_sum(x, scratch);
  } else {
#pragma unroll
    for (int lane = TPR / 2; lane > 0; lane /= 2) {
      x += __shfl_xor_sync(0xffffffffu, x, lane);
    }
    return x;
  }
}

/* What an RMSNorm has besides: an offset, and sums over whole rows of `width` elements where x has some columns of them
 * (NULL: it has all).  A LayerNorm has no offset and no sums. */
struct norm_rms {
  float eps, offset, width;
  const float *sums;
};

static norm_rms rms_of(const ts_kernel_call *call, int64_t columns) {
  const ts_node *node = call->node;
  bool rms = node->op != TS_OP_LAYERNORM && node->op != TS_OP_LAYERNORM_DX;
  int sums = ts_norm_sums(node);
  int64_t width = rms ? node->attr.norm.width : 0;
  return {node->attr.norm.eps, rms ? node->attr.norm.offset : 0.0f, (float) (width > 0 ? width : columns),
          sums < 0 ? (const float *) NULL : (const float *) call->in[sums]};
}

/* 16 bytes as they were read, and an element of them: half the registers of floats. */
struct packed {
  uint32_t word[4];
};
template <typename T> static __device__ __forceinline__ float packed_at(const packed &v, int i);
template <> __device__ __forceinline__ float packed_at<float>(const packed &v, int i) {
  return __uint_as_float(v.word[i]);
}
template <> __device__ __forceinline__ float packed_at<ts_bf16>(const packed &v, int i) {
  return __uint_as_float(i % 2 == 0 ? v.word[i / 2] << 16 : v.word[i / 2] & 0xffff0000u);
}
template <> __device__ __forceinline__ float packed_at<ts_f16>(const packed &v, int i) {
  ts_f16 x;
  memcpy(&x, (const char *) v.word + i * sizeof x, sizeof x);
  return ts_float(x);
}
template <typename T> static __device__ __forceinline__ packed load_packed(const T *from) {
  uint4 v = *(const uint4 *) from;
  return {{v.x, v.y, v.z, v.w}};
}

/* ---- forward, the row in registers ---- */

template <typename T, int W, bool MEAN, int TPR, int LONG>
__global__ void __launch_bounds__(block_threads<TPR>)
    norm_forward_row(T *__restrict__ y, float *__restrict__ mean, float *__restrict__ rstd, const T *__restrict__ x,
                     const T *__restrict__ w, const T *__restrict__ bias, int64_t rows, int columns, float eps,
                     float offset) {
  TS_SHARED(float, scratch, TS_WARP);
  int64_t row = my_row<TPR>();
  if (TPR >= TS_WARP && row >= rows) {
    return;
  }
  int mine = TPR >= TS_WARP || row < rows ? columns : 0; /* without a row: goes along for the sums of others */
  int first = (int) (threadIdx.x % TPR) * W;
  constexpr int V = row_vectors<TPR, LONG>;
  const T *from = x + row * columns;
  float v[V][W], m = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if (first + k * TPR * W < mine) {
      ts_load<W>(v[k], from + first + k * TPR * W);
    }
  }
#pragma unroll
  for (int k = 0; k < V; ++k) {
#pragma unroll
    for (int i = 0; i < W && MEAN; ++i) {
      m += first + k * TPR * W < mine ? v[k][i] : 0.0f;
    }
  }
  m = MEAN ? row_sum<TPR>(m, scratch) / (float) columns : 0.0f;
#pragma unroll
  for (int k = 0; k < V; ++k) {
#pragma unroll
    for (int i = 0; i < W; ++i) {
      squares += first + k * TPR * W < mine ? (v[k][i] - m) * (v[k][i] - m) : 0.0f;
    }
  }
  float r = 1.0f / sqrtf(row_sum<TPR>(squares, scratch) / (float) columns + eps);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    int c = first + k * TPR * W;
    if (c < mine) {
      packed weight = load_packed(w + c), b = MEAN ? load_packed(bias + c) : packed{};
#pragma unroll
      for (int i = 0; i < W; ++i) {
        float by = packed_at<T>(weight, i);
        v[k][i] = (v[k][i] - m) * r * (MEAN ? by : offset + by) + (MEAN ? packed_at<T>(b, i) : 0.0f);
      }
      ts_store<W>(y + row * columns + c, v[k]);
    }
  }
  if (first < mine && first == 0) {
    rstd[row] = r;
    if (MEAN) {
      mean[row] = m;
    }
  }
}

/* ---- dx, the row in registers ---- */

/* The prior is read with the rest, before the row's sums are waited for. */
template <typename T, int W, bool MEAN, int TPR, int LONG>
__global__ void __launch_bounds__(block_threads<TPR>)
    norm_dx_row(T *dx, const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ w,
                const float *__restrict__ mean, const float *__restrict__ rstd, ts_prior<T> prior, int64_t rows,
                int columns, norm_rms rms) {
  constexpr int V = row_vectors<TPR, LONG>;
  TS_SHARED(float, scratch, TS_WARP);
  int64_t row = my_row<TPR>();
  if (TPR >= TS_WARP && row >= rows) {
    return;
  }
  int mine = TPR >= TS_WARP || row < rows ? columns : 0; /* without a row: goes along for the sums of others */
  int first = (int) (threadIdx.x % TPR) * W;
  int64_t start = row * columns;
  packed g[V], z[V], old[V];
  float sum = 0, projection = 0, beta = ts_prior_beta(prior);
  float m = MEAN && mine > 0 ? mean[row] : 0.0f, r = mine > 0 ? rstd[row] : 0.0f;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    int c = first + k * TPR * W;
    if (c < mine) {
      g[k] = load_packed(dy + start + c);
      z[k] = load_packed(x + start + c);
      if (beta != 0.0f) {
        old[k] = load_packed(prior.data + start + c);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < V; ++k) {
    int c = first + k * TPR * W;
    if (c < mine) {
      packed weight = load_packed(w + c);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        float by = packed_at<T>(weight, i), slope = packed_at<T>(g[k], i) * (MEAN ? by : rms.offset + by);
        sum += slope;
        projection += slope * ((packed_at<T>(z[k], i) - m) * r);
      }
    }
  }
  sum = MEAN ? row_sum<TPR>(sum, scratch) / (float) columns : 0.0f;
  projection = row_sum<TPR>(projection, scratch);
  projection = (MEAN || rms.sums == NULL || mine == 0 ? projection : r * rms.sums[row]) / rms.width;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    int c = first + k * TPR * W;
    if (c < mine) {
      float y[W];
      packed weight = load_packed(w + c);
#pragma unroll
      for (int i = 0; i < W; ++i) {
        float by = packed_at<T>(weight, i), slope = packed_at<T>(g[k], i) * (MEAN ? by : rms.offset + by);
        y[i] = r * (slope - sum - (packed_at<T>(z[k], i) - m) * r * projection);
        y[i] += beta != 0.0f ? beta * packed_at<T>(old[k], i) : 0.0f;
      }
      ts_store<W>(dx + start + c, y);
    }
  }
}

/* Whom a row of so many columns is for: by threads, and vectors of a thread. */
enum row_plan { AGAIN, BY_8, BY_16, BY_WARP, BY_WARP_LONG, BY_128, BY_512 };

template <typename T> static row_plan plan_of_row(int64_t columns) {
  int64_t vectors = (columns + ts_lanes<T> - 1) / ts_lanes<T>;
  return vectors <= 8             ? BY_8
         : vectors <= 16          ? BY_16
         : vectors <= 4 * TS_WARP ? BY_WARP
         : vectors <= 8 * TS_WARP ? BY_WARP_LONG
         : vectors <= 4 * 128     ? BY_128
         : vectors <= 4 * 512     ? BY_512
                                  : AGAIN;
}

template <int TPR> static unsigned row_blocks(int64_t rows) {
  return ts_blocks(rows, TPR <= TS_WARP ? SHORT / TPR : 1);
}

/* ---- forward by a warp that reads the row again ---- */

/* Each lane takes vectors of W elements lane, lane + 32, ... of the row. */
template <typename T, int W, bool MEAN>
__global__ void __launch_bounds__(ROWS *TS_WARP)
    norm_forward(T *__restrict__ y, float *__restrict__ mean, float *__restrict__ rstd, const T *__restrict__ x,
                 const T *__restrict__ w, const T *__restrict__ bias, int64_t rows, int columns, norm_rms rms) {
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
  squares = ts_warp_sum(squares);
  squares = MEAN || rms.sums == NULL ? squares : rms.sums[row];
  float r = 1.0f / sqrtf(squares / rms.width + rms.eps);
  for (int c = first; c < columns; c += TS_WARP * W) {
    float weight[W], b[W];
    ts_load<W>(v, from + c);
    ts_load<W>(weight, w + c);
    if (MEAN) {
      ts_load<W>(b, bias + c);
    }
#pragma unroll
    for (int i = 0; i < W; ++i) {
      v[i] = (v[i] - m) * r * (MEAN ? weight[i] : rms.offset + weight[i]) + (MEAN ? b[i] : 0.0f);
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

template <typename T, int W, bool MEAN> static void launch_forward(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 0));
  ts_launch(norm_forward<T, W, MEAN>, ts_blocks(rows, ROWS), ROWS * TS_WARP, 0, ts_call_stream(call),
            (T *) call->out[0], MEAN ? (float *) call->out[1] : (float *) NULL, (float *) call->out[MEAN ? 2 : 1],
            (const T *) call->in[0], (const T *) call->in[1], MEAN ? (const T *) call->in[2] : (const T *) NULL, rows,
            columns, rms_of(call, columns));
}

template <typename T, bool MEAN, int TPR, int LONG> static void launch_forward_row(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 0));
  ts_launch(norm_forward_row<T, ts_lanes<T>, MEAN, TPR, LONG>, row_blocks<TPR>(rows), block_threads<TPR>, 0,
            ts_call_stream(call), (T *) call->out[0], MEAN ? (float *) call->out[1] : (float *) NULL,
            (float *) call->out[MEAN ? 2 : 1], (const T *) call->in[0], (const T *) call->in[1],
            MEAN ? (const T *) call->in[2] : (const T *) NULL, rows, columns, call->node->attr.norm.eps,
            rms_of(call, columns).offset);
}

/* A row of which others have columns too is read again: the kernels with a row in registers have none left. */
template <typename T, bool MEAN> static void choose_forward(const ts_kernel_call *call) {
  const void *pointer[] = {call->out[0], call->in[0], call->in[1], MEAN ? call->in[2] : NULL};
  int64_t columns = ts_columns_of(ts_call_in(call, 0));
  bool whole = rms_of(call, columns).sums == NULL, wide = ts_is_wide<T>(columns, pointer, 4);
  switch (whole && wide ? plan_of_row<T>(columns) : AGAIN) {
    case BY_8: launch_forward_row<T, MEAN, 8, 1>(call); break;
    case BY_16: launch_forward_row<T, MEAN, 16, 1>(call); break;
    case BY_WARP: launch_forward_row<T, MEAN, TS_WARP, 4>(call); break;
    case BY_WARP_LONG: launch_forward_row<T, MEAN, TS_WARP, 8>(call); break;
    case BY_128: launch_forward_row<T, MEAN, 128, 4>(call); break;
    case BY_512: launch_forward_row<T, MEAN, 512, 4>(call); break;
    default: (wide ? launch_forward<T, ts_lanes<T>, MEAN> : launch_forward<T, 1, MEAN>) (call);
  }
}

template <typename T> static void forward(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_LAYERNORM) {
    choose_forward<T, true>(call);
  } else {
    choose_forward<T, false>(call);
  }
}

static void forward_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, forward, call);
}

/* ---- dx = rstd (g - mean (g) - z mean (g z)) with g = dy w and z = (x - mean) rstd; mean (g) only with a mean ---- */

template <typename T, int W, bool MEAN>
__global__ void __launch_bounds__(ROWS *TS_WARP)
    norm_dx(T *dx, const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ w,
            const float *__restrict__ mean, const float *__restrict__ rstd, ts_prior<T> prior, int64_t rows,
            int columns, norm_rms rms) {
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
      weight[i] = MEAN ? weight[i] : rms.offset + weight[i];
      sum += g[i] * weight[i];
      projection += g[i] * weight[i] * ((z[i] - m) * r);
    }
  }
  sum = MEAN ? ts_warp_sum(sum) / (float) columns : 0.0f;
  projection = ts_warp_sum(projection);
  projection = (MEAN || rms.sums == NULL ? projection : r * rms.sums[row]) / rms.width;
  float beta = ts_prior_beta(prior);
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(g, dy + start + c);
    ts_load<W>(z, x + start + c);
    ts_load<W>(weight, w + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      g[i] = r * (g[i] * (MEAN ? weight[i] : rms.offset + weight[i]) - sum - (z[i] - m) * r * projection);
    }
    ts_add_prior<W>(g, prior, beta, start + c);
    ts_store<W>(dx + start + c, g);
  }
}

template <typename T, int W, bool MEAN> static void launch_dx(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 1)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 1));
  ts_launch(norm_dx<T, W, MEAN>, ts_blocks(rows, ROWS), ROWS * TS_WARP, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const T *) call->in[1], (const T *) call->in[2],
            MEAN ? (const float *) call->in[3] : (const float *) NULL, (const float *) call->in[MEAN ? 4 : 3],
            ts_call_prior<T>(call, 0), rows, columns, rms_of(call, columns));
}

template <typename T, bool MEAN, int TPR, int LONG> static void launch_dx_row(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 1)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 1));
  ts_launch(norm_dx_row<T, ts_lanes<T>, MEAN, TPR, LONG>, row_blocks<TPR>(rows), block_threads<TPR>, 0,
            ts_call_stream(call), (T *) call->out[0], (const T *) call->in[0], (const T *) call->in[1],
            (const T *) call->in[2], MEAN ? (const float *) call->in[3] : (const float *) NULL,
            (const float *) call->in[MEAN ? 4 : 3], ts_call_prior<T>(call, 0), rows, columns, rms_of(call, columns));
}

template <typename T, bool MEAN> static void choose_dx(const ts_kernel_call *call) {
  const void *pointer[] = {call->out[0], call->in[0], call->in[1], call->in[2], ts_call_prior<T>(call, 0).data};
  int64_t columns = ts_columns_of(ts_call_in(call, 1));
  bool wide = ts_is_wide<T>(columns, pointer, 5);
  switch (wide ? plan_of_row<T>(columns) : AGAIN) {
    case BY_8: launch_dx_row<T, MEAN, 8, 1>(call); break;
    case BY_16: launch_dx_row<T, MEAN, 16, 1>(call); break;
    case BY_WARP: launch_dx_row<T, MEAN, TS_WARP, 4>(call); break;
    case BY_WARP_LONG: launch_dx_row<T, MEAN, TS_WARP, 8>(call); break;
    case BY_128: launch_dx_row<T, MEAN, 128, 4>(call); break;
    case BY_512: launch_dx_row<T, MEAN, 512, 4>(call); break;
    default: (wide ? launch_dx<T, ts_lanes<T>, MEAN> : launch_dx<T, 1, MEAN>) (call);
  }
}

template <typename T> static void dx(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_LAYERNORM_DX) {
    choose_dx<T, true>(call);
  } else {
    choose_dx<T, false>(call);
  }
}

static void dx_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 1)->dtype, dx, call);
}

/* ---- dw = sum over rows of dy z, db = sum over rows of dy: partial sums of blocks of rows, then their sum ---- */

template <typename T, int W, bool MEAN>
__global__ void __launch_bounds__(TS_COLUMN_THREADS)
    norm_dw_partial(float *__restrict__ dw, float *__restrict__ db, const T *__restrict__ dy, const T *__restrict__ x,
                    const float *__restrict__ mean, const float *__restrict__ rstd, int64_t rows, int columns) {
  enum { N = MEAN ? 2 : 1 };
  float *to[N];
  to[0] = dw;
  to[N - 1] = MEAN ? db : dw;
  ts_sum_columns<N, W>(to, rows, columns, [&](float(&sum)[N][W], int64_t row, int c) {
    float g[W], z[W], m = MEAN ? mean[row] : 0.0f, r = rstd[row];
    ts_load<W>(g, dy + row * columns + c);
    ts_load<W>(z, x + row * columns + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum[0][i] += g[i] * ((z[i] - m) * r);
      if (MEAN) {
        sum[N - 1][i] += g[i];
      }
    }
  });
}

template <typename T, int W, bool MEAN> static void launch_dw(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 1)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 1));
  unsigned blocks = ts_column_blocks(rows, columns);
  float *dw = (float *) call->workspace, *db = dw + (int64_t) blocks * columns;
  ts_launch(norm_dw_partial<T, W, MEAN>, ts_column_grid<W>(rows, columns), TS_COLUMN_THREADS, 0, ts_call_stream(call),
            dw, db, (const T *) call->in[0], (const T *) call->in[1],
            MEAN ? (const float *) call->in[2] : (const float *) NULL, (const float *) call->in[MEAN ? 3 : 2], rows,
            columns);
  ts_cuda_add_rows(call, 0, dw, blocks, columns);
  if (MEAN) {
    ts_cuda_add_rows(call, 1, db, blocks, columns);
  }
}

template <typename T, bool MEAN> static void choose_dw(const ts_kernel_call *call) {
  if (ts_is_wide<T>(ts_columns_of(ts_call_in(call, 1)), call->in, 2)) {
    launch_dw<T, ts_lanes<T>, MEAN>(call);
  } else {
    launch_dw<T, 1, MEAN>(call);
  }
}

template <typename T> static void dw(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_LAYERNORM_DW) {
    choose_dw<T, true>(call);
  } else {
    choose_dw<T, false>(call);
  }
}

static void dw_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 1)->dtype, dw, call);
}

static size_t dw_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  const ts_tensor *x = &graph->tensor[node->in[1]];
  return (size_t) node->n_out * ts_column_blocks(ts_shape_rows(&x->shape), ts_columns_of(x)) *
         (size_t) ts_columns_of(x) * sizeof(float);
}

/* ---- rows of length 1: a warp reads a row twice, the second time from the cache ---- */

template <typename T, int W>
__global__ void __launch_bounds__(ROWS *TS_WARP)
    normalize_rows(T *__restrict__ y, float *__restrict__ scale, const T *__restrict__ x, int64_t rows, int columns,
                   float eps) {
  int64_t row = (int64_t) blockIdx.x * ROWS + threadIdx.x / TS_WARP;
  if (row >= rows) {
    return;
  }
  int first = (int) (threadIdx.x % TS_WARP) * W;
  float squares = 0, v[W];
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(v, x + row * columns + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      squares += v[i] * v[i];
    }
  }
  float r = 1.0f / fmaxf(sqrtf(ts_warp_sum(squares)), eps);
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(v, x + row * columns + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      v[i] *= r;
    }
    ts_store<W>(y + row * columns + c, v);
  }
  if (first == 0) {
    scale[row] = r;
  }
}

/* r^2 dots as (r dots) r: r alone may be 1e12. */
template <typename T, int W>
__global__ void __launch_bounds__(ROWS *TS_WARP)
    normalize_dx_rows(T *dx, const T *__restrict__ dy, const T *__restrict__ x, const float *__restrict__ scale,
                      ts_prior<T> prior, int64_t rows, int columns, float eps) {
  int64_t row = (int64_t) blockIdx.x * ROWS + threadIdx.x / TS_WARP;
  if (row >= rows) {
    return;
  }
  int first = (int) (threadIdx.x % TS_WARP) * W;
  int64_t start = row * columns;
  float r = scale[row], dots = 0, g[W], v[W];
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(g, dy + start + c);
    ts_load<W>(v, x + start + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      dots += g[i] * v[i];
    }
  }
  dots = ts_warp_sum(dots);
  float by = r < 1.0f / eps ? r * dots * r : 0.0f, beta = ts_prior_beta(prior);
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(g, dy + start + c);
    ts_load<W>(v, x + start + c);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      g[i] = r * (g[i] - v[i] * by);
    }
    ts_add_prior<W>(g, prior, beta, start + c);
    ts_store<W>(dx + start + c, g);
  }
}

template <typename T, int W> static void launch_normalize(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape);
  ts_launch(normalize_rows<T, W>, ts_blocks(rows, ROWS), ROWS * TS_WARP, 0, ts_call_stream(call), (T *) call->out[0],
            (float *) call->out[1], (const T *) call->in[0], rows, (int) ts_columns_of(ts_call_in(call, 0)),
            call->node->attr.norm.eps);
}

template <typename T, int W> static void launch_normalize_dx(const ts_kernel_call *call) {
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape);
  ts_launch(normalize_dx_rows<T, W>, ts_blocks(rows, ROWS), ROWS * TS_WARP, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const T *) call->in[1], (const float *) call->in[2], ts_call_prior<T>(call, 0),
            rows, (int) ts_columns_of(ts_call_in(call, 0)), call->node->attr.norm.eps);
}

template <typename T> static void normalize(const ts_kernel_call *call) {
  bool back = call->node->op == TS_OP_NORMALIZE_DX;
  const void *pointer[] = {call->out[0], call->in[0], back ? call->in[1] : NULL, ts_call_prior<T>(call, 0).data};
  bool wide = ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), pointer, 4);
  (back   ? wide ? launch_normalize_dx<T, ts_lanes<T>> : launch_normalize_dx<T, 1>
     : wide ? launch_normalize<T, ts_lanes<T>>
          : launch_normalize<T, 1>) (call);
}

static void normalize_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, normalize, call);
}

/* ---- sums over rows: of x^2; of dy (o + w) x ---- */

template <typename T, int W, bool DOTS>
__global__ void __launch_bounds__(ROWS *TS_WARP)
    row_sums(float *__restrict__ y, const T *__restrict__ dy, const T *__restrict__ x, const T *__restrict__ w,
             int64_t rows, int columns, float offset) {
  int64_t row = (int64_t) blockIdx.x * ROWS + threadIdx.x / TS_WARP;
  if (row >= rows) {
    return;
  }
  int first = (int) (threadIdx.x % TS_WARP) * W;
  float sum = 0, v[W], g[W], weight[W];
  for (int c = first; c < columns; c += TS_WARP * W) {
    ts_load<W>(v, x + row * columns + c);
    if (DOTS) {
      ts_load<W>(g, dy + row * columns + c);
      ts_load<W>(weight, w + c);
    }
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum += DOTS ? g[i] * (offset + weight[i]) * v[i] : v[i] * v[i];
    }
  }
  sum = ts_warp_sum(sum);
  if (first == 0) {
    y[row] = sum;
  }
}

template <typename T, int W, bool DOTS> static void launch_row_sums(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, DOTS ? 1 : 0);
  int64_t rows = ts_shape_rows(&x->shape);
  ts_launch(row_sums<T, W, DOTS>, ts_blocks(rows, ROWS), ROWS * TS_WARP, 0, ts_call_stream(call),
            (float *) call->out[0], DOTS ? (const T *) call->in[0] : (const T *) NULL,
            (const T *) call->in[DOTS ? 1 : 0], DOTS ? (const T *) call->in[2] : (const T *) NULL, rows,
            (int) ts_columns_of(x), DOTS ? call->node->attr.norm.offset : 0.0f);
}

template <typename T, bool DOTS> static void choose_sums(const ts_kernel_call *call) {
  if (ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), call->in, DOTS ? 3 : 1)) {
    launch_row_sums<T, ts_lanes<T>, DOTS>(call);
  } else {
    launch_row_sums<T, 1, DOTS>(call);
  }
}

template <typename T> static void sums(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_ROW_DOTS) {
    choose_sums<T, true>(call);
  } else {
    choose_sums<T, false>(call);
  }
}

static void sums_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, sums, call);
}

const ts_kernel *ts_cuda_norm(ts_op op) {
  static const ts_kernel forward = {NULL, forward_launch, NULL}, dx = {NULL, dx_launch, NULL},
                         dw = {dw_set_up, dw_launch, NULL}, sums = {NULL, sums_launch, NULL},
                         unit = {NULL, normalize_launch, NULL}, none = {};
  switch (op) {
    case TS_OP_LAYERNORM:
    case TS_OP_RMSNORM: return &forward;
    case TS_OP_LAYERNORM_DX:
    case TS_OP_RMSNORM_DX: return &dx;
    case TS_OP_LAYERNORM_DW:
    case TS_OP_RMSNORM_DW: return &dw;
    case TS_OP_NORMALIZE:
    case TS_OP_NORMALIZE_DX: return &unit;
    case TS_OP_ROW_SQUARES:
    case TS_OP_ROW_DOTS: return &sums;
    default: return &none;
  }
}
