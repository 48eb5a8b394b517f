/* Rows moved as they are, and the sum of rows that were looked up alike.
 *
 * EMBEDDING_DW.  The tokens are sorted by id, stably, and the sorted list is cut into chunks of CHUNK tokens.  A block
 * goes through the tokens of a chunk in order, for a tile of columns: an id whose tokens all lie in the chunk is
 * finished there; of one that goes on beyond the chunk's begin or end a partial sum is left, and the partial sums are
 * added in the order of chunks.  So the order of every sum follows from the ids alone, and an id that is a twentieth of
 * the batch is summed by many blocks.  Rows that no token named are beta prior, or 0.
 * Bytes: N C elements of dy, and V C of dw, or twice that with a prior; where the prior lies in place and beta is 1
 * only the rows that are named. */
#include "cuda/kernel.cuh"
#include "cuda/sort.cuh"

enum { THREADS = 256, ROWS = THREADS / TS_WARP /* of a block: one a warp */, COLUMNS = 8 * TS_WARP /* of a tile */ };
enum { CHUNK = 128, TILE = 128 /* threads of a tile of columns */, AHEAD = 8 /* rows read before they are added */ };

/* ---- moving rows ---- */

/* Units of 16, 4, 2 or 1 bytes.  Row r of `to` is row r of `from`, or row index[r] - first more, zeros where that is
 * not in [0, indexed); strides in units. */
struct row_copy {
  void *to;
  const void *from;
  const int32_t *index; /* NULL: none */
  int64_t rows, width, to_stride, from_stride, index_stride, first, indexed;
};

/* A warp copies a tile of a row, of `tiles`: what is cut out of samples may have more than a grid's other dimension. */
template <typename Unit> __global__ void __launch_bounds__(THREADS) copy_rows(row_copy c, unsigned tiles) {
  int64_t row = (int64_t) (blockIdx.x / tiles) * ROWS + threadIdx.x / TS_WARP;
  if (row >= c.rows) {
    return;
  }
  int64_t index = c.index == NULL ? 0 : (int64_t) c.index[row] - c.first;
  bool there = c.index == NULL || (index >= 0 && index < c.indexed);
  const Unit *from = (const Unit *) c.from + row * c.from_stride + index * c.index_stride;
  Unit *to = (Unit *) c.to + row * c.to_stride;
  int64_t first = (int64_t) (blockIdx.x % tiles) * COLUMNS;
  int64_t last = first + COLUMNS < c.width ? first + COLUMNS : c.width;
  int64_t at = first + threadIdx.x % TS_WARP;
  enum { EACH = COLUMNS / TS_WARP };
  Unit unit[EACH] = {}; /* all are read before the first is written */
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (there && at + i * TS_WARP < last) {
      unit[i] = from[at + i * TS_WARP];
    }
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    if (at + i * TS_WARP < last) {
      to[at + i * TS_WARP] = unit[i];
    }
  }
}

template <typename Unit> static void launch_copy(row_copy c, cudaStream_t stream) {
  int64_t size = (int64_t) sizeof(Unit);
  c.width /= size;
  c.to_stride /= size;
  c.from_stride /= size;
  c.index_stride /= size;
  unsigned tiles = ts_blocks(c.width, COLUMNS);
  ts_launch(copy_rows<Unit>, ts_blocks((c.rows + ROWS - 1) / ROWS * tiles, 1), THREADS, 0, stream, c, tiles);
}

/* Width and strides in bytes. */
static void copy_by_width(const row_copy &c, cudaStream_t stream) {
  int64_t all = (int64_t) c.to | (int64_t) c.from | c.width | c.to_stride | c.from_stride | c.index_stride;
  if (all % 16 == 0) {
    launch_copy<uint4>(c, stream);
  } else if (all % 4 == 0) {
    launch_copy<uint32_t>(c, stream);
  } else if (all % 2 == 0) {
    launch_copy<uint16_t>(c, stream);
  } else {
    launch_copy<uint8_t>(c, stream);
  }
}

static int64_t bytes_of_row(const ts_tensor *t) {
  return ts_columns_of(t) * (int64_t) ts_dtype_size(t->dtype);
}

