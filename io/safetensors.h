/** \file
 * Tensors of a Hugging Face directory: `model.safetensors`, or `model.safetensors.index.json` with its shards; or one
 * file.
 *
 * A file is a little-endian u64 (length of the header in bytes), the header (a JSON object: name to dtype, shape and
 * data_offsets), and the data.  Files are mapped, nothing is copied: a tensor's data stays where it is until it is
 * touched.  Headers and indices are untrusted: every number is checked before it is used, and each check has a row in
 * io/safetensors_checks.h.  Files must not shrink while they are open.
 *
 * Counts are in elements unless they are called bytes.  All functions are thread-safe on an open directory.  Nothing
 * here is collective.
 */
#ifndef IO_SAFETENSORS_H
#define IO_SAFETENSORS_H

#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

#define TS_SAFETENSORS_LARGEST_RANK 8

/** A tensor; everything in it is owned by the ts_safetensors it was found in. */
typedef struct ts_safetensor {
  const char *name;
  ts_dtype dtype;         /**< TS_N_DTYPES for one that cannot be read here (F8_E4M3, ...). */
  const char *dtype_name; /**< As the file spells it: "F32", "BF16", ...; for messages. */
  int n_dims;
  int64_t shape[TS_SAFETENSORS_LARGEST_RANK];
  int64_t count;    /**< Elements: the product of the shape. */
  const void *data; /**< Row-major, little-endian, in the mapped file; of any alignment. */
  size_t bytes;
  const char *file; /**< The path of the file it is in, for messages. */
} ts_safetensor;

typedef struct ts_safetensors ts_safetensors;

/** Open a directory or a single file and check all headers; data is not read.  Not collective.
 * \param [in]  path  A directory: `model.safetensors` there, else the shards of `model.safetensors.index.json`, of
 *                    which only the tensors listed in weight_map are there.  Or a .safetensors file.
 * \param [out] out   The caller's, end with ts_safetensors_close; NULL on error.
 * \return TS_BAD_INPUT naming the file, the tensor and what is wrong; for a directory with weights of another format,
 *         the command that converts them. */
ts_status ts_safetensors_open(const char *path, ts_safetensors **out, ts_error *err);

/** Has a directory such files, as ts_safetensors_open reads them?  Not collective. */
bool ts_safetensors_are_in(const char *directory);

/** The tensor of exactly this name, or NULL.  Not collective; O (log n). */
const ts_safetensor *ts_safetensors_find(const ts_safetensors *st, const char *name);

/** Number of tensors, and the one at an index, in the order of their names.  Not collective. */
int ts_safetensors_count(const ts_safetensors *st);
const ts_safetensor *ts_safetensors_at(const ts_safetensors *st, int index);

/** What lies beside these tensors and is not among them: other .safetensors files of the directory and adapters (files
 * called adapter_model.*), and tensors of the shards that the index does not list.  Not collective.
 * \param [in]  most   How many to name.
 * \param [out] names  Appended: "adapter_model.safetensors, x in model-00001-of-00002.safetensors".
 * \return their number. */
int ts_safetensors_unlisted(const ts_safetensors *st, int most, ts_text *names);

/** Convert the elements [first, first + count), which must be in the tensor, to fp32; dtype must be F32, BF16, F16 or
 * F64 (programmer errors otherwise).  F64 is rounded to nearest even.  Of a megabyte or more
 * whole pages do not stay in this process's memory.  Not collective. */
void ts_safetensors_read_f32(const ts_safetensor *tensor, int64_t first, int64_t count, float *out);

/** Unmap and free; NULL handles are allowed; sets the handle to NULL.  Not collective. */
void ts_safetensors_close(ts_safetensors **st);

/** Append what a file with these tensors begins with: the length of the header and the header (with the metadata that
 * transformers looks for), padded so that the data starts at a multiple of 8 bytes.  The data follows in the order
 * given, without gaps.  A stack (family/stack.h) is written as a matrix for each expert.  Not collective.
 * \param [in] tensors  name, dtype, n_dims and shape are read. */
void ts_safetensors_header(const ts_safetensor *tensors, int n, ts_text *to);

/** Write a file with the tensors in the order given.  Not collective.
 * \param [in] path     Appears complete or not at all; an older file of this name is replaced.
 * \param [in] tensors  name, dtype, n_dims, shape and data are read; data is the dtype's size times the product of the
 *                      shape, which must not overflow.  Names must differ; "__metadata__" is not one.
 * \return TS_BAD_INPUT with "PATH: reason" when it cannot be written. */
ts_status ts_safetensors_write(const char *path, const ts_safetensor *tensors, int n, ts_error *err);

/** A file that is written a tensor at a time. */
typedef struct ts_safetensors_writer ts_safetensors_writer;

/** Begin a file with these tensors by way of PATH.tmp.  Not collective.
 * \param [in]  tensors  name, dtype, n_dims and shape are read.
 * \param [out] out      The caller's, end with ts_safetensors_end; NULL on error.
 * \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_safetensors_begin(const char *path, const ts_safetensor *tensors, int n, ts_safetensors_writer **out,
                               ts_error *err);

/** Write the next \a bytes bytes of the tensors in their order.  Not collective.
 * \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_safetensors_add(ts_safetensors_writer *writer, const void *data, size_t bytes, ts_error *err);

/** Free and set to NULL; NULL is allowed.  Not collective.
 * \param [in] complete  Everything was written: the file is synced to the disk and takes its name, which an older one
 *                       loses.  Else PATH.tmp is removed, and an older file is as it was.
 * \return TS_BAD_INPUT with "PATH: reason"; PATH.tmp is gone then too. */
ts_status ts_safetensors_end(ts_safetensors_writer **writer, bool complete, ts_error *err);

#endif
