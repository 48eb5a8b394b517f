/* The values of parameters: their first ones, and reading them back. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/import.h"
#include "pass/saved.h"

#include <math.h>
#include <string.h>

#define BLOCK ((int64_t) 1 << 16)

/* ---- writing ---- */

/* A leaf that holds elements [begin, begin + count) of a part. */
typedef struct holder {
  ts_tid leaf; /* TS_NONE: there is none */
  ts_dtype dtype;
  bool whole; /* all of the part, on every rank */
  int64_t begin, count;
} holder;

static holder find_holder(const ts_engine *e, const ts_part *part, ts_state state) {
  const ts_layout *layout = ts_engine_layout(e);
  ts_saved_leaf leaf;
  if (!ts_saved_leaf_find(ts_engine_program(e)->graph, layout, (int) (part - layout->part), state, &leaf)) {
    return (holder){.leaf = TS_NONE};
  }
  return (holder){.leaf = leaf.leaf,
                  .dtype = leaf.dtype,
                  .whole = leaf.whole,
                  .begin = leaf.whole ? 0 : ts_part_begin(part),
                  .count = leaf.whole ? part->count : leaf.count};
}

/* Elements from `first` of the holder on, to or from fp32. */
static void put_values(const ts_engine *e, const holder *h, int64_t first, int64_t count, const float *value) {
  void *converted = ts_malloc((size_t) count * ts_dtype_size(h->dtype));
  ts_convert(converted, h->dtype, value, TS_F32, (size_t) count);
  ts_executor_write_state(e->executor, h->leaf, first, count, converted);
  ts_free(converted);
}

static void get_values(const ts_engine *e, const holder *h, int64_t first, int64_t count, float *value) {
  void *copy = ts_malloc((size_t) count * ts_dtype_size(h->dtype) + 1);
  ts_executor_read_state(e->executor, h->leaf, first, count, copy);
  ts_convert(value, TS_F32, copy, h->dtype, (size_t) count);
  ts_free(copy);
}

static void write_holder(const ts_engine *e, const holder *h, int64_t at, int64_t count, const float *value) {
  int64_t from = at > h->begin ? at : h->begin;
  int64_t to = at + count < h->begin + h->count ? at + count : h->begin + h->count;
  if (h->leaf != TS_NONE && from < to) {
    put_values(e, h, from - h->begin, to - from, value + (from - at));
  }
}

/* A parameter on its way to its holders. */
typedef struct filling {
  const ts_engine *engine;
  const ts_parameter *parameter;
  holder holder[2];
  ts_parameter_source *source;
  void *user;
  float *block;
} filling;

/* Elements [from, to) of the part, as far as they are the parameter's. */
static void fill_holders(const filling *f, int64_t from, int64_t to, bool owned) {
  const ts_parameter *p = f->parameter;
  from = from > p->offset ? from : p->offset;
  to = to < p->offset + p->count ? to : p->offset + p->count;
  for (int64_t n; from < to; from += n) {
    n = to - from < BLOCK ? to - from : BLOCK;
    for (int64_t at = 0, count; at < n; at += count) {
      count = n - at;
      int64_t whole = ts_parameter_in_whole(p, from + at - p->offset, &count);
      f->source(f->user, whole, count, owned, f->block + at);
    }
    for (int i = 0; i < 2; ++i) {
      write_holder(f->engine, &f->holder[i], from, n, f->block);
    }
  }
}

void ts_engine_write_parameter(ts_engine *e, const ts_parameter *p, ts_parameter_source *source, void *user) {
  ts_engine_forget(e);
  const ts_part *part = &ts_engine_layout(e)->part[p->part];
  const filling f = {.engine = e,
                     .parameter = p,
                     .holder = {find_holder(e, part, TS_STATE_PARAMETER), find_holder(e, part, TS_STATE_MASTER)},
                     .source = source,
                     .user = user,
                     .block = ts_malloc((size_t) BLOCK * sizeof *f.block)};
  bool whole = f.holder[0].whole || f.holder[1].whole;
  int64_t begin = ts_part_begin(part), end = ts_part_end(part);
  fill_holders(&f, whole ? 0 : begin, begin, false);
  fill_holders(&f, begin, end, part->owned);
  fill_holders(&f, end, whole ? part->count : end, false);
  ts_free(f.block);
}

/* ---- too large for fp16 ---- */

