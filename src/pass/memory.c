/* Memory is planned, not allocated: every storage has a first and a last instruction; storages that are never live
 * together may share bytes.  Placement is greedy: largest first, each at the lowest offset where nothing that is live
 * at the same time lies (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, "greedy
 * by size"); a second order (first use) is tried as well and the smaller result taken. */
#include "base/memory.h"
#include "pass/blocks.h"
#include "pass/pass.h"
#include "pass/plan.h"
#include "pass/saved.h"
#include "pass/sequence.h"
#include "pass/state.h"
#include "pass/step.h"
#include "pass/storage.h"

#include <stdlib.h>
#include <string.h>

const ts_arena_row ts_arenas[TS_N_ARENAS] = {
    [TS_ARENA_FILE] = {"file", TS_SPACE_FILE, TS_LIFETIME_STATE},
    [TS_ARENA_FILE_SLOT] = {"file_slot", TS_SPACE_FILE, TS_LIFETIME_SLOT},
    [TS_ARENA_FILE_TO_INPUT] = {"file_to_input", TS_SPACE_FILE, TS_LIFETIME_TO_INPUT},
    [TS_ARENA_PINNED] = {"pinned", TS_SPACE_PINNED, TS_LIFETIME_STATE},
    [TS_ARENA_PINNED_SLOT] = {"pinned_slot", TS_SPACE_PINNED, TS_LIFETIME_SLOT},
    [TS_ARENA_PINNED_TO_INPUT] = {"pinned_to_input", TS_SPACE_PINNED, TS_LIFETIME_TO_INPUT},
    [TS_ARENA_PINNED_TO_WEIGHT] = {"pinned_to_weight", TS_SPACE_PINNED, TS_LIFETIME_TO_WEIGHT},
    [TS_ARENA_PINNED_WORK] = {"pinned_work", TS_SPACE_PINNED, TS_LIFETIME_SCRATCH},
    [TS_ARENA_STATE] = {"state", TS_SPACE_BACKEND, TS_LIFETIME_STATE},
    [TS_ARENA_INPUT] = {"input", TS_SPACE_HOST, TS_LIFETIME_SLOT},
    [TS_ARENA_SLOT] = {"slot", TS_SPACE_BACKEND, TS_LIFETIME_SLOT},
    [TS_ARENA_TO_INPUT] = {"to_input", TS_SPACE_BACKEND, TS_LIFETIME_TO_INPUT},
    [TS_ARENA_TO_WEIGHT] = {"to_weight", TS_SPACE_BACKEND, TS_LIFETIME_TO_WEIGHT},
    [TS_ARENA_STEP] = {"step", TS_SPACE_BACKEND, TS_LIFETIME_STEP},
    [TS_ARENA_WORK] = {"work", TS_SPACE_BACKEND, TS_LIFETIME_SCRATCH},
};

void ts_plan_destroy(ts_plan **plan) {
  if (*plan != NULL) {
    ts_free((*plan)->address);
    ts_free((*plan)->workspace);
    ts_free((*plan)->workspace_bytes);
    ts_free((*plan)->unit);
    ts_free((*plan)->moment);
    ts_free(*plan);
    *plan = NULL;
  }
}

/* Sum of the backend's reserves for a world of `ranks` ranks. */
static int64_t reserve_bytes(const ts_backend *backend, const ts_graph *g, int ranks) {
  int64_t bytes = 0, lines = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    lines += ts_node_is_message(&g->node[n]);
  }
  for (const ts_reserve *r = backend->reserves; r != NULL && r->name != NULL; ++r) {
    bytes +=
        r->bytes + (ranks > 1 ? r->bytes_if_several : 0) + r->bytes_per_rank * (ranks - 1) + r->bytes_per_line * lines;
  }
  return bytes;
}

/* Something that needs bytes of an arena from instruction `first` to `last`, both included. */
typedef struct interval {
  int first, last;
  int64_t bytes, offset;
  ts_tid tensor; /* the root it holds, TS_NONE for a workspace */
  ts_nid node;   /* the node whose workspace it is */
  bool buffer;
  bool by_page; /* it begins at a multiple of TS_PLAN_PAGE: it is read from a file, or written to one */
} interval;

typedef struct item_list {
  interval *item;
  int n, capacity;
} item_list;

typedef struct planner {
  const ts_graph *graph;
  const ts_schedule *schedule;
  const ts_pass_context *context;
  ts_place *place;
  ts_plan *plan;
  ts_lifetime *lifetime;       /* of a root tensor */
  int *of_root;                /* its interval among those of its arena, -1 for none */
  item_list list[TS_N_ARENAS]; /* what is placed by first and last instruction */
} planner;

