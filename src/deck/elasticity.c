/* DeepSpeed's choice of a batch that many numbers of ranks divide; the formulas and their source are in the header. */
#include "deck/elasticity.h"

#include "deck/value.h"

#include <stdlib.h>

#define MOST_COMPOSITE 720720 /* where DeepSpeed's list of highly composite numbers ends */
#define LISTED 12             /* longer lists are shown by their ends */

/* ---- highly composite numbers ---- */

typedef struct ts_record {
  int64_t number;
  int divisors;
} ts_record;

/* A number with the most divisors up to a limit, if it is the smallest such, has exponents that do not grow from one
 * prime to the next: a few hundred candidates, instead of DeepSpeed's table. */
static void search_composite(int64_t number, int divisors, int prime, int most, int64_t limit, ts_record *best) {
  static const int primes[] = {2, 3, 5, 7, 11, 13, 17}; /* the product of one more is above MOST_COMPOSITE */
  if (divisors > best->divisors || (divisors == best->divisors && number < best->number)) {
    *best = (ts_record){number, divisors};
  }
  if (prime == (int) (sizeof primes / sizeof *primes)) {
    return;
  }
  for (int exponent = 1; exponent <= most && number <= limit / primes[prime]; ++exponent) {
    number *= primes[prime];
    search_composite(number, divisors * (exponent + 1), prime + 1, exponent, limit, best);
  }
}

int64_t ts_elastic_composite(int64_t limit) {
  ts_record best = {1, 1};
  search_composite(1, 1, 0, 64, limit < MOST_COMPOSITE ? limit : MOST_COMPOSITE, &best);
  return best.number;
}

/* ---- numbers of ranks that fit ---- */

/* What is asked of a batch, in units of one replica (version 0.1) or one node (0.2). */
typedef struct ts_wish {
  const ts_ints *sizes;
  int64_t limit, fewest, most;
  bool larger;
} ts_wish;

/* The largest size that divides `share`, the samples of one replica in a step; 0 for none. */
static int64_t largest_size(const ts_ints *sizes, int64_t share) {
  int64_t largest = 0;
  for (int i = 0; i < sizes->n; ++i) {
    if (share % sizes->items[i] == 0 && sizes->items[i] > largest) {
      largest = sizes->items[i];
    }
  }
  return largest;
}

static int take_if_fits(const ts_wish *wish, int64_t batch, int64_t d, ts_ints *list) {
  if (d < wish->fewest || d > wish->most || largest_size(wish->sizes, batch / d) == 0) {
    return 0;
  }
  if (list != NULL) {
    ts_ints_add(list, d);
  }
  return 1;
}

/* How many numbers of ranks fit; with a list, which (in no order). */
static int count_fits(const ts_wish *wish, int64_t batch, ts_ints *list) {
  int n = 0;
  for (int64_t i = 1; i * i <= batch; ++i) {
    if (batch % i == 0) {
      n += take_if_fits(wish, batch, i, list);
      n += i * i < batch ? take_if_fits(wish, batch, batch / i, list) : 0;
    }
  }
  return n;
}

static int compare_ints(const void *a, const void *b) {
  int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
  return x < y ? -1 : x > y;
}

/* ---- the choice ---- */

static int64_t smallest_size(const ts_ints *sizes) {
  int64_t smallest = sizes->items[0];
  for (int i = 1; i < sizes->n; ++i) {
    smallest = sizes->items[i] < smallest ? sizes->items[i] : smallest;
  }
  return smallest;
}

/* The least common multiple, or what is already above the limit: both are below 2^31, so that nothing wraps. */
static int64_t common_multiple(const ts_ints *sizes, int64_t limit) {
  int64_t multiple = 1;
  for (int i = 0; i < sizes->n && multiple <= limit; ++i) {
    int64_t a = multiple, b = sizes->items[i];
    while (b != 0) {
      int64_t rest = a % b;
      a = b;
      b = rest;
    }
    multiple = multiple / a * sizes->items[i];
  }
  return multiple;
}

