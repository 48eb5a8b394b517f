#include "io/batch.h"

#include "base/memory.h"

static const ts_input rows[TS_N_INPUTS] = {
#define X(NAME, name, dtype, is_sequence) {name, dtype, is_sequence},
    TS_INPUTS(X)
#undef X
};

const ts_input *ts_input_get(ts_input_kind kind) {
  return &rows[kind];
}

size_t ts_batch_bytes(const ts_batch *batch, ts_input_kind kind) {
  return ts_dtype_size(rows[kind].dtype) * (rows[kind].is_sequence ? (size_t) batch->length : 1);
}

ts_batch *ts_batch_create(int64_t samples, int64_t length, unsigned inputs) {
  ts_batch *batch = ts_calloc(1, sizeof *batch);
  batch->samples = samples;
  batch->length = length;
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    if ((inputs >> i & 1) != 0) {
      batch->input[i] = ts_calloc((size_t) samples, ts_batch_bytes(batch, (ts_input_kind) i));
    }
  }
  return batch;
}

void ts_batch_destroy(ts_batch **batch) {
  if (*batch != NULL) {
    for (int i = 0; i < TS_N_INPUTS; ++i) {
      ts_free((*batch)->input[i]);
    }
    ts_free(*batch);
    *batch = NULL;
  }
}

/* Sample i of an input that is one of tokens; NULL when it is not made. */
static int32_t *find_row(const ts_batch *batch, ts_input_kind kind, int64_t i) {
  return batch->input[kind] != NULL ? (int32_t *) batch->input[kind] + i * batch->length : NULL;
}

static void set_token(int32_t *row, int64_t t, int32_t value) {
  if (row != NULL) {
    row[t] = value;
  }
}

static void set_all(const ts_batch_row *row, int64_t t, int32_t token, int32_t label, int32_t position,
                    int32_t document) {
  const ts_batch *batch = row->batch;
  set_token(find_row(batch, TS_INPUT_INPUT_IDS, row->i), t, token == TS_IGNORED ? 0 : token);
  set_token(find_row(batch, TS_INPUT_LABELS, row->i), t, label);
  set_token(find_row(batch, TS_INPUT_POSITIONS, row->i), t, position);
  set_token(find_row(batch, TS_INPUT_DOCUMENTS, row->i), t, document);
}

/* No document before a token of padding has as high a number as that token. */
ts_batch_row ts_batch_begin(ts_batch *batch, int64_t i, int64_t number) {
  ts_batch_row row = {.batch = batch, .i = i};
  for (int64_t t = 0; t < batch->length; ++t) {
    set_all(&row, t, 0, TS_IGNORED, 0, (int32_t) t);
  }
  if (batch->input[TS_INPUT_SAMPLE] != NULL) {
    ((int64_t *) batch->input[TS_INPUT_SAMPLE])[i] = number;
  }
  return row;
}

void ts_batch_add(ts_batch_row *row, const int32_t *tokens, const uint8_t *mask, int64_t count, bool goes_on) {
  TS_ASSERT(count > 0 && count <= row->batch->length - row->at);
  for (int64_t t = 0; t < count; ++t) {
    bool counts = (goes_on || t < count - 1) && (mask == NULL || mask[t + 1] != 0);
    set_all(row, row->at + t, tokens[t], counts ? tokens[t + 1] : TS_IGNORED, (int32_t) t, row->document);
  }
  row->at += count;
  ++row->document;
}

void ts_batch_add_stream(ts_batch_row *row, const int32_t *tokens, const uint8_t *mask, int64_t count,
                         int32_t end_token) {
  for (int64_t first = 0, t = 0; t < count; ++t) {
    bool ends = end_token >= 0 && tokens[t] == end_token;
    if (ends || t == count - 1) {
      ts_batch_add(row, tokens + first, mask != NULL ? mask + first : NULL, t + 1 - first, !ends);
      first = t + 1;
    }
  }
}

void ts_batch_set(ts_batch *batch, int64_t i, int64_t number, const int32_t *tokens, int32_t end_token) {
  ts_batch_row row = ts_batch_begin(batch, i, number);
  ts_batch_add_stream(&row, tokens, NULL, batch->length, end_token);
}

void ts_batch_ignore(ts_batch *batch, int64_t i) {
  int32_t *labels = find_row(batch, TS_INPUT_LABELS, i);
  for (int64_t t = 0; labels != NULL && t < batch->length; ++t) {
    labels[t] = TS_IGNORED;
  }
}
