/** \file
 * The graph: the training step as tensors and nodes.
 *
 * A node applies one op (graph/ops.def) to tensors and makes new ones.  Nodes are stored in an order in which every
 * tensor is made before it is used; this order is the order of execution until the schedule pass changes it.  A node is
 * never changed after it was added: a pass writes a new graph (graph/rewrite.h).  Tensor and node ids are dense, so
 * side tables are arrays.  Nothing in this room knows of MPI, a device or a file, and nothing executes.
 *
 * Storage: a tensor is a value.  Two tensors may be two versions of one storage (an update in place) or a window on
 * another's; the op's row says so, and pass/memory derives the storage of every tensor from it.
 *
 * None of these functions is collective; none is thread-safe on one graph.
 */
#ifndef TS_GRAPH_GRAPH_H
#define TS_GRAPH_GRAPH_H

#include "base/deal.h"
#include "base/dtype.h"
#include "base/loss_scale.h"
#include "base/status.h"
#include "base/text.h"
#include "graph/value.h"

#include <stdbool.h>
#include <stdint.h>

typedef int32_t ts_nid; /**< A node of a graph. */

/** A side table for \a n tensors or nodes: \a n + 1 entries of TS_NONE, owned by the caller (ts_free).
 * Not collective. */
int32_t *ts_ids_none(int n);

typedef enum ts_op {
#define OP(ENUM, ...) TS_OP_##ENUM,
#include "graph/ops.def"
#undef OP
  TS_N_OPS
} ts_op;

/** A shape: \a n extents, slowest first; n = 0 is not used (a scalar is [1]). */
typedef struct ts_shape {
  int n;
  int64_t d[TS_MAX_DIMS];
} ts_shape;

/** Shape literal: TS_SHAPE (B, T, C). */
#define TS_SHAPE(...) ((ts_shape){.n = (int) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .d = {__VA_ARGS__}})

/** What a leaf (a tensor no node makes) is, or TS_ROLE_VALUE for a node's output. */
typedef enum ts_role {
  TS_ROLE_VALUE,  /**< Made by a node. */
  TS_ROLE_INPUT,  /**< Written by the host for every micro-batch: tokens, labels, positions, samples, and beta. */
  TS_ROLE_SCALAR, /**< Written by the host before the runs that read it, in each slot: lr, betas, seeds. */
  TS_ROLE_PARAM,  /**< A model parameter as the model names it; after the zero pass only a name in the layout. */
  TS_ROLE_STATE   /**< Lives from step to step in the state arena, by name. */
} ts_role;

/** The segment a node belongs to.  A schedule runs segments by mask; see run/program.h. */
typedef enum ts_segment {
  TS_SEGMENT_FORWARD = 1,
  TS_SEGMENT_BACKWARD_INPUT = 2,  /**< Gradients of activations. */
  TS_SEGMENT_BACKWARD_WEIGHT = 4, /**< Gradients of parameters. */
  TS_SEGMENT_REDUCE = 8,          /**< What happens to gradients once per step. */
  TS_SEGMENT_UPDATE = 16,
  TS_SEGMENT_PREPARE = 32,     /**< What is made of parameters once per step, among its first forward. */
  TS_SEGMENT_LATE_UPDATE = 64, /**< Updates that the step before has left, among the same; of one rank alone, */
  TS_SEGMENT_LATE_GATHER = 128 /**< and gathers of what they have made. */
} ts_segment;

/** Segments in their order: 0 forward, 1 backward with its reductions, 2 update. Not collective. */
static inline int ts_segment_phase(ts_segment segment) {
  const unsigned forward = TS_SEGMENT_FORWARD | TS_SEGMENT_PREPARE | TS_SEGMENT_LATE_UPDATE | TS_SEGMENT_LATE_GATHER;
  return (segment & forward) != 0 ? 0 : segment == TS_SEGMENT_UPDATE ? 2 : 1;
}

/** Where a tensor's values are. */
typedef enum ts_space {
  TS_SPACE_BACKEND, /**< In the backend's memory, written by nodes. */
  TS_SPACE_HOST,    /**< In the host's, by the host; where the backend's is another, a run begins with a copy to it. */
  TS_SPACE_FILE,    /**< In a file of this rank's, read and written by copies (LOAD, STORE): from and to the host's. */
  TS_SPACE_PINNED,  /**< In the host's memory beside a device's: by copies, and by what the host computes. */
  TS_N_SPACES
} ts_space;

