#include "report/heat.h"

#include "base/memory.h"
#include "report/picture_frame.h"

#include <math.h>

enum { MOST_ROWS = 64, MOST_TILES = 8000, LEAST_TILES = 400, MOST_BINS = 200, LEAST_BINS = 10 };

static double clamp(double x, double low, double high) {
  return fmin(fmax(x, low), high);
}

ts_heat ts_heat_make(const char *row, int64_t n_rows, double first, double last, int runs) {
  ts_heat h = {.row = row, .n_rows = n_rows, .first = first, .last = last};
  const double tiles = fmax(MOST_TILES / runs, LEAST_TILES);
  h.rows = (int) clamp((double) n_rows, 1, fmin(MOST_ROWS, tiles / LEAST_BINS));
  h.bins = (int) clamp(fmin(last - first + 1, tiles / h.rows), 1, MOST_BINS);
  h.sum = ts_calloc((size_t) h.rows * (size_t) h.bins, sizeof *h.sum);
  h.n = ts_calloc((size_t) h.rows * (size_t) h.bins, sizeof *h.n);
  return h;
}

void ts_heat_clear(ts_heat *h) {
  ts_free(h->sum);
  ts_free(h->n);
  *h = (ts_heat){0};
}

void ts_heat_add(ts_heat *h, int64_t row, double step, double value) {
  if (row >= 0 && row < h->n_rows && step >= h->first && step <= h->last && isfinite(value)) {
    int bin = (int) clamp((step - h->first) / (h->last - h->first + 1) * h->bins, 0, h->bins - 1);
    int64_t tile = row * h->rows / h->n_rows * h->bins + bin;
    h->sum[tile] += value;
    ++h->n[tile];
  }
}

static void draw_tile_row(const ts_heat *h, int row, double tall, double low, double high, ts_text *svg) {
  const double wide = (double) TS_PICTURE_DRAWN / h->bins;
  for (int bin = 0; bin < h->bins; ++bin) {
    const int i = row * h->bins + bin;
    if (h->n[i] > 0) {
      double shade = high > low ? clamp((h->sum[i] / (double) h->n[i] - low) / (high - low), 0, 1) : 0;
      ts_text_add(svg, "<rect class=\"f0\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" opacity=\"%.2f\"/>",
                  TS_PICTURE_LEFT + bin * wide, tall * row + 2, wide + 0.2, tall - 1, 0.06 + 0.94 * shade);
    }
  }
}

void ts_heat_draw(const ts_heat *h, const char *label, double low, double high, ts_text *svg) {
  const double tall = h->rows > 16 ? 8 : 14;
  const int height = (int) (tall * h->rows) + 40;
  ts_picture_begin(height, label, svg);
  for (int row = 0; row < h->rows; ++row) {
    if (row % (h->rows / 16 + 1) == 0) { /* the first of those that share the row */
      ts_text_add(svg, "<text text-anchor=\"end\" x=\"%d\" y=\"%.1f\">%s %lld</text>\n", TS_PICTURE_LEFT - 6,
                  tall * row + fmin(tall, 11), h->row, (long long) ((row * h->n_rows + h->rows - 1) / h->rows));
    }
    draw_tile_row(h, row, tall, low, high, svg);
  }
  ts_text_add(svg,
              "\n<text x=\"%d\" y=\"%d\">step %.0f</text><text text-anchor=\"end\" x=\"%d\" y=\"%d\">step "
              "%.0f</text>\n</svg>\n",
              TS_PICTURE_LEFT, height - 16, h->first, TS_PICTURE_WIDTH - TS_PICTURE_RIGHT, height - 16, h->last);
}
