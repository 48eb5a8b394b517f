/* The training run. */
#include "engine/train.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/peak.h"
#include "engine/progress.h"
#include "engine/resume.h"
#include "engine/save.h"
#include "engine/stop.h"
#include "io/csv.h"
#include "io/metrics.h"
#include "io/plot.h"
#include "io/publication.h"
#include "io/timeline.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define TIMELINE_STEP 2 /* the first steps also warm caches and create what is created once */

typedef struct run {
  ts_world *world;
  const ts_deck *deck;
  const ts_train_options *options;
  ts_engine *engine;
  ts_data *data;
  ts_metrics *metrics;     /* rank 0 only */
  ts_timeline *timeline;   /* this rank's, NULL unless a step is being recorded */
  double timeline_start;
  ts_progress progress;
  int32_t *tokens;
  int64_t *samples;
  int64_t batch, length, ranks, rank, accumulation;
  double flops_per_step;
  double peak; /* FLOP/s of large matrix products, all ranks */
  ts_resume resume;
  ts_saver *saver;
  ts_position at; /* steps and samples done */
  int64_t saved;  /* the last step whose save was begun, or that was resumed from; -1 for none */
  int64_t timeline_step;
  int lock; /* rank 0: the run is this job's */
  bool stopping;
} run;

/* ---- the run directory ---- */

/* Before anything is written; the file itself may lie in the run directory, which does not exist yet. */
static ts_status check_timeline(const ts_deck *deck, ts_error *err) {
  const char *path = deck->profile.timeline, *directory = deck->run.directory, *slash = strrchr(path, '/');
  if (path[0] != 0 && access(path, F_OK) == 0) {
    return ts_error_add(err, "profile.timeline: %s exists already; a run never writes over another file", path);
  }
  size_t length = slash != NULL ? (size_t) (slash - path) : 0;
  if (slash == NULL || slash == path ||
      (strncmp(path, directory, length) == 0 && directory[length + strspn(directory + length, "/")] == 0)) {
    return TS_OK;
  }
  char *parent = ts_format("%.*s", (int) length, path);
  ts_status status = access(parent, W_OK) == 0
                         ? TS_OK
                         : ts_error_add(err, "profile.timeline: %s: cannot be written: %s", path, strerror(errno));
  ts_free(parent);
  return status;
}

/* The directory of debug.dump, made before anything else so that a wrong one costs nothing. */
static ts_status check_dump(const run *r, ts_error *err) {
  ts_error why = {0};
  const char *path = r->deck->debug.dump;
  ts_status status = r->rank == 0 && path[0] != 0 ? ts_make_directory(path, &why) : TS_OK;
  if (status == TS_OK && r->rank == 0 && path[0] != 0 && access(path, W_OK) != 0) {
    status = ts_error_add(&why, "%s: cannot be written: %s", path, strerror(errno));
  }
  if (status != TS_OK) {
    ts_error_add(err, "debug.dump: %s", why.text);
  }
  ts_error_clear(&why);
  return status;
}

static ts_status write_deck(const ts_deck *deck, ts_error *err) {
  ts_text text = {0};
  ts_deck_print(deck, &text);
  char *path = ts_format("%s/deck.cfg", deck->run.directory);
  ts_status status = ts_write_file(path, text.text, text.length, err);
  ts_free(path);
  ts_text_free(&text);
  return status;
}

static ts_status cut_digests(const char *directory, int64_t step, ts_error *err) {
  char *path = ts_format("%s/digests.csv", directory);
  ts_status status = ts_csv_cut(path, step, err);
  ts_free(path);
  return status;
}

