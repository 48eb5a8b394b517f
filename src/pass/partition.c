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

/* most[k][i]: the least maximum of items i ... in k parts. */
void ts_partition_least_most(int n, const double *weight, int parts, int *cuts) {
  TS_ASSERT(n >= parts && parts > 0);
  size_t row = (size_t) n + 1;
  double *most = ts_malloc((size_t) (parts + 1) * row * sizeof *most);
  for (size_t i = 0; i < (size_t) (parts + 1) * row; ++i) {
    most[i] = INFINITY;
  }
  most[n] = 0;
  for (int k = 1; k <= parts; ++k) {
    for (int i = 0; i <= n - k; ++i) {
      double sum = 0;
      for (int end = i + 1; end <= n - (k - 1); ++end) {
        sum += weight[end - 1];
        most[(size_t) k * row + (size_t) i] =
            fmin(most[(size_t) k * row + (size_t) i], fmax(sum, most[(size_t) (k - 1) * row + (size_t) end]));
      }
    }
  }
  cuts[0] = 0;
  for (int k = parts, i = 0; k > 0; --k) { /* the longest first part that does not exceed the best of all */
    double sum = 0, best = most[(size_t) parts * row];
    int end = i, longest = i + 1;
    while (end < n - (k - 1) && sum + weight[end] <= best) {
      sum += weight[end++];
      longest = most[(size_t) (k - 1) * row + (size_t) end] <= best ? end : longest;
    }
    cuts[parts - k + 1] = i = k == 1 ? n : longest;
  }
  ts_free(most);
}

/* Boundaries first ... last by one item. \return false: a part would be empty, and nothing has moved. */
static bool shift(int *cuts, int first, int last, int by) {
  bool empties = by > 0 ? cuts[last] + 1 >= cuts[last + 1] : cuts[first] - 1 <= cuts[first - 1];
  for (int k = first; k <= last && !empties; ++k) {
    cuts[k] += by;
  }
  return !empties;
}

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
        if (now < best) {
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
