/* Attention as a graph of cuDNN operations.  cuDNN knows scaled-dot-product attention by the shape of this graph and
 * runs it as one flash kernel.  (Its composite operation CUDNN_BACKEND_OPERATION_SDPA_FWD has no causal mask
 * before 9.21.)
 *
 * Forward:   s = scale q k^T, -inf above the diagonal; m = row max of s; l = row sum of exp (s - m);
 *            o = (exp (s - m) / l) v; lse = m + log l
 * Backward:  delta = row sum of do o; p = exp (s - lse); dv = p^T do; ds = scale p (do v^T - delta);
 *            dk = ds^T q; dq = ds k
 *
 * Determinism.  The usual backward graph sums dq in an fp32 tensor that the caller gives, in the order in which blocks
 * finish. Without that tensor cuDNN takes an algorithm that keeps ds, in bf16, in its workspace, and gives the same
 * bits every time: that is the one here.  Its price is a matrix of T x T numbers for each head, written and read once.
 * So that it stays small the backward pass runs in slices, of whole samples or of some heads of one sample, one after
 * the other in the same workspace.  Where a run may do without the same bits (run.deterministic = false) the graph has
 * that tensor, and no slices until 1 GiB, of it and of dk and dv of each query head.
 *
 * Parts of the tokens, heads that begin inside a group, row sums instead of o, fp32 results of bf16 and sums with a
 * prior are for our kernels, and so are windows, softcaps and documents.  cuDNN's frontend makes windows and softcaps
 * of element-wise nodes as well, but which of them the graph without dq's sum may have is not documented, and no
 * device has told; a mask of documents would have every tile computed, seen or not.
 *
 * Workspace.  Measured for cuDNN 9.19 on sm_90, with all candidates of 60 shapes: forward at most 256 bytes; backward
 * 2 B H T'^2, T' being T rounded up to 128, and, where query heads share keys, 4 B H T D for dk and dv of each query
 * head in bf16, and 256 bytes.  A plan that wants more is refused. */
#include "cuda/attention_cudnn.h"

#include "base/memory.h"
#include "cuda/cudnn_graph.h"

#include <math.h>
#include <string.h>

/* A slice of attention, and the whole that it is of.  Slices of equal problems share a graph. */
typedef struct problem {
  int64_t batch, heads, kv_heads; /* of a slice */
  int64_t all_batch, all_heads, all_kv_heads;
  int64_t length, head_dim;
  int64_t causal, backward, any_order, fused; /* 0 or 1; fused: q, k, v in one tensor; no padding: compared as bytes */
} problem;

/* Numbers of the tensors: those of calls, delta, scalars. */
enum {
  UID_Q = 1,
  UID_K,
  UID_V,
  UID_O,
  UID_LSE,
  UID_D_OUT,
  UID_DQ,
  UID_DK,
  UID_DV,
  UID_DELTA,
  UID_DQ_SUM,
  UID_SCALE,
  UID_MASKED,
  UID_ONE,
  UID_END
};
enum { MOST_POINTERS = UID_END - 1, TILE = 128, ALIGN = 256 };
enum { SPARE = 256, ANY_ORDER_SPARE = 4 << 20 /* not measured yet */ };

/* Workspace of the backward pass that slices are made for: enough blocks to fill a device (8 heads of 8192 tokens are
 * 512 blocks), not more.  Where the heads of one slice need more than the second, attention is not for cuDNN. */
static const int64_t usual_workspace = (int64_t) 1 << 30, most_workspace = (int64_t) 2 << 30;
static int64_t wanted_workspace = (int64_t) 1 << 30;

/* What cuDNN made for a problem, and how many plans use it. */
typedef struct shared {
  problem problem;
  char *device; /* NULL: this process's */
  ts_cudnn_graph *graph;
  ts_cudnn_choice choice;
  int users;
  struct shared *next;
} shared;

struct ts_cudnn_plan {
  shared *shared;
  float scale, masked, one;               /* read by address when a run is queued */
  const void *pointer[MOST_POINTERS + 1]; /* by uid, of the whole: what the packs were made of */
  void *workspace;
  ts_cudnn_pack *pack; /* one a slice */
};

