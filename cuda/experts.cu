/* Rows for experts: a stable sort of the choices (sort.cuh), and rows moved there and back, 16 bytes a thread where
 * rows allow.  No atomics but the sort's, which count.
 *
 * Bytes for M choices of N tokens: DISPATCH some 60 M; TAKE_ROWS reads and writes M C elements; COMBINE reads M C and
 * writes N C; COMBINE_DOTS reads (M + N) C. */
#include "cuda/sort.cuh"

enum { THREADS = 128, WARPS = THREADS / TS_WARP, EDGE_THREADS = 256 };

/* ---- the rows ---- */

/* Thread m: the row m's choice, and the experts that begin there; thread n those that begin behind all. */
static __global__ void __launch_bounds__(EDGE_THREADS)
    place_choices(int32_t *__restrict__ order, int32_t *__restrict__ place, int32_t *__restrict__ first,
                  const int32_t *__restrict__ key, const int32_t *__restrict__ choice, int64_t n, int64_t room,
                  int32_t experts) {
  int64_t m = (int64_t) blockIdx.x * EDGE_THREADS + threadIdx.x;
  if (m > n) {
    return;
  }
  int32_t before = m > 0 ? key[m - 1] : -1, here = m < n ? key[m] : experts;
  for (int32_t e = before + 1; e <= here; ++e) {
    first[e] = (int32_t) m;
  }
  if (m < room) {
    order[m] = choice[m];
  }
  if (m < n) {
    place[choice[m]] = (int32_t) m;
  }
}

static size_t dispatch_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  ts_sort sort;
  size_t used = 0;
  ts_sort_divide(&sort, NULL, ts_shape_count(&graph->tensor[node->in[0]].shape), &used);
  return used;
}

static void dispatch_launch(const ts_kernel_call *call) {
  int64_t n = ts_shape_count(&ts_call_in(call, 0)->shape);
  int32_t experts = call->node->attr.experts.n;
  ts_sort sort;
  size_t used = 0;
  ts_sort_divide(&sort, (char *) call->workspace, n, &used);
  int sorted = ts_sort_run(&sort, (const int32_t *) call->in[0], n,
                           ts_sort_ids{call->node->attr.experts.first, experts}, ts_call_stream(call));
  ts_launch(place_choices, ts_blocks(n + 1, EDGE_THREADS), EDGE_THREADS, 0, ts_call_stream(call),
            (int32_t *) call->out[0], (int32_t *) call->out[1], (int32_t *) call->out[2],
            (const int32_t *) sort.key[sorted], (const int32_t *) sort.place[sorted], n,
            ts_shape_count(&ts_call_out(call, 0)->shape), experts);
}

/* Thread e: the rows that all ranks have of the experts before it. */
static __global__ void __launch_bounds__(EDGE_THREADS)
    add_firsts(int32_t *__restrict__ first, const int32_t *__restrict__ firsts, int ranks, int stride, int from,
               int n) {
  int e = (int) (blockIdx.x * EDGE_THREADS + threadIdx.x);
  if (e > n) {
    return;
  }
  int32_t row = 0;
  for (int r = 0; r < ranks; ++r) {
    row += firsts[r * stride + from + e] - firsts[r * stride + from];
  }
  first[e] = row;
}

static void first_of_all_launch(const ts_kernel_call *call) {
  const ts_shape *shape = &ts_call_in(call, 0)->shape;
  int n = call->node->attr.experts.n;
  ts_launch(add_firsts, ts_blocks(n + 1, EDGE_THREADS), EDGE_THREADS, 0, ts_call_stream(call), (int32_t *) call->out[0],
            (const int32_t *) call->in[0], (int) shape->d[0], (int) shape->d[1], call->node->attr.experts.first, n);
}

/* ---- rows there and back ---- */

/* What the other three have. */
struct choices {
  const int32_t *order, *place, *taken; /* taken: rows that have an expert */
  const float *weight;                  /* NULL: 1 */
  int64_t tokens;
  int k, columns;
};

