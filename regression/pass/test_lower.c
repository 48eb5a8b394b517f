/* The programs of a device, where there is none: every run of segments of every rank of several grids is lowered and
 * verified, and the verifier names what was broken. */
#include "pass/lower.h"
#include "pass/storage.h"
#include "regression/pass/grid.h"
#include "regression/tap.h"

static int count(const ts_lowered *c, ts_lowered_kind kind) {
  int n = 0;
  for (int i = 0; i < c->n; ++i) {
    n += c->command[i].kind == kind;
  }
  return n;
}

/* Collectives between captures. */
static int count_outside(const ts_lowered *c) {
  int n = 0;
  bool capturing = false;
  for (int i = 0; i < c->n; ++i) {
    ts_lowered_kind kind = c->command[i].kind;
    capturing = kind == TS_LOWERED_CAPTURE_BEGIN || (capturing && kind != TS_LOWERED_CAPTURE_END);
    n += kind == TS_LOWERED_COLLECTIVE && !capturing;
  }
  return n;
}

static bool is_transfer(const ts_node *node) {
  return ts_node_copies(node) == TS_SPACE_FILE;
}

static ts_lowered_kind kind_of(const ts_instruction *instruction, const ts_node *node) {
  return node->op == TS_OP_RECEIVE     ? TS_LOWERED_RECEIVED
         : node->op == TS_OP_SEND      ? TS_LOWERED_SEND
         : instruction->kind == TS_RUN ? TS_LOWERED_LAUNCH
         : is_transfer(node)           ? (instruction->kind == TS_WAIT ? TS_LOWERED_ARRIVED : TS_LOWERED_TRANSFER)
         : ts_node_is_copy(node)       ? TS_LOWERED_COPY
                                       : TS_LOWERED_COLLECTIVE;
}

/* Each instruction is one launch, copy, collective or end of a message, in order; of files also the wait. */
static bool is_complete(const ts_lowered *c, const ts_program *p, int chunk) {
  int at = 0;
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_instruction *instruction = &p->schedule->instruction[i];
    const ts_node *node = &p->graph->node[instruction->node];
    if ((instruction->kind == TS_WAIT && !ts_node_is_message(node) && !is_transfer(node)) ||
        !ts_node_is_of(p->graph, node, c->segments, chunk)) {
      continue;
    }
    while (at < c->n && c->command[at].node == TS_NONE) {
      ++at;
    }
    ts_lowered_kind kind = kind_of(instruction, node);
    if (at == c->n || c->command[at].node != instruction->node || c->command[at].kind != kind) {
      return false;
    }
    ++at;
  }
  return true;
}

/* What a step has left to the next one. */
#define LATE (TS_SEGMENT_LATE_UPDATE | TS_SEGMENT_LATE_GATHER)

/* Bytes of a storage that this writes, and where in the schedule. */
typedef struct written {
  ts_tid root;
  int64_t begin, end;
  int at, chunk;
} written;

static written window_of(const ts_program *p, const ts_place *place, ts_tid t, int at, int chunk) {
  return (written){place[t].root, place[t].offset, place[t].offset + ts_tensor_bytes(p->graph, t), at, chunk};
}

static int list_written(const ts_program *p, const ts_place *place, written *list) {
  int n = 0;
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_node *node = &p->graph->node[p->schedule->instruction[i].node];
    bool writes = (node->segment & LATE) != 0 && p->schedule->instruction[i].kind != TS_WAIT;
    for (int k = 0; k < node->n_out && writes; ++k) {
      list[n++] = window_of(p, place, node->out[k], i, ts_node_chunk(p->graph, node));
    }
  }
  return n;
}