static shared *all_shared;

/* ---- slices and their workspace ---- */

static int64_t padded_length(const problem *p) {
  return (p->length + TILE - 1) / TILE * TILE;
}

/* Bytes of cuDNN's workspace for a slice. */
static int64_t inner_workspace(const problem *p) {
  if (!p->backward) {
    return SPARE;
  }
  int64_t heads = p->batch * p->heads, t = padded_length(p);
  int64_t full_heads = p->heads == p->kv_heads ? 0 : 4 * heads * (p->any_order ? t : p->length) * p->head_dim;
  return full_heads + (p->any_order ? (int64_t) ANY_ORDER_SPARE : 2 * heads * t * t + SPARE);
}

static int64_t align_up(int64_t bytes) {
  return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* delta lies behind it, and behind that dq's sum. */
static int64_t delta_bytes(const problem *p) {
  return p->backward ? p->batch * p->heads * p->length * (int64_t) sizeof(float) : 0;
}
static int64_t sum_bytes(const problem *p) {
  return p->any_order ? p->batch * p->heads * p->length * p->head_dim * (int64_t) sizeof(float) : 0;
}

static int64_t workspace_bytes(const problem *p) {
  int64_t delta = p->any_order ? align_up(delta_bytes(p)) : delta_bytes(p);
  return align_up(inner_workspace(p)) + delta + sum_bytes(p) + ALIGN; /* ours is aligned to 64 only */
}

/* The largest part of \a whole, a divisor, so that \a part of the problem fits. */
static void shrink(problem *p, int64_t *part, int64_t whole) {
  int64_t group = p->all_heads / p->all_kv_heads;
  for (int64_t n = 1; n <= whole; ++n) {
    if (whole % n == 0) {
      *part = whole / n;
      p->heads = p->kv_heads * group;
      if (workspace_bytes(p) <= wanted_workspace) {
        return;
      }
    }
  }
}

void ts_cudnn_slice(int64_t bytes) {
  wanted_workspace = bytes > 0 ? bytes : usual_workspace;
}

static int64_t n_slices(const problem *p) {
  return p->all_batch / p->batch * (p->all_kv_heads / p->kv_heads);
}

/* ---- which nodes ---- */

static problem problem_of(const ts_graph *graph, const ts_node *node, bool any_order) {
  bool backward = node->op == TS_OP_ATTENTION_DX;
  const ts_tensor *q = &graph->tensor[node->in[backward ? 1 : 0]];
  problem p = {.length = q->shape.d[1], .head_dim = node->attr.attention.head_dim};
  p.batch = p.all_batch = q->shape.d[0];
  p.heads = p.all_heads = node->attr.attention.heads;
  p.kv_heads = p.all_kv_heads = node->attr.attention.kv_heads;
  p.causal = node->attr.attention.causal;
  p.backward = backward;
  p.any_order = backward && any_order;
  p.fused = node->attr.attention.fused_qkv;
  shrink(&p, &p.batch, p.all_batch);
  shrink(&p, &p.kv_heads, p.all_kv_heads);
  return p;
}

/* Whether keys and queries are the same tokens and whole groups of heads, and results only what they are made of. */
static bool is_whole_attention(const ts_graph *graph, const ts_node *node, int q) {
  int64_t length = graph->tensor[node->in[q]].shape.d[1], whole = node->attr.attention.length;
  int group = ts_attention_group(&node->attr);
  bool tokens = node->attr.attention.queries.n == 0 && node->attr.attention.keys.n == 0 &&
                graph->tensor[node->in[q + 1]].shape.d[1] == length && (whole == 0 || whole == length);
  bool heads = node->attr.attention.first_head % group == 0 &&
               node->attr.attention.heads == node->attr.attention.kv_heads * group;
  bool delta = node->n_in > 9 && node->in[9] != TS_NONE;
  return tokens && heads && !delta && !node->attr.attention.wide_queries && !node->attr.attention.wide_keys &&
         node->prior == NULL;
}

bool ts_cudnn_supports(const ts_graph *graph, const ts_node *node, bool any_order) {
  if (node->op != TS_OP_ATTENTION && node->op != TS_OP_ATTENTION_DX) {
    return false;
  }
  bool backward = node->op == TS_OP_ATTENTION_DX;
  const ts_tensor *q = &graph->tensor[node->in[backward ? 1 : 0]];
  int documents = backward ? 6 : 3, head_dim = node->attr.attention.head_dim;
  bool one_document = node->n_in <= documents || node->in[documents] == TS_NONE;
  int64_t window = node->attr.attention.window;
  bool all_keys = one_document && (window == 0 || window >= q->shape.d[1]);
  if (q->dtype != TS_BF16 || !is_whole_attention(graph, node, backward ? 1 : 0) ||
      (head_dim != 64 && head_dim != 96 && head_dim != 128) || !all_keys || node->attr.attention.softcap > 0 ||
      node->attr.attention.dropout > 0 || q->shape.d[0] == 0 ||
      q->shape.d[1] < 2 /* one token has no backward there */) {
    return false;
  }
  problem p = problem_of(graph, node, any_order);
  return workspace_bytes(&p) <= most_workspace;
}

size_t ts_cudnn_workspace(const ts_graph *graph, const ts_node *node, bool any_order) {
  problem p = problem_of(graph, node, any_order);
  return (size_t) workspace_bytes(&p);
}

/* ---- tensors ---- */

/* Elements from one row to the next of o, of q, of k and v, and of their gradients. */
static int64_t elements_of_row(const problem *p, int64_t uid) {
  bool result = uid == UID_O || uid == UID_D_OUT, query = result || uid == UID_Q || uid == UID_DQ;
  int64_t heads = p->fused && !result ? p->all_heads + 2 * p->all_kv_heads : query ? p->all_heads : p->all_kv_heads;
  return heads * p->head_dim;
}

/* Elements of such a row before its first head: k and v lie behind q where all are one tensor. */
static int64_t first_of_row(const problem *p, int64_t uid) {
  bool key = uid == UID_K || uid == UID_DK, value = uid == UID_V || uid == UID_DV;
  return !p->fused ? 0 : key ? p->all_heads * p->head_dim : value ? (p->all_heads + p->all_kv_heads) * p->head_dim : 0;
}

/* [B][T][heads D] in memory as {B, heads, T, D}; transposed: {B, heads, D, T}. */
static ts_cudnn_shape rows(const problem *p, int64_t uid, int64_t heads, bool transposed) {
  int64_t row = elements_of_row(p, uid);
  if (transposed) {
    return (ts_cudnn_shape){{p->batch, heads, p->head_dim, p->length}, {p->length * row, p->head_dim, 1, row}};
  }
  return (ts_cudnn_shape){{p->batch, heads, p->length, p->head_dim}, {p->length * row, p->head_dim, row, 1}};
}

/* One number a row: [B][H][T], of a sample with \a heads heads in memory. */
static ts_cudnn_shape numbers(const problem *p, int64_t heads) {
  return (ts_cudnn_shape){{p->batch, p->heads, p->length, 1}, {heads * p->length, p->length, 1, 1}};
}

/* {B, H, queries, keys}, which is never in memory; transposed: {B, H, keys, queries}. */
static ts_cudnn_shape scores(const problem *p, bool transposed) {
  int64_t t = p->length;
  return (ts_cudnn_shape){{p->batch, p->heads, t, t},
                          {p->heads * t * t, t * t, transposed ? 1 : t, transposed ? t : 1}};
}

/* {B, H, T, D}, one for every query head, inside the graph. */
static ts_cudnn_shape full_heads(const problem *p) {
  int64_t head = p->length * p->head_dim;
  return (ts_cudnn_shape){{p->batch, p->heads, p->length, p->head_dim}, {p->heads * head, head, p->head_dim, 1}};
}

static ts_cudnn_tensor score_tensor(ts_cudnn_graph *g, const problem *p) {
  return ts_cudnn_virtual(g, CUDNN_DATA_FLOAT, scores(p, false));
}

static ts_cudnn_tensor number_tensor(ts_cudnn_graph *g, const problem *p) {
  return ts_cudnn_virtual(g, CUDNN_DATA_FLOAT, numbers(p, p->heads));
}

static ts_cudnn_tensor memory(ts_cudnn_graph *g, const problem *p, int64_t uid, int64_t heads, bool transposed) {
  return ts_cudnn_memory(g, uid, CUDNN_DATA_BFLOAT16, rows(p, uid, heads, transposed));
}

/* ---- graphs ---- */

/* s, or -inf where the key comes after the query. */
static ts_cudnn_tensor add_mask(ts_cudnn_graph *g, const problem *p, ts_cudnn_tensor s) {
  if (!p->causal) {
    return s;
  }
  ts_cudnn_tensor query = ts_cudnn_index(g, 2, s, ts_cudnn_virtual(g, CUDNN_DATA_INT32, scores(p, false)));
  ts_cudnn_tensor key = ts_cudnn_index(g, 3, s, ts_cudnn_virtual(g, CUDNN_DATA_INT32, scores(p, false)));
  ts_cudnn_tensor seen =
      ts_cudnn_binary(g, CUDNN_POINTWISE_CMP_GE, query, key, ts_cudnn_virtual(g, CUDNN_DATA_BOOLEAN, scores(p, false)));
  return ts_cudnn_select(g, s, ts_cudnn_scalar(g, UID_MASKED, CUDNN_DATA_FLOAT), seen, score_tensor(g, p));
}

static void build_forward(ts_cudnn_graph *g, const problem *p) {
  ts_cudnn_tensor q = memory(g, p, UID_Q, p->heads, false), kt = memory(g, p, UID_K, p->kv_heads, true);
  ts_cudnn_tensor v = memory(g, p, UID_V, p->kv_heads, false), o = memory(g, p, UID_O, p->heads, false);
  ts_cudnn_tensor lse = ts_cudnn_memory(g, UID_LSE, CUDNN_DATA_FLOAT, numbers(p, p->all_heads));
  ts_cudnn_tensor scale = ts_cudnn_scalar(g, UID_SCALE, CUDNN_DATA_FLOAT);
  ts_cudnn_tensor s = ts_cudnn_matmul(g, q, kt, score_tensor(g, p));
  s = add_mask(g, p, ts_cudnn_binary(g, CUDNN_POINTWISE_MUL, s, scale, score_tensor(g, p)));
  ts_cudnn_tensor max = ts_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, number_tensor(g, p));
  ts_cudnn_tensor e = ts_cudnn_binary(g, CUDNN_POINTWISE_SUB, s, max, score_tensor(g, p));
  e = ts_cudnn_unary(g, CUDNN_POINTWISE_EXP, e, score_tensor(g, p));
  ts_cudnn_tensor sum = ts_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, number_tensor(g, p));
  ts_cudnn_tensor log_sum = ts_cudnn_unary(g, CUDNN_POINTWISE_LOG, sum, number_tensor(g, p));
  ts_cudnn_binary(g, CUDNN_POINTWISE_ADD, max, log_sum, lse);
  ts_cudnn_tensor weights = ts_cudnn_virtual(g, CUDNN_DATA_BFLOAT16, scores(p, false));
  ts_cudnn_matmul(g, ts_cudnn_binary(g, CUDNN_POINTWISE_DIV, e, sum, weights), v, o);
}

