/* Batches that follow the ranks: against DeepSpeed's own choice (regression/golden/elasticity.txt, made by
 * make_elasticity.py), and those of a run that goes on. */
#include "deck/elasticity.h"

#include "base/log.h"
#include "base/memory.h"
#include "deck/value.h"
#include "regression/deck_fixture.h"

#include <stdlib.h>

/* ---- DeepSpeed's cases ---- */

typedef struct golden {
  char version[8];
  long long limit, min_gpus, max_gpus, per_node, parallel, larger, replicas, batch, micro;
  ts_ints sizes, fits;
} golden;

static void read_list(const char *text, ts_ints *list) {
  char *end;
  for (long long value = strtoll(text, &end, 10); end != text; value = strtoll(text = end, &end, 10)) {
    ts_ints_add(list, value);
  }
}

/* "0.1 32 1 10000 1 1 1 4 : 1 2 3 : 24 3 : 1 2 ...": see make_elasticity.py */
static bool read_golden(const char *line, golden *g) {
  const char *sizes = strchr(line, ':'), *choice = sizes != NULL ? strchr(sizes + 1, ':') : NULL;
  const char *fits = choice != NULL ? strchr(choice + 1, ':') : NULL;
  *g = (golden){0};
  if (fits == NULL || sscanf(choice, ": %lld %lld", &g->batch, &g->micro) != 2 ||
      sscanf(line, "%7s %lld %lld %lld %lld %lld %lld %lld", g->version, &g->limit, &g->min_gpus, &g->max_gpus,
             &g->per_node, &g->parallel, &g->larger, &g->replicas) != 8) {
    return false;
  }
  read_list(sizes + 1, &g->sizes);
  read_list(fits + 1, &g->fits);
  return true;
}

/* Through the text of a deck, so that what DeepSpeed accepts passes the checks too. */
static ts_deck *golden_deck(const golden *g) {
  ts_text text = {0};
  ts_text_add(
      &text,
      "%s elasticity = { enabled = true; version = %s; max_train_batch_size = %lld; min_gpus = %lld; max_gpus = %lld;"
      " num_gpus_per_node = %lld; model_parallel_size = %lld; prefer_larger_batch = %s; micro_batch_sizes = [",
      LLAMA_MODEL, g->version, g->limit, g->min_gpus, g->max_gpus, g->per_node, g->parallel,
      g->larger ? "true" : "false");
  for (int i = 0; i < g->sizes.n; ++i) {
    ts_text_add(&text, i > 0 ? ", %lld" : "%lld", (long long) g->sizes.items[i]);
  }
  ts_text_add(&text, "]; };\n");
  ts_deck *deck = NULL;
  ts_error err = {0};
  if (ts_deck_read_text("golden", text.text, NULL, 0, &deck, &err) != TS_OK) {
    tap_note("%s", err.text);
  }
  ts_error_clear(&err);
  ts_text_free(&text);
  return deck;
}

static bool same_list(const ts_ints *a, const ts_ints *b) {
  return a->n == b->n && (a->n == 0 || memcmp(a->items, b->items, (size_t) a->n * sizeof *a->items) == 0);
}

static bool resolves_so(ts_deck *deck, const golden *g) {
  ts_error err = {0};
  ts_status status = ts_deck_resolve_batch(deck, g->replicas, &err);
  int64_t product = deck->train_micro_batch_size_per_gpu * deck->gradient_accumulation_steps * g->replicas;
  ts_error_clear(&err);
  return g->micro == 0 ? status == TS_BAD_INPUT
                       : status == TS_OK && deck->train_batch_size == g->batch && product == g->batch &&
                             deck->train_micro_batch_size_per_gpu == g->micro;
}

static bool golden_holds(const golden *g) {
  ts_deck *deck = golden_deck(g);
  if (deck == NULL) {
    return false;
  }
  ts_elastic_batch choice;
  ts_elastic_choose(&deck->elasticity, g->replicas, &choice);
  bool same = choice.batch == g->batch && choice.micro == g->micro && same_list(&choice.fits, &g->fits);
  if (!same) {
    tap_note("batch %lld, not %lld; micro-batch %lld, not %lld; %d numbers, not %d", (long long) choice.batch, g->batch,
             (long long) choice.micro, g->micro, choice.fits.n, g->fits.n);
  }
  same = same && (g->replicas == 0 || resolves_so(deck, g));
  ts_ints_clear(&choice.fits);
  ts_deck_destroy(&deck);
  return same;
}

