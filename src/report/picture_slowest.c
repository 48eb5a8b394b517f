#include "base/memory.h"
#include "report/picture_frame.h"
#include "report/pictures.h"

#include <math.h>
#include <stdlib.h>

typedef struct rank_row {
  int64_t rank, steps;
  double seconds;
} rank_row;

static int by_rank_number(const void *a, const void *b) {
  const rank_row *x = a, *y = b;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

static int by_steps(const void *a, const void *b) {
  const rank_row *x = a, *y = b;
  return x->steps != y->steps ? (x->steps < y->steps) - (x->steps > y->steps) : by_rank_number(a, b);
}

/* A row a rank, in place: rows are of one step each. */
static int64_t merge_ranks(rank_row *row, int64_t n) {
  int64_t ranks = 0;
  qsort(row, (size_t) n, sizeof *row, by_rank_number);
  for (int64_t i = 0; i < n; ++i) {
    if (ranks > 0 && row[ranks - 1].rank == row[i].rank) {
      row[ranks - 1].steps += row[i].steps;
      row[ranks - 1].seconds += row[i].seconds;
    } else {
      row[ranks++] = row[i];
    }
  }
  qsort(row, (size_t) ranks, sizeof *row, by_steps);
  return ranks;
}

bool ts_picture_slowest(const ts_report_run *run, ts_text *html) {
  rank_row *row = ts_malloc(((size_t) run->metrics.n_rows + 1) * sizeof *row);
  int64_t n = 0;
  for (int64_t i = 1; i < run->metrics.n_rows; ++i) { /* a row tells of the step before */
    double rank = ts_report_value(run, i, TS_METRIC_slowest_rank);
    double seconds = ts_report_value(run, i, TS_METRIC_slowest_seconds);
    if (rank >= 0 && rank < 1e9 && seconds > 0 && seconds < 1e9) {
      row[n++] = (rank_row){(int64_t) rank, 1, seconds};
    }
  }
  const bool several = run->n_jobs == 0 || run->jobs[run->n_jobs - 1].ranks > 1;
  if (n > 0 && several) {
    int64_t ranks = merge_ranks(row, n);
    ts_table_begin(
        (const char *const[]){"rank", "steps in which it was slowest", "of all", "busy in them, mean ms", NULL}, html);
    for (int64_t i = 0; i < ranks && i < 10; ++i) {
      double share = 100 * (double) row[i].steps / (double) n;
      ts_text_add(html, "<tr>");
      ts_table_cell(html, "%lld", (long long) row[i].rank);
      ts_table_cell(html, "%lld", (long long) row[i].steps);
      ts_text_add(html,
                  "<td><svg class=\"bar\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\"><rect class=\"f0\" "
                  "width=\"%.1f\" height=\"10\"/></svg> %.0f %%</td>",
                  share, share);
      ts_table_cell(html, "%.3f", 1e3 * row[i].seconds / (double) row[i].steps);
      ts_text_add(html, "</tr>\n");
    }
    ts_text_add(html, TS_TABLE_END);
    if (ranks > 10) {
      ts_text_add(html, "<p>%lld more ranks were slowest less often.</p>\n", (long long) ranks - 10);
    }
  }
  ts_free(row);
  return n > 0 && several;
}