/** The kinds of state (graph/states.def; pass/state.h knows more of them). */
typedef enum ts_state {
  TS_STATE_NONE,
#define STATE(ENUM, ...) TS_STATE_##ENUM,
#include "graph/states.def"
#undef STATE
  TS_N_STATES
} ts_state;

/** What a DROPOUT does to an element, with a number u of its own between 0 and 1. */
typedef enum ts_noise {
  TS_NOISE_DROP,   /**< x / (1 - p), or 0 with probability p. */
  TS_NOISE_JITTER, /**< x (1 - p + 2 p u). */
  TS_NOISE_GUMBEL, /**< x - log (-log u). */
  TS_NOISE_UNIFORM /**< u. */
} ts_noise;

/** What a STATE leaf holds. */
typedef struct ts_held {
  ts_state state;
  int part;   /**< Of the flat layout, -1 for none. */
  bool whole; /**< Of the part; else this rank's shard. */
} ts_held;

typedef struct ts_tensor {
  char *name; /**< The graph's; unique among leaves; a node's outputs are named "node" or "node:1", "node:2". */
  ts_role role;
  ts_space space; /**< HOST for leaves of role INPUT and SCALAR; of windows and new versions that of the old one. */
  ts_dtype dtype;
  ts_shape shape;
  ts_held held;    /**< Of a STATE leaf. */
  ts_init init;    /**< Of a PARAM leaf. */
  int sequence;    /**< Of an INPUT leaf: the dimension of its tokens, which ranks along sp share; 0: it has none. */
  ts_nid producer; /**< TS_NONE for a leaf. */
  int unit;        /**< The unit of the model it belongs to, -1 for none (inputs, scalars). */
} ts_tensor;

/** Elements [offset, offset + count) of a flat tensor that belong together, with how the optimizer treats them. */
typedef struct ts_range {
  int64_t offset; /**< Elements from the tensor's first. */
  int64_t count;
  float weight_decay;
  float lr_factor;
  int64_t ratio; /**< Which of an update's ratios is its own. */
} ts_range;

/** Matrices in a flat tensor: `count` of them behind one another, rows x columns each, row by row.  With `joins` it is
 * one, directly behind another of as many rows, and lies to the right of that in one matrix. */
typedef struct ts_matrix {
  int64_t offset, rows, columns, count, joins;
} ts_matrix;

/** Elements of an optimizer's state in 8 bits that share a scale. */
#define TS_STATE_BLOCK 256

/** The optimizers (graph/optimizers.def). */
typedef enum ts_optimizer {
#define OPTIMIZER(ENUM, ...) TS_OPTIMIZER_##ENUM,
#include "graph/optimizers.def"
#undef OPTIMIZER
  TS_N_OPTIMIZERS
} ts_optimizer;

/** Numbers of an optimizer that stay from step to step; those that a rule has not are ignored. */
typedef struct ts_optimizer_numbers {
  float eps, momentum, dampening;
  float lr_decay, initial;                               /**< Of ADAGRAD: of the rate, and what its sum begins with. */
  float rate;                                            /**< Of BALANCE. */
  bool decoupled, bias_correction, nesterov, eps_inside; /**< eps_inside: beside what a root is taken of. */
} ts_optimizer_numbers;

/** How the optimizer rounds bf16 working values: to nearest, or by chance with the numbers of ts_random_to_bf16, whose
 * round is the number of the update. */
typedef struct ts_rounding {
  bool stochastic; /**< false: to nearest, and the rest has no meaning. */
  uint64_t key;    /**< Of the run's seed and the flat range. */
  int64_t first;   /**< Element of the flat range that the tensor's first one is. */
} ts_rounding;

/** Columns [begin, end) of every shard of one input of a collective. */
typedef struct ts_piece {
  int input;           /**< Which of the inputs x_1 .. x_k, from 0. */
  const int64_t *cuts; /**< group size + 1 cut points of the whole, elements; rank r owns [cuts[r], cuts[r + 1]).
                        * Borrowed from the layout. */
  int64_t begin, end;  /**< Elements relative to each shard's own first element; clipped to the shard. */
} ts_piece;

#define TS_MOST_STRETCHES 2

/** Which tokens of a whole sample a tensor has: those of each stretch, one stretch after the other.  n = 0: as many as
 * there are rows, from the first on. */
typedef struct ts_tokens {
  int n;
  ts_interval stretch[TS_MOST_STRETCHES]; /**< Ascending, not empty. */
} ts_tokens;

