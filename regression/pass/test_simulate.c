/* The programs of all ranks of large grids, stepped in one process; and that the simulator names what is broken. */
#include "regression/exchange_graph.h"
#include "regression/pass/grid.h"
#include "regression/tap.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "ops/build.h"
#include "pass/storage.h"
#include "run/simulate.h"

#include <stdlib.h>
#include <string.h>

static char *simulate(const grid *g) {
  return ts_simulate_step((const ts_program *const *) g->program, g->ranks);
}

/* States in files, in pieces that are read ahead and written behind. */
#define FILES                                                                                    \
  "zero_optimization={offload_optimizer={device=\"nvme\";nvme_path=\"/x\";};sub_group_size=1;} " \
  "zero_optimization.stage3_param_persistence_threshold=0"

/* ---- what must be right ---- */

static void expect_clean(const char *name, const char *text, const char *sets, int ranks, ts_model_use use) {
  grid g = make_grid(text, sets, ranks, use);
  char *fault = simulate(&g);
  tap_ok(fault == NULL, "%s on %d ranks, %s: %s", name, ranks, sets, fault != NULL ? fault : "clean");
  ts_free(fault);
  free_grid(&g);
}

/* On 512 ranks one of the stages; with TEST_SIMULATE_ALL each. */
static void test_stages(const char *name, const char *text, int large) {
  static const char *const variant[] = {
      "zero_optimization.overlap_comm=true",
      "zero_optimization.overlap_comm=false gradient_accumulation_steps=3",
      "zero_optimization.overlap_comm=true gradient_accumulation_steps=3 bf16.enabled=true "
      "zero_optimization.reduce_bucket_size=30000 zero_optimization.allgather_bucket_size=20000",
      "zero_optimization.overlap_comm=true activation_checkpointing.enabled=true activation_checkpointing.interval=2 "
      "zero_optimization.stage3_param_persistence_threshold=0 zero_optimization.stage3_prefetch_bucket_size=60000 "
      "zero_optimization.reduce_bucket_size=5000 zero_optimization.stage3_max_reuse_distance=0",
      "zero_optimization.overlap_comm=true torch_autocast.enabled=true gradient_accumulation_steps=2 "
      "zero_optimization.stage3_param_persistence_threshold=100 zero_optimization.stage3_prefetch_bucket_size=60000",
      FILES " gradient_accumulation_steps=2 bf16.enabled=true"};
  for (int stage = 0; stage <= 3; ++stage) {
    for (size_t i = 0; i < sizeof variant / sizeof *variant; ++i) {
      char *sets = ts_format("zero_optimization.stage=%d %s", stage, variant[i]);
      expect_clean(name, text, sets, 64, TS_MODEL_TRAIN);
      ts_free(sets);
    }
    char *sets = ts_format("zero_optimization.stage=%d zero_optimization.overlap_comm=true "
                           "zero_optimization.stage3_param_persistence_threshold=1000",
                           stage);
    if (stage == large || getenv("TEST_SIMULATE_ALL") != NULL) {
      expect_clean(name, text, sets, 512, TS_MODEL_TRAIN);
    }
    expect_clean(name, text, sets, 64, TS_MODEL_LOSS);
    ts_free(sets);
  }
}

/* Files beside a device. */
static void test_device(const char *name, const char *text) {
  grid_backend = null_device();
  for (int stage = 0; stage <= 3; ++stage) {
    char *sets = ts_format(
        FILES " zero_optimization.stage=%d gradient_accumulation_steps=2 bf16.enabled=true "
              "zero_optimization.stage3_max_live_parameters=0 %s",
        stage, stage == 3 ? "zero_optimization.offload_param={device=\"nvme\";nvme_path=\"/x\";max_in_cpu=3000;}" : "");
    char *hosted = ts_format("%s run.offload_update=host", sets);
    expect_clean(name, text, sets, 8, TS_MODEL_TRAIN);
    expect_clean(name, text, hosted, 8, TS_MODEL_TRAIN);
    expect_clean(name, text, sets, 8, TS_MODEL_LOSS);
    ts_free(sets);
    ts_free(hosted);
  }
  grid_backend = NULL;
}

/* Whether updates wait or not, as much is gathered of them in a step. */
static void test_sent(void) {
  double step[2];
  for (int waits = 0; waits < 2; ++waits) {
    char *sets = ts_format(FILES " zero_optimization.stage=1 sequence_parallel_size=2 gradient_accumulation_steps=3 "
                                 "zero_optimization.offload_optimizer.super_offload=%s",
                           waits ? "true" : "false");
    grid g = make_grid(llama, sets, 2, TS_MODEL_TRAIN);
    step[waits] = ts_program_sent(g.program[0], TS_AXIS_SP).step;
    free_grid(&g);
    ts_free(sets);
  }
  tap_ok(step[0] > 0 && step[1] == step[0], "sent over sp in a step: %g bytes, %g where updates wait", step[0],
         step[1]);
}

