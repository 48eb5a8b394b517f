/* The entries of attention: which kernels do a call, and the row sums that all of the backward ones start from. */
#include "cuda/attention.h"
#include "cuda/philox.cuh"

extern "C" {
#include "base/log.h"
#include "base/memory.h"
#include "cuda/attention_choice.h"
#include "cuda/attention_cudnn.h"
#include "cuda/attention_limits.h"
}

enum { DELTA_THREADS = 128, BOUNDS_THREADS = 128 };

/* Tokens of a sequence: tiles of 64 in a dimension of a grid. */
static const int64_t most_length = 65535 * 64;

/* Bytes of keys and values that are kept in the second-level cache (50 MB and more): half of it. */
static const int64_t cached_bytes = 24 << 20;

/* ---- documents ---- */

/* The bounds of every tile, by a warp.  Reads B T documents. */
static __global__ void __launch_bounds__(BOUNDS_THREADS)
    attention_bounds(const __grid_constant__ ts_attention_problem p) {
  int tiles = ts_attention_bounds_count(&p), lane = (int) (threadIdx.x % TS_WARP);
  int64_t tile = ((int64_t) blockIdx.x * BOUNDS_THREADS + threadIdx.x) / TS_WARP, batch = tile / tiles;
  if (batch >= p.batch) {
    return;
  }
  int token = min((int) (tile % tiles) * TS_BOUNDS + lane, (int) p.length - 1);
  int32_t lowest = p.documents[batch * p.length + token], highest = lowest;
#pragma unroll
  for (int other = TS_WARP / 2; other > 0; other /= 2) {
    lowest = min(lowest, __shfl_xor_sync(0xffffffffu, lowest, other));
    highest = max(highest, __shfl_xor_sync(0xffffffffu, highest, other));
  }
  if (lane == 0) {
    p.bounds[tile] = {lowest, highest};
  }
}

/* ---- the problem of a node ---- */

/* The input of documents; seed and sample follow. */
static int first_optional(ts_op op) {
  return op == TS_OP_ATTENTION ? 3 : 6;
}

/* The input of queries. */
static int query_input(ts_op op) {
  return op == TS_OP_ATTENTION ? 0 : op == TS_OP_ATTENTION_DX ? 1 : 2;
}

static ts_attention_problem own_problem(const ts_graph *graph, const ts_node *node) {
  const ts_tensor *q = &graph->tensor[node->in[query_input(node->op)]];
  ts_attention_problem p = {};
  p.batch = q->shape.d[0];
  p.length = q->shape.d[1];
  p.heads = node->attr.attention.heads;
  p.kv_heads = node->attr.attention.kv_heads;
  p.head_dim = node->attr.attention.head_dim;
  int64_t window = node->attr.attention.window;
  p.window = (int) (window == 0 || window > p.length ? p.length : window);
  p.scale = node->attr.attention.scale;
  p.softcap = node->attr.attention.softcap;
  p.into_cap = p.softcap > 0 ? p.scale / p.softcap : 0;
  p.unit = p.softcap > 0 ? p.softcap : p.scale;
  p.causal = node->attr.attention.causal;
  p.name = node->attr.attention.name;
  p.first_head = node->attr.attention.first_head;
  p.keep_scale = 1.0f / (1.0f - node->attr.attention.dropout);
  p.threshold = ts_dropout_threshold(node->attr.attention.dropout);
  int64_t bytes = 2 * p.length * p.head_dim * (int64_t) ts_dtype_size(q->dtype);
  int64_t kv_heads = bytes == 0 || cached_bytes / bytes == 0 ? 1 : cached_bytes / bytes, all = p.batch * p.kv_heads;
  p.together = (int) (kv_heads < all ? kv_heads : all > 0 ? all : 1) * (p.heads / p.kv_heads);
  return p;
}

/* Bytes of the row sums, and of the bounds of documents behind them. */
static size_t row_sum_bytes(const ts_attention_problem *p, ts_op op) {
  return op == TS_OP_ATTENTION ? 0 : ts_align_up((size_t) (p->batch * p->heads * p->length) * sizeof(float), 8);
}
static size_t bounds_bytes(const ts_attention_problem *p, const ts_node *node) {
  int documents = first_optional(node->op);
  bool any = node->n_in > documents && node->in[documents] != TS_NONE;
  return any ? (size_t) (p->batch * ts_attention_bounds_count(p)) * sizeof(ts_attention_bounds) : 0;
}

