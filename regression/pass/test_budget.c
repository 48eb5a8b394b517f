/* device = "auto": what leaves under a limit.  Against all choices that there are of a small model: the one that is
 * found fits, and copies at most a twentieth more than the best. */
#include "regression/tap.h"

#include "regression/pass/grid.h"
#include "run/budget.h"
#include "run/executor.h"
#include "run/turns.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

/* Two large tables, two blocks; norms stay. */
static const char model[] =
    "model = { model_type = \"llama\"; vocab_size = 3000; hidden_size = 128; intermediate_size = 384;\n"
    "  num_hidden_layers = 2; num_attention_heads = 4; num_key_value_heads = 4; max_position_embeddings = 32;\n"
    "  tie_word_embeddings = false; };\n"
    "aio = { block_size = 4096; queue_depth = 1; };\n" COMMON;

#define AUTO                                                                       \
  "zero_optimization.offload_optimizer={device=\"auto\";nvme_path=\"/nowhere\";} " \
  "zero_optimization.offload_param={device=\"auto\";nvme_path=\"/nowhere\";} "     \
  "zero_optimization.stage3_param_persistence_threshold=1000 zero_optimization.sub_group_size=32768"

enum { MOST_FLAGS = 10, LIMITS = 8 };

/* What a choice comes to. */
typedef struct choice {
  int64_t peak;
  double moved;
} choice;

static double bytes_moved(const ts_program *program) {
  ts_moved moved = ts_program_moved(program);
  return moved.read[TS_SPACE_FILE] + moved.written[TS_SPACE_FILE];
}

static choice choice_of(const ts_program *program) {
  return (choice){program->plan->peak_bytes, bytes_moved(program)};
}

static int64_t host_bytes_of(const ts_program *program) {
  return ts_executor_host_bytes(&program, 1);
}

typedef struct setting {
  ts_deck *deck;
  ts_mesh mesh;
  ts_program_options options;
} setting;

static void make_setting(setting *s, const char *sets, int ranks) {
  s->deck = read_deck(model, sets, ranks);
  TS_CHECK(ts_deck_mesh(s->deck, ranks, 0, &s->mesh, NULL) == TS_OK, "a grid");
  s->options =
      (ts_program_options){.deck = s->deck,
                           .mesh = &s->mesh,
                           .target = {grid_backend != NULL ? grid_backend : ts_backend_null(), 1, TS_CUDNN_NEVER},
                           .use = TS_MODEL_TRAIN,
                           .batch = 1,
                           .length = s->deck->data.sequence_length};
}

static ts_program *program_with(const setting *s, ts_offload_stay stay) {
  ts_program_options options = s->options;
  options.stay = stay;
  return ts_program_create(&options);
}

/* All choices: of each part its states, values and gradients as far as they may leave, on the layout of a program; with
 * as many parameters gathered as can be, and with as few. */
static choice *try_all(const setting *s, ts_program *base, int *n_choices) {
  ts_layout *layout = base->layout;
  ts_program_options options = s->options;
  options.layout = layout;
  options.stages = base->stages;
  bool *flag[MOST_FLAGS];
  int n = 0;
  for (int i = 0; i < layout->n_parts; ++i) {
    ts_part *part = &layout->part[i];
    bool *of_part[] = {base->offload.states > 0 ? &part->states_stay : NULL,
                       base->offload.values > 0 ? &part->values_stay : NULL,
                       base->offload.gradients > 0 ? &part->gradients_stay : NULL};
    for (int k = 0; k < 3 && !part->persistent; ++k) {
      if (of_part[k] != NULL) {
        TS_CHECK(n < MOST_FLAGS, "few parts");
        flag[n++] = of_part[k];
      }
    }
  }
  *n_choices = 2 << n;
  choice *all = ts_malloc((size_t) *n_choices * sizeof *all);
  for (int c = 0; c < *n_choices; ++c) {
    options.stay = (ts_offload_stay){.decided = true, .live = (c >> n & 1) != 0 ? INT64_MAX : 0};
    for (int k = 0; k < n; ++k) {
      *flag[k] = (c >> k & 1) != 0;
    }
    ts_program *program = ts_program_create(&options);
    all[c] = choice_of(program);
    ts_program_destroy(&program);
  }
  return all;
}

