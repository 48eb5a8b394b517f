/* Observed steps on two ranks: which ones they are, what is made of made-up times of messages, what is counted. */
#include "regression/subject.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include "base/log.h"
#include "graph/op.h"
#include "run/turns.h"
#include "train/comms_log.h"
#include "train/flops_report.h"
#include "train/observed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OK(...) tap_ok_all(MPI_COMM_WORLD, __VA_ARGS__)

/* ---- formulas ---- */

/* By Python: statistics.mean of sorted (v)[k:n - k], k = int (round (0.1 n)). */
static void test_trimmed_mean(void) {
  double few[] = {3, -100, 1, 2, 94};
  OK(ts_trimmed_mean(few, 5, 0.1) == 0, "trimmed mean: of five none is left out");
  double many[15], more[25];
  for (int i = 0; i < 15; ++i) {
    many[i] = i == 7 ? 1e6 : i == 3 ? -5e5 : (i * 7) % 15;
  }
  OK(fabs(ts_trimmed_mean(many, 15, 0.1) - 81.0 / 11) < 1e-12, "of fifteen two at either end: %.17g",
     ts_trimmed_mean(many, 15, 0.1));
  for (int i = 0; i < 25; ++i) {
    more[i] = (i * 9) % 25 * ((i * 9) % 25);
  }
  OK(fabs(ts_trimmed_mean(more, 25, 0.1) - 3794.0 / 21) < 1e-12, "of twenty-five two, as half rounds to even");
  OK(ts_trimmed_mean(NULL, 0, 0.1) == 0, "of none 0");
}

static void test_factors(void) {
  OK(ts_bus_factor(TS_OP_ALL_REDUCE, 8) == 1.75 && ts_bus_factor(TS_OP_ALL_GATHER, 8) == 0.875 &&
         ts_bus_factor(TS_OP_REDUCE_SCATTER, 4) == 0.75 && ts_bus_factor(TS_OP_ALL_TO_ALL, 2) == 0.5 &&
         ts_bus_factor(TS_OP_SEND, 2) == 1 && ts_bus_factor(TS_OP_RECEIVE, 2) == 1,
     "factors of the bus are nccl-tests'");
}

/* ---- the log ---- */

static const ts_node *find_node(const ts_program *p, ts_op op) {
  for (ts_nid i = 0; i < p->graph->n_nodes; ++i) {
    if (p->graph->node[i].op == op) {
      return &p->graph->node[i];
    }
  }
  return NULL;
}

static const ts_comms_row *find_row(const ts_comms_row *row, int n, const char *operation) {
  for (int i = 0; i < n; ++i) {
    if (strcmp(row[i].operation, operation) == 0) {
      return &row[i];
    }
  }
  return NULL;
}

static void test_rows(ts_world *world) {
  static const double late[2][3] = {{0, 5e-3, 1e-3}, {4e-3, 0, 0}}, straggler[2] = {2e-3, 4e-3 / 3};
  subject s = open_subject(world, train_run_llama, "zero_optimization.stage=2", TS_CAN_TRAIN, NULL);
  const ts_program *p = ts_engine_program(s.engine);
  const ts_node *node = find_node(p, TS_OP_REDUCE_SCATTER);
  int rank = ts_world_rank(world), n;
  ts_comms_log *log = ts_comms_log_create(s.deck, p);
  double total = 0, rate = 0;
  for (int i = 0; i < 3; ++i) {
    const ts_observed_event seen[] = {{node, true, i, 1e-2 * (i + 1) + late[rank][i]}, {p->graph->node, false, i, 1}};
    ts_comms_log_step(log, seen, 2, 0);
    total += seen[0].seconds;
    rate += 8e-9 * ts_program_whole_bytes(p, node) / seen[0].seconds / 3;
  }
  ts_comms_row *row = ts_comms_log_rows(log, &n);
  OK(n == 1 && isnan(row[0].straggler), "before ranks compare no straggler is known, and what is computed is no row");
  ts_free(row);
  ts_comms_log_compare(log, world);
  row = ts_comms_log_rows(log, &n);
  OK(n == 1 && strcmp(row->operation, "reduce_scatter_tensor") == 0 && row->node == NULL && row->ranks == 2 &&
         row->count == 3 && row->bytes == ts_program_whole_bytes(p, node) && row->bytes > 0,
     "a row of an operation, its size, its group");
  OK(fabs(row->total - total) < 1e-12 && fabs(row->mean - total / 3) < 1e-12, "total and mean");
  OK(fabs(row->tput / rate - 1) < 1e-12 && fabs(row->busbw / (rate / 2) - 1) < 1e-12, "Gbps, of the bus half of them");
  OK(fabs(row->straggler - straggler[rank]) < 1e-12, "who is late is waited for: %g", row->straggler);
  ts_free(row);
  ts_comms_log_destroy(&log);
  close_subject(&s);
}

