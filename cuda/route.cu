/* Routing of tokens to experts: a warp a token, whose lanes have every 32nd expert, each its own in shared memory.
 *
 * Bytes: a token's logits are read once, and in the gradient once more.
 *
 * What experts got, and the loss of it: sums in fp64 over blocks of tokens, added in order. */
#include "cuda/kernel.cuh"

enum { WARPS = 4, THREADS = WARPS * TS_WARP };

struct routing {
  int64_t tokens;
  int experts, k, groups, top_groups, sure;
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

/* What is no number is chosen last. */
static __device__ __forceinline__ float or_last(float x) {
  return x == x ? x : -INFINITY;
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
                 const float *__restrict__ bias, const float *__restrict__ noised, routing r) {
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
    choice[e] = or_last(bias != nullptr ? score[e] + bias[e] : r.groups > 1 ? score[e] : x[e]);
    open[e] = true;
  }
  if (r.groups > 1) {
    shut_groups(r, choice, open, lane);
  }
  weight += token * r.k;
  chosen += token * r.k;
  float sum = 0;
  for (int j = 0; j < r.k; ++j) {
    for (int e = lane; e < r.experts && noised != nullptr && j == r.sure; e += TS_WARP) {
      choice[e] = or_last(noised[token * r.experts + e]);
    }
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
               call->node->attr.route.sure,
               call->node->attr.route.sigmoid,
               call->node->attr.route.normalize,
               call->node->attr.route.scale};
  return r;
}

static void route_launch(const ts_kernel_call *call) {
  routing r = routing_of_call(call, 0);
  ts_launch(route_tokens, ts_blocks(r.tokens, WARPS), THREADS, WARPS * bytes_of_warp(r.experts), ts_call_stream(call),
            (float *) call->out[0], (int32_t *) call->out[1], (const float *) call->in[0],
            call->node->n_in > 1 ? (const float *) call->in[1] : (const float *) nullptr,
            call->node->n_in > 3 ? (const float *) call->in[3] : (const float *) nullptr, r);
}

static void route_dx_launch(const ts_kernel_call *call) {
  routing r = routing_of_call(call, 1);
  ts_launch(route_dx_tokens, ts_blocks(r.tokens, WARPS), THREADS, WARPS * bytes_of_warp(r.experts),
            ts_call_stream(call), (float *) call->out[0], (const float *) call->in[0], (const float *) call->in[1],
            (const int32_t *) call->in[2], ts_call_prior<float>(call, 0), r);
}

/* ---- what experts got ---- */

enum { IGNORED = -100, LOADS_BLOCK = 64, ADD_THREADS = 128 };

struct loads {
  routing r;
  int64_t groups, length, first;
  int64_t width;
  int counted; /* choices of a token */
};

static __host__ __device__ __forceinline__ int64_t first_token_of_group(const loads &l, int64_t group) {
  int64_t at = group * l.length - l.first;
  return at < 0 ? 0 : at < l.r.tokens ? at : l.r.tokens;
}

/* Blocks of a group's tokens: so many that there is room for all. */
static __host__ __device__ __forceinline__ int64_t first_block_of_group(const loads &l, int64_t group) {
  return first_token_of_group(l, group) / LOADS_BLOCK + group;
}

/* Scores of this lane's experts, and of the token 1 / their sum and logsumexp of its logits, in all lanes. */
static __device__ __forceinline__ float warp_shares(const loads &l, const float *x, float *score, float *log_sum,
                                                    int lane) {
  float most = -INFINITY, sum = 0, powers = 0;
  for (int e = lane; e < l.r.experts; e += TS_WARP) {
    most = fmaxf(most, x[e]);
  }
  most = ts_warp_max(most);
  for (int e = lane; e < l.r.experts; e += TS_WARP) {
    float power = expf(x[e] - most);
    score[e] = l.r.sigmoid ? 1.0f / (1.0f + expf(-x[e])) : power;
    sum += score[e];
    powers += power;
  }
  *log_sum = most + logf(ts_warp_sum(powers));
  return 1.0f / ts_warp_sum(sum);
}

