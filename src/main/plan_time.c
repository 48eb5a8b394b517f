#include "main/plan_time.h"

#include "base/log.h"
#include "base/memory.h"
#include "graph/op.h"
#include "io/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

/* FLOPs of a step by the three conventions, of all ranks. */
typedef struct conventions {
  double parameters, half, full; /* 6N; 6N + 6LCT; 6N + 12LCT */
} conventions;

/* N of 6N is all parameters that a token meets, as `tessera report` counts it; of the others those in products. */
static conventions flops_of(const ts_program *program) {
  const ts_deck *deck = program->deck;
  double half = ts_program_step_flops(program), tokens = (double) (deck->train_batch_size * deck->data.sequence_length);
  return (conventions){6 * (double) ts_program_active_parameters(program) * tokens, half,
                       half / program->flops * program->flops_full_attention};
}

static double known_part(const ts_clock_stage *s, ts_known known) {
  double all = 0;
  for (ts_known k = 0; k < TS_N_KNOWN; ++k) {
    all += s->known[k];
  }
  return all > 0 ? 100 * s->known[known] / all : 0;
}

static int by_busy(const void *a, const void *b) {
  const ts_clock_row *x = a, *y = b;
  double p = fmax(x->busy, x->exposed), q = fmax(y->busy, y->exposed);
  return (p < q) - (p > q);
}

/* By time; what takes less than a thousandth of the step is left out. */
static void print_planned_ops(const ts_clock_stage *s, double step, ts_text *to) {
  ts_clock_row row[TS_N_OPS];
  memcpy(row, s->row, sizeof row);
  qsort(row, TS_N_OPS, sizeof *row, by_busy);
  ts_text_add(to, "  %-34s %8s %10s %7s %10s\n", "by op", "calls", "ms", "step", "exposed");
  for (int i = 0; i < TS_N_OPS && fmax(row[i].busy, row[i].exposed) > 0.001 * step; ++i) {
    ts_text_add(to, "    %-32s %8d %10.2f %6.1f%%", ts_op_get(row[i].op)->name, row[i].calls, 1e3 * row[i].busy,
                100 * row[i].busy / step);
    ts_text_add(to, row[i].exposed > 0 ? " %10.2f\n" : "\n", 1e3 * row[i].exposed);
  }
}

static void print_known(const ts_clock_stage *s, ts_text *to) {
  ts_text_add(to, "  (of the time of nodes and messages");
  const char *comma = " ";
  for (ts_known k = 0; k < TS_N_KNOWN; ++k) {
    if (s->known[k] > 0) {
      ts_text_add(to, "%s%.1f %% %s", comma, known_part(s, k), ts_known_text(k));
      comma = ", ";
    }
  }
  ts_text_add(to, ")\n");
}

/* By whose times. */
static void print_source(const ts_timing *timing, ts_text *to) {
  const ts_machine *machine = &timing->machine[0];
  const ts_measured *m = timing->by[0];
  if (timing->sheet != NULL) {
    ts_text_add(to,
                "\ntime of a step on %s, %d a node: NOT MEASURED, a range by parts of the datasheet's peaks; tessera "
                "bench on such a machine narrows it\n",
                machine->device, timing->node);
    return;
  }
  ts_text_add(to, "\ntime of a step, by what was measured on %s: %s, %d rank%s a node x %d thread%s\n", machine->date,
              machine->device, m->ranks, m->ranks > 1 ? "s" : "", m->threads, m->threads > 1 ? "s" : "");
  if (m->ranks != timing->node) {
    ts_text_add(to, "  (%d ranks a node were not measured: messages leave nodes of %d, their times are those of %d)\n",
                timing->node, timing->node, m->ranks);
  }
}

/* A number, or the range from the fast end to the slow one. */
static void add_range(const ts_timing *timing, const double *x, const char *format, ts_text *to) {
  char text[64];
  for (int end = 0; end < timing->ends; ++end) {
    snprintf(text, sizeof text, format, x[end]);
    ts_text_add(to, end > 0 ? " to %s" : "%10s", text);
  }
}

typedef struct planned {
  double step, tokens, rate, parameters, half, full, computed, messages, exposed, host, copies, waited, neighbours,
      bubble;
} planned;