static int64_t peak_of(const char *text, const char *sets) {
  grid g = make_grid(text, sets, 4, TS_MODEL_TRAIN);
  int64_t most = 0;
  for (int r = 0; r < g.ranks; ++r) {
    most = g.program[r]->plan->peak_bytes > most ? g.program[r]->plan->peak_bytes : most;
  }
  free_grid(&g);
  return most;
}

/* Ranks that have more experts than others keep less for the backward, within one limit; gathers of what waits have one
 * order among the exchanges all the same. */
static void test_kept_of_experts(int stage) {
  char *sets = ts_format(FILES " aio={block_size=4096;queue_depth=1;} zero_optimization.stage=%d "
                               "compile.offload_activation=true expert_parallel.autoep_size=4 moe.dispatch=alltoall "
                               "zero_optimization.stage3_param_persistence_threshold=200 " /* norms do not wait */
                               "gradient_accumulation_steps=2",
                         stage);
  char *none = ts_format("%s run.memory_limit=1", sets);
  const int64_t least = peak_of(mixture, none), most = peak_of(mixture, sets);
  bool clean = true, apart = false;
  char *fault = NULL;
  for (int part = 1; part < 8 && clean; ++part) {
    char *limited = ts_format("%s run.memory_limit=%lldL", sets, (long long) (least + (most - least) * part / 8));
    grid g = make_grid(mixture, limited, 4, TS_MODEL_TRAIN);
    for (int r = 1; r < g.ranks; ++r) {
      apart = apart || g.program[r]->kept_away != g.program[0]->kept_away;
    }
    fault = simulate(&g);
    clean = fault == NULL;
    free_grid(&g);
    ts_free(limited);
  }
  tap_ok(clean && apart, "stage %d: ranks keep more than others (%s): %s", stage, apart ? "so" : "they do not",
         clean ? "clean" : fault);
  ts_free(fault);
  ts_free(none);
  ts_free(sets);
}

static bool computes(const ts_node *node) {
  return node->segment == TS_SEGMENT_FORWARD && !ts_node_is_copy(node) && !ts_node_is_window(node) &&
         !ts_node_is_collective(node);
}

/* The first node of the forward behind n that reads what it makes, n_nodes for none. */
static ts_nid find_reader(const ts_graph *g, const ts_place *place, ts_nid n) {
  ts_nid m = n + 1;
  for (; m < g->n_nodes; ++m) {
    for (int i = 0; i < g->node[m].n_in && computes(&g->node[m]); ++i) {
      for (int k = 0; k < g->node[n].n_out; ++k) {
        if (g->node[m].in[i] != TS_NONE && place[g->node[m].in[i]].root == place[g->node[n].out[k]].root) {
          return m;
        }
      }
    }
  }
  return m;
}

/* Between a gather and what reads it another unit is computed, or nothing is before it. */
static bool is_ahead(const ts_graph *g, const ts_place *place, ts_nid n) {
  const ts_nid reader = find_reader(g, place, n);
  bool first = true, other = false;
  for (ts_nid m = 0; m < reader; ++m) {
    first = first && (m > n || !computes(&g->node[m]));
    other = other || (m > n && computes(&g->node[m]) && g->node[m].unit != g->node[reader].unit);
  }
  return first || other;
}

/* Of blocks whose inputs leave the gathers of what waited are ahead all the same, but for norms, which do not wait. */
static void test_gathers_ahead(void) {
  const char *sets = FILES " aio={block_size=4096;queue_depth=1;} zero_optimization.stage=1 "
                           "compile.offload_activation=true run.memory_limit=1 "
                           "zero_optimization.stage3_param_persistence_threshold=200";
  grid g = make_grid(llama, sets, 2, TS_MODEL_TRAIN);
  const ts_graph *graph = g.program[0]->graph;
  ts_place *place = ts_storage_find(graph);
  int gathers = 0, ahead = 0;
  for (ts_nid n = 0; n < graph->n_nodes; ++n) {
    gathers += graph->node[n].segment == TS_SEGMENT_LATE_GATHER;
    ahead += graph->node[n].segment == TS_SEGMENT_LATE_GATHER && is_ahead(graph, place, n);
  }
  tap_ok(gathers > 2 && ahead == gathers && g.program[0]->kept_away > 0,
         "%d tensors kept away: of %d gathers of updates %d are a unit ahead", g.program[0]->kept_away, gathers, ahead);
  ts_free(place);
  free_grid(&g);
}

