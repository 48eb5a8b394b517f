#include "io/safetensors.h"

#include "base/text.h"
#include "io/replace.h"

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

static void add_entries(const ts_safetensor *tensors, int n, ts_text *to) {
  size_t offset = 0;
  ts_text_add(to, "{\"__metadata__\":{\"format\":\"pt\"}");
  for (int i = 0; i < n; ++i) {
    const ts_safetensor *t = &tensors[i];
    ts_text_add(to, ",");
    ts_text_add_json(to, t->name);
    ts_text_add(to, ":{\"dtype\":\"%s\",\"shape\":[", dtype_names[t->dtype]);
    for (int d = 0; d < t->n_dims; ++d) {
      ts_text_add(to, d > 0 ? ",%lld" : "%lld", (long long) t->shape[d]);
    }
    ts_text_add(to, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes_of(t));
    offset += bytes_of(t);
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
