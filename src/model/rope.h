/** \file
 * The frequencies of rotary positions (graph/ops.def, ROPE): the one place where they are computed, of every kind that
 * Hugging Face's checkpoints name.  Nothing here is collective.
 */
#ifndef TS_MODEL_ROPE_H
#define TS_MODEL_ROPE_H

#include <stdint.h>

/** How positions turn: Hugging Face's names.  Which fields a kind reads beside theta stands beside them. */
typedef struct ts_rope {
  const char *rope_type;                    /**< "default", "linear" or "llama3".  Borrowed. */
  double theta;                             /**< Base of the frequencies. */
  double factor;                            /**< Stretch of the positions: linear, llama3. */
  double low_freq_factor, high_freq_factor; /**< llama3. */
  int64_t original_max_position_embeddings; /**< Positions of the pretraining: llama3. */
} ts_rope;

/** How fast each pair of elements turns, in radians from one position to the next.  A kind that is not known is a
 * programmer's mistake and ends the program. Not collective.
 * \param [in] rotated  Elements of a head that turn: even, positive.
 * \param [in] length  Positions of a sample.
 * \param [out] frequency  rotated / 2 numbers.
 * \param [out] factor  Of the sines and cosines. */
void ts_rope_frequencies(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor);

#endif