/* ---- lifetimes ---- */

/* Instructions of a chunk, in all their turns. */
static int chunk_length(const planner *p) {
  return (p->context->step->apart ? 3 : 1) * p->schedule->n;
}

/* When an instruction is executed, among a micro-batch's: in the schedule's order, but where gradients of weights have
 * runs of their own these come behind all of inputs, and what happens once a step behind them.  Of a rank's chunks one
 * comes behind the other: no slot has two, and nothing but messages goes from one to another. */
static int when(const planner *p, int i) {
  const ts_node *node = &p->graph->node[p->schedule->instruction[i].node];
  bool later = (node->segment & (TS_SEGMENT_REDUCE | TS_SEGMENT_UPDATE)) != 0;
  int turn = !p->context->step->apart ? 0 : later ? 2 : node->segment == TS_SEGMENT_BACKWARD_WEIGHT ? 1 : 0;
  int chunk = node->segment == TS_SEGMENT_UPDATE ? ts_graph_chunks(p->graph) - 1 : ts_node_chunk(p->graph, node);
  return chunk * chunk_length(p) + turn * p->schedule->n + i;
}

static int end_of_step(const planner *p) {
  return ts_graph_chunks(p->graph) * chunk_length(p);
}

/* Masks of ts_segment, with one more bit for the host, which reads results after the last run, and one for messages,
 * which may be under way from run to run. */
enum { BY_HOST = 1 << 8, BY_MESSAGE = 1 << 9 };
typedef struct users {
  unsigned read, written;
} users;

static void add_reader(const planner *p, users *of, ts_tid t, unsigned reader) {
  if (t != TS_NONE) {
    of[p->place[t].root].read |= reader;
  }
}

/* A message of a micro-batch may be under way beyond its run; those of the update are complete at its end. */
static bool may_outlive(const ts_node *node) {
  return ts_node_is_message(node) && node->segment != TS_SEGMENT_UPDATE;
}

static void add_users(const planner *p, users *of, const ts_node *node) {
  for (int i = 0; i < node->n_in; ++i) {
    add_reader(p, of, node->in[i], node->segment);
  }
  for (int i = 0; i < node->n_out; ++i) {
    of[p->place[node->out[i]].root].written |= node->segment;
    add_reader(p, of, node->prior != NULL ? node->prior[i] : TS_NONE, node->segment);
  }
  add_reader(p, of, node->beta, node->segment);
  for (int i = 0; may_outlive(node) && i < node->n_in + node->n_out; ++i) {
    add_reader(p, of, i < node->n_in ? node->in[i] : node->out[i - node->n_in], BY_MESSAGE);
  }
}

/* Is what is read made in the same run, whatever its kind? */
static bool stays_in_run(const ts_step_runs *step, users u) {
  for (int k = 0; k < step->n_kinds; ++k) {
    unsigned segments = ts_step_has(step, k) ? step->kind[k].segments : 0;
    if ((u.read & segments) != 0 && (u.written & ~segments) != 0) {
      return false;
    }
  }
  return (u.read & BY_HOST) == 0;
}

static ts_lifetime lifetime_of(const planner *p, ts_tid root, users u) {
  const ts_tensor *tensor = &p->graph->tensor[root];
  const ts_step_runs *step = p->context->step;
  const bool several = ts_step_overlaps(step, p->graph), state = tensor->role == TS_ROLE_STATE;
  const bool kept = state && tensor->held.state == TS_STATE_KEPT && several; /* a leaf that is a micro-batch's */
  if (state && !kept) {
    return TS_LIFETIME_STATE;
  }
  if ((tensor->producer == TS_NONE && !kept) || (u.read & BY_MESSAGE) != 0) {
    return TS_LIFETIME_SLOT;
  }
  if (u.written == TS_SEGMENT_PREPARE && step->accumulates && !stays_in_run(step, u)) {
    return TS_LIFETIME_STEP;
  }
  if (!several || (stays_in_run(step, u) && !kept)) {
    return TS_LIFETIME_SCRATCH;
  }
  unsigned users = u.read | u.written;
  return !step->apart                                                                  ? TS_LIFETIME_SLOT
         : (users & ~(unsigned) (TS_SEGMENT_FORWARD | TS_SEGMENT_BACKWARD_INPUT)) == 0 ? TS_LIFETIME_TO_INPUT
         : (users & (TS_SEGMENT_FORWARD | TS_SEGMENT_UPDATE | BY_HOST)) == 0           ? TS_LIFETIME_TO_WEIGHT
                                                                                       : TS_LIFETIME_SLOT;
}

