/* The clock of planned steps, on machines whose times are made up so that the answer is known: one rank is the sum of
 * its nodes, messages are hidden or not as the schedule allows, pipelines have the bubble of their schedules; and what
 * is not measured is rated by what is near it.  Files of machines are read back, and those that are wrong are refused
 * with the line. */
#include "regression/pass/grid.h"
#include "regression/tap.h"

#include "base/memory.h"
#include "engine/peak.h"
#include "graph/op.h"
#include "run/clock.h"
#include "run/turns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nothing but floors: products and copies at these rates. */
static ts_measured bare(void) {
  return (ts_measured){.ranks = 1, .threads = 1, .product = {1e10, 2e10}, .copy = 1e9, .slowdown = 1};
}

static bool is_near(double a, double b, double relative) {
  return fabs(a - b) <= relative * fabs(b);
}

/* ---- look-up ---- */

static ts_work product(double m, double n, double k) {
  return (ts_work){
      .kind = "matmul.nn fp32>fp32", .extent = {m, n, k}, .flops = 2 * m * n * k, .bytes = 4 * (m * n + n * k + m * k)};
}

static void test_samples(void) {
  ts_measured m = bare();
  ts_known known;
  ts_work small = product(64, 64, 64), large = product(1024, 1024, 1024), between = product(256, 256, 256),
          other = product(256, 256, 256), beyond = product(65536, 65536, 65536);
  double floor = ts_measured_seconds(&m, &between, &known);
  tap_ok(known == TS_KNOWN_NOTHING && is_near(floor, between.flops / 1e10, 1e-12),
         "what nobody measured takes what nothing goes below");
  ts_measured_add(&m, &small, 4 * small.bytes / 1e9); /* whose bytes take longer than its operations */
  ts_measured_add(&m, &large, 3 * large.flops / 1e10);
  double here = ts_measured_seconds(&m, &large, &known);
  tap_ok(known == TS_KNOWN_MEASURED && is_near(here, 3 * large.flops / 1e10, 1e-12), "a sample is what was measured");
  ts_measured_add(&m, &large, 4 * large.flops / 1e10);
  tap_ok(m.n == 2 && ts_measured_seconds(&m, &large, NULL) == here, "of those of the same work the least is kept");
  here = ts_measured_seconds(&m, &between, &known);
  tap_ok(known == TS_KNOWN_BETWEEN && here > 3 * floor && here < 4 * floor,
         "between two of its kind it is so many times the floor as these: %.3g", here / floor);
  here = ts_measured_seconds(&m, &beyond, &known);
  tap_ok(known == TS_KNOWN_BEYOND && here > 3 * beyond.flops / 1e10 * 0.99 && here < 3.2 * beyond.flops / 1e10,
         "beyond all it is as the last one: %.3g", here / (beyond.flops / 1e10));
  snprintf(other.kind, sizeof other.kind, "matmul.nt bf16>bf16");
  here = ts_measured_seconds(&m, &other, &known);
  tap_ok(known == TS_KNOWN_ALIKE &&
             is_near(here, other.flops / 2e10 * ts_measured_seconds(&m, &between, NULL) / floor, 0.2),
         "another form and type has the floor of its own type");
  snprintf(other.kind, sizeof other.kind, "matmul_gelu.nn fp32>fp32");
  (void) ts_measured_seconds(&m, &other, &known);
  tap_ok(known == TS_KNOWN_NOTHING, "another op whose name begins alike is another op");
  ts_work few = {.kind = "accumulate fp64>fp64", .extent = {1, 24}, .flops = 1, .bytes = 24}, many = few;
  snprintf(many.kind, sizeof many.kind, "accumulate fp32>fp32");
  many.bytes = many.extent[1] = 1e8;
  ts_measured_add(&m, &few, 4e-6);
  here = ts_measured_seconds(&m, &many, &known);
  tap_ok(known == TS_KNOWN_ALIKE && is_near(here, many.bytes / m.copy + 4e-6, 1e-6),
         "what begins in some microseconds does not take so many times as long when there is more of it");
  ts_measured_replace(&m, &large, 5 * large.flops / 1e10);
  ts_measured_replace(&m, &many, 1);
  tap_ok(is_near(ts_measured_seconds(&m, &large, NULL), 5 * large.flops / 1e10, 1e-12) &&
             ts_measured_seconds(&m, &many, &known) == 1 && known == TS_KNOWN_MEASURED,
         "what is put in its place stands, whether it was there or not");
  ts_free(m.sample);
}

