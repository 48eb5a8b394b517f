/** \file
 * The flat layout: which flat ranges hold which parameters, and who owns which elements.  One table for every ZeRO
 * stage: a stage only says which of parameter, gradient and optimizer state keep a rank's shard instead of the whole.
 * Every rank of the mesh has the same parts, but for its own place in them and, along tp, its own pieces of parameters.
 *
 * A unit (a block, one large matrix) is a list of parts.  A part packs parameters of one kind (trainable or frozen,
 * persistent or not, travelling in one type) in the model's order into a flat range of `count` elements; every
 * parameter begins at a multiple of TS_LAYOUT_ALIGN elements.  The range is cut by `cuts`, one more than there are
 * shards; the last cut is `count`, so the padding that equal shards would need belongs to nobody and never moves.  The
 * gaps between parameters are never read.
 *
 * A part is spread over mesh axes: the ranks that differ in these alone are a group, and each of a group holds one
 * shard.  Where the mesh has other axes there are several such groups; the part's home is the one that owns it, the
 * others hold replicas, which are updated alike and neither counted nor saved.  So every element has one owner.
 * None of these functions is collective.
 */
#ifndef TS_PASS_LAYOUT_H
#define TS_PASS_LAYOUT_H

#include "base/deal.h"
#include "comm/mesh.h"
#include "deck/deck.h"
#include "graph/graph.h"
#include "pass/shard.h"
#include "pass/stage.h"

/** Alignment of parameters and of cut points in a flat range, in elements: 64 bytes of bf16.  Where states are in 8
 * bits it is a block of them (ts_part_align). */
#define TS_LAYOUT_ALIGN 32

/** A parameter: the tensor of the model, and what of it this rank's part holds: the elements with some indices along
 * one dimension, as one smaller tensor; of a stack of experts that tp cuts, those of some experts. */
typedef struct ts_parameter {
  char *name;     /**< Owned. */
  ts_shape shape; /**< Of the whole tensor. */
  int dim;        /**< Which the pieces cut. */
  int n_pieces;
  ts_interval *piece; /**< Owned: what this rank holds along dim, in its own order; without a cut all of it. */
  int64_t first_row;  /**< Rows (indices of the dimensions before dim) ahead of those it holds; of most it holds all. */
  ts_shape held;      /**< Shape of what it holds. */
  int part;
  int64_t offset;                /**< First element in the part's flat range. */
  int64_t count;                 /**< Elements of what it holds. */
  float weight_decay, lr_factor; /**< Of its parameter group, and its optimizer. */
  ts_init init;                  /**< Its first values. */
} ts_parameter;

typedef struct ts_part {
  /** Owned: "unit", "unit.persistent", "unit.frozen"; then how it travels, under autocast: ".low", gradients and values
   * in the lower type, ".low_gradients", these alone; ".muon" of Muon's, where the rest has another optimizer,
   * ".balance" of routers' biases; ".few" where states are not in 8 bits as others' are; ".tied" of what two stages
   * have; then how it lies on the ranks along tp: nothing, all of it and alike; ".all", and they share it;
   * ".unitN", neighbours hold unit N; ".tpN", rank N has its own; ".epN", the rank along ep has experts of its own;
   * ".tp.epN", its own part of these. */
  char *name;
  int stem; /**< Characters of its name before that N: these are the same on all ranks. */
  int unit;
  bool trainable, persistent;
  ts_optimizer optimizer; /**< Of its parameters, */
  ts_dtype moments;       /**< and the type of that one's states (pass/optimizer.h). */
  ts_dtype wire;          /**< What its gradients travel in. */
  ts_dtype work;          /**< What its values are kept in, beside masters: fp32 of what is read so in any precision. */
  ts_dtype gathered;      /**< What its values travel in, and are whole in, when they are gathered for a unit. */
  int first, n_parameters; /**< Its parameters are consecutive in ts_layout.parameter. */
  int64_t count;           /**< Elements of the flat range, gaps included. */
  int64_t shard;           /**< Elements of the largest shard: what a rank's shard storage holds. */
  unsigned axes;           /**< Mesh axes that its shards are spread over. */
  int home;                /**< The group over these axes that owns it (ts_mesh_group_number). */
  int group;               /**< Ranks of a group. */
  int64_t *cuts;           /**< Owned: group + 1. */
  int rank;                /**< This rank's place in its group. */
  bool owned;              /**< This rank's group is the home. */
  int stage;               /**< Coordinate along pp of who has its unit, */
  int copy;      /**< and of who has another piece of the pipeline that reads it, as a tied table, and, if that
                            * is another stage, a copy; -1: nobody. */
  bool of_stage; /**< This rank's stage has it. */
  /** Of state that may leave what does not: its optimizer's, its values, its gradients (ts_offload_choose). */
  bool states_stay, values_stay, gradients_stay;
  /** Of what leaves by device = "auto" what goes to files instead of the host's memory beside a device, likewise. */
  bool states_stored, values_stored, gradients_stored;
  bool values_beside; /**< And of values that would be in a file, those in the host's memory beside a device. */
  bool here;          /**< That, or a copy: what it knows of others' is this table alone. */
} ts_part;

