#include "slurm/time_left.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 30.0 /* seconds for an answer: squeue itself gives up after some 10 to 100 */

extern char **environ;

struct ts_time_left {
  char *job;
  double end_time;   /* SLURM_JOB_END_TIME, told once; 0 for none */
  pid_t child;       /* 0: none */
  int out;           /* what the child prints */
  double asked;
  char answer[64];
  size_t length;
};

/* ---- the text ---- */

/* One number of the text and what must follow it; NULL when it is not there. */
static const char *read_number(const char *at, double *value) {
  double sum = 0;
  const char *first = at;
  while (*at >= '0' && *at <= '9' && at - first < 9) {
    sum = 10 * sum + (*at++ - '0');
  }
  *value = sum;
  return at > first ? at : NULL;
}

bool ts_time_left_parse(const char *text, double *seconds) {
  double days = 0, field[3];
  int n = 0;
  if (strcmp(text, "UNLIMITED") == 0) {
    *seconds = INFINITY;
    return true;
  }
  const char *at = read_number(text, &field[0]);
  if (at != NULL && *at == '-') {
    days = field[0];
    at = read_number(at + 1, &field[0]);
  }
  for (n = 1; at != NULL && *at == ':' && n < 3; ++n) {
    at = read_number(at + 1, &field[n]);
    if (at != NULL && field[n] >= 60) {
      return false;
    }
  }
  if (at == NULL || *at != 0 || n < 2 || (days > 0 && n < 3)) {
    return false;
  }
  *seconds = n == 3 ? ((24 * days + field[0]) * 60 + field[1]) * 60 + field[2] : 60 * field[0] + field[1];
  return true;
}

/* ---- asking ---- */

/* Of a task of an array the id may be the whole array's: the last task's is. */
static char *name_job(const char *job) {
  const char *array = getenv("SLURM_ARRAY_JOB_ID"), *task = getenv("SLURM_ARRAY_TASK_ID");
  return job != NULL && array != NULL && task != NULL ? ts_format("%s_%s", array, task) : ts_strdup(job);
}

ts_time_left *ts_time_left_create(const char *job) {
  ts_time_left *a = ts_calloc(1, sizeof *a);
  const char *end = getenv("SLURM_JOB_END_TIME");
  a->job = name_job(job);
  a->end_time = job != NULL && end != NULL ? atof(end) : 0;
  a->out = -1;
  return a;
}

static void forget(ts_time_left *a) {
  if (a->out >= 0) {
    close(a->out);
  }
  a->out = -1;
  a->child = 0;
}

/* The child begins with no signal blocked, in a group of its own: it has nothing to do with the run's. */
static int spawn(ts_time_left *a, int out) {
  char *words[] = {"squeue", "-h", "-j", a->job, "-o", "%L", NULL};
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

void ts_time_left_ask(ts_time_left *a) {
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
    forget(a);
    if (error == ENOENT) { /* not there: nobody asks again */
      ts_free(a->job);
      a->job = NULL;
    }
  }
}

static void kill_child(ts_time_left *a) {
  kill(-a->child, SIGKILL); /* with what it started itself */
  waitpid(a->child, NULL, 0);
  forget(a);
}

/* The child is done, or is given up. */
static bool take_answer(ts_time_left *a, double *seconds) {
  ssize_t n = read(a->out, a->answer + a->length, sizeof a->answer - 1 - a->length);
  a->length += n > 0 ? (size_t) n : 0;
  int status;
  if (waitpid(a->child, &status, WNOHANG) == 0) {
    if (ts_seconds() - a->asked > PATIENCE) {
      kill_child(a);
    }
    return false;
  }
  n = read(a->out, a->answer + a->length, sizeof a->answer - 1 - a->length);
  a->length += n > 0 ? (size_t) n : 0;
  a->answer[a->length] = 0;
  a->answer[strcspn(a->answer, "\n")] = 0;
  forget(a);
  return ts_time_left_parse(a->answer + strspn(a->answer, " "), seconds);
}

bool ts_time_left_poll(ts_time_left *a, double *seconds) {
  if (a->child != 0 && take_answer(a, seconds)) {
    return true;
  }
  if (a->end_time > 0) {
    *seconds = a->end_time - (double) time(NULL);
    a->end_time = 0;
    return true;
  }
  return false;
}

void ts_time_left_destroy(ts_time_left **asker) {
  ts_time_left *a = *asker;
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
