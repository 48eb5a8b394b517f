/* Products of each expert's rows by warp groups (wgmma): two of them share a tile of 128 x 256 of the result, each with
 * its accumulators in registers; operands come from shared memory, 64 of k at a time.  A block stays and takes tile
 * after tile, and what it copies runs ahead of what it computes across tiles: the next one's operands arrive while a
 * result is written.
 *
 * A stage is used again two steps later: when all have met at a step, the products of the step before the last are
 * done, since each waited for its own at the last.  A sum goes over all of k in order in one tile, so a row's bits do
 * not depend on other rows. */
#include "cuda/grouped.cuh"

enum { THREADS = 256, GROUP = 128, GROUPS = THREADS / GROUP, STAGES = 4, AHEAD = STAGES - 2 /* see above */ };
enum { ROWS = GROUPS * TS_WGMMA_M, COLUMNS = TS_WGMMA_N, DEPTH = TS_WGMMA_DEPTH };
enum { LEFT_BYTES = ROWS * DEPTH * 2, RIGHT_BYTES = COLUMNS * DEPTH * 2, STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES };
/* First rows of so many experts are kept in shared memory, where the search for a tile is short. */
enum { KEPT_EXPERTS = 4096, SHARED_BYTES = TS_WGMMA_ALIGN + STAGES * STAGE_BYTES + (KEPT_EXPERTS + 1) * 4 };

/* Begin to copy the k from `at` on of `extent` of SIZE rows; zeros where there is nothing. */
template <int SIZE, bool ALONG, typename T>
static __device__ __forceinline__ void copy_panel(char *tile, const T *from, int stride, int extent, int at, int k) {
#pragma unroll
  for (int i = 0; i < SIZE * DEPTH / 8 / THREADS; ++i) {
    int v = (int) threadIdx.x + i * THREADS, row = ALONG ? v / (DEPTH / 8) : v % (SIZE / 8) * 8,
        depth = ALONG ? v % (DEPTH / 8) * 8 : v / (SIZE / 8);
    bool valid = row < extent && at + depth < k;
    const T *x = from + (ALONG ? (int64_t) row * stride + at + depth : (int64_t) (at + depth) * stride + row);
    ts_copy_ahead(tile + ts_wgmma_place<ALONG>(row, depth), x, valid);
  }
}

/* Where copying is: a tile and a step of its k. */
struct cursor {
  unsigned tile;
  int step, steps;
  ts_grouped_tile s;
};

static __device__ __forceinline__ int steps_of(const ts_grouped_tile &s) {
  return s.any ? (s.k + DEPTH - 1) / DEPTH : 0;
}

/* On to the next step that there is; behind the last, c.tile is not below `tiles`. */
template <bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ void next_step(cursor &c, const ts_grouped &p, const int32_t *first, unsigned tiles) {
  ++c.step;
  while (c.step >= c.steps && c.tile < tiles) {
    c.tile += gridDim.x;
    c.step = 0;
    c.steps = 0;
    if (c.tile < tiles) {
      c.s = ts_tile_at<ROWS, COLUMNS, A_ALONG, B_ALONG>(p, first, c.tile);
      c.steps = steps_of(c.s);
    }
  }
}

template <typename T, bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ void copy_step(const cursor &c, const ts_grouped &p, char *stage) {
  const ts_grouped_tile &s = c.s;
  copy_panel<ROWS, A_ALONG>(stage, (const T *) p.a + s.a, s.a_stride, s.m, c.step * DEPTH, s.k);
  copy_panel<COLUMNS, B_ALONG>(stage + LEFT_BYTES, (const T *) p.b + s.b, s.b_stride, s.n, c.step * DEPTH, s.k);
}

/* ---- results ---- */

/* A warp's 16 rows go through shared memory, CUT columns at a time, so that a row's lie together when they are written;
 * in fp32, because what they are added to comes before the rounding.  8 more to a line: 4 rows of pairs lie in
 * different banks. */
