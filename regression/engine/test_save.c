/* Saving, step by step: what was published before survives whatever happens to a save.  With arguments one of the jobs
 * of kill.sh: `kill DIRECTORY STATE RANK` dies in that state of its second save; `check DIRECTORY` goes on from
 * there. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/save.h"
#include "io/hdf5.h"
#include "io/publication.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"
#include "train/resume.h"
#include "train/stop.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAST_STEP = 4 };

typedef struct job {
  ts_world *world;
  ts_deck *deck;
  ts_engine *engine;
  ts_saver *saver;
  int64_t step;
} job;

static job begin(ts_world *world, const char *directory, const char *sets) {
  char *all = ts_format("run.directory=%s run.save_every=1 %s", directory, sets);
  job j = {.world = world, .deck = train_run_deck(world, train_run_llama, all)};
  ts_error err = {0};
  const ts_engine_options options = {.world = world, .deck = j.deck, .abilities = TS_CAN_TRAIN};
  TS_CHECK(ts_engine_create(&options, &j.engine, &err) == TS_OK, "%s", err.text);
  j.saver = ts_saver_create(j.engine);
  ts_free(all);
  return j;
}

static void end(job *j) {
  ts_saver_destroy(&j->saver);
  ts_engine_destroy(&j->engine);
  ts_deck_destroy(&j->deck);
}

/* One step; its save is begun.  \return the loss. */
static double step(job *j, bool save) {
  double loss = train_run_step(j->engine, j->deck, j->step).loss;
  ++j->step;
  if (save) {
    ts_saver_begin(j->saver, &(ts_position){.step = j->step, .samples = j->step * j->deck->train_batch_size});
  }
  return loss;
}

/* ---- failures of the file system ---- */

static int64_t newest_intact(const char *directory) {
  int64_t *steps, found = -1;
  int n = ts_published_steps(directory, &steps);
  for (int i = 0; i < n && found < 0; ++i) {
    char *path = ts_step_directory(directory, steps[i], "");
    ts_manifest manifest = {0};
    if (ts_manifest_read(path, &manifest, NULL) == TS_OK &&
        ts_checkpoint_verify(path, &manifest, 0, 1, 1, NULL) == TS_OK) {
      found = steps[i];
    }
    ts_manifest_clear(&manifest);
    ts_free(path);
  }
  ts_free(steps);
  return found;
}

static int count_descriptors(void) {
  int n = 0;
  for (int i = 0; i < 1024; ++i) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", i);
    n += access(path, F_OK) == 0;
  }
  return n;
}

/* The Nth write of rank `failing` fails, and all after it: the save is given up, the run and its next save are as
 * ever. */
static bool survives(job *j, const char *directory, int failing, int64_t nth, int error_number, bool *failed) {
  int64_t before = newest_intact(directory);
  int descriptors = count_descriptors();
  if (ts_world_rank(j->world) == failing) {
    ts_hdf5_set_test_failure(nth, error_number);
  }
  step(j, true);
  bool saved = ts_saver_finish(j->saver);
  ts_hdf5_set_test_failure(0, 0);
  *failed = !saved;
  bool kept = newest_intact(directory) == (saved ? j->step : before) && count_descriptors() == descriptors;
  step(j, true);
  return ts_saver_finish(j->saver) && kept && newest_intact(directory) == j->step &&
         ts_saver_newest(j->saver) == j->step;
}

static void test_failures(ts_world *world, const char *directory, const char *sets) {
  static const int numbers[] = {ENOSPC, EIO};
  job j = begin(world, directory, sets);
  step(&j, true);
  tap_ok_all(MPI_COMM_WORLD, ts_saver_finish(j.saver), "%s: a save", sets);
  for (int failing = 0; failing < 2; ++failing) {
    int n_failed = 0, n = 0;
    bool ok = true, failed = true;
    for (int64_t nth = 1; failed && nth < 200; nth += 1 + nth / 8) {
      ok = survives(&j, directory, failing, nth, numbers[n % 2], &failed) && ok;
      n_failed += failed;
      ++n;
    }
    tap_ok_all(MPI_COMM_WORLD, ok && n_failed > 3 && !failed,
               "%s: writes of rank %d fail, from an early one to none: %d saves given up", sets, failing, n_failed);
  }
  end(&j);
}

