/* A training run's saves: when they are due, and what becomes of the run when they fail. */
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/checkpoints.h"
#include "train/stop.h"
#include "train/training.h"

#include <math.h>
#include <time.h>

#define TICK             \
  (struct timespec) {    \
    .tv_nsec = 250000000 \
  } /* between two looks at the clock, while all ranks wait */

/* ---- what is asked for ---- */

/* Rank 0: the job's time is over before another step could be made and saved. */
static bool is_time_over(ts_training *r) {
  double last = ts_saver_last_seconds(r->saver), left = ts_watch_time_left(r->watch);
  r->limit.save = last >= 0 ? last : r->limit.save;
  if (left >= ts_time_limit_needed(&r->limit)) {
    return false;
  }
  r->stopped_before = left > 1 ? left : 1;
  return true;
}

double ts_training_request(ts_training *r) {
  if (ts_stop_requested(r->rank == 0 ? r->deck->run.directory : NULL) || is_time_over(r)) {
    return TS_REQUEST_STOP;
  }
  return r->rank == 0 ? (double) ts_saver_retry(r->saver, INFINITY) : TS_RETRY_NO;
}

/* ---- saving ---- */

bool ts_training_is_diverged(const ts_training *r) {
  int64_t most = r->deck->run.stop_after_nonfinite;
  return most > 0 && r->at.skipped_in_a_row >= most;
}

bool ts_training_is_time_to_save(const ts_training *r) {
  int64_t every = r->deck->run.save_every;
  bool due = r->request != TS_RETRY_NO || r->at.step == r->steps || (every > 0 && r->at.step % every == 0);
  return due && !ts_training_is_diverged(r) && r->stuck == 0;
}

void ts_training_save(ts_training *r) {
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_SAVING);
  r->saved = r->at.step;
  if (r->rank == 0) {
    ts_metrics_flush(r->metrics);
    ts_monitors_flush(r->monitors);
  }
  ts_saver_begin(r->saver, &r->at);
}

/* ---- the last save ---- */

static int largest(ts_world *world, int mine) {
  int most = mine, *all = ts_world_gather(world, &mine, sizeof mine);
  for (int i = 0; i < ts_world_size(world); ++i) {
    most = all[i] > most ? all[i] : most;
  }
  ts_free(all);
  return most;
}

/* All ranks wait until another try is due, the time for it is over, or one of them is told to end. */
static int wait_for_try(ts_training *r) {
  int request = TS_RETRY_NO;
  while (request == TS_RETRY_NO) {
    nanosleep(&TICK, NULL);
    ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_SAVING); /* the watchdog sees that this is no hang */
    double end = ts_seconds() + ts_watch_time_left(r->watch) - ts_time_limit_last_save(&r->limit);
    int mine = r->rank == 0 ? (int) ts_saver_retry(r->saver, end) : TS_RETRY_NO;
    request = largest(r->world, ts_stop_terminated() ? TS_REQUEST_STOP : mine);
  }
  return request;
}

/* What a user has to do, of a run that ends without its last step. */
static char *describe_unsaved(const ts_training *r) {
  ts_save_failures failures = ts_saver_failures(r->saver);
  int64_t newest = ts_saver_newest(r->saver), from = newest >= 0 ? newest : r->resume.same_run ? r->first_step - 1 : 0;
  char time[32], *where = from > 0 ? ts_format("it goes on from step %lld", (long long) from)
                                   : ts_strdup("it begins anew, as there is no checkpoint");
  char *text = ts_format("step %lld is not saved: %s.  %lld save%s failed in %s.  Make room in %s, then start the run "
                         "again with --resume auto: %s",
                         (long long) r->at.step, failures.why, (long long) failures.n, failures.n == 1 ? "" : "s",
                         ts_human_seconds(failures.seconds, time), r->deck->run.directory, where);
  ts_free(where);
  return text;
}

static int end_unsaved(ts_training *r, bool terminated, ts_error *err) {
  char *text = describe_unsaved(r);
  if (terminated) {
    r->failure = "SIGTERM came while the last step could not be saved";
    ts_log(TS_LOG_ERROR, "%s: %s", r->failure, text);
  } else {
    ts_error_add(err, "%s", text);
  }
  ts_free(text);
  return terminated ? 1 : TS_BAD_INPUT;
}

int ts_training_save_last(ts_training *r, ts_error *err) {
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_SAVING);
  if (r->saved != r->at.step) {
    ts_training_save(r);
  }
  bool saved = ts_saver_finish(r->saver);
  int request = r->request == TS_RETRY_LAST ? TS_RETRY_LAST : TS_RETRY_NO;
  if (!saved && request == TS_RETRY_NO) {
    ts_stop_forget();
    ts_log(TS_LOG_WARNING, "the run waits until its last step, %lld, can be saved; SIGTERM ends it at once",
           (long long) r->at.step);
  }
  while (!saved && request < TS_RETRY_LAST) {
    request = wait_for_try(r);
    if (request == TS_REQUEST_STOP) {
      break;
    }
    ts_training_save(r);
    saved = ts_saver_finish(r->saver);
  }
  return saved ? 0 : end_unsaved(r, request == TS_REQUEST_STOP, err);
}

/* ---- the model at the end ---- */

int ts_training_write_model(ts_training *r, ts_error *err) {
  if (!r->deck->zero_optimization.stage3_gather_16bit_weights_on_model_save) {
    return 0;
  }
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_SAVING);
  char *directory = ts_format("%s/" TS_RUN_MODEL, r->deck->run.directory);
  ts_status status = ts_save_16bit_model(r->engine, directory, NULL, false, NULL, err);
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_ENDING);
  ts_free(directory);
  return (int) status;
}
