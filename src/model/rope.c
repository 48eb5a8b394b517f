/* Frequency i of pair i, of P in all; what the kinds make of it.  "Turns" are those in the context of the pretraining.
 *
 *   default   theta^(-i / P)                                                                        (Su et al. 2021)
 *   linear    divided by factor                                                                     (Chen et al. 2023)
 *   dynamic   theta grows with the length beyond max_position_embeddings, so that the slowest pair is stretched as by
 *             linear and the fastest not at all (NTK-aware interpolation; Peng et al. 2023, 3.1 and appendix B)
 *   llama3    linear below low_freq_factor turns, default above high_freq_factor, between them a blend by turns
 *             (Dubey et al. 2024)
 *   yarn      linear below beta_slow turns, default above beta_fast, between them a blend by pairs; sines and cosines
 *             are scaled by 0.1 ln (factor) + 1                                                     (Peng et al. 2023)
 *   longrope  divided by a number of each pair, from one list up to the length of the pretraining, from another beyond;
 *             sines and cosines are scaled by sqrt (1 + ln (factor) / ln (original))                (Ding et al. 2024)
 */
#include "model/rope.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* Frequencies, and the factor, which is 1 unless it is written. */
typedef void rope_rule(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor);

static void powers(double theta, int rotated, double *frequency) {
  for (int i = 0; i < rotated / 2; ++i) {
    frequency[i] = pow(theta, -2.0 * i / rotated);
  }
}

static double original_of(const ts_rope *rope) {
  return (double) (rope->original_max_position_embeddings > 0 ? rope->original_max_position_embeddings
                                                              : rope->max_position_embeddings);
}

static double stretch_of(const ts_rope *rope) {
  return rope->factor > 0 ? rope->factor : (double) rope->max_position_embeddings / original_of(rope);
}

static void plain(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  (void) length, (void) factor;
  powers(rope->theta, rotated, frequency);
}

static void linear(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  (void) length, (void) factor;
  powers(rope->theta, rotated, frequency);
  for (int i = 0; i < rotated / 2; ++i) {
    frequency[i] /= rope->factor;
  }
}

static void dynamic(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  (void) factor;
  double beyond = (double) length / (double) rope->max_position_embeddings - 1;
  double growth = beyond > 0 && rotated > 2 ? pow(1 + rope->factor * beyond, rotated / (rotated - 2.0)) : 1;
  powers(rope->theta * growth, rotated, frequency);
}

static void llama3(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  (void) length, (void) factor;
  double original = original_of(rope), low = rope->low_freq_factor, high = rope->high_freq_factor;
  powers(rope->theta, rotated, frequency);
  for (int i = 0; i < rotated / 2; ++i) {
    double turns = original * frequency[i] / (2 * M_PI);
    double kept = turns < low ? 0 : turns > high ? 1 : (turns - low) / (high - low);
    frequency[i] *= kept + (1 - kept) / rope->factor;
  }
}

/* The pair that makes so many turns. */
static double yarn_pair(const ts_rope *rope, int rotated, double turns) {
  return rotated * log(original_of(rope) / (turns * 2 * M_PI)) / (2 * log(rope->theta));
}

static double yarn_scale(double stretch, double times) {
  return stretch <= 1 ? 1 : 0.1 * times * log(stretch) + 1;
}

static double yarn_factor(const ts_rope *rope, double stretch) {
  bool both = rope->mscale != 0 && rope->mscale_all_dim != 0;
  return rope->attention_factor > 0 ? rope->attention_factor
         : both                     ? yarn_scale(stretch, rope->mscale) / yarn_scale(stretch, rope->mscale_all_dim)
                                    : yarn_scale(stretch, 1);
}

static void yarn(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  (void) length;
  double stretch = stretch_of(rope);
  double first = yarn_pair(rope, rotated, rope->beta_fast > 0 ? rope->beta_fast : 32);
  double last = yarn_pair(rope, rotated, rope->beta_slow > 0 ? rope->beta_slow : 1);
  first = fmax(rope->truncate ? floor(first) : first, 0);
  last = fmin(rope->truncate ? ceil(last) : last, rotated - 1);
  double band = first == last ? 0.001 : last - first;
  powers(rope->theta, rotated, frequency);
  for (int i = 0; i < rotated / 2; ++i) {
    double kept = 1 - fmin(fmax((i - first) / band, 0), 1);
    frequency[i] *= kept + (1 - kept) / stretch;
  }
  *factor = yarn_factor(rope, stretch);
}

static void longrope(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  double original = original_of(rope), stretch = stretch_of(rope);
  bool is_long = (double) length > original;
  const double *list = is_long ? rope->long_factor : rope->short_factor;
  TS_CHECK((is_long ? rope->n_long : rope->n_short) == rotated / 2, "longrope has a number for each of %d pairs",
           rotated / 2);
  powers(rope->theta, rotated, frequency);
  for (int i = 0; i < rotated / 2; ++i) {
    frequency[i] /= list[i];
  }
  *factor = rope->attention_factor > 0 ? rope->attention_factor
            : stretch > 1              ? sqrt(1 + log(stretch) / log(original))
                                       : 1;
}

static const struct rope_row {
  const char *name;
  rope_rule *rule;
} rows[] = {{"default", plain}, {"linear", linear}, {"dynamic", dynamic},
            {"llama3", llama3}, {"yarn", yarn},     {"longrope", longrope}};

void ts_rope_frequencies(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  const struct rope_row *row = rows, *end = rows + sizeof rows / sizeof *rows;
  while (row < end && strcmp(row->name, rope->rope_type) != 0) {
    ++row;
  }
  TS_CHECK(row < end, "rope of type %s is not there", rope->rope_type);
  *factor = 1;
  row->rule(rope, rotated, length, frequency, factor);
}