/* More than are kept. */
static void test_many(ts_world *world) {
  subject s = open_subject(world, train_run_llama, "zero_optimization.stage=2", TS_CAN_TRAIN, NULL);
  const ts_program *p = ts_engine_program(s.engine);
  const ts_node *node = find_node(p, TS_OP_REDUCE_SCATTER);
  ts_comms_log *log = ts_comms_log_create(s.deck, p);
  enum { TIMES = 5000 };
  int n;
  for (int i = 0; i < TIMES; ++i) {
    ts_comms_log_step(log, &(ts_observed_event){node, true, i, 1e-3 * (i + 1)}, 1, 0);
  }
  ts_comms_log_compare(log, world);
  ts_comms_row *row = ts_comms_log_rows(log, &n);
  OK(n == 1 && row->count == TIMES && fabs(row->total - 1e-3 * TIMES * (TIMES + 1) / 2) < 1e-6 * row->total,
     "count and total are of all");
  OK(fabs(row->mean / (1e-3 * (TIMES + 1) / 2) - 1) < 0.01 && row->straggler == 0, "the mean of evenly chosen ones");
  ts_free(row);
  ts_comms_log_destroy(&log);
  close_subject(&s);
}

static bool logs(subject *s, const ts_node *node, const char *as) {
  int n;
  ts_comms_log *log = ts_comms_log_create(s->deck, ts_engine_program(s->engine));
  ts_comms_log_step(log, &(ts_observed_event){node, true, 0, 1}, 1, 0);
  ts_comms_row *row = ts_comms_log_rows(log, &n);
  bool is = as == NULL ? n == 0 : n == 1 && find_row(row, n, as) != NULL;
  bool named = n == 0 || (row->node != NULL) == s->deck->comms_logger.debug;
  ts_free(row);
  ts_comms_log_destroy(&log);
  return is && named;
}

static void test_chosen(ts_world *world) {
  static const struct {
    const char *sets;
    bool gathers, reduces;
  } rows[] = {{"", true, true},
              {"comms_logger.prof_ops=all_reduce", true, true},
              {"comms_logger.prof_all=false", false, false},
              {"comms_logger.prof_all=false comms_logger.prof_ops=all_reduce", false, false},
              {"comms_logger.prof_all=false comms_logger.prof_ops=all_gather", true, false},
              {"comms_logger.prof_all=false comms_logger.prof_ops=[\"reduce_scatter_tensor\",\"barrier\"] "
               "comms_logger.debug=true",
               false, true}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *sets = ts_format("zero_optimization.stage=2 %s", rows[i].sets);
    subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN, NULL);
    const ts_program *p = ts_engine_program(s.engine);
    OK(logs(&s, find_node(p, TS_OP_ALL_GATHER), rows[i].gathers ? "all_gather_into_tensor" : NULL) &&
           logs(&s, find_node(p, TS_OP_REDUCE_SCATTER), rows[i].reduces ? "reduce_scatter_tensor" : NULL),
       "chosen: %s", rows[i].sets);
    close_subject(&s);
    ts_free(sets);
  }
}

/* ---- which steps ---- */