/* The gradient of keys or values: x^T y, summed over the query heads of a group. */
static void build_kv_gradient(ts_cudnn_graph *g, const problem *p, ts_cudnn_tensor x, ts_cudnn_tensor y, int64_t uid) {
  ts_cudnn_tensor xt = ts_cudnn_reshape(g, x, ts_cudnn_virtual(g, CUDNN_DATA_BFLOAT16, scores(p, true)));
  ts_cudnn_tensor gradient = memory(g, p, uid, p->kv_heads, false);
  if (p->heads == p->kv_heads) {
    ts_cudnn_matmul(g, xt, y, gradient);
  } else {
    ts_cudnn_tensor full = ts_cudnn_matmul(g, xt, y, ts_cudnn_virtual(g, CUDNN_DATA_BFLOAT16, full_heads(p)));
    ts_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, full, gradient);
  }
}

/* delta in memory, and through a multiplication by 1: so cuDNN knows the graph. */
static ts_cudnn_tensor build_delta(ts_cudnn_graph *g, const problem *p, ts_cudnn_tensor d_out, ts_cudnn_tensor o) {
  ts_cudnn_tensor product = ts_cudnn_virtual(g, CUDNN_DATA_FLOAT, full_heads(p));
  ts_cudnn_tensor sum = ts_cudnn_reduce(
      g, CUDNN_REDUCE_TENSOR_ADD, ts_cudnn_binary(g, CUDNN_POINTWISE_MUL, d_out, o, product), number_tensor(g, p));
  return ts_cudnn_binary(g, CUDNN_POINTWISE_MUL, sum, ts_cudnn_scalar(g, UID_ONE, CUDNN_DATA_FLOAT),
                         ts_cudnn_memory(g, UID_DELTA, CUDNN_DATA_FLOAT, numbers(p, p->heads)));
}

