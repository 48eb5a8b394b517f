#include "base/memory.h"
#include "report/picture_frame.h"
#include "report/pictures.h"

#include <math.h>

enum { MOST_LAYERS = 128, MOST_TILES = 8000, STEPS_DRAWN = 200 };

typedef struct heat {
  int layers, bins;
  double first, last; /* steps */
  double *sum;        /* owned: [layers][bins], and how many: */
  int64_t *n;
} heat;

static double largest_tile(const heat *h) {
  double most = 0;
  for (int i = 0; i < h->layers * h->bins; ++i) {
    most = h->n[i] > 0 ? fmax(most, h->sum[i] / (double) h->n[i]) : most;
  }
  return most;
}

static void draw_heat(const heat *h, ts_text *svg) {
  const double tall = h->layers > 16 ? 8 : 14, wide = (double) TS_PICTURE_DRAWN / h->bins, most = largest_tile(h);
  const int height = (int) (tall * h->layers) + 40;
  ts_picture_begin(height, "load of the busiest expert by layer and step", svg);
  for (int layer = 0; layer < h->layers; ++layer) {
    if (layer % (h->layers / 16 + 1) == 0) {
      ts_text_add(svg, "<text text-anchor=\"end\" x=\"%d\" y=\"%.1f\">layer %d</text>\n", TS_PICTURE_LEFT - 6,
                  tall * layer + tall, layer);
    }
    for (int bin = 0; bin < h->bins; ++bin) {
      const int i = layer * h->bins + bin;
      double load = h->n[i] > 0 ? h->sum[i] / (double) h->n[i] : 0;
      double shade = most > 1 ? fmin(fmax((load - 1) / (most - 1), 0), 1) : 0;
      if (h->n[i] > 0) {
        ts_text_add(svg, "<rect class=\"f0\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" opacity=\"%.2f\"/>",
                    TS_PICTURE_LEFT + bin * wide, tall * layer + 2, wide + 0.2, tall - 1, 0.08 + 0.92 * shade);
      }
    }
  }
  ts_text_add(svg,
              "\n<text x=\"%d\" y=\"%d\">step %.0f</text><text text-anchor=\"end\" x=\"%d\" y=\"%d\">step "
              "%.0f</text>\n</svg>\n<p>The darkest tile is %.2f times the mean, the lightest is even.</p>\n",
              TS_PICTURE_LEFT, height - 16, h->first, TS_PICTURE_WIDTH - TS_PICTURE_RIGHT, height - 16, h->last, most);
}

bool ts_picture_experts(const ts_csv *experts, ts_text *svg) {
  const int step = ts_csv_column(experts, "step"), layer = ts_csv_column(experts, "layer"),
            largest = ts_csv_column(experts, "largest");
  if (experts->n_rows == 0 || step < 0 || layer < 0 || largest < 0) {
    return false;
  }
  heat h = {.first = INFINITY, .last = -INFINITY};
  for (int64_t row = 0; row < experts->n_rows; ++row) {
    const double *x = experts->values + row * experts->n_columns;
    h.first = fmin(h.first, x[step]);
    h.last = fmax(h.last, x[step]);
    h.layers = x[layer] >= h.layers && x[layer] < MOST_LAYERS ? (int) x[layer] + 1 : h.layers;
  }
  double steps = h.last - h.first + 1;
  if (h.layers == 0 || !isfinite(steps)) {
    return false;
  }
  h.bins = MOST_TILES / h.layers < STEPS_DRAWN ? MOST_TILES / h.layers : STEPS_DRAWN;
  h.bins = steps < h.bins ? (int) steps : h.bins;
  h.sum = ts_calloc((size_t) h.layers * (size_t) h.bins, sizeof *h.sum);
  h.n = ts_calloc((size_t) h.layers * (size_t) h.bins, sizeof *h.n);
  for (int64_t row = 0; row < experts->n_rows; ++row) {
    const double *x = experts->values + row * experts->n_columns;
    if (x[layer] >= 0 && x[layer] < h.layers && isfinite(x[largest]) && isfinite(x[step])) {
      int bin = (int) fmin((x[step] - h.first) / steps * h.bins, h.bins - 1);
      h.sum[(int) x[layer] * h.bins + bin] += x[largest];
      ++h.n[(int) x[layer] * h.bins + bin];
    }
  }
  draw_heat(&h, svg);
  ts_free(h.sum);
  ts_free(h.n);
  return true;
}