/* Where the part of a planned step is. */
static planned plan_of(const ts_program *program, const ts_timing *timing, ts_end end, const ts_clock *clock) {
  const ts_deck *deck = program->deck;
  const ts_clock_stage *s = ts_clock_busiest(clock);
  const conventions f = flops_of(program);
  const double ranks = program->mesh.ranks, step = clock->step;
  bool low = ts_deck_products(deck) != TS_F32;
  /* of a datasheet's peak itself */
  const double *products = timing->sheet != NULL ? timing->sheet->product : timing->by[end]->product;
  const double part = 100 / step / ranks / products[low ? TS_RATED_LOW : TS_RATED_FP32];
  return (planned){.step = 1e3 * step,
                   .tokens = (double) (deck->train_batch_size * deck->data.sequence_length) / step,
                   .rate = 1e-12 * f.half / step / ranks,
                   .parameters = f.parameters * part,
                   .half = f.half * part,
                   .full = f.full * part,
                   .computed = 1e3 * s->computing,
                   .messages = 1e3 * s->messages,
                   .exposed = 1e3 * s->exposed,
                   .host = 1e3 * s->host,
                   .copies = 1e3 * s->copies,
                   .waited = 1e3 * s->waited,
                   .neighbours = 1e3 * s->neighbours,
                   .bubble = 100 * clock->bubble};
}

/* A row of the table; `at` is of the first end. */
static void add_planned(const ts_timing *timing, const planned *p, const double *at, const char *label,
                        const char *format, const char *unit, ts_text *to) {
  size_t offset = (size_t) ((const char *) at - (const char *) p);
  double x[TS_N_ENDS] = {0};
  for (int end = 0; end < timing->ends; ++end) {
    memcpy(&x[end], (const char *) &p[end] + offset, sizeof x[end]);
  }
  ts_text_add(to, "  %-34s ", label);
  add_range(timing, x, format, to);
  ts_text_add(to, "%s\n", unit);
}

static void print_text(const ts_program *program, const ts_timing *timing, const ts_clock *clock, ts_text *to) {
  planned p[TS_N_ENDS];
  const ts_clock_stage *s = ts_clock_busiest(&clock[0]);
  for (ts_end end = 0; (int) end < timing->ends; ++end) {
    p[end] = plan_of(program, timing, end, &clock[end]);
  }
  print_source(timing, to);
  add_planned(timing, p, &p->step, "step", "%.2f", " ms", to);
  ts_text_add(to, "  %-34s %10.2f ms, backward %.2f, update %.2f%s\n", "  forward", 1e3 * s->phase[TS_RUN_FORWARD],
              1e3 * s->phase[TS_RUN_BACKWARD], 1e3 * s->phase[TS_RUN_UPDATE],
              timing->ends > 1 ? " (of the fast end)" : "");
  add_planned(timing, p, &p->tokens, "tokens/s", "%.0f", "", to);
  double each[TS_N_ENDS] = {p[0].tokens / program->mesh.ranks, p[timing->ends - 1].tokens / program->mesh.ranks};
  ts_text_add(to, "  %-34s ", "tokens/s a rank");
  add_range(timing, each, "%.0f", to);
  ts_text_add(to, "\n");
  add_planned(timing, p, &p->rate, "TFLOP/s a rank (6N + 6LCT)", "%.4g", "", to);
  const char *of = timing->sheet != NULL ? " % of the datasheet's peak" : " % of its best product";
  add_planned(timing, p, &p->parameters, "MFU (6N)", "%.1f", of, to);
  add_planned(timing, p, &p->half, "MFU (causal half, 6N + 6LCT)", "%.1f", of, to);
  add_planned(timing, p, &p->full, "MFU (full, 6N + 12LCT)", "%.1f", of, to);
  if (clock->n > 1) {
    ts_text_add(to, "  stage %d, which computes longest:\n", (int) (s - clock->stage));
  }
  add_planned(timing, p, &p->computed, "computed", "%.2f", " ms", to);
  if (s->messages > 0) {
    add_planned(timing, p, &p->messages, "messages", "%.2f", " ms", to);
    add_planned(timing, p, &p->exposed, "  exposed", "%.2f", " ms", to);
  }
  if (s->host > 0) {
    add_planned(timing, p, &p->host, "computed by the host", "%.2f", " ms", to);
  }
  if (s->copies > 0) {
    bool known = timing->by[0]->in > 0 || timing->by[0]->read > 0;
    add_planned(timing, p, &p->copies, "copies and files", "%.2f", known ? " ms" : " ms (by the rates of `machine`)",
                to);
    add_planned(timing, p, &p->waited, "  waited for", "%.2f", " ms", to);
  }
  if (clock->n > 1) {
    add_planned(timing, p, &p->neighbours, "waiting for other stages", "%.2f", " ms", to);
    add_planned(timing, p, &p->bubble, "bubble", "%.1f", " % of the time", to);
  }
  print_planned_ops(s, clock->step, to);
  if (timing->sheet == NULL) {
    print_known(s, to);
  }
}