static void choose_lifetimes(planner *p) {
  const ts_graph *g = p->graph;
  users *of = ts_calloc((size_t) g->n_tensors + 1, sizeof *of);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (!ts_node_is_window(&g->node[n])) {
      add_users(p, of, &g->node[n]);
    }
  }
  for (int i = 0; i < g->n_marks; ++i) {
    add_reader(p, of, g->mark[i].tensor, BY_HOST);
  }
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    p->lifetime[t] = lifetime_of(p, t, of[t]);
  }
  ts_free(of);
}

static ts_arena find_arena(ts_space space, ts_lifetime lifetime) {
  ts_arena a = TS_ARENA_FILE;
  while (a < TS_N_ARENAS && (ts_arenas[a].space != space || ts_arenas[a].lifetime != lifetime)) {
    ++a;
  }
  TS_CHECK(a < TS_N_ARENAS, "no arena has space %d and lifetime %d", (int) space, (int) lifetime);
  return a;
}

static int add_item(item_list *list, interval item) {
  TS_GROW(list->item, list->n, list->capacity);
  list->item[list->n] = item;
  return list->n++;
}

/* What a node makes is placed by its life; leaves are not. */
static item_list *list_of(planner *p, ts_tid root) {
  return &p->list[find_arena(p->graph->tensor[root].space, p->lifetime[root])];
}

/* A leaf has its place for good, behind those before it. \return its bytes. */
static int64_t place_leaf(planner *p, ts_tid leaf) {
  const ts_tensor *tensor = &p->graph->tensor[leaf];
  TS_CHECK(tensor->role == TS_ROLE_STATE || tensor->space == TS_SPACE_HOST, "nobody writes leaf %s", tensor->name);
  ts_arena arena = find_arena(tensor->space, p->lifetime[leaf]);
  int64_t bytes = ts_arena_align(arena, ts_tensor_bytes(p->graph, leaf));
  p->plan->address[leaf] = (ts_address){arena, p->plan->arena_bytes[arena]};
  p->plan->arena_bytes[arena] += bytes;
  return bytes;
}

/* The root of t is live at instruction `at`. */
static void extend_life(planner *p, ts_tid t, int at) {
  if (t == TS_NONE) {
    return;
  }
  ts_tid root = p->place[t].root;
  if (p->graph->tensor[root].producer == TS_NONE) {
    if (p->plan->address[root].arena == TS_ARENA_NONE) { /* an input has its place from the first use on */
      place_leaf(p, root);
    }
    return;
  }
  item_list *list = list_of(p, root);
  int *index = &p->of_root[root];
  if (*index < 0) {
    *index = add_item(list, (interval){.first = at,
                                       .last = at,
                                       .tensor = root,
                                       .node = TS_NONE,
                                       .bytes = ts_plan_align(ts_tensor_bytes(p->graph, root))});
  }
  interval *item = &list->item[*index];
  item->first = item->first < at ? item->first : at;
  item->last = item->last > at ? item->last : at;
}

static void extend_lives(planner *p, const ts_node *node, int at) {
  for (int i = 0; i < node->n_in; ++i) {
    extend_life(p, node->in[i], at);
  }
  for (int i = 0; i < node->n_out; ++i) {
    extend_life(p, node->out[i], at);
    if (node->prior != NULL) {
      extend_life(p, node->prior[i], at);
    }
  }
  extend_life(p, node->beta, at);
}

/* What is sent may still be on its way when the next micro-batch comes into the slot, and what is received may come
 * as soon as the one before has left: nothing else is ever there. */
static void keep_messages(planner *p) {
  int update = 0;
  while (update < p->schedule->n &&
         p->graph->node[p->schedule->instruction[update].node].segment != TS_SEGMENT_UPDATE) {
    ++update;
  }
  for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
    const ts_node *node = &p->graph->node[n];
    for (int i = 0; ts_node_is_message(node) && i < node->n_in + node->n_out; ++i) {
      ts_tid t = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
      extend_life(p, t, may_outlive(node) ? 0 : when(p, update));
      extend_life(p, t, end_of_step(p));
    }
  }
}

/* What is there for all micro-batches is not shared with anything. */
static void keep_step(planner *p) {
  for (int i = 0; i < p->list[TS_ARENA_STEP].n; ++i) {
    p->list[TS_ARENA_STEP].item[i].first = 0;
    p->list[TS_ARENA_STEP].item[i].last = end_of_step(p);
  }
}