/* Has everything that the forward reads its new values then? */
static bool reads_new_values(const ts_program *p) {
  ts_place *place = ts_storage_find(p->graph);
  written *list = ts_malloc(((size_t) p->graph->n_tensors * 2 + 1) * sizeof *list);
  int n = list_written(p, place, list);
  bool new = true;
  for (int i = 0; i < p->schedule->n && n > 0; ++i) {
    const ts_node *node = &p->graph->node[p->schedule->instruction[i].node];
    bool forward = ts_segment_phase(node->segment) == 0 && (node->segment & LATE) == 0;
    for (int k = 0; k < node->n_in && forward; ++k) {
      if (node->in[k] == TS_NONE || p->graph->tensor[place[node->in[k]].root].role != TS_ROLE_STATE) {
        continue;
      }
      written read = window_of(p, place, node->in[k], i, ts_node_chunk(p->graph, node));
      for (int w = 0; w < n; ++w) {
        bool same = list[w].root == read.root && list[w].begin < read.end && read.begin < list[w].end;
        new = new && !(same && list[w].chunk == read.chunk && list[w].at > i);
      }
    }
  }
  ts_free(place);
  ts_free(list);
  return new;
}

static void check_grid(const char *name, const char *text, const char *sets, int ranks, ts_model_use use) {
  grid g = make_grid(text, sets, ranks, use);
  char *wrong = NULL;
  bool complete = true, new = reads_new_values(g.program[ranks - 1]);
  int collectives = 0, outside = 0, messages[2] = {0, 0};
  for (int r = 0; r < ranks; ++r) {
    const ts_program *p = g.program[r];
    for (int i = 0; i < p->step.n_kinds * ts_graph_chunks(p->graph) && wrong == NULL; ++i) {
      int kind = i % p->step.n_kinds, chunk = i / p->step.n_kinds;
      if (!ts_step_has(&p->step, kind)) {
        continue;
      }
      ts_lowered *c = ts_lower(p->graph, p->schedule, p->plan, p->step.kind[kind].segments, chunk);
      wrong = ts_lowered_verify(c, p->graph, p->plan);
      complete = complete && is_complete(c, p, chunk);
      collectives += count(c, TS_LOWERED_COLLECTIVE);
      outside += count_outside(c);
      messages[0] += count(c, TS_LOWERED_SEND);
      messages[1] += count(c, TS_LOWERED_RECEIVED);
      ts_lowered_destroy(&c);
    }
  }
  bool stages = strstr(sets, "stages") != NULL, exchanges = strstr(sets, "alltoall") != NULL;
  tap_ok(wrong == NULL && complete && new && (ranks == 1 || collectives > 0) && messages[0] == messages[1] &&
             (messages[0] > 0) == stages && (outside > 0) == exchanges,
         "%s on %d ranks, %s: %d collectives, %d of them not captured, %d messages: %s", name, ranks, sets, collectives,
         outside, messages[0],
         wrong != NULL ? wrong
         : !complete   ? "a node is missing"
         : new         ? "ordered"
                       : "old values are read");
  ts_free(wrong);
  free_grid(&g);
}

/* Pieces, with gradients of weights apart and not, and a table that two stages read. */
static void check_stages(const char *name, const char *text) {
  static const char *const variant[] = {
      "pipeline.schedule=1f1b zero_optimization.stage=2",
      "pipeline.schedule=zb_h1 zero_optimization.stage=3",
      "pipeline.schedule=interleaved zero_optimization.stage=3 zero_optimization.stage3_max_live_parameters=20000",
      "pipeline.schedule=zb_v zero_optimization.stage=1 activation_checkpointing.enabled=true",
      "pipeline.schedule=1f1b zero_optimization.stage=3 tensor_parallel.autotp_size=2",
      "pipeline.schedule=zb_h1 zero_optimization.stage=1 compile.offload_activation=true"};
  for (size_t i = 0; i < sizeof variant / sizeof *variant; ++i) {
    char *sets = ts_format("pipeline.stages=2 gradient_accumulation_steps=4 train_batch_size=\"auto\" %s", variant[i]);
    check_grid(name, text, sets, 4, TS_MODEL_TRAIN);
    ts_free(sets);
  }
}

#define EXPERTS "expert_parallel={enabled=true;autoep_size=2;} moe.dispatch=\"alltoall\" "

