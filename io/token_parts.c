#include "io/token_parts.h"

#include "base/memory.h"
#include "io/hdf5.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
  BLOCK = 1 << 20, /* elements that are moved at a time */
  BUFFER = 1 << 20 /* bytes a file gathers before it is written */
};

/* ---- files of a part ---- */

typedef enum member { TOKENS, LEARNED, DOCUMENTS, N_MEMBERS } member;

static const char *const extensions[N_MEMBERS] = {".tokens", ".learned", ".documents"};

struct ts_token_part {
  char *prefix; /* owned */
  FILE *file[N_MEMBERS];
  bool wide;
  ts_token_counts counts;
  uint16_t *narrow; /* owned: room for tokens of two bytes */
  int64_t narrow_capacity;
};

static bool needs_four_bytes(int64_t vocab_size) {
  return vocab_size > 65536;
}

static ts_status say_unwritable(const char *prefix, member m, ts_error *err) {
  return ts_error_add(err, "%s%s: cannot be written: %s", prefix, extensions[m], strerror(errno));
}

ts_status ts_token_part_create(const char *prefix, int64_t vocab_size, ts_token_part **out, ts_error *err) {
  ts_token_part *p = ts_calloc(1, sizeof *p);
  p->prefix = ts_strdup(prefix);
  p->wide = needs_four_bytes(vocab_size);
  ts_status status = TS_OK;
  for (int m = 0; m < N_MEMBERS && status == TS_OK; ++m) {
    char *path = ts_format("%s%s", prefix, extensions[m]);
    p->file[m] = fopen(path, "wb");
    status = p->file[m] != NULL ? TS_OK : say_unwritable(prefix, (member) m, err);
    if (status == TS_OK) {
      setvbuf(p->file[m], NULL, _IOFBF, BUFFER);
    }
    ts_free(path);
  }
  if (status != TS_OK) {
    ts_error ignored = {0};
    ts_token_part_close(&p, &ignored);
    ts_error_clear(&ignored);
    ts_token_part_remove(prefix);
  }
  *out = p;
  return status;
}

static ts_status write_member(ts_token_part *p, member m, const void *from, size_t size, int64_t n, ts_error *err) {
  bool written = n == 0 || fwrite(from, size, (size_t) n, p->file[m]) == (size_t) n;
  return written ? TS_OK : say_unwritable(p->prefix, m, err);
}

static const uint16_t *narrow_tokens(ts_token_part *p, const ts_ids *ids) {
  if (p->narrow_capacity < ids->n) {
    p->narrow_capacity = ids->n;
    p->narrow = ts_realloc(p->narrow, (size_t) ids->n, sizeof *p->narrow);
  }
  for (int64_t i = 0; i < ids->n; ++i) {
    p->narrow[i] = (uint16_t) ids->id[i];
  }
  return p->narrow;
}

ts_status ts_token_part_add(ts_token_part *p, const ts_record_ids *ids, ts_error *err) {
  int64_t n = ids->ids.n;
  ts_status status = p->wide ? write_member(p, TOKENS, ids->ids.id, sizeof *ids->ids.id, n, err)
                             : write_member(p, TOKENS, narrow_tokens(p, &ids->ids), sizeof *p->narrow, n, err);
  status = status == TS_OK ? write_member(p, LEARNED, ids->learned, 1, n, err) : status;
  for (int64_t i = 0; i < ids->n_documents && status == TS_OK; ++i) {
    int64_t first = p->counts.tokens + ids->first[i];
    status = write_member(p, DOCUMENTS, &first, sizeof first, 1, err);
  }
  for (int64_t i = 0; i < n; ++i) {
    p->counts.ignored += !ids->learned[i];
  }
  p->counts.tokens += n;
  p->counts.documents += ids->n_documents;
  p->counts.replaced += ids->replaced;
  return status;
}

const ts_token_counts *ts_token_part_counts(const ts_token_part *part) {
  return &part->counts;
}

ts_status ts_token_part_close(ts_token_part **part, ts_error *err) {
  ts_token_part *p = *part;
  ts_status status = TS_OK;
  for (int m = 0; p != NULL && m < N_MEMBERS; ++m) {
    if (p->file[m] != NULL && fclose(p->file[m]) != 0 && status == TS_OK) {
      status = say_unwritable(p->prefix, (member) m, err);
    }
  }
  if (p != NULL) {
    ts_free(p->prefix);
    ts_free(p->narrow);
    ts_free(p);
    *part = NULL;
  }
  return status;
}

void ts_token_part_remove(const char *prefix) {
  for (int m = 0; m < N_MEMBERS; ++m) {
    char *path = ts_format("%s%s", prefix, extensions[m]);
    unlink(path);
    ts_free(path);
  }
}

/* ---- the file made of them ---- */

/* A dataset, and how the numbers of a part become its own. */
typedef struct column {
  const char *name;
  member from;
  size_t size;          /* bytes of an element in a part */
  hid_t memory, stored; /* types */
  bool moves;           /* elements are places in the part, which become places in the file */
} column;

typedef struct joining {
  hid_t file;
  const char *path;
  int n;
  char *const *prefix;
  const ts_token_counts *counts;
  void (*move)(void *user);
  void *user;
} joining;

static int64_t count_elements(const ts_token_counts *counts, const column *c) {
  return c->from == DOCUMENTS ? counts->documents : counts->tokens;
}

