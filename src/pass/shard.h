/** \file
 * What tensor parallelism makes of a model: which elements of each parameter a rank along tp has, and why.  Made by the
 * pass of the same name, before there are gradients; the layout, the plan and the checks ask it.
 *
 * A parameter is split when products or other ops are cut along one of its dimensions; it is shared when several ranks
 * hold the same units of it (key heads of more ranks than there are); else every rank holds all of it.  What is whole
 * or shared has a gradient that is complete on every rank, or one that is partial: every rank has used it for its own
 * part of the work, and the gradient is the sum of theirs.
 *
 * None of these functions is collective.
 */
#ifndef TS_PASS_SHARD_H
#define TS_PASS_SHARD_H

#include "comm/mesh.h"
#include "deck/deck.h"
#include "graph/graph.h"
#include "pass/dealing.h"

/** How a parameter lies on the ranks along tp. */
typedef enum ts_held_how {
  TS_HELD_WHOLE,   /**< All of it on each, gradients complete: replicas. */
  TS_HELD_PARTIAL, /**< All of it on each, gradients partial sums over tp. */
  TS_HELD_SHARED,  /**< Units on several neighbours each, gradients partial sums over these. */
  TS_HELD_SPLIT,   /**< Each has its own. */
  /** Ranks along ep have matrices of their own of a stack (family/stack.h); those along tp all of these, with gradients
   * that are complete, or partial sums. */
  TS_HELD_EXPERTS,
  TS_HELD_EXPERTS_PARTIAL,
  TS_HELD_EXPERTS_SPLIT, /**< Of each of these, those along tp have their own part. */
  TS_N_HELD
} ts_held_how;

typedef struct ts_shard {
  char *name;     /**< Owned: the parameter. */
  ts_shape shape; /**< Of the whole tensor. */
  ts_held_how how;
  int dim; /**< Which is cut; of EXPERTS_SPLIT over tp, beside the first over ep. */
  ts_dealt dealt;
  bool whole_units; /**< Of units in parts a rank holds all parts, though it uses its own alone. */
  char *rule;       /**< Owned: what decided, for people. */
} ts_shard;

typedef struct ts_shards {
  int n;
  ts_shard *shard;     /**< Owned; by name. */
  ts_dealing *dealing; /**< Owned. */
  int ranks;           /**< Along tp. */
  bool loads_by_rows;  /**< Each rank has the loads (ROUTE_LOADS) of its own tokens. */
  bool loss_by_rows;   /**< Each rank has the loss of its own tokens; else all have the loss of all. */
  int64_t *rows;  /**< Owned: where the rows of tokens of each rank begin, [ranks + 1]; NULL: they are not dealt. */
  int64_t **cuts; /**< Owned: of collectives over tp or ep, of each their number of ranks and one cut point more. */
  int *cut_ranks; /**< Owned: that number. */
  int n_cuts, cuts_capacity, cut_ranks_capacity;
  char **alike; /**< Owned, by name: the values that all ranks have, complete, and so their gradients. */
  int n_alike, alike_capacity;
} ts_shards;

/** What a deck says of tensor parallelism, against the model's graph of training. Not collective.
 * \return TS_BAD_INPUT: a pattern that matches no weight, a shape that does not fit one or cuts a head; with the key of
 * the deck. */
ts_status ts_shard_check(const ts_graph *model, const ts_deck *deck, const ts_mesh *mesh, ts_error *err);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_shards_destroy(ts_shards **shards);

/** The parameter called \a name, NULL for none, and where \a shards is NULL. Not collective. */
const ts_shard *ts_shards_find(const ts_shards *shards, const char *name);

/** Have all ranks along tp the value \a name, and will they have its gradient?  False where \a shards is NULL. Not
 * collective. */
bool ts_shards_are_alike(const ts_shards *shards, const char *name);

/** Cut points of equal shards of \a each elements of \a ranks ranks, the table's. Not collective. */
const int64_t *ts_shards_equal_cuts(ts_shards *shards, int ranks, int64_t each);

/** Cut points times \a each, for \a ranks ranks, the table's. Not collective. */
const int64_t *ts_shards_scaled_cuts(ts_shards *shards, const int64_t *cuts, int ranks, int64_t each);

/** What all ranks along tp have of a tensor of shape \a whole, one after another; x: what this one has, of as many
 * elements as the first rank's, or fewer. Not collective.
 * \param [in] of    Names begin with it.
 * \param [in] cuts  Elements where each rank's begin: kept as long as the graph. */
ts_tid ts_shard_gather(ts_site at, const char *of, int ranks, const int64_t *cuts, ts_tid x, ts_shape whole);

/** Of a tensor that all ranks along tp have, of elements that they divide: this one's equal part, in a row; and the
 * whole of such parts, whose names begin with \a of. Not collective. */
ts_tid ts_shard_part(ts_site at, const ts_mesh *mesh, ts_tid x);
ts_tid ts_shard_gather_parts(ts_site at, const char *of, ts_shards *shards, ts_tid part, ts_shape whole);

/** The first of so many experts that each of \a ranks ranks along ep has, and their number, the table's.
 * Not collective. */
const int64_t *ts_shards_expert_cuts(ts_shards *shards, int ranks, int64_t experts);

/** What rank \a rank along tp holds of a parameter, along its dim.
 * \param [out] out  TS_MOST_RUNS entries.
 * \return their number; 1, all of it, of what is not cut. Not collective. */
int ts_shard_of_rank(const ts_shards *shards, const ts_shard *shard, int rank, ts_interval *out);

/** The shape of what \a rank holds. Not collective. */
ts_shape ts_shard_held(const ts_shards *shards, const ts_shard *shard, int rank);

/** The same of a rank of a mesh: what depends on its place along ep, too. Of EXPERTS_SPLIT the pieces are those along
 * tp, of each of its experts (ts_shard_experts_at). Not collective. */
int ts_shard_at(const ts_shards *shards, const ts_shard *shard, const ts_mesh *mesh, ts_interval *out);
ts_shape ts_shard_held_at(const ts_shards *shards, const ts_shard *shard, const ts_mesh *mesh);

/** Of a parameter that is cut over ep the experts that a rank of a mesh has, of others all indices of the first
 * dimension. Not collective. */
ts_interval ts_shard_experts_at(const ts_shard *shard, const ts_mesh *mesh);

/** Is it cut over ep? Not collective. */
static inline bool ts_shard_is_of_experts(const ts_shard *shard) {
  return shard->how >= TS_HELD_EXPERTS;
}

/** Of \a experts those of rank \a rank among \a ranks along ep: as many as others, or one more; the first ranks have
 * most. Not collective. */
ts_interval ts_experts_of(int64_t experts, int ranks, int rank);

/** Note that a stack is cut over ep: it is PARTIAL, WHOLE or SPLIT along tp, or was not noted before.
 * Not collective. */
void ts_shards_note_experts(ts_shards *shards, const char *name, ts_shape shape);

#endif
