/* The table of who computes attention, its text, and the measuring. */
#include "cuda/attention.h"
#include "cuda/attention_choice.h"

extern "C" {
#include "base/log.h"
#include "base/memory.h"
#include "cuda/attention_cudnn.h"
}

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 256, LINE = 192, RUNS = 5, REPEATS = 5, THREADS = 256 };

static struct table {
  ts_attention_choice row[MOST];
  int n;
} table;

/* ---- the table ---- */

ts_attention_choice ts_attention_question(const ts_graph *graph, const ts_node *node, bool any_order) {
  const ts_tensor *q = &graph->tensor[node->in[node->op == TS_OP_ATTENTION ? 0 : 1]];
  ts_attention_choice c = {};
  c.batch = q->shape.d[0];
  c.length = q->shape.d[1];
  c.heads = node->attr.attention.heads;
  c.kv_heads = node->attr.attention.kv_heads;
  c.head_dim = node->attr.attention.head_dim;
  c.backward = node->op == TS_OP_ATTENTION_DX;
  c.causal = node->attr.attention.causal;
  c.any_order = c.backward && any_order;
  c.fused = node->attr.attention.fused_qkv;
  return c;
}

static const ts_attention_choice *find_choice(const ts_attention_choice *q) {
  for (int i = 0; i < table.n; ++i) {
    const ts_attention_choice *c = &table.row[i];
    if (c->batch == q->batch && c->length == q->length && c->heads == q->heads && c->kv_heads == q->kv_heads &&
        c->head_dim == q->head_dim && c->backward == q->backward && c->causal == q->causal &&
        c->any_order == q->any_order && c->fused == q->fused) {
      return c;
    }
  }
  return NULL;
}

bool ts_attention_by_cudnn(const ts_attention_choice *question) {
  const ts_attention_choice *c = find_choice(question);
  return c != NULL && c->cudnn;
}

void ts_attention_choose(const ts_attention_choice *choice) {
  if (find_choice(choice) == NULL && table.n < MOST) {
    table.row[table.n++] = *choice;
  }
}

void ts_attention_choices_clear(void) {
  table.n = 0;
}

/* ---- text ---- */

static void write_line(const ts_attention_choice *c, char *line) {
  snprintf(line, LINE, "attention pass=%s b=%" PRId64 " t=%" PRId64 " h=%d g=%d d=%d causal=%d%s%s by=%s",
           c->backward ? "backward" : "forward", c->batch, c->length, c->heads, c->kv_heads, c->head_dim, c->causal,
           c->any_order ? " order=any" : "", c->fused ? " qkv=fused" : "", c->cudnn ? "cudnn" : "own");
}

void ts_attention_choices_write(ts_text *to) {
  char line[LINE];
  for (int i = 0; i < table.n; ++i) {
    write_line(&table.row[i], line);
    ts_text_add(to, "%s\n", line);
  }
}

/* What was understood is written again and must be the same text. */
bool ts_attention_choice_read(const char *line, ts_attention_choice *c) {
  char pass[16], by[16], again[LINE];
  int causal, end = 0;
  memset(c, 0, sizeof *c);
  if (sscanf(line, "attention pass=%15s b=%" SCNd64 " t=%" SCNd64 " h=%d g=%d d=%d causal=%d%n", pass, &c->batch,
             &c->length, &c->heads, &c->kv_heads, &c->head_dim, &causal, &end) != 7) {
    return false;
  }
  c->any_order = strncmp(line + end, " order=any", 10) == 0;
  end += c->any_order ? 10 : 0;
  c->fused = strncmp(line + end, " qkv=fused", 10) == 0;
  end += c->fused ? 10 : 0;
  if (sscanf(line + end, " by=%15s", by) != 1) {
    return false;
  }
  c->backward = strcmp(pass, "backward") == 0;
  c->causal = causal != 0;
  c->cudnn = strcmp(by, "cudnn") == 0;
  write_line(c, again);
  return strcmp(line, again) == 0 && (c->backward || !c->any_order);
}

