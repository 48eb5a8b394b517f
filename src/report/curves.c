#include "report/curves.h"

#include "base/memory.h"
#include "io/chart.h"
#include "io/publication.h"
#include "report/assets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_POINTS = 2000, LEAST_POINTS = 50, MOST_SERIES = 6, MOST_MARKS = 400 };

#define BYTES_OF_CURVES 1.2e6
#define BYTES_OF_NUMBER 9.0

ts_curves ts_curves_make(const ts_report_run *run, int n, const ts_report_units *units, bool plain) {
  ts_curves c = {.run = run,
                 .n = n,
                 .units = units,
                 .series = ts_calloc((size_t) n, sizeof *c.series),
                 .plain = plain || ts_asset_dygraphs_js[0] == 0};
  double points = BYTES_OF_CURVES / BYTES_OF_NUMBER / (TS_N_SERIES + 4) / n;
  for (int i = 0; i < n; ++i) {
    c.series[i] = ts_series_make(&run[i], units, (int64_t) fmin(fmax(points, LEAST_POINTS), MOST_POINTS));
  }
  return c;
}

void ts_curves_clear(ts_curves *c) {
  for (int i = 0; i < c->n; ++i) {
    ts_series_clear(&c->series[i]);
  }
  ts_free(c->series);
  *c = (ts_curves){0};
}

/* ---- which there are ---- */

typedef struct curve_row {
  ts_series_name series;
  const char *text;
  bool faint;
} curve_row;

typedef struct chart_row {
  const char *id, *title, *unit;
  bool from_zero, validation, smooth; /* smooth: the running mean of the loss too */
  bool of_run;                        /* one chart a run, its series by colour */
  int n;
  curve_row curve[MOST_SERIES];
} chart_row;

static const chart_row charts[] = {
    {"loss", "Loss", "nats per token", .validation = true, .smooth = true, .n = 1,
     .curve = {{TS_SERIES_LOSS, "step", true}}},
    {"speed", "Speed", "tokens/s/device", .from_zero = true, .n = 1,
     .curve = {{TS_SERIES_SPEED, "tokens/s/device", false}}},
    {"mfu", "MFU", "% of the peak", .from_zero = true, .n = 1, .curve = {{TS_SERIES_MFU, "MFU", false}}},
    {"phases", "Where a step's time goes", "ms", .from_zero = true, .of_run = true, .n = 5,
     .curve = {{TS_SERIES_FORWARD, "forward", false},
               {TS_SERIES_BACKWARD, "backward", false},
               {TS_SERIES_UPDATE, "update", false},
               {TS_SERIES_DATA, "data", false},
               {TS_SERIES_REST, "rest", false}}},
    {"messages", "Communication", "% of a step", .from_zero = true, .n = 2,
     .curve = {{TS_SERIES_COMMUNICATION, "all", true}, {TS_SERIES_EXPOSED, "exposed", false}}},
    {"lr", "Learning rate", "", .from_zero = true, .n = 1, .curve = {{TS_SERIES_LR, "learning rate", false}}},
    {"norm", "Gradient norm", "before clipping", .n = 1, .curve = {{TS_SERIES_NORM, "gradient norm", false}}},
    {"scale", "Loss scale", "", .n = 1, .curve = {{TS_SERIES_SCALE, "loss scale", false}}},
    {"slowest", "The slowest rank", "ms busy", .from_zero = true, .n = 1,
     .curve = {{TS_SERIES_SLOWEST, "slowest rank", false}}},
    {"memory", "Most memory so far", "GB", .from_zero = true, .n = 1, .curve = {{TS_SERIES_MEMORY, "rank 0", false}}},
};

enum { N_CHARTS = sizeof charts / sizeof *charts };

/* A loss scale that never was another than 1 is none. */
static bool has_scale(const ts_curves *p, int run) {
  const ts_series *s = &p->series[run];
  for (int64_t i = 0; i < s->n; ++i) {
    if (isfinite(s->value[TS_SERIES_SCALE][i]) && s->value[TS_SERIES_SCALE][i] != 1) {
      return true;
    }
  }
  return false;
}

