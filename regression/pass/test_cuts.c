/* Where "time", "memory" and "best" cut a model, against all cuts there are: the plans of their programs say what a
 * rank needs, the planned times how slow the slowest piece is. */
#include "regression/pass/grid.h"
#include "regression/tap.h"

#include "pass/stage.h"
#include "run/cuts.h"
#include "run/plan_largest.h"

#include <math.h>

/* Untied, and with a head and an embedding that weigh as some blocks do: 9 units. */
#define LLAMA                                                                                                          \
  "model = { model_type = \"llama\"; vocab_size = 500; hidden_size = 32; intermediate_size = 64; num_hidden_layers = " \
  "6;"                                                                                                                 \
  " num_attention_heads = 4; max_position_embeddings = 64; tie_word_embeddings = false; };\n"                          \
  "data = { path = \"none\"; format = \"text\"; sequence_length = 32; };\n"                                            \
  "run = { directory = \"none\"; steps = 4; };\n"                                                                      \
  "train_micro_batch_size_per_gpu = 2;\n"                                                                              \
  "optimizer = { type = \"AdamW\"; params = { lr = 1e-2; }; };\n"

enum { MOST_PIECES = 6 };

typedef struct found {
  double seconds, bytes; /* of the slowest piece, of the rank that needs most beside what libraries keep */
  double step;           /* seconds of the schedule's step */
} found;

typedef struct model {
  ts_deck *deck;
  ts_mesh mesh;
  ts_program_options options;
  ts_pipeline pipeline;
  int units, pieces;
  double reserve;
  found quickest; /* of all cuts that were searched: the least step of those whose slowest piece is the fastest */
} model;

static model make(const char *sets, int ranks) {
  model m = {.deck = read_deck(LLAMA, sets, ranks)};
  TS_CHECK(ts_deck_mesh(m.deck, ranks, 0, &m.mesh, NULL) == TS_OK, "the grid is one");
  m.pipeline = ts_deck_pipeline(m.deck, &m.mesh);
  m.pieces = m.pipeline.stages * m.pipeline.chunks;
  m.units = 9;
  m.options = (ts_program_options){.deck = m.deck,
                                   .target = {ts_backend_null(), 1, TS_CUDNN_NEVER},
                                   .use = TS_MODEL_TRAIN,
                                   .batch = m.deck->train_micro_batch_size_per_gpu,
                                   .length = m.deck->data.sequence_length};
  return m;
}

/* As the deck lists them. */
static found weigh(model *m) {
  found f = {0, 0, 0};
  ts_pipeline_times times;
  ts_error err = {0};
  m->options.mesh = &m->mesh;
  ts_program *largest = ts_plan_largest(&m->options);
  f.bytes = (double) (largest->plan->peak_bytes - largest->plan->bytes[TS_PURPOSE_RESERVE]);
  m->reserve = (double) largest->plan->bytes[TS_PURPOSE_RESERVE];
  for (int k = 0; k < m->pieces; ++k) {
    const ts_pipeline_seconds *s = &largest->stages->seconds[k];
    f.seconds = fmax(f.seconds, s->forward + s->input + s->weight);
  }
  TS_CHECK(ts_pipeline_clock(&m->pipeline, largest->stages->seconds, 0, NULL, NULL, &times, &err) == TS_OK,
           "the schedule goes through");
  f.step = times.seconds;
  ts_pipeline_times_clear(&times);
  ts_program_destroy(&largest);
  return f;
}

static void set_units(model *m, const int64_t *units, int n) {
  m->deck->pipeline.decided = n > 0;
  ts_free(m->deck->pipeline.units.items);
  m->deck->pipeline.units = (ts_ints){n, ts_malloc(sizeof(int64_t) * (size_t) (n + 1))};
  for (int k = 0; k < n; ++k) {
    m->deck->pipeline.units.items[k] = units[k];
  }
}