/* No room for a checkpoint: said, nothing made, nothing harmed. */
static void test_space(ts_world *world, const char *directory) {
  job j = begin(world, directory, "");
  step(&j, true);
  bool before = ts_saver_finish(j.saver);
  ts_publication_set_test_space(1000);
  step(&j, true);
  bool without = ts_saver_finish(j.saver);
  ts_publication_set_test_space(-1);
  tap_ok_all(MPI_COMM_WORLD, before && !without && newest_intact(directory) == 1, "no space: the save is given up");
  step(&j, true);
  tap_ok_all(MPI_COMM_WORLD, ts_saver_finish(j.saver) && newest_intact(directory) == 3, "with space again it is saved");
  end(&j);
}

/* ---- trying again ---- */

static bool asks(const ts_retry *r, double now, double end, ts_retry_answer answer) {
  return ts_retry_ask(r, now, end) == answer;
}

static void test_clock(void) {
  ts_retry r = {.every = 60, .timeout = 200};
  bool ok = asks(&r, 1e9, INFINITY, TS_RETRY_NO);
  ts_retry_failed(&r, 1000);
  ok = ok && asks(&r, 1059, INFINITY, TS_RETRY_NO) && asks(&r, 1060, INFINITY, TS_RETRY_AGAIN);
  ts_retry_failed(&r, 1061);
  ok = ok && asks(&r, 1120, INFINITY, TS_RETRY_NO) && asks(&r, 1121, INFINITY, TS_RETRY_AGAIN) && r.n == 2;
  tap_ok_all(MPI_COMM_WORLD, ok, "a save that failed is tried again a minute after each failure");
  ok = asks(&r, 1199, INFINITY, TS_RETRY_AGAIN) && asks(&r, 1200, INFINITY, TS_RETRY_LAST);
  tap_ok_all(MPI_COMM_WORLD, ok, "for the last time when the time since the first one is over");
  ok = asks(&r, 1070, 1070, TS_RETRY_LAST) && asks(&r, 1070, 1071, TS_RETRY_NO) &&
       asks(&r, 1070, -INFINITY, TS_RETRY_LAST);
  tap_ok_all(MPI_COMM_WORLD, ok, "or when the job's time is");
  ts_retry_succeeded(&r);
  ok = asks(&r, 1e9, -INFINITY, TS_RETRY_NO);
  ts_retry_failed(&r, 5000);
  ok = ok && asks(&r, 5100, INFINITY, TS_RETRY_AGAIN) && asks(&r, 5200, INFINITY, TS_RETRY_LAST);
  tap_ok_all(MPI_COMM_WORLD, ok, "one that succeeds begins the time anew");
  r.timeout = 0;
  tap_ok_all(MPI_COMM_WORLD, asks(&r, 1e9, INFINITY, TS_RETRY_AGAIN), "run.save_timeout = 0: for ever");
}

/* What a saver knows of its failures; every rank the same. */
static void test_retry(ts_world *world, const char *directory) {
  test_clock();
  job j = begin(world, directory, "run.save_retry=1e-6 run.save_timeout=1e6");
  bool ok = ts_saver_retry(j.saver, INFINITY) == TS_RETRY_NO;
  ts_publication_set_test_space(1000);
  for (int i = 0; i < 2; ++i) {
    step(&j, true);
    ok = !ts_saver_finish(j.saver) && ok;
  }
  ts_publication_set_test_space(-1);
  ts_save_failures failures = ts_saver_failures(j.saver);
  ok = ok && failures.n == 2 && failures.seconds >= 0 && strstr(failures.why, "a checkpoint needs") != NULL;
  tap_ok_all(MPI_COMM_WORLD, ok, "two saves failed, and why: %s", failures.why);
  ok = ts_saver_retry(j.saver, INFINITY) == TS_RETRY_AGAIN && ts_saver_retry(j.saver, -INFINITY) == TS_RETRY_LAST;
  step(&j, true);
  ok = ok && ts_saver_retry(j.saver, INFINITY) == TS_RETRY_NO && /* one is under way: only the end of the time counts */
       ts_saver_retry(j.saver, -INFINITY) == TS_RETRY_LAST;
  ok = ts_saver_finish(j.saver) && ok;
  ok = ok && ts_saver_failures(j.saver).n == 0 && ts_saver_retry(j.saver, -INFINITY) == TS_RETRY_NO;
  tap_ok_all(MPI_COMM_WORLD, ok && newest_intact(directory) == j.step, "the next one succeeds, and no other is due");
  end(&j);
}

