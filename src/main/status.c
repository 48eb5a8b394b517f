/* tessera status: where a run is, and which of its ranks are behind, from the files it writes beside its training. */
#include "base/memory.h"
#include "io/publication.h"
#include "main/command.h"
#include "train/expert_watch.h"
#include "train/lag.h"
#include "train/status_file.h"
#include "train/suspension.h"

#include <string.h>
#include <time.h>

/* What all ranks together say. */
typedef struct summary {
  const ts_run_status *s;
  const char *run;
  int64_t step; /* finished by all */
  double step_seconds, tokens_per_second, loss_scale;
  int64_t skipped;
  const ts_node_status *dead; /* the node that tells of dead experts, NULL for none */
  double oldest;              /* heartbeat */
  char *newest;               /* owned; name of the newest checkpoint, NULL for none */
  char *suspended;            /* owned; how, NULL when it is not */
  ts_lag lag;
  ts_text behind;
} summary;

/* Behind are those whom others have waited for longer than steps usually take. */
static double patience(const summary *m) {
  double two = 2 * m->s->job.period, three = 3 * m->step_seconds;
  return two > three ? two : three;
}

/* A file of a node is some seconds old: what is saved has been finished, whatever it says. */
static void find_newest_step(summary *m) {
  int64_t *steps = NULL;
  if (ts_published_steps(m->run, &steps) > 0) {
    char *path = ts_step_directory(m->run, steps[0], "");
    m->newest = ts_strdup(strrchr(path, '/') + 1);
    m->step = steps[0] > m->step ? steps[0] : m->step;
    ts_free(path);
  }
  ts_free(steps);
}

