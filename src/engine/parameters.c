/* The values of parameters: their first ones, and reading them back. */
#include "base/memory.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/import.h"
#include "pass/saved.h"

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

void ts_engine_write_parameter(ts_engine *e, const ts_parameter *p, int64_t first, int64_t count, const float *value) {
  ts_engine_forget(e);
  const ts_part *part = &ts_engine_layout(e)->part[p->part];
  holder holders[] = {find_holder(e, part, TS_STATE_PARAMETER), find_holder(e, part, TS_STATE_MASTER)};
  for (int64_t at = 0, n; at < p->count; at += n) {
    n = p->count - at;
    int64_t whole = ts_parameter_in_whole(p, at, &n);
    int64_t from = first > whole ? first : whole, to = first + count < whole + n ? first + count : whole + n;
    for (int i = 0; i < 2 && from < to; ++i) {
      write_holder(e, &holders[i], p->offset + at + from - whole, to - from, value + (from - first));
    }
  }
}

/* ---- first values ---- */

static void initialise_from_seed(ts_engine *e, const ts_parameter *p) {
  ts_init init = ts_model_init(e->deck, p->name);
  uint64_t key = ts_mix((uint64_t) e->deck->run.seed, ts_hash_name(p->name));
  float *block = ts_malloc((size_t) BLOCK * sizeof *block);
  int64_t whole = ts_shape_count(&p->shape);
  for (int64_t first = 0; first < whole; first += BLOCK) {
    int64_t count = whole - first < BLOCK ? whole - first : BLOCK;
    if (init.kind == TS_INIT_NORMAL) {
      ts_random_normal(key, first, count, init.std, block);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        block[i] = init.kind == TS_INIT_ONE ? 1.0f : 0.0f;
      }
    }
    ts_engine_write_parameter(e, p, first, count, block);
  }
  ts_free(block);
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

ts_status ts_engine_read_parameter(ts_engine *e, const char *name, float *value, ts_error *err) {
  const ts_layout *layout = ts_engine_layout(e);
  const ts_parameter *p = ts_layout_find(layout, name);
  if (p == NULL) {
    return ts_error_add(err, "the model has no parameter %s", name);
  }
  TS_CHECK(ts_parameter_is_whole(p), "%s: this rank does not hold all of it", name);
  const ts_part *part = &layout->part[p->part];
  holder h = best_holder(e, part);
  if (h.whole) {
    get_values(e, &h, p->offset, p->count, value);
    return TS_OK;
  }
  float *whole = ts_malloc((size_t) part->count * sizeof *whole);
  get_values(e, &h, 0, h.count, whole + h.begin);
  ts_transfer transfer = {.x = whole + h.begin, .y = whole, .cuts = part->cuts, .begin = 0, .end = part->shard};
  ts_comm *comm = ts_world_comm(e->world, &e->mesh, part->axes);
  comm->ops->all_gather(comm, &transfer, 1, TS_F32);
  memcpy(value, whole + p->offset, (size_t) p->count * sizeof *value);
  ts_free(whole);
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

/* Sum over all ranks; unsigned sums do not depend on the order. */
static void sum_over_ranks(ts_engine *e, uint64_t *digest, int n) {
  ts_comm *comm = ts_world_comm(e->world, &e->mesh, TS_AXES_ALL);
  uint64_t *all = ts_malloc((size_t) comm->size * (size_t) n * sizeof *all);
  int64_t *cuts = ts_malloc(((size_t) comm->size + 1) * sizeof *cuts);
  for (int r = 0; r <= comm->size; ++r) {
    cuts[r] = (int64_t) r * n;
  }
  comm->ops->all_gather(comm, &(ts_transfer){.x = digest, .y = all, .cuts = cuts, .end = n}, 1, TS_I64);
  for (int i = 0; i < n; ++i) {
    digest[i] = 0;
    for (int r = 0; r < comm->size; ++r) {
      digest[i] += all[(size_t) r * (size_t) n + (size_t) i];
    }
  }
  ts_free(all);
  ts_free(cuts);
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
  sum_over_ranks(e, digest, layout->n_parameters);
}
