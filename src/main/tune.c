/* tessera tune: which settings of a deck make its steps fastest. */
#include "main/tune.h"

#include "base/log.h"
#include "base/memory.h"
#include "deck/deck_read.h"
#include "main/command.h"
#include "run/cuts.h"
#include "run/plan_largest.h"

#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is asked ---- */

/* --keep NAME,NAME. */
static ts_status read_kept_settings(const char *list, ts_tune_wish *wish, ts_error *err) {
  char *names = ts_strdup(list != NULL ? list : ""), *rest = names;
  ts_status status = TS_OK;
  for (char *name = strtok_r(names, ",", &rest); name != NULL && status == TS_OK; name = strtok_r(NULL, ",", &rest)) {
    ts_tuned what = ts_tuned_find(name);
    if (what < TS_N_TUNED) {
      wish->kept[what] = true;
      continue;
    }
    status = ts_error_add(err,
                          "--keep %s: there are tp, sp, ep, pp, schedule, stage, micro, recompute, offload, "
                          "overlap, bucket",
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
  wish->kept[TS_TUNED_TP] = wish->kept[TS_TUNED_TP] || deck->autotuning.mp_size > 1;
  wish->least_micro = deck->autotuning.min_train_micro_batch_size_per_gpu;
  wish->most_micro = deck->autotuning.max_train_micro_batch_size_per_gpu;
}

/* The batches to be searched: the deck's, and where `autotuning` allows it half and twice as much, and so on. */
static ts_ints batches_of(const ts_deck *deck) {
  const int64_t own = deck->train_batch_size,
                most = deck->autotuning.enabled ? deck->autotuning.max_train_batch_size : 0,
                least = deck->autotuning.min_train_batch_size;
  ts_ints list = {0};
  enum { DOUBLINGS = 62 };
  list.items = ts_malloc((2 * DOUBLINGS + 1) * sizeof *list.items);
  if (most == 0 || (own >= least && own <= most)) {
    list.items[list.n++] = own;
  }
  for (int64_t b = own; most > 0 && b % 2 == 0 && b / 2 >= least; b /= 2) {
    if (b / 2 <= most) {
      list.items[list.n++] = b / 2;
    }
  }
  for (int64_t b = own; most > 0 && b <= most / 2; b *= 2) {
    if (2 * b >= least) {
      list.items[list.n++] = 2 * b;
    }
  }
  return list;
}

/* The deck of one rank and one sample, by which candidates are estimated. */
static ts_status model_alone(const ts_tune_job *job, ts_tune_model *model, ts_error *err) {
  static const char *const alone[] = {"expert_parallel.autoep_size=1",
                                      "data_parallel_size=1",
                                      "tensor_parallel.autotp_size=1",
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

/* Of the rank of the grid that needs most, not only of the first of each stage; 0: it could not be asked. */
static int64_t peak_of(const ts_tune_job *job, const ts_candidate *c) {
  ts_deck *deck = NULL;
  ts_mesh mesh;
  ts_error err = {0};
  const ts_backend *backend;
  int64_t peak = 0;
  if (ts_tune_read(job, c, &deck, &mesh, &err) == TS_OK &&
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
    peak = program->plan->peak_bytes;
    ts_program_destroy(&program);
  }
  ts_error_clear(&err);
  ts_deck_destroy(&deck);
  return peak;
}

/* Those that do not fit as a whole go behind those that do. */
static void drop_large(const ts_tune_job *job, ts_search *search) {
  while (job->memory > 0 && search->n > 0 && search->tried[0].how == TS_TRIED_FITS) {
    ts_tried first = search->tried[0];
    int64_t peak = peak_of(job, &first.candidate);
    if (peak <= job->memory) {
      search->tried[0].bytes = peak > first.bytes ? peak : first.bytes;
      break;
    }
    memmove(search->tried, search->tried + 1, (size_t) (search->n - 1) * sizeof first);
    first.how = TS_TRIED_LARGE;
    first.bytes = peak;
    search->tried[search->n - 1] = first;
  }
}

/* The words that make it of the deck. */
static void print_words(const ts_tune_job *job, const ts_candidate *c, ts_text *to) {
  char *set[TS_TUNED_SETS];
  int n = ts_candidate_sets(job->space, c, set);
  ts_text_add(to, "\ntessera train ");
  ts_text_add_shell(to, job->path);
  for (int i = 0; i < job->n_sets; ++i) {
    ts_text_add(to, " --set ");
    ts_text_add_shell(to, job->sets[i]);
  }
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, " \\\n  --set ");
    ts_text_add_shell(to, set[i]);
    ts_free(set[i]);
  }
  ts_text_add(to, "\n");
}

ts_status ts_tune_write_deck(const ts_tune_job *job, const ts_candidate *c, const char *path, ts_error *err) {
  ts_text text = {0};
  ts_status status = ts_tune_deck(job, c, &text, err);
  status = status == TS_OK ? ts_write_file(path, text.text, text.length, err) : status;
  ts_text_free(&text);
  return status;
}

/* ---- the command ---- */

typedef struct numbers {
  int64_t ranks, node, threads, memory, seconds, top, measure, steps, patience;
} numbers;

static ts_status read_tune_numbers(const ts_arguments *a, numbers *n, ts_error *err) {
  ts_status status = ts_argument_int(a, "--ranks", 1, 1 << 20, &n->ranks, err);
  status = status == TS_OK ? ts_argument_int(a, "--ranks-per-node", 0, 1 << 20, &n->node, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--threads", 0, 1024, &n->threads, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--seconds", 1, 1 << 20, &n->seconds, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--top", 1, 1000, &n->top, err) : status;
  status = status == TS_OK ? ts_argument_int(a, "--measure", 0, 1000, &n->measure, err) : status;
  if (status == TS_OK && ts_argument(a, "--steps") != NULL) {
    status = ts_argument_int(a, "--steps", 1, 1000, &n->steps, err);
  }
  status = status == TS_OK ? ts_argument_int(a, "--timeout", 1, 1 << 20, &n->patience, err) : status;
  if (status == TS_OK && ts_argument(a, "--memory") != NULL) {
    status = ts_argument_bytes(a, "--memory", &n->memory, err);
  }
  const char *format = ts_argument(a, "--format");
  if (status == TS_OK && strcmp(format, "text") != 0 && strcmp(format, "json") != 0) {
    status = ts_error_add(err, "--format %s: text or json is accepted", format);
  }
  if (status == TS_OK && ts_argument(a, "--machine") == NULL) {
    status =
        ts_error_add(err, "--machine FILE is wanted: tessera bench writes one; or the name of a datasheet (--help)");
  }
  return status;
}

/* What all searches of a call share. */
typedef struct tuning {
  const ts_arguments *arguments;
  numbers n;
  ts_deck *deck; /* owned: as it is, which says the batch */
  ts_timing timing;
  ts_tune_wish wish;
  ts_tune_space space;
  ts_tune_job job;
  ts_tune_model model;
  ts_deck_choices choices; /* owned: what it has lists for */
  char **sets;             /* owned, and each of them: --set's, and what makes it one deck */
} tuning;

/* The batch that is searched for, and whether the deck's own micro-batch has to be known. */
static ts_status find_searched_batch(tuning *t, ts_error *err) {
  ts_deck *deck = t->deck;
  ts_mesh mesh;
  if (deck->elasticity.enabled) {
    return ts_deck_error(deck, "elasticity.enabled", err,
                         "chooses the batch itself, and tune searches for one that is given");
  }
  if (ts_deck_is_set(deck, "train_batch_size") && deck->train_batch_size > 0 && !t->wish.kept[TS_TUNED_MICRO]) {
    return TS_OK; /* on whatever grid */
  }
  ts_status status = ts_deck_mesh(deck, (int) t->n.ranks, 0, &mesh, err);
  return status == TS_OK ? ts_deck_resolve_batch(deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), err) : status;
}

/* Can they be written?  Asked before anything is searched. */
static ts_status try_outputs(const tuning *t, ts_error *err) {
  const char *output = ts_argument(t->arguments, "-o"), *metrics = t->deck->autotuning.metric_path;
  const bool enabled = t->deck->autotuning.enabled;
  ts_status status = output != NULL ? ts_try_writing(output, err) : TS_OK;
  status = status == TS_OK && enabled && metrics[0] != 0 ? ts_try_writing(metrics, err) : status;
  return status == TS_OK && enabled ? ts_make_directory(t->deck->autotuning.results_dir, err) : status;
}

static int64_t number_of_trials(const tuning *t) {
  const bool wanted = t->deck->autotuning.enabled && ts_deck_is_set(t->deck, "autotuning.tuner_num_trials");
  return t->n.measure > 0 ? t->n.measure : wanted ? t->deck->autotuning.tuner_num_trials : 0;
}

static ts_status read_deck_as_it_is(tuning *t, ts_error *err) {
  const ts_arguments *a = t->arguments;
  ts_status status = ts_deck_read_choices(a->positional[0], a->sets, a->n_sets, &t->choices, &t->deck, err);
  status = status == TS_OK ? ts_tune_check_choices(t->deck, &t->choices, err) : status;
  if (status != TS_OK) {
    return status;
  }
  ts_say_notes(t->deck, true);
  t->wish.choices = &t->choices;
  struct stat info;
  const char *results = t->deck->autotuning.results_dir;
  if (t->deck->autotuning.enabled && !t->deck->autotuning.overwrite && stat(results, &info) == 0) {
    return ts_deck_error(t->deck, "autotuning.results_dir", err,
                         "%s is there already, and autotuning.overwrite is false", results);
  }
  if (number_of_trials(t) > 0 && strcmp(ts_argument(a, "--format"), "json") == 0) {
    return ts_error_add(err,
                        "trials are told as text: leave --format json or --measure (autotuning.tuner_num_trials) out");
  }
  if (t->deck->autotuning.end_profile_step < t->deck->autotuning.start_profile_step) {
    return ts_deck_error(t->deck, "autotuning.end_profile_step", err, "is before autotuning.start_profile_step");
  }
  if (t->deck->autotuning.enabled && t->deck->autotuning.mp_size > 1) {
    t->deck->tensor_parallel.autotp_size = t->deck->autotuning.mp_size;
  }
  take_autotuning(t->deck, &t->wish);
  status = find_searched_batch(t, err);
  return status == TS_OK ? try_outputs(t, err) : status;
}

/* Where candidates are planned for: as the machine was, unless something says otherwise. */
static ts_status choose_target(tuning *t, ts_error *err) {
  const char *target = ts_argument(t->arguments, "--target"), *machine = t->timing.machine[0].backend;
  const ts_backend *backend = NULL;
  bool open = strcmp(target, "auto") == 0 && strcmp(t->deck->run.device, "auto") == 0;
  t->job.target = open ? machine : target;
  ts_status status = ts_engine_choose_target(t->job.target, t->deck, &backend, err);
  if (status == TS_OK && strcmp(machine, backend->name) != 0) {
    status = ts_error_add(err, "--machine %s is of \"%s\", the search is for \"%s\": --target %s",
                          ts_argument(t->arguments, "--machine"), machine, backend->name, machine);
  }
  t->wish.device = status == TS_OK && backend->device != NULL;
  return status;
}

/* What all candidates are read with: --set's, the first value of what the deck has lists for, mp_size, --threads. */
static void collect_sets(tuning *t) {
  const ts_arguments *a = t->arguments;
  const int64_t mp = t->deck->autotuning.enabled ? t->deck->autotuning.mp_size : 1;
  int n = 0;
  t->sets = ts_malloc((size_t) (a->n_sets + t->choices.n + 2) * sizeof *t->sets);
  for (int i = 0; i < a->n_sets; ++i) {
    t->sets[n++] = ts_strdup(a->sets[i]);
  }
  for (int i = 0; i < t->choices.n; ++i) {
    t->sets[n++] = ts_format("%s=%s", t->choices.items[i].path, t->choices.items[i].values[0]);
  }
  if (mp > 1) {
    t->sets[n++] = ts_format("tensor_parallel.autotp_size=%lld", (long long) mp);
  }
  if (t->n.threads > 0) {
    t->sets[n++] = ts_format("run.threads=%lld", (long long) t->n.threads);
  }
  t->job.n_sets = n;
}

static ts_status open_tuning(tuning *t, ts_error *err) {
  const char *machine = ts_argument(t->arguments, "--machine");
  ts_status status = read_tune_numbers(t->arguments, &t->n, err);
  status = status == TS_OK ? read_kept_settings(ts_argument(t->arguments, "--keep"), &t->wish, err) : status;
  status = status == TS_OK ? read_deck_as_it_is(t, err) : status;
  if (status == TS_OK) {
    int64_t threads = t->n.threads > 0 ? t->n.threads : t->deck->run.threads;
    status = ts_timing_open(machine, (int) t->n.ranks, (int) t->n.node, (int) threads, &t->timing, err);
  }
  status = status == TS_OK ? choose_target(t, err) : status;
  if (status != TS_OK) {
    return status;
  }
  collect_sets(t);
  t->wish.node = t->timing.node;
  t->job.path = t->arguments->positional[0];
  t->job.sets = t->sets;
  t->job.threads = (int) (t->n.threads > 0 ? t->n.threads : t->timing.by[0]->threads);
  t->job.memory = t->n.memory > 0           ? t->n.memory
                  : t->timing.sheet != NULL ? t->timing.sheet->memory
                                            : t->deck->run.memory_limit;
  t->job.timing = &t->timing;
  t->job.space = &t->space;
  return TS_OK;
}

static void close_tuning(tuning *t) {
  ts_timing_clear(&t->timing);
  ts_deck_destroy(&t->deck);
  ts_deck_choices_clear(&t->choices);
  for (int i = 0; i < t->job.n_sets; ++i) {
    ts_free(t->sets[i]);
  }
  ts_free(t->sets);
}

/* ---- several batches ---- */

/* That this process may use. */
static int processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

/* By the metric: smaller is better. */
static double cost_by_metric(const tuning *t, const ts_search *search, int64_t batch) {
  double seconds = search->n > 0 ? ts_tried_seconds(&search->tried[0], &t->timing) : INFINITY;
  return strcmp(t->deck->autotuning.metric, "latency") == 0 ? seconds : seconds / (double) batch;
}

static ts_status search_batch(tuning *t, int64_t batch, double seconds, ts_search *search, ts_error *err) {
  t->deck->train_batch_size = batch;
  t->space = ts_tune_space_of(t->deck, (int) t->n.ranks, &t->wish);
  ts_status status = model_alone(&t->job, &t->model, err);
  if (status == TS_OK) {
    *search = ts_tune_search(&t->job, &t->model, seconds, processors());
    drop_large(&t->job, search);
  }
  return search->too_many ? ts_error_add(err, "there are more than %d candidates: --keep some settings", TS_TUNE_MOST)
                          : status;
}

/* The search of the batch that is best by the metric; what others came to is said. */
static ts_status search_all(tuning *t, ts_search *best, ts_text *said, ts_error *err) {
  ts_ints list = batches_of(t->deck);
  ts_status status = list.n > 0
                         ? TS_OK
                         : ts_deck_error(t->deck, "autotuning.max_train_batch_size", err,
                                         "no batch that is the deck's, doubled or halved lies within the bounds");
  int64_t chosen = 0;
  ts_tune_model model = {0};
  for (int i = 0; i < list.n && status == TS_OK; ++i) {
    ts_search search = {0};
    status = search_batch(t, list.items[i], (double) t->n.seconds / list.n, &search, err);
    double cost = cost_by_metric(t, &search, list.items[i]);
    if (list.n > 1) {
      double seconds = cost < INFINITY ? ts_tried_seconds(&search.tried[0], &t->timing) : INFINITY;
      ts_text_add(said, "batch %lld: %.1f ms a step, %.1f samples/s\n", (long long) list.items[i], 1e3 * seconds,
                  (double) list.items[i] / seconds);
    }
    if (chosen == 0 || cost < cost_by_metric(t, best, chosen)) {
      ts_search_clear(best);
      *best = search;
      chosen = list.items[i];
      model = t->model;
    } else {
      ts_search_clear(&search);
    }
  }
  if (list.n > 1 && status == TS_OK) {
    ts_text_add(said, "the best by autotuning.metric = \"%s\":\n\n", t->deck->autotuning.metric);
  }
  t->deck->train_batch_size = chosen;
  t->model = model;
  t->space = ts_tune_space_of(t->deck, (int) t->n.ranks, &t->wish);
  ts_free(list.items);
  return status;
}

/* ---- what is told ---- */

static ts_tune_order order_of_trials(const ts_deck *deck) {
  const char *type = deck->autotuning.tuner_type;
  return !deck->autotuning.enabled || strcmp(type, "model_based") == 0 ? TS_TUNE_BY_PLAN
         : strcmp(type, "random") == 0                                 ? TS_TUNE_BY_CHANCE
                                                                       : TS_TUNE_BY_SPACE;
}

/* That count where nobody says how many: some that take no longer than it takes to start, as the fastest quarter of
 * twenty is found again by another run (doc/performance.md, "The search"), and a few in any case. */
static int64_t default_steps(double seconds_of_step) {
  const double few = 5, many = 20, seconds = 2;
  return (int64_t) fmin(fmax(seconds / seconds_of_step, few), many);
}

/* As the command line says, else the deck's `autotuning`. */
static ts_tune_trial trial_of(const tuning *t, double seconds_of_step, const char *launch, const char *program) {
  enum { WARM = 3 };
  const ts_deck *deck = t->deck;
  const bool enabled = deck->autotuning.enabled;
  const char *results = ts_argument(t->arguments, "--results");
  const int64_t profiled = deck->autotuning.end_profile_step - deck->autotuning.start_profile_step + 1;
  return (ts_tune_trial){.launch = launch,
                         .program = program,
                         .directory = results != NULL ? results : deck->autotuning.exps_dir,
                         .warm = enabled ? deck->autotuning.start_profile_step - 1 : WARM,
                         .steps = t->n.steps > 0 ? t->n.steps
                                  : enabled      ? profiled
                                                 : default_steps(seconds_of_step),
                         .seconds = (double) t->n.patience,
                         .most = number_of_trials(t),
                         .stop = enabled ? deck->autotuning.tuner_early_stopping : 0,
                         .micros = enabled ? deck->autotuning.num_tuning_micro_batch_sizes : 0,
                         .order = order_of_trials(deck),
                         .seed = (uint64_t) deck->run.seed};
}

/* Measure, print, write. */
static ts_status tell_search(const tuning *t, const ts_search *search, const char *said, ts_error *err) {
  const char *output = ts_argument(t->arguments, "-o"), *launch = ts_argument(t->arguments, "--launch");
  const bool json = strcmp(ts_argument(t->arguments, "--format"), "json") == 0,
             any = search->n > 0 && search->tried[0].how == TS_TRIED_FITS;
  char *ranks = ts_format("mpiexec -n %lld", (long long) t->n.ranks), program[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length > 0 ? length : 0] = 0;
  ts_text text = {0}, trials = {0};
  int best = 0;
  double seconds = any ? ts_tried_seconds(&search->tried[0], &t->timing) : NAN;
  ts_status status = TS_OK;
  ts_text_add(&text, "%s", json ? "" : said);
  (json ? ts_tune_print_json(&t->job, search, &text) : ts_tune_print(&t->job, search, (int) t->n.top, &text));
  const ts_tune_trial trial =
      trial_of(t, seconds, launch != NULL ? launch : ranks, length > 0 ? program : t->arguments->command->name);
  if (trial.most > 0 && any) {
    double took;
    status = ts_tune_measure(&t->job, search, &trial, &best, &took, &trials, err);
    seconds = status == TS_OK && !isnan(took) ? took : seconds;
  }
  if (any && !json && status == TS_OK) {
    ts_text_add(&text, "%s", trials.text != NULL ? trials.text : "");
    print_words(&t->job, &search->tried[best].candidate, &text);
  }
  fputs(text.text, stdout);
  if (status == TS_OK && any && output != NULL) {
    status = ts_tune_write_deck(&t->job, &search->tried[best].candidate, output, err);
  }
  if (status == TS_OK && any && t->deck->autotuning.enabled) {
    status = ts_tune_write_results(&t->job, &search->tried[best].candidate, t->deck->autotuning.results_dir,
                                   t->deck->autotuning.metric_path, seconds, t->model.flops, text.text, err);
  }
  ts_text_free(&trials);
  ts_text_free(&text);
  ts_free(ranks);
  if (status == TS_OK && search->candidates == 0) {
    return ts_error_add(err,
                        "%lld samples a step are no multiple of what is left open on any grid of %d ranks: "
                        "train_batch_size, --keep, lists in the deck, autotuning's bounds of micro-batches",
                        (long long) t->space.batch, t->space.ranks);
  }
  return status == TS_OK && !any ? ts_error_add(err, "no candidate fits: a larger --memory, more --ranks, or offload "
                                                     "to files (zero_optimization.offload_optimizer.nvme_path)")
                                 : status;
}

int ts_main_tune(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  tuning t = {.arguments = arguments};
  ts_search search = {0};
  ts_text said = {0};
  ts_status status = open_tuning(&t, err);
  status = status == TS_OK ? search_all(&t, &search, &said, err) : status;
  status = status == TS_OK ? tell_search(&t, &search, said.text != NULL ? said.text : "", err) : status;
  ts_text_free(&said);
  ts_search_clear(&search);
  close_tuning(&t);
  return status;
}