/* ---- one rank ---- */

/* Is instruction k a node that computes? */
static bool is_computed(const ts_program *p, int k) {
  const ts_node *node = &p->graph->node[p->schedule->instruction[k].node];
  bool window = (ts_op_get(node->op)->flags & TS_OP_ALIAS) != 0 && node->op != TS_OP_PACK;
  return p->schedule->instruction[k].kind == TS_RUN && !ts_node_is_message(node) && !window;
}

/* Floors of the nodes of all runs of a step. */
static double sum_of_floors(const ts_program *p, const ts_measured *m, int *nodes) {
  double sum = 0;
  *nodes = 0;
  for (int64_t i = 0; i < p->step.n; ++i) {
    ts_run run = ts_step_run(&p->step, i);
    for (int k = 0; k < p->schedule->n; ++k) {
      const ts_node *node = &p->graph->node[p->schedule->instruction[k].node];
      if (is_computed(p, k) && ts_run_has(&p->step, run, p->graph, node)) {
        const ts_work work = ts_node_work(p, node, 1);
        sum += ts_measured_seconds(m, &work, NULL);
        ++*nodes;
      }
    }
  }
  return sum;
}

static ts_clock walk(const grid *g, const int *rank, int n, const ts_measured *m) {
  const ts_program *program[8];
  ts_clock clock;
  for (int i = 0; i < n; ++i) {
    program[i] = g->program[rank[i]];
  }
  bool ended = ts_clock_step(program, n, m, 1, NULL, NULL, &clock);
  TS_CHECK(ended, "the walk ends");
  return clock;
}

static void test_alone(const char *name, const char *text, const char *sets) {
  grid g = make_grid(text, sets, 1, TS_MODEL_TRAIN);
  ts_measured m = bare();
  m.instruction = 1e-6;
  m.step = 1e-3;
  int nodes;
  double sum = sum_of_floors(g.program[0], &m, &nodes);
  ts_clock c = walk(&g, (int[]){0}, 1, &m);
  tap_ok(nodes > 50 && is_near(c.step, sum + nodes * m.instruction + m.step, 1e-9),
         "%s, %s: a rank alone takes what its %d nodes take, the time between them and that of a step", name, sets,
         nodes);
  tap_ok(c.n == 1 && c.bubble == 0 && c.stage[0].exposed == 0 && is_near(c.stage[0].computing, sum, 1e-9),
         "and waits for nobody");
  double phases = 0, busy = 0;
  for (int i = 0; i < TS_N_RUN_PHASES; ++i) {
    phases += c.stage[0].phase[i];
  }
  for (int op = 0; op < TS_N_OPS; ++op) {
    busy += c.stage[0].row[op].busy;
  }
  tap_ok(is_near(phases, c.step, 1e-9) && is_near(busy, sum, 1e-9),
         "its phases make the step, its ops what is computed");
  ts_clock_clear(&c);
  free_grid(&g);
}

/* ---- messages ---- */

/* Every collective takes as long, whatever it brings; less than what was said before. */
static void set_messages(ts_measured *m, const ts_program *p, double seconds) {
  for (ts_nid i = 0; i < p->graph->n_nodes; ++i) {
    if (ts_node_is_collective(&p->graph->node[i]) || ts_node_is_message(&p->graph->node[i])) {
      const ts_work work = ts_node_work(p, &p->graph->node[i], 1);
      ts_measured_add(m, &work, seconds);
    }
  }
}

