/** \file
 * Private to io/data: the samples of one token file, split into training and validation.
 *
 *     stream, documents   n = (tokens - 1) / T samples, rounded down: the last token can only be a label; sample i
 *                         reads the tokens [iT, iT + T]; validation has the last floor (fraction * n) samples
 *     best_fit, none      samples of whole documents (io/packing.h); validation has the last
 *                         floor (fraction * documents) documents, packed by themselves, so no document is in both
 *
 * Nothing here is collective.
 */
#ifndef IO_SAMPLES_H
#define IO_SAMPLES_H

#include "io/data.h"

typedef struct ts_samples_options {
  const char *path, *format, *dataset; /**< As of ts_tokens_open. */
  int64_t length;                      /**< T. */
  ts_packing_kind packing;
  int32_t end_token;  /**< -1: none. */
  int64_t vocab_size; /**< As of ts_tokens_open. */
  double fraction;    /**< Of the validation; 0: there is none. */
} ts_samples_options;

typedef struct ts_samples ts_samples;

/** Open a file and find its samples.  Not collective.
 * \param [out] out  The caller's, end with ts_samples_close; NULL on error.
 * \return TS_BAD_INPUT: what io/tokens.h, io/documents.h and io/packing.h name, too few tokens or no documents, a split
 *         that is asked for and is empty.  Every message starts with the path. */
ts_status ts_samples_open(const ts_samples_options *options, ts_samples **out, ts_error *err);

/** Tokens of the file.  Not collective. */
int64_t ts_samples_tokens(const ts_samples *samples);

/** Samples of a split; the documents they are made of, 0 where they are cut from a stream; and the tokens in them that
 * are no padding.  Not collective. */
int64_t ts_samples_count(const ts_samples *samples, ts_split split);
int64_t ts_samples_documents(const ts_samples *samples, ts_split split);
int64_t ts_samples_filled(const ts_samples *samples, ts_split split);

/** Room for what is read of a sample. */
typedef struct ts_samples_room {
  int32_t *tokens; /**< [T + 1] */
  uint8_t *mask;   /**< [T + 1] */
} ts_samples_room;

/** Read the T + 1 tokens of sample \a i of a split that is cut from a stream.  Not collective.
 * \return TS_BAD_INPUT: a token outside the vocabulary (file, offset in tokens, value), or an unreadable file. */
ts_status ts_samples_stream(ts_samples *samples, ts_split split, int64_t i, int32_t *tokens, ts_error *err);

/** Read sample \a i of a split into a row that was just begun.  Not collective.
 * \return TS_BAD_INPUT as ts_samples_stream, or a mask of something else; the row is undefined then. */
ts_status ts_samples_read(ts_samples *samples, ts_split split, int64_t i, ts_samples_room room, ts_batch_row *row,
                          ts_error *err);

/** Close and free; NULL handles are allowed; sets the handle to NULL.  Not collective. */
void ts_samples_close(ts_samples **samples);

#endif