/* Documents, seed and sample. */
static void add_optional(ts_attention_problem *p, const ts_kernel_call *call) {
  int first = first_optional(call->node->op);
  p->documents = (const int32_t *) ts_call_optional(call, first);
  p->seed = (const int64_t *) ts_call_optional(call, first + 1);
  p->sample = (const int64_t *) ts_call_optional(call, first + 2);
  if (p->seed == NULL || p->sample == NULL) {
    p->threshold = 0;
    p->keep_scale = 1;
  }
  if (p->documents != NULL) {
    p->bounds = (ts_attention_bounds *) ((char *) call->workspace + row_sum_bytes(p, call->node->op));
    ts_launch(attention_bounds, ts_blocks(p->batch * ts_attention_bounds_count(p) * TS_WARP, BOUNDS_THREADS),
              BOUNDS_THREADS, 0, ts_call_stream(call), *p);
  }
}

bool ts_attention_is_tiled(const ts_attention_problem *p, ts_dtype dtype) {
  const void *pointer[] = {p->q, p->k, p->v, p->o, p->d_out, p->dq, p->dk, p->dv};
  return dtype == TS_BF16 && p->head_dim <= 128 && ts_is_wide<ts_bf16>(p->head_dim, pointer, 8);
}

/* ---- forward ---- */

static void run_forward(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  if (ts_attention_is_tiled(p, dtype)) {
    ts_attention_forward(p, stream);
  } else {
    ts_attention_forward_plain(p, dtype, stream);
  }
}

static void forward_own(const ts_kernel_call *call) {
  ts_attention_problem p = own_problem(call->graph, call->node);
  p.q = call->in[0];
  p.k = call->in[1];
  p.v = call->in[2];
  p.o = call->out[0];
  p.lse = (float *) call->out[1];
  add_optional(&p, call);
  run_forward(&p, ts_call_in(call, 0)->dtype, ts_call_stream(call));
}

/* ---- backward ---- */

/* delta [B][H][T] = the row of do times that of o.  Reads 2 B T H D elements; \a span lanes, a power of 2, have a
 * row. */
template <typename T, int W>
__global__ void __launch_bounds__(DELTA_THREADS)
    attention_delta(float *__restrict__ delta, const T *__restrict__ d_out, const T *__restrict__ o, int64_t rows,
                    int64_t length, int heads, int head_dim, int span) {
  int64_t row = ((int64_t) blockIdx.x * DELTA_THREADS + threadIdx.x) / span; /* in [B][T][H] */
  int first = (int) (threadIdx.x % (unsigned) span) * W;
  float sum = 0;
  for (int d = first; d < head_dim && row < rows; d += span * W) {
    float x[W], y[W];
    ts_load<W>(x, d_out + row * head_dim + d);
    ts_load<W>(y, o + row * head_dim + d);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum += x[i] * y[i];
    }
  }
  for (int lane = span / 2; lane > 0; lane /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  }
  if (first == 0 && row < rows) {
    int64_t token = row / heads, head = row % heads;
    delta[(token / length * heads + head) * length + token % length] = sum;
  }
}

template <typename T, int W> static void launch_delta(const ts_attention_problem *p, cudaStream_t stream) {
  int64_t rows = p->batch * p->length * p->heads;
  int span = 1;
  while (span < TS_WARP && span * W < p->head_dim) {
    span *= 2;
  }
  ts_launch(attention_delta<T, W>, ts_blocks(rows * span, DELTA_THREADS), DELTA_THREADS, 0, stream, p->delta,
            (const T *) p->d_out, (const T *) p->o, rows, p->length, p->heads, p->head_dim, span);
}

template <typename T> static void delta(const ts_attention_problem *p, cudaStream_t stream) {
  const void *pointer[] = {p->d_out, p->o};
  if (ts_is_wide<T>(p->head_dim, pointer, 2)) {
    launch_delta<T, ts_lanes<T>>(p, stream);
  } else {
    launch_delta<T, 1>(p, stream);
  }
}