/* Groups of a row are rows of a tensor that is as many times longer and narrower. */
static void split_launch(const ts_kernel_call *call) {
  const char *from = (const char *) call->in[0];
  int64_t groups = call->node->attr.split.groups, rows = ts_shape_rows(&ts_call_in(call, 0)->shape) * groups;
  int64_t whole = bytes_of_row(ts_call_in(call, 0)) / groups;
  for (int i = 0; i < call->node->n_out; ++i) {
    int64_t width = bytes_of_row(ts_call_out(call, i)) / groups;
    copy_by_width({call->out[i], from, NULL, rows, width, width, whole, 0, 0, 0}, ts_call_stream(call));
    from += width;
  }
}

static void concat_launch(const ts_kernel_call *call) {
  char *to = (char *) call->out[0];
  int64_t groups = call->node->attr.concat.groups, rows = ts_shape_rows(&ts_call_out(call, 0)->shape) * groups;
  int64_t whole = bytes_of_row(ts_call_out(call, 0)) / groups;
  for (int i = 0; i < call->node->n_in; ++i) {
    int64_t width = bytes_of_row(ts_call_in(call, i)) / groups;
    copy_by_width({to, call->in[i], NULL, rows, width, whole, width, 0, 0, 0}, ts_call_stream(call));
    to += width;
  }
}

/* Intervals one after another.  A row of the copy is an interval behind one index of what lies before the dimension; of
 * a matrix cut by rows a row of it, where that is enough for a warp. */
static void move_intervals(const ts_kernel_call *call, const ts_tensor *some, bool back) {
  int dim = call->node->attr.take.dim;
  int64_t outer = 1, row = (int64_t) ts_dtype_size(some->dtype), done = 0;
  for (int i = 0; i < some->shape.n; ++i) {
    outer *= i < dim ? some->shape.d[i] : 1;
    row *= i > dim ? some->shape.d[i] : 1;
  }
  bool by_rows = outer == 1 && row >= 16 * TS_WARP;
  int64_t whole = by_rows ? row : call->node->attr.take.extent * row, part = by_rows ? row : some->shape.d[dim] * row;
  for (int i = 0; i < call->node->attr.take.n; ++i) {
    ts_interval interval = call->node->attr.take.interval[i];
    int64_t there = interval.begin * row, rows = by_rows ? interval.length : outer;
    char *to = (char *) call->out[0] + (back ? there : done);
    const char *from = (const char *) call->in[0] + (back ? done : there);
    copy_by_width({to, from, NULL, rows, by_rows ? row : interval.length * row, back ? whole : part,
                   back ? part : whole, 0, 0, 0},
                  ts_call_stream(call));
    done += interval.length * row;
  }
}

static void take_launch(const ts_kernel_call *call) {
  move_intervals(call, ts_call_out(call, 0), false);
}

static void place_launch(const ts_kernel_call *call) {
  const ts_tensor *x = ts_call_in(call, 0), *y = ts_call_out(call, 0);
  size_t bytes = (size_t) ts_shape_count(&y->shape) * ts_dtype_size(y->dtype);
  if (bytes > 0 && x->shape.d[call->node->attr.take.dim] < call->node->attr.take.extent) {
    TS_CUDA(cudaMemsetAsync(call->out[0], 0, bytes, ts_call_stream(call)));
  }
  move_intervals(call, x, true);
}

static void embedding_launch(const ts_kernel_call *call) {
  int64_t rows = ts_shape_count(&ts_call_in(call, 1)->shape), bytes = bytes_of_row(ts_call_in(call, 0));
  copy_by_width({call->out[0], call->in[0], (const int32_t *) call->in[1], rows, bytes, bytes, 0, bytes,
                 call->node->attr.embedding.first, ts_call_in(call, 0)->shape.d[0]},
                ts_call_stream(call));
}

/* ---- tokens of samples: one, or the mean of those of a mask ---- */

/* x has `rows` of a sample's tokens: row + shift[0] before `split`, row + shift[1] from there on.  `which` has a token
 * of each sample (length 0), or a mask of so many, and count what it counts. */
struct pick_samples {
  const int32_t *which;
  const float *count;
  int64_t rows, length, split, shift[2];
};