/* ---- signals while a save is under way ---- */

static void signal_here(ts_save_state state, int rank) {
  (void) state;
  (void) rank;
  raise(SIGTERM);
  raise(SIGUSR1);
}

static void test_signals(ts_world *world, const char *directory) {
  job j = begin(world, directory, "");
  ts_stop_watch();
  bool quiet = !ts_stop_requested(NULL);
  ts_saver_set_observer(signal_here);
  step(&j, true);
  bool saved = ts_saver_finish(j.saver);
  ts_saver_set_observer(NULL);
  tap_ok_all(MPI_COMM_WORLD, quiet && saved && ts_stop_requested(NULL) && newest_intact(directory) == 1,
             "signals in every state of a save are noted and harm nothing");
  ts_stop_forget();
  quiet = !ts_stop_requested(NULL) && !ts_stop_terminated();
  raise(SIGUSR1);
  bool other = ts_stop_requested(NULL) && !ts_stop_terminated();
  raise(SIGTERM);
  tap_ok_all(MPI_COMM_WORLD, quiet && other && ts_stop_terminated() && ts_stop_terminated(),
             "they can be forgotten; SIGTERM is told from SIGUSR1");
  end(&j);
}

/* ---- the order of states ---- */

static int n_entered;
static ts_save_state entered[64];

static void note_state(ts_save_state state, int rank) {
  if (rank == 0 && n_entered < 64) {
    entered[n_entered++] = state;
  }
}

static void test_states(ts_world *world, const char *directory) {
  job j = begin(world, directory, "run.keep=1");
  ts_saver_set_observer(note_state);
  step(&j, true);
  step(&j, false);
  bool working;
  do { /* as a run does: the flag is agreed, then everybody moves on */
    int mine = ts_saver_is_working(j.saver), all;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    working = all != 0;
    ts_saver_advance(j.saver, working);
  } while (ts_saver_is_begun(j.saver, 1));
  ts_saver_set_observer(NULL);
  bool order = n_entered == TS_N_SAVE_STATES - 1 || ts_world_rank(world) != 0;
  for (int i = 0; i < n_entered; ++i) {
    order = order && entered[i] == (ts_save_state) (TS_SAVE_DIRECTORY + i);
  }
  tap_ok_all(MPI_COMM_WORLD, order, "every state once, in the order of the table");
  tap_ok_all(MPI_COMM_WORLD, ts_saver_newest(j.saver) == 1,
             "and the step that was begun is published, not the one after");
  end(&j);
}

/* ---- reading back ---- */

/* Rank 0: the files of step 1 as those of step 9, which their index contradicts. */
static void publish_contradiction(const char *run) {
  char *from = ts_step_directory(run, 1, ""), *to = ts_step_directory(run, 9, ".tmp");
  ts_manifest manifest = {0};
  TS_CHECK(ts_manifest_read(from, &manifest, NULL) == TS_OK &&
               ts_publication_begin(run, "step_00000009", 1, NULL) == TS_OK,
           "%s", to);
  for (int i = 0; i < manifest.n; ++i) {
    char *old = ts_format("%s/%s", from, manifest.file[i].name), *new = ts_format("%s/%s", to, manifest.file[i].name);
    TS_CHECK(link(old, new) == 0, "%s", new);
    ts_free(old);
    ts_free(new);
  }
  TS_CHECK(ts_publication_manifest(run, "step_00000009", 9, manifest.file, manifest.n, NULL) == TS_OK &&
               ts_publication_publish(run, "step_00000009", 9, NULL) == TS_OK,
           "%s", to);
  ts_manifest_clear(&manifest);
  ts_free(from);
  ts_free(to);
}