static void mark_buffers(planner *p, const ts_node *node) {
  for (int i = 0; i < node->n_in + node->n_out; ++i) {
    ts_tid root = p->place[i < node->n_in ? node->in[i] : node->out[i - node->n_in]].root;
    if (p->of_root[root] >= 0) {
      list_of(p, root)->item[p->of_root[root]].buffer = true;
    }
  }
}

/* What a copy reads or writes here: of state, which two copies may bring or take, a buffer. */
static void mark_copied(planner *p, const ts_node *node, bool state) {
  ts_tid here = p->place[ts_copy_here(node)].root, away = p->place[ts_copy_away(node)].root;
  const ts_node *before = ts_graph_producer(p->graph, ts_node_brings(node) ? away : here);
  state = state || p->graph->tensor[away].role == TS_ROLE_STATE || (before != NULL && before->op == TS_OP_LOAD);
  if (p->of_root[here] >= 0) {
    interval *item = &list_of(p, here)->item[p->of_root[here]];
    item->buffer = item->buffer || state;
    item->by_page = item->by_page || ts_node_copies(node) == TS_SPACE_FILE;
  }
  if (node->op == TS_OP_STORE && before != NULL && before->op == TS_OP_COPY_OUT) {
    mark_copied(p, before, true);
  }
}

/* Of a reduction whose longest shard has so many columns. */
static size_t reduction_workspace(const planner *p, const ts_node *node, int64_t columns) {
  bool device = p->context->target.backend->device != NULL;
  return (device ? ts_comm_device_workspace : ts_comm_workspace)(node->attr.comm.group, columns, node->attr.comm.wire);
}

static size_t workspace_of_reduce_scatter(const planner *p, const ts_node *node) {
  int64_t columns = 0;
  for (int i = 0; i < node->attr.comm.n_pieces; ++i) {
    columns += node->attr.comm.piece[i].end - node->attr.comm.piece[i].begin;
  }
  return columns > 0 ? reduction_workspace(p, node, columns) : 0;
}

static size_t workspace_of_all_reduce(const planner *p, const ts_node *node) {
  int64_t group = node->attr.comm.group, columns = (ts_tensor_count(p->graph, node->in[0]) + group - 1) / group;
  return columns > 0 ? reduction_workspace(p, node, columns) : 0;
}

static size_t workspace_of_all_to_all(const planner *p, const ts_node *node) {
  ts_exchange_tensors tensors;
  ts_exchange_lists lists = ts_node_exchange(p->graph, node, &tensors);
  return ts_comm_exchange_workspace(&lists, ts_mesh_group_rank(p->context->mesh, node->attr.comm.axes));
}

/* By op; an op without an entry needs none. */
static size_t (*const comm_workspace[TS_N_OPS])(const planner *p, const ts_node *node) = {
    [TS_OP_REDUCE_SCATTER] = workspace_of_reduce_scatter,
    [TS_OP_ALL_REDUCE] = workspace_of_all_reduce,
    [TS_OP_ALL_TO_ALL] = workspace_of_all_to_all,
};

/* Each has its own size; of a reduction the others of its group know it too: ranks of other groups may have larger
 * ones.
 * \return the largest. */
static int64_t find_comm_workspaces(planner *p) {
  int64_t most = 0;
  for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
    const ts_node *node = &p->graph->node[n];
    if (comm_workspace[node->op] != NULL) {
      int64_t bytes = (int64_t) comm_workspace[node->op](p, node);
      p->plan->workspace_bytes[n] = bytes;
      most = bytes > most ? bytes : most;
    }
  }
  return most;
}

static void find_lifetimes(planner *p) {
  const ts_target *target = &p->context->target;
  for (int i = 0; i < p->schedule->n; ++i) {
    ts_nid n = p->schedule->instruction[i].node;
    const ts_node *node = &p->graph->node[n];
    int at = when(p, i);
    extend_lives(p, node, at);
    if (ts_node_is_copy(node)) {
      mark_copied(p, node, false);
      continue;
    }
    if (p->schedule->instruction[i].kind != TS_RUN) {
      bool rows = node->op == TS_OP_ALL_TO_ALL || node->op == TS_OP_EXCHANGE_ROWS;
      if (!rows && !ts_node_is_message(node)) { /* activations on their way */
        mark_buffers(p, node);
      }
      continue;
    }
    if (node->on_host) {
      mark_buffers(p, node);
    }
    const ts_target on = ts_node_target(target, node);
    const ts_kernel *kernel = on.backend->kernel(node->op);
    size_t bytes = kernel->prepare != NULL ? kernel->prepare(&on, p->graph, node, NULL) : 0;
    TS_CHECK(bytes == 0 || !node->on_host, "%s: what the host computes has no workspace", node->name);
    if (bytes > 0) {
      interval item = {.first = at, .last = at, .bytes = ts_plan_align((int64_t) bytes), .tensor = TS_NONE, .node = n};
      add_item(&p->list[TS_ARENA_WORK], item);
      p->plan->workspace_bytes[n] = (int64_t) bytes;
    }
  }
  keep_messages(p);
  keep_step(p);
  for (int i = 0; i < p->graph->n_marks; ++i) {
    extend_life(p, p->graph->mark[i].tensor, end_of_step(p)); /* the host reads results after the end */
  }
  int64_t bytes = find_comm_workspaces(p);
  if (bytes > 0) { /* collectives run one after another: they share one workspace */
    interval item = {.first = 0,
                     .last = end_of_step(p),
                     .bytes = ts_plan_align(bytes),
                     .tensor = TS_NONE,
                     .node = TS_NONE,
                     .buffer = true};
    add_item(&p->list[TS_ARENA_WORK], item);
  }
}