static double best_within(const choice *all, int n, int64_t limit) {
  double best = INFINITY;
  for (int c = 0; c < n; ++c) {
    best = all[c].peak <= limit && all[c].moved < best ? all[c].moved : best;
  }
  return best;
}

/* From the smallest limit that works to one under which nothing leaves. */
static void test_choices(const char *sets, int ranks) {
  setting s;
  char *words = ts_format(AUTO " %s", sets);
  make_setting(&s, words, ranks);
  ts_program *least = program_with(&s, (ts_offload_stay){.decided = true});
  ts_program *most = program_with(&s, (ts_offload_stay){.decided = true, .all = true, .live = INT64_MAX});
  int64_t low = least->plan->peak_bytes, high = most->plan->peak_bytes;
  int n, within = 0, near = 0, moved = 0;
  choice *all = try_all(&s, least, &n);
  double worst = 1, before = INFINITY;
  for (int k = 0; k <= LIMITS; ++k) {
    s.options.memory = low + (high - low) * k / LIMITS;
    ts_program *program = ts_program_create(&s.options);
    choice found = choice_of(program);
    double best = best_within(all, n, s.options.memory), more = best > 0 ? found.moved / best : 1 + found.moved;
    within += found.peak <= s.options.memory;
    near += more <= 1.05;
    worst = more > worst ? more : worst;
    moved += found.moved < before;
    before = found.moved;
    ts_program_destroy(&program);
  }
  tap_ok(high > low && n >= 64 && before == 0, "%s: %d choices, %lld to %lld bytes", sets, n, (long long) low,
         (long long) high);
  tap_ok(within == LIMITS + 1, "%s: what is chosen fits, under each of %d limits", sets, LIMITS + 1);
  tap_ok(near == LIMITS + 1 && moved > 4, "%s: and copies at most 1.05 of the best; %.4f at worst", sets, worst);
  ts_free(all);
  ts_program_destroy(&least);
  ts_program_destroy(&most);
  ts_deck_destroy(&s.deck);
  ts_free(words);
}

#define NO_GRADIENTS " zero_optimization.offload_optimizer.gradients=false"

/* Of four micro-batches that always go by unit where all four do not fit, two do, and no fewer are tried. */
static void test_fewest(void) {
  setting s;
  make_setting(&s, AUTO " zero_optimization.stage=3 gradient_accumulation_steps=4 run.accumulation_order=unit", 1);
  int64_t peak[2];
  for (int i = 0; i < 2; ++i) {
    peak[i] = INT64_MAX;
    for (int at_once = 0; at_once < 2; ++at_once) {
      const ts_offload_stay none = {.decided = true, .at_once = at_once != 0, .together = 2 + 2 * i};
      ts_program *program = program_with(&s, none);
      peak[i] = program->plan->peak_bytes < peak[i] ? program->plan->peak_bytes : peak[i];
      ts_program_destroy(&program);
    }
  }
  int64_t found[2], needs[2];
  for (int i = 0; i < 2; ++i) {
    s.options.memory = i == 0 ? peak[0] : peak[0] / 2;
    ts_program *program = ts_program_create(&s.options);
    found[i] = program->step.together;
    needs[i] = program->plan->peak_bytes;
    ts_program_destroy(&program);
  }
  tap_ok(peak[0] < peak[1] && found[0] == 2 && needs[0] <= peak[0], "two of four micro-batches fit: %lld of %lld bytes",
         (long long) needs[0], (long long) peak[0]);
  tap_ok(found[1] == 2 && needs[1] <= peak[0], "where nothing fits, what needs least: %lld bytes",
         (long long) needs[1]);
  ts_deck_destroy(&s.deck);
}

