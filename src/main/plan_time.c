#include "main/plan_time.h"

#include "base/log.h"
#include "base/memory.h"
#include "graph/op.h"
#include "run/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const ts_measured *ts_plan_find_measured(const ts_machine *machine, int ranks, int node, int threads) {
  const ts_measured *most = &machine->measured[0];
  for (int i = 1; i < machine->n && node == 0; ++i) { /* ascending by ranks; of the same the one of most threads */
    most = machine->measured[i].ranks <= ranks ? &machine->measured[i] : most;
  }
  node = node == 0 ? most->ranks : node;
  return ts_machine_find(machine, node < ranks ? node : ranks, threads == 0 ? most->threads : threads);
}

/* A rank's program of each stage. */
typedef struct stages {
  ts_program **program; /* owned */
  int n;
} stages;

static stages make_stages(const ts_program_options *options) {
  stages s = {.n = options->mesh->size[TS_AXIS_PP]};
  s.program = ts_calloc((size_t) s.n, sizeof *s.program);
  for (int i = 0; i < s.n; ++i) {
    ts_program_options of = *options;
    ts_mesh mesh = ts_mesh_at(options->mesh, ts_mesh_group_member(options->mesh, TS_AXES(TS_AXIS_PP), i));
    of.mesh = &mesh;
    s.program[i] = ts_program_create(&of);
  }
  return s;
}

static void end_stages(stages *s) {
  for (int i = 0; i < s->n; ++i) {
    ts_program_destroy(&s->program[i]);
  }
  ts_free(s->program);
}

/* The stage that computes longest. */
static const ts_clock_stage *busiest(const ts_clock *clock) {
  const ts_clock_stage *most = &clock->stage[0];
  for (int i = 1; i < clock->n; ++i) {
    most = clock->stage[i].computing > most->computing ? &clock->stage[i] : most;
  }
  return most;
}

/* FLOPs of a step by the three conventions, of all ranks. */
typedef struct conventions {
  double products, half, full; /* 6N; 6N + 6LCT; 6N + 12LCT */
} conventions;

static conventions flops_of(const ts_program *program) {
  double half = ts_program_step_flops(program), each = half / program->flops;
  return (conventions){each * program->flops_products, half, each * program->flops_full_attention};
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
static void print_ops(const ts_clock_stage *s, double step, ts_text *to) {
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

static void print_text(const ts_program *program, const ts_machine *machine, const ts_measured *m,
                       const ts_clock *clock, ts_text *to) {
  const ts_deck *deck = program->deck;
  const ts_clock_stage *s = busiest(clock);
  const conventions f = flops_of(program);
  const double ranks = program->mesh.ranks, step = clock->step,
               tokens = (double) (deck->train_batch_size * deck->data.sequence_length) / step;
  bool low = ts_deck_products(deck) != TS_F32;
  const double peak = m->product[low ? TS_RATED_LOW : TS_RATED_FP32], rate = f.half / step / ranks;
  ts_text_add(to, "\ntime of a step, by what was measured on %s: %s, %d rank%s a node x %d thread%s\n", machine->date,
              machine->device, m->ranks, m->ranks > 1 ? "s" : "", m->threads, m->threads > 1 ? "s" : "");
  ts_text_add(to, "  %-34s %10.2f ms: forward %.2f, backward %.2f, update %.2f\n", "step", 1e3 * step,
              1e3 * s->phase[TS_RUN_FORWARD], 1e3 * s->phase[TS_RUN_BACKWARD], 1e3 * s->phase[TS_RUN_UPDATE]);
  ts_text_add(to, "  %-34s %10.0f: %.0f a rank\n", "tokens/s", tokens, tokens / ranks);
  ts_text_add(to,
              "  %-34s %10.4g: MFU %.1f %% (6N), %.1f %% (causal half, 6N + 6LCT), %.1f %% (full, 6N + 12LCT) of the "
              "%.4g of its best product\n",
              "TFLOP/s a rank (6N + 6LCT)", 1e-12 * rate, 100 * f.products / step / ranks / peak, 100 * rate / peak,
              100 * f.full / step / ranks / peak, 1e-12 * peak);
  ts_text_add(to, "  %-34s %10.2f ms\n", "computed", 1e3 * s->computing);
  if (s->messages > 0) {
    ts_text_add(to, "  %-34s %10.2f ms, exposed %.2f ms = %.1f %% of the step\n", "messages", 1e3 * s->messages,
                1e3 * s->exposed, 100 * s->exposed / step);
  }
  if (s->copies > 0) {
    ts_text_add(to, "  %-34s %10.2f ms, waited for %.2f ms (by the rates of `machine`)\n", "copies and files",
                1e3 * s->copies, 1e3 * s->waited);
  }
  if (clock->n > 1) {
    ts_text_add(to, "  %-34s %10.1f %% of the time\n", "bubble", 100 * clock->bubble);
  }
  print_ops(s, step, to);
  print_known(s, to);
}

static void print_json(const ts_program *program, const ts_measured *m, const ts_clock *clock, ts_text *to) {
  const ts_clock_stage *s = busiest(clock);
  const conventions f = flops_of(program);
  const double tokens = (double) (program->deck->train_batch_size * program->deck->data.sequence_length) / clock->step;
  ts_text_add(
      to,
      ", \"time\": {\"ranks_per_node\": %d, \"threads\": %d, \"step_seconds\": %.6g, \"forward_seconds\": %.6g, "
      "\"backward_seconds\": %.6g, \"update_seconds\": %.6g, \"tokens_per_second\": %.6g, "
      "\"flops_per_second_of_a_rank\": %.6g, \"computed_seconds\": %.6g, \"message_seconds\": %.6g, "
      "\"exposed_seconds\": %.6g, \"copy_seconds\": %.6g, \"copies_waited_seconds\": %.6g, \"bubble\": %.6f",
      m->ranks, m->threads, clock->step, s->phase[TS_RUN_FORWARD], s->phase[TS_RUN_BACKWARD], s->phase[TS_RUN_UPDATE],
      tokens, f.half / clock->step / program->mesh.ranks, s->computing, s->messages, s->exposed, s->copies, s->waited,
      clock->bubble);
  ts_text_add(to, ", \"known_percent\": {");
  for (ts_known k = 0; k < TS_N_KNOWN; ++k) {
    ts_text_add(to, "%s\"%s\": %.2f", k > 0 ? ", " : "", ts_known_text(k), known_part(s, k));
  }
  ts_text_add(to, "}}");
}

void ts_plan_print_time(const ts_program_options *options, const ts_machine *machine, const ts_measured *measured,
                        bool json, ts_text *to) {
  stages s = make_stages(options);
  ts_clock clock;
  TS_CHECK(ts_clock_step((const ts_program *const *) s.program, s.n, measured, NULL, NULL, &clock),
           "the programs of a step do not come to its end");
  if (json) {
    print_json(s.program[0], measured, &clock, to);
  } else {
    print_text(s.program[0], machine, measured, &clock, to);
  }
  ts_clock_clear(&clock);
  end_stages(&s);
}
