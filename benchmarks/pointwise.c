/* How near the kernels that are bound by memory come to the memory: each at the sizes of GPT-2 124M (4 sequences of 256
 * tokens; on a GPU 64 of 1024), against the sum of two arrays (read two, write one) in the same run, on a GPU against a
 * copy.
 *
 *     benchmarks/pointwise [THREADS|cuda [KERNEL]]
 *
 * Columns: kernel, type, microseconds, GB/s (bytes that must be read and written once), ratio to the sum of arrays or
 * the copy.  Every call works on memory that has left the caches. */
#include "backend/backend.h"
#include "base/memory.h"
#include "base/status.h"
#include "engine/peak.h"
#include "ops/build.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 768, HEADS = 12, INNER = 3072, VOCABULARY = 50257, MAX_TENSORS = 24 };
static const ts_backend *backend;
static ts_device *device;     /* NULL: the host */
static int64_t n_rows = 1024; /* tokens */

/* Bytes after which memory has left the caches. */
static const size_t cold_bytes = (size_t) 512 << 20;

static ts_tid leaf(ts_graph *g, const char *name, ts_dtype dtype, ts_shape shape) {
  return ts_graph_leaf(g, name, TS_ROLE_INPUT, dtype, shape, -1);
}

/* An op whose inputs are n activations of one shape. */
static void build_any(ts_graph *g, ts_op op, ts_dtype dtype, int n, int64_t columns, ts_attr attr) {
  static const char *const names[] = {"a", "b", "c"};
  ts_tid in[3];
  for (int i = 0; i < n; ++i) {
    in[i] = leaf(g, names[i], dtype, TS_SHAPE(4, n_rows / 4, columns));
  }
  ts_graph_add(ts_graph_site(g), &(ts_node){.op = op, .name = "node", .n_in = n, .in = in, .attr = attr});
}

static void build_add(ts_graph *g, ts_dtype dtype) {
  build_any(g, TS_OP_ADD, dtype, 2, HIDDEN, (ts_attr){{0}});
}
/* An activation of a kind, or its gradient. */
static void build_kind(ts_graph *g, ts_op op, ts_dtype dtype, int n, ts_activation kind) {
  build_any(g, op, dtype, n, INNER, (ts_attr){.activation = {kind}});
}
static void build_gelu(ts_graph *g, ts_dtype dtype) {
  build_kind(g, TS_OP_ACTIVATION, dtype, 1, TS_ACTIVATION_GELU_TANH);
}
static void build_gelu_dx(ts_graph *g, ts_dtype dtype) {
  build_kind(g, TS_OP_ACTIVATION_DX, dtype, 2, TS_ACTIVATION_GELU_TANH);
}
static void build_gelu_erf(ts_graph *g, ts_dtype dtype) {
  build_kind(g, TS_OP_ACTIVATION, dtype, 1, TS_ACTIVATION_GELU);
}
static void build_gelu_erf_dx(ts_graph *g, ts_dtype dtype) {
  build_kind(g, TS_OP_ACTIVATION_DX, dtype, 2, TS_ACTIVATION_GELU);
}
static void build_swiglu(ts_graph *g, ts_dtype dtype) {
  build_kind(g, TS_OP_GLU, dtype, 2, TS_ACTIVATION_SILU);
}
static void build_swiglu_dx(ts_graph *g, ts_dtype dtype) {
  build_kind(g, TS_OP_GLU_DX, dtype, 3, TS_ACTIVATION_SILU);
}

static void build_cast(ts_graph *g, ts_dtype dtype) {
  ts_tid x = leaf(g, "x", dtype, TS_SHAPE(n_rows, INNER));
  ts_build_cast(ts_graph_site(g), "node", x, dtype == TS_F32 ? TS_BF16 : TS_F32);
}

