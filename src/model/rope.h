/** \file
 * The frequencies of rotary positions (graph/ops.def, ROPE): the one place where they are computed, of every kind that
 * Hugging Face's checkpoints name.  Nothing here is collective.
 */
#ifndef TS_MODEL_ROPE_H
#define TS_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

/** How positions turn: Hugging Face's names.  Which kinds read a field beside theta stands beside it; 0 is "not given"
 * where a meaning of it is told. */
typedef struct ts_rope {
  const char *rope_type; /**< "default", "linear", "dynamic", "llama3", "yarn" or "longrope".  Borrowed. */
  double theta;          /**< Base of the frequencies. */
  /** Stretch of the positions: linear, dynamic, llama3, yarn, longrope.  0, in the last two:
   * max_position_embeddings / original_max_position_embeddings. */
  double factor;
  double low_freq_factor, high_freq_factor; /**< llama3: turns in the original context. */
  double attention_factor;                  /**< yarn, longrope: of sines and cosines; 0: by their formula. */
  double beta_fast, beta_slow;              /**< yarn: turns in the original context; 0: 32, 1. */
  double mscale, mscale_all_dim;            /**< yarn: of the formula of attention_factor, where both are given. */
  bool truncate;                            /**< yarn: the ends of its band are whole pairs. */
  int64_t original_max_position_embeddings; /**< llama3, yarn, longrope.  0: max_position_embeddings. */
  int64_t max_position_embeddings;          /**< dynamic, and where it stands for what is not given. */
  const double *short_factor, *long_factor; /**< longrope: of each pair.  Borrowed. */
  int n_short, n_long;                      /**< How many there are: of those in use, half of what turns. */
} ts_rope;

/** How fast each pair of elements turns, in radians from one position to the next.  A kind that is not known, or
 * longrope with another number of factors, is a programmer's mistake and ends the program. Not collective.
 * \param [in] rotated  Elements of a head that turn: even, positive.
 * \param [in] length  Positions of the program's samples: dynamic and longrope depend on it.
 * \param [out] frequency  rotated / 2 numbers.
 * \param [out] factor  Of the sines and cosines. */
void ts_rope_frequencies(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor);

#endif
