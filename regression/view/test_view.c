/* TAP: what a picture of a run is made of: text that may come to a terminal, files that grow, curves, lines. */
#include "regression/files.h"
#include "regression/tap.h"
#include "view/clean.h"
#include "view/curve.h"
#include "view/frame.h"
#include "view/pen.h"
#include "view/series.h"
#include "view/tail.h"

#include <math.h>
#include <unistd.h>

/* ---- text ---- */

static bool cleans(const char *text, int columns, bool utf8, const char *expected, int taken) {
  ts_text to = {0};
  int n = ts_view_clean(text, columns, utf8, &to);
  bool ok = n == taken && strcmp(to.length > 0 ? to.text : "", expected) == 0;
  if (!ok) {
    tap_note("expected '%s' (%d), got '%s' (%d)", expected, taken, to.length > 0 ? to.text : "", n);
  }
  ts_text_free(&to);
  return ok;
}

static void test_clean(void) {
  tap_ok(cleans("a\033[2Jb\001c\177", 80, true, "a?[2Jb?c?", 9), "text: what steers a terminal");
  tap_ok(cleans("a\xc2\x9b"
                "31mb",
                80, true, "a?31mb", 6),
         "text: what steers it in one character");
  tap_ok(cleans("a\xe2\x80\xae"
                "b",
                80, true, "a?b", 3),
         "text: what turns the direction");
  tap_ok(cleans("a\xff\xc3-b", 80, true,
                "a?"
                "?-b",
                5),
         "text: what is no UTF-8");
  tap_ok(cleans("a\xe2\x82", 80, true, "a??", 3), "text: a character that is cut by the end");
  tap_ok(cleans("a\tb\nc", 80, true, "a b c", 5), "text: tabs and line breaks");
  tap_ok(cleans("e\xcc\x81x", 80, true, "ex", 2), "text: what has no width");
  tap_ok(cleans("\xe6\xbc\xa2\xe5\xad\x97", 4, true, "\xe6\xbc\xa2\xe5\xad\x97", 4),
         "text: characters of two columns that fit");
  tap_ok(cleans("\xe6\xbc\xa2\xe5\xad\x97", 3, true, "\xe6\xbc\xa2\xe2\x80\xa6", 3), "and that do not");
  tap_ok(cleans("\xe6\xbc\xa2\xe5\xad\x97", 2, true, "\xe2\x80\xa6", 1), "or only without the ellipsis");
  tap_ok(cleans("caf\xc3\xa9", 80, false, "caf?", 4), "text: for a terminal with ASCII");
  tap_ok(cleans("abcdef", 4, false, "abc~", 4) && cleans("abcd", 4, false, "abcd", 4),
         "text: that is cut, and that fits");
  tap_ok(cleans("abc", 0, false, "", 0), "text: no room at all");
  tap_ok(ts_view_fit("abcdef", 4, true) == 4 && ts_view_fit("\xe6\xbc\xa2\xe5\xad\x97", 3, true) == 3,
         "text: what fits of it");
}

/* ---- files that grow ---- */

typedef struct seen {
  int begun, lines;
  char last[100];
} seen;

static void begin(void *user) {
  seen *s = user;
  ++s->begun;
  s->lines = 0;
}

static void line(void *user, const char *text) {
  seen *s = user;
  ++s->lines;
  snprintf(s->last, sizeof s->last, "%s", text);
}

static void append(const char *path, const char *text) {
  FILE *file = fopen(path, "a");
  TS_CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s", path);
}

static void replace(const char *path, const char *text) {
  TS_CHECK(ts_write_file(path, text, strlen(text), NULL) == TS_OK, "%s", path);
}

static bool saw(const seen *s, int begun, int lines, const char *last) {
  bool ok = s->begun == begun && s->lines == lines && strcmp(s->last, last) == 0;
  if (!ok) {
    tap_note("begun %d, lines %d, last '%s'", s->begun, s->lines, s->last);
  }
  return ok;
}