static void build_accumulate(ts_graph *g, ts_dtype dtype) {
  ts_tid prior = leaf(g, "prior", dtype, TS_SHAPE(n_rows, INNER)), x = leaf(g, "x", dtype, TS_SHAPE(n_rows, INNER));
  ts_build_accumulate(ts_graph_site(g), "node", prior, x, leaf(g, "one", TS_F32, TS_SHAPE(1)));
}

static void build_dropout(ts_graph *g, ts_dtype dtype) {
  ts_tid x = leaf(g, "x", dtype, TS_SHAPE(4, n_rows / 4, HIDDEN)), seed = leaf(g, "seed", TS_I64, TS_SHAPE(1));
  ts_build_dropout(ts_graph_site(g), "node", x, seed, leaf(g, "sample", TS_I64, TS_SHAPE(4)), 0.1f, 1);
}

static void build_split(ts_graph *g, ts_dtype dtype) {
  static const int64_t size[] = {HIDDEN, HIDDEN, HIDDEN};
  ts_build_split(ts_graph_site(g), "node", leaf(g, "x", dtype, TS_SHAPE(n_rows, 3 * HIDDEN)), 1, 3, size);
}

static void build_sum_rows(ts_graph *g, ts_dtype dtype) {
  ts_build_sum_rows(ts_graph_site(g), "node", leaf(g, "x", dtype, TS_SHAPE(n_rows, INNER)), TS_F32);
}

static void build_embedding(ts_graph *g, ts_dtype dtype) {
  ts_tid table = leaf(g, "table", dtype, TS_SHAPE(VOCABULARY, HIDDEN));
  ts_build_embedding(ts_graph_site(g), "node", table, leaf(g, "ids", TS_I32, TS_SHAPE(4, n_rows / 4)));
}

static void build_embedding_dw(ts_graph *g, ts_dtype dtype) {
  ts_tid dy = leaf(g, "dy", dtype, TS_SHAPE(4, n_rows / 4, HIDDEN));
  ts_build_embedding_dw(ts_graph_site(g), "node", dy, leaf(g, "ids", TS_I32, TS_SHAPE(4, n_rows / 4)), VOCABULARY,
                        TS_F32, 0);
}

/* A norm and its gradients: these inputs; of rows or, where `heads`, of heads of 64. */
static void build_norm(ts_graph *g, ts_op op, ts_dtype dtype, const char *inputs, int heads) {
  int64_t columns = heads > 0 ? HIDDEN / heads : HIDDEN, rows = n_rows / 4 * (heads > 0 ? heads : 1);
  ts_tid in[5];
  int n = 0;
  for (const char *c = inputs; *c != 0; ++c) {
    char name[2] = {*c, 0};
    in[n++] = *c == 'y' || *c == 'x'   ? leaf(g, name, dtype, TS_SHAPE(4, rows, columns))
              : *c == 'm' || *c == 'r' ? leaf(g, name, TS_F32, TS_SHAPE(4, rows))
                                       : leaf(g, name, dtype, TS_SHAPE(columns));
  }
  ts_node args = {.op = op, .name = "node", .n_in = n, .in = in};
  args.attr.norm.eps = 1e-5f;
  args.attr.norm.dtype = TS_F32;
  ts_graph_add(ts_graph_site(g), &args);
}

static void build_layernorm(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_LAYERNORM, dtype, "xwb", 0);
}
static void build_layernorm_dx(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_LAYERNORM_DX, dtype, "yxwmr", 0);
}
static void build_layernorm_dw(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_LAYERNORM_DW, dtype, "yxmr", 0);
}
static void build_rmsnorm(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_RMSNORM, dtype, "xw", 0);
}
static void build_rmsnorm_dx(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_RMSNORM_DX, dtype, "yxwr", 0);
}
static void build_rmsnorm_dw(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_RMSNORM_DW, dtype, "yxr", 0);
}
static void build_rmsnorm_heads(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_RMSNORM, dtype, "xw", HEADS);
}
static void build_rmsnorm_heads_dx(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_RMSNORM_DX, dtype, "yxwr", HEADS);
}
static void build_rmsnorm_heads_dw(ts_graph *g, ts_dtype dtype) {
  build_norm(g, TS_OP_RMSNORM_DW, dtype, "yxr", HEADS);
}

