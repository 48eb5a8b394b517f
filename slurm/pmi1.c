#include "slurm/pmi1.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINE = 2048 }; /* a put: 256 of names, the longest key and value */

typedef struct pair {
  char *key, *value; /* one allocation; NULL: an empty place */
} pair;

struct ts_pmi1 {
  ts_pmi1_store store;
  pthread_t thread;
  int mine, theirs; /* the two ends of the socket pair; MPI closes theirs when it has finished */
  bool running;     /* there is a thread */
  bool finished;    /* MPI has said so */
  int size, round;
  ts_text fresh; /* "key=value\n" of what was put since the last exchange */
  pair *table;   /* open addressing, a power of two places, at most half full */
  size_t places, n_pairs;
};

/* ---- what all ranks have put ---- */

static uint64_t hash(const char *key) {
  uint64_t h = 14695981039346656037u;
  for (; *key != 0; ++key) {
    h = (h ^ (unsigned char) *key) * 1099511628211u;
  }
  return h;
}

static pair *place_of(pair *table, size_t places, const char *key) {
  size_t at = hash(key) & (places - 1);
  while (table[at].key != NULL && strcmp(table[at].key, key) != 0) {
    at = (at + 1) & (places - 1);
  }
  return &table[at];
}

static void grow(ts_pmi1 *p) {
  size_t places = p->places > 0 ? 2 * p->places : 64;
  pair *table = ts_calloc(places, sizeof *table);
  for (size_t i = 0; i < p->places; ++i) {
    if (p->table[i].key != NULL) {
      *place_of(table, places, p->table[i].key) = p->table[i];
    }
  }
  ts_free(p->table);
  p->table = table;
  p->places = places;
}

static void remember(ts_pmi1 *p, const char *key, size_t key_length, const char *value, size_t value_length) {
  if (2 * (p->n_pairs + 1) > p->places) {
    grow(p);
  }
  pair new = {.key = ts_malloc(key_length + value_length + 2)};
  new.value = new.key + key_length + 1;
  memcpy(new.key, key, key_length);
  memcpy(new.value, value, value_length);
  new.key[key_length] = new.value[value_length] = 0;
  pair *at = place_of(p->table, p->places, new.key);
  p->n_pairs += at->key == NULL;
  ts_free(at->key);
  *at = new;
}

static const char *recall(const ts_pmi1 *p, const char *key) {
  return p->places > 0 ? place_of(p->table, p->places, key)->value : NULL;
}

/* One rank's lines "key=value\n" of an exchange. */
static bool take_lines(void *taker, int rank, const char *text, size_t length) {
  (void) rank;
  for (const char *end = text + length; text < end;) {
    const char *newline = memchr(text, '\n', (size_t) (end - text));
    const char *equals = newline != NULL ? memchr(text, '=', (size_t) (newline - text)) : NULL;
    if (equals == NULL || equals == text || equals - text >= TS_PMI1_KEY || newline - equals > TS_PMI1_VALUE) {
      return false;
    }
    remember(taker, text, (size_t) (equals - text), equals + 1, (size_t) (newline - equals - 1));
    text = newline + 1;
  }
  return true;
}

/* ---- the protocol ---- */

/* The value of NAME=VALUE in \a line, up to a blank or its end.
 * \return false when it is not there or has \a limit bytes or more. */
static bool argument(const char *line, const char *name, char *out, size_t limit) {
  size_t n = strlen(name);
  for (const char *at = line; (at = strstr(at, name)) != NULL; at += n) {
    if (at > line && at[-1] == ' ' && at[n] == '=') {
      size_t length = strcspn(at + n + 1, " ");
      if (length >= limit) {
        return false;
      }
      memcpy(out, at + n + 1, length);
      out[length] = 0;
      return true;
    }
  }
  return false;
}

static bool say(ts_pmi1 *p, const char *text) {
  for (size_t left = strlen(text); left > 0;) {
    ssize_t n = send(p->mine, text, left, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) {
      return false;
    }
    text += n > 0 ? n : 0;
    left -= n > 0 ? (size_t) n : 0;
  }
  return true;
}

