/* The search of tessera tune against brute force: every candidate walked.  Candidates are what they say, their batch is
 * the deck's, none that fits takes more than there is, and one that ends its process is a row. */
#include "regression/tap.h"

#include "base/log.h"
#include "base/memory.h"
#include "deck/deck_read.h"
#include "tune/belief.h"
#include "tune/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char llama[] =
    "model = { model_type = \"llama\"; vocab_size = 512; hidden_size = 96; intermediate_size = 200;\n"
    "  num_hidden_layers = 4; num_attention_heads = 6; num_key_value_heads = 2; max_position_embeddings = 64;\n"
    "  tie_word_embeddings = false; };\n"
    "data = { path = \"none\"; format = \"text\"; sequence_length = 32; };\n"
    "run = { directory = \"none\"; steps = 1; };\n"
    "train_batch_size = 8;\n";

static const char mixtral[] =
    "model = { model_type = \"mixtral\"; vocab_size = 512; hidden_size = 96; intermediate_size = 128;\n"
    "  num_hidden_layers = 2; num_attention_heads = 6; num_key_value_heads = 2; max_position_embeddings = 64;\n"
    "  num_experts = 4; num_experts_per_tok = 2; tie_word_embeddings = false; };\n"
    "data = { path = \"none\"; format = \"text\"; sequence_length = 32; };\n"
    "run = { directory = \"none\"; steps = 1; };\n"
    "train_batch_size = 8;\n";

static const char frozen[] =
    "model = { model_type = \"mixtral\"; vocab_size = 512; hidden_size = 32; intermediate_size = 8192;\n"
    "  num_hidden_layers = 1; num_attention_heads = 2; num_key_value_heads = 2; max_position_embeddings = 64;\n"
    "  num_experts = 8; num_experts_per_tok = 1; tie_word_embeddings = false; };\n"
    "data = { path = \"none\"; format = \"text\"; sequence_length = 8; };\n"
    "run = { directory = \"none\"; steps = 1; };\n"
    "frozen = [\"^(?!.*experts)\"];\n"
    "train_batch_size = 8;\n";

enum { PROCESSES = 2 };

/* What a case consists of: a machine without samples, whose links are so fast. */
typedef struct tuning {
  char *path;
  ts_deck *deck;
  ts_timing timing;
  ts_tune_space space;
  ts_tune_job job;
  ts_tune_model model;
} tuning;

static void set_timing(ts_timing *t, int ranks, double link, double start) {
  *t = (ts_timing){.ends = 1, .node = ranks};
  ts_measured *m = ts_machine_of(&t->machine[0], ranks, 1);
  *m = (ts_measured){.ranks = ranks,
                     .threads = 1,
                     .product = {1e10, 2e10},
                     .copy = 1e9,
                     .link = {link, link},
                     .start = start,
                     .slowdown = 1,
                     .instruction = 1e-5};
  t->by[0] = m;
}

