#include "engine/peak.h"

#include "backend/backend.h"
#include "backend/cpu/gemm.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "ops/build.h"

#include <stdlib.h>
#include <string.h>

enum { RANDOM = 1 << 16 /* values that are repeated */ };

typedef struct product {
  const ts_backend *backend;
  ts_device *device; /* NULL: the host */
  void *a, *b, *c, *workspace;
  size_t workspace_bytes;
} product;

static void wait_for_turn(const product *p) {
  ts_device *device = p->device;
  if (device != NULL) {
    void *event = device->ops->event_create(device, false);
    device->ops->record(device, event, TS_QUEUE_COMPUTE);
    device->ops->finish(device, event);
    device->ops->event_destroy(device, event);
  }
}

/* Normal values: zeros would be multiplied faster than real data by some machines. */
static void fill(const product *p, void *matrix, size_t all, uint64_t key, ts_dtype dtype) {
  size_t size = ts_dtype_size(dtype), bytes = RANDOM * size;
  float *value = ts_malloc(RANDOM * sizeof *value);
  char *block = ts_malloc(bytes);
  ts_random_normal(key, 0, RANDOM, 1, value);
  ts_convert(block, dtype, value, TS_F32, RANDOM);
  for (size_t at = 0; at < all; at += bytes) {
    size_t n = all - at < bytes ? all - at : bytes;
    if (p->device != NULL) {
      p->device->ops->copy(p->device, (char *) matrix + at, block, n, TS_QUEUE_COMPUTE);
    } else {
      memcpy((char *) matrix + at, block, n);
    }
  }
  wait_for_turn(p);
  ts_free(value);
  ts_free(block);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

double ts_median(double *value, int n) {
  qsort(value, (size_t) n, sizeof *value, by_value);
  return value[n / 2];
}

double ts_least_quarter(double *value, int n) {
  const int quarter = n / 4 > 0 ? n / 4 : 1;
  double sum = 0;
  (void) ts_median(value, n);
  for (int i = 0; i < quarter; ++i) {
    sum += value[i];
  }
  return sum / quarter;
}

/* A device is given several at once, and waited for once. */
static double product_rate(const product *p, const ts_kernel *kernel, const ts_kernel_call *call, double flops,
                           double seconds, bool typical) {
  enum { MOST_RUNS = 256 };
  double rate[MOST_RUNS], begin = ts_seconds();
  int times = p->device != NULL ? 10 : 1, n = 0;
  for (int i = 0; i < MOST_RUNS && (i < 4 || ts_seconds() - begin < seconds); ++i) {
    double start = ts_seconds();
    for (int k = 0; k < times; ++k) {
      kernel->run(call);
    }
    wait_for_turn(p);
    rate[n] = times * flops / (ts_seconds() - start);
    n += i > 0; /* the first run touches the memory */
  }
  double median = ts_median(rate, n);
  return typical ? median : rate[n - 1];
}

double ts_product_flops(const ts_backend *backend, const ts_product_shape *shape, ts_dtype dtype, int threads,
                        double seconds, bool typical) {
  int64_t m = shape->m, n = shape->n, k = shape->k;
  bool ta = shape->transpose_a, tb = shape->transpose_b;
  ts_graph *g = ts_graph_create();
  const ts_tid in[] = {ts_graph_leaf(g, "a", TS_ROLE_INPUT, dtype, ta ? TS_SHAPE(k, m) : TS_SHAPE(m, k), -1),
                       ts_graph_leaf(g, "b", TS_ROLE_INPUT, dtype, tb ? TS_SHAPE(n, k) : TS_SHAPE(k, n), -1)};
  ts_build_matmul(ts_graph_site(g), "c", in[0], in[1], TS_NONE, ta, tb, dtype);
  size_t size = ts_dtype_size(dtype), a_bytes = (size_t) (m * k) * size, b_bytes = (size_t) (k * n) * size,
         c_bytes = (size_t) (m * n) * size;
  product p = {.backend = backend, .device = ts_backend_device(backend)};
  p.a = backend->allocate(a_bytes);
  p.b = backend->allocate(b_bytes);
  p.c = backend->allocate(c_bytes);
  fill(&p, p.a, a_bytes, 1, dtype);
  fill(&p, p.b, b_bytes, 2, dtype);
  ts_target target = {backend, threads, TS_CUDNN_NEVER};
  const ts_kernel *kernel = backend->kernel(TS_OP_MATMUL);
  ts_kernel_call call = {.graph = g,
                         .node = &g->node[0],
                         .in = (const void *[]){p.a, p.b},
                         .out = (void *[]){p.c},
                         .threads = threads,
                         .stream = p.device != NULL ? p.device->ops->stream(p.device, TS_QUEUE_COMPUTE) : NULL};
  p.workspace_bytes = call.workspace_bytes = kernel->prepare(&target, g, &g->node[0], &call.prepared);
  call.workspace = p.workspace = backend->allocate(p.workspace_bytes);
  double rate = product_rate(&p, kernel, &call, 2.0 * (double) m * (double) n * (double) k, seconds, typical);
  if (kernel->release != NULL) {
    kernel->release(call.prepared);
  }
  backend->release(p.a, a_bytes);
  backend->release(p.b, b_bytes);
  backend->release(p.c, c_bytes);
  backend->release(p.workspace, p.workspace_bytes);
  ts_graph_destroy(&g);
  return rate;
}

/* Where products are cut in tiles, these are dealt evenly: the part of the threads that has work all the time. */
static double busy_part(int64_t n, int threads) {
  int64_t tiles = ts_gemm_tiles(n, n), rounds = (tiles + threads - 1) / threads;
  return (double) tiles / (double) (rounds * threads);
}

/* The smallest product that keeps threads busy: every process of a run and of each of its restarts pays for it. */
double ts_peak_flops(int threads, ts_dtype dtype) {
  int64_t best = 512;
  for (int64_t n = best; n <= 3072 && busy_part(best, threads) < 0.9; n += 256) {
    best = busy_part(n, threads) > busy_part(best, threads) ? n : best;
  }
  return ts_product_flops(ts_backend_cpu(), &(ts_product_shape){best, best, best, false, false}, dtype, threads, 0.03,
                          false);
}

double ts_copy_rate(const ts_backend *backend, size_t bytes) {
  enum { RUNS = 21 };
  ts_device *device = ts_backend_device(backend);
  void *from = backend->allocate(bytes), *to = backend->allocate(bytes),
       *begin = device->ops->event_create(device, true), *end = device->ops->event_create(device, true);
  double seconds[RUNS];
  for (int i = 0; i < RUNS; ++i) {
    device->ops->record(device, begin, TS_QUEUE_COMPUTE);
    device->ops->copy(device, to, from, bytes, TS_QUEUE_COMPUTE);
    device->ops->record(device, end, TS_QUEUE_COMPUTE);
    device->ops->finish(device, end);
    seconds[i] = device->ops->seconds(device, begin, end);
  }
  device->ops->event_destroy(device, begin);
  device->ops->event_destroy(device, end);
  backend->release(from, bytes);
  backend->release(to, bytes);
  return 2 * (double) bytes / ts_median(seconds, RUNS);
}