/* Rank 0 reads the index, and all ranks have it, or the same error. */
static void test_index(ts_world *world, const char *directory) {
  job j = begin(world, directory, "");
  step(&j, true);
  ts_saver_finish(j.saver);
  ts_error err = {0};
  ts_checkpoint *c;
  char *path = ts_step_directory(directory, 1, "");
  int64_t before = ts_hdf5_test_opens();
  bool ok = ts_checkpoint_check(world, path, &c, &err) == TS_OK && c->step == 1 && c->n_shards == ts_world_size(world);
  tap_ok_all(MPI_COMM_WORLD, ok && strstr(c->deck, "steps") != NULL, "every rank has the index");
  tap_ok_all(MPI_COMM_WORLD,
             ts_engine_inputs(j.engine) ==
                 (1u << TS_INPUT_INPUT_IDS | 1u << TS_INPUT_LABELS | 1u << TS_INPUT_POSITIONS),
             "an engine names the inputs that its model has");
  tap_ok_all(MPI_COMM_WORLD, ts_hdf5_test_opens() - before == (ts_world_rank(world) == 0), "one has opened it");
  tap_ok_all(MPI_COMM_WORLD, ok && ts_engine_load(j.engine, path, c, TS_LOAD_ALL, &err) == TS_OK, "it loads");
  ts_checkpoint_destroy(&c);
  ts_free(path);
  path = ts_step_directory(directory, 9, "");
  if (ts_world_rank(world) == 0) {
    publish_contradiction(directory);
  }
  tap_barrier(MPI_COMM_WORLD);
  ok = ts_checkpoint_check(world, path, &c, &err) == TS_BAD_INPUT && c == NULL && err.count == 1;
  tap_ok_all(MPI_COMM_WORLD, ok && strstr(err.text, "is of step 1, the manifest of step 9") != NULL,
             "an index that is refused: the same error on every rank");
  ts_error_clear(&err);
  ts_free(path);
  end(&j);
}

/* ---- grids ---- */

typedef struct grid {
  int tp, pp;
  const char *sets;
} grid;

static job begin_on(ts_world *world, const char *directory, grid g) {
  char *sets = ts_format("tensor_parallel.autotp_size=%d pipeline.stages=%d %s", g.tp, g.pp, g.sets);
  job j = begin(world, directory, sets);
  ts_free(sets);
  return j;
}

/* A step on one grid, and what another has of it. */
static void test_grid(ts_world *world, const char *directory, const ts_checkpoint *c, grid g, uint64_t digest) {
  job j = begin_on(world, directory, g);
  char *path = ts_step_directory(directory, 1, "");
  ts_error err = {0};
  bool ok = ts_engine_load(j.engine, path, c, TS_LOAD_ALL, &err) == TS_OK;
  tap_ok_all(MPI_COMM_WORLD, ok && train_run_digest(j.engine) == digest, "tp %d, pp %d, %s goes on from it%s%s", g.tp,
             g.pp, g.sets, err.count > 0 ? ": " : "", err.count > 0 ? err.text : "");
  ts_error_clear(&err);
  ts_free(path);
  end(&j);
}

/* Of every part that the index names, whose it is: a rank's own, both ranks', or the first one's; of stages the first
 * has some, the last the rest. */
static bool has_owners(const ts_checkpoint *c, int pp) {
  bool right = c->n_shards == 2, ended = false;
  for (int i = 0; i < c->n_parts; ++i) {
    const ts_saved_part *part = &c->part[i];
    const char *rank = strstr(part->name, ".tp");
    ended = ended || (pp > 1 && i > 0 && part->cuts[1] == 0);
    int64_t first = ended || (rank != NULL && rank[3] == '1') ? 0 : part->count;
    right = right && (strstr(part->name, ".all") != NULL ? part->cuts[1] > 0 : part->cuts[1] == first);
  }
  return right && ended == (pp > 1);
}

/* Elements of the parameters, and of their pieces. */
static bool counts_once(const ts_checkpoint *c, int64_t parameters) {
  int64_t whole = 0, pieces = 0;
  for (int i = 0; i < c->n_parameters; ++i) {
    const ts_saved_parameter *p = &c->parameter[i];
    whole += p->count;
    for (int k = 0; k < p->n_pieces; ++k) {
      pieces += p->piece[k].length * (p->count / p->shape[p->dim]);
    }
  }
  return whole == parameters && pieces == parameters;
}

