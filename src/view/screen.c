#include "view/screen.h"

#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Alternate screen, no cursor, no new line at the right edge; and back. */
#define ENTER "\033[?1049h\033[?25l\033[?7l\033[2J"
#define LEAVE "\033[0m\033[?7h\033[?25h\033[?1049l"

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};
enum { N_CAUGHT = sizeof caught / sizeof caught[0], LAST_TRY = 300 /* milliseconds */ };

static struct {
  bool open, reads_keys, gone, fresh; /* fresh: nothing of what is shown is known */
  struct termios before;
  sigset_t outside; /* the signals that were blocked before: those that a wait lets in */
  struct sigaction old[N_CAUGHT];
  ts_frame shown;
} screen;

static volatile sig_atomic_t ending, stopping, changed;

/* ---- what the environment says ---- */

bool ts_screen_is_possible(void) {
  const char *term = getenv("TERM");
  return isatty(STDOUT_FILENO) && term != NULL && term[0] != 0 && strcmp(term, "dumb") != 0;
}

bool ts_screen_has_utf8(void) {
  static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
  for (int i = 0; i < 3; ++i) {
    const char *value = getenv(names[i]);
    if (value != NULL && value[0] != 0) {
      return strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
    }
  }
  return false;
}

bool ts_screen_wants_colour(void) {
  const char *no = getenv("NO_COLOR");
  return (no == NULL || no[0] == 0) && ts_screen_is_possible();
}

static int within(long value, int most, int fallback) {
  return value < 1 ? fallback : value > most ? most : (int) value;
}

void ts_screen_size(int *width, int *height) {
  struct winsize size = {0};
  const char *columns = getenv("COLUMNS"), *lines = getenv("LINES");
  bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  *width = within(known ? size.ws_col : columns != NULL ? strtol(columns, NULL, 10) : 0, TS_FRAME_WIDTH, 80);
  *height = within(known ? size.ws_row : lines != NULL ? strtol(lines, NULL, 10) : 0, TS_FRAME_HEIGHT, 24);
}

/* ---- taking and giving back ---- */

static void note_signal(int number) {
  if (number == SIGTSTP) {
    stopping = 1;
  } else if (number == SIGWINCH || number == SIGCONT) {
    changed = 1;
  } else if (ending == 0) {
    ending = number;
  }
}

static sigset_t inside_mask(void) {
  sigset_t inside = screen.outside;
  for (int i = 0; i < N_CAUGHT; ++i) {
    sigdelset(&inside, caught[i]);
  }
  return inside;
}

/* Where a terminal takes nothing any more (a network that is gone), a signal to end ends the writing too. */
static void send_text(const char *text, size_t length) {
  sigset_t inside = inside_mask(), before;
  struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
  sigprocmask(SIG_SETMASK, &inside, &before);
  while (length > 0 && !screen.gone) {
    bool hurries = ending != 0 && poll(&output, 1, LAST_TRY) <= 0;
    ssize_t n = hurries ? -1 : write(STDOUT_FILENO, text, length);
    if (n < 0 && errno == EAGAIN && !hurries) {
      poll(&output, 1, LAST_TRY);
    }
    screen.gone = hurries || (n < 0 && errno != EINTR && errno != EAGAIN);
    text += n > 0 ? n : 0;
    length -= n > 0 ? (size_t) n : 0;
  }
  sigprocmask(SIG_SETMASK, &before, NULL);
}