/* Rank 0: nothing of the user's is touched before this. */
static ts_status open_directory(run *r, ts_error *err) {
  const char *directory = r->deck->run.directory;
  if (r->rank != 0) {
    return TS_OK;
  }
  ts_error why = {0};
  ts_status status = TS_OK;
  if (ts_make_directory(directory, &why) != TS_OK) {
    status = ts_error_add(err, "run.directory: %s", why.text);
  }
  ts_error_clear(&why);
  status = status == TS_OK ? ts_run_lock(directory, &r->lock, err) : status;
  status = status == TS_OK && r->resume.same_run ? ts_publication_set_aside(directory, r->at.step, err) : status;
  status = status == TS_OK && (r->resume.same_run || r->resume.over) ? cut_digests(directory, r->at.step, err) : status;
  status = status == TS_OK ? write_deck(r->deck, err) : status;
  if (status == TS_OK) {
    status = r->resume.same_run ? ts_metrics_continue(directory, r->at.step, &r->metrics, err)
                                : ts_metrics_open(directory, &r->metrics, err);
  }
  return status;
}

/* ---- data ---- */

/* This rank's part of micro-batch m of a step: samples are dealt out in order of (micro-batch, rank, row), so that a
 * step has the same samples on every grid. */
static ts_status read_micro_batch(run *r, int64_t m, ts_error *err) {
  int64_t first = r->at.samples + (m * r->ranks + r->rank) * r->batch;
  for (int64_t b = 0; b < r->batch; ++b) {
    r->samples[b] = first + b;
    ts_status status = ts_data_sample(r->data, TS_SPLIT_TRAINING, first + b, r->tokens + b * (r->length + 1), err);
    if (status != TS_OK) {
      return status;
    }
  }
  return TS_OK;
}

/* ---- validation ---- */

static ts_status validate(run *r, ts_error *err) {
  double start = ts_seconds(), loss;
  int64_t batches;
  ts_status status = ts_validate(r->engine, r->world, r->deck, r->data, &loss, &batches, err);
  if (status == TS_OK && r->rank == 0) {
    double seconds = ts_seconds() - start;
    ts_metrics_validation(r->metrics, &(ts_validation_row){.step = r->at.step, .tokens = r->at.samples * r->length,
                                                           .loss = loss, .batches = batches, .seconds = seconds});
    ts_log(TS_LOG_INFO, "step %lld  validation loss %.4f  (%.1f s)", (long long) r->at.step, loss, seconds);
  }
  return status;
}

/* ---- what is told of a step ---- */

static void record(void *user, const ts_node *node, bool collective, double start, double seconds) {
  run *r = user;
  if (r->timeline != NULL) {
    ts_timeline_event(r->timeline, node->name, ts_op_get(node->op)->name, collective ? 1 : 0, start - r->timeline_start,
                      seconds);
  }
}

static ts_status begin_timeline(run *r, ts_error *err) {
  const char *path = r->deck->profile.timeline;
  char *mine = r->rank == 0 ? ts_strdup(path) : ts_format("%s.rank%lld", path, (long long) r->rank);
  ts_status status = ts_timeline_open(mine, (int) r->rank, &r->timeline, err);
  ts_free(mine);
  r->timeline_start = ts_seconds();
  return status;
}

static void write_metrics(run *r, const ts_step_result *result, double seconds, double data_seconds) {
  double tokens = (double) (r->deck->train_batch_size * r->length);
  ts_save_times saves = ts_saver_take_times(r->saver);
  ts_metrics_row row = {.step = r->at.step, .tokens = r->at.samples * r->length, .loss = result->loss,
                        .grad_norm = result->grad_norm, .lr = result->lr, .step_seconds = seconds,
                        .tokens_per_second = tokens / seconds, .model_tflops = r->flops_per_step / seconds * 1e-12,
                        .mfu = r->flops_per_step / seconds / r->peak, .peak_bytes = (int64_t) ts_process_peak(),
                        .comm_seconds = result->communication_seconds,
                        .exposed_comm_seconds = result->exposed_seconds, .data_seconds = data_seconds,
                        .skipped = r->at.skipped, .loss_scale = 1, .save_seconds = saves.save,
                        .stall_seconds = saves.stall};
  ts_metrics_step(r->metrics, &row);
}

