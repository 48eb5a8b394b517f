#include "train/watchdog.h"

#include "base/log.h"
#include "base/memory.h"
#include "slurm/launch.h"
#include "slurm/time_left.h"
#include "train/lag.h"
#include "train/run_log.h"
#include "train/status_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_PERIOD 5.0
#define LEAST_PERIOD 0.2
#define STAGGER 0.5 /* seconds between the ranks that speak where others do not */
enum { MOST_STAGGERED = 8, ALARM = 20 };
#define LEAST_ASKED 15.0 /* seconds between two questions to Slurm */
#define MOST_ASKED 300.0

struct ts_watch {
  const ts_deck *deck;
  ts_world *world;
  ts_comm *all;
  ts_node_memory *memory;
  int rank;
  double period;
  pthread_t thread;
  pthread_mutex_t mutex; /* guards stop */
  pthread_cond_t wake;
  bool stop;
  /* set once by publish, before `published` */
  ts_job_status job;
  char *directory, *path;
  int64_t first_step;
  atomic_bool published;
  /* of the thread */
  uint64_t number;
  size_t bytes; /* of the file */
  double wrote;
  bool warned;
  double late;            /* when a hang was found; 0: none */
  double ticked, resumed; /* when this thread ran last, and last went on after the process had been stopped */
  bool silent;            /* somebody else speaks */
  ts_time_left *asker;
  double asked;
  /* between the threads */
  _Atomic double step_seconds, tokens_per_second, loss_scale;
  _Atomic int64_t skipped;
  _Atomic int64_t dead[3]; /* experts: how many, the first one's layer, its number */
  _Atomic double step_limit, first_limit;
  _Atomic double end; /* of the job's time, on the clock of ts_seconds */
};

/* ---- writing ---- */

static void collect_node(ts_watch *w, ts_node_status *node) {
  *node = (ts_node_status){.number = ++w->number,
                           .n = w->memory->n,
                           .step_seconds = atomic_load(&w->step_seconds),
                           .tokens_per_second = atomic_load(&w->tokens_per_second),
                           .skipped = atomic_load(&w->skipped),
                           .loss_scale = atomic_load(&w->loss_scale),
                           .dead_experts = atomic_load(&w->dead[0]),
                           .dead_layer = atomic_load(&w->dead[1]),
                           .dead_expert = atomic_load(&w->dead[2])};
  memcpy(node->id, w->job.id, sizeof node->id);
  snprintf(node->node, sizeof node->node, "%s", w->memory->name);
  node->beat = ts_calloc((size_t) node->n, sizeof *node->beat);
  node->process = ts_calloc((size_t) node->n, 1);
  for (int i = 0; i < node->n; ++i) {
    ts_heartbeat_read(w->memory->memory[i], &node->beat[i]);
    node->beat[i].rank = w->memory->rank[i];
    node->process[i] = ts_status_process(node->beat[i].pid);
  }
}

/* Opened each time: network file systems show a file to others when it is closed.  Room for the longest text is taken
 * at the first time, where the file system can, so that a disk that is full later does not matter. */
static bool overwrite(const char *path, const ts_text *text, size_t most) {
  int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file >= 0 && most > 0 && fallocate(file, FALLOC_FL_KEEP_SIZE, 0, (off_t) most) != 0) {
    errno = 0;
  }
  bool ok = file >= 0 && pwrite(file, text->text, text->length, 0) == (ssize_t) text->length;
  int error = errno;
  ok = file >= 0 && close(file) == 0 && ok;
  errno = ok ? 0 : error;
  return ok;
}

static void write_node_status(ts_watch *w) {
  ts_node_status node;
  ts_text text = {0};
  collect_node(w, &node);
  ts_status_print_node(&node, w->bytes, &text);
  w->bytes = text.length; /* never less than before */
  if (!overwrite(w->path, &text, w->number == 1 ? ts_status_node_bytes(node.n) : 0) && !w->warned) {
    w->warned = true;
    fprintf(stderr,
            "tessera: warning: %s: cannot be written: %s; the run goes on, `tessera status` will not see this node\n",
            w->path, strerror(errno));
  }
  ts_text_free(&text);
  ts_node_status_clear(&node);
}

/* The lowest rank of the node that gets to run. */
static bool is_writer(const ts_watch *w) {
  for (int i = 0; i < w->memory->index; ++i) {
    ts_beat beat;
    ts_heartbeat_read(w->memory->memory[i], &beat);
    if (beat.since_alive <= ts_lag_frozen(w->period)) {
      return false;
    }
  }
  return true;
}