/* What stages keep for the backward in files: each micro-batch that is under way in its place. */
static void test_kept(void) {
  static const char *const schedule[] = {"1f1b", "interleaved", "zb_h1", "zb_v"};
  for (size_t i = 0; i < sizeof schedule / sizeof *schedule; ++i) {
    char *resident = ts_format("pipeline.stages=2 gradient_accumulation_steps=6 train_batch_size=\"auto\" "
                               "pipeline.schedule=%s model.num_hidden_layers=12 model.max_position_embeddings=256 "
                               "data.sequence_length=256 compile.offload_activation=true",
                               schedule[i]);
    char *away = ts_format("%s zero_optimization.offload_optimizer={device=\"nvme\";nvme_path=\"/x\";} "
                           "aio={block_size=4096;queue_depth=1;}",
                           resident);
    char *none = ts_format("%s run.memory_limit=1", away);
    const int64_t least = peak_of(llama, none), most = peak_of(llama, resident);
    char *limited = ts_format("%s run.memory_limit=%lldL", away, (long long) (least + (most - least) / 4));
    grid g = make_grid(llama, limited, 4, TS_MODEL_TRAIN);
    char *fault = simulate(&g);
    int units = 0, fit = 0;
    for (int r = 0; r < g.ranks; ++r) {
      units += g.program[r]->units_away;
      fit += g.program[r]->plan->peak_bytes <= g.deck->run.memory_limit;
    }
    tap_ok(fault == NULL && units > 0 && fit == g.ranks,
           "%s: what %d units of all ranks keep is in files, within %lld of %lld bytes: %s", schedule[i], units,
           (long long) g.deck->run.memory_limit, (long long) most, fault != NULL ? fault : "clean");
    ts_free(fault);
    free_grid(&g);
    ts_free(limited);
    ts_free(none);
    ts_free(away);
    ts_free(resident);
  }
}

/* Experts over some ranks or all that have other samples, beside every other axis. */
static void test_experts(void) {
  static const char *const grid[] = {
      "expert_parallel.autoep_size=4",
      "expert_parallel.autoep_size=13",
      "expert_parallel.autoep_size=4 tensor_parallel.autotp_size=2",
      "expert_parallel.autoep_size=2 tensor_parallel.autotp_size=2 tensor_parallel.sequence_parallel=false",
      "expert_parallel.autoep_size=2 sequence_parallel_size=2 moe.balance_over=sequence",
      "expert_parallel.autoep_size=2 pipeline.stages=2 gradient_accumulation_steps=4 pipeline.schedule=zb_h1",
      "expert_parallel.autoep_size=3 gradient_accumulation_steps=2 activation_checkpointing.enabled=true",
      "expert_parallel.autoep_size=4 moe.token_chunks=3 moe.save=nothing",
      "expert_parallel={autoep_size=4;expert_tensor_parallel_size=3;} tensor_parallel.autotp_size=3",
      "expert_parallel={autoep_size=2;expert_tensor_parallel_size=2;} tensor_parallel.autotp_size=2 moe.token_chunks=2 "
      "tensor_parallel.sequence_parallel=false activation_checkpointing.enabled=true",
      "expert_parallel.autoep_size=2 zero_optimization.stage3_param_persistence_threshold=0 "
      "zero_optimization.stage3_prefetch_bucket_size=200000", /* between what two ranks have of a layer's experts */
      /* ranks let other parts leave than others, and updates wait */
      FILES " zero_optimization.offload_optimizer.ratio=0.5 expert_parallel.autoep_size=4",
      FILES
      " zero_optimization.offload_optimizer.ratio=0.7 expert_parallel.autoep_size=2 tensor_parallel.autotp_size=2 "
      "tensor_parallel.sequence_parallel=false gradient_accumulation_steps=2",
  };
  static const int ranks[] = {16, 26, 16, 8, 8, 8, 6, 8, 24, 8, 8, 16, 8};
  for (size_t i = 0; i < sizeof grid / sizeof *grid; ++i) {
    for (int stage = 0; stage <= 3; ++stage) {
      char *sets =
          ts_format("zero_optimization.stage=%d zero_optimization.overlap_comm=true "
                    "zero_optimization.stage3_param_persistence_threshold=1000 bf16.enabled=%s "
                    "moe.dispatch=%s %s",
                    stage, stage % 2 == 0 ? "true" : "false", stage / 2 == 0 ? "alltoall" : "allgather", grid[i]);
      expect_clean("mixture", mixture, sets, ranks[i], TS_MODEL_TRAIN);
      ts_free(sets);
    }
    expect_clean("mixture", mixture, grid[i], ranks[i], TS_MODEL_LOSS);
  }
}

/* ---- what must be found ---- */