static void test_golden(void) {
  char *text = NULL;
  size_t length;
  ts_read_file(tap_path("regression/golden/elasticity.txt"), 1 << 20, &text, &length, NULL);
  int n = 0, wrong = 0, unfit = 0, nodes = 0, models = 0;
  for (char *line = text != NULL ? strtok(text, "\n") : NULL; line != NULL; line = strtok(NULL, "\n")) {
    golden g;
    bool good = read_golden(line, &g) && golden_holds(&g);
    wrong += !good;
    if (!good) {
      tap_note("%s", line);
    }
    n += 1;
    unfit += g.micro == 0;
    nodes += g.per_node > 1;
    models += g.parallel > 1;
    ts_ints_clear(&g.sizes);
    ts_ints_clear(&g.fits);
  }
  tap_ok(wrong == 0, "%d of %d cases as DeepSpeed has them", n - wrong, n);
  tap_ok(n - unfit >= 300 && unfit >= 200 && nodes >= 100 && models >= 80,
         "%d with ranks that do not fit, %d with nodes, %d with parts of a model", unfit, nodes, models);
  ts_free(text);
}

/* ---- highly composite numbers, from their definition ---- */

static void test_composite(void) {
  enum { END = 720720 };
  int *divisors = ts_calloc(END + 1, sizeof *divisors), records = 0, wrong = 0;
  for (int d = 1; d <= END; ++d) {
    for (int multiple = d; multiple <= END; multiple += d) {
      ++divisors[multiple];
    }
  }
  for (int n = 1, last = 1, most = 0; n <= END; ++n) {
    if (divisors[n] > most) {
      wrong += n > 1 && ts_elastic_composite(n - 1) != last;
      wrong += ts_elastic_composite(n) != n;
      most = divisors[last = n];
      ++records;
    }
  }
  wrong += ts_elastic_composite(END + 1) != END || ts_elastic_composite(INT64_MAX) != END;
  tap_ok(wrong == 0 && records == 38, "%d highly composite numbers, the last of DeepSpeed's list is the largest",
         records);
  ts_free(divisors);
}

/* ---- DeepSpeed's json ---- */

static void test_json(void) {
  char *path =
      fixture_file("elastic.json",
                   "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 10000,\n"
                   "\"micro_batch_sizes\": [8, 12, 16, 17], \"min_gpus\": 32, \"max_gpus\": 1500, \"min_time\": 20,\n"
                   "\"version\": 0.1}}");
  char *text = ts_format("%s deepspeed_config = \"%s\";\n", LLAMA_MODEL, path);
  ts_deck *deck = fixture_read("a json", text, NULL);
  ts_error err = {0};
  tap_ok(deck != NULL && ts_deck_resolve_batch(deck, 64, &err) == TS_OK && deck->train_batch_size == 9792 &&
             deck->train_micro_batch_size_per_gpu == 17 && deck->gradient_accumulation_steps == 9,
         "DeepSpeed's own example on 64 ranks: 9792 = 17 x 9 x 64");
  ts_status unfit = ts_deck_resolve_batch(deck, 128, &err);
  tap_ok(unfit == TS_BAD_INPUT &&
             strstr(err.text, "elastic.json:1: elasticity.max_train_batch_size: "
                              "data-parallel size 128 does not fit train_batch_size 9792; "
                              "accepted: 32, 34, 36, 48, 51, 64 ..., 306, 408, 576, 612, 816, 1224 (23 numbers), or "
                              "elasticity.version = 0.2") != NULL,
         "on 128: %s", err.text);
  ts_error_clear(&err);
  ts_text printed = {0};
  ts_deck *second = NULL;
  ts_deck_resolve_batch(deck, 48, &err);
  ts_deck_print(deck, &printed);
  ts_status status = ts_deck_read_text("printed", printed.text, NULL, 0, &second, &err);
  tap_ok(status == TS_OK && second->train_batch_size == 9792, "what was chosen is printed, and reads back: %s",
         err.text != NULL ? err.text : "so");
  status = status == TS_OK ? ts_deck_resolve_batch(second, 72, &err) : status;
  tap_ok(status == TS_OK && second->train_micro_batch_size_per_gpu == 17 && second->gradient_accumulation_steps == 8,
         "on other ranks it is chosen again");
  ts_deck_destroy(&deck);
  ts_deck_destroy(&second);
  ts_error_clear(&err);
  ts_text_free(&printed);
  ts_free(text);
  ts_free(path);
}

