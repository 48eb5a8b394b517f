/* Measuring the candidates of products on random operands in memory of their own: rounds in which each runs once, one
 * after another without a pause, and the median of its runs by device events decides.  In rounds, because a device
 * lowers its clocks in its first tens of milliseconds at work: those that came later would look slower.  Cost: memory
 * of the product's operands for that while, and about ENOUGH seconds. */
#include "cuda/blas_plan.h"
#include "cuda/kernel.cuh"

extern "C" {
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
}

enum { FEWEST_ROUNDS = 5, MOST_ROUNDS = 25, FILL_THREADS = 256 };

/* Seconds of rounds after which there need not be more. */
static const double ENOUGH = 0.06;

static bool measuring;

/* Operands of one product in one allocation, and what is needed to run it. */
typedef struct bench {
  ts_blas_operands operands;
  char *memory;
  size_t c_bytes;
  int *found; /* on the device: a NaN was */
  cudaStream_t stream;
} bench;

/* Bits of numbers between -1 and 1 from their place: power, and so clocks, depend on the data. */
static __device__ __forceinline__ float random_at(int64_t i) {
  uint32_t x = (uint32_t) i * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return (float) (x >> 8) * 0x1p-23f - 1.0f;
}

template <typename T> __global__ void __launch_bounds__(FILL_THREADS) fill_random(T *x, int64_t count) {
  int64_t i = (int64_t) blockIdx.x * FILL_THREADS + threadIdx.x;
  if (i < count) {
    x[i] = ts_round<T>(random_at(i));
  }
}

template <typename T> static void fill_operand(void *x, size_t bytes, cudaStream_t stream) {
  int64_t count = (int64_t) (bytes / sizeof(T));
  ts_launch(fill_random<T>, ts_blocks(count, FILL_THREADS), FILL_THREADS, 0, stream, (T *) x, count);
}

template <typename T>
__global__ void __launch_bounds__(FILL_THREADS)
    find_nan(int *found, const T *x, int64_t rows, int64_t columns, int64_t ld) {
  int64_t i = (int64_t) blockIdx.x * FILL_THREADS + threadIdx.x;
  if (i < rows * columns) {
    float value = ts_float(x[i / columns * ld + i % columns]);
    if (value != value) {
      *found = 1;
    }
  }
}

template <typename T> static void launch_find_nan(const bench *b, const ts_blas_spec *s) {
  ts_launch(find_nan<T>, ts_blocks(s->m * s->n, FILL_THREADS), FILL_THREADS, 0, b->stream, b->found,
            (const T *) b->operands.c, s->m, s->n, s->ldc);
}

/* False when the device has no room. */
static bool make_product_bench(const ts_blas_spec *s, bench *b) {
  size_t in = ts_dtype_size(s->in), out = ts_dtype_size(s->out);
  size_t a_bytes = ts_align_up((size_t) ((s->transpose_a ? s->k : s->m) * s->lda) * in, TS_CUDA_ALIGN);
  size_t b_bytes = ts_align_up((size_t) ((s->transpose_b ? s->n : s->k) * s->ldb) * in, TS_CUDA_ALIGN);
  size_t aux_bytes = ts_align_up((size_t) (s->m * s->n) * out, TS_CUDA_ALIGN),
         bias_bytes = ts_align_up((size_t) s->n * out, TS_CUDA_ALIGN);
  b->c_bytes = ts_align_up((size_t) (s->m * s->ldc) * out, TS_CUDA_ALIGN);
  b->stream = ts_cuda_opened()->stream[TS_QUEUE_COMPUTE];
  size_t all = TS_BLAS_WORKSPACE + a_bytes + b_bytes + b->c_bytes + aux_bytes + bias_bytes + 256;
  if (cudaMalloc((void **) &b->memory, all) != cudaSuccess) {
    (void) cudaGetLastError();
    return false;
  }
  char *at = b->memory;
  ts_blas_operands *o = &b->operands;
  o->workspace = at;
  o->a = at += TS_BLAS_WORKSPACE;
  o->b = at += a_bytes;
  o->c = at += b_bytes;
  o->aux = at += b->c_bytes;
  o->bias = at += aux_bytes;
  b->found = (int *) (at += bias_bytes);
  o->prior = o->c;
  TS_FOR_FLOAT(s->in, fill_operand, (void *) o->a, a_bytes + b_bytes, b->stream);
  TS_FOR_FLOAT(s->out, fill_operand, o->c, b->c_bytes + aux_bytes + bias_bytes, b->stream);
  return true;
}

