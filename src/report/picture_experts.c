#include "report/heat.h"
#include "report/pictures.h"

#include <math.h>

#define MOST_LAYERS 1e6 /* what says more is no layer */

bool ts_picture_experts(const ts_csv *experts, int runs, ts_text *svg) {
  const int step = ts_csv_column(experts, "step"), layer = ts_csv_column(experts, "layer"),
            largest = ts_csv_column(experts, "largest");
  double first = INFINITY, last = -INFINITY, layers = 0, most = 0;
  if (step < 0 || layer < 0 || largest < 0) {
    return false;
  }
  for (int64_t row = 0; row < experts->n_rows; ++row) {
    const double *x = experts->values + row * experts->n_columns;
    if (x[layer] >= 0 && x[layer] < MOST_LAYERS && isfinite(x[step]) && isfinite(x[largest])) {
      first = fmin(first, x[step]);
      last = fmax(last, x[step]);
      layers = fmax(layers, x[layer] + 1);
      most = fmax(most, x[largest]);
    }
  }
  if (layers == 0) {
    return false;
  }
  ts_heat heat = ts_heat_make("layer", (int64_t) layers, first, last, runs);
  for (int64_t row = 0; row < experts->n_rows; ++row) {
    const double *x = experts->values + row * experts->n_columns;
    if (x[layer] >= 0 && x[layer] < layers) {
      ts_heat_add(&heat, (int64_t) x[layer], x[step], x[largest]);
    }
  }
  ts_heat_draw(&heat, "load of the busiest expert by layer and step", 1, fmax(most, 1), svg);
  ts_text_add(svg, "<p>The lightest is even; the most that an expert had at a step is %.2f times the mean.</p>\n",
              most);
  ts_heat_clear(&heat);
  return true;
}
