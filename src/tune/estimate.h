/** \file
 * What a candidate takes by a few formulas, in microseconds: by it the search knows what to walk first, and what can be
 * left out.  Nothing here is collective.
 */
#ifndef TS_TUNE_ESTIMATE_H
#define TS_TUNE_ESTIMATE_H

#include "run/program.h"
#include "run/timing.h"
#include "tune/candidates.h"

enum { TS_TUNE_MEMO = 4096 };

/** What estimates know of a deck. */
typedef struct ts_tune_model {
  double flops;      /**< Of a step, all ranks. */
  double parameters; /**< Elements, those of experts included, */
  double experts;    /**< elements of experts, */
  double trained;    /**< of them those that are trained, */
  double trained_experts;
  double bytes;          /**< bytes of one, */
  double gradient_bytes; /**< of the gradient of one that is trained, */
  double state_bytes;    /**< and of its masters and moments. */
  double layers, hidden; /**< Blocks; elements that a token has between them. */
  double length;         /**< Tokens of a sample. */
  ts_dtype wire;         /**< Of gradients. */
  bool low;              /**< Products are not in fp32. */
  bool keeps;            /**< Activations stay in memory from forward to backward. */
  double of_token;       /**< Experts that a token has; 0: there are none. */
  ts_sample *memo;       /**< TS_TUNE_MEMO samples that estimates remember, zero at first; NULL: none. Borrowed. */
} ts_tune_model;

/** From the deck's program of a single rank.
 * \param [in] batch  Samples of a step. Not collective. */
ts_tune_model ts_tune_model_of(const ts_program *alone, int64_t batch);

/** Seconds of a step, if all products take what one of a block does, other nodes nothing, and no message is exposed
 * that computation could hide. Not collective. */
double ts_tune_estimate(const ts_tune_space *space, const ts_tune_model *model, const ts_candidate *c,
                        const ts_timing *timing);

/** Bytes that its parameters, gradients, states and what blocks keep take of a rank's memory at least. Not collective.
 */
double ts_tune_least_bytes(const ts_tune_space *space, const ts_tune_model *model, const ts_candidate *c);

#endif
