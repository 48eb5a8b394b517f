#include "io/plot.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/chart.h"
#include "io/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_POINTS = 1000 };

#define TRAINING "#2f6fdb"
#define VALIDATION "#d9480f"

typedef struct curve {
  int n;
  double *step, *loss; /* owned */
} curve;

typedef struct losses {
  double steps, tokens;
  curve training, smooth, validation;
} losses;

/* ---- the curves ---- */

static curve new_curve(int64_t most) {
  const size_t n = (size_t) (most > 0 ? most : 1);
  return (curve){0, ts_malloc(n * sizeof(double)), ts_malloc(n * sizeof(double))};
}

static void free_curve(curve *c) {
  ts_free(c->step);
  ts_free(c->loss);
}

/* The means of the finite losses in each of at most MOST_POINTS equal pieces. */
static curve thin_out(const ts_csv *csv, int step, int loss) {
  int64_t pieces = csv->n_rows < MOST_POINTS ? csv->n_rows : MOST_POINTS;
  curve out = new_curve(pieces);
  for (int64_t i = 0; i < pieces; ++i) {
    double steps = 0, losses = 0;
    int n = 0;
    for (int64_t r = i * csv->n_rows / pieces; r < (i + 1) * csv->n_rows / pieces; ++r) {
      const double *row = csv->values + r * csv->n_columns;
      if (fabs(row[step]) < TS_CHART_LARGEST && fabs(row[loss]) < TS_CHART_LARGEST) {
        steps += row[step];
        losses += row[loss];
        ++n;
      }
    }
    if (n > 0) {
      out.step[out.n] = steps / n;
      out.loss[out.n++] = losses / n;
    }
  }
  return out;
}

static ts_status read_curve(const char *path, curve *out, double *steps, double *tokens, ts_error *err) {
  ts_csv csv;
  if (ts_csv_read(path, &csv, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  int step = ts_csv_column(&csv, "step"), loss = ts_csv_column(&csv, "loss"), token = ts_csv_column(&csv, "tokens");
  ts_status status = TS_OK;
  if (step < 0 || loss < 0 || token < 0) {
    status = ts_error_add(err, "%s: lacks a column: step, tokens and loss are needed", path);
  } else {
    *out = thin_out(&csv, step, loss);
    if (csv.n_rows > 0) {
      *steps = csv.values[(csv.n_rows - 1) * csv.n_columns + step];
      *tokens = csv.values[(csv.n_rows - 1) * csv.n_columns + token];
    }
  }
  ts_csv_free(&csv);
  return status;
}

static curve smooth_curve(const curve *raw) {
  curve out = new_curve(raw->n);
  out.n = raw->n;
  memcpy(out.step, raw->step, (size_t) raw->n * sizeof *raw->step);
  ts_chart_smooth(raw->loss, raw->n, out.loss);
  return out;
}

static ts_status read_losses(const char *directory, losses *l, ts_error *err) {
  char *training = ts_format("%s/metrics.csv", directory), *validation = ts_format("%s/validation.csv", directory);
  double unused[2];
  ts_status status = read_curve(training, &l->training, &l->steps, &l->tokens, err);
  if (status == TS_OK && access(validation, F_OK) == 0) {
    status = read_curve(validation, &l->validation, &unused[0], &unused[1], err);
  }
  ts_free(training);
  ts_free(validation);
  return status;
}

static ts_chart_curve drawn(const curve *c, const char *name, const char *color, double width, double opacity) {
  return (ts_chart_curve){
      .name = name, .color = color, .width = width, .opacity = opacity, .n = c->n, .x = c->step, .y = c->loss};
}

static void draw_run_losses(const char *directory, const losses *l, ts_text *svg) {
  char tokens[32], *title = ts_directory_name(directory);
  char *subtitle =
      ts_format("%.0f step%s, %s tokens", l->steps, l->steps == 1 ? "" : "s", ts_human_count(l->tokens, tokens));
  ts_chart_curve curves[] = {drawn(&l->training, NULL, TRAINING, 1, 0.3),
                             drawn(&l->smooth, "training, running mean", TRAINING, 2, 1),
                             drawn(&l->validation, "validation", VALIDATION, 1.5, 1)};
  curves[0].dots = l->training.n == 1;
  curves[2].dots = true;
  const ts_chart chart = {.title = title,
                          .subtitle = subtitle,
                          .x = "step",
                          .y = "loss (nats per token)",
                          .whole = true,
                          .n = 3,
                          .curve = curves,
                          .colors = ts_chart_on_white};
  ts_chart_draw(&chart, svg);
  ts_free(subtitle);
  ts_free(title);
}

ts_status ts_plot_losses(const char *directory, ts_error *err) {
  losses l = {0};
  ts_status status = read_losses(directory, &l, err);
  if (status == TS_OK) {
    ts_text svg = {0};
    l.smooth = smooth_curve(&l.training);
    draw_run_losses(directory, &l, &svg);
    char *path = ts_format("%s/loss.svg", directory);
    status = ts_write_file(path, svg.text, svg.length, err);
    ts_free(path);
    ts_text_free(&svg);
  }
  free_curve(&l.training);
  free_curve(&l.smooth);
  free_curve(&l.validation);
  return status;
}