/* Elements of a parameter that this rank owns and whose copy is infinite, but not they themselves. */
static uint64_t count_overflows(const ts_engine *e, const ts_parameter *p) {
  const ts_part *part = &ts_engine_layout(e)->part[p->part];
  const holder low = find_holder(e, part, TS_STATE_PARAMETER), high = find_holder(e, part, TS_STATE_MASTER);
  int64_t from = ts_part_begin(part), to = part->owned ? ts_part_end(part) : from;
  bool has_master = high.leaf != TS_NONE;
  uint64_t n = 0;
  float *copy = ts_malloc((size_t) BLOCK * sizeof *copy), *master = ts_malloc((size_t) BLOCK * sizeof *master);
  from = from > p->offset ? from : p->offset;
  to = to < p->offset + p->count ? to : p->offset + p->count;
  for (int64_t count; from < to; from += count) {
    count = to - from < BLOCK ? to - from : BLOCK;
    get_values(e, &low, from - low.begin, count, copy);
    if (has_master) {
      get_values(e, &high, from - high.begin, count, master);
    }
    for (int64_t i = 0; i < count; ++i) {
      n += isinf(copy[i]) && !(has_master && isinf(master[i]));
    }
  }
  ts_free(copy);
  ts_free(master);
  return n;
}

void ts_engine_say_overflow(ts_engine *e) {
  const ts_layout *layout = ts_engine_layout(e);
  if (ts_deck_dtype(e->deck) != TS_F16) {
    return;
  }
  uint64_t *n = ts_calloc((size_t) layout->n_parameters + 1, sizeof *n);
  int first = -1;
  for (int i = 0; i < layout->n_parameters; ++i) {
    n[i] = count_overflows(e, &layout->parameter[i]);
  }
  ts_engine_sum(e, n, layout->n_parameters);
  for (int i = layout->n_parameters - 1; i >= 0; --i) {
    first = n[i] > 0 ? i : first;
  }
  if (first >= 0) {
    ts_log(TS_LOG_WARNING,
           "%llu values of %s are above 65504, the largest number of fp16, and infinite in it: no loss will be finite; "
           "bf16.enabled = true holds them",
           (unsigned long long) n[first], layout->parameter[first].name);
  }
  ts_free(n);
}

/* ---- first values ---- */

/* What the values of a parameter follow from: its elements in the whole tensor, so they are the same on any grid. */
typedef struct seed {
  ts_init init;
  uint64_t key;
} seed;

static void draw(void *user, int64_t first, int64_t count, bool owned, float *value) {
  (void) owned;
  const seed *s = user;
  if (s->init.kind == TS_INIT_NORMAL) {
    ts_random_normal(s->key, first, count, s->init.std, value);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    value[i] = s->init.kind == TS_INIT_ONE ? 1.0f : 0.0f;
  }
}

static void initialise_from_seed(ts_engine *e, const ts_parameter *p) {
  seed s = {p->init, ts_mix((uint64_t) e->deck->run.seed, ts_hash_name(p->name))};
  ts_engine_write_parameter(e, p, draw, &s);
}

ts_status ts_engine_initialise(ts_engine *e, ts_error *err) {
  if (e->deck->model.from[0] != 0) {
    return ts_world_agree(e->world, ts_engine_import(e, err), err);
  }
  const ts_layout *layout = ts_engine_layout(e);
  for (int i = 0; i < layout->n_parameters; ++i) {
    initialise_from_seed(e, &layout->parameter[i]);
  }
  return TS_OK;
}

/* ---- reading ---- */

/* The best copy of a part: the master, else the working values. */
static holder best_holder(const ts_engine *e, const ts_part *part) {
  holder h = find_holder(e, part, TS_STATE_MASTER);
  return h.leaf != TS_NONE ? h : find_holder(e, part, TS_STATE_PARAMETER);
}

/* What this rank's part has of a parameter.  Collective over the part's group. */
static float *gather_part(ts_engine *e, const ts_parameter *p) {
  const ts_part *part = &ts_engine_layout(e)->part[p->part];
  float *held = ts_malloc((size_t) p->count * sizeof *held);
  holder h = best_holder(e, part);
  if (h.whole) {
    get_values(e, &h, p->offset, p->count, held);
    return held;
  }
  float *whole = ts_malloc((size_t) part->count * sizeof *whole);
  get_values(e, &h, 0, h.count, whole + h.begin);
  ts_transfer transfer = {.x = whole + h.begin, .y = whole, .cuts = part->cuts, .begin = 0, .end = part->shard};
  ts_comm *comm = ts_world_comm(e->world, &e->mesh, part->axes);
  comm->ops->all_gather(comm, &transfer, 1, TS_F32);
  memcpy(held, whole + p->offset, (size_t) p->count * sizeof *held);
  ts_free(whole);
  return held;
}

static void put_in_place(const ts_parameter *p, size_t size, const char *held, char *value) {
  for (int64_t at = 0, n; at < p->count; at += n) {
    n = p->count - at;
    int64_t whole = ts_parameter_in_whole(p, at, &n);
    memcpy(value + (size_t) whole * size, held + (size_t) at * size, (size_t) n * size);
  }
}