/* Instruction k of the schedule that is of this kind and op, from the `skip`th on. */
static int find_instruction(const ts_program *p, ts_instruction_kind kind, ts_op op, int skip) {
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_instruction *instruction = &p->schedule->instruction[i];
    if (instruction->kind == kind && p->graph->node[instruction->node].op == op && skip-- == 0) {
      return i;
    }
  }
  ts_die(__FILE__, __LINE__, "there is no such instruction");
}

static void remove_instruction(ts_program *p, int at) {
  --p->schedule->n;
  memmove(&p->schedule->instruction[at], &p->schedule->instruction[at + 1],
          (size_t) (p->schedule->n - at) * sizeof *p->schedule->instruction);
}

static void drop_collective(ts_program *p, ts_op op, int skip) {
  int at = find_instruction(p, TS_ISSUE, op, skip);
  ts_nid node = p->schedule->instruction[at].node;
  for (int i = p->schedule->n - 1; i >= 0; --i) {
    if (p->schedule->instruction[i].node == node) {
      remove_instruction(p, i);
    }
  }
}

static int count_issues(const ts_program *p, ts_op op) {
  int n = 0;
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_instruction *instruction = &p->schedule->instruction[i];
    n += instruction->kind == TS_ISSUE && p->graph->node[instruction->node].op == op;
  }
  return n;
}

static void swap_gathers(ts_program *p) {
  ts_instruction *list = p->schedule->instruction;
  int a = find_instruction(p, TS_ISSUE, TS_OP_ALL_GATHER, 0), b = find_instruction(p, TS_ISSUE, TS_OP_ALL_GATHER, 1);
  ts_instruction first = list[a];
  list[a] = list[b];
  list[b] = first;
}

static void drop_a_gather(ts_program *p) {
  drop_collective(p, TS_OP_ALL_GATHER, 0);
}
static void drop_a_reduction(ts_program *p) {
  drop_collective(p, TS_OP_REDUCE_SCATTER, 0);
}
static void drop_last_gather(ts_program *p) {
  drop_collective(p, TS_OP_ALL_GATHER, count_issues(p, TS_OP_ALL_GATHER) - 1);
}

static ts_node *a_reduction(ts_program *p) {
  int at = find_instruction(p, TS_ISSUE, TS_OP_REDUCE_SCATTER, 0);
  return &p->graph->node[p->schedule->instruction[at].node];
}

/* Nodes do not change: only to break them. */
static ts_piece *a_piece(ts_program *p) {
  return (ts_piece *) a_reduction(p)->attr.comm.piece;
}

static void change_piece(ts_program *p) {
  a_piece(p)->end -= 32;
}
static void change_wire(ts_program *p) {
  a_reduction(p)->attr.comm.wire = TS_BF16;
}
static void change_pieces_at_equal_columns(ts_program *p) {
  a_piece(p)->begin += 32;
  a_piece(p)->end += 32;
}

static void drop_first_wait(ts_program *p) {
  remove_instruction(p, find_instruction(p, TS_WAIT, TS_OP_ALL_GATHER, 0));
}
static void drop_last_wait(ts_program *p) {
  int n = count_issues(p, TS_OP_ALL_GATHER);
  remove_instruction(p, find_instruction(p, TS_WAIT, TS_OP_ALL_GATHER, n - 1));
}

static void wait_too_early(ts_program *p) {
  ts_instruction *list = p->schedule->instruction;
  int issue = find_instruction(p, TS_ISSUE, TS_OP_REDUCE_SCATTER, 0);
  int wait = find_instruction(p, TS_WAIT, TS_OP_REDUCE_SCATTER, 0);
  ts_instruction first = list[issue];
  list[issue] = list[wait];
  list[wait] = first;
}

/* What the first norm keeps for its backward is put where the first product writes. */
static void share_memory(ts_program *p) {
  int norm = find_instruction(p, TS_RUN, TS_OP_RMSNORM, 0), product = find_instruction(p, TS_RUN, TS_OP_MATMUL, 0);
  ts_tid kept = p->graph->node[p->schedule->instruction[norm].node].out[1];
  ts_tid made = p->graph->node[p->schedule->instruction[product].node].out[0];
  p->plan->address[kept] = p->plan->address[made];
}

/* The first load is the first thing to be used. */
static void drop_wait_for_load(ts_program *p) {
  remove_instruction(p, find_instruction(p, TS_WAIT, TS_OP_LOAD, 0));
}
static void drop_load(ts_program *p) {
  drop_collective(p, TS_OP_LOAD, 0);
}
/* What it writes from is used by what comes next. */
static void drop_wait_for_store(ts_program *p) {
  remove_instruction(p, find_instruction(p, TS_WAIT, TS_OP_STORE, 0));
}
static void drop_wait_for_copy_out(ts_program *p) {
  remove_instruction(p, find_instruction(p, TS_WAIT, TS_OP_COPY_OUT, 0));
}