static void keep_status(ts_watch *w, double now) {
  if (atomic_load(&w->published) && now - w->wrote >= w->period && is_writer(w)) {
    w->wrote = now;
    write_node_status(w);
  }
}

/* ---- the time that is left ---- */

static void keep_time(ts_watch *w, double now) {
  double left;
  if (w->asker == NULL) {
    return;
  }
  if (ts_time_left_poll(w->asker, &left)) {
    atomic_store(&w->end, now + left);
  }
  left = atomic_load(&w->end) - now;
  double every = isfinite(left) ? fmin(fmax(left / 10, LEAST_ASKED), MOST_ASKED) : MOST_ASKED;
  if (w->asked == 0 || now - w->asked > every) {
    w->asked = now;
    ts_time_left_ask(w->asker);
  }
}

double ts_watch_time_left(const ts_watch *w) {
  return atomic_load(&w->end) - ts_seconds();
}

/* ---- hangs ---- */

/* What a rank does for too long, as a sentence owned by the caller; NULL when it does not.  It has not been stopped for
 * `awake` seconds. */
static char *find_excess(const ts_watch *w, const ts_beat *b, double awake) {
  double since_change = fmin(b->since_change, awake), since_step = fmin(b->since_step, awake);
  double step_limit = atomic_load(&w->step_limit), first_limit = atomic_load(&w->first_limit);
  bool first = !atomic_load(&w->published) || b->step <= w->first_step;
  if (b->phase >= TS_PHASE_SAVING) {
    return first_limit > 0 && since_change > first_limit
               ? ts_format("%s: nothing has changed for longer than run.first_step_timeout = %g s",
                           ts_phase_name(b->phase), first_limit)
               : NULL;
  }
  if (first) {
    return first_limit > 0 && since_step > first_limit
               ? ts_format("%s takes longer than run.first_step_timeout = %g s",
                           b->step > 0 ? "the first step, with loading," : ts_phase_name(b->phase), first_limit)
               : NULL;
  }
  return step_limit > 0 && since_step > step_limit
             ? ts_format("step %lld takes longer than run.step_timeout = %g s", (long long) b->step, step_limit)
             : NULL;
}

void ts_watch_limit(ts_watch *w, const ts_timeouts *timeouts) {
  atomic_store(&w->step_limit, timeouts->step);
  atomic_store(&w->first_limit, timeouts->first_step);
}

/* Who is behind, by all files; before there are any, by this node's memory. */
static void describe_lag(ts_watch *w, ts_text *to) {
  ts_run_status s = {0};
  ts_error err = {0};
  if (!atomic_load(&w->published) || ts_status_read(w->deck->run.directory, &s, &err) != TS_OK || s.n_nodes == 0) {
    ts_run_status_clear(&s);
    s.job.period = w->period;
    s.n_nodes = 1;
    s.node = ts_calloc(1, sizeof *s.node);
    collect_node(w, s.node);
    ts_text_add(to, "  there are no status files: this node only (%s)\n", s.node->node);
  }
  if (ts_lag_find(&s, w->period, to) == TS_LAG_NONE) {
    const char *files = ts_deck_files(w->deck);
    ts_text_add(to, "  nobody is behind: either all compute, or all wait in the same collective (the network?)%s%s\n",
                files[0] != 0 ? ", or a disk does not answer that has state in files: " : "", files);
    ts_lag_add_all(&s, to);
  }
  ts_error_clear(&err);
  ts_run_status_clear(&s);
}

static char *failed_path; /* RUN/status/@failed, while there is a run */

