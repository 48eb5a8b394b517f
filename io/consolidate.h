/** \file
 * The parameters of a checkpoint as one model: streamed from the shard files, in the order they lie there, a few MiB at
 * a time whatever the model.  One thread reads, checks and converts while another writes, and others hash every file,
 * optimizer states included: what was written counts once all of that went well.  Nothing here is collective.
 */
#ifndef IO_CONSOLIDATE_H
#define IO_CONSOLIDATE_H

#include "base/dtype.h"
#include "base/status.h"
#include "io/checkpoint.h"
#include "io/publication.h"

#define TS_CONSOLIDATED_VERSION 1 /**< Of the HDF5 file, whatever the version of the checkpoint's index. */

typedef enum ts_consolidate_format {
  TS_CONSOLIDATE_HDF5,       /**< One file: a dataset per parameter, under its name; attributes step, version. */
  TS_CONSOLIDATE_SAFETENSORS /**< A directory: model.safetensors, or several files and model.safetensors.index.json. */
} ts_consolidate_format;

typedef struct ts_consolidate_options {
  const char *directory;           /**< The checkpoint. */
  const ts_checkpoint *checkpoint; /**< Its index, which was verified. */
  const ts_manifest *manifest;     /**< What all its files must be (ts_checkpoint_verify). */
  int threads;                     /**< That hash files. */
  const char *output;              /**< A file that is (re)placed, or an existing directory. */
  ts_consolidate_format format;
  ts_dtype dtype;      /**< F32, BF16 or F16, rounded to nearest even; routers' biases stay F32. */
  bool saturate;       /**< F16: a finite value beyond it becomes the largest one, not infinite. */
  int64_t most_bytes;  /**< Tensors of one safetensors file; a larger tensor has a file of its own. */
  bool exclude_frozen; /**< Leave out what is not trained. */
  void (*progress)(int64_t done, int64_t bytes, void *user); /**< Bytes written so far and in all; NULL for nobody.
                                                                  Called by the thread that called ts_consolidate. */
  void *user;
} ts_consolidate_options;

/** What was written. */
typedef struct ts_consolidated {
  int n_tensors, n_files;
  int64_t bytes;            /**< Of the tensors. */
  int64_t n_beyond;         /**< F16: finite values beyond it, */
  int n_tensors_beyond;     /**< the tensors that have them, */
  const char *first_beyond; /**< and the first one's name, the checkpoint's; NULL for none. */
} ts_consolidated;

/** Read, check and write; everything is synced to the disk at the end.  Not collective.
 * \param [out] broken  True when writing failed (a full disk): not the input's fault.
 * \return TS_BAD_INPUT with file and reason: it cannot be read or written, or a file is not what the manifest says;
 *         what was written is useless then. */
ts_status ts_consolidate(const ts_consolidate_options *options, ts_consolidated *result, bool *broken, ts_error *err);

#endif
