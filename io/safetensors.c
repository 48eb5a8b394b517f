#include "io/safetensors.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/publication.h"
#include "io/safetensors_file.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ts_safetensors {
  char *directory; /* owned; NULL for a single file */
  int n_files;
  ts_safetensors_file *files; /* owned */
  int n_tensors;
  const ts_safetensor **tensors; /* owned; sorted by name; the tensors are the files' */
};

/* ---- shards ---- */

/* The weight_map of an index, checked; a new reference to the whole index, NULL on error. */
static json_t *read_weight_map(ts_safetensors_check off, const char *path, ts_error *err) {
  char *text;
  size_t length;
  json_error_t why = {0};
  if (ts_read_file(path, TS_SAFETENSORS_LARGEST_HEADER, &text, &length, err) != TS_OK) {
    return NULL;
  }
  json_t *index =
      json_loadb(text, length, off == TS_SAFETENSORS_CHECK_DUPLICATE_KEYS ? 0 : JSON_REJECT_DUPLICATES, &why);
  ts_free(text);
  if (!TS_SAFETENSORS_HOLDS(off, INDEX_JSON, json_is_object(json_object_get(index, "weight_map")), err,
                            "%s: is not a JSON object with an object \"weight_map\"%s%s", path,
                            why.text[0] != 0 ? ": " : "", why.text)) {
    json_decref(index);
    return NULL;
  }
  return index != NULL ? index : json_object();
}

static bool is_plain(const char *file) {
  return file != NULL && file[0] != 0 && strchr(file, '/') == NULL && strcmp(file, ".") != 0 && strcmp(file, "..") != 0;
}

static int find_open_file(const ts_safetensors *st, const char *path) {
  for (int i = 0; i < st->n_files; ++i) {
    if (strcmp(st->files[i].path, path) == 0) {
      return i;
    }
  }
  return -1;
}

typedef struct shards {
  ts_safetensors_check off;
  const char *directory, *index; /* the index for messages */
  ts_safetensors *st;
  ts_error *err;
} shards;

/* The shard \a file, opened at its first use; -1 on error. */
static int open_shard(const shards *s, const char *name, const char *file) {
  if (!TS_SAFETENSORS_HOLDS(s->off, INDEX_FILE, is_plain(file), s->err,
                            "%s: tensor %s: \"%s\" is not the plain name of a file", s->index, name,
                            file != NULL ? file : "")) {
    return -1;
  }
  char *path = ts_format("%s/%s", s->directory, file != NULL ? file : "");
  int i = find_open_file(s->st, path);
  if (i < 0) {
    i = s->st->n_files++;
    if (ts_safetensors_file_open(s->off, path, &s->st->files[i], s->err) != TS_OK) {
      i = -1;
    }
  }
  ts_free(path);
  return i;
}

static ts_status open_shards(const shards *s, const json_t *map) {
  ts_safetensors *st = s->st;
  size_t n = json_object_size(map);
  st->files = ts_calloc(n, sizeof *st->files);
  st->tensors = ts_calloc(n, sizeof *st->tensors);
  const char *name;
  json_t *value;
  json_object_foreach((json_t *) map, name, value) {
    int shard = open_shard(s, name, json_string_value(value));
    if (shard < 0) {
      return TS_BAD_INPUT;
    }
    const ts_safetensor *t = ts_safetensors_file_find(&st->files[shard], name);
    if (!TS_SAFETENSORS_HOLDS(s->off, INDEX_TENSOR, t != NULL, s->err, "%s: tensor %s is not in %s", s->index, name,
                              st->files[shard].path)) {
      return TS_BAD_INPUT;
    }
    if (t != NULL) {
      st->tensors[st->n_tensors++] = t;
    }
  }
  return TS_OK;
}

static ts_status open_index(ts_safetensors_check off, const char *directory, const char *index, ts_safetensors *st,
                            ts_error *err) {
  json_t *json = read_weight_map(off, index, err);
  if (json == NULL) {
    return TS_BAD_INPUT;
  }
  const shards s = {off, directory, index, st, err};
  ts_status status = open_shards(&s, json_object_get(json, "weight_map"));
  json_decref(json);
  return status;
}

/* ---- files and directories ---- */

