/* A transfer is cut in runs of whole blocks, by whichever thread has a free slot, the oldest transfer first.  A slot:
 *
 *   FREE -- fetch_run --> READY -- begin_rest --> UNDER_WAY -- take_result --> LANDED -- verify_slot --> FREE
 *                           ^                                      |              |
 *                           +---- more to move, or interrupted ----+              |
 *                           +----------------- differs, for the first time -------+
 *
 * (from READY directly to where take_result leads, when the engine is done at once; to FREE from anywhere on failure,
 * which is remembered for who waits).  What is to be written has its hashes before it is READY, what was read is
 * compared when it is LANDED; a deep engine has a slot more for each, so that the device is kept busy meanwhile. */
#include "io/store_pool.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

enum {
  TRANSFERS = 1024,  /* under way at most */
  SHALLOW_MOST = 16, /* threads of an engine that has one transfer under way in each */
  PAUSE = 1000,      /* microseconds, after an answer that asks for another try */
  PAUSES = 10000,
  SPARE = 2 /* slots of a thread beside those that may be under way: one that is READY, one that is LANDED */
};

typedef enum slot_state { FREE, READY, UNDER_WAY, LANDED } slot_state;

/* The mutex of the pool guards all. */
typedef struct transfer {
  bool write;
  int64_t offset, bytes;
  char *memory;
  int64_t cut;  /* bytes that are in slots, or done */
  int64_t left; /* bytes that are not done */
} transfer;

/* A run of blocks, and how far it has come; its thread's own. */
typedef struct slot {
  slot_state state;
  transfer *of;
  bool zeros; /* never written */
  int64_t offset, bytes;
  char *memory; /* the caller's */
  ts_store_io io;
  int64_t moved; /* with what is behind the end, up to TS_STORE_ALIGN */
  int tries;     /* since something was moved */
  int differed;  /* blocks of the first reading */
  char *buffer;  /* of the pool */
} slot;

typedef struct worker {
  ts_store_pool *pool;
  pthread_t thread;
  void *queue; /* owned */
  slot *slot;  /* owned */
  int under_way;
} worker;

struct ts_store_pool {
  ts_store_pool_options options;
  int n_workers, n_slots, depth; /* slots of a worker, and how many of them may be under way */
  worker *worker;                /* owned */
  char *buffers;                 /* owned, for all slots */
  size_t buffers_bytes;
  pthread_mutex_t mutex; /* of all below */
  pthread_cond_t begun, ended;
  transfer transfer[TRANSFERS]; /* ticket i is at i % TRANSFERS */
  uint64_t n_started, cutting;  /* tickets before this one are cut to the end */
  const transfer *awaited;
  int n_idle;
  bool stop;
  char *failure; /* owned; the first one */
  ts_store_counts counts;
  double held_up; /* of the caller, not reported yet; its own */
};

/* ---- runs ---- */

static bool is_zeros(const ts_store_blocks *b, const transfer *t, int64_t number) {
  return !t->write && b->generation[number] == 0;
}

/* As many blocks as one request may have, all written or all not. */
static int64_t measure_run(const ts_store_pool *p, const transfer *t, bool *zeros) {
  const ts_store_blocks *b = p->options.blocks;
  int64_t bytes = 0, left = t->bytes - t->cut;
  while (bytes < left) {
    ts_store_block k = ts_store_block_at(b, t->offset + t->cut + bytes);
    bool same = bytes == 0 || is_zeros(b, t, k.number) == *zeros;
    if (bytes > 0 && (!same || bytes + k.bytes > p->options.block_size)) {
      break;
    }
    *zeros = is_zeros(b, t, k.number);
    bytes += k.bytes;
  }
  return bytes;
}

static void cut_run(ts_store_pool *p, transfer *t, slot *s) {
  bool zeros = false;
  int64_t bytes = measure_run(p, t, &zeros);
  *s = (slot){.state = READY,
              .of = t,
              .zeros = zeros,
              .offset = t->offset + t->cut,
              .bytes = bytes,
              .memory = t->memory + t->cut,
              .buffer = s->buffer};
  t->cut += bytes;
}

static transfer *find_uncut(ts_store_pool *p) {
  while (p->cutting <= p->n_started) {
    transfer *t = &p->transfer[p->cutting % TRANSFERS];
    if (t->cut < t->bytes) {
      return t;
    }
    ++p->cutting;
  }
  return NULL;
}

