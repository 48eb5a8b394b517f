#include "main/plan_against.h"

#include "base/memory.h"
#include "base/text.h"
#include "deck/deck_read.h"
#include "graph/op.h"
#include "io/csv.h"
#include "io/jobs.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 3 };

static void print_beside(const char *label, double planned, double measured, ts_text *to) {
  ts_text_add(to, "  %-34s %10.2f %10.2f", label, 1e3 * planned, 1e3 * measured);
  ts_text_add(to, measured > 0 ? " %+7.1f%%\n" : "\n", 100 * (planned / measured - 1));
}

/* What the run's last job had otherwise: then it is no measure of this plan. */
static ts_status print_differences(const ts_program_options *options, const char *run, ts_text *to, ts_error *err) {
  const ts_deck *deck = options->deck;
  ts_job *jobs;
  int n;
  ts_status status = ts_jobs_read(run, &jobs, &n, err);
  if (status != TS_OK || n == 0) {
    return status;
  }
  const ts_job *job = &jobs[n - 1];
  const bool known = job->ranks > 0; /* a whole line */
  const struct {
    const char *name;
    int64_t planned, had;
  } row[] = {{"ranks", options->mesh->ranks, job->ranks},
             {"threads a rank", options->target.threads, job->threads},
             {"ZeRO stage", deck->zero_optimization.stage, job->stage},
             {"tokens a step", deck->train_batch_size * deck->data.sequence_length, job->tokens_per_step}};
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    if (known && row[i].had != row[i].planned) {
      ts_text_add(to, "  of another step: %s here %lld, of the run %lld\n", row[i].name, (long long) row[i].planned,
                  (long long) row[i].had);
    }
  }
  ts_jobs_free(&jobs, n);
  return TS_OK;
}

static ts_status print_steps(const ts_clock *clock, bool sheet, const char *run, ts_text *to, ts_error *err) {
  const ts_clock_stage *s = &clock->stage[0];
  char *path = ts_format("%s/metrics.csv", run);
  ts_csv csv;
  ts_status status = ts_csv_read(path, &csv, err);
  if (status == TS_OK && csv.n_rows < 1) {
    status = ts_error_add(err, "%s has no steps", path);
  }
  if (status == TS_OK) {
    ts_text_add(to, "\nagainst %s: the fastest quarter of %lld steps%s\n  %-34s %10s %10s %8s\n", run,
                (long long) (csv.n_rows > WARM ? csv.n_rows - WARM : 1), sheet ? "; of a datasheet the fast end" : "",
                "", "plan ms", "run ms", "plan is");
    print_beside("step", clock->step, ts_csv_low(&csv, "step_seconds", WARM), to);
    double messages = ts_csv_low(&csv, "comm_seconds", WARM), exposed = ts_csv_low(&csv, "exposed_comm_seconds", WARM);
    if (!isnan(messages) && (messages > 0 || s->messages > 0)) {
      print_beside("messages", s->messages, messages, to);
      print_beside("  exposed", s->exposed, exposed, to);
    }
  }
  ts_csv_free(&csv);
  ts_free(path);
  return status;
}

/* ---- a timeline ---- */

typedef struct op_row {
  ts_op op;
  double planned, measured;
} op_row;

/* The op of a name; TS_N_OPS: none. */
static int op_called(const char *name, size_t length) {
  int op = 0;
  while (op < TS_N_OPS &&
         (strlen(ts_op_get((ts_op) op)->name) != length || strncmp(ts_op_get((ts_op) op)->name, name, length) != 0)) {
    ++op;
  }
  return op;
}

/* The events of rank 0, a line each (io/timeline.h). */
static ts_status read_timeline(const char *path, op_row *row, ts_error *err) {
  char line[4096]; /* what is wanted of a longer one stands in front */
  FILE *file = ts_open_plain(path, SIZE_MAX, err);
  if (file == NULL) {
    return TS_BAD_INPUT;
  }
  while (ts_next_line(file, line, sizeof line) >= 0) {
    const char *category = strstr(line, "\"cat\": \""), *duration = strstr(line, "\"dur\": ");
    if (category != NULL && duration != NULL) {
      category += strlen("\"cat\": \"");
      int op = op_called(category, strcspn(category, "\""));
      double microseconds = strtod(duration + strlen("\"dur\": "), NULL);
      if (op < TS_N_OPS && microseconds >= 0 && microseconds < 1e15) {
        row[op].measured += 1e-6 * microseconds;
      }
    }
  }
  fclose(file);
  return TS_OK;
}

static int by_difference(const void *a, const void *b) {
  const op_row *x = a, *y = b;
  double p = fabs(x->planned - x->measured), q = fabs(y->planned - y->measured);
  return (p < q) - (p > q);
}

static void print_measured_ops(const ts_clock *clock, const op_row *measured, ts_text *to) {
  op_row row[TS_N_OPS];
  double most = 0;
  for (int op = 0; op < TS_N_OPS; ++op) {
    row[op] = (op_row){(ts_op) op, clock->stage[0].row[op].busy, measured[op].measured};
    most = fmax(most, fabs(row[op].planned - row[op].measured));
  }
  qsort(row, TS_N_OPS, sizeof *row, by_difference);
  ts_text_add(to, "  by op, of rank 0 in the step that was observed, which is slower\n");
  for (int i = 0; i < TS_N_OPS && fabs(row[i].planned - row[i].measured) > 0.01 * most; ++i) {
    char label[64];
    snprintf(label, sizeof label, "  %s", ts_op_get(row[i].op)->name);
    print_beside(label, row[i].planned, row[i].measured, to);
  }
}

static ts_status print_timeline(const ts_clock *clock, const char *run, ts_text *to, ts_error *err) {
  op_row *row = ts_calloc(TS_N_OPS, sizeof *row);
  char *path = ts_format("%s/deck.cfg", run);
  ts_deck *deck = NULL;
  ts_status status = ts_deck_read(path, NULL, 0, &deck, err);
  if (status == TS_OK && deck->profile.timeline[0] == 0) {
    ts_text_add(to, "  (op by op where the run has a timeline: profile.timeline)\n");
  } else if (status == TS_OK) {
    status = read_timeline(deck->profile.timeline, row, err);
    if (status == TS_OK) {
      print_measured_ops(clock, row, to);
    }
  }
  ts_deck_destroy(&deck);
  ts_free(path);
  ts_free(row);
  return status;
}

ts_status ts_plan_print_against(const ts_program_options *options, const ts_timing *timing, const char *run,
                                ts_text *to, ts_error *err) {
  ts_stage_programs s = ts_stage_programs_create(options);
  ts_clock clock = ts_timing_walk(&s, timing, TS_END_FAST, NULL, NULL);
  ts_status status = print_steps(&clock, timing->sheet != NULL, run, to, err);
  status = status == TS_OK ? print_differences(options, run, to, err) : status;
  status = status == TS_OK ? print_timeline(&clock, run, to, err) : status;
  ts_clock_clear(&clock);
  ts_stage_programs_clear(&s);
  return status;
}
