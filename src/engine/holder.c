#include "engine/holder.h"

#include "backend/code_book.h"
#include "base/memory.h"
#include "engine/recode.h"
#include "pass/saved.h"
#include "pass/state.h"

#include <string.h>

#define BLOCK ((int64_t) 1 << 16) /* elements at a time: whole blocks of codes */

ts_holder ts_holder_find(const ts_engine *e, const ts_part *part, ts_state state) {
  const ts_layout *layout = ts_engine_layout(e);
  const ts_graph *graph = ts_engine_program(e)->graph;
  int index = (int) (part - layout->part);
  ts_saved_leaf leaf, scales;
  if (!ts_saved_leaf_find(graph, layout, index, state, &leaf)) {
    return (ts_holder){.leaf = TS_NONE};
  }
  ts_holder h = {.leaf = leaf.leaf,
                 .dtype = leaf.dtype,
                 .whole = leaf.whole,
                 .begin = leaf.whole ? 0 : ts_part_begin(part),
                 .count = leaf.whole ? part->count : leaf.count,
                 .factor = 1};
  if (h.dtype == TS_U8) {
    bool found = ts_saved_leaf_find(graph, layout, index, ts_state_scales(state), &scales);
    TS_CHECK(found, "%s of part %s has no scales", leaf.state, part->name);
    h.scales = scales.leaf;
    h.has_sign = ts_state_has_sign(state);
  }
  return h;
}

ts_holder ts_holder_of_values(const ts_engine *e, const ts_part *part) {
  ts_holder h = ts_holder_find(e, part, TS_STATE_MASTER);
  return h.leaf != TS_NONE ? h : ts_holder_find(e, part, TS_STATE_PARAMETER);
}

ts_holder ts_holder_of_shard(const ts_holder *holder, const ts_part *part) {
  ts_holder h = *holder;
  h.whole = false;
  h.begin = ts_part_begin(part);
  h.count = ts_part_end(part) - h.begin;
  h.first = holder->first + h.begin - holder->begin;
  return h;
}

/* ---- floats ---- */

static void read_floats(const ts_engine *e, const ts_holder *h, int64_t at, int64_t count, float *value) {
  void *copy = ts_malloc((size_t) count * ts_dtype_size(h->dtype) + 1);
  ts_executor_read_state(e->executor, h->leaf, h->first + at - h->begin, count, copy);
  ts_convert(value, TS_F32, copy, h->dtype, (size_t) count);
  ts_free(copy);
  for (int64_t i = 0; h->factor != 1 && i < count; ++i) {
    value[i] *= h->factor;
  }
}

/* What is to be stored, where values are multiples of it; by the factor twice what is there might become another. */
static float *stored_values(const ts_engine *e, const ts_holder *h, int64_t at, int64_t count, const float *value) {
  ts_holder raw = *h;
  raw.factor = 1;
  float *stored = ts_malloc((size_t) count * sizeof *stored);
  read_floats(e, &raw, at, count, stored);
  for (int64_t i = 0; i < count; ++i) {
    stored[i] = stored[i] * h->factor == value[i] ? stored[i] : value[i] / h->factor;
  }
  return stored;
}

static void write_floats(const ts_engine *e, const ts_holder *h, int64_t at, int64_t count, const float *value) {
  float *stored = h->factor != 1 ? stored_values(e, h, at, count, value) : NULL;
  void *converted = ts_malloc((size_t) count * ts_dtype_size(h->dtype));
  ts_convert(converted, h->dtype, stored != NULL ? stored : value, TS_F32, (size_t) count);
  ts_executor_write_state(e->executor, h->leaf, h->first + at - h->begin, count, converted);
  ts_free(converted);
  ts_free(stored);
}

/* ---- codes in 8 bits ---- */

/* Blocks of codes on their way: elements [at, at + count) of the leaf. */
typedef struct coded {
  const ts_code_book *book;
  int64_t at, count, n_scales;
  uint8_t *code; /* owned, as the scales */
  float *scale;
} coded;