/* Counts that the host reads cut the captures, beside messages and whatever else ranks send. */
static void check_experts(void) {
  static const char *const variant[] = {
      EXPERTS "zero_optimization.stage=0",
      EXPERTS "zero_optimization.stage=3 zero_optimization.overlap_comm=true moe.token_chunks=2",
      EXPERTS "zero_optimization.stage=2 moe.token_chunks=4 moe.save=\"nothing\" gradient_accumulation_steps=2",
      EXPERTS "zero_optimization.stage=3 tensor_parallel.autotp_size=2 moe.token_chunks=2",
      EXPERTS "pipeline.stages=2 pipeline.schedule=zb_h1 zero_optimization.stage=1 moe.token_chunks=2 "
              "gradient_accumulation_steps=4 train_batch_size=\"auto\""};
  for (size_t i = 0; i < sizeof variant / sizeof *variant; ++i) {
    check_grid("mixture", mixture, variant[i], 4, TS_MODEL_TRAIN);
  }
  check_grid("mixture", mixture, variant[1], 4, TS_MODEL_LOSS);
}

/* State that is elsewhere: in the host's memory, and in files, which come and go by way of that. */
#define ELSEWHERE(device)                                                                                   \
  "zero_optimization={stage=3;overlap_comm=true;offload_optimizer={" device "};offload_param={" device "};" \
  "sub_group_size=1;stage3_param_persistence_threshold=0;stage3_max_live_parameters=0;}"
#define AWAY ELSEWHERE("device=\"cpu\";")
#define FILES ELSEWHERE("device=\"nvme\";nvme_path=\"/x\";")
#define STATES_AWAY                                                          \
  "zero_optimization={offload_optimizer={device=\"cpu\";};sub_group_size=1;" \
  "stage3_param_persistence_threshold=0;}"
#define EARLY "zero_optimization.offload_optimizer.super_offload=false"
#define HOSTED "run.offload_update=host"

static void check_grids(const char *name, const char *text) {
  static const char *const variant[] = {
      "zero_optimization.overlap_comm=true", "zero_optimization.overlap_comm=false gradient_accumulation_steps=3",
      "zero_optimization.overlap_comm=true gradient_accumulation_steps=3 bf16.enabled=true "
      "zero_optimization.reduce_bucket_size=30000 zero_optimization.allgather_bucket_size=20000",
      "zero_optimization.overlap_comm=true activation_checkpointing={enabled=true;policy=\"sac\";interval=2;} "
      "zero_optimization.stage3_param_persistence_threshold=0 zero_optimization.stage3_prefetch_bucket_size=60000 "
      "zero_optimization.reduce_bucket_size=5000 zero_optimization.stage3_max_reuse_distance=0"};
  for (int stage = 0; stage <= 3; ++stage) {
    for (size_t i = 0; i < sizeof variant / sizeof *variant; ++i) {
      char *sets = ts_format("zero_optimization.stage=%d %s", stage, variant[i]);
      check_grid(name, text, sets, stage == 0 ? 1 : 4, TS_MODEL_TRAIN);
      check_grid(name, text, sets, 8, TS_MODEL_LOSS);
      ts_free(sets);
    }
  }
  static const char *const elsewhere[] = {AWAY, FILES};
  for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; ++i) {
    char *micro_batches = ts_format("%s gradient_accumulation_steps=2 bf16.enabled=true", elsewhere[i]);
    char *early = ts_format("%s " EARLY " bf16.enabled=true", elsewhere[i]);
    check_grid(name, text, elsewhere[i], 1, TS_MODEL_TRAIN);
    check_grid(name, text, micro_batches, 4, TS_MODEL_TRAIN);
    check_grid(name, text, early, 2, TS_MODEL_TRAIN);
    check_grid(name, text, elsewhere[i], 4, TS_MODEL_LOSS);
    ts_free(micro_batches);
    ts_free(early);
    char *hosted = ts_format("%s " HOSTED " gradient_accumulation_steps=2 bf16.enabled=true", elsewhere[i]);
    char *hosted_early = ts_format("%s " HOSTED " " EARLY, elsewhere[i]);
    check_grid(name, text, hosted, 4, TS_MODEL_TRAIN);
    check_grid(name, text, hosted_early, 2, TS_MODEL_TRAIN);
    ts_free(hosted);
    ts_free(hosted_early);
  }
  check_grid(name, text, STATES_AWAY " zero_optimization.stage=1 bf16.enabled=true " HOSTED, 4, TS_MODEL_TRAIN);
  check_grid(name, text, STATES_AWAY " zero_optimization.stage=2 " HOSTED, 2, TS_MODEL_TRAIN);
  check_grid(name, text, FILES " zero_optimization.offload_param.max_in_cpu=50000", 2, TS_MODEL_TRAIN);
  check_grid(name, text, "compile.offload_activation=true bf16.enabled=true", 2, TS_MODEL_TRAIN);
  check_grid(name, text, FILES " activation_checkpointing={enabled=true;cpu_checkpointing=true;}", 2, TS_MODEL_TRAIN);
}

