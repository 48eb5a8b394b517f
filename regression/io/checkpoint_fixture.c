#include "regression/io/checkpoint_fixture.h"

#include "base/deal.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/hdf5.h"
#include "regression/tap.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { N_DATASETS = 8 };

/* ---- layouts ---- */

static void add_part(ts_checkpoint *c, const char *name, bool trainable, int n_states, const ts_dtype *dtype) {
  static const char *const names[] = {"parameter", "exp_avg", "exp_avg_sq"};
  c->part = ts_realloc(c->part, (size_t) c->n_parts + 1, sizeof *c->part);
  ts_saved_part *part = &c->part[c->n_parts++];
  *part = (ts_saved_part){.name = ts_strdup(name), .trainable = trainable, .n_states = n_states};
  part->state = ts_calloc((size_t) n_states, sizeof *part->state);
  for (int k = 0; k < n_states; ++k) {
    part->state[k] = (ts_saved_state){.name = ts_strdup(names[k]), .dtype = dtype[k]};
  }
}

/* A parameter of the newest part, after a gap. */
static void add_parameter(ts_checkpoint *c, const char *name, int64_t gap, int n_dims, const int64_t *shape) {
  c->parameter = ts_realloc(c->parameter, (size_t) c->n_parameters + 1, sizeof *c->parameter);
  ts_saved_parameter *p = &c->parameter[c->n_parameters++];
  ts_saved_part *part = &c->part[c->n_parts - 1];
  *p = (ts_saved_parameter){.name = ts_format("%s.%d.%s", part->name, n_dims, name), .n_dims = n_dims, .count = 1};
  for (int d = 0; d < n_dims; ++d) {
    p->shape[d] = shape[d];
    p->count *= shape[d];
  }
  ts_saved_parameter_set_whole(p, c->n_parts - 1, part->count + gap);
  part->count += gap + p->count;
}

static int compare_numbers(const void *a, const void *b) {
  int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
  return (x > y) - (x < y);
}

static void cut(ts_saved_part *part, int n, fixture_cuts how) {
  int64_t *cuts = part->cuts = ts_calloc((size_t) n + 1, sizeof *cuts);
  int inner = n - 2;
  for (int s = 1; s < n; ++s) {
    cuts[s] = how == CUTS_EVEN     ? part->count * s / n
              : how == CUTS_UNEVEN ? (int64_t) (ts_mix((uint64_t) part->count, (uint64_t) s) % (uint64_t) part->count)
              : how == CUTS_EMPTY_ENDS && inner > 0 ? part->count * (s - 1) / inner
              : s > n / 2                           ? part->count
                                                    : 0;
  }
  cuts[n] = part->count;
  qsort(cuts, (size_t) n + 1, sizeof *cuts, compare_numbers);
}

ts_checkpoint *fixture_checkpoint(int n_shards, fixture_cuts cuts, int64_t rows) {
  ts_checkpoint *c = ts_calloc(1, sizeof *c);
  const ts_dtype full[] = {TS_F32, TS_F32, TS_F32}, half[] = {TS_BF16, TS_F32};
  add_part(c, "blocks", true, 3, full);
  add_parameter(c, "weight", 0, 2, (const int64_t[]){rows, 61});
  add_parameter(c, "norm", 3, 1, (const int64_t[]){211});
  add_parameter(c, "conv", 0, 3, (const int64_t[]){3, 5, 7});
  add_parameter(c, "one", 1, 8, (const int64_t[]){1, 1, 2, 1, 3, 2, 1, 2});
  c->part[0].count += 13;
  add_part(c, "embedding frozen", false, 1, half);
  add_parameter(c, "weight", 7, 2, (const int64_t[]){rows, 61});
  add_parameter(c, "bias", 0, 1, (const int64_t[]){1});
  add_part(c, "head", true, 2, half);
  add_parameter(c, "weight", 0, 3, (const int64_t[]){7, rows, 5});
  for (int i = 0; i < c->n_parts; ++i) {
    cut(&c->part[i], n_shards, cuts);
  }
  c->n_shards = n_shards;
  c->step = 123456789012, c->samples = 7, c->updates = 6, c->optimizer_step = 5, c->skipped = 4,
  c->skipped_in_a_row = 3;
  c->loss_scale = 32768.5;
  c->deck = ts_strdup("model = { name = \"a \\\"b\\\"\"; };\n\ttrain = 1;\n");
  c->source = ts_strdup("");
  c->fact = ts_calloc(2, sizeof *c->fact);
  c->fact[c->n_facts++] = (ts_saved_fact){.name = ts_strdup("ranks"), .value = ts_format("%d", n_shards)};
  c->fact[c->n_facts++] = (ts_saved_fact){.name = ts_strdup("device"), .value = ts_strdup("")};
  return c;
}