static void test_steps(ts_world *world) {
  char *file = ts_format("%s/flops.txt", tap_directory_all(MPI_COMM_WORLD));
  char *sets = ts_format("comms_logger.enabled=true flops_profiler.enabled=true flops_profiler.profile_step=2 "
                         "flops_profiler.output_file=%s",
                         file);
  subject s = open_subject(world, train_run_llama, sets, TS_CAN_TRAIN, NULL);
  ts_observed *o = ts_observed_create(world, s.deck, s.engine, 0, 5);
  ts_error err = {0};
  bool on[5], always = true;
  for (int step = 0; step < 5; ++step) {
    must(ts_observed_begin(o, step, &err), &err);
    on[step] = ts_observed_is_on(o);
    ts_batch *batch = train_run_batch(s.engine, s.deck, step);
    ts_step_result result = ts_engine_train_step(s.engine, &(ts_step_input){.batch = batch});
    ts_batch_destroy(&batch);
    ts_observed_end(o, &result);
    always = always && ts_observed_is_on(o) == on[step];
  }
  OK(!on[0] && !on[1] && on[2] && !on[3] && !on[4],
     "the step behind profile_step is marked; one whose messages alone are counted on processors is as others");
  OK(always, "and stays so when it is over");
  ts_observed_destroy(&o);
  close_subject(&s);
  ts_free(sets);
  ts_free(file);
}

/* ---- FLOPs ---- */

/* The number behind a label, in SI units. */
static double number_of(const char *text, const char *label) {
  static const char prefix[] = " kMGTP";
  const char *line = strstr(text, label), *end = line != NULL ? strchr(line, '\n') : NULL;
  if (end == NULL) {
    return NAN;
  }
  char *unit;
  double value = strtod(line + strlen(label) + strspn(line + strlen(label), " "), &unit);
  const char *p = unit[0] == ' ' ? strchr(prefix, unit[1]) : NULL;
  return p != NULL && unit[1] != ' ' ? value * pow(1000, (double) (p - prefix)) : value;
}

/* Each node once in each micro-batch, a millisecond each. */
static void test_flops(ts_world *world) {
  subject s = open_subject(world, train_run_llama, "gradient_accumulation_steps=2 flops_profiler.enabled=true",
                           TS_CAN_TRAIN, NULL);
  const ts_program *p = ts_engine_program(s.engine);
  const ts_graph *g = p->graph;
  ts_observed_event *seen = ts_calloc(2 * (size_t) g->n_nodes, sizeof *seen);
  double heads = 0;
  int n = 0, forwards = 0;
  for (ts_nid i = 0; i < 2 * g->n_nodes; ++i) {
    const ts_node *node = &g->node[i % g->n_nodes];
    if (!ts_node_is_collective(node) && (i < g->n_nodes || !ts_node_happens_once(node))) {
      seen[n++] = (ts_observed_event){node, false, i, 1e-3};
      forwards += ts_segment_phase(node->segment) == 0;
      heads += node->op == TS_OP_HEAD_LOSS_TRAIN && ts_segment_phase(node->segment) != 0;
    }
  }
  ts_text text = {0};
  ts_flops_report(s.deck, p,
                  &(ts_flops_step){.step = 7, .event = seen, .n = n, .forward = 2, .backward = 4, .update = 1}, &text);
  double macs = number_of(text.text, "fwd MACs of a rank"), flops = number_of(text.text, "fwd FLOPs of a rank");
  /* three digits are printed */
  OK(fabs(6 * macs / (2 * ts_program_model_flops(p, NULL)) - 1) < 5e-3,
     "forward and backward are three times the forward: 6 x %g MACs, %g FLOPs of the model", macs,
     2 * ts_program_model_flops(p, NULL));
  OK(fabs(number_of(text.text, "fwd FLOPs of the model (products, of all ranks that share a sample)") / (2 * macs) -
          1) < 1e-2,
     "those of the model are this rank's, who shares no sample");
  OK(flops > 2 * macs && flops < 2.2 * macs, "FLOPs are twice the MACs, and a little that is no product");
  OK(fabs(number_of(text.text, "fwd latency") / (2000 + heads / 3) - 1) < 1e-5 &&
         fabs(number_of(text.text, "bwd latency") / (4000 - heads / 3) - 1) < 1e-5,
     "a third of the loss and its gradients is forward: %g of them", heads);
  OK(fabs(number_of(text.text, "samples/second") * 7 / (double) s.deck->train_batch_size - 1) < 1e-2, "samples/second");
  OK(strstr(text.text, "step 7 ") != NULL && strstr(text.text, "mlp") != NULL &&
         strstr(text.text, "    layers: ") != NULL,
     "modules by name");
  ts_text_free(&text);
  ts_free(seen);
  close_subject(&s);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  test_trimmed_mean();
  test_factors();
  test_rows(world);
  test_many(world);
  test_chosen(world);
  test_steps(world);
  test_flops(world);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return ts_memory_live() == 0 ? status : 1;
}
