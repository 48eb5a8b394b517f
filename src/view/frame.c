/* The sections of a frame, and which of them there is room for. */
#include "view/frame.h"

#include "base/memory.h"
#include "view/clean.h"
#include "view/curve.h"
#include "view/pen.h"

#include <math.h>
#include <string.h>

enum { REASON_LINES = 5 };

/* What a section draws with. */
typedef struct view {
  const ts_run_feed *feed;
  ts_pen pen;
} view;

/* ---- numbers ---- */

static const char *or_number(double value, const char *format, char out[32]) {
  snprintf(out, 32, isfinite(value) ? format : "%f", ts_shown(value));
  return out;
}

static char *label_loss(double value, char *out) {
  snprintf(out, 32, "%.4g", value);
  return out;
}

/* ---- the head ---- */

static const char *state_word(const ts_run_summary *m) {
  static const char *const words[] = {"starting", "running", "suspended", "no heartbeat",
                                      "finished", "stopped", "failed"};
  return words[m->state];
}

static ts_style state_style(const ts_run_summary *m) {
  bool bad = m->state == TS_RUN_FAILED || m->state == TS_RUN_SILENT || m->state == TS_RUN_SUSPENDED;
  return bad ? TS_BAD : TS_GOOD;
}

/* Of a name that is too long the end says more. */
static const char *last_part(const char *name, int columns, bool utf8) {
  const char *slash;
  while (ts_view_columns(name, utf8) > columns && (slash = strchr(name, '/')) != NULL && slash[1] != 0) {
    name = slash + 1;
  }
  return name;
}

static void draw_name(view *v, int rows) {
  (void) rows;
  const ts_run_summary *m = &v->feed->summary;
  const ts_job_status *j = &m->status.job;
  const ts_look *look = v->pen.look;
  const char *word = state_word(m);
  char ran[32];
  int room = look->width - (int) strlen(word) - 2;
  ts_text name = {0};
  ts_pen_line(&v->pen);
  if (room >= 4) {
    ts_view_clean(last_part(v->feed->run, room, look->utf8), room, look->utf8, &name);
    ts_pen_put(&v->pen, TS_BOLD, name.text != NULL ? name.text : "");
  }
  ts_pen_field(&v->pen, state_style(m), "%s", word);
  ts_text_free(&name);
  ts_pen_field(&v->pen, TS_PLAIN, "%lld rank%s on %lld node%s", (long long) j->ranks, j->ranks == 1 ? "" : "s",
               (long long) j->nodes, j->nodes == 1 ? "" : "s");
  if (strcmp(j->job, "-") != 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "job %s", j->job);
  }
  if (j->restart > 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "restart %lld", (long long) j->restart);
  }
  if (j->ended > j->began) {
    ts_pen_field(&v->pen, TS_PLAIN, "ran for %s", ts_human_seconds(j->ended - j->began, ran));
  }
}

/* What a state means, where a word is not enough: as many lines as it takes. */
static int reason_lines(const view *v) {
  const ts_run_summary *m = &v->feed->summary;
  if (state_style(m) != TS_BAD) {
    return 0;
  }
  char *text = ts_run_summary_describe(m);
  int columns = ts_view_columns(text, v->pen.look->utf8), width = v->pen.look->width;
  ts_free(text);
  int lines = (columns + width - 1) / width;
  return lines < REASON_LINES ? lines : REASON_LINES;
}

/* The text goes on in the next line at a column, not at a word: a name that is copied stays in one piece. */
static void draw_reason(view *v, int rows) {
  char *text = ts_run_summary_describe(&v->feed->summary), *rest = text;
  for (int i = 0; i < rows && ts_pen_line(&v->pen); ++i) {
    size_t n = i + 1 < rows ? ts_view_fit(rest, v->pen.look->width, v->pen.look->utf8) : strlen(rest);
    char *piece = ts_format("%.*s", (int) n, rest);
    ts_pen_put(&v->pen, TS_BAD, piece);
    ts_free(piece);
    rest += n;
  }
  ts_free(text);
}

/* ---- progress ---- */

static void fill_cells(ts_text *to, int cells, double part, bool utf8) {
  static const char *const eighths[] = {"\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589", "\u2588"};
  int done = (int) (part * cells * 8 + 1e-9); /* in eighths of a cell */
  for (int i = 0; i < cells; ++i) {
    int here = done - 8 * i;
    const char *blank = utf8 ? "\u00b7" : "-";
    ts_text_add(to, "%s", !utf8 ? here >= 8 ? "#" : blank : here <= 0 ? blank : eighths[here >= 8 ? 7 : here - 1]);
  }
}

