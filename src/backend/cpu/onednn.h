/** \file
 * One matrix product of fixed shape as a oneDNN matmul primitive: chosen once, its code written when it first runs,
 * executed with pointers only.  And the plain fp32 product, by one thread.
 *
 * The scratchpad of a primitive is the caller's.  Its sums are a function of shape and instruction set alone where
 * ts_onednn_tiles is false (ts_onednn_split_k says where K must be cut for that); elsewhere callers use one thread and
 * fixed tiles.
 *
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_ONEDNN_H
#define TS_BACKEND_CPU_ONEDNN_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** What a product does with an addend besides the bias. */
typedef enum ts_addend {
  TS_ADDEND_NONE,  /**< c = a b */
  TS_ADDEND_C,     /**< c = a b + c */
  TS_ADDEND_PRIOR, /**< c = a b + prior, another buffer laid out like c */
  TS_N_ADDENDS
} ts_addend;

/** c [m][n] = a [m][k] b [k][n] (+ bias [n]) (+ addend).  Leading dimensions in elements between rows as stored:
 * a is stored [k][m] when transpose_a, b [n][k] when transpose_b. */
typedef struct ts_product_spec {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transpose_a, transpose_b, bias; /**< The bias has the type of the inputs. */
  ts_dtype in, out;                    /**< F32 or BF16 */
  ts_addend addend;
  int threads; /**< OpenMP threads that will execute it; 1 to run it inside a parallel region. */
} ts_product_spec;

typedef struct ts_product ts_product;

/** Choose the primitive.  Products of the same specification share it and its code as a rule, and some hundred are kept
 * for later ones.  May be called by several threads.
 * \return owned by the caller (ts_product_destroy); NULL where oneDNN has no such product on this processor. Not
 * collective. */
ts_product *ts_product_create(const ts_product_spec *spec);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_product_destroy(ts_product **product);

/** Bytes of scratch ts_product_run needs, 64-byte aligned; 0 for NULL. Not collective. */
size_t ts_product_scratch(const ts_product *product);

/** Execute, synchronously.  c overlaps no operand.  One caller at a time per product; different products may run at the
 * same time. \a bias and \a prior are read only where the specification has them. Not collective. */
void ts_product_run(ts_product *product, const void *a, const void *b, void *c, const void *bias, const void *prior,
                    void *scratch);

/** c [m][n] = a [m][k] b [k][n], or added to c: oneDNN's plain fp32 product, leading dimensions as above. */
typedef struct ts_sgemm {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool transpose_a, transpose_b, adds;
} ts_sgemm;

/** Execute by the calling thread alone, synchronously, in a parallel region or not: bits depend on the shape and the
 * instruction set.  c overlaps no operand.  Memory into which operands are copied is oneDNN's. Not collective. */
void ts_sgemm_run(const ts_sgemm *product, const float *a, const float *b, float *c);

/** True where a product is made in fixed tiles by single threads (ts_sgemm_run).  In fp32 that is quicker where no
 * matrix is turned and b has a million elements, or 65536 and c 262144; without AVX-512, and where rows are not dense
 * and the result is small, sums of oneDNN's primitives depend on the number of threads.  Of bf16 it has none, or none
 * that is faster (ts_onednn_has_bf16); sums of those whose rows are not dense depend on threads likewise, and in
 * oneDNN 3 all of them.  Of fp16 it has none, or none without AVX512_FP16.  The addend and threads are not read.
 * Not collective. */
bool ts_onednn_tiles(const ts_product_spec *spec);

/** The length of the blocks K is cut into so that the sums do not depend on the number of threads; K itself where no
 * cut is needed.  Measured with 1 to 192 threads: oneDNN adds up slices of K >= 2048 in parallel when a is transposed
 * or rows are not dense.  The addend and threads are not read. Not collective. */
int64_t ts_onednn_split_k(const ts_product_spec *spec);

/** Keep oneDNN below an instruction set ("generic", "v3"; "v4" has no effect); called before anything else here. Not
 * collective. */
void ts_onednn_limit(const char *isa);

/** True where oneDNN's bf16 products are instructions that outrun fp32's: AMX, or fast AVX512_BF16. Not collective. */
bool ts_onednn_has_bf16(void);

/** "2.6.3, avx512_core_bf16": a constant string after the first call. Not collective. */
const char *ts_onednn_describe(void);

#endif
