/* The entries of attention: which kernels do a call, and the row sums that all of the backward ones start from. */
#include "cuda/attention.cuh"

extern "C" {
#include "base/log.h"
#include "base/memory.h"
#include "cuda/attention_choice.h"
#include "cuda/attention_cudnn.h"
#include "cuda/attention_limits.h"
}

enum { DELTA_THREADS = 128, BOUNDS_THREADS = 128, NOTHING_THREADS = 256 };

/* Rows of a side: tiles of 64 in a dimension of a grid.  Tokens of a whole sample: sums of two places are ints. */
static const int64_t most_rows = 65535 * 64, most_length = 1 << 29;

/* Bytes of keys and values that are kept in the second-level cache (50 MB and more): half of it. */
static const int64_t cached_bytes = 24 << 20;

/* ---- documents ---- */

/* The bounds of every tile of a side, by a warp.  Reads a document a row. */
static __global__ void __launch_bounds__(BOUNDS_THREADS)
    attention_bounds(ts_attention_rows rows, const int32_t *documents, int64_t batches, int64_t length) {
  int tiles = ts_attention_bounds_count(&rows), lane = (int) (threadIdx.x % TS_WARP);
  int64_t tile = ((int64_t) blockIdx.x * BOUNDS_THREADS + threadIdx.x) / TS_WARP, batch = tile / tiles;
  if (batch >= batches) {
    return;
  }
  int row = min((int) (tile % tiles) * TS_BOUNDS + lane, rows.count - 1);
  int32_t lowest = documents[batch * length + ts_place(rows, row)], highest = lowest;
#pragma unroll
  for (int other = TS_WARP / 2; other > 0; other /= 2) {
    lowest = min(lowest, __shfl_xor_sync(0xffffffffu, lowest, other));
    highest = max(highest, __shfl_xor_sync(0xffffffffu, highest, other));
  }
  if (lane == 0) {
    rows.bounds[tile] = {lowest, highest};
  }
}

static void find_bounds(const ts_attention_problem *p, const ts_attention_rows *rows, cudaStream_t stream) {
  int64_t tiles = p->batch * ts_attention_bounds_count(rows);
  ts_launch(attention_bounds, ts_blocks(tiles * TS_WARP, BOUNDS_THREADS), BOUNDS_THREADS, 0, stream, *rows,
            p->documents, p->batch, p->length);
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

static ts_attention_rows rows_of_side(const ts_tokens *tokens, int64_t count, int heads) {
  ts_attention_rows rows = {};
  rows.count = rows.first = (int) count;
  rows.heads = heads;
  if (tokens->n > 0) {
    rows.first = (int) tokens->stretch[0].length;
    rows.shift[0] = rows.shift[1] = (int) tokens->stretch[0].begin;
  }
  if (tokens->n > 1) {
    rows.shift[1] = (int) tokens->stretch[1].begin - rows.first;
  }
  return rows;
}

static ts_attention_problem own_problem(const ts_graph *graph, const ts_node *node) {
  const ts_tensor *q = &graph->tensor[node->in[query_input(node->op)]];
  const ts_tensor *k = &graph->tensor[node->in[query_input(node->op) + 1]];
  ts_attention_problem p = {};
  p.batch = q->shape.d[0];
  p.length = node->attr.attention.length > 0 ? node->attr.attention.length : q->shape.d[1];
  p.queries = rows_of_side(&node->attr.attention.queries, q->shape.d[1], node->attr.attention.heads);
  p.keys = rows_of_side(&node->attr.attention.keys, k->shape.d[1], node->attr.attention.kv_heads);
  p.head_dim = node->attr.attention.head_dim;
  p.group = ts_attention_group(&node->attr);
  p.skip = node->attr.attention.first_head % p.group;
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
  int fused = p.queries.heads + 2 * p.keys.heads; /* q, k and v in one tensor */
  p.queries.row_heads = node->attr.attention.fused_qkv ? fused : p.queries.heads;
  p.keys.row_heads = node->attr.attention.fused_qkv ? fused : p.keys.heads;
  p.o.wide = p.dq.wide = node->attr.attention.wide_queries;
  p.dk.wide = p.dv.wide = node->attr.attention.wide_keys;
  int64_t bytes = 2 * (int64_t) p.keys.count * p.head_dim * (int64_t) ts_dtype_size(q->dtype);
  int64_t fit = bytes == 0 || cached_bytes / bytes == 0 ? 1 : cached_bytes / bytes, all = p.batch * p.keys.heads;
  p.together = (int) (fit < all ? fit : all > 0 ? all : 1);
  return p;
}

/* Bytes of the row sums that are not given, and of the bounds of documents behind them, of queries and keys. */
static size_t row_sum_bytes(const ts_attention_problem *p, const ts_node *node) {
  bool makes = node->op == TS_OP_ATTENTION_DX && node->in[4] != TS_NONE;
  return makes ? ts_align_up((size_t) p->batch * p->queries.heads * p->queries.count * sizeof(float), 8) : 0;
}
static size_t bounds_bytes(const ts_attention_problem *p, const ts_attention_rows *rows) {
  return (size_t) (p->batch * ts_attention_bounds_count(rows)) * sizeof(ts_attention_bounds);
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
    char *bounds = (char *) call->workspace + row_sum_bytes(p, call->node);
    p->queries.bounds = (ts_attention_bounds *) bounds;
    p->keys.bounds = (ts_attention_bounds *) (bounds + bounds_bytes(p, &p->queries));
    find_bounds(p, &p->queries, ts_call_stream(call));
    find_bounds(p, &p->keys, ts_call_stream(call));
  }
}