static void draw_progress(view *v, int rows) {
  (void) rows;
  int64_t done = ts_run_feed_step(v->feed), all = v->feed->summary.status.job.steps;
  double part = all > 0 ? fmin(fmax((double) done / (double) all, 0), 1) : 1, left = ts_run_feed_time_left(v->feed);
  char steps[80], to_go[48] = "", time[32];
  ts_pen_line(&v->pen);
  int width = v->pen.look->width;
  const char *format = width >= 44 ? "%.0f %%  step %lld of %lld" : width >= 30 ? "%.0f %%  %lld/%lld" : "%.0f %%";
  snprintf(steps, sizeof steps, format, floor(100 * part), (long long) done, (long long) all);
  if (!ts_run_feed_is_over(v->feed) && left > 0 && width >= 48) {
    snprintf(to_go, sizeof to_go, "  %s to go", ts_human_seconds(left, time));
  }
  int cells = width - (int) strlen(steps) - (int) strlen(to_go) - 3;
  if (cells >= 6) {
    ts_text bar = {0};
    ts_text_add(&bar, "[");
    fill_cells(&bar, cells, part, v->pen.look->utf8);
    ts_text_add(&bar, "] ");
    ts_pen_drawn(&v->pen, &bar, cells + 3);
    ts_text_free(&bar);
  }
  ts_pen_put(&v->pen, TS_BOLD, steps);
  ts_pen_put(&v->pen, TS_PLAIN, to_go);
}

/* ---- numbers of the run ---- */

static bool has_column(const ts_run_feed *f, const char *name) {
  return f->rows > 0 && ts_table_has(&f->metrics_table, name);
}

static bool has_validation_loss(const ts_run_feed *f) {
  return f->validations > 0 && ts_table_has(&f->validation_table, "loss");
}

/* Times of an observed step are no measure. */
static bool has_times(const ts_run_feed *f) {
  return f->last.observed <= 0;
}

static int has_losses(const view *v) {
  return has_column(v->feed, "loss") || has_validation_loss(v->feed);
}

static int has_speed(const view *v) {
  const ts_run_feed *f = v->feed;
  return f->rows > 0 && (isfinite(ts_run_feed_mean_speed(f)) || isfinite(ts_run_feed_mean_seconds(f)) ||
                         (has_times(f) && (f->last.model_tflops > 0 || f->last.mfu > 0)));
}

static int has_memory(const view *v) {
  const ts_metrics_row *m = &v->feed->last;
  return v->feed->rows > 0 && (m->peak_bytes >= 0 || (has_times(v->feed) && m->bubble > 0));
}

static int has_learning(const view *v) {
  return has_column(v->feed, "grad_norm") || has_column(v->feed, "lr");
}

static void draw_loss(view *v, int rows) {
  (void) rows;
  const ts_run_feed *f = v->feed;
  char number[32];
  double mean = ts_run_feed_mean_loss(f);
  int64_t of = f->recent.n < TS_FEED_RECENT ? f->recent.n : TS_FEED_RECENT;
  ts_pen_line(&v->pen);
  if (has_column(f, "loss")) {
    ts_pen_field(&v->pen, isfinite(f->last.loss) ? TS_BOLD : TS_BAD, "loss %s",
                 or_number(f->last.loss, "%.4f", number));
  }
  if (has_column(f, "loss") && of > 1) {
    ts_pen_field(&v->pen, TS_PLAIN, "mean of %lld: %s", (long long) of, or_number(mean, "%.4f", number));
  }
  if (has_validation_loss(f)) {
    ts_pen_field(&v->pen, TS_PLAIN, "validation %s at step %lld", or_number(f->validated.loss, "%.4f", number),
                 (long long) f->validated.step);
    if (f->lowest < f->validated.loss) {
      ts_pen_field(&v->pen, TS_PLAIN, "lowest %s", or_number(f->lowest, "%.4f", number));
    }
  }
}