/* ---- measuring ---- */

static __device__ __forceinline__ float value_at(int64_t i) {
  uint32_t x = (uint32_t) i * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return (float) (x >> 8) * 0x1p-23f - 1.0f;
}

static __global__ void __launch_bounds__(THREADS) fill_values(ts_bf16 *x, int64_t count) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < count) {
    x[i] = ts_round<ts_bf16>(value_at(i));
  }
}

/* The largest |a - b| and |a|, by one block; a NaN counts as infinite. */
template <typename T>
__global__ void __launch_bounds__(1024) compare_values(float *most, const T *a, const T *b, int64_t count) {
  TS_SHARED(float, scratch, 2 * 32);
  float difference = 0, largest = 0;
  for (int64_t i = threadIdx.x; i < count; i += 1024) {
    float x = ts_float(a[i]), d = fabsf(x - ts_float(b[i]));
    difference = d <= 3e38f ? fmaxf(difference, d) : 3e38f;
    largest = fmaxf(largest, fabsf(x));
  }
  difference = ts_warp_max(difference);
  largest = ts_warp_max(largest);
  if (threadIdx.x % TS_WARP == 0) {
    scratch[2 * (threadIdx.x / TS_WARP)] = difference;
    scratch[2 * (threadIdx.x / TS_WARP) + 1] = largest;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 32; ++w) {
      difference = fmaxf(difference, scratch[2 * w]);
      largest = fmaxf(largest, scratch[2 * w + 1]);
    }
    most[0] = difference;
    most[1] = largest;
  }
}

/* A sum of all words that any other bits change; whole numbers, so in any order the same. */
static __global__ void __launch_bounds__(1024)
    digest_words(unsigned long long *digest, const uint32_t *x, int64_t words) {
  TS_SHARED(unsigned long long, scratch, 32);
  unsigned long long sum = 0;
  for (int64_t i = threadIdx.x; i < words; i += 1024) {
    sum += (unsigned long long) x[i] * (2ull * (unsigned long long) i + 0x9e3779b97f4a7c15ull);
  }
  sum = ts_block_sum(sum, scratch);
  if (threadIdx.x == 0) {
    *digest = sum;
  }
}

/* One attention's operands in one allocation: q, k, v, do, then the results of both, then lse and workspace. */
typedef struct bench {
  char *memory;
  const void *in[10];
  void *own[3], *theirs[3];
  int n_in, n_out;
  int64_t count[3]; /* of each result */
  bool is_float[3];
  float *most;
  unsigned long long *digest;
  ts_kernel_call call;
  ts_cudnn_plan *plan;
  void *event[2];
} bench;