static __device__ __forceinline__ int64_t group_of_block(const loads &l, int64_t block) {
  int64_t low = 0, high = l.groups - 1;
  while (low < high) {
    int64_t middle = (low + high + 1) / 2;
    if (first_block_of_group(l, middle) <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/* Partial sums of a block of tokens: a warp finds the shares of a token, then threads add those of their experts. */
__global__ void __launch_bounds__(THREADS)
    loads_blocks(double *__restrict__ partial, const float *__restrict__ logits, const int32_t *__restrict__ chosen,
                 const int32_t *__restrict__ label, const int32_t *__restrict__ taken, int k, loads l) {
  TS_SHARED_DYNAMIC(float, share); /* [WARPS][experts] */
  TS_SHARED(float, squares, WARPS);
  TS_SHARED(int, counted, WARPS);
  int warp = (int) threadIdx.x / TS_WARP, lane = (int) threadIdx.x % TS_WARP, n = l.r.experts;
  int64_t group = group_of_block(l, blockIdx.x), end = first_token_of_group(l, group + 1);
  int64_t begin =
      first_token_of_group(l, group) + ((int64_t) blockIdx.x - first_block_of_group(l, group)) * LOADS_BLOCK;
  double *to = partial + (int64_t) blockIdx.x * l.width;
  for (int64_t i = threadIdx.x; i < l.width; i += THREADS) {
    to[i] = 0;
  }
  end = end < begin + LOADS_BLOCK ? end : begin + LOADS_BLOCK;
  for (int64_t at = begin; at < end; at += WARPS) {
    int64_t t = at + warp;
    bool counts = t < end && label[t] != IGNORED;
    __syncthreads();
    if (counts) {
      float log_sum, by = warp_shares(l, logits + t * n, share + warp * n, &log_sum, lane);
      for (int e = lane; e < n; e += TS_WARP) {
        share[warp * n + e] *= by;
      }
      squares[warp] = log_sum * log_sum;
    }
    counted[warp] = counts;
    __syncthreads();
    for (int w = 0; w < WARPS; ++w) {
      if (!counted[w]) {
        continue;
      }
      for (int e = (int) threadIdx.x; e < n; e += THREADS) {
        const int32_t *mine = chosen + (at + w) * k;
        int times = 0;
        for (int j = 0; j < (l.counted > 0 ? l.counted : k); ++j) {
          times += mine[j] == e;
        }
        to[e] += times;
        to[n + e] += share[w * n + e];
      }
      if (threadIdx.x == 0) {
        to[ts_loads_at(n, TS_LOADS_SQUARES)] += squares[w];
        to[ts_loads_at(n, TS_LOADS_TOKENS)] += 1;
        for (int j = 0; j < k && taken != nullptr; ++j) {
          to[ts_loads_at(n, TS_LOADS_LOST)] += taken[(at + w) * k + j] >= n;
        }
      }
    }
  }
}

/* The sums of a group's blocks, in order; a thread a number. */
__global__ void __launch_bounds__(ADD_THREADS)
    loads_groups(float *__restrict__ y, const double *__restrict__ partial, loads l) {
  int64_t i = (int64_t) blockIdx.x * ADD_THREADS + threadIdx.x;
  if (i >= l.groups * l.width) {
    return;
  }
  int64_t group = i / l.width,
          blocks =
              (first_token_of_group(l, group + 1) - first_token_of_group(l, group) + LOADS_BLOCK - 1) / LOADS_BLOCK;
  const double *from = partial + first_block_of_group(l, group) * l.width + i % l.width;
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    sum += from[b * l.width];
  }
  y[i] = (float) sum;
}

/* d share_i / d logit_e = share_e (1 or 1 - s_e) ((i == e) - share_i); d logsumexp^2 = 2 logsumexp softmax. */
__global__ void __launch_bounds__(THREADS)
    loads_dx_tokens(float *dx, const float *__restrict__ dloads, const float *__restrict__ logits,
                    const int32_t *__restrict__ label, ts_prior<float> prior, loads l) {
  TS_SHARED_DYNAMIC(float, all); /* [WARPS][experts] */
  int warp = (int) threadIdx.x / TS_WARP, lane = (int) threadIdx.x % TS_WARP, n = l.r.experts;
  int64_t token = (int64_t) blockIdx.x * WARPS + warp;
  if (token >= l.r.tokens) {
    return;
  }
  float *score = all + warp * n, log_sum, flow = 0;
  const float *x = logits + token * n, *d = dloads + (l.first + token) / l.length * l.width;
  bool counts = label[token] != IGNORED;
  float by = warp_shares(l, x, score, &log_sum, lane), dz = counts ? d[ts_loads_at(n, TS_LOADS_SQUARES)] : 0.0f;
  for (int e = lane; e < n; e += TS_WARP) {
    flow += score[e] * by * d[n + e];
  }
  flow = ts_warp_sum(flow);
  float beta = ts_prior_beta(prior);
  for (int e = lane; e < n; e += TS_WARP) {
    float inner = l.r.sigmoid ? 1.0f - score[e] : 1.0f;
    float value = counts ? score[e] * by * inner * (d[n + e] - flow) : 0.0f;
    value += dz != 0.0f ? dz * 2.0f * log_sum * expf(x[e] - log_sum) : 0.0f;
    int64_t at = token * n + e;
    ts_add_prior<1>(&value, prior, beta, at);
    dx[at] = value;
  }
}

/* ---- what stands for a bias's gradient: one block counts, which is exact in any order ---- */

enum { EXCESS_THREADS = 1024 };

__global__ void __launch_bounds__(EXCESS_THREADS)
    route_excess(float *__restrict__ y, const int32_t *__restrict__ chosen, const int32_t *__restrict__ label,
                 int64_t choices, int k, int experts) {
  TS_SHARED_DYNAMIC(int, times); /* [experts + 1]: the last for all */
  for (int e = (int) threadIdx.x; e <= experts; e += EXCESS_THREADS) {
    times[e] = 0;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < choices; i += EXCESS_THREADS) {
    if (label[i / k] != IGNORED) {
      atomicAdd(&times[chosen[i]], 1);
      atomicAdd(&times[experts], 1);
    }
  }
  __syncthreads();
  for (int e = (int) threadIdx.x; e < experts; e += EXCESS_THREADS) {
    y[e] = (float) ((int64_t) experts * times[e] - times[experts]);
  }
}

static void route_excess_launch(const ts_kernel_call *call) {
  const ts_tensor *chosen = ts_call_in(call, 0);
  int experts = call->node->attr.experts.n;
  ts_launch(route_excess, 1, EXCESS_THREADS, ((size_t) experts + 1) * sizeof(int), ts_call_stream(call),
            (float *) call->out[0], (const int32_t *) call->in[0], (const int32_t *) call->in[1],
            ts_shape_count(&chosen->shape), (int) ts_columns_of(chosen), experts);
}

static loads loads_of_call(const ts_graph *graph, const ts_node *node, int logits) {
  const ts_tensor *x = &graph->tensor[node->in[logits]];
  int64_t experts = ts_columns_of(x);
  routing r = {experts > 0 ? ts_shape_count(&x->shape) / experts : 0,
               (int) experts,
               0,
               1,
               0,
               0,
               node->attr.loads.sigmoid,
               false,
               1};
  return {r,
          node->attr.loads.groups,
          node->attr.loads.length,
          node->attr.loads.first,
          ts_loads_width(experts),
          node->attr.loads.counted};
}

static size_t loads_set_up(const ts_target *, const ts_graph *graph, const ts_node *node, void **) {
  loads l = loads_of_call(graph, node, 0);
  return (size_t) (first_block_of_group(l, l.groups) * l.width) * sizeof(double);
}

static void loads_launch(const ts_kernel_call *call) {
  loads l = loads_of_call(call->graph, call->node, 0);
  ts_launch(loads_blocks, ts_blocks(first_block_of_group(l, l.groups), 1), THREADS,
            (size_t) l.r.experts * WARPS * sizeof(float), ts_call_stream(call), (double *) call->workspace,
            (const float *) call->in[0], (const int32_t *) call->in[1], (const int32_t *) call->in[2],
            call->node->n_in > 3 ? (const int32_t *) call->in[3] : (const int32_t *) nullptr,
            (int) ts_columns_of(ts_call_in(call, 1)), l);
  ts_launch(loads_groups, ts_blocks(l.groups * l.width, ADD_THREADS), ADD_THREADS, 0, ts_call_stream(call),
            (float *) call->out[0], (const double *) call->workspace, l);
}

static void loads_dx_launch(const ts_kernel_call *call) {
  loads l = loads_of_call(call->graph, call->node, 1);
  ts_launch(loads_dx_tokens, ts_blocks(l.r.tokens, WARPS), THREADS, (size_t) l.r.experts * WARPS * sizeof(float),
            ts_call_stream(call), (float *) call->out[0], (const float *) call->in[0], (const float *) call->in[1],
            (const int32_t *) call->in[2], ts_call_prior<float>(call, 0), l);
}

/* ---- balance: few numbers, one warp ---- */

struct balance {
  int64_t groups, width;
  double aux, z; /* aux: times E / layers */
};

/* f . p of a group, in all lanes. */
static __device__ __forceinline__ double dot_of_group(const float *all, int64_t experts, int lane) {
  double dot = 0;
  for (int64_t e = lane; e < experts; e += TS_WARP) {
    dot += (double) all[e] * all[experts + e];
  }
  return ts_warp_sum(dot);
}

__global__ void __launch_bounds__(TS_WARP)
    balance_loss(double *__restrict__ y, const float *__restrict__ all, const float *__restrict__ own, balance b) {
  int64_t experts = ts_loads_experts(b.width), tokens = ts_loads_at(experts, TS_LOADS_TOKENS);
  double sum = 0;
  for (int64_t g = 0; g < b.groups; ++g, all += b.width, own += b.width) {
    double n = all[tokens], dot = dot_of_group(all, experts, (int) threadIdx.x);
    double each = n > 0 ? b.aux / (n * n) * dot + b.z * all[ts_loads_at(experts, TS_LOADS_SQUARES)] / n : 0.0;
    sum += own[tokens] * each;
  }
  if (threadIdx.x == 0) {
    *y = sum;
  }
}

__global__ void __launch_bounds__(ADD_THREADS)
    balance_loss_dx(float *__restrict__ y, const float *__restrict__ seed, const float *__restrict__ all, balance b) {
  int64_t i = (int64_t) blockIdx.x * ADD_THREADS + threadIdx.x;
  if (i >= b.groups * b.width) {
    return;
  }
  int64_t experts = ts_loads_experts(b.width), at = i % b.width;
  double n = all[i - at + ts_loads_at(experts, TS_LOADS_TOKENS)];
  bool share = at >= experts && at < 2 * experts;
  y[i] = share ? (n > 0 ? (float) (*seed * b.aux / n * all[i - experts]) : 0.0f)
         : at == ts_loads_at(experts, TS_LOADS_SQUARES) ? (float) (*seed * b.z)
                                                        : 0.0f;
}

static balance balance_of(const ts_kernel_call *call, int loads) {
  const ts_shape *x = &ts_call_in(call, loads)->shape;
  double experts = (double) ts_loads_experts(x->d[1]);
  return {x->d[0], x->d[1], (double) call->node->attr.balance.aux * experts / call->node->attr.balance.layers,
          (double) call->node->attr.balance.z};
}

static void balance_loss_launch(const ts_kernel_call *call) {
  ts_launch(balance_loss, 1, TS_WARP, 0, ts_call_stream(call), (double *) call->out[0], (const float *) call->in[0],
            (const float *) call->in[1], balance_of(call, 0));
}

static void balance_loss_dx_launch(const ts_kernel_call *call) {
  balance b = balance_of(call, 1);
  ts_launch(balance_loss_dx, ts_blocks(b.groups * b.width, ADD_THREADS), ADD_THREADS, 0, ts_call_stream(call),
            (float *) call->out[0], (const float *) call->in[0], (const float *) call->in[1], b);
}

const ts_kernel *ts_cuda_route(ts_op op) {
  static const ts_kernel none = {};
  static const struct {
    ts_op op;
    ts_kernel kernel;
  } rows[] = {{TS_OP_ROUTE, {NULL, route_launch, NULL}},
              {TS_OP_ROUTE_DX, {NULL, route_dx_launch, NULL}},
              {TS_OP_ROUTE_EXCESS, {NULL, route_excess_launch, NULL}},
              {TS_OP_ROUTE_LOADS, {loads_set_up, loads_launch, NULL}},
              {TS_OP_ROUTE_LOADS_DX, {NULL, loads_dx_launch, NULL}},
              {TS_OP_BALANCE_LOSS, {NULL, balance_loss_launch, NULL}},
              {TS_OP_BALANCE_LOSS_DX, {NULL, balance_loss_dx_launch, NULL}}};
  for (const auto &row : rows) {
    if (row.op == op) {
      return &row.kernel;
    }
  }
  return &none;
}