/* \a may_wait: the thread has nothing else to do. */
static bool fetch_run(worker *w, slot *s, bool may_wait) {
  ts_store_pool *p = w->pool;
  transfer *t;
  pthread_mutex_lock(&p->mutex);
  while ((t = find_uncut(p)) == NULL && !p->stop && may_wait) {
    ++p->n_idle;
    pthread_cond_wait(&p->begun, &p->mutex);
    --p->n_idle;
  }
  if (t != NULL) {
    cut_run(p, t, s);
  }
  pthread_mutex_unlock(&p->mutex);
  return t != NULL;
}

static void end_slot(worker *w, slot *s) {
  ts_store_pool *p = w->pool;
  int64_t moved = s->zeros ? 0 : s->bytes;
  pthread_mutex_lock(&p->mutex);
  p->counts.bytes_written += s->io.write ? moved : 0;
  p->counts.bytes_read += s->io.write ? 0 : moved;
  p->counts.read_again += s->differed;
  s->of->left -= s->bytes;
  if (s->of->left == 0 && s->of == p->awaited) {
    pthread_cond_signal(&p->ended);
  }
  pthread_mutex_unlock(&p->mutex);
  s->state = FREE;
}

/* ---- failures ---- */

/* Told by the thread that waits; the first one counts. */
__attribute__((format(printf, 3, 4))) static void fail_slot(worker *w, slot *s, const char *format, ...) {
  ts_store_pool *p = w->pool;
  char what[256];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  pthread_mutex_lock(&p->mutex);
  if (p->failure == NULL) {
    p->failure = ts_format("%s: %s %lld bytes at offset %lld: %s; the device or its file system has failed (dmesg says "
                           "more), or is full: go on from the last checkpoint, with another directory (nvme_path) or "
                           "with the state in memory",
                           p->options.place, s->io.write ? "writing" : "reading", (long long) s->bytes,
                           (long long) s->offset, what);
  }
  pthread_cond_signal(&p->ended);
  pthread_mutex_unlock(&p->mutex);
  end_slot(w, s);
}

/* ---- one run ---- */

static int64_t padded(const slot *s) {
  return (int64_t) ts_align_up((size_t) s->bytes, TS_STORE_ALIGN);
}

static char *base_of(const slot *s) {
  return s->io.copied ? s->buffer : s->memory;
}

/* Direct transfers want aligned memory, and the caller's ends where it ends. */
static void choose_memory(slot *s) {
  s->io.write = s->of->write;
  s->io.copied = (uintptr_t) s->memory % TS_STORE_ALIGN != 0 || s->bytes % TS_STORE_ALIGN != 0;
  if (s->io.write && s->io.copied) {
    memcpy(s->buffer, s->memory, (size_t) s->bytes);
    memset(s->buffer + s->bytes, 0, (size_t) (padded(s) - s->bytes));
  }
}

static void complete_slot(worker *w, slot *s) {
  if (!s->io.write && s->io.copied) {
    memcpy(s->memory, s->buffer, (size_t) s->bytes);
  }
  end_slot(w, s);
}

/* What differs from what was written is read once more. */
static void verify_slot(worker *w, slot *s) {
  ts_store_block bad = {0};
  int n = s->io.write || ts_store_test()->unchecked
              ? 0
              : ts_store_blocks_differ(w->pool->options.blocks, s->offset, s->bytes, base_of(s), &bad);
  if (n == 0) {
    complete_slot(w, s);
  } else if (s->differed == 0) {
    s->differed = n;
    s->moved = 0;
    s->state = READY;
  } else {
    fail_slot(w, s, "the hash of its block of %lld bytes at offset %lld is not that of what was written, read twice",
              (long long) bad.bytes, (long long) bad.offset);
  }
}

/* What a transfer returned.  A direct one begins at a multiple of TS_STORE_ALIGN: a rest of less is moved again. */
static void take_result(worker *w, slot *s, int64_t result) {
  int64_t moved = result > 0 ? result / TS_STORE_ALIGN * TS_STORE_ALIGN : 0;
  bool again = result == -EINTR || result == -EAGAIN || (result > 0 && moved == 0);
  s->tries = moved > 0 ? 0 : s->tries + 1;
  s->moved += moved;
  if (moved > 0) {
    s->state = s->moved < padded(s) ? READY : LANDED;
  } else if (again && s->tries < PAUSES) {
    usleep(result == -EAGAIN ? PAUSE : 0);
    s->state = READY;
  } else if (result < 0) {
    fail_slot(w, s, "%s", strerror((int) -result));
  } else {
    fail_slot(w, s, "the file ended after %lld of them", (long long) (s->moved + result));
  }
}

