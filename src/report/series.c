#include "report/series.h"

#include "base/memory.h"
#include "io/chart.h"

#include <math.h>

const ts_series_row ts_series_rows[TS_N_SERIES] = {
#define X(name, json, text, timed) [TS_SERIES_##name] = {json, text, timed},
    TS_SERIES(X)
#undef X
};

static double rest_of_step(const ts_report_run *run, int64_t row) {
  static const ts_metric parts[] = {TS_METRIC_data_seconds, TS_METRIC_forward_seconds, TS_METRIC_backward_seconds,
                                    TS_METRIC_update_seconds};
  double rest = ts_report_value(run, row, TS_METRIC_step_seconds);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    rest -= ts_report_value(run, row, parts[i]);
  }
  return fmax(rest, 0);
}

/* How a series is made of a column of metrics.csv: times a factor, or as a share of a step. */
typedef struct source {
  ts_metric metric;
  double factor;
  bool of_step;
} source;

static const source sources[TS_N_SERIES] = {
    [TS_SERIES_LOSS] = {TS_METRIC_loss, 1, false},
    [TS_SERIES_LR] = {TS_METRIC_lr, 1, false},
    [TS_SERIES_NORM] = {TS_METRIC_grad_norm, 1, false},
    [TS_SERIES_SCALE] = {TS_METRIC_loss_scale, 1, false},
    [TS_SERIES_STEP] = {TS_METRIC_step_seconds, 1e3, false},
    [TS_SERIES_DATA] = {TS_METRIC_data_seconds, 1e3, false},
    [TS_SERIES_FORWARD] = {TS_METRIC_forward_seconds, 1e3, false},
    [TS_SERIES_BACKWARD] = {TS_METRIC_backward_seconds, 1e3, false},
    [TS_SERIES_UPDATE] = {TS_METRIC_update_seconds, 1e3, false},
    [TS_SERIES_COMMUNICATION] = {TS_METRIC_comm_seconds, 100, true},
    [TS_SERIES_EXPOSED] = {TS_METRIC_exposed_comm_seconds, 100, true},
    [TS_SERIES_MEMORY] = {TS_METRIC_peak_bytes, 1e-9, false},
};

static double series_value(const ts_report_run *run, const ts_report_units *units, int64_t row, ts_series_name name) {
  switch (name) {
    case TS_SERIES_SPEED: return ts_report_tokens_per_device(run, row);
    case TS_SERIES_MFU: return 100 * ts_report_mfu(run, row, units->convention, units->peak);
    case TS_SERIES_SLOWEST: return 1e3 * ts_report_slowest_seconds(run, row);
    case TS_SERIES_REST: return 1e3 * rest_of_step(run, row);
    default: break;
  }
  double value = sources[name].factor * ts_report_value(run, row, sources[name].metric);
  return sources[name].of_step ? value / ts_report_value(run, row, TS_METRIC_step_seconds) : value;
}

/* The mean of a piece; of rates, which are of equal work, over the time: the harmonic one. */
static double mean_of_piece(const ts_report_run *run, const ts_report_units *units, ts_series_name name, int64_t begin,
                            int64_t end) {
  const bool rate = name == TS_SERIES_SPEED || name == TS_SERIES_MFU;
  double sum = 0;
  int64_t n = 0;
  for (int64_t row = begin; row < end; ++row) {
    bool counts = !ts_series_rows[name].timed || !(ts_report_value(run, row, TS_METRIC_observed) > 0);
    double value = counts ? series_value(run, units, row, name) : NAN;
    if (fabs(value) < TS_CHART_LARGEST && (!rate || value > 0)) {
      sum += rate ? 1 / value : value;
      ++n;
    }
  }
  return n == 0 ? NAN : rate ? (double) n / sum : sum / (double) n;
}

ts_series ts_series_make(const ts_report_run *run, const ts_report_units *units, int64_t points) {
  const int64_t rows = run->metrics.n_rows;
  ts_series s = {.n = rows < points ? rows : points};
  double **all[] = {&s.step, &s.tokens, &s.hours, &s.smooth};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    *all[i] = ts_calloc((size_t) s.n + 1, sizeof **all[i]);
  }
  for (int k = 0; k < TS_N_SERIES; ++k) {
    s.value[k] = ts_calloc((size_t) s.n + 1, sizeof *s.value[k]);
  }
  for (int64_t i = 0; i < s.n; ++i) {
    const int64_t begin = i * rows / s.n, end = (i + 1) * rows / s.n;
    s.step[i] = ts_report_value(run, end - 1, TS_METRIC_step);
    s.tokens[i] = ts_report_value(run, end - 1, TS_METRIC_tokens);
    s.hours[i] = run->elapsed[end - 1] / 3600;
    for (int k = 0; k < TS_N_SERIES; ++k) {
      s.value[k][i] = mean_of_piece(run, units, (ts_series_name) k, begin, end);
    }
  }
  ts_chart_smooth(s.value[TS_SERIES_LOSS], s.n, s.smooth);
  return s;
}

void ts_series_clear(ts_series *s) {
  ts_free(s->step);
  ts_free(s->tokens);
  ts_free(s->hours);
  ts_free(s->smooth);
  for (int k = 0; k < TS_N_SERIES; ++k) {
    ts_free(s->value[k]);
  }
  *s = (ts_series){0};
}

bool ts_series_has(const ts_series *s, ts_series_name name) {
  for (int64_t i = 0; i < s->n; ++i) {
    if (isfinite(s->value[name][i]) && s->value[name][i] != 0) {
      return true;
    }
  }
  return false;
}

void ts_series_place(const ts_report_run *run, double step, double *tokens, double *hours) {
  int64_t low = 0, high = run->metrics.n_rows; /* rows ascend by their step */
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (ts_report_value(run, middle, TS_METRIC_step) <= step) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  *tokens = low > 0 ? ts_report_value(run, low - 1, TS_METRIC_tokens) : NAN;
  *hours = low > 0 ? run->elapsed[low - 1] / 3600 : NAN;
}