/* ---- what cannot fit ---- */

static void test_unfit(void) {
  static const struct {
    const char *set, *error;
    int64_t ranks;
  } rows[] = {
      {"elasticity={enabled=true; max_train_batch_size=8; micro_batch_sizes=[2, 3];}",
       "no micro-batch size x data-parallel size 5 is within 8; accepted: fewer ranks", 5},
      {"elasticity={enabled=true; version=0.1; max_train_batch_size=8; micro_batch_sizes=[2]; min_gpus=9; "
       "max_gpus=12;}",
       "no number of ranks from elasticity.min_gpus 9 to max_gpus 12 fits a batch of at most 8", 9},
      {"elasticity={enabled=true; max_train_batch_size=2147483647; micro_batch_sizes=[2147483647];}",
       "no micro-batch size x data-parallel size 2147483647 is within", INT64_C(2147483647)},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *deck = fixture_read("unfit", LLAMA_MODEL, (char *) rows[i].set);
    ts_error err = {0};
    ts_status status = ts_deck_resolve_batch(deck, rows[i].ranks, &err);
    tap_ok(status == TS_BAD_INPUT && strstr(err.text, rows[i].error) != NULL && deck->train_batch_size == 0, "%s",
           err.text != NULL ? err.text : "it fits");
    ts_error_clear(&err);
    ts_deck_destroy(&deck);
  }
}

/* The most there may be of everything takes no time to speak of. */
static void test_large(void) {
  ts_deck_elasticity e = {.enabled = true,
                          .max_train_batch_size = INT32_MAX,
                          .min_gpus = 1,
                          .max_gpus = INT32_MAX,
                          .num_gpus_per_node = 1,
                          .model_parallel_size = 1,
                          .prefer_larger_batch = true,
                          .version = 0.2};
  for (int i = 1; i <= TS_ELASTIC_SIZES; ++i) {
    ts_ints_add(&e.micro_batch_sizes, i);
  }
  ts_elastic_batch choice;
  double start = ts_seconds();
  ts_elastic_choose(&e, INT32_MAX, &choice);
  tap_ok(choice.batch == INT32_MAX && choice.micro == 1, "2^31 ranks have one sample each");
  ts_ints_clear(&choice.fits);
  ts_elastic_choose(&e, 0, &choice);
  tap_ok(choice.batch > 0 && choice.batch <= INT32_MAX && choice.fits.n > 500 && choice.fits.n <= 1536,
         "a batch of %lld has %d numbers of ranks (%.3f s)", (long long) choice.batch, choice.fits.n,
         ts_seconds() - start);
  ts_ints_clear(&choice.fits);
  ts_ints_clear(&e.micro_batch_sizes);
}

/* ---- runs that go on ---- */

typedef struct triple {
  int64_t batch, micro, steps;
} triple;

