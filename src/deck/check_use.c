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

const char *ts_deck_files(const ts_deck *deck) {
  const ts_deck_offload *optimizer = &deck->zero_optimization.offload_optimizer;
  return strcmp(optimizer->device, "nvme") == 0 ? optimizer->nvme_path
                                                : deck->zero_optimization.offload_param.nvme_path;
}

ts_status ts_deck_check_gpu(const ts_deck *deck, ts_error *err) {
  const struct {
    const char *key;
    const ts_deck_offload *offload;
  } rows[] = {
      {"zero_optimization.offload_param.device", &deck->zero_optimization.offload_param},
      {"zero_optimization.offload_optimizer.device", &deck->zero_optimization.offload_optimizer},
  };
  ts_status status = TS_OK;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (strcmp(rows[i].offload->device, "nvme") == 0 &&
        ts_deck_report(err, TS_CHECK_GPU, ts_deck_origin(deck, rows[i].key), rows[i].key,
                       "\"nvme\": refused, not there yet on GPUs: state in files; accepted: \"none\", \"cpu\"") !=
            TS_OK) {
      status = TS_BAD_INPUT;
    }
  }
  return status;
}