static bool on_init(ts_pmi1 *p, const char *line) {
  (void) line;
  return say(p, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
}

static bool on_maxes(ts_pmi1 *p, const char *line) {
  (void) line;
  char text[96];
  snprintf(text, sizeof text, "cmd=maxes kvsname_max=64 keylen_max=%d vallen_max=%d\n", TS_PMI1_KEY, TS_PMI1_VALUE);
  return say(p, text);
}

static bool on_appnum(ts_pmi1 *p, const char *line) {
  (void) line;
  return say(p, "cmd=appnum appnum=0\n");
}

static bool on_universe_size(ts_pmi1 *p, const char *line) {
  (void) line;
  char text[64];
  snprintf(text, sizeof text, "cmd=universe_size size=%d\n", p->size);
  return say(p, text);
}

static bool on_kvsname(ts_pmi1 *p, const char *line) {
  (void) line;
  return say(p, "cmd=my_kvsname kvsname=tessera\n");
}

static bool on_put(ts_pmi1 *p, const char *line) {
  char key[TS_PMI1_KEY], value[TS_PMI1_VALUE];
  if (!argument(line, "key", key, sizeof key) || key[0] == 0 || strchr(key, '=') != NULL ||
      !argument(line, "value", value, sizeof value)) {
    return say(p, "cmd=put_result rc=-1 msg=key_or_value_missing_or_too_long\n");
  }
  remember(p, key, strlen(key), value, strlen(value));
  ts_text_add(&p->fresh, "%s=%s\n", key, value);
  return say(p, "cmd=put_result rc=0 msg=success\n");
}

static bool on_get(ts_pmi1 *p, const char *line) {
  char key[TS_PMI1_KEY], text[TS_PMI1_VALUE + 64];
  const char *value = argument(line, "key", key, sizeof key) ? recall(p, key) : NULL;
  if (value == NULL) {
    return say(p, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
  }
  snprintf(text, sizeof text, "cmd=get_result rc=0 msg=success value=%s\n", value);
  return say(p, text);
}

static bool on_barrier(ts_pmi1 *p, const char *line) {
  (void) line;
  const char *mine = p->fresh.text != NULL ? p->fresh.text : "";
  bool exchanged = p->store.exchange(p->store.context, p->round++, mine, p->fresh.length, take_lines, p);
  ts_text_free(&p->fresh);
  return say(p, exchanged ? "cmd=barrier_out rc=0\n" : "cmd=barrier_out rc=-1\n") && exchanged;
}

static bool on_finalize(ts_pmi1 *p, const char *line) {
  (void) line;
  p->finished = true;
  say(p, "cmd=finalize_ack\n");
  return false;
}

static bool on_abort(ts_pmi1 *p, const char *line) {
  char code[16] = "1";
  argument(line, "exitcode", code, sizeof code);
  p->store.abort(p->store.context, atoi(code), "MPI_Abort");
  return false;
}

static bool on_refused(ts_pmi1 *p, const char *line) {
  char text[LINE + 96];
  int n = (int) strcspn(line, " ");
  snprintf(text, sizeof text, "cmd=%.*s_result rc=-1 info=no msg=not_supported_under_this_launcher\n", n - 4, line + 4);
  return say(p, text);
}

static const struct {
  const char *command;
  bool (*on)(ts_pmi1 *p, const char *line); /* false: the service ends */
} commands[] = {
    {"init", on_init},
    {"get_maxes", on_maxes},
    {"get_appnum", on_appnum},
    {"get_universe_size", on_universe_size},
    {"get_my_kvsname", on_kvsname},
    {"put", on_put},
    {"get", on_get},
    {"barrier_in", on_barrier},
    {"finalize", on_finalize},
    {"abort", on_abort},
};

static bool answer(ts_pmi1 *p, const char *line) {
  if (strncmp(line, "cmd=", 4) != 0) {
    return false; /* mcmd=spawn, the only command of several lines, or no PMI-1 at all */
  }
  size_t n = strcspn(line + 4, " ");
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
    if (strlen(commands[i].command) == n && strncmp(line + 4, commands[i].command, n) == 0) {
      return commands[i].on(p, line);
    }
  }
  return on_refused(p, line);
}

/* Read lines until the service ends, by either side or by a line that is too long. */
static void serve(ts_pmi1 *p) {
  char buffer[LINE];
  size_t filled = 0;
  for (;;) {
    ssize_t n = read(p->mine, buffer + filled, sizeof buffer - filled);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return;
    }
    filled += (size_t) n;
    char *line = buffer, *newline;
    while ((newline = memchr(line, '\n', filled - (size_t) (line - buffer))) != NULL) {
      *newline = 0;
      if (!answer(p, line)) {
        return;
      }
      line = newline + 1;
    }
    filled -= (size_t) (line - buffer);
    memmove(buffer, line, filled);
    if (filled == sizeof buffer) {
      return;
    }
  }
}

/* MPI, should it wait for an answer, reads the end of the stream and gives up with a message of its own. */
static void *run_bridge(void *pmi1) {
  serve(pmi1);
  shutdown(((ts_pmi1 *) pmi1)->mine, SHUT_RDWR);
  return NULL;
}

/* ---- beginning and end ---- */

static void set_number(const char *variable, int number) {
  char text[16];
  snprintf(text, sizeof text, "%d", number);
  setenv(variable, text, 1);
}

/* Signals are for the threads of the program. */
static bool start_bridge(ts_pmi1 *p) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&p->thread, NULL, run_bridge, p) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

ts_pmi1 *ts_pmi1_start(int rank, int size, const char *mapping, const ts_pmi1_store *store) {
  int ends[2];
  if (getenv("PMI_FD") != NULL || getenv("PMI_PORT") != NULL ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return NULL;
  }
  ts_pmi1 *p = ts_calloc(1, sizeof *p);
  *p = (ts_pmi1){.store = *store, .size = size, .mine = ends[0], .theirs = ends[1]};
  if (mapping != NULL && strlen(mapping) < TS_PMI1_VALUE) {
    remember(p, "PMI_process_mapping", strlen("PMI_process_mapping"), mapping, strlen(mapping));
  }
  set_number("PMI_FD", ends[1]);
  set_number("PMI_RANK", rank);
  set_number("PMI_SIZE", size);
  p->running = start_bridge(p);
  if (!p->running) {
    ts_pmi1_stop(&p);
  }
  return p;
}

void ts_pmi1_stop(ts_pmi1 **pmi1) {
  static const char *const variables[] = {"PMI_FD", "PMI_RANK", "PMI_SIZE"};
  ts_pmi1 *p = *pmi1;
  if (p == NULL) {
    return;
  }
  shutdown(p->mine, SHUT_RDWR);
  if (p->running) {
    pthread_join(p->thread, NULL);
  }
  close(p->mine);
  if (!p->finished) {
    close(p->theirs);
  }
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; ++i) {
    unsetenv(variables[i]);
  }
  for (size_t i = 0; i < p->places; ++i) {
    ts_free(p->table[i].key);
  }
  ts_free(p->table);
  ts_text_free(&p->fresh);
  ts_free(p);
  *pmi1 = NULL;
}
