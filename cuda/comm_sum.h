/** \file
 * The arithmetic of reductions on a device: as comm/comm_sum.h defines it, to the bit.  All functions queue their work
 * and return.  Private to cuda/ and comm's device files.  Nothing here is collective.
 */
#ifndef TS_CUDA_COMM_SUM_H
#define TS_CUDA_COMM_SUM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/dtype.h"

/** Runs that one launch takes. */
enum { TS_CUDA_RUNS = 32 };

/** Elements to copy; nothing overlaps. */
typedef struct ts_cuda_copy_run {
  void *to;
  const void *from;
  int64_t count;
} ts_cuda_copy_run;

/** Elements to sum. */
typedef struct ts_cuda_sum_run {
  void *y;           /**< May be \a own where the dtypes are the same; overlaps nothing else. */
  const void *own;   /**< This rank's contribution. */
  const void *slots; /**< The others', in rank order, each in the wire dtype; NULL in a group of 1. */
  int64_t count;
} ts_cuda_sum_run;

/** What is the same for all runs of a sum. */
typedef struct ts_cuda_reduction {
  ts_dtype own, wire, y; /**< F32, BF16 or F16 each. */
  int rank, size;        /**< Place of this rank's contribution in the order; contributions. */
  int64_t stride;        /**< Bytes from one slot to the next. */
  const float *beta;     /**< In the device's memory; NULL: y is overwritten; *beta == 0: and not read. */
  float divisor;         /**< Own is divided by it, and the sum multiplied. */
} ts_cuda_reduction;

/** Copy \a n runs, divided by \a divisor, converting: F32, BF16 and F16 any way.
 * Cost: one read and one write of every element. Asynchronous on \a stream. Not collective. */
void ts_cuda_copy_runs(const ts_cuda_copy_run *run, int n, ts_dtype to, ts_dtype from, float divisor, void *stream);

/** y = the contributions in rank order, each rounded to the wire dtype, in fp32; with beta *beta y + that sum; rounded
 * once. Cost: one read of every contribution, one write of y, a read with beta. Asynchronous on \a stream. Not
 * collective. */
void ts_cuda_sum_runs(const ts_cuda_reduction *sum, const ts_cuda_sum_run *run, int n, void *stream);

#ifdef __cplusplus
}
#endif
#endif