/* ---- the same in pieces ---- */

/* A row per parameter of fixture_checkpoint with 17 rows: lengths of its pieces along a dimension, and their homes; and
 * how many of the first dimension are ahead of those whose homes are the other ones, in fixture_bands. */
static const struct {
  int dim, n;
  int length[4], home[4], band;
} piece_rules[] = {{1, 4, {10, 20, 11, 20}, {0, 1, 0, 1}, 5}, /* two intervals a home, side by side in its rows */
                   {0, 3, {150, 50, 11}, {1, 0, 1}, 0},
                   {1, 2, {2, 3}, {0, 1}, 1},
                   {4, 3, {1, 1, 1}, {1, 0, 1}, 0},
                   {0, 2, {16, 1}, {1, 0}, 0},
                   {0, 1, {1}, {0}, 0}, /* whole, at one home */
                   {2, 2, {1, 4}, {1, 0}, 3}};

static int64_t extents(const ts_saved_parameter *p, int from, int to) {
  int64_t n = 1;
  for (int d = from; d < to; ++d) {
    n *= p->shape[d];
  }
  return n;
}

/* Pieces [from, from + n) of a parameter, all of the same rows, at a home, after a gap: its intervals side by side, and
 * a gap at the end of each row. */
static void add_band(ts_saved_parameter *p, int rule, ts_saved_part *part, int index, int home, int from,
                     ts_interval rows) {
  int n = piece_rules[rule].n;
  int64_t slice = extents(p, p->dim + 1, p->n_dims), begin = 0, width = 0, offset = part->count + 3;
  for (int k = 0; k < n; ++k) {
    int64_t length = piece_rules[rule].length[k];
    if (piece_rules[rule].home[k] == home) {
      p->piece[from + k] = (ts_saved_piece){.part = index,
                                            .offset = offset + width,
                                            .first_row = rows.begin,
                                            .rows = rows.length,
                                            .begin = begin,
                                            .length = length};
      width += length * slice;
    }
    begin += length;
  }
  for (int k = 0; k < n; ++k) {
    p->piece[from + k].pitch = piece_rules[rule].home[k] == home ? width + 2 : p->piece[from + k].pitch;
  }
  part->count = width > 0 ? offset + rows.length * (width + 2) : part->count;
}

static void add_home(ts_saved_parameter *p, int rule, ts_saved_part *part, int index, int home) {
  int64_t rows = extents(p, 0, p->dim), ahead = 0;
  int n = piece_rules[rule].n;
  if (p->n_pieces > n) {
    ahead = rows / p->shape[0] * piece_rules[rule].band;
    add_band(p, rule, part, index, home, 0, (ts_interval){0, ahead});
  }
  add_band(p, rule, part, index, ahead > 0 ? 1 - home : home, p->n_pieces - n, (ts_interval){ahead, rows - ahead});
}

/* Home 0 is a few ranks in the middle, home 1 the last ones. */
static void cut_home(ts_saved_part *part, int n_shards, fixture_cuts how, int home) {
  int first = home == 0 ? 1 : 1 + (n_shards - 1) / 2, end = home == 0 ? 1 + (n_shards - 1) / 2 : n_shards;
  cut(part, end - first, how);
  int64_t *cuts = ts_calloc((size_t) n_shards + 1, sizeof *cuts);
  memcpy(cuts + first, part->cuts, (size_t) (end - first) * sizeof *cuts);
  for (int s = end; s <= n_shards; ++s) {
    cuts[s] = part->count;
  }
  ts_free(part->cuts);
  part->cuts = cuts;
}

/* Part `index` of a checkpoint at both homes. */
static void add_homes(ts_checkpoint *c, const ts_checkpoint *whole, int index, fixture_cuts cuts) {
  for (int home = 0; home < 2; ++home) {
    const ts_saved_part *part = &whole->part[index];
    ts_dtype dtype[3];
    for (int k = 0; k < part->n_states; ++k) {
      dtype[k] = part->state[k].dtype;
    }
    char *name = ts_format("%s at %d", part->name, home);
    add_part(c, name, part->trainable, part->n_states, dtype);
    ts_free(name);
    for (int i = 0; i < c->n_parameters; ++i) {
      if (whole->parameter[i].piece[0].part == index) {
        add_home(&c->parameter[i], i, &c->part[c->n_parts - 1], c->n_parts - 1, home);
      }
    }
    cut_home(&c->part[c->n_parts - 1], c->n_shards, cuts, home);
  }
}

