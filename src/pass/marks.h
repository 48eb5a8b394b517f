/** \file
 * Marks: how the weights of products are cut over the ranks of tensor parallelism, as far as the deck and names say it.
 * No graph is looked at: what nobody speaks of is left to the pass that knows one.
 *
 * A weight is [out][in] here, whatever its storage order.  A column is cut along out, a row along in.  The first that
 * speaks of a weight decides:
 *   1. tensor_parallel.partition_config.layer_specs, in their order;
 *   2. tensor_parallel.preset_model, a table of patterns; heads and fused layouts are those of the model's family;
 *   3. tensor_parallel.tp_plan, in its order;
 *   4. the family: embedding and head are cut by vocabulary (vocab_parallel_lm_head), learned positions are whole.
 * With use_default_specs = false the second and third are not asked, and what is left is whole; with strict_mode a
 * matrix that is left is an error.
 *
 * The cut dimension is a row of blocks; each is divided among the ranks by itself, in units that stay together.
 * Nothing here is collective; ranks with equal decks have equal marks.
 */
#ifndef TS_PASS_MARKS_H
#define TS_PASS_MARKS_H

#include "base/status.h"
#include "deck/deck.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ts_tp_style {
  TS_TP_UNSPOKEN, /**< Nobody says. */
  TS_TP_COLUMN,   /**< Cut by outputs; of an embedding, by vocabulary. */
  TS_TP_ROW,      /**< Cut by inputs. */
  TS_TP_WHOLE
} ts_tp_style;

typedef struct ts_tp_mark {
  ts_tp_style style;
  int n_sizes;        /**< Blocks along the cut dimension, TS_MOST_RUNS (pass/dealing.h) at most; 0: one, all of it. */
  int64_t *size;      /**< Owned: elements of each block; their sum is the dimension. */
  int64_t unit;       /**< Elements that stay together, at least 1; it divides every block. */
  bool gather_output; /**< Of a column: its outputs are wanted whole. */
  char rule[64];      /**< What decided, for people: "partition_config.layer_specs[2]", "preset_model llama". */
} ts_tp_mark;

/** A weight, for the checks. */
typedef struct ts_tp_weight {
  const char *name;             /**< Borrowed; its full name, ending in .weight. */
  int64_t rows_out, columns_in; /**< Extents as [out][in], below 2^31 each; of a vector (a norm) columns_in is 0. */
} ts_tp_weight;

/** The mark of one weight.  A vector is never cut: TS_TP_UNSPOKEN, and a shape for it is an error.  Not collective.
 * \param [in]  deck         As ts_deck_read gave it.
 * \param [in]  weight_name  Its full name, ending in .weight.
 * \param [in]  rows_out, columns_in  Its extents, as in ts_tp_weight.
 * \param [out] mark         The caller's, end with ts_tp_mark_clear; cleared on error.
 * \return TS_BAD_INPUT where a shape does not fit the weight, or strict_mode finds nothing, with the key. */
ts_status ts_tp_mark_find(const ts_deck *deck, const char *weight_name, int64_t rows_out, int64_t columns_in,
                          ts_tp_mark *mark, ts_error *err);

/** Free what it owns and make it unspoken. Not collective. */
void ts_tp_mark_clear(ts_tp_mark *mark);

/** What can be wrong with the marks of a model: a pattern of layer_specs (for this family) or tp_plan that matches no
 * weight, or takes too long on one, and what ts_tp_mark_find finds, of which the first is told.  The head of a tied
 * model counts as a weight of that name.  A warning is logged of an entry that does nothing: of one that matches
 * vectors alone, and of a tied head that is to be cut otherwise than the embedding.  Not collective.
 * \param [in] weights  All of the model, \a n of them, at least one.
 * \return TS_BAD_INPUT with each pattern that matches nothing, and a preset that knows no weight. */
ts_status ts_tp_marks_check(const ts_deck *deck, const ts_tp_weight *weights, int n, ts_error *err);

#endif