static int collectives_of(const ts_program *p) {
  int n = 0;
  for (int64_t i = 0; i < p->step.n; ++i) {
    ts_run run = ts_step_run(&p->step, i);
    for (int k = 0; k < p->schedule->n; ++k) {
      const ts_node *node = &p->graph->node[p->schedule->instruction[k].node];
      n += p->schedule->instruction[k].kind == TS_ISSUE && ts_node_is_collective(node) &&
           ts_run_has(&p->step, run, p->graph, node);
    }
  }
  return n;
}

/* Many messages, of a unit or a part of it. */
#define SMALL                                                                                         \
  "zero_optimization.reduce_bucket_size=5000 zero_optimization.stage3_param_persistence_threshold=0 " \
  "zero_optimization.stage3_prefetch_bucket_size=60000 model.num_hidden_layers=4"

static void test_messages(int stage) {
  char *beside = ts_format("zero_optimization.stage=%d zero_optimization.overlap_comm=true " SMALL, stage),
       *after = ts_format("zero_optimization.stage=%d zero_optimization.overlap_comm=false " SMALL, stage);
  ts_measured m = bare();
  const double each = 1e-4;
  int nodes;
  grid g = make_grid(llama, after, 4, TS_MODEL_TRAIN);
  set_messages(&m, g.program[0], each);
  double computing = sum_of_floors(g.program[0], &m, &nodes), n = collectives_of(g.program[0]);
  ts_clock c = walk(&g, (int[]){0}, 1, &m);
  tap_ok(n > 0 && is_near(c.step, computing + n * each, 1e-9) && is_near(c.stage[0].exposed, n * each, 1e-9),
         "stage %d, no overlap: all of its %g messages are waited for", stage, n);
  ts_clock_clear(&c);
  free_grid(&g);
  g = make_grid(llama, beside, 4, TS_MODEL_TRAIN);
  ts_free(m.sample);
  m = bare();
  set_messages(&m, g.program[0], each);
  computing = sum_of_floors(g.program[0], &m, &nodes);
  n = collectives_of(g.program[0]);
  c = walk(&g, (int[]){0}, 1, &m);
  double longest = fmax(computing, n * each);
  tap_ok(c.step >= longest * (1 - 1e-9) && c.step < computing + n * each &&
             is_near(c.step, computing + c.stage[0].exposed, 1e-9),
         "stage %d, overlap: %.1f ms, of %.1f ms computed and %.1f ms of messages beside it, %.1f ms exposed", stage,
         1e3 * c.step, 1e3 * computing, 1e3 * n * each, 1e3 * c.stage[0].exposed);
  double hidden = n * each - c.stage[0].exposed;
  m.slowdown = 1.5;
  ts_clock slow = walk(&g, (int[]){0}, 1, &m);
  /* what was hidden behind takes half as long again, at most; or less is waited for instead */
  tap_ok(hidden > 5 * each && slow.step >= c.step && slow.step <= c.step + 0.5 * hidden + 1e-9 &&
             slow.stage[0].computing > computing + 0.3 * hidden / 1.5 &&
             is_near(slow.step, slow.stage[0].computing + slow.stage[0].exposed, 1e-9),
         "and slowed down by them: %.1f ms", 1e3 * slow.step);
  ts_clock_clear(&slow);
  ts_clock_clear(&c);
  free_grid(&g);
  ts_free(m.sample);
  ts_free(beside);
  ts_free(after);
}

/* ---- pipelines ---- */

/* Of the second micro-batch, in which nothing is prepared. */
static ts_pipeline_seconds seconds_of_stage(const ts_program *p, const ts_measured *m) {
  ts_pipeline_seconds s = {0};
  for (int64_t i = 0; i < p->step.n; ++i) {
    ts_run run = ts_step_run(&p->step, i);
    for (int k = 0; k < p->schedule->n && run.micro_batch == 1; ++k) {
      const ts_node *node = &p->graph->node[p->schedule->instruction[k].node];
      if (is_computed(p, k) && ts_run_has(&p->step, run, p->graph, node)) {
        const ts_work work = ts_node_work(p, node, 1);
        double seconds = ts_measured_seconds(m, &work, NULL);
        *(node->segment == TS_SEGMENT_FORWARD          ? &s.forward
          : node->segment == TS_SEGMENT_BACKWARD_INPUT ? &s.input
                                                       : &s.weight) += seconds;
      }
    }
  }
  return s;
}