static int64_t begin_rest(worker *w, slot *s) {
  const ts_store_faults *test = ts_store_test();
  s->io.offset = s->offset + s->moved;
  s->io.bytes = padded(s) - s->moved;
  s->io.memory = base_of(s) + s->moved;
  if (test->move != NULL) {
    int64_t most = test->move(s->io.write, s->io.offset, s->io.bytes);
    if (most <= 0) {
      return most;
    }
    s->io.bytes = most < s->io.bytes ? most : s->io.bytes;
  }
  return w->pool->options.engine->begin(w->queue, (int) (s - w->slot), &s->io);
}

static void begin_slot(worker *w, slot *s) {
  int64_t result = begin_rest(w, s);
  if (result == TS_STORE_UNDER_WAY) {
    s->state = UNDER_WAY;
    ++w->under_way;
  } else {
    take_result(w, s, result);
  }
}

static void prepare_slot(worker *w, slot *s) {
  if (s->zeros) {
    memset(s->memory, 0, (size_t) s->bytes);
    end_slot(w, s);
    return;
  }
  choose_memory(s);
  if (s->io.write && !ts_store_test()->unchecked) {
    ts_store_blocks_keep(w->pool->options.blocks, s->offset, s->bytes, base_of(s));
  }
}

/* ---- threads ---- */

static slot *find_slot(worker *w, slot_state state) {
  for (int i = 0; i < w->pool->n_slots; ++i) {
    if (w->slot[i].state == state) {
      return &w->slot[i];
    }
  }
  return NULL;
}

static void finish_slot(worker *w) {
  int64_t result;
  slot *s = &w->slot[w->pool->options.engine->finish(w->queue, &result)];
  --w->under_way;
  take_result(w, s, result);
}

/* One step of a thread: the device first, then hashes, then waiting.  False: the pool stops, and all is done. */
static bool take_step(worker *w) {
  slot *ready = find_slot(w, READY), *landed = find_slot(w, LANDED), *s = find_slot(w, FREE);
  if (ready != NULL && w->under_way < w->pool->depth) {
    begin_slot(w, ready);
  } else if (ready == NULL && s != NULL && fetch_run(w, s, landed == NULL && w->under_way == 0)) {
    prepare_slot(w, s);
  } else if (landed != NULL) {
    verify_slot(w, landed);
  } else if (w->under_way > 0) {
    finish_slot(w);
  } else {
    return false;
  }
  return true;
}

static void *run_worker(void *argument) {
  worker *w = argument;
  while (take_step(w)) {
  }
  return NULL;
}

static void start_worker(worker *w) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&w->thread, NULL, run_worker, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  TS_CHECK(error == 0, "pthread_create failed with error %d", error);
  pthread_setname_np(w->thread, "ts_store");
}

static int count_workers(const ts_store_engine *engine, int queue_depth, int threads) {
  int64_t n = engine->is_deep ? threads : (int64_t) threads * queue_depth;
  return engine->is_deep || n < SHALLOW_MOST ? (int) n : SHALLOW_MOST;
}

static int count_slots(const ts_store_engine *engine, int queue_depth) {
  return engine->is_deep ? queue_depth + SPARE : 1;
}

int64_t ts_store_pool_memory(const ts_store_engine *engine, int64_t block_size, int queue_depth, int threads) {
  int64_t slots = (int64_t) count_workers(engine, queue_depth, threads) * count_slots(engine, queue_depth), bytes;
  TS_CHECK(!__builtin_mul_overflow(slots, block_size, &bytes), "%lld buffers of %lld bytes", (long long) slots,
           (long long) block_size);
  return bytes;
}

static bool open_queue(worker *w, int number, ts_text *why, ts_text *note) {
  ts_store_pool *p = w->pool;
  char *buffer = p->buffers + (int64_t) number * p->n_slots * p->options.block_size;
  const ts_store_queue queue = {p->options.file, p->depth, p->n_slots, buffer, p->options.block_size};
  ts_text said = {0};
  w->slot = ts_calloc((size_t) p->n_slots, sizeof *w->slot);
  for (int i = 0; i < p->n_slots; ++i) {
    w->slot[i].buffer = buffer + i * p->options.block_size;
  }
  w->queue = p->options.engine->create(&queue, why, note->length == 0 ? note : &said);
  ts_text_free(&said); /* what another thread has said already */
  return w->queue != NULL;
}

