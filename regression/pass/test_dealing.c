/* Dealing: classes of indices, what stays together, what is cut alike, and what every rank has of it. */
#include "pass/dealing.h"
#include "regression/tap.h"

#include "base/memory.h"

#include <stdlib.h>

/* ---- shares of all ranks ---- */

/* In order and without gaps, everything once. */
static bool is_partition(const ts_dealing *d, ts_run_of run, int ranks) {
  int64_t at = 0;
  for (int r = 0; r < ranks; ++r) {
    ts_interval of = ts_dealing_of_rank(d, run, r);
    if (of.begin != at || of.length < 0) {
      return false;
    }
    at += of.length;
  }
  return at == ts_run_extent(d, run);
}

/* Neighbours who have the same, and otherwise everything once. */
static bool is_shared(const ts_dealing *d, ts_run_of run, int ranks, int64_t unit) {
  int64_t at = 0;
  ts_interval last = {0, 0};
  for (int r = 0; r < ranks; ++r) {
    ts_interval of = ts_dealing_of_rank(d, run, r);
    bool again = r > 0 && of.begin == last.begin && of.length == last.length;
    if (of.length != unit || (!again && of.begin != at)) {
      return false;
    }
    at += again ? 0 : unit;
    last = of;
  }
  return at == ts_run_extent(d, run);
}

/* Rank by rank. */
static bool lengths_are(const ts_dealing *d, ts_run_of run, int ranks, const int64_t *expected) {
  bool same = true;
  for (int r = 0; r < ranks; ++r) {
    same = same && ts_dealing_of_rank(d, run, r).length == expected[r];
  }
  return same;
}

static ts_run_of add(ts_dealing *d, int64_t units) {
  return (ts_run_of){ts_dealing_add(d, units, 1), 1};
}

static void test_single(void) {
  ts_dealing *d = ts_dealing_create(3);
  ts_run_of a = add(d, 11), b = add(d, 2), c = {add(d, 4).index, 5};
  tap_ok(lengths_are(d, a, 3, (const int64_t[]){4, 4, 3}) && is_partition(d, a, 3), "earlier ranks get one more");
  tap_ok(!ts_dealing_reaches(d, b) && ts_dealing_reaches(d, a), "two units do not reach three ranks");
  tap_ok(ts_run_extent(d, c) == 20 && lengths_are(d, c, 3, (const int64_t[]){10, 5, 5}), "units of five elements");
  tap_ok(!ts_dealing_is_shared(d, a) && !ts_dealing_is_parted(d, a) && !ts_dealing_has_parts(d, a),
         "nothing is shared where all get their own");
  ts_dealing_destroy(&d);
  ts_dealing_destroy(&d);
  tap_ok(d == NULL, "destroyed twice");
}

/* ---- what stays together ---- */

static void test_coarsen(void) {
  ts_dealing *d = ts_dealing_create(2);
  ts_run_of a = add(d, 36);
  tap_ok(ts_dealing_coarsen(d, a, 1) && ts_dealing_of_rank(d, a, 0).length == 18, "ones stay as they are");
  tap_ok(ts_dealing_coarsen(d, a, 4) && ts_dealing_of_rank(d, a, 0).length == 20, "nine fours: five and four");
  tap_ok(ts_dealing_coarsen(d, a, 6) && ts_dealing_of_rank(d, a, 0).length == 24, "and sixes: three twelves");
  tap_ok(ts_dealing_coarsen(d, a, 2) && ts_dealing_of_rank(d, a, 0).length == 24, "twos are together already");
  tap_ok(!ts_dealing_coarsen(d, a, 5) && ts_dealing_of_rank(d, a, 0).length == 24, "fives do not fit: nothing changes");
  tap_ok(is_partition(d, a, 2) && ts_run_extent(d, a) == 36, "the extent is what it was");
  ts_dealing_destroy(&d);
}