/* Where messages take no time a step is what the clock of schedules makes of the seconds of the stages. */
static void test_bubble(const char *schedule, int stages, int micro_batches) {
  char *sets =
      ts_format("pipeline.stages=%d gradient_accumulation_steps=%d pipeline.schedule=%s model.num_hidden_layers=8",
                stages, micro_batches, schedule);
  grid g = make_grid(llama, sets, stages, TS_MODEL_TRAIN);
  int rank[8];
  ts_measured m = bare();
  ts_pipeline_seconds of[8];
  ts_free(sets);
  for (int i = 0; i < stages; ++i) {
    rank[i] = i;
    set_messages(&m, g.program[i], 1e-9);
    of[i] = seconds_of_stage(g.program[i], &m);
  }
  const ts_pipeline p = {ts_pipeline_find(schedule), stages, 1, micro_batches};
  ts_pipeline_times t;
  ts_error err = {0};
  TS_CHECK(ts_pipeline_clock(&p, of, 0, NULL, NULL, &t, &err) == TS_OK, "%s", err.text);
  ts_clock c = walk(&g, rank, stages, &m);
  double last = 0;
  for (int i = 0; i < stages; ++i) {
    last = fmax(last, c.stage[i].begin_of_update);
  }
  /* what happens once a step comes on top, to each stage's first forward and last backward */
  tap_ok(is_near(last, t.seconds, 0.01),
         "%s, %d stages, %d micro-batches: %.2f ms, %.2f ms by the "
         "clock of schedules",
         schedule, stages, micro_batches, 1e3 * last, 1e3 * t.seconds);
  tap_ok(fabs(c.bubble - t.bubble) < 0.02, "bubble %.1f %%, %.1f %%", 100 * c.bubble, 100 * t.bubble);
  m.instruction = 1e-3; /* longer than what is computed: the time between nodes is not idle */
  ts_clock between = walk(&g, rank, stages, &m);
  tap_ok(between.step > 3 * c.step && between.bubble < t.bubble + 0.1, "time between nodes is work: bubble %.1f %%",
         100 * between.bubble);
  ts_clock_clear(&between);
  m.instruction = 0;
  m.n = 0;
  for (int i = 0; i < stages; ++i) {
    set_messages(&m, g.program[i], 1e-2);
  }
  ts_clock late = walk(&g, rank, stages, &m);
  tap_ok(late.step > c.step + 2 * (stages - 1) * 1e-2 * 0.99,
         "messages of 10 ms: those of the first micro-batch to the "
         "last stage and of the last one back are waited for");
  ts_pipeline_times_clear(&t);
  ts_clock_clear(&late);
  ts_clock_clear(&c);
  ts_free(m.sample);
  free_grid(&g);
}

/* ---- who is where ---- */

/* Seconds of messages that a stage sends to itself and to others. */
typedef struct sent {
  double own, others;
} sent;

static void note_sent(void *user, int stage, const ts_node *node, bool collective, double start, double seconds) {
  (void) collective;
  (void) start;
  if (node->op == TS_OP_SEND) {
    *(node->attr.message.peer == stage ? &((sent *) user)->own : &((sent *) user)->others) += seconds;
  }
}