static void summarise(summary *m) {
  int64_t most = 0;
  for (int i = 0; i < m->s->n_nodes; ++i) {
    const ts_node_status *node = &m->s->node[i];
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
  /* no rank begins a step before all have finished the one before it */
  m->step = m->s->job.ended > 0 || most == 0 ? m->s->job.step : most - 1;
  find_newest_step(m);
  if (m->s->job.ended > 0) {
    return;
  }
  m->suspended = m->s->failed == NULL ? ts_suspension_find(m->s) : NULL;
  if (m->suspended == NULL) { /* then everybody is behind */
    m->lag = ts_lag_find(m->s, patience(m), &m->behind);
  }
}

static bool run_is_silent(const summary *m) {
  return m->s->n_nodes > 0 && m->oldest > ts_lag_silence(m->s->job.period);
}

/* One word or a few for the whole run, owned by the caller. */
static char *describe_state(const summary *m) {
  const ts_job_status *j = &m->s->job;
  if (strcmp(j->state, "finished") == 0) {
    return ts_strdup("finished");
  }
  if (strcmp(j->state, "stopped") == 0) {
    return ts_strdup("stopped and saved; --resume auto goes on");
  }
  if (strcmp(j->state, "failed") == 0) {
    return ts_format("failed: %s", j->reason);
  }
  if (m->s->failed != NULL) {
    return ts_format("failed: %.*s", (int) strcspn(m->s->failed, "\n"), m->s->failed);
  }
  if (m->suspended != NULL) {
    return ts_strdup(m->suspended);
  }
  if (run_is_silent(m)) {
    char age[32];
    return ts_format("no heartbeat for %s: killed, or its machines are gone", ts_human_seconds(m->oldest, age));
  }
  return ts_strdup(m->s->n_nodes == 0 ? "starting" : "running");
}

static void add_time(double seconds, ts_text *to) {
  char text[64] = "?";
  time_t t = (time_t) seconds;
  struct tm local;
  if (localtime_r(&t, &local) != NULL) {
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  }
  ts_text_add(to, "%s", text);
}

static void add_job(const summary *m, ts_text *to) {
  const ts_job_status *j = &m->s->job;
  char *state = describe_state(m), count[32];
  ts_text_add(to, "%-7s %s\n%-7s %s\n%-7s ", "run", m->run, "state", state, "job");
  if (strcmp(j->job, "-") != 0) {
    ts_text_add(to, "%s, restart %lld, ", j->job, (long long) j->restart);
  }
  ts_text_add(to, "%lld rank%s on %lld node%s by %s, began ", (long long) j->ranks, j->ranks == 1 ? "" : "s",
              (long long) j->nodes, j->nodes == 1 ? "" : "s", j->launcher);
  add_time(j->began, to);
  if (j->ended > 0) {
    ts_text_add(to, ", ended ");
    add_time(j->ended, to);
  }
  ts_text_add(to, "\n%-7s %lld of %lld", "steps", (long long) m->step, (long long) j->steps);
  if (m->step_seconds > 0) {
    ts_text_add(to, ", %.3g s each, %s tokens/s", m->step_seconds, ts_human_count(m->tokens_per_second, count));
  }
  if (m->skipped > 0) {
    ts_text_add(to, ", %lld skipped", (long long) m->skipped);
  }
  if (m->loss_scale > 0) {
    ts_text_add(to, ", loss scale %.9g", m->loss_scale);
  }
  if (m->dead != NULL) {
    ts_text_add(to, "\n%-7s expert %lld of layer %lld", "dead", (long long) m->dead->dead_expert,
                (long long) m->dead->dead_layer);
    if (m->dead->dead_experts > 1) {
      ts_text_add(to, " and %lld more", (long long) m->dead->dead_experts - 1);
    }
    ts_text_add(to, ": no token for %d steps", TS_DEAD_STEPS);
  }
  ts_text_add(to, "\n%-7s %s\n", "saved", m->newest != NULL ? m->newest : "nothing yet");
  ts_free(state);
}

static void add_node_line(const summary *m, const ts_node_status *node, ts_text *to) {
  char ranks[48], steps[48], age[32];
  int64_t low = INT64_MAX, high = 0;
  for (int k = 0; k < node->n; ++k) {
    low = node->beat[k].step < low ? node->beat[k].step : low;
    high = node->beat[k].step > high ? node->beat[k].step : high;
  }
  snprintf(ranks, sizeof ranks, node->n > 1 ? "%lld-%lld" : "%lld", (long long) node->beat[0].rank,
           (long long) node->beat[node->n - 1].rank);
  snprintf(steps, sizeof steps, low < high ? "%lld-%lld" : "%lld", (long long) low, (long long) high);
  snprintf(age, sizeof age, "%.1f s ago", node->age);
  bool silent = node->age > ts_lag_silence(m->s->job.period);
  const char *quiet = m->suspended != NULL ? "suspended" : "no heartbeat";
  ts_text_add(to, "%-20s %-11s %-13s %-14s %s\n", node->node, ranks, steps, age,
              m->s->job.ended > 0 ? m->s->job.state
              : silent            ? quiet
                                  : ts_phase_name(node->beat[0].phase));
}

static void print_summary(const summary *m, ts_text *to) {
  const ts_run_status *s = m->s;
  add_job(m, to);
  if (s->n_nodes > 0) {
    ts_text_add(to, "\n%-20s %-11s %-13s %-14s %s\n", "node", "ranks", "in step", "heartbeat", "state");
  }
  for (int i = 0; i < s->n_nodes; ++i) {
    add_node_line(m, &s->node[i], to);
  }
  if (s->n_damaged > 0) {
    ts_text_add(to, "%d damaged file%s in status/ (%s)\n", s->n_damaged, s->n_damaged > 1 ? "s" : "", s->damaged);
  }
  if (s->n_older > 0) {
    ts_text_add(to, "%d file%s of an earlier start in status/\n", s->n_older, s->n_older > 1 ? "s" : "");
  }
  if (s->job.ended == 0 && s->failed != NULL && strchr(s->failed, '\n') != NULL) {
    ts_text_add(to, "\n%s\n", s->failed);
  } else if (m->behind.length > 0) {
    ts_text_add(to, "\nbehind:\n%s", m->behind.text);
  }
}

static void add_json_string(ts_text *to, const char *key, const char *value) {
  ts_text_add(to, "\"%s\": ", key);
  if (value != NULL) {
    ts_text_add_json(to, value);
  } else {
    ts_text_add(to, "null");
  }
}

static void print_summary_json(const summary *m, ts_text *to) {
  const ts_job_status *j = &m->s->job;
  bool killed = j->ended == 0 && (m->s->failed != NULL || run_is_silent(m));
  const char *how = m->s->failed != NULL ? "failed" : m->suspended != NULL ? "suspended" : "silent";
  ts_text_add(to, "{");
  add_json_string(to, "state", killed ? how : j->state);
  ts_text_add(to, ", ");
  add_json_string(to, "reason", j->reason[0] != 0 ? j->reason : m->s->failed != NULL ? m->s->failed : m->suspended);
  ts_text_add(to, ", ");
  add_json_string(to, "job", strcmp(j->job, "-") != 0 ? j->job : NULL);
  ts_text_add(to, ", \"dead_experts\": %lld", m->dead != NULL ? (long long) m->dead->dead_experts : 0);
  if (m->dead != NULL) {
    ts_text_add(to, ", \"dead_layer\": %lld, \"dead_expert\": %lld", (long long) m->dead->dead_layer,
                (long long) m->dead->dead_expert);
  }
  ts_text_add(to,
              ", \"restart\": %lld, \"ranks\": %lld, \"step\": %lld, \"steps\": %lld, \"step_seconds\": %.6g, "
              "\"tokens_per_second\": %.6g, \"skipped\": %lld, \"loss_scale\": %.9g, \"oldest_heartbeat\": %.3f, ",
              (long long) j->restart, (long long) j->ranks, (long long) m->step, (long long) j->steps, m->step_seconds,
              m->tokens_per_second, (long long) m->skipped, m->loss_scale > 0 ? m->loss_scale : 1, m->oldest);
  add_json_string(to, "saved", m->newest);
  ts_text_add(to, ", ");
  add_json_string(to, "behind", m->behind.text);
  ts_text_add(to, ", \"nodes\": [");
  for (int i = 0; i < m->s->n_nodes; ++i) {
    const ts_node_status *node = &m->s->node[i];
    ts_text_add(to, i > 0 ? ", {" : "{");
    add_json_string(to, "node", node->node);
    ts_text_add(to, ", \"ranks\": [%lld, %lld], \"heartbeat\": %.3f, \"step\": %lld, ", (long long) node->beat[0].rank,
                (long long) node->beat[node->n - 1].rank, node->age, (long long) node->beat[0].step);
    add_json_string(to, "phase", ts_phase_name(node->beat[0].phase));
    ts_text_add(to, "}");
  }
  ts_text_add(to, "]}\n");
}

int ts_main_status(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  const char *format = ts_argument(arguments, "--format");
  bool json = strcmp(format, "json") == 0;
  if (!json && strcmp(format, "text") != 0) {
    return ts_error_add(err, "--format %s: text or json is accepted", format);
  }
  ts_run_status s;
  ts_status status = ts_status_read(arguments->positional[0], &s, err);
  if (status == TS_OK) {
    summary m = {.s = &s, .run = arguments->positional[0]};
    ts_text text = {0};
    summarise(&m);
    (json ? print_summary_json : print_summary)(&m, &text);
    fputs(text.text, stdout);
    ts_text_free(&text);
    ts_text_free(&m.behind);
    ts_free(m.newest);
    ts_free(m.suspended);
  }
  ts_run_status_clear(&s);
  return status;
}
