/* Batches when the number of ranks changes: chosen by elasticity, or kept by a run that goes on. */
#include "base/memory.h"
#include "deck/check.h"
#include "deck/elasticity.h"
#include "deck/value.h"

/* ---- elasticity ---- */

static ts_status report_unfit(const ts_deck *deck, int64_t ranks, const ts_elastic_batch *choice, ts_error *err) {
  const ts_deck_elasticity *e = &deck->elasticity;
  const char *limit = "elasticity.max_train_batch_size";
  ts_text text = {0};
  if (e->version > 0.1) {
    ts_text_add(&text,
                "no micro-batch size x data-parallel size %lld is within %lld; "
                "accepted: fewer ranks, a smaller size, or a larger limit",
                (long long) ranks, (long long) e->max_train_batch_size);
  } else if (choice->fits.n == 0) {
    ts_text_add(&text,
                "no number of ranks from elasticity.min_gpus %lld to max_gpus %lld fits a batch of at most "
                "%lld",
                (long long) e->min_gpus, (long long) e->max_gpus, (long long) e->max_train_batch_size);
  } else {
    ts_text_add(&text, "data-parallel size %lld does not fit train_batch_size %lld; accepted: ", (long long) ranks,
                (long long) choice->batch);
    ts_elastic_list(&choice->fits, &text);
    ts_text_add(&text, ", or elasticity.version = 0.2");
  }
  ts_status status = ts_deck_report(err, TS_CHECK_BATCH_RANKS, ts_deck_origin(deck, limit), limit, "%s", text.text);
  ts_text_free(&text);
  return status;
}

ts_status ts_elastic_resolve(ts_deck *deck, int64_t replicas, ts_error *err) {
  ts_elastic_batch choice;
  ts_elastic_choose(&deck->elasticity, replicas, &choice);
  ts_status status = choice.micro > 0 ? TS_OK : report_unfit(deck, replicas, &choice, err);
  if (choice.micro > 0) {
    deck->train_batch_size = choice.batch;
    deck->train_micro_batch_size_per_gpu = choice.micro;
    deck->gradient_accumulation_steps = choice.batch / replicas / choice.micro;
    deck->elasticity.ignore_non_elastic_batch_info = true; /* the deck has them now, and may be printed and read */
  }
  ts_ints_clear(&choice.fits);
  return status;
}

/* ---- going on ---- */

/* 0 for a deck that does not say. */
static int64_t replicas_of(const ts_deck *deck) {
  bool known = deck->train_micro_batch_size_per_gpu > 0 && deck->gradient_accumulation_steps > 0;
  return known ? deck->train_batch_size / deck->train_micro_batch_size_per_gpu / deck->gradient_accumulation_steps : 0;
}

static int64_t largest_divisor(int64_t n, int64_t most) {
  int64_t largest = 1;
  for (int64_t i = 1; i <= most && i * i <= n; ++i) {
    if (n % i == 0) {
      largest = n / i <= most ? n / i : i; /* the first co-divisor that is small enough is the largest */
      if (largest != i) {
        return largest;
      }
    }
  }
  return largest;
}

static ts_status report_kept(const ts_deck *deck, int64_t batch, int64_t ranks, ts_error *err) {
  const char *key = "train_batch_size";
  ts_text text = {0};
  ts_ints fits = {0};
  for (int64_t i = 1; i <= batch && i <= 2 * ranks; ++i) { /* what is near the ranks there are */
    if (batch % i == 0) {
      ts_ints_add(&fits, i);
    }
  }
  ts_text_add(
      &text,
      "a run that goes on keeps its train_batch_size, and %lld / data-parallel size %lld is not a whole number; "
      "accepted: ",
      (long long) batch, (long long) ranks);
  ts_elastic_list(&fits, &text);
  ts_text_add(&text, " ranks, another train_batch_size, or elasticity.enabled = true with micro_batch_sizes and "
                     "max_train_batch_size");
  ts_status status = ts_deck_report(err, TS_CHECK_BATCH_RANKS, ts_deck_origin(deck, key), key, "%s", text.text);
  ts_text_free(&text);
  ts_ints_clear(&fits);
  return status;
}

