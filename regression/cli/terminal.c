/* A terminal for tests: runs a program on a pseudo-terminal, keeps what it would show, and does to it what users do.
 *
 *   terminal ROWSxCOLUMNS STEP... -- PROGRAM [WORD]...
 *
 *   wait=TEXT   until TEXT is on the screen            size=RxC   make the window larger or smaller
 *   gone=TEXT   until it is not                        key=TEXT   type it
 *   stopped     until the program is stopped           signal=N   send it a signal, by number
 *   show        print the screen, a line a line        state      print what the terminal is set to
 *   run=WORDS   a shell runs them, PROGRAM set         close      the terminal is gone
 *   bytes       print how many came since last asked   deaf       take nothing any more, until the program has ended
 *
 * Then it waits for the end, prints the screen and the state, and how the program ended.  Each step has 20 s; one that
 * takes longer prints "late: STEP" and the screen, and the program is killed.
 *
 * The screen is that of a VT100 as far as it is used: what is not known is counted, and so is text beyond the edge. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 250, COLUMNS = 500, CELL = 8, PATIENCE = 20 };

typedef char page[ROWS][COLUMNS][CELL]; /* a character each, "" for a blank */

static struct {
  int rows, columns, row, column; /* from 0 */
  bool alternate, cursor, wraps;
  int beyond, unknown; /* characters beyond the right edge without wrapping; bytes that mean nothing here */
  page normal, other;
  int saved_row, saved_column;
  char sequence[64]; /* what came since an escape */
  int n_sequence;
  char utf8[CELL];
  int n_utf8, utf8_left;
  long bytes;
} screen = {.cursor = true, .wraps = true};

static int terminal = -1, reports = -1;
static pid_t program;
static bool is_stopped, has_ended, is_deaf;
static int how_it_ended;
static struct termios before;

/* ---- the screen ---- */

static page *shown(void) {
  return screen.alternate ? &screen.other : &screen.normal;
}

static void scroll(void) {
  memmove((*shown())[0], (*shown())[1], sizeof(page) - sizeof(*shown())[0]);
  memset((*shown())[screen.rows - 1], 0, sizeof(*shown())[0]);
}

static void next_row(void) {
  if (screen.row + 1 < screen.rows) {
    ++screen.row;
  } else {
    scroll();
  }
}

static void put_cell(const char *bytes) {
  if (screen.column >= screen.columns && screen.wraps) {
    screen.column = 0;
    next_row();
  }
  if (screen.column >= screen.columns) {
    ++screen.beyond;
    return;
  }
  snprintf((*shown())[screen.row][screen.column], CELL, "%s", bytes);
  ++screen.column;
}

static void set_mode(const char *mode, bool on) {
  if (strcmp(mode, "?25") == 0) {
    screen.cursor = on;
  } else if (strcmp(mode, "?7") == 0) {
    screen.wraps = on;
  } else if (strcmp(mode, "?1049") == 0 && on != screen.alternate) {
    if (on) {
      screen.saved_row = screen.row;
      screen.saved_column = screen.column;
      memset(screen.other, 0, sizeof screen.other);
    } else {
      screen.row = screen.saved_row;
      screen.column = screen.saved_column;
    }
    screen.alternate = on;
  } else if (strcmp(mode, "?1049") != 0) {
    ++screen.unknown;
  }
}

static int within(int value, int most) {
  return value < 0 ? 0 : value > most ? most : value;
}

/* "[12;1H" and the like, behind the escape. */
static void obey(char *sequence, char what) {
  int a = 1, b = 1, n = sscanf(sequence, "%d;%d", &a, &b);
  if (what == 'H') {
    screen.row = within(n > 0 ? a - 1 : 0, screen.rows - 1);
    screen.column = within(n > 1 ? b - 1 : 0, screen.columns - 1);
  } else if (what == 'J' && n == 1 && a == 2) {
    memset(*shown(), 0, sizeof(page));
  } else if (what == 'K' && n < 1) {
    memset((*shown())[screen.row][screen.column], 0, (size_t) (COLUMNS - screen.column) * CELL);
  } else if (what == 'h' || what == 'l') {
    set_mode(sequence, what == 'h');
  } else if (what != 'm') {
    ++screen.unknown;
  }
}

static void take_escape(char c) {
  if (screen.n_sequence == 1 && c != '[') {
    ++screen.unknown;
    screen.n_sequence = 0;
    return;
  }
  screen.sequence[screen.n_sequence++] = c;
  if (screen.n_sequence > 2 && c >= '@' && c <= '~') {
    screen.sequence[screen.n_sequence - 1] = 0;
    obey(screen.sequence + 2, c);
    screen.n_sequence = 0;
  } else if (screen.n_sequence == (int) sizeof screen.sequence) {
    ++screen.unknown;
    screen.n_sequence = 0;
  }
}

