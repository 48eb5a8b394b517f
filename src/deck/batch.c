/* The batch triple, and what training needs. */
#include "base/memory.h"
#include "deck/check.h"
#include "deck/deck.h"

static ts_status report_equation(int64_t batch, int64_t micro, int64_t steps, int64_t ranks, ts_error *err) {
  int64_t product = 0;
  bool wraps = __builtin_mul_overflow(micro, steps, &product) || __builtin_mul_overflow(product, ranks, &product);
  char value[32] = "more than 64 bits hold";
  if (!wraps) {
    snprintf(value, sizeof value, "%lld", (long long) product);
  }
  return ts_deck_report(err, TS_CHECK_BATCH_RANKS, "", "",
                        "train_batch_size %lld != train_micro_batch_size_per_gpu %lld x gradient_accumulation_steps "
                        "%lld x data-parallel size %lld = %s",
                        (long long) batch, (long long) micro, (long long) steps, (long long) ranks, value);
}

static ts_status report_division(int64_t batch, const char *given, int64_t divisor, int64_t ranks, ts_error *err) {
  return ts_deck_report(err, TS_CHECK_BATCH_RANKS, "", "",
                        "train_batch_size %lld is not a multiple of %s %lld x data-parallel size %lld",
                        (long long) batch, given, (long long) divisor, (long long) ranks);
}

/* batch = micro x steps x ranks, one of micro and steps unknown; what is known is `known`. */
static ts_status divide(int64_t batch, const char *given, int64_t known, int64_t ranks, int64_t *unknown,
                        ts_error *err) {
  int64_t divisor = 0;
  bool wraps = __builtin_mul_overflow(known, ranks, &divisor);
  if (wraps || batch % divisor != 0) {
    return report_division(batch, given, known, ranks, err);
  }
  *unknown = batch / divisor;
  return TS_OK;
}

ts_status ts_deck_resolve_batch(ts_deck *deck, int64_t batch_parallel_size, ts_error *err) {
  int64_t batch = deck->train_batch_size, micro = deck->train_micro_batch_size_per_gpu;
  int64_t steps = deck->gradient_accumulation_steps, product = 0;
  ts_status status = TS_OK;
  if (batch == 0 && micro == 0) {
    return ts_deck_report(err, TS_CHECK_BATCH_RANKS, "", "",
                          "train_batch_size: missing; accepted: it, or train_micro_batch_size_per_gpu");
  }
  if (batch > 0 && micro == 0) {
    steps = steps > 0 ? steps : 1;
    status = divide(batch, "gradient_accumulation_steps", steps, batch_parallel_size, &micro, err);
  } else if (batch > 0 && steps == 0) {
    status = divide(batch, "train_micro_batch_size_per_gpu", micro, batch_parallel_size, &steps, err);
  }
  steps = steps > 0 ? steps : 1;
  bool wraps = __builtin_mul_overflow(micro, steps, &product) ||
               __builtin_mul_overflow(product, batch_parallel_size, &product);
  if (status == TS_OK && (wraps || (batch > 0 && product != batch))) {
    status = report_equation(batch, micro, steps, batch_parallel_size, err);
  }
  if (status == TS_OK) {
    deck->train_batch_size = product;
    deck->train_micro_batch_size_per_gpu = micro;
    deck->gradient_accumulation_steps = steps;
  }
  return status;
}

ts_status ts_deck_check_training(const ts_deck *deck, ts_error *err) {
  const struct {
    const char *key, *help;
    bool missing;
  } needs[] = {
      {"data.path", "the training data", *deck->data.path == '\0'},
      {"run.directory", "where the results go", *deck->run.directory == '\0'},
      {"run.steps", "how many steps to train", deck->run.steps == 0},
  };
  ts_status status = TS_OK;
  for (size_t i = 0; i < sizeof needs / sizeof *needs; ++i) {
    if (needs[i].missing &&
        ts_deck_report(err, TS_CHECK_TRAINING, "", needs[i].key, "missing: %s", needs[i].help) != TS_OK) {
      status = TS_BAD_INPUT;
    }
  }
  return status;
}