/** Alignment of its parameters and cut points, elements. Not collective. */
static inline int64_t ts_part_align(const ts_part *part) {
  return part->moments == TS_U8 ? TS_STATE_BLOCK : TS_LAYOUT_ALIGN;
}

/** True for a copy of what another stage has: it has gradients, but no states of an optimizer. Not collective. */
static inline bool ts_part_is_copy(const ts_part *part) {
  return part->here && !part->of_stage;
}

/** This rank's shard of a part: elements [begin, end) of the flat range. Not collective. */
static inline int64_t ts_part_begin(const ts_part *part) {
  return part->cuts[part->rank];
}
static inline int64_t ts_part_end(const ts_part *part) {
  return part->cuts[part->rank + 1];
}

/** What all choices of a layer's experts are in a step (pass/zero_loads): where among the sums of all layers. */
typedef struct ts_layer_loads {
  char *name; /**< Owned; of the node (ROUTE_LOADS). */
  int unit;
  int groups, experts; /**< Of the node's output, [groups][ts_loads_width]. */
  int64_t offset;      /**< Where that begins, behind it the biases of experts. */
} ts_layer_loads;

typedef struct ts_layout {
  ts_parameter *parameter; /**< Owned. */
  int n_parameters;
  ts_part *part; /**< Owned. */
  int n_parts;
  /** Owned: where the row of each rank of the mesh begins in the step's record (pass/record.h), with squares of
   * trainable parts. */
  int64_t *record_cuts;
  int64_t *loss_cuts;    /**< Owned: likewise without squares. */
  ts_layer_loads *loads; /**< Owned; of the layers with experts of a model that trains, in its order. */
  int n_loads;
  int64_t loads_count; /**< Numbers of all. */
} ts_layout;

/** Build the table of the rank that \a mesh is seen from.  End with ts_layout_destroy. Not collective.
 * \param [in] graph   Its PARAM leaves, with their units and shapes; of one that is sharded any rank's.
 * \param [in] shards  What tensor parallelism made of them, or NULL: their shapes are those of the whole.
 * \param [in] stages  Who has which units, or NULL: everybody all.
 * \param [in] deck    Groups, frozen patterns, persistence threshold. */
ts_layout *ts_layout_create(const ts_graph *graph, const ts_shards *shards, const ts_stages *stages,
                            const ts_deck *deck, const ts_mesh *mesh);

/** Enter what the nodes of the whole model that trains count of experts. Not collective. */
void ts_layout_add_loads(ts_layout *layout, const ts_graph *graph);

/** The bias that a router has and that follows what is counted; NULL: there is none. Not collective. */
const ts_parameter *ts_layout_bias_of(const ts_layout *layout, const ts_layer_loads *loads);

/** The same table as another rank has it, in the same order; not from the parameters' leaves, which a finished program
 * has no more.  End with ts_layout_destroy. Not collective.
 * \param [in] of      Any rank's.
 * \param [in] graph   Its units.
 * \param [in] shards, stages, deck  Those it was made from.
 * \param [in] mesh    Seen from the other rank. */
ts_layout *ts_layout_at(const ts_layout *of, const ts_graph *graph, const ts_shards *shards, const ts_stages *stages,
                        const ts_deck *deck, const ts_mesh *mesh);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_layout_destroy(ts_layout **layout);

/** The cut points of a part over all ranks of the mesh, in order of mesh rank: who is not of its home owns nothing.
 * \param [out] cuts  mesh->ranks + 1 entries. Not collective. */
void ts_layout_mesh_cuts(const ts_part *part, const ts_mesh *mesh, int64_t *cuts);

/** True when the deck's `frozen` patterns name this parameter. Not collective. */
bool ts_parameter_is_frozen(const ts_deck *deck, const char *name);

/** The parameter called \a name, NULL if there is none. Not collective. */
const ts_parameter *ts_layout_find(const ts_layout *layout, const char *name);

/** Where in the whole tensor element \a first of what this rank holds lies, in row-major order.
 * \param [in,out] count  Elements that are wanted from there on; the number of them that lie together in the whole too,
 *                        at least 1. Not collective. */
int64_t ts_parameter_in_whole(const ts_parameter *parameter, int64_t first, int64_t *count);

/** True when this rank holds the whole tensor as it is. Not collective. */
bool ts_parameter_is_whole(const ts_parameter *parameter);

/** Is a part counted in the gradient's norm?  All that follow a gradient of the loss are. Not collective. */
bool ts_part_has_norm(const ts_part *part);

/** Parameters (elements of whole tensors, gaps not counted) of all parts, trainable ones only when asked.
 * Not collective. */
int64_t ts_layout_parameter_count(const ts_layout *layout, bool trainable_only);

/** How the working copy of elements from \a first on of \a part is rounded (bf16.stochastic_rounding): the same numbers
 * for an element at every stage and on every grid of the same tp. Not collective. */
ts_rounding ts_layout_rounding(const ts_deck *deck, const ts_part *part, int64_t first);

/** The ranges of \a part's parameters inside elements [begin, end), offsets relative to \a begin; .ratio is the
 * parameter's number in the part.
 * \param [out] ranges  Owned by the caller (ts_free).
 * \return their number. Not collective. */
int ts_layout_ranges(const ts_layout *layout, const ts_part *part, int64_t begin, int64_t end, ts_range **ranges);

#endif
