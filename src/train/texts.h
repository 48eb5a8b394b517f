/** \file
 * The texts of a deck: the tokenizer that makes tokens of them, and the files of tokens that they are prepared into,
 * once, by all ranks together.
 *
 * A prepared file lies in data.cache, or beside the text, as NAME.KEY.h5; the key is a hash of whatever its tokens
 * depend on: tokenizer, keys of `data`, the end token, and of the text its size, time of change and some of its bytes.
 * So what is there fits, and another text or tokenizer is another file.  While one is made NAME.KEY.h5.lock is locked,
 * for which other jobs wait, and ranks write parts, NAME.KEY.h5.part-RANK.*; those that a job left which died are
 * removed by the next.
 */
#ifndef TS_TRAIN_TEXTS_H
#define TS_TRAIN_TEXTS_H

#include "comm/comm.h"
#include "deck/deck.h"

/** The directory with the tokenizer.json of a deck: data.tokenizer, else model.from; where that is gone, what the run
 * kept of it.
 * \param [in]  run        Directory of a run; NULL or "": there is none.
 * \param [in]  kept       What the run kept goes first: it is what its checkpoints were trained with.
 * \param [out] directory  The caller's (ts_free); NULL where there is no tokenizer: tokens are bytes.
 * \return TS_BAD_INPUT: data.tokenizer has no such file, or model.from has a tokenizer of another kind only.
 *         Not collective. */
ts_status ts_find_tokenizer(const ts_deck *deck, const char *run, bool kept, char **directory, ts_error *err);

/** The files that are read for a deck's data. */
typedef struct ts_prepared {
  int n;       /**< data.path or the sources, then data.validation_path where there is one. */
  char **path; /**< Owned: of each the file of tokens that was made of it; NULL: it is read itself. */
} ts_prepared;

/** Prepare what has to be prepared.  Collective over the world.
 * \param [out] out  End with ts_prepared_clear, on error too.
 * \return TS_BAD_INPUT, agreed: a file, a tokenizer or a line of jsonl is wrong, the model has fewer tokens than the
 *         tokenizer, or the cache cannot be written. */
ts_status ts_prepare_texts(ts_world *world, const ts_deck *deck, ts_prepared *out, ts_error *err);

/** Free and zero. Not collective. */
void ts_prepared_clear(ts_prepared *prepared);

#endif