/* In the order of ts_known. */
static const char *const known_keys[TS_N_KNOWN] = {"measured", "between", "beyond", "alike", "floor"};

static void print_json(const ts_program *program, const ts_timing *timing, const ts_clock *clock, ts_text *to) {
  const ts_clock_stage *s = ts_clock_busiest(&clock[0]);
  const conventions f = flops_of(program);
  const double tokens = (double) (program->deck->train_batch_size * program->deck->data.sequence_length) / clock->step;
  ts_text_add(to,
              ", \"time\": {\"measured\": %s, \"ranks_per_node\": %d, \"measured_ranks_per_node\": %d, "
              "\"threads\": %d, \"step_seconds\": %.6g",
              timing->sheet == NULL ? "true" : "false", timing->node, timing->by[0]->ranks, timing->by[0]->threads,
              clock->step);
  if (timing->ends > 1) {
    ts_text_add(to, ", \"slow_step_seconds\": %.6g", clock[TS_END_SLOW].step);
  }
  ts_text_add(
      to,
      ", \"forward_seconds\": %.6g, \"backward_seconds\": %.6g, \"update_seconds\": %.6g, \"tokens_per_second\": "
      "%.6g, \"flops_per_second_of_a_rank\": %.6g, \"computed_seconds\": %.6g, \"message_seconds\": %.6g, "
      "\"exposed_seconds\": %.6g, \"neighbour_seconds\": %.6g, \"host_seconds\": %.6g, \"copy_seconds\": %.6g, "
      "\"copies_waited_seconds\": %.6g, \"bubble\": %.6f",
      s->phase[TS_RUN_FORWARD], s->phase[TS_RUN_BACKWARD], s->phase[TS_RUN_UPDATE], tokens,
      f.half / clock->step / program->mesh.ranks, s->computing, s->messages, s->exposed, s->neighbours, s->host,
      s->copies, s->waited, clock->bubble);
  ts_text_add(to, ", \"known_percent\": {");
  for (ts_known k = 0; k < TS_N_KNOWN; ++k) {
    ts_text_add(to, "%s\"%s\": %.2f", k > 0 ? ", " : "", known_keys[k], known_part(s, k));
  }
  ts_text_add(to, "}}");
}

void ts_plan_print_time(const ts_program_options *options, const ts_timing *timing, bool json, ts_text *to) {
  ts_stage_programs s = ts_stage_programs_create(options);
  ts_clock clock[TS_N_ENDS];
  for (ts_end end = 0; (int) end < timing->ends; ++end) {
    clock[end] = ts_timing_walk(&s, timing, end, NULL, NULL);
  }
  (json ? print_json : print_text)(s.program[0], timing, clock, to);
  for (int end = 0; end < timing->ends; ++end) {
    ts_clock_clear(&clock[end]);
  }
  ts_stage_programs_clear(&s);
}

/* ---- a timeline ---- */

static void add_planned_event(void *user, int stage, const ts_node *node, bool collective, double start,
                              double seconds) {
  ts_timeline **lines = user;
  ts_timeline_event(lines[stage], node->name, ts_op_get(node->op)->name,
                    collective || ts_node_is_copy(node) ? TS_TIMELINE_COMMUNICATION : TS_TIMELINE_COMPUTATION, start,
                    seconds);
}

ts_status ts_plan_write_timeline(const ts_program_options *options, const ts_timing *timing, const char *path,
                                 ts_error *err) {
  ts_stage_programs s = ts_stage_programs_create(options);
  ts_timeline **lines = ts_calloc((size_t) s.n, sizeof *lines);
  ts_status status = TS_OK;
  for (int i = 0; i < s.n && status == TS_OK; ++i) {
    int rank = s.program[i]->mesh.rank;
    char *file = i == 0 ? ts_strdup(path) : ts_format("%s.rank%d", path, rank);
    status = ts_timeline_open(file, rank, s.n > 1 ? i : -1, NULL, &lines[i], err);
    ts_free(file);
  }
  if (status == TS_OK) {
    ts_clock clock = ts_timing_walk(&s, timing, TS_END_FAST, add_planned_event, lines);
    ts_clock_clear(&clock);
  }
  for (int i = 0; i < s.n; ++i) {
    ts_timeline_close(&lines[i]);
  }
  ts_free(lines);
  ts_stage_programs_clear(&s);
  return status;
}