/* The first failure of a job stays.  False when another one was first. */
static bool note_once(const char *text) {
  int file = failed_path != NULL ? open(failed_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
  if (file < 0) {
    return failed_path == NULL || errno != EEXIST;
  }
  /* on a full disk the file is empty: still the sign that somebody speaks */
  ssize_t n = write(file, text, strlen(text));
  (void) n;
  close(file);
  return true;
}

static void note_failure(const char *where, const char *message) {
  if (note_once(message)) {
    ts_run_log_last(where, message);
  }
}

static void end_job(ts_watch *w, const char *excess) {
  ts_text text = {0};
  ts_text_add(&text, "%s\n", excess);
  describe_lag(w, &text);
  if (!note_once(text.text)) {
    w->silent = true;
    ts_text_free(&text);
    return;
  }
  fprintf(stderr, "tessera: error: %s", text.text);
  fflush(stderr);
  ts_run_log_last("", text.text);
  signal(SIGALRM, SIG_DFL); /* where the job cannot be ended, at least this process */
  alarm(ALARM);
  ts_die(__FILE__, __LINE__, "the job is ended: %s", excess);
}

static void keep_watch(ts_watch *w, double now) {
  ts_beat beat;
  ts_heartbeat_read(ts_world_heartbeat(w->world), &beat);
  char *excess = find_excess(w, &beat, now - w->resumed);
  if (excess == NULL) {
    w->late = 0;
    return;
  }
  w->late = w->late > 0 ? w->late : now;
  double patience = 2 * w->period + STAGGER * (w->rank < MOST_STAGGERED ? w->rank : MOST_STAGGERED);
  if (!w->silent && now - w->late > patience) {
    end_job(w, excess);
  } else if (w->silent && now - w->late > patience + ALARM) {
    ts_die(__FILE__, __LINE__, "%s, and who said so did not end the job", excess);
  }
  ts_free(excess);
}

/* A process that did not run for long was stopped, or its machine was: nothing of that time is anybody's fault, and the
 * job has as much time left as it had. */
static void note_stop(ts_watch *w, double now) {
  double gap = now - w->ticked - ts_lag_tick(w->period);
  if (w->ticked > 0 && gap > ts_lag_frozen(w->period)) {
    w->resumed = now;
    w->late = 0;
    w->asked = 0;
    if (w->asker != NULL) {
      atomic_store(&w->end, atomic_load(&w->end) + gap);
    }
  }
}

/* ---- the thread ---- */

static bool sleep_a_tick(ts_watch *w) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  double end = (double) until.tv_sec + 1e-9 * (double) until.tv_nsec + ts_lag_tick(w->period);
  until.tv_sec = (time_t) end;
  until.tv_nsec = (long) (1e9 * (end - floor(end)));
  pthread_mutex_lock(&w->mutex);
  while (!w->stop && pthread_cond_timedwait(&w->wake, &w->mutex, &until) != ETIMEDOUT) {
  }
  bool stop = w->stop;
  pthread_mutex_unlock(&w->mutex);
  return !stop;
}

static void *watch(void *argument) {
  ts_watch *w = argument;
  do {
    double now = ts_seconds();
    note_stop(w, now);
    ts_heartbeat_live(ts_world_heartbeat(w->world));
    keep_status(w, now);
    keep_time(w, now);
    keep_watch(w, now);
    w->ticked = ts_seconds(); /* what counts is the sleep: a file system may be slow */
  } while (sleep_a_tick(w));
  return NULL;
}

static void start_watching(ts_watch *w) {
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_mutex_init(&w->mutex, NULL);
  pthread_cond_init(&w->wake, &clock);
  pthread_condattr_destroy(&clock);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&w->thread, NULL, watch, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  TS_CHECK(error == 0, "pthread_create failed with error %d", error);
  pthread_setname_np(w->thread, "ts_watch");
}

/* ---- beginning and end ---- */

/* A hang is told within two periods after its limit. */
static double choose_period(const ts_deck *deck) {
  double period = MOST_PERIOD;
  const double limit[] = {deck->run.step_timeout, deck->run.first_step_timeout};
  for (int i = 0; i < 2; ++i) {
    period = limit[i] > 0 ? fmin(period, limit[i] / 4) : period;
  }
  return fmax(period, LEAST_PERIOD);
}

ts_watch *ts_watch_create(ts_world *world, const ts_deck *deck) {
  ts_watch *w = ts_calloc(1, sizeof *w);
  const ts_launch *launch = ts_launched();
  w->deck = deck;
  w->world = world;
  w->rank = ts_world_rank(world);
  w->period = choose_period(deck);
  w->memory = ts_node_memory_create(world, ts_heartbeat_bytes());
  ts_heartbeat *record = w->memory->memory[w->memory->index];
  ts_heartbeat_begin(record, w->rank);
  ts_world_use_heartbeat(world, record);
  atomic_init(&w->step_limit, deck->run.step_timeout);
  atomic_init(&w->first_limit, deck->run.first_step_timeout);
  atomic_init(&w->end, w->rank == 0 && deck->run.time_limit > 0 ? ts_seconds() + deck->run.time_limit : INFINITY);
  w->asker = w->rank == 0 && deck->run.time_limit == 0 && launch->job != NULL ? ts_time_left_create(launch->job) : NULL;
  w->job = (ts_job_status){.state = "running",
                           .ranks = ts_world_size(world),
                           .nodes = w->memory->n_nodes,
                           .period = w->period,
                           .began = (double) time(NULL)};
  w->job.restart = launch->restart > 0 ? launch->restart : 0;
  snprintf(w->job.job, sizeof w->job.job, "%s", launch->job != NULL && launch->job[0] != 0 ? launch->job : "-");
  snprintf(w->job.launcher, sizeof w->job.launcher, "%s", launch->launcher != NULL ? launch->launcher : "hand");
  snprintf(w->job.id, sizeof w->job.id, "%llx.%lx", (long long) time(NULL), (long) getpid());
  w->all = ts_world_all(world);
  w->all->ops->broadcast(w->all, w->job.id, sizeof w->job.id, 0);
  start_watching(w);
  return w;
}