/* ---- placement ---- */

static int by_size(const void *a, const void *b) {
  const interval *x = a, *y = b;
  if (x->bytes != y->bytes) {
    return x->bytes < y->bytes ? 1 : -1;
  }
  return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                              : (x->last > y->last) - (x->last < y->last);
}

static int by_first(const void *a, const void *b) {
  const interval *x = a, *y = b;
  return x->first != y->first ? (x->first > y->first) - (x->first < y->first) : by_size(a, b);
}

static bool together(const interval *a, const interval *b) {
  return a->first <= b->last && b->first <= a->last;
}

static int64_t align_begin(const interval *item, int64_t offset) {
  return item->by_page ? (offset + TS_PLAN_PAGE - 1) / TS_PLAN_PAGE * TS_PLAN_PAGE : offset;
}

/* Lowest offset for `item` among the `n` placed intervals, which are sorted by offset. */
static int64_t lowest_gap(const interval *item, interval *const *placed, int n) {
  int64_t offset = 0;
  for (int i = 0; i < n; ++i) {
    if (together(item, placed[i])) {
      if (placed[i]->offset >= offset + item->bytes) {
        break;
      }
      int64_t end = align_begin(item, placed[i]->offset + placed[i]->bytes);
      offset = end > offset ? end : offset;
    }
  }
  return offset;
}

/* Place in array order. \return the arena's size. */
static int64_t place_all(interval *item, int n) {
  interval **placed = ts_malloc(((size_t) n + 1) * sizeof *placed);
  int64_t size = 0;
  for (int i = 0; i < n; ++i) {
    item[i].offset = lowest_gap(&item[i], placed, i);
    int at = i;
    for (; at > 0 && placed[at - 1]->offset > item[i].offset; --at) {
      placed[at] = placed[at - 1];
    }
    placed[at] = &item[i];
    int64_t end = item[i].offset + item[i].bytes;
    size = end > size ? end : size;
  }
  ts_free(placed);
  return size;
}

static int64_t place_best(interval *item, int n) {
  if (n == 0) {
    return 0;
  }
  qsort(item, (size_t) n, sizeof *item, by_first);
  int64_t first = place_all(item, n);
  interval *other = ts_malloc(((size_t) n + 1) * sizeof *other);
  memcpy(other, item, (size_t) n * sizeof *other);
  qsort(other, (size_t) n, sizeof *other, by_size);
  int64_t size = place_all(other, n);
  if (size < first) {
    memcpy(item, other, (size_t) n * sizeof *item);
  }
  ts_free(other);
  return size < first ? size : first;
}

/* ---- results ---- */

/* What is live at each time up to the end of the step, which is one of them; and how much of it is buffers. The
 * caller's. */
static ts_moment *find_moments(const planner *p, const item_list *list) {
  const int n = end_of_step(p) + 1;
  ts_moment *at = ts_calloc((size_t) n + 1, sizeof *at);
  for (int i = 0; i < list->n; ++i) {
    const interval *item = &list->item[i];
    const int64_t buffer = item->buffer ? item->bytes : 0;
    at[item->first].bytes += item->bytes;
    at[item->first].buffers += buffer;
    at[item->last + 1].bytes -= item->bytes;
    at[item->last + 1].buffers -= buffer;
  }
  for (int i = 0; i < n; ++i) {
    at[i].node = TS_NONE;
    at[i + 1].bytes += at[i].bytes;
    at[i + 1].buffers += at[i].buffers;
  }
  return at;
}

/* \return the most bytes that are live at an instruction.
 * \param [out] buffers_at_peak  How much of it is buffers. */