static ts_checkpoint *cut_checkpoint(const ts_checkpoint *whole, int n_shards, fixture_cuts cuts, bool bands) {
  ts_checkpoint *c = ts_calloc(1, sizeof *c);
  *c = (ts_checkpoint){.deck = ts_strdup(whole->deck), .source = ts_strdup(whole->source), .n_shards = n_shards};
#define X(type, name) c->name = whole->name;
  TS_CHECKPOINT_NUMBERS(X)
#undef X
  c->n_parameters = whole->n_parameters;
  c->parameter = ts_calloc((size_t) c->n_parameters, sizeof *c->parameter);
  for (int i = 0; i < c->n_parameters; ++i) {
    ts_saved_parameter *p = &c->parameter[i];
    *p = whole->parameter[i];
    p->name = ts_strdup(p->name);
    p->dim = piece_rules[i].dim;
    p->n_pieces = piece_rules[i].n * (bands && piece_rules[i].band > 0 ? 2 : 1);
    p->piece = ts_calloc((size_t) p->n_pieces, sizeof *p->piece);
  }
  for (int i = 0; i < whole->n_parts; ++i) {
    add_homes(c, whole, i, cuts);
  }
  c->fact = ts_calloc(1, sizeof *c->fact);
  return c;
}

ts_checkpoint *fixture_pieces(const ts_checkpoint *whole, int n_shards, fixture_cuts cuts) {
  return cut_checkpoint(whole, n_shards, cuts, false);
}

ts_checkpoint *fixture_bands(const ts_checkpoint *whole, int n_shards, fixture_cuts cuts) {
  return cut_checkpoint(whole, n_shards, cuts, true);
}

int64_t fixture_place(const ts_saved_parameter *p, int64_t element, int *part) {
  int64_t slice = extents(p, p->dim + 1, p->n_dims), row = element / slice / p->shape[p->dim];
  int64_t index = element / slice % p->shape[p->dim];
  for (int k = 0; k < p->n_pieces; ++k) {
    const ts_saved_piece *piece = &p->piece[k];
    bool has_row = row >= piece->first_row && row < piece->first_row + piece->rows;
    if (has_row && index >= piece->begin && index < piece->begin + piece->length) {
      *part = piece->part;
      return piece->offset + (row - piece->first_row) * piece->pitch + (index - piece->begin) * slice + element % slice;
    }
  }
  TS_CHECK(false, "%s has no element %lld", p->name, (long long) element);
  return -1;
}

/* ---- values ---- */

static float value(int part, int state, int64_t i) {
  uint64_t bits = ts_mix((uint64_t) (8 * part + state), (uint64_t) i);
  return (float) (int32_t) (bits >> 32) * 1.5e-9f;
}

void fixture_values(const ts_checkpoint *c, int part, int state, int64_t first, int64_t count, void *to) {
  bool half = c->part[part].state[state].dtype == TS_BF16;
  for (int64_t i = 0; i < count; ++i) {
    float x = value(part, state, first + i);
    if (half) {
      ((uint16_t *) to)[i] = ts_f32_to_bf16(x);
    } else {
      ((float *) to)[i] = x;
    }
  }
}

void fixture_values_as(const ts_checkpoint *c, int part, int state, int64_t first, int64_t count, ts_dtype dtype,
                       void *to) {
  float *own = ts_malloc((size_t) count * sizeof *own + 1);
  fixture_values(c, part, state, first, count, own);
  ts_convert(to, dtype, own, c->part[part].state[state].dtype, (size_t) count);
  ts_free(own);
}

/* ---- files ---- */

typedef struct shard_values {
  const ts_checkpoint *checkpoint;
  int shard;
} shard_values;

static void give(void *user, int part, int state, int64_t first, int64_t count, void *to) {
  const shard_values *s = user;
  const ts_saved_part *p = &s->checkpoint->part[part];
  fixture_values(s->checkpoint, part, state, ts_saved_state_cut(p, state, s->shard) + first, count, to);
}

ts_status fixture_write_shard(const char *directory, const ts_checkpoint *c, int shard, ts_error *err) {
  return ts_checkpoint_write_shard(directory, c, shard, give, &(shard_values){c, shard}, err);
}

char *fixture_write(const char *name, const ts_checkpoint *c) {
  char *directory = ts_format("%s/%s", tap_directory(), name);
  ts_error err = {0};
  TS_CHECK(ts_make_directory(directory, &err) == TS_OK, "%s", err.text);
  for (int s = 0; s < c->n_shards; ++s) {
    TS_CHECK(fixture_write_shard(directory, c, s, &err) == TS_OK, "%s", err.text);
  }
  TS_CHECK(ts_checkpoint_write_index(directory, c, &err) == TS_OK, "%s", err.text);
  return directory;
}

