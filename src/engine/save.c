#include "engine/save.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "io/checkpoint.h"
#include "io/publication.h"
#include "io/replace.h"
#include "pass/saved.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* What the thread of a rank is asked to do. */
typedef enum job { NOTHING, FILES, PUBLICATION } job;

/* A state of a part: the elements that this rank saves. */
typedef struct owned {
  ts_tid leaf;
  int64_t first, count;
  size_t size;         /* bytes of an element */
  unsigned char *copy; /* its place in the copy; NULL without one */
} owned;

struct ts_saver {
  ts_engine *engine;
  const char *run;              /* borrowed from the deck or the target */
  const ts_save_target *target; /* borrowed; NULL: the deck's run */
  char *tag;                    /* owned; of the checkpoint */
  int64_t keep;
  int rank, ranks;
  ts_checkpoint *checkpoint; /* tables made once, numbers set by begin */
  owned *owned;              /* [part of the checkpoint][state], TS_MOST_SAVED of each */
  unsigned char *copy;       /* NULL: files are written from the state itself */
  size_t copy_bytes;
  job job; /* under way, the same on all ranks */
  pthread_t thread;
  bool has_thread;
  atomic_bool working;
  ts_status status; /* of this rank's last job, valid once the thread was joined */
  ts_error error;
  ts_file_sum sum, index_sum; /* of this rank's shard; of model.h5 on rank 0 */
  ts_file_sum client_sum;     /* rank 0: of what a program gave along */
  ts_file_sum *sums;          /* rank 0: all shards, then model.h5, then the client's file where there is one */
  int64_t newest;
  bool failed; /* the last save that was begun */
  ts_retry retry;
  char *why; /* the last save that failed did */
  double begun, last_seconds;
  ts_save_times times;
};

static void (*observer)(ts_save_state state, int rank);

void ts_saver_set_observer(void (*entered)(ts_save_state state, int rank)) {
  observer = entered;
}

const char *ts_save_state_name(ts_save_state state) {
  static const char *const names[] = {
#define X(name) #name,
      TS_SAVE_STATES(X)
#undef X
  };
  return names[state];
}

static void enter(const ts_saver *s, ts_save_state state) {
  if (observer != NULL) {
    observer(state, s->rank);
  }
}

/* ---- creation ---- */

/* The leaves of this rank's parts, each with its place in the copy.  Of parts that others have it saves nothing. */
static void list_owned(ts_saver *s) {
  const ts_layout *layout = ts_engine_layout(s->engine);
  size_t used = 0;
  s->owned = ts_calloc((size_t) s->checkpoint->n_parts * TS_MOST_SAVED, sizeof *s->owned);
  for (int i = 0; i < layout->n_parts; ++i) {
    ts_saved_leaf leaf[TS_MOST_SAVED];
    int n = ts_saved_leaves(ts_engine_program(s->engine)->graph, layout, i, leaf);
    int part = ts_checkpoint_find_part(s->checkpoint, layout->part[i].name);
    for (int k = 0; k < n; ++k) {
      owned *o = &s->owned[part * TS_MOST_SAVED + k];
      bool mine = layout->part[i].owned && (leaf[k].block > 0 || layout->part[i].rank == 0);
      *o = (owned){leaf[k].leaf, leaf[k].first, mine ? leaf[k].count : 0, ts_dtype_size(leaf[k].dtype), NULL};
      o->copy = s->copy != NULL ? s->copy + used : NULL;
      used += (size_t) ts_plan_align(o->count * (int64_t) o->size);
    }
  }
  TS_CHECK(s->copy == NULL || used <= s->copy_bytes, "the copy of the state needs %zu bytes, planned are %zu", used,
           s->copy_bytes);
}

/* Memory of the copy: touched now, so that the first save does not wait for pages. */
static void make_copy(ts_saver *s, size_t bytes) {
  s->copy_bytes = bytes;
  if (bytes > 0) {
    s->copy = ts_executor_allocate_host(s->engine->executor, bytes);
    memset(s->copy, 0, bytes);
  }
}

static ts_saver *make_saver(ts_engine *engine, const char *run, int64_t keep, size_t copy_bytes) {
  ts_saver *s = ts_calloc(1, sizeof *s);
  s->engine = engine;
  s->run = run;
  s->keep = keep;
  s->retry = (ts_retry){.every = engine->deck->run.save_retry, .timeout = engine->deck->run.save_timeout};
  s->rank = ts_world_rank(engine->world);
  s->ranks = ts_world_size(engine->world);
  s->newest = -1;
  s->last_seconds = -1;
  s->checkpoint = ts_engine_describe(engine);
  make_copy(s, copy_bytes);
  list_owned(s);
  return s;
}