/** The token of the sample that row \a row is. Not collective. */
static inline int64_t ts_tokens_at(const ts_tokens *tokens, int64_t row) {
  for (int i = 0; i < tokens->n; ++i) {
    if (row < tokens->stretch[i].length) {
      return tokens->stretch[i].begin + row;
    }
    row -= tokens->stretch[i].length;
  }
  return row;
}

/** The tokens that rows [first, first + count) are; of all where \a tokens has n = 0. Not collective. */
ts_tokens ts_tokens_part(const ts_tokens *tokens, int64_t first, int64_t count);

/** True when they are of a sample of \a length tokens, and as many as \a rows. Not collective. */
bool ts_tokens_fit(const ts_tokens *tokens, int64_t rows, int64_t length);

/** A tensor that crosses from a piece of a pipeline to the next. */
typedef struct ts_crossing {
  int64_t wanted;            /**< 1: its gradient comes back; else 0. */
  int64_t alike;             /**< 1: the ranks along tp have the same, of its gradient too; else 0. */
  int64_t dtype;             /**< A ts_dtype; */
  int64_t n, d[TS_MAX_DIMS]; /**< and its shape's.  All members are as wide, so there is no gap. */
} ts_crossing;

/** The shape of what crosses. Not collective. */
ts_shape ts_crossing_shape(const ts_crossing *crossing);

/** Experts of a layer, and how many of them a token may have, at most. */
enum { TS_MOST_EXPERTS = 1024, TS_MOST_CHOSEN = 64 };