static ts_status write_block(hid_t data, const column *c, int64_t at, int64_t n, const void *block, ts_error *err) {
  hsize_t start = (hsize_t) at, length = (hsize_t) n;
  ts_hdf5_lock();
  hid_t to = H5Dget_space(data), from = H5Screate_simple(1, &length, NULL);
  bool written = H5Sselect_hyperslab(to, H5S_SELECT_SET, &start, NULL, &length, NULL) >= 0 &&
                 H5Dwrite(data, c->memory, from, to, H5P_DEFAULT, block) >= 0;
  H5Sclose(from);
  H5Sclose(to);
  ts_hdf5_unlock();
  return written ? TS_OK : ts_error_add(err, "dataset \"%s\" cannot be written", c->name);
}

/* Those of one part, behind \a at elements of others and \a tokens of their tokens. */
static ts_status copy_part(const joining *j, const column *c, hid_t data, int part, int64_t at, int64_t tokens,
                           void *block, ts_error *err) {
  char *path = ts_format("%s%s", j->prefix[part], extensions[c->from]);
  FILE *file = fopen(path, "rb");
  int64_t n = count_elements(&j->counts[part], c);
  ts_status status = TS_OK;
  for (int64_t done = 0; done < n && status == TS_OK; done += BLOCK) {
    int64_t some = n - done < BLOCK ? n - done : BLOCK;
    if (file == NULL || fread(block, c->size, (size_t) some, file) != (size_t) some) {
      status = ts_error_add(err, "%s: cannot be read: %s", path, file == NULL ? strerror(errno) : "it is cut short");
      break;
    }
    for (int64_t i = 0; c->moves && i < some; ++i) {
      ((int64_t *) block)[i] += tokens;
    }
    status = write_block(data, c, at + done, some, block, err);
    if (j->move != NULL) {
      j->move(j->user);
    }
  }
  if (file != NULL) {
    fclose(file);
  }
  ts_free(path);
  return status;
}

static ts_status join_column(const joining *j, const column *c, ts_error *err) {
  int64_t n = 0, at = 0, tokens = 0;
  for (int i = 0; i < j->n; ++i) {
    n += count_elements(&j->counts[i], c);
  }
  hsize_t length = (hsize_t) n;
  ts_hdf5_lock();
  hid_t space = H5Screate_simple(1, &length, NULL), properties = ts_hdf5_dataset_properties();
  hid_t data = H5Dcreate2(j->file, c->name, c->stored, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  H5Pclose(properties);
  H5Sclose(space);
  ts_hdf5_unlock();
  ts_status status = data >= 0 ? TS_OK : ts_error_add(err, "dataset \"%s\" cannot be made", c->name);
  void *block = ts_malloc(BLOCK * c->size);
  for (int i = 0; i < j->n && status == TS_OK; ++i) {
    status = copy_part(j, c, data, i, at, tokens, block, err);
    at += count_elements(&j->counts[i], c);
    tokens += j->counts[i].tokens;
  }
  ts_free(block);
  ts_hdf5_lock();
  if (data >= 0) {
    H5Dclose(data);
  }
  ts_hdf5_unlock();
  return status;
}

static ts_status join_columns(const joining *j, bool wide, ts_error *err) {
  ts_hdf5_lock(); /* types are the library's, which begins with them */
  const column tokens[] = {{"tokens", TOKENS, sizeof(uint16_t), H5T_NATIVE_UINT16, H5T_STD_U16LE, false},
                           {"tokens", TOKENS, sizeof(uint32_t), H5T_NATIVE_UINT32, H5T_STD_U32LE, false}};
  const column documents = {"documents", DOCUMENTS, sizeof(int64_t), H5T_NATIVE_INT64, H5T_STD_I64LE, true};
  const column mask = {"loss_mask", LEARNED, 1, H5T_NATIVE_UINT8, H5T_STD_U8LE, false};
  ts_hdf5_unlock();
  int64_t ignored = 0;
  for (int i = 0; i < j->n; ++i) {
    ignored += j->counts[i].ignored;
  }
  ts_status status = join_column(j, &tokens[wide], err);
  status = status == TS_OK ? join_column(j, &documents, err) : status;
  return status == TS_OK && ignored > 0 ? join_column(j, &mask, err) : status;
}

ts_status ts_token_parts_join(const char *path, int64_t vocab_size, int n, char *const *prefix,
                              const ts_token_counts *counts, void (*move)(void *user), void *user, ts_error *err) {
  char *temporary = ts_format("%s.tmp", path);
  joining j = {.path = path, .n = n, .prefix = prefix, .counts = counts, .move = move, .user = user};
  ts_hdf5_lock();
  j.file = ts_hdf5_create(temporary, err);
  ts_hdf5_unlock();
  ts_status status = j.file >= 0 ? TS_OK : TS_BAD_INPUT;
  if (status == TS_OK) {
    ts_error why = {0};
    ts_status joined = join_columns(&j, needs_four_bytes(vocab_size), &why);
    status = ts_hdf5_finish(j.file, temporary, err);
    if (status == TS_OK && joined != TS_OK) {
      status = ts_error_add(err, "%s: %s", path, why.text);
    }
    ts_error_clear(&why);
  }
  if (status == TS_OK && rename(temporary, path) != 0) {
    status = ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  }
  if (status != TS_OK) {
    unlink(temporary);
  }
  ts_free(temporary);
  return status;
}