static void take_utf8(unsigned char c) {
  if (screen.utf8_left == 0) {
    screen.utf8_left = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    screen.n_utf8 = 0;
  } else if ((c & 0xc0) != 0x80) {
    ++screen.unknown;
  }
  screen.utf8[screen.n_utf8++] = (char) c;
  screen.utf8[screen.n_utf8] = 0;
  if (--screen.utf8_left == 0) {
    bool steers = strncmp(screen.utf8, "\xc2", 1) == 0 && (unsigned char) screen.utf8[1] < 0xa0;
    screen.unknown += steers;
    put_cell(screen.utf8);
  }
}

static void take_byte(unsigned char c) {
  ++screen.bytes;
  if (screen.n_sequence > 0) {
    take_escape((char) c);
  } else if (c == 033) {
    screen.sequence[screen.n_sequence++] = (char) c;
  } else if (c == '\r') {
    screen.column = 0;
  } else if (c == '\n') {
    next_row();
  } else if (c < 0x20 || c == 0x7f) {
    ++screen.unknown;
  } else {
    take_utf8(c);
  }
}

static void row_text(int row, char *to) {
  int last = 0;
  char *at = to;
  for (int i = 0; i < screen.columns; ++i) {
    const char *cell = (*shown())[row][i];
    at += sprintf(at, "%s", cell[0] != 0 ? cell : " ");
    last = cell[0] != 0 && cell[0] != ' ' ? (int) (at - to) : last;
  }
  to[last] = 0;
}

static bool is_on_screen(const char *text) {
  char row[COLUMNS * CELL];
  for (int i = 0; i < screen.rows; ++i) {
    row_text(i, row);
    if (strstr(row, text) != NULL) {
      return true;
    }
  }
  return false;
}

static void show_screen(void) {
  char row[COLUMNS * CELL];
  int last = 0;
  for (int i = 0; i < screen.rows; ++i) {
    row_text(i, row);
    last = row[0] != 0 ? i + 1 : last;
  }
  for (int i = 0; i < last; ++i) {
    row_text(i, row);
    printf("|%s\n", row);
  }
}

/* ---- the program ---- */

/* What a shell is to it: the leader of its session, who is told when it stops. */
static void lead(int slave, int report, char **words) {
  close(terminal);
  setsid();
  ioctl(slave, TIOCSCTTY, 0);
  signal(SIGTTOU, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  int status = 0;
  pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    tcsetpgrp(slave, getpid());
    signal(SIGTTOU, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    dup2(slave, 0);
    dup2(slave, 1);
    dup2(slave, 2);
    execvp(words[0], words);
    _exit(127);
  }
  setpgid(child, child);
  close(slave);
  dprintf(report, "%d p\n", (int) child);
  while (waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status)) {
    dprintf(report, "0 s\n");
  }
  dprintf(report, "%d e\n", status);
  _exit(0);
}

static void set_size(int rows, int columns) {
  const struct winsize size = {.ws_row = (unsigned short) rows, .ws_col = (unsigned short) columns};
  screen.rows = within(rows, ROWS);
  screen.columns = within(columns, COLUMNS);
  screen.row = within(screen.row, screen.rows - 1);
  ioctl(terminal, TIOCSWINSZ, &size);
}

static void start(int rows, int columns, char **words) {
  int report[2];
  terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0 || pipe(report) != 0) {
    perror("terminal");
    exit(99);
  }
  int slave = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  tcgetattr(slave, &before);
  set_size(rows, columns);
  if (fork() == 0) {
    close(report[0]);
    lead(slave, report[1], words);
  }
  close(slave);
  close(report[1]);
  reports = report[0];
}

static void take_report(void) {
  char text[64];
  int value;
  char what;
  ssize_t n = 0;
  while (n < (ssize_t) sizeof text - 1 && read(reports, text + n, 1) == 1 && text[n] != '\n') {
    ++n;
  }
  text[n] = 0;
  if (sscanf(text, "%d %c", &value, &what) == 2) {
    program = what == 'p' ? (pid_t) value : program;
    is_stopped = what == 's' || (is_stopped && what != 'e');
    has_ended = has_ended || what == 'e';
    how_it_ended = what == 'e' ? value : how_it_ended;
  }
}