static void build_rope(ts_graph *g, ts_dtype dtype) {
  ts_tid in[] = {leaf(g, "x", dtype, TS_SHAPE(4, n_rows / 4, HIDDEN)), leaf(g, "p", TS_I32, TS_SHAPE(4, n_rows / 4))};
  ts_node args = {.op = TS_OP_ROPE, .name = "node", .n_in = 2, .in = in};
  double frequency[32];
  for (int i = 0; i < 32; ++i) {
    frequency[i] = pow(1e4, -i / 32.0);
  }
  args.attr.rope.head_dim = args.attr.rope.rotated = 64;
  args.attr.rope.frequency = frequency;
  args.attr.rope.factor = 1;
  ts_graph_add(ts_graph_site(g), &args);
}

enum { PARAMETERS = 32 << 20 }; /* a quarter of the model: as far beyond the caches as all of it */

static void build_sum_squares(ts_graph *g, ts_dtype dtype) {
  static const ts_range all = {0, PARAMETERS, 0, 1, 0};
  ts_build_sum_squares(ts_graph_site(g), "node", leaf(g, "x", dtype, TS_SHAPE(PARAMETERS)), 1, &all);
}

/* A sweep of an optimizer with states of a type: of an optimizer of elements the step, with the working copy in another
 * type, else the direction in the gradient's place. */
static void build_update(ts_graph *g, ts_dtype dtype, ts_optimizer rule, ts_dtype moments) {
  static const ts_range all = {0, PARAMETERS, 0.1f, 1, 0};
  const ts_optimizer_info *info = ts_optimizer_get(rule);
  ts_shape shape = TS_SHAPE(PARAMETERS), one = TS_SHAPE(1);
  bool steps = info->granularity == TS_GRANULARITY_ELEMENT;
  ts_update_inputs in = {.p = leaf(g, "p", TS_F32, shape),
                         .w = dtype != TS_F32 && steps ? leaf(g, "w", dtype, shape) : TS_NONE,
                         .state = {TS_NONE, TS_NONE},
                         .scales = {TS_NONE, TS_NONE}};
  for (int i = 0; i < info->n_states; ++i) {
    in.state[i] = leaf(g, i == 0 ? "m" : "v", moments, shape);
    in.scales[i] =
        moments == TS_U8 ? leaf(g, i == 0 ? "ms" : "vs", TS_F32, TS_SHAPE(PARAMETERS / TS_STATE_BLOCK)) : TS_NONE;
  }
  in.input[TS_UPDATE_G] = leaf(g, "g", TS_F32, shape);
  in.input[TS_UPDATE_STEP] = leaf(g, "step", TS_I64, one);
  in.input[TS_UPDATE_CORRECTIONS] = leaf(g, "corrections", TS_F64, TS_SHAPE(2));
  in.input[TS_UPDATE_LR] = leaf(g, "lr", TS_F32, one);
  in.input[TS_UPDATE_BETAS] = leaf(g, "betas", TS_F32, TS_SHAPE(2));
  in.input[TS_UPDATE_SCALE] = leaf(g, "scale", TS_F32, one);
  in.input[TS_UPDATE_SKIP] = leaf(g, "zero", TS_F32, one);
  ts_optimizer_numbers numbers = {.eps = 1e-8f, .momentum = 0.9f, .decoupled = true, .bias_correction = true};
  ts_build_update_elements(ts_graph_site(g), "node", &in,
                           &(ts_attr){.update = {.range = &all, .n = 1, .rule = rule, .numbers = numbers}}, false);
}

