/* Memory is planned, not allocated: every storage has a first and a last instruction; storages that are never live
 * together may share bytes.  Placement is greedy: largest first, each at the lowest offset where nothing that is live
 * at the same time lies (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, "greedy
 * by size"); a second order (first use) is tried as well and the smaller result taken. */
#include "base/memory.h"
#include "comm/comm.h"
#include "pass/pass.h"
#include "pass/plan.h"
#include "pass/saved.h"
#include "pass/state.h"
#include "pass/storage.h"

#include <stdlib.h>
#include <string.h>

const ts_arena_row ts_arenas[TS_N_ARENAS] = {
    [TS_ARENA_STATE] = {"state", TS_SPACE_BACKEND, TS_LIFETIME_STATE},
    [TS_ARENA_INPUT] = {"input", TS_SPACE_HOST, TS_LIFETIME_SLOT},
    [TS_ARENA_WORK] = {"work", TS_SPACE_BACKEND, TS_LIFETIME_SCRATCH},
};

void ts_plan_destroy(ts_plan **plan) {
  if (*plan != NULL) {
    ts_free((*plan)->address);
    ts_free((*plan)->workspace);
    ts_free((*plan)->workspace_bytes);
    ts_free(*plan);
    *plan = NULL;
  }
}

/* Sum of the backend's reserves for a world of `ranks` ranks. */
static int64_t reserve_bytes(const ts_backend *backend, int ranks) {
  int64_t bytes = 0;
  for (const ts_reserve *r = backend->reserves; r != NULL && r->name != NULL; ++r) {
    bytes += r->bytes + (ranks > 1 ? r->bytes_if_several : 0) + r->bytes_per_rank * (ranks - 1);
  }
  return bytes;
}

/* Something that needs bytes of WORK from instruction `first` to `last`, both included. */
typedef struct interval {
  int first, last;
  int64_t bytes, offset;
  ts_tid tensor; /* the root it holds, TS_NONE for a workspace */
  ts_nid node;   /* the node whose workspace it is */
  bool buffer;
} interval;

typedef struct planner {
  const ts_graph *graph;
  const ts_schedule *schedule;
  const ts_pass_context *context;
  ts_place *place;
  ts_plan *plan;
  int *of_root; /* interval of a root tensor, -1 for none */
  interval *item;
  int n, capacity;
} planner;

/* ---- lifetimes ---- */

static ts_lifetime lifetime_of(const ts_tensor *root) {
  return root->role == TS_ROLE_STATE ? TS_LIFETIME_STATE
         : root->producer == TS_NONE ? TS_LIFETIME_SLOT
                                     : TS_LIFETIME_SCRATCH;
}

static ts_arena find_arena(ts_space space, ts_lifetime lifetime) {
  ts_arena a = TS_ARENA_STATE;
  while (a < TS_N_ARENAS && (ts_arenas[a].space != space || ts_arenas[a].lifetime != lifetime)) {
    ++a;
  }
  TS_CHECK(a < TS_N_ARENAS, "no arena has space %d and lifetime %d", (int) space, (int) lifetime);
  return a;
}

static int add_item(planner *p, interval item) {
  TS_GROW(p->item, p->n, p->capacity);
  p->item[p->n] = item;
  return p->n++;
}

