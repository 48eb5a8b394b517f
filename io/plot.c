#include "io/plot.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 860, HEIGHT = 480, LEFT = 76, RIGHT = 28, TOP = 70, BOTTOM = 56, MOST_POINTS = 1000, MOST_TICKS = 12 };

#define INK "#24292f"
#define SOFT "#57606a"
#define TRAINING "#2f6fdb"
#define VALIDATION "#d9480f"
#define GRID "stroke=\"#e4e7eb\""
#define LARGEST 1e100 /* beyond this a loss is drawn as little as infinity */

typedef struct point {
  double step, loss;
} point;

typedef struct curve {
  int n;
  point *points; /* owned */
} curve;

typedef struct axis {
  double low, high, tick;
  int from, to; /* pixels of low and high */
} axis;

typedef struct chart {
  char *title; /* owned */
  double steps, tokens;
  curve training, smooth, validation;
  axis x, y;
} chart;

/* ---- the curves ---- */

/* The means of the finite losses in each of at most MOST_POINTS equal pieces. */
static curve thin_out(const ts_csv *csv, int step, int loss) {
  int64_t pieces = csv->n_rows < MOST_POINTS ? csv->n_rows : MOST_POINTS;
  curve out = {0, ts_malloc((size_t) pieces * sizeof *out.points)};
  for (int64_t i = 0; i < pieces; ++i) {
    point sum = {0, 0};
    int n = 0;
    for (int64_t r = i * csv->n_rows / pieces; r < (i + 1) * csv->n_rows / pieces; ++r) {
      const double *row = csv->values + r * csv->n_columns;
      if (fabs(row[step]) < LARGEST && fabs(row[loss]) < LARGEST) {
        sum = (point){sum.step + row[step], sum.loss + row[loss]};
        ++n;
      }
    }
    if (n > 0) {
      out.points[out.n++] = (point){sum.step / n, sum.loss / n};
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

/* Running mean over a thirtieth of the curve, centred, so that it does not lag behind a steep start. */
static curve smooth_curve(const curve *raw) {
  curve out = {raw->n, ts_malloc((size_t) raw->n * sizeof *out.points)};
  for (int i = 0; i < raw->n; ++i) {
    int half = raw->n / 60 < i ? raw->n / 60 : i, last = i + half < raw->n - 1 ? i + half : raw->n - 1;
    double sum = 0;
    for (int j = i - half; j <= last; ++j) {
      sum += raw->points[j].loss;
    }
    out.points[i] = (point){raw->points[i].step, sum / (last - i + half + 1)};
  }
  return out;
}

/* ---- the axes ---- */

static void widen_axes(const curve *c, chart *chart) {
  for (int i = 0; i < c->n; ++i) {
    chart->x.low = fmin(chart->x.low, c->points[i].step);
    chart->x.high = fmax(chart->x.high, c->points[i].step);
    chart->y.low = fmin(chart->y.low, c->points[i].loss);
    chart->y.high = fmax(chart->y.high, c->points[i].loss);
  }
}

/* Room around the values, and ticks at 1, 2 or 5 times a power of ten. */
static void choose_ticks(axis *a, int ticks, double room) {
  if (!(a->low <= a->high)) {
    a->low = 0;
    a->high = 1;
  }
  double span = a->high - a->low;
  if (!(span > 1e-9 * fmax(fabs(a->low), fabs(a->high)))) {
    span = fmax(1, fabs(a->high));
    a->low -= span / 2;
    a->high += span / 2;
  }
  a->low -= room * span;
  a->high += room * span;
  double power = pow(10, floor(log10(span / ticks))), part = span / ticks / power;
  a->tick = (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10) * power;
}

static double pixel(const axis *a, double value) {
  return a->from + (value - a->low) / (a->high - a->low) * (a->to - a->from);
}

static char *print_tick(const axis *a, double value, char *out) {
  int decimals = a->tick < 1 ? (int) ceil(-log10(a->tick) - 1e-9) : 0;
  if (fabs(value) >= 1e6 || decimals > 6) {
    snprintf(out, 32, "%.6g", value);
  } else {
    snprintf(out, 32, "%.*f", decimals, value + 0.0); /* + 0: no "-0" */
  }
  return out;
}

static void draw_ticks(const axis *a, bool horizontal, ts_text *svg) {
  double first = ceil(a->low / a->tick);
  for (int i = 0; i < MOST_TICKS && (first + i) * a->tick <= a->high; ++i) {
    char label[32];
    double value = (first + i) * a->tick, at = pixel(a, value);
    print_tick(a, value, label);
    if (horizontal) {
      ts_text_add(svg, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" " GRID "/>", at, TOP, at, HEIGHT - BOTTOM);
      ts_text_add(svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", at, HEIGHT - BOTTOM + 18, label);
    } else {
      ts_text_add(svg, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" " GRID "/>", LEFT, at, WIDTH - RIGHT, at);
      ts_text_add(svg, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 8, at + 4, label);
    }
  }
}

/* ---- the picture ---- */

static void add_escaped(ts_text *svg, const char *text) {
  for (const char *c = text; *c != 0; ++c) {
    if (*c == '<' || *c == '&' || (unsigned char) *c < 0x20) {
      ts_text_add(svg, "%s", *c == '<' ? "&lt;" : *c == '&' ? "&amp;" : " ");
    } else {
      ts_text_append(svg, c, 1);
    }
  }
}

static void draw_line(const chart *chart, const curve *c, const char *style, ts_text *svg) {
  if (c->n > 1) {
    ts_text_add(svg, "<polyline %s points=\"", style);
    for (int i = 0; i < c->n; ++i) {
      ts_text_add(svg, "%.1f,%.1f ", pixel(&chart->x, c->points[i].step), pixel(&chart->y, c->points[i].loss));
    }
    ts_text_add(svg, "\"/>\n");
  }
}

static void draw_dots(const chart *chart, const curve *c, const char *color, ts_text *svg) {
  for (int i = 0; i < c->n; ++i) {
    ts_text_add(svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\" stroke=\"#ffffff\"/>\n",
                pixel(&chart->x, c->points[i].step), pixel(&chart->y, c->points[i].loss), color);
  }
}

/* One row: the curve's name and its last value. */
static void draw_legend(int y, const char *color, const char *name, const curve *c, ts_text *svg) {
  int x = WIDTH - RIGHT - 236;
  if (c->n > 0) {
    ts_text_add(svg, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2.5\"/>", x, y - 4,
                x + 22, y - 4, color);
    ts_text_add(svg, "<text x=\"%d\" y=\"%d\" fill=\"" INK "\">%s</text>", x + 30, y, name);
    ts_text_add(svg, "<text x=\"%d\" y=\"%d\" fill=\"" INK "\" text-anchor=\"end\">%.4g</text>\n", WIDTH - RIGHT - 12,
                y, c->points[c->n - 1].loss);
  }
}

static void draw_title(const chart *chart, ts_text *svg) {
  char tokens[32];
  ts_text_add(svg, "<text x=\"%d\" y=\"30\" font-size=\"18\" font-weight=\"600\" fill=\"" INK "\">", LEFT);
  add_escaped(svg, chart->title);
  ts_text_add(svg, "</text>\n<text x=\"%d\" y=\"51\" fill=\"" SOFT "\">%.0f step%s, %s tokens</text>\n", LEFT,
              chart->steps, chart->steps == 1 ? "" : "s", ts_human_count(chart->tokens, tokens));
  ts_text_add(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"" SOFT "\">step</text>\n",
              (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
  ts_text_add(svg,
              "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\" fill=\"" SOFT "\">"
              "loss (nats per token)</text>\n",
              (TOP + HEIGHT - BOTTOM) / 2);
}

static void draw_chart(const chart *chart, ts_text *svg) {
  ts_text_add(svg,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
              "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n",
              WIDTH, HEIGHT, WIDTH, HEIGHT);
  ts_text_add(svg, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", WIDTH, HEIGHT);
  draw_title(chart, svg);
  ts_text_add(svg, "<g fill=\"" SOFT "\">\n");
  draw_ticks(&chart->x, true, svg);
  draw_ticks(&chart->y, false, svg);
  ts_text_add(svg, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"" SOFT "\"/>\n", LEFT, HEIGHT - BOTTOM,
              WIDTH - RIGHT, HEIGHT - BOTTOM);
  ts_text_add(svg, "</g>\n<g fill=\"none\" stroke-linejoin=\"round\">\n");
  draw_line(chart, &chart->training, "stroke=\"" TRAINING "\" stroke-opacity=\"0.3\"", svg);
  draw_line(chart, &chart->smooth, "stroke=\"" TRAINING "\" stroke-width=\"2\"", svg);
  draw_line(chart, &chart->validation, "stroke=\"" VALIDATION "\" stroke-width=\"1.5\"", svg);
  draw_dots(chart, &chart->validation, VALIDATION, svg);
  if (chart->training.n == 1) {
    draw_dots(chart, &chart->training, TRAINING, svg);
  }
  ts_text_add(svg, "</g>\n<rect x=\"%d\" y=\"%d\" width=\"252\" height=\"50\" fill=\"#ffffff\" opacity=\"0.9\"/>\n",
              WIDTH - RIGHT - 252, TOP + 4);
  draw_legend(TOP + 24, TRAINING, "training, running mean", &chart->smooth, svg);
  draw_legend(TOP + 44, VALIDATION, "validation", &chart->validation, svg);
  ts_text_add(svg, "</svg>\n");
}

/* The last part of the directory's real path, so that "." has a name too. */
static char *directory_name(const char *directory) {
  char *real = realpath(directory, NULL);
  const char *path = real != NULL ? real : directory, *slash = strrchr(path, '/');
  char *name = ts_strdup(slash != NULL && slash[1] != 0 ? slash + 1 : path);
  free(real);
  return name;
}

static ts_status read_chart(const char *directory, chart *chart, ts_error *err) {
  char *training = ts_format("%s/metrics.csv", directory), *validation = ts_format("%s/validation.csv", directory);
  double unused[2];
  ts_status status = read_curve(training, &chart->training, &chart->steps, &chart->tokens, err);
  if (status == TS_OK && access(validation, F_OK) == 0) {
    status = read_curve(validation, &chart->validation, &unused[0], &unused[1], err);
  }
  ts_free(training);
  ts_free(validation);
  return status;
}

ts_status ts_plot_losses(const char *directory, ts_error *err) {
  chart chart = {.x = {INFINITY, -INFINITY, 0, LEFT, WIDTH - RIGHT},
                 .y = {INFINITY, -INFINITY, 0, HEIGHT - BOTTOM, TOP}};
  ts_status status = read_chart(directory, &chart, err);
  if (status == TS_OK) {
    chart.title = directory_name(directory);
    chart.smooth = smooth_curve(&chart.training);
    widen_axes(&chart.training, &chart);
    widen_axes(&chart.validation, &chart);
    choose_ticks(&chart.x, 8, 0);
    chart.x.tick = fmax(chart.x.tick, 1);
    choose_ticks(&chart.y, 6, 0.04);
    ts_text svg = {0};
    draw_chart(&chart, &svg);
    char *path = ts_format("%s/loss.svg", directory);
    status = ts_write_file(path, svg.text, svg.length, err);
    ts_free(path);
    ts_text_free(&svg);
  }
  ts_free(chart.title);
  ts_free(chart.training.points);
  ts_free(chart.smooth.points);
  ts_free(chart.validation.points);
  return status;
}
