#include "io/safetensors_file.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  ts_dtype dtype;
} dtypes[] = {{"F32", TS_F32}, {"BF16", TS_BF16}, {"F16", TS_F16}, {"F64", TS_F64},
              {"I32", TS_I32}, {"I64", TS_I64},   {"U8", TS_U8}};

static ts_dtype find_dtype(const char *name) {
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; ++i) {
    if (strcmp(dtypes[i].name, name) == 0) {
      return dtypes[i].dtype;
    }
  }
  return TS_N_DTYPES;
}

/* What the functions below share. */
typedef struct reader {
  ts_safetensors_check off;
  const uint8_t *data; /* behind the header */
  int64_t data_bytes;
  ts_error *err;
} reader;

#define HOLDS(r, check, holds, ...) TS_SAFETENSORS_HOLDS((r)->off, check, holds, (r)->err, __VA_ARGS__)

static bool read_dtype(const reader *r, const json_t *entry, ts_safetensor *t) {
  const char *name = json_string_value(json_object_get(entry, "dtype"));
  if (!HOLDS(r, DTYPE, name != NULL, "%s: tensor %s: dtype is not a string", t->file, t->name)) {
    return false;
  }
  t->dtype_name = name != NULL ? name : "none";
  t->dtype = find_dtype(t->dtype_name);
  return true;
}

static bool is_integers(const json_t *array) {
  size_t n = json_array_size(array);
  bool all = json_is_array(array);
  for (size_t i = 0; i < n; ++i) {
    all = all && json_is_integer(json_array_get(array, i));
  }
  return all;
}

static bool read_shape(const reader *r, const json_t *entry, ts_safetensor *t) {
  const json_t *shape = json_object_get(entry, "shape");
  size_t n = json_array_size(shape);
  int64_t bytes = t->dtype < TS_N_DTYPES ? (int64_t) ts_dtype_size(t->dtype) : 1;
  bool negative = false, overflow = false;
  if (!HOLDS(r, SHAPE, is_integers(shape), "%s: tensor %s: shape is not a list of integers", t->file, t->name) ||
      !HOLDS(r, RANK, n <= TS_SAFETENSORS_LARGEST_RANK, "%s: tensor %s: %zu dimensions; at most %d are accepted",
             t->file, t->name, n, TS_SAFETENSORS_LARGEST_RANK)) {
    return false;
  }
  t->count = 1;
  for (; t->n_dims < TS_SAFETENSORS_LARGEST_RANK && (size_t) t->n_dims < n; ++t->n_dims) {
    int64_t length = json_integer_value(json_array_get(shape, (size_t) t->n_dims));
    t->shape[t->n_dims] = length;
    negative = negative || length < 0;
    overflow = __builtin_mul_overflow(t->count, length, &t->count) || overflow;
    overflow = __builtin_mul_overflow(bytes, length, &bytes) || overflow;
  }
  return HOLDS(r, NEGATIVE, !negative, "%s: tensor %s: shape has a negative length", t->file, t->name) &&
         HOLDS(r, OVERFLOW, !overflow, "%s: tensor %s: the product of the shape overflows", t->file, t->name);
}

static bool read_offsets(const reader *r, const json_t *entry, ts_safetensor *t) {
  const json_t *offsets = json_object_get(entry, "data_offsets");
  int64_t begin = json_integer_value(json_array_get(offsets, 0)), end = json_integer_value(json_array_get(offsets, 1));
  int64_t bytes = (int64_t) ((uint64_t) end - (uint64_t) begin);
  int64_t need = t->dtype < TS_N_DTYPES ? t->count * (int64_t) ts_dtype_size(t->dtype) : bytes;
  if (!HOLDS(r, OFFSETS, is_integers(offsets) && json_array_size(offsets) == 2,
             "%s: tensor %s: data_offsets is not a list of two integers", t->file, t->name) ||
      !HOLDS(r, ORDER, 0 <= begin && begin <= end, "%s: tensor %s: data_offsets [%lld, %lld] are not a range", t->file,
             t->name, (long long) begin, (long long) end) ||
      !HOLDS(r, RANGE, end <= r->data_bytes,
             "%s: tensor %s: data_offsets [%lld, %lld] end outside the %lld bytes of data", t->file, t->name,
             (long long) begin, (long long) end, (long long) r->data_bytes) ||
      !HOLDS(r, BYTES, bytes == need, "%s: tensor %s: %lld bytes of data; its dtype %s and shape need %lld", t->file,
             t->name, (long long) bytes, t->dtype_name, (long long) need)) {
    return false;
  }
  t->data = r->data + begin;
  t->bytes = (size_t) bytes;
  return true;
}

static bool read_tensors(const reader *r, ts_safetensors_file *file) {
  const char *name;
  json_t *entry;
  file->tensors = ts_calloc(json_object_size(file->header), sizeof *file->tensors);
  json_object_foreach(file->header, name, entry) {
    ts_safetensor *t = &file->tensors[file->n_tensors];
    if (strcmp(name, "__metadata__") == 0) {
      continue;
    }
    *t = (ts_safetensor){.name = name, .file = file->path};
    if (!read_dtype(r, entry, t) || !read_shape(r, entry, t) || !read_offsets(r, entry, t)) {
      return false;
    }
    ++file->n_tensors;
  }
  return true;
}