static void backward_own(const ts_kernel_call *call) {
  ts_attention_problem p = own_problem(call->graph, call->node);
  p.d_out = call->in[0];
  p.q = call->in[1];
  p.k = call->in[2];
  p.v = call->in[3];
  p.o = (void *) call->in[4];
  p.lse = (float *) call->in[5];
  p.dq = call->out[0];
  p.dk = call->out[1];
  p.dv = call->out[2];
  p.delta = (float *) call->workspace;
  add_optional(&p, call);
  ts_dtype dtype = ts_call_in(call, 1)->dtype;
  TS_FOR_FLOAT(dtype, delta, &p, ts_call_stream(call));
  if (ts_attention_is_tiled(&p, dtype)) {
    ts_attention_backward(&p, ts_call_stream(call));
  } else {
    ts_attention_backward_plain(&p, dtype, ts_call_stream(call));
  }
}

/* ---- ours or cuDNN's ---- */

void ts_attention_run_own(const ts_kernel_call *call) {
  if (call->node->op == TS_OP_ATTENTION) {
    forward_own(call);
  } else {
    backward_own(call);
  }
}

void ts_attention_forward_of(const ts_kernel_call *call, const void *q, const void *k, const void *v, void *o,
                             float *lse) {
  ts_attention_problem p = own_problem(call->graph, call->node);
  p.q = q;
  p.k = k;
  p.v = v;
  p.o = o;
  p.lse = lse;
  p.threshold = 0;
  p.keep_scale = 1;
  run_forward(&p, TS_BF16, ts_call_stream(call));
}

static size_t own_workspace(const ts_graph *graph, const ts_node *node) {
  ts_attention_problem p = own_problem(graph, node);
  return row_sum_bytes(&p, node->op) + bounds_bytes(&p, node);
}

/* The plan for memory has room for either where both may compute it. */
static size_t set_up_attention(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  bool either = target != NULL && target->cudnn && ts_cudnn_supports(graph, node);
  size_t own = own_workspace(graph, node), theirs = either ? ts_cudnn_workspace(graph, node) : 0;
  ts_attention_choice question = ts_attention_question(graph, node);
  if (prepared != NULL && either && ts_attention_by_cudnn(&question)) {
    ts_error err = {};
    *prepared = ts_cudnn_plan_create(graph, node, NULL, &err);
    if (*prepared == NULL) {
      ts_log(TS_LOG_WARNING, "%s: cuDNN was chosen and has no plan now (%s): our kernel computes it", node->name,
             err.text);
    }
    ts_error_clear(&err);
  }
  return own > theirs ? own : theirs;
}

static void launch_attention(const ts_kernel_call *call) {
  if (call->prepared != NULL) {
    ts_cudnn_plan_run((ts_cudnn_plan *) call->prepared, call);
  } else {
    ts_attention_run_own(call);
  }
}

static void take_down_attention(void *prepared) {
  ts_cudnn_plan *plan = (ts_cudnn_plan *) prepared;
  ts_cudnn_plan_destroy(&plan);
}

/* ---- the table ---- */

bool ts_cuda_attention_supported(const ts_graph *graph, const ts_node *node, const char **why) {
  ts_attention_problem p = own_problem(graph, node);
  ts_dtype dtype = graph->tensor[node->in[0]].dtype;
  const struct {
    bool good;
    const char *why;
  } rules[] = {
      {dtype == TS_F32 || dtype == TS_BF16, "attention on a GPU is in fp32 or bf16"},
      {p.head_dim <= TS_ATTENTION_MOST_HEAD_DIM, "attention on a GPU has heads of at most 256 elements"},
      {p.scale > 0, "attention on a GPU scales its scores by a positive number"},
      {p.length <= most_length, "attention on a GPU takes sequences of at most 4194240 tokens"},
      {ts_attention_grid(&p, p.kv_heads, 64).z <= 65535,
       "attention on a GPU cannot take so many long sequences at once"},
  };
  for (const auto &rule : rules) {
    if (!rule.good) {
      *why = rule.why;
      return false;
    }
  }
  *why = NULL;
  return true;
}

const ts_kernel *ts_cuda_attention(ts_op op) {
  static const ts_kernel row = {set_up_attention, launch_attention, take_down_attention}, none = {};
  static const ts_kernel cached = {NULL, ts_attention_run_cached, NULL};
  return op == TS_OP_ATTENTION_CACHED ? &cached : op == TS_OP_ATTENTION || op == TS_OP_ATTENTION_DX ? &row : &none;
}