static void build_backward(ts_cudnn_graph *g, const problem *p) {
  ts_cudnn_tensor q = memory(g, p, UID_Q, p->heads, false), kt = memory(g, p, UID_K, p->kv_heads, true);
  ts_cudnn_tensor vt = memory(g, p, UID_V, p->kv_heads, true), o = memory(g, p, UID_O, p->heads, false);
  ts_cudnn_tensor d_out = memory(g, p, UID_D_OUT, p->heads, false), dq = memory(g, p, UID_DQ, p->heads, false);
  ts_cudnn_tensor lse = ts_cudnn_memory(g, UID_LSE, CUDNN_DATA_FLOAT, numbers(p, p->all_heads));
  ts_cudnn_tensor scale = ts_cudnn_scalar(g, UID_SCALE, CUDNN_DATA_FLOAT);
  ts_cudnn_tensor delta = build_delta(g, p, d_out, o);
  ts_cudnn_tensor s = ts_cudnn_matmul(g, q, kt, score_tensor(g, p));
  s = ts_cudnn_binary(g, CUDNN_POINTWISE_MUL, s, scale, score_tensor(g, p));
  s = add_mask(g, p, ts_cudnn_binary(g, CUDNN_POINTWISE_SUB, s, lse, score_tensor(g, p)));
  ts_cudnn_tensor weights = ts_cudnn_unary(g, CUDNN_POINTWISE_EXP, s, score_tensor(g, p));
  build_kv_gradient(g, p, weights, d_out, UID_DV);
  ts_cudnn_tensor ds = ts_cudnn_matmul(g, d_out, vt, score_tensor(g, p));
  ds = ts_cudnn_binary(g, CUDNN_POINTWISE_SUB, ds, delta, score_tensor(g, p));
  ds = ts_cudnn_binary(g, CUDNN_POINTWISE_MUL, ds, weights, score_tensor(g, p));
  ds = ts_cudnn_binary(g, CUDNN_POINTWISE_MUL, ds, scale, score_tensor(g, p));
  build_kv_gradient(g, p, ds, q, UID_DK);
  ts_cudnn_tensor k =
      ts_cudnn_reshape(g, kt, ts_cudnn_virtual(g, CUDNN_DATA_BFLOAT16, rows(p, UID_K, p->kv_heads, false)));
  if (p->any_order) {
    ts_cudnn_tensor sum = ts_cudnn_memory(g, UID_DQ_SUM, CUDNN_DATA_FLOAT, full_heads(p));
    ts_cudnn_unary(g, CUDNN_POINTWISE_IDENTITY, ts_cudnn_matmul(g, ds, k, sum), dq);
  } else {
    ts_cudnn_matmul(g, ds, k, dq);
  }
}