static bool run_has_chart(const ts_curves *p, const chart_row *chart, int run) {
  bool any = false;
  for (int i = 0; i < chart->n; ++i) {
    any = any || ts_series_has(&p->series[run], chart->curve[i].series);
  }
  return any && (chart->curve[0].series != TS_SERIES_SCALE || has_scale(p, run));
}

static bool has_chart(const ts_curves *p, const chart_row *chart) {
  bool any = false;
  for (int run = 0; run < p->n; ++run) {
    any = any || run_has_chart(p, chart, run);
  }
  return any || chart == charts; /* where there is no loss that is to be seen */
}

/* ---- data for the script ---- */

/* JSON that may stand in a script element: nothing in it ends the element. */
static void add_json_text(ts_text *to, const char *text) {
  ts_text json = {0};
  ts_text_add_json(&json, text);
  for (const char *c = json.text; *c != 0; ++c) {
    if (*c == '<' || *c == '>' || *c == '&') {
      ts_text_add(to, "\\u%04x", (unsigned) *c);
    } else {
      ts_text_append(to, c, 1);
    }
  }
  ts_text_free(&json);
}

static void add_numbers(ts_text *to, const char *key, const double *value, int64_t n, const char *format) {
  ts_text_add(to, "\"%s\":[", key);
  for (int64_t i = 0; i < n; ++i) {
    ts_text_add(to, "%s", i > 0 ? "," : "");
    ts_text_add(to, isfinite(value[i]) && fabs(value[i]) < 1e100 ? format : "null", value[i]);
  }
  ts_text_add(to, "]");
}

/* Steps with their places on the other axes, and values where there are some. */
typedef struct places {
  int64_t n;
  double *step, *tokens, *hours, *value; /* owned */
} places;

static places new_places(int64_t most) {
  const size_t n = (size_t) most + 1;
  return (places){0, ts_calloc(n, sizeof(double)), ts_calloc(n, sizeof(double)), ts_calloc(n, sizeof(double)),
                  ts_calloc(n, sizeof(double))};
}

static void free_places(places *at) {
  ts_free(at->step);
  ts_free(at->tokens);
  ts_free(at->hours);
  ts_free(at->value);
}

static void append_place(places *at, const ts_report_run *run, double step, double value) {
  at->step[at->n] = step;
  at->value[at->n] = value;
  ts_series_place(run, step, &at->tokens[at->n], &at->hours[at->n]);
  ++at->n;
}

/* And free them. */
static void print_places(places *at, const char *key, bool values, ts_text *to) {
  ts_text_add(to, ",\"%s\":{", key);
  add_numbers(to, "step", at->step, at->n, "%.12g");
  ts_text_add(to, ",");
  add_numbers(to, "tokens", at->tokens, at->n, "%.12g");
  ts_text_add(to, ",");
  add_numbers(to, "hours", at->hours, at->n, "%.6g");
  if (values) {
    ts_text_add(to, ",");
    add_numbers(to, "loss", at->value, at->n, "%.6g");
  }
  ts_text_add(to, "}");
  free_places(at);
}

static int64_t most_marks(const ts_curves *p) {
  return MOST_MARKS / p->n > 4 ? MOST_MARKS / p->n : 4;
}

/* Of many each of a piece's last. */
static places find_validations(const ts_curves *p, int index) {
  const ts_report_run *run = &p->run[index];
  const ts_csv *v = &run->validation;
  int step = ts_csv_column(v, "step"), loss = ts_csv_column(v, "loss");
  int64_t n = step >= 0 && loss >= 0 ? v->n_rows : 0, points = n < most_marks(p) ? n : most_marks(p);
  places at = new_places(points);
  for (int64_t i = 0; i < points; ++i) {
    const double *row = v->values + ((i + 1) * n / points - 1) * v->n_columns;
    append_place(&at, run, row[step], row[loss]);
  }
  return at;
}

static int ascending_steps(const void *a, const void *b) {
  const int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
  return (x > y) - (x < y);
}

