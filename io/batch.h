/** \file
 * Batches: what a model is given of its samples, as a table of named inputs.  Every input of every sample is made here,
 * from tokens; whoever runs a model copies inputs by name and knows nothing of what they mean.
 *
 * Counts are in samples and elements.  No function here is collective.
 */
#ifndef IO_BATCH_H
#define IO_BATCH_H

#include "base/dtype.h"
#include "graph/op.h"

#include <stdbool.h>
#include <stdint.h>

/** X (NAME, name in the graph, dtype, has a sequence dimension): of a sample [sequence_length] or [1] */
#define TS_INPUTS(X)                                                                                        \
  X(INPUT_IDS, "input_ids", TS_I32, true)                                                                   \
  X(LABELS, "labels", TS_I32, true)       /* the token after each; TS_IGNORED: not counted */               \
  X(POSITIONS, "positions", TS_I32, true) /* in its document */                                             \
  X(DOCUMENTS, "documents", TS_I32, true) /* of the sample, from 0; different ones do not see each other */ \
  X(SAMPLE, "sample", TS_I64, false)      /* the sample's number in the run: what dropout is keyed by */

typedef enum ts_input_kind {
#define X(NAME, name, dtype, is_sequence) TS_INPUT_##NAME,
  TS_INPUTS(X)
#undef X
      TS_N_INPUTS
} ts_input_kind;

typedef struct ts_input {
  const char *name;
  ts_dtype dtype;
  bool is_sequence; /**< Its one dimension is the sequence, and can be divided as one; else one element a sample. */
} ts_input;

/** The row of an input. Not collective. */
const ts_input *ts_input_get(ts_input_kind kind);

typedef struct ts_batch {
  int64_t samples, length;  /**< length: tokens of a sample. */
  void *input[TS_N_INPUTS]; /**< Owned: [samples] of each; NULL for those not asked for. */
} ts_batch;

/** All inputs, as a mask. */
#define TS_INPUTS_ALL ((1u << TS_N_INPUTS) - 1)

/** Room for \a samples samples of \a length tokens, all zero; end with ts_batch_destroy. Not collective.
 * \param [in] inputs  Mask of 1 << ts_input_kind: those that are made. */
ts_batch *ts_batch_create(int64_t samples, int64_t length, unsigned inputs);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_batch_destroy(ts_batch **batch);

/** Bytes of one sample of an input. Not collective. */
size_t ts_batch_bytes(const ts_batch *batch, ts_input_kind kind);

/** A sample of a batch while it is made, document by document. */
typedef struct ts_batch_row {
  ts_batch *batch;
  int64_t i, at;    /**< Sample, and tokens in it so far. */
  int32_t document; /**< The next one's number. */
} ts_batch_row;

/** Begin sample \a i of the batch: all of it is padding.  A token of padding is token 0 in a document of its own, so
 * that it sees nothing but itself, and has no label.
 * \param [in] number  The sample's number in the run. Not collective. */
ts_batch_row ts_batch_begin(ts_batch *batch, int64_t i, int64_t number);

/** Append a document, or a part of one: positions begin with 0, a label is the token after.  TS_IGNORED among the
 * tokens is a label that is not counted, and token 0 as an input.
 * \param [in] tokens   [count], [count + 1] where it goes on.
 * \param [in] mask     As many as tokens: 0 where a token is not counted as a label; NULL: all are.
 * \param [in] count    At least 1, and no more than there is room for.
 * \param [in] goes_on  The last token has a label, the token after it. Not collective. */
void ts_batch_add(ts_batch_row *row, const int32_t *tokens, const uint8_t *mask, int64_t count, bool goes_on);

/** Append \a count tokens of a stream, whose last one goes on unless it ends its document.
 * \param [in] tokens     [count + 1], as above; \a mask and \a count too.
 * \param [in] end_token  Closes the document it is in; -1: it is one. Not collective. */
void ts_batch_add_stream(ts_batch_row *row, const int32_t *tokens, const uint8_t *mask, int64_t count,
                         int32_t end_token);

/** Make the inputs of sample \a i of the batch of a stream: ts_batch_begin, ts_batch_add_stream of its length without a
 * mask. Not collective. */
void ts_batch_set(ts_batch *batch, int64_t i, int64_t number, const int32_t *tokens, int32_t end_token);

/** Sample \a i takes part and is counted nowhere: no label of it is. Not collective. */
void ts_batch_ignore(ts_batch *batch, int64_t i);

#endif