/* DeepSpeed's wall_clock_breakdown: where a step's time went, on rank 0. */
static void report_times(const ts_step_result *t, double data_seconds) {
  ts_log(TS_LOG_INFO, "  time (ms) | data: %.2f | fwd: %.2f | bwd: %.2f | step: %.2f | comm: %.2f (exposed %.2f)",
         1e3 * data_seconds, 1e3 * t->forward_seconds, 1e3 * t->backward_seconds, 1e3 * t->update_seconds,
         1e3 * t->communication_seconds, 1e3 * t->exposed_seconds);
}

static void report(run *r, const ts_step_result *result, double seconds) {
  double tokens_per_second = (double) (r->deck->train_batch_size * r->length) / seconds;
  ts_progress_step(&r->progress, r->at.step, result->loss, result->lr, tokens_per_second);
  if (result->skipped) {
    ts_log(TS_LOG_WARNING, "step %lld: loss or gradient norm is not finite: no update (%lld in a row)",
           (long long) r->at.step, (long long) r->at.skipped_in_a_row);
  }
}

static void report_nonfinite(run *r) {
  char *where = ts_executor_take_nonfinite(ts_engine_executor(r->engine));
  if (where != NULL) {
    ts_log_status_line(NULL);
    fprintf(stderr, "tessera: step %lld: first value that is not finite: rank %lld, %s\n", (long long) r->at.step,
            (long long) r->rank, where);
    ts_free(where);
  }
}

/* debug.digest_every: a line a parameter, so that `tessera compare` can name the first tensor that differs. */
static void write_digests(run *r) {
  const ts_layout *layout = ts_engine_layout(r->engine);
  uint64_t *digest = ts_malloc((size_t) layout->n_parameters * sizeof *digest);
  ts_engine_digest(r->engine, digest);
  if (r->rank == 0) {
    char *path = ts_format("%s/digests.csv", r->deck->run.directory);
    FILE *file = fopen(path, "a");
    bool ok = file != NULL && (ftell(file) > 0 || fprintf(file, "step,tensor,digest\n") > 0);
    for (int i = 0; ok && i < layout->n_parameters; ++i) {
      ok = fprintf(file, "%lld,%s,%016llx\n", (long long) r->at.step, layout->parameter[i].name,
                   (unsigned long long) digest[i]) > 0;
    }
    ok = file != NULL && fclose(file) == 0 && ok;
    if (!ok) {
      ts_log(TS_LOG_WARNING, "%s: step %lld cannot be written: %s", path, (long long) r->at.step, strerror(errno));
    }
    ts_free(path);
  }
  ts_free(digest);
}

static bool is_diverged(const run *r) {
  int64_t most = r->deck->run.stop_after_nonfinite;
  return most > 0 && r->at.skipped_in_a_row >= most;
}

static bool is_time_to_save(const run *r) {
  int64_t every = r->deck->run.save_every;
  bool due = r->stopping || r->at.step == r->deck->run.steps || (every > 0 && r->at.step % every == 0);
  return due && !is_diverged(r);
}

static void save(run *r) {
  r->saved = r->at.step;
  ts_saver_begin(r->saver, &r->at);
}

/* What is agreed goes along with the record: who was asked to stop, whose checkpoint is still being written. */
static ts_step_result update(run *r) {
  bool stop = ts_stop_requested(r->rank == 0 ? r->deck->run.directory : NULL);
  ts_step_result result = ts_engine_step(r->engine, (const double[2]){stop, ts_saver_is_working(r->saver)});
  ++r->at.step;
  r->at.samples += r->deck->train_batch_size;
  r->at.skipped_in_a_row = result.skipped ? r->at.skipped_in_a_row + 1 : 0;
  r->at.skipped += result.skipped;
  r->stopping = result.flag[0] > 0;
  return result;
}