/* With beta 0 on the device and a prior of NaNs: an algorithm that multiplies does not enter the table. */
static bool leaves_prior(const ts_blas *blas, bench *b, const cublasLtMatmulAlgo_t *algo) {
  int found = 0;
  b->operands.beta = ts_blas_constant(false);
  TS_CUDA(cudaMemsetAsync(b->operands.c, 0xff, b->c_bytes, b->stream));
  TS_CUDA(cudaMemsetAsync(b->found, 0, sizeof *b->found, b->stream));
  ts_blas_run_algorithm(blas, &b->operands, algo, b->stream);
  TS_FOR_FLOAT(blas->spec.out, launch_find_nan, b, &blas->spec);
  TS_CUDA(cudaMemcpyAsync(&found, b->found, sizeof found, cudaMemcpyDeviceToHost, b->stream));
  TS_CUDA(cudaStreamSynchronize(b->stream));
  TS_FOR_FLOAT(blas->spec.out, fill_operand, b->operands.c, b->c_bytes, b->stream);
  return !found;
}

/* What the heuristic offers the library may still refuse when it is asked to run it. */
static bool library_refuses(const ts_blas *blas, bench *b, const cublasLtMatmulAlgo_t *algo) {
  b->operands.beta = ts_blas_constant(true);
  cublasStatus_t code = ts_blas_try_algorithm(blas, &b->operands, algo, b->stream);
  if (code != CUBLAS_STATUS_SUCCESS) {
    char text[TS_BLAS_SPEC_TEXT];
    (void) cudaGetLastError();
    ts_log(TS_LOG_DEBUG, "product %s: an algorithm is refused with status %d", ts_blas_spec_text(&blas->spec, text),
           (int) code);
  }
  return code != CUBLAS_STATUS_SUCCESS;
}

/* Candidates that the library runs, and the seconds of each in every round, ascending. */
typedef struct contest {
  cublasLtMatmulAlgo_t algo[TS_BLAS_CANDIDATES];
  int number[TS_BLAS_CANDIDATES]; /* among those that the heuristic offers */
  double seconds[TS_BLAS_CANDIDATES][MOST_ROUNDS];
  int n, offered, rounds;
  void *event[TS_BLAS_CANDIDATES + 1];
} contest;

static void admit_candidates(const ts_blas *blas, bench *b, contest *c) {
  cublasLtMatmulHeuristicResult_t candidate[TS_BLAS_CANDIDATES];
  c->offered = ts_blas_candidates(blas, true, candidate, TS_BLAS_CANDIDATES);
  for (int i = 0; i < c->offered; ++i) {
    bool unfit = library_refuses(blas, b, &candidate[i].algo) ||
                 (blas->spec.prior == TS_BLAS_SCALED_PRIOR && !leaves_prior(blas, b, &candidate[i].algo));
    if (!unfit) {
      c->number[c->n] = i;
      c->algo[c->n++] = candidate[i].algo;
    }
  }
}

