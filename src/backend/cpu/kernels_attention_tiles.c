#include "backend/cpu/attention.h"
#include "backend/cpu/philox.h"

static void set_tokens(ts_attention *p, int of, const ts_tokens *tokens) {
  p->tokens[of] = *tokens;
  p->blocks[of] = 0;
  for (int i = 0; i < tokens->n; ++i) {
    p->blocks[of] += ts_pieces(tokens->stretch[i].length, of == TS_OF_QUERIES ? TS_QUERIES : TS_KEYS);
  }
}

void ts_attention_place(ts_attention *p, int of, ts_interval stretch) {
  set_tokens(p, of, &(ts_tokens){1, {stretch}});
}

static void find_tokens(ts_attention *p, int of, const ts_tokens *tokens, int64_t rows) {
  if (tokens->n > 0) {
    set_tokens(p, of, tokens);
  } else {
    ts_attention_place(p, of, (ts_interval){0, rows});
  }
}

static void set_widths(ts_attention *p, bool fused) {
  int64_t q = (int64_t) p->heads * p->head_dim, k = (int64_t) p->kv_heads * p->head_dim;
  p->q_width = fused ? q + 2 * k : q;
  p->k_width = fused ? q + 2 * k : k;
  p->k_first = fused ? q : 0;
  p->v_first = fused ? q + k : 0;
}

ts_attention ts_attention_of(const ts_graph *graph, const ts_node *node, const ts_kernel_call *call, int q, int k,
                             int optional) {
  const ts_tensor *queries = &graph->tensor[node->in[q]];
  const typeof(node->attr.attention) *a = &node->attr.attention;
  const int64_t *seed = call == NULL ? NULL : ts_call_optional(call, optional + 1);
  ts_attention p = {.batch = queries->shape.d[0],
                    .length = a->length > 0 ? a->length : queries->shape.d[1],
                    .queries = queries->shape.d[1],
                    .keys = graph->tensor[node->in[k]].shape.d[1],
                    .heads = a->heads,
                    .kv_heads = a->kv_heads,
                    .head_dim = a->head_dim,
                    .group = ts_attention_group(&node->attr),
                    .dtype = queries->dtype,
                    .causal = a->causal,
                    .window = a->window,
                    .scale = a->scale,
                    .softcap = a->softcap,
                    .keep_scale = 1.0f / (1.0f - a->dropout),
                    .drops = a->dropout > 0,
                    .threshold = ts_dropout_threshold(a->dropout),
                    .first_head = a->first_head,
                    .packed = node->n_in > optional && node->in[optional] != TS_NONE,
                    .documents = call == NULL ? NULL : ts_call_optional(call, optional),
                    .sample = call == NULL ? NULL : ts_call_optional(call, optional + 2)};
  find_tokens(&p, TS_OF_QUERIES, &a->queries, p.queries);
  find_tokens(&p, TS_OF_KEYS, &a->keys, p.keys);
  set_widths(&p, a->fused_qkv);
  p.window = p.window == 0 || p.window > p.length ? p.length : p.window;
  p.columns = (p.head_dim + TS_MICRO_COLUMNS - 1) / TS_MICRO_COLUMNS * TS_MICRO_COLUMNS;
  p.pairs = p.dtype == TS_BF16 && ts_micro_pairs();
  p.per_cell = p.pairs ? 2 : 1;
  p.direct = p.columns == p.head_dim && (p.pairs || p.dtype == TS_F32);
  p.key = seed == NULL ? 0 : ts_dropout_key(seed[0], a->name);
  return p;
}

static void copy_row(const ts_attention *p, ts_cell *to, const void *source, size_t row_bytes) {
  size_t used = 0;
  if (source != NULL) {
    used = (size_t) p->head_dim * (p->pairs ? sizeof(uint16_t) : sizeof(float));
    if (p->pairs) {
      memcpy(to, source, used);
    } else {
      ts_widen_any((float *) to, source, p->dtype, p->head_dim);
    }
  }
  memset((char *) to + used, 0, row_bytes - used);
}

ts_attention_tile ts_attention_rows(const ts_attention *p, ts_cell *to, const void *from, int64_t at, int64_t width,
                                    int rows, int height) {
  size_t size = ts_dtype_size(p->dtype);
  const char *first = (const char *) from + (size_t) at * size;
  int cells = ts_attention_cells(p, p->columns);
  if (p->direct && rows == height) {
    return (ts_attention_tile){(const ts_cell *) first, width * (int64_t) size / (int64_t) sizeof(ts_cell)};
  }
  for (int i = 0; i < height; ++i) {
    copy_row(p, to + i * cells, i < rows ? first + (size_t) (i * width) * size : NULL, (size_t) cells * sizeof *to);
  }
  return (ts_attention_tile){to, cells};
}

ts_attention_tile ts_attention_along_rows(const ts_attention *p, ts_cell *to, ts_attention_tile from, int rows) {
  if (!p->pairs) {
    return from;
  }
  for (int i = 0; i < rows; i += 2) {
    const ts_cell *low = from.cell + i * from.stride;
    ts_cell *pair = to + i / 2 * p->columns;
    if (i + 1 < rows) {
      ts_micro_pair(pair, (const uint16_t *) low, (const uint16_t *) (low + from.stride), p->columns);
    } else {
      for (int d = 0; d < p->columns; ++d) {
        pair[d] = ((const uint16_t *) low)[d];
      }
    }
  }
  return (ts_attention_tile){to, p->columns};
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
    ts_micro_pair(to + j / 2 * TS_QUERIES, low, j + 1 < keys ? low + TS_QUERIES : zero, TS_QUERIES);
  }
  return to;
}

void ts_attention_dropout(const ts_attention *p, float *factor, float *scratch, int64_t b, int head,
                          const ts_attention_block *queries, const ts_attention_block *keys) {
  memset(scratch, 0, TS_QUERIES * TS_KEYS * sizeof *scratch);
  for (int i = 0; i < queries->rows; ++i) {
    int64_t row = (p->first_head + head) * p->length + queries->token + i;
    ts_dropout_factors(scratch + i * TS_KEYS, p->key, p->sample[b], row * p->length + keys->token, keys->rows,
                       p->threshold, p->keep_scale);
  }
  ts_micro_transpose((ts_cell *) factor, TS_QUERIES, (const ts_cell *) scratch, TS_KEYS, TS_QUERIES, TS_KEYS);
}

void ts_attention_store(const ts_attention *p, const ts_sink *to, const float *from, const float *factor, int64_t at,
                        int64_t width, int rows) {
  for (int i = 0; i < rows; ++i, at += width, from += p->columns) {
    float scale = factor == NULL ? 1.0f : factor[i];
    for (int d = 0; d < p->head_dim; d += TS_TILE) {
      ts_tile buffer;
      int64_t n = ts_min(TS_TILE, p->head_dim - d);
      float *value = ts_sink_open(to, at + d, buffer);
#pragma omp simd
      for (int64_t k = 0; k < n; ++k) {
        value[k] = scale * from[d + k];
      }
      ts_sink_write(to, at + d, n, value);
    }
  }
}
