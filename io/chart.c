#include "io/chart.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>
#include <utf8proc.h>

enum { WIDTH = 860, HEIGHT = 480, LEFT = 76, RIGHT = 28, TOP = 70, BARE = 18, BOTTOM = 56, NOTCH = 8, MOST_TICKS = 12 };

const ts_chart_colors ts_chart_on_white = {"#24292f", "#57606a", "#e4e7eb", "#ffffff"};

typedef struct axis {
  double low, high, tick;
  int from, to; /* pixels of low and high */
} axis;

typedef struct frame {
  const ts_chart *chart;
  int height, top;
  axis x, y;
} frame;

/* ---- the axes ---- */

static bool is_drawn(const ts_chart_curve *c, int64_t i) {
  return fabs(c->x[i]) < TS_CHART_LARGEST && fabs(c->y[i]) < TS_CHART_LARGEST;
}

static void widen_axes(const ts_chart_curve *c, frame *f) {
  for (int64_t i = 0; i < c->n; ++i) {
    if (is_drawn(c, i)) {
      f->x.low = fmin(f->x.low, c->x[i]);
      f->x.high = fmax(f->x.high, c->x[i]);
      f->y.low = fmin(f->y.low, c->y[i]);
      f->y.high = fmax(f->y.high, c->y[i]);
    }
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

static void draw_ticks(const frame *f, const axis *a, bool horizontal, ts_text *svg) {
  const char *grid = f->chart->colors.grid;
  const int low = f->height - BOTTOM;
  double first = ceil(a->low / a->tick);
  for (int i = 0; i < MOST_TICKS && (first + i) * a->tick <= a->high; ++i) {
    char label[32];
    double value = (first + i) * a->tick, at = pixel(a, value);
    print_tick(a, value, label);
    if (horizontal) {
      ts_text_add(svg, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\"/>", at, f->top, at, low, grid);
      ts_text_add(svg, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", at, low + 18, label);
    } else {
      ts_text_add(svg, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>", LEFT, at, WIDTH - RIGHT, at,
                  grid);
      ts_text_add(svg, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 8, at + 4, label);
    }
  }
}

void ts_chart_smooth(const double *y, int64_t n, double *smooth) {
  for (int64_t i = 0; i < n; ++i) {
    int64_t half = n / 60 < i ? n / 60 : i, last = i + half < n ? i + half : n - 1, numbers = 0;
    double sum = 0;
    for (int64_t j = i - half; j <= last; ++j) {
      sum += isnan(y[j]) ? 0 : y[j];
      numbers += !isnan(y[j]);
    }
    smooth[i] = numbers > 0 ? sum / (double) numbers : NAN;
  }
}

/* ---- the picture ---- */

void ts_markup_add(ts_text *to, const char *text) {
  static const char *const named[128] = {
      ['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;", ['"'] = "&quot;", ['\''] = "&#39;"};
  for (const char *c = text; *c != 0;) {
    utf8proc_int32_t code;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *) c, -1, &code);
    if (n <= 0) {
      ts_text_add(to, "\xef\xbf\xbd");
    } else if (code < 128 && named[code] != NULL) {
      ts_text_add(to, "%s", named[code]);
    } else if (code == '\n') {
      ts_text_append(to, "\n", 1);
    } else if (code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xfffe || code == 0xffff) {
      ts_text_append(to, " ", 1);
    } else {
      ts_text_append(to, c, (size_t) n);
    }
    c += n > 0 ? n : 1;
  }
}

/* A gap is where a value is not drawn: the line goes over it. */
static void draw_line(const frame *f, const ts_chart_curve *c, ts_text *svg) {
  if (c->n < 2 || c->width <= 0) {
    return;
  }
  ts_text_add(svg, "<polyline stroke=\"%s\" stroke-width=\"%g\" stroke-opacity=\"%g\" points=\"", c->color, c->width,
              c->opacity);
  for (int64_t i = 0; i < c->n; ++i) {
    if (is_drawn(c, i)) {
      ts_text_add(svg, "%.1f,%.1f ", pixel(&f->x, c->x[i]), pixel(&f->y, c->y[i]));
    }
  }
  ts_text_add(svg, "\"/>\n");
}

static void draw_dots(const frame *f, const ts_chart_curve *c, ts_text *svg) {
  for (int64_t i = 0; i < c->n; ++i) {
    if (is_drawn(c, i)) {
      ts_text_add(svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\" stroke=\"%s\"/>\n", pixel(&f->x, c->x[i]),
                  pixel(&f->y, c->y[i]), c->color, f->chart->colors.background);
    }
  }
}

/* The last value that is drawn; NAN: none is. */
static double last_of(const ts_chart_curve *c) {
  int64_t i = c->n - 1;
  while (i >= 0 && !is_drawn(c, i)) {
    --i;
  }
  return i >= 0 ? c->y[i] : NAN;
}

static bool is_named(const ts_chart_curve *c) {
  return c->name != NULL && !isnan(last_of(c));
}

/* A row a curve: its name and its last value. */
static void draw_legend(const frame *f, ts_text *svg) {
  const ts_chart *chart = f->chart;
  int rows = 0, x = WIDTH - RIGHT - 236;
  for (int i = 0; i < chart->n; ++i) {
    rows += is_named(&chart->curve[i]);
  }
  ts_text_add(svg, "<rect x=\"%d\" y=\"%d\" width=\"252\" height=\"%d\" fill=\"%s\" opacity=\"0.9\"/>\n",
              WIDTH - RIGHT - 252, f->top + 4, 20 * rows + 10, chart->colors.background);
  for (int i = 0, y = f->top + 24; i < chart->n; ++i) {
    const ts_chart_curve *c = &chart->curve[i];
    if (is_named(c)) {
      ts_text_add(svg, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2.5\"/>", x, y - 4,
                  x + 22, y - 4, c->color);
      ts_text_add(svg, "<text x=\"%d\" y=\"%d\" fill=\"%s\">", x + 30, y, chart->colors.ink);
      ts_markup_add(svg, c->name);
      ts_text_add(svg, "</text><text x=\"%d\" y=\"%d\" fill=\"%s\" text-anchor=\"end\">%.4g</text>\n",
                  WIDTH - RIGHT - 12, y, chart->colors.ink, last_of(c));
      y += 20;
    }
  }
}

static void draw_titles(const frame *f, ts_text *svg) {
  const ts_chart *chart = f->chart;
  if (chart->title != NULL) {
    ts_text_add(svg, "<text x=\"%d\" y=\"30\" font-size=\"18\" font-weight=\"600\" fill=\"%s\">", LEFT,
                chart->colors.ink);
    ts_markup_add(svg, chart->title);
    ts_text_add(svg, "</text>\n<text x=\"%d\" y=\"51\">", LEFT);
    ts_markup_add(svg, chart->subtitle != NULL ? chart->subtitle : "");
    ts_text_add(svg, "</text>\n");
  }
  ts_text_add(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (LEFT + WIDTH - RIGHT) / 2,
              f->height - 14, chart->x);
  ts_text_add(svg, "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
              (f->top + f->height - BOTTOM) / 2, chart->y);
}

static void draw_frame(const frame *f, ts_text *svg) {
  const ts_chart *chart = f->chart;
  ts_text_add(svg,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
              "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n",
              WIDTH, f->height, WIDTH, f->height);
  ts_text_add(svg, "<rect width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", WIDTH, f->height, chart->colors.background);
  ts_text_add(svg, "<g fill=\"%s\">\n", chart->colors.soft);
  draw_titles(f, svg);
  draw_ticks(f, &f->x, true, svg);
  draw_ticks(f, &f->y, false, svg);
  ts_text_add(svg, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\"/>\n</g>\n", LEFT, f->height - BOTTOM,
              WIDTH - RIGHT, f->height - BOTTOM, chart->colors.soft);
}

/* Upright lines from the bottom to y. */
static void draw_upright_lines(const frame *f, const double *at, int64_t n, int y, const char *how, ts_text *svg) {
  for (int64_t i = 0; i < n; ++i) {
    if (at[i] >= f->x.low && at[i] <= f->x.high) {
      double x = pixel(&f->x, at[i]);
      ts_text_add(svg, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"%s\"%s/>\n", x, x, y,
                  f->height - BOTTOM, f->chart->colors.soft, how);
    }
  }
}

void ts_chart_draw(const ts_chart *chart, ts_text *svg) {
  frame f = {.chart = chart, .height = (int) (HEIGHT * (chart->tall > 0 ? chart->tall : 1))};
  f.top = chart->title != NULL ? TOP : BARE;
  f.x = (axis){INFINITY, -INFINITY, 0, LEFT, WIDTH - RIGHT};
  f.y = (axis){chart->from_zero ? 0 : INFINITY, -INFINITY, 0, f.height - BOTTOM, f.top};
  for (int i = 0; i < chart->n; ++i) {
    widen_axes(&chart->curve[i], &f);
  }
  choose_ticks(&f.x, 8, 0);
  f.x.tick = chart->whole ? fmax(f.x.tick, 1) : f.x.tick;
  choose_ticks(&f.y, 6, 0.04);
  f.y.low = chart->from_zero ? 0 : f.y.low;
  draw_frame(&f, svg);
  ts_text_add(svg, "<g fill=\"none\" stroke-linejoin=\"round\">\n");
  for (int i = 0; i < chart->n; ++i) {
    draw_line(&f, &chart->curve[i], svg);
  }
  for (int i = 0; i < chart->n; ++i) {
    if (chart->curve[i].dots) {
      draw_dots(&f, &chart->curve[i], svg);
    }
  }
  draw_upright_lines(&f, chart->mark, chart->n_marks, f.top, " stroke-dasharray=\"5 4\"", svg);
  draw_upright_lines(&f, chart->notch, chart->n_notches, f.height - BOTTOM - NOTCH, "", svg);
  ts_text_add(svg, "</g>\n");
  draw_legend(&f, svg);
  ts_text_add(svg, "</svg>\n");
}