static void test_growth(void) {
  char *path = ts_format("%s/grows", tap_directory());
  seen s = {0};
  const ts_tail_reader reader = {begin, line, &s};
  ts_tail tail;
  ts_tail_open(&tail, path, 0);
  tap_ok(ts_tail_read(&tail, &reader) == 0 && saw(&s, 0, 0, ""), "file: not there");
  append(path, "one\ntwo\nthr");
  tap_ok(ts_tail_read(&tail, &reader) == 11 && saw(&s, 1, 2, "two"), "file: whole lines");
  append(path, "ee\nfour\n");
  tap_ok(ts_tail_read(&tail, &reader) == 8 && saw(&s, 1, 4, "four"), "file: only what is new is read");
  tap_ok(ts_tail_read(&tail, &reader) == 0 && saw(&s, 1, 4, "four"), "file: nothing new");
  replace(path, "one\ntwo\nthree\nfour\nfive\n");
  tap_ok(ts_tail_read(&tail, &reader) == 24 && saw(&s, 2, 5, "five"),
         "file: replaced by a longer one, it is read anew");
  TS_CHECK(truncate(path, 8) == 0, "truncate");
  tap_ok(ts_tail_read(&tail, &reader) == 8 && saw(&s, 3, 2, "two"), "file: cut");
  FILE *again = fopen(path, "w");
  TS_CHECK(again != NULL && fputs("ONE\nTWO\nTHREE\n", again) >= 0 && fclose(again) == 0, "%s", path);
  tap_ok(ts_tail_read(&tail, &reader) == 14 && saw(&s, 4, 3, "THREE"), "file: written anew in place, and longer");
  unlink(path);
  tap_ok(ts_tail_read(&tail, &reader) == 0 && s.begun == 5 && s.lines == 0, "file: gone");
  ts_tail_close(&tail);
  ts_free(path);
}

static void test_odd_files(void) {
  char *path = ts_format("%s/odd", tap_directory()), *longest = ts_malloc(3 * TS_TAIL_LINE);
  seen s = {0};
  const ts_tail_reader reader = {begin, line, &s};
  ts_tail tail;
  ts_tail_open(&tail, path, 0);
  memset(longest, 'x', 3 * TS_TAIL_LINE);
  longest[3 * TS_TAIL_LINE - 1] = 0;
  append(path, "first\n");
  append(path, longest);
  ts_tail_read(&tail, &reader);
  append(path, "\nlast\n");
  ts_tail_read(&tail, &reader);
  tap_ok(saw(&s, 1, 2, "last"), "file: a line that is too long is left out");
  ts_tail_close(&tail);
  ts_tail_open(&tail, path, 9);
  s = (seen){0};
  ts_tail_read(&tail, &reader);
  tap_ok(saw(&s, 1, 1, "last"), "file: the end of it, from a whole line on");
  ts_tail_close(&tail);
  ts_tail_open(&tail, tap_directory(), 0);
  s = (seen){0};
  tap_ok(ts_tail_read(&tail, &reader) == 0 && s.begun == 0, "file: a directory has no lines");
  ts_tail_close(&tail);
  ts_free(longest);
  ts_free(path);
}

/* ---- series ---- */

static void test_series(void) {
  ts_series *s = ts_calloc(1, sizeof *s);
  ts_point p[64];
  for (int i = 1; i <= 1000000; ++i) {
    ts_series_add(s, i, i % 2 == 0 ? 3 : 1);
  }
  bool in_bounds = s->n <= TS_SERIES_MOST && s->n > TS_SERIES_MOST / 4;
  int n = ts_series_thin(s, 64, p);
  bool even = true;
  for (int i = 0; i < n; ++i) {
    even = even && fabs(p[i].y - 2) < 1e-2 && (i == 0 || p[i].x > p[i - 1].x);
  }
  tap_ok(in_bounds && n == 64 && even, "series: the means of a million values");
  tap_ok(!ts_series_add(s, 1, NAN) && !ts_series_add(s, INFINITY, 1), "series: what is not finite is left out");
  s->n = 0;
  s->each = 0;
  ts_series_add(s, 1, 5);
  ts_series_add(s, 2, 7);
  n = ts_series_thin(s, 64, p);
  tap_ok(n == 2 && p[0].x == 1 && p[0].y == 5 && p[1].x == 2 && p[1].y == 7, "series: few values are themselves");
  tap_ok(ts_series_thin(s, 1, p) == 1 && p[0].x == 1.5 && p[0].y == 6, "series: in one part");
  ts_free(s);
}

/* ---- curves ---- */

static char *label(double value, char *out) {
  snprintf(out, 32, "%g", value);
  return out;
}

/* Is the curve of the points these lines? */
static bool draws(const ts_curve *curve, int width, int height, const char *const *expected) {
  ts_text lines[8] = {{0}};
  bool ok = true;
  ts_curve_draw(curve, width, height, lines);
  for (int i = 0; i < height; ++i) {
    ok = ok && strcmp(lines[i].text, expected[i]) == 0;
  }
  for (int i = 0; i < height; ++i) {
    if (!ok) {
      tap_note("expected '%s'", expected[i]);
      tap_note("got      '%s'", lines[i].text);
    }
    ts_text_free(&lines[i]);
  }
  return ok;
}

