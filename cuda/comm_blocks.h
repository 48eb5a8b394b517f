/** \file
 * Blocks of tensors that ranks exchange, on a device: packing them, unpacking them, adding them.  All functions queue
 * their work and return; lists are read before that.  Private to cuda/ and comm's device files.  Nothing here is
 * collective.
 */
#ifndef TS_CUDA_COMM_BLOCKS_H
#define TS_CUDA_COMM_BLOCKS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/deal.h"
#include "base/dtype.h"

/** Blocks that one launch takes. */
enum { TS_CUDA_BLOCKS = 32 };

/** Rows that lie apart. */
typedef struct ts_cuda_slab {
  void *data;
  int64_t row, batch; /**< Bytes from one row to the next, and from a batch's first to the next batch's. */
} ts_cuda_slab;

/** A block to copy; nothing overlaps. */
typedef struct ts_cuda_block_copy {
  ts_cuda_slab to, from;
  int64_t batches, rows, width; /**< width: bytes of a row. */
} ts_cuda_block_copy;

/** Copy \a n blocks.
 * Cost: one read and one write of every byte. Asynchronous on \a stream. Not collective. */
void ts_cuda_copy_blocks(const ts_cuda_block_copy *block, int n, void *stream);

/** What is added to some rows and columns of a tensor. */
typedef struct ts_cuda_part {
  ts_cuda_slab from; /**< Of the tensor's dtype. */
  ts_interval rows, columns;
} ts_cuda_part;

/** A tensor [batches][rows][columns] that is the sum of parts. */
typedef struct ts_cuda_total {
  void *y;
  ts_dtype dtype; /**< F32, BF16 or F16. */
  int64_t batches, rows, columns;
  ts_cuda_part *part; /**< In the device's memory, with room for all. */
  int n;              /**< Parts that were put there: 0 at first. */
  bool wide;          /**< All of them allow vectors: true at first. */
} ts_cuda_total;

/** Put \a n parts, at most TS_CUDA_BLOCKS, behind those that are there. Asynchronous on \a stream. Not collective. */
void ts_cuda_put_parts(ts_cuda_total *total, const ts_cuda_part *part, int n, void *stream);

/** y = the parts in their order, in fp32, rounded once; -0 where there is none.
 * Cost: one read of every part, one write of y. Asynchronous on \a stream. Not collective. */
void ts_cuda_sum_parts(const ts_cuda_total *total, void *stream);

#ifdef __cplusplus
}
#endif
#endif
