#include "engine/recode.h"

#include "base/memory.h"
#include "pass/state.h"

#include <math.h>

enum { BLOCK = TS_STATE_BLOCK };

/* What was saved is all of the parameter, or one of the equal matrices that it is to be. */
static ts_checkpoint_run run_of_row(const ts_recode *r, int64_t at) {
  int64_t count = r->to - at, whole = ts_parameter_in_whole(r->parameter, at - r->parameter->offset, &count);
  int64_t first = whole % r->saved->count, rest = r->saved->count - first;
  return ts_checkpoint_run_at(r->saved, first, count < rest ? count : rest);
}

ts_checkpoint_run ts_recode_run(const ts_recode *r, int64_t at) {
  ts_checkpoint_run run = run_of_row(r, at), next = run;
  for (bool joined = true; joined && at + run.count < r->to;) {
    next = run_of_row(r, at + run.count);
    joined = next.part == run.part && next.first == run.first + run.count;
    run.count += joined ? next.count : 0;
  }
  return run;
}

/* The old blocks that a run has elements of. */
static ts_checkpoint_run blocks_of(const ts_checkpoint_run *run) {
  int64_t first = run->first / BLOCK;
  return (ts_checkpoint_run){run->part, first, ts_state_elements(BLOCK, run->first + run->count) - first};
}

bool ts_recode_fits(const ts_recode *r) {
  bool fits = true;
  ts_checkpoint_run run;
  for (int64_t at = r->from; at < r->to && fits; at += run.count) {
    run = ts_recode_run(r, at);
    fits = run.first % BLOCK == 0 && (at - r->from) % BLOCK == 0;
  }
  return fits;
}

/* What is read: codes in the order of this grid, scales in that of the walk. */
typedef struct old_state {
  uint8_t *code; /* owned, as all */
  float *scale;
  ts_checkpoint_piece *piece;
} old_state;

static old_state new_old_state(const ts_recode *r, int *n_pieces) {
  int64_t n_runs = 0, n_scales = 0;
  ts_checkpoint_run run;
  for (int64_t at = r->from; at < r->to; at += run.count) {
    run = ts_recode_run(r, at);
    n_scales += blocks_of(&run).count;
    ++n_runs;
  }
  *n_pieces = (int) (2 * n_runs);
  return (old_state){.code = ts_malloc((size_t) (r->to - r->from)),
                     .scale = ts_malloc((size_t) n_scales * sizeof(float)),
                     .piece = ts_malloc((size_t) (2 * n_runs) * sizeof(ts_checkpoint_piece))};
}

static ts_checkpoint_piece piece_of(const ts_checkpoint_run *run, int state, ts_dtype dtype, void *to) {
  return (ts_checkpoint_piece){
      .part = run->part, .state = state, .first = run->first, .count = run->count, .dtype = dtype, .to = to};
}

static ts_status read_old_state(const ts_recode *r, ts_checkpoint_reader *reader, const old_state *old, int n_pieces,
                                ts_error *err) {
  ts_checkpoint_piece *piece = old->piece;
  float *scale = old->scale;
  ts_checkpoint_run run;
  for (int64_t at = r->from; at < r->to; at += run.count) {
    run = ts_recode_run(r, at);
    ts_checkpoint_run blocks = blocks_of(&run);
    *piece++ = piece_of(&run, r->saved_code, TS_U8, old->code + (at - r->from));
    *piece++ = piece_of(&blocks, r->saved_scale, TS_F32, scale);
    scale += blocks.count;
  }
  return ts_checkpoint_read(reader, old->piece, n_pieces, err);
}

static void decode_values(const ts_recode *r, const old_state *old, const float *map, float *value) {
  const float *scale = old->scale;
  ts_checkpoint_run run;
  for (int64_t at = r->from; at < r->to; at += run.count) {
    run = ts_recode_run(r, at);
    ts_checkpoint_run blocks = blocks_of(&run);
    for (int64_t i = 0; i < run.count; ++i) {
      int64_t k = at - r->from + i;
      value[k] = map[old->code[k]] * scale[(run.first + i) / BLOCK - blocks.first];
    }
    scale += blocks.count;
  }
}

float ts_recode_block(const float *value, int64_t n, const ts_code_book *book, uint8_t *code) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) {
    most = fmaxf(most, isnan(value[i]) ? INFINITY : fabsf(value[i])); /* what is NaN makes its block NaN */
  }
  for (int64_t i = 0; i < n; ++i) {
    code[i] = ts_code_book_find(book, value[i] / (most > 0 ? most : 1));
  }
  return most;
}

static void write_state(const ts_recode *r, const old_state *old, ts_executor *executor) {
  const ts_code_book *book = ts_code_book_get(r->has_sign);
  int64_t count = r->to - r->from, first = r->from - r->mine;
  float *value = ts_malloc((size_t) count * sizeof *value), *scale = old->scale;
  decode_values(r, old, book->map, value);
  for (int64_t at = 0; at < count; at += BLOCK) { /* no more blocks than there were */
    scale[at / BLOCK] = ts_recode_block(value + at, count - at < BLOCK ? count - at : BLOCK, book, old->code + at);
  }
  ts_executor_write_state(executor, r->code.leaf, r->code.first + first, count, old->code);
  ts_executor_write_state(executor, r->scale.leaf, r->scale.first + first / BLOCK, ts_state_elements(BLOCK, count),
                          scale);
  ts_free(value);
}

ts_status ts_recode_read(const ts_recode *r, ts_checkpoint_reader *reader, ts_executor *executor, ts_error *err) {
  int n_pieces;
  old_state old = new_old_state(r, &n_pieces);
  ts_status status = read_old_state(r, reader, &old, n_pieces, err);
  if (status == TS_OK) {
    write_state(r, &old, executor);
  }
  ts_free(old.code);
  ts_free(old.scale);
  ts_free(old.piece);
  return status;
}
