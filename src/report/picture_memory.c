#include "base/memory.h"
#include "io/chart.h"
#include "report/picture_frame.h"
#include "report/pictures.h"

#include <math.h>
#include <string.h>

enum {
  MEMORY_HEIGHT = 300,
  MEMORY_TOP = 14,
  MEMORY_BOTTOM = 40,
  MOST_KINDS = 12,
  MOST_POINTS = 800,
  LEAST_POINTS = 60
};

typedef struct stack {
  const ts_csv *csv;
  int64_t points;                /* across, at most */
  int kinds, column[MOST_KINDS]; /* those that have bytes */
  const char *name[MOST_KINDS];
  double peak;
} stack;

static double bytes_at(const ts_csv *csv, int64_t row, int column) {
  double value = csv->values[row * csv->n_columns + column];
  return value > 0 && value < 1e18 ? value : 0;
}

/* All columns behind the first two are kinds; what changes least lies lowest, as in the file. */
static stack find_stack(const ts_csv *csv, int runs) {
  stack s = {.csv = csv, .points = MOST_POINTS / runs > LEAST_POINTS ? MOST_POINTS / runs : LEAST_POINTS};
  for (int c = 2; c < csv->n_columns && s.kinds < MOST_KINDS; ++c) {
    double most = 0;
    for (int64_t row = 0; row < csv->n_rows; ++row) {
      most = fmax(most, bytes_at(csv, row, c));
    }
    if (most > 0) {
      s.name[s.kinds] = csv->names[c];
      s.column[s.kinds++] = c;
    }
  }
  for (int64_t row = 0; row < csv->n_rows; ++row) {
    double sum = 0;
    for (int k = 0; k < s.kinds; ++k) {
      sum += bytes_at(csv, row, s.column[k]);
    }
    s.peak = fmax(s.peak, sum);
  }
  return s;
}

static double x_of(int64_t row, int64_t rows) {
  return TS_PICTURE_LEFT + (double) TS_PICTURE_DRAWN * (double) row / (double) (rows > 1 ? rows - 1 : 1);
}

static double y_of(double bytes, double peak) {
  return MEMORY_HEIGHT - MEMORY_BOTTOM - (MEMORY_HEIGHT - MEMORY_BOTTOM - MEMORY_TOP) * bytes / peak;
}

/* A kind has its colour in every run. */
static int color_of(const stack *s, int k) {
  return (s->column[k] - 2) % TS_PICTURE_COLORS;
}

/* The area of kind k on those below it. */
static void draw_kind(const stack *s, int k, ts_text *svg) {
  const int64_t rows = s->csv->n_rows, step = rows / s->points + 1;
  ts_text upper = {0}, lower = {0};
  char bytes[32];
  double most = 0;
  for (int64_t row = 0; row < rows; row += step) {
    double below = 0, mine = 0;
    int64_t most_row = row;
    for (int64_t r = row; r < row + step && r < rows; ++r) { /* of a piece the row with most in use */
      double sum = 0, best = 0;
      for (int j = 0; j < s->kinds; ++j) {
        sum += bytes_at(s->csv, r, s->column[j]);
        best += bytes_at(s->csv, most_row, s->column[j]);
      }
      most_row = sum > best ? r : most_row;
    }
    for (int j = 0; j < k; ++j) {
      below += bytes_at(s->csv, most_row, s->column[j]);
    }
    mine = bytes_at(s->csv, most_row, s->column[k]);
    most = fmax(most, mine);
    ts_text_add(&upper, "%s%.1f %.1f", upper.length > 0 ? "L" : "M", x_of(row, rows), y_of(below + mine, s->peak));
    char *point =
        ts_format("L%.1f %.1f%s", x_of(row, rows), y_of(below, s->peak), lower.text != NULL ? lower.text : "");
    ts_text_free(&lower);
    ts_text_add(&lower, "%s", point);
    ts_free(point);
  }
  ts_text_add(svg, "<path class=\"f%d\" d=\"%s%sZ\"><title>", color_of(s, k), upper.text, lower.text);
  ts_markup_add(svg, s->name[k]);
  ts_text_add(svg, ": %s at most</title></path>\n", ts_human_bytes(most, bytes));
  ts_text_free(&upper);
  ts_text_free(&lower);
}

/* Where forwards end and where the update begins. */
static void draw_phases(const ts_csv *csv, ts_text *svg) {
  static const char *const names[] = {"forward", "backward", "update"};
  const int64_t rows = csv->n_rows;
  for (int64_t row = 0, begin = 0; row <= rows; ++row) {
    double here = row < rows ? csv->values[row * csv->n_columns + 1] : NAN,
           was = csv->values[begin * csv->n_columns + 1];
    if (here == was) {
      continue;
    }
    double x = x_of(row < rows ? row : rows - 1, rows);
    if (row < rows) {
      ts_text_add(svg, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke-dasharray=\"3 3\"/>\n",
                  x, x, MEMORY_TOP, MEMORY_HEIGHT - MEMORY_BOTTOM);
    }
    if (was >= 0 && was < 3 && x - x_of(begin, rows) > 60) {
      ts_text_add(svg, "<text text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>\n", 0.5 * (x + x_of(begin, rows)),
                  MEMORY_HEIGHT - MEMORY_BOTTOM + 16, names[(int) was]);
    }
    begin = row < rows ? row : begin;
  }
}

bool ts_picture_memory(const ts_csv *memory, int runs, ts_text *svg) {
  if (memory->n_rows == 0 || memory->n_columns < 3 || strcmp(memory->names[1], "phase") != 0) {
    return false;
  }
  stack s = find_stack(memory, runs);
  if (s.kinds == 0) {
    return false;
  }
  int color[MOST_KINDS];
  char peak[32], bytes[32];
  ts_picture_begin(MEMORY_HEIGHT, "memory by kind over the instructions of a step", svg);
  for (int k = 0; k < s.kinds; ++k) {
    color[k] = color_of(&s, k);
    draw_kind(&s, k, svg);
  }
  for (int i = 0; i <= 4; ++i) {
    double part = i / 4.0;
    ts_text_add(svg,
                "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text text-anchor=\"end\" x=\"%d\" "
                "y=\"%.1f\">%s</text>\n",
                TS_PICTURE_LEFT, TS_PICTURE_WIDTH - TS_PICTURE_RIGHT, y_of(part * s.peak, s.peak),
                y_of(part * s.peak, s.peak), TS_PICTURE_LEFT - 6, y_of(part * s.peak, s.peak) + 4,
                ts_human_bytes(part * s.peak, bytes));
  }
  draw_phases(memory, svg);
  ts_text_add(svg,
              "<text text-anchor=\"middle\" x=\"%d\" y=\"%d\">instructions of a step, in their order</text>\n</svg>\n",
              TS_PICTURE_LEFT + TS_PICTURE_DRAWN / 2, MEMORY_HEIGHT - 6);
  ts_picture_key(s.name, s.kinds, color, svg);
  ts_text_add(svg, "<p>The most in use at once is %s: the planned peak of the rank that needs most.</p>\n",
              ts_human_bytes(s.peak, peak));
  return true;
}