/** Attributes, by op. Arrays are owned by the node (copied by ts_graph_add). */
typedef union ts_attr {
  struct {
    int64_t offset;
    ts_shape shape;
  } view;
  struct {
    const int64_t *offset;
    int64_t count;
    ts_dtype dtype;
  } pack; /**< One offset per input; count elements in all; dtype where there is no input. */
  struct {
    ts_dtype dtype;
  } cast;
  struct {
    ts_space to; /**< Of a LOAD: BACKEND, or PINNED beside a device, from where a COPY_IN goes on. */
  } copy;
  struct {
    ts_activation kind;
  } activation;
  struct {
    float by, softcap; /**< softcap 0: none. */
  } scale;
  struct {
    bool transpose_a, transpose_b;
    ts_dtype dtype;
  } matmul;
  struct {
    ts_dtype dtype;
  } sum_rows;
  struct {
    ts_activation kind;
    bool transpose_b; /**< Weights are [out][in]. */
    bool fused;       /**< w_up has the gate too, in front. */
    int64_t rows;     /**< Of a tile, at most. */
    ts_dtype dtype;   /**< Of gradients of weights and biases. */
  } mlp;
  struct {
    int64_t rows; /**< Of the gradient. */
    ts_dtype dtype;
    int64_t first; /**< The row of the whole table that row 0 is. */
  } embedding;
  struct {
    ts_tokens tokens; /**< Of a sample that x, or dx, has. */
    int64_t rows;     /**< Of dx: how many they are. */
  } pick;
  struct {
    int k, groups, top_groups; /**< groups 0 or 1: none. */
    bool sigmoid, normalize;
    float scale;
    int sure; /**< The first choices, which are not by the noised logits. */
  } route;
  struct {
    int experts, least; /**< least: of an expert's capacity. */
    float factor;       /**< Of the capacity, in equal shares of the group's tokens. */
    int64_t length;     /**< Tokens of a group; 0: all that are here. */
    bool by_choice;     /**< First choices of all tokens come before second ones. */
    bool normalize;     /**< Weights of a token's choices that are left sum to 1. */
  } limit;
  struct {
    int groups;            /**< Of tokens: 1, or a sample each. */
    int64_t length, first; /**< Tokens of a group; of the first group those before the first token here. */
    bool sigmoid;          /**< As the router's. */
    int counted;           /**< The first choices of a token are; 0: all. */
  } loads;
  struct {
    int layers; /**< That the loads are sums over. */
    float aux, z;
  } balance;
  struct {
    int n, first; /**< Of the router's. */
    int64_t rows; /**< Of dispatch: room; 0: as many as choices. */
  } experts;
  struct {
    float temperature;
  } soft;
  struct {
    ts_shape shape; /**< Of dx. */
    ts_dtype dtype;
  } loss;
  struct {
    float eps;
    ts_dtype dtype;
    float offset;  /**< Of rmsnorm: 0, or 1 where the weights are kept as differences from 1. */
    int64_t width; /**< Of rmsnorm, of whose rows others have columns too: elements of a whole row; 0: x has all. */
  } norm;
  struct {
    float p;
    uint64_t name;
    int64_t first, length; /**< length > 0: x has rows from `first` on of all samples' rows, of samples of `length`. */
    ts_tokens tokens;      /**< Of a sample that x has. */
    ts_noise kind;         /**< Of which p is the probability, or the width. */
  } dropout;
  struct {
    int64_t groups;      /**< Of the last dimension; 1: one. */
    const int64_t *size; /**< Elements of each output in a group. */
  } split;
  struct {
    int64_t groups;
  } concat;
  struct {
    int dim;
    int64_t extent; /**< Of the whole along dim. */
    int n;
    const ts_interval *interval; /**< Of these indices along dim; disjoint, in any order. */
    /** Where the one interval of each rank of a group begins, and the last one ends, which is all of dim; borrowed.
     * NULL: nothing is said of other ranks. */
    const int64_t *cuts;
  } take;
  struct {
    int head_dim, rotated; /**< Elements of a head, and the first of them that turn: even. */
    bool inverse;
    const double *frequency; /**< [rotated / 2], radians from one position to the next. */
    double factor;           /**< Of sines and cosines, positive; 1: a rotation. */
  } rope;
  struct {
    int heads, kv_heads, head_dim;
    float scale;
    float softcap; /**< 0: none. */
    bool causal;
    int64_t window; /**< Keys that a query sees, itself the last; 0: all. */
    float dropout;
    uint64_t name;
    int first_head;               /**< The number of query head 0 in the whole. */
    int group;                    /**< Query heads of a key head in the whole; 0: heads / kv_heads. */
    int64_t length;               /**< Tokens of a whole sample; 0: as many as q has. */
    ts_tokens queries, keys;      /**< Which of them q has, and k and v. */
    bool wide_queries, wide_keys; /**< o and dq, dk and dv are fp32; else like q and k. */
    bool fused_qkv;               /**< q, k and v are the columns of one tensor, and so are their gradients. */
    bool blind;                   /**< No query sees a key. */
  } attention;
  struct {
    ts_dtype dtype;       /**< Of dw, where the op has it. */
    float scale, softcap; /**< Of the logits: scale 1 and softcap 0 leave them as they are. */
    int64_t first;        /**< The row of the whole vocabulary that w's row 0 is. */
  } head;
  struct {
    const ts_range *range;
    int n;
    bool each; /**< A sum for each range. */
  } segments;  /**< sum_squares */
  struct {
    float least, most;
    bool bias_correction;
  } ratios;
  struct {
    float by;
  } diagonal;
  struct {
    float eps;
    ts_dtype dtype;
  } over_norm;
  struct {
    const ts_matrix *matrix;
    int n;
    ts_dtype dtype; /**< Of the products. */
    bool gram;      /**< Iterate on x x^T, and not on x. */
  } orthogonalize;
  struct {
    bool keep_nonfinite; /**< The step is done even so. */
  } control;
  ts_loss_scaler loss_scaler;
  struct {
    const ts_range *range;
    int n;
    ts_optimizer rule;
    ts_optimizer_numbers numbers;
    bool copy;            /**< There is a working copy of p. */
    bool has_ratios;      /**< Inputs end with the ratios of ranges. */
    ts_rounding rounding; /**< Of it, or, where there is none, of p. */
  } update;
  struct {
    unsigned axes; /**< Mask of 1 << ts_axis. */
    int group;     /**< Ranks in the group: the shape rule needs it. */
    ts_dtype wire; /**< What travels in a reduction. */
    float divisor; /**< By which it is divided there, and multiplied behind the sum; 0: 1. */
    bool into;
    const ts_piece *piece;
    int n_pieces;
    const ts_block *block; /**< Of all_to_all: each output as a whole, then what leaves, then what arrives. */
    int n_sent, n_received;
    int64_t rows; /**< Of exchange_rows: the output's, */
    bool home;    /**< and which way they go. */
  } comm;
  struct {
    int boundary; /**< Between pieces `boundary` and `boundary` + 1; from the number of pieces on, of a tied table. */
    bool back;    /**< From the later piece to the earlier: gradients. */
    bool into;    /**< receive: outputs are new versions of the inputs. */
    int peer;     /**< Of whom it comes, or to whom it goes: coordinate along pp. */
    int n;
    const ts_crossing *crossing; /**< What is in it, in order. */
  } message;
} ts_attr;

