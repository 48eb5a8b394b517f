/* tessera tune: which settings of a deck make its steps fastest. */
#include "main/tune.h"

#include "base/log.h"
#include "base/memory.h"
#include "deck/deck_read.h"
#include "main/command.h"
#include "run/cuts.h"
#include "run/plan_largest.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- what is asked ---- */

/* --keep NAME,NAME. */
static ts_status read_kept(const char *list, ts_tune_wish *wish, ts_error *err) {
  char *names = ts_strdup(list != NULL ? list : ""), *rest = names;
  ts_status status = TS_OK;
  for (char *name = strtok_r(names, ",", &rest); name != NULL && status == TS_OK; name = strtok_r(NULL, ",", &rest)) {
    ts_tuned what = ts_tuned_find(name);
    if (what < TS_N_TUNED) {
      wish->kept[what] = true;
      continue;
    }
    status = ts_error_add(err,
                          "--keep %s: there are tp, sp, pp, schedule, stage, micro, recompute, offload, overlap, "
                          "bucket",
                          name);
  }
  ts_free(names);
  return status;
}

/* What the deck's `autotuning` asks for. */
static void take_autotuning(const ts_deck *deck, ts_tune_wish *wish) {
  if (!deck->autotuning.enabled) {
    return;
  }
  wish->kept[TS_TUNED_OVERLAP] = wish->kept[TS_TUNED_OVERLAP] || deck->autotuning.fast;
  wish->kept[TS_TUNED_BUCKET] = wish->kept[TS_TUNED_BUCKET] || deck->autotuning.fast;
  wish->least_micro = deck->autotuning.min_train_micro_batch_size_per_gpu;
  wish->most_micro = deck->autotuning.max_train_micro_batch_size_per_gpu;
}

/* The deck of one rank and one sample, by which candidates are estimated. */
static ts_status model_alone(const ts_tune_job *job, ts_tune_model *model, ts_error *err) {
  static const char *const alone[] = {"tensor_parallel.autotp_size=1",
                                      "sequence_parallel_size=1",
                                      "pipeline.stages=1",
                                      "zero_optimization.stage=0",
                                      "train_micro_batch_size_per_gpu=1",
                                      "gradient_accumulation_steps=1",
                                      "train_batch_size=1"};
  enum { ALONE = sizeof alone / sizeof *alone };
  char **sets = ts_malloc((size_t) (job->n_sets + ALONE) * sizeof *sets);
  memcpy(sets, job->sets, (size_t) job->n_sets * sizeof *sets);
  for (int i = 0; i < ALONE; ++i) {
    sets[job->n_sets + i] = (char *) alone[i];
  }
  ts_deck *deck = NULL;
  ts_mesh mesh;
  const ts_backend *backend;
  ts_status status = ts_deck_read(job->path, sets, job->n_sets + ALONE, &deck, err);
  status = status == TS_OK ? ts_deck_mesh(deck, 1, 0, &mesh, err) : status;
  status = status == TS_OK ? ts_deck_resolve_batch(deck, 1, err) : status;
  status = status == TS_OK ? ts_engine_choose_target(job->target, deck, &backend, err) : status;
  ts_program_options options = {.deck = deck, .mesh = &mesh, .use = TS_MODEL_TRAIN, .batch = 1};
  if (status == TS_OK) {
    options.target = (ts_target){backend, job->threads, ts_engine_cudnn_use(deck, backend)};
    options.length = deck->data.sequence_length;
    status = ts_program_check(&options, err);
  }
  if (status == TS_OK) {
    ts_program *program = ts_program_create(&options);
    *model = ts_tune_model_of(program, job->space->batch);
    ts_program_destroy(&program);
  }
  ts_deck_destroy(&deck);
  ts_free(sets);
  return status;
}

/* ---- what is found ---- */

