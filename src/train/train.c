/* The training run: steps, and what is told of them. */
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "family/family.h"
#include "io/plot.h"
#include "train/stop.h"
#include "train/tell.h"
#include "train/training.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* ---- data ---- */

/* This rank's samples of a step: dealt out in order of (micro-batch, batch coordinate, row), so that a step has the
 * same samples on every grid. */
static ts_status read_batch(ts_training *r, ts_error *err) {
  int64_t groups = ts_mesh_group_size(&r->mesh, TS_AXES_BATCH), group = ts_mesh_group_rank(&r->mesh, TS_AXES_BATCH);
  ts_status status = TS_OK;
  for (int64_t i = 0; i < r->batch->samples && status == TS_OK; ++i) {
    int64_t m = i / r->micro_batch, row = i % r->micro_batch;
    int64_t position = r->at.samples + (m * groups + group) * r->micro_batch + row;
    status = ts_data_read_deck(r->deck, r->data, TS_SPLIT_TRAINING, position, r->batch, i, err);
  }
  return status;
}

/* ---- validation ---- */

static ts_status validate(ts_training *r, ts_error *err) {
  double start = ts_seconds(), loss;
  int64_t batches;
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_VALIDATING);
  ts_status status = ts_validate(r->engine, r->world, r->deck, r->data, &loss, &batches, err);
  if (status == TS_OK && r->rank == 0) {
    double seconds = ts_seconds() - start;
    r->limit.validation = seconds;
    ts_metrics_validation(r->metrics, &(ts_validation_row){.step = r->at.step,
                                                           .tokens = r->at.samples * r->length,
                                                           .loss = loss,
                                                           .batches = batches,
                                                           .seconds = seconds});
    ts_monitors_validation(r->monitors, loss, r->at.samples);
    ts_monitors_flush(r->monitors);
    ts_log(TS_LOG_INFO, "step %lld  validation loss %.4f  (%.1f s)", (long long) r->at.step, loss, seconds);
  }
  return status;
}

/* ---- what is told of a step ---- */

/* A rank's busy time and its number as one number, of which the largest is agreed; what a step took is known behind it,
 * so it is told with the next one; 0: nobody has made a step. */
#define RANKS 1048576.0
#define TICK 1e-6 /* seconds; 2^33 of them at most, so that the whole is exact */

static double busy_mark(double seconds, int64_t rank) {
  return floor(fmin(fmax(seconds, 0) / TICK, 8e9)) * RANKS + fmod((double) rank, RANKS);
}

static double slowest_seconds(double mark) {
  return mark >= RANKS ? floor(mark / RANKS) * TICK : NAN;
}

static int64_t slowest_rank(double mark) {
  return mark >= RANKS ? (int64_t) fmod(mark, RANKS) : -1;
}

static void write_metrics(ts_training *r, const ts_step_result *result, double seconds, double data_seconds,
                          bool observed) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  double tokens = (double) (r->deck->train_batch_size * r->length);
  ts_save_times saves = ts_saver_take_times(r->saver);
  ts_metrics_row row = {.step = r->at.step,
                        .tokens = r->at.samples * r->length,
                        .loss = result->loss,
                        .grad_norm = result->grad_norm,
                        .lr = result->lr,
                        .step_seconds = seconds,
                        .tokens_per_second = tokens / seconds,
                        .model_tflops = r->flops_per_step / seconds * 1e-12,
                        .mfu = r->peak > 0 ? r->flops_per_step / seconds / r->peak : 0,
                        .peak_bytes = ts_executor_peak_bytes(ts_engine_executor(r->engine)),
                        .comm_seconds = result->communication_seconds,
                        .exposed_comm_seconds = result->exposed_seconds,
                        .data_seconds = data_seconds,
                        .skipped = r->at.skipped,
                        .loss_scale = result->loss_scale,
                        .save_seconds = saves.save,
                        .stall_seconds = saves.stall,
                        .bubble = result->bubble,
                        .forward_seconds = result->forward_seconds,
                        .backward_seconds = result->backward_seconds,
                        .update_seconds = result->update_seconds,
                        .slowest_rank = slowest_rank(result->flag[TS_FLAG_BUSY]),
                        .slowest_seconds = slowest_seconds(result->flag[TS_FLAG_BUSY]),
                        .observed = observed,
                        .time = (double) now.tv_sec + 1e-9 * (double) now.tv_nsec,
                        .save_step = saves.step};
  ts_metrics_step(r->metrics, &row);
  ts_monitors_step(r->monitors, &row, result, r->at.samples);
}