ts_saver *ts_saver_create(ts_engine *engine) {
  return make_saver(engine, engine->deck->run.directory, engine->deck->run.keep,
                    (size_t) ts_engine_program(engine)->plan->bytes[TS_PURPOSE_CHECKPOINT]);
}

ts_saver *ts_saver_create_for(ts_engine *engine, const ts_save_target *target) {
  ts_saver *s = make_saver(engine, target->directory, 0, 0);
  s->target = target;
  return s;
}

/* ---- the thread ---- */

/* What the shard is written from: the copy, or the state, which nobody touches meanwhile. */
static void give(void *user, int part, int state, int64_t first, int64_t count, void *to) {
  const ts_saver *s = user;
  const owned *o = &s->owned[part * TS_MOST_SAVED + state];
  if (o->copy != NULL) {
    memcpy(to, o->copy + (size_t) first * o->size, (size_t) count * o->size);
  } else {
    ts_executor_read_state(s->engine->executor, o->leaf, o->first + first, count, to);
  }
}

static bool has_client(const ts_saver *s) {
  return s->target != NULL && s->target->client != NULL;
}

static bool write_client(FILE *file, const void *from) {
  const ts_save_target *target = from;
  return target->client_bytes == 0 || fwrite(target->client, 1, target->client_bytes, file) == target->client_bytes;
}

/* Rank 0: what a program gave along. */
static ts_status save_client(ts_saver *s, const char *directory, ts_error *err) {
  char *path = ts_format("%s/" TS_CLIENT_FILE, directory);
  ts_status status = ts_replace_file(path, write_client, s->target, err);
  status = status == TS_OK ? ts_file_sum_make(directory, TS_CLIENT_FILE, &s->client_sum, err) : status;
  ts_free(path);
  return status;
}

static ts_status write_files(ts_saver *s, ts_error *err) {
  char *directory = ts_tag_directory(s->run, s->tag, ".tmp");
  char *name = ts_checkpoint_shard_name(s->rank);
  enter(s, TS_SAVE_SHARD);
  ts_status status = ts_checkpoint_write_shard(directory, s->checkpoint, s->rank, give, s, err);
  if (status == TS_OK && s->rank == 0) {
    enter(s, TS_SAVE_INDEX);
    status = ts_checkpoint_write_index(directory, s->checkpoint, err);
  }
  if (status == TS_OK) {
    enter(s, TS_SAVE_SUM);
    status = ts_file_sum_make(directory, name, &s->sum, err);
  }
  if (status == TS_OK && s->rank == 0) {
    status = ts_file_sum_make(directory, "model.h5", &s->index_sum, err);
  }
  if (status == TS_OK && s->rank == 0 && has_client(s)) {
    status = save_client(s, directory, err);
  }
  ts_free(name);
  ts_free(directory);
  return status;
}

static int count_files(const ts_saver *s) {
  return s->ranks + 1 + has_client(s);
}

static ts_status publish(ts_saver *s, ts_error *err) {
  int64_t step = s->checkpoint->step;
  enter(s, TS_SAVE_MANIFEST);
  ts_status status = ts_publication_manifest(s->run, s->tag, step, s->sums, count_files(s), err);
  if (status == TS_OK) {
    enter(s, TS_SAVE_PUBLISH);
    status = ts_publication_publish(s->run, s->tag, step, err);
  }
  if (status != TS_OK) {
    return status;
  }
  enter(s, TS_SAVE_LATEST); /* what is published is saved, whatever becomes of the file that names it */
  if (ts_publication_latest(s->run, s->tag, err) == TS_OK) {
    enter(s, TS_SAVE_PRUNE);
    ts_publication_prune(s->run, s->keep);
  }
  return TS_OK;
}

static void *work(void *argument) {
  ts_saver *s = argument;
  s->status = (s->job == FILES ? write_files : publish)(s, &s->error);
  atomic_store(&s->working, false);
  return NULL;
}

/* \param [in] beside  On a thread, while the caller goes on. */
static void start(ts_saver *s, bool beside) {
  s->status = TS_OK;
  ts_error_clear(&s->error);
  atomic_store(&s->working, true);
  s->has_thread = beside && pthread_create(&s->thread, NULL, work, s) == 0;
  if (!s->has_thread) { /* or none is to be had: the training waits for the files */
    work(s);
  }
}