static void build_adamw(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_ADAMW, TS_F32);
}
static void build_adamw_bf16(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_ADAMW, TS_BF16);
}
static void build_adamw_8bit(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_ADAMW, TS_U8);
}
static void build_lion(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_LION, TS_F32);
}
static void build_lion_8bit(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_LION, TS_U8);
}
static void build_adagrad(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_ADAGRAD, TS_F32);
}
static void build_sgd(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_SGD, TS_F32);
}
static void build_momentum(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_MOMENTUM, TS_F32);
}
static void build_lamb(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_LAMB, TS_F32);
}
static void build_muon(ts_graph *g, ts_dtype dtype) {
  build_update(g, dtype, TS_OPTIMIZER_MUON, TS_F32);
}

static const struct {
  const char *name;
  void (*build)(ts_graph *g, ts_dtype dtype);
} rows[] = {{"add", build_add},
            {"cast", build_cast},
            {"accumulate", build_accumulate},
            {"gelu", build_gelu},
            {"gelu_dx", build_gelu_dx},
            {"gelu_erf", build_gelu_erf},
            {"gelu_erf_dx", build_gelu_erf_dx},
            {"swiglu", build_swiglu},
            {"swiglu_dx", build_swiglu_dx},
            {"dropout", build_dropout},
            {"split", build_split},
            {"sum_rows", build_sum_rows},
            {"embedding", build_embedding},
            {"embedding_dw", build_embedding_dw},
            {"layernorm", build_layernorm},
            {"layernorm_dx", build_layernorm_dx},
            {"layernorm_dw", build_layernorm_dw},
            {"rmsnorm", build_rmsnorm},
            {"rmsnorm_dx", build_rmsnorm_dx},
            {"rmsnorm_dw", build_rmsnorm_dw},
            {"rmsnorm_heads", build_rmsnorm_heads},
            {"rmsnorm_heads_dx", build_rmsnorm_heads_dx},
            {"rmsnorm_heads_dw", build_rmsnorm_heads_dw},
            {"rope", build_rope},
            {"sum_squares", build_sum_squares},
            {"adamw", build_adamw},
            {"adamw_bf16", build_adamw_bf16},
            {"adamw_8bit", build_adamw_8bit},
            {"lion", build_lion},
            {"lion_8bit", build_lion_8bit},
            {"adagrad", build_adagrad},
            {"sgd", build_sgd},
            {"momentum", build_momentum},
            {"lamb", build_lamb},
            {"muon", build_muon}};

/* One set of tensors of a graph in fresh memory; outputs in place share their input's. */
typedef struct data_set {
  char *memory; /* owned, of the backend */
  void *tensor[MAX_TENSORS];
} data_set;

static void fill_on_host(const ts_tensor *tensor, char *data, int64_t count) {
  bool zero = strcmp(tensor->name, "zero") == 0;
  for (int64_t i = 0; i < count; ++i) {
    float value = zero ? 0 : (float) (1 + i % 1000) / 1001;
    switch (tensor->dtype) {
      case TS_F32: ((float *) data)[i] = value; break;
      case TS_BF16: ((uint16_t *) data)[i] = ts_f32_to_bf16(value); break;
      case TS_F16: ((uint16_t *) data)[i] = ts_f32_to_f16(value); break;
      case TS_U8: ((uint8_t *) data)[i] = (uint8_t) (i * 7919 % 256); break;
      case TS_I32: ((int32_t *) data)[i] = (int32_t) (i * 7919 % VOCABULARY); break;
      default: ((int64_t *) data)[i] = 1 + i; break;
    }
  }
}

static size_t padded(const ts_graph *g, ts_tid tensor) {
  return ((size_t) ts_tensor_bytes(g, tensor) + 4095) / 4096 * 4096;
}

static size_t data_bytes(const ts_graph *g) {
  size_t bytes = 0;
  for (int i = 0; i < g->n_tensors; ++i) {
    bytes += padded(g, i);
  }
  return bytes;
}