/* A row a layer, where there are experts; who died is said once. */
static void report_experts(ts_training *r) {
  const ts_layout *layout = ts_engine_layout(r->engine);
  if (layout->n_loads == 0) {
    return;
  }
  ts_dead_experts dead = ts_expert_watch_step(&r->experts, layout, ts_engine_loads(r->engine),
                                              r->deck->gradient_accumulation_steps, r->at.step, r->metrics);
  ts_watch_experts(r->watch, &dead);
  if (dead.more) {
    bool biased = ts_deck_has_router_bias(r->deck);
    ts_log(TS_LOG_WARNING,
           "step %lld: %lld expert%s got no token for %d steps, expert %lld of layer %lld the first of them (moe.csv: "
           "idle); %s",
           (long long) r->at.step, (long long) dead.n, dead.n > 1 ? "s" : "", TS_DEAD_STEPS, (long long) dead.expert,
           (long long) dead.layer,
           biased ? "expert_parallel.load_balance_coeff lets biases follow the balance"
                  : "model.output_router_logits with a larger router_aux_loss_coef spreads the tokens");
  }
}

/* Of this rank's samples. */
static void report_balance(ts_training *r) {
  const ts_program *p = ts_engine_program(r->engine);
  if (p->sequence.ring > 1 && ts_deck_by_documents(r->deck)) {
    ts_balance_add(&r->balance, &p->sequence, r->batch, r->micro_batch);
    if (ts_progress_is_shown(&r->progress, r->at.step)) {
      ts_log(TS_LOG_INFO, "  documents: the busiest of %d rings has %.2f times the mean of attention", p->sequence.ring,
             ts_balance_take(&r->balance));
    }
  }
}

/* DeepSpeed's wall_clock_breakdown: where a step's time went, on rank 0. */
static void report_times(const ts_step_result *t, double data_seconds) {
  char *communication =
      isnan(t->communication_seconds)
          ? ts_format("inside, see profile.timeline") /* a recorded step is not timed by collective */
          : ts_format("%.2f (exposed %.2f)", 1e3 * t->communication_seconds, 1e3 * t->exposed_seconds);
  ts_log(TS_LOG_INFO, "  time (ms) | data: %.2f | fwd: %.2f | bwd: %.2f | step: %.2f | comm: %s", 1e3 * data_seconds,
         1e3 * t->forward_seconds, 1e3 * t->backward_seconds, 1e3 * t->update_seconds, communication);
  ts_free(communication);
}

static void report_step(ts_training *r, const ts_step_result *result, double seconds) {
  double tokens_per_second = (double) (r->deck->train_batch_size * r->length) / seconds;
  bool scaled = r->scaler.rule != TS_LOSS_SCALE_NONE;
  ts_progress_step(&r->progress, r->at.step, result->loss, result->lr, scaled ? result->loss_scale : 0,
                   tokens_per_second);
  ts_watch_scale(r->watch, r->at.skipped, scaled ? result->next_loss_scale : 0);
  if (result->skipped && result->valid_tokens == 0) {
    ts_log(TS_LOG_WARNING, "step %lld: no token of its samples has a label: no update", (long long) r->at.step);
  } else if (result->stuck) { /* what ends the run says it */
    return;
  } else if (result->searching) {
    ts_log(TS_LOG_INFO, "step %lld: overflow at loss scale %.9g: no update; the next scale is %.9g",
           (long long) r->at.step, result->loss_scale, result->next_loss_scale);
  } else if (result->overflow) {
    ts_log(TS_LOG_WARNING, "step %lld: loss or gradient norm is not finite: %s (%lld in a row)", (long long) r->at.step,
           result->skipped ? "no update" : "updated all the same, as bf16.check_grad_overflow is false",
           (long long) r->at.skipped_in_a_row);
  }
}

static void report_nonfinite(ts_training *r) {
  char *where = ts_executor_take_nonfinite(ts_engine_executor(r->engine));
  if (where != NULL) {
    ts_log_status_line(NULL);
    fprintf(stderr, "tessera: step %lld: first value that is not finite: rank %lld, %s\n", (long long) r->at.step,
            (long long) r->rank, where);
    ts_free(where);
  }
}