static int64_t find_peak(const planner *p, const item_list *list, int64_t *buffers_at_peak) {
  ts_moment *at = find_moments(p, list), peak = {0};
  for (int i = 0; i <= end_of_step(p); ++i) {
    peak = at[i].bytes > peak.bytes ? at[i] : peak;
  }
  ts_free(at);
  *buffers_at_peak = peak.buffers;
  return peak.bytes;
}

/* Of WORK, at the instructions of a micro-batch, in their order, and at the end. */
static void note_moments(const planner *p) {
  ts_plan *plan = p->plan;
  ts_moment *at = find_moments(p, &p->list[TS_ARENA_WORK]);
  for (int i = 0; i < p->schedule->n; ++i) {
    at[when(p, i)].node = p->schedule->instruction[i].node;
  }
  for (int i = 0; i <= end_of_step(p); ++i) {
    if (at[i].node != TS_NONE || i == end_of_step(p)) {
      at[plan->n_moments++] = at[i];
    }
  }
  plan->moment = at;
}

static ts_unit_bytes *bytes_of_unit(const planner *p, int unit) {
  return &p->plan->unit[unit >= 0 ? unit : p->graph->n_units];
}

static int unit_of_item(const planner *p, const interval *item) {
  const ts_graph *g = p->graph;
  return item->tensor != TS_NONE ? g->tensor[item->tensor].unit : item->node != TS_NONE ? g->node[item->node].unit : -1;
}

/* Items by the instruction at which they begin, or end: chains from `head`, by time, through `next`. */
typedef struct chains {
  int *head, *next;
} chains;

static chains chain_items(const planner *p, bool by_end) {
  const item_list *list = &p->list[TS_ARENA_WORK];
  chains c = {ts_ids_none(end_of_step(p) + 1), ts_ids_none(list->n)};
  for (int i = 0; i < list->n; ++i) {
    int at = by_end ? list->item[i].last : list->item[i].first;
    c.next[i] = c.head[at];
    c.head[at] = i;
  }
  return c;
}

/* What lives at each instruction, of its unit and beside it; a kernel's workspace is of its node's. */
static void note_work(const planner *p) {
  const ts_graph *g = p->graph;
  const item_list *list = &p->list[TS_ARENA_WORK];
  chains begins = chain_items(p, false), ends = chain_items(p, true);
  int *instruction = ts_ids_none(end_of_step(p) + 1);
  int64_t all = 0, *of_unit = ts_calloc((size_t) g->n_units + 1, sizeof *of_unit);
  for (int i = 0; i < p->schedule->n; ++i) {
    instruction[when(p, i)] = i;
  }
  for (int at = 0; at <= end_of_step(p); ++at) {
    for (int i = begins.head[at]; i >= 0; i = begins.next[i]) {
      int unit = unit_of_item(p, &list->item[i]);
      of_unit[unit >= 0 ? unit : g->n_units] += list->item[i].bytes;
      all += list->item[i].bytes;
    }
    int unit = instruction[at] >= 0 ? g->node[p->schedule->instruction[instruction[at]].node].unit : -1;
    ts_unit_bytes *of = bytes_of_unit(p, unit);
    if (instruction[at] >= 0 && all > of->work + of->beside) {
      of->work = of_unit[unit >= 0 ? unit : g->n_units];
      of->beside = all - of->work;
    }
    for (int i = ends.head[at]; i >= 0; i = ends.next[i]) {
      int whose = unit_of_item(p, &list->item[i]);
      of_unit[whose >= 0 ? whose : g->n_units] -= list->item[i].bytes;
      all -= list->item[i].bytes;
    }
  }
  ts_free(begins.head);
  ts_free(begins.next);
  ts_free(ends.head);
  ts_free(ends.next);
  ts_free(instruction);
  ts_free(of_unit);
}

/* State and what is kept goes by the unit that has made it, scratch by the one that is at work. */
static void find_units(const planner *p) {
  const ts_graph *g = p->graph;
  p->plan->unit = ts_calloc((size_t) g->n_units + 1, sizeof *p->plan->unit);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    bool state = g->tensor[t].role == TS_ROLE_STATE && !ts_space_is_away(g->tensor[t].space);
    bytes_of_unit(p, g->tensor[t].unit)->state += state ? ts_plan_align(ts_tensor_bytes(g, t)) : 0;
  }
  for (ts_arena a = TS_ARENA_SLOT; a < TS_ARENA_WORK; ++a) {
    for (int i = 0; i < p->list[a].n; ++i) {
      const interval *item = &p->list[a].item[i];
      bytes_of_unit(p, g->tensor[item->tensor].unit)->kept[ts_arenas[a].lifetime] += item->bytes;
    }
  }
  note_work(p);
}