/* The stage where a V turns has both of its halves. */
static void test_turn(void) {
  grid g = make_grid(llama,
                     "pipeline.stages=2 gradient_accumulation_steps=4 pipeline.schedule=zb_v model.num_hidden_layers=8",
                     2, TS_MODEL_TRAIN);
  ts_measured m = bare();
  const ts_program *program[2] = {g.program[0], g.program[1]};
  sent s = {0};
  ts_clock c;
  int turns = 0;
  for (ts_nid i = 0; i < g.program[1]->graph->n_nodes; ++i) {
    const ts_node *node = &g.program[1]->graph->node[i];
    turns += node->op == TS_OP_SEND && node->attr.message.peer == 1;
  }
  set_messages(&m, g.program[0], 1e-3);
  set_messages(&m, g.program[1], 1e-3);
  TS_CHECK(ts_clock_step(program, 2, &m, 1, note_sent, &s, &c), "the walk ends");
  tap_ok(turns > 0 && s.own == 0 && s.others > 0.01,
         "%d messages of a stage to itself take no time, those to the other %.0f ms", turns, 1e3 * s.others);
  ts_clock_clear(&c);
  ts_free(m.sample);
  free_grid(&g);
}

/* What a stage waits for another that computes is no message's. */
static void test_neighbours(void) {
  grid g =
      make_grid(llama, "pipeline.stages=2 gradient_accumulation_steps=4 model.num_hidden_layers=8", 2, TS_MODEL_TRAIN);
  ts_measured m = bare();
  set_messages(&m, g.program[0], 1e-9);
  set_messages(&m, g.program[1], 1e-9);
  ts_clock c = walk(&g, (int[]){0, 1}, 2, &m);
  double waited = c.stage[0].neighbours + c.stage[1].neighbours, exposed = c.stage[0].exposed + c.stage[1].exposed;
  tap_ok(waited > 0.1 * c.step && exposed < 1e-6, "stages wait %.2f of %.2f ms for each other, %.6f for messages",
         1e3 * waited, 1e3 * c.step, 1e3 * exposed);
  ts_clock_clear(&c);
  ts_free(m.sample);
  free_grid(&g);
}

/* A gradient that adds to what is there touches its rows alone. */
static void test_added_rows(void) {
  grid g = make_grid(llama, "zero_optimization.stage=0", 1, TS_MODEL_TRAIN);
  const ts_graph *graph = g.program[0]->graph;
  const ts_node *adding = NULL;
  for (ts_nid i = 0; i < graph->n_nodes; ++i) {
    const ts_node *node = &graph->node[i];
    adding = node->op == TS_OP_EMBEDDING_DW && node->prior != NULL && node->prior[0] != TS_NONE ? node : adding;
  }
  TS_CHECK(adding != NULL, "no gradient of an embedding adds to what is there");
  const ts_work work = ts_node_work(g.program[0], adding, 1);
  double rows = (double) ts_tensor_bytes(graph, adding->in[0]), ids = (double) ts_tensor_bytes(graph, adding->in[1]),
         beta = (double) ts_tensor_bytes(graph, adding->beta);
  tap_ok(work.bytes >= rows + ids && work.bytes <= rows + ids + beta,
         "a gradient that is added moves its rows, not its table: %.0f bytes, of %.0f", work.bytes,
         (double) ts_tensor_bytes(graph, adding->out[0]));
  free_grid(&g);
}

static void test_nodes(void) {
  static const struct {
    int node;
    const char *ends;
  } rows[] = {{4, "x4"}, {2, "x4 across nodes of 2"}, {1, "x4 across nodes"}};
  grid g = make_grid(llama, "zero_optimization.stage=2", 4, TS_MODEL_TRAIN);
  const ts_program *p = g.program[0];
  const ts_node *collective = NULL, *embedding = NULL;
  for (ts_nid i = 0; i < p->graph->n_nodes; ++i) {
    const ts_node *node = &p->graph->node[i];
    collective = node->op == TS_OP_REDUCE_SCATTER ? node : collective;
    embedding = node->op == TS_OP_EMBEDDING ? node : embedding;
  }
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    const ts_work work = ts_node_work(p, collective, rows[i].node);
    size_t length = strlen(work.kind), end = strlen(rows[i].ends);
    tap_ok(length > end && strcmp(work.kind + length - end, rows[i].ends) == 0, "%d ranks a node: %s", rows[i].node,
           work.kind);
  }
  const ts_work work = ts_node_work(p, embedding, 1);
  double rows_read = (double) ts_tensor_bytes(p->graph, embedding->out[0]);
  tap_ok(work.bytes < 3 * rows_read, "an embedding moves its rows, not its table: %.0f bytes, of %.0f", work.bytes,
         (double) ts_tensor_bytes(p->graph, embedding->in[0]));
  free_grid(&g);
}