static int compare_data(const void *a, const void *b) {
  const ts_safetensor *x = a, *y = b;
  return (x->data > y->data) - (x->data < y->data);
}

static int compare_tensor_names(const void *a, const void *b) {
  return strcmp(((const ts_safetensor *) a)->name, ((const ts_safetensor *) b)->name);
}

/* Each byte up to the last tensor's end is one tensor's: none is shared, none is nobody's. */
static bool check_places(const reader *r, ts_safetensors_file *file) {
  const ts_safetensor *before = NULL;
  int64_t end = 0;
  if (file->n_tensors > 0) {
    qsort(file->tensors, (size_t) file->n_tensors, sizeof *file->tensors, compare_data);
  }
  for (int i = 0; i < file->n_tensors; ++i) {
    const ts_safetensor *t = &file->tensors[i];
    int64_t begin = (const uint8_t *) t->data - r->data;
    if (t->bytes == 0) {
      continue;
    }
    if (!HOLDS(r, OVERLAP, before == NULL || end <= begin, "%s: tensors %s and %s overlap", t->file, before->name,
               t->name) ||
        !HOLDS(r, HOLE, begin <= end,
               "%s: tensor %s begins at byte %lld of the data, not at %lld: the format forbids "
               "holes",
               t->file, t->name, (long long) begin, (long long) end)) {
      return false;
    }
    before = t;
    end = begin + (int64_t) t->bytes;
  }
  return true;
}

/* Bytes that no tensor has: another file was appended, or the header is another file's. */
static bool check_trailing(const reader *r, const ts_safetensors_file *file) {
  int64_t end = 0;
  for (int i = 0; i < file->n_tensors; ++i) {
    int64_t mine = (const uint8_t *) file->tensors[i].data - r->data + (int64_t) file->tensors[i].bytes;
    end = mine > end ? mine : end;
  }
  int64_t rest = r->data_bytes - end;
  return HOLDS(r, TRAILING, rest <= 0, "%s: %lld byte%s the last tensor: header and data are not of one file",
               file->path, (long long) rest, rest == 1 ? " follows" : "s follow");
}

static bool read_header(reader *r, ts_safetensors_file *file) {
  const ts_mapping *map = &file->mapping;
  uint64_t length = 0, room = map->size < 8 ? 0 : map->size - 8;
  for (int i = 0; map->size >= 8 && i < 8; ++i) {
    length |= (uint64_t) map->bytes[i] << 8 * i;
  }
  if (!HOLDS(r, HEADER_LENGTH, map->size >= 8 && length <= room,
             "%s: truncated: the header of %llu bytes is longer than the file of %zu bytes", file->path,
             (unsigned long long) length, map->size) ||
      !HOLDS(r, HEADER_LIMIT, length <= TS_SAFETENSORS_LARGEST_HEADER,
             "%s: a header of %llu bytes; at most %zu are accepted", file->path, (unsigned long long) length,
             TS_SAFETENSORS_LARGEST_HEADER)) {
    return false;
  }
  length = length < room ? length : room;
  r->data = map->bytes + 8 + length;
  r->data_bytes = (int64_t) (room - length);
  json_error_t why = {0};
  size_t flags = r->off == TS_SAFETENSORS_CHECK_DUPLICATE_KEYS ? 0 : JSON_REJECT_DUPLICATES;
  file->header = json_loadb((const char *) map->bytes + 8, (size_t) length, flags, &why);
  return HOLDS(r, HEADER_JSON, json_is_object(file->header), "%s: the header is not a JSON object%s%s", file->path,
               why.text[0] != 0 ? ": " : "", why.text);
}

ts_status ts_safetensors_file_open(ts_safetensors_check off, const char *path, ts_safetensors_file *out,
                                   ts_error *err) {
  *out = (ts_safetensors_file){.path = ts_strdup(path)};
  reader r = {.off = off, .err = err};
  if (ts_mapping_open(path, &out->mapping, err) != TS_OK || !read_header(&r, out) || !read_tensors(&r, out) ||
      !check_places(&r, out) || !check_trailing(&r, out)) {
    return TS_BAD_INPUT;
  }
  if (out->n_tensors > 0) {
    qsort(out->tensors, (size_t) out->n_tensors, sizeof *out->tensors, compare_tensor_names);
  }
  return TS_OK;
}

const ts_safetensor *ts_safetensors_file_find(const ts_safetensors_file *file, const char *name) {
  const ts_safetensor key = {.name = name};
  return file->n_tensors == 0
             ? NULL
             : bsearch(&key, file->tensors, (size_t) file->n_tensors, sizeof key, compare_tensor_names);
}

void ts_safetensors_file_close(ts_safetensors_file *file) {
  json_decref(file->header);
  ts_mapping_close(&file->mapping);
  ts_free(file->tensors);
  ts_free(file->path);
  *file = (ts_safetensors_file){0};
}