static void free_pool(ts_store_pool *p) {
  for (int i = 0; i < p->n_workers; ++i) {
    if (p->worker[i].queue != NULL) {
      p->options.engine->destroy(p->worker[i].queue);
    }
    ts_free(p->worker[i].slot);
  }
  pthread_cond_destroy(&p->ended);
  pthread_cond_destroy(&p->begun);
  pthread_mutex_destroy(&p->mutex);
  ts_unmap(p->buffers, p->buffers_bytes);
  ts_free(p->failure);
  ts_free(p->worker);
  ts_free(p);
}

ts_store_pool *ts_store_pool_create(const ts_store_pool_options *o, ts_text *why, ts_text *note) {
  ts_store_pool *p = ts_calloc(1, sizeof *p);
  *p = (ts_store_pool){.options = *o, .depth = o->engine->is_deep ? o->queue_depth : 1, .cutting = 1};
  p->n_slots = count_slots(o->engine, o->queue_depth);
  p->n_workers = count_workers(o->engine, o->queue_depth, o->threads);
  p->worker = ts_calloc((size_t) p->n_workers, sizeof *p->worker);
  p->buffers_bytes = (size_t) ts_store_pool_memory(o->engine, o->block_size, o->queue_depth, o->threads);
  p->buffers = ts_map(p->buffers_bytes);
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->begun, NULL);
  pthread_cond_init(&p->ended, NULL);
  bool works = true;
  for (int i = 0; i < p->n_workers && works; ++i) {
    p->worker[i].pool = p;
    works = open_queue(&p->worker[i], i, why, note);
  }
  if (!works) {
    free_pool(p);
    return NULL;
  }
  for (int i = 0; i < p->n_workers; ++i) {
    start_worker(&p->worker[i]);
  }
  return p;
}

void ts_store_pool_destroy(ts_store_pool **pool) {
  ts_store_pool *p = *pool;
  if (p == NULL) {
    return;
  }
  pthread_mutex_lock(&p->mutex);
  p->stop = true;
  pthread_cond_broadcast(&p->begun);
  pthread_mutex_unlock(&p->mutex);
  for (int i = 0; i < p->n_workers; ++i) {
    pthread_join(p->worker[i].thread, NULL);
  }
  free_pool(p);
  *pool = NULL;
}

/* ---- the caller ---- */

static bool is_over(const ts_store_pool *p, uint64_t ticket) {
  return ticket + TRANSFERS <= p->n_started || p->transfer[ticket % TRANSFERS].left == 0;
}

static double wait_for_end(ts_store_pool *p, uint64_t ticket) {
  double start = ts_seconds();
  p->awaited = &p->transfer[ticket % TRANSFERS];
  while (!is_over(p, ticket) && p->failure == NULL) {
    pthread_cond_wait(&p->ended, &p->mutex);
  }
  p->awaited = NULL;
  return ts_seconds() - start;
}

static double seconds_to_end(ts_store_pool *p, uint64_t ticket) {
  pthread_mutex_lock(&p->mutex);
  double seconds = is_over(p, ticket) ? 0 : wait_for_end(p, ticket);
  const char *failure = p->failure; /* stays as it is */
  pthread_mutex_unlock(&p->mutex);
  TS_CHECK(failure == NULL, "%s", failure);
  return seconds;
}

uint64_t ts_store_pool_start(ts_store_pool *p, bool write, int64_t offset, int64_t bytes, char *memory) {
  uint64_t ticket = p->n_started + 1; /* only this thread writes it */
  if (ticket > TRANSFERS) {
    p->held_up += seconds_to_end(p, ticket - TRANSFERS);
  }
  if (write) {
    ts_store_blocks_renew(p->options.blocks, offset, bytes);
  }
  pthread_mutex_lock(&p->mutex);
  p->transfer[ticket % TRANSFERS] =
      (transfer){.write = write, .offset = offset, .bytes = bytes, .memory = memory, .left = bytes};
  p->n_started = ticket;
  int64_t requests = bytes / p->options.block_size + (bytes % p->options.block_size != 0);
  for (int i = 0; i < p->n_idle && i < requests; ++i) {
    pthread_cond_signal(&p->begun);
  }
  pthread_mutex_unlock(&p->mutex);
  return ticket;
}

double ts_store_pool_wait(ts_store_pool *p, uint64_t ticket) {
  TS_ASSERT(ticket > 0 && ticket <= p->n_started);
  double seconds = p->held_up + seconds_to_end(p, ticket);
  p->held_up = 0;
  p->counts.seconds_waited += seconds;
  return seconds;
}

ts_store_counts ts_store_pool_counts(ts_store_pool *p) {
  pthread_mutex_lock(&p->mutex);
  ts_store_counts counts = p->counts;
  pthread_mutex_unlock(&p->mutex);
  return counts;
}
