#include "train/run_summary.h"

#include "base/memory.h"
#include "io/publication.h"
#include "train/expert_watch.h"
#include "train/suspension.h"

#include <string.h>

/* Behind are those whom others have waited for longer than steps usually take. */
static double patience(const ts_run_summary *m) {
  double two = 2 * m->status.job.period, three = 3 * m->step_seconds;
  return two > three ? two : three;
}

/* A file of a node is some seconds old: what is saved has been finished, whatever it says. */
static void find_newest_step(const char *run, ts_run_summary *m) {
  int64_t *steps = NULL;
  if (ts_published_steps(run, &steps) > 0) {
    char *path = ts_step_directory(run, steps[0], "");
    m->newest = ts_strdup(strrchr(path, '/') + 1);
    m->step = steps[0] > m->step ? steps[0] : m->step;
    ts_free(path);
  }
  ts_free(steps);
}

static int64_t add_up_nodes(ts_run_summary *m) {
  int64_t most = 0;
  for (int i = 0; i < m->status.n_nodes; ++i) {
    const ts_node_status *node = &m->status.node[i];
    m->oldest = node->age > m->oldest ? node->age : m->oldest;
    m->step_seconds = node->step_seconds > 0 ? node->step_seconds : m->step_seconds;
    m->tokens_per_second = node->tokens_per_second > 0 ? node->tokens_per_second : m->tokens_per_second;
    m->loss_scale = node->loss_scale > 0 ? node->loss_scale : m->loss_scale;
    m->skipped = node->skipped > 0 ? node->skipped : m->skipped;
    m->dead = node->dead_experts > 0 ? node : m->dead;
    for (int k = 0; k < node->n; ++k) {
      most = node->beat[k].step > most ? node->beat[k].step : most;
    }
  }
  return most;
}

static ts_run_state find_run_state(const ts_run_summary *m) {
  static const struct {
    const char *word;
    ts_run_state state;
  } ended[] = {{"finished", TS_RUN_FINISHED}, {"stopped", TS_RUN_STOPPED}, {"failed", TS_RUN_FAILED}};
  for (size_t i = 0; i < sizeof ended / sizeof ended[0]; ++i) {
    if (strcmp(m->status.job.state, ended[i].word) == 0) {
      return ended[i].state;
    }
  }
  if (m->status.failed != NULL) {
    return TS_RUN_FAILED;
  }
  if (m->suspended != NULL) {
    return TS_RUN_SUSPENDED;
  }
  if (m->status.n_nodes == 0) {
    return TS_RUN_STARTING;
  }
  return m->oldest > ts_lag_silence(m->status.job.period) ? TS_RUN_SILENT : TS_RUN_RUNNING;
}

ts_status ts_run_summary_read(const char *run, ts_run_summary *m, ts_error *err) {
  *m = (ts_run_summary){0};
  ts_status status = ts_status_read(run, &m->status, err);
  if (status != TS_OK) {
    return status;
  }
  int64_t most = add_up_nodes(m);
  bool ended = m->status.job.ended > 0;
  /* no rank begins a step before all have finished the one before it */
  m->step = ended || most == 0 ? m->status.job.step : most - 1;
  find_newest_step(run, m);
  if (!ended) {
    m->suspended = m->status.failed == NULL ? ts_suspension_find(&m->status) : NULL;
  }
  if (!ended && m->suspended == NULL) { /* else everybody is behind */
    m->lag = ts_lag_find(&m->status, patience(m), &m->behind);
  }
  m->state = find_run_state(m);
  return TS_OK;
}

char *ts_run_summary_describe(const ts_run_summary *m) {
  char age[32];
  const char *failed = m->status.failed;
  switch (m->state) {
    case TS_RUN_STOPPED: return ts_strdup("stopped and saved; --resume auto goes on");
    case TS_RUN_FAILED:
      return m->status.job.ended > 0 || failed == NULL ? ts_format("failed: %s", m->status.job.reason)
                                                       : ts_format("failed: %.*s", (int) strcspn(failed, "\n"), failed);
    case TS_RUN_SUSPENDED: return ts_strdup(m->suspended);
    case TS_RUN_SILENT:
      return ts_format("no heartbeat for %s: killed, or its machines are gone", ts_human_seconds(m->oldest, age));
    case TS_RUN_FINISHED: return ts_strdup("finished");
    case TS_RUN_STARTING: return ts_strdup("starting");
    default: return ts_strdup("running");
  }
}

void ts_run_summary_add_dead(const ts_run_summary *m, ts_text *to) {
  if (m->dead == NULL) {
    return;
  }
  ts_text_add(to, "expert %lld of layer %lld", (long long) m->dead->dead_expert, (long long) m->dead->dead_layer);
  if (m->dead->dead_experts > 1) {
    ts_text_add(to, " and %lld more", (long long) m->dead->dead_experts - 1);
  }
  ts_text_add(to, ": no token for %d steps", TS_DEAD_STEPS);
}

void ts_run_summary_clear(ts_run_summary *m) {
  ts_run_status_clear(&m->status);
  ts_text_free(&m->behind);
  ts_free(m->newest);
  ts_free(m->suspended);
  *m = (ts_run_summary){0};
}
