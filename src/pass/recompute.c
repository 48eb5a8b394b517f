/* What becomes of the forward's results that the backward reads: a policy for each tensor.  What is computed again is
 * copied on demand, right before the first node that reads it.  A copy has its original's inputs and attributes, and
 * dropout's numbers are a function of name and position: no choice changes a bit.
 *
 * activation_checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016) keeps, of hidden size h
 * and H heads of h / H elements in bf16:
 *
 *   policy, interval   bytes a token and block   computed again
 *   block, 1           2h                        the block, from its input
 *   block, k           2h / k                    inputs of k blocks from the first one's, then each block
 *   sac, 1             4h + 4H                   the block but for attention, which alone costs the length squared
 *   sac, k             2h + 4H + 2h / k          both of these
 *
 * With groups of heads a block that is computed again makes q, k and v, and sends them, once more for attention alone.
 *
 * With moe.save = nothing rows of experts are made again from the tokens, and these are gathered again.
 *
 * Without it rows of tokens that ranks along tp have gathered are gathered again (Korthikanti et al., "Reducing
 * Activation Recomputation in Large Transformer Models", 2022, section 4.2.2). */
#include "pass/recompute.h"
#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "pass/pass.h"
#include "pass/sequence.h"
#include "pass/shard.h"

#include <string.h>

/* From so many tokens of a sample on attention is dearer than its results (DeepSpeed's SAC has the same limit). */
#define TS_LONG_SAMPLE 4096

typedef enum policy { KEEP, RECOMPUTE } policy;

/* What copies are for.  Those on the way to a block's input are gone when it is there: the block makes its own.  So are
 * queries, keys and values of a group of heads when attention has been computed again: its gradient makes its own. */
typedef enum aim { FOR_GRADIENT, FOR_INPUT, FOR_HEADS, N_AIMS } aim;

static const char *const suffix[N_AIMS] = {"again", "ahead", "for_heads"};

typedef struct recompute {
  ts_rewrite rewrite;
  const ts_graph *from;
  policy *policy;       /* per tensor */
  bool by_heads;        /* attention is done by groups of heads */
  bool *crosses;        /* per tensor: a block makes it and another unit reads it */
  int *copies;          /* per node: made beyond the first */
  ts_tid *copy[N_AIMS]; /* per tensor, TS_NONE until made */
} recompute;

static bool is_forward(const ts_node *node) {
  return node->segment == TS_SEGMENT_FORWARD;
}

/* ---- policies ---- */

static bool has_attention(const ts_graph *g) {
  bool has = false;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    has = has || g->node[n].op == TS_OP_ATTENTION;
  }
  return has;
}

char *ts_unit_class(const ts_deck *deck, const char *unit) {
  const ts_family *family = ts_deck_family(deck);
  return family != NULL ? ts_family_class(family, unit) : ts_strdup("");
}

bool ts_recompute_takes(const ts_deck *deck, const char *unit) {
  const ts_strings *layers = &deck->activation_checkpointing.layers;
  char *class = ts_unit_class(deck, unit);
  bool takes = layers->n == 0;
  for (int i = 0; i < layers->n && !takes; ++i) {
    takes = strcmp(layers->items[i], unit) == 0 || strcmp(layers->items[i], class) == 0;
  }
  ts_free(class);
  return takes;
}

/* Per unit the number of its group of as many blocks as the deck's interval says, of those that it takes.  Blocks are
 * the units with attention, the rest have no group:
 * embeddings and the head are cheap to keep or dear to repeat.  Of a model without, blocks are the units with products
 * but for a head. */
static int32_t *find_groups(const ts_graph *g, const ts_deck *deck) {
  int64_t interval = deck->activation_checkpointing.interval > 1 ? deck->activation_checkpointing.interval : 1;
  int32_t *group = ts_ids_none(g->n_units);
  ts_op of_block = has_attention(g) ? TS_OP_ATTENTION : TS_OP_MATMUL;
  int64_t blocks = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if (is_forward(node) && node->op == of_block && node->unit >= 0 && group[node->unit] == TS_NONE &&
        ts_recompute_takes(deck, g->unit[node->unit])) {
      group[node->unit] = (int32_t) (blocks++ / interval);
    }
  }
  return group;
}

static int32_t block_group(const int32_t *group, const ts_node *node) {
  return node != NULL && node->unit >= 0 ? group[node->unit] : TS_NONE;
}