static void write_job(const ts_watch *w) {
  ts_text text = {0};
  ts_error err = {0};
  char *path = ts_status_path(w->deck->run.directory, "@run");
  ts_status_print_job(&w->job, &text);
  /* on a full disk there is no room for another file; this one has grown by its reason only */
  bool ok = ts_write_file(path, text.text, text.length, &err) == TS_OK ||
            (access(path, F_OK) == 0 && overwrite(path, &text, 0));
  if (!ok) {
    ts_log(TS_LOG_WARNING, "%s; the run goes on, `tessera status` will not know of it", err.text);
  }
  ts_error_clear(&err);
  ts_text_free(&text);
  ts_free(path);
}

/* Files of an earlier job; what is no file is the user's. */
static void clear_directory(const char *path) {
  ts_error err = {0};
  if (ts_make_directory(path, &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s; the run goes on without status files", err.text);
  }
  ts_error_clear(&err);
  DIR *directory = opendir(path);
  struct dirent *entry;
  while (directory != NULL && (entry = readdir(directory)) != NULL) {
    unlinkat(dirfd(directory), entry->d_name, 0);
  }
  if (directory != NULL) {
    closedir(directory);
  }
}

void ts_watch_publish(ts_watch *w, int64_t first_step, int64_t steps) {
  w->first_step = first_step;
  w->job.steps = steps;
  w->directory = ts_status_directory(w->deck->run.directory);
  w->path = ts_status_path(w->deck->run.directory, w->memory->name);
  w->job.step = first_step - 1;
  if (w->rank == 0) {
    clear_directory(w->directory);
    write_job(w);
  }
  w->all->ops->barrier(w->all); /* what is written from now on is this job's */
  failed_path = ts_status_path(w->deck->run.directory, "@failed");
  ts_run_log_name(w->deck->run.directory);
  ts_set_failure_note(note_failure);
  atomic_store(&w->published, true);
}

void ts_watch_speed(ts_watch *w, double step_seconds, double tokens_per_second) {
  atomic_store(&w->step_seconds, step_seconds);
  atomic_store(&w->tokens_per_second, tokens_per_second);
}

void ts_watch_scale(ts_watch *w, int64_t skipped, double loss_scale) {
  atomic_store(&w->skipped, skipped);
  atomic_store(&w->loss_scale, loss_scale);
}

void ts_watch_experts(ts_watch *w, const ts_dead_experts *dead) {
  atomic_store(&w->dead[0], dead->n);
  atomic_store(&w->dead[1], dead->layer);
  atomic_store(&w->dead[2], dead->expert);
}

static void stop_thread(ts_watch *w) {
  pthread_mutex_lock(&w->mutex);
  w->stop = true;
  pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->mutex);
  pthread_join(w->thread, NULL);
  pthread_cond_destroy(&w->wake);
  pthread_mutex_destroy(&w->mutex);
}

static void write_end(ts_watch *w, const char *state, int64_t step, const char *reason) {
  snprintf(w->job.state, sizeof w->job.state, "%s", state);
  snprintf(w->job.reason, sizeof w->job.reason, "%s", reason != NULL ? reason : "");
  for (char *c = w->job.reason; *c != 0; ++c) {
    *c = (char) (*c >= ' ' && *c <= '~' ? *c : *c == '\n' ? ' ' : '?');
  }
  w->job.step = step;
  w->job.ended = (double) time(NULL);
  write_job(w);
}

void ts_watch_destroy(ts_watch **watch, const char *state, int64_t step, const char *reason) {
  ts_watch *w = *watch;
  if (w == NULL) {
    return;
  }
  stop_thread(w);
  if (atomic_load(&w->published)) {
    if (w->memory->index == 0) {
      write_node_status(w);
    }
    if (w->rank == 0) {
      write_end(w, state, step, reason);
    }
    ts_set_failure_note(NULL);
    ts_run_log_name(NULL);
    ts_free(failed_path);
    failed_path = NULL;
  }
  ts_world_use_heartbeat(w->world, NULL);
  ts_node_memory_destroy(&w->memory);
  ts_time_left_destroy(&w->asker);
  ts_free(w->directory);
  ts_free(w->path);
  ts_free(w);
  *watch = NULL;
}
