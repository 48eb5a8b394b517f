/* tessera tune: its tables. */
#include "main/tune.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* Is it worth a column: does the space have more than one value? */
static bool is_open(const ts_tune_space *s, ts_tuned what) {
  return s->n[what] > 1;
}

static const char *text_of_value(const ts_tune_space *s, const ts_candidate *c, ts_tuned what) {
  bool idle = what == TS_TUNED_SCHEDULE && ts_candidate_number(s, c, TS_TUNED_PP) == 1;
  return idle ? "-" : s->value[what][c->at[what]].text;
}

/* ---- the table ---- */

static void print_columns(const ts_tune_job *job, ts_text *to) {
  bool range = job->timing->ends > 1;
  ts_text_add(to, "\n%4s %*s %7s %10s %8s %7s ", "", range ? 21 : 10, "step ms", "of best", "memory", "exposed",
              "bubble");
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    if (is_open(job->space, what)) {
      ts_text_add(to, what == TS_TUNED_SCHEDULE || what == TS_TUNED_RECOMPUTE ? " %14s" : " %9s", ts_tuned_name(what));
    }
  }
  ts_text_add(to, " %9s\n", "steps");
}

static void print_candidate(const ts_tune_job *job, const ts_tried *t, int number, double best, ts_text *to) {
  char step[64], bytes[32];
  int n = snprintf(step, sizeof step, "%.1f", 1e3 * t->step[0]);
  if (job->timing->ends > 1) {
    snprintf(step + n, sizeof step - (size_t) n, " to %.1f", 1e3 * t->step[1]);
  }
  ts_text_add(to, "%4d %*s %7.3f %10s %7.1f%% %6.1f%% ", number, job->timing->ends > 1 ? 21 : 10, step,
              ts_tried_seconds(t, job->timing) / best, ts_human_bytes((double) t->bytes, bytes),
              100 * (t->exposed + t->waited) / t->step[0], 100 * t->bubble);
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    if (is_open(job->space, what)) {
      ts_text_add(to, what == TS_TUNED_SCHEDULE || what == TS_TUNED_RECOMPUTE ? " %14s" : " %9s",
                  text_of_value(job->space, &t->candidate, what));
    }
  }
  ts_text_add(to, " %9lld\n", (long long) ts_candidate_accumulation(job->space, &t->candidate));
}

/* ---- why not ---- */

/* What takes most longer than in the best. */
static void add_cause(const ts_tried *t, const ts_tried *best, ts_text *to) {
  const struct {
    const char *text;
    double more;
  } cause[] = {{"computed", t->computing - best->computing},
               {"of messages exposed", t->exposed - best->exposed},
               {"waiting for other stages", t->neighbours - best->neighbours},
               {"waiting for copies", t->waited - best->waited}};
  size_t most = 0;
  for (size_t i = 1; i < sizeof cause / sizeof *cause; ++i) {
    most = cause[i].more > cause[most].more ? i : most;
  }
  if (cause[most].more > 0) {
    ts_text_add(to, ", %.1f ms more %s", 1e3 * cause[most].more, cause[most].text);
  }
}

/* Of those with a value the one that comes nearest: the fastest, else the one that is the least too large, else one
 * that is refused. */
static const ts_tried *find_nearest(const ts_tune_space *space, const ts_search *search, ts_tuned what, int value) {
  const ts_tried *near = NULL;
  for (int i = 0; i < search->n; ++i) {
    const ts_tried *t = &search->tried[i];
    bool idle = what == TS_TUNED_SCHEDULE && ts_candidate_number(space, &t->candidate, TS_TUNED_PP) == 1;
    if (t->candidate.at[what] == value && !idle &&
        (near == NULL || (near->how == TS_TRIED_LARGE && t->how == TS_TRIED_LARGE && t->bytes < near->bytes) ||
         (near->how == TS_TRIED_REFUSED && t->how == TS_TRIED_LARGE))) {
      near = t;
    }
  }
  return near;
}

/* Which other settings it has, of those of a kind. */
static void add_other_settings(const ts_tune_job *job, const ts_tried *t, const ts_tried *best, ts_tuned what,
                               ts_text *to) {
  const char *comma = " (with ";
  for (ts_tuned other = 0; other < TS_N_TUNED; ++other) {
    if (other != what && is_open(job->space, other) &&
        strcmp(text_of_value(job->space, &t->candidate, other), text_of_value(job->space, &best->candidate, other)) !=
            0) {
      ts_text_add(to, "%s%s %s", comma, ts_tuned_name(other), text_of_value(job->space, &t->candidate, other));
      comma = ", ";
    }
  }
  ts_text_add(to, comma[0] == ',' ? ")" : "");
}

static void print_reason(const ts_tune_job *job, const ts_search *search, ts_tuned what, int value, ts_text *to) {
  const ts_tried *best = &search->tried[0], *t = find_nearest(job->space, search, what, value);
  char bytes[32], has[32];
  ts_text_add(to, "  %s %s: ", ts_tuned_name(what), job->space->value[what][value].text);
  if (t == NULL) {
    ts_text_add(to, "not tried");
  } else if (t->how == TS_TRIED_FITS) {
    ts_text_add(to, "%.3f times as long", ts_tried_seconds(t, job->timing) / ts_tried_seconds(best, job->timing));
    add_cause(t, best, to);
    add_other_settings(job, t, best, what, to);
  } else if (t->how == TS_TRIED_LARGE) {
    ts_text_add(to, "%s missing of %s", ts_human_bytes((double) (t->bytes - job->memory), bytes),
                ts_human_bytes((double) job->memory, has));
    add_other_settings(job, t, best, what, to);
  } else {
    ts_text_add(to, "%s%s", t->how == TS_TRIED_REFUSED ? "refused: " : "", t->why);
  }
  ts_text_add(to, "\n");
}

