#include "slurm/time_left.h"

#include "base/memory.h"
#include "base/text.h"
#include "slurm/squeue.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ts_time_left {
  ts_squeue *squeue;
  double end_time; /* SLURM_JOB_END_TIME, told once; 0 for none */
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
  char *name = name_job(job);
  a->squeue = ts_squeue_create(name, "%L");
  a->end_time = job != NULL && end != NULL ? atof(end) : 0;
  ts_free(name);
  return a;
}

void ts_time_left_ask(ts_time_left *a) {
  ts_squeue_ask(a->squeue);
}

bool ts_time_left_poll(ts_time_left *a, double *seconds) {
  const char *answer = ts_squeue_poll(a->squeue);
  if (answer != NULL && ts_time_left_parse(answer, seconds)) {
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
  if (*asker != NULL) {
    ts_squeue_destroy(&(*asker)->squeue);
  }
  ts_free(*asker);
  *asker = NULL;
}
