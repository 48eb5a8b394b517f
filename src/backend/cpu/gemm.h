/** \file
 * Matrix products of any accepted types on any processor, with results that do not depend on the number of threads:
 * what MATMUL and the head are made of.  Chooses between four ways, from shape, types and processor alone:
 *  - vector: a single row of a, by loops that read b once, as fast as memory gives it (a generated token, or
 *            whatever else is one row);
 *  - direct: one oneDNN primitive (onednn.h), or a chain of them over fixed blocks of a long K;
 *  - wide:   the same into an fp32 buffer in the workspace, finished into the output, where a chain would round its
 *            partial sums or oneDNN has no such output type;
 *  - tiles:  fixed tiles of the result, each by one thread, with oneDNN's plain fp32 product on the operands where they
 *            lie, on copies that tiles share, or on what is copied of them (fp16, and bf16 where processors have no
 *            faster instructions, widened; fp32 that a vocabulary's gradient turns).  Of a small result a long K is cut
 *            into slices, whose sums are added up in order.
 *
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_GEMM_H
#define TS_BACKEND_CPU_GEMM_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** c [m][n] = a [m][k] b [k][n] (+ bias [n]) (+ beta prior).  Leading dimensions in elements between rows as stored:
 * a is stored [k][m] when transpose_a, b [n][k] when transpose_b; 0 stands for dense. */
typedef struct ts_gemm_spec {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transpose_a, transpose_b;
  bool bias;        /**< In the type of the inputs. */
  bool adds;        /**< May be run with a prior. */
  ts_dtype in, out; /**< F32, BF16 or F16 */
  int threads;      /**< OpenMP threads that run it. */
} ts_gemm_spec;

typedef struct ts_gemm ts_gemm;

/** Choose a way and its primitives.  End with ts_gemm_destroy. Not collective. */
ts_gemm *ts_gemm_create(const ts_gemm_spec *spec);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_gemm_destroy(ts_gemm **gemm);

/** Of an fp32 result of so many rows and columns that is made in tiles, with K in one piece, their number: as many
 * threads can be busy. Not collective. */
int64_t ts_gemm_tiles(int64_t m, int64_t n);

/** Bytes of workspace of ts_gemm_run. Not collective. */
size_t ts_gemm_workspace(const ts_gemm *gemm);

/** Compute, synchronously, with the threads of the specification, from outside any parallel region.
 * \param [in] prior  NULL, or c itself, or a buffer laid out like c that does not overlap it.
 * \param [in] beta   Factor of the prior; at 0 the prior is not read.
 * \param [in] workspace  64-byte aligned, ts_gemm_workspace bytes.
 * One rounding to the output type, except for a bf16 prior with beta neither 0 nor 1 in the direct way (two). Not
 * collective. */
void ts_gemm_run(ts_gemm *gemm, const void *a, const void *b, void *c, const void *bias, const void *prior, float beta,
                 void *workspace);

#endif
