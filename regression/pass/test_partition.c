/* Cuts of a row of items: every line of regression/golden/partitions.txt, which are DeepSpeed's. */
#include "pass/partition.h"
#include "regression/tap.h"

#include "base/memory.h"
#include "base/status.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

/* Numbers up to `end`. */
static int read_numbers(char *from, char end, double *number) {
  int n = 0;
  char *next = from;
  for (double x = strtod(from, &next); next != from && n < MOST; x = strtod(from, &next)) {
    number[n++] = x;
    from = next;
    if (*from == end) {
      break;
    }
  }
  return n;
}

static bool is_same(char *line, bool balanced) {
  double left[MOST], right[MOST];
  int cuts[MOST], n = read_numbers(strchr(line, ' '), ':', left);
  int known = read_numbers(strchr(line, ':') + 1, 0, right), parts = (int) left[balanced ? 0 : 1];
  TS_CHECK(n > 1 && known == parts + 1, "a line of partitions.txt is no partition: %s", line);
  if (balanced) {
    ts_partition_balanced(n - 1, left + 1, parts, cuts);
  } else {
    ts_partition_uniform((int) left[0], parts, cuts);
  }
  bool same = true;
  for (int k = 0; k <= parts; ++k) {
    same = same && cuts[k] == (int) right[k];
  }
  if (!same) {
    tap_note("other than DeepSpeed's: %s", line);
  }
  return same;
}

/* The least maximum of all cuts without an empty part; or the least sum of squares of those whose parts are at most
 * `most`. */
static double least_of(int n, const double *weight, int parts, double most) {
  double least = INFINITY, sum = 0;
  if (parts == 0) {
    return n == 0 ? 0 : INFINITY;
  }
  for (int first = 1; first <= n; ++first) {
    sum += weight[first - 1];
    double rest = least_of(n - first, weight + first, parts - 1, most);
    least = fmin(least, isinf(most) ? fmax(sum, rest) : sum > most ? INFINITY : sum * sum + rest);
  }
  return least;
}

static void test_least_most(void) {
  int wrong = 0, uneven = 0, cases = 0;
  uint32_t state = 1;
  for (int n = 1; n <= 9; ++n) {
    for (int parts = 1; parts <= n; ++parts) {
      for (int k = 0; k < 20; ++k, ++cases) {
        double weight[9], most = 0, squares = 0;
        int cuts[10];
        for (int i = 0; i < n; ++i) {
          state = state * 1664525u + 1013904223u;
          weight[i] = (double) (state >> 24) * (k % 3 != 0 || i > 0); /* zeros too */
        }
        ts_partition_least_most(n, weight, parts, cuts);
        bool whole = cuts[0] == 0 && cuts[parts] == n;
        for (int p = 0; p < parts; ++p) {
          double sum = 0;
          for (int i = cuts[p]; i < cuts[p + 1]; ++i) {
            sum += weight[i];
          }
          whole = whole && cuts[p] < cuts[p + 1];
          most = fmax(most, sum);
          squares += sum * sum; /* weights and so sums are whole numbers: no rounding */
        }
        wrong += !whole || most != least_of(n, weight, parts, INFINITY);
        uneven += squares != least_of(n, weight, parts, most);
      }
    }
  }
  tap_ok(wrong == 0, "%d cuts for the least maximum: as good as all others, no part empty", cases);
  const double same[] = {1, 1, 1, 1, 1};
  int cuts[4];
  ts_partition_least_most(5, same, 3, cuts);
  tap_ok(cuts[1] == 2 && cuts[2] == 4 && cuts[3] == 5, "5 alike in 3 parts: the first are the longest");
  tap_ok(uneven == 0, "and the most even of those that are as good");
}

int main(void) {
  FILE *file = fopen(tap_path("regression/golden/partitions.txt"), "r");
  TS_CHECK(file != NULL, "regression/golden/partitions.txt is missing");
  char *line = NULL;
  size_t room = 0;
  int n[2] = {0}, same[2] = {0};
  for (ssize_t length; (length = getline(&line, &room, file)) > 0;) {
    bool balanced = strncmp(line, "balanced ", 9) == 0;
    line[length - 1] = 0;
    ++n[balanced];
    same[balanced] += is_same(line, balanced);
  }
  free(line);
  fclose(file);
  tap_ok(n[0] > 0 && same[0] == n[0], "%d of %d uniform partitions are DeepSpeed's", same[0], n[0]);
  tap_ok(n[1] > 0 && same[1] == n[1], "%d of %d balanced ones are, ties included", same[1], n[1]);
  test_least_most();
  return tap_done();
}