bool ts_attention_is_tiled(const ts_attention_problem *p, ts_dtype dtype) {
  const void *pointer[] = {p->q,       p->k,       p->v,        p->d_out,    p->o.data,  p->dq.data,
                           p->dk.data, p->dv.data, p->dq.prior, p->dk.prior, p->dv.prior};
  return ts_dtype_is_half(dtype) && p->head_dim <= 128 && ts_is_wide<ts_bf16>(p->head_dim, pointer, 11);
}

/* Elements before k (part 1) and v (part 2) in a row of one tensor; none in tensors of their own. */
static int64_t part_at(const ts_attention_problem *p, const ts_node *node, int part) {
  int heads = part == 0 ? 0 : p->queries.heads + (part - 1) * p->keys.heads;
  return node->attr.attention.fused_qkv ? (int64_t) heads * p->head_dim : 0;
}

static void set_qkv(ts_attention_problem *p, const ts_node *node, ts_dtype dtype, const void *q, const void *k,
                    const void *v) {
  size_t size = ts_dtype_size(dtype);
  p->q = q;
  p->k = (const char *) k + (size_t) part_at(p, node, 1) * size;
  p->v = (const char *) v + (size_t) part_at(p, node, 2) * size;
}

/* ---- forward ---- */

static void run_forward(const ts_attention_problem *p, ts_dtype dtype, cudaStream_t stream) {
  if (ts_attention_is_tiled(p, dtype)) {
    ts_attention_forward(p, dtype, stream);
  } else {
    ts_attention_forward_plain(p, dtype, stream);
  }
}

static void forward_own(const ts_kernel_call *call) {
  ts_attention_problem p = own_problem(call->graph, call->node);
  set_qkv(&p, call->node, ts_call_in(call, 0)->dtype, call->in[0], call->in[1], call->in[2]);
  p.o.data = call->out[0];
  p.lse = (float *) call->out[1];
  add_optional(&p, call);
  run_forward(&p, ts_call_in(call, 0)->dtype, ts_call_stream(call));
}

/* ---- row sums ---- */

/* Rows of heads [B][T][H] and the numbers that belong to them, [B][H][T]. */
struct head_rows {
  int64_t count, length;
  int heads, head_dim;
};

static head_rows head_rows_of(const ts_kernel_call *call) {
  const ts_shape *x = &ts_call_in(call, 0)->shape;
  int heads = call->node->attr.attention.heads;
  return {x->d[0] * x->d[1] * heads, x->d[1], heads, call->node->attr.attention.head_dim};
}