/* Steps of saves: those that ended, by metrics.csv, and those that are there. The caller's. */
static int64_t *save_steps(const ts_report_run *run, int64_t *n) {
  int64_t *there, *step = ts_malloc(((size_t) run->metrics.n_rows + 1) * sizeof *step);
  *n = 0;
  for (int64_t row = 0; row < run->metrics.n_rows; ++row) {
    double at = ts_report_value(run, row, TS_METRIC_save_step);
    bool older = isnan(at) && ts_report_value(run, row, TS_METRIC_save_seconds) > 0;
    at = older ? ts_report_value(run, row, TS_METRIC_step) : at;
    if (at > 0 && at < 9e15) {
      step[(*n)++] = (int64_t) at;
    }
  }
  const int published = ts_published_steps(run->directory, &there);
  step = ts_realloc(step, (size_t) (*n + published + 1), sizeof *step);
  for (int i = 0; i < published; ++i) {
    step[(*n)++] = there[i];
  }
  ts_free(there);
  qsort(step, (size_t) *n, sizeof *step, ascending_steps);
  return step;
}

/* Of many each of a piece's last. */
static places find_saves(const ts_curves *p, int run) {
  int64_t n, *step = save_steps(&p->run[run], &n), marks = most_marks(p), last = 0;
  places at = new_places(marks);
  for (int64_t i = 0; i < n; ++i) {
    if (step[i] > last && (i + 1 == n || (i + 1) * marks / n > i * marks / n || n <= marks) && at.n < marks) {
      append_place(&at, &p->run[run], (double) step[i], 0);
      last = step[i];
    }
  }
  ts_free(step);
  return at;
}

/* The last ones. */
static places find_restarts(const ts_curves *p, int run) {
  const ts_report_run *r = &p->run[run];
  const int64_t marks = most_marks(p), first = r->n_jobs > marks ? r->n_jobs - marks : 0;
  places at = new_places(marks);
  for (int64_t j = first; j < r->n_jobs; ++j) {
    if (r->jobs[j].step > 0) {
      append_place(&at, r, (double) r->jobs[j].step, 0);
    }
  }
  return at;
}

/* Runs with the same name get their number. Owned by the caller. */
static char *label_of(const ts_curves *p, int run) {
  bool again = false;
  for (int i = 0; i < p->n; ++i) {
    again = again || (i != run && strcmp(p->run[i].name, p->run[run].name) == 0);
  }
  return again ? ts_format("%s (%d)", p->run[run].name, run + 1) : ts_strdup(p->run[run].name);
}

static void add_run_data(const ts_curves *p, int run, ts_text *to) {
  const ts_series *s = &p->series[run];
  char *label = label_of(p, run);
  ts_text_add(to, "%s{\"label\":", run > 0 ? ",\n" : "");
  add_json_text(to, label);
  ts_free(label);
  ts_text_add(to, ",");
  add_numbers(to, "step", s->step, s->n, "%.12g");
  ts_text_add(to, ",");
  add_numbers(to, "tokens", s->tokens, s->n, "%.12g");
  ts_text_add(to, ",");
  add_numbers(to, "hours", s->hours, s->n, "%.6g");
  ts_text_add(to, ",");
  add_numbers(to, "smooth", s->smooth, s->n, "%.5g");
  for (int k = 0; k < TS_N_SERIES; ++k) {
    if (ts_series_has(s, (ts_series_name) k)) {
      ts_text_add(to, ",");
      add_numbers(to, ts_series_rows[k].json, s->value[k], s->n, "%.5g");
    }
  }
  places validations = find_validations(p, run), saves = find_saves(p, run), restarts = find_restarts(p, run);
  print_places(&validations, "validation", true, to);
  print_places(&saves, "saves", false, to);
  print_places(&restarts, "restarts", false, to);
  ts_text_add(to, "}");
}

static void add_chart_data(const chart_row *chart, int run, bool first, ts_text *to) {
  ts_text_add(to, "%s{\"id\":\"%s", first ? "" : ",\n", chart->id);
  ts_text_add(to, chart->of_run ? "-%d\",\"run\":%d" : "\"", run, run);
  ts_text_add(to, ",\"unit\":\"%s\",\"zero\":%s,\"validation\":%s,\"series\":[", chart->unit,
              chart->from_zero ? "true" : "false", chart->validation ? "true" : "false");
  for (int i = 0; i < chart->n; ++i) {
    const curve_row *c = &chart->curve[i];
    ts_text_add(to, "%s{\"key\":\"%s\",\"text\":\"%s\",\"faint\":%s}", i > 0 ? "," : "", ts_series_rows[c->series].json,
                c->text, c->faint ? "true" : "false");
  }
  ts_text_add(to, "%s]}", chart->smooth ? ",{\"key\":\"smooth\",\"text\":\"running mean\",\"faint\":false}" : "");
}

