#include "pass/partition.h"

#include "base/memory.h"

#include <math.h>

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
