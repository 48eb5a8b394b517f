/** \file
 * Matrix products by cuBLASLt: a specification becomes a plan (descriptors and an algorithm), and a plan is run on a
 * stream.  What matmul.cu and head.cu are made of.  Private to cuda/.  Nothing here is collective.
 *
 * Ours is row-major and cuBLASLt's order is column-major, so that c = a b is asked for as c^T = b^T a^T: nothing is
 * moved, and its bias, one value a row of its D, is one value a column of c.
 *
 * Algorithms.  A plan takes the one that the table of choices has for its specification (blas_choice.h), else the first
 * of the heuristic's; never by timing unless ts_cuda_choices_measure asks for it.  Partial sums of split K are kept in
 * fp32 and added by a second kernel: reduction schemes that round them to the output, or add in place, are not asked
 * for.  One algorithm on one type of device gives the same bits every time.
 */
#ifndef TS_CUDA_BLAS_H
#define TS_CUDA_BLAS_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "graph/graph.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Bytes of workspace that cuBLASLt is given: what NVIDIA recommends for this generation (cuBLAS's own default on
 * sm_90).  A constant, so that a plan for memory needs no device, and so large that no useful split of K is turned
 * down: 4 partial sums of 1024 x 2048 fit.  It is planned scratch, shared by all products of the stream. */
#ifndef TS_BLAS_LIBRARY_WORKSPACE
#define TS_BLAS_LIBRARY_WORKSPACE ((size_t) 32 << 20)
#endif

/** What is planned for it: cuBLASLt wants its workspace at a multiple of 256 bytes, and plans promise 64. */
#define TS_BLAS_WORKSPACE (TS_BLAS_LIBRARY_WORKSPACE + 256)

/** Operands aligned to this get the plan's algorithm; others an own, slower one. */
#define TS_BLAS_ALIGN 16

typedef enum ts_blas_prior {
  TS_BLAS_NO_PRIOR,     /**< c = a b */
  TS_BLAS_PRIOR,        /**< c = prior + a b */
  TS_BLAS_SCALED_PRIOR, /**< c = beta prior + a b, beta on the device */
  TS_BLAS_N_PRIORS
} ts_blas_prior;

/** How the product that computes \a output of \a node treats its prior. Not collective. */
static inline ts_blas_prior ts_blas_prior_of(const ts_node *node, int output) {
  bool adds = node->prior != NULL && node->prior[output] != TS_NONE;
  return !adds ? TS_BLAS_NO_PRIOR : node->beta == TS_NONE ? TS_BLAS_PRIOR : TS_BLAS_SCALED_PRIOR;
}

/** What follows the product.  The last two want 16 bits and n divisible by 8. */
typedef enum ts_blas_epilogue {
  TS_BLAS_PLAIN,
  TS_BLAS_BIAS,  /**< + bias[n] */
  TS_BLAS_GELU,  /**< aux = a b + bias, c = gelu (aux); without rounding in between */
  TS_BLAS_DGELU, /**< c = (a b) gelu' (aux) */
  TS_BLAS_N_EPILOGUES
} ts_blas_epilogue;

/** c [m][n] = a [m][k] b [k][n], all of them positive.  Leading dimensions in elements between rows as stored: a is
 * stored [k][m] when transpose_a, b [n][k] when transpose_b; 0 stands for dense. */
typedef struct ts_blas_spec {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transpose_a, transpose_b;
  ts_dtype in, out; /**< fp32 to fp32, bf16 or fp16 to itself or fp32.  bias has the type of c, aux too. */
  ts_blas_prior prior;
  ts_blas_epilogue epilogue;
  bool tf32; /**< Set by ts_blas_create, as the process was opened. */
} ts_blas_spec;

/** One run's operands, all on the device; those the specification does not have are ignored. */
typedef struct ts_blas_operands {
  const void *a, *b;
  void *c;
  void *bias;        /**< Read. */
  void *aux;         /**< [m][n] dense: written by GELU, read by DGELU. */
  const void *prior; /**< c itself, or a buffer laid out like c that does not overlap it. */
  const float *beta; /**< For SCALED_PRIOR.  At 0 the prior is not used: see blas.cu. */
  void *workspace;   /**< TS_BLAS_WORKSPACE bytes, 64-byte aligned. */
} ts_blas_operands;

typedef struct ts_blas ts_blas;

/** Make a plan.  Without an open device it has no algorithm and cannot be run: for planning memory.  A product that
 * cuBLASLt does not have ends the job with its specification.  End with ts_blas_destroy. Not collective. */
ts_blas *ts_blas_create(const ts_blas_spec *spec);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_blas_destroy(ts_blas **blas);

/** Run it; asynchronous on \a stream, may be captured.  The plan must outlive the work. Not collective. */
void ts_blas_run(const ts_blas *blas, const ts_blas_operands *operands, cudaStream_t stream);

/** c [m][n] = wide + bias[n] + beta prior, rounded once: what finishes a product that cuBLASLt cannot.
 * \param [in] wide   fp32 [m][n], may be c itself; NULL for 0.
 * \param [in] bias   In the type \a bias_dtype; NULL for none.
 * \param [in] prior  Like c; NULL for none.
 * \param [in] beta   On the device; NULL for 1.
 * All dense.  Bytes: 4 m n + those of c, twice with a prior.  Asynchronous on \a stream. Not collective. */
void ts_blas_finish(void *c, ts_dtype dtype, const float *wide, const void *bias, ts_dtype bias_dtype,
                    const void *prior, const float *beta, int64_t m, int64_t n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
