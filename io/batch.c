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

void ts_batch_set(ts_batch *batch, int64_t i, int64_t number, const int32_t *tokens, int32_t end_token) {
  int32_t *ids = find_row(batch, TS_INPUT_INPUT_IDS, i), *labels = find_row(batch, TS_INPUT_LABELS, i);
  int32_t *positions = find_row(batch, TS_INPUT_POSITIONS, i), *documents = find_row(batch, TS_INPUT_DOCUMENTS, i);
  int32_t document = 0;
  int64_t first = 0; /* of the document */
  for (int64_t t = 0; t < batch->length; ++t) {
    bool ends = end_token >= 0 && tokens[t] == end_token;
    set_token(ids, t, tokens[t] == TS_IGNORED ? 0 : tokens[t]);
    set_token(labels, t, ends ? TS_IGNORED : tokens[t + 1]);
    set_token(positions, t, (int32_t) (t - first));
    set_token(documents, t, document);
    document += ends;
    first = ends ? t + 1 : first;
  }
  if (batch->input[TS_INPUT_SAMPLE] != NULL) {
    ((int64_t *) batch->input[TS_INPUT_SAMPLE])[i] = number;
  }
}

void ts_batch_ignore(ts_batch *batch, int64_t i) {
  int32_t *labels = find_row(batch, TS_INPUT_LABELS, i);
  for (int64_t t = 0; labels != NULL && t < batch->length; ++t) {
    labels[t] = TS_IGNORED;
  }
}
