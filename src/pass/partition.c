#include "pass/partition.h"

#include "base/memory.h"
#include "base/status.h"

#include <math.h>
#include <stdbool.h>

void ts_partition_uniform(int n, int parts, int *cuts) {
  for (int k = 0; k <= parts; ++k) {
    int more = n % parts;
    cuts[k] = n <= parts ? (k < n ? k : n) : k * (n / parts) + (k < more ? k : more);
  }
}

/* The first items in some parts: the best that can be. */
typedef struct best {
  double largest, smallest, difference;
  int cut; /* where the last of these parts begins */
} best;

/* The best cut of the first `i` items in one part more than `before` has. */
static best find_best(const best *before, int stride, const double *sum, int i) {
  best found = {INFINITY, INFINITY, INFINITY, 0};
  for (int k = 0; k < i; ++k) {
    double own = sum[i] - sum[k];
    best b = {
        .largest = fmax(before[k * stride].largest, own), .smallest = fmin(before[k * stride].smallest, own), .cut = k};
    b.difference = b.largest - b.smallest;
    found = b.difference <= found.difference ? b : found;
  }
  return found;
}

void ts_partition_balanced(int n, const double *weight, int parts, int *cuts) {
  if (n <= parts) {
    ts_partition_uniform(n, parts, cuts);
    return;
  }
  int stride = parts + 1;
  best *table = ts_malloc((size_t) (n + 1) * (size_t) stride * sizeof *table); /* [items][parts] */
  double *sum = ts_calloc((size_t) n + 1, sizeof *sum);
  for (int i = 0; i <= n; ++i) {
    sum[i] = i > 0 ? sum[i - 1] + weight[i - 1] : 0;
    for (int j = 0; j <= parts; ++j) {
      best *here = &table[i * stride + j];
      *here = (best){INFINITY, INFINITY, INFINITY, 0};
      if (i == 0 && j == 0) {
        here->largest = here->difference = 0;
      } else if (j > 0 && j <= i) {
        *here = find_best(table + j - 1, stride, sum, i);
      }
    }
  }
  cuts[parts] = n;
  for (int j = parts; j > 0; --j) {
    cuts[j - 1] = table[cuts[j] * stride + j].cut;
  }
  ts_free(table);
  ts_free(sum);
}

/* Of items i ... in k parts: the least maximum, or, of parts of at most `most`, the least sum of their squares.
 * \param [out] end  [parts + 1][n + 1] Where the first of these parts ends then, as late as may be.
 * \return the least of all items in all parts. */
static double find_least(int n, const double *weight, int parts, double most, int *end) {
  size_t row = (size_t) n + 1;
  double *least = ts_malloc((size_t) (parts + 1) * row * sizeof *least);
  for (size_t i = 0; i < (size_t) (parts + 1) * row; ++i) {
    least[i] = INFINITY;
  }
  least[n] = 0;
  for (int k = 1; k <= parts; ++k) {
    const double *rest = least + (size_t) (k - 1) * row;
    for (int i = 0; i <= n - k; ++i) {
      size_t here = (size_t) k * row + (size_t) i;
      double sum = 0;
      for (int j = i + 1; j <= n - (k - 1) && (sum += weight[j - 1]) <= most; ++j) {
        double value = isinf(most) ? fmax(sum, rest[j]) : sum * sum + rest[j];
        end[here] = value <= least[here] ? j : end[here];
        least[here] = fmin(value, least[here]);
      }
    }
  }
  double all = least[(size_t) parts * row];
  ts_free(least);
  return all;
}

void ts_partition_least_most(int n, const double *weight, int parts, int *cuts) {
  TS_ASSERT(n >= parts && parts > 0);
  size_t row = (size_t) n + 1;
  int *end = ts_calloc((size_t) (parts + 1) * row, sizeof *end);
  find_least(n, weight, parts, find_least(n, weight, parts, INFINITY, end), end);
  cuts[0] = 0;
  for (int k = parts; k > 0; --k) {
    cuts[parts - k + 1] = end[(size_t) k * row + (size_t) cuts[parts - k]];
  }
  ts_free(end);
}

/* Boundaries first ... last by one item. \return false: a part would be empty, and nothing has moved. */
static bool shift(int *cuts, int first, int last, int by) {
  bool empties = by > 0 ? cuts[last] + 1 >= cuts[last + 1] : cuts[first] - 1 <= cuts[first - 1];
  for (int k = first; k <= last && !empties; ++k) {
    cuts[k] += by;
  }
  return !empties;
}

/* What is no gain. */
#define ROUNDING 1e-12

double ts_partition_improve(int parts, int *cuts, ts_partition_cost *cost, void *user) {
  double best = cost(user, cuts);
  for (bool better = true; better;) {
    better = false;
    for (int first = 1; first < parts; ++first) {
      for (int move = 0; move < 2 * (parts - first); ++move) {
        int last = first + move / 2, by = move % 2 == 0 ? 1 : -1;
        if (!shift(cuts, first, last, by)) {
          continue;
        }
        double now = cost(user, cuts);
        if (now * (1 + ROUNDING) < best) {
          best = now;
          better = true;
        } else {
          shift(cuts, first, last, -by);
        }
      }
    }
  }
  return best;
}
