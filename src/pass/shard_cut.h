/** \file
 * Which index each node of the model is cut along.  Private to shard*.c.
 *
 * shard_look.c asks graph and deck; shard_node.c cuts one node, shard_rows.c one by rows of tokens; shard_cut.c decides
 * what is cut how.  None of these functions is collective.
 */
#ifndef TS_PASS_SHARD_CUT_H
#define TS_PASS_SHARD_CUT_H

#include "graph/rewrite.h"
#include "pass/marks.h"
#include "pass/pass.h"
#include "pass/shard.h"

/** A tensor of the graph as each rank has it: all of it; or along dim what it was dealt; or some rows: of all
 * dimensions that hold samples and tokens together, [B][T], as [1][rows]. */
typedef struct ts_spread {
  bool dealt, rows; /**< One of them at most. */
  bool routed;      /**< Or rows for experts, of this rank's tokens: what the whole would be nobody has. */
  bool brought;     /**< Rows for experts that are cut, of all tokens, whole or dealt: gradients are parts of sums. */
  bool sums;        /**< Such rows, which are themselves. */
  int dim;
  ts_dealt of;
} ts_spread;

/** Of a split of one group: each output is some of the runs. */
#define TS_INDEX_RUNS '|'
/** Of the head: each rank has some rows of its weight, and all have the loss. */
#define TS_INDEX_VOCABULARY '#'
/** Of a norm: each rank has some columns of its rows, and the sums of squares are added up. */
#define TS_INDEX_NORM '~'

/** Of rows for experts that are cut: each rank does all of it, with its part of what was shared. */
#define TS_INDEX_EXPERTS '^'

/** How a node is done. */
typedef struct ts_node_share {
  char index;          /**< What it is cut along; 0: every rank does all of it. */
  bool sums;           /**< Its outputs are partial sums; a bias comes after them. */
  ts_spread *gathered; /**< Owned; how its first output is dealt, of which every reader gets the whole; else NULL. */
  bool scatter;        /**< Of the sums each rank needs its rows alone. */
  ts_cut cut;          /**< Of the node, without a bias that comes after. */
  ts_run_of run;       /**< The share: \a size elements of this run are a unit of the cut. */
  int64_t size;
  unsigned complete; /**< Bit i: input i is dealt, or in rows, and every rank needs all of it for the same. */
  unsigned take;     /**< Bit i: input i is whole, and the node needs this rank's part of it, as in[i] says. */
  unsigned share;    /**< Bit i: of the gradient of input i, which is whole, each rank has a part. */
  ts_spread *in;     /**< Owned; of each input, NULL where nothing is taken. */
} ts_node_share;

typedef struct ts_sharding {
  const ts_graph *graph;
  const ts_pass_context *context;
  ts_dealing *dealing;
  int64_t batch, length; /**< Extents of samples and tokens. */
  bool loss_by_rows;     /**< Each rank has the loss of its rows, else all have all of it. */
  ts_run_of rows;        /**< Of all tokens of all samples; size 0: they are not dealt. */
  bool experts_only;     /**< Rows are for experts alone; all else is done on all of them. */
  bool cuts_experts;     /**< Each rank has a part of each expert, and all tokens. */
  ts_spread *spread;     /**< Owned; per tensor. */
  ts_node_share *node;   /**< Owned; per node. */
  bool *whole_units; /**< Owned; per tensor, of parameters: some runs have parts and others not (q, k and v in one), so
                          * that all who share a unit hold all of it, and take what they use. */
  bool *partial;     /**< Owned; per tensor, of parameters: the gradient is a partial sum. */
  const char **rule; /**< Owned array; per tensor, of parameters. */
  bool *banned;      /**< Owned; per node: is not cut, because some rank would get nothing, or a norm's squares
                          * would count several times. */
  ts_tp_mark *mark;  /**< Owned; per tensor, of the weights of products and of tables: what deck and family say. */
  bool *vocabulary;  /**< Owned; per tensor: rows are the vocabulary's, and are dealt. */
  int *first_reader; /**< Owned; readers of tensor t are reader[first_reader[t]] ... [first_reader[t + 1] - 1]. */
  ts_nid *reader;    /**< Owned. */
} ts_sharding;

/** What graph and deck say of a model, nothing cut yet.  The deck's marks fit its weights (ts_tp_marks_check).
 * Not collective.
 * \param [in] shapes  Take the shapes of marks too; else columns are dealt as their readers split them. */
ts_sharding *ts_sharding_create(const ts_graph *graph, const ts_pass_context *context, bool shapes);

/** Decide for the forward graph.  Not collective. */
void ts_sharding_cut(ts_sharding *sharding);

/** Free what ts_sharding_create made and set to NULL. Not collective. */
void ts_sharding_destroy(ts_sharding **sharding);

/** Note which values of the new graph all ranks have alike. Not collective. */
void ts_shards_note_alike(ts_shards *shards, const ts_sharding *sharding, const ts_rewrite *rewrite);

/** Fill in the table of what was decided; the sharding's dealing moves to it. Not collective. */
void ts_shards_fill(ts_shards *shards, ts_sharding *sharding);

/* ---- small questions ---- */

/** Not collective. */
static inline const ts_tensor *ts_sharding_tensor(const ts_sharding *s, ts_tid t) {
  return &s->graph->tensor[t];
}

/** Number of a tensor's last dimension. Not collective. */
static inline int ts_sharding_last_dim(const ts_sharding *s, ts_tid t) {
  return ts_sharding_tensor(s, t)->shape.n - 1;
}