/* Of three micro-batches that leave little where they go through the model in turns. */
static void test_order(void) {
  static const struct {
    const char *order;
    int64_t tight, loose; /* micro-batches that go together where all leaves in turns, and where they have room */
  } rows[] = {{"auto", 1, 3}, {"micro_batch", 1, 1}, {"unit", 3, 3}};
  double copied[3];
  for (int i = 0; i < 3; ++i) {
    setting s;
    char *words = ts_format(AUTO " zero_optimization.stage=3 gradient_accumulation_steps=3 run.accumulation_order=%s",
                            rows[i].order);
    make_setting(&s, words, 1);
    s.options.stay = (ts_offload_stay){.decided = true, .together = 1};
    ts_program *turns = ts_program_create(&s.options);
    s.options.stay.together = 3;
    ts_program *units = ts_program_create(&s.options);
    int64_t limit[] = {turns->plan->peak_bytes, units->plan->peak_bytes > turns->plan->peak_bytes
                                                    ? units->plan->peak_bytes
                                                    : turns->plan->peak_bytes};
    s.options.stay = (ts_offload_stay){0};
    int64_t found[2];
    for (int k = 0; k < 2; ++k) {
      s.options.memory = limit[k];
      ts_program *program = ts_program_create(&s.options);
      found[k] = program->step.together;
      copied[i] = choice_of(program).moved;
      ts_program_destroy(&program);
    }
    tap_ok(found[0] == rows[i].tight && found[1] == rows[i].loose,
           "accumulation_order %s: %lld and %lld together within %lld and %lld bytes", rows[i].order,
           (long long) found[0], (long long) found[1], (long long) limit[0], (long long) limit[1]);
    ts_program_destroy(&turns);
    ts_program_destroy(&units);
    ts_deck_destroy(&s.deck);
    ts_free(words);
  }
  tap_ok(copied[0] <= copied[1] && copied[0] <= copied[2] && copied[2] < copied[1],
         "and copy %.0f, %.0f and %.0f bytes", copied[0], copied[1], copied[2]);
}

/* Beside a device: what has no room in the host's memory goes to files, states before what is copied more often. */
static void test_beside(void) {
  setting s;
  grid_backend = null_device();
  make_setting(&s, "zero_optimization.stage=3 " AUTO, 1);
  ts_program *all = program_with(&s, (ts_offload_stay){.decided = true, .live = INT64_MAX});
  const int64_t peak = all->plan->peak_bytes, host = host_bytes_of(all);
  ts_program_destroy(&all);
  s.options.memory = peak;
  int64_t stored = 0, moved = 0;
  bool right = true;
  for (int eighth = 9; eighth >= 4; --eighth) {
    s.options.host_memory = host * eighth / 8;
    ts_program *program = ts_program_create(&s.options);
    const ts_plan *plan = program->plan;
    const int64_t file = plan->arena_bytes[TS_ARENA_FILE];
    const ts_moved now = ts_program_moved(program);
    const double all_moved = now.read[TS_SPACE_FILE] + now.written[TS_SPACE_FILE];
    bool states_first = plan->away[TS_SPACE_FILE][TS_PURPOSE_PARAMETER] == 0 ||
                        plan->away[TS_SPACE_PINNED][TS_PURPOSE_OPTIMIZER] < host / 8;
    right = right && (file > 0) == (eighth < 8) && file >= stored && (int64_t) all_moved >= moved && states_first &&
            host_bytes_of(program) <= s.options.host_memory && plan->peak_bytes <= peak;
    stored = file;
    moved = (int64_t) all_moved;
    ts_program_destroy(&program);
  }
  tap_ok(right && stored > host / 3, "of %lld bytes that leave a device the host's memory keeps as many as it may",
         (long long) host);
  s.options.host_memory = 1;
  ts_program *program = ts_program_create(&s.options);
  tap_ok(program->plan->arena_bytes[TS_ARENA_PINNED] == 0, "of too little everything is in files");
  ts_program_destroy(&program);
  ts_deck_destroy(&s.deck);
  grid_backend = NULL;
}

/* ---- activations ---- */

/* Blocks whose inputs take most. */
#define DEEP                                                                               \
  "model.num_hidden_layers=12 model.vocab_size=64 train_micro_batch_size_per_gpu=8 "       \
  "activation_checkpointing.enabled=true activation_checkpointing.cpu_checkpointing=true " \
  "zero_optimization.offload_optimizer.nvme_path=\"/nowhere\" zero_optimization.stage=3 "

/* Not inputs of blocks alone. */
#define ALL_KEPT "activation_checkpointing.enabled=false compile.offload_activation=true "