static ts_tune_model alone(const tuning *t) {
  char *sets[] = {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=1", "train_batch_size=1"};
  ts_deck *deck = NULL;
  ts_mesh mesh;
  ts_error err = {0};
  TS_CHECK(ts_deck_read(t->path, sets, 3, &deck, &err) == TS_OK && ts_deck_mesh(deck, 1, 0, &mesh, &err) == TS_OK &&
               ts_deck_resolve_batch(deck, 1, &err) == TS_OK,
           "%s", err.text);
  ts_program *p = ts_program_create(&(ts_program_options){.deck = deck,
                                                          .mesh = &mesh,
                                                          .target = {ts_backend_cpu(), 1, false},
                                                          .use = TS_MODEL_TRAIN,
                                                          .batch = 1,
                                                          .length = deck->data.sequence_length});
  ts_tune_model model = ts_tune_model_of(p, t->space.batch);
  ts_program_destroy(&p);
  ts_deck_destroy(&deck);
  return model;
}

static void open_tuning(tuning *t, const char *text, int ranks, double link, double start, int64_t memory,
                        const ts_tune_wish *wish) {
  ts_error err = {0};
  ts_mesh mesh;
  *t = (tuning){.path = ts_format("%s/deck.cfg", tap_directory())};
  TS_CHECK(ts_write_file(t->path, text, strlen(text), &err) == TS_OK, "%s", err.text);
  TS_CHECK(ts_deck_read(t->path, NULL, 0, &t->deck, &err) == TS_OK, "%s", err.text);
  TS_CHECK(ts_deck_mesh(t->deck, ranks, 0, &mesh, &err) == TS_OK &&
               ts_deck_resolve_batch(t->deck, ranks, &err) == TS_OK,
           "%s", err.text);
  set_timing(&t->timing, ranks, link, start);
  t->space = ts_tune_space_of(t->deck, ranks, wish);
  t->job = (ts_tune_job){
      .path = t->path, .target = "cpu", .threads = 1, .memory = memory, .timing = &t->timing, .space = &t->space};
  t->model = alone(t);
}

static void close_tuning(tuning *t) {
  ts_timing_clear(&t->timing);
  ts_deck_destroy(&t->deck);
  ts_free(t->path);
}

/* ---- brute force ---- */

/* All whose batch divides, but for the values of what is refined in the end. */
static ts_tried *all_candidates(const ts_tune_space *s, int *n) {
  ts_tried *all = NULL;
  int capacity = 0;
  ts_candidate c = {{0}};
  *n = 0;
  for (bool more = true; more;) {
    if (ts_candidate_accumulation(s, &c) > 0) {
      TS_GROW(all, *n, capacity);
      all[(*n)++] = (ts_tried){.candidate = c};
    }
    more = false;
    for (int what = 0; what < TS_TUNED_OVERLAP && !more; ++what) {
      more = ++c.at[what] < s->n[what];
      c.at[what] = more ? c.at[what] : 0;
    }
  }
  return all;
}

static const ts_tune_wish few = {.kept = {[TS_TUNED_BUCKET] = true}, .node = 4};

static int by_bytes(const void *a, const void *b) {
  const ts_tried *x = a, *y = b;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The fastest of those that fit. */
static double best_within(const ts_tried *all, int n, int64_t memory, const ts_timing *timing) {
  double best = INFINITY;
  for (int i = 0; i < n; ++i) {
    best = memory == 0 || all[i].bytes <= memory ? fmin(best, ts_tried_seconds(&all[i], timing)) : best;
  }
  return best;
}

static bool has_row(const ts_search *s, int what, int value) {
  bool seen = false;
  for (int i = 0; i < s->n; ++i) {
    seen = seen || s->tried[i].candidate.at[what] == value;
  }
  return seen;
}

static void expect_best(tuning *t, int64_t memory, double best, int n, const char *what) {
  t->job.memory = memory;
  ts_search s = ts_tune_search(&t->job, &t->model, 600, PROCESSES);
  ts_text text = {0};
  ts_candidate_text(&t->space, &s.tried[0].candidate, &text);
  /* estimates leave something out: what they leave is not to be faster by more than what is wanted of them, 5 % */
  tap_ok(best < INFINITY && s.in_time && ts_tried_seconds(&s.tried[0], &t->timing) <= 1.05 * best,
         "%d ranks, %s: %.3f ms, by brute force %.3f; %s; %d of %d walked", t->space.ranks, what,
         1e3 * ts_tried_seconds(&s.tried[0], &t->timing), 1e3 * best, text.text, s.n, n);
  ts_text_free(&text);
  bool within = true, explained = true, each = true;
  int large = 0;
  for (int i = 0; i < s.n; ++i) {
    const ts_tried *r = &s.tried[i];
    large += r->how == TS_TRIED_LARGE;
    within = within && (r->how != TS_TRIED_FITS || memory == 0 || r->bytes <= memory) &&
             (r->how != TS_TRIED_LARGE || r->bytes > memory);
    explained = explained && r->how != TS_TRIED_FAILED && (r->how != TS_TRIED_REFUSED || r->why[0] != 0);
  }
  for (int setting = 0; setting < TS_TUNED_OVERLAP; ++setting) {
    for (int value = 0; value < t->space.n[setting]; ++value) {
      each = each && has_row(&s, setting, value);
    }
  }
  tap_ok(within && (memory == 0) == (large == 0), "what fits is within the memory: %d did not", large);
  tap_ok(explained && each && s.large + s.refused + s.slower <= s.candidates,
         "each value of each setting has a row, whatever is refused says why");
  ts_search_clear(&s);
}

/* What is left out by a formula would not fit. */
static void expect_bounds(const tuning *t, const ts_tried *all, int n) {
  int above = 0;
  for (int i = 0; i < n; ++i) {
    above += all[i].how == TS_TRIED_FITS &&
             ts_tune_least_bytes(&t->space, &t->model, &all[i].candidate) > (double) all[i].bytes;
  }
  tap_ok(above == 0, "no candidate takes less than the least that is said of it; %d of %d do", above, n);
}

static void test_bounds(const char *text, const ts_tune_wish *wish) {
  tuning t;
  int n;
  open_tuning(&t, text, 4, 1e9, 1e-5, 0, wish);
  ts_tried *all = all_candidates(&t.space, &n);
  ts_tune_walk(&t.job, all, n, PROCESSES);
  expect_bounds(&t, all, n);
  ts_free(all);
  close_tuning(&t);
}

/* Without a limit, and with one that half of all are too large for. */
static void test_search(const char *text, int ranks, double link, double start, const ts_tune_wish *wish,
                        const char *what) {
  tuning t;
  int n;
  open_tuning(&t, text, ranks, link, start, 0, wish);
  ts_tried *all = all_candidates(&t.space, &n);
  ts_tune_walk(&t.job, all, n, PROCESSES);
  expect_bounds(&t, all, n);
  expect_best(&t, 0, best_within(all, n, 0, &t.timing), n, what);
  qsort(all, (size_t) n, sizeof *all, by_bytes);
  int refused = 0; /* they took nothing, and come first */
  while (refused < n && all[refused].how != TS_TRIED_FITS) {
    ++refused;
  }
  int64_t memory = all[refused + (n - refused) / 2].bytes;
  char *little = ts_format("%s, a limit of %.1f MB", what, 1e-6 * (double) memory);
  expect_best(&t, memory, best_within(all, n, memory, &t.timing), n, little);
  ts_free(little);
  ts_free(all);
  close_tuning(&t);
}

/* ---- candidates ---- */

static void test_candidates(void) {
  tuning t;
  int n, wrong = 0, read = 0;
  open_tuning(&t, llama, 4, 1e9, 0, 0, &few);
  ts_tried *all = all_candidates(&t.space, &n);
  for (int i = 0; i < n; ++i) {
    const ts_candidate *c = &all[i].candidate;
    ts_deck *deck = NULL;
    ts_mesh mesh;
    ts_error err = {0};
    if (ts_tune_read(&t.job, c, &deck, &mesh, &err) == TS_OK) {
      const bool recompute = ts_candidate_number(&t.space, c, TS_TUNED_RECOMPUTE) > 0;
      bool same = mesh.size[TS_AXIS_TP] == ts_candidate_number(&t.space, c, TS_TUNED_TP) &&
                  mesh.size[TS_AXIS_SP] == ts_candidate_number(&t.space, c, TS_TUNED_SP) &&
                  mesh.size[TS_AXIS_PP] == ts_candidate_number(&t.space, c, TS_TUNED_PP) &&
                  ts_mesh_group_size(&mesh, TS_AXES_BATCH) == ts_candidate_replicas(&t.space, c) &&
                  deck->zero_optimization.stage == ts_candidate_number(&t.space, c, TS_TUNED_STAGE) &&
                  deck->train_micro_batch_size_per_gpu == ts_candidate_number(&t.space, c, TS_TUNED_MICRO) &&
                  deck->gradient_accumulation_steps == ts_candidate_accumulation(&t.space, c) &&
                  deck->activation_checkpointing.enabled == recompute && deck->train_batch_size == 8;
      const char *schedule = t.space.value[TS_TUNED_SCHEDULE][c->at[TS_TUNED_SCHEDULE]].text;
      same = same && (mesh.size[TS_AXIS_PP] == 1 ||
                      strncmp(deck->pipeline.schedule, schedule, strlen(deck->pipeline.schedule)) == 0);
      wrong += !same;
      ++read;
    }
    ts_error_clear(&err);
    ts_deck_destroy(&deck);
  }
  tap_ok(wrong == 0 && read > 100, "%d candidates are the decks they say, the batch that of the deck; %d are not",
         read - wrong, wrong);
  ts_free(all);
  ts_tune_wish wish = few;
  wish.kept[TS_TUNED_STAGE] = wish.kept[TS_TUNED_TP] = true;
  wish.least_micro = wish.most_micro = 2;
  ts_tune_space kept = ts_tune_space_of(t.deck, 4, &wish);
  tap_ok(kept.n[TS_TUNED_STAGE] == 1 && kept.n[TS_TUNED_TP] == 1 && kept.n[TS_TUNED_MICRO] == 1 &&
             kept.value[TS_TUNED_MICRO][0].number == 2,
         "what is kept has the deck's value, micro-batches are within their bounds");
  close_tuning(&t);
}

/* ---- what runs say ---- */

/* Made up: who shares products is planned too fast, and each stage a little more. */
static double made_up(const ts_tune_space *s, const ts_candidate *c) {
  return (ts_candidate_number(s, c, TS_TUNED_TP) > 1 ? 1.4 : 1) *
         (1 + 0.01 * ts_candidate_number(s, c, TS_TUNED_STAGE));
}

static void test_one_run(const ts_tune_space *s) {
  ts_belief b = {.space = s};
  ts_candidate seen = {{0}}, stage = seen, micro = seen, micros = seen, all = seen;
  for (int what = 0; what < TS_N_TUNED; ++what) {
    all.at[what] = s->n[what] - 1;
  }
  stage.at[TS_TUNED_STAGE] = micro.at[TS_TUNED_MICRO] = 1;
  micros.at[TS_TUNED_MICRO] = s->n[TS_TUNED_MICRO] - 1;
  tap_ok(ts_belief_of(&b, &seen) == 1, "without runs the plan is believed");
  ts_belief_add(&b, &seen, 1.5);
  double own = ts_belief_of(&b, &seen), another = ts_belief_of(&b, &stage), none = ts_belief_of(&b, &all);
  tap_ok(own > 1.4 && own < 1.5 && another < own && none < another && none > 1.3,
         "a run of 1.5: %.3f of the same, %.3f of another stage, %.3f of what shares nothing but the machine", own,
         another, none);
  tap_ok(ts_belief_doubt(&b, &seen) < 0.07 && ts_belief_doubt(&b, &stage) > ts_belief_doubt(&b, &seen) &&
             ts_belief_doubt(&b, &all) > ts_belief_doubt(&b, &stage),
         "doubt: %.3f of the same, %.3f of another stage, %.3f of what shares nothing", ts_belief_doubt(&b, &seen),
         ts_belief_doubt(&b, &stage), ts_belief_doubt(&b, &all));
  double near = ts_belief_of(&b, &micro), far = ts_belief_of(&b, &micros);
  tap_ok(far < near && near < own, "micro-batches of about the same size: %.3f, of quite another: %.3f", near, far);
  for (int i = 0; i < 50; ++i) {
    ts_belief_add(&b, &seen, 1.5);
  }
  own = ts_belief_of(&b, &seen);
  tap_ok(fabs(own / 1.5 - 1) < 1e-3, "runs that agree are believed: %.5f", own); /* of variances .0049 / 51 and 0.1 */
  ts_belief_clear(&b);
}

/* Of some the runs, asked for all the others. */
static void test_many_runs(const ts_tune_space *s) {
  enum { SEEN = 24 };
  int n;
  ts_tried *all = all_candidates(s, &n);
  ts_belief up = {.space = s}, down = {.space = s};
  const int step = n / SEEN;
  for (int i = 0; i < SEEN; ++i) {
    const ts_candidate *first = &all[i * step].candidate, *last = &all[(SEEN - 1 - i) * step].candidate;
    ts_belief_add(&up, first, made_up(s, first));
    ts_belief_add(&down, last, made_up(s, last));
  }
  double order = 0, wrong = 0, plan = 0;
  for (int i = 0; i < n; ++i) {
    if (i % step == 0 && i / step < SEEN) {
      continue;
    }
    double believed = ts_belief_of(&up, &all[i].candidate), is = made_up(s, &all[i].candidate);
    order = fmax(order, fabs(believed / ts_belief_of(&down, &all[i].candidate) - 1));
    wrong += fabs(believed / is - 1) / (n - SEEN);
    plan += fabs(1 / is - 1) / (n - SEEN);
  }
  tap_ok(order < 1e-12, "whichever ran first, up to rounding (%.1e)", order);
  tap_ok(wrong < plan / 3, "%d others: wrong by %.1f %% in the mean, by the plan alone %.1f %%", n - SEEN, 100 * wrong,
         100 * plan);
  double solved = 0;
  for (int i = 0; i < SEEN; ++i) { /* of a run the belief is all but its own part of the noise */
    const double noise = 0.07 * 0.07, believed = log(ts_belief_of(&up, &up.run[i].candidate));
    solved = fmax(solved, fabs(believed + noise * up.run[i].weight - up.run[i].wrong));
  }
  tap_ok(solved < 1e-12, "its equations are solved up to rounding (%.1e)", solved);
  ts_belief_clear(&up);
  ts_belief_clear(&down);
  ts_free(all);
}

static void test_belief(void) {
  tuning t;
  open_tuning(&t, llama, 4, 1e9, 0, 0, &few);
  test_one_run(&t.space);
  test_many_runs(&t.space);
  close_tuning(&t);
}

/* ---- what goes wrong ---- */

static void test_wrong(void) {
  tuning t;
  open_tuning(&t, llama, 2, 1e9, 0, 0, &few);
  ts_tried two[2] = {{.candidate = {{0}}}, {.candidate = {{0}}}};
  const ts_measured *by = t.timing.by[0];
  t.timing.by[0] = NULL; /* its process ends by a signal, or what a sanitizer makes of it */
  ts_tune_walk(&t.job, two, 1, 1);
  t.timing.by[0] = by;
  tap_ok(two[0].how == TS_TRIED_FAILED && strncmp(two[0].why, "planning it ended", 17) == 0,
         "a candidate whose process ends is a row: %s", two[0].why);
  ts_tune_walk(&t.job, two + 1, 1, 1);
  tap_ok(two[1].how == TS_TRIED_FITS && two[1].step[0] > 0, "and the next one has a time");
  t.job.path = "nothing.cfg";
  two[1].how = TS_TRIED_FITS;
  ts_tune_walk(&t.job, two + 1, 1, 1);
  tap_ok(two[1].how == TS_TRIED_REFUSED && strstr(two[1].why, "nothing.cfg") != NULL, "no deck: %s", two[1].why);
  close_tuning(&t);
}

/* ---- datasheets ---- */

static void test_datasheets(void) {
  ts_timing t;
  ts_error err = {0};
  ts_text names = {0};
  tap_ok(ts_timing_open("h100", 16, 0, 0, &t, &err) == TS_OK && t.ends == 2 && t.node == 8 && t.sheet != NULL,
         "a datasheet has two ends, and nodes of 8");
  const ts_work square = {
      .kind = "matmul.nn bf16>bf16", .extent = {8192, 8192, 8192}, .flops = 2 * 8192.0 * 8192 * 8192};
  double fast = ts_measured_seconds(t.by[0], &square, NULL), slow = ts_measured_seconds(t.by[1], &square, NULL);
  /* on an H100 785 to 804 TFLOP/s were seen (doc/performance.md), in steps products of 0.66 of the peak */
  tap_ok(fast > square.flops / 800e12 && fast < square.flops / 650e12 && slow > 1.5 * fast,
         "a large product at 650 to 800 TFLOP/s, or slower: %.0f, %.0f", 1e-12 * square.flops / fast,
         1e-12 * square.flops / slow);
  const ts_work inside = ts_message_work(TS_OP_ALL_GATHER, TS_BF16, 8, 8, 1e9),
                across = ts_message_work(TS_OP_ALL_GATHER, TS_BF16, 16, 8, 1e9),
                thin = ts_message_work(TS_OP_ALL_GATHER, TS_BF16, 2, 1, 1e9),
                each = ts_message_work(TS_OP_ALL_TO_ALL, TS_BF16, 16, 8, 1e9);
  double a = ts_measured_seconds(t.by[0], &inside, NULL), b = ts_measured_seconds(t.by[0], &across, NULL),
         c = ts_measured_seconds(t.by[0], &thin, NULL), d = ts_measured_seconds(t.by[0], &each, NULL);
  tap_ok(a < b && b < 0.2 * c && fabs(d / c - 1) < 0.01,
         "a gather of whole nodes has all their links, one of a rank a node has one, an exchange its own: %.2f, %.2f, "
         "%.2f, %.2f ms",
         1e3 * a, 1e3 * b, 1e3 * c, 1e3 * d);
  ts_timing_clear(&t);
  ts_datasheet_list(&names);
  bool refused = ts_timing_open("h1000", 16, 0, 0, &t, &err) == TS_BAD_INPUT;
  tap_ok(refused && strstr(err.text, names.text) != NULL, "another name is refused: %s", err.text);
  ts_timing_clear(&t);
  ts_text_free(&names);
  ts_error_clear(&err);
}

/* With TEST_TUNE_ALL set: spaces of all settings, some minutes. */
int main(void) {
  ts_tune_wish wish = few;
  if (getenv("TEST_TUNE_ALL") == NULL) {
    wish.kept[TS_TUNED_SP] = wish.kept[TS_TUNED_RECOMPUTE] = true;
    wish.most_micro = 4;
  }
  test_candidates();
  test_belief();
  test_search(llama, 4, 1e9, 0, &wish, "fast links");
  test_search(llama, 4, 5e7, 1e-4, &wish, "slow links");
  wish.kept[TS_TUNED_TP] = wish.kept[TS_TUNED_PP] = wish.kept[TS_TUNED_SP] = true;
  test_bounds(frozen, &wish);
  test_search(mixtral, 4, 1e9, 1e-5, &wish, "experts");
  test_wrong();
  test_datasheets();
  return tap_done();
}