static void test_curve(void) {
  static const ts_point rising[] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}}, flat[] = {{0, 2}, {9, 2}}, dot[] = {{0, 1}},
                        vee[] = {{0, 3}, {2, 0}, {4, 3}}, middle[] = {{2, 3}};
  const ts_curve up = {.n = 4, .point = rising, .label = label}, level = {.n = 2, .point = flat, .label = label},
                 one = {.n = 1, .point = dot, .label = label}, none = {.label = label};
  ts_curve valley = {.n = 3, .point = vee, .label = label, .n_marks = 1, .mark = middle};
  tap_ok(draws(&up, 13, 2, (const char *const[]){"      3 |  .'", "      0 |.'"}), "curve: ASCII, a line up");
  tap_ok(draws(&level, 13, 3, (const char *const[]){"    2.2 |", "        |....", "    1.8 |"}), "curve: ASCII, level");
  tap_ok(draws(&one, 11, 1, (const char *const[]){"    1.1 |."}), "curve: one point");
  tap_ok(draws(&none, 12, 2, (const char *const[]){"      1 |", "      0 |"}), "curve: no points");
  tap_ok(draws(&valley, 14, 2, (const char *const[]){"      3 |'.o.'", "      0 | '.'"}), "curve: steep, with a mark");
  ts_curve braille = up;
  braille.utf8 = true;
  tap_ok(draws(&braille, 11, 1, (const char *const[]){"      3 \u2524\u2860\u280a"}), "curve: braille, a line up");
  tap_ok(ts_curve_points(&up, 29) == 20 && ts_curve_points(&braille, 29) == 40 && ts_curve_points(&up, 3) == 1,
         "curve: how many points it has room for");
}

static void test_cut_curve(void) {
  ts_point p[40];
  for (int i = 0; i < 40; ++i) {
    p[i] = (ts_point){i, i < 3 ? 100 - 10 * i : 1 + i % 2};
  }
  const ts_curve curve = {.n = 40, .point = p, .label = label};
  ts_text lines[2] = {{0}};
  ts_curve_draw(&curve, 49, 2, lines);
  tap_ok(strncmp(lines[0].text, "     >2 |", 9) == 0 && strncmp(lines[1].text, "      1 |", 9) == 0,
         "curve: a steep beginning is cut at what the rest needs, and the axis says so");
  tap_ok(lines[0].text[9] == ' ', "and not drawn");
  ts_text_free(&lines[0]);
  ts_text_free(&lines[1]);
}

/* ---- frames ---- */

static void write_run(const char *root) {
  ts_job_status job = {.id = "1",
                       .state = "running",
                       .job = "77",
                       .launcher = "hand",
                       .ranks = 2,
                       .nodes = 1,
                       .steps = 1000,
                       .began = 1e9,
                       .period = 5};
  ts_text text = {0};
  ts_status_print_job(&job, &text);
  put_file(root, "run/status/@run", text.text);
  ts_text_free(&text);
  ts_text_add(&text,
              "step,tokens,loss,grad_norm,lr,step_seconds,tokens_per_second,model_tflops,mfu,peak_bytes,"
              "comm_seconds,exposed_comm_seconds,data_seconds,skipped,loss_scale,save_seconds,stall_seconds,bubble\n");
  for (int i = 1; i <= 500; ++i) {
    ts_text_add(&text, "%d,%d,%.4f,1.5,0.001,0.25,4096,12,0.42,3000000000,0.05,0.02,0.001,3,1,0,0,0.1\n", i, 1024 * i,
                2 + 3.0 / i);
  }
  ts_text_add(&text, "what is no row\n");
  put_file(root, "run/metrics.csv", text.text);
  ts_text_free(&text);
  put_file(root, "run/validation.csv", "step,tokens,loss,batches,seconds\n250,1,2.5,1,1\n500,1,2.75,1,1\n");
  put_file(root, "run/moe.csv",
           "step,layer,tokens,largest,smallest,idle,dropped,aux,z,largest_bias\n499,0,1,9,0,9,0,0,0,0\n"
           "500,0,10,1.5,0.5,1,0.25,1,1,0\n500,1,10,2.5,0.5,2,0,1,1,0\n"
           /* counts that no layer has */
           "500,2,10,1,1,4e18,0.125,1,1,0\n500,3,10,1,1,4e18,0.125,1,1,0\n500,4,10,1,1,4e18,0.125,1,1,0\n");
  put_file(root, "run/log.txt",
           "2026-11-21 12:32:06 step 20/600  loss 2.1\n2026-11-21 12:32:07 warning: half of it \033[2Jis missing\n"
           "2026-11-21 12:32:08 step 500  saved run/step_00000500\n");
}