/* The first instruction of the backward; behind the last where there is none. */
static int find_turn(const planner *p) {
  int i = 0;
  while (i < p->schedule->n && ts_segment_phase(p->graph->node[p->schedule->instruction[i].node].segment) != 1) {
    ++i;
  }
  return i; /* forwards are not moved */
}

/* What lives across the turn, and the most of the rest. */
static void find_kept(planner *p) {
  int turn = find_turn(p);
  item_list rest = {0};
  for (ts_arena a = TS_ARENA_SLOT; a <= TS_ARENA_WORK; ++a) {
    for (int i = 0; i < p->list[a].n; ++i) {
      const interval *item = &p->list[a].item[i];
      bool kept = item->tensor != TS_NONE && item->first < turn && item->last >= turn && a != TS_ARENA_STEP;
      p->plan->kept_bytes += kept ? item->bytes : 0;
      if (!kept) {
        add_item(&rest, *item);
      }
    }
  }
  int64_t buffers;
  p->plan->working_bytes = find_peak(p, &rest, &buffers);
  ts_free(rest.item);
}

/* At most, of each arena; and what of them is buffers then. */
static void find_live(planner *p) {
  ts_plan *plan = p->plan;
  for (ts_arena a = TS_ARENA_PINNED + 1; a < TS_ARENA_STATE; ++a) {
    int64_t buffers, places = p->context->step->n_places[ts_arenas[a].lifetime];
    int64_t peak = places * find_peak(p, &p->list[a], &buffers);
    int64_t kept = buffers > 0 ? peak - places * buffers : plan->arena_bytes[a];
    plan->away[TS_SPACE_PINNED][TS_PURPOSE_ACTIVATION] += kept;
    plan->away[TS_SPACE_PINNED][TS_PURPOSE_BUFFER] += plan->arena_bytes[a] - kept;
  }
  for (ts_arena a = TS_ARENA_SLOT; a < TS_N_ARENAS; ++a) {
    int64_t buffers, places = p->context->step->n_places[ts_arenas[a].lifetime];
    plan->live_bytes += places * find_peak(p, &p->list[a], &buffers);
    plan->bytes[TS_PURPOSE_BUFFER] += places * buffers;
    plan->bytes[TS_PURPOSE_ACTIVATION] += plan->arena_bytes[a] - places * buffers;
  }
}

void ts_plan_in_use(const ts_plan *plan, int moment, int64_t bytes[TS_N_PURPOSES], int64_t *gaps) {
  ts_moment peak = {0};
  for (int i = 0; i < plan->n_moments; ++i) {
    peak = plan->moment[i].bytes > peak.bytes ? plan->moment[i] : peak;
  }
  const ts_moment *now = &plan->moment[moment];
  const int64_t work = plan->arena_bytes[TS_ARENA_WORK];
  memcpy(bytes, plan->bytes, sizeof plan->bytes);
  bytes[TS_PURPOSE_BUFFER] += now->buffers - peak.buffers;
  bytes[TS_PURPOSE_ACTIVATION] += now->bytes - now->buffers - (work - peak.buffers);
  *gaps = work - peak.bytes;
}

static void place_state(planner *p) {
  for (ts_tid t = 0; t < p->graph->n_tensors; ++t) {
    const ts_tensor *tensor = &p->graph->tensor[t];
    if (tensor->role == TS_ROLE_STATE) {
      int64_t *bytes = ts_space_is_away(tensor->space) ? p->plan->away[tensor->space] : p->plan->bytes;
      const int places = p->context->step->n_places[p->lifetime[t]];
      bytes[ts_state_get(tensor->held.state)->purpose] += places * place_leaf(p, t);
    }
  }
}

static void record_address(planner *p, const interval *item, ts_address at) {
  ts_plan *plan = p->plan;
  if (item->tensor != TS_NONE) {
    plan->address[item->tensor] = at;
  } else if (item->node != TS_NONE) {
    plan->workspace[item->node] = at;
  } else {
    for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
      if (ts_node_is_collective(&p->graph->node[n])) {
        plan->workspace[n] = at;
      }
    }
  }
}

static void record_addresses(planner *p) {
  ts_plan *plan = p->plan;
  for (ts_arena a = TS_ARENA_PINNED; a < TS_N_ARENAS; ++a) {
    for (int i = 0; i < p->list[a].n; ++i) {
      record_address(p, &p->list[a].item[i], (ts_address){a, p->list[a].item[i].offset});
    }
  }
  for (ts_tid t = 0; t < p->graph->n_tensors; ++t) {
    ts_place place = p->place[t];
    if (place.root != t && plan->address[place.root].arena != TS_ARENA_NONE) {
      plan->address[t] = (ts_address){plan->address[place.root].arena, plan->address[place.root].offset + place.offset};
    }
  }
}