/* ---- what must be found ---- */

typedef bool breakage(ts_lowered *c);

static void remove_command(ts_lowered *c, int at) {
  memmove(&c->command[at], &c->command[at + 1], (size_t) (--c->n - at) * sizeof *c->command);
}

/* Taken out, and put back as number `to` of the rest. */
static bool move_to(ts_lowered *c, int at, int to) {
  if (at < 0 || to < 0) {
    return false;
  }
  ts_lowered_command command = c->command[at];
  remove_command(c, at);
  memmove(&c->command[to + 1], &c->command[to], (size_t) (c->n - to) * sizeof *c->command);
  ++c->n;
  c->command[to] = command;
  return true;
}

/* The k-th command of a kind on a queue, or -1. */
static int find(const ts_lowered *c, ts_lowered_kind kind, ts_queue queue, int k) {
  for (int i = 0; i < c->n; ++i) {
    if (c->command[i].kind == kind && c->command[i].queue == queue && k-- == 0) {
      return i;
    }
  }
  return -1;
}

static bool remove_found(ts_lowered *c, int at) {
  if (at >= 0) {
    remove_command(c, at);
  }
  return at >= 0;
}

static bool forget_wait_of_collective(ts_lowered *c) {
  return remove_found(c, find(c, TS_LOWERED_WAIT, TS_QUEUE_COMM, 0));
}

static bool forget_last_wait(ts_lowered *c) {
  int last = -1;
  for (int k = 0; find(c, TS_LOWERED_WAIT, TS_QUEUE_COMPUTE, k) >= 0; ++k) {
    last = find(c, TS_LOWERED_WAIT, TS_QUEUE_COMPUTE, k);
  }
  return remove_found(c, last);
}

static bool forget_waits_of(ts_lowered *c, ts_queue queue) {
  bool any = false;
  while (remove_found(c, find(c, TS_LOWERED_WAIT, queue, 0))) {
    any = true;
  }
  return any;
}

static bool forget_all_waits(ts_lowered *c) {
  return forget_waits_of(c, TS_QUEUE_COMPUTE);
}

static bool forget_record(ts_lowered *c) {
  return remove_found(c, find(c, TS_LOWERED_RECORD, TS_QUEUE_COMM, 0));
}

static bool record_early(ts_lowered *c) { /* the event before the collective instead of after it */
  int at = find(c, TS_LOWERED_COLLECTIVE, TS_QUEUE_COMM, 0);
  if (at >= 0) {
    ts_lowered_command swap = c->command[at];
    c->command[at] = c->command[at + 1];
    c->command[at + 1] = swap;
  }
  return at >= 0;
}

static bool copy_inside(ts_lowered *c) {
  ts_lowered_command first = c->command[0];
  c->command[0] = c->command[1];
  c->command[1] = first;
  return first.kind == TS_LOWERED_COPY_IN;
}

static bool forget_end(ts_lowered *c) {
  return remove_found(c, find(c, TS_LOWERED_CAPTURE_END, TS_QUEUE_COMPUTE, 0));
}

static bool launch_outside(ts_lowered *c) {
  return remove_found(c, find(c, TS_LOWERED_CAPTURE_BEGIN, TS_QUEUE_COMPUTE, 0));
}

static bool launch_elsewhere(ts_lowered *c) { /* a kernel in the queue of collectives */
  int at = find(c, TS_LOWERED_LAUNCH, TS_QUEUE_COMPUTE, 3);
  if (at >= 0) {
    c->command[at].queue = TS_QUEUE_COMM;
  }
  return at >= 0;
}

