/* Element-wise optimizers in one sweep over a shard, in tiles.  AdamW with fp32 states moves 28 bytes an element (30
 * with a working copy of 2 bytes) and is bound by memory. */
#include "backend/cpu/kernels.h"

#include "backend/code_book.h"
#include "backend/cpu/philox.h"
#include "backend/cpu/tile.h"
#include "backend/update_rules.h"

#include "base/status.h"

/* ---- rules ---- */

/* Of x and y one is p and one is g (TS_UPDATE_G). */
typedef void tile_rule(float *x, const float *y, float *a, float *b, int64_t n, const ts_update_constants *k);

#define ELEMENT x[i], y[i]
#define TENSOR y[i], x[i]
#define MATRIX y[i], x[i]
#define OPTIMIZER(ENUM, name, granularity, ...)                                                                    \
  static void name##_tile(float *x, const float *y, float *a, float *b, int64_t n, const ts_update_constants *k) { \
    const ts_update_constants own = *k;                                                                            \
    _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                                          \
      x[i] = ts_update_##name(granularity, &a[i], &b[i], &own);                                                    \
    }                                                                                                              \
  }
#include "graph/optimizers.def"
#undef OPTIMIZER
#undef ELEMENT
#undef TENSOR
#undef MATRIX

static tile_rule *const tile_rules[TS_N_OPTIMIZERS] = {
#define OPTIMIZER(ENUM, name, ...) [TS_OPTIMIZER_##ENUM] = name##_tile,
#include "graph/optimizers.def"
#undef OPTIMIZER
};

/* ---- what is read and written ---- */

/* p, w or a state.  A state in 8 bits has scales and a book. */
typedef struct operand {
  void *data; /* NULL: there is none */
  ts_dtype dtype;
  float *scales;
  const ts_code_book *book;
} operand;

static operand operand_of(const ts_kernel_call *call, int i) {
  TS_ASSERT(i < 0 || call->out[i] == call->in[i]);
  return i < 0 ? (operand){0} : (operand){.data = call->out[i], .dtype = ts_call_out(call, i)->dtype};
}

static operand state_operand(const ts_kernel_call *call, const ts_update_slots *slots, int i) {
  operand x = operand_of(call, slots->state[i]);
  if (x.data != NULL && slots->scales[i] >= 0) {
    x.scales = call->out[slots->scales[i]];
    x.book = ts_code_book_get(ts_state_has_sign(ts_optimizer_get(call->node->attr.update.rule)->state[i]));
  }
  return x;
}

static void decode(float *to, const operand *x, int64_t at, int64_t n) {
  const uint8_t *code = (const uint8_t *) x->data + at;
  const float *map = x->book->map;
  for (int64_t begin = 0; begin < n; begin += TS_STATE_BLOCK) {
    float scale = x->scales[(at + begin) / TS_STATE_BLOCK];
    int64_t end = ts_min(begin + TS_STATE_BLOCK, n);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      to[i] = map[code[i]] * scale;
    }
  }
}

/* The scale of a block is its largest magnitude. */
static void encode(const operand *x, int64_t at, int64_t n, const float *from) {
  uint8_t *code = (uint8_t *) x->data + at;
  const ts_code_book *book = x->book;
  for (int64_t begin = 0; begin < n; begin += TS_STATE_BLOCK) {
    int32_t bits = 0; /* magnitudes are ordered as their bits are */
    int64_t end = ts_min(begin + TS_STATE_BLOCK, n);
#pragma omp simd reduction(max : bits)
    for (int64_t i = begin; i < end; ++i) {
      int32_t magnitude = ts_bits_of(from[i]) & 0x7fffffff;
      bits = magnitude > bits ? magnitude : bits;
    }
    float most = ts_float_of(bits);
    x->scales[(at + begin) / TS_STATE_BLOCK] = most;
    float by = most > 0 ? most : 1;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      code[i] = ts_code_book_find(book, from[i] / by);
    }
  }
}

/* Elements [at, at + n) in fp32: where they lie, or in the buffer. */
static float *read_operand(const operand *x, int64_t at, int64_t n, float *buffer) {
  if (x->data == NULL) {
    return buffer;
  }
  if (x->scales != NULL) {
    decode(buffer, x, at, n);
    return buffer;
  }
  const ts_source source = {x->data, x->dtype};
  return (float *) ts_source_read(&source, at, n, buffer);
}

static void write_operand(const operand *x, int64_t at, int64_t n, const float *values) {
  if (x->scales != NULL) {
    encode(x, at, n, values);
  } else if (x->data != NULL) {
    const ts_sink sink = {.data = x->data, .dtype = x->dtype};
    ts_sink_write(&sink, at, n, values);
  }
}

