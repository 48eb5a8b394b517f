/** \file
 * What the tests of the deck share: a small good deck, and files written into the test's directory.
 */
#ifndef REGRESSION_DECK_FIXTURE_H
#define REGRESSION_DECK_FIXTURE_H

#include "base/memory.h"
#include "base/text.h"
#include "deck/deck.h"
#include "regression/tap.h"

#include <string.h>

#define LLAMA_MODEL                                                                                  \
  "model = { model_type = \"llama\"; vocab_size = 256; hidden_size = 64; intermediate_size = 172;\n" \
  "  num_hidden_layers = 2; num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 128; };\n"

#define GOOD_DECK LLAMA_MODEL "train_micro_batch_size_per_gpu = 2;\n"

/** Write a file of the test's directory and give its path (ts_free).  Not collective. */
static inline char *fixture_file(const char *name, const char *text) {
  char *path = ts_format("%s/%s", tap_directory(), name);
  ts_error err = {0};
  TS_CHECK(ts_write_file(path, text, strlen(text), &err) == TS_OK, "%s", err.text);
  return path;
}

/** Read a deck that must be good; NULL and a failed test when it is not.  Not collective. */
static inline ts_deck *fixture_read(const char *what, const char *text, char *set) {
  ts_error err = {0};
  ts_deck *deck = NULL;
  ts_deck_read_text("good.cfg", text, &set, set != NULL, &deck, &err);
  tap_ok(deck != NULL, "%s: %s", what, deck != NULL ? "reads" : err.text);
  ts_error_clear(&err);
  return deck;
}

#endif