static void join(ts_saver *s) {
  if (s->has_thread) {
    pthread_join(s->thread, NULL);
    s->has_thread = false;
  }
}

bool ts_saver_is_working(const ts_saver *s) {
  return atomic_load(&s->working);
}

/* ---- the machine ---- */

/* Once for a row of failures: a disk that is full for an hour fills no log. */
static void tell_failure(const ts_saver *s) {
  char *limit = s->retry.timeout > 0
                    ? ts_format(", and after %g s without success the run stops (run.save_timeout)", s->retry.timeout)
                    : ts_strdup("");
  ts_log(s->retry.n == 1 ? TS_LOG_WARNING : TS_LOG_DEBUG,
         "step %lld is not saved: %s; older checkpoints are as they were.  A save is tried again every %g s%s",
         (long long) s->checkpoint->step, s->why, s->retry.every, limit);
  ts_free(limit);
}

/* \param [in] begun  RUN/TAG.tmp is this save's; else what has that name is not. */
static void give_up(ts_saver *s, bool begun, ts_error *why) {
  s->job = NOTHING;
  s->failed = true;
  ts_retry_failed(&s->retry, ts_seconds());
  ts_free(s->why);
  s->why = ts_strdup(why->text != NULL ? why->text : "failed");
  if (s->rank == 0 && begun) {
    ts_publication_abandon(s->run, s->tag);
  }
  if (s->target == NULL) { /* a program is told itself */
    tell_failure(s);
  }
  ts_error_clear(why);
}

static void end_save(ts_saver *s) {
  double seconds = ts_seconds() - s->begun;
  s->job = NOTHING;
  s->newest = s->checkpoint->step;
  s->times.save += seconds;
  s->times.step = s->newest;
  s->last_seconds = seconds;
  char size[32];
  double bytes = 0;
  for (int i = 0; s->rank == 0 && i < count_files(s); ++i) {
    bytes += (double) s->sums[i].bytes;
  }
  char *before = s->retry.n > 0 ? ts_format(", after %lld that failed", (long long) s->retry.n) : ts_strdup("");
  ts_log(TS_LOG_INFO, "step %lld  saved %s/%s, %s in %.2f s%s", (long long) s->newest, s->run, s->tag,
         ts_human_bytes(bytes, size), seconds, before);
  ts_free(before);
  if (s->error.count > 0 && s->target == NULL) { /* rank 0 */
    ts_log(TS_LOG_WARNING, "%s: it names an older checkpoint; --resume auto finds this one", s->error.text);
  }
  ts_retry_succeeded(&s->retry);
}

static void collect(ts_saver *s) {
  enter(s, TS_SAVE_COLLECT);
  ts_comm *all = ts_world_all(s->engine->world);
  int64_t *cuts = ts_malloc(((size_t) s->ranks + 1) * sizeof *cuts);
  for (int r = 0; r <= s->ranks; ++r) {
    cuts[r] = r * (int64_t) sizeof s->sum;
  }
  ts_free(s->sums);
  s->sums = ts_calloc((size_t) s->ranks + 2, sizeof *s->sums);
  ts_transfer transfer = {.x = &s->sum, .y = s->sums, .cuts = cuts, .end = sizeof s->sum};
  all->ops->all_gather(all, &transfer, 1, TS_U8);
  s->sums[s->ranks] = s->index_sum;
  s->sums[s->ranks + 1] = s->client_sum;
  ts_free(cuts);
}

/* One move; every rank's thread has ended or is about to. */
static void move_on(ts_saver *s) {
  join(s);
  if (ts_world_agree(s->engine->world, s->status, &s->error) != TS_OK) {
    give_up(s, true, &s->error);
  } else if (s->job == FILES) {
    collect(s);
    s->job = PUBLICATION;
    s->status = TS_OK;
    if (s->rank == 0) {
      start(s, true);
    }
  } else {
    end_save(s);
  }
}

void ts_saver_advance(ts_saver *s, bool anyone_is_working) {
  if (s->job != NOTHING && !anyone_is_working) {
    double start_of_wait = ts_seconds();
    move_on(s);
    s->times.stall += ts_seconds() - start_of_wait;
  }
}

