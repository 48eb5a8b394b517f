/* tessera status: where a run is, and which of its ranks are behind, from the files it writes beside its training. */
#include "base/memory.h"
#include "main/command.h"
#include "train/run_summary.h"

#include <string.h>
#include <time.h>

static void add_time(double seconds, ts_text *to) {
  char text[64] = "?";
  time_t t = (time_t) seconds;
  struct tm local;
  if (localtime_r(&t, &local) != NULL) {
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  }
  ts_text_add(to, "%s", text);
}

static void add_job(const ts_run_summary *m, ts_text *to) {
  const ts_job_status *j = &m->status.job;
  char *state = ts_run_summary_describe(m), count[32];
  ts_text_add(to, "%-7s %s\n%-7s ", "state", state, "job");
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
    ts_text_add(to, "\n%-7s ", "dead");
    ts_run_summary_add_dead(m, to);
  }
  ts_text_add(to, "\n%-7s %s\n", "saved", m->newest != NULL ? m->newest : "nothing yet");
  ts_free(state);
}

static void add_node_line(const ts_run_summary *m, const ts_node_status *node, ts_text *to) {
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
  bool silent = node->age > ts_lag_silence(m->status.job.period);
  const char *quiet = m->suspended != NULL ? "suspended" : "no heartbeat";
  ts_text_add(to, "%-20s %-11s %-13s %-14s %s\n", node->node, ranks, steps, age,
              m->status.job.ended > 0 ? m->status.job.state
              : silent                ? quiet
                                      : ts_phase_name(node->beat[0].phase));
}

static void print_summary(const ts_run_summary *m, ts_text *to) {
  const ts_run_status *s = &m->status;
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

static void print_summary_json(const ts_run_summary *m, ts_text *to) {
  const ts_job_status *j = &m->status.job;
  bool silent = m->status.n_nodes > 0 && m->oldest > ts_lag_silence(j->period);
  bool killed = j->ended == 0 && (m->status.failed != NULL || silent);
  const char *how = m->status.failed != NULL ? "failed" : m->suspended != NULL ? "suspended" : "silent";
  ts_text_add(to, "{");
  add_json_string(to, "state", killed ? how : j->state);
  ts_text_add(to, ", ");
  add_json_string(to, "reason",
                  j->reason[0] != 0          ? j->reason
                  : m->status.failed != NULL ? m->status.failed
                                             : m->suspended);
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
  for (int i = 0; i < m->status.n_nodes; ++i) {
    const ts_node_status *node = &m->status.node[i];
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
  ts_run_summary m;
  ts_status status = ts_run_summary_read(arguments->positional[0], &m, err);
  if (status == TS_OK) {
    ts_text text = {0};
    if (!json) {
      ts_text_add(&text, "%-7s %s\n", "run", arguments->positional[0]);
    }
    (json ? print_summary_json : print_summary)(&m, &text);
    fputs(text.text, stdout);
    ts_text_free(&text);
  }
  ts_run_summary_clear(&m);
  return status;
}