/** A node, and what ts_graph_add is given to make one. */
typedef struct ts_node {
  ts_op op;
  const char *name; /**< The graph's; stable: does not depend on parallelism or on other nodes. */
  int n_in, n_out;
  const ts_tid *in; /**< The graph's; TS_NONE where an optional input is absent. */
  ts_tid *out;      /**< The graph's. */
  /** The graph's; NULL, or for each output what it adds to (TS_NONE: none).  out = beta prior + f (in). */
  const ts_tid *prior;
  ts_tid beta; /**< [1] fp32, or TS_NONE for 1.  beta = 0 never reads the prior. */
  ts_attr attr;
  ts_segment segment;
  int unit;
  bool on_host; /**< Beside a device: the host computes it, in its own memory (PINNED). */
} ts_node;

/** A result with a name: what the host reads ("loss", "summary") and each parameter's gradient ("gradient:NAME").
 * Marked tensors are the roots of the graph: they are never removed as dead. */
typedef struct ts_mark {
  char *name; /**< Owned. */
  ts_tid tensor;
} ts_mark;

typedef struct ts_graph {
  bool apart;        /**< Gradients of weights are executed behind all of inputs, in runs of their own (pass/step.h). */
  ts_tensor *tensor; /**< Owned; index is ts_tid. */
  int n_tensors, tensor_capacity;
  ts_node *node; /**< Owned; index is ts_nid; in order of execution. */
  int n_nodes, node_capacity;
  char **unit; /**< Owned names of the units, in forward order. */
  int n_units, unit_capacity;
  int *chunk; /**< Owned: of each unit, which of this rank's pieces of a pipeline has it; NULL: there is one. */
  int n_chunks;
  ts_mark *mark; /**< Owned. */
  int n_marks, mark_capacity;
  /** Borrowed.  NULL: a node that breaks its op's rule ends the program.  Else it is not added: ts_graph_add says so
   * here and gives TS_NONE, and nothing that reads this is added either. */
  ts_error *refused;
  ts_tid *leaf; /**< Owned: the leaves at their names' hashes, or in the next free place; of ts_graph_find. */
  int n_leaves, leaf_places;
  struct ts_graph_block *block; /**< Owned: where names and lists of nodes and tensors lie; the newest. */
  int64_t changes; /**< Grows with all that is added, also from a graph to what it is rewritten as; who changes a field
                    * in place counts it here.  As long as it is the same, a verified graph is. */
} ts_graph;

/** Where new nodes go: a graph, and what they belong to in it. */
typedef struct ts_site {
  ts_graph *graph;
  ts_segment segment;
  int unit; /**< -1 for none. */
} ts_site;

/** An empty graph.  End with ts_graph_destroy. Not collective. */
ts_graph *ts_graph_create(void);

/** Free a graph and set the pointer to NULL; NULL is allowed. Not collective. */
void ts_graph_destroy(ts_graph **graph);

/** Mark what marked tensors are made of: \a reaches, by tensor and one entry more, which has no meaning then.
 * \param [in] by_gradients  Only what their gradients come to. Not collective. */
void ts_graph_reach_back(const ts_graph *graph, bool by_gradients, bool *reaches);

/** The unit called \a name, added at the first call. Not collective. \return its index. */
int ts_graph_unit(ts_graph *graph, const char *name);

/** Say which chunk each unit is in; units are not added afterwards.
 * \param [in] chunk  Copied; of units that other ranks have any. Not collective. */
void ts_graph_set_chunks(ts_graph *graph, const int *chunk, int n_chunks);

/** How many there are. Not collective. */
static inline int ts_graph_chunks(const ts_graph *graph) {
  return graph->chunk != NULL ? graph->n_chunks : 1;
}

/** The chunk of a node: its unit's; outside any unit the last. Not collective. */
static inline int ts_node_chunk(const ts_graph *graph, const ts_node *node) {
  return graph->chunk == NULL ? 0 : node->unit < 0 ? graph->n_chunks - 1 : graph->chunk[node->unit];
}

/** Is it in one of these segments, and of this chunk or of what happens once for all? Not collective. */
static inline bool ts_node_is_of(const ts_graph *graph, const ts_node *node, unsigned segments, int chunk) {
  return (node->segment & segments) != 0 && (node->segment == TS_SEGMENT_UPDATE || ts_node_chunk(graph, node) == chunk);
}

/** The segment FORWARD of \a graph, outside any unit. Not collective. */
ts_site ts_graph_site(ts_graph *graph);

