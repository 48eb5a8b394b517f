/* Pipelines in the simulator, where a send completes in its receive and not before: every schedule on grids of stages,
 * chunks, micro-batches and replicas is clean, and what is broken is named.  A sample of the grids; TEST_STAGE_ALL=1
 * does all of them, TEST_STAGE_ALL=zb_v those of a schedule. */
#include "regression/pass/grid.h"
#include "regression/tap.h"

#include "graph/op.h"
#include "run/simulate.h"

#include <stdlib.h>
#include <string.h>

/* Small, and of 34 units: as many pieces as any grid here has. */
#define LLAMA                                                                                                          \
  "model = { model_type = \"llama\"; vocab_size = 11; hidden_size = 8; intermediate_size = 8; num_hidden_layers = 31;" \
  " num_attention_heads = 2; max_position_embeddings = 8; tie_word_embeddings = false; };\n"                           \
  "data = { path = \"none\"; format = \"text\"; sequence_length = 4; };\n"                                             \
  "run = { directory = \"none\"; steps = 4; };\n"                                                                      \
  "train_micro_batch_size_per_gpu = 1;\n"                                                                              \
  "optimizer = { type = \"AdamW\"; params = { lr = 1e-2; }; };\n"

static char *simulate(const grid *g) {
  return ts_simulate_step((const ts_program *const *) g->program, g->ranks);
}

typedef struct shape {
  ts_pipeline_schedule schedule;
  int stages, chunks, micro_batches, dp, stage;
} shape;

static bool goes(const shape *s) {
  const ts_pipeline p = {s->schedule, s->stages, s->chunks, s->micro_batches};
  return ts_pipeline_check(&p, NULL) == TS_OK;
}

static grid make_for(const shape *s, const char *more, ts_model_use use) {
  char *sets = ts_format("pipeline.stages=%d pipeline.schedule=%s pipeline.virtual_stages=%d "
                         "gradient_accumulation_steps=%d zero_optimization.stage=%d %s",
                         s->stages, ts_pipeline_name(s->schedule), s->chunks, s->micro_batches, s->stage, more);
  grid g = make_grid(LLAMA, sets, s->stages * s->dp, use);
  ts_free(sets);
  return g;
}

static grid make(const shape *s, const char *more) {
  return make_for(s, more, TS_MODEL_TRAIN);
}

static void test_shape(const shape *s, int *wrong) {
  char *more =
      ts_format("%s model.tie_word_embeddings=%s zero_optimization.stage3_param_persistence_threshold=%d",
                s->stage % 2 == 1 ? "zero_optimization.overlap_comm=true" : "activation_checkpointing.enabled=true",
                s->micro_batches % 3 == 0 ? "true" : "false", s->micro_batches % 2 * 100000);
  grid g = make(s, more);
  char *fault = simulate(&g);
  if (fault != NULL && ++*wrong <= 5) {
    tap_note("%s, %d stages of %d, %d micro-batches, dp %d, stage %d: %s", ts_pipeline_name(s->schedule), s->stages,
             s->chunks, s->micro_batches, s->dp, s->stage, fault);
  }
  ts_free(fault);
  ts_free(more);
  free_grid(&g);
}

/* Of the whole table every `step`-th grid that goes. */
static void test_clean(ts_pipeline_schedule schedule, int step) {
  static const int stages[] = {2, 3, 4, 8};
  int wrong = 0, n = 0, done = 0;
  for (int p = 0; p < 4; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = 1; m <= 32; ++m) {
        for (int k = 0; k < 8; ++k) {
          const shape s = {schedule, stages[p], v, m, 1 + k / 4, k % 4};
          if (goes(&s) && n++ % step == 0) {
            test_shape(&s, &wrong);
            ++done;
          }
        }
      }
    }
  }
  tap_ok(wrong == 0 && done > 0, "%s: %d grids of %d are clean", ts_pipeline_name(schedule), done, n);
}

/* A tied table that is gathered, read in both chunks of one stage: each gathers it for itself. */
static void test_gathered_table(void) {
  int wrong = 0;
  for (int stage = 2; stage <= 3; ++stage) {
    test_shape(&(shape){TS_PIPELINE_ZB_V, 2, 2, 6, 2, stage}, &wrong);
    test_shape(&(shape){TS_PIPELINE_DUALPIPE_V, 3, 2, 6, 2, stage}, &wrong);
  }
  tap_ok(wrong == 0, "a table that two chunks read");
}

/* ---- what is broken is named ---- */

/* The instruction of a message, over a boundary or back. */
static ts_instruction *find_message(ts_program *p, ts_op op, bool back) {
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_node *node = &p->graph->node[p->schedule->instruction[i].node];
    if (node->op == op && node->attr.message.back == back) {
      return &p->schedule->instruction[i];
    }
  }
  TS_CHECK(false, "there is no message");
  return NULL;
}