/* What all ranks along tp hold of parameter \a index: the one of several that have an element does not matter. */
static void gather_along_tp(ts_engine *e, int index, ts_dtype dtype, const void *held, void *value) {
  size_t size = ts_dtype_size(dtype);
  ts_comm *comm = ts_world_comm(e->world, &e->mesh, TS_AXES(TS_AXIS_TP));
  ts_layout **layout = ts_malloc((size_t) comm->size * sizeof *layout);
  int64_t *cuts = ts_calloc((size_t) comm->size + 1, sizeof *cuts), most = 0;
  for (int r = 0; r < comm->size; ++r) {
    ts_mesh there = ts_mesh_at(&e->mesh, ts_mesh_group_member(&e->mesh, TS_AXES(TS_AXIS_TP), r));
    layout[r] = ts_engine_layout_at(e, &there);
    int64_t count = layout[r]->parameter[index].count;
    cuts[r + 1] = cuts[r] + count;
    most = count > most ? count : most;
  }
  char *all = ts_malloc((size_t) cuts[comm->size] * size);
  ts_transfer transfer = {.x = held, .y = all, .cuts = cuts, .begin = 0, .end = most};
  comm->ops->all_gather(comm, &transfer, 1, dtype);
  for (int r = 0; r < comm->size; ++r) {
    put_in_place(&layout[r]->parameter[index], size, all + (size_t) cuts[r] * size, value);
    ts_layout_destroy(&layout[r]);
  }
  ts_free(all);
  ts_free(cuts);
  ts_free(layout);
}

void ts_engine_put_together(ts_engine *e, int index, ts_dtype dtype, const void *held, void *value) {
  if (e->mesh.size[TS_AXIS_TP] == 1) {
    put_in_place(&ts_engine_layout(e)->parameter[index], ts_dtype_size(dtype), held, value);
  } else {
    gather_along_tp(e, index, dtype, held, value);
  }
}

ts_status ts_get_full_fp32_parameter(ts_engine *e, const char *name, float *value, ts_error *err) {
  const ts_layout *layout = ts_engine_layout(e);
  const ts_parameter *p = ts_layout_find(layout, name);
  if (p == NULL) {
    return ts_error_add(err, "the model has no parameter %s", name);
  }
  float *held = gather_part(e, p);
  ts_engine_put_together(e, (int) (p - layout->parameter), TS_F32, held, value);
  ts_free(held);
  return TS_OK;
}

static void take_given(void *user, int64_t first, int64_t count, bool owned, float *value) {
  (void) owned;
  memcpy(value, (const float *) user + first, (size_t) count * sizeof *value);
}

ts_status ts_set_full_fp32_parameter(ts_engine *e, const char *name, const float *value, ts_error *err) {
  const ts_parameter *p = ts_layout_find(ts_engine_layout(e), name);
  if (p == NULL) {
    return ts_error_add(err, "the model has no parameter %s", name);
  }
  ts_engine_write_parameter(e, p, take_given, (float *) value);
  return TS_OK;
}

/* ---- digests ---- */

/* Elements [from, to) of a part that this rank owns, as far as they belong to parameter p. */
static uint64_t digest_owned(const ts_engine *e, const holder *h, const ts_parameter *p, int64_t from, int64_t to) {
  uint64_t digest = 0;
  float *block = ts_malloc((size_t) BLOCK * sizeof *block);
  from = from > p->offset ? from : p->offset;
  to = to < p->offset + p->count ? to : p->offset + p->count;
  for (int64_t count; from < to; from += count) {
    count = to - from < BLOCK ? to - from : BLOCK;
    int64_t whole = ts_parameter_in_whole(p, from - p->offset, &count);
    get_values(e, h, from - h->begin, count, block);
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits;
      memcpy(&bits, &block[i], sizeof bits);
      digest += ts_mix(bits, (uint64_t) (whole + i));
    }
  }
  ts_free(block);
  return digest;
}

void ts_engine_sum(const ts_engine *e, uint64_t *number, int n) {
  uint64_t *all = ts_world_gather(e->world, number, (size_t) n * sizeof *number);
  for (int i = 0; i < n; ++i) {
    number[i] = 0;
    for (int r = 0; r < ts_world_size(e->world); ++r) {
      number[i] += all[(size_t) r * (size_t) n + (size_t) i];
    }
  }
  ts_free(all);
}

void ts_engine_digest(ts_engine *e, uint64_t *digest) {
  const ts_layout *layout = ts_engine_layout(e);
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    const ts_part *part = &layout->part[p->part];
    holder h = best_holder(e, part);
    int64_t begin = ts_part_begin(part);
    digest[i] = digest_owned(e, &h, p, begin, part->owned ? ts_part_end(part) : begin);
  }
  ts_engine_sum(e, digest, layout->n_parameters);
}