static int64_t peak_with(const setting *s, ts_offload_stay stay) {
  ts_program *program = program_with(s, stay);
  const int64_t peak = program->plan->peak_bytes;
  ts_program_destroy(&program);
  return peak;
}

/* Beside states that are where the deck says as many tensors stay as fit, of which a unit has `each` at least. */
static void test_kept(const char *sets, int each, bool device) {
  setting s;
  grid_backend = device ? null_device() : NULL;
  make_setting(&s, sets, 1);
  s.options.batch = 8;
  ts_program *away = program_with(&s, (ts_offload_stay){.kept = 1});
  const int all = away->kept_away, units = away->units_away;
  const int64_t least = away->plan->peak_bytes, peak = peak_with(&s, (ts_offload_stay){.kept = all + 1});
  ts_program_destroy(&away);
  bool right = units >= 12 && all >= each * units;
  int between = 0;
  for (int part = 0; part <= LIMITS; ++part) {
    s.options.memory = least + (peak - least) * part / LIMITS;
    ts_program *program = ts_program_create(&s.options);
    const int kept = all - program->kept_away;
    between += kept > 0 && kept < all;
    right = right && program->plan->peak_bytes <= s.options.memory &&
            (kept == all || peak_with(&s, (ts_offload_stay){.kept = kept + 2}) > s.options.memory);
    right = right && (kept == all) == (part == LIMITS);
    ts_program_destroy(&program);
  }
  tap_ok(right && between >= LIMITS / 2, "%s: of %d tensors that %d units keep as many stay as fit",
         device ? "beside a device" : "of processors, else in a file", all, units);
  ts_deck_destroy(&s.deck);
  grid_backend = NULL;
}

/* With device = "auto" states compete: no more is copied than with either of them first, and within some limit both
 * stay in part.  Under half of the limits; TEST_BUDGET_ALL is for all. */
static void test_competition(void) {
  setting s;
  grid_backend = null_device();
  make_setting(&s, DEEP AUTO " gradient_accumulation_steps=2", 1);
  s.options.batch = 8;
  const ts_offload_stay none = {.decided = true, .at_once = true, .together = 1, .kept = 1};
  const int64_t least = peak_with(&s, none),
                peak =
                    peak_with(&s, (ts_offload_stay){.decided = true, .all = true, .live = INT64_MAX, .kept = INT_MAX});
  bool right = true;
  int both = 0;
  double before = INFINITY;
  const bool all = getenv("TEST_BUDGET_ALL") != NULL;
  for (int part = 1; part <= LIMITS; ++part) {
    if (!all && part % 2 == 0 && part < LIMITS) {
      continue;
    }
    s.options.memory = least + (peak - least) * part / LIMITS;
    ts_program *program = ts_program_create(&s.options);
    const ts_moved moved = ts_program_moved(program);
    const double copied = moved.read[TS_SPACE_PINNED] + moved.written[TS_SPACE_PINNED];
    right = right && program->plan->peak_bytes <= s.options.memory && copied <= before;
    both += program->units_away > 0 && program->offload.states_stay + program->offload.values_stay > 0;
    before = copied;
    ts_program_destroy(&program);
  }
  tap_ok(right && before == 0 && both > 0,
         "activations beside states: what fits, the less the more there is (%d share)", both);
  ts_deck_destroy(&s.deck);
  grid_backend = NULL;
}

/* What has no room in the host's memory either: activations that the backward reads last, as few as can be. */
static void test_stored(void) {
  setting s;
  grid_backend = null_device();
  make_setting(&s, DEEP "zero_optimization.offload_optimizer.device=nvme", 1);
  s.options.batch = 256;
  s.options.memory = peak_with(&s, (ts_offload_stay){.kept = 1});
  ts_program *program = ts_program_create(&s.options);
  const int64_t host = host_bytes_of(program), file = program->plan->arena_bytes[TS_ARENA_FILE];
  ts_program_destroy(&program);
  bool right = true;
  int64_t stored = 0;
  for (int part = 9; part >= 5; --part) {
    s.options.host_memory = host * part / 8;
    program = ts_program_create(&s.options);
    const int64_t more = program->plan->away[TS_SPACE_FILE][TS_PURPOSE_ACTIVATION];
    right = right && host_bytes_of(program) <= s.options.host_memory && (more > 0) == (part < 8) &&
            (part > 7 || more > stored) && program->plan->arena_bytes[TS_ARENA_FILE] >= file + more &&
            program->plan->peak_bytes <= s.options.memory;
    stored = more;
    ts_program_destroy(&program);
  }
  tap_ok(right && stored > 0, "a small memory beside a device: %lld bytes of activations in files", (long long) stored);
  ts_deck_destroy(&s.deck);
  grid_backend = NULL;
}

