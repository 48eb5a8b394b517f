/* Routing of tokens to experts: a warp a token, whose lanes have every 32nd expert, each its own in shared memory.
 *
 * Bytes: a token's logits are read once, and in the gradient once more. */
#include "cuda/kernel.cuh"

enum { WARPS = 4, THREADS = WARPS * TS_WARP };

struct routing {
  int64_t tokens;
  int experts, k, groups, top_groups;
  bool sigmoid, normalize;
  float scale;
};

/* An expert, or a group, and what it is chosen by. */
struct candidate {
  float value;
  int number; /* INT32_MAX: none */
};

static __device__ __forceinline__ bool is_better(candidate a, candidate b) {
  return a.value > b.value || (a.value == b.value && a.number < b.number);
}

/* The best of the warp's, in every lane. */
static __device__ __forceinline__ candidate best_of_warp(candidate c) {
#pragma unroll
  for (int lane = TS_WARP / 2; lane > 0; lane /= 2) {
    candidate other = {__shfl_xor_sync(0xffffffffu, c.value, lane), __shfl_xor_sync(0xffffffffu, c.number, lane)};
    c = is_better(other, c) ? other : c;
  }
  return c;
}

/* The best of experts [begin, end) that is open, of this lane's and then of the warp's. */
static __device__ __forceinline__ candidate best_open(const float *choice, const bool *open, int begin, int end,
                                                      int lane) {
  candidate best = {-INFINITY, INT32_MAX};
  for (int e = begin + (lane + TS_WARP - begin % TS_WARP) % TS_WARP; e < end; e += TS_WARP) {
    candidate c = {choice[e], e};
    best = open[e] && is_better(c, best) ? c : best;
  }
  return best_of_warp(best);
}

/* Scores of this lane's experts. */
static __device__ __forceinline__ void warp_scores(const routing &r, const float *x, float *score, int lane) {
  float most = -INFINITY, sum = 0;
  for (int e = lane; e < r.experts; e += TS_WARP) {
    score[e] = x[e];
    most = fmaxf(most, x[e]);
  }
  most = ts_warp_max(most);
  for (int e = lane; e < r.experts; e += TS_WARP) {
    score[e] = r.sigmoid ? 1.0f / (1.0f + expf(-score[e])) : expf(score[e] - most);
    sum += score[e];
  }
  sum = ts_warp_sum(sum);
  for (int e = lane; e < r.experts && !r.sigmoid; e += TS_WARP) {
    score[e] /= sum;
  }
}

/* Of an expert, in every lane. */
static __device__ __forceinline__ float chosen_score(const float *score, int expert, int lane) {
  int owner = expert % TS_WARP;
  float own = lane == owner ? score[expert] : 0.0f;
  return __shfl_sync(0xffffffffu, own, owner);
}

static __device__ void shut_groups(const routing &r, const float *choice, bool *open, int lane) {
  int size = r.experts / r.groups;
  uint64_t taken = 0;
  for (int i = 0; i < r.top_groups; ++i) {
    candidate best = {-INFINITY, INT32_MAX};
    for (int g = 0; g < r.groups; ++g) {
      candidate first = best_open(choice, open, g * size, (g + 1) * size, lane);
      if (lane == first.number % TS_WARP) {
        open[first.number] = false;
      }
      candidate second = best_open(choice, open, g * size, (g + 1) * size, lane);
      if (lane == first.number % TS_WARP) {
        open[first.number] = true;
      }
      candidate c = {first.value + (second.number != INT32_MAX ? second.value : 0.0f), g};
      best = (taken >> g & 1) == 0 && is_better(c, best) ? c : best;
    }
    taken |= (uint64_t) 1 << best.number;
  }
  for (int e = lane; e < r.experts; e += TS_WARP) {
    open[e] = (taken >> (e / size) & 1) != 0;
  }
}

/* Shared memory of a warp: two numbers and a flag an expert. */
static __host__ __device__ constexpr size_t bytes_of_warp(int experts) {
  return ((size_t) experts * (2 * sizeof(float) + sizeof(bool)) + 15) / 16 * 16;
}