/* All of a part's state, its gaps 0: the elements of `whole` where the pieces say that they lie. */
static char *gather(const ts_checkpoint *c, const ts_checkpoint *whole, int part, int state) {
  size_t size = ts_dtype_size(c->part[part].state[state].dtype);
  char *flat = ts_calloc((size_t) c->part[part].count, size);
  for (int i = 0; i < c->n_parameters; ++i) {
    const ts_saved_parameter *p = &c->parameter[i];
    const ts_saved_piece *from = &whole->parameter[i].piece[0];
    for (int64_t at = 0; at < p->count; ++at) {
      int in_part;
      int64_t place = fixture_place(p, at, &in_part);
      if (in_part == part) {
        fixture_values(whole, from->part, state, from->offset + at, 1, flat + (size_t) place * size);
      }
    }
  }
  return flat;
}

typedef struct flat_shard {
  const ts_checkpoint *checkpoint;
  int shard;
  char *const *flat; /* per state of each part */
} flat_shard;

static void give_flat(void *user, int part, int state, int64_t first, int64_t count, void *to) {
  const flat_shard *s = user;
  const ts_saved_part *p = &s->checkpoint->part[part];
  size_t size = ts_dtype_size(p->state[state].dtype);
  int index = state;
  for (int i = 0; i < part; ++i) {
    index += s->checkpoint->part[i].n_states;
  }
  memcpy(to, s->flat[index] + (size_t) (p->cuts[s->shard] + first) * size, (size_t) count * size);
}

char *fixture_write_pieces(const char *name, const ts_checkpoint *c, const ts_checkpoint *whole) {
  char *directory = ts_format("%s/%s", tap_directory(), name), *flat[2 * N_DATASETS] = {NULL};
  ts_error err = {0};
  int n = 0;
  TS_CHECK(ts_make_directory(directory, &err) == TS_OK, "%s", err.text);
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      flat[n++] = gather(c, whole, i, k);
    }
  }
  for (int s = 0; s < c->n_shards; ++s) {
    flat_shard from = {c, s, flat};
    TS_CHECK(ts_checkpoint_write_shard(directory, c, s, give_flat, &from, &err) == TS_OK, "%s", err.text);
  }
  TS_CHECK(ts_checkpoint_write_index(directory, c, &err) == TS_OK, "%s", err.text);
  while (n > 0) {
    ts_free(flat[--n]);
  }
  return directory;
}

static int64_t count_differences(const ts_checkpoint *c, const ts_checkpoint_piece *p) {
  size_t size = ts_dtype_size(p->dtype);
  const char *read = p->to;
  char *right = ts_malloc((size_t) p->count * size);
  int64_t wrong = 0;
  fixture_values(c, p->part, p->state, p->first, p->count, right);
  for (size_t at = 0; at < (size_t) p->count * size; at += size) {
    wrong += memcmp(read + at, right + at, size) != 0;
  }
  ts_free(right);
  return wrong;
}

int64_t fixture_differences(const char *directory, const ts_checkpoint *c) {
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(directory, c);
  ts_checkpoint_piece piece[N_DATASETS];
  ts_error err = {0};
  int n = 0;
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      piece[n] = (ts_checkpoint_piece){.part = i,
                                       .state = k,
                                       .count = ts_saved_state_cut(&c->part[i], k, c->n_shards),
                                       .dtype = c->part[i].state[k].dtype};
      piece[n].to = ts_calloc((size_t) piece[n].count, ts_dtype_size(piece[n].dtype));
      ++n;
    }
  }
  int64_t wrong = ts_checkpoint_read(reader, piece, n, &err) == TS_OK ? 0 : -1;
  for (int i = 0; i < n; ++i) {
    wrong += wrong >= 0 ? count_differences(c, &piece[i]) : 0;
    ts_free(piece[i].to);
  }
  if (wrong < 0) {
    tap_note("%s", err.text);
  }
  ts_error_clear(&err);
  ts_checkpoint_reader_close(&reader);
  return wrong;
}

/* ---- verdicts ---- */

bool fixture_says(ts_status status, ts_error *err, const char *path, const char *words) {
  bool found = status == TS_BAD_INPUT && err->count == 1 && strncmp(err->text, path, strlen(path)) == 0 &&
               strstr(err->text, words) != NULL;
  if (!found) {
    tap_note("status %d, %d messages, wanted \"%s: ... %s\", got: %s", (int) status, err->count, path, words,
             err->count > 0 ? err->text : "nothing");
  }
  ts_error_clear(err);
  return found;
}

int fixture_descriptors(void) {
  DIR *list = opendir("/proc/self/fd");
  int n = 0;
  while (list != NULL && readdir(list) != NULL) {
    ++n;
  }
  if (list != NULL) {
    closedir(list);
  }
  return n - 3; /* ".", ".." and the listing itself */
}

int64_t fixture_hdf5_objects(void) {
  ts_hdf5_lock();
  int64_t n = H5Fget_obj_count((hid_t) H5F_OBJ_ALL, H5F_OBJ_ALL);
  ts_hdf5_unlock();
  return n;
}
