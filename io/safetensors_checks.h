/** \file
 * The checks of safetensors headers and indices, for their tests alone: a file that breaks a rule is refused, and is
 * accepted with that one check switched off, so the check is what refuses it.  With a check off, data that the header
 * describes wrongly must not be touched.  Nothing here is collective.
 */
#ifndef IO_SAFETENSORS_CHECKS_H
#define IO_SAFETENSORS_CHECKS_H

#include "io/safetensors.h"

/** X (name): the rule is what holds in a good file. */
#define TS_SAFETENSORS_CHECKS(X)                                              \
  X(HEADER_LENGTH)  /* the header ends inside the file */                     \
  X(HEADER_LIMIT)   /* and has at most TS_SAFETENSORS_LARGEST_HEADER bytes */ \
  X(HEADER_JSON)    /* it is a JSON object */                                 \
  X(DUPLICATE_KEYS) /* in which no object has a key twice */                  \
  X(DTYPE)          /* dtype is a string */                                   \
  X(SHAPE)          /* shape is an array of integers */                       \
  X(RANK)           /* of at most TS_SAFETENSORS_LARGEST_RANK */              \
  X(NEGATIVE)       /* none negative */                                       \
  X(OVERFLOW)       /* whose product, in bytes, fits 63 bits */               \
  X(OFFSETS)        /* data_offsets is an array of two integers */            \
  X(ORDER)          /* 0 <= begin <= end */                                   \
  X(RANGE)          /* end is inside the file */                              \
  X(BYTES)          /* end - begin is the size that dtype and shape give */   \
  X(OVERLAP)        /* no two tensors share a byte */                         \
  X(HOLE)           /* and no byte before or between them is nobody's */      \
  X(TRAILING)       /* the last one ends where the file does */               \
  X(INDEX_JSON)     /* an index is a JSON object with an object weight_map */ \
  X(INDEX_FILE)     /* of strings that are plain file names */                \
  X(INDEX_TENSOR)   /* and each tensor of it is in its shard */

typedef enum ts_safetensors_check {
#define X(name) TS_SAFETENSORS_CHECK_##name,
  TS_SAFETENSORS_CHECKS(X)
#undef X
      TS_N_SAFETENSORS_CHECKS
} ts_safetensors_check;

#define TS_SAFETENSORS_LARGEST_HEADER ((size_t) 100 << 20) /**< Bytes. */

/** ts_safetensors_open with one check off; TS_N_SAFETENSORS_CHECKS switches none off.  Not collective. */
ts_status ts_safetensors_open_without(ts_safetensors_check off, const char *path, ts_safetensors **out, ts_error *err);

#endif