/* Of all cuts the one that needs least, and the fastest of those that need at most `limit`. */
static void search(model *m, int piece, int64_t *units, int left, double limit, double *least, double *fastest) {
  if (piece == m->pieces - 1) {
    units[piece] = left;
    set_units(m, units, m->pieces);
    found f = weigh(m);
    *least = fmin(*least, f.bytes);
    *fastest = f.bytes <= limit ? fmin(*fastest, f.seconds) : *fastest;
    bool as_fast = f.seconds <= m->quickest.seconds * (1 + 1e-12);
    if (f.seconds < m->quickest.seconds * (1 - 1e-12) || (as_fast && f.step < m->quickest.step)) {
      m->quickest = f;
    }
    return;
  }
  for (units[piece] = 1; units[piece] <= left - (m->pieces - 1 - piece); ++units[piece]) {
    search(m, piece + 1, units, left - (int) units[piece], limit, least, fastest);
  }
}

static char *spell_units(const ts_deck *deck) {
  ts_text text = {0};
  for (int k = 0; k < deck->pipeline.units.n; ++k) {
    ts_text_add(&text, "%s%lld", k > 0 ? " " : "", (long long) deck->pipeline.units.items[k]);
  }
  return text.text;
}

static found decide(model *m, const char *partition, double memory, ts_status *status, ts_error *err) {
  m->options.mesh = &m->mesh;
  set_units(m, NULL, 0);
  ts_free(m->deck->pipeline.partition);
  m->deck->pipeline.partition = ts_strdup(partition);
  *status = ts_cuts_decide(&m->options, m->deck, memory > 0 ? (int64_t) (memory + m->reserve) : 0, err);
  return weigh(m);
}

/* Cuts are sought by estimates of memory, so the least that is found may be above the least that there is. */
#define NEAR 1.02

static void test_cuts(const char *sets, int ranks) {
  model m = make(sets, ranks);
  double least = INFINITY, fastest = INFINITY, fastest_of_all = INFINITY;
  int64_t units[MOST_PIECES];
  ts_status status;
  ts_error err = {0};
  m.quickest = (found){INFINITY, 0, INFINITY};
  search(&m, 0, units, m.units, INFINITY, &least, &fastest_of_all);
  const found quickest = m.quickest;
  found time = decide(&m, "time", 1, &status, &err);
  char *cut = spell_units(m.deck);
  tap_ok(status == TS_OK && fabs(time.seconds / fastest_of_all - 1) < 1e-12,
         "%s: \"time\" cuts %s: %.6f ms, the least is %.6f", sets, cut, 1e3 * time.seconds, 1e3 * fastest_of_all);
  tap_ok(time.step <= 1.05 * quickest.step, "%s: a step of it takes %.6f ms, the least of cuts as good is %.6f", sets,
         1e3 * time.step, 1e3 * quickest.step);
  ts_free(cut);
  found memory = decide(&m, "memory", 0, &status, &err);
  cut = spell_units(m.deck);
  tap_ok(status == TS_OK && memory.bytes <= NEAR * least, "%s: \"memory\" cuts %s: %.0f bytes, the least is %.0f", sets,
         cut, memory.bytes, least);
  ts_free(cut);
  found best = decide(&m, "best", 0, &status, &err);
  tap_ok(status == TS_OK && best.seconds == time.seconds, "%s: \"best\" is the fastest where memory is not known",
         sets);
  best = decide(&m, "best", time.bytes, &status, &err);
  tap_ok(status == TS_OK && best.seconds == time.seconds && best.bytes <= time.bytes,
         "%s: and where the fastest fits, which needs %.0f bytes", sets, time.bytes);
  double limit = memory.bytes + 0.5 * (time.bytes - memory.bytes);
  least = fastest = INFINITY;
  search(&m, 0, units, m.units, limit, &least, &fastest);
  best = decide(&m, "best", limit, &status, &err);
  cut = spell_units(m.deck);
  tap_ok(status == TS_OK && best.bytes <= limit && best.seconds <= 1.05 * fastest,
         "%s: into %.0f bytes \"best\" cuts %s: %.6f ms, the fastest takes %.6f", sets, limit, cut, 1e3 * best.seconds,
         1e3 * fastest);
  ts_free(cut);
  best = decide(&m, "best", least / 2, &status, &err);
  tap_ok(status == TS_BAD_INPUT && strstr(err.text, "no cut fits") != NULL && best.bytes <= NEAR * least,
         "%s: what fits nowhere is told: %s", sets, err.text);
  ts_error_clear(&err);
  ts_deck_destroy(&m.deck);
}