/** False for TS_NONE too. Not collective. */
static inline bool ts_sharding_is_parameter(const ts_sharding *s, ts_tid t) {
  return t != TS_NONE && ts_sharding_tensor(s, t)->role == TS_ROLE_PARAM;
}

/** Is there a gradient of it?  Parameters' are dealt with elsewhere. Not collective. */
static inline bool ts_sharding_is_differentiable(const ts_sharding *s, ts_tid t) {
  return s->context->use == TS_MODEL_TRAIN && ts_sharding_tensor(s, t)->role == TS_ROLE_VALUE;
}

/** A product whose second factor is a parameter. Not collective. */
static inline bool ts_sharding_is_product(const ts_sharding *s, const ts_node *node) {
  return node->op == TS_OP_MATMUL && ts_sharding_is_parameter(s, node->in[1]) && !node->attr.matmul.transpose_a;
}

/** Dimension of a product's weight that is its inner index; 1 minus it is the other one. Not collective. */
static inline int ts_sharding_inner_dim(const ts_node *product) {
  return product->attr.matmul.transpose_b ? 1 : 0;
}

/** A split of the last dimension in one group; false for NULL. Not collective. */
static inline bool ts_sharding_splits_whole(const ts_node *node) {
  return node != NULL && node->op == TS_OP_SPLIT && node->attr.split.groups == 1;
}

/* ---- what is asked of graph and deck before anything is cut: shard_look.c ---- */

/** Find readers, marks and what is dealt by vocabulary. Not collective.
 * \param [in] shapes  As for ts_sharding_create. */
void ts_sharding_look(ts_sharding *sharding, bool shapes);

/** The extents of a weight as [out][in], whatever its storage order: of a product's second factor and of a table.
 * \return the weight of the node, TS_NONE for none. Not collective. */
ts_tid ts_sharding_weight(const ts_graph *graph, const ts_node *node, int64_t *out, int64_t *in);

/** The weight of a lookup or of the head, TS_NONE for other nodes. Not collective. */
ts_tid ts_sharding_vocabulary_weight(const ts_sharding *sharding, const ts_node *node);

/** What the outputs of a product are split into by the one node that reads them: n sizes; 0 where none does.
 * Not collective. */
int ts_sharding_blocks(const ts_sharding *sharding, const ts_node *product, const int64_t **size);

/** A norm of the rows of \a t of which each rank can have some columns, those along \a dim: sums of squares are all
 * that is sent. Not collective. */
bool ts_sharding_is_norm_of_columns(const ts_sharding *sharding, const ts_node *node, ts_tid t, int dim);

/** True when each way from t, along its last dimension, ends at the inner index of a product that can be cut by rows,
 * and there is one. Not collective. */
bool ts_sharding_ends_in_rows(const ts_sharding *sharding, ts_tid t);

/* ---- one node along one index: shard_node.c ---- */

/** Letters and digits of an op's index rule, in the order in which they are tried. */
#define TS_INDICES "abcdefghijklmnopqrstuvwxyz0123456789"

/** Cut a node along \a how->index, as \a how->cut says: its inputs are dealt alike, its outputs follow.
 * Not collective.
 * \return false: no dealt input has the index, or they do not fit together. */
bool ts_sharding_cut_node(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/** Along an index that all dealt inputs have; where there is none the node gets them whole. Not collective. */
void ts_sharding_cut_by_inputs(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/** A dimension of its own, in blocks, of each of which \a unit elements stay together. Not collective. */
ts_dealt ts_sharding_deal_anew(ts_sharding *sharding, int n, const int64_t *size, int64_t unit);

/** All of every input. Not collective. */
void ts_sharding_leave_whole(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/** A split of one group: each output is some of the runs of the input, which is dealt. Not collective.
 * \return false: it cuts inside of a run, or the input is not dealt by its last dimension. */
bool ts_sharding_split_runs(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/** A norm whose rows are dealt by columns: the weight follows; every rank has the statistics. Not collective.
 * \return false: it is none, or the weight is dealt otherwise. */
bool ts_sharding_cut_norm(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/* ---- rows of tokens: shard_rows.c ---- */

/** Let tokens be dealt, where the deck and the use of the model say so. Not collective. */
void ts_sharding_deal_rows(ts_sharding *sharding);

/** Is it where rows begin?  Lookups by token in tables that each rank has, for which nothing has to be sent; and the
 * head, so that both uses of a tied table have partial gradients. Not collective. */
bool ts_sharding_begins_rows(const ts_sharding *sharding, const ts_node *node);

/** Each rank does its rows. Not collective.
 * \return false: the node cannot, or an input is dealt otherwise; nothing has changed but \a how->cut. */
bool ts_sharding_cut_by_rows(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/** Where tokens are in rows each rank brings its own together by expert, and does what follows on them, until each
 * token has its sum again; gradients of the experts are partial sums. Not collective.
 * \return false: the node has nothing to do with that; nothing has changed. */
bool ts_sharding_follow_routed(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/** Where experts are cut every rank brings all tokens together, and what it makes of each is a part of a sum.
 * Not collective.
 * \return false: the node has nothing to do with that; nothing has changed. */
bool ts_sharding_follow_experts(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

/** A stack of experts of which some rank would get nothing, or several the same; NULL: none. Not collective. */
const ts_tensor *ts_sharding_unfit_stack(const ts_sharding *sharding);

/** Partial sums: each rank gets its rows of the result, where rows are dealt. Not collective. */
void ts_sharding_scatter_sums(ts_sharding *sharding, const ts_node *node, ts_node_share *how);

#endif