__global__ void __launch_bounds__(THREADS)
    route_tokens(float *__restrict__ weight, int32_t *__restrict__ chosen, const float *__restrict__ logits,
                 const float *__restrict__ bias, routing r) {
  TS_SHARED_DYNAMIC(unsigned char, all);
  int warp = (int) threadIdx.x / TS_WARP, lane = (int) threadIdx.x % TS_WARP;
  int64_t token = (int64_t) blockIdx.x * WARPS + warp;
  if (token >= r.tokens) {
    return;
  }
  float *score = (float *) (all + warp * bytes_of_warp(r.experts)), *choice = score + r.experts;
  bool *open = (bool *) (choice + r.experts);
  const float *x = logits + token * r.experts;
  warp_scores(r, x, score, lane);
  for (int e = lane; e < r.experts; e += TS_WARP) {
    float c = bias != nullptr ? score[e] + bias[e] : r.groups > 1 ? score[e] : x[e];
    choice[e] = c == c ? c : -INFINITY;
    open[e] = true;
  }
  if (r.groups > 1) {
    shut_groups(r, choice, open, lane);
  }
  weight += token * r.k;
  chosen += token * r.k;
  float sum = 0;
  for (int j = 0; j < r.k; ++j) {
    candidate best = best_open(choice, open, 0, r.experts, lane);
    float s = chosen_score(score, best.number, lane);
    sum += s;
    if (lane == best.number % TS_WARP) {
      open[best.number] = false;
    }
    if (lane == 0) {
      chosen[j] = best.number;
      weight[j] = s;
    }
  }
  float by = r.normalize ? r.scale / (sum + 1e-20f) : r.scale;
  for (int j = 0; j < r.k && lane == 0; ++j) {
    weight[j] *= by;
  }
}

/* With p of what was chosen, S their sum and w = scale p / S: dp = (scale dw - sum (scale dw p) / S) / S. */
__global__ void __launch_bounds__(THREADS)
    route_dx_tokens(float *dx, const float *__restrict__ dw, const float *__restrict__ logits,
                    const int32_t *__restrict__ chosen, ts_prior<float> prior, routing r) {
  TS_SHARED_DYNAMIC(unsigned char, all);
  int warp = (int) threadIdx.x / TS_WARP, lane = (int) threadIdx.x % TS_WARP;
  int64_t token = (int64_t) blockIdx.x * WARPS + warp;
  if (token >= r.tokens) {
    return;
  }
  float *score = (float *) (all + warp * bytes_of_warp(r.experts)), *slope = score + r.experts;
  warp_scores(r, logits + token * r.experts, score, lane);
  dw += token * r.k;
  chosen += token * r.k;
  float sum = 0, dot = 0, flow = 0;
  for (int j = 0; j < r.k; ++j) {
    float s = chosen_score(score, chosen[j], lane);
    sum += s;
    dot += r.scale * dw[j] * s;
  }
  sum = r.normalize ? sum + 1e-20f : 1.0f;
  dot = r.normalize ? dot / sum : 0.0f;
  for (int e = lane; e < r.experts; e += TS_WARP) {
    slope[e] = 0.0f;
  }
  for (int j = 0; j < r.k; ++j) {
    float by = (r.scale * dw[j] - dot) / sum;
    flow += by * chosen_score(score, chosen[j], lane);
    if (lane == chosen[j] % TS_WARP) {
      slope[chosen[j]] = by;
    }
  }
  float beta = ts_prior_beta(prior);
  for (int e = lane; e < r.experts; e += TS_WARP) {
    float s = score[e], value = r.sigmoid ? slope[e] * s * (1.0f - s) : s * (slope[e] - flow);
    int64_t at = token * r.experts + e;
    ts_add_prior<1>(&value, prior, beta, at);
    dx[at] = value;
  }
}

static routing routing_of_call(const ts_kernel_call *call, int logits) {
  const ts_tensor *x = ts_call_in(call, logits);
  int64_t experts = ts_columns_of(x);
  routing r = {experts > 0 ? ts_shape_count(&x->shape) / experts : 0,
               (int) experts,
               call->node->attr.route.k,
               call->node->attr.route.groups > 1 ? call->node->attr.route.groups : 1,
               call->node->attr.route.top_groups,
               call->node->attr.route.sigmoid,
               call->node->attr.route.normalize,
               call->node->attr.route.scale};
  return r;
}

static void route_launch(const ts_kernel_call *call) {
  routing r = routing_of_call(call, 0);
  ts_launch(route_tokens, ts_blocks(r.tokens, WARPS), THREADS, WARPS * bytes_of_warp(r.experts), ts_call_stream(call),
            (float *) call->out[0], (int32_t *) call->out[1], (const float *) call->in[0],
            call->node->n_in > 1 ? (const float *) call->in[1] : (const float *) nullptr, r);
}

static void route_dx_launch(const ts_kernel_call *call) {
  routing r = routing_of_call(call, 1);
  ts_launch(route_dx_tokens, ts_blocks(r.tokens, WARPS), THREADS, WARPS * bytes_of_warp(r.experts),
            ts_call_stream(call), (float *) call->out[0], (const float *) call->in[0], (const float *) call->in[1],
            (const int32_t *) call->in[2], ts_call_prior<float>(call, 0), r);
}

const ts_kernel *ts_cuda_route(ts_op op) {
  static const ts_kernel none = {}, forward = {NULL, route_launch, NULL}, backward = {NULL, route_dx_launch, NULL};
  return op == TS_OP_ROUTE ? &forward : op == TS_OP_ROUTE_DX ? &backward : &none;
}
