/* Units that threads share: each is done once, a thread's own first and in order, and nobody's are left to one that is
 * held up. */
#include "backend/cpu/team.h"
#include "regression/tap.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Thread number `thread` gets these, one after another. */
static void gives(ts_team *team, int thread, int n, const char *expected, const char *what) {
  char text[256] = "";
  for (int i = 0, at = 0; i < n; ++i) {
    at += snprintf(text + at, sizeof text - (size_t) at, "%s%lld", i > 0 ? " " : "",
                   (long long) ts_team_next(team, thread));
  }
  tap_ok(strcmp(text, expected) == 0, "%s: %s", what, text);
}

static void test_order(void) {
  ts_team team;
  ts_team_begin(&team, 10, 3);
  gives(&team, 1, 2, "3 4", "a thread begins its own stretch");
  gives(&team, 0, 3, "0 1 2", "so does another");
  gives(&team, 0, 1, "5", "and then takes the last of the next one's");
  gives(&team, 1, 4, "9 8 7 6", "whoever is done takes from a thread that never came, from its end");
  gives(&team, 2, 2, "-1 -1", "which finds nothing left");
  ts_team_begin(&team, 2, 3);
  gives(&team, 2, 3, "1 0 -1", "fewer units than threads");
  ts_team_begin(&team, 0, 2);
  gives(&team, 1, 1, "-1", "no unit");
}

/* So many threads at once: how often each unit was done; thread 0 does nothing but wait until the others are done. */
static void test_once(int threads, int n) {
  ts_team team;
  int *times = calloc((size_t) n, sizeof *times), wrong = 0;
  ts_team_begin(&team, n, threads);
#pragma omp parallel num_threads(threads)
  {
    int thread = omp_get_thread_num();
    for (int64_t i; (thread > 0 || omp_get_num_threads() == 1) && (i = ts_team_next(&team, thread)) >= 0;) {
#pragma omp atomic
      times[i] += 1;
    }
  }
  for (int i = 0; i < n; ++i) {
    wrong += times[i] != 1;
  }
  tap_ok(wrong == 0, "%d threads, the first of which does nothing: each of %d units is done once", threads, n);
  free(times);
}

int main(void) {
  test_order();
  test_once(2, 1);
  test_once(4, 100000);
  test_once(70, 5000); /* more than there are stretches */
  return tap_done();
}