/** Add a leaf like \a like, whose name is copied and must be new among leaves. Not collective. */
ts_tid ts_graph_add_leaf(ts_graph *graph, const ts_tensor *like);

/** Add a leaf of these properties, likewise.
 * \param [in] unit  The unit it belongs to, -1 for none. Not collective. */
ts_tid ts_graph_leaf(ts_graph *graph, const char *name, ts_role role, ts_dtype dtype, ts_shape shape, int unit);

/** The leaf called \a name, or TS_NONE. Not collective. */
ts_tid ts_graph_find(const ts_graph *graph, const char *name);

/** The shape of the first input that has a sequence, [batch][tokens]..., or of the first input where none has; NULL
 * without inputs. Not collective. */
const ts_shape *ts_graph_token_shape(const ts_graph *graph);

/** Add a STATE leaf. Not collective. */
ts_tid ts_graph_state(ts_graph *graph, const char *name, ts_held held, ts_dtype dtype, ts_shape shape, int unit);

/** The first leaf that holds \a state of part \a part, or TS_NONE. Not collective. */
ts_tid ts_graph_find_state(const ts_graph *graph, ts_state state, int part);

/** Add a node like \a like, at a place: check the arity, run the op's shape rule, create the outputs.  A mismatch is a
 * programmer's mistake: the message names node, inputs and rule. Not collective.
 * \param [in] like  All of it is copied but out, segment and unit, which are given new; n_out 0 stands for the row's
 *                   minimum; beta is read only when prior or a collective's `into` is given.
 * \return the first output; the others follow it (ids first + 1, ...). */
ts_tid ts_graph_add(ts_site at, const ts_node *like);

/** The node that made \a tensor, NULL for a leaf.  Borrowed, valid until the next node is added. Not collective. */
const ts_node *ts_graph_producer(const ts_graph *graph, ts_tid tensor);

/** Elements and bytes of a tensor; elements of a shape; product of all dimensions but the last. Not collective. */
int64_t ts_tensor_count(const ts_graph *graph, ts_tid tensor);
int64_t ts_tensor_bytes(const ts_graph *graph, ts_tid tensor);
int64_t ts_shape_count(const ts_shape *shape);
int64_t ts_shape_rows(const ts_shape *shape);
bool ts_shape_equal(const ts_shape *a, const ts_shape *b);

/** Give \a tensor a name that the host or a later pass looks for; an older mark of this name is replaced.
 * Not collective. */
void ts_graph_mark(ts_graph *graph, const char *name, ts_tid tensor);

/** The tensor marked \a name, or TS_NONE. Not collective. */
ts_tid ts_graph_marked(const ts_graph *graph, const char *name);

/** True when \a tensor has a mark. Not collective. */
bool ts_graph_is_marked(const ts_graph *graph, ts_tid tensor);

/** Mark the gradient of the PARAM leaf \a parameter; and find it, or TS_NONE, that of micro-batch \a m where a graph
 * has several. Not collective. */
void ts_graph_mark_gradient(ts_graph *graph, const char *parameter, ts_tid gradient);
ts_tid ts_graph_gradient_of(const ts_graph *graph, ts_tid parameter, int64_t m);

/** The same of a gradient to be added to that, made before it in another chunk or unit. Not collective. */
void ts_graph_mark_earlier(ts_graph *graph, const char *parameter, ts_tid gradient);
ts_tid ts_graph_earlier_of(const ts_graph *graph, ts_tid parameter, int64_t m);

/** Number of nodes that read each tensor (inputs, priors and betas).
 * \return n_tensors counts, owned by the caller (ts_free). Not collective. */
int *ts_graph_use_counts(const ts_graph *graph);

/** Check every rule of a graph: ids in range, definition before use, arity, shapes as the op's rule gives them, unique
 * names of leaves, index letters that agree in extent, priors only where the op can add, nothing read from a later
 * phase, no version read after it was replaced in place.
 * \param [out] why  Receives one line per violation: the node printed with its inputs, and the rule broken.
 * \return number of violations. Not collective. */
int ts_graph_verify(const ts_graph *graph, ts_text *why);

typedef enum ts_graph_format { TS_GRAPH_TEXT, TS_GRAPH_DOT, TS_GRAPH_JSON } ts_graph_format;

/** Print the graph. Not collective. */
void ts_graph_dump(const ts_graph *graph, ts_graph_format format, ts_text *to);

/** One node as a line: `name: out = op (in, ...) {attributes}`. Not collective. */
void ts_node_print(const ts_graph *graph, const ts_node *node, ts_text *to);

#endif