/* debug.digest_every: a line a parameter, so that `tessera compare` can name the first tensor that differs. */
static void write_digests(ts_training *r) {
  const ts_layout *layout = ts_engine_layout(r->engine);
  uint64_t *digest = ts_malloc((size_t) layout->n_parameters * sizeof *digest);
  ts_engine_digest(r->engine, digest);
  if (r->rank == 0) {
    ts_text lines = {0};
    for (int i = 0; i < layout->n_parameters; ++i) {
      ts_text_add(&lines, "%lld,%s,%016llx\n", (long long) r->at.step, layout->parameter[i].name,
                  (unsigned long long) digest[i]);
    }
    ts_rows_add(r->digests, lines.text, lines.length);
    ts_text_free(&lines);
  }
  ts_free(digest);
}

/* What is agreed goes along with the record: what ranks ask for, whose checkpoint is still being written. */
static void ask(void *user, double flags[TS_N_FLAGS]) {
  ts_training *r = user;
  flags[TS_FLAG_REQUEST] = ts_training_request(r);
  flags[TS_FLAG_SAVING] = ts_saver_is_working(r->saver);
  flags[TS_FLAG_BUSY] = busy_mark(r->busy, r->rank);
}

static void count_step(ts_training *r, const ts_step_result *result) {
  ++r->at.step;
  r->at.samples += r->deck->train_batch_size;
  if (result->valid_tokens > 0) { /* where nothing is to be learned, nothing went wrong; nor where a scale is found */
    r->at.skipped_in_a_row = result->overflow && !result->searching ? r->at.skipped_in_a_row + 1 : 0;
  }
  r->kept_nonfinite = r->kept_nonfinite || (result->overflow && !result->skipped);
  r->searching = result->searching;
  r->stuck = result->stuck ? result->loss_scale : 0;
  r->at.skipped += result->skipped;
  r->request = (int) result->flag[TS_FLAG_REQUEST];
  r->stopping = r->request == TS_REQUEST_STOP;
}

/* How fast a run is, no observed step tells; but it takes its time. */
static void tell_time(ts_training *r, double seconds) {
  double tokens = (double) (r->deck->train_batch_size * r->length);
  ts_time_limit_step(&r->limit, seconds);
  if (!ts_observed_is_on(r->observed)) {
    ts_watch_speed(r->watch, seconds, tokens / seconds);
  }
}

static ts_status train_step(ts_training *r, ts_error *err) {
  ts_status status = ts_observed_begin(r->observed, r->at.step, err);
  double start = ts_seconds();
  ts_heartbeat_step(ts_world_heartbeat(r->world), r->at.step + 1);
  status = status == TS_OK ? ts_world_agree(r->world, read_batch(r, err), err) : status;
  double data_seconds = ts_seconds() - start;
  if (status != TS_OK) {
    return status;
  }
  ts_step_result result = ts_engine_train_step(r->engine, &(ts_step_input){r->batch, ask, r});
  count_step(r, &result);
  r->busy = result.busy_seconds + data_seconds;
  double seconds = ts_seconds() - start;
  ts_observed_end(r->observed, &result);
  report_nonfinite(r);
  tell_time(r, seconds);
  ts_saver_advance(r->saver, result.flag[TS_FLAG_SAVING] > 0);
  if (ts_training_is_time_to_save(r)) {
    ts_training_save(r);
  }
  if (r->rank == 0) { /* before the checkpoint is published: one of step N finds the rows up to N */
    write_metrics(r, &result, seconds, data_seconds, ts_observed_is_on(r->observed));
    if (r->saved == r->at.step) {
      ts_monitors_flush(r->monitors);
    }
    report_step(r, &result, seconds);
    report_experts(r);
    report_balance(r);
    if (r->deck->wall_clock_breakdown && ts_progress_is_shown(&r->progress, r->at.step)) {
      report_times(&result, data_seconds);
    }
    if (r->deck->memory_breakdown && ts_progress_is_shown(&r->progress, r->at.step)) {
      ts_tell_memory(r->engine, r->at.step);
    }
  }
  return TS_OK;
}

