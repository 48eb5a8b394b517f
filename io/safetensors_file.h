/** \file
 * Private to safetensors: one file, read.  Nothing here is collective.
 */
#ifndef IO_SAFETENSORS_FILE_H
#define IO_SAFETENSORS_FILE_H

#include "io/mapping.h"
#include "io/safetensors_checks.h"

#include <jansson.h>

/** An open file. */
typedef struct ts_safetensors_file {
  char *path; /**< Owned. */
  ts_mapping mapping;
  json_t *header; /**< Owned; the names of the tensors point into it. */
  int n_tensors;
  ts_safetensor *tensors; /**< Owned; sorted by name. */
} ts_safetensors_file;

/** False, with one message, when \a holds is false and \a check is not the one that is off. */
#define TS_SAFETENSORS_HOLDS(off, check, holds, err, ...) \
  ((holds) || (off) == TS_SAFETENSORS_CHECK_##check || ts_error_add(err, __VA_ARGS__) == TS_OK)

/** Open and check one file.  Not collective.
 * \param [in]  off  The check to leave out, TS_N_SAFETENSORS_CHECKS for none.
 * \param [out] out  End with ts_safetensors_file_close, on error too. */
ts_status ts_safetensors_file_open(ts_safetensors_check off, const char *path, ts_safetensors_file *out, ts_error *err);

/** The tensor of exactly this name, or NULL.  Not collective. */
const ts_safetensor *ts_safetensors_file_find(const ts_safetensors_file *file, const char *name);

/** Unmap, free and zero; a zero file is allowed.  Not collective. */
void ts_safetensors_file_close(ts_safetensors_file *file);

#endif
