/** \file
 * Private to consolidation: where the tensors go.  Blocks arrive in the order of the tensors and of their elements,
 * from one thread.  Nothing here is collective.
 */
#ifndef IO_CONSOLIDATE_OUTPUT_H
#define IO_CONSOLIDATE_OUTPUT_H

#include "io/consolidate.h"

#include <stdio.h>

typedef struct ts_output_tensor {
  int parameter; /**< Of the checkpoint. */
  int file;
  ts_dtype dtype;
  int64_t bytes;
} ts_output_tensor;

typedef struct ts_output {
  const ts_consolidate_options *options; /**< Borrowed. */
  int n_tensors, n_files;
  ts_output_tensor *tensor; /**< Owned; in the checkpoint's order. */
  int64_t bytes;            /**< Of all tensors. */
  int current;              /**< The open file (safetensors) or tensor (HDF5), -1 for none. */
  FILE *file;               /**< safetensors */
  int64_t in_file, started; /**< Bytes written to it, and on their way to the disk. */
  int64_t hdf5, dataset;    /**< HDF5: hid_t; 0 for none. */
} ts_output;

/** Choose the tensors and cut them into files.  End with ts_output_destroy.  Not collective. */
ts_output *ts_output_create(const ts_consolidate_options *options);

/** Write a block.  Not collective.  \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_output_write(ts_output *output, int tensor, int64_t first, int64_t count, const void *data, ts_error *err);

/** Finish the last file and what lists the files; everything is on the disk then.  Not collective. */
ts_status ts_output_end(ts_output *output, ts_error *err);

/** Close what is open, free, set to NULL.  Not collective. */
void ts_output_destroy(ts_output **output);

#endif