/* Take what comes within some milliseconds; false when nothing is shown. */
static bool look(int milliseconds) {
  struct pollfd from[] = {{.fd = is_deaf && !has_ended ? -1 : terminal, .events = POLLIN},
                          {.fd = has_ended ? -1 : reports, .events = POLLIN}};
  if (poll(from, 2, milliseconds) <= 0) {
    return false;
  }
  ssize_t n_read = 0;
  if (from[0].revents != 0) {
    unsigned char bytes[4096];
    n_read = read(terminal, bytes, sizeof bytes);
    for (ssize_t i = 0; i < n_read; ++i) {
      take_byte(bytes[i]);
    }
    if (n_read <= 0) { /* all ends of it are closed */
      nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
  }
  if (from[1].revents != 0) {
    take_report();
  }
  return n_read > 0;
}

static void tell_state(void) {
  struct termios now = before;
  bool same = terminal < 0 || (tcgetattr(terminal, &now) == 0 && now.c_lflag == before.c_lflag &&
                               now.c_iflag == before.c_iflag && now.c_oflag == before.c_oflag &&
                               now.c_cc[VMIN] == before.c_cc[VMIN] && now.c_cc[VTIME] == before.c_cc[VTIME]);
  printf("cursor %s, screen %s, wraps %s, settings %s, beyond %d, unknown %d\n", screen.cursor ? "shown" : "hidden",
         screen.alternate ? "alternate" : "normal", screen.wraps ? "on" : "off", same ? "same" : "changed",
         screen.beyond, screen.unknown);
}

/* ---- steps ---- */

static bool came_true(const char *step) {
  return strncmp(step, "wait=", 5) == 0   ? is_on_screen(step + 5)
         : strncmp(step, "gone=", 5) == 0 ? !is_on_screen(step + 5)
         : strcmp(step, "stopped") == 0   ? is_stopped
                                          : has_ended;
}

static void give_up(const char *step) {
  printf("late: %s\n", step);
  show_screen();
  tell_state();
  kill(program, SIGKILL);
  exit(1);
}

static void wait_until(const char *step) {
  time_t begin = time(NULL);
  while (!came_true(step)) {
    if (time(NULL) - begin > PATIENCE || (has_ended && strcmp(step, "end") != 0 && time(NULL) - begin > 1)) {
      give_up(step);
    }
    look(20);
  }
  for (int i = 0; i < 100 && look(30); ++i) { /* what is being drawn is drawn to its end */
  }
}

static void do_step(const char *step) {
  int a, b;
  char number[16];
  if (sscanf(step, "size=%dx%d", &a, &b) == 2) {
    set_size(a, b);
  } else if (strncmp(step, "key=", 4) == 0) {
    dprintf(terminal, "%s", step + 4);
  } else if (sscanf(step, "signal=%d", &a) == 1) {
    is_stopped = false;
    kill(program, a);
  } else if (strncmp(step, "run=", 4) == 0) {
    snprintf(number, sizeof number, "%d", (int) program);
    setenv("PROGRAM", number, 1);
    fflush(stdout);
    printf("ran: %d\n", system(step + 4));
  } else if (strcmp(step, "show") == 0) {
    show_screen();
  } else if (strcmp(step, "state") == 0) {
    tell_state();
  } else if (strcmp(step, "bytes") == 0) {
    printf("bytes %ld\n", screen.bytes);
    screen.bytes = 0;
  } else if (strcmp(step, "deaf") == 0) {
    is_deaf = true;
  } else if (strcmp(step, "close") == 0) {
    close(terminal);
    terminal = -1;
  } else {
    wait_until(step);
  }
}

int main(int argc, char **argv) {
  int rows = 0, columns = 0, first = 2;
  while (first < argc && strcmp(argv[first], "--") != 0) {
    ++first;
  }
  if (first + 1 >= argc || sscanf(argv[1], "%dx%d", &rows, &columns) != 2) {
    fprintf(stderr, "usage: terminal ROWSxCOLUMNS STEP... -- PROGRAM [WORD]...\n");
    return 2;
  }
  start(rows, columns, argv + first + 1);
  for (int i = 2; i < first; ++i) {
    do_step(argv[i]);
  }
  wait_until("end");
  for (int i = 0; i < 20 && terminal >= 0; ++i) { /* what it wrote last */
    look(5);
  }
  show_screen();
  tell_state();
  printf(WIFSIGNALED(how_it_ended) ? "signal %d\n" : "exit %d\n",
         WIFSIGNALED(how_it_ended) ? WTERMSIG(how_it_ended) : WEXITSTATUS(how_it_ended));
  return 0;
}