static void draw_speed(view *v, int rows) {
  (void) rows;
  const ts_run_feed *f = v->feed;
  char number[32];
  ts_pen_line(&v->pen);
  double speed = ts_run_feed_mean_speed(f), seconds = ts_run_feed_mean_seconds(f);
  if (isfinite(speed)) {
    ts_pen_field(&v->pen, TS_PLAIN, "%s tokens/s", ts_human_count(speed, number));
  }
  if (isfinite(seconds)) {
    ts_pen_field(&v->pen, TS_PLAIN, "%.3g s a step", seconds);
  }
  if (has_times(f) && f->last.model_tflops > 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "%.3g TFLOP/s", f->last.model_tflops);
  }
  if (has_times(f) && f->last.mfu > 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "MFU %.1f %%", 100 * f->last.mfu);
  }
}

static void add_share(view *v, const char *name, double seconds) {
  if (has_times(v->feed) && seconds > 0 && v->feed->last.step_seconds > 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "%s %.1f %%", name, 100 * seconds / v->feed->last.step_seconds);
  }
}

static void draw_memory(view *v, int rows) {
  (void) rows;
  const ts_metrics_row *m = &v->feed->last;
  char number[32];
  ts_pen_line(&v->pen);
  if (m->peak_bytes >= 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "memory %s", ts_human_bytes((double) m->peak_bytes, number));
  }
  add_share(v, "exposed communication", m->exposed_comm_seconds);
  add_share(v, "data", m->data_seconds);
  if (has_times(v->feed) && m->bubble > 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "bubble %.1f %%", 100 * m->bubble);
  }
}

static void draw_learning(view *v, int rows) {
  (void) rows;
  const ts_metrics_row *m = &v->feed->last;
  char number[32];
  ts_pen_line(&v->pen);
  if (has_column(v->feed, "grad_norm")) {
    ts_pen_field(&v->pen, isfinite(m->grad_norm) ? TS_PLAIN : TS_BAD, "gradient norm %s",
                 or_number(m->grad_norm, "%.3g", number));
  }
  if (has_column(v->feed, "lr")) {
    ts_pen_field(&v->pen, TS_PLAIN, "lr %.3g", m->lr);
  }
  if (m->skipped > 0) {
    ts_pen_field(&v->pen, TS_BAD, "%lld step%s skipped", (long long) m->skipped, m->skipped == 1 ? "" : "s");
  }
  if (m->loss_scale > 0 && m->loss_scale != 1) {
    ts_pen_field(&v->pen, TS_PLAIN, "loss scale %.9g", m->loss_scale);
  }
}

static void draw_saved(view *v, int rows) {
  (void) rows;
  const ts_run_summary *m = &v->feed->summary;
  ts_pen_line(&v->pen);
  ts_pen_field(&v->pen, TS_PLAIN, "saved %s", m->newest != NULL ? m->newest : "nothing yet");
  if (m->status.n_damaged > 0) {
    ts_pen_field(&v->pen, TS_BAD, "%d damaged file%s in status/", m->status.n_damaged,
                 m->status.n_damaged > 1 ? "s" : "");
  }
  if (v->feed->damaged > 0) {
    ts_pen_field(&v->pen, TS_BAD, "%lld damaged line%s of tables", (long long) v->feed->damaged,
                 v->feed->damaged > 1 ? "s" : "");
  }
}

static int knows_experts(const view *v) {
  return v->feed->experts.layers > 0 || v->feed->summary.dead != NULL;
}

static void draw_experts(view *v, int rows) {
  (void) rows;
  const ts_expert_loads *e = &v->feed->experts;
  ts_text dead = {0};
  ts_pen_line(&v->pen);
  ts_run_summary_add_dead(&v->feed->summary, &dead);
  if (dead.length > 0) {
    ts_pen_field(&v->pen, TS_BAD, "%s", dead.text);
  }
  if (e->layers > 0) {
    ts_pen_field(&v->pen, TS_PLAIN, "busiest expert %.2f of the mean", e->largest);
    ts_pen_field(&v->pen, TS_PLAIN, "%lld without a token", (long long) e->idle);
    if (e->dropped > 0) {
      ts_pen_field(&v->pen, TS_PLAIN, "%.1f %% dropped", 100 * e->dropped);
    }
  }
  ts_text_free(&dead);
}

/* ---- texts ---- */

static int behind_lines(const view *v) {
  int n = 0;
  for (const char *c = v->feed->summary.behind.text; c != NULL && *c != 0; ++c) {
    n += *c == '\n';
  }
  return n > 0 && !ts_run_feed_is_over(v->feed) ? n + 1 : 0;
}