static bool make_attention_bench(const ts_graph *graph, const ts_node *node, size_t workspace, bench *b) {
  ts_attention_choice c = ts_attention_question(graph, node, false);
  int64_t q = c.batch * c.length * c.heads * c.head_dim, kv = c.batch * c.length * c.kv_heads * c.head_dim;
  size_t q_bytes = ts_align_up((size_t) q * 2, TS_CUDA_ALIGN), kv_bytes = ts_align_up((size_t) kv * 2, TS_CUDA_ALIGN),
         lse = ts_align_up((size_t) (c.batch * c.heads * c.length) * 4, TS_CUDA_ALIGN);
  size_t all = 6 * q_bytes + 6 * kv_bytes + 2 * lse + ts_align_up(workspace, TS_CUDA_ALIGN) + 256;
  cudaStream_t stream = ts_cuda_opened()->stream[TS_QUEUE_COMPUTE];
  if (cudaMalloc((void **) &b->memory, all) != cudaSuccess) {
    (void) cudaGetLastError();
    return false;
  }
  char *at = b->memory;
  auto take = [&](size_t bytes) {
    char *part = at;
    at += bytes;
    return part;
  };
  char *xq = take(q_bytes), *xk = take(kv_bytes), *xv = take(kv_bytes), *d_out = take(q_bytes), *o = take(q_bytes),
       *o2 = take(q_bytes);
  char *own_q = take(q_bytes), *own_k = take(kv_bytes), *own_v = take(kv_bytes), *their_q = take(q_bytes),
       *their_k = take(kv_bytes), *their_v = take(kv_bytes), *lse1 = take(lse), *lse2 = take(lse);
  b->most = (float *) take(256);
  b->digest = (unsigned long long *) (b->most + 4);
  ts_launch(fill_values, ts_blocks((int64_t) (2 * q_bytes + 2 * kv_bytes) / 2, THREADS), THREADS, 0, stream,
            (ts_bf16 *) xq, (int64_t) (2 * q_bytes + 2 * kv_bytes) / 2);
  bool fused = node->attr.attention.fused_qkv; /* one tensor of all three, which lie one behind the other */
  if (fused) {
    xk = xv = xq;
  }
  if (c.backward) {
    const void *in[] = {d_out, xq, xk, xv, o, lse1};
    void *own[] = {own_q, own_k, own_v}, *theirs[] = {their_q, their_k, their_v};
    memcpy(b->in, in, sizeof in);
    memcpy(b->own, own, sizeof own);
    memcpy(b->theirs, theirs, sizeof theirs);
    b->n_in = 6;
    b->n_out = fused ? 1 : 3;
    b->count[0] = fused ? q + 2 * kv : q;
    b->count[1] = b->count[2] = kv;
  } else {
    b->in[0] = xq;
    b->in[1] = xk;
    b->in[2] = xv;
    b->own[0] = o;
    b->own[1] = lse1;
    b->theirs[0] = o2;
    b->theirs[1] = lse2;
    b->n_in = 3;
    b->n_out = 2;
    b->count[0] = q;
    b->count[1] = c.batch * c.heads * c.length;
    b->is_float[1] = true;
  }
  b->call.graph = graph;
  b->call.node = node;
  b->call.in = b->in;
  b->call.workspace = at;
  b->call.workspace_bytes = workspace;
  b->call.threads = 1;
  b->call.stream = stream;
  if (c.backward) { /* o and lse that belong to q, k, v */
    ts_attention_forward_of(&b->call, xq, xk, xv, o, (float *) lse1);
  }
  return true;
}

static void run_candidate(bench *b, bool cudnn) {
  b->call.out = cudnn ? b->theirs : b->own;
  if (cudnn) {
    ts_cudnn_plan_run(b->plan, &b->call);
  } else {
    ts_attention_run_own(&b->call);
  }
}

static double time_of(bench *b, bool cudnn) {
  ts_device *device = &ts_cuda_opened()->base;
  double seconds[RUNS];
  run_candidate(b, cudnn);
  for (int i = 0; i < RUNS; ++i) {
    device->ops->record(device, b->event[0], TS_QUEUE_COMPUTE);
    run_candidate(b, cudnn);
    device->ops->record(device, b->event[1], TS_QUEUE_COMPUTE);
    device->ops->finish(device, b->event[1]);
    double now = device->ops->seconds(device, b->event[0], b->event[1]);
    int at = i;
    for (; at > 0 && seconds[at - 1] > now; --at) {
      seconds[at] = seconds[at - 1];
    }
    seconds[at] = now;
  }
  return seconds[RUNS / 2];
}

/* The largest difference of the results, relative to their largest values: two right kernels differ by a few roundings
 * of 2^-9. */
static double difference_of(bench *b) {
  double worst = 0;
  cudaStream_t stream = (cudaStream_t) b->call.stream;
  for (int i = 0; i < b->n_out; ++i) {
    float most[2];
    if (b->is_float[i]) {
      ts_launch(compare_values<float>, 1, 1024, 0, stream, b->most, (const float *) b->own[i],
                (const float *) b->theirs[i], b->count[i]);
    } else {
      ts_launch(compare_values<ts_bf16>, 1, 1024, 0, stream, b->most, (const ts_bf16 *) b->own[i],
                (const ts_bf16 *) b->theirs[i], b->count[i]);
    }
    TS_CUDA(cudaMemcpyAsync(most, b->most, sizeof most, cudaMemcpyDeviceToHost, stream));
    TS_CUDA(cudaStreamSynchronize(stream));
    double d = (double) most[0] / (most[1] > 0 ? (double) most[1] : 1);
    worst = d > worst ? d : worst;
  }
  return worst;
}