/* The best candidate, and what fits it; batch 0 when none fits anything. */
static void choose_candidate(const ts_wish *wish, ts_elastic_batch *choice) {
  int most = 0;
  for (int i = 0; i <= wish->sizes->n; ++i) {
    int64_t base = i < wish->sizes->n ? wish->sizes->items[i] : common_multiple(wish->sizes, wish->limit);
    if (base > wish->limit) {
      continue;
    }
    int64_t batch = base * ts_elastic_composite(wish->limit / base);
    int n = count_fits(wish, batch, NULL);
    bool preferred = wish->larger ? batch > choice->batch : batch < choice->batch;
    if (n > most || (n == most && n > 0 && preferred)) {
      most = n;
      choice->batch = batch;
    }
  }
  if (most > 0) {
    count_fits(wish, choice->batch, &choice->fits);
    qsort(choice->fits.items, (size_t) choice->fits.n, sizeof *choice->fits.items, compare_ints);
  }
}

/* Version 0.2's way out: the batch nearest to the limit for this number of replicas alone. */
static void choose_for(const ts_wish *wish, int64_t limit, int64_t replicas, ts_elastic_batch *choice) {
  choice->batch = 0;
  for (int i = 0; i < wish->sizes->n; ++i) {
    int64_t step = wish->sizes->items[i] * replicas, batch = limit / step * step;
    bool better = wish->larger ? batch > choice->batch : batch < choice->batch;
    choice->batch = i == 0 || better ? batch : choice->batch;
  }
  ts_ints_clear(&choice->fits);
  if (choice->batch > 0) {
    ts_ints_add(&choice->fits, replicas);
  }
}

static bool is_in(const ts_ints *list, int64_t value) {
  for (int i = 0; i < list->n; ++i) {
    if (list->items[i] == value) {
      return true;
    }
  }
  return false;
}

void ts_elastic_choose(const ts_deck_elasticity *e, int64_t replicas, ts_elastic_batch *choice) {
  bool by_node = e->version > 0.1;
  int64_t unit = by_node ? e->num_gpus_per_node / e->model_parallel_size : 1;
  int64_t gpus = by_node ? e->num_gpus_per_node : 1;
  ts_wish wish = {.sizes = &e->micro_batch_sizes,
                  .limit = e->max_train_batch_size / unit,
                  .fewest = e->min_gpus / gpus,
                  .most = e->max_gpus / gpus,
                  .larger = e->prefer_larger_batch};
  wish.fewest = wish.fewest > 0 ? wish.fewest : 1;
  wish.most = wish.most > 0 ? wish.most : wish.limit / smallest_size(wish.sizes); /* DeepSpeed: 0 is no bound */
  *choice = (ts_elastic_batch){0};
  choose_candidate(&wish, choice);
  choice->batch *= unit;
  for (int i = 0; i < choice->fits.n; ++i) {
    choice->fits.items[i] *= unit;
  }
  if (replicas > 0 && by_node && !is_in(&choice->fits, replicas)) {
    choose_for(&wish, e->max_train_batch_size, replicas, choice);
  }
  if (replicas > 0 && is_in(&choice->fits, replicas)) {
    choice->micro = largest_size(wish.sizes, choice->batch / replicas);
  }
}

void ts_elastic_list(const ts_ints *list, ts_text *to) {
  bool all = list->n <= LISTED;
  for (int i = 0; i < list->n; ++i) {
    if (all || i < LISTED / 2 || i >= list->n - LISTED / 2) {
      ts_text_add(to, i == 0 ? "%lld" : ", %lld", (long long) list->items[i]);
    } else if (i == LISTED / 2) {
      ts_text_add(to, " ...");
    }
  }
  if (!all) {
    ts_text_add(to, " (%d numbers)", list->n);
  }
}
