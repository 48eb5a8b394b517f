#include "run/stream.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { QUEUE = 256, SPINS = 200 };

typedef struct call {
  void (*fn)(void *);
  void *arg;
} call;

/* The mutex guards all but `done`, which only grows, and only under it; it is also read without, to spin. */
struct ts_stream {
  bool threaded, stop, waiting, asleep;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t issued, finished;
  uint64_t n_issued;
  _Atomic uint64_t n_done;
  call queue[QUEUE]; /* call number i (from 0) is at i % QUEUE */
  double busy;
  double held_up; /* of the issuing thread, not reported yet; its own */
};

static void finish_call(ts_stream *s, double seconds) {
  s->busy += seconds;
  atomic_store_explicit(&s->n_done, atomic_load_explicit(&s->n_done, memory_order_relaxed) + 1, memory_order_release);
  if (s->waiting) {
    pthread_cond_signal(&s->finished);
  }
}

static double run(call c) {
  double start = ts_seconds();
  c.fn(c.arg);
  return ts_seconds() - start;
}

static void *thread_main(void *argument) {
  ts_stream *s = argument;
  pthread_mutex_lock(&s->mutex);
  for (uint64_t next = 0;; ++next) {
    while (s->n_issued == next && !s->stop) {
      s->asleep = true;
      pthread_cond_wait(&s->issued, &s->mutex);
      s->asleep = false;
    }
    if (s->n_issued == next) {
      break;
    }
    call c = s->queue[next % QUEUE];
    pthread_mutex_unlock(&s->mutex);
    double seconds = run(c);
    pthread_mutex_lock(&s->mutex);
    finish_call(s, seconds);
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

static void start_thread(ts_stream *s) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&s->thread, NULL, thread_main, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  TS_CHECK(error == 0, "pthread_create failed with error %d", error);
  pthread_setname_np(s->thread, "ts_stream");
}

ts_stream *ts_stream_create(bool threaded) {
  ts_stream *s = ts_calloc(1, sizeof *s);
  s->threaded = threaded;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->issued, NULL);
  pthread_cond_init(&s->finished, NULL);
  if (threaded) {
    start_thread(s);
  }
  return s;
}

void ts_stream_destroy(ts_stream **stream) {
  ts_stream *s = *stream;
  if (s == NULL) {
    return;
  }
  if (s->threaded) {
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    pthread_cond_signal(&s->issued);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
  }
  pthread_cond_destroy(&s->finished);
  pthread_cond_destroy(&s->issued);
  pthread_mutex_destroy(&s->mutex);
  ts_free(s);
  *stream = NULL;
}

static bool is_done(ts_stream *s, uint64_t ticket) {
  return atomic_load_explicit(&s->n_done, memory_order_acquire) >= ticket;
}

/* A short wait is spun through, but never long: the thread that is waited for may need this core. */
static void wait_until_done(ts_stream *s, uint64_t ticket) {
  for (int spin = 0; spin < SPINS; ++spin) {
    if (is_done(s, ticket)) {
      return;
    }
    sched_yield();
  }
  pthread_mutex_lock(&s->mutex);
  s->waiting = true;
  while (!is_done(s, ticket)) {
    pthread_cond_wait(&s->finished, &s->mutex);
  }
  s->waiting = false;
  pthread_mutex_unlock(&s->mutex);
}

static double seconds_until_done(ts_stream *s, uint64_t ticket) {
  if (is_done(s, ticket)) {
    return 0;
  }
  double start = ts_seconds();
  wait_until_done(s, ticket);
  return ts_seconds() - start;
}

uint64_t ts_stream_issue(ts_stream *s, void (*fn)(void *), void *arg) {
  call c = {fn, arg};
  if (!s->threaded) {
    double seconds = run(c);
    s->held_up += seconds;
    finish_call(s, seconds);
    return ++s->n_issued;
  }
  uint64_t number = s->n_issued; /* only this thread writes it */
  if (number >= QUEUE) {
    s->held_up += seconds_until_done(s, number - QUEUE + 1);
  }
  pthread_mutex_lock(&s->mutex);
  s->queue[number % QUEUE] = c;
  s->n_issued = number + 1;
  if (s->asleep) {
    pthread_cond_signal(&s->issued);
  }
  pthread_mutex_unlock(&s->mutex);
  return number + 1;
}

double ts_stream_wait(ts_stream *s, uint64_t ticket) {
  TS_ASSERT(ticket <= s->n_issued);
  double seconds = s->held_up + seconds_until_done(s, ticket);
  s->held_up = 0;
  return seconds;
}

double ts_stream_busy_seconds(ts_stream *s) {
  pthread_mutex_lock(&s->mutex);
  double busy = s->busy;
  pthread_mutex_unlock(&s->mutex);
  return busy;
}
