/* A program that exchanges tokens for heads and back, planned, simulated, and run on any number of ranks. */
#include "backend/backend.h"
#include "base/memory.h"
#include "pass/pass.h"
#include "pass/plan.h"
#include "pass/schedule.h"
#include "regression/exchange_graph.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "run/executor.h"
#include "run/simulate.h"

/* Every key head that several ranks read comes back from all of them. */
static ts_program *make_program(const exchange_case *there, const exchange_case *back, int rank, const ts_deck *deck) {
  ts_program *p = ts_calloc(1, sizeof *p);
  ts_tid x[TS_MOST_EXCHANGED];
  p->use = TS_MODEL_LOSS;
  p->step = ts_step_of(TS_MODEL_LOSS, 1, NULL);
  p->target = (ts_target){ts_backend_cpu(), 1, TS_CUDNN_NEVER};
  p->graph = ts_graph_create();
  TS_CHECK(ts_mesh_init(&p->mesh, (const int[TS_N_AXES]){1, 1, 1, there->size, 1}, there->size, rank, NULL) == TS_OK,
           "all ranks along sp");
  exchange_leaves(there, rank, p->graph, TS_ROLE_INPUT, x);
  for (int way = 0; way <= 1; ++way) {
    ts_tid y = exchange_node(way == 0 ? there : back, rank, ts_graph_site(p->graph), way == 0 ? "there" : "back",
                             TS_AXES(TS_AXIS_SP), x);
    for (int i = 0; i < there->n; ++i) {
      x[i] = y + i;
      char *name = ts_format("%s%d", way == 0 ? "y" : "z", i);
      ts_graph_mark(p->graph, name, x[i]);
      ts_free(name);
    }
  }
  ts_pass_context context = {.deck = deck,
                             .mesh = &p->mesh,
                             .target = p->target,
                             .use = TS_MODEL_LOSS,
                             .step = &p->step,
                             .sequence = &p->sequence};
  ts_pass_schedule(&p->graph, &context);
  ts_pass_memory(&p->graph, &context);
  p->schedule = context.schedule;
  p->plan = context.plan;
  return p;
}

static void test_simulation(const exchange_case *there, const exchange_case *back, const ts_deck *deck) {
  ts_program *program[MOST_RANKS];
  for (int r = 0; r < there->size; ++r) {
    program[r] = make_program(there, back, r, deck);
  }
  char *fault = ts_simulate_step((const ts_program *const *) program, there->size);
  tap_ok_all(MPI_COMM_WORLD, fault == NULL, "the programs of %d ranks fit: %s", there->size,
             fault != NULL ? fault : "clean");
  ts_free(fault);
  for (int r = 0; r < there->size; ++r) {
    ts_program_destroy(&program[r]);
  }
}

/* Of everybody's x all columns leave but this rank's own heads; what came leaves again, but this rank's own tokens. */
static void test_sent(const ts_program *program, const exchange_case *there) {
  int rank = program->mesh.rank, size = there->size;
  double expected = 0;
  for (int i = 0; i < there->n; ++i) {
    const ts_exchange_tensor *x = &there->x[rank][i], *y = &there->y[rank][i];
    double bytes = (double) ts_dtype_size(x->dtype) * (double) x->batches;
    for (int other = 0; other < size; ++other) {
      bool self = other == rank;
      expected += self ? 0 : bytes * (double) x->rows * (double) there->y[other][i].columns;
      expected += self ? 0 : bytes * (double) there->x[other][i].rows * (double) y->columns;
    }
  }
  ts_sent sent = ts_program_sent(program, TS_AXIS_SP);
  tap_ok_all(MPI_COMM_WORLD, sent.step == expected && sent.messages == 2, "%.0f bytes are sent, %.0f by the lists",
             expected, sent.step);
}

/* How many ranks read column \a column of tensor \a t. */
static int readers(const exchange_case *c, int rank, int t, int64_t column) {
  int n = 0;
  for (int i = 0; i < c->n_sent[rank]; ++i) {
    const ts_block *b = &c->sent[rank][i];
    n += b->tensor == t && column >= b->columns.begin && column < b->columns.begin + b->columns.length;
  }
  return n;
}

static bool there_is_right(ts_executor *e, const exchange_case *c, int rank, int t) {
  size_t bytes = exchange_bytes(&c->y[rank][t]);
  char *name = ts_format("y%d", t), *is = ts_malloc(2 * bytes + 1), *expected = is + bytes;
  exchange_expect(c, rank, t, expected);
  ts_executor_read_result(e, 0, name, is);
  bool right = memcmp(is, expected, bytes) == 0;
  ts_free(name);
  ts_free(is);
  return right;
}

static bool back_is_right(ts_executor *e, const exchange_case *c, int rank, int t) {
  const ts_exchange_tensor *x = &c->x[rank][t];
  char *name = ts_format("z%d", t);
  float *is = ts_malloc(exchange_bytes(x) + sizeof *is);
  ts_executor_read_result(e, 0, name, is);
  bool right = true;
  for (int64_t i = 0; i < exchange_count(x); ++i) {
    float times = (float) readers(c, rank, t, i % x->columns);
    right = right && load(is, x->dtype, i) == times * exchange_value(c, rank, t, i);
  }
  ts_free(name);
  ts_free(is);
  return right;
}

static void test_run(ts_world *world, const ts_program *program, const exchange_case *c, bool memcheck) {
  const ts_executor_options options = {.world = world, .memcheck = memcheck};
  ts_executor *e = ts_executor_create(&program, 1, &options);
  bool right = true;
  for (int times = 0; times < 3; ++times) {
    for (int i = 0; i < c->n; ++i) {
      char *name = ts_format("x%d", i);
      exchange_fill(c, program->mesh.rank, i, ts_executor_input(e, 0, 0, name));
      ts_free(name);
    }
    ts_executor_run(e, 0, 0);
    for (int i = 0; i < c->n; ++i) {
      right = there_is_right(e, c, program->mesh.rank, i) && right;
      right = back_is_right(e, c, program->mesh.rank, i) && right;
    }
  }
  tap_ok_all(MPI_COMM_WORLD, right, "tokens become heads and come back%s", memcheck ? ", under memcheck" : "");
  ts_executor_destroy(&e);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  exchange_case *there = ts_malloc(2 * sizeof *there), *back = there + 1;
  ts_deck *deck = ts_calloc(1, sizeof *deck);
  deck->model.model_type = (char *) TS_MODEL_OWN;
  deck->zero_optimization.overlap_comm = true;
  exchange_heads(there, ts_world_size(world), TS_F32);
  exchange_back(back, there);
  test_simulation(there, back, deck);
  ts_program *program = make_program(there, back, ts_world_rank(world), deck);
  test_sent(program, there);
  test_run(world, program, there, true);
  test_run(world, program, there, false);
  ts_program_destroy(&program);
  ts_free(deck);
  ts_free(there);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return ts_memory_live() == 0 ? status : 1;
}
