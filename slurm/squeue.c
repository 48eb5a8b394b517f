#include "slurm/squeue.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE 30.0 /* seconds for an answer: squeue itself gives up after some 10 to 100 */

extern char **environ;

struct ts_squeue {
  char *job;
  const char *format;
  pid_t child; /* 0: none */
  int out;     /* what the child prints */
  double asked;
  char answer[TS_SQUEUE_ANSWER];
  size_t length;
};

ts_squeue *ts_squeue_create(const char *job, const char *format) {
  ts_squeue *a = ts_calloc(1, sizeof *a);
  a->job = ts_strdup(job);
  a->format = format;
  a->out = -1;
  return a;
}

static void forget_child(ts_squeue *a) {
  if (a->out >= 0) {
    close(a->out);
  }
  a->out = -1;
  a->child = 0;
}

/* The child begins with no signal blocked, in a group of its own: it has nothing to do with the run's. */
static int spawn(ts_squeue *a, int out) {
  char *words[] = {"squeue", "-h", "-j", a->job, "-o", (char *) a->format, NULL};
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  sigset_t none;
  sigemptyset(&none);
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  int error = posix_spawnp(&a->child, words[0], &files, &attributes, words, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

void ts_squeue_ask(ts_squeue *a) {
  int ends[2];
  if (a->job == NULL || a->child != 0 || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return;
  }
  a->out = ends[0];
  a->length = 0;
  a->asked = ts_seconds();
  int error = spawn(a, ends[1]);
  close(ends[1]);
  if (error != 0) {
    forget_child(a);
    if (error == ENOENT) { /* not there: nobody asks again */
      ts_free(a->job);
      a->job = NULL;
    }
  }
}

static void kill_child(ts_squeue *a) {
  kill(-a->child, SIGKILL); /* with what it started itself */
  waitpid(a->child, NULL, 0);
  forget_child(a);
}

bool ts_squeue_is_asked(const ts_squeue *a) {
  return a->child != 0;
}

static void read_some(ts_squeue *a) {
  ssize_t n = read(a->out, a->answer + a->length, sizeof a->answer - 1 - a->length);
  a->length += n > 0 ? (size_t) n : 0;
}

const char *ts_squeue_poll(ts_squeue *a) {
  int status;
  if (a->child == 0) {
    return NULL;
  }
  read_some(a);
  if (waitpid(a->child, &status, WNOHANG) == 0) {
    if (ts_seconds() - a->asked > PATIENCE) {
      kill_child(a);
    }
    return NULL;
  }
  read_some(a);
  a->answer[a->length] = 0;
  a->answer[strcspn(a->answer, "\n")] = 0;
  forget_child(a);
  return a->answer + strspn(a->answer, " ");
}

void ts_squeue_destroy(ts_squeue **asker) {
  ts_squeue *a = *asker;
  if (a == NULL) {
    return;
  }
  if (a->child != 0) {
    kill_child(a);
  }
  ts_free(a->job);
  ts_free(a);
  *asker = NULL;
}