static void drop_last_wait_for_store(ts_program *p) {
  remove_instruction(p, find_instruction(p, TS_WAIT, TS_OP_STORE, count_issues(p, TS_OP_STORE) - 1));
}

static void shrink_arena(ts_program *p) {
  p->plan->arena_bytes[TS_ARENA_WORK] -= TS_PLAN_ALIGN;
}

typedef struct fault_row {
  const char *what;
  const char *sets;
  int rank;
  void (*damage)(ts_program *program);
  const char *expect[3]; /* what the message names */
} fault_row;

#define STAGE(n) "zero_optimization.overlap_comm=true zero_optimization.stage=" #n
#define SHARDED STAGE(3) " zero_optimization.stage3_param_persistence_threshold=0"
#define SMALL " zero_optimization.allgather_bucket_size=20000"
/* the first bucket is full when the head, 256 x 96, is in it */
#define HEAD_ALONE STAGE(2) " zero_optimization.reduce_bucket_size=24576"

static const fault_row faults[] = {
    {"two gathers in another order",
     SHARDED,
     3,
     swap_gathers,
     {"rank 0: all_gather", "rank 3: all_gather", "name differs"}},
    {"a gather dropped that is needed", SHARDED, 3, drop_a_gather, {"rank 3:", "reads", "before it is made"}},
    {"a reduction dropped",
     HEAD_ALONE,
     5,
     drop_a_reduction,
     {"rank 0: reduce_scatter", "rank 5: reduce_scatter", "name differs"}},
    {"the last gather dropped",
     STAGE(1) SMALL,
     5,
     drop_last_gather,
     {"deadlock", "rank 0: all_gather", "waits for rank 5, which has ended"}},
    {"a piece that is shorter",
     STAGE(2),
     2,
     change_piece,
     {"rank 0: reduce_scatter", "rank 2: reduce_scatter", "pieces differ"}},
    {"a piece that lies elsewhere",
     STAGE(2),
     0,
     change_pieces_at_equal_columns,
     {"rank 0: reduce_scatter", "rank 1: reduce_scatter", "pieces differ"}},
    {"another wire dtype",
     STAGE(2),
     7,
     change_wire,
     {"rank 0: reduce_scatter", "rank 7: reduce_scatter", "wire dtype or its divisor differ"}},
    {"a gather not waited for", SHARDED, 4, drop_first_wait, {"rank 4:", "touches memory of", "in flight"}},
    {"the last gather not waited for",
     STAGE(1),
     4,
     drop_last_wait,
     {"rank 4:", "gather_update", "not waited for when its phase ends"}},
    {"a reduction waited for too early", STAGE(2), 1, wait_too_early, {"rank 1:", "waits for", "not issued"}},
    {"two values in one place",
     STAGE(0),
     6,
     share_memory,
     {"rank 6:", "was written over its memory", "input_layernorm:1"}},
    {"a load not waited for", FILES, 4, drop_wait_for_load, {"rank 4:", "adamw", "in flight"}},
    {"a load dropped that is needed", FILES, 4, drop_load, {"rank 4:", ".load", "before it is made"}},
    {"a store not waited for",
     FILES,
     2,
     drop_wait_for_store,
     {"rank 2:", "touches memory of", ".store, which is in flight"}},
    {"the last store not waited for", FILES, 2, drop_last_wait_for_store, {"rank 2:", ".store", "not waited for when"}},
    {"an arena too small", STAGE(0), 6, shrink_arena, {"rank 6:", "outside the work arena", ""}},
};

/* The same beside a device, which files come to and go from by way of the host's memory. */
static const fault_row device_faults[] = {
    {"a load not waited for before it is copied on",
     FILES,
     4,
     drop_wait_for_load,
     {"rank 4:", "touches memory of", ".load, which is in flight"}},
    {"a store of what is not brought yet",
     FILES,
     2,
     drop_wait_for_copy_out,
     {"rank 2:", "touches memory of", ".out, which is in flight"}},
};

static void test_fault(const fault_row *row) {
  grid g = make_grid(llama, row->sets, 8, TS_MODEL_TRAIN);
  row->damage(g.program[row->rank]);
  char *fault = simulate(&g);
  bool named = fault != NULL;
  for (int i = 0; named && i < 3; ++i) {
    named = strstr(fault, row->expect[i]) != NULL;
  }
  tap_ok(named, "%s: %s", row->what, fault != NULL ? fault : "not found");
  ts_free(fault);
  free_grid(&g);
}

/* ---- two sets of axes ---- */