/* A leaf has its place for good, behind those before it. \return its bytes. */
static int64_t place_leaf(planner *p, ts_tid leaf) {
  const ts_tensor *tensor = &p->graph->tensor[leaf];
  ts_arena arena = find_arena(tensor->space, lifetime_of(tensor));
  int64_t bytes = ts_plan_align(ts_tensor_bytes(p->graph, leaf));
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
  if (lifetime_of(&p->graph->tensor[root]) != TS_LIFETIME_SCRATCH) {
    if (p->plan->address[root].arena == TS_ARENA_NONE) { /* an input has its place from the first use on */
      place_leaf(p, root);
    }
    return;
  }
  int *index = &p->of_root[root];
  if (*index < 0) {
    *index = add_item(p, (interval){.first = at,
                                    .last = at,
                                    .tensor = root,
                                    .node = TS_NONE,
                                    .bytes = ts_plan_align(ts_tensor_bytes(p->graph, root))});
  }
  interval *item = &p->item[*index];
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

static void mark_buffers(planner *p, const ts_node *node) {
  for (int i = 0; i < node->n_in + node->n_out; ++i) {
    ts_tid t = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
    int index = p->of_root[p->place[t].root];
    if (index >= 0) {
      p->item[index].buffer = true;
    }
  }
}

static int64_t comm_workspace(const planner *p) {
  int64_t most = 0;
  for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
    const ts_node *node = &p->graph->node[n];
    if (node->op == TS_OP_REDUCE_SCATTER) {
      int64_t columns = 0;
      for (int i = 0; i < node->attr.comm.n_pieces; ++i) {
        const ts_piece *piece = &node->attr.comm.piece[i];
        columns += piece->end - piece->begin;
      }
      int group = node->attr.comm.group;
      int64_t bytes = (int64_t) (p->context->target.backend->device != NULL
                                     ? ts_comm_device_workspace
                                     : ts_comm_workspace)(group, columns, node->attr.comm.wire);
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
    extend_lives(p, node, i);
    if (p->schedule->instruction[i].kind != TS_RUN) {
      mark_buffers(p, node);
      continue;
    }
    const ts_kernel *kernel = target->backend->kernel(node->op);
    size_t bytes = kernel->prepare != NULL ? kernel->prepare(target, p->graph, node, NULL) : 0;
    if (bytes > 0) {
      add_item(
          p, (interval){.first = i, .last = i, .bytes = ts_plan_align((int64_t) bytes), .tensor = TS_NONE, .node = n});
      p->plan->workspace_bytes[n] = (int64_t) bytes;
    }
  }
  for (int i = 0; i < p->graph->n_marks; ++i) {
    extend_life(p, p->graph->mark[i].tensor, p->schedule->n); /* the host reads results after the end */
  }
  int64_t bytes = comm_workspace(p);
  if (bytes > 0) { /* collectives run one after another: they share one workspace */
    add_item(p, (interval){.first = 0,
                           .last = p->schedule->n,
                           .bytes = ts_plan_align(bytes),
                           .tensor = TS_NONE,
                           .node = TS_NONE,
                           .buffer = true});
    for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
      if (ts_node_is_collective(&p->graph->node[n])) {
        p->plan->workspace_bytes[n] = bytes;
      }
    }
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

/* Lowest offset for `item` among the `n` placed intervals, which are sorted by offset. */
static int64_t lowest_gap(const interval *item, interval *const *placed, int n) {
  int64_t offset = 0;
  for (int i = 0; i < n; ++i) {
    if (together(item, placed[i])) {
      if (placed[i]->offset >= offset + item->bytes) {
        break;
      }
      int64_t end = placed[i]->offset + placed[i]->bytes;
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

/* Live bytes per instruction; the peak, and how much of it is buffers. */
static void find_peak(planner *p, int64_t *peak, int64_t *buffers_at_peak) {
  int n = p->schedule->n + 2;
  int64_t *delta = ts_calloc((size_t) n + 1, sizeof *delta), *buffer = ts_calloc((size_t) n + 1, sizeof *buffer);
  for (int i = 0; i < p->n; ++i) {
    const interval *item = &p->item[i];
    delta[item->first] += item->bytes;
    delta[item->last + 1] -= item->bytes;
    buffer[item->first] += item->buffer ? item->bytes : 0;
    buffer[item->last + 1] -= item->buffer ? item->bytes : 0;
  }
  *peak = *buffers_at_peak = 0;
  for (int64_t i = 0, live = 0, live_buffer = 0; i < n; ++i) {
    live += delta[i];
    live_buffer += buffer[i];
    if (live > *peak) {
      *peak = live;
      *buffers_at_peak = live_buffer;
    }
  }
  ts_free(delta);
  ts_free(buffer);
}

static void place_state(planner *p) {
  for (ts_tid t = 0; t < p->graph->n_tensors; ++t) {
    const ts_tensor *tensor = &p->graph->tensor[t];
    if (tensor->role == TS_ROLE_STATE) {
      p->plan->bytes[ts_state_get(tensor->held.state)->purpose] += place_leaf(p, t);
    }
  }
}

static void record_addresses(planner *p) {
  ts_plan *plan = p->plan;
  for (int i = 0; i < p->n; ++i) {
    ts_address at = {TS_ARENA_WORK, p->item[i].offset};
    if (p->item[i].tensor != TS_NONE) {
      plan->address[p->item[i].tensor] = at;
    } else if (p->item[i].node != TS_NONE) {
      plan->workspace[p->item[i].node] = at;
    } else {
      for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
        if (ts_node_is_collective(&p->graph->node[n])) {
          plan->workspace[n] = at;
        }
      }
    }
  }
  for (ts_tid t = 0; t < p->graph->n_tensors; ++t) {
    ts_place place = p->place[t];
    if (place.root != t && plan->address[place.root].arena != TS_ARENA_NONE) {
      plan->address[t] = (ts_address){plan->address[place.root].arena, plan->address[place.root].offset + place.offset};
    }
  }
}

/* What the host reads before a step: the inputs of all its micro-batches. */
static int64_t feed_bytes(const ts_graph *g, const ts_pass_context *context) {
  bool train = context->use == TS_MODEL_TRAIN && context->deck->gradient_accumulation_steps > 0;
  int64_t micro_batches = train ? context->deck->gradient_accumulation_steps : 1, bytes = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    bytes += g->tensor[t].role == TS_ROLE_INPUT ? ts_tensor_bytes(g, t) : 0;
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
               .of_root = ts_malloc(n_tensors * sizeof *p.of_root)};
  memset(p.of_root, -1, n_tensors * sizeof *p.of_root);
  place_state(&p);
  find_lifetimes(&p);
  plan->arena_bytes[TS_ARENA_WORK] = place_best(p.item, p.n);
  record_addresses(&p);
  int64_t buffers;
  find_peak(&p, &plan->live_bytes, &buffers);
  plan->bytes[TS_PURPOSE_BUFFER] += buffers + plan->arena_bytes[TS_ARENA_INPUT];
  plan->bytes[TS_PURPOSE_ACTIVATION] = plan->arena_bytes[TS_ARENA_WORK] - buffers;
  const ts_backend *backend = context->target.backend;
  plan->bytes[TS_PURPOSE_RESERVE] = reserve_bytes(backend, context->mesh->ranks);
  const ts_deck *deck = context->deck;
  if (context->use == TS_MODEL_TRAIN && deck->run.save_every > 0 && deck->run.save_async) {
    plan->bytes[TS_PURPOSE_CHECKPOINT] = ts_saved_bytes(g, context->layout);
  }
  plan->feed_bytes = feed_bytes(g, context);
  plan->bytes[TS_PURPOSE_BUFFER] += backend->device == NULL ? plan->feed_bytes : 0;
  plan->peak_bytes = plan->bytes[TS_PURPOSE_RESERVE] +
                     (backend->device == NULL ? plan->bytes[TS_PURPOSE_CHECKPOINT] + plan->feed_bytes : 0);
  for (ts_arena a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    plan->peak_bytes += plan->arena_bytes[a];
  }
  ts_free(p.place);
  ts_free(p.of_root);
  ts_free(p.item);
  context->plan = plan;
}