/* What was placed so far is one place of its arena. */
static void make_places(planner *p) {
  for (ts_arena a = TS_ARENA_FILE; a < TS_N_ARENAS; ++a) {
    if (ts_lifetime_is_kept(ts_arenas[a].lifetime)) {
      p->plan->slot_bytes[a] = p->plan->arena_bytes[a];
      p->plan->arena_bytes[a] *= p->context->step->n_places[ts_arenas[a].lifetime];
    }
  }
}

/* What the host reads before a step: the inputs of all its micro-batches. */
static int64_t feed_bytes(const ts_graph *g, int64_t length, int64_t micro_batches) {
  int64_t bytes = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *leaf = &g->tensor[t];
    bool tokens = leaf->shape.n == 2; /* a rank along sp reads whole samples */
    int64_t elements = tokens ? leaf->shape.d[0] * length : ts_tensor_count(g, t);
    bytes += leaf->role == TS_ROLE_INPUT ? elements * (int64_t) ts_dtype_size(leaf->dtype) : 0;
  }
  const int64_t most = INT64_MAX / 8; /* a deck may ask for anything: more than any machine has */
  return bytes > most / micro_batches ? most : bytes * micro_batches;
}

void ts_pass_memory(ts_graph **graph, ts_pass_context *context) {
  const ts_graph *g = *graph;
  size_t n_tensors = (size_t) g->n_tensors + 1, n_nodes = (size_t) g->n_nodes + 1;
  ts_plan *plan = ts_calloc(1, sizeof *plan);
  plan->address = ts_calloc(n_tensors, sizeof *plan->address);
  plan->workspace = ts_calloc(n_nodes, sizeof *plan->workspace);
  plan->workspace_bytes = ts_calloc(n_nodes, sizeof *plan->workspace_bytes);
  planner p = {.graph = g,
               .schedule = context->schedule,
               .context = context,
               .plan = plan,
               .place = ts_storage_find(g),
               .lifetime = ts_malloc(n_tensors * sizeof *p.lifetime),
               .of_root = ts_malloc(n_tensors * sizeof *p.of_root)};
  memset(p.of_root, -1, n_tensors * sizeof *p.of_root);
  choose_lifetimes(&p);
  place_state(&p);
  find_lifetimes(&p);
  for (ts_arena a = TS_ARENA_PINNED + 1; a < TS_N_ARENAS; ++a) {
    int64_t bytes = place_best(p.list[a].item, p.list[a].n);
    plan->arena_bytes[a] += a < TS_ARENA_STATE ? ts_plan_pages(bytes) : bytes; /* a page begins in every place */
  }
  record_addresses(&p);
  make_places(&p);
  find_live(&p);
  note_moments(&p);
  find_kept(&p);
  find_units(&p);
  plan->bytes[TS_PURPOSE_BUFFER] += plan->arena_bytes[TS_ARENA_INPUT];
  const ts_backend *backend = context->target.backend;
  plan->bytes[TS_PURPOSE_RESERVE] = reserve_bytes(backend, g, context->mesh->ranks);
  const ts_deck *deck = context->deck;
  bool copied = deck->run.save_every > 0 && deck->run.save_async && !ts_plan_offloads(plan);
  if (context->use == TS_MODEL_TRAIN && copied) { /* what does not fit into memory is not copied there */
    plan->bytes[TS_PURPOSE_CHECKPOINT] = ts_saved_bytes(g, context->layout);
  }
  /* a program feeds its own model's evaluation one micro-batch at a time */
  bool one = context->use == TS_MODEL_LOSS && ts_deck_model_is_own(context->deck);
  plan->feed_bytes = feed_bytes(g, context->sequence->length, one ? 1 : context->step->micro_batches);
  plan->bytes[TS_PURPOSE_BUFFER] += backend->device == NULL ? plan->feed_bytes : 0;
  plan->peak_bytes = plan->bytes[TS_PURPOSE_RESERVE] +
                     (backend->device == NULL ? plan->bytes[TS_PURPOSE_CHECKPOINT] + plan->feed_bytes : 0);
  for (ts_arena a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    plan->peak_bytes += plan->arena_bytes[a];
  }
  ts_free(p.place);
  ts_free(p.lifetime);
  ts_free(p.of_root);
  for (ts_arena a = TS_ARENA_PINNED; a < TS_N_ARENAS; ++a) {
    ts_free(p.list[a].item);
  }
  context->plan = plan;
}