static void print_reasons(const ts_tune_job *job, const ts_search *search, ts_text *to) {
  const ts_candidate *best = &search->tried[0].candidate;
  const bool any = search->n > 0 && search->tried[0].how == TS_TRIED_FITS;
  ts_text_add(to, "\nothers, by setting: what comes nearest with each value\n");
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    for (int value = 0; value < job->space->n[what]; ++value) {
      bool piece = what == TS_TUNED_SCHEDULE && ts_candidate_number(job->space, best, TS_TUNED_PP) == 1;
      bool has = any && !piece && value == best->at[what];
      if (!has && is_open(job->space, what)) {
        print_reason(job, search, what, value, to);
      }
    }
  }
}

static void print_counts(const ts_tune_job *job, const ts_search *search, ts_text *to) {
  char bytes[32];
  const ts_tune_space *s = job->space;
  ts_text_add(to, "%lld samples a step on %d rank%s, %d a node", (long long) s->batch, s->ranks,
              s->ranks > 1 ? "s" : "", job->timing->node);
  ts_text_add(to, job->memory > 0 ? ", of %s each\n" : ", no limit of memory given (--memory)\n",
              ts_human_bytes((double) job->memory, bytes));
  if (job->timing->sheet != NULL) {
    ts_text_add(to, "%s: NOT MEASURED, ranges by parts of the datasheet's peaks\n", job->timing->sheet->device);
  }
  ts_text_add(to,
              "%lld candidates in %.1f s: %lld walked, %lld too large, %lld on a grid that is refused, %lld slower by "
              "their estimates\n",
              (long long) search->candidates, search->seconds, (long long) search->walked, (long long) search->large,
              (long long) search->refused, (long long) search->slower);
  if (!search->in_time) {
    ts_text_add(to, "and %lld that may be better were not looked at, as the time was over (--seconds)\n",
                (long long) search->open);
  }
}

void ts_tune_print(const ts_tune_job *job, const ts_search *search, int most, ts_text *to) {
  double best = search->n > 0 ? ts_tried_seconds(&search->tried[0], job->timing) : INFINITY;
  print_counts(job, search, to);
  if (best < INFINITY) {
    print_columns(job, to);
    int printed = 0;
    for (int i = 0; i < search->n && printed < most && search->tried[i].how == TS_TRIED_FITS; ++i) {
      if (!ts_search_is_variant(search, i)) {
        print_candidate(job, &search->tried[i], ++printed, best, to);
      }
    }
  }
  print_reasons(job, search, to);
}

/* ---- json ---- */

static void print_tried_json(const ts_tune_job *job, const ts_tried *t, ts_text *to) {
  static const char *const how[] = {"fits", "too large", "refused", "failed"};
  ts_text_add(to, "{\"result\": \"%s\"", how[t->how]);
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    ts_text_add(to, ", \"%s\": ", ts_tuned_name(what));
    ts_text_add_json(to, text_of_value(job->space, &t->candidate, what));
  }
  ts_text_add(to, ", \"accumulation\": %lld", (long long) ts_candidate_accumulation(job->space, &t->candidate));
  if (t->how == TS_TRIED_FITS) {
    ts_text_add(to, ", \"step_seconds\": %.6g", t->step[0]);
    if (job->timing->ends > 1) {
      ts_text_add(to, ", \"slow_step_seconds\": %.6g", t->step[1]);
    }
    ts_text_add(to, ", \"exposed_seconds\": %.6g, \"bubble\": %.6f", t->exposed, t->bubble);
  }
  if (t->bytes > 0) {
    ts_text_add(to, ", \"peak_bytes\": %lld", (long long) t->bytes);
  }
  if (t->why[0] != 0) {
    ts_text_add(to, ", \"why\": ");
    ts_text_add_json(to, t->why);
  }
  ts_text_add(to, "}");
}

void ts_tune_print_json(const ts_tune_job *job, const ts_search *search, ts_text *to) {
  ts_text_add(to,
              "{\"batch\": %lld, \"ranks\": %d, \"ranks_per_node\": %d, \"memory_bytes\": %lld, \"measured\": %s, "
              "\"candidates\": %lld, \"walked\": %lld, \"too_large\": %lld, \"refused\": %lld, \"slower\": %lld, "
              "\"open\": %lld, \"seconds\": %.3f, \"tried\": [",
              (long long) job->space->batch, job->space->ranks, job->timing->node, (long long) job->memory,
              job->timing->sheet == NULL ? "true" : "false", (long long) search->candidates, (long long) search->walked,
              (long long) search->large, (long long) search->refused, (long long) search->slower,
              (long long) search->open, search->seconds);
  for (int i = 0; i < search->n; ++i) {
    ts_text_add(to, i > 0 ? ",\n" : "\n");
    print_tried_json(job, &search->tried[i], to);
  }
  ts_text_add(to, "]}\n");
}