/* ---- beside a device ---- */

static void test_host(void) {
  grid_backend = null_device();
  grid g = make_grid(
      llama,
      "zero_optimization.stage=3 zero_optimization.offload_optimizer.device=cpu run.offload_update=host "
      "zero_optimization.stage3_param_persistence_threshold=1000 machine.core_bandwidth=1e9 machine.copy_bandwidth=1e9",
      2, TS_MODEL_TRAIN);
  const ts_program *p = g.program[0];
  double host = 0;
  ts_measured m = bare();
  for (ts_nid i = 0; i < p->graph->n_nodes; ++i) {
    if (p->graph->node[i].on_host) {
      host += ts_node_work(p, &p->graph->node[i], 1).bytes / 1e9;
    }
  }
  ts_clock c = walk(&g, (int[]){0}, 1, &m);
  tap_ok(host > 0 && is_near(c.stage[0].host, host, 1e-6), "the host's updates take what its memory lets them: %.3f ms",
         1e3 * c.stage[0].host);
  tap_ok(c.stage[0].copies > 0 && c.step >= c.stage[0].computing && c.step >= c.stage[0].host,
         "copies are under way: %.3f ms; the step has room for both", 1e3 * c.stage[0].copies);
  m.host = 1e8;
  ts_clock slow = walk(&g, (int[]){0}, 1, &m);
  tap_ok(is_near(slow.stage[0].host, 10 * host, 1e-6) && slow.step > c.step && slow.step >= 10 * host,
         "where its memory was measured, by that: the step takes %.3f ms for %.3f", 1e3 * slow.step, 1e3 * c.step);
  ts_clock_clear(&slow);
  ts_clock_clear(&c);
  free_grid(&g);
  grid_backend = NULL;
}

/* ---- files ---- */

static char *path_of(const char *name) {
  return ts_format("%s/%s", tap_directory(), name);
}

static void write_text(const char *path, const char *text, size_t length) {
  ts_error err = {0};
  TS_CHECK(ts_write_file(path, text, length, &err) == TS_OK, "%s", err.text);
}

static void expect_refused(const char *path, const char *text, const char *says, const char *what) {
  ts_machine machine;
  ts_error err = {0};
  write_text(path, text, strlen(text));
  ts_status status = ts_machine_read(path, &machine, &err);
  bool said = status == TS_BAD_INPUT && err.text != NULL && strstr(err.text, says) != NULL;
  tap_ok(said, "%s is refused: %s", what, err.text != NULL ? err.text : "it was taken");
  ts_error_clear(&err);
  ts_machine_clear(&machine);
}

#define HEAD "tessera_machine = 1;\nbackend = \"cpu\";\ndevice = \"d\";\nlibraries = \"l\";\ndate = \"2026-11-28\";\n"
#define RATES                                                                                      \
  "ranks = 1; threads = 1; product_fp32 = 1e10; product_bf16 = 1e10; copy = 1e9; slowdown = 1.0; " \
  "instruction = 0.0; step = 0.0;\n"