static void add_change(ts_text *to, const char *name, int64_t before, int64_t now) {
  if (before != now) {
    ts_text_add(to, "%s%s %lld -> %lld", to->length > 0 ? ", " : "", name, (long long) before, (long long) now);
  }
}

/* "4 ranks before, 2 now: gradient_accumulation_steps 2 -> 4 keeps train_batch_size 32" */
static void say_changes(const ts_deck *deck, const ts_deck *before, int64_t ranks, ts_text *said) {
  ts_text text = {0};
  add_change(&text, "train_batch_size", before->train_batch_size, deck->train_batch_size);
  add_change(&text, "train_micro_batch_size_per_gpu", before->train_micro_batch_size_per_gpu,
             deck->train_micro_batch_size_per_gpu);
  add_change(&text, "gradient_accumulation_steps", before->gradient_accumulation_steps,
             deck->gradient_accumulation_steps);
  ts_text_add(said, "%lld rank%s before, %lld now: %s", (long long) replicas_of(before),
              replicas_of(before) > 1 ? "s" : "", (long long) ranks, text.text);
  if (before->train_batch_size == deck->train_batch_size) {
    ts_text_add(said, " keeps train_batch_size %lld", (long long) deck->train_batch_size);
  } else {
    ts_text_add(said, "; %s, the data goes on where it was",
                deck->run.epochs > 0 ? "the learning rate's schedule goes on counting steps"
                                     : "run.steps and the learning rate's schedule go on counting steps");
  }
  ts_text_free(&text);
}

static void say_kept(const ts_deck *deck, int64_t ranks, ts_text *said) {
  ts_text_add(
      said,
      "train_batch_size %lld is kept: train_micro_batch_size_per_gpu %lld x gradient_accumulation_steps %lld x %lld "
      "rank%s (not what the deck says; to change the batch, set train_batch_size)",
      (long long) deck->train_batch_size, (long long) deck->train_micro_batch_size_per_gpu,
      (long long) deck->gradient_accumulation_steps, (long long) ranks, ranks > 1 ? "s" : "");
}

/* The deck's own triple, where it gives the run's batch on these ranks with no larger micro-batch than was asked for or
 * is known to be small enough. */
static bool holds_as_it_is(ts_deck *deck, const ts_deck *before, int64_t ranks) {
  ts_deck plan = *deck;
  ts_error none = {0};
  bool small = deck->train_micro_batch_size_per_gpu > 0;
  bool holds = ts_deck_resolve_batch(&plan, ranks, &none) == TS_OK &&
               plan.train_batch_size == before->train_batch_size &&
               (small || plan.train_micro_batch_size_per_gpu <= before->train_micro_batch_size_per_gpu);
  if (holds) {
    *deck = plan;
  }
  ts_error_clear(&none);
  return holds;
}

ts_status ts_deck_keep_batch(ts_deck *deck, const ts_deck *before, int64_t ranks, ts_text *said, ts_error *err) {
  int64_t batch = before->train_batch_size, micro = deck->train_micro_batch_size_per_gpu;
  bool another = deck->train_batch_size > 0 && deck->train_batch_size != batch, kept = false;
  ts_status status = TS_OK;
  if (replicas_of(before) == 0 || deck->elasticity.enabled || another) {
    status = ts_deck_resolve_batch(deck, ranks, err);
  } else if (batch % ranks != 0) {
    status = report_kept(deck, batch, ranks, err);
  } else if (!holds_as_it_is(deck, before, ranks)) {
    kept = true;
    deck->train_batch_size = batch;
    micro = largest_divisor(batch / ranks, micro > 0 ? micro : before->train_micro_batch_size_per_gpu);
    deck->train_micro_batch_size_per_gpu = micro;
    deck->gradient_accumulation_steps = batch / ranks / micro;
  }
  if (status == TS_OK && replicas_of(before) > 0 &&
      (replicas_of(before) != ranks || (deck->elasticity.enabled && deck->train_batch_size != batch))) {
    say_changes(deck, before, ranks, said);
  } else if (status == TS_OK && kept) {
    say_kept(deck, ranks, said);
  }
  return status;
}