static ts_status train_step(run *r, ts_error *err) {
  bool timed = r->deck->profile.timeline[0] != 0 && r->at.step == r->timeline_step;
  ts_status status = timed ? ts_world_agree(r->world, begin_timeline(r, err), err) : TS_OK;
  double start = ts_seconds(), data_seconds = 0;
  for (int64_t m = 0; m < r->accumulation && status == TS_OK; ++m) {
    double before = ts_seconds();
    status = ts_world_agree(r->world, read_micro_batch(r, m, err), err);
    data_seconds += ts_seconds() - before;
    if (status == TS_OK) {
      ts_engine_micro_batch(r->engine, r->tokens, r->samples);
    }
  }
  if (status != TS_OK) {
    return status;
  }
  ts_step_result result = update(r);
  double seconds = ts_seconds() - start;
  ts_timeline_close(&r->timeline);
  report_nonfinite(r);
  ts_saver_advance(r->saver, result.flag[1] > 0);
  if (is_time_to_save(r)) {
    save(r);
  }
  if (r->rank == 0) { /* before the checkpoint is published: one of step N finds the rows up to N */
    write_metrics(r, &result, seconds, data_seconds);
    report(r, &result, seconds);
    if (r->deck->wall_clock_breakdown && ts_progress_is_shown(&r->progress, r->at.step)) {
      report_times(&result, data_seconds);
    }
  }
  return TS_OK;
}

static bool is_time_to_validate(const run *r) {
  int64_t every = r->deck->run.evaluate_every;
  return every > 0 && ts_data_samples(r->data, TS_SPLIT_VALIDATION) > 0 &&
         (r->at.step % every == 0 || r->at.step == r->deck->run.steps);
}

static ts_status after_step(run *r, ts_error *err) {
  if (r->stopping) { /* whoever asked may not wait for a validation: what is saved is published first */
    ts_saver_finish(r->saver);
  }
  int64_t digest_every = r->deck->debug.digest_every;
  if (digest_every > 0 && r->at.step % digest_every == 0) {
    write_digests(r);
  }
  return is_time_to_validate(r) ? validate(r, err) : TS_OK;
}

/* ---- all steps ---- */

static int stop_diverged(run *r) {
  ts_saver_finish(r->saver);
  ts_log(TS_LOG_ERROR, "stopped at step %lld: %lld steps in a row were not finite (run.stop_after_nonfinite); a lower lr, "
         "gradient_clipping, or --set debug.check_finite=true to find the op", (long long) r->at.step,
         (long long) r->at.skipped_in_a_row);
  return 1;
}

/* The state of the last step is published, or the run has failed. */
static int end_saved(run *r) {
  if (r->saved != r->at.step) {
    save(r);
  }
  if (!ts_saver_finish(r->saver)) {
    ts_log(TS_LOG_ERROR, "the state of step %lld could not be saved", (long long) r->at.step);
    return 1;
  }
  if (r->stopping && r->rank == 0) {
    ts_stop_acknowledge(r->deck->run.directory);
  }
  if (r->at.step >= r->deck->run.steps) {
    return 0;
  }
  ts_log(TS_LOG_INFO, "stopped on request after step %lld of %lld; --resume auto goes on from there",
         (long long) r->at.step, (long long) r->deck->run.steps);
  return TS_EXIT_UNFINISHED;
}

static int train(run *r, ts_error *err) {
  ts_status status = TS_OK;
  while (r->at.step < r->deck->run.steps && !r->stopping && status == TS_OK) {
    status = train_step(r, err);
    if (status == TS_OK && is_diverged(r)) {
      return stop_diverged(r);
    }
    status = status == TS_OK ? after_step(r, err) : status;
  }
  ts_progress_end(&r->progress);
  if (status != TS_OK) {
    ts_saver_finish(r->saver);
    return status;
  }
  return end_saved(r);
}

/* ---- the text at the end ---- */

static void put_byte(int32_t token, void *user) {
  (void) user;
  putchar(token);
  fflush(stdout);
}