/* Let a part be spread over dp alone, as an expert's will be. */
static void spread_over_dp(ts_part *part, const ts_mesh *mesh) {
  part->axes = TS_AXES(TS_AXIS_DP);
  part->group = 2;
  part->rank = mesh->coord[TS_AXIS_DP];
  part->owned = mesh->coord[TS_AXIS_EP] == 0;
  part->shard = (part->count / 2 + TS_LAYOUT_ALIGN - 1) / TS_LAYOUT_ALIGN * TS_LAYOUT_ALIGN;
  part->cuts[1] = part->shard;
  part->cuts[2] = part->count;
}

/* Units with parts of both kinds: a message is of one group, and one unit may need two gathers. */
static void test_parts_of_two_groups(int stage) {
  char *sets = ts_format("zero_optimization.stage=%d zero_optimization.overlap_comm=true "
                         "zero_optimization.stage3_param_persistence_threshold=1000 frozen=[\"v_proj\"]",
                         stage);
  ts_deck *deck = read_deck(llama, sets, 4);
  ts_layout *layout[4];
  ts_program *program[4];
  for (int r = 0; r < 4; ++r) {
    ts_mesh mesh;
    TS_CHECK(ts_mesh_init(&mesh, (const int[TS_N_AXES]){1, 2, 2, 1, 1}, 4, r, NULL) == TS_OK, "2 x 2");
    ts_graph *model = ts_model_build(deck, TS_MODEL_TRAIN,
                                     (ts_model_size){1, deck->data.sequence_length, deck->data.sequence_length});
    layout[r] = ts_layout_create(model, NULL, NULL, deck, &mesh);
    ts_graph_destroy(&model);
    for (int i = 1; i < layout[r]->n_parts; i += 2) {
      spread_over_dp(&layout[r]->part[i], &mesh);
    }
    program[r] = ts_program_create(&(ts_program_options){.deck = deck,
                                                         .mesh = &mesh,
                                                         .target = {ts_backend_null(), 1, TS_CUDNN_NEVER},
                                                         .use = TS_MODEL_TRAIN,
                                                         .batch = 1,
                                                         .length = deck->data.sequence_length,
                                                         .layout = layout[r]});
  }
  char *fault = ts_simulate_step((const ts_program *const *) program, 4);
  int wrong = 0, over_dp = 0;
  for (ts_nid n = 0; n < program[0]->graph->n_nodes; ++n) {
    const ts_node *node = &program[0]->graph->node[n];
    bool dp = ts_node_is_collective(node) && node->attr.comm.axes == TS_AXES(TS_AXIS_DP);
    over_dp += dp;
    wrong += dp && node->attr.comm.group != 2;
    for (int i = 0; dp && i < node->attr.comm.n_pieces; ++i) {
      const int64_t *cuts = node->attr.comm.piece[i].cuts;
      wrong += cuts[2] <= cuts[1] || cuts[2] > 1 << 20;
    }
  }
  tap_ok(fault == NULL && over_dp > 0 && wrong == 0, "parts of two groups at stage %d, %d messages of the smaller: %s",
         stage, over_dp, fault != NULL ? fault : "clean");
  ts_free(fault);
  for (int r = 0; r < 4; ++r) {
    ts_program_destroy(&program[r]);
    ts_layout_destroy(&layout[r]);
  }
  ts_deck_destroy(&deck);
  ts_free(sets);
}

/* A program of two gathers, over dp and over sp, in the order asked for. */
static ts_program make_two_gathers(int rank, bool dp_first, const int64_t *cuts) {
  ts_program p = {.use = TS_MODEL_LOSS,
                  .graph = ts_graph_create(),
                  .step = ts_step_of(TS_MODEL_LOSS, 1, NULL),
                  .schedule = ts_calloc(1, sizeof *p.schedule),
                  .plan = ts_calloc(1, sizeof *p.plan)};
  TS_CHECK(ts_mesh_init(&p.mesh, (const int[TS_N_AXES]){1, 2, 1, 2, 1}, 4, rank, NULL) == TS_OK, "2 x 2");
  ts_tid x = ts_graph_leaf(p.graph, "x", TS_ROLE_STATE, TS_F32, TS_SHAPE(32), -1);
  p.schedule->instruction = ts_calloc(4, sizeof *p.schedule->instruction);
  for (int i = 0; i < 2; ++i) {
    ts_piece piece = {.input = 0, .cuts = cuts, .begin = 0, .end = 32};
    bool dp = dp_first == (i == 0);
    ts_build_all_gather(ts_graph_site(p.graph), dp ? "over_dp" : "over_sp", TS_AXES(dp ? TS_AXIS_DP : TS_AXIS_SP), 2, 1,
                        &x, NULL, 1, &piece);
    p.schedule->instruction[p.schedule->n++] = (ts_instruction){TS_ISSUE, i};
    p.schedule->instruction[p.schedule->n++] = (ts_instruction){TS_WAIT, i};
  }
  size_t n_tensors = (size_t) p.graph->n_tensors, n_nodes = (size_t) p.graph->n_nodes;
  p.plan->address = ts_calloc(n_tensors, sizeof *p.plan->address);
  p.plan->workspace = ts_calloc(n_nodes, sizeof *p.plan->workspace);
  p.plan->workspace_bytes = ts_calloc(n_nodes, sizeof *p.plan->workspace_bytes);
  return p;
}