/* Of a rank's run of segments. */
static void expect_wrong_of(const char *what, const char *text, const char *sets, int ranks, int rank,
                            unsigned segments, breakage *break_it, const char *message) {
  grid g = make_grid(text, sets, ranks, TS_MODEL_TRAIN);
  const ts_program *p = g.program[rank];
  ts_lowered *c = ts_lower(p->graph, p->schedule, p->plan, segments, 0);
  bool broken = break_it(c);
  char *wrong = ts_lowered_verify(c, p->graph, p->plan);
  tap_ok(broken && wrong != NULL && strstr(wrong, message) != NULL, "%s is found: %s", what,
         wrong != NULL ? wrong : "nothing");
  ts_free(wrong);
  ts_lowered_destroy(&c);
  free_grid(&g);
}

static void expect_wrong(const char *what, breakage *break_it, unsigned segments, const char *message) {
  expect_wrong_of(what, llama,
                  "zero_optimization.stage=3 zero_optimization.overlap_comm=true "
                  "zero_optimization.stage3_param_persistence_threshold=0",
                  4, 1, segments, break_it, message);
}

/* ---- copies ---- */

/* The last of a kind on a queue. */
static int find_last(const ts_lowered *c, ts_lowered_kind kind, ts_queue queue) {
  int n = 0;
  while (find(c, kind, queue, n) >= 0) {
    ++n;
  }
  return find(c, kind, queue, n - 1);
}

/* Its memory was used by what was computed before. */
static bool bring_at_once(ts_lowered *c) {
  return remove_found(c, find_last(c, TS_LOWERED_WAIT, TS_QUEUE_IN));
}

static bool take_at_once(ts_lowered *c) {
  return remove_found(c, find(c, TS_LOWERED_WAIT, TS_QUEUE_OUT, 0));
}

/* Of the first piece's parameters, two moments and gradients the last that comes, and with it all. */
static bool forget_brought(ts_lowered *c) {
  int at = find(c, TS_LOWERED_COPY, TS_QUEUE_IN, 3), event = at >= 0 ? c->command[at + 1].event : -1;
  while (at >= 0 && at < c->n && (c->command[at].kind != TS_LOWERED_WAIT || c->command[at].event != event)) {
    ++at;
  }
  return at >= 0 && at < c->n && remove_found(c, at);
}

static bool forget_taken(ts_lowered *c) {
  bool any = false;
  for (int at = find_last(c, TS_LOWERED_COPY, TS_QUEUE_OUT); at >= 0 && at < c->n;) {
    bool waits = c->command[at].kind == TS_LOWERED_WAIT && c->command[at].queue == TS_QUEUE_COMPUTE;
    any = any || waits;
    if (waits) {
      remove_command(c, at);
    } else {
      ++at;
    }
  }
  return any;
}

static void expect_wrong_copy(const char *what, breakage *break_it, unsigned segments, const char *message) {
  expect_wrong_of(what, llama, AWAY, 2, 1, segments, break_it, message);
}

/* ---- files ---- */

/* What the device has not copied on yet is overwritten. */
static bool load_at_once(ts_lowered *c) {
  return remove_found(c, find_last(c, TS_LOWERED_WAIT, TS_QUEUE_HOST));
}

/* And what it has not brought is written to the file. */
static bool store_at_once(ts_lowered *c) {
  return forget_waits_of(c, TS_QUEUE_HOST);
}

static bool forget_loaded(ts_lowered *c) {
  return remove_found(c, find(c, TS_LOWERED_ARRIVED, TS_QUEUE_HOST, 0));
}

static bool forget_stored(ts_lowered *c) {
  return remove_found(c, find_last(c, TS_LOWERED_ARRIVED, TS_QUEUE_HOST));
}

static bool load_inside(ts_lowered *c) {
  return move_to(c, find(c, TS_LOWERED_TRANSFER, TS_QUEUE_HOST, 0),
                 find(c, TS_LOWERED_CAPTURE_BEGIN, TS_QUEUE_COMPUTE, 0));
}

static void expect_wrong_file(const char *what, breakage *break_it, unsigned segments, const char *message) {
  expect_wrong_of(what, llama, FILES " " EARLY, 2, 1, segments, break_it, message);
}

/* What the host computes with is not there yet. */
static bool compute_at_once(ts_lowered *c) {
  int at = find(c, TS_LOWERED_LAUNCH, TS_QUEUE_HOST, 0);
  while (at > 0 && (c->command[at].kind != TS_LOWERED_WAIT || c->command[at].queue != TS_QUEUE_HOST)) {
    --at;
  }
  return at > 0 && remove_found(c, at);
}

