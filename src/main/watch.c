/* tessera watch: a run as it goes, on a terminal or as plain lines. */
#include "base/log.h"
#include "base/memory.h"
#include "main/command.h"
#include "view/clean.h"
#include "view/feed.h"
#include "view/frame.h"
#include "view/screen.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct watch {
  ts_run_feed feed;
  double every;
  bool ascii;
  /* of plain lines: what was said last */
  int64_t step, messages;
  char *state, *behind; /* owned */
} watch;

/* A run that is over is seen to its end: rows that came between the look at its tables and that at its state. */
static bool read_news(watch *w) {
  bool was_over = ts_run_feed_is_over(&w->feed), more = ts_run_feed_read(&w->feed);
  for (bool again = more || !was_over; ts_run_feed_is_over(&w->feed) && again; again = more) {
    more = ts_run_feed_read(&w->feed);
  }
  return more;
}

static ts_look find_look(const watch *w, bool live) {
  ts_look look = {.utf8 = ts_screen_has_utf8() && !w->ascii,
                  .colour = live && ts_screen_wants_colour(),
                  .live = live,
                  .keys = ts_screen_reads_keys()};
  ts_screen_size(&look.width, &look.height);
  return look;
}

static void draw_screen(const watch *w, ts_frame *frame) {
  const ts_look look = find_look(w, true);
  ts_frame_draw(&w->feed, &look, frame);
  ts_screen_draw(frame);
}

/* The last frame stays as text, one line shorter than the terminal: that has the shell's next word. */
static void print_frame(const watch *w) {
  static ts_frame frame;
  ts_look look = find_look(w, false);
  look.utf8 = look.utf8 && ts_screen_is_possible();
  look.height -= look.height > 1;
  ts_frame_draw(&w->feed, &look, &frame);
  for (int i = 0; i < frame.n; ++i) {
    printf("%s\n", frame.line[i].text);
  }
  ts_frame_clear(&frame);
}

/* ---- a terminal ---- */

static ts_screen_event show_until_over(watch *w) {
  static ts_frame frame;
  ts_screen_event event = TS_SCREEN_TIME;
  bool more = false;
  do {
    if (event == TS_SCREEN_TIME) {
      more = read_news(w);
    }
    draw_screen(w, &frame);
    if (ts_run_feed_is_over(&w->feed)) {
      break;
    }
    event = ts_screen_wait(more ? 0 : w->every);
  } while (event == TS_SCREEN_TIME || event == TS_SCREEN_REDRAW);
  ts_frame_clear(&frame);
  return event;
}

/* As if the signal had not been caught; a library may have a handler of its own. */
static void end_by_signal(void) {
  int number = ts_screen_signal() != 0 ? ts_screen_signal() : SIGHUP;
  signal(number, SIG_DFL);
  raise(number);
}

static void watch_on_screen(watch *w) {
  ts_screen_open();
  ts_screen_event event = show_until_over(w);
  ts_screen_close();
  if (event == TS_SCREEN_END) {
    end_by_signal();
  }
  if (ts_run_feed_is_over(&w->feed)) {
    print_frame(w);
  }
}

/* ---- plain lines ---- */

static void print_clean(const watch *w, const char *text) {
  ts_text line = {0};
  ts_view_clean(text, 4096, ts_screen_has_utf8() && !w->ascii, &line);
  printf("%s\n", line.text != NULL ? line.text : "");
  ts_text_free(&line);
}

/* What a state or a list of ranks has become, once. */
static void print_change(const watch *w, const char *now, char **before) {
  if (*before == NULL || strcmp(now, *before) != 0) {
    char *copy = ts_strdup(now), *rest = copy;
    for (const char *line; (line = strsep(&rest, "\n")) != NULL;) {
      if (line[0] != 0) {
        print_clean(w, line);
      }
    }
    ts_free(copy);
    ts_free(*before);
    *before = ts_strdup(now);
  }
}

static void print_news(watch *w) {
  const ts_run_feed *f = &w->feed;
  ts_text line = {0};
  int64_t first = f->messages - TS_FEED_MESSAGES, from = w->messages < f->messages ? w->messages : f->messages;
  for (int64_t i = first > from ? first : from; i < f->messages; ++i) {
    print_clean(w, f->message[i % TS_FEED_MESSAGES]);
  }
  w->messages = f->messages;
  if (ts_run_feed_step(f) != w->step) {
    w->step = ts_run_feed_step(f);
    ts_frame_add_line(f, &line);
    print_clean(w, line.text);
  }
  char *state = f->summary.state == TS_RUN_SILENT ? ts_strdup("no heartbeat: killed, or its machines are gone")
                                                  : ts_run_summary_describe(&f->summary);
  print_change(w, state, &w->state);
  print_change(w, f->summary.behind.text != NULL ? f->summary.behind.text : "", &w->behind);
  ts_free(state);
  ts_text_free(&line);
  fflush(stdout);
}

static void watch_in_lines(watch *w) {
  const struct timespec time = {(time_t) w->every, (long) ((w->every - (double) (time_t) w->every) * 1e9)};
  bool more;
  for (;;) {
    more = read_news(w);
    if (!more) {
      print_news(w);
    }
    if (ts_run_feed_is_over(&w->feed) || ferror(stdout)) {
      return;
    }
    if (!more) {
      nanosleep(&time, NULL);
    }
  }
}

int ts_main_watch(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  watch *w = ts_calloc(1, sizeof *w);
  w->ascii = ts_argument(arguments, "--ascii") != NULL;
  w->step = -1;
  int code = (int) ts_argument_double(arguments, "--every", 0.05, 3600, &w->every, err);
  if (code == 0) {
    code = (int) ts_run_feed_open(arguments->positional[0], &w->feed, err);
    if (code == 0 && ts_argument(arguments, "--once") != NULL) {
      while (read_news(w)) {
      }
      print_frame(w);
    } else if (code == 0) {
      (ts_screen_is_possible() ? watch_on_screen : watch_in_lines)(w);
    }
    code = code == 0 && w->feed.summary.state == TS_RUN_FAILED ? 1 : code;
    ts_run_feed_close(&w->feed);
  }
  ts_free(w->state);
  ts_free(w->behind);
  ts_free(w);
  return code;
}