/* Does every rank of the grid fit, not only the first of each stage? */
static bool fits_whole(const ts_tune_job *job, const ts_candidate *c) {
  ts_deck *deck = NULL;
  ts_mesh mesh;
  ts_error err = {0};
  const ts_backend *backend;
  bool fits = job->memory == 0;
  if (!fits && ts_tune_read(job, c, &deck, &mesh, &err) == TS_OK &&
      ts_engine_choose_target(job->target, deck, &backend, &err) == TS_OK) {
    ts_program_options options = {.deck = deck,
                                  .mesh = &mesh,
                                  .target = {backend, job->threads, ts_engine_cudnn_use(deck, backend)},
                                  .use = TS_MODEL_TRAIN,
                                  .batch = deck->train_micro_batch_size_per_gpu,
                                  .length = deck->data.sequence_length,
                                  .memory = job->memory};
    (void) ts_cuts_decide(&options, deck, job->memory, &err);
    ts_program *program = ts_plan_largest(&options);
    fits = program->plan->peak_bytes <= job->memory;
    ts_program_destroy(&program);
  }
  ts_error_clear(&err);
  ts_deck_destroy(&deck);
  return fits;
}

/* Those that do not fit as a whole go behind those that do. */
static void drop_large(const ts_tune_job *job, ts_search *search) {
  while (search->n > 0 && search->tried[0].how == TS_TRIED_FITS && !fits_whole(job, &search->tried[0].candidate)) {
    ts_tried first = search->tried[0];
    memmove(search->tried, search->tried + 1, (size_t) (search->n - 1) * sizeof first);
    first.how = TS_TRIED_LARGE;
    search->tried[search->n - 1] = first;
  }
}

/* The words that make it of the deck. */
static void print_words(const ts_tune_job *job, const ts_candidate *c, ts_text *to) {
  char *set[TS_TUNED_SETS];
  int n = ts_candidate_sets(job->space, c, set);
  ts_text_add(to, "\ntessera train %s", job->path);
  for (int i = 0; i < job->n_sets; ++i) {
    ts_text_add(to, " --set %s", job->sets[i]);
  }
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, " \\\n  --set %s", set[i]);
    ts_free(set[i]);
  }
  ts_text_add(to, "\n");
}

static ts_status write_best(const ts_tune_job *job, const ts_candidate *c, const char *path, ts_error *err) {
  ts_deck *deck = NULL;
  ts_mesh mesh;
  ts_text text = {0};
  ts_status status = ts_tune_read(job, c, &deck, &mesh, err);
  if (status == TS_OK) {
    ts_text_add(&text, "# by tessera tune: ");
    ts_candidate_text(job->space, c, &text);
    ts_text_add(&text, "\n");
    ts_deck_print(deck, &text);
    status = ts_write_file(path, text.text, text.length, err);
  }
  ts_text_free(&text);
  ts_deck_destroy(&deck);
  return status;
}

/* ---- the command ---- */

typedef struct numbers {
  int64_t ranks, node, threads, memory, seconds, top, measure, steps, patience;
} numbers;

static ts_status read_numbers(const ts_arguments *a, numbers *n, ts_error *err) {
  ts_status status = ts_argument_int(a, "--ranks", 1, 1 << 20, &n->ranks, err);
  status = status == TS_OK ? ts_argument_int(a, "--ranks-per-node", 0, 1 << 20, &n->node, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--threads", 0, 1024, &n->threads, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--seconds", 1, 1 << 20, &n->seconds, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--top", 1, 1000, &n->top, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--measure", 0, 1000, &n->measure, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--steps", 1, 1000, &n->steps, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--timeout", 1, 1 << 20, &n->patience, err) : status;
  if (status == TS_OK && ts_argument(a, "--memory") != NULL) {
    status = ts_argument_bytes(a, "--memory", &n->memory, err);
  }
  return status;
}

/* The deck as it is, which says the batch. */
static ts_status read_own(const ts_arguments *arguments, int ranks, ts_deck **deck, ts_error *err) {
  ts_mesh mesh;
  ts_status status = ts_read_deck(arguments, NULL, deck, err);
  status = status == TS_OK ? ts_deck_mesh(*deck, ranks, 0, &mesh, err) : status;
  return status == TS_OK ? ts_deck_resolve_batch(*deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), err) : status;
}