static choices find_choices(const ts_kernel_call *call) {
  enum { PLACE = 2, FIRST = 3, WEIGHT = 4 };
  const ts_shape *place = &ts_call_in(call, PLACE)->shape, *first = &ts_call_in(call, FIRST)->shape;
  int64_t k = place->d[place->n - 1];
  return {(const int32_t *) call->in[1],
          (const int32_t *) call->in[PLACE],
          (const int32_t *) call->in[FIRST] + first->d[0] - 1,
          call->node->n_in > WEIGHT ? (const float *) call->in[WEIGHT] : (const float *) NULL,
          k > 0 ? ts_shape_count(place) / k : 0,
          (int) k,
          (int) ts_columns_of(ts_call_in(call, 0))};
}

/* A block a row. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) take_rows(T *__restrict__ y, const T *__restrict__ x, choices c) {
  int64_t row = blockIdx.x;
  if (row >= *c.taken) {
    return;
  }
  int32_t choice = c.order[row];
  const T *from = x + (int64_t) (choice / c.k) * c.columns;
  float by = c.weight != NULL ? c.weight[choice] : 1.0f;
  for (int i = (int) threadIdx.x * W; i < c.columns; i += THREADS * W) {
    float v[W];
    ts_load<W>(v, from + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      v[k] *= by;
    }
    ts_store<W>(y + row * c.columns + i, v);
  }
}

/* A block a token. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS) combine_rows(T *x, const T *__restrict__ y, ts_prior<T> prior, choices c) {
  int64_t token = blockIdx.x;
  int32_t taken = *c.taken;
  float beta = ts_prior_beta(prior);
  for (int i = (int) threadIdx.x * W; i < c.columns; i += THREADS * W) {
    float sum[W] = {};
    for (int64_t j = token * c.k; j < (token + 1) * c.k; ++j) {
      int32_t row = c.place[j];
      if (row < taken) {
        float v[W], by = c.weight != NULL ? c.weight[j] : 1.0f;
        ts_load<W>(v, y + (int64_t) row * c.columns + i);
#pragma unroll
        for (int k = 0; k < W; ++k) {
          sum[k] += by * v[k];
        }
      }
    }
    ts_add_prior<W>(sum, prior, beta, token * c.columns + i);
    ts_store<W>(x + token * c.columns + i, sum);
  }
}

/* A warp a choice. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    dot_rows(float *__restrict__ dot, const T *__restrict__ x, const T *__restrict__ y, choices c) {
  int64_t choice = (int64_t) blockIdx.x * WARPS + threadIdx.x / TS_WARP;
  int lane = (int) threadIdx.x % TS_WARP;
  if (choice >= c.tokens * c.k) {
    return;
  }
  int32_t row = c.place[choice];
  const T *a = x + choice / c.k * c.columns, *b = y + (int64_t) row * c.columns;
  float sum = 0;
  for (int i = lane * W; i < c.columns && row < *c.taken; i += TS_WARP * W) {
    float v[W], w[W];
    ts_load<W>(v, a + i);
    ts_load<W>(w, b + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      sum += v[k] * w[k];
    }
  }
  sum = ts_warp_sum(sum);
  if (lane == 0) {
    dot[choice] = sum;
  }
}

template <typename T, int W> static void launch_take(const ts_kernel_call *call) {
  choices c = find_choices(call);
  ts_launch(take_rows<T, W>, ts_blocks(c.tokens * c.k, 1), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], c);
}

template <typename T, int W> static void launch_combine(const ts_kernel_call *call) {
  choices c = find_choices(call);
  ts_launch(combine_rows<T, W>, ts_blocks(c.tokens, 1), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], ts_call_prior<T>(call, 0), c);
}

template <typename T, int W> static void launch_dots(const ts_kernel_call *call) {
  choices c = find_choices(call);
  ts_launch(dot_rows<T, W>, ts_blocks(c.tokens * c.k, WARPS), THREADS, 0, ts_call_stream(call), (float *) call->out[0],
            (const T *) call->in[0], (const T *) call->in[1], c);
}

template <typename T> static void move_choices(const ts_kernel_call *call) {
  bool dots = call->node->op == TS_OP_COMBINE_DOTS;
  const void *pointer[] = {call->in[0], dots ? call->in[1] : call->out[0], ts_call_prior<T>(call, 0).data};
  bool wide = ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), pointer, 3);
  if (dots) {
    (wide ? launch_dots<T, ts_lanes<T>> : launch_dots<T, 1>) (call);
  } else if (call->node->op == TS_OP_COMBINE) {
    (wide ? launch_combine<T, ts_lanes<T>> : launch_combine<T, 1>) (call);
  } else {
    (wide ? launch_take<T, ts_lanes<T>> : launch_take<T, 1>) (call);
  }
}

static void rows_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, move_choices, call);
}

/* ---- biases of experts ---- */

