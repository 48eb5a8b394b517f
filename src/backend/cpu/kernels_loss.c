/* Losses of rows against soft labels, and of elements. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"

#include <math.h>

/* ---- softmax (t / T) against softmax (z / T) ---- */

typedef struct soft_rows {
  ts_source z, t;
  int64_t rows, columns;
  float inverse; /* 1 / T */
} soft_rows;

static soft_rows soft_rows_of(const ts_kernel_call *call, int z) {
  const ts_shape *shape = &ts_call_in(call, z)->shape;
  return (soft_rows){ts_source_of(call, z), ts_source_of(call, z + 1), ts_shape_rows(shape), shape->d[shape->n - 1],
                     1.0f / call->node->attr.soft.temperature};
}

static float row_max(const soft_rows *s, const ts_source *x, int64_t row) {
  ts_lanes lane;
  for (int l = 0; l < TS_LANES; ++l) {
    lane[l] = -INFINITY;
  }
  for (int64_t at = 0; at < s->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, s->columns - at);
    ts_tile buffer;
    const float *from = ts_source_read(x, row * s->columns + at, n, buffer);
    for (int64_t i = 0; i < n; i += TS_LANES) {
      int64_t m = ts_min(TS_LANES, n - i);
#pragma omp simd
      for (int64_t l = 0; l < m; ++l) {
        lane[l] = lane[l] > from[i + l] ? lane[l] : from[i + l];
      }
    }
  }
  float most = lane[0];
  for (int l = 1; l < TS_LANES; ++l) {
    most = most > lane[l] ? most : lane[l];
  }
  return most * s->inverse;
}

/* x / T - most, and exp of that. */
static void read_shifted(const soft_rows *s, const ts_source *x, int64_t element, int64_t n, float most, float *shifted,
                         float *power) {
  ts_tile buffer;
  const float *from = ts_source_read(x, element, n, buffer);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    shifted[i] = from[i] * s->inverse - most;
    power[i] = ts_expf(shifted[i]);
  }
}

/* With q = softmax (t / T): - sum q log softmax (z / T) = lse_z - sum q z / T. */
static float soft_row(const soft_rows *s, int64_t row, float *lse_z, float *lse_t) {
  float most_z = row_max(s, &s->z, row), most_t = row_max(s, &s->t, row);
  ts_lanes sum_z = {0}, sum_t = {0}, product = {0};
  for (int64_t at = 0; at < s->columns; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, s->columns - at), element = row * s->columns + at;
    ts_tile z, power_z, t, power_t;
    read_shifted(s, &s->z, element, n, most_z, z, power_z);
    read_shifted(s, &s->t, element, n, most_t, t, power_t);
    ts_lanes_add(sum_z, power_z, n);
    ts_lanes_add(sum_t, power_t, n);
    ts_lanes_add_product(product, power_t, z, n);
  }
  float all_z = ts_lanes_sum(sum_z), all_t = ts_lanes_sum(sum_t);
  *lse_z = most_z + logf(all_z);
  *lse_t = most_t + logf(all_t);
  return logf(all_z) - ts_lanes_sum(product) / all_t;
}

static void soft_loss_run(const ts_kernel_call *call) {
  soft_rows s = soft_rows_of(call, 0);
  float *loss = call->out[0], *lse_z = call->out[1], *lse_t = call->out[2];
  float temperature = call->node->attr.soft.temperature;
#pragma omp parallel for num_threads(ts_call_threads(call, s.rows)) schedule(static)
  for (int64_t row = 0; row < s.rows; ++row) {
    loss[row] = temperature * temperature * soft_row(&s, row, &lse_z[row], &lse_t[row]);
  }
}
TS_CPU_KERNEL(soft_loss) = {.run = soft_loss_run};

static void soft_loss_dx_run(const ts_kernel_call *call) {
  soft_rows s = soft_rows_of(call, 1);
  ts_sink dz = ts_sink_of(call, 0);
  const float *dy = call->in[0], *lse_z = call->in[3], *lse_t = call->in[4];
#pragma omp parallel for num_threads(ts_call_threads(call, s.rows)) schedule(static)
  for (int64_t row = 0; row < s.rows; ++row) {
    float by = dy[row] * call->node->attr.soft.temperature;
    for (int64_t at = 0; at < s.columns; at += TS_TILE) {
      int64_t n = ts_min(TS_TILE, s.columns - at), element = row * s.columns + at;
      ts_tile shifted, power_z, power_t, buffer;
      read_shifted(&s, &s.z, element, n, lse_z[row], shifted, power_z);
      read_shifted(&s, &s.t, element, n, lse_t[row], shifted, power_t);
      float *to = ts_sink_open(&dz, element, buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        to[i] = by * (power_z[i] - power_t[i]);
      }
      ts_sink_write(&dz, element, n, to);
    }
  }
}
TS_CPU_KERNEL(soft_loss_dx) = {.run = soft_loss_dx_run};

/* ---- sums of elements, in fp64 by tiles, which are added in order ---- */

/* The sums of a tile: of x mask, and of mask. */
static void sum_tile(const float *x, const int32_t *mask, int64_t n, double *sum, double *count) {
  *sum = *count = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t by = mask != NULL ? mask[i] : 1;
    *sum += by != 0 ? (double) by * (double) x[i] : 0;
    *count += by;
  }
}

static size_t loss_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) target, (void) prepared;
  return ts_cpu_align((size_t) (2 * ts_pieces(ts_tensor_count(graph, node->in[0]), TS_TILE)) * sizeof(double));
}

static void loss_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0);
  const int32_t *mask = call->node->n_in > 1 ? call->in[1] : NULL;
  int64_t count = ts_shape_count(&ts_call_in(call, 0)->shape), tiles = ts_pieces(count, TS_TILE);
  double *sum = call->workspace, *valid = sum + tiles, *to[] = {call->out[0], call->out[1]};
#pragma omp parallel for num_threads(ts_call_threads(call, tiles)) schedule(static)
  for (int64_t tile = 0; tile < tiles; ++tile) {
    int64_t at = tile * TS_TILE, n = ts_min(TS_TILE, count - at);
    ts_tile buffer;
    sum_tile(ts_source_read(&x, at, n, buffer), mask != NULL ? mask + at : NULL, n, &sum[tile], &valid[tile]);
  }
  *to[0] = *to[1] = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    *to[0] += sum[tile];
    *to[1] += valid[tile];
  }
}
TS_CPU_KERNEL(loss) = {.prepare = loss_prepare, .run = loss_run};

static void loss_dx_run(const ts_kernel_call *call) {
  ts_sink dx = ts_sink_of(call, 0);
  float seed = *(const float *) call->in[0];
  const int32_t *mask = call->node->n_in > 1 ? call->in[1] : NULL;
  int64_t count = ts_call_count(call, 0);
#pragma omp parallel for num_threads(ts_call_threads(call, ts_pieces(count, TS_TILE))) schedule(static)
  for (int64_t at = 0; at < count; at += TS_TILE) {
    int64_t n = ts_min(TS_TILE, count - at);
    ts_tile buffer;
    float *to = ts_sink_open(&dx, at, buffer);
    for (int64_t i = 0; i < n; ++i) {
      to[i] = mask != NULL ? seed * (float) mask[at + i] : seed;
    }
    ts_sink_write(&dx, at, n, to);
  }
}
TS_CPU_KERNEL(loss_dx) = {.run = loss_dx_run};