static void wait_for_device(void) {
  void *event = device->ops->event_create(device, false);
  device->ops->record(device, event, TS_QUEUE_COMPUTE);
  device->ops->finish(device, event);
  device->ops->event_destroy(device, event);
}

/* A device has the first values from here, and repeats them by itself. */
enum { REPEATED = 1 << 20 };

static void fill_on_device(const ts_tensor *tensor, char *data, int64_t count) {
  size_t size = ts_dtype_size(tensor->dtype), bytes = (size_t) count * size;
  int64_t n = count < REPEATED ? count : REPEATED;
  char *values = ts_malloc((size_t) n * size + 1);
  fill_on_host(tensor, values, n);
  device->ops->copy(device, data, values, (size_t) n * size, TS_QUEUE_COMPUTE);
  for (size_t there = (size_t) n * size; there < bytes;) {
    size_t more = there < bytes - there ? there : bytes - there;
    device->ops->copy(device, data + there, data, more, TS_QUEUE_COMPUTE);
    there += more;
  }
  wait_for_device();
  ts_free(values);
}

static void data_create(data_set *set, const ts_graph *g) {
  const ts_node *node = &g->node[0];
  set->memory = backend->allocate(data_bytes(g));
  size_t at = 0;
  for (int i = 0; i < g->n_tensors; ++i) {
    set->tensor[i] = set->memory + at;
    (device != NULL ? fill_on_device : fill_on_host)(&g->tensor[i], set->tensor[i], ts_tensor_count(g, i));
    at += padded(g, i);
  }
  for (int i = 0; i < node->n_out && i < ts_op_get(node->op)->n_inplace; ++i) {
    set->tensor[node->out[i]] = set->tensor[node->in[i]];
  }
}

static void call(const ts_kernel *kernel, const ts_graph *g, const data_set *set, void *workspace, void *prepared,
                 int threads) {
  const ts_node *node = &g->node[0];
  const void *in[MAX_TENSORS];
  void *out[MAX_TENSORS];
  for (int i = 0; i < node->n_in; ++i) {
    in[i] = node->in[i] == TS_NONE ? NULL : set->tensor[node->in[i]];
  }
  for (int i = 0; i < node->n_out; ++i) {
    out[i] = set->tensor[node->out[i]];
  }
  kernel->run(&(ts_kernel_call){.graph = g,
                                .node = node,
                                .in = in,
                                .out = out,
                                .workspace = workspace,
                                .prepared = prepared,
                                .threads = threads,
                                .stream = device != NULL ? device->ops->stream(device, TS_QUEUE_COMPUTE) : NULL});
}