static __device__ __forceinline__ bool is_picked(const pick_samples &p, int64_t b, int64_t row) {
  int64_t token = row + (row < p.split ? p.shift[0] : p.shift[1]);
  return p.length > 0 ? p.which[b * p.length + token] != 0 : p.which[b] == token;
}

static __device__ __forceinline__ float picked_count(const pick_samples &p, int64_t b) {
  return p.length > 0 ? p.count[b] : 1.0f;
}

/* A block a sample. */
static __global__ void __launch_bounds__(THREADS)
    count_mask(float *__restrict__ count, const int32_t *__restrict__ mask, int64_t length) {
  TS_SHARED(float, scratch, THREADS / TS_WARP);
  float sum = 0;
  for (int64_t t = threadIdx.x; t < length; t += THREADS) {
    sum += mask[(int64_t) blockIdx.x * length + t] != 0 ? 1.0f : 0.0f;
  }
  sum = ts_block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    count[blockIdx.x] = sum;
  }
}

/* A block does some columns of a sample: warp w adds rows w, w + 8, ... in order, then the warps are added in order. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    pick_tokens(T *__restrict__ y, const T *__restrict__ x, pick_samples p, int columns, unsigned tiles) {
  TS_SHARED(float, part, THREADS *W);
  int64_t b = blockIdx.x / tiles;
  int lane = (int) threadIdx.x % TS_WARP, warp = (int) threadIdx.x / TS_WARP;
  int c = ((int) (blockIdx.x % tiles) * TS_WARP + lane) * W;
  float sum[W] = {};
  if (c < columns) {
    for (int64_t row = warp; row < p.rows; row += ROWS) {
      if (is_picked(p, b, row)) {
        float value[W];
        ts_load<W>(value, x + (b * p.rows + row) * columns + c);
#pragma unroll
        for (int i = 0; i < W; ++i) {
          sum[i] += value[i];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < W; ++i) {
    part[(warp * W + i) * TS_WARP + lane] = sum[i];
  }
  __syncthreads();
  if (warp != 0 || c >= columns) {
    return;
  }
  float count = picked_count(p, b);
#pragma unroll
  for (int i = 0; i < W; ++i) {
    for (int w = 1; w < ROWS; ++w) {
      sum[i] += part[(w * W + i) * TS_WARP + lane];
    }
    sum[i] = count > 0.0f ? sum[i] / count : 0.0f;
  }
  ts_store<W>(y + b * columns + c, sum);
}

/* A warp a row of dx. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    pick_dx_tokens(T *dx, const T *__restrict__ dy, pick_samples p, ts_prior<T> prior, int64_t rows, int columns) {
  int64_t row = (int64_t) blockIdx.x * ROWS + threadIdx.x / TS_WARP;
  if (row >= rows) {
    return;
  }
  int64_t b = row / p.rows;
  bool picked = is_picked(p, b, row % p.rows);
  float count = picked_count(p, b), beta = ts_prior_beta(prior);
#pragma unroll 2
  for (int c = (int) (threadIdx.x % TS_WARP) * W; c < columns; c += TS_WARP * W) {
    float value[W] = {};
    if (picked) {
      ts_load<W>(value, dy + b * columns + c);
    }
#pragma unroll
    for (int i = 0; i < W; ++i) {
      value[i] = picked ? value[i] / count : 0.0f;
    }
    ts_add_prior<W>(value, prior, beta, row * columns + c);
    ts_store<W>(dx + row * columns + c, value);
  }
}

/* Counts its mask first. */
static pick_samples pick_samples_of(const ts_kernel_call *call, int64_t rows) {
  const ts_shape *which = &ts_call_in(call, 1)->shape;
  const ts_tokens *tokens = &call->node->attr.pick.tokens;
  pick_samples p = {
      (const int32_t *) call->in[1], (const float *) call->workspace, rows, which->n == 2 ? which->d[1] : 0, 0, {}};
  if (tokens->n > 0) {
    p.split = tokens->stretch[0].length;
    p.shift[0] = tokens->stretch[0].begin;
    p.shift[1] = tokens->n > 1 ? tokens->stretch[1].begin - p.split : 0;
  }
  if (p.length > 0) {
    ts_launch(count_mask, (unsigned) which->d[0], THREADS, 0, ts_call_stream(call), (float *) call->workspace, p.which,
              p.length);
  }
  return p;
}

