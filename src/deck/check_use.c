/* What depends on what a deck is used for. */
#include "deck/check.h"
#include "deck/deck.h"

#include <string.h>

ts_status ts_deck_check_training(const ts_deck *deck, ts_error *err) {
  const struct {
    const char *key, *help;
    bool missing;
  } needs[] = {
      {"data.path", "the training data (or data.sources)", *deck->data.path == '\0' && deck->data.sources.n == 0},
      {"run.directory", "where the results go", *deck->run.directory == '\0'},
      {"run.steps", "how many steps to train (or run.epochs)",
       deck->run.steps == 0 && deck->run.epochs == 0 && *deck->model.from == '\0'},
  };
  ts_status status = TS_OK;
  for (size_t i = 0; i < sizeof needs / sizeof *needs; ++i) {
    if (needs[i].missing && ts_deck_report(err, TS_CHECK_TRAINING, ts_deck_origin(deck, needs[i].key), needs[i].key,
                                           "missing: %s", needs[i].help) != TS_OK) {
      status = TS_BAD_INPUT;
    }
  }
  return status;
}
