/** \file
 * What `tessera tune` chooses among: for each of some settings that change the speed of a step and not its result the
 * values there are, and a candidate is one value of each.  None of these functions is collective.
 *
 * The batch is the deck's: micro-batches and accumulation steps multiply to it on every grid.
 */
#ifndef TS_TUNE_CANDIDATES_H
#define TS_TUNE_CANDIDATES_H

#include "base/text.h"
#include "deck/choices.h"

/** The settings. */
typedef enum ts_tuned {
  TS_TUNED_TP,        /**< Ranks that share each product. */
  TS_TUNED_SP,        /**< Ranks that share each sample. */
  TS_TUNED_EP,        /**< Ranks that share a layer's experts, of those that have samples of their own. */
  TS_TUNED_PP,        /**< Stages of a pipeline, */
  TS_TUNED_SCHEDULE,  /**< and its schedule. */
  TS_TUNED_STAGE,     /**< ZeRO's. */
  TS_TUNED_MICRO,     /**< Samples of a micro-batch. */
  TS_TUNED_RECOMPUTE, /**< Activation checkpointing: none, sac, block; ascending in what is computed again. */
  TS_TUNED_OFFLOAD,   /**< What may leave a device: none, optimizer, all. */
  TS_TUNED_OVERLAP,   /**< Messages beside computation. */
  TS_TUNED_BUCKET,    /**< Elements that are reduced together. */
  TS_N_TUNED
} ts_tuned;

enum { TS_TUNED_MOST = 48, TS_TUNED_SETS = 24 };

/** A value of a setting. */
typedef struct ts_tuned_value {
  char text[24]; /**< For people. */
  double number; /**< What estimates take of it. */
} ts_tuned_value;

/** The values of all settings for a deck and a number of ranks. */
typedef struct ts_tune_space {
  ts_tuned_value value[TS_N_TUNED][TS_TUNED_MOST];
  int n[TS_N_TUNED];
  int ranks;
  int64_t batch; /**< train_batch_size. */
} ts_tune_space;

/** One of each: indices. */
typedef struct ts_candidate {
  int at[TS_N_TUNED];
} ts_candidate;

/** What keeps a search small. */
typedef struct ts_tune_wish {
  bool kept[TS_N_TUNED];           /**< As the deck has it. */
  int64_t least_micro, most_micro; /**< Samples of a micro-batch; 0: no bound. */
  bool device;                     /**< A GPU computes: something can leave it. */
  int node;                        /**< Ranks of a node: no more than that, or 8, share a product. */
  const ts_deck_choices *choices;  /**< Borrowed; NULL: none.  What the deck has lists for takes no other value. */
} ts_tune_wish;

/** The name of a setting: "tp", "recompute", ... Not collective. */
const char *ts_tuned_name(ts_tuned what);

/** The setting of that name, TS_N_TUNED for none. Not collective. */
ts_tuned ts_tuned_find(const char *name);

/** Are these choices some that a search can take: lists of one, or of at most TS_TUNED_MOST values for keys of settings
 * (but not of offload, which is searched as a whole)?
 * \return TS_BAD_INPUT with the first that is not, "FILE:LINE: KEY: ...". Not collective. */
ts_status ts_tune_check_choices(const ts_deck *deck, const ts_deck_choices *choices, ts_error *err);

/** The values to be tried: those of \a wish's choices, else of ranks and micro-batches the divisors of the ranks and of
 * the batch, up to 8 ranks (or a node) that share products, 64 that share a sample or experts (but no more than there
 * are), 64 stages and 1024 samples; of more than TS_TUNED_MOST such as are not near to each other.
 * \param [in] deck  As it is, its batch resolved; what it has comes first among the values of each setting that is not
 *                   counted by ranks. Not collective. */
ts_tune_space ts_tune_space_of(const ts_deck *deck, int ranks, const ts_tune_wish *wish);

/** Ranks that read samples of their own; 0: the grid does not divide the ranks. Not collective. */
int ts_candidate_replicas(const ts_tune_space *space, const ts_candidate *c);

/** The number that a setting has. Not collective. */
double ts_candidate_number(const ts_tune_space *space, const ts_candidate *c, ts_tuned what);

/** Accumulation steps; 0: the equation does not divide. Not collective. */
int64_t ts_candidate_accumulation(const ts_tune_space *space, const ts_candidate *c);

/** Can its schedule do with its micro-batches, which divide the batch? Not collective. */
bool ts_candidate_goes(const ts_tune_space *space, const ts_candidate *c);

/** What makes the deck the candidate's, as KEY=VALUE of --set; what the deck has already is left as it is written.
 * \param [out] set  Room for TS_TUNED_SETS; each the caller's (ts_free).
 * \return how many. Not collective. */
int ts_candidate_sets(const ts_tune_space *space, const ts_candidate *c, char **set);

/** Append "tp 2, stage 1, ...": what differs among candidates of the space. Not collective. */
void ts_candidate_text(const ts_tune_space *space, const ts_candidate *c, ts_text *to);

#endif