enum { CUT = 128, LINE = CUT + 8, WARP_ROWS = 16, WARP_BYTES = WARP_ROWS * LINE * 4 };
static_assert(GROUP / TS_WARP * WARP_BYTES <= STAGE_BYTES, "the warps of a group share a stage");

/* Rows of a cut that a warp writes at once, each lane 16 bytes of one, and how often.  What they are added to is asked
 * for, a batch at a time, before any of it is used: one after the other it took 12,000 cycles a tile. */
template <typename O> struct cut_shape {
  static constexpr int each = ts_lanes<O>, across = CUT / each, down = TS_WARP / across, times = WARP_ROWS / down;
  static constexpr int batch = times < 8 ? times : 8;
};

template <typename O>
static __device__ __forceinline__ void put_cut(const ts_grouped &p, const ts_grouped_tile &s, const float *lines,
                                               int row, int column, float beta) {
  typedef cut_shape<O> cut;
  int lane = (int) (threadIdx.x % TS_WARP), r = lane / cut::across, c = lane % cut::across * cut::each;
  if (column + c >= s.n) {
    return;
  }
  const float *x = lines + r * LINE + c;
  int64_t at = s.at + (int64_t) (row + r) * s.stride + column + c;
  int rows = s.m - row - r; /* of them this lane's are 0, down, ... */
  for (int first = 0; first < cut::times; first += cut::batch) {
    ts_vector<O, cut::each> prior[cut::batch] = {};
#pragma unroll
    for (int i = 0; i < cut::batch; ++i) {
      int line = (first + i) * cut::down;
      if (beta != 0.0f && line < rows) {
        prior[i] = *(const ts_vector<O, cut::each> *) ((const O *) p.prior + at + (int64_t) line * s.stride);
      }
    }
#pragma unroll
    for (int i = 0; i < cut::batch; ++i) {
      int line = (first + i) * cut::down;
      float y[cut::each];
#pragma unroll
      for (int k = 0; k < cut::each; k += 4) {
        ts_load<4>(y + k, x + line * LINE + k);
      }
#pragma unroll
      for (int k = 0; k < cut::each; ++k) {
        y[k] += beta != 0.0f ? beta * ts_float(prior[i].x[k]) : 0.0f;
      }
      if (line < rows) {
        ts_store<cut::each>((O *) p.out + at + (int64_t) line * s.stride, y);
      }
    }
  }
}

template <typename O>
static __device__ __forceinline__ void put_results(const ts_grouped &p, const ts_grouped_tile &s, float *lines,
                                                   const float *d) {
  int lane = (int) (threadIdx.x % TS_WARP), row = (int) (threadIdx.x / TS_WARP) * WARP_ROWS;
  float beta = ts_prior_beta(ts_prior<O>{(const O *) p.prior, p.beta});
#pragma unroll
  for (int cut = 0; cut < COLUMNS; cut += CUT) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CUT / 4; ++i) { /* pairs of this lane: of the columns 8 (i / 2) and on, of two rows in turn */
      ts_store<2>(lines + (lane / 4 + i % 2 * 8) * LINE + i / 2 * 8 + lane % 4 * 2, d + cut / 2 + 2 * i);
    }
    __syncwarp();
    put_cut<O>(p, s, lines, row, cut, beta);
  }
}

/* ---- a block ---- */

