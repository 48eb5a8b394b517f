/* tessera train */
#include "train/train.h"
#include "base/log.h"
#include "main/command.h"

int ts_main_train(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  ts_deck *deck = NULL;
  int64_t n_generate = 0;
  if (ts_argument(arguments, "--verbose") != NULL) {
    ts_log_configure(TS_LOG_DEBUG, ts_world_rank(world) == 0);
  }
  int code = ts_argument_int(arguments, "--tokens", 0, 1 << 20, &n_generate, err);
  code = code == 0 ? (int) ts_read_deck(arguments, world, &deck, err) : code;
  code = code == 0 ? (int) ts_deck_check_training(deck, err) : code;
  const char *prompt = ts_argument(arguments, "--prompt");
  if (code == 0) {
    const char *resume = ts_argument(arguments, "--resume");
    const ts_train_options options = {.prompt = prompt,
                                      .n_generate = n_generate,
                                      .resume = resume != NULL ? resume : deck->run.resume,
                                      .weights = ts_argument(arguments, "--weights")};
    code = ts_train(world, deck, &options, err);
  }
  ts_deck_destroy(&deck);
  return code;
}
