/* The programs of an engine, and what of their state leaves. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "run/budget.h"

#include <string.h>

/* Tokens that a run of generation is made for: one that was drawn, a short prompt, enough to keep products busy. */
static const int64_t generation_lengths[TS_N_GENERATION] = {1, 16, 128};

/* debug.dump: the graph after each pass, DIR/NN_PASS.txt, by rank 0. */
typedef struct dump {
  const char *directory;
  int n;
} dump;

static void write_dump(const char *pass, const ts_graph *graph, void *user) {
  dump *d = user;
  ts_text text = {0};
  ts_graph_dump(graph, TS_GRAPH_TEXT, &text);
  char *path = ts_format("%s/%02d_%s.txt", d->directory, d->n++, pass);
  ts_error err = {0};
  if (ts_make_directory(d->directory, &err) != TS_OK || ts_write_file(path, text.text, text.length, &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "debug.dump: %s", err.text);
  }
  ts_error_clear(&err);
  ts_free(path);
  ts_text_free(&text);
}

ts_target ts_engine_target(const ts_engine *e) {
  return (ts_target){e->backend, ts_engine_threads(e->deck, ts_world_local_size(e->world)),
                     ts_engine_cudnn_use(e->deck, e->backend)};
}

static ts_program_options options_of(const ts_engine *e, const ts_engine_options *o, ts_model_use use,
                                     ts_model_size size) {
  return (ts_program_options){.deck = o->deck,
                              .mesh = &e->mesh,
                              .use = use,
                              .batch = size.batch,
                              .target = ts_engine_target(e),
                              .length = size.length,
                              .context = size.context,
                              .order = o->order,
                              .model = e->own.write != NULL ? &e->own : NULL,
                              .by_hand = (o->abilities & TS_CAN_STEP) != 0,
                              .seeded = (o->abilities & TS_CAN_SEED) != 0,
                              .defers = (o->abilities & TS_CAN_DEFER) != 0,
                              .stay = e->stay,
                              .memory = e->budget,
                              .host_memory = e->host_budget};
}

/* A program that shares state with those before; the first has the layout. */
static void add_program(ts_engine *e, int which, const ts_engine_options *o, ts_model_use use, ts_model_size size) {
  ts_program_options options = options_of(e, o, use, size);
  const ts_program *first = ts_engine_program(e);
  options.layout = first != NULL ? first->layout : NULL;
  options.stages = first != NULL ? first->stages : NULL;
  dump d = {.directory = o->deck->debug.dump};
  if (use == TS_MODEL_TRAIN && d.directory[0] != 0 && ts_world_rank(o->world) == 0) {
    options.observer = write_dump;
    options.observer_user = &d;
  }
  e->program[which] = ts_program_create(&options);
  e->index[which] = e->n_programs++;
}

static void add_programs(ts_engine *e, const ts_engine_options *o) {
  const ts_model_size batch = {.batch = o->deck->train_micro_batch_size_per_gpu,
                               .length = o->deck->data.sequence_length};
  if ((o->abilities & (TS_CAN_TRAIN | TS_CAN_STEP)) != 0) {
    add_program(e, TS_PROGRAM_TRAIN, o, TS_MODEL_TRAIN, batch);
  }
  if ((o->abilities & TS_CAN_EVALUATE) != 0) {
    add_program(e, TS_PROGRAM_EVALUATE, o, TS_MODEL_LOSS, batch);
  }
  if ((o->abilities & TS_CAN_GENERATE) != 0) {
    int64_t context = o->context > 0 ? o->context : o->deck->data.sequence_length, texts = o->texts > 0 ? o->texts : 1;
    for (int i = 0; i < TS_N_GENERATION && (i == 0 || generation_lengths[i - 1] < context); ++i) {
      int64_t length = generation_lengths[i] < context ? generation_lengths[i] : context;
      add_program(e, TS_PROGRAM_GENERATE + i, o, TS_MODEL_LOGITS, (ts_model_size){texts, length, context});
    }
    e->kept = (ts_kept){.token = ts_calloc((size_t) (texts * context), sizeof *e->kept.token),
                        .n = ts_calloc((size_t) texts, sizeof *e->kept.n),
                        .texts = texts,
                        .context = context};
  }
}

void ts_engine_drop_programs(ts_engine *e) {
  for (int i = TS_N_PROGRAMS - 1; i >= 0; --i) { /* the first program owns the layout */
    ts_program_destroy(&e->program[i]);
  }
  ts_free(e->kept.token);
  ts_free(e->kept.n);
  e->kept = (ts_kept){0};
  e->n_programs = 0;
  memset(e->index, -1, sizeof e->index);
}

/* ---- what of the state leaves ---- */

/* What is left to what nobody plans, where no limit is given. */
#define SPARE 16

