/* The values of parameters: their first ones, and what is asked of all of them. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/holder.h"
#include "engine/import.h"

#include <math.h>
#include <string.h>

#define BLOCK ((int64_t) 1 << 16)

/* ---- writing ---- */

void ts_engine_write_parameter(ts_engine *e, const ts_parameter *p, ts_parameter_source *source, void *user) {
  ts_engine_forget(e);
  const ts_part *part = &ts_engine_layout(e)->part[p->part];
  const ts_holder holder[] = {ts_holder_find(e, part, TS_STATE_PARAMETER), ts_holder_find(e, part, TS_STATE_MASTER)};
  ts_holders_fill(e, p, holder, 2, source, user);
}

/* ---- too large for fp16 ---- */

/* Elements of a parameter that this rank owns and whose copy is infinite, but not they themselves. */
static uint64_t count_overflows(const ts_engine *e, const ts_parameter *p) {
  const ts_part *part = &ts_engine_layout(e)->part[p->part];
  const ts_holder low = ts_holder_find(e, part, TS_STATE_PARAMETER), high = ts_holder_find(e, part, TS_STATE_MASTER);
  int64_t from = ts_part_begin(part), to = part->owned ? ts_part_end(part) : from;
  bool has_master = high.leaf != TS_NONE;
  uint64_t n = 0;
  float *copy = ts_malloc((size_t) BLOCK * sizeof *copy), *master = ts_malloc((size_t) BLOCK * sizeof *master);
  from = from > p->offset ? from : p->offset;
  to = to < p->offset + p->count ? to : p->offset + p->count;
  for (int64_t count; from < to; from += count) {
    count = to - from < BLOCK ? to - from : BLOCK;
    ts_holder_read(e, &low, from, count, copy);
    if (has_master) {
      ts_holder_read(e, &high, from, count, master);
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
  int threads;
} seed;

static void draw(void *user, int64_t first, int64_t count, bool owned, float *value) {
  (void) owned;
  const seed *s = user;
  if (s->init.kind == TS_INIT_NORMAL) {
    const int64_t piece = 4096;
#pragma omp parallel for num_threads(s->threads) schedule(static)
    for (int64_t i = 0; i < count; i += piece) {
      ts_random_normal(s->key, first + i, count - i < piece ? count - i : piece, s->init.std, value + i);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    value[i] = s->init.kind == TS_INIT_ONE ? 1.0f : 0.0f;
  }
}

void ts_engine_seed_parameter(ts_engine *e, const ts_parameter *p, ts_init init) {
  seed s = {init, ts_mix((uint64_t) e->deck->run.seed, ts_hash_name(p->name)), ts_engine_program(e)->target.threads};
  ts_engine_write_parameter(e, p, draw, &s);
}

ts_status ts_engine_initialise(ts_engine *e, ts_error *err) {
  if (e->deck->model.from[0] != 0) {
    return ts_world_agree(e->world, ts_engine_import(e, e->deck->model.from, err), err);
  }
  const ts_layout *layout = ts_engine_layout(e);
  for (int i = 0; i < layout->n_parameters; ++i) {
    ts_engine_seed_parameter(e, &layout->parameter[i], layout->parameter[i].init);
  }
  return TS_OK;
}

/* ---- digests ---- */

/* Elements [from, to) of a part that this rank owns, as far as they belong to parameter p. */
static uint64_t digest_owned(const ts_engine *e, const ts_holder *h, const ts_parameter *p, int64_t from, int64_t to) {
  uint64_t digest = 0;
  float *block = ts_malloc((size_t) BLOCK * sizeof *block);
  from = from > p->offset ? from : p->offset;
  to = to < p->offset + p->count ? to : p->offset + p->count;
  for (int64_t count; from < to; from += count) {
    count = to - from < BLOCK ? to - from : BLOCK;
    int64_t whole = ts_parameter_in_whole(p, from - p->offset, &count);
    ts_holder_read(e, h, from, count, block);
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
    ts_holder h = ts_holder_of_values(e, part);
    int64_t begin = ts_part_begin(part);
    digest[i] = digest_owned(e, &h, p, begin, part->owned ? ts_part_end(part) : begin);
  }
  ts_engine_sum(e, digest, layout->n_parameters);
}
