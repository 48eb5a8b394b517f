#include "io/mixture.h"

#include "base/memory.h"
#include "base/status.h"

#include <math.h>

struct ts_mixture {
  int n;
  int32_t *count;                     /* [n]; owned */
  uint16_t source[TS_MIXTURE_PERIOD]; /* of each position of a period */
  int32_t before[TS_MIXTURE_PERIOD];  /* how many before it in the period are of the same source */
};

/* What a weight is worth beyond the one position that every source has; the largest weight is 1 here, so that no sum
 * overflows. */
static double *weigh_excess(const double *weights, int n, double *sum) {
  double *excess = ts_malloc((size_t) n * sizeof *excess), most = 0, all = 0;
  for (int i = 0; i < n; ++i) {
    most = fmax(most, weights[i]);
  }
  for (int i = 0; i < n; ++i) {
    all += weights[i] / most;
  }
  *sum = 0;
  for (int i = 0; i < n; ++i) {
    excess[i] = fmax(weights[i] / most / all * TS_MIXTURE_PERIOD - 1, 0);
    *sum += excess[i];
  }
  return excess;
}

static void count_positions(ts_mixture *m, const double *weights) {
  double sum, *rest = weigh_excess(weights, m->n, &sum);
  int32_t left = TS_MIXTURE_PERIOD - m->n, spread = left;
  for (int i = 0; i < m->n; ++i) {
    double part = sum > 0 ? rest[i] / sum * spread : 0;
    m->count[i] = 1 + (int32_t) floor(part);
    rest[i] = part - floor(part);
    left -= m->count[i] - 1;
  }
  for (; left > 0; --left) {
    int most = 0;
    for (int i = 1; i < m->n; ++i) {
      most = rest[i] > rest[most] ? i : most;
    }
    ++m->count[most];
    rest[most] -= 1;
  }
  ts_free(rest);
}

/* Among those that have positions left the one with the most of its part outstanding. */
static int furthest_behind(const ts_mixture *m, const int32_t *dealt, int64_t position) {
  int furthest = -1;
  int64_t most = 0;
  for (int i = 0; i < m->n; ++i) {
    int64_t behind = m->count[i] * (position + 1) - (int64_t) dealt[i] * TS_MIXTURE_PERIOD;
    if (dealt[i] < m->count[i] && (furthest < 0 || behind > most)) {
      furthest = i;
      most = behind;
    }
  }
  return furthest;
}

ts_mixture *ts_mixture_create(const double *weights, int n) {
  TS_ASSERT(n > 0 && n <= TS_MIXTURE_PERIOD);
  ts_mixture *m = ts_calloc(1, sizeof *m);
  m->n = n;
  m->count = ts_calloc((size_t) n, sizeof *m->count);
  count_positions(m, weights);
  int32_t *dealt = ts_calloc((size_t) n, sizeof *dealt);
  for (int i = 0; i < TS_MIXTURE_PERIOD; ++i) {
    int source = furthest_behind(m, dealt, i);
    m->source[i] = (uint16_t) source;
    m->before[i] = dealt[source]++;
  }
  ts_free(dealt);
  return m;
}

int64_t ts_mixture_count(const ts_mixture *mixture, int source) {
  return mixture->count[source];
}

int ts_mixture_at(const ts_mixture *mixture, int64_t position, int64_t *sample) {
  int64_t period = position / TS_MIXTURE_PERIOD, at = position % TS_MIXTURE_PERIOD;
  int source = mixture->source[at];
  *sample = period * mixture->count[source] + mixture->before[at];
  return source;
}

void ts_mixture_destroy(ts_mixture **mixture) {
  if (*mixture != NULL) {
    ts_free((*mixture)->count);
    ts_free(*mixture);
    *mixture = NULL;
  }
}