static void test_grain(void) {
  ts_dealing *d = ts_dealing_create(3);
  ts_run_of a = {ts_dealing_add(d, 41, 8), 1}, b = {ts_dealing_add(d, 10, 8), 1}, c = {ts_dealing_add(d, 48, 8), 1};
  tap_ok(lengths_are(d, a, 3, (const int64_t[]){16, 16, 9}) && is_partition(d, a, 3), "the tail goes last");
  tap_ok(lengths_are(d, b, 3, (const int64_t[]){4, 3, 3}), "a grain that does not reach all ranks is not used");
  tap_ok(ts_dealing_coarsen(d, c, 16) && lengths_are(d, c, 3, (const int64_t[]){16, 16, 16}),
         "a grain is of elements, whatever stays together");
  ts_dealing_destroy(&d);
}

/* ---- what is cut alike ---- */

static void test_unite(void) {
  ts_dealing *d = ts_dealing_create(2);
  ts_run_of q = add(d, 72), k = add(d, 24), v = add(d, 24), other = add(d, 25);
  tap_ok(ts_dealing_unite(d, q, 24, k, 8), "three query heads belong to a key head");
  tap_ok(ts_dealing_of_rank(d, q, 0).length == 48 && ts_dealing_of_rank(d, k, 0).length == 16, "two of three");
  tap_ok(ts_dealing_unite(d, k, 8, v, 8) && ts_dealing_unite(d, q, 3, v, 1), "alike is transitive");
  tap_ok(!ts_dealing_unite(d, q, 24, k, 4) && !ts_dealing_unite(d, q, 1, other, 1), "what is not alike is refused");
  tap_ok(is_partition(d, q, 2) && is_partition(d, k, 2) && is_partition(d, v, 2) && is_partition(d, other, 2),
         "everything is dealt once");
  tap_ok(ts_dealing_coarsen(d, v, 24) && !ts_dealing_reaches(d, q), "coarsened here, coarse there");
  ts_dealing_destroy(&d);
}

static void test_scale(void) {
  ts_dealing *d = ts_dealing_create(3);
  ts_run_of columns = add(d, 40);
  TS_CHECK(ts_dealing_coarsen(d, columns, 8), "8 of 40");
  ts_run_of heads = ts_dealing_scale(d, columns, 8, 1), same = ts_dealing_scale(d, columns, 4, 4);
  tap_ok(ts_run_extent(d, heads) == 5 && lengths_are(d, heads, 3, (const int64_t[]){2, 2, 1}),
         "columns by heads: a dimension of heads");
  tap_ok(same.index == columns.index && same.size == columns.size, "as many for as many");
  ts_dealing_destroy(&d);
}

/* ---- fewer units than ranks ---- */

/* Query and key columns of so many heads; the parts of a key head are its query heads. */
static void test_heads(int ranks, int64_t key_heads, int64_t group, int64_t width) {
  ts_dealing *d = ts_dealing_create(ranks);
  ts_run_of q = add(d, key_heads * group * width), k = add(d, key_heads * width);
  bool ok = ts_dealing_part(d, q, group * width, group) && ts_dealing_unite(d, q, group * width, k, width);
  bool shared = key_heads < ranks, whole_heads = true, follows = true;
  ok = ok && ts_dealing_has_parts(d, q) == (group > 1) && !ts_dealing_has_parts(d, k);
  ok = ok && ts_dealing_is_shared(d, k) == shared && ts_dealing_is_parted(d, q) == (shared && group > 1);
  int64_t sum = 0, at = 0;
  for (int r = 0; r < ranks; ++r) {
    ts_interval of_q = ts_dealing_of_rank(d, q, r), of_k = ts_dealing_of_rank(d, k, r);
    ts_share share = ts_dealing_share(d, q, group * width, group, r);
    whole_heads = whole_heads && of_q.length > 0 && of_q.length % width == 0 && of_k.length % width == 0;
    follows = follows && of_q.begin == at && of_q.begin >= of_k.begin * group &&
              of_q.begin + of_q.length <= (of_k.begin + of_k.length) * group && share.first == of_k.begin / width &&
              share.first_part == of_q.begin / width && share.parts == of_q.length / width &&
              share.units == of_k.length / width;
    sum += share.parts;
    at += of_q.length;
  }
  tap_ok(ok, "%lld key heads of %lld for %d ranks: who shares", (long long) key_heads, (long long) group, ranks);
  tap_ok(whole_heads && is_partition(d, q, ranks) && sum == key_heads * group, "every query head once, nobody without");
  tap_ok(follows && (shared ? is_shared(d, k, ranks, width) : is_partition(d, k, ranks)),
         "key heads are with their query heads");
  ts_dealing_destroy(&d);
}