template <typename T, bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(THREADS, 1)
    grouped_wgmma(const __grid_constant__ ts_grouped p, unsigned tiles, bool keeps_first) {
  TS_SHARED_DYNAMIC(char, memory);
  char *stages = memory + (TS_WGMMA_ALIGN - ts_shared_address(memory) % TS_WGMMA_ALIGN) % TS_WGMMA_ALIGN;
  int32_t *kept = (int32_t *) (stages + STAGES * STAGE_BYTES);
  if (keeps_first) {
    for (int e = (int) threadIdx.x; e <= p.experts; e += THREADS) {
      kept[e] = p.first[e];
    }
  }
  __syncthreads();
  const int32_t *first = keeps_first ? kept : p.first;
  cursor c = {blockIdx.x, -1, 0, ts_tile_at<ROWS, COLUMNS, A_ALONG, B_ALONG>(p, first, blockIdx.x)};
  c.steps = steps_of(c.s);
  next_step<A_ALONG, B_ALONG>(c, p, first, tiles);
  for (int i = 0; i < AHEAD; ++i) {
    if (c.tile < tiles) {
      copy_step<T, A_ALONG, B_ALONG>(c, p, stages + i * STAGE_BYTES);
      next_step<A_ALONG, B_ALONG>(c, p, first, tiles);
    }
    ts_copy_commit();
  }
  unsigned step = 0; /* of all tiles */
  int group = (int) (threadIdx.x / GROUP);
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    ts_grouped_tile s = ts_tile_at<ROWS, COLUMNS, A_ALONG, B_ALONG>(p, first, tile);
    if (!s.any) {
      continue;
    }
    float d[TS_WGMMA_RESULTS];
#pragma unroll
    for (int i = 0; i < TS_WGMMA_RESULTS; ++i) {
      d[i] = 0;
    }
    int steps = steps_of(s);
    ts_wgmma_settle(d);
    for (int i = 0; i < steps; ++i, ++step) {
      char *stage = stages + step % STAGES * STAGE_BYTES;
      ts_copy_wait<AHEAD - 1>();
      ts_wgmma_show_copies();
      __syncthreads();
      ts_wgmma_begin();
#pragma unroll
      for (int k = 0; k < DEPTH; k += 16) {
        ts_wgmma<T, A_ALONG, B_ALONG>(d, stage + ts_wgmma_place<A_ALONG>(group * TS_WGMMA_M, 0), stage + LEFT_BYTES, k);
      }
      ts_wgmma_commit();
      if (c.tile < tiles) {
        copy_step<T, A_ALONG, B_ALONG>(c, p, stages + (step + AHEAD) % STAGES * STAGE_BYTES);
        next_step<A_ALONG, B_ALONG>(c, p, first, tiles);
      }
      ts_copy_commit();
      ts_wgmma_wait<1>();
    }
    ts_wgmma_wait<0>();
    ts_wgmma_settle(d);
    __syncthreads(); /* two stages wait for what has been copied ahead; the others nobody needs any more */
    float *lines =
        (float *) (stages + (step + AHEAD + group) % STAGES * STAGE_BYTES + threadIdx.x % GROUP / TS_WARP * WARP_BYTES);
    if (p.dtype == TS_F32) {
      put_results<float>(p, s, lines, d);
    } else {
      put_results<T>(p, s, lines, d);
    }
  }
  ts_copy_wait<0>();
}

template <typename T, bool A_ALONG, bool B_ALONG> static void launch(const ts_grouped &p, cudaStream_t stream) {
  unsigned tiles = ts_grouped_tiles(p, ROWS, COLUMNS), processors = (unsigned) ts_cuda_opened()->processors;
  ts_launch(grouped_wgmma<T, A_ALONG, B_ALONG>, tiles < processors ? tiles : processors, THREADS, SHARED_BYTES, stream,
            p, tiles, p.experts <= KEPT_EXPERTS);
}

template <typename T> static void launch_typed(const ts_grouped &p, bool along, cudaStream_t stream) {
  if (p.dw) {
    launch<T, false, false>(p, stream);
  } else if (along) {
    launch<T, true, true>(p, stream);
  } else {
    launch<T, true, false>(p, stream);
  }
}

void ts_grouped_wgmma(const ts_grouped *p, ts_dtype dtype, bool along, cudaStream_t stream) {
  TS_ASSERT(p->dtype == TS_F32 || p->dtype == dtype);
  if (dtype == TS_BF16) {
    launch_typed<ts_bf16>(*p, along, stream);
  } else {
    launch_typed<ts_f16>(*p, along, stream);
  }
}
