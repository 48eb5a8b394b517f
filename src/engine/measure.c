#include "engine/measure.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/peak.h"
#include "graph/op.h"

#include <math.h>
#include <string.h>

void ts_measure_begin(ts_world *world) {
  ts_comm *all = ts_world_all(world);
  all->ops->barrier(all);
}

/* ---- floors, products ---- */

/* Bytes/s read and written on the host: of what no cache holds. */
static double host_copy_rate(int threads) {
  enum { BYTES = 128 << 20, RUNS = 5 };
  char *from = ts_map(BYTES), *to = ts_map(BYTES);
  double best = 0;
  memset(from, 1, BYTES);
  for (int run = 0; run <= RUNS; ++run) {
    double start = ts_seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < BYTES >> 20; ++i) {
      memcpy(to + ((size_t) i << 20), from + ((size_t) i << 20), 1 << 20);
    }
    double rate = 2.0 * BYTES / (ts_seconds() - start);
    best = run > 0 && rate > best ? rate : best;
  }
  ts_unmap(from, BYTES);
  ts_unmap(to, BYTES);
  return best;
}

void ts_measure_floors(const ts_measuring *of, ts_measured *m) {
  static const int64_t sizes[] = {1024, 2048, 3072, 8192};
  bool device = ts_backend_device(of->backend) != NULL;
  for (int rated = 0; rated < TS_N_RATED; ++rated) {
    m->product[rated] = 0;
    for (int i = device ? 3 : 0; i < (device ? 4 : of->quick ? 1 : 3); ++i) {
      ts_product_shape square = {sizes[i], sizes[i], sizes[i], false, false};
      ts_dtype dtype = rated == TS_RATED_FP32 ? TS_F32 : of->low;
      ts_measure_begin(of->world);
      double rate = ts_product_flops(of->backend, &square, dtype, of->threads, of->quick ? 0 : 0.3, false);
      m->product[rated] = fmax(m->product[rated], rate);
    }
  }
  ts_measure_begin(of->world);
  double host = host_copy_rate(of->threads);
  ts_measure_begin(of->world);
  m->copy = device ? ts_copy_rate(of->backend, (size_t) 1 << 30) : host;
  m->host = device ? host : 0;
  m->slowdown = fmax(m->slowdown, 1);
}

static void measure_product(const ts_measuring *of, ts_dtype dtype, const ts_product_shape *shape, ts_measured *m) {
  ts_work work = {.flops = 2.0 * (double) shape->m * (double) shape->n * (double) shape->k,
                  .bytes = (double) (shape->m * shape->k + shape->k * shape->n + shape->m * shape->n) *
                           (double) ts_dtype_size(dtype),
                  .extent = {(double) shape->m, (double) shape->n, (double) shape->k}};
  const char *type = ts_dtype_name(dtype);
  snprintf(work.kind, sizeof work.kind, "%s.%c%c %s>%s", ts_op_get(TS_OP_MATMUL)->name, shape->transpose_a ? 't' : 'n',
           shape->transpose_b ? 't' : 'n', type, type);
  ts_measure_begin(of->world);
  ts_measured_add(m, &work, work.flops / ts_product_flops(of->backend, shape, dtype, of->threads, 0.03, true));
}

void ts_measure_products(const ts_measuring *of, ts_measured *m) {
  static const int64_t extents[] = {64, 512, 2048};
  static const struct { bool a, b; } turned[] = {{false, false}, {true, false}, {false, true}};
  const int n = of->quick ? 2 : 3, rounds = of->quick ? 1 : 2; /* the faster one: each is short, and may be disturbed */
  for (int k = 0; k < rounds * n * n * n; ++k) {
    const int i = k % (n * n * n);
    for (int form = 0; form < 3; ++form) {
      ts_product_shape shape = {extents[i / (n * n)], extents[i / n % n], extents[i % n], turned[form].a,
                                turned[form].b};
      measure_product(of, TS_F32, &shape, m);
      measure_product(of, of->low, &shape, m);
    }
  }
}