/* ts_random_to_bf16 of a tile, by vectors: two elements a word. */
static void round_by_chance(uint16_t *w, const float *p, int64_t n, uint64_t key, uint64_t step, int64_t first) {
  enum { WORDS = 4 * TS_PHILOX_COUNTERS, COUNT = 2 * WORDS };
  for (int64_t at = first / 8 * 8; at < first + n; at += COUNT) {
    uint32_t word[WORDS], random[COUNT];
    ts_philox_many(word, key, step, (uint64_t) at / 8);
#pragma omp simd
    for (int i = 0; i < WORDS; ++i) {
      random[2 * i] = word[i] & 0xffffu;
      random[2 * i + 1] = word[i] >> 16;
    }
    int64_t begin = at < first ? first : at, end = at + COUNT < first + n ? at + COUNT : first + n;
    const float *from = p + (begin - first);
    const uint32_t *by = random + (begin - at);
    uint16_t *to = w + (begin - first);
#pragma omp simd
    for (int64_t i = 0; i < end - begin; ++i) {
      to[i] = ts_f32_to_bf16_by(from[i], by[i]);
    }
  }
}

/* ---- a sweep ---- */

typedef struct sweep {
  const ts_kernel_call *call;
  tile_rule *rule;
  operand p, w, a, b;
  ts_source g;
  ts_update_step step;
  ts_rounding rounding;
} sweep;

static const void *step_number(const ts_kernel_call *call, ts_update_input input) {
  return call->in[ts_update_at(call->node, input)];
}

static sweep describe_sweep(const ts_kernel_call *call) {
  const ts_update_slots slots = ts_update_slots_of(call->graph, call->node);
  const float *betas = step_number(call, TS_UPDATE_BETAS);
  const double *corrections = step_number(call, TS_UPDATE_CORRECTIONS);
  return (sweep){.call = call,
                 .rule = tile_rules[call->node->attr.update.rule],
                 .p = operand_of(call, 0),
                 .w = operand_of(call, slots.copy),
                 .a = state_operand(call, &slots, 0),
                 .b = state_operand(call, &slots, 1),
                 .g = ts_source_of(call, ts_update_at(call->node, TS_UPDATE_G)),
                 .step = {.step = *(const int64_t *) step_number(call, TS_UPDATE_STEP),
                          .corrections = {corrections[0], corrections[1]},
                          .lr = *(const float *) step_number(call, TS_UPDATE_LR),
                          .betas = {betas[0], betas[1]},
                          .scale = *(const float *) step_number(call, TS_UPDATE_SCALE)},
                 .rounding = call->node->attr.update.rounding};
}

/* What the model computes with: the copy, or p itself. */
static void write_working(const sweep *s, const operand *x, int64_t at, int64_t n, const float *p) {
  if (s->rounding.stochastic) {
    round_by_chance((uint16_t *) x->data + at, p, n, s->rounding.key, (uint64_t) s->step.step, s->rounding.first + at);
  } else {
    write_operand(x, at, n, p);
  }
}

static void update_tile(const sweep *s, int64_t at, int64_t n, const ts_update_constants *k) {
  ts_tile p_buffer, g_buffer, a_buffer, b_buffer;
  float *p = read_operand(&s->p, at, n, p_buffer);
  float *a = read_operand(&s->a, at, n, a_buffer), *b = read_operand(&s->b, at, n, b_buffer);
  const float *g = ts_source_read(&s->g, at, n, g_buffer);
  s->rule(p, g, a, b, n, k);
  write_operand(&s->a, at, n, a);
  write_operand(&s->b, at, n, b);
  if (s->w.data != NULL) {
    write_operand(&s->p, at, n, p);
    write_working(s, &s->w, at, n, p);
  } else {
    write_working(s, &s->p, at, n, p);
  }
}

static float range_ratio(const ts_kernel_call *call, const ts_range *range) {
  return call->node->attr.update.has_ratios ? ((const float *) step_number(call, TS_UPDATE_RATIOS))[range->ratio] : 1;
}

static void update_elements_run(const ts_kernel_call *call) {
  if (*(const float *) step_number(call, TS_UPDATE_SKIP) != 0.0f) {
    return;
  }
  const sweep s = describe_sweep(call);
  const ts_attr *attr = &call->node->attr;
#pragma omp parallel num_threads(call->threads)
  for (int r = 0; r < attr->update.n; ++r) {
    const ts_range *range = &attr->update.range[r];
    const ts_update_constants k =
        ts_update_constants_of(attr->update.rule, &attr->update.numbers, &s.step, range->weight_decay, range->lr_factor,
                               range_ratio(call, range));
    int64_t end = range->offset + range->count;
#pragma omp for schedule(static) nowait
    for (int64_t at = range->offset; at < end; at += TS_TILE) {
      update_tile(&s, at, ts_min(TS_TILE, end - at), &k);
    }
  }
}
TS_CPU_KERNEL(update_elements) = {.run = update_elements_run};