/* What crosses from block to block is computed again within their group, and kept when anybody else reads it. */
static void choose_for_reader(recompute *r, const int32_t *group, const ts_node *reader, ts_tid t) {
  const ts_node *producer = t != TS_NONE ? ts_graph_producer(r->from, t) : NULL;
  if (block_group(group, producer) != TS_NONE && is_forward(producer) && producer->unit != reader->unit) {
    r->crosses[t] = true;
    r->policy[t] = block_group(group, producer) == block_group(group, reader) ? r->policy[t] : KEEP;
  }
}

static void choose_blocks(recompute *r, const ts_deck *deck, bool sac) {
  int32_t *group = find_groups(r->from, deck);
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    const ts_node *node = &r->from->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      choose_for_reader(r, group, node, node->in[i]);
    }
    bool again = block_group(group, node) != TS_NONE && is_forward(node) && !(sac && node->op == TS_OP_ATTENTION) &&
                 node->op != TS_OP_RECEIVE; /* nobody sends it again */
    for (int i = 0; i < node->n_out; ++i) {
      r->policy[node->out[i]] = again ? RECOMPUTE : KEEP;
    }
  }
  ts_free(group);
}

/* All rows of a tensor of which ranks along tp have some; the head's statistics are small and stay. */
static bool gathers_rows(const ts_graph *g, const ts_node *node) {
  if (node == NULL || node->op != TS_OP_ALL_GATHER || node->attr.comm.axes != TS_AXES(TS_AXIS_TP)) {
    return false;
  }
  const ts_node *from = ts_graph_producer(g, node->in[0]);
  return from == NULL || from->op != TS_OP_HEAD_STATS;
}

/* Gathered rows, and changes of their shape. */
static void choose_gathers(recompute *r) {
  for (ts_nid n = 0; n < r->from->n_nodes && is_forward(&r->from->node[n]); ++n) {
    const ts_node *node = &r->from->node[n];
    bool view = node->op == TS_OP_VIEW;
    if (gathers_rows(r->from, view ? ts_graph_producer(r->from, node->in[0]) : node)) {
      r->policy[node->out[0]] = RECOMPUTE;
    }
  }
}

/* Is it asked for that experts' rows are dispatched again? */
static bool dispatches_again(const ts_pass_context *context) {
  const char *save = context->deck->moe.save;
  bool spread = context->mesh->size[TS_AXIS_EP] > 1;
  return strcmp(save, "nothing") == 0 || (strcmp(save, "auto") == 0 && spread);
}

/* Is it cut into chunks of tokens for experts? */
static bool cuts_tokens(const ts_graph *g, const ts_node *node) {
  const ts_node *producer = node->op == TS_OP_SPLIT ? ts_graph_producer(g, node->in[0]) : NULL;
  return producer != NULL && producer->op == TS_OP_VIEW && g->tensor[node->in[0]].shape.n == 2 &&
         g->tensor[node->in[0]].shape.d[0] == 1;
}

/* Where rows of experts begin on all ranks: few numbers, which are kept. */
static bool counts(const ts_graph *g, const ts_node *gather) {
  const ts_node *of = ts_graph_producer(g, gather->in[0]);
  return of != NULL && of->op == TS_OP_DISPATCH;
}

/* Chunks of tokens, or those of all ranks along ep, as they lie or in another shape. */
static bool moves_tokens(const ts_graph *g, const ts_node *node) {
  const ts_node *from = node->op == TS_OP_VIEW ? ts_graph_producer(g, node->in[0]) : node;
  return from != NULL &&
         ((from->op == TS_OP_ALL_GATHER && from->attr.comm.axes == TS_AXES(TS_AXIS_EP) && !counts(g, from)) ||
          cuts_tokens(g, from));
}

/* What has as many rows as there could be, and the tokens that these are of. */
static void choose_rows(recompute *r) {
  for (ts_nid n = 0; n < r->from->n_nodes && is_forward(&r->from->node[n]); ++n) {
    const ts_node *node = &r->from->node[n];
    if (ts_node_extent(node) >= 0 || moves_tokens(r->from, node)) {
      for (int i = 0; i < node->n_out; ++i) {
        r->policy[node->out[i]] = RECOMPUTE;
      }
    }
  }
}

/* ---- copies ---- */

static void repeat_node(recompute *r, ts_nid n, aim aim);

static bool by_heads(const recompute *r, const ts_node *node, aim aim) {
  return r->by_heads && aim == FOR_GRADIENT && node->op == TS_OP_ATTENTION;
}