int64_t ts_engine_budget(const ts_engine *e) {
  const int64_t limit = ts_engine_limit(e);
  return limit > 0 ? limit : ts_engine_memory_of_rank(e) / SPARE * (SPARE - 1);
}

/* What ranks tell each other. */
typedef struct fitting {
  int64_t live, together, excess;
  int64_t at_once; /* or not */
} fitting;

/* The lowest of all ranks' elements that are gathered at a time, and of micro-batches together, the most bytes that one
 * has too much; and where updates of one do not wait nobody's do. */
static fitting agree_fitting(const ts_engine *e, fitting mine) {
  fitting *all = ts_world_gather(e->world, &mine, sizeof mine);
  for (int r = 0; r < ts_world_size(e->world); ++r) {
    mine.live = all[r].live < mine.live ? all[r].live : mine.live;
    mine.together = all[r].together < mine.together ? all[r].together : mine.together;
    mine.excess = all[r].excess > mine.excess ? all[r].excess : mine.excess;
    mine.at_once = mine.at_once || all[r].at_once;
  }
  ts_free(all);
  return mine;
}

/* Of the program that has most to fit. */
static ts_program_options options_to_fit(const ts_engine *e, const ts_engine_options *o) {
  bool trains = (o->abilities & (TS_CAN_TRAIN | TS_CAN_STEP)) != 0, evaluates = (o->abilities & TS_CAN_EVALUATE) != 0;
  const ts_deck *deck = o->deck;
  const ts_model_size batch = {.batch = deck->train_micro_batch_size_per_gpu, .length = deck->data.sequence_length};
  const ts_model_size texts = {o->texts > 0 ? o->texts : 1, generation_lengths[0],
                               o->context > 0 ? o->context : deck->data.sequence_length};
  return trains || evaluates ? options_of(e, o, trains ? TS_MODEL_TRAIN : TS_MODEL_LOSS, batch)
                             : options_of(e, o, TS_MODEL_LOGITS, texts);
}

/* Of the host's memory beside a device; 0: nobody knows. */
static int64_t host_limit(const ts_engine *e) {
  const int64_t here = e->memory.bytes < INT64_MAX ? e->memory.bytes / SPARE * (SPARE - 1) : 0;
  return e->backend->device != NULL ? ts_budget_lower(e->deck->run.host_memory_limit, here) : 0;
}

/* Bytes to take off a budget, of which `left` is left: what all programs take above it, or what the others take beside
 * the first and is not taken off yet, as that may have had some to spare; 0: they fit. */
static int64_t too_much(int64_t all, int64_t first, int64_t budget, int64_t left) {
  const int64_t excess = all - budget, others = all - first - (budget - left);
  return excess <= 0 ? 0 : others > excess ? others : excess;
}

/* Programs of an engine have the same state, so the first one decides what stays; what others take beside it is then
 * known, and taken off its budget. */
static void add_programs_that_fit(ts_engine *e, const ts_engine_options *o) {
  e->budget = ts_engine_budget(e);
  const int64_t budget = e->budget, host_budget = host_limit(e);
  const bool files = ts_deck_files(o->deck)[0] != 0;
  e->host_budget = files ? host_budget : 0;
  for (int tries = 0; tries < 3; ++tries) {
    const ts_program_options options = options_to_fit(e, o);
    ts_offload_stay stay = ts_budget_decide(&options);
    const fitting agreed =
        agree_fitting(e, (fitting){.live = stay.live, .together = stay.together, .at_once = stay.at_once});
    stay.live = agreed.live;
    stay.together = agreed.together;
    stay.at_once = agreed.at_once;
    e->stay = stay;
    add_programs(e, o);
    const ts_program *program = ts_engine_program(e);
    const int64_t first = program->plan->peak_bytes, host = ts_executor_host_bytes(&program, 1);
    const int64_t excess = too_much(ts_engine_peak(e), first, budget, e->budget);
    bool again = tries < 2 && budget > 0 && excess > 0 && excess < e->budget && first <= e->budget;
    const int64_t beside =
        e->host_budget > 0 ? too_much(ts_engine_host_bytes(e), host, host_budget, e->host_budget) : 0;
    bool again_beside = tries < 2 && beside > 0 && beside < e->host_budget;
    if (agree_fitting(e, (fitting){.excess = again ? excess : again_beside ? beside : 0}).excess == 0) {
      break;
    }
    e->budget -= again ? excess : 0;
    e->host_budget -= again_beside ? beside : 0;
    ts_free(e->stay.of_part);
    e->stay = (ts_offload_stay){0};
    ts_engine_drop_programs(e);
  }
  e->budget = budget;
}

void ts_engine_add_programs(ts_engine *e, const ts_engine_options *o) {
  const ts_program_options options = options_to_fit(e, o);
  if (ts_budget_is_open(&options)) {
    add_programs_that_fit(e, o);
  } else {
    e->stay = ts_budget_decide(&options); /* who updates */
    add_programs(e, o);
  }
}
