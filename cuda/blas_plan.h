/** \file
 * What a plan is: between blas.cu and blas_measure.cu.  Nothing here is collective.
 */
#ifndef TS_CUDA_BLAS_PLAN_H
#define TS_CUDA_BLAS_PLAN_H

#include <cublasLt.h>

#include "cuda/blas.h"
#include "cuda/blas_choice.h"
#include "cuda/device.h"

enum { TS_BLAS_CANDIDATES = 8 /**< Asked of the heuristic. */ };

struct ts_blas {
  ts_blas_spec spec;            /**< Complete: no leading dimension is 0. */
  cublasLtMatmulDesc_t product; /**< Owned; NULL: made without a device. */
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t aligned, unaligned;
  bool runs_unaligned; /**< There is such an algorithm. */
  bool leaves_prior;   /**< `aligned` was seen to leave the prior alone when beta is 0. */
};

/** A call of cuBLASLt that must succeed (class b). */
#define TS_BLAS(call) ts_blas_check((call), __FILE__, __LINE__, #call)

/** End the job unless \a code is success, with device, op and call. Not collective. */
void ts_blas_check(cublasStatus_t code, const char *file, int line, const char *call);

/** The heuristic's algorithms for operands that are aligned to TS_BLAS_ALIGN, or only to their elements, best first by
 * its estimate, all of them usable.
 * \return how many, at most \a wanted. Not collective. */
int ts_blas_candidates(const ts_blas *blas, bool aligned, cublasLtMatmulHeuristicResult_t *result, int wanted);

/** ts_blas_run by a given algorithm; _try gives back what cuBLASLt says to it. Not collective. */
cublasStatus_t ts_blas_try_algorithm(const ts_blas *blas, const ts_blas_operands *operands,
                                     const cublasLtMatmulAlgo_t *algo, cudaStream_t stream);
void ts_blas_run_algorithm(const ts_blas *blas, const ts_blas_operands *operands, const cublasLtMatmulAlgo_t *algo,
                           cudaStream_t stream);

/** 1 or 0 on the device. Not collective. */
const float *ts_blas_constant(bool one);

/** While ts_cuda_choices_measure runs: measure the candidates of a plan that the table lacks and enter the fastest;
 * else nothing. Not collective. */
void ts_blas_measure(const ts_blas *blas);

#endif
