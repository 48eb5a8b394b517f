#include "tune/walks.h"

#include "base/log.h"
#include "base/memory.h"
#include "deck/deck_read.h"
#include "engine/workings.h"
#include "run/cuts.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a deck ---- */

ts_status ts_tune_read(const ts_tune_job *job, const ts_candidate *c, ts_deck **deck, ts_mesh *mesh, ts_error *err) {
  char *own[TS_TUNED_SETS];
  int n = ts_candidate_sets(job->space, c, own);
  char **sets = ts_malloc(((size_t) (job->n_sets + n) + 1) * sizeof *sets);
  for (int i = 0; i < job->n_sets; ++i) {
    sets[i] = job->sets[i];
  }
  memcpy(sets + job->n_sets, own, (size_t) n * sizeof *own);
  ts_status status = ts_deck_read(job->path, sets, job->n_sets + n, deck, err);
  status = status == TS_OK ? ts_deck_mesh(*deck, job->space->ranks, 0, mesh, err) : status;
  status = status == TS_OK ? ts_deck_resolve_batch(*deck, ts_mesh_group_size(mesh, TS_AXES_BATCH), err) : status;
  for (int i = 0; i < n; ++i) {
    ts_free(own[i]);
  }
  ts_free(sets);
  return status;
}

static void keep_reason(ts_tried *t, ts_tried_how how, const ts_error *err) {
  t->how = how;
  enum { LONG = 200 };
  const char *text = err->text != NULL ? err->text : "", *from = "--set: "; /* which nobody has written */
  text += strncmp(text, from, strlen(from)) == 0 ? strlen(from) : 0;
  int length = (int) strcspn(text, "\n");
  snprintf(t->why, sizeof t->why, "%.*s%s", length < LONG ? length : LONG, text, length < LONG ? "" : "...");
}

/* ---- a walk ---- */

/* The stages' programs, as far as they fit. */
static bool make_programs(const ts_program_options *options, int64_t memory, ts_stage_programs *s, ts_tried *t) {
  *s = (ts_stage_programs){.n = options->mesh->size[TS_AXIS_PP]};
  s->program = ts_calloc((size_t) s->n, sizeof *s->program);
  for (int i = 0; i < s->n; ++i) {
    s->program[i] = ts_stage_program_create(options, i);
    int64_t bytes = s->program[i]->plan->peak_bytes;
    t->bytes = bytes > t->bytes ? bytes : t->bytes;
    if (memory > 0 && bytes > memory) {
      t->how = TS_TRIED_LARGE;
      return false;
    }
  }
  return true;
}

static void walk_programs(const ts_stage_programs *s, const ts_timing *timing, ts_tried *t) {
  for (ts_end end = 0; (int) end < timing->ends; ++end) {
    ts_clock clock = ts_timing_walk(s, timing, end, NULL, NULL);
    const ts_clock_stage *busiest = ts_clock_busiest(&clock);
    t->step[end] = clock.step;
    if (end == TS_END_FAST) {
      t->computing = busiest->computing + busiest->host;
      t->exposed = busiest->exposed;
      t->neighbours = busiest->neighbours;
      t->waited = busiest->waited;
      t->bubble = clock.bubble;
    }
    ts_clock_clear(&clock);
  }
  t->how = TS_TRIED_FITS;
}

static void try_one(const ts_tune_job *job, ts_tried *t) {
  ts_deck *deck = NULL;
  ts_mesh mesh;
  ts_error err = {0};
  const ts_backend *backend;
  ts_program_options options;
  ts_stage_programs stages;
  ts_status status = ts_tune_read(job, &t->candidate, &deck, &mesh, &err);
  status = status == TS_OK ? ts_engine_choose_target(job->target, deck, &backend, &err) : status;
  if (status == TS_OK) {
    options = (ts_program_options){.deck = deck,
                                   .mesh = &mesh,
                                   .target = {backend, job->threads, ts_engine_cudnn_use(deck, backend)},
                                   .use = TS_MODEL_TRAIN,
                                   .batch = deck->train_micro_batch_size_per_gpu,
                                   .length = deck->data.sequence_length,
                                   .memory = job->memory};
    status = ts_program_check(&options, &err);
  }
  if (status != TS_OK) {
    keep_reason(t, TS_TRIED_REFUSED, &err);
  } else {
    (void) ts_cuts_decide(&options, deck, job->memory, &err); /* the stages say what does not fit */
    if (make_programs(&options, job->memory, &stages, t)) {
      walk_programs(&stages, job->timing, t);
    }
    ts_stage_programs_clear(&stages);
  }
  ts_error_clear(&err);
  ts_deck_destroy(&deck);
}

/* ---- processes ---- */

/* A process that tries one and writes it to a pipe. \return the pipe's end; a negative errno: none could be had. */
static int begin(const ts_tune_job *job, const ts_tried *t, pid_t *child) {
  int ends[2];
  fflush(NULL);
  if (pipe(ends) != 0) {
    return -errno;
  }
  *child = fork();
  if (*child == 0) {
    int nothing = open("/dev/null", O_WRONLY);
    ts_tried mine = *t;
    close(ends[0]);
    dup2(nothing, STDERR_FILENO);
    dup2(nothing, STDOUT_FILENO);
    try_one(job, &mine);
    ssize_t written = write(ends[1], &mine, sizeof mine);
    _exit(written == (ssize_t) sizeof mine ? 0 : 1);
  }
  int error = errno;
  close(ends[1]);
  if (*child < 0) {
    close(ends[0]);
    return -error;
  }
  return ends[0];
}

/* A row is far smaller than what a pipe takes at a time, but a signal may cut it. */
static bool read_tried(int from, void *to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = read(from, (char *) to + done, bytes - done);
    if (n <= 0 && !(n < 0 && errno == EINTR)) {
      return false;
    }
    done += n > 0 ? (size_t) n : 0;
  }
  return true;
}

static void end(int from, pid_t child, ts_tried *t) {
  ts_tried seen;
  int how = 1 << 8;
  bool whole = from >= 0 && read_tried(from, &seen, sizeof seen);
  if (from >= 0) {
    close(from);
    waitpid(child, &how, 0);
  }
  if (whole) {
    *t = seen;
    return;
  }
  t->how = TS_TRIED_FAILED;
  if (from < 0) {
    snprintf(t->why, sizeof t->why, "no process could be started for it: %s", strerror(-from));
  } else if (WIFSIGNALED(how)) {
    snprintf(t->why, sizeof t->why, "planning it ended by signal %d (%s)", WTERMSIG(how), strsignal(WTERMSIG(how)));
  } else {
    snprintf(t->why, sizeof t->why, "planning it ended with exit code %d", WEXITSTATUS(how));
  }
}

void ts_tune_walk(const ts_tune_job *job, ts_tried *tried, int n, int most) {
  pid_t *child = ts_calloc((size_t) n + 1, sizeof *child);
  int *from = ts_calloc((size_t) n + 1, sizeof *from);
  int begun = 0;
  most = most > 0 ? most : 1;
  for (int i = 0; i < n; ++i) {
    for (; begun < n && begun < i + most; ++begun) {
      from[begun] = begin(job, &tried[begun], &child[begun]);
    }
    end(from[i], child[i], &tried[i]);
  }
  ts_free(from);
  ts_free(child);
}

double ts_tried_seconds(const ts_tried *t, const ts_timing *timing) {
  return t->how == TS_TRIED_FITS ? sqrt(t->step[0] * t->step[timing->ends - 1]) : INFINITY;
}