static bool is_time_to_validate(const ts_training *r) {
  int64_t every = r->deck->run.evaluate_every;
  return every > 0 && ts_data_samples(r->data, TS_SPLIT_VALIDATION) > 0 &&
         (r->at.step % every == 0 || r->at.step == r->steps);
}

static ts_status after_step(ts_training *r, ts_error *err) {
  if (r->request >= TS_RETRY_LAST) { /* whoever asked may not wait for a validation: what is saved is published first */
    r->unsaved = !ts_saver_finish(r->saver);
  }
  int64_t digest_every = r->deck->debug.digest_every;
  if (digest_every > 0 && r->at.step % digest_every == 0) {
    write_digests(r);
  }
  return is_time_to_validate(r) ? validate(r, err) : TS_OK;
}

/* ---- all steps ---- */

/* What may help where steps are not finite. */
static const char *advice(const ts_training *r) {
  return r->scaler.rule == TS_LOSS_SCALE_STATIC
             ? "a smaller fp16.loss_scale, or 0 for a dynamic one; a lower lr, gradient_clipping, or --set "
               "debug.check_finite=true to find the op"
             : "a lower lr, gradient_clipping, or --set debug.check_finite=true to find the op";
}

static int stop_diverged(ts_training *r) {
  r->failure = "steps were not finite (run.stop_after_nonfinite)";
  ts_saver_finish(r->saver);
  ts_log(TS_LOG_ERROR, "stopped at step %lld: %lld steps in a row were not finite (run.stop_after_nonfinite); %s",
         (long long) r->at.step, (long long) r->at.skipped_in_a_row, advice(r));
  return 1;
}

static int stop_stuck(ts_training *r) {
  r->failure = "overflow at the smallest loss scale (fp16.min_loss_scale)";
  ts_saver_finish(r->saver);
  ts_log(TS_LOG_ERROR,
         "stopped at step %lld: loss or gradient norm is not finite at loss scale %.9g, the smallest allowed "
         "(fp16.min_loss_scale); fp16.enabled = false with bf16.enabled = true has fp32's range, a lower lr may keep "
         "values small, --set debug.check_finite=true finds the op",
         (long long) r->at.step, r->stuck);
  return 1;
}

static void say_stopped(const ts_training *r) {
  if (r->stopped_before == 0) {
    ts_log(TS_LOG_INFO, "stopped on request after step %lld of %lld; --resume auto goes on from there",
           (long long) r->at.step, (long long) r->steps);
    return;
  }
  ts_log(TS_LOG_INFO,
         "stopped after step %lld of %lld, %.0f s before the end of the job's time (saving took %.1f s, "
         "run.time_margin is %g s); --resume auto goes on from there",
         (long long) r->at.step, (long long) r->steps, r->stopped_before, ts_saver_last_seconds(r->saver),
         r->limit.margin);
  if (r->at.step == r->first_step) {
    ts_log(TS_LOG_WARNING,
           "the job's time is short: it held one step; give it more (%.0f s are needed beside loading for each "
           "step and its save)",
           ts_time_limit_needed(&r->limit));
  }
}

/* No step of the run has changed anything. */
static int end_unlearned(ts_training *r) {
  bool labels = r->scaler.rule == TS_LOSS_SCALE_NONE; /* else a run that goes on cannot tell which it was */
  r->failure = labels ? "no step had a token with a label" : "every step had an overflow, or no token with a label";
  ts_log(TS_LOG_ERROR, "%s: nothing was learned; %s", r->failure,
         labels          ? "look at the loss mask, or at the lengths of the documents"
         : !r->searching ? "look at the loss mask and the lengths of the documents, or go on with a smaller loss scale"
         : r->scaler.rule == TS_LOSS_SCALE_TORCH
             ? "the loss scale was still too large at the end: more steps, or bf16 instead of fp16"
             : "the loss scale was still too large at the end: more steps, or a smaller fp16.initial_scale_power");
  return 1;
}

/* A last step that changed nothing is no end that anybody wanted. */
static int end_finished(ts_training *r) {
  if (r->at.skipped_in_a_row == 0) {
    return r->at.step > 0 && r->at.skipped == r->at.step ? end_unlearned(r) : 0;
  }
  long long last = r->at.step, in_a_row = r->at.skipped_in_a_row;
  r->failure = "the last step was not finite";
  char *steps = in_a_row == 1 ? ts_format("step %lld was", last)
                              : ts_format("steps %lld to %lld were", last - in_a_row + 1, last);
  ts_log(TS_LOG_ERROR, "%s: loss or gradient norm; %s %s; %s", r->failure, steps,
         r->kept_nonfinite ? "done all the same, as bf16.check_grad_overflow is false: what is saved has their weights"
                           : "without an update, and what is saved has the weights from before",
         advice(r));
  ts_free(steps);
  return 1;
}

