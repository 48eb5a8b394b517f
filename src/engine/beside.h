/** \file
 * What lies beside the weights where a Hugging Face directory is made of a deck's model: config.json and the files of
 * its tokenizer.  Nothing here is collective.
 */
#ifndef TS_ENGINE_BESIDE_H
#define TS_ENGINE_BESIDE_H

#include "base/text.h"
#include "deck/deck.h"

/** Where it comes from; end with ts_beside_clear. */
typedef struct ts_beside {
  char *source;    /**< Owned: a directory with the config.json and the tokenizer of the model; NULL for none. */
  char *tokenizer; /**< Owned: another one for its tokenizer; NULL: source. */
} ts_beside;

/** Find it: what the run kept of the directory it began from, which may have changed; else that directory; else
 * nothing, and where there was one a warning.  Not collective.
 * \param [in] run    Its directory; NULL or "" for none.
 * \param [in] began  The Hugging Face directory that the weights began from; "" for none. */
void ts_beside_find(const char *run, const char *began, const ts_deck *deck, ts_beside *out);

/** Append config.json: that of the source, else made from the deck.  Not collective.
 * \param [in] dtype  Of the tensors: F32, BF16 or F16.
 * \return TS_BAD_INPUT: the source's is no JSON object. */
ts_status ts_beside_config(const ts_beside *beside, const ts_deck *deck, ts_dtype dtype, ts_text *to, ts_error *err);

/** Copy the tokenizer's files into \a directory, then write \a config as its config.json: where that is, all are.
 * Not collective.
 * \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_beside_write(const ts_beside *beside, const ts_text *config, const char *directory, ts_error *err);

/** Free and zero.  Not collective. */
void ts_beside_clear(ts_beside *beside);

#endif