static void drop(ts_program *p, ts_instruction *at) {
  ts_schedule *s = p->schedule;
  memmove(at, at + 1, (size_t) (s->instruction + s->n - at - 1) * sizeof *at);
  --s->n;
}

/* What is sent is not made yet. */
static void move_send(ts_program *p) {
  ts_instruction *at = find_message(p, TS_OP_SEND, true), send = *at;
  drop(p, at);
  ++p->schedule->n;
  memmove(p->schedule->instruction + 1, p->schedule->instruction, (size_t) (p->schedule->n - 1) * sizeof send);
  p->schedule->instruction[0] = send;
}

static void drop_send(ts_program *p) {
  drop(p, find_message(p, TS_OP_SEND, true));
}

static void omit_wait(ts_program *p) {
  drop(p, find_message(p, TS_OP_RECEIVE, false));
}

/* Nobody posts the second micro-batch's message. */
static void drop_receive(ts_program *p) {
  for (int64_t i = 0; i < p->step.n; ++i) {
    for (int64_t k = p->step.posted_before[i]; k < p->step.posted_before[i + 1]; ++k) {
      const ts_run *of = &p->step.run[p->step.posted[k]];
      if (of->micro_batch == 1 && p->step.kind[of->kind].phase == TS_RUN_FORWARD) {
        p->step.posted[k] = p->step.n - 1; /* as if for the update, which receives nothing */
      }
    }
  }
}

/* Messages come in another order than they are sent. */
static void swap_receives(ts_program *p) {
  int64_t *first = &p->step.posted[0];
  while (p->step.kind[p->step.run[*first].kind].phase != TS_RUN_FORWARD) {
    ++first;
  }
  int64_t *second = first + 1;
  while (p->step.kind[p->step.run[*second].kind].phase != TS_RUN_FORWARD) {
    ++second;
  }
  int64_t of = *first;
  *first = *second;
  *second = of;
}

/* The third micro-batch into the slot of the first, before that is done. */
static void reuse_slot(ts_program *p) {
  for (int64_t i = 0; i < p->step.n; ++i) {
    ts_run *run = &p->step.run[i];
    run->place[TS_LIFETIME_SLOT] = run->micro_batch == 1 ? 0 : run->place[TS_LIFETIME_SLOT];
  }
}

/* Gradients of weights of the second micro-batch where the first's are due: they would be added, not overwrite. */
static void take_other_beta(ts_program *p) {
  ts_run *run[2] = {NULL, NULL};
  for (int64_t i = 0; i < p->step.n; ++i) {
    ts_run *at = &p->step.run[i];
    if (p->step.kind[at->kind].segments == TS_SEGMENT_BACKWARD_WEIGHT && at->micro_batch < 2) {
      run[at->micro_batch] = at;
    }
  }
  ts_run first = *run[0];
  *run[0] = *run[1];
  *run[1] = first;
}

/* What is sent lies where the next micro-batch computes. */
static void share_message(ts_program *p) {
  const ts_node *send = &p->graph->node[find_message(p, TS_OP_SEND, true)->node];
  ts_address *at = &p->plan->address[send->in[0]];
  *at = (ts_address){TS_ARENA_WORK, 0};
}