static char *simulate_two_gathers(const bool dp_first[4]) {
  static const int64_t cuts[] = {0, 32, 64};
  ts_program program[4];
  const ts_program *list[4];
  for (int r = 0; r < 4; ++r) {
    program[r] = make_two_gathers(r, dp_first[r], cuts);
    list[r] = &program[r];
  }
  char *fault = ts_simulate_step(list, 4);
  for (int r = 0; r < 4; ++r) {
    ts_graph_destroy(&program[r].graph);
    ts_schedule_destroy(&program[r].schedule);
    ts_step_clear(&program[r].step);
    ts_plan_destroy(&program[r].plan);
  }
  return fault;
}

/* Rank 0 waits over dp for 2, it over sp for 3, it over dp for 1, it over sp for 0. */
static void test_circle(void) {
  char *fault = simulate_two_gathers((const bool[]){true, true, true, true});
  tap_ok(fault == NULL, "two groups in one order: %s", fault != NULL ? fault : "clean");
  ts_free(fault);
  fault = simulate_two_gathers((const bool[]){true, false, false, true});
  bool named = fault != NULL && strstr(fault, "deadlock") && strstr(fault, "over_dp") && strstr(fault, "over_sp");
  tap_ok(named, "two groups in a circle: %s", fault != NULL ? fault : "not found");
  ts_free(fault);
}

/* ---- blocks ---- */

/* A program of one exchange over sp. */
static ts_program make_exchange(const exchange_case *c, int rank) {
  ts_program p = {.use = TS_MODEL_LOSS,
                  .graph = ts_graph_create(),
                  .step = ts_step_of(TS_MODEL_LOSS, 1, NULL),
                  .schedule = ts_calloc(1, sizeof *p.schedule),
                  .plan = ts_calloc(1, sizeof *p.plan)};
  ts_tid x[TS_MOST_EXCHANGED];
  TS_CHECK(ts_mesh_init(&p.mesh, (const int[TS_N_AXES]){1, 1, 1, c->size, 1}, c->size, rank, NULL) == TS_OK, "sp");
  exchange_leaves(c, rank, p.graph, TS_ROLE_STATE, x);
  exchange_node(c, rank, ts_graph_site(p.graph), "exchange", TS_AXES(TS_AXIS_SP), x);
  p.schedule->n = 2;
  p.schedule->instruction = ts_calloc(2, sizeof *p.schedule->instruction);
  p.schedule->instruction[0] = (ts_instruction){TS_ISSUE, 0};
  p.schedule->instruction[1] = (ts_instruction){TS_WAIT, 0};
  p.plan->address = ts_calloc((size_t) p.graph->n_tensors, sizeof *p.plan->address);
  p.plan->workspace = ts_calloc(1, sizeof *p.plan->workspace);
  p.plan->workspace_bytes = ts_calloc(1, sizeof *p.plan->workspace_bytes);
  return p;
}

/* Of rank 1's program: block 0 of what arrives there is from rank 0. */
static ts_block *arriving(ts_program *p) {
  ts_attr *attr = &p->graph->node[0].attr;
  return (ts_block *) attr->comm.block + p->graph->node[0].n_out + attr->comm.n_sent;
}

static void drop_first_block(ts_program *p) {
  ts_attr *attr = &p->graph->node[0].attr;
  --attr->comm.n_received;
  memmove(arriving(p), arriving(p) + 1, (size_t) attr->comm.n_received * sizeof(ts_block));
}
static void drop_last_block(ts_program *p) {
  --p->graph->node[0].attr.comm.n_received;
}
static void rename_tensor(ts_program *p) {
  arriving(p)->tensor = 1;
}
static void shorten_block(ts_program *p) {
  --arriving(p)->rows.length;
}
static void narrow_block(ts_program *p) {
  --arriving(p)->columns.length;
}
static void change_dtype(ts_program *p) {
  p->graph->tensor[p->graph->node[0].out[0]].dtype = TS_BF16;
}
static void change_second_dtype(ts_program *p) {
  p->graph->tensor[p->graph->node[0].out[1]].dtype = TS_BF16;
}
static void add_batch(ts_program *p) {
  ++p->graph->tensor[p->graph->node[0].out[0]].shape.d[0];
}
static void redirect_block(ts_program *p) {
  ts_attr *attr = &p->graph->node[0].attr;
  ((ts_block *) attr->comm.block)[p->graph->node[0].n_out + attr->comm.n_sent - 2].rank = 1;
}