static void expect_wrong_host(const char *what, breakage *break_it, unsigned segments, const char *message) {
  expect_wrong_of(what, llama, STATES_AWAY " zero_optimization.stage=3 bf16.enabled=true " HOSTED " " EARLY, 2, 1,
                  segments, break_it, message);
}

/* Who updates: of all updates, how many does the host. */
static void check_updates(void) {
  static const struct {
    const char *sets;
    bool all, none;
  } rows[] = {{STATES_AWAY " " HOSTED, true, false},
              {STATES_AWAY " run.offload_update=device", false, true},
              {STATES_AWAY " machine.core_bandwidth=3e11", true, false},
              {STATES_AWAY " machine.core_bandwidth=1e6", false, true},
              {STATES_AWAY " machine.core_bandwidth=3e11 machine.copy_bandwidth=1e14", false, true},
              {STATES_AWAY " optimizer.type=Lamb " HOSTED, false, true},
              {STATES_AWAY " zero_optimization.offload_optimizer.ratio=0.5 " HOSTED, false, false},
              {"zero_optimization.stage=1 " HOSTED, false, true}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *sets = ts_format("bf16.enabled=true %s", rows[i].sets);
    grid g = make_grid(llama, sets, 1, TS_MODEL_TRAIN);
    const ts_graph *graph = g.program[0]->graph;
    int updates = 0, hosted = 0, others = 0;
    for (ts_nid n = 0; n < graph->n_nodes; ++n) {
      bool update = graph->node[n].op == TS_OP_UPDATE_ELEMENTS;
      updates += update;
      hosted += update && graph->node[n].on_host;
      others += !update && graph->node[n].on_host;
    }
    bool right = rows[i].all ? hosted == updates : rows[i].none ? hosted == 0 : hosted > 0 && hosted < updates;
    tap_ok(updates > 0 && others == 0 && right, "%s: the host makes %d of %d updates", rows[i].sets, hosted, updates);
    ts_free(sets);
    free_grid(&g);
  }
}

/* ---- what a copy waits for ---- */

/* Of the waits of copies, but those for the begin of a range or run, how many are for the last launch before the copy,
 * and how many nobody would miss. */
static void count_waits(const ts_program *p, unsigned segments, int *waits, int *last, int *needless) {
  ts_lowered *c = ts_lower(p->graph, p->schedule, p->plan, segments, 0);
  *waits = *last = *needless = 0;
  for (int i = 0; i < c->n; ++i) {
    const ts_lowered_command wait = c->command[i];
    int at = i;
    while (at > 0 && (c->command[at].kind != TS_LOWERED_RECORD || c->command[at].event != wait.event)) {
      --at;
    }
    bool of_copy = wait.kind == TS_LOWERED_WAIT && (wait.queue == TS_QUEUE_IN || wait.queue == TS_QUEUE_OUT);
    if (!of_copy || c->command[at - 1].kind == TS_LOWERED_CAPTURE_BEGIN ||
        c->command[at - 1].kind == TS_LOWERED_COPY_IN) {
      continue;
    }
    bool newest = true;
    for (int k = at; k < i; ++k) {
      newest = newest && c->command[k].kind != TS_LOWERED_LAUNCH;
    }
    remove_command(c, i);
    char *wrong = ts_lowered_verify(c, p->graph, p->plan);
    *needless += wrong == NULL;
    ts_free(wrong);
    c->command[c->n++] = wait;
    move_to(c, c->n - 1, i);
    *last += newest;
    ++*waits;
  }
  ts_lowered_destroy(&c);
}