/* Keys one by one and unseen; those that make signals still do. */
static void take_terminal(void) {
  screen.reads_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &screen.before) == 0;
  if (screen.reads_keys) {
    struct termios raw = screen.before;
    raw.c_lflag &= ~(tcflag_t) (ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  send_text(ENTER, sizeof ENTER - 1);
  screen.fresh = true;
}

static void leave_terminal(void) {
  send_text(LEAVE, sizeof LEAVE - 1);
  if (screen.reads_keys) {
    tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
  }
}

/* Signals come in while the program waits or writes, and only make notes there. */
static void take_signals(void) {
  sigset_t all;
  sigemptyset(&all);
  for (int i = 0; i < N_CAUGHT; ++i) {
    sigaddset(&all, caught[i]);
  }
  sigprocmask(SIG_BLOCK, &all, &screen.outside);
  for (int i = 0; i < N_CAUGHT; ++i) {
    struct sigaction action = {.sa_handler = note_signal};
    sigaction(caught[i], NULL, &screen.old[i]);
    if (screen.old[i].sa_handler != SIG_IGN) { /* nohup, or a shell without job control */
      sigaction(caught[i], &action, NULL);
    }
  }
}

static void give_signals_back(void) {
  for (int i = 0; i < N_CAUGHT; ++i) {
    sigaction(caught[i], &screen.old[i], NULL);
  }
  sigprocmask(SIG_SETMASK, &screen.outside, NULL);
}

void ts_screen_open(void) {
  static bool registered;
  ending = stopping = changed = 0;
  take_signals();
  screen.open = true;
  take_terminal();
  if (!registered) {
    registered = true;
    atexit(ts_screen_close);
  }
}

void ts_screen_close(void) {
  if (screen.open) {
    screen.open = false;
    leave_terminal();
    give_signals_back();
    ts_frame_clear(&screen.shown);
  }
}

bool ts_screen_reads_keys(void) {
  return screen.open && screen.reads_keys;
}

int ts_screen_signal(void) {
  return ending;
}

/* ---- drawing ---- */

static void remember_line(const ts_frame *from, int i) {
  ts_text *to = &screen.shown.line[i];
  to->length = 0;
  ts_text_append(to, from->line[i].text, from->line[i].length);
  screen.shown.columns[i] = from->columns[i];
}

static bool is_shown(const ts_frame *frame, int i) {
  const ts_text *a = &frame->line[i], *b = &screen.shown.line[i];
  return !screen.fresh && i < screen.shown.n && a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

/* The rest of a line is cleared before its text comes: behind a line as wide as the terminal its end would go, too. */
void ts_screen_draw(const ts_frame *frame) {
  ts_text out = {0};
  if (screen.fresh) {
    ts_text_add(&out, "\033[2J");
  }
  for (int i = 0; i < frame->n; ++i) {
    if (!is_shown(frame, i)) {
      ts_text_add(&out, "\033[%d;1H\033[K", i + 1);
      ts_text_append(&out, frame->line[i].text, frame->line[i].length);
      remember_line(frame, i);
    }
  }
  for (int i = frame->n; i < screen.shown.n && !screen.fresh; ++i) {
    ts_text_add(&out, "\033[%d;1H\033[K", i + 1);
  }
  screen.shown.n = frame->n;
  screen.fresh = false;
  if (out.length > 0) {
    send_text(out.text, out.length);
  }
  ts_text_free(&out);
}

/* ---- waiting ---- */

/* The terminal belongs to the shell until the program goes on. */
static void stop_here(void) {
  sigset_t stop;
  struct sigaction by_default = {.sa_handler = SIG_DFL}, before;
  leave_terminal();
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  sigaction(SIGTSTP, &by_default, &before);
  raise(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, NULL); /* here */
  sigprocmask(SIG_BLOCK, &stop, NULL);
  sigaction(SIGTSTP, &before, NULL);
  stopping = 0;
  take_terminal();
}

static bool read_quit(void) {
  char keys[64];
  ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
  for (ssize_t i = 0; i < n; ++i) {
    if (keys[i] == 'q' || keys[i] == 'Q') {
      return true;
    }
  }
  screen.gone = screen.gone || n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  return false;
}

static ts_screen_event look_for_event(void) {
  if (ending != 0 || screen.gone) {
    return TS_SCREEN_END;
  }
  if (stopping) {
    stop_here();
    return TS_SCREEN_REDRAW;
  }
  if (changed) {
    changed = 0;
    screen.fresh = true;
    return TS_SCREEN_REDRAW;
  }
  return TS_SCREEN_TIME;
}

ts_screen_event ts_screen_wait(double seconds) {
  double until = ts_seconds() + seconds, left = seconds;
  do {
    struct pollfd input = {.fd = screen.reads_keys ? STDIN_FILENO : -1, .events = POLLIN};
    sigset_t inside = inside_mask();
    const struct timespec time = {(time_t) left, (long) ((left - (double) (time_t) left) * 1e9)};
    if (ppoll(&input, 1, &time, &inside) > 0 && read_quit()) {
      return TS_SCREEN_QUIT;
    }
    ts_screen_event event = look_for_event();
    if (event != TS_SCREEN_TIME) {
      return event;
    }
    left = until - ts_seconds();
  } while (left > 0);
  return TS_SCREEN_TIME;
}