static const struct {
  triple before, asked;
  int64_t ranks;
  triple kept; /* all 0: refused */
  const char *said;
} kept[] = {
    {{32, 4, 2}, {0, 4, 2}, 4, {32, 4, 2}, NULL},
    {{32, 4, 2},
     {0, 4, 2},
     2,
     {32, 4, 4},
     "4 ranks before, 2 now: gradient_accumulation_steps 2 -> 4 keeps train_batch_size 32"},
    {{32, 4, 4},
     {0, 4, 2},
     2,
     {32, 4, 4},
     "train_batch_size 32 is kept: train_micro_batch_size_per_gpu 4 x "
     "gradient_accumulation_steps 4 x 2 ranks (not what the deck says; to change the batch, set train_batch_size)"},
    {{32, 4, 4},
     {32, 4, 2},
     1,
     {32, 4, 8},
     "2 ranks before, 1 now: gradient_accumulation_steps 4 -> 8 keeps train_batch_size 32"},
    {{32, 4, 8}, {32, 4, 2}, 4, {32, 4, 2}, "1 rank before, 4 now: gradient_accumulation_steps 8 -> 2 keeps"},
    {{32, 4, 2},
     {0, 4, 2},
     16,
     {32, 2, 1},
     "train_micro_batch_size_per_gpu 4 -> 2, gradient_accumulation_steps 2 -> 1 keeps"},
    {{32, 2, 1},
     {0, 4, 2},
     2,
     {32, 4, 4},
     "16 ranks before, 2 now: train_micro_batch_size_per_gpu 2 -> 4, gradient_accumulation_steps 1 -> 4"},
    {{36, 4, 3},
     {36, 4, 3},
     2,
     {36, 3, 6},
     "train_micro_batch_size_per_gpu 4 -> 3, gradient_accumulation_steps 3 -> 6 keeps"},
    {{36, 4, 3}, {36, 4, 0}, 4, {36, 3, 3}, "3 ranks before, 4 now: train_micro_batch_size_per_gpu 4 -> 3 keeps"},
    {{32, 8, 1}, {32, 0, 0}, 2, {32, 8, 2}, "4 ranks before, 2 now: gradient_accumulation_steps 1 -> 2 keeps"},
    {{32, 8, 1}, {32, 0, 0}, 8, {32, 4, 1}, "4 ranks before, 8 now: train_micro_batch_size_per_gpu 8 -> 4 keeps"},
    {{32, 4, 2}, {32, 0, 4}, 4, {32, 2, 4}, NULL},
    {{32, 4, 2}, {32, 2, 0}, 4, {32, 2, 4}, NULL},
    {{32, 4, 2}, {64, 4, 0}, 4, {64, 4, 4}, NULL},
    {{32, 4, 2},
     {64, 4, 0},
     2,
     {64, 4, 8},
     "4 ranks before, 2 now: train_batch_size 32 -> 64, gradient_accumulation_steps 2 -> 8; "
     "run.steps and the learning rate's schedule go on counting steps, the data goes on where it was"},
    {{32, 4, 2}, {33, 0, 0}, 3, {33, 11, 1}, "train_batch_size 32 -> 33"},
    {{31, 1, 31}, {31, 4, 0}, 1, {31, 1, 31}, "is kept"},
    {{32, 4, 2},
     {0, 4, 2},
     3,
     {0},
     "a run that goes on keeps its train_batch_size, and 32 / data-parallel size 3 is not a whole "
     "number; accepted: 1, 2, 4 ranks, another train_batch_size, or elasticity.enabled = true with micro_batch_sizes "
     "and "
     "max_train_batch_size"},
    {{32, 4, 2}, {64, 4, 2}, 2, {0}, "train_batch_size: 64 != train_micro_batch_size_per_gpu 4"},
    {{32, 0, 0}, {0, 4, 2}, 2, {16, 4, 2}, NULL}, /* a saved deck that does not say is none to keep to */
};

static void test_keep(void) {
  for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i) {
    const triple *b = &kept[i].before, *a = &kept[i].asked, *k = &kept[i].kept;
    ts_deck before = {.train_batch_size = b->batch,
                      .train_micro_batch_size_per_gpu = b->micro,
                      .gradient_accumulation_steps = b->steps};
    ts_deck deck = {.train_batch_size = a->batch,
                    .train_micro_batch_size_per_gpu = a->micro,
                    .gradient_accumulation_steps = a->steps};
    ts_text said = {0};
    ts_error err = {0};
    ts_status status = ts_deck_keep_batch(&deck, &before, kept[i].ranks, &said, &err);
    const char *text = status == TS_OK ? said.text : err.text;
    bool silent = kept[i].said == NULL ? text == NULL : text != NULL && strstr(text, kept[i].said) != NULL;
    const triple *expected = k->batch > 0 ? k : a; /* refused: unchanged */
    tap_ok((status == TS_OK) == (k->batch > 0) && silent && deck.train_batch_size == expected->batch &&
               deck.train_micro_batch_size_per_gpu == expected->micro &&
               deck.gradient_accumulation_steps == expected->steps,
           "kept %zu: %lld x %lld on %lld: %s", i, (long long) deck.train_micro_batch_size_per_gpu,
           (long long) deck.gradient_accumulation_steps, (long long) kept[i].ranks,
           text != NULL ? text : "nothing to say");
    ts_text_free(&said);
    ts_error_clear(&err);
  }
}

int main(void) {
  test_golden();
  test_composite();
  test_json();
  test_unfit();
  test_large();
  test_keep();
  return tap_done();
}
