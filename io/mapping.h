/** \file
 * A file mapped read-only into memory.  Pages come in when they are touched, so files larger than memory are fine.  The
 * file must not shrink while it is mapped: touching what is gone ends the process (SIGBUS).  Nothing here is
 * collective.
 */
#ifndef IO_MAPPING_H
#define IO_MAPPING_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ts_mapping {
  const uint8_t *bytes; /**< Page-aligned; NULL when the file is empty. */
  size_t size;          /**< Bytes. */
} ts_mapping;

/** Map the regular file \a path.  Not collective.
 * \param [out] out  Zero on error; end with ts_mapping_close.
 * \return TS_BAD_INPUT with "PATH: reason" when there is no such regular file or it cannot be read. */
ts_status ts_mapping_open(const char *path, ts_mapping *out, ts_error *err);

/** Unmap and zero; a zero mapping is allowed.  Not collective. */
void ts_mapping_close(ts_mapping *mapping);

/** Drop whole pages of \a bytes from \a from on, which lie in a mapping, from this process's memory: what is read again
 * comes from the file.  Not collective. */
void ts_mapping_drop(const void *from, size_t bytes);

#endif