/* Lanes of a warp, a power of 2, that have a row together, W elements each at a time. */
static int span_of(int head_dim, int w) {
  int span = 1;
  while (span < TS_WARP && span * w < head_dim) {
    span *= 2;
  }
  return span;
}

/* The number of row \a row in [B][H][T]. */
static __device__ __forceinline__ int64_t number_of(const head_rows &rows, int64_t row) {
  int64_t token = row / rows.heads, head = row % rows.heads;
  return (token / rows.length * rows.heads + head) * rows.length + token % rows.length;
}

/* delta [B][H][T] = the row of do times that of o.  Reads 2 B T H D elements. */
template <typename T, int W>
__global__ void __launch_bounds__(DELTA_THREADS) attention_delta(float *__restrict__ delta, const T *__restrict__ d_out,
                                                                 const T *__restrict__ o, head_rows rows, int span) {
  int64_t row = ((int64_t) blockIdx.x * DELTA_THREADS + threadIdx.x) / span;
  int first = (int) (threadIdx.x % (unsigned) span) * W;
  float sum = 0;
  for (int d = first; d < rows.head_dim && row < rows.count; d += span * W) {
    float x[W], y[W];
    ts_load<W>(x, d_out + row * rows.head_dim + d);
    ts_load<W>(y, o + row * rows.head_dim + d);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      sum += x[i] * y[i];
    }
  }
  for (int lane = span / 2; lane > 0; lane /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  }
  if (first == 0 && row < rows.count) {
    delta[number_of(rows, row)] = sum;
  }
}

template <typename T, int W>
static void launch_delta(const ts_kernel_call *call, float *delta, const void *d_out, const void *o) {
  head_rows rows = head_rows_of(call);
  int span = span_of(rows.head_dim, W);
  ts_launch(attention_delta<T, W>, ts_blocks(rows.count * span, DELTA_THREADS), DELTA_THREADS, 0, ts_call_stream(call),
            delta, (const T *) d_out, (const T *) o, rows, span);
}

/* Of a call whose first input is do. */
template <typename T> static void delta(const ts_kernel_call *call, const void *o, float *to) {
  const void *pointer[] = {call->in[0], o};
  if (ts_is_wide<T>(call->node->attr.attention.head_dim, pointer, 2)) {
    launch_delta<T, ts_lanes<T>>(call, to, call->in[0], o);
  } else {
    launch_delta<T, 1>(call, to, call->in[0], o);
  }
}

static void delta_run(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, delta, call, call->in[1], (float *) call->out[0]);
}

/* ---- merging ---- */

/* o and lse over the keys of both, in place: see ops.def.  All lanes of a row read its numbers before one writes.
 * Reads 2, writes 1 B T H D floats. */
template <int W>
__global__ void __launch_bounds__(DELTA_THREADS)
    attention_merge(float *o, float *lse, const float *o1, const float *lse1, const float *__restrict__ o2,
                    const float *__restrict__ lse2, head_rows rows, int span) {
  int64_t row = ((int64_t) blockIdx.x * DELTA_THREADS + threadIdx.x) / span;
  int first = (int) (threadIdx.x % (unsigned) span) * W;
  bool inside = row < rows.count;
  int64_t number = inside ? number_of(rows, row) : 0;
  float a = inside ? lse1[number] : 0, b = inside ? lse2[number] : 0, d = b - a;
  float share = d >= 0 ? 1 / (1 + expf(-d)) : expf(d) / (1 + expf(d));
  bool only_first = b == -INFINITY, only_second = !only_first && a == -INFINITY;
  for (int e = first; e < rows.head_dim && inside; e += span * W) {
    float x[W], y[W];
    ts_load<W>(x, o1 + row * rows.head_dim + e);
    ts_load<W>(y, o2 + row * rows.head_dim + e);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      x[i] = only_first ? x[i] : only_second ? y[i] : x[i] + share * (y[i] - x[i]);
    }
    ts_store<W>(o + row * rows.head_dim + e, x);
  }
  __syncwarp();
  if (first == 0 && inside) {
    lse[number] = only_first ? a : only_second ? b : fmaxf(a, b) + log1pf(expf(-fabsf(d)));
  }
}