static void test_parts(void) {
  ts_dealing *d = ts_dealing_create(4);
  ts_run_of q = add(d, 24), k = add(d, 8), o = add(d, 24);
  TS_CHECK(ts_dealing_part(d, q, 12, 3) && ts_dealing_unite(d, q, 12, k, 4), "two key heads of three");
  tap_ok(ts_dealing_reaches(d, q) && lengths_are(d, q, 4, (const int64_t[]){8, 4, 8, 4}), "2 + 1 and 2 + 1 heads");
  ts_run_of heads = ts_dealing_scale(d, q, 4, 1);
  tap_ok(ts_dealing_has_parts(d, heads) && lengths_are(d, heads, 4, (const int64_t[]){2, 1, 2, 1}),
         "a dimension of heads has the parts");
  tap_ok(ts_dealing_coarsen(d, q, 4) && ts_dealing_is_parted(d, q), "what stays together fits into a part");
  tap_ok(ts_dealing_coarsen(d, q, 12) && !ts_dealing_has_parts(d, q) && !ts_dealing_reaches(d, q),
         "what does not takes the parts away");
  tap_ok(ts_dealing_part(d, o, 1, 1) && !ts_dealing_has_parts(d, o), "one part is none");
  ts_dealing_destroy(&d);
  d = ts_dealing_create(4);
  q = add(d, 24);
  TS_CHECK(ts_dealing_part(d, q, 12, 3), "two of three");
  ts_dealing_forbid_parts(d, q);
  tap_ok(!ts_dealing_has_parts(d, q) && ts_dealing_is_shared(d, q) && is_shared(d, q, 4, 12), "forbidden: whole units");
  ts_run_of coarse = add(d, 24);
  tap_ok(ts_dealing_coarsen(d, coarse, 8) && !ts_dealing_part(d, coarse, 12, 3) && !ts_dealing_has_parts(d, coarse),
         "more stays together than a part");
  ts_dealing_destroy(&d);
}

/* ---- several runs ---- */

static void test_runs(void) {
  ts_dealing *d = ts_dealing_create(3);
  ts_run_of q = add(d, 9), k = add(d, 3), few = add(d, 2);
  TS_CHECK(ts_dealing_part(d, few, 1, 1), "no parts");
  ts_dealt dealt = {3, {q, k, k}};
  bool right = true;
  for (int r = 0; r < 3; ++r) {
    ts_interval out[TS_MOST_RUNS];
    int n = ts_dealt_of_rank(d, &dealt, false, r, out);
    right = right && n == 3 && out[0].begin == 3 * r && out[0].length == 3 && out[1].begin == 9 + r &&
            out[2].begin == 12 + r && out[1].length == 1 && out[2].length == 1;
  }
  tap_ok(right, "of a dimension in runs each rank has some of each");
  ts_dealing_destroy(&d);
}

int main(void) {
  test_single();
  test_coarsen();
  test_grain();
  test_unite();
  test_scale();
  for (int ranks = 1; ranks <= 8; ++ranks) {
    static const int64_t heads[][2] = {{3, 3}, {2, 7}, {1, 8}, {6, 1}, {4, 5}, {8, 1}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; ++i) {
      if (ranks <= heads[i][0] * heads[i][1]) {
        test_heads(ranks, heads[i][0], heads[i][1], 4);
      }
    }
  }
  test_parts();
  test_runs();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