static void draw_behind(view *v, int rows) {
  char *copy = ts_strdup(v->feed->summary.behind.text), *rest = copy, *line;
  ts_pen_line(&v->pen);
  ts_pen_put(&v->pen, TS_BAD, "behind:");
  for (int i = 1; i < rows && (line = strsep(&rest, "\n")) != NULL && ts_pen_line(&v->pen); ++i) {
    ts_pen_put(&v->pen, TS_BAD, line);
  }
  ts_free(copy);
}

static int message_lines(const view *v) {
  int64_t n = v->feed->messages;
  return (int) (n < TS_FEED_MESSAGES ? n : TS_FEED_MESSAGES);
}

/* "2026-11-21 12:32:06 ...": where there is little room the day is known. */
static void draw_messages(view *v, int rows) {
  const int64_t n = v->feed->messages;
  int year, at = 0;
  for (int64_t i = n - rows; i < n && ts_pen_line(&v->pen); ++i) {
    const char *text = v->feed->message[i % TS_FEED_MESSAGES];
    bool dated = sscanf(text, "%4d-%*2d-%*2d %n%*2d:%*2d:%*2d", &year, &at) == 1 && at == 11;
    bool bad = dated && strlen(text) > 20 &&
               (strncmp(text + 20, "error: ", 7) == 0 || strncmp(text + 20, "warning: ", 9) == 0);
    ts_pen_put(&v->pen, bad ? TS_BAD : TS_PLAIN,
               dated ? text + (v->pen.look->width < 60 && strlen(text) > 20 ? 20 : 11) : text);
  }
}

static void draw_blank(view *v, int rows) {
  (void) rows;
  ts_pen_line(&v->pen);
}

static void draw_foot(view *v, int rows) {
  (void) rows;
  ts_pen_line(&v->pen);
  ts_pen_put(&v->pen, TS_FAINT,
             v->pen.look->keys ? "q ends this view, not the run" : "Ctrl-C ends this view, not the run");
}

static int is_live(const view *v) {
  return v->pen.look->live;
}

static int is_always(const view *v) {
  (void) v;
  return 1;
}

/* ---- curves ---- */

static bool has_curve(const view *v, const char *column) {
  return v->feed->rows > 1 && v->pen.look->width >= 20 && has_column(v->feed, "step") && has_column(v->feed, column);
}

static int curve_lines(const view *v) {
  int most = v->pen.look->height / 3;
  return has_curve(v, "loss") ? most < 5 ? 5 : most > 16 ? 16 : most : 0;
}

static int speed_lines(const view *v) {
  return has_curve(v, "tokens_per_second") ? v->pen.look->height >= 40 ? 6 : 5 : 0;
}

static void draw_series(view *v, const ts_series *series, const ts_series *marks, const char *title,
                        ts_curve_label *label, int rows) {
  int width = v->pen.look->width;
  ts_point *points = ts_malloc(2 * TS_FRAME_WIDTH * sizeof *points), *dots = ts_malloc(TS_FRAME_WIDTH * sizeof *dots);
  ts_curve curve = {.point = points, .mark = dots, .utf8 = v->pen.look->utf8, .label = label};
  ts_text *line = ts_calloc((size_t) rows, sizeof *line);
  curve.n = ts_series_thin(series, ts_curve_points(&curve, width), points);
  curve.n_marks = marks != NULL ? ts_series_thin(marks, width / 4, dots) : 0;
  ts_pen_line(&v->pen);
  ts_pen_put(&v->pen, TS_FAINT, title);
  ts_curve_draw(&curve, width, rows - 1, line);
  for (int i = 0; i < rows - 1 && ts_pen_line(&v->pen); ++i) {
    ts_pen_drawn(&v->pen, &line[i], ts_view_columns(line[i].text, true));
  }
  for (int i = 0; i < rows; ++i) {
    ts_text_free(&line[i]);
  }
  ts_free(line);
  ts_free(points);
  ts_free(dots);
}

static void draw_loss_curve(view *v, int rows) {
  char title[128];
  snprintf(title, sizeof title, "loss of steps %lld to %lld%s", (long long) v->feed->first,
           (long long) v->feed->last.step, v->feed->validations > 0 ? ", o: validation" : "");
  draw_series(v, &v->feed->loss, &v->feed->validation, title, label_loss, rows);
}

static void draw_speed_curve(view *v, int rows) {
  draw_series(v, &v->feed->speed, NULL, "tokens/s", ts_human_count, rows);
}

/* ---- which sections there is room for ---- */