void ts_curves_add_data(const ts_curves *p, ts_text *to) {
  if (p->plain) {
    return;
  }
  ts_text_add(to, "<script type=\"application/json\" id=\"data\">{\"runs\":[");
  for (int run = 0; run < p->n; ++run) {
    add_run_data(p, run, to);
  }
  ts_text_add(to, "],\n\"charts\":[");
  bool first = true;
  for (const chart_row *chart = charts; chart < charts + N_CHARTS; ++chart) {
    for (int run = 0; run < (chart->of_run ? p->n : 1); ++run) {
      if (chart->of_run ? run_has_chart(p, chart, run) : has_chart(p, chart)) {
        add_chart_data(chart, run, first, to);
        first = false;
      }
    }
  }
  ts_text_add(to, "]}</script>\n");
}

/* ---- the curves without a script ---- */

static const ts_chart_colors of_page = {"var(--ink)", "var(--soft)", "var(--grid)", "var(--paper)"};
static const char *const colors[] = {"var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)",
                                     "var(--c4)", "var(--c5)", "var(--c6)", "var(--c7)"};
enum { N_COLORS = sizeof colors / sizeof *colors };

/* A chart without a script, as it grows. */
typedef struct still {
  const ts_curves *p;
  const chart_row *chart;
  int n;
  ts_chart_curve *curve; /* owned, with the names, by curve; NULL: none */
  char **name;
  places *validation;  /* owned; by run */
  places marks, saves; /* where runs went on, and what they saved */
} still;

/* "run: what", or what alone. */
static char *curve_name(const still *s, int run, const char *what) {
  char *label = s->p->n > 1 && !s->chart->of_run ? label_of(s->p, run) : NULL;
  char *name = label != NULL ? ts_format("%s: %s", label, what) : ts_strdup(what);
  ts_free(label);
  return name;
}

static void add_still(still *s, ts_chart_curve curve, char *name) {
  s->name[s->n] = name;
  s->curve[s->n] = curve;
  s->curve[s->n++].name = name;
}

static void add_still_series(still *s, int run, const curve_row *row, const double *y, int color) {
  const ts_series *series = &s->p->series[run];
  add_still(s,
            (ts_chart_curve){.color = colors[color % N_COLORS],
                             .width = row->faint ? 1 : 2,
                             .opacity = row->faint ? 0.35 : 1,
                             .dots = series->n == 1,
                             .n = series->n,
                             .x = series->step,
                             .y = y},
            row->faint ? NULL : curve_name(s, run, row->text));
}

static void add_still_validation(still *s, int run) {
  const places *at = &s->validation[run];
  add_still(s,
            (ts_chart_curve){.color = colors[(s->p->n > 1 ? run : 1) % N_COLORS],
                             .width = 1.5,
                             .opacity = 1,
                             .dots = true,
                             .n = at->n,
                             .x = at->step,
                             .y = at->value},
            curve_name(s, run, "validation"));
}

/* Frees them. */
static void add_still_places(places *to, places *of_run) {
  for (int64_t i = 0; i < of_run->n && to->n < MOST_MARKS; ++i) {
    to->step[to->n++] = of_run->step[i];
  }
  free_places(of_run);
}

static void add_still_run(still *s, int run) {
  const chart_row *chart = s->chart;
  const ts_series *series = &s->p->series[run];
  for (int i = 0; i < chart->n; ++i) {
    add_still_series(s, run, &chart->curve[i], series->value[chart->curve[i].series], chart->of_run ? i : run);
  }
  if (chart->smooth) {
    add_still_series(s, run, &(curve_row){.text = "running mean"}, series->smooth, run);
  }
  if (chart->validation) {
    s->validation[run] = find_validations(s->p, run);
    add_still_validation(s, run);
  }
  places restarts = find_restarts(s->p, run), saves = find_saves(s->p, run);
  add_still_places(&s->marks, &restarts);
  add_still_places(&s->saves, &saves);
}

