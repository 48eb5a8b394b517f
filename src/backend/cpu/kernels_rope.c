/* Rotary positions (Su et al. 2021; halves as in Hugging Face).  Angles are fp64: fp32 loses them at long positions.
 * The sines of a row cost about as much as rotating three heads. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"

#include "base/status.h"

static void row_angles(float *sine, float *cosine, const ts_attr *attr, int32_t position) {
  const double *frequency = attr->rope.frequency;
  double factor = attr->rope.factor, sign = attr->rope.inverse ? -factor : factor;
  int half = attr->rope.rotated / 2;
#pragma omp simd
  for (int i = 0; i < half; ++i) {
    double s, c;
    ts_sincos(position * frequency[i], &s, &c);
    sine[i] = (float) (sign * s);
    cosine[i] = (float) (factor * c);
  }
}

static void rotate(float *y, const float *x, const float *sine, const float *cosine, int half) {
#pragma omp simd
  for (int i = 0; i < half; ++i) {
    y[i] = x[i] * cosine[i] - x[half + i] * sine[i];
    y[half + i] = x[half + i] * cosine[i] + x[i] * sine[i];
  }
}

static void rope_run(const ts_kernel_call *call) {
  ts_source x = ts_source_of(call, 0);
  ts_sink y = ts_sink_of(call, 0);
  const int32_t *position = call->in[1];
  int64_t rows = ts_shape_rows(&ts_call_in(call, 0)->shape), columns = ts_call_columns(call, 0);
  const ts_attr *attr = &call->node->attr;
  int head = attr->rope.head_dim, rotated = attr->rope.rotated;
  TS_ASSERT(head <= TS_TILE);
  int64_t width = TS_TILE / head * head;
#pragma omp parallel for num_threads(ts_call_threads(call, rows)) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    ts_tile sine, cosine, in_buffer, out_buffer;
    row_angles(sine, cosine, attr, position[row]);
    for (int64_t first = 0; first < columns; first += width) {
      int64_t n = ts_min(width, columns - first), at = row * columns + first;
      const float *from = ts_source_read(&x, at, n, in_buffer);
      float *to = ts_sink_open(&y, at, out_buffer);
      for (int64_t i = 0; i < n; i += head) {
        rotate(to + i, from + i, sine, cosine, rotated / 2);
        for (int k = rotated; k < head; ++k) {
          to[i + k] = from[i + k];
        }
      }
      ts_sink_write(&y, at, n, to);
    }
  }
}
TS_CPU_KERNEL(rope) = {.run = rope_run};