static void test_faults(void) {
  static const struct {
    const char *what;
    void (*damage)(ts_program *program);
    ts_pipeline_schedule schedule;
    const char *expect[2];
  } rows[] = {
      {"a send is moved", move_send, TS_PIPELINE_1F1B, {"rank 1:", "before it is made"}},
      {"a send is dropped", drop_send, TS_PIPELINE_1F1B, {"deadlock: ", "rank 0: boundary.0.send.dx of micro-batch 0"}},
      {"a receive is dropped", drop_receive, TS_PIPELINE_1F1B, {"rank 1:", "boundary.0.receive, which was not posted"}},
      {"receives in another order", swap_receives, TS_PIPELINE_GPIPE, {"rank 1:", "micro-batch differs"}},
      {"a slot is reused early", reuse_slot, TS_PIPELINE_GPIPE, {"rank 1:", "in slot 0"}},
      {"a wait is omitted", omit_wait, TS_PIPELINE_1F1B, {"rank 1:", "boundary.0.receive"}},
      {"beta of another micro-batch",
       take_other_beta,
       TS_PIPELINE_ZB_H1,
       {"rank 1:", "of micro-batch 1 where that of 0 is due"}},
      {"a message among the scratch", share_message, TS_PIPELINE_1F1B, {"rank 1:", "boundary.0.receive.dx"}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    const shape s = {rows[i].schedule, 2, 1, 4, 1, 1};
    grid g = make(&s, "");
    rows[i].damage(g.program[1]);
    char *fault = simulate(&g);
    tap_ok(fault != NULL && strstr(fault, rows[i].expect[0]) && strstr(fault, rows[i].expect[1]), "%s: %s",
           rows[i].what, fault != NULL ? fault : "not found");
    ts_free(fault);
    free_grid(&g);
  }
}

/* What crosses of a grid, forward and back. */
static void count_bytes(const grid *g, int64_t bytes[2]) {
  bytes[0] = bytes[1] = 0;
  for (int rank = 0; rank < g->ranks; ++rank) {
    const ts_graph *of = g->program[rank]->graph;
    for (ts_nid n = 0; n < of->n_nodes; ++n) {
      for (int i = 0; i < of->node[n].n_in && of->node[n].op == TS_OP_SEND; ++i) {
        bytes[of->node[n].attr.message.back] += ts_tensor_bytes(of, of->node[n].in[i]);
      }
    }
  }
}

/* What two ranks along tp send over a boundary: rows of their own, or of what they have alike a half each, unless they
 * are told not to. */
static void test_parts(void) {
  static const struct {
    const char *sets;
    int forward, back; /* in halves of the whole */
  } row[] = {
      {"tensor_parallel.sequence_parallel=false pipeline.pipe_partitioned=false pipeline.grad_partitioned=false", 2, 2},
      {"tensor_parallel.sequence_parallel=true", 1, 1},
      {"tensor_parallel.sequence_parallel=false", 1, 1},
      {"tensor_parallel.sequence_parallel=false pipeline.grad_partitioned=false", 1, 2},
      {"tensor_parallel.sequence_parallel=false pipeline.pipe_partitioned=false", 2, 1},
      {"tensor_parallel.sequence_parallel=false activation_checkpointing.enabled=true pipeline.schedule=zb_h1", 1, 1}};
  int64_t whole[2], bytes[2];
  for (size_t k = 0; k < sizeof row / sizeof *row; ++k) {
    char *sets =
        ts_format("pipeline.stages=2 gradient_accumulation_steps=2 tensor_parallel.autotp_size=2 %s", row[k].sets);
    grid g = make_grid(LLAMA, sets, 4, TS_MODEL_TRAIN);
    count_bytes(&g, k == 0 ? whole : bytes);
    char *fault = simulate(&g);
    bool right = k == 0 ? whole[0] > 0 && whole[1] > 0
                        : 2 * bytes[0] == row[k].forward * whole[0] && 2 * bytes[1] == row[k].back * whole[1];
    tap_ok(right && fault == NULL, "tp 2, %s: %d and %d halves cross forward and back: %s", row[k].sets, row[k].forward,
           row[k].back, fault != NULL ? fault : "clean");
    ts_free(fault);
    ts_free(sets);
    free_grid(&g);
  }
}

/* Validations: forwards of many micro-batches, two slots on each stage. */
static void test_forwards(void) {
  static const shape shapes[] = {{TS_PIPELINE_1F1B, 2, 1, 4, 2, 0},        {TS_PIPELINE_1F1B, 4, 1, 4, 1, 3},
                                 {TS_PIPELINE_INTERLEAVED, 3, 3, 6, 1, 2}, {TS_PIPELINE_INTERLEAVED, 2, 4, 4, 2, 3},
                                 {TS_PIPELINE_ZB_V, 4, 2, 8, 1, 1},        {TS_PIPELINE_DUALPIPE_V, 3, 2, 6, 2, 3}};
  static const int micro_batches[] = {1, 2, 5, 9};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    const shape *s = &shapes[i];
    for (size_t k = 0; k < sizeof micro_batches / sizeof *micro_batches; ++k) {
      grid g = make_for(s, i % 2 == 0 ? "model.tie_word_embeddings=true" : "", TS_MODEL_LOSS);
      for (int rank = 0; rank < g.ranks; ++rank) {
        ts_step_set_micro_batches(&g.program[rank]->step, micro_batches[k]);
      }
      char *fault = simulate(&g);
      const ts_step_runs *step = &g.program[0]->step;
      tap_ok(fault == NULL && step->n == micro_batches[k] * s->chunks && ts_step_slots(step) == 2,
             "%s, %d stages of %d, a validation of %d micro-batches: %s", ts_pipeline_name(s->schedule), s->stages,
             s->chunks, micro_batches[k], fault != NULL ? fault : "clean");
      ts_free(fault);
      free_grid(&g);
    }
  }
}

int main(void) {
  const char *all = getenv("TEST_STAGE_ALL");
  bool one = all != NULL && ts_pipeline_find(all) < TS_N_PIPELINES;
  static const int step[TS_N_PIPELINES] = {251, 251, 331, 251, 227, 227};
  for (int i = 0; i < TS_N_PIPELINES; ++i) {
    if (!one || ts_pipeline_find(all) == (ts_pipeline_schedule) i) {
      test_clean((ts_pipeline_schedule) i, all != NULL ? 1 : step[i]);
    }
  }
  test_gathered_table();
  test_forwards();
  test_parts();
  test_faults();
  return tap_done();
}
