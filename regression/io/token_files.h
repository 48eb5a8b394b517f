/** \file
 * Token files as tests need them: good ones and damaged ones.  Nothing here is collective.
 */
#ifndef REGRESSION_IO_TOKEN_FILES_H
#define REGRESSION_IO_TOKEN_FILES_H

#include <hdf5.h>
#include <stdint.h>

/** Write \a n bytes as NAME in the test's directory.  Not collective.  \return the path (ts_free). */
char *token_file_bytes(const char *name, const void *bytes, size_t n);

/** A dataset of one dimension. */
typedef struct token_dataset {
  const char *name; /**< "group/name" makes the group. */
  hid_t type;       /**< In the file. */
  const int64_t *values;
  hsize_t n;
} token_dataset;

/** Write an HDF5 file of \a n datasets.  Not collective.  \return the path (ts_free). */
char *token_file_hdf5(const char *name, const token_dataset *sets, int n);

enum { MEGATRON_MOST = 16 };

/** Megatron's pair, right or wrong. */
typedef struct megatron_pair {
  const char *magic; /**< 9 bytes; NULL: the right ones. */
  uint64_t version;
  int code, width; /**< Type of a token in the .idx, its bytes in the .bin. */
  int n_sequences;
  int32_t size[MEGATRON_MOST];
  int64_t pointer[MEGATRON_MOST];
  int n_entries;
  int64_t entry[MEGATRON_MOST];
  uint64_t says_sequences, says_entries; /**< What the header says, unless 0. */
  int cut;                               /**< Bytes missing at the end of the .idx; negative: more. */
  int n_values;
  int64_t value[MEGATRON_MOST];
} megatron_pair;

/** Write PREFIX.idx and PREFIX.bin.  Not collective.  \return the path of PREFIX (ts_free). */
char *token_file_megatron(const char *prefix, const megatron_pair *pair);

#endif