static void test_file(void) {
  char *path = path_of("machine.cfg"), *text = NULL;
  ts_error err = {0};
  ts_machine machine = {.backend = ts_strdup("cpu"),
                        .device = ts_strdup("a \"quoted\" device"),
                        .libraries = ts_strdup("MPI"),
                        .date = ts_strdup("2026-11-28")};
  ts_measured *two = ts_machine_of(&machine, 2, 1);
  *two = bare();
  two->ranks = 2;
  ts_work work = product(64, 128, 256);
  ts_measured_add(two, &work, 1.25e-3);
  ts_measured *one = ts_machine_of(&machine, 1, 2);
  double copy = 3e9;
  *one = bare();
  one->threads = 2;
  one->copy = copy;
  ts_machine back;
  size_t length = 0;
  bool good = ts_machine_write(&machine, path, &err) == TS_OK && ts_machine_read(path, &back, &err) == TS_OK;
  tap_ok(good, "a machine is written and read: %s", good ? "yes" : err.text);
  if (good) {
    ts_known known;
    const ts_measured *found = ts_machine_find(&back, 2, 1);
    tap_ok(back.n == 2 && back.measured[0].copy == copy && strcmp(back.device, machine.device) == 0 && found->n == 1 &&
               ts_measured_seconds(found, &work, &known) == 1.25e-3 && known == TS_KNOWN_MEASURED,
           "and is the same");
    tap_ok(ts_machine_find(&back, 64, 1) == found && ts_machine_find(&back, 1, 2) == &back.measured[0],
           "the nearest that was measured is found");
    TS_CHECK(ts_read_file(path, 1 << 20, &text, &length, &err) == TS_OK, "%s", err.text);
    bool refused = true;
    for (size_t cut = 0; cut + 3 < length; cut += 7) { /* but for the last bracket and its line */
      ts_machine part;
      write_text(path, text, cut);
      refused = ts_machine_read(path, &part, NULL) == TS_BAD_INPUT && refused;
      ts_machine_clear(&part);
    }
    tap_ok(refused, "cut off anywhere it is refused");
    ts_free(text);
    ts_machine_clear(&back);
  }
  ts_error_clear(&err);
  expect_refused(path, "model = { hidden_size = 3; };\n", "no file of tessera bench", "a deck");
  expect_refused(path, "tessera_machine = 2;\n" HEAD, "machine.cfg:", "what is set twice");
  expect_refused(path, "tessera_machine = 7;\nmeasured = ();\n", "machine.cfg:1: tessera_machine", "another format");
  expect_refused(path, HEAD "measured = ();\n", "nothing was measured", "an empty one");
  expect_refused(path, HEAD "measured = ({ ranks = 0; });\n", "machine.cfg:6: ranks", "no ranks");
  expect_refused(path, HEAD "measured = ({ " RATES "samples = (\n(\"a>b\", 1, 1, 1, 1, 1, -1.0)); });\n",
                 "machine.cfg:8: a>b is wrong", "a time below zero");
  expect_refused(path, HEAD "measured = ({ " RATES "samples = (\n(\"a>b\", 1, 1, 1)); });\n",
                 "machine.cfg:8: a sample is", "a sample that lacks numbers");
  remove(path);
  tap_ok(ts_machine_read(path, &back, NULL) == TS_BAD_INPUT, "no file is refused");
  ts_machine_clear(&back);
  ts_machine_clear(&machine);
  ts_free(path);
}

/* What bench takes of steps and messages. */
static void test_least_quarter(void) {
  double nine[] = {9, 3, 8, 1, 7, 5, 6, 4, 2}, three[] = {3, 2, 9};
  tap_ok(ts_least_quarter(nine, 9) == 1.5 && nine[0] == 1 && nine[8] == 9, "the mean of the least quarter, sorted");
  tap_ok(ts_least_quarter(three, 3) == 2, "at least of one");
}

int main(void) {
  test_least_quarter();
  test_samples();
  test_alone("gpt2", gpt2, "zero_optimization.stage=0");
  test_alone("llama", llama, "gradient_accumulation_steps=3");
  test_alone("llama", llama, "activation_checkpointing.enabled=true bf16.enabled=true");
  test_alone("mixture", mixture, "gradient_accumulation_steps=2");
  for (int stage = 0; stage <= 3; ++stage) {
    test_messages(stage);
  }
  test_bubble("1f1b", 4, 8);
  test_bubble("gpipe", 2, 4);
  test_bubble("zb_h1", 4, 8);
  test_turn();
  test_neighbours();
  test_nodes();
  test_added_rows();
  test_host();
  test_file();
  return tap_done();
}