/* Rank 0 has 4 of 11 tokens, rank 1 two of 6 query heads of 4 columns and both key heads; 2 samples. */
static const struct {
  const char *what;
  void (*damage)(ts_program *program);
  const char *expect[3];
} block_faults[] = {
    {"nothing", NULL, {NULL}},
    {"a block that is not expected",
     drop_first_block,
     {"rank 0: all_to_all exchange of 6 blocks sent, 6 received, while rank 1: ", "5 received",
      "2 blocks leave the one for the other, 1 are expected there"}},
    {"the last block not expected",
     drop_last_block,
     {"rank 2: all_to_all exchange", "while rank 1: ", "2 blocks leave the one for the other, 1 are"}},
    {"a block of another tensor",
     rename_tensor,
     {"rank 0: ", "rank 1: ",
      "block 0 between them leaves as 2 x 4 x 8 of fp32 of tensor 0 and is expected as 2 x 4 x 8 of fp32 of tensor 1"}},
    {"a block of fewer rows",
     shorten_block,
     {"rank 0: ", "rank 1: ", "leaves as 2 x 4 x 8 of fp32 of tensor 0 and is expected as 2 x 3 x 8 of fp32"}},
    {"a block of fewer columns",
     narrow_block,
     {"rank 0: ", "rank 1: ", "leaves as 2 x 4 x 8 of fp32 of tensor 0 and is expected as 2 x 4 x 7 of fp32"}},
    {"another dtype of the first tensor", change_dtype, {"rank 0: ", "rank 1: ", "dtype differs"}},
    {"another dtype of the second",
     change_second_dtype,
     {"rank 0: ", "rank 1: ",
      "block 1 between them leaves as 2 x 4 x 8 of fp32 of tensor 1 and is expected as 2 x 4 x 8 of bf16"}},
    {"another number of samples",
     add_batch,
     {"rank 0: ", "rank 1: ", "leaves as 2 x 4 x 8 of fp32 of tensor 0 and is expected as 3 x 4 x 8 of fp32"}},
    {"a block that goes elsewhere",
     redirect_block,
     {"rank 1: ", "rank 1: ", "3 blocks leave the one for the other, 2 are expected there"}},
};

static void test_block_faults(void) {
  exchange_case *c = ts_malloc(sizeof *c);
  for (size_t i = 0; i < sizeof block_faults / sizeof *block_faults; ++i) {
    ts_program program[3];
    const ts_program *list[3];
    exchange_heads(c, 3, TS_F32);
    for (int r = 0; r < 3; ++r) {
      program[r] = make_exchange(c, r);
      list[r] = &program[r];
    }
    if (block_faults[i].damage != NULL) {
      block_faults[i].damage(&program[1]);
    }
    char *fault = ts_simulate_step(list, 3);
    bool named = (fault != NULL) == (block_faults[i].damage != NULL);
    for (int k = 0; fault != NULL && k < 3; ++k) {
      named = named && strstr(fault, block_faults[i].expect[k]) != NULL;
    }
    tap_ok(named, "an exchange with %s: %s", block_faults[i].what, fault != NULL ? fault : "clean");
    ts_free(fault);
    for (int r = 0; r < 3; ++r) {
      ts_graph_destroy(&program[r].graph);
      ts_schedule_destroy(&program[r].schedule);
      ts_step_clear(&program[r].step);
      ts_plan_destroy(&program[r].plan);
    }
  }
  ts_free(c);
}

int main(void) {
  double start = ts_seconds();
  test_stages("llama", llama, 3);
  test_stages("gpt2", gpt2, 2);
  test_experts();
  test_sent();
  test_kept();
  test_gathers_ahead();
  test_kept_of_experts(1);
  test_kept_of_experts(2);
  test_device("llama", llama);
  test_device("gpt2", gpt2);
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    test_fault(&faults[i]);
  }
  grid_backend = null_device();
  for (size_t i = 0; i < sizeof device_faults / sizeof *device_faults; ++i) {
    test_fault(&device_faults[i]);
  }
  grid_backend = NULL;
  for (int stage = 0; stage <= 3; ++stage) {
    test_parts_of_two_groups(stage);
  }
  test_circle();
  test_block_faults();
  tap_note("%.1f seconds", ts_seconds() - start);
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