/* A block a row, whose expert each thread looks up. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    add_biases(T *__restrict__ y, const T *__restrict__ x, const T *__restrict__ bias,
               const int32_t *__restrict__ first, int experts, int columns) {
  int64_t row = blockIdx.x;
  if (row >= first[experts]) {
    return;
  }
  int low = 0, high = experts;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (first[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  for (int i = (int) threadIdx.x * W; i < columns; i += THREADS * W) {
    float v[W], b[W];
    ts_load<W>(v, x + row * columns + i);
    ts_load<W>(b, bias + (int64_t) low * columns + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      v[k] += b[k];
    }
    ts_store<W>(y + row * columns + i, v);
  }
}

/* A thread a column of an expert. */
template <typename T, typename U>
__global__ void __launch_bounds__(THREADS)
    sum_of_experts(U *db, const T *__restrict__ dy, ts_prior<U> prior, const int32_t *__restrict__ first, int columns) {
  int i = (int) (blockIdx.x * THREADS + threadIdx.x), e = (int) blockIdx.y;
  if (i >= columns) {
    return;
  }
  double sum = 0;
  for (int64_t row = first[e]; row < first[e + 1]; ++row) {
    sum += ts_float(dy[row * columns + i]);
  }
  float value = (float) sum, beta = ts_prior_beta(prior);
  int64_t at = (int64_t) e * columns + i;
  ts_add_prior<1>(&value, prior, beta, at);
  db[at] = ts_round<U>(value);
}

template <typename T, int W> static void launch_biases(const ts_kernel_call *call) {
  const ts_shape *x = &ts_call_in(call, 0)->shape;
  ts_launch(add_biases<T, W>, ts_blocks(x->d[0], 1), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], (const T *) call->in[1], (const int32_t *) call->in[2],
            (int) ts_call_in(call, 1)->shape.d[0], (int) x->d[1]);
}

template <typename T> static void add_bias_of(const ts_kernel_call *call) {
  const void *pointer[] = {call->in[0], call->in[1], call->out[0]};
  bool wide = ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), pointer, 3);
  (wide ? launch_biases<T, ts_lanes<T>> : launch_biases<T, 1>) (call);
}

static void grouped_bias_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, add_bias_of, call);
}

template <typename T, typename U> static void launch_expert_sum(const ts_kernel_call *call) {
  int columns = (int) ts_columns_of(ts_call_in(call, 0)), experts = (int) ts_call_in(call, 1)->shape.d[0] - 1;
  ts_launch(sum_of_experts<T, U>, dim3(ts_blocks(columns, THREADS), (unsigned) experts), THREADS, 0,
            ts_call_stream(call), (U *) call->out[0], (const T *) call->in[0], ts_call_prior<U>(call, 0),
            (const int32_t *) call->in[1], columns);
}

static void grouped_sum_launch(const ts_kernel_call *call) {
  TS_FOR_FLOATS(ts_call_in(call, 0)->dtype, ts_call_out(call, 0)->dtype, launch_expert_sum, call);
}

/* ---- experts and an MLP beside them ---- */

/* The first of the softmax of two logits. */
static __device__ __forceinline__ float first_share(const float *logits) {
  return 1.0f / (1.0f + expf(logits[1] - logits[0]));
}

