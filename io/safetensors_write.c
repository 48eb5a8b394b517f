#include "io/safetensors.h"

#include "base/memory.h"
#include "base/text.h"
#include "family/stack.h"
#include "io/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* In the order of ts_dtype. */
static const char *const dtype_names[TS_N_DTYPES] = {
#define X(name, type, text) #name,
    TS_DTYPES(X)
#undef X
};

static size_t bytes_of(const ts_safetensor *t) {
  size_t bytes = ts_dtype_size(t->dtype);
  for (int i = 0; i < t->n_dims; ++i) {
    bytes *= (size_t) t->shape[i];
  }
  return bytes;
}

/* A tensor whose data begins at an offset, and the offset behind it. */
static void add_tensor_entry(const ts_safetensor *t, size_t *offset, ts_text *to) {
  ts_text_add(to, ",");
  ts_text_add_json(to, t->name);
  ts_text_add(to, ":{\"dtype\":\"%s\",\"shape\":[", dtype_names[t->dtype]);
  for (int d = 0; d < t->n_dims; ++d) {
    ts_text_add(to, d > 0 ? ",%lld" : "%lld", (long long) t->shape[d]);
  }
  ts_text_add(to, "],\"data_offsets\":[%zu,%zu]}", *offset, *offset + bytes_of(t));
  *offset += bytes_of(t);
}

/* A stack's matrices lie one after another. */
static void add_stack(const ts_safetensor *t, size_t *offset, ts_text *to) {
  for (int64_t e = 0; e < t->shape[0]; ++e) {
    char *name = ts_stack_name(t->name, e);
    ts_safetensor one = {.name = name, .dtype = t->dtype, .n_dims = t->n_dims - 1};
    memcpy(one.shape, t->shape + 1, (size_t) one.n_dims * sizeof *one.shape);
    add_tensor_entry(&one, offset, to);
    ts_free(name);
  }
}

static void add_entries(const ts_safetensor *tensors, int n, ts_text *to) {
  size_t offset = 0;
  ts_text_add(to, "{\"__metadata__\":{\"format\":\"pt\"}");
  for (int i = 0; i < n; ++i) {
    const ts_safetensor *t = &tensors[i];
    (ts_stack_is(t->name, t->n_dims) ? add_stack : add_tensor_entry)(t, &offset, to);
  }
  ts_text_add(to, "}");
  while (to->length % 8 != 0) { /* the data starts aligned */
    ts_text_add(to, " ");
  }
}

void ts_safetensors_header(const ts_safetensor *tensors, int n, ts_text *to) {
  ts_text header = {0};
  add_entries(tensors, n, &header);
  char length[8];
  for (int i = 0; i < 8; ++i) {
    length[i] = (char) ((uint64_t) header.length >> 8 * i);
  }
  ts_text_append(to, length, 8);
  ts_text_append(to, header.text, header.length);
  ts_text_free(&header);
}

typedef struct list {
  const ts_safetensor *tensors;
  int n;
} list;

static bool write_file(FILE *file, const void *from) {
  const list *all = from;
  ts_text header = {0};
  ts_safetensors_header(all->tensors, all->n, &header);
  bool ok = fwrite(header.text, 1, header.length, file) == header.length;
  ts_text_free(&header);
  for (int i = 0; ok && i < all->n; ++i) {
    size_t bytes = bytes_of(&all->tensors[i]);
    ok = bytes == 0 || fwrite(all->tensors[i].data, 1, bytes, file) == bytes;
  }
  return ok;
}

ts_status ts_safetensors_write(const char *path, const ts_safetensor *tensors, int n, ts_error *err) {
  return ts_replace_file(path, write_file, &(list){tensors, n}, err);
}

/* ---- a tensor at a time ---- */

struct ts_safetensors_writer {
  char *path, *temporary; /* owned */
  FILE *file;
};

static ts_status writing_failed(const ts_safetensors_writer *w, ts_error *err) {
  return ts_error_add(err, "%s: cannot be written: %s", w->path, strerror(errno));
}

ts_status ts_safetensors_add(ts_safetensors_writer *w, const void *data, size_t bytes, ts_error *err) {
  return bytes == 0 || fwrite(data, 1, bytes, w->file) == bytes ? TS_OK : writing_failed(w, err);
}

ts_status ts_safetensors_begin(const char *path, const ts_safetensor *tensors, int n, ts_safetensors_writer **out,
                               ts_error *err) {
  ts_safetensors_writer *w = ts_calloc(1, sizeof *w);
  *w = (ts_safetensors_writer){.path = ts_strdup(path), .temporary = ts_format("%s.tmp", path)};
  w->file = fopen(w->temporary, "wb");
  ts_text header = {0};
  ts_safetensors_header(tensors, n, &header);
  ts_status status = w->file != NULL ? ts_safetensors_add(w, header.text, header.length, err) : writing_failed(w, err);
  ts_text_free(&header);
  if (status != TS_OK) {
    ts_safetensors_end(&w, false, NULL);
  }
  *out = w;
  return status;
}

/* The name is on the disk too; some file systems cannot do that for a directory. */
static bool sync_name(const char *path) {
  const char *slash = strrchr(path, '/');
  char *parent = slash == NULL ? ts_strdup(".") : ts_format("%.*s", slash == path ? 1 : (int) (slash - path), path);
  int directory = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool ok = directory >= 0 && (fsync(directory) == 0 || errno == EINVAL);
  if (directory >= 0) {
    close(directory);
  }
  ts_free(parent);
  return ok;
}

ts_status ts_safetensors_end(ts_safetensors_writer **writer, bool complete, ts_error *err) {
  ts_safetensors_writer *w = *writer;
  if (w == NULL) {
    return TS_OK;
  }
  bool ok = complete && fflush(w->file) == 0 && fsync(fileno(w->file)) == 0;
  ok = ok && rename(w->temporary, w->path) == 0 && sync_name(w->path);
  ts_status status = ok || !complete ? TS_OK : writing_failed(w, err);
  if (w->file != NULL) {
    fclose(w->file); /* nothing is left to fail after fsync */
  }
  if (!ok) {
    unlink(w->temporary);
  }
  ts_free(w->path);
  ts_free(w->temporary);
  ts_free(w);
  *writer = NULL;
  return status;
}