/* Every candidate once.  \return the seconds of all. */
static double run_round(const ts_blas *blas, const bench *b, contest *c) {
  ts_device *device = &ts_cuda_opened()->base;
  device->ops->record(device, c->event[0], TS_QUEUE_COMPUTE);
  for (int i = 0; i < c->n; ++i) {
    ts_blas_run_algorithm(blas, &b->operands, &c->algo[i], b->stream);
    device->ops->record(device, c->event[i + 1], TS_QUEUE_COMPUTE);
  }
  device->ops->finish(device, c->event[c->n]);
  for (int i = 0; i < c->n; ++i) {
    double now = device->ops->seconds(device, c->event[i], c->event[i + 1]), *seconds = c->seconds[i];
    int at = c->rounds;
    for (; at > 0 && seconds[at - 1] > now; --at) {
      seconds[at] = seconds[at - 1];
    }
    seconds[at] = now;
  }
  ++c->rounds;
  return device->ops->seconds(device, c->event[0], c->event[c->n]);
}

/* A later candidate must be faster by this factor: below it is noise, and the heuristic's order is the better judge. */
static const double FASTER = 0.99;

static void run_contest(const ts_blas *blas, bench *b, contest *c) {
  int best = 0;
  double all = 0;
  char text[TS_BLAS_SPEC_TEXT];
  b->operands.beta = ts_blas_constant(true);
  (void) run_round(blas, b, c); /* warms up */
  c->rounds = 0;
  while (c->rounds < FEWEST_ROUNDS || (c->rounds < MOST_ROUNDS && all < ENOUGH)) {
    all += run_round(blas, b, c);
  }
  for (int i = 1; i < c->n; ++i) {
    if (c->seconds[i][c->rounds / 2] < FASTER * c->seconds[best][c->rounds / 2]) {
      best = i;
    }
  }
  ts_blas_choices_put(&blas->spec, &c->algo[best]);
  ts_log(TS_LOG_DEBUG, "product %s: algorithm %d of %d, %.1f us, the first %.1f us, %d rounds",
         ts_blas_spec_text(&blas->spec, text), c->number[best], c->offered, 1e6 * c->seconds[best][c->rounds / 2],
         1e6 * c->seconds[0][c->rounds / 2], c->rounds);
}

static void measure_candidates(const ts_blas *blas, bench *b) {
  ts_device *device = &ts_cuda_opened()->base;
  contest c = {};
  admit_candidates(blas, b, &c);
  for (int i = 0; i <= c.n; ++i) {
    c.event[i] = device->ops->event_create(device, true);
  }
  if (c.n > 0) {
    run_contest(blas, b, &c);
  }
  for (int i = 0; i <= c.n; ++i) {
    device->ops->event_destroy(device, c.event[i]);
  }
}

void ts_blas_measure(const ts_blas *blas) {
  if (!measuring || ts_blas_choices_find(&blas->spec) != NULL) {
    return;
  }
  bench b = {};
  if (make_product_bench(&blas->spec, &b)) {
    measure_candidates(blas, &b);
    TS_CUDA(cudaStreamSynchronize(b.stream));
    TS_CUDA(cudaFree(b.memory));
  } else {
    char text[TS_BLAS_SPEC_TEXT];
    ts_log(TS_LOG_WARNING, "no memory to measure the product %s: the heuristic of cuBLASLt decides",
           ts_blas_spec_text(&blas->spec, text));
  }
}

/* Of an op that has products, run NULL for others. */
static const ts_kernel *row_of_products(ts_op op) {
  const ts_kernel *row = ts_cuda_matmul(op)->run != NULL ? ts_cuda_matmul(op) : ts_cuda_head(op);
  return row->run != NULL ? row : ts_backend_nested(op);
}

/* Preparing a node makes the plans of its products, whatever they are: each is measured as it is made. */
void ts_cuda_choices_measure(const ts_graph *graph) {
  ts_target target = {ts_backend_cuda(), 1, TS_CUDNN_NEVER};
  measuring = true;
  for (ts_nid i = 0; i < graph->n_nodes; ++i) {
    const ts_node *node = &graph->node[i];
    const ts_kernel *row = row_of_products(node->op);
    if (row->run != NULL) {
      void *prepared = NULL;
      (void) row->prepare(&target, graph, node, &prepared);
      row->release(prepared);
    }
  }
  measuring = false;
}
