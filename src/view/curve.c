#include "view/curve.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

enum { AXIS = 9 }; /* columns of its numbers and its line */

typedef struct canvas {
  int width, height;     /* cells */
  int across, down;      /* dots of a cell */
  double left, right;    /* x of the first and last column of dots */
  double low, high;      /* y of the lowest and highest line of dots */
  bool cut;              /* the curve goes higher */
  unsigned char *dots;   /* owned: a bit a dot, column by column */
  unsigned char *marked; /* owned: cells of marks */
} canvas;

int ts_curve_points(const ts_curve *curve, int width) {
  int cells = width > AXIS ? width - AXIS : 1;
  return curve->utf8 ? 2 * cells : cells;
}

/* ---- axes ---- */

static double highest(const ts_curve *c, int first) {
  double high = -INFINITY;
  for (int i = first; i < c->n; ++i) {
    high = fmax(high, c->point[i].y);
  }
  return high;
}

static void find_range(const ts_curve *c, canvas *to) {
  to->left = c->n > 0 ? c->point[0].x : 0;
  to->right = c->n > 0 ? c->point[c->n - 1].x : 1;
  to->low = INFINITY;
  for (int i = 0; i < c->n; ++i) {
    to->low = fmin(to->low, c->point[i].y);
  }
  to->high = highest(c, 0);
  double rest = highest(c, (c->n + 9) / 10);
  if (c->n >= 20 && to->high - to->low > 2 * (rest - to->low) && rest > to->low) {
    to->high = rest;
    to->cut = true;
  }
  for (int i = 0; i < c->n_marks; ++i) {
    to->low = fmin(to->low, c->mark[i].y);
    to->high = to->cut ? to->high : fmax(to->high, c->mark[i].y);
  }
  if (!(to->low <= to->high)) {
    to->low = 0;
    to->high = 1;
  }
  double least = 1e-6 * fmax(fabs(to->low), fabs(to->high));
  if (!(to->high - to->low > least)) {
    double room = least > 0 ? 1e5 * least : 1;
    to->low -= room;
    to->high += room;
  }
}

/* The dot of `most` + 1 that a part of the way lies at. */
static int nearest_dot(double value, double from, double to, int most) {
  double part = to > from ? (value - from) / (to - from) : 0;
  return (int) lround(fmin(fmax(part, 0), 1) * most);
}

/* ---- dots ---- */

static void set_dot(canvas *c, int x, int y) {
  int cell = (c->height - 1 - y / c->down) * c->width + x / c->across;
  c->dots[cell] |= (unsigned char) (1 << (x % c->across * c->down + y % c->down));
}

/* From one point to the next: in each column of dots the nearest one, and those up to the next column's. */
static void draw_segment(canvas *c, int x0, int y0, int x1, int y1) {
  double slope = x1 > x0 ? (double) (y1 - y0) / (x1 - x0) : 0;
  int least = y0 < y1 ? y0 : y1, most = y0 < y1 ? y1 : y0;
  for (int x = x0; x <= x1; ++x) {
    double here = y0 + slope * (x - x0), half = x1 > x0 ? fabs(slope) / 2 : most - least;
    set_dot(c, x, (int) lround(here));
    for (int y = (int) ceil(fmax(here - half, least)); y < here + half && y <= most; ++y) {
      set_dot(c, x, y);
    }
  }
  set_dot(c, x1, y1);
}

/* What is above the cut is not drawn, but the line that comes down from there is. */
static void draw_points(const ts_curve *curve, canvas *c) {
  int right = c->width * c->across - 1, top = c->height * c->down - 1, x0 = 0, y0 = 0;
  bool above = false;
  for (int i = 0; i < curve->n; ++i) {
    int x = nearest_dot(curve->point[i].x, c->left, c->right, right),
        y = nearest_dot(curve->point[i].y, c->low, c->high, top);
    bool joined = i > 0 && x >= x0, was_above = above;
    above = curve->point[i].y > c->high;
    if (joined && !(above && was_above)) {
      draw_segment(c, x0, y0, x, y);
    } else if (!joined && !above) {
      set_dot(c, x, y);
    }
    x0 = x;
    y0 = y;
  }
}

static void draw_marks(const ts_curve *curve, canvas *c) {
  int right = c->width * c->across - 1, top = c->height * c->down - 1;
  for (int i = 0; i < curve->n_marks; ++i) {
    int x = nearest_dot(curve->mark[i].x, c->left, c->right, right),
        y = nearest_dot(curve->mark[i].y, c->low, c->high, top);
    if (curve->mark[i].y <= c->high) {
      c->marked[(c->height - 1 - y / c->down) * c->width + x / c->across] = 1;
    }
  }
}

/* ---- characters ---- */

/* Dots are numbered from below, column by column; braille's bits are another order. */
static void add_braille(unsigned dots, ts_text *to) {
  static const unsigned bits[8] = {0x40, 0x04, 0x02, 0x01, 0x80, 0x20, 0x10, 0x08};
  unsigned pattern = 0;
  for (int i = 0; i < 8; ++i) {
    pattern |= (dots >> i & 1) != 0 ? bits[i] : 0;
  }
  const char utf8[] = {(char) 0xe2, (char) (0xa0 | pattern >> 6), (char) (0x80 | (pattern & 0x3f))};
  ts_text_append(to, utf8, 3);
}

static void add_cell(const canvas *c, int cell, bool utf8, ts_text *to) {
  unsigned dots = c->dots[cell];
  if (c->marked[cell]) {
    ts_text_add(to, "o");
  } else if (dots == 0) {
    ts_text_add(to, " ");
  } else if (utf8) {
    add_braille(dots, to);
  } else {
    ts_text_append(to, &" .':"[dots & 3], 1);
  }
}

static void add_axis(const ts_curve *curve, const canvas *c, int row, ts_text *to) {
  char number[32] = "", label[40] = "";
  if (row == 0 || row == c->height - 1) {
    curve->label(row == 0 ? c->high : c->low, number);
    snprintf(label, sizeof label, "%s%s", row == 0 && c->cut ? ">" : "", number);
  }
  ts_text_add(to, "%7.7s %s", label, curve->utf8 ? label[0] != 0 ? "\u2524" : "\u2502" : "|");
}

void ts_curve_draw(const ts_curve *curve, int width, int height, ts_text *line) {
  canvas c = {.width = width > AXIS ? width - AXIS : 1, .height = height};
  c.across = curve->utf8 ? 2 : 1;
  c.down = curve->utf8 ? 4 : 2;
  find_range(curve, &c);
  c.dots = ts_calloc((size_t) (c.width * c.height), 1);
  c.marked = ts_calloc((size_t) (c.width * c.height), 1);
  draw_points(curve, &c);
  draw_marks(curve, &c);
  for (int row = 0; row < height; ++row) {
    int last = c.width; /* blanks at the end are not sent */
    while (last > 0 && c.dots[row * c.width + last - 1] == 0 && !c.marked[row * c.width + last - 1]) {
      --last;
    }
    add_axis(curve, &c, row, &line[row]);
    for (int i = 0; i < last; ++i) {
      add_cell(&c, row * c.width + i, curve->utf8, &line[row]);
    }
  }
  ts_free(c.dots);
  ts_free(c.marked);
}