/* What ranks hold twice is saved once, by the first; what they have pieces of, by each. */
static void test_grids(ts_world *world, const char *directory, grid from, bool in_pieces) {
  static const grid to[] = {
      {1, 1, "zero_optimization.stage=3"},
      {1, 2, "zero_optimization.stage=1 pipeline.schedule=zb_v gradient_accumulation_steps=3"},
      {1, 2, "pipeline.partition=uniform"},
      {2, 1, "zero_optimization.stage=0"},
      {2, 1, "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=100"}};
  job j = begin_on(world, directory, from);
  step(&j, true);
  uint64_t digest = train_run_digest(j.engine);
  bool ok = ts_saver_finish(j.saver);
  int64_t parameters = ts_layout_parameter_count(ts_engine_layout(j.engine), false);
  int64_t copy = ts_engine_program(j.engine)->plan->bytes[TS_PURPOSE_CHECKPOINT];
  tap_ok_all(MPI_COMM_WORLD, copy > 0, "tp %d, pp %d: memory for a copy of what a rank owns", from.tp, from.pp);
  end(&j);
  ts_checkpoint *c = NULL;
  char *path = ts_step_directory(directory, 1, "");
  ok = ts_checkpoint_check(world, path, &c, NULL) == TS_OK && ok;
  tap_ok_all(MPI_COMM_WORLD, ok && has_owners(c, from.pp) && counts_once(c, parameters),
             "tp %d, pp %d: every element is saved once, by its owner", from.tp, from.pp);
  bool whole = true;
  for (int i = 0; ok && i < c->n_parameters; ++i) {
    whole = whole && c->parameter[i].n_pieces == 1;
  }
  tap_ok_all(MPI_COMM_WORLD, ok && whole != in_pieces, "tp %d, pp %d: %s", from.tp, from.pp,
             in_pieces ? "in pieces" : "whole parameters");
  for (size_t i = 0; i < sizeof to / sizeof to[0]; ++i) {
    test_grid(world, directory, c, to[i], digest);
  }
  ts_checkpoint_destroy(&c);
  ts_free(path);
}

/* ---- writing parameters ---- */

typedef struct asking {
  int64_t asked, owned;
  int *times; /* of each element */
} asking;

static void count_asked(void *user, int64_t first, int64_t count, bool owned, float *value) {
  asking *a = user;
  a->asked += count;
  a->owned += owned ? count : 0;
  for (int64_t i = first; i < first + count; ++i) {
    ++a->times[i];
    value[i - first] = (float) i;
  }
}

static int64_t sum_all(ts_world *world, int64_t mine) {
  int64_t sum = 0, *all = ts_world_gather(world, &mine, sizeof mine);
  for (int i = 0; i < ts_world_size(world); ++i) {
    sum += all[i];
  }
  ts_free(all);
  return sum;
}

static int64_t in_shard(const ts_layout *layout, const ts_parameter *p) {
  const ts_part *part = &layout->part[p->part];
  int64_t from = p->offset > ts_part_begin(part) ? p->offset : ts_part_begin(part);
  int64_t to = p->offset + p->count < ts_part_end(part) ? p->offset + p->count : ts_part_end(part);
  return to > from ? to - from : 0;
}

/* A source is asked for what the rank keeps, once; over all ranks one of those that ask owns each element; and what is
 * read back is what was written. */
static void test_writing(ts_world *world, const char *directory, grid g, bool shards) {
  job j = begin_on(world, directory, g);
  const ts_layout *layout = ts_engine_layout(j.engine);
  bool once = true, owned = true, kept = true, same = true;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    int64_t count = ts_shape_count(&p->shape);
    asking a = {.times = ts_calloc((size_t) count, sizeof *a.times)};
    ts_engine_write_parameter(j.engine, p, count_asked, &a);
    for (int64_t k = 0; k < count; ++k) {
      once = once && a.times[k] <= 1;
    }
    kept = kept && a.asked == (shards ? in_shard(layout, p) : p->count);
    owned = owned && sum_all(world, a.owned) == count;
    float *value = ts_calloc((size_t) count, sizeof *value);
    once = once && ts_get_full_fp32_parameter(j.engine, p->name, value, NULL) == TS_OK;
    for (int64_t k = 0; k < count; ++k) {
      same = same && value[k] == (float) k;
    }
    ts_free(value);
    ts_free(a.times);
  }
  tap_ok_all(MPI_COMM_WORLD, once && kept, "tp %d, %s: a rank asks for what it keeps of a parameter, once", g.tp,
             g.sets);
  tap_ok_all(MPI_COMM_WORLD, owned, "tp %d, %s: each element has one owner", g.tp, g.sets);
  tap_ok_all(MPI_COMM_WORLD, same, "tp %d, %s: every rank reads all that was written", g.tp, g.sets);
  end(&j);
}

