/** \file
 * The op table: one row per op of graph/ops.def with its properties and rules.  The rules are in src/ops, one file per
 * family.  None of these functions is collective.
 */
#ifndef TS_GRAPH_OP_H
#define TS_GRAPH_OP_H

#include "base/experts.h"
#include "graph/attribute.h"
#include "graph/cut.h"
#include "graph/graph.h"

enum {
  TS_OP_ALIAS = 1,
  TS_OP_COMM = 2,
  TS_OP_IS_UPDATE = 4,
  TS_OP_PRODUCT = 8,
  TS_OP_LSE = 16,
  TS_OP_HAS_TARGET = 32,
  TS_OP_MESSAGE = 64,
  TS_OP_COPY = 128
};

/** Elements per block of the sum of squares, part of the definition of the gradient norm. */
#define TS_SQUARE_BLOCK 4096

/** A label that is not counted in the loss. */
#define TS_IGNORED (-100)

/** The types and shapes of a node's outputs, from its inputs and attributes.
 * \param [out] dtype, shape  n_out entries.
 * \return NULL, or why the inputs do not fit: a constant string. Not collective. */
typedef const char *ts_shape_rule(const ts_graph *graph, const ts_node *node, ts_dtype *dtype, ts_shape *shape);

/** The indices of a node's tensors as letters, like an einsum: "btk,nk->btn".  '*' stands for any leading dimensions; a
 * capital letter must be whole on every rank; '.' takes no part.  Inputs in order, absent optional ones included.  What
 * may be divided along them is ts_node_cut's to say (graph/cut.h).
 * \return a constant string, "" when the op has no such rule (windows, collectives, update). Not collective. */
typedef const char *ts_index_rule(const ts_node *node);

/** What a gradient rule works with (pass/autodiff). */
typedef struct ts_gradients ts_gradients;

/** Add the nodes that compute the gradients of \a node's inputs from those of its outputs. Not collective. */
typedef void ts_gradient_rule(ts_gradients *gradients, const ts_node *node);

/** Floating-point operations the node's mathematics needs (not what a kernel happens to do). Not collective. */
typedef double ts_flops_rule(const ts_graph *graph, const ts_node *node);

typedef struct ts_op_info {
  const char *name;
  int min_in, max_in; /**< max -1: any number. */
  unsigned optional;  /**< Bit i: input i may be absent. */
  int min_out, max_out;
  int n_inplace;
  unsigned adds; /**< Bit i: output i can be added to a prior. */
  unsigned flags;
  const ts_attribute *attribute;
  ts_shape_rule *shape;
  ts_index_rule *index;
  ts_cut_rule *cut;
  ts_gradient_rule *gradient; /**< ts_gradient_none where the op is not differentiated. */
  ts_flops_rule *flops;
} ts_op_info;

/** The row of an op. Not collective. */
const ts_op_info *ts_op_get(ts_op op);

/** True for a node that a group of ranks runs together. Not collective. */
static inline bool ts_node_is_collective(const ts_node *node) {
  return (ts_op_get(node->op)->flags & TS_OP_COMM) != 0;
}

/** True for a send or a receive between two pieces of a pipeline. Not collective. */
static inline bool ts_node_is_message(const ts_node *node) {
  return (ts_op_get(node->op)->flags & TS_OP_MESSAGE) != 0;
}

/** True for a node whose outputs are windows on its input (but not for a pack, whose inputs lie in the output).
 * Not collective. */
static inline bool ts_node_makes_window(const ts_node *node) {
  return (ts_op_get(node->op)->flags & TS_OP_ALIAS) != 0 && node->op != TS_OP_PACK;
}

/** True for a pack of nothing, room that is written to later: it can be made at any time. Not collective. */
static inline bool ts_node_is_room(const ts_node *node) {
  return node->op == TS_OP_PACK && node->n_in == 0;
}