static int compare_seconds(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* Device events around a call. */
typedef struct device_clock {
  void *begin, *end;
} device_clock;

static void begin(device_clock *c) {
  if (device != NULL) {
    c->begin = c->begin != NULL ? c->begin : device->ops->event_create(device, true);
    c->end = c->end != NULL ? c->end : device->ops->event_create(device, true);
    device->ops->record(device, c->begin, TS_QUEUE_COMPUTE);
  }
}

static double end(const device_clock *c) {
  device->ops->record(device, c->end, TS_QUEUE_COMPUTE);
  device->ops->finish(device, c->end);
  return device->ops->seconds(device, c->begin, c->end);
}

static void stop(device_clock *c) {
  if (device != NULL) {
    device->ops->event_destroy(device, c->begin);
    device->ops->event_destroy(device, c->end);
  }
}

/* Seconds of one call: the fastest tenth of calls on a ring of data sets, since other work may share the machine; on a
 * GPU the median. */
static double measure(const ts_graph *g, int threads) {
  enum { CALLS = 200 };
  double seconds[CALLS];
  const ts_kernel *kernel = backend->kernel(g->node[0].op);
  ts_target target = {backend, threads, TS_CUDNN_NEVER};
  void *prepared = NULL;
  size_t bytes = kernel->prepare == NULL ? 0 : kernel->prepare(&target, g, &g->node[0], &prepared);
  void *workspace = backend->allocate(bytes + 1);
  int n = (int) (cold_bytes / data_bytes(g) + 1), calls = n == 1 ? CALLS / 10 : CALLS;
  data_set *set = ts_calloc((size_t) n, sizeof *set);
  for (int i = 0; i < n; ++i) {
    data_create(&set[i], g);
  }
  device_clock c = {NULL, NULL};
  for (int i = 0; i < calls; ++i) {
    double start = omp_get_wtime();
    begin(&c);
    call(kernel, g, &set[i % n], workspace, prepared, threads);
    seconds[i] = device != NULL ? end(&c) : omp_get_wtime() - start;
  }
  qsort(seconds, (size_t) calls, sizeof *seconds, compare_seconds);
  for (int i = 0; i < n; ++i) {
    backend->release(set[i].memory, data_bytes(g));
  }
  ts_free(set);
  backend->release(workspace, bytes + 1);
  if (kernel->release != NULL) {
    kernel->release(prepared);
  }
  stop(&c);
  return seconds[device != NULL ? calls / 2 : calls / 10];
}

/* What must be read and written once: of a looked-up table only the rows. */
static double bytes_moved(const ts_graph *g) {
  const ts_node *node = &g->node[0];
  return node->op == TS_OP_EMBEDDING ? 2.0 * (double) ts_tensor_bytes(g, node->out[0]) : ts_node_bytes(g, node);
}

/* GB/s of c = a + b on arrays beyond the caches. */
static double memory_speed(int threads) {
  enum { COUNT = 32 << 20 };
  float *a = ts_map(3 * COUNT * sizeof *a), *b = a + COUNT, *c = b + COUNT;
  double best = 1e9;
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int i = 0; i < 2 * COUNT; ++i) { /* what was never written is one page of zeros, in the caches */
    a[i] = 1;
  }
  for (int round = 0; round < 6; ++round) {
    double start = omp_get_wtime();
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int i = 0; i < COUNT; ++i) {
      c[i] = a[i] + b[i];
    }
    double seconds = omp_get_wtime() - start;
    best = seconds < best ? seconds : best;
  }
  ts_unmap(a, 3 * COUNT * sizeof *a);
  return 3e-9 * COUNT * sizeof *a / best;
}

static void open_device(void) {
  ts_error err = {0};
  const ts_cuda_options options = {.local_rank = 0};
  TS_CHECK(ts_cuda_open(&options, &err) == TS_OK, "%s", err.text);
  backend = ts_backend_cuda();
  device = ts_backend_device(backend);
  n_rows = 65536;
}

int main(int argc, char **argv) {
  static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
  bool cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
  int threads = cuda ? 1 : argc > 1 ? atoi(argv[1]) : 2;
  TS_CHECK(threads > 0, "usage: pointwise [THREADS|cuda [KERNEL]]");
  backend = ts_backend_cpu();
  if (cuda) {
    open_device();
  }
  double memory = cuda ? 1e-9 * ts_copy_rate(backend, (size_t) 1 << 30) : memory_speed(threads);
  printf("%s, %d threads, memory %.1f GB/s\n", backend->describe(), threads, memory);
  for (size_t r = 0; r < sizeof rows / sizeof *rows; ++r) {
    for (int d = 0; d < 3 && (argc < 3 || strcmp(argv[2], rows[r].name) == 0); ++d) {
      ts_graph *g = ts_graph_create();
      rows[r].build(g, dtypes[d]);
      double seconds = measure(g, threads), speed = bytes_moved(g) / seconds * 1e-9;
      printf("%-14s %-5s %9.0f us %7.1f GB/s %6.2f\n", rows[r].name, ts_dtype_name(dtypes[d]), seconds * 1e6, speed,
             speed / memory);
      fflush(stdout);
      ts_graph_destroy(&g);
    }
  }
  return 0;
}
