/** \file
 * Which index each node of the model is cut along.  Private to shard*.c.
 */
#ifndef TS_PASS_SHARD_CUT_H
#define TS_PASS_SHARD_CUT_H

#include "pass/marks.h"
#include "pass/pass.h"
#include "pass/shard.h"

/** A tensor of the graph as each rank has it: all of it; or along dim what it was dealt; or some rows: of all
 * dimensions that hold samples and tokens together, [B][T], as [1][rows]. */
typedef struct ts_spread {
  bool dealt, rows; /**< One of them at most. */
  int dim;
  ts_dealt of;
} ts_spread;

/** Of a split of one group: each output is some of the runs. */
#define TS_INDEX_RUNS '|'
/** Of the head: each rank has some rows of its weight, and all have the loss. */
#define TS_INDEX_VOCABULARY '#'
/** Of a norm: each rank has some columns of its rows, and the sums of squares are added up. */
#define TS_INDEX_NORM '~'

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

/** Decide for the forward graph.  The deck's marks fit it (ts_shard_check). Not collective.
 * \param [in] shapes  Take the shapes of marks too; else columns are dealt as their readers split them. */
ts_sharding *ts_sharding_create(const ts_graph *graph, const ts_pass_context *context, bool shapes);

/** The extents of a weight as [out][in], whatever its storage order: of a product's second factor and of a table.
 * \return the weight of the node, TS_NONE for none. Not collective. */
ts_tid ts_sharding_weight(const ts_graph *graph, const ts_node *node, int64_t *out, int64_t *in);

/** What the outputs of a product are split into by the one node that reads them: n sizes; 0 where none does.
 * Not collective. */
int ts_sharding_blocks(const ts_sharding *sharding, const ts_node *product, const int64_t **size);

/** Free what ts_sharding_create made and set to NULL. Not collective. */
void ts_sharding_destroy(ts_sharding **sharding);

#endif