/* In the order in which they are drawn.  Those of low rank come first where there is little room. */
typedef struct section {
  int rank;
  int (*lines)(const view *v); /* that it could take; 0: it has nothing to say */
  int least;                   /* lines below which it is left out; at most what it could take */
  void (*draw)(view *v, int rows);
} section;

static const section sections[] = {
    {0, is_always, 1, draw_name},        {2, reason_lines, 1, draw_reason},    {1, is_always, 1, draw_progress},
    {3, has_losses, 1, draw_loss},       {5, has_speed, 1, draw_speed},        {9, has_memory, 1, draw_memory},
    {8, has_learning, 1, draw_learning}, {10, knows_experts, 1, draw_experts}, {11, is_always, 1, draw_saved},
    {4, behind_lines, 2, draw_behind},   {6, curve_lines, 5, draw_loss_curve}, {13, speed_lines, 4, draw_speed_curve},
    {14, message_lines, 1, draw_blank},  {7, message_lines, 2, draw_messages}, {12, is_live, 1, draw_foot},
};

enum { N_SECTIONS = sizeof sections / sizeof sections[0] };

static int find_rank(int rank) {
  int i = 0;
  while (sections[i].rank != rank) {
    ++i;
  }
  return i;
}

/* By rank each gets the least that makes sense, if that is left, then by rank what it could take besides. */
static void allot(const view *v, int rows[N_SECTIONS]) {
  int left = v->pen.look->height;
  memset(rows, 0, N_SECTIONS * sizeof *rows);
  for (int rank = 0; rank < N_SECTIONS; ++rank) {
    int i = find_rank(rank), most = sections[i].lines(v), least = most < sections[i].least ? most : sections[i].least;
    rows[i] = least <= left ? least : 0;
    left -= rows[i];
  }
  for (int rank = 0; rank < N_SECTIONS; ++rank) {
    int i = find_rank(rank), more = rows[i] > 0 && sections[i].draw != draw_blank ? sections[i].lines(v) - rows[i] : 0;
    more = more < left ? more : left;
    rows[i] += more;
    left -= more;
  }
}

void ts_frame_draw(const ts_run_feed *feed, const ts_look *look, ts_frame *frame) {
  view v = {.feed = feed, .pen = {.look = look, .frame = frame}};
  int rows[N_SECTIONS];
  for (int i = 0; i < TS_FRAME_HEIGHT; ++i) {
    frame->line[i].length = 0;
  }
  frame->n = 0;
  allot(&v, rows);
  for (int i = 0; i < N_SECTIONS; ++i) {
    if (rows[i] > 0) {
      sections[i].draw(&v, rows[i]);
    }
  }
}

void ts_frame_clear(ts_frame *frame) {
  for (int i = 0; i < TS_FRAME_HEIGHT; ++i) {
    ts_text_free(&frame->line[i]);
  }
  frame->n = 0;
}

void ts_frame_add_line(const ts_run_feed *f, ts_text *to) {
  char number[32], time[32];
  double left = ts_run_feed_time_left(f), speed = ts_run_feed_mean_speed(f);
  ts_text_add(to, "step %lld of %lld", (long long) ts_run_feed_step(f), (long long) f->summary.status.job.steps);
  if (has_column(f, "loss")) {
    ts_text_add(to, "  loss %s", or_number(f->last.loss, "%.4f", number));
  }
  if (has_column(f, "grad_norm")) {
    ts_text_add(to, "  gradient norm %s", or_number(f->last.grad_norm, "%.3g", number));
  }
  if (has_column(f, "lr")) {
    ts_text_add(to, "  lr %.3g", f->last.lr);
  }
  if (f->rows > 0 && isfinite(speed)) {
    ts_text_add(to, "  %s tokens/s", ts_human_count(speed, number));
  }
  if (f->rows > 0 && f->last.peak_bytes >= 0) {
    ts_text_add(to, "  memory %s", ts_human_bytes((double) f->last.peak_bytes, number));
  }
  if (has_validation_loss(f)) {
    ts_text_add(to, "  validation %s", or_number(f->validated.loss, "%.4f", number));
  }
  if (f->rows > 0 && has_times(f) && f->last.mfu > 0) {
    ts_text_add(to, "  MFU %.1f %%", 100 * f->last.mfu);
  }
  if (left > 0) {
    ts_text_add(to, "  %s to go", ts_human_seconds(left, time));
  }
}