static bool has(const ts_frame *frame, const char *text) {
  for (int i = 0; i < frame->n; ++i) {
    if (strstr(frame->line[i].text, text) != NULL) {
      return true;
    }
  }
  tap_note("not there: %s", text);
  return false;
}

/* No line is wider than the terminal, nor are there more, and nothing steers it. */
static bool fits(const ts_frame *frame, const ts_look *look) {
  bool ok = frame->n <= look->height;
  for (int i = 0; i < frame->n; ++i) {
    const char *text = frame->line[i].text;
    int columns = 0;
    for (const unsigned char *c = (const unsigned char *) text; *c != 0; ++c) {
      columns += (*c & 0xc0) != 0x80;
      ok = ok && *c >= 0x20 && *c != 0x7f;
    }
    ok = ok && columns <= look->width && columns == frame->columns[i];
  }
  return ok;
}

static void test_sizes(const ts_run_feed *feed) {
  static ts_frame frame;
  bool ok = true;
  for (int width = 1; width <= 130; ++width) {
    for (int height = 1; height <= 50; ++height) {
      const ts_look look = {.width = width, .height = height, .utf8 = height % 2 == 0, .live = width % 2 == 0};
      ts_frame_draw(feed, &look, &frame);
      if (!fits(&frame, &look)) {
        tap_note("%d x %d", width, height);
        ok = false;
      }
    }
  }
  ts_frame_clear(&frame);
  tap_ok(ok, "frame: fits terminals of 1 x 1 to 130 x 50");
}

static void test_contents(const ts_run_feed *feed) {
  static ts_frame frame;
  ts_look look = {.width = 120, .height = 50};
  ts_frame_draw(feed, &look, &frame);
  tap_ok(has(&frame, "starting") && has(&frame, "2 ranks on 1 node  job 77"), "frame: state and job");
  tap_ok(has(&frame, "50 %  step 500 of 1000  2:05 to go"), "frame: progress and what is left");
  tap_ok(has(&frame, "loss 2.0060  mean of 100: 2.0067  validation 2.7500 at step 500  lowest 2.5000"),
         "frame: losses");
  tap_ok(has(&frame, "4.10 k tokens/s  0.25 s a step  12 TFLOP/s  MFU 42.0 %"), "frame: speed");
  tap_ok(has(&frame, "memory 3.00 GB  exposed communication 8.0 %  data 0.4 %  bubble 10.0 %"), "frame: memory, times");
  tap_ok(has(&frame, "gradient norm 1.5  lr 0.001  3 steps skipped"), "frame: learning");
  tap_ok(has(&frame, "busiest expert 2.50 of the mean  3 without a token  12.5 % dropped"), "frame: experts");
  tap_ok(has(&frame, "1 damaged line of tables"), "frame: what is damaged");
  tap_ok(has(&frame, "12:32:07 warning: half of it ?[2Jis missing") && has(&frame, "12:32:08 step 500  saved"),
         "frame: messages");
  tap_ok(!has(&frame, "step 20/600"), "frame: but not of single steps");
  look.width = 20;
  look.height = 5;
  ts_frame_draw(feed, &look, &frame);
  tap_ok(has(&frame, "starting") && has(&frame, "50 %") && has(&frame, "loss 2.0060"), "frame: what is left at 20 x 5");
  look.colour = true;
  ts_frame_draw(feed, &look, &frame);
  tap_ok(has(&frame, "\033[32mstarting\033[0m"), "frame: colours, ended");
  ts_frame_clear(&frame);
}

static void test_frames(void) {
  static ts_run_feed feed;
  write_run(tap_directory());
  char *run = ts_format("%s/run", tap_directory());
  ts_error err = {0};
  ts_status status = ts_run_feed_open(run, &feed, &err);
  tap_ok(status == TS_OK, "feed: opened %s", err.count > 0 ? err.text : "");
  while (ts_run_feed_read(&feed)) {
  }
  tap_ok(feed.rows == 500 && feed.validations == 2 && feed.messages == 2 && feed.damaged == 1, "feed: what it found");
  test_sizes(&feed);
  test_contents(&feed);
  ts_error_clear(&err);
  ts_run_feed_close(&feed);
  ts_free(run);
}