template <int W> static void launch_merge(const ts_kernel_call *call) {
  head_rows rows = head_rows_of(call);
  int span = span_of(rows.head_dim, W);
  ts_launch(attention_merge<W>, ts_blocks(rows.count * span, DELTA_THREADS), DELTA_THREADS, 0, ts_call_stream(call),
            (float *) call->out[0], (float *) call->out[1], (const float *) call->in[0], (const float *) call->in[1],
            (const float *) call->in[2], (const float *) call->in[3], rows, span);
}

static void merge_run(const ts_kernel_call *call) {
  const void *pointer[] = {call->in[0], call->in[2], call->out[0]};
  if (ts_is_wide<float>(call->node->attr.attention.head_dim, pointer, 3)) {
    launch_merge<ts_lanes<float>>(call);
  } else {
    launch_merge<1>(call);
  }
}

/* ---- backward ---- */

/* The gradient of q, k or v. */
static void set_part_gradient(ts_attention_result *to, const ts_attention_problem *p, const ts_kernel_call *call,
                              int part) {
  int i = call->node->attr.attention.fused_qkv ? 0 : part;
  size_t bytes = (size_t) part_at(p, call->node, part) * ts_dtype_size(ts_call_out(call, i)->dtype);
  const void *prior = call->prior == NULL ? NULL : call->prior[i];
  to->data = (char *) call->out[i] + bytes;
  to->prior = prior == NULL ? NULL : (const char *) prior + bytes;
}

static void backward_own(const ts_kernel_call *call) {
  ts_attention_problem p = own_problem(call->graph, call->node);
  ts_dtype dtype = ts_call_in(call, 1)->dtype;
  set_qkv(&p, call->node, dtype, call->in[1], call->in[2], call->in[3]);
  p.d_out = call->in[0];
  p.lse = (float *) call->in[5];
  p.delta = (const float *) ts_call_optional(call, 9);
  p.beta = call->beta;
  set_part_gradient(&p.dq, &p, call, 0);
  set_part_gradient(&p.dk, &p, call, 1);
  set_part_gradient(&p.dv, &p, call, 2);
  add_optional(&p, call);
  if (p.delta == NULL) {
    p.delta = (const float *) call->workspace;
    TS_FOR_FLOAT(dtype, delta, call, call->in[4], (float *) call->workspace);
  }
  if (ts_attention_is_tiled(&p, dtype)) {
    ts_attention_backward(&p, dtype, ts_call_stream(call));
  } else {
    ts_attention_backward_plain(&p, dtype, ts_call_stream(call));
  }
}

/* ---- of queries that see nothing ---- */

/* y = value, and beta prior where there is one. */
template <typename T>
__global__ void __launch_bounds__(NOTHING_THREADS)
    attention_nothing(T *y, ts_prior<T> prior, float value, int64_t count) {
  int64_t i = (int64_t) blockIdx.x * NOTHING_THREADS + threadIdx.x;
  if (i < count) {
    ts_add_prior<1>(&value, prior, ts_prior_beta(prior), i);
    y[i] = ts_round<T>(value);
  }
}

template <typename T> static void launch_nothing(const ts_kernel_call *call, int i, float value) {
  int64_t count = ts_shape_count(&ts_call_out(call, i)->shape);
  const void *prior = call->prior == NULL ? NULL : call->prior[i];
  ts_launch(attention_nothing<T>, ts_blocks(count, NOTHING_THREADS), NOTHING_THREADS, 0, ts_call_stream(call),
            (T *) call->out[i], ts_prior<T>{(const T *) prior, call->beta}, value, count);
}