/* For the last user of its bytes, which is not all that was computed before. */
static void test_last_users(void) {
  static const struct {
    const char *sets;
    unsigned segments;
  } rows[] = {{STATES_AWAY " zero_optimization.stage=3 bf16.enabled=true " EARLY, TS_SEGMENT_UPDATE},
              {AWAY, TS_SEGMENT_FORWARD | TS_SEGMENT_BACKWARD_INPUT | TS_SEGMENT_BACKWARD_WEIGHT},
              {"compile.offload_activation=true", TS_SEGMENT_FORWARD}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    grid g = make_grid(llama, rows[i].sets, 1, TS_MODEL_TRAIN);
    int waits, last, needless;
    count_waits(g.program[0], rows[i].segments, &waits, &last, &needless);
    tap_ok(waits > 0 && last < waits && needless == 0,
           "%s: copies wait %d times, %d times for all that was computed, %d times for nothing", rows[i].sets, waits,
           last, needless);
    free_grid(&g);
  }
}

/* ---- what is between captures ---- */

/* The k-th collective outside of captures. */
static int find_outside(const ts_lowered *c, int k) {
  bool capturing = false;
  for (int i = 0; i < c->n; ++i) {
    ts_lowered_kind kind = c->command[i].kind;
    capturing = kind == TS_LOWERED_CAPTURE_BEGIN || (capturing && kind != TS_LOWERED_CAPTURE_END);
    if (kind == TS_LOWERED_COLLECTIVE && !capturing && k-- == 0) {
      return i;
    }
  }
  return -1;
}

static void insert_command(ts_lowered *c, int at, ts_lowered_command command) {
  int capacity = c->n;
  TS_GROW(c->command, c->n, capacity);
  memmove(&c->command[at + 1], &c->command[at], (size_t) (c->n++ - at) * sizeof *c->command);
  c->command[at] = command;
}

/* Its capture goes on until it was queued. */
static bool capture_exchange(ts_lowered *c) {
  int at = find_outside(c, 0), end = at;
  while (end > 0 && c->command[end].kind != TS_LOWERED_CAPTURE_END) {
    --end;
  }
  if (at > 0) {
    insert_command(c, at + 1, c->command[end]);
    remove_command(c, end);
  }
  return at > 0;
}

static int wait_after(const ts_lowered *c, int at) {
  int event = c->command[at + 1].event; /* what is recorded behind it */
  while (at < c->n && (c->command[at].kind != TS_LOWERED_WAIT || c->command[at].event != event)) {
    ++at;
  }
  return at < c->n ? at : -1;
}

static bool forget_exchange(ts_lowered *c) {
  int at = find_outside(c, 0);
  return at >= 0 && remove_found(c, wait_after(c, at));
}

/* The capture behind it waits inside for what happens outside. */
static bool wait_for_exchange_inside(ts_lowered *c) {
  int at = wait_after(c, find_outside(c, 0));
  if (at < 0 || at + 1 == c->n || c->command[at + 1].kind != TS_LOWERED_CAPTURE_BEGIN) {
    return false;
  }
  ts_lowered_command wait = c->command[at];
  c->command[at] = c->command[at + 1];
  c->command[at + 1] = wait;
  return true;
}

/* A capture beside it has a collective of its own. */
static bool collective_beside(ts_lowered *c) {
  int at = find_outside(c, 0), begin = find(c, TS_LOWERED_CAPTURE_BEGIN, TS_QUEUE_COMPUTE, 0);
  int end = find(c, TS_LOWERED_CAPTURE_END, TS_QUEUE_COMPUTE, 0),
      other = find(c, TS_LOWERED_COLLECTIVE, TS_QUEUE_COMM, 0);
  if (at < 0 || other < begin || other > end) {
    return false;
  }
  const ts_lowered_command capture[] = {c->command[begin], c->command[other], c->command[end]};
  for (int i = 0; i < 3; ++i) {
    insert_command(c, at + 2 + i, capture[i]); /* behind the event */
  }
  return true;
}

static void expect_wrong_exchange(const char *what, breakage *break_it, unsigned segments, const char *message) {
  expect_wrong_of(what, mixture, EXPERTS "zero_optimization.stage=3", 4, 1, segments, break_it, message);
}

/* ---- messages ---- */

static bool move_found(ts_lowered *c, ts_lowered_kind kind, int to) {
  return move_to(c, find(c, kind, TS_QUEUE_COMPUTE, 0), to);
}

static bool send_early(ts_lowered *c) {
  return move_found(c, TS_LOWERED_SEND, find(c, TS_LOWERED_CAPTURE_BEGIN, TS_QUEUE_COMPUTE, 0) + 1);
}