/* ---- jobs of kill.sh ---- */

static ts_save_state kill_state;
static int kill_rank, kill_save;

static void kill_there(ts_save_state state, int rank) {
  if (state == kill_state && rank == kill_rank && ++kill_save == 2) {
    raise(SIGKILL);
  }
}

static int job_kill(ts_world *world, char **words) {
  for (int i = 0; i < TS_N_SAVE_STATES; ++i) {
    if (strcmp(ts_save_state_name((ts_save_state) i), words[1]) == 0) {
      kill_state = (ts_save_state) i;
    }
  }
  kill_rank = atoi(words[2]);
  ts_saver_set_observer(kill_there);
  job j = begin(world, words[0], "");
  for (int i = 0; i < LAST_STEP; ++i) {
    step(&j, true);
    ts_saver_finish(j.saver);
  }
  end(&j);
  return 0;
}

/* What a run that was never stopped computes. */
static void reference(ts_world *world, double loss[LAST_STEP], uint64_t *digest) {
  job j = begin(world, "none", "");
  for (int i = 0; i < LAST_STEP; ++i) {
    loss[i] = step(&j, false);
  }
  ts_engine_digest(j.engine, digest);
  end(&j);
}

static int job_check(ts_world *world, char **words) {
  job j = begin(world, words[0], "");
  ts_error err = {0};
  ts_resume resume;
  ts_status status = ts_resume_find(world, j.deck, "auto", &resume, &err);
  TS_CHECK(status == TS_OK && resume.checkpoint != NULL, "%s", err.text != NULL ? err.text : "no checkpoint");
  TS_CHECK(ts_engine_load(j.engine, resume.directory, resume.checkpoint, TS_LOAD_ALL, &err) == TS_OK, "%s", err.text);
  j.step = resume.checkpoint->step;
  printf("%s", ts_world_rank(world) == 0 ? "loaded\n" : "");
  int n = ts_engine_layout(j.engine)->n_parameters;
  uint64_t *digest = ts_malloc((size_t) n * 2 * sizeof *digest);
  double loss[LAST_STEP];
  reference(world, loss, digest + n);
  bool same = j.step >= 1;
  while (j.step < LAST_STEP) {
    same = step(&j, false) == loss[j.step - 1] && same;
  }
  ts_engine_digest(j.engine, digest);
  same = same && memcmp(digest, digest + n, (size_t) n * sizeof *digest) == 0;
  ts_free(digest);
  ts_resume_clear(&resume);
  end(&j);
  return same ? 0 : 1;
}

/* A directory of its own for a test; valid until the next call. */
static const char *make_directory(const char *parent, const char *name) {
  static char path[512];
  ts_error err = {0};
  snprintf(path, sizeof path, "%s/%s", parent, name);
  TS_CHECK(ts_make_directory(path, &err) == TS_OK, "%s", err.text);
  tap_barrier(MPI_COMM_WORLD);
  return path;
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_log_configure(TS_LOG_ERROR, ts_world_rank(world) == 0);
  int code;
  if (argc > 2) {
    code = (strcmp(argv[1], "kill") == 0 ? job_kill : job_check)(world, argv + 2);
  } else {
    char *directory = ts_strdup(tap_directory_all(MPI_COMM_WORLD));
    test_states(world, make_directory(directory, "states"));
    test_index(world, make_directory(directory, "index"));
    test_grids(world, make_directory(directory, "stages"), (grid){1, 2, "zero_optimization.stage=2"}, false);
    test_grids(world, make_directory(directory, "pieces"), (grid){2, 1, "zero_optimization.stage=2"}, true);
    test_writing(world, make_directory(directory, "whole"), (grid){2, 1, "zero_optimization.stage=1"}, false);
    test_writing(world, make_directory(directory, "shards"),
                 (grid){1, 1, "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0"},
                 true);
    test_space(world, make_directory(directory, "space"));
    test_retry(world, make_directory(directory, "retry"));
    test_signals(world, make_directory(directory, "signals"));
    test_failures(world, make_directory(directory, "copied"), "run.save_async=true");
    test_failures(world, make_directory(directory, "live"), "run.save_async=false");
    ts_free(directory);
    code = tap_done_all(MPI_COMM_WORLD);
  }
  ts_world_destroy(&world);
  return code;
}
