/** \file
 * The samples of a training run: token files cut into samples and split into training and validation (io/samples.h), in
 * an order that is a function of the seed and the position alone, so that it is the same on any grid and nothing but a
 * number is saved.  Validation is the tail of each file, one after another, or all of validation_path.
 *
 * A position counts samples from the start of the training, over all ranks.  Which source it takes a sample from is a
 * function of the position (io/mixture.h): of source k its sample p, where there were p of it before.  With n samples
 * in the source that is in its epoch p / n, and there the sample p % n; shuffled training takes
 * ts_permute (ts_mix (seed + k, epoch), n, p % n) instead, a new permutation per epoch.  Validation is never shuffled
 * and starts again at its end.
 *
 * Counts are in tokens or samples, never bytes.  No function here is collective: every rank opens the file and reads
 * its own samples.
 */
#ifndef IO_DATA_H
#define IO_DATA_H

#include "base/status.h"
#include "base/text.h"
#include "io/batch.h"
#include "io/packing.h"

#include <stdint.h>

typedef enum ts_split { TS_SPLIT_TRAINING, TS_SPLIT_VALIDATION, TS_N_SPLITS } ts_split;

/** A token file among several. */
typedef struct ts_data_source {
  const char *path, *format, *dataset; /**< As below. */
  double weight;                       /**< Positive and finite: its part of the samples, of the sum of all. */
} ts_data_source;

/** The keys of `data` in the deck, and the model's vocabulary.  Strings are borrowed during ts_data_open only. */
typedef struct ts_data_options {
  const char *path;            /**< The token file, unless there are sources. */
  const char *format;          /**< "auto", "text", ... (io/tokens.h); NULL means "auto". */
  const char *dataset;         /**< Name inside an HDF5 file; NULL or "" means "tokens". */
  int64_t sequence_length;     /**< T, at least 1. */
  double validation_fraction;  /**< [0, 1); 0: none.  Must be 0 with validation_path.  Of each source. */
  const char *validation_path; /**< Another token file; NULL or "" for none. */
  const char *validation_format, *validation_dataset; /**< As of path; NULL: those of path. */
  bool shuffle;                                       /**< Shuffle the training samples in every epoch. */
  uint64_t seed;                                      /**< Of the shuffle. */
  ts_packing_kind packing;                            /**< How documents become samples (io/samples.h). */
  int32_t end_token;                                  /**< Closes a document; -1: none. */
  const ts_data_source *sources;                      /**< Instead of path; at most TS_MIXTURE_PERIOD. */
  int n_sources;
  int *about; /**< NULL, or given the file that an error of ts_data_open is about: of which source (0 for path), and
               * after these validation_path. */
  int64_t vocab_size; /**< Tokens are in [0, vocab_size); 1..INT32_MAX. */
} ts_data_options;

typedef struct ts_data ts_data;

/** Open the files, check them and count the samples.  Not collective.
 * \param [out] out  The caller's, end with ts_data_close; NULL on error.
 * \return TS_BAD_INPUT: what io/samples.h names, or a fraction beside a validation_path. */
ts_status ts_data_open(const ts_data_options *options, ts_data **out, ts_error *err);

/** Tokens of the file or the sources, their validation included.  Not collective. */
int64_t ts_data_tokens(const ts_data *data);

/** Append how the samples of training were made ("412 documents in 96 samples, 3.1 % of them padding, from 2 sources");
 * nothing where they are cut from one stream.  Not collective. */
void ts_data_describe(const ts_data *data, ts_text *to);

/** Samples of a split: one epoch of each source.  0 for a validation that was not asked for.  Not collective. */
int64_t ts_data_samples(const ts_data *data, ts_split split);

/** Read the tokens of the sample at \a position, which may be in any epoch; the split must not be empty, and its
 * samples cut from a stream.  Not collective.
 * Thread-safe for text and bin files; HDF5 files must be read by one thread of the process at a time.
 * \param [in]  position  Samples since the start of the training (or of the validation), at least 0.
 * \param [out] tokens    T + 1 tokens; undefined on error.
 * \return TS_BAD_INPUT: a token outside the vocabulary (file, offset in tokens, value), or an unreadable file. */
ts_status ts_data_sample(ts_data *data, ts_split split, int64_t position, int32_t *tokens, ts_error *err);

/** Read the sample at \a position as sample \a i of a batch, and as the run's of that number.  Not collective; one
 * thread at a time.
 * \return TS_BAD_INPUT as ts_data_sample, or a loss mask of something else than 0 and 1; the sample is undefined
 *         then. */
ts_status ts_data_read(ts_data *data, ts_split split, int64_t position, ts_batch *batch, int64_t i, ts_error *err);

/** Close and free; NULL handles are allowed; sets the handle to NULL.  Not collective. */
void ts_data_close(ts_data **data);

/** Write the bytes of \a text_path as an llm.c token file (one token per byte).  Not collective.
 * \param [in]  bin_path  Appears complete or not at all; an older file of this name is replaced.
 * \param [out] count     Tokens written.
 * \return TS_BAD_INPUT: unreadable, more than 2^31 - 1 bytes (the format's limit), or not writable; "PATH: reason". */
ts_status ts_data_write_bin(const char *text_path, const char *bin_path, int64_t *count, ts_error *err);

#endif
