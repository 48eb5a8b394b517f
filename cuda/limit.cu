/* Experts that take no more tokens than they have room for: a block an expert of a group finds the key of the last
 * choice that has room, eight bits a round, and then goes over the choices in their order.  The only atomics count.
 *
 * Bytes: each block reads the group's choices, once where all have room and else up to six times, mostly from cache. */
#include "cuda/kernel.cuh"

extern "C" {
#include "base/experts.h"
}

enum { THREADS = 256, WARPS = THREADS / TS_WARP, BITS = 8, BINS = 1 << BITS, KEY_BITS = 32 };

struct limit {
  int64_t length, capacity; /* of a group */
  int k, experts;
  bool by_choice, normalize;
};

/* The q-th choice of a group in order. */
static __device__ __forceinline__ int64_t nth_choice(const limit &l, int64_t q) {
  return l.by_choice ? q % l.length * l.k + q / l.length : q;
}

/* The expert of a choice, `experts` for none of them. */
static __device__ __forceinline__ int expert_or_none(const limit &l, int32_t chosen) {
  return chosen >= 0 && chosen < l.experts ? chosen : l.experts;
}

static __device__ __forceinline__ uint32_t key_of_choice(const float *priority, int64_t at) {
  return priority != nullptr ? ts_priority_key(priority[at]) : 0;
}

/* Choices of an expert whose keys begin with the bits of `last` above `shift` + BITS, by their next bits; all
 * threads. */
static __device__ void count_keys(int *bin, const limit &l, const int32_t *chosen, const float *priority, int expert,
                                  uint32_t last, int shift) {
  for (int i = (int) threadIdx.x; i < BINS; i += THREADS) {
    bin[i] = 0;
  }
  __syncthreads();
  for (int64_t at = threadIdx.x; at < l.length * l.k; at += THREADS) {
    uint32_t key = expert_or_none(l, chosen[at]) == expert ? key_of_choice(priority, at) : 0;
    bool begins = shift + BITS == KEY_BITS || key >> (shift + BITS) == last >> (shift + BITS);
    if (expert_or_none(l, chosen[at]) == expert && begins) {
      atomicAdd(&bin[key >> shift & (BINS - 1)], 1);
    }
  }
  __syncthreads();
}

/* What the choices have to be above to be taken, and how many of those that are equal to it are. */
struct edge {
  uint32_t key;
  int64_t room;
};

static __device__ edge find_edge(int *bin, const limit &l, const int32_t *chosen, const float *priority, int expert) {
  edge e = {0, l.capacity};
  for (int shift = KEY_BITS - BITS; shift >= 0 && priority != nullptr; shift -= BITS) {
    count_keys(bin, l, chosen, priority, expert, e.key, shift);
    int digit = BINS - 1;
    while (digit > 0 && bin[digit] < e.room) {
      e.room -= bin[digit--];
    }
    e.key |= (uint32_t) digit << shift;
    __syncthreads();
  }
  return e;
}

__global__ void __launch_bounds__(THREADS)
    take_choices(int32_t *__restrict__ taken, const int32_t *__restrict__ all_chosen,
                 const float *__restrict__ all_priorities, limit l) {
  TS_SHARED(int, bin, BINS);
  TS_SHARED(int, equal, WARPS);
  int expert = (int) (blockIdx.x % (l.experts + 1)), lane = (int) threadIdx.x % TS_WARP;
  int warp = (int) threadIdx.x / TS_WARP;
  int64_t n = l.length * l.k, group = blockIdx.x / (l.experts + 1);
  const int32_t *chosen = all_chosen + group * n;
  const float *priority = all_priorities != nullptr ? all_priorities + group * n : nullptr;
  taken += group * n;
  edge e = expert < l.experts ? find_edge(bin, l, chosen, priority, expert) : edge{0, 0};
  for (int64_t first = 0; first < n; first += THREADS) {
    int64_t q = first + threadIdx.x, at = q < n ? nth_choice(l, q) : 0;
    bool mine = q < n && expert_or_none(l, chosen[at]) == expert;
    uint32_t key = mine ? key_of_choice(priority, at) : 0;
    unsigned same = __ballot_sync(0xffffffffu, mine && key == e.key);
    equal[warp] = __popc(same);
    __syncthreads();
    int64_t before = __popc(same & ((1u << lane) - 1)), round = 0;
    for (int w = 0; w < WARPS; ++w) {
      before += w < warp ? equal[w] : 0;
      round += equal[w];
    }
    if (mine) {
      bool takes = expert < l.experts && (key > e.key || (key == e.key && before < e.room));
      taken[at] = takes ? expert : l.experts;
    }
    e.room -= round;
    __syncthreads();
  }
}