/** True for a copy from one space to another. Not collective. */
static inline bool ts_node_is_copy(const ts_node *node) {
  return (ts_op_get(node->op)->flags & TS_OP_COPY) != 0;
}

/** True for a copy towards the backend's memory: to it, or of a file to the host's beside a device. Not collective. */
static inline bool ts_node_brings(const ts_node *node) {
  return node->op == TS_OP_LOAD || node->op == TS_OP_COPY_IN;
}

/** True for a copy from there, or of what was computed elsewhere back to where it lives. Not collective. */
static inline bool ts_node_takes(const ts_node *node) {
  return ts_node_is_copy(node) && !ts_node_brings(node);
}

/** True for a copy from its space, and not to it. Not collective. */
static inline bool ts_copy_reads(const ts_node *copy) {
  return ts_node_brings(copy) || copy->op == TS_OP_COPY_INTO;
}

/** The space that a copy is from or to; of other nodes the backend's. Not collective. */
static inline ts_space ts_node_copies(const ts_node *node) {
  return !ts_node_is_copy(node)                              ? TS_SPACE_BACKEND
         : node->op == TS_OP_LOAD || node->op == TS_OP_STORE ? TS_SPACE_FILE
                                                             : TS_SPACE_PINNED;
}

/** Both ends of a copy: where only copies come, and nearer to the backend's memory. Not collective. */
static inline ts_tid ts_copy_away(const ts_node *copy) {
  return ts_copy_reads(copy) ? copy->in[copy->n_in - 1] : copy->out[0];
}
static inline ts_tid ts_copy_here(const ts_node *copy) {
  return ts_copy_reads(copy) ? copy->out[0] : copy->in[1];
}

/** Is it where only copies come? Not collective. */
static inline bool ts_space_is_away(ts_space space) {
  return space == TS_SPACE_FILE || space == TS_SPACE_PINNED;
}

/** The input that says how many rows of a node's outputs there are at run time, as its last element: rows behind them
 * are not written, and nobody reads them.  -1: as many as the shapes say. Not collective. */
static inline int ts_node_extent(const ts_node *node) {
  switch (node->op) {
    case TS_OP_TAKE_ROWS: return 3;
    case TS_OP_GROUPED:
    case TS_OP_GROUPED_BIAS: return 2;
    case TS_OP_ACTIVATION: return node->n_in > 1 ? 1 : -1;
    case TS_OP_ACTIVATION_DX:
    case TS_OP_GLU: return node->n_in > 2 ? 2 : -1;
    case TS_OP_GLU_DX: return node->n_in > 3 ? 3 : -1;
    case TS_OP_EXCHANGE_ROWS: return node->attr.comm.home ? 3 : 2;
    default: return -1;
  }
}

/** What is wrong with where \a n ranges of rows begin and the last one ends, [n + 1], where there is room for \a rows.
 * \return NULL: nothing. Not collective. */
const char *ts_extent_wrong(const int32_t *first, int64_t n, int64_t rows);

/** Query heads of a key head in the whole, of an attention's attributes. Not collective. */
static inline int ts_attention_group(const ts_attr *attr) {
  int heads = attr->attention.heads / attr->attention.kv_heads;
  return attr->attention.group > 0 ? attr->attention.group : heads > 0 ? heads : 1;
}

/** The inputs of an MLP; those of its gradient are one further, behind dy. */
enum {
  TS_MLP_X,
  TS_MLP_GATE,
  TS_MLP_GATE_BIAS,
  TS_MLP_UP,
  TS_MLP_UP_BIAS,
  TS_MLP_DOWN,
  TS_MLP_DOWN_BIAS,
  TS_MLP_INPUTS
};