/* Who updates what has no room on a device: whoever lets a step take less, by plans of both within the limit. */
static void test_updater(void) {
  static const struct {
    const char *core;
    bool hosted;
  } rows[] = {{"1e6", false}, {"3e11", true}};
  static const char *const who[] = {"device", "host", "auto"};
  grid_backend = null_device();
  for (int i = 0; i < 2; ++i) {
    double seconds[3];
    bool fits = true, hosted = false;
    for (int k = 0; k < 3; ++k) {
      setting s;
      char *words = ts_format(AUTO " zero_optimization.stage=3 machine.core_bandwidth=%s run.offload_update=%s",
                              rows[i].core, who[k]);
      make_setting(&s, words, 1);
      ts_program *all = program_with(&s, (ts_offload_stay){.decided = true, .live = INT64_MAX, .all = true});
      s.options.memory = all->plan->peak_bytes * 3 / 4;
      ts_program *program = ts_program_create(&s.options);
      seconds[k] = ts_program_step_seconds(program).step;
      fits = fits && program->plan->peak_bytes <= s.options.memory;
      hosted = program->updates_on_host;
      ts_program_destroy(&program);
      ts_program_destroy(&all);
      ts_deck_destroy(&s.deck);
      ts_free(words);
    }
    tap_ok(fits && hosted == rows[i].hosted && seconds[2] == seconds[hosted] && seconds[hosted] < seconds[!hosted],
           "a core of %s bytes/s: updates by the %s, %g s of %g s by the other", rows[i].core, who[hosted],
           seconds[hosted], seconds[!hosted]);
  }
  grid_backend = NULL;
}

/* The part of a rank's threads that makes updates decides how long the host takes. */
static void test_threads(void) {
  static const char *const part[] = {"0.2", "0.8"};
  double seconds[2];
  grid_backend = null_device();
  for (int i = 0; i < 2; ++i) {
    setting s;
    char *words = ts_format(
        "zero_optimization.stage=3 zero_optimization.offload_optimizer={device=\"cpu\";cpuadam_cores_perc=%s;} "
        "zero_optimization.stage3_param_persistence_threshold=1000 run.offload_update=host",
        part[i]);
    make_setting(&s, words, 1);
    s.options.target.threads = 20;
    ts_program *program = ts_program_create(&s.options);
    seconds[i] = ts_program_step_seconds(program).sum.host;
    ts_program_destroy(&program);
    ts_deck_destroy(&s.deck);
    ts_free(words);
  }
  tap_ok(seconds[1] > 0 && fabs(seconds[0] / seconds[1] - 4) < 1e-6, "cpuadam_cores_perc 0.2, 0.8: %g s and %g s",
         seconds[0], seconds[1]);
  grid_backend = NULL;
}

int main(void) {
  test_choices("zero_optimization.stage=3" NO_GRADIENTS, 1);
  test_choices("zero_optimization.stage=3 bf16.enabled=true gradient_accumulation_steps=3" NO_GRADIENTS, 2);
  test_choices("zero_optimization.stage=2 bf16.enabled=true", 2);
  test_order();
  test_fewest();
  test_beside();
  test_kept(DEEP "zero_optimization.offload_optimizer.device=cpu", 1, true);
  test_kept(DEEP "zero_optimization.offload_optimizer.device=nvme", 1, false);
  test_kept(DEEP ALL_KEPT "zero_optimization.offload_optimizer.device=cpu", 4, true);
  test_kept(DEEP ALL_KEPT "zero_optimization.offload_optimizer.device=nvme", 4, false);
  test_competition();
  test_stored();
  test_updater();
  test_threads();
  return tap_done();
}
