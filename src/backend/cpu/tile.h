/** \file
 * Kernels compute in fp32 on tiles: at most TS_TILE consecutive elements, which stay in the first-level cache.  A
 * source widens a tile of any float type, a sink rounds it once; an fp32 tensor is read and written where it lies.
 * So a kernel is written once for all types.  Included by kernels_*.c only.  Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_TILE_H
#define TS_BACKEND_CPU_TILE_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/vector.h"

/** Elements of a tile. */
#define TS_TILE 1024

/** Space for a tile.  Aligned: a vector of 64 bytes that straddles lines costs twice. */
typedef float ts_tile[TS_TILE] __attribute__((aligned(64)));

/** An input of a call. */
typedef struct ts_source {
  const void *data;
  ts_dtype dtype;
} ts_source;

/** An output of a call: what is written is beta * prior + value. */
typedef struct ts_sink {
  void *data;
  ts_dtype dtype;
  const void *prior; /**< NULL: none, beta is not used. */
  float beta;
} ts_sink;

/** The smaller. Not collective. */
static inline int64_t ts_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/** The larger. Not collective. */
static inline int64_t ts_max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/** Number of pieces of \a size that cover \a count. Not collective. */
static inline int64_t ts_pieces(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

/** Threads for \a pieces independent pieces of work. Not collective. */
static inline int ts_call_threads(const ts_kernel_call *call, int64_t pieces) {
  return (int) (pieces < call->threads ? (pieces < 1 ? 1 : pieces) : call->threads);
}

/** Elements of output \a i. Not collective. */
static inline int64_t ts_call_count(const ts_kernel_call *call, int i) {
  return ts_shape_count(&ts_call_out(call, i)->shape);
}

/** The same of those that are there at run time (ts_node_extent). Not collective. */
static inline int64_t ts_call_written(const ts_kernel_call *call, int i) {
  int at = ts_node_extent(call->node);
  const ts_shape *shape = &ts_call_out(call, i)->shape;
  if (at < 0) {
    return ts_shape_count(shape);
  }
  const int32_t *first = (const int32_t *) call->in[at];
  return first[ts_call_in(call, at)->shape.d[0] - 1] * shape->d[shape->n - 1];
}

/** Last dimension of input \a i. Not collective. */
static inline int64_t ts_call_columns(const ts_kernel_call *call, int i) {
  const ts_shape *shape = &ts_call_in(call, i)->shape;
  return shape->d[shape->n - 1];
}

/** Input \a i of a call. Not collective. */
static inline ts_source ts_source_of(const ts_kernel_call *call, int i) {
  return (ts_source){call->in[i], ts_call_in(call, i)->dtype};
}

/** Output \a i of a call with its prior; a prior times zero is no prior. Not collective. */
static inline ts_sink ts_sink_of(const ts_kernel_call *call, int i) {
  float beta = call->beta == NULL ? 1.0f : *call->beta;
  const void *prior = call->prior == NULL || beta == 0.0f ? NULL : call->prior[i];
  return (ts_sink){call->out[i], ts_call_out(call, i)->dtype, prior, beta};
}

/** The part of a sink from element \a first on. Not collective. */
static inline ts_sink ts_sink_from(ts_sink y, int64_t first) {
  size_t bytes = (size_t) first * ts_dtype_size(y.dtype);
  y.data = (char *) y.data + bytes;
  y.prior = y.prior == NULL ? NULL : (const char *) y.prior + bytes;
  return y;
}

/** Elements [at, at + n) of a source, n <= TS_TILE. Not collective.
 * \param [out] buffer  Space for n floats, used unless the source is fp32.
 * \return the values: buffer, or the tensor itself. */
static inline const float *ts_source_read(const ts_source *x, int64_t at, int64_t n, float *buffer) {
  if (x->dtype == TS_F32) {
    return (const float *) x->data + at;
  }
  const char *from = (const char *) x->data + (size_t) at * ts_dtype_size(x->dtype);
  if (x->dtype == TS_F64) {
    ts_convert(buffer, TS_F32, from, x->dtype, (size_t) n);
  } else {
    ts_widen_any(buffer, from, x->dtype, n);
  }
  return buffer;
}

/** Where to compute the values of a tile that is then given to ts_sink_write: the tensor itself, or \a buffer.
 * Not collective. */
static inline float *ts_sink_open(const ts_sink *y, int64_t at, float *buffer) {
  return y->dtype == TS_F32 && y->prior == NULL ? (float *) y->data + at : buffer;
}

/** Write elements [at, at + n), n <= TS_TILE. Not collective. */
static inline void ts_sink_write(const ts_sink *y, int64_t at, int64_t n, const float *values) {
  ts_tile sum;
  if (y->prior != NULL) {
    ts_tile buffer;
    const ts_source source = {y->prior, y->dtype};
    const float *prior = ts_source_read(&source, at, n, buffer);
    float *to = y->dtype == TS_F32 ? (float *) y->data + at : sum;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      to[i] = y->beta * prior[i] + values[i];
    }
    values = to;
  }
  if (y->dtype == TS_F32) {
    if (values != (float *) y->data + at) {
      memcpy((float *) y->data + at, values, (size_t) n * sizeof(float));
    }
    return;
  }
  char *to = (char *) y->data + (size_t) at * ts_dtype_size(y->dtype);
  if (y->dtype == TS_F64) {
    ts_convert(to, y->dtype, values, TS_F32, (size_t) n);
  } else {
    ts_narrow_any(to, y->dtype, values, n);
  }
}

#endif