/* A block a token. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    blend_rows(T *__restrict__ y, const T *__restrict__ a, const T *__restrict__ b, const float *__restrict__ logits,
               int columns) {
  int64_t first = (int64_t) blockIdx.x * columns;
  float share = first_share(logits + 2 * (int64_t) blockIdx.x);
  for (int i = (int) threadIdx.x * W; i < columns; i += THREADS * W) {
    float v[W], w[W];
    ts_load<W>(v, a + first + i);
    ts_load<W>(w, b + first + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      v[k] = share * v[k] + (1.0f - share) * w[k];
    }
    ts_store<W>(y + first + i, v);
  }
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    blend_rows_dx(T *__restrict__ da, T *__restrict__ db, float *__restrict__ dlogits, const T *__restrict__ dy,
                  const T *__restrict__ a, const T *__restrict__ b, const float *__restrict__ logits, int columns) {
  TS_SHARED(float, part, WARPS);
  int64_t token = blockIdx.x, first = token * columns;
  float share = first_share(logits + 2 * token), dot = 0;
  for (int i = (int) threadIdx.x * W; i < columns; i += THREADS * W) {
    float d[W], v[W], w[W];
    ts_load<W>(d, dy + first + i);
    ts_load<W>(v, a + first + i);
    ts_load<W>(w, b + first + i);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      dot += d[k] * (v[k] - w[k]);
      v[k] = share * d[k];
      w[k] = (1.0f - share) * d[k];
    }
    ts_store<W>(da + first + i, v);
    ts_store<W>(db + first + i, w);
  }
  dot = ts_warp_sum(dot);
  if (threadIdx.x % TS_WARP == 0) {
    part[threadIdx.x / TS_WARP] = dot;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int w = 0; w < WARPS; ++w) {
      sum += part[w];
    }
    dlogits[2 * token] = share * (1.0f - share) * sum;
    dlogits[2 * token + 1] = -dlogits[2 * token];
  }
}

template <typename T, int W> static void launch_blend(const ts_kernel_call *call) {
  int64_t tokens = ts_shape_rows(&ts_call_in(call, 0)->shape);
  int columns = (int) ts_columns_of(ts_call_in(call, 0));
  if (call->node->op == TS_OP_BLEND) {
    ts_launch(blend_rows<T, W>, ts_blocks(tokens, 1), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
              (const T *) call->in[0], (const T *) call->in[1], (const float *) call->in[2], columns);
  } else {
    ts_launch(blend_rows_dx<T, W>, ts_blocks(tokens, 1), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
              (T *) call->out[1], (float *) call->out[2], (const T *) call->in[0], (const T *) call->in[1],
              (const T *) call->in[2], (const float *) call->in[3], columns);
  }
}

template <typename T> static void blend_of(const ts_kernel_call *call) {
  bool backward = call->node->op == TS_OP_BLEND_DX;
  const void *pointer[] = {call->in[0], call->in[1], call->in[backward ? 2 : 0], call->out[0],
                           call->out[backward ? 1 : 0]};
  bool wide = ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), pointer, 5);
  (wide ? launch_blend<T, ts_lanes<T>> : launch_blend<T, 1>) (call);
}

static void blend_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, blend_of, call);
}

const ts_kernel *ts_cuda_experts(ts_op op) {
  static const ts_kernel none = {};
  static const struct {
    ts_op op;
    ts_kernel kernel;
  } rows[] = {{TS_OP_DISPATCH, {dispatch_set_up, dispatch_launch, NULL}},
              {TS_OP_FIRST_OF_ALL, {NULL, first_of_all_launch, NULL}},
              {TS_OP_TAKE_ROWS, {NULL, rows_launch, NULL}},
              {TS_OP_COMBINE, {NULL, rows_launch, NULL}},
              {TS_OP_COMBINE_DOTS, {NULL, rows_launch, NULL}},
              {TS_OP_GROUPED_BIAS, {NULL, grouped_bias_launch, NULL}},
              {TS_OP_GROUPED_SUM, {NULL, grouped_sum_launch, NULL}},
              {TS_OP_BLEND, {NULL, blend_launch, NULL}},
              {TS_OP_BLEND_DX, {NULL, blend_launch, NULL}}};
  for (const auto &row : rows) {
    if (row.op == op) {
      return &row.kernel;
    }
  }
  return &none;
}
