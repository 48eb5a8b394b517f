/* The batch triple. */
#include "base/memory.h"
#include "deck/check.h"
#include "deck/elasticity.h"

/* "name 4", "name 1 (not given)" where we assumed the value, or "name" alone for what is still unknown. */
static void add_factor(ts_text *to, const char *name, int64_t value, bool given) {
  ts_text_add(to, "%s", name);
  if (value > 0) {
    ts_text_add(to, " %lld%s", (long long) value, given ? "" : " (not given)");
  }
}

static void add_equation(ts_text *to, const ts_deck *deck, int64_t micro, int64_t steps, int64_t ranks) {
  add_factor(to, "train_micro_batch_size_per_gpu", micro, deck->train_micro_batch_size_per_gpu > 0);
  ts_text_add(to, " x ");
  add_factor(to, "gradient_accumulation_steps", steps, deck->gradient_accumulation_steps > 0);
  ts_text_add(to, " x data-parallel size %lld", (long long) ranks);
}

/* At the key that the user gave, if any. */
static ts_status report_key(const ts_deck *deck, const char *key, const char *problem, ts_error *err) {
  return ts_deck_report(err, TS_CHECK_BATCH_RANKS, ts_deck_origin(deck, key), key, "%s", problem);
}

static ts_status report_equation(const ts_deck *deck, int64_t micro, int64_t steps, int64_t ranks, ts_error *err) {
  int64_t product = 0;
  bool wraps = __builtin_mul_overflow(micro, steps, &product) || __builtin_mul_overflow(product, ranks, &product);
  ts_text text = {0};
  if (deck->train_batch_size > 0) {
    ts_text_add(&text, "%lld != ", (long long) deck->train_batch_size);
  } else {
    ts_text_add(&text, "train_batch_size = ");
  }
  add_equation(&text, deck, micro, steps, ranks);
  if (wraps) {
    ts_text_add(&text, " = more than 64 bits hold");
  } else {
    ts_text_add(&text, " = %lld; leave out one of the three keys and it follows, or start other ranks",
                (long long) product);
  }
  ts_status status = report_key(
      deck, deck->train_batch_size > 0 ? "train_batch_size" : "train_micro_batch_size_per_gpu", text.text, err);
  ts_text_free(&text);
  return status;
}

static ts_status report_division(const ts_deck *deck, int64_t micro, int64_t steps, int64_t ranks, ts_error *err) {
  ts_text text = {0};
  int64_t divisor = 0;
  ts_text_add(&text, "%lld is not a multiple of ", (long long) deck->train_batch_size);
  micro > 0 ? add_factor(&text, "train_micro_batch_size_per_gpu", micro, true)
            : add_factor(&text, "gradient_accumulation_steps", steps, deck->gradient_accumulation_steps > 0);
  ts_text_add(&text, " x data-parallel size %lld", (long long) ranks);
  if (!__builtin_mul_overflow(micro > 0 ? micro : steps, ranks, &divisor)) {
    ts_text_add(&text, " = %lld; accepted: a multiple of %lld, or other ranks", (long long) divisor,
                (long long) divisor);
  }
  ts_text_add(&text, " (train_batch_size = ");
  add_equation(&text, deck, micro, steps, ranks);
  ts_text_add(&text, ")");
  ts_status status = report_key(deck, "train_batch_size", text.text, err);
  ts_text_free(&text);
  return status;
}

/* batch = micro x steps x ranks, one of micro and steps is unknown, 0. */
static ts_status divide_batch(const ts_deck *deck, int64_t *micro, int64_t *steps, int64_t ranks, ts_error *err) {
  int64_t divisor = 0, *unknown = *micro == 0 ? micro : steps;
  bool wraps = __builtin_mul_overflow(*micro > 0 ? *micro : *steps, ranks, &divisor);
  if (wraps || deck->train_batch_size % divisor != 0) {
    return report_division(deck, *micro, *steps, ranks, err);
  }
  *unknown = deck->train_batch_size / divisor;
  return TS_OK;
}

ts_status ts_deck_resolve_batch(ts_deck *deck, int64_t batch_parallel_size, ts_error *err) {
  int64_t batch = deck->train_batch_size, micro = deck->train_micro_batch_size_per_gpu;
  int64_t steps = deck->gradient_accumulation_steps, product = 0;
  ts_status status = TS_OK;
  if (deck->elasticity.enabled) {
    return ts_elastic_resolve(deck, batch_parallel_size, err);
  }
  if (batch == 0 && micro == 0) {
    return report_key(deck, "train_batch_size", "missing; accepted: it, or train_micro_batch_size_per_gpu", err);
  }
  if (batch > 0 && micro == 0) {
    steps = steps > 0 ? steps : 1;
    status = divide_batch(deck, &micro, &steps, batch_parallel_size, err);
  } else if (batch > 0 && steps == 0) {
    status = divide_batch(deck, &micro, &steps, batch_parallel_size, err);
  }
  steps = steps > 0 ? steps : 1;
  bool wraps =
      __builtin_mul_overflow(micro, steps, &product) || __builtin_mul_overflow(product, batch_parallel_size, &product);
  if (status == TS_OK && (wraps || (batch > 0 && product != batch))) {
    status = report_equation(deck, micro, steps, batch_parallel_size, err);
  }
  if (status == TS_OK) {
    deck->train_batch_size = product;
    deck->train_micro_batch_size_per_gpu = micro;
    deck->gradient_accumulation_steps = steps;
  }
  return status;
}