template <typename T, int W> static void launch_pick(const ts_kernel_call *call) {
  const ts_shape *x = &ts_call_in(call, 0)->shape;
  unsigned tiles = ts_blocks(x->d[2], TS_WARP * W);
  pick_samples p = pick_samples_of(call, x->d[1]);
  ts_launch(pick_tokens<T, W>, (unsigned) x->d[0] * tiles, THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], p, (int) x->d[2], tiles);
}

template <typename T, int W> static void launch_pick_dx(const ts_kernel_call *call) {
  const ts_shape *x = &ts_call_out(call, 0)->shape;
  int64_t rows = x->d[0] * x->d[1];
  pick_samples p = pick_samples_of(call, x->d[1]);
  ts_launch(pick_dx_tokens<T, W>, ts_blocks(rows, ROWS), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            (const T *) call->in[0], p, ts_call_prior<T>(call, 0), rows, (int) x->d[2]);
}

template <typename T> static void pick(const ts_kernel_call *call) {
  const void *pointer[] = {call->in[0], call->out[0], ts_call_prior<T>(call, 0).data};
  bool wide = ts_is_wide<T>(ts_columns_of(ts_call_in(call, 0)), pointer, 3);
  (call->node->op == TS_OP_PICK_DX ? wide ? launch_pick_dx<T, ts_lanes<T>> : launch_pick_dx<T, 1>
   : wide ? launch_pick<T, ts_lanes<T>>
                                   : launch_pick<T, 1>) (call);
}

static void pick_launch(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, pick, call);
}

static size_t pick_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  return (size_t) graph->tensor[node->in[0]].shape.d[0] * sizeof(float);
}

/* ---- the sums ---- */

/* Ids are counted from the table's first row; those of no row of it are sorted behind the others, as the id `rows`, and
 * passed over. */

/* First place of each id in the sorted list, -1: no token has it. */
static __global__ void __launch_bounds__(THREADS) clear_starts(int32_t *start, int64_t rows) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < rows) {
    start[i] = -1;
  }
}

static __global__ void __launch_bounds__(THREADS)
    find_starts(int32_t *start, const int32_t *__restrict__ key, int64_t n, int64_t rows) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < n && key[i] < rows && (i == 0 || key[i - 1] != key[i])) {
    start[key[i]] = (int32_t) i;
  }
}

/* Rows that no token named, a warp a row. */
template <typename U, int W>
__global__ void __launch_bounds__(THREADS)
    fill_others(U *dw, const int32_t *__restrict__ start, ts_prior<U> prior, int64_t rows, int columns) {
  int64_t row = (int64_t) blockIdx.x * ROWS + threadIdx.x / TS_WARP;
  float beta = ts_prior_beta(prior);
  if (row >= rows || start[row] >= 0 || (prior.data == dw && beta == 1.0f)) {
    return;
  }
#pragma unroll 4
  for (int c = (int) (threadIdx.x % TS_WARP) * W; c < columns; c += TS_WARP * W) {
    float value[W] = {};
    ts_add_prior<W>(value, prior, beta, row * columns + c);
    ts_store<W>(dw + row * columns + c, value);
  }
}

template <int W> static __device__ __forceinline__ void add(float *sum, const float *value) {
#pragma unroll
  for (int i = 0; i < W; ++i) {
    sum[i] += value[i];
  }
}

/* The sorted list and where sums go.  partial [chunk][2][columns]: of the id that goes on from the chunk before, and of
 * the one that goes on into the next; an id that does both is in the first. */
template <typename U> struct sums {
  U *dw;
  float *partial;
  const int32_t *key, *token, *start;
  ts_prior<U> prior;
  int64_t n, rows;
  int columns;
};