static void see_nothing(const ts_kernel_call *call) {
  for (int i = 0; i < call->node->n_out; ++i) {
    float value = call->node->op == TS_OP_ATTENTION && i == 1 ? -INFINITY : 0; /* lse */
    TS_FOR_FLOAT(ts_call_out(call, i)->dtype, launch_nothing, call, i, value);
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
  set_qkv(&p, call->node, TS_BF16, q, k, v);
  p.o.data = o;
  p.o.wide = false;
  p.lse = lse;
  p.threshold = 0;
  p.keep_scale = 1;
  run_forward(&p, TS_BF16, ts_call_stream(call));
}

static size_t own_workspace(const ts_graph *graph, const ts_node *node) {
  ts_attention_problem p = own_problem(graph, node);
  int documents = first_optional(node->op);
  bool any = node->n_in > documents && node->in[documents] != TS_NONE;
  return row_sum_bytes(&p, node) + (any ? bounds_bytes(&p, &p.queries) + bounds_bytes(&p, &p.keys) : 0);
}

/* The plan for memory has room for either where both may compute it. */
static size_t set_up_attention(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  bool any_order = target != NULL && target->cudnn == TS_CUDNN_ANY_ORDER;
  bool either = target != NULL && target->cudnn != TS_CUDNN_NEVER && ts_cudnn_supports(graph, node, any_order);
  size_t own = own_workspace(graph, node), theirs = either ? ts_cudnn_workspace(graph, node, any_order) : 0;
  ts_attention_choice question = ts_attention_question(graph, node, any_order);
  if (prepared != NULL && either && ts_attention_by_cudnn(&question)) {
    ts_error err = {};
    *prepared = ts_cudnn_plan_create(graph, node, any_order, NULL, &err);
    if (*prepared == NULL) {
      ts_log(TS_LOG_WARNING, "%s: cuDNN was chosen and has no plan now (%s): our kernel computes it", node->name,
             err.text);
    }
    ts_error_clear(&err);
  }
  return own > theirs ? own : theirs;
}

static void launch_attention(const ts_kernel_call *call) {
  if (call->node->attr.attention.blind) {
    see_nothing(call);
  } else if (call->prepared != NULL) {
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
  if (node->op == TS_OP_ATTENTION_DELTA || node->op == TS_OP_ATTENTION_MERGE) { /* rows, of any number */
    return true;
  }
  ts_attention_problem p = own_problem(graph, node);
  const ts_tensor *q = &graph->tensor[node->in[query_input(node->op)]],
                  *k = &graph->tensor[node->in[query_input(node->op) + 1]];
  ts_dtype dtype = graph->tensor[node->in[0]].dtype;
  const struct {
    bool good;
    const char *why;
  } rules[] = {
      {ts_dtype_is_working(dtype) != 0, "attention on a GPU is in fp32, bf16 or fp16"},
      {p.head_dim <= TS_ATTENTION_MOST_HEAD_DIM, "attention on a GPU has heads of at most 256 elements"},
      {p.scale > 0, "attention on a GPU scales its scores by a positive number"},
      {q->shape.d[1] <= most_rows && k->shape.d[1] <= most_rows,
       "attention on a GPU takes at most 4194240 tokens of a sequence on each GPU"},
      {p.length <= most_length, "attention on a GPU takes sequences of at most 536870912 tokens"},
      {ts_attention_grid(&p, &p.keys, 64).z <= 65535 && ts_attention_grid(&p, &p.queries, 64).z <= 65535,
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
  static const struct {
    ts_op op;
    ts_kernel row;
  } rows[] = {
      {TS_OP_ATTENTION, {set_up_attention, launch_attention, take_down_attention}},
      {TS_OP_ATTENTION_DX, {set_up_attention, launch_attention, take_down_attention}},
      {TS_OP_ATTENTION_DELTA, {NULL, delta_run, NULL}},
      {TS_OP_ATTENTION_MERGE, {NULL, merge_run, NULL}},
      {TS_OP_ATTENTION_CACHED, {NULL, ts_attention_run_cached, NULL}},
  };
  static const ts_kernel none = {};
  for (const auto &r : rows) {
    if (r.op == op) {
      return &r.row;
    }
  }
  return &none;
}