/** The inputs of UPDATE_ELEMENTS behind those that it makes new versions of. */
typedef enum ts_update_input {
  TS_UPDATE_G, /**< The gradient; of a rule that makes a direction of it, which is input 0 then, the parameter. */
  TS_UPDATE_STEP,
  TS_UPDATE_CORRECTIONS,
  TS_UPDATE_LR,
  TS_UPDATE_BETAS,
  TS_UPDATE_SCALE,
  TS_UPDATE_SKIP,
  TS_UPDATE_INPUTS,
  TS_UPDATE_RATIOS = TS_UPDATE_INPUTS /**< Where attr.update.has_ratios is set. */
} ts_update_input;

/** The number of one of them. Not collective. */
static inline int ts_update_at(const ts_node *node, ts_update_input input) {
  return node->n_out + (int) input;
}

/** Which of UPDATE_ELEMENTS' inputs, and outputs, are what; -1: there is none. */
typedef struct ts_update_slots {
  int copy, state[2], scales[2];
} ts_update_slots;

/** Those of a node, whose inputs' types say which states have scales. Not collective. */
ts_update_slots ts_update_slots_of(const ts_graph *graph, const ts_node *node);

/** True for a state of an optimizer that may have numbers below 0: for all but sums of squares. Not collective. */
static inline bool ts_state_has_sign(ts_state state) {
  return state != TS_STATE_EXP_AVG_SQ && state != TS_STATE_SQUARES;
}

/** What has to be together for an update. */
typedef enum ts_granularity { TS_GRANULARITY_ELEMENT, TS_GRANULARITY_TENSOR, TS_GRANULARITY_MATRIX } ts_granularity;

/** An optimizer's row. */
typedef struct ts_optimizer_info {
  const char *name;
  ts_granularity granularity; /**< Not ELEMENT: its rule makes a direction of the gradient, in its place. */
  ts_state state[2];          /**< TS_STATE_NONE: none. */
  int n_states;
} ts_optimizer_info;

/** The row of an optimizer. Not collective. */
const ts_optimizer_info *ts_optimizer_get(ts_optimizer optimizer);

/** FLOPs of making rows x columns orthogonal.  With s the shorter and l the longer side, a step of the standard way has
 * two products of 2 s^2 l and one of 2 s^3, and there are five; the gram way has four and fourteen in all, and leaves
 * squares to the standard one. Not collective. */
double ts_orthogonalize_flops(double rows, double columns, bool gram);

/** The number of a head's input `stats`; -1 where the node has none. Not collective. */
static inline int ts_head_stats(const ts_node *node) {
  int at = node->op == TS_OP_HEAD_LOSS ? 3 : node->op == TS_OP_HEAD_LOSS_DX ? 4 : node->n_in;
  return at < node->n_in && node->in[at] != TS_NONE ? at : -1;
}

/** The number of the input of an rmsnorm, or its gradient, that has sums over whole rows; -1 where the node has none.
 * Not collective. */
static inline int ts_norm_sums(const ts_node *node) {
  int at = node->op == TS_OP_RMSNORM ? 2 : node->op == TS_OP_RMSNORM_DX ? 4 : node->n_in;
  return at < node->n_in && node->in[at] != TS_NONE ? at : -1;
}

/** The type in which a node reads input \a input: its own, but of a parameter in fp32 that is the second factor of a
 * product in a lower type (a tied table under autocast, which lookups read in fp32) that of the first.  The zero pass
 * casts it. Not collective. */
ts_dtype ts_node_reads(const ts_graph *graph, const ts_node *node, int input);

/** True when output \a output of an op can be added to a prior. Not collective. */
bool ts_op_adds(ts_op op, int output);

/** FLOPs of a node, and bytes it must at least read and write once. Not collective. */
double ts_node_flops(const ts_graph *graph, const ts_node *node);
double ts_node_bytes(const ts_graph *graph, const ts_node *node);

/** Declares that \a node's gradient rule cannot be reached. Not collective. */
void ts_gradient_none(ts_gradients *gradients, const ts_node *node);
double ts_flops_none(const ts_graph *graph, const ts_node *node);

#endif