static void finish_save(ts_saver *s) {
  while (s->job != NOTHING) {
    move_on(s);
  }
}

bool ts_saver_finish(ts_saver *s) {
  double start_of_wait = ts_seconds();
  finish_save(s);
  s->times.stall += ts_seconds() - start_of_wait;
  return !s->failed;
}

static void copy_state(ts_saver *s) {
  enter(s, TS_SAVE_COPY);
  int n = s->copy != NULL ? s->checkpoint->n_parts * TS_MOST_SAVED : 0;
  for (int i = 0; i < n; ++i) {
    const owned *o = &s->owned[i];
    if (o->count > 0) {
      ts_executor_copy_state(s->engine->executor, o->leaf, o->first, o->count, o->copy);
    }
  }
  ts_executor_finish(s->engine->executor);
}

static void note_numbers(ts_saver *s, const ts_position *position) {
  ts_checkpoint *c = s->checkpoint;
  c->step = position->step;
  c->samples = position->samples;
  c->skipped = position->skipped;
  c->skipped_in_a_row = position->skipped_in_a_row;
  c->updates = s->engine->updates;
  ts_tid updates = ts_graph_find_state(ts_engine_program(s->engine)->graph, TS_STATE_UPDATES, -1);
  ts_executor_read_state(s->engine->executor, updates, 0, 1, &c->optimizer_step);
  ts_engine_save_scale(s->engine, c);
  c->by_program = s->target != NULL;
  c->micro_steps = s->target != NULL ? s->engine->hand.micro_steps : 0;
  ts_free(s->tag);
  s->tag = s->target != NULL && s->target->tag != NULL ? ts_strdup(s->target->tag) : ts_step_tag(c->step);
}

void ts_saver_begin(ts_saver *s, const ts_position *position) {
  double begun = ts_seconds();
  finish_save(s);
  s->begun = begun;
  s->failed = false;
  note_numbers(s, position);
  ts_error err = {0};
  ts_status status = TS_OK;
  if (s->rank == 0) {
    enter(s, TS_SAVE_DIRECTORY);
    int64_t client = has_client(s) ? (int64_t) s->target->client_bytes : 0;
    status = ts_publication_begin(s->run, s->tag, ts_checkpoint_bytes(s->checkpoint) + client, &err);
  }
  if (ts_world_agree(s->engine->world, status, &err) != TS_OK) {
    give_up(s, false, &err);
  } else {
    copy_state(s);
    s->job = FILES;
    start(s, s->copy != NULL); /* else the state itself is written: nobody may touch it */
  }
  s->times.stall += ts_seconds() - begun;
}

ts_retry_answer ts_saver_retry(const ts_saver *s, double end) {
  ts_retry_answer answer = ts_retry_ask(&s->retry, ts_seconds(), end);
  return s->job == NOTHING || answer == TS_RETRY_LAST ? answer : TS_RETRY_NO; /* one that is under way is a try */
}

ts_save_failures ts_saver_failures(const ts_saver *s) {
  double seconds = s->retry.n > 0 ? ts_seconds() - s->retry.first : 0;
  return (ts_save_failures){.n = s->retry.n, .seconds = seconds, .why = s->why};
}

int64_t ts_saver_newest(const ts_saver *s) {
  return s->newest;
}

bool ts_saver_is_begun(const ts_saver *s, int64_t step) {
  return s->job != NOTHING && s->checkpoint->step == step;
}

ts_save_times ts_saver_take_times(ts_saver *s) {
  ts_save_times times = s->times;
  s->times = (ts_save_times){0};
  return times;
}

const char *ts_saver_unnamed(const ts_saver *s) {
  return s->job == NOTHING && !s->failed && s->error.count > 0 ? s->error.text : NULL;
}

double ts_saver_last_seconds(const ts_saver *s) {
  return s->last_seconds;
}

int64_t ts_saver_bytes(const ts_saver *s) {
  return ts_checkpoint_bytes(s->checkpoint);
}

void ts_saver_destroy(ts_saver **saver) {
  ts_saver *s = *saver;
  if (s == NULL) {
    return;
  }
  join(s);
  ts_error_clear(&s->error);
  ts_checkpoint_destroy(&s->checkpoint);
  ts_executor_release_host(s->engine->executor, s->copy, s->copy_bytes);
  ts_free(s->owned);
  ts_free(s->sums);
  ts_free(s->why);
  ts_free(s->tag);
  ts_free(s);
  *saver = NULL;
}