/* Made again for each reader, as that costs no more than to move it: groups of heads put together. */
static bool is_moved(const recompute *r, ts_tid t) {
  return r->by_heads && r->from->node[r->from->tensor[t].producer].op == TS_OP_CONCAT;
}

/* What stands for t: itself, or its copy, made when it is first asked for.  Each block of a group asks for the one
 * before it: the schema bounds how deep that goes. */
static ts_tid find(recompute *r, ts_tid t, aim aim) {
  if (t == TS_NONE || r->policy[t] == KEEP) {
    return ts_rewrite_tensor(&r->rewrite, t);
  }
  aim = r->crosses[t] ? FOR_INPUT : aim;
  if (r->copy[aim][t] == TS_NONE || is_moved(r, t)) {
    repeat_node(r, r->from->tensor[t].producer, aim);
  }
  return r->copy[aim][t];
}

/* Node n that reads copies, which are there before the rewriter's one list of inputs is filled. */
static ts_node read_copies(recompute *r, ts_nid n, aim aim) {
  const ts_node *old = &r->from->node[n];
  aim = by_heads(r, old, aim) ? FOR_HEADS : aim;
  ts_tid *in = ts_malloc(((size_t) old->n_in + 1) * sizeof *in);
  for (int i = 0; i < old->n_in; ++i) {
    in[i] = find(r, old->in[i], aim);
  }
  ts_node node = ts_rewrite_node(&r->rewrite, n);
  memcpy(r->rewrite.in, in, (size_t) old->n_in * sizeof *in);
  ts_free(in);
  return node;
}

static void repeat_node(recompute *r, ts_nid n, aim aim) {
  ts_node node = read_copies(r, n, aim);
  bool more = r->copy[aim][r->from->node[n].out[0]] != TS_NONE;
  char *name =
      more ? ts_format("%s.%s:%d", node.name, suffix[aim], ++r->copies[n]) : ts_format("%s.%s", node.name, suffix[aim]);
  node.name = name;
  ts_tid first = ts_graph_add((ts_site){r->rewrite.to, TS_SEGMENT_BACKWARD_INPUT, node.unit}, &node);
  for (int i = 0; i < node.n_out; ++i) {
    r->copy[aim][r->from->node[n].out[i]] = first + i;
  }
  ts_free(name);
}

static void write_nodes(recompute *r) {
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    bool forward = is_forward(&r->from->node[n]);
    ts_node node = forward ? ts_rewrite_node(&r->rewrite, n) : read_copies(r, n, FOR_GRADIENT);
    ts_rewrite_add(&r->rewrite, n, &node);
  }
}

/* Ranks that share samples decide alike: by the most tokens that one of them has. */
const char *ts_recompute_policy(const ts_deck *deck, const ts_sequence *sequence) {
  const char *policy = deck->activation_checkpointing.policy;
  bool sac = strcmp(policy, "auto") == 0 ? ts_sequence_most(sequence) >= TS_LONG_SAMPLE : strcmp(policy, "sac") == 0;
  return sac ? "sac" : "block";
}

void ts_pass_recompute(ts_graph **graph, ts_pass_context *context) {
  bool blocks = context->deck->activation_checkpointing.enabled, rows = dispatches_again(context);
  if (!blocks && !rows && context->shards == NULL) {
    return;
  }
  size_t tensors = (size_t) (*graph)->n_tensors + 1;
  recompute r = {
      .rewrite = ts_rewrite_begin(*graph),
      .from = *graph,
      .policy = ts_calloc(tensors, sizeof *r.policy),
      .crosses = ts_calloc(tensors, sizeof *r.crosses),
      .copies = ts_calloc((size_t) (*graph)->n_nodes + 1, sizeof *r.copies),
      .copy = {ts_ids_none((*graph)->n_tensors), ts_ids_none((*graph)->n_tensors), ts_ids_none((*graph)->n_tensors)},
      .by_heads = context->deck->sequence_parallel.head_groups > 1};
  if (blocks) {
    bool sac = strcmp(ts_recompute_policy(context->deck, context->sequence), "sac") == 0;
    choose_blocks(&r, context->deck, sac);
  } else {
    choose_gathers(&r);
  }
  if (rows) {
    choose_rows(&r);
  }
  write_nodes(&r);
  ts_free(r.policy);
  ts_free(r.crosses);
  ts_free(r.copies);
  for (aim aim = 0; aim < N_AIMS; ++aim) {
    ts_free(r.copy[aim]);
  }
  ts_rewrite_marks(&r.rewrite);
  ts_rewrite_end(&r.rewrite, graph);
}
