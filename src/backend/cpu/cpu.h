/** \file
 * What the files of the CPU backend share.
 *
 * Files named kernels_*.c are compiled once per instruction set (generic, v3, v4: the x86-64 levels) with TS_ISA set to
 * its name; every symbol they export is written TS_ISA_NAME (symbol) and so gets the suffix _generic, _v3 or _v4.  All
 * other files are compiled once, for any processor, and reach those kernels through the accessors below.
 * backend_cpu.c chooses the instruction set when the backend is first used.
 *
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_CPU_H
#define TS_BACKEND_CPU_CPU_H

#include "backend/backend.h"

#define TS_CPU_PASTE_(name, isa) name##_##isa
#define TS_CPU_PASTE(name, isa) TS_CPU_PASTE_(name, isa)
#define TS_ISA_NAME(name) TS_CPU_PASTE(name, TS_ISA)

/** Bytes to which parts of a workspace are aligned. */
#define TS_CPU_ALIGN 64

/** \a bytes rounded up to TS_CPU_ALIGN. Not collective. */
static inline size_t ts_cpu_align(size_t bytes) {
  return (bytes + TS_CPU_ALIGN - 1) / TS_CPU_ALIGN * TS_CPU_ALIGN;
}

/** Loops that files compiled once need in the best instruction set.  Sequential; types are F32, BF16 or F16. */
typedef struct ts_cpu_loops {
  /** y[i] = acc[i] + bias[i] + beta * prior[i] for \a n elements, rounded once to \a dtype, the type of y and prior. 
   * acc may be y; each of acc, bias and prior may be NULL: nothing. */
  void (*finish)(void *y, ts_dtype dtype, const float *acc, const void *bias, ts_dtype bias_dtype, const void *prior,
                 float beta, int64_t n);
  /** y[i] = x[i] in fp32. */
  void (*widen)(float *y, const void *x, ts_dtype dtype, int64_t n);
  /** y[j][i] = x[i][j] in fp32 for i < rows, j < columns; \a ldy and \a ldx elements between rows as stored. */
  void (*widen_turned)(float *y, int64_t ldy, const void *x, ts_dtype dtype, int64_t ldx, int64_t rows,
                       int64_t columns);
  /** y[j] = sum of x[i] b[i][j] over i < k, for j < n; rows of b are \a ld elements apart. */
  void (*times_rows)(float *y, const float *x, const void *b, ts_dtype dtype, int64_t ld, int64_t k, int64_t n);
  /** y[j] = sum of x[i] b[j][i] over i < k, likewise. */
  void (*times_columns)(float *y, const float *x, const void *b, ts_dtype dtype, int64_t ld, int64_t k, int64_t n);
  /** log (sum (exp (x[i]))) of \a n > 0 floats, summed in fixed blocks. */
  double (*logsumexp)(const float *x, int64_t n);
  /** x[i] = scale * x[i] and, where \a softcap > 0, softcap * tanh (scale * x[i] / softcap). */
  void (*cap)(float *x, float scale, float softcap, int64_t n);
  /** y[i] = scale * exp (x[i] - lse) and, where \a softcap > 0, that times 1 - (x[i] / softcap)^2, the slope of \a cap;
   * in \a dtype; y may be x: rows are narrowed in place. */
  void (*exp_scaled)(void *y, ts_dtype dtype, const float *x, float lse, float scale, float softcap, int64_t n);
} ts_cpu_loops;

/** Kernels of elementwise ops, norms, lookups, rope, attention, update: rows of an op, run NULL where another file has
 * it. Not collective. */
const ts_kernel *ts_cpu_kernels_generic(ts_op op);
const ts_kernel *ts_cpu_kernels_v3(ts_op op);
const ts_kernel *ts_cpu_kernels_v4(ts_op op);

/** Loops compiled for one instruction set. Not collective. */
const ts_cpu_loops *ts_cpu_loops_generic(void);
const ts_cpu_loops *ts_cpu_loops_v3(void);
const ts_cpu_loops *ts_cpu_loops_v4(void);

/** The loops of the chosen instruction set. Not collective. */
const ts_cpu_loops *ts_cpu_loops_best(void);

/** Rows of MATMUL; HEAD_LOSS, HEAD_LOSS_DX, HEAD_LOSS_TRAIN (products by oneDNN). Not collective. */
const ts_kernel *ts_cpu_matmul(ts_op op);
const ts_kernel *ts_cpu_head(ts_op op);

#endif