static bool send_outside(ts_lowered *c) {
  return move_found(c, TS_LOWERED_SEND, 1);
}

static bool receive_late(ts_lowered *c) {
  return move_found(c, TS_LOWERED_RECEIVED, c->n - 1);
}

static bool receive_inside(ts_lowered *c) {
  return move_found(c, TS_LOWERED_RECEIVED, find(c, TS_LOWERED_CAPTURE_BEGIN, TS_QUEUE_COMPUTE, 0));
}

/* Of the forward of a stage. */
static void expect_wrong_message(const char *what, breakage *break_it, int rank, const char *message) {
  expect_wrong_of(what, llama, "pipeline.stages=2 gradient_accumulation_steps=4 train_batch_size=\"auto\"", 2, rank,
                  TS_SEGMENT_FORWARD, break_it, message);
}

int main(void) {
  const unsigned forward = TS_SEGMENT_FORWARD, updating = TS_SEGMENT_LATE_UPDATE | forward,
                 backward = TS_SEGMENT_BACKWARD_INPUT | TS_SEGMENT_BACKWARD_WEIGHT | TS_SEGMENT_REDUCE;
  grid_backend = null_device();
  check_grids("llama", llama);
  check_grids("gpt2", gpt2);
  check_stages("llama", llama);
  check_stages("gpt2", gpt2);
  test_last_users();
  expect_wrong_message("what is sent written after", send_early, 0, "no event orders them");
  expect_wrong_message("what comes read before", receive_late, 1, "no event orders them");
  expect_wrong_message("a wait for a message inside a capture", receive_inside, 1, "is inside a capture");
  expect_wrong_message("a send outside of a capture", send_outside, 0, "is outside a capture");
  expect_wrong("a collective that does not wait for what it sends", forget_wait_of_collective, backward,
               "no event orders them");
  expect_wrong("a kernel that does not wait for what it reads", forget_all_waits, forward, "no event orders them");
  expect_wrong("a queue that is not joined", forget_last_wait, backward, "is not joined at the end of the capture");
  expect_wrong("a wait for an event that is never recorded", forget_record, forward, "was not recorded");
  expect_wrong("an event recorded too early", record_early, forward, "no event orders them");
  expect_wrong("a copy from the host inside a capture", copy_inside, forward, "inside a capture");
  expect_wrong("a capture without end", forget_end, forward, "does not end");
  expect_wrong("a kernel outside the capture", launch_outside, forward, "outside the capture");
  expect_wrong("a kernel in another queue", launch_elsewhere, forward, "no event orders them");
  expect_wrong_copy("a copy to memory that is in use", bring_at_once, updating, "no event orders them");
  expect_wrong_copy("a copy of what is not computed yet", take_at_once, updating, "no event orders them");
  expect_wrong_copy("a copy that is not waited for", forget_brought, updating, "no event orders them");
  expect_wrong_copy("a copy back that is under way at the end", forget_taken, TS_SEGMENT_LATE_UPDATE,
                    "is not joined at the end of the capture");
  const unsigned update = TS_SEGMENT_UPDATE;
  expect_wrong_file("a file read to memory that the device still copies", load_at_once, update, "no event orders them");
  expect_wrong_file("a file written with what the device has not brought", store_at_once, update,
                    "no event orders them");
  expect_wrong_file("what is read from a file and not waited for", forget_loaded, update, "no event orders them");
  expect_wrong_file("a file that is written at the end of a run", forget_stored, update, "is not waited for");
  expect_wrong_file("a file read inside a capture", load_inside, updating, "inside a capture");
  expect_wrong_host("an update by the host of what is not brought", compute_at_once, update, "no event orders them");
  check_updates();
  check_experts();
  expect_wrong_exchange("counts that are read in a capture", capture_exchange, forward, "is inside the capture");
  expect_wrong_exchange("rows that nobody waits for", forget_exchange, forward, "no event orders them");
  expect_wrong_exchange("a captured collective beside it", collective_beside, forward, "in a queue that is not joined");
  expect_wrong_exchange("a wait in a capture for what is outside", wait_for_exchange_inside, forward,
                        "was not recorded");
  tap_ok(ts_memory_live() == 0, "nothing leaked");
  return tap_done();
}