static coded read_codes(const ts_engine *e, const ts_holder *h, int64_t at, int64_t count) {
  coded c = {.book = ts_code_book_get(h->has_sign), .at = h->first + at - h->begin, .count = count};
  int64_t block = c.at / TS_STATE_BLOCK;
  c.n_scales = ts_state_elements(TS_STATE_BLOCK, c.at + count) - block;
  c.code = ts_malloc((size_t) count + 1);
  c.scale = ts_malloc((size_t) c.n_scales * sizeof *c.scale + 1);
  ts_executor_read_state(e->executor, h->leaf, c.at, count, c.code);
  ts_executor_read_state(e->executor, h->scales, block, c.n_scales, c.scale);
  return c;
}

static void free_codes(coded *c) {
  ts_free(c->code);
  ts_free(c->scale);
}

/* Element i; a zero has no sign. */
static float decoded(const coded *c, int64_t i) {
  int64_t block = (c->at + i) / TS_STATE_BLOCK - c->at / TS_STATE_BLOCK;
  return c->book->map[c->code[i]] * c->scale[block] + 0.0f;
}

static void code_anew(coded *c, int64_t i, int64_t n, const float *value) {
  bool same = true;
  for (int64_t k = i; k < i + n; ++k) {
    same = same && decoded(c, k) == value[k];
  }
  if (!same) {
    c->scale[i / TS_STATE_BLOCK] = ts_recode_block(value + i, n, c->book, c->code + i);
  }
}

static void write_codes(const ts_engine *e, const ts_holder *h, int64_t at, int64_t count, const float *value) {
  coded c = read_codes(e, h, at, count);
  TS_ASSERT(c.at % TS_STATE_BLOCK == 0);
  for (int64_t i = 0, n; i < count; i += n) {
    n = count - i < TS_STATE_BLOCK ? count - i : TS_STATE_BLOCK;
    code_anew(&c, i, n, value);
  }
  ts_executor_write_state(e->executor, h->leaf, c.at, count, c.code);
  ts_executor_write_state(e->executor, h->scales, c.at / TS_STATE_BLOCK, c.n_scales, c.scale);
  free_codes(&c);
}

/* ---- either ---- */

void ts_holder_read(const ts_engine *e, const ts_holder *h, int64_t at, int64_t count, float *value) {
  TS_ASSERT(at >= h->begin && at + count <= h->begin + h->count);
  if (h->dtype != TS_U8) {
    read_floats(e, h, at, count, value);
    return;
  }
  coded c = read_codes(e, h, at, count);
  for (int64_t i = 0; i < count; ++i) {
    value[i] = decoded(&c, i);
  }
  free_codes(&c);
}

void ts_holder_write(const ts_engine *e, const ts_holder *h, int64_t at, int64_t count, const float *value) {
  int64_t from = at > h->begin ? at : h->begin;
  int64_t to = at + count < h->begin + h->count ? at + count : h->begin + h->count;
  if (h->leaf != TS_NONE && from < to) {
    (h->dtype == TS_U8 ? write_codes : write_floats)(e, h, from, to - from, value + (from - at));
  }
}

/* ---- a parameter on its way to its holders ---- */

typedef struct filling {
  const ts_engine *engine;
  const ts_parameter *parameter;
  const ts_holder *holder;
  int n;
  ts_parameter_source *source;
  void *user;
  float *block;
} filling;

/* Elements [from, to) of the part, as far as they are the parameter's. */
static void fill_range(const filling *f, int64_t from, int64_t to, bool owned) {
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
    for (int i = 0; i < f->n; ++i) {
      ts_holder_write(f->engine, &f->holder[i], from, n, f->block);
    }
  }
}

void ts_holders_fill(const ts_engine *e, const ts_parameter *p, const ts_holder *holder, int n,
                     ts_parameter_source *source, void *user) {
  const ts_part *part = &ts_engine_layout(e)->part[p->part];
  if (!part->here) {
    return;
  }
  const filling f = {.engine = e,
                     .parameter = p,
                     .holder = holder,
                     .n = n,
                     .source = source,
                     .user = user,
                     .block = ts_malloc((size_t) BLOCK * sizeof *f.block)};
  bool whole = false;
  for (int i = 0; i < n; ++i) {
    whole = whole || (holder[i].leaf != TS_NONE && holder[i].whole);
  }
  int64_t begin = ts_part_begin(part), end = ts_part_end(part);
  fill_range(&f, whole ? 0 : begin, begin, false);
  fill_range(&f, begin, end, part->owned);
  fill_range(&f, end, whole ? part->count : end, false);
  ts_free(f.block);
}
