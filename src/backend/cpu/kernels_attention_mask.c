/* What a query sees: which blocks of keys something of is visible, and the scores of one block. */
#include "backend/cpu/attention.h"

/* ---- blocks ---- */

static size_t bounds_count(const ts_attention *p, int of) {
  return p->packed ? (size_t) (p->batch * p->blocks[of]) : 0;
}

size_t ts_attention_bounds_bytes(const ts_attention *p) {
  return ts_cpu_align((bounds_count(p, TS_OF_QUERIES) + bounds_count(p, TS_OF_KEYS)) * sizeof(ts_attention_bounds));
}

static ts_attention_bounds bounds_of(const int32_t *document, int n) {
  int32_t lowest = document[0], highest = document[0];
  for (int i = 1; i < n; ++i) {
    lowest = document[i] < lowest ? document[i] : lowest;
    highest = document[i] > highest ? document[i] : highest;
  }
  return (ts_attention_bounds){lowest, highest};
}

void ts_attention_find_bounds(ts_attention *p, void *at) {
  ts_attention_bounds *bounds = at;
  for (int of = TS_OF_QUERIES; of <= TS_OF_KEYS; ++of) {
    p->bounds[of] = p->packed ? bounds : NULL;
    for (int64_t i = 0; i < (int64_t) bounds_count(p, of); ++i) {
      ts_attention_block block = ts_attention_block_at(p, of, i % p->blocks[of]);
      *bounds++ = bounds_of(p->documents + i / p->blocks[of] * p->length + block.token, block.rows);
    }
  }
}

ts_attention_view ts_attention_view_of(const ts_attention *p, int64_t b, int64_t i) {
  ts_attention_block queries = ts_attention_block_at(p, TS_OF_QUERIES, i);
  ts_attention_view view = {.oldest = queries.token - p->window + 1, .end = p->length};
  if (p->causal) {
    view.end = ts_min(queries.token + TS_QUERIES, p->length);
  } else {
    view.oldest = 0;
  }
  if (p->packed) {
    view.queries = p->bounds[TS_OF_QUERIES][b * p->blocks[TS_OF_QUERIES] + i];
    view.bounds = p->bounds[TS_OF_KEYS] + b * p->blocks[TS_OF_KEYS];
  }
  return view;
}

int64_t ts_attention_next(const ts_attention *p, const ts_attention_view *view, int64_t i, int64_t end,
                          ts_attention_block *keys) {
  for (; i < end; ++i) {
    const ts_attention_bounds *bounds = view->bounds == NULL ? &view->queries : &view->bounds[i];
    *keys = ts_attention_block_at(p, TS_OF_KEYS, i);
    bool in_view = keys->token < view->end && keys->token + keys->rows > view->oldest;
    if (in_view && bounds->lowest <= view->queries.highest && bounds->highest >= view->queries.lowest) {
      keys->rows = (int) ts_min(keys->rows, view->end - keys->token);
      break;
    }
  }
  return i;
}

/* ---- scores ---- */

static void cap_block(const ts_attention *p, float *score, int keys) {
  float softcap = p->softcap, factor = p->scale / softcap;
#pragma omp simd
  for (int i = 0; i < keys * TS_QUERIES; ++i) {
    score[i] = softcap * ts_tanhf(score[i] * factor);
  }
}

static void mask_documents(const ts_attention *p, float *score, int64_t b, const ts_attention_block *queries,
                           const ts_attention_block *keys) {
  const int32_t *document = p->documents + b * p->length;
  int32_t mine[TS_QUERIES];
  for (int i = 0; i < TS_QUERIES; ++i) {
    mine[i] = document[queries->token + (i < queries->rows ? i : queries->rows - 1)];
  }
  for (int k = 0; k < keys->rows; ++k) {
    int32_t theirs = document[keys->token + k];
    float *row = score + k * TS_QUERIES;
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      row[i] = mine[i] == theirs ? row[i] : TS_MASKED;
    }
  }
}

void ts_attention_mask(const ts_attention *p, float *score, int64_t b, const ts_attention_block *queries,
                       const ts_attention_block *keys) {
  float scale = p->softcap > 0 ? 1.0f : p->scale;
  if (p->softcap > 0) {
    cap_block(p, score, keys->rows);
  }
  for (int k = 0; k < keys->rows; ++k) {
    float *row = score + k * TS_QUERIES;
    int64_t ahead = keys->token + k - queries->token;
    int first = p->causal && ahead > 0 ? (int) ahead : 0; /* queries before it do not see the key yet */
    int64_t behind = ahead + p->window;                   /* from it on, not any more */
    int last = p->causal && behind < TS_QUERIES ? (int) behind : TS_QUERIES;
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      row[i] = ((i < first) | (i >= last)) ? TS_MASKED : row[i] * scale;
    }
  }
  if (p->documents != NULL) {
    mask_documents(p, score, b, queries, keys);
  }
}