/* The feed and the picture of the run that was written, with other tables. */
static void draw_tables(const char *metrics, const char *validation, ts_run_feed *feed, ts_frame *frame) {
  const ts_look look = {.width = 120, .height = 50, .live = true};
  char *run = ts_format("%s/run", tap_directory());
  put_file(tap_directory(), "run/metrics.csv", metrics);
  put_file(tap_directory(), "run/validation.csv", validation);
  TS_CHECK(ts_run_feed_open(run, feed, NULL) == TS_OK, "%s", run);
  while (ts_run_feed_read(feed)) {
  }
  ts_frame_draw(feed, &look, frame);
  feed->run = "run"; /* the name that was drawn goes */
  ts_free(run);
}

static bool says(const ts_run_feed *feed, const char *expected) {
  ts_text line = {0};
  ts_frame_add_line(feed, &line);
  bool is = strcmp(line.text, expected) == 0;
  if (!is) {
    tap_note("%s", line.text);
  }
  ts_text_free(&line);
  return is;
}

/* Nothing is said of what a table has no column for. */
static void test_missing_columns(void) {
  static ts_run_feed feed;
  static ts_frame frame;
  draw_tables("step,loss\n1,3\n2,2\n", "step\n2\n", &feed, &frame);
  tap_ok(has(&frame, "loss 2.0000  mean of 2: 2.5000") && has(&frame, "loss of steps 1 to 2"), "columns: those there");
  tap_ok(!has(&frame, "tokens/s") && !has(&frame, "s a step") && !has(&frame, "memory") && !has(&frame, "gradient") &&
             !has(&frame, "lr ") && !has(&frame, "nan") && !has(&frame, "validation ") && !has(&frame, "to go"),
         "columns: of others nothing");
  tap_ok(says(&feed, "step 2 of 1000  loss 2.0000"), "columns: nor in a line");
  ts_run_feed_close(&feed);
  draw_tables("step,lr,peak_bytes\n1,0.5,0\n2,0.25,0\n", "step,loss\n2,nan\n", &feed, &frame);
  tap_ok(!has(&frame, "loss of steps") && has(&frame, "validation nan at step 2") && has(&frame, "memory 0 B") &&
             has(&frame, "lr 0.25"),
         "columns: what is no number, or 0, is shown where there is a column");
  tap_ok(says(&feed, "step 2 of 1000  lr 0.25  memory 0 B  validation nan"), "columns: and in a line");
  ts_run_feed_close(&feed);
  ts_frame_clear(&frame);
}

/* Times of observed steps are left out, their losses are not. */
static void test_observed(void) {
  static ts_run_feed feed;
  static ts_frame frame;
  draw_tables("step,loss,step_seconds,tokens_per_second,model_tflops,mfu,data_seconds,bubble,observed\n"
              "1,3,0.5,2000,7,0.5,0.25,0.5,0\n2,2,9,111,1,0.25,0.25,0.5,1\n",
              "step\n", &feed, &frame);
  tap_ok(has(&frame, "mean of 2: 2.5000") && has(&frame, "2.00 k tokens/s  0.5 s a step"),
         "observed: left out of means");
  tap_ok(ts_run_feed_time_left(&feed) == 998 * 0.5 && feed.speed.n == 1 && feed.loss.n == 2,
         "observed: and of the time to go and the curve of speed");
  tap_ok(!has(&frame, "TFLOP/s") && !has(&frame, "MFU") && !has(&frame, "data ") && !has(&frame, "bubble"),
         "observed: its own rates are not shown");
  tap_ok(says(&feed, "step 2 of 1000  loss 2.0000  2.00 k tokens/s  8:19 to go"), "observed: nor in a line");
  ts_run_feed_close(&feed);
  draw_tables("step,loss,step_seconds,tokens_per_second,mfu,observed\n1,3,0.5,2000,0.5,1\n", "step\n", &feed, &frame);
  tap_ok(!has(&frame, "tokens/s") && isnan(ts_run_feed_time_left(&feed)), "observed: of these alone nothing is known");
  ts_run_feed_close(&feed);
  ts_frame_clear(&frame);
}

int main(void) {
  test_clean();
  test_growth();
  test_odd_files();
  test_series();
  test_curve();
  test_cut_curve();
  test_frames();
  test_missing_columns();
  test_observed();
  tap_ok(ts_memory_live() == 0, "nothing is left");
  return tap_done();
}
