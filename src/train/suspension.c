#include "train/suspension.h"

#include "base/log.h"
#include "base/memory.h"
#include "slurm/squeue.h"
#include "train/lag.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 5.0 /* seconds for Slurm's answer */

static bool is_silent(const ts_run_status *s) {
  for (int i = 0; i < s->n_nodes; ++i) {
    if (s->node[i].age <= ts_lag_silence(s->job.period)) {
      return false;
    }
  }
  return s->n_nodes > 0;
}

/* ---- Slurm ---- */

/* The file is not trusted: a job is a number, of a task of an array two. */
static bool is_job(const char *job) {
  return job[0] != 0 && strspn(job, "0123456789_") == strlen(job);
}

static bool is_suspended_job(const char *job) {
  ts_squeue *squeue = ts_squeue_create(job, "%T");
  const char *answer = NULL;
  double begin = ts_seconds();
  ts_squeue_ask(squeue);
  while (answer == NULL && ts_squeue_is_asked(squeue) && ts_seconds() - begin < PATIENCE) {
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    answer = ts_squeue_poll(squeue);
  }
  bool suspended = answer != NULL && strcmp(answer, "SUSPENDED") == 0;
  ts_squeue_destroy(&squeue);
  return suspended;
}

/* ---- this machine ---- */

/* "NAME", or "NAME.r4" where several nodes have that name. */
static bool is_here(const char *node) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  size_t n = strlen(host);
  return n > 0 && strncmp(node, host, n) == 0 && (node[n] == 0 || strncmp(node + n, ".r", 2) == 0);
}

/* Every process of the run that can be seen from here is stopped, and there is one. */
static bool is_stopped(const ts_run_status *s) {
  int seen = 0;
  for (int i = 0; i < s->n_nodes; ++i) {
    const ts_node_status *node = &s->node[i];
    for (int k = 0; k < node->n && is_here(node->node); ++k, ++seen) {
      if (ts_status_process(node->beat[k].pid) != 'T') {
        return false;
      }
    }
  }
  return seen > 0;
}

char *ts_suspension_find(const ts_run_status *s) {
  if (!is_silent(s)) {
    return NULL;
  }
  if (is_job(s->job.job) && is_suspended_job(s->job.job)) {
    return ts_format("suspended by Slurm: `scontrol resume %s` lets it go on", s->job.job);
  }
  return is_stopped(s) ? ts_strdup("suspended: its processes are stopped; SIGCONT lets them go on") : NULL;
}
