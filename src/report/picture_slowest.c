#include "base/memory.h"
#include "report/heat.h"
#include "report/picture_frame.h"
#include "report/pictures.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_RANKS = 10 /* that have a row */ };

typedef struct rank_row {
  int64_t rank, steps; /* how many, or before they are counted which one */
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

/* Steps at which it is known, but those that were observed. The caller's. */
static rank_row *find_slowest(const ts_report_run *run, int64_t *n) {
  rank_row *row = ts_malloc(((size_t) run->metrics.n_rows + 1) * sizeof *row);
  *n = 0;
  for (int64_t i = 0; i < run->metrics.n_rows; ++i) {
    double rank = ts_report_slowest_rank(run, i), seconds = ts_report_slowest_seconds(run, i);
    double step = ts_report_value(run, i, TS_METRIC_step);
    if (rank >= 0 && seconds > 0 && seconds < 1e9 && step > 0 && step < 9e15 &&
        !(ts_report_value(run, i, TS_METRIC_observed) > 0)) {
      row[(*n)++] = (rank_row){(int64_t) rank, (int64_t) step, seconds};
    }
  }
  return row;
}

/* Dark is where a rank was the slowest in all steps of a tile. */
static void draw_ranks(const rank_row *row, int64_t n, int64_t ranks, int runs, ts_text *html) {
  ts_heat heat = ts_heat_make("rank", ranks, (double) row[0].steps, (double) row[n - 1].steps, runs);
  for (int64_t i = 0; i < n; ++i) {
    for (int r = 0; r < heat.rows; ++r) { /* one rank of each row of tiles, and the slowest in its own */
      int64_t first = (r * ranks + heat.rows - 1) / heat.rows;
      bool is = row[i].rank * heat.rows / ranks == r;
      ts_heat_add(&heat, is ? row[i].rank : first, (double) row[i].steps, is);
    }
  }
  ts_text_add(html, "<figure>");
  ts_heat_draw(&heat, "which rank was slowest at which step", 0, 1, html);
  ts_text_add(html, "</figure>\n");
  ts_heat_clear(&heat);
}

bool ts_picture_slowest(const ts_report_run *run, int runs, ts_text *html) {
  int64_t n;
  rank_row *row = find_slowest(run, &n);
  const int64_t known = run->n_jobs > 0 ? run->jobs[run->n_jobs - 1].ranks : 0;
  int64_t ranks = known;
  for (int64_t i = 0; i < n; ++i) { /* a job before may have had more */
    ranks = row[i].rank >= ranks ? row[i].rank + 1 : ranks;
  }
  const bool several = n > 0 && ranks > 1;
  if (several) {
    draw_ranks(row, n, ranks, runs, html);
    for (int64_t i = 0; i < n; ++i) {
      row[i].steps = 1;
    }
    int64_t rows = merge_ranks(row, n);
    ts_table_begin(
        (const char *const[]){"rank", "steps in which it was slowest", "of all", "busy in them, mean ms", NULL}, html);
    for (int64_t i = 0; i < rows && i < MOST_RANKS; ++i) {
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
    if (rows > MOST_RANKS) {
      ts_text_add(html, "<p>%lld more ranks were slowest less often.</p>\n", (long long) rows - MOST_RANKS);
    }
    ts_text_add(html,
                "<p class=\"soft\">Busy is all but waiting for messages; of GPUs only waiting for other stages of a "
                "pipeline is known, so ranks of one stage look alike there.</p>\n");
  }
  ts_free(row);
  return several;
}