/* Whether cuDNN gives the same bits every time, as it must unless a run does without; its own notes do not tell. */
static bool repeats(bench *b, bool any_order) {
  cudaStream_t stream = (cudaStream_t) b->call.stream;
  unsigned long long first[3] = {}, now = 0;
  bool same = true;
  for (int time = 0; time < REPEATS && !any_order; ++time) {
    run_candidate(b, true);
    for (int i = 0; i < b->n_out; ++i) {
      int64_t bytes = b->count[i] * (b->is_float[i] ? 4 : 2);
      ts_launch(digest_words, 1, 1024, 0, stream, b->digest, (const uint32_t *) b->theirs[i], bytes / 4);
      TS_CUDA(cudaMemcpyAsync(&now, b->digest, sizeof now, cudaMemcpyDeviceToHost, stream));
      TS_CUDA(cudaStreamSynchronize(stream));
      same = same && (time == 0 || now == first[i]);
      first[i] = now;
    }
  }
  return same;
}

static const double MOST_DIFFERENT = 0.05, FASTER = 0.98;

static void measure_attention(const ts_graph *graph, const ts_node *node, ts_cudnn_plan *plan, ts_attention_choice *c) {
  ts_device *device = &ts_cuda_opened()->base;
  size_t workspace = ts_cuda_attention(node->op)->prepare(NULL, graph, node, NULL),
         theirs = ts_cudnn_workspace(graph, node, c->any_order);
  bench b = {};
  char line[LINE];
  if (!make_attention_bench(graph, node, workspace > theirs ? workspace : theirs, &b)) {
    write_line(c, line);
    ts_log(TS_LOG_WARNING, "no memory to measure %s: our kernel computes it", line);
    return;
  }
  b.plan = plan;
  b.event[0] = device->ops->event_create(device, true);
  b.event[1] = device->ops->event_create(device, true);
  double own = time_of(&b, false), other = time_of(&b, true), difference = difference_of(&b);
  bool same = repeats(&b, c->any_order), right = difference <= MOST_DIFFERENT;
  c->cudnn = right && same && other < FASTER * own;
  write_line(c, line);
  ts_log(right && same ? TS_LOG_DEBUG : TS_LOG_WARNING,
         "%s: own %.1f us, cuDNN %.1f us, results differ by %.1e of the largest%s", line, 1e6 * own, 1e6 * other,
         difference, same ? "" : "; cuDNN's bits change from run to run");
  device->ops->event_destroy(device, b.event[0]);
  device->ops->event_destroy(device, b.event[1]);
  TS_CUDA(cudaStreamSynchronize((cudaStream_t) b.call.stream));
  TS_CUDA(cudaFree(b.memory));
}

void ts_attention_measure(const ts_graph *graph, bool any_order) {
  for (ts_nid n = 0; n < graph->n_nodes; ++n) {
    const ts_node *node = &graph->node[n];
    bool attention = node->op == TS_OP_ATTENTION || node->op == TS_OP_ATTENTION_DX;
    if (!attention || !ts_cudnn_supports(graph, node, any_order)) {
      continue;
    }
    ts_attention_choice c = ts_attention_question(graph, node, any_order);
    if (find_choice(&c) != NULL) {
      continue;
    }
    ts_error err = {};
    ts_cudnn_plan *plan = ts_cudnn_plan_create(graph, node, any_order, NULL, &err);
    if (plan != NULL) {
      measure_attention(graph, node, plan, &c);
      ts_cudnn_plan_destroy(&plan);
    } else {
      ts_log(TS_LOG_DEBUG, "cuDNN has no attention for %s: %s", node->name, err.text);
    }
    ts_error_clear(&err);
    ts_attention_choose(&c);
  }
}
