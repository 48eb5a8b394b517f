/* default: Su et al. 2021, frequency i = theta^(-2 i / rotated).  linear: Chen et al. 2023, positions are divided.
 * llama3: Dubey et al. 2024 (Llama 3.1), by wavelength. */
#include "model/rope.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

typedef void rope_rule(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor);

static void plain(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  (void) length, (void) factor;
  for (int i = 0; i < rotated / 2; ++i) {
    frequency[i] = pow(rope->theta, -2.0 * i / rotated);
  }
}

static void linear(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  plain(rope, rotated, length, frequency, factor);
  for (int i = 0; i < rotated / 2; ++i) {
    frequency[i] /= rope->factor;
  }
}

/* Long wavelengths are stretched by factor, short ones kept, the band between blended. */
static void llama3(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  double original = (double) rope->original_max_position_embeddings;
  double low = rope->low_freq_factor, high = rope->high_freq_factor;
  plain(rope, rotated, length, frequency, factor);
  for (int i = 0; i < rotated / 2; ++i) {
    double turns = original * frequency[i] / (2 * M_PI); /* of the original context */
    double kept = turns < low ? 0 : turns > high ? 1 : (turns - low) / (high - low);
    frequency[i] *= kept + (1 - kept) / rope->factor;
  }
}

static const struct rope_row {
  const char *name;
  rope_rule *rule; /* may leave factor as it is, 1 */
} rows[] = {{"default", plain}, {"linear", linear}, {"llama3", llama3}};

void ts_rope_frequencies(const ts_rope *rope, int rotated, int64_t length, double *frequency, double *factor) {
  const struct rope_row *row = rows, *end = rows + sizeof rows / sizeof *rows;
  while (row < end && strcmp(row->name, rope->rope_type) != 0) {
    ++row;
  }
  TS_CHECK(row < end, "rope of type %s is not there", rope->rope_type);
  *factor = 1;
  row->rule(rope, rotated, length, frequency, factor);
}
