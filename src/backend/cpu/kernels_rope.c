/* Rotary positions (Su et al. 2021; halves of a head as in Hugging Face).  Angles are fp64: fp32 loses them at long
 * positions.  The sines of a row cost about as much as rotating three heads. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/tile.h"

#include "base/memory.h"
#include "base/status.h"

#include <math.h>

/* Llama 3's interpolation: long wavelengths are stretched by factor, short ones kept, the band between blended. */
static double llama3_frequency(const ts_attr *attr, double frequency) {
  double turns = attr->rope.original_max_position * frequency / (2 * M_PI); /* of the original context */
  double low = attr->rope.low_freq_factor, high = attr->rope.high_freq_factor;
  double kept = turns < low ? 0 : turns > high ? 1 : (turns - low) / (high - low);
  return frequency * (kept + (1 - kept) / attr->rope.factor);
}

static size_t rope_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) target, (void) graph;
  const ts_attr *attr = &node->attr;
  int half = attr->rope.head_dim / 2;
  if (prepared == NULL) {
    return 0;
  }
  double *frequency = ts_malloc((size_t) half * sizeof *frequency);
  for (int i = 0; i < half; ++i) {
    double plain = pow(attr->rope.theta, -2.0 * i / attr->rope.head_dim);
    frequency[i] = attr->rope.scaling == TS_ROPE_LLAMA3   ? llama3_frequency(attr, plain)
                   : attr->rope.scaling == TS_ROPE_LINEAR ? plain / attr->rope.factor
                                                          : plain;
  }
  *prepared = frequency;
  return 0;
}

static void row_angles(float *sine, float *cosine, const double *frequency, int half, int32_t position, double sign) {
#pragma omp simd
  for (int i = 0; i < half; ++i) {
    double s, c;
    ts_sincos(position * frequency[i], &s, &c);
    sine[i] = (float) (sign * s);
    cosine[i] = (float) c;
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
  int head = call->node->attr.rope.head_dim;
  TS_ASSERT(head <= TS_TILE);
  int64_t width = TS_TILE / head * head;
#pragma omp parallel for num_threads(ts_call_threads(call, rows)) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    ts_tile sine, cosine, in_buffer, out_buffer;
    row_angles(sine, cosine, call->prepared, head / 2, position[row], call->node->attr.rope.inverse ? -1.0 : 1.0);
    for (int64_t first = 0; first < columns; first += width) {
      int64_t n = ts_min(width, columns - first), at = row * columns + first;
      const float *from = ts_source_read(&x, at, n, in_buffer);
      float *to = ts_sink_open(&y, at, out_buffer);
      for (int64_t i = 0; i < n; i += head) {
        rotate(to + i, from + i, sine, cosine, head / 2);
      }
      ts_sink_write(&y, at, n, to);
    }
  }
}
TS_CPU_KERNEL(rope) = {.prepare = rope_prepare, .run = rope_run, .release = ts_free};