/* Measure, print, write. */
static ts_status tell(const ts_arguments *arguments, const ts_tune_job *job, const ts_search *search, const numbers *n,
                      ts_error *err) {
  enum { WARM = 3 };
  const char *output = ts_argument(arguments, "-o"), *launch = ts_argument(arguments, "--launch");
  bool json = strcmp(ts_argument(arguments, "--format"), "json") == 0;
  char *ranks = ts_format("mpiexec -n %lld", (long long) n->ranks), program[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length > 0 ? length : 0] = 0;
  ts_text text = {0};
  int best = 0;
  ts_status status = TS_OK;
  (json ? ts_tune_print_json(job, search, &text) : ts_tune_print(job, search, (int) n->top, &text));
  if (n->measure > 0 && search->n > 0) {
    const ts_tune_trial trial = {.launch = launch != NULL ? launch : ranks,
                                 .program = length > 0 ? program : "tessera",
                                 .directory = ts_argument(arguments, "--results"),
                                 .warm = WARM,
                                 .steps = n->steps,
                                 .seconds = (double) n->patience};
    status = ts_tune_measure(job, search, &trial, (int) n->measure, &best, &text, err);
  }
  bool any = search->n > 0 && search->tried[0].how == TS_TRIED_FITS;
  if (any && !json) {
    print_words(job, &search->tried[best].candidate, &text);
  }
  fputs(text.text, stdout);
  if (status == TS_OK && any && output != NULL) {
    status = write_best(job, &search->tried[best].candidate, output, err);
  }
  ts_text_free(&text);
  ts_free(ranks);
  return status == TS_OK && !any ? ts_error_add(err, "no candidate fits: a larger --memory, more --ranks, or offload "
                                                     "to files (zero_optimization.offload_optimizer.nvme_path)")
                                 : status;
}

/* Where candidates are planned for: as the machine was, unless something says otherwise. */
static const char *target_of(const ts_arguments *arguments, const ts_deck *deck, const ts_timing *timing) {
  const char *target = ts_argument(arguments, "--target");
  bool open = strcmp(target, "auto") == 0 && strcmp(deck->run.device, "auto") == 0;
  return open ? timing->machine[0].backend : target;
}

int ts_main_tune(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  numbers n = {0};
  ts_deck *deck = NULL;
  ts_timing timing = {0};
  ts_tune_wish wish = {0};
  ts_tune_model model;
  const ts_backend *backend = NULL;
  const char *machine = ts_argument(arguments, "--machine"), *format = ts_argument(arguments, "--format");
  ts_status status = machine != NULL ? read_numbers(arguments, &n, err)
                                     : ts_error_add(err, "--machine FILE is wanted: tessera bench writes one, or the "
                                                         "name of a datasheet (--help)");
  if (status == TS_OK && strcmp(format, "text") != 0 && strcmp(format, "json") != 0) {
    status = ts_error_add(err, "--format %s: text or json is accepted", format);
  }
  status = status == TS_OK ? read_kept(ts_argument(arguments, "--keep"), &wish, err) : status;
  status = status == TS_OK ? read_own(arguments, (int) n.ranks, &deck, err) : status;
  if (status == TS_OK) {
    int64_t threads = n.threads > 0 ? n.threads : deck->run.threads;
    status = ts_timing_open(machine, (int) n.ranks, (int) n.node, (int) threads, &timing, err);
  }
  const char *target = status == TS_OK ? target_of(arguments, deck, &timing) : "";
  status = status == TS_OK ? ts_engine_choose_target(target, deck, &backend, err) : status;
  if (status == TS_OK && strcmp(timing.machine[0].backend, backend->name) != 0) {
    status = ts_error_add(err, "--machine %s is of \"%s\", the search is for \"%s\": --target %s", machine,
                          timing.machine[0].backend, backend->name, timing.machine[0].backend);
  }
  if (status == TS_OK) {
    wish.device = backend->device != NULL;
    wish.node = timing.node;
    take_autotuning(deck, &wish);
    const ts_tune_space space = ts_tune_space_of(deck, (int) n.ranks, &wish);
    const ts_tune_job job = {.path = arguments->positional[0],
                             .sets = arguments->sets,
                             .n_sets = arguments->n_sets,
                             .target = target,
                             .threads = (int) (n.threads > 0 ? n.threads : timing.by[0]->threads),
                             .memory = n.memory > 0           ? n.memory
                                       : timing.sheet != NULL ? timing.sheet->memory
                                                              : deck->run.memory_limit,
                             .timing = &timing,
                             .space = &space};
    status = model_alone(&job, &model, err);
    if (status == TS_OK) {
      ts_search search = ts_tune_search(&job, &model, (double) n.seconds, (int) sysconf(_SC_NPROCESSORS_ONLN));
      drop_large(&job, &search);
      status = tell(arguments, &job, &search, &n, err);
      ts_search_clear(&search);
    }
  }
  ts_timing_clear(&timing);
  ts_deck_destroy(&deck);
  return status;
}