/* A thread a token. */
__global__ void __launch_bounds__(THREADS) weigh_choices(float *__restrict__ y, const float *__restrict__ weight,
                                                         const int32_t *__restrict__ taken, int64_t tokens, limit l) {
  int64_t t = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (t >= tokens) {
    return;
  }
  float sum = 0;
  for (int64_t at = t * l.k; at < (t + 1) * l.k; ++at) {
    sum += taken[at] < l.experts ? weight[at] : 0.0f;
  }
  float by = l.normalize ? 1.0f / fmaxf(sum, TS_LEAST_WEIGHT) : 1.0f;
  for (int64_t at = t * l.k; at < (t + 1) * l.k; ++at) {
    y[at] = taken[at] < l.experts ? weight[at] * by : 0.0f;
  }
}

/* With S the sum of what is left and w' = w / S: dw = (dw' - sum (dw' w')) / S. */
__global__ void __launch_bounds__(THREADS)
    weigh_choices_dx(float *__restrict__ dx, const float *__restrict__ dy, const float *__restrict__ weight,
                     const int32_t *__restrict__ taken, int64_t tokens, limit l) {
  int64_t t = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (t >= tokens) {
    return;
  }
  float sum = 0, dot = 0;
  for (int64_t at = t * l.k; at < (t + 1) * l.k; ++at) {
    sum += taken[at] < l.experts ? weight[at] : 0.0f;
    dot += taken[at] < l.experts ? dy[at] * weight[at] : 0.0f;
  }
  bool flows = l.normalize && sum > TS_LEAST_WEIGHT;
  float by = l.normalize ? 1.0f / fmaxf(sum, TS_LEAST_WEIGHT) : 1.0f;
  for (int64_t at = t * l.k; at < (t + 1) * l.k; ++at) {
    dx[at] = taken[at] < l.experts ? by * (dy[at] - (flows ? dot * by : 0.0f)) : 0.0f;
  }
}

static limit limit_of_call(const ts_kernel_call *call) {
  const ts_shape *weight = &ts_call_in(call, 0)->shape;
  const ts_attr *attr = &call->node->attr;
  int64_t length = attr->limit.length > 0 ? attr->limit.length : ts_shape_rows(weight);
  return {length,
          length > 0 ? ts_capacity(length, attr->limit.experts, attr->limit.factor, attr->limit.least) : 0,
          (int) weight->d[weight->n - 1],
          attr->limit.experts,
          attr->limit.by_choice,
          attr->limit.normalize};
}

static void route_limit_launch(const ts_kernel_call *call) {
  limit l = limit_of_call(call);
  int64_t tokens = ts_shape_rows(&ts_call_in(call, 0)->shape), groups = l.length > 0 ? tokens / l.length : 0;
  ts_launch(take_choices, ts_blocks(groups * (l.experts + 1), 1), THREADS, 0, ts_call_stream(call),
            (int32_t *) call->out[1], (const int32_t *) call->in[1],
            call->node->n_in > 2 ? (const float *) call->in[2] : (const float *) nullptr, l);
  ts_launch(weigh_choices, ts_blocks(tokens, THREADS), THREADS, 0, ts_call_stream(call), (float *) call->out[0],
            (const float *) call->in[0], (const int32_t *) call->out[1], tokens, l);
}

static void route_limit_dx_launch(const ts_kernel_call *call) {
  int64_t tokens = ts_shape_rows(&ts_call_in(call, 0)->shape);
  ts_launch(weigh_choices_dx, ts_blocks(tokens, THREADS), THREADS, 0, ts_call_stream(call), (float *) call->out[0],
            (const float *) call->in[0], (const float *) call->in[1], (const int32_t *) call->in[2], tokens,
            limit_of_call(call));
}

const ts_kernel *ts_cuda_limit(ts_op op) {
  static const ts_kernel limits = {NULL, route_limit_launch, NULL}, dx = {NULL, route_limit_dx_launch, NULL}, none = {};
  return op == TS_OP_ROUTE_LIMIT ? &limits : op == TS_OP_ROUTE_LIMIT_DX ? &dx : &none;
}