/* The sum of an id over places [begin, end) of a chunk, to where it belongs. */
template <typename U, int W>
static __device__ __forceinline__ void leave(const sums<U> &s, float *sum, float beta, int32_t id, int64_t begin,
                                             int64_t end, int c) {
  int64_t chunk = blockIdx.x, first = chunk * CHUNK;
  bool from_before = begin == first && first > 0 && s.key[first - 1] == id;
  bool goes_on = end == first + CHUNK && end < s.n && s.key[end] == id;
  if (from_before || goes_on) {
    ts_store<W>(s.partial + (chunk * 2 + (from_before ? 0 : 1)) * s.columns + c, sum);
    return;
  }
  ts_add_prior<W>(sum, s.prior, beta, (int64_t) id * s.columns + c);
  ts_store<W>(s.dw + (int64_t) id * s.columns + c, sum);
}

/* Chunk blockIdx.x, W columns a thread; AHEAD rows are under way at a time. */
template <typename T, typename U, int W>
__global__ void __launch_bounds__(TILE) sum_chunk(sums<U> s, const T *__restrict__ dy) {
  TS_SHARED(int32_t, key, CHUNK + 1);
  TS_SHARED(int32_t, token, CHUNK);
  int64_t first = (int64_t) blockIdx.x * CHUNK;
  int n = first + CHUNK < s.n ? CHUNK : (int) (s.n - first);
  if (s.key[first] >= s.rows) {
    return;
  }
  for (int i = (int) threadIdx.x; i < n; i += TILE) {
    key[i] = s.key[first + i];
    token[i] = s.token[first + i];
  }
  __syncthreads();
  int c = (int) (blockIdx.y * TILE + threadIdx.x) * W, begin = 0 /* of the present id */;
  if (c >= s.columns) {
    return;
  }
  float beta = ts_prior_beta(s.prior), sum[W] = {};
  for (int group = 0; group < n; group += AHEAD) {
    float value[AHEAD][W];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (group + k < n) {
        ts_load<W>(value[k], dy + (int64_t) token[group + k] * s.columns + c);
      }
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      int at = group + k;
      if (at >= n || key[at] >= s.rows) {
        break;
      }
      add<W>(sum, value[k]);
      if (at + 1 == n || key[at + 1] != key[at]) {
        leave<U, W>(s, sum, beta, key[at], first + begin, first + at + 1, c);
        begin = at + 1;
#pragma unroll
        for (int i = 0; i < W; ++i) {
          sum[i] = 0;
        }
      }
    }
  }
}

/* The last chunk that begins with \a id, from \a chunk on, which does: by bisection, as the list is sorted. */
static __device__ __forceinline__ int64_t last_chunk(const int32_t *key, int64_t n, int32_t id, int64_t chunk) {
  int64_t end = (n + CHUNK - 1) / CHUNK;
  while (end - chunk > 1) {
    int64_t middle = (chunk + end) / 2;
    if (key[middle * CHUNK] == id) {
      chunk = middle;
    } else {
      end = middle;
    }
  }
  return chunk;
}

/* The id that goes on from chunk blockIdx.x into the next, if it began in this one: its partial sums in order. */
template <typename U, int W> __global__ void __launch_bounds__(TILE) add_chunks(sums<U> s) {
  int c = (int) (blockIdx.y * TILE + threadIdx.x) * W;
  int64_t begin = blockIdx.x, next = (begin + 1) * CHUNK;
  int32_t id = s.key[next];
  if (c >= s.columns || id >= s.rows || s.key[next - 1] != id || s.start[id] < begin * CHUNK) {
    return;
  }
  float sum[W];
  ts_load<W>(sum, s.partial + (begin * 2 + 1) * s.columns + c);
  int64_t last = last_chunk(s.key, s.n, id, begin + 1);
#pragma unroll 8
  for (int64_t chunk = begin + 1; chunk <= last; ++chunk) {
    float value[W];
    ts_load<W>(value, s.partial + chunk * 2 * s.columns + c);
    add<W>(sum, value);
  }
  ts_add_prior<W>(sum, s.prior, ts_prior_beta(s.prior), (int64_t) id * s.columns + c);
  ts_store<W>(s.dw + (int64_t) id * s.columns + c, sum);
}

/* ---- the entry ---- */

/* Parts of the workspace; their bytes in all. */
struct dw_workspace {
  ts_sort sort;
  int32_t *start;
  float *partial;
  size_t bytes;
};

