/** \file
 * Chosen algorithms of products, a table of this process: measured by one rank of a kind of device, sent to the others
 * as text, kept in the run directory, read on resume.  What is not in it is left to cuBLASLt's heuristic.  The table
 * lives from ts_cuda_open to ts_cuda_close; plans (prepare) look into it when they are made.
 *
 * The text: three lines of head, then a line a product, in the order of entry; every field is checked when it is read
 * and every algorithm again by the library when a plan takes it.
 *
 *   tessera algorithms 1
 *   device NVIDIA H200
 *   cublaslt 130100
 *   m=8192 n=4096 k=4096 lda=4096 ldb=4096 ldc=4096 a=n b=t in=bf16 out=bf16 prior=0
 *   epilogue=0 tf32=0 algo=(128 hexadecimal digits)      (in one line)
 *
 * Private to cuda/ but for the three functions ts_cuda_choices_..., which the engine calls.  Nothing here is
 * collective.
 */
#ifndef TS_CUDA_BLAS_CHOICE_H
#define TS_CUDA_BLAS_CHOICE_H

#include "cuda/blas.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"
#include "graph/graph.h"

enum {
  TS_BLAS_ALGO_BYTES = 64,
  TS_BLAS_SPEC_TEXT = 256,    /**< Room for a specification as text. */
  TS_BLAS_MOST_CHOICES = 4096 /**< Of a file. */
};

/** The table as text; owned by the caller (ts_free).  A table without entries is the head alone. Not collective. */
char *ts_cuda_choices_write(void);

/** Add the entries of a text to the table; needs an open device.  All or nothing.
 * \return TS_BAD_INPUT with the reason: not such a file, another device or version of the library (then it is of no use
 * and the caller says so and goes on), a damaged line (with its number), a product twice. Not collective. */
ts_status ts_cuda_choices_read(const char *text, ts_error *err);

/** Measure the candidates of every product of a graph (MATMUL, the head, MLPs in tiles) that the table lacks, on the
 * compute stream, and enter the fastest: seconds.  Needs an open device and takes memory for one product at a time, so
 * it comes before the arena; a product that does not fit is left to the heuristic, with a warning. Not collective. */
void ts_cuda_choices_measure(const ts_graph *graph);

/** A complete specification as text into \a text of TS_BLAS_SPEC_TEXT bytes; returns it. Not collective. */
char *ts_blas_spec_text(const ts_blas_spec *spec, char *text);

/** The algorithm of a complete specification, TS_BLAS_ALGO_BYTES bytes, borrowed until the table changes; NULL: none.
 * Not collective. */
const unsigned char *ts_blas_choices_find(const ts_blas_spec *spec);

/** Enter one that the table lacks. Not collective. */
void ts_blas_choices_put(const ts_blas_spec *spec, const void *algo);

/** Take one out that turned out to be of no use; nothing when it is not there. Not collective. */
void ts_blas_choices_drop(const ts_blas_spec *spec);

/** Empty the table. Not collective. */
void ts_blas_choices_clear(void);

#ifdef __cplusplus
}
#endif
#endif