static void generate(run *r) {
  int64_t n = (int64_t) strlen(r->options->prompt);
  int32_t *tokens = ts_malloc((size_t) (n + r->options->n_generate + 1) * sizeof *tokens);
  for (int64_t i = 0; i < n; ++i) {
    tokens[i] = (unsigned char) r->options->prompt[i];
  }
  const ts_generate_options options = {.n_tokens = r->options->n_generate, .temperature = 0.8, .seed = 1};
  ts_log(TS_LOG_INFO, "\nThe model continues \"%s\":\n", r->options->prompt);
  if (r->rank == 0) {
    fputs(r->options->prompt, stdout);
  }
  ts_generate(r->engine, r->deck, tokens, n, &options, r->rank == 0 ? put_byte : NULL, NULL);
  ts_log(TS_LOG_INFO, "\n");
  ts_free(tokens);
}

/* ---- begin and end ---- */

static void describe(const run *r) {
  char a[32], b[32], c[32];
  const ts_program *p = ts_engine_program(r->engine);
  ts_log(TS_LOG_INFO, "%s: %s parameters, %s, %lld rank%s x %d thread%s, ZeRO stage %lld, %s", r->deck->model.model_type,
         ts_human_count((double) ts_layout_parameter_count(p->layout, false), a), r->deck->bf16.enabled ? "bf16" : "fp32",
         (long long) r->ranks, r->ranks > 1 ? "s" : "", p->target.threads, p->target.threads > 1 ? "s" : "",
         (long long) r->deck->zero_optimization.stage, p->target.backend->describe());
  ts_log(TS_LOG_INFO, "%lld steps of %lld sequences x %lld tokens; planned memory of a rank: %s, of which %s are state",
         (long long) r->deck->run.steps, (long long) r->deck->train_batch_size, (long long) r->length,
         ts_human_bytes((double) p->plan->peak_bytes, b),
         ts_human_bytes((double) p->plan->arena_bytes[TS_ARENA_STATE], c));
}

/* What differs from the job that saved: settings change the run, the rest at most its rounding. */
static void say_resumed(const run *r) {
  static const char *const ignored[] = {"run.directory", "run.steps", "run.save", "run.keep", "run.resume", "run.log_every",
                                        "run.evaluate", "run.threads", "debug.", "profile.", "wall_clock", "steps_per_print",
                                        "train_micro_batch", "gradient_accumulation_steps", "zero_optimization.",
                                        "model.from", NULL};
  const ts_checkpoint *c = r->resume.checkpoint;
  ts_log(TS_LOG_INFO, "resumed at step %lld of %lld from %s%s", (long long) c->step, (long long) r->deck->run.steps,
         r->resume.directory, c->step >= r->deck->run.steps ? ": nothing is left to do" : "");
  ts_text text = {0};
  if (!ts_checkpoint_differences(c, r->engine, &text)) {
    ts_log(TS_LOG_INFO, "another job than the one that saved; losses may differ by rounding:\n%s", text.text);
  }
  ts_text_free(&text);
  ts_deck *before;
  if (r->rank == 0 && ts_deck_read_text(r->resume.directory, c->deck, NULL, 0, &before, NULL) == TS_OK) {
    if (ts_deck_differences(before, r->deck, ignored, &text) > 0) {
      ts_log(TS_LOG_WARNING, "settings differ from those the checkpoint was made with:\n%s", text.text);
    }
    ts_deck_destroy(&before);
    ts_text_free(&text);
  }
}

/* The state the run begins with, if not that of the seed. */
static ts_status load_state(run *r, ts_error *err) {
  const ts_resume *resume = &r->resume;
  if (resume->checkpoint != NULL && r->options->weights != NULL) {
    ts_log(TS_LOG_INFO, "--weights is for the beginning of a run; the checkpoint has its own");
  }
  if (resume->checkpoint == NULL) {
    return r->options->weights != NULL ? ts_engine_load_weights(r->engine, r->options->weights, err) : TS_OK;
  }
  const ts_checkpoint *c = resume->checkpoint;
  ts_status status = ts_engine_load(r->engine, resume->directory, c, TS_LOAD_ALL, err);
  r->at = (ts_position){.step = c->step, .samples = c->samples, .skipped = c->skipped, .skipped_in_a_row = c->skipped_in_a_row};
  if (status == TS_OK) {
    say_resumed(r);
  }
  return status;
}

