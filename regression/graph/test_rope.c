/* Frequencies of rotary positions against transformers' own (regression/golden/rope.txt, made by make_rope.py). */
#include "model/rope.h"

#include "base/memory.h"
#include "base/text.h"
#include "regression/tap.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

typedef struct golden {
  ts_rope rope;
  double shorts[MOST], longs[MOST], expected[1 + MOST]; /* the factor, then the frequencies */
  int n_expected;
  int64_t rotated, length;
} golden;

static int read_list(const char *text, double *list, int most) {
  int n = 0;
  char *end = (char *) text;
  while (n < most && *text != '\0') {
    list[n++] = strtod(text, &end);
    text = *end == ',' ? end + 1 : end;
  }
  return n;
}

static const struct field {
  const char *key;
  size_t offset;
  bool is_count; /* int64_t, or else double */
} fields[] = {
    {"rotated", offsetof(golden, rotated), true},
    {"length", offsetof(golden, length), true},
    {"max_position_embeddings", offsetof(golden, rope.max_position_embeddings), true},
    {"original_max_position_embeddings", offsetof(golden, rope.original_max_position_embeddings), true},
    {"theta", offsetof(golden, rope.theta), false},
    {"factor", offsetof(golden, rope.factor), false},
    {"low_freq_factor", offsetof(golden, rope.low_freq_factor), false},
    {"high_freq_factor", offsetof(golden, rope.high_freq_factor), false},
    {"attention_factor", offsetof(golden, rope.attention_factor), false},
    {"beta_fast", offsetof(golden, rope.beta_fast), false},
    {"beta_slow", offsetof(golden, rope.beta_slow), false},
    {"mscale", offsetof(golden, rope.mscale), false},
    {"mscale_all_dim", offsetof(golden, rope.mscale_all_dim), false},
};

static bool read_number(const char *key, const char *value, golden *g) {
  for (size_t i = 0; i < sizeof fields / sizeof *fields; ++i) {
    if (strcmp(fields[i].key, key) == 0 && fields[i].is_count) {
      *(int64_t *) ((char *) g + fields[i].offset) = strtoll(value, NULL, 10);
      return true;
    }
    if (strcmp(fields[i].key, key) == 0) {
      *(double *) ((char *) g + fields[i].offset) = strtod(value, NULL);
      return true;
    }
  }
  return false;
}

/* A word of a line; false: no such key. */
static bool read_word(char *word, golden *g) {
  char *value = strchr(word, '=');
  if (value == NULL) {
    return false;
  }
  *value++ = '\0';
  if (strcmp(word, "rope_type") == 0) {
    g->rope.rope_type = value;
  } else if (strcmp(word, "truncate") == 0) {
    g->rope.truncate = *value == '1';
  } else if (strcmp(word, "short_factor") == 0) {
    g->rope.n_short = read_list(value, g->shorts, MOST);
  } else if (strcmp(word, "long_factor") == 0) {
    g->rope.n_long = read_list(value, g->longs, MOST);
  } else if (strcmp(word, "expected") == 0) {
    g->n_expected = read_list(value, g->expected, 1 + MOST);
  } else {
    return read_number(word, value, g);
  }
  return true;
}

/* The words of a line, which is cut into them. */
static bool read_line(char *line, golden *g) {
  *g = (golden){.rope.truncate = true};
  bool good = true;
  char *rest = line;
  for (char *word = strtok_r(line, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    good = read_word(word, g) && good;
  }
  g->rope.short_factor = g->shorts;
  g->rope.long_factor = g->longs;
  return good && g->rope.rope_type != NULL && g->rotated > 0 && g->n_expected == 1 + g->rotated / 2;
}

static double relative(double value, double expected) {
  double off = fabs(value / expected - 1);
  return isfinite(off) ? off : INFINITY;
}

/* Largest relative difference of a case. */
static double difference(const golden *g) {
  double frequency[MOST], factor = NAN;
  ts_rope_frequencies(&g->rope, (int) g->rotated, g->length, frequency, &factor);
  double worst = relative(factor, g->expected[0]);
  for (int i = 0; i < g->rotated / 2; ++i) {
    worst = fmax(worst, relative(frequency[i], g->expected[1 + i]));
  }
  return worst;
}

/* transformers computes in fp32: an exponent rounded to 2^-25 makes ln (theta) = 13 times that of a power, 4e-7, and
 * four or five roundings follow, 6e-8 each. */
static const double tolerance = 1e-6;

static void test_kind(const char *kind, char *text) {
  double worst = 0;
  int n = 0;
  char *rest = text;
  for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    golden g;
    bool good = read_line(line, &g);
    if (good && strcmp(g.rope.rope_type, kind) == 0) {
      double off = difference(&g);
      if (off > tolerance) {
        tap_note("case %d: %d of a head, length %lld, off by %.1e", n, (int) g.rotated, (long long) g.length, off);
      }
      worst = fmax(worst, off);
      ++n;
    }
    worst = good ? worst : INFINITY;
  }
  tap_ok(n > 2 && worst <= tolerance, "%s: %d cases as transformers has them, to %.1e", kind, n, worst);
}

int main(void) {
  static const char *const kinds[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};
  char *text = NULL;
  size_t length;
  ts_read_file(tap_path("regression/golden/rope.txt"), 1 << 20, &text, &length, NULL);
  for (size_t i = 0; text != NULL && i < sizeof kinds / sizeof *kinds; ++i) {
    char *copy = ts_strdup(text);
    test_kind(kinds[i], copy);
    ts_free(copy);
  }
  ts_free(text);
  tap_ok(ts_memory_live() == 0, "nothing leaked");
  return tap_done();
}