static dw_workspace divide_dw_workspace(char *memory, int64_t tokens, int64_t rows, int64_t columns) {
  dw_workspace w = {};
  ts_sort_divide(&w.sort, memory, tokens, &w.bytes);
  w.start = (int32_t *) ts_sort_take(memory, (size_t) rows * sizeof(int32_t), &w.bytes);
  size_t partial = (size_t) ts_blocks(tokens, CHUNK) * 2 * (size_t) columns * sizeof(float);
  w.partial = (float *) ts_sort_take(memory, partial, &w.bytes);
  return w;
}

static size_t embedding_dw_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  return divide_dw_workspace(NULL, ts_tensor_count(graph, node->in[1]), node->attr.embedding.rows,
                             ts_columns_of(&graph->tensor[node->in[0]]))
      .bytes;
}

template <typename T, typename U, int W>
static void launch_sums(const ts_kernel_call *call, const sums<U> &s, int32_t *start) {
  cudaStream_t stream = ts_call_stream(call);
  unsigned chunks = ts_blocks(s.n, CHUNK), tiles = ts_blocks(s.columns, TILE * W);
  ts_launch(clear_starts, ts_blocks(s.rows, THREADS), THREADS, 0, stream, start, s.rows);
  ts_launch(find_starts, ts_blocks(s.n, THREADS), THREADS, 0, stream, start, s.key, s.n, s.rows);
  ts_launch(fill_others<U, W>, ts_blocks(s.rows, ROWS), THREADS, 0, stream, s.dw, s.start, s.prior, s.rows, s.columns);
  ts_launch(sum_chunk<T, U, W>, dim3(chunks, tiles), TILE, 0, stream, s, (const T *) call->in[0]);
  ts_launch(add_chunks<U, W>, dim3(chunks > 1 ? chunks - 1 : 0, tiles), TILE, 0, stream, s);
}

template <typename T, typename U> static void launch_embedding_dw(const ts_kernel_call *call) {
  int64_t tokens = ts_shape_count(&ts_call_in(call, 1)->shape), rows = call->node->attr.embedding.rows;
  int columns = (int) ts_columns_of(ts_call_in(call, 0));
  dw_workspace w = divide_dw_workspace((char *) call->workspace, tokens, rows, columns);
  ts_sort_ids ids = {(int32_t) call->node->attr.embedding.first, (int32_t) rows};
  int sorted = ts_sort_run(&w.sort, (const int32_t *) call->in[1], tokens, ids, ts_call_stream(call));
  sums<U> s = {(U *) call->out[0],
               w.partial,
               w.sort.key[sorted],
               w.sort.place[sorted],
               w.start,
               ts_call_prior<U>(call, 0),
               tokens,
               rows,
               columns};
  enum { W = 4 };
  const void *all[] = {call->in[0], call->out[0], s.prior.data, call->workspace};
  if (columns % W == 0 && ts_is_wide<T>(0, all, 4)) {
    launch_sums<T, U, W>(call, s, w.start);
  } else {
    launch_sums<T, U, 1>(call, s, w.start);
  }
}

static void embedding_dw_launch(const ts_kernel_call *call) {
  TS_FOR_FLOATS(ts_call_in(call, 0)->dtype, ts_call_out(call, 0)->dtype, launch_embedding_dw, call);
}

const ts_kernel *ts_cuda_lookup(ts_op op) {
  static const struct {
    ts_op op;
    ts_kernel row;
  } rows[] = {
      {TS_OP_SPLIT, {NULL, split_launch, NULL}},
      {TS_OP_CONCAT, {NULL, concat_launch, NULL}},
      {TS_OP_TAKE, {NULL, take_launch, NULL}},
      {TS_OP_PLACE, {NULL, place_launch, NULL}},
      {TS_OP_EMBEDDING, {NULL, embedding_launch, NULL}},
      {TS_OP_PICK, {pick_set_up, pick_launch, NULL}},
      {TS_OP_PICK_DX, {pick_set_up, pick_launch, NULL}},
      {TS_OP_EMBEDDING_DW, {embedding_dw_set_up, embedding_dw_launch, NULL}},
  };
  static const ts_kernel none = {};
  for (const auto &r : rows) {
    if (r.op == op) {
      return &r.row;
    }
  }
  return &none;
}