/* A choice is made once; on another grid it is made anew, while a list of the user's own is refused there. */
static void test_kept(void) {
  static const struct {
    const char *sets;
    bool open;
    const char *what;
  } rows[] = {{"pipeline.stages=2", true, "nothing is listed"},
              {"pipeline.stages=2 pipeline.units=[4,5]", false, "a list of as many pieces"},
              {"pipeline.stages=2 pipeline.units=[2,3,4]", false, "the user's list of others, which is refused"},
              {"pipeline.stages=2 pipeline.partition=best pipeline.units=[4,5]", false, "the choice of this grid"},
              {"pipeline.stages=2 pipeline.partition=best pipeline.units=[2,3,4]", true, "the choice of another grid"},
              {"pipeline.stages=2 pipeline.partition=uniform", false, "what is cut as DeepSpeed does"},
              {"pipeline.stages=1", false, "one stage"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    model m = make(rows[i].sets, 2);
    m.options.mesh = &m.mesh;
    bool open = ts_cuts_are_open(m.deck, &m.mesh);
    ts_error err = {0};
    ts_status status = ts_program_check(&m.options, &err);
    bool refused = strstr(rows[i].what, "refused") != NULL;
    tap_ok(open == rows[i].open && (status == TS_BAD_INPUT) == refused, "%s: %s", rows[i].what,
           err.text != NULL ? err.text
           : open           ? "open"
                            : "decided");
    if (open) {
      status = ts_cuts_decide(&m.options, m.deck, 0, &err);
      tap_ok(status == TS_OK && m.deck->pipeline.units.n == 2 && !ts_cuts_are_open(m.deck, &m.mesh),
             "%s: decided, and then the deck's", rows[i].what);
    }
    ts_error_clear(&err);
    ts_deck_destroy(&m.deck);
  }
}

/* Of 1F1B the first stage keeps most micro-batches: where memory counts it has fewer blocks. */
static void test_first_stage(void) {
  model m = make("pipeline.stages=3 gradient_accumulation_steps=8 train_micro_batch_size_per_gpu=8", 3);
  ts_status status;
  ts_error err = {0};
  decide(&m, "memory", 0, &status, &err);
  const int64_t *units = m.deck->pipeline.units.items;
  tap_ok(status == TS_OK && units[0] - 1 < units[1],
         "stage 0, with 3 micro-batches alive, has %lld blocks, stage 1 has %lld", (long long) units[0] - 1,
         (long long) units[1]);
  ts_deck_destroy(&m.deck);
}

int main(void) {
  test_cuts("pipeline.stages=2 gradient_accumulation_steps=4", 2);
  test_cuts("pipeline.stages=3 gradient_accumulation_steps=6 zero_optimization.stage=2", 6);
  test_cuts(
      "pipeline.stages=3 gradient_accumulation_steps=6 pipeline.schedule=zb_h1 activation_checkpointing.enabled=true",
      3);
  test_cuts("pipeline.stages=2 gradient_accumulation_steps=4 pipeline.schedule=zb_v bf16.enabled=true", 2);
  test_cuts("pipeline.stages=2 gradient_accumulation_steps=4 pipeline.schedule=interleaved run.save_every=2", 2);
  test_cuts("pipeline.stages=3 gradient_accumulation_steps=6 pipeline.schedule=zb_v model.vocab_size=1500", 3);
  test_kept();
  test_first_stage();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