/* The state of the last step is published, or the run has failed. */
static int end_saved(ts_training *r, ts_error *err) {
  int code = ts_training_save_last(r, err);
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_ENDING);
  if (r->stopping && r->rank == 0) {
    ts_stop_acknowledge(r->deck->run.directory);
  }
  if (code == 0 && r->at.step < r->steps) {
    say_stopped(r);
    return TS_EXIT_UNFINISHED;
  }
  return code == 0 ? end_finished(r) : code;
}

static void say_moved(ts_training *r) {
  char *moved = ts_engine_take_moved(r->engine);
  if (moved != NULL) {
    ts_log(TS_LOG_INFO, "%s", moved);
  }
  ts_free(moved);
}

static int train(ts_training *r, ts_error *err) {
  ts_status status = TS_OK;
  while (r->at.step < r->steps && !r->stopping && !r->unsaved && status == TS_OK) {
    status = train_step(r, err);
    if (status == TS_OK && r->stuck > 0) {
      return stop_stuck(r);
    }
    if (status == TS_OK && ts_training_is_diverged(r)) {
      return stop_diverged(r);
    }
    status = status == TS_OK ? after_step(r, err) : status;
  }
  ts_progress_end(&r->progress);
  say_moved(r);
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_ENDING);
  if (status != TS_OK) {
    ts_saver_finish(r->saver);
    return status;
  }
  return end_saved(r, err);
}

/* ---- the text at the end ---- */

static void generate(ts_training *r) {
  const ts_generate_options options = {.n_tokens = r->options->n_generate, .temperature = 0.8, .seed = 1};
  ts_log(TS_LOG_INFO, "\nThe model continues \"%s\":\n", r->options->prompt);
  ts_speak(r->engine, r->words, r->options->prompt, &r->prompt, &options);
  ts_log(TS_LOG_INFO, "\n");
}

/* Rank 0.  A picture that cannot be drawn is no failure of the run: `tessera plot` does it again. */
static void draw_losses(ts_training *r) {
  ts_error err = {0};
  ts_metrics_close(&r->metrics);
  if (ts_plot_losses(r->deck->run.directory, &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s", err.text);
  }
  ts_error_clear(&err);
}

/* What is said of rows that are lost, and of how curves are uploaded, is the run's, too. */
static void close_tables(ts_training *r) {
  ts_metrics_close(&r->metrics);
  ts_monitors_close(&r->monitors);
  ts_rows_close(&r->digests);
}

/* Every rank comes here with the same code. */
static void end_watch(ts_training *r, int code, const ts_error *err) {
  const char *reason = code == TS_BAD_INPUT ? err->text : code == 1 ? r->failure : NULL;
  const char *state = code == 0 ? "finished" : code == TS_EXIT_UNFINISHED ? "stopped" : "failed";
  ts_watch_destroy(&r->watch, state, r->at.step, reason);
}

int ts_train(ts_world *world, ts_deck *deck, const ts_train_options *options, ts_error *err) {
  ts_training r = {.world = world, .deck = deck, .options = options, .lock = -1};
  ts_stop_watch();
  r.log = ts_run_log_begin(ts_world_rank(world) == 0);
  r.watch = ts_watch_create(world, deck);
  int code = (int) ts_training_open(&r, err);
  if (code == 0) {
    code = train(&r, err);
    if (code != TS_BAD_INPUT) {
      ts_observed_finish(r.observed);
    }
    code = code == 0 ? ts_training_write_model(&r, err) : code;
    if (code == 0 && options->prompt != NULL) {
      generate(&r);
    }
    if (code != TS_BAD_INPUT && r.rank == 0 && r.at.step > 0) {
      draw_losses(&r);
    }
  }
  close_tables(&r);
  ts_run_log_end(&r.log, code == TS_BAD_INPUT ? err->text : NULL); /* who sees that it has ended finds all */
  end_watch(&r, code, err);
  ts_training_close(&r);
  return code;
}
