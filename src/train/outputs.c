#include "train/outputs.h"

#include "base/memory.h"
#include "io/jobs.h"
#include "io/run_mark.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* What the program itself writes into a run's directory, or `tessera report` beside it: a name, or what it begins with,
 * up to '*'. */
static const char *const own_names[] = {
    ".*",     "STOP",     "algorithms.txt", "comms.csv", "deck.cfg",   "digests.csv",    "events",    "jobs.jsonl",
    "latest", "latest.*", "loss.svg",       "log.txt",   "memory.csv", "metrics.csv",    "moe.csv",   "report.html",
    "status", "step_*",   "validation.csv", TS_RUN_MARK, TS_RUN_FROM,  TS_RUN_TOKENIZER, TS_RUN_MODEL};

/* A file that the deck names. */
typedef struct output {
  const char *key;
  size_t job; /* where a ts_job has its path */
} output;

static const output timeline = {"profile.timeline", offsetof(ts_job, timeline)};
static const output report = {"flops_profiler.output_file", offsetof(ts_job, flops_report)};

/* The path from a directory on; NULL: it is not in there.  Both are full. */
static const char *path_within(const char *directory, const char *full) {
  size_t length = strlen(directory);
  bool within = strncmp(full, directory, length) == 0 && full[length] == '/';
  return within ? full + length + 1 : NULL;
}

static bool is_own_name(const char *within) {
  const size_t length = strcspn(within, "/");
  for (size_t i = 0; i < sizeof own_names / sizeof own_names[0]; ++i) {
    const size_t same = strcspn(own_names[i], "*");
    if (strncmp(within, own_names[i], same) == 0 && (own_names[i][same] == '*' || same == length)) {
      return true;
    }
  }
  return false;
}

/* Has a job of this run named it? */
static bool was_named(const ts_training *r, const output *o, const char *full) {
  ts_job *jobs = NULL;
  int n = 0;
  bool named = false;
  if (r->resume.same_run || r->resume.over) { /* what cannot be read names nothing */
    ts_jobs_read(r->deck->run.directory, &jobs, &n, NULL);
  }
  for (int i = 0; i < n && !named; ++i) {
    const char *path = *(char *const *) ((const char *) &jobs[i] + o->job);
    char *there = ts_full_path(path != NULL ? path : "");
    named = strcmp(there, full) == 0;
    ts_free(there);
  }
  ts_jobs_free(&jobs, n);
  return named;
}

/* The directory of the run itself may not be there yet. */
static ts_status check_parent(const ts_training *r, const output *o, const char *path, const char *full,
                              ts_error *err) {
  char *run = ts_full_path(r->deck->run.directory), *parent = ts_strdup(full);
  *strrchr(parent, '/') = 0;
  bool fine = strcmp(parent, run) == 0 || access(parent[0] != 0 ? parent : "/", W_OK) == 0;
  ts_status status =
      fine ? TS_OK : ts_deck_error(r->deck, o->key, err, "%s: cannot be written: %s", path, strerror(errno));
  ts_free(parent);
  ts_free(run);
  return status;
}

/* \a mine is this rank's file of what the deck calls \a path. */
static ts_status check_output_file(const ts_training *r, const output *o, const char *path, const char *mine,
                                   ts_error *err) {
  char *run = ts_full_path(r->deck->run.directory), *named = ts_full_path(path), *full = ts_full_path(mine);
  const char *within = path_within(run, full);
  ts_status status;
  if (strcmp(full, run) == 0 || (within != NULL && is_own_name(within))) {
    status = ts_deck_error(r->deck, o->key, err, "%s is a name that the run itself uses; choose another one", mine);
  } else if (access(mine, F_OK) == 0 && !was_named(r, o, named)) {
    status = ts_deck_error(r->deck, o->key, err, "%s exists already; a run never writes over another file", mine);
  } else {
    status = check_parent(r, o, mine, full, err);
  }
  ts_free(run);
  ts_free(named);
  ts_free(full);
  return status;
}

/* A report that is the timeline of some rank, by its path. */
static ts_status check_two(const ts_deck *deck, ts_error *err) {
  char *trace = ts_full_path(deck->profile.timeline), *text = ts_full_path(deck->flops_profiler.output_file);
  size_t length = strlen(trace);
  ts_status status = TS_OK;
  if (length > 0 && strncmp(text, trace, length) == 0) {
    const char *rest = text + length;
    bool rank = strncmp(rest, ".rank", 5) == 0 && rest[5] != 0 && rest[5 + strspn(rest + 5, "0123456789")] == 0;
    if (rest[0] == 0 || rank) {
      status = ts_deck_error(deck, report.key, err, "%s is a file of profile.timeline; choose another one",
                             deck->flops_profiler.output_file);
    }
  }
  ts_free(trace);
  ts_free(text);
  return status;
}

ts_status ts_outputs_check(const ts_training *r, ts_error *err) {
  const ts_deck *deck = r->deck;
  const char *trace = deck->profile.timeline, *text = deck->flops_profiler.output_file;
  bool reports = deck->flops_profiler.enabled && text[0] != 0 && r->rank == 0;
  char *mine = r->rank == 0 ? ts_strdup(trace) : ts_format("%s.rank%lld", trace, (long long) r->rank);
  ts_status status = trace[0] != 0 ? check_output_file(r, &timeline, trace, mine, err) : TS_OK;
  status = status == TS_OK && reports ? check_output_file(r, &report, text, text, err) : status;
  status = status == TS_OK && reports ? check_two(deck, err) : status;
  ts_free(mine);
  return status;
}
