#include "view/series.h"

#include <math.h>

#define LARGEST 1e100 /* sums stay finite */

static void halve(ts_series *s) {
  s->each *= 2;
  s->n /= 2;
  for (int i = 0; i < s->n; ++i) {
    s->bucket[i] = s->bucket[2 * i];
    s->bucket[i].x += s->bucket[2 * i + 1].x;
    s->bucket[i].y += s->bucket[2 * i + 1].y;
    s->bucket[i].n += s->bucket[2 * i + 1].n;
  }
}

bool ts_series_add(ts_series *s, double x, double y) {
  if (!(fabs(x) < LARGEST && fabs(y) < LARGEST)) {
    return false;
  }
  s->each = s->each > 0 ? s->each : 1;
  if (s->n == 0 || s->bucket[s->n - 1].n == s->each) {
    if (s->n == TS_SERIES_MOST) {
      halve(s);
    }
    s->bucket[s->n].x = s->bucket[s->n].y = 0;
    s->bucket[s->n++].n = 0;
  }
  s->bucket[s->n - 1].x += x;
  s->bucket[s->n - 1].y += y;
  ++s->bucket[s->n - 1].n;
  return true;
}

int ts_series_thin(const ts_series *s, int most, ts_point *points) {
  int pieces = s->n < most ? s->n : most;
  for (int i = 0; i < pieces; ++i) {
    ts_point sum = {0, 0};
    double n = 0;
    for (int64_t k = (int64_t) i * s->n / pieces; k < (int64_t) (i + 1) * s->n / pieces; ++k) {
      sum.x += s->bucket[k].x;
      sum.y += s->bucket[k].y;
      n += (double) s->bucket[k].n;
    }
    points[i] = (ts_point){sum.x / n, sum.y / n};
  }
  return pieces;
}
