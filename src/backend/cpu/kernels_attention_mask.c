/* What a query sees: which blocks of keys something of is visible, and the scores of one block. */
#include "backend/cpu/attention.h"

/* ---- blocks ---- */

static int64_t blocks_of(const ts_attention *p) {
  return (p->length + TS_KEYS - 1) / TS_KEYS;
}

size_t ts_attention_bounds_bytes(const ts_attention *p) {
  return p->packed ? ts_cpu_align((size_t) (p->batch * blocks_of(p)) * sizeof(ts_attention_bounds)) : 0;
}

/* Of \a tokens tokens from t on, or as many as there are. */
static ts_attention_bounds find_bounds(const ts_attention *p, int64_t b, int64_t t, int tokens) {
  const int32_t *document = p->documents + b * p->length + t;
  int n = (int) (p->length - t < tokens ? p->length - t : tokens);
  int32_t lowest = document[0], highest = document[0];
  for (int i = 1; i < n; ++i) {
    lowest = document[i] < lowest ? document[i] : lowest;
    highest = document[i] > highest ? document[i] : highest;
  }
  return (ts_attention_bounds){lowest, highest};
}

void ts_attention_find_bounds(ts_attention *p, void *at) {
  ts_attention_bounds *bounds = at;
  int64_t blocks = blocks_of(p);
  if (!p->packed) {
    return;
  }
  for (int64_t i = 0; i < p->batch * blocks; ++i) {
    bounds[i] = find_bounds(p, i / blocks, i % blocks * TS_KEYS, TS_KEYS);
  }
  p->bounds = bounds;
}

ts_attention_view ts_attention_view_of(const ts_attention *p, int64_t b, int64_t t) {
  int64_t oldest = t - p->window + 1; /* that the first query sees */
  ts_attention_view view = {.begin = oldest > 0 ? oldest / TS_KEYS * TS_KEYS : 0,
                            .end = p->causal && t + TS_QUERIES < p->length ? t + TS_QUERIES : p->length};
  if (p->packed) {
    view.queries = find_bounds(p, b, t, TS_QUERIES);
    view.bounds = p->bounds + b * blocks_of(p);
  }
  return view;
}

/* ---- scores ---- */

static void cap_block(const ts_attention *p, float *score, int keys) {
  float softcap = p->softcap, factor = p->scale / softcap;
#pragma omp simd
  for (int i = 0; i < keys * TS_QUERIES; ++i) {
    score[i] = softcap * ts_tanhf(score[i] * factor);
  }
}

static void mask_documents(const ts_attention *p, float *score, int64_t b, int64_t t, int64_t j, int keys) {
  const int32_t *document = p->documents + b * p->length;
  int32_t mine[TS_QUERIES];
  for (int i = 0; i < TS_QUERIES; ++i) {
    mine[i] = document[t + i < p->length ? t + i : p->length - 1];
  }
  for (int k = 0; k < keys; ++k) {
    int32_t theirs = document[j + k];
    float *row = score + k * TS_QUERIES;
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      row[i] = mine[i] == theirs ? row[i] : TS_MASKED;
    }
  }
}

void ts_attention_mask(const ts_attention *p, float *score, int64_t b, int64_t t, int64_t j, int keys) {
  float scale = p->softcap > 0 ? 1.0f : p->scale;
  if (p->softcap > 0) {
    cap_block(p, score, keys);
  }
  for (int k = 0; k < keys; ++k) {
    float *row = score + k * TS_QUERIES;
    int first = p->causal && j + k > t ? (int) (j + k - t) : 0; /* queries before it do not see the key yet */
    int64_t behind = j + k + p->window - t;                     /* from it on, not any more */
    int last = (int) (behind < TS_QUERIES ? behind : TS_QUERIES);
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      row[i] = ((i < first) | (i >= last)) ? TS_MASKED : row[i] * scale;
    }
  }
  if (p->documents != NULL) {
    mask_documents(p, score, b, t, j, keys);
  }
}