/* What torch saves has a name, and a command that makes safetensors of it. */
static ts_status refuse_directory(const char *path, ts_error *err) {
  static const char *const names[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
  const char *found = NULL;
  for (int i = 0; i < 2 && found == NULL; ++i) {
    char *file = ts_format("%s/%s", path, names[i]);
    found = access(file, F_OK) == 0 ? names[i] : NULL;
    ts_free(file);
  }
  if (found == NULL && ts_deepspeed_refuse(path, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (found == NULL) {
    return ts_error_add(err, "%s: has neither model.safetensors nor model.safetensors.index.json", path);
  }
  ts_text word = {0};
  ts_text_add_shell(&word, path);
  ts_status status = ts_error_add(err,
                                  "%s: has %s and no model.safetensors, which alone is read; this writes it "
                                  "beside: python3 -c 'import sys, transformers as t; "
                                  "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype=\"auto\")"
                                  ".save_pretrained(sys.argv[1])' %s",
                                  path, found, word.text);
  ts_text_free(&word);
  return status;
}

static ts_status open_one(ts_safetensors_check off, const char *path, ts_safetensors *st, ts_error *err) {
  st->files = ts_calloc(1, sizeof *st->files);
  st->n_files = 1;
  if (ts_safetensors_file_open(off, path, &st->files[0], err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  st->n_tensors = st->files[0].n_tensors;
  st->tensors = ts_calloc((size_t) st->n_tensors, sizeof *st->tensors);
  for (int i = 0; i < st->n_tensors; ++i) {
    st->tensors[i] = &st->files[0].tensors[i];
  }
  return TS_OK;
}

bool ts_safetensors_are_in(const char *directory) {
  return ts_has_file(directory, "model.safetensors") || ts_has_file(directory, "model.safetensors.index.json");
}

static ts_status open_weights(ts_safetensors_check off, const char *path, ts_safetensors *st, ts_error *err) {
  char *file = ts_format("%s/model.safetensors", path), *index = ts_format("%s/model.safetensors.index.json", path);
  ts_status status;
  if (access(file, F_OK) == 0) {
    status = open_one(off, file, st, err);
  } else if (access(index, F_OK) == 0) {
    status = open_index(off, path, index, st, err);
  } else {
    status = refuse_directory(path, err);
  }
  ts_free(file);
  ts_free(index);
  return status;
}

static int compare_tensor_pointers(const void *a, const void *b) {
  return strcmp((*(const ts_safetensor *const *) a)->name, (*(const ts_safetensor *const *) b)->name);
}

ts_status ts_safetensors_open_without(ts_safetensors_check off, const char *path, ts_safetensors **out, ts_error *err) {
  *out = NULL;
  struct stat info;
  bool directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
  ts_safetensors *st = ts_calloc(1, sizeof *st);
  st->directory = directory ? ts_strdup(path) : NULL;
  ts_status status = directory ? open_weights(off, path, st, err) : open_one(off, path, st, err);
  if (status != TS_OK) {
    ts_safetensors_close(&st);
    return status;
  }
  if (st->n_tensors > 0) {
    qsort(st->tensors, (size_t) st->n_tensors, sizeof *st->tensors, compare_tensor_pointers);
  }
  *out = st;
  return TS_OK;
}

ts_status ts_safetensors_open(const char *path, ts_safetensors **out, ts_error *err) {
  return ts_safetensors_open_without(TS_N_SAFETENSORS_CHECKS, path, out, err);
}

const ts_safetensor *ts_safetensors_find(const ts_safetensors *st, const char *name) {
  const ts_safetensor key = {.name = name}, *pointer = &key;
  const ts_safetensor *const *found = st->n_tensors == 0 ? NULL
                                                         : bsearch(&pointer, st->tensors, (size_t) st->n_tensors,
                                                                   sizeof *st->tensors, compare_tensor_pointers);
  return found != NULL ? *found : NULL;
}

int ts_safetensors_count(const ts_safetensors *st) {
  return st->n_tensors;
}

const ts_safetensor *ts_safetensors_at(const ts_safetensors *st, int index) {
  TS_ASSERT(index >= 0 && index < st->n_tensors);
  return st->tensors[index];
}

/* ---- what is not read ---- */

typedef struct names {
  int n, most;
  ts_text *to;
} names;

static void list_name(names *to, const char *name, const char *in) {
  if (to->n++ < to->most) {
    ts_text_add(to->to, "%s%s%s%s", to->n > 1 ? ", " : "", name, in != NULL ? " in " : "", in != NULL ? in : "");
  }
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

static void list_duplicates(const ts_safetensors *st, names *to) {
  for (int i = 0; i < st->n_files; ++i) {
    for (int k = 0; k < st->files[i].n_tensors; ++k) {
      const ts_safetensor *t = &st->files[i].tensors[k];
      if (ts_safetensors_find(st, t->name) != t) {
        list_name(to, t->name, base_name(t->file));
      }
    }
  }
}

static int holds_tensors(const struct dirent *entry) {
  const char *dot = strrchr(entry->d_name, '.');
  return (dot != NULL && strcmp(dot, ".safetensors") == 0) || strncmp(entry->d_name, "adapter_model.", 14) == 0;
}

static void add_files(const ts_safetensors *st, names *to) {
  struct dirent **entry = NULL;
  int n = scandir(st->directory, &entry, holds_tensors, alphasort);
  for (int i = 0; i < n; ++i) {
    char *path = ts_format("%s/%s", st->directory, entry[i]->d_name);
    if (find_open_file(st, path) < 0) {
      list_name(to, entry[i]->d_name, NULL);
    }
    ts_free(path);
    free(entry[i]);
  }
  free(entry);
}

int ts_safetensors_unlisted(const ts_safetensors *st, int most, ts_text *to) {
  names all = {.most = most, .to = to};
  if (st->directory != NULL) {
    add_files(st, &all);
    list_duplicates(st, &all);
  }
  return all.n;
}

/* ---- values ---- */

/* What is read in large pieces is read once. */
#define DROPPED ((size_t) 1 << 20)

void ts_safetensors_read_f32(const ts_safetensor *tensor, int64_t first, int64_t count, float *out) {
  TS_ASSERT(ts_dtype_is_float(tensor->dtype) && first >= 0 && count >= 0 && count <= tensor->count - first);
  size_t size = ts_dtype_size(tensor->dtype);
  const char *from = (const char *) tensor->data + (size_t) first * size;
  double block[512]; /* aligned, which the file is not */
  int64_t most = (int64_t) (sizeof block / size);
  for (int64_t done = 0; done < count; done += most) {
    int64_t n = count - done < most ? count - done : most;
    memcpy(block, from + (size_t) done * size, (size_t) n * size);
    ts_convert(out + done, TS_F32, block, tensor->dtype, (size_t) n);
  }
  if ((size_t) count * size >= DROPPED) {
    ts_mapping_drop(from, (size_t) count * size);
  }
}

void ts_safetensors_close(ts_safetensors **st) {
  if (*st == NULL) {
    return;
  }
  for (int i = 0; i < (*st)->n_files; ++i) {
    ts_safetensors_file_close(&(*st)->files[i]);
  }
  ts_free((*st)->files);
  ts_free((*st)->tensors);
  ts_free((*st)->directory);
  ts_free(*st);
  *st = NULL;
}