/* ---- plans ---- */

static ts_cudnn_graph *build_attention_graph(const problem *p, const char *device, ts_error *err) {
  ts_cudnn_graph *graph = ts_cudnn_graph_create(device, err);
  (p->backward ? build_backward : build_forward)(graph, p);
  return graph;
}

bool ts_cudnn_accepts(const ts_graph *graph, const ts_node *node, bool any_order, const char *device, ts_error *err) {
  problem p = problem_of(graph, node, any_order);
  ts_cudnn_graph *g = build_attention_graph(&p, device, err);
  bool accepted = ts_cudnn_graph_close(g);
  ts_cudnn_graph_destroy(&g);
  return accepted;
}

static bool same_device(const char *a, const char *b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* What cuDNN has for the problem, with one more user; NULL when it is refused. */
static shared *share(const problem *p, const char *device, ts_error *err) {
  for (shared *s = all_shared; s != NULL; s = s->next) {
    if (memcmp(&s->problem, p, sizeof *p) == 0 && same_device(s->device, device)) {
      ++s->users;
      return s;
    }
  }
  ts_cudnn_choice choice;
  ts_cudnn_graph *graph = build_attention_graph(p, device, err);
  if (!ts_cudnn_graph_close(graph) || !ts_cudnn_graph_plan(graph, p->any_order, (size_t) inner_workspace(p), &choice)) {
    ts_cudnn_graph_destroy(&graph);
    return NULL;
  }
  shared *s = ts_calloc(1, sizeof *s);
  *s = (shared){
      .problem = *p, .device = ts_strdup(device), .graph = graph, .choice = choice, .users = 1, .next = all_shared};
  return all_shared = s;
}

static void unshare(shared *s) {
  if (--s->users > 0) {
    return;
  }
  shared **at = &all_shared;
  while (*at != s) {
    at = &(*at)->next;
  }
  *at = s->next;
  ts_cudnn_graph_destroy(&s->graph);
  ts_free(s->device);
  ts_free(s);
}

/* Versions before 9.16 want keys masked by hand where the last tile is not full. */
static bool has_known_error(const problem *p, ts_error *err) {
  if (cudnnGetVersion() < 91600 && p->backward && p->length % TILE != 0) {
    ts_error_add(err, "%s needs lengths that are a multiple of %d", ts_cudnn_describe(), TILE);
    return true;
  }
  if (cudnnGetVersion() < 90600 && p->any_order) {
    ts_error_add(err, "%s does not clear the sum that blocks add to", ts_cudnn_describe());
    return true;
  }
  return false;
}

ts_cudnn_plan *ts_cudnn_plan_create(const ts_graph *graph, const ts_node *node, bool any_order, const char *device,
                                    ts_error *err) {
  TS_ASSERT(ts_cudnn_supports(graph, node, any_order));
  problem p = problem_of(graph, node, any_order);
  shared *s = has_known_error(&p, err) ? NULL : share(&p, device, err);
  if (s == NULL) {
    return NULL;
  }
  ts_cudnn_plan *plan = ts_calloc(1, sizeof *plan);
  plan->shared = s;
  plan->scale = node->attr.attention.scale;
  plan->masked = -INFINITY;
  plan->one = 1;
  plan->pack = ts_calloc((size_t) n_slices(&p), sizeof *plan->pack);
  return plan;
}

static void destroy_packs(ts_cudnn_plan *plan) {
  for (int64_t i = 0; i < n_slices(&plan->shared->problem); ++i) {
    ts_cudnn_pack_destroy(&plan->pack[i]);
  }
}

void ts_cudnn_plan_destroy(ts_cudnn_plan **plan) {
  if (*plan != NULL) {
    destroy_packs(*plan);
    unshare((*plan)->shared);
    ts_free((*plan)->pack);
    ts_free(*plan);
    *plan = NULL;
  }
}

size_t ts_cudnn_plan_workspace(const ts_cudnn_plan *plan) {
  return plan->shared->choice.workspace;
}

int64_t ts_cudnn_plan_engine(const ts_cudnn_plan *plan) {
  return plan->shared->choice.engine;
}

/* ---- runs ---- */

static char *aligned(void *workspace) {
  return (char *) (((uintptr_t) workspace + ALIGN - 1) / ALIGN * ALIGN);
}

/* Bytes from the first element of a tensor of the whole to that of a slice. */
static int64_t slice_offset(const problem *p, int64_t uid, int64_t slice) {
  int64_t head_slices = p->all_kv_heads / p->kv_heads;
  int64_t sample = slice / head_slices * p->batch, part = slice % head_slices;
  int64_t heads = part * (uid == UID_K || uid == UID_V || uid == UID_DK || uid == UID_DV ? p->kv_heads : p->heads);
  switch (uid) {
    case UID_LSE: return (sample * p->all_heads + part * p->heads) * p->length * (int64_t) sizeof(float);
    case UID_DELTA:
    case UID_DQ_SUM: return 0;
    default: return (sample * p->length * elements_of_row(p, uid) + heads * p->head_dim) * (int64_t) sizeof(uint16_t);
  }
}

/* The pack of a slice; pointers that are NULL belong to tensors that the graph does not have. */
static ts_cudnn_pack make_pack(const ts_cudnn_plan *plan, int64_t slice) {
  const problem *p = &plan->shared->problem;
  int64_t uid[MOST_POINTERS];
  void *pointer[MOST_POINTERS];
  int n = 0;
  for (int64_t i = UID_Q; i < UID_END; ++i) {
    if (plan->pointer[i] != NULL) {
      bool scalar = i >= UID_SCALE;
      uid[n] = i;
      pointer[n++] = (char *) plan->pointer[i] + (scalar ? 0 : slice_offset(p, i, slice));
    }
  }
  return ts_cudnn_pack_create(uid, pointer, n, aligned(plan->workspace));
}

/* Where a call has the tensors of the graph. */
static void find_pointers(const ts_cudnn_plan *plan, const ts_kernel_call *call,
                          const void *pointer[MOST_POINTERS + 1]) {
  static const int forward_in[] = {UID_Q, UID_K, UID_V}, forward_out[] = {UID_O, UID_LSE};
  static const int backward_in[] = {UID_D_OUT, UID_Q, UID_K, UID_V, UID_O, UID_LSE},
                   backward_out[] = {UID_DQ, UID_DK, UID_DV};
  const problem *p = &plan->shared->problem;
  memset(pointer, 0, (MOST_POINTERS + 1) * sizeof *pointer);
  for (int i = 0; i < (p->backward ? 6 : 3); ++i) {
    pointer[p->backward ? backward_in[i] : forward_in[i]] = call->in[i];
  }
  for (int i = 0; i < (p->backward ? 3 : 2); ++i) {
    pointer[p->backward ? backward_out[i] : forward_out[i]] = call->out[p->backward && p->fused ? 0 : i];
  }
  for (int uid = UID_Q; uid <= UID_DV; ++uid) {
    pointer[uid] = pointer[uid] == NULL ? NULL : (const uint16_t *) pointer[uid] + first_of_row(p, uid);
    TS_ASSERT((uintptr_t) pointer[uid] % TS_CUDNN_ALIGN == 0);
  }
  pointer[UID_SCALE] = &plan->scale;
  pointer[UID_MASKED] = p->causal ? &plan->masked : NULL;
  if (p->backward) {
    pointer[UID_ONE] = &plan->one;
    char *delta = aligned(call->workspace) + align_up(inner_workspace(p));
    pointer[UID_DELTA] = delta;
    pointer[UID_DQ_SUM] = p->any_order ? delta + align_up(delta_bytes(p)) : NULL;
  }
}

void ts_cudnn_plan_run(ts_cudnn_plan *plan, const ts_kernel_call *call) {
  const problem *p = &plan->shared->problem;
  const void *pointer[MOST_POINTERS + 1];
  TS_ASSERT(call->workspace_bytes >= (size_t) workspace_bytes(p));
  find_pointers(plan, call, pointer);
  if (memcmp(pointer, plan->pointer, sizeof pointer) != 0 || plan->workspace != call->workspace) {
    destroy_packs(plan);
    memcpy(plan->pointer, pointer, sizeof pointer);
    plan->workspace = call->workspace;
  }
  for (int64_t i = 0; i < n_slices(p); ++i) {
    if (plan->pack[i] == NULL) {
      plan->pack[i] = make_pack(plan, i);
    }
    ts_cudnn_graph_run(plan->shared->graph, plan->pack[i], (cudaStream_t) call->stream);
  }
}