static void free_still(still *s) {
  for (int run = 0; run < s->p->n; ++run) {
    free_places(&s->validation[run]);
  }
  for (int i = 0; i < s->n; ++i) {
    ts_free(s->name[i]);
  }
  free_places(&s->marks);
  free_places(&s->saves);
  ts_free(s->validation);
  ts_free(s->name);
  ts_free(s->curve);
}

/* Of all runs, or of one. */
static void draw_still(const ts_curves *p, const chart_row *chart, int only, ts_text *to) {
  const size_t most = (size_t) p->n * (MOST_SERIES + 2);
  still s = {.p = p,
             .chart = chart,
             .curve = ts_calloc(most, sizeof *s.curve),
             .name = ts_calloc(most, sizeof *s.name),
             .validation = ts_calloc((size_t) p->n, sizeof *s.validation),
             .marks = new_places(MOST_MARKS),
             .saves = new_places(MOST_MARKS)};
  for (int run = 0; run < p->n; ++run) {
    if (only < 0 || run == only) {
      add_still_run(&s, run);
    }
  }
  const ts_chart drawn = {.x = "step",
                          .y = chart->unit,
                          .whole = true,
                          .from_zero = chart->from_zero,
                          .n = s.n,
                          .curve = s.curve,
                          .n_marks = s.marks.n,
                          .mark = s.marks.step,
                          .n_notches = s.saves.n,
                          .notch = s.saves.step,
                          .colors = of_page,
                          .tall = 0.8};
  ts_chart_draw(&drawn, to);
  free_still(&s);
}

static void add_chart(const ts_curves *p, const chart_row *chart, int run, ts_text *to) {
  ts_text_add(to, "<figure%s><figcaption>%s", chart->validation ? " class=\"wide\"" : "", chart->title);
  if (strcmp(chart->id, "mfu") == 0) {
    ts_text_add(to, " (%s)", ts_flops_rows[p->units->convention].text);
  }
  if (chart->of_run && p->n > 1) {
    ts_text_add(to, ": ");
    ts_markup_add(to, p->run[run].name);
  }
  ts_text_add(to, "</figcaption>\n");
  if (p->plain) {
    draw_still(p, chart, chart->of_run ? run : -1, to);
  } else {
    char id[64];
    snprintf(id, sizeof id, chart->of_run ? "%s-%d" : "%s", chart->id, run);
    ts_text_add(to, "<div class=\"plot\" id=\"%s\"></div><div class=\"values\" id=\"%s-values\"></div>\n", id, id);
  }
  ts_text_add(to, "</figure>\n");
}

void ts_curves_add_section(const ts_curves *p, ts_text *to) {
  ts_text_add(to, "<section><h2>Over the run</h2>\n");
  if (!p->plain) {
    ts_text_add(
        to,
        "<noscript><p class=\"warn\">Curves are drawn by a script of this page, which is switched "
        "off.</p></noscript>\n<form><label><input type=\"radio\" name=\"axis\" value=\"step\" checked=\"checked\"/> by "
        "step</label><label><input type=\"radio\" name=\"axis\" value=\"tokens\"/> by tokens</label><label>"
        "<input type=\"radio\" name=\"axis\" value=\"hours\"/> by time</label><label><input type=\"checkbox\" "
        "id=\"log\"/> loss on a logarithmic scale</label></form>\n");
  }
  ts_text_add(to, "<div class=\"charts\">\n");
  for (const chart_row *chart = charts; chart < charts + N_CHARTS; ++chart) {
    for (int run = 0; run < (chart->of_run ? p->n : 1); ++run) {
      if (chart->of_run ? run_has_chart(p, chart, run) : has_chart(p, chart)) {
        add_chart(p, chart, run, to);
      }
    }
  }
  ts_text_add(to,
              "</div>\n<p class=\"soft\">Each point is the mean of neighbouring steps.  Steps that were observed op by "
              "op are left out of times.%s</p></section>\n",
              !p->plain ? "  Ticks at the bottom are checkpoints, dashed lines restarts; drag to zoom, "
                          "double click to zoom out."
                        : "  Ticks at the bottom are checkpoints, dashed lines restarts.");
}
