#include "backend/cpu/attention.h"
#include "backend/cpu/dropout.h"

ts_attention ts_attention_of(const ts_graph *graph, const ts_node *node, const int32_t *documents, const int64_t *seed,
                             const int64_t *sample) {
  const ts_tensor *q = &graph->tensor[node->in[node->op == TS_OP_ATTENTION ? 0 : 1]];
  ts_attention p = {.batch = q->shape.d[0],
                    .length = q->shape.d[1],
                    .heads = node->attr.attention.heads,
                    .kv_heads = node->attr.attention.kv_heads,
                    .head_dim = node->attr.attention.head_dim,
                    .dtype = q->dtype,
                    .causal = node->attr.attention.causal,
                    .scale = node->attr.attention.scale,
                    .keep_scale = 1.0f / (1.0f - node->attr.attention.dropout),
                    .drops = node->attr.attention.dropout > 0 && seed != NULL,
                    .threshold = ts_dropout_threshold(node->attr.attention.dropout),
                    .documents = documents,
                    .sample = sample};
  p.columns = (p.head_dim + TS_MICRO_COLUMNS - 1) / TS_MICRO_COLUMNS * TS_MICRO_COLUMNS;
  p.pairs = p.dtype == TS_BF16 && ts_micro_pairs();
  p.per_cell = p.pairs ? 2 : 1;
  p.key = seed == NULL ? 0 : ts_dropout_key(seed[0], node->attr.attention.name);
  return p;
}

void ts_attention_rows(const ts_attention *p, ts_cell *to, const void *from, int64_t b, int64_t t, int rows, int heads,
                       int head) {
  size_t size = ts_dtype_size(p->dtype), row_bytes = (size_t) ts_attention_cells(p, p->columns) * sizeof *to;
  for (int i = 0; i < rows; ++i) {
    char *row = (char *) to + (size_t) i * row_bytes;
    size_t used = 0;
    if (t + i < p->length) {
      const char *source = (const char *) from + ts_attention_at(p, b, t + i, heads, head) * size;
      used = (size_t) p->head_dim * (p->pairs ? sizeof(uint16_t) : sizeof(float));
      if (p->dtype == TS_F32 || p->pairs) {
        memcpy(row, source, used);
      } else {
        ts_widen((float *) row, (const uint16_t *) source, p->head_dim);
      }
    }
    memset(row + used, 0, row_bytes - used);
  }
}

/* Neighbours of two rows of bf16 as pairs. */
TS_INLINE void interleave(ts_cell *restrict to, const uint16_t *restrict low, const uint16_t *restrict high, int n) {
#pragma omp simd
  for (int i = 0; i < n; ++i) {
    to[i] = (uint32_t) low[i] | (uint32_t) high[i] << 16;
  }
}

const ts_cell *ts_attention_along_rows(const ts_attention *p, ts_cell *to, const ts_cell *from, int rows) {
  if (!p->pairs) {
    return from;
  }
  const uint16_t *element = (const uint16_t *) from;
  for (int i = 0; i < rows; i += 2) {
    interleave(to + i / 2 * p->columns, element + i * p->columns, element + (i + 1) * p->columns, p->columns);
  }
  return to;
}

void ts_attention_transpose(ts_cell *to, const ts_cell *from, int rows, int columns) {
  enum { BLOCK = 16 }; /* rows and columns are multiples: 4 KB that stay in the first-level cache */
  for (int i = 0; i < rows; i += BLOCK) {
    for (int j = 0; j < columns; ++j) {
#pragma GCC unroll 16
      for (int k = 0; k < BLOCK; ++k) {
        to[j * rows + i + k] = from[(i + k) * columns + j];
      }
    }
  }
}

const ts_cell *ts_attention_narrow(const ts_attention *p, ts_cell *to, const float *from, int keys) {
  if (!p->pairs) {
    return (const ts_cell *) from;
  }
  ts_narrow((uint16_t *) to, from, (int64_t) keys * TS_QUERIES);
  return to;
}

const ts_cell *ts_attention_along_keys(const ts_attention *p, ts_cell *to, const ts_cell *from, int keys) {
  static const uint16_t zero[TS_QUERIES];
  if (!p->pairs) {
    return from;
  }
  const uint16_t *element = (const uint16_t *) from;
  for (int j = 0; j < keys; j += 2) {
    const uint16_t *low = element + j * TS_QUERIES;
    interleave(to + j / 2 * TS_QUERIES, low, j + 1 < keys ? low + TS_QUERIES : zero, TS_QUERIES);
  }
  return to;
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
  for (int k = 0; k < keys; ++k) {
    float *row = score + k * TS_QUERIES, scale = p->scale;
    int first = p->causal && j + k > t ? (int) (j + k - t) : 0; /* queries before it do not see the key */
#pragma omp simd
    for (int i = 0; i < TS_QUERIES; ++i) {
      row[i] = i < first ? TS_MASKED : row[i] * scale;
    }
  }
  if (p->documents != NULL) {
    mask_documents(p, score, b, t, j, keys);
  }
}

void ts_attention_dropout(const ts_attention *p, float *factor, float *scratch, int64_t b, int head, int64_t t, int64_t j,
                          int keys) {
  memset(scratch, 0, TS_QUERIES * TS_KEYS * sizeof *scratch);
  for (int i = 0; i < TS_QUERIES && t + i < p->length; ++i) {
    ts_dropout_factors(scratch + i * TS_KEYS, p->key, p->sample[b], (head * p->length + t + i) * p->length + j, keys,
                       p->threshold, p->keep_scale);
  }
  ts_attention_transpose((ts_cell *) factor, (const ts_cell *) scratch, TS_QUERIES, TS_KEYS);
}

void ts_attention_store(const ts_attention *p, void *to, const float *from, const float *factor, int64_t b, int64_t t,
                        int rows, int heads, int head) {
  for (int i = 0; i < rows && t + i < p->length; ++i) {
    const float *row = from + i * p->columns;
    float scale = factor == NULL ? 1.0f : factor[i];
    size_t at = ts_attention_at(p, b, t + i, heads, head);
    if (p->dtype == TS_F32) {
      float *out = (float *) to + at;
      for (int d = 0; d < p->head_dim; ++d) {
        out[d] = scale * row[d];
      }
    } else {
      uint16_t *out = (uint16_t *) to + at;
      for (int d = 0; d < p->head_dim; ++d) {
        out[d] = ts_f32_to_bf16(scale * row[d]);
      }
    }
  }
}