static ts_status open_run(run *r, ts_error *err) {
  const ts_deck *deck = r->deck;
  ts_status status = ts_resume_find(r->world, deck, r->options->resume, &r->resume, err);
  if (status != TS_OK) {
    return status;
  }
  status = r->resume.same_run || r->resume.over ? TS_OK : check_timeline(deck, err);
  status = status == TS_OK ? check_dump(r, err) : status;
  status = status == TS_OK ? ts_data_open_deck(deck, &r->data, err) : status;
  status = ts_world_agree(r->world, status, err);
  if (status != TS_OK) {
    return status;
  }
  bool validates = deck->run.evaluate_every > 0 && ts_data_samples(r->data, TS_SPLIT_VALIDATION) > 0;
  unsigned abilities = TS_CAN_TRAIN | (validates ? TS_CAN_EVALUATE : 0) |
                       (r->options->prompt != NULL ? TS_CAN_GENERATE : 0);
  const ts_engine_options options = {.world = r->world, .deck = deck, .abilities = abilities,
                                     .loads = r->resume.checkpoint != NULL || r->options->weights != NULL,
                                     .observer = deck->profile.timeline[0] != 0 ? record : NULL, .observer_user = r};
  status = ts_engine_create(&options, &r->engine, err);
  status = status == TS_OK ? load_state(r, err) : status;
  return status == TS_OK ? ts_world_agree(r->world, open_directory(r, err), err) : status;
}

static void close_run(run *r) {
  ts_metrics_close(&r->metrics);
  ts_saver_destroy(&r->saver);
  ts_engine_destroy(&r->engine);
  ts_data_close(&r->data);
  ts_resume_clear(&r->resume);
  ts_run_unlock(r->lock);
  ts_free(r->tokens);
  ts_free(r->samples);
}

static void prepare(run *r) {
  const ts_program *program = ts_engine_program(r->engine);
  r->flops_per_step = ts_program_model_flops(program, NULL) * (double) (r->accumulation * r->ranks);
  r->peak = ts_peak_flops(program->target.threads, r->deck->bf16.enabled ? TS_BF16 : TS_F32) * (double) r->ranks;
  r->saver = ts_saver_create(r->engine);
  r->saved = r->resume.same_run ? r->at.step : -1;
  r->timeline_step = r->at.step + (r->deck->run.steps - r->at.step > TIMELINE_STEP ? TIMELINE_STEP : 0);
  describe(r);
  ts_progress_begin(&r->progress, r->at.step, r->deck->run.steps, r->deck->run.log_every);
}

int ts_train(ts_world *world, const ts_deck *deck, const ts_train_options *options, ts_error *err) {
  run r = {.world = world, .deck = deck, .options = options, .batch = deck->train_micro_batch_size_per_gpu,
           .length = deck->data.sequence_length, .ranks = ts_world_size(world), .rank = ts_world_rank(world),
           .accumulation = deck->gradient_accumulation_steps, .lock = -1};
  r.tokens = ts_malloc((size_t) (r.batch * (r.length + 1)) * sizeof *r.tokens);
  r.samples = ts_malloc((size_t) r.batch * sizeof *r.samples);
  ts_stop_watch();
  int code = open_run(&r, err);
  if (code == 0) {
    prepare(&r);
    code = train(&r, err);
    if (code == 0 && options->prompt != NULL) {
      generate(&r);
    }
    if ((code == 0 || code == TS_EXIT_UNFINISHED) && r.rank == 0 && r.at.step > 0) {
      ts_metrics_close(&r.metrics);
      code = ts_plot_losses(deck->run.directory, err) == TS_OK ? code : TS_BAD_INPUT;
    }
  }
  close_run(&r);
  return code;
}
