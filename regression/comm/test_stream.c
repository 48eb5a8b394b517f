/* The stream: order, blocking, visibility, what waiting and idling cost. */
#include "base/log.h"
#include "base/memory.h"
#include "regression/tap.h"
#include "run/stream.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 5000 };

typedef struct record {
  int *list; /* the numbers of the calls, as they ran */
  int *n;
  int number;
} record;

static void append(void *argument) {
  record *r = argument;
  r->list[(*r->n)++] = r->number;
}

static void sleep_seconds(double seconds) {
  struct timespec time = {(time_t) seconds, (long) ((seconds - (double) (time_t) seconds) * 1e9)};
  while (nanosleep(&time, &time) != 0) {
  }
}

static void sleep_call(void *argument) {
  sleep_seconds(*(double *) argument);
}

static void test_order(bool threaded) {
  static int list[CALLS];
  static record records[CALLS];
  int n = 0, early = 0, wrong = 0;
  ts_stream *stream = ts_stream_create(threaded);
  for (int i = 0; i < CALLS; ++i) { /* far more than the queue holds */
    records[i] = (record){list, &n, i};
    uint64_t ticket = ts_stream_issue(stream, append, &records[i]);
    wrong += ticket != (uint64_t) i + 1;
    if (i % 97 == 0) {
      ts_stream_wait(stream, ticket);
      early += n != i + 1; /* plain memory: the wait orders it */
    }
  }
  ts_stream_wait(stream, CALLS);
  for (int i = 0; i < CALLS; ++i) {
    wrong += list[i] != i;
  }
  ts_stream_destroy(&stream);
  tap_ok(n == CALLS && wrong == 0, "%s: %d calls in order, tickets count", threaded ? "thread" : "no thread", CALLS);
  tap_ok(early == 0, "%s: after a wait exactly the calls up to the ticket ran", threaded ? "thread" : "no thread");
  tap_ok(stream == NULL, "%s: destroyed", threaded ? "thread" : "no thread");
}

static void test_destroy_finishes(void) {
  int list[10], n = 0;
  record records[10];
  double pause = 0.02;
  ts_stream *stream = ts_stream_create(true);
  ts_stream_issue(stream, sleep_call, &pause);
  for (int i = 0; i < 10; ++i) {
    records[i] = (record){list, &n, i};
    ts_stream_issue(stream, append, &records[i]);
  }
  ts_stream_destroy(&stream);
  tap_ok(n == 10, "destroy finishes what was issued");
  ts_stream_destroy(&stream);
  tap_ok(stream == NULL, "destroying nothing is allowed");
}

/* Sleeping calls use no processor, so their length is exact from below on any busy machine; upper limits leave room for
 * a machine that is late. */
static void test_times(bool threaded) {
  const char *kind = threaded ? "thread" : "no thread";
  double pause = 0.1;
  ts_stream *stream = ts_stream_create(threaded);
  double start = ts_seconds();
  uint64_t ticket = ts_stream_issue(stream, sleep_call, &pause);
  double issue = ts_seconds() - start;
  sleep_seconds(0.06); /* the computation */
  double exposed = ts_stream_wait(stream, ticket), total = ts_seconds() - start;
  if (threaded) {
    tap_ok(issue < 0.1, "%s: issue returns at once (%.4f s)", kind, issue);
    tap_ok(total >= 0.1 && exposed <= total - 0.06, "%s: only the rest is exposed (%.4f s of %.4f s)", kind, exposed,
           total);
  } else {
    tap_ok(issue >= 0.1 && exposed >= 0.1 && exposed <= total - 0.06,
           "%s: all of the call is exposed (%.4f s of %.4f s)", kind, exposed, total);
  }
  tap_ok(ts_stream_wait(stream, ticket) == 0, "%s: a second wait costs nothing", kind);
  double busy = ts_stream_busy_seconds(stream);
  tap_ok(busy >= 0.1 && busy <= total, "%s: busy %.4f s", kind, busy);
  ts_stream_destroy(&stream);
}

static double processor_seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

/* 0.3 s idle, then 0.3 s waiting for a call that sleeps: a thread that polled would use as much.  The limit is a
 * tenth of both. */
static void test_idle(void) {
  double pause = 0.3;
  ts_stream *stream = ts_stream_create(true);
  double start = processor_seconds();
  sleep_seconds(0.3);
  ts_stream_wait(stream, ts_stream_issue(stream, sleep_call, &pause));
  double used = processor_seconds() - start;
  tap_ok(used < 0.06, "idling and waiting use no processor (%.4f s)", used);
  ts_stream_destroy(&stream);
}

static _Atomic int signalled_elsewhere;
static pid_t main_thread;

static void on_signal(int number) {
  (void) number;
  signalled_elsewhere += gettid() != main_thread;
}

/* While the main thread blocks the signal, only the stream's thread could take it. */
static void test_signals(void) {
  double pause = 0.05;
  main_thread = gettid();
  signal(SIGUSR1, on_signal);
  ts_stream *stream = ts_stream_create(true);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);
  uint64_t ticket = ts_stream_issue(stream, sleep_call, &pause);
  kill(getpid(), SIGUSR1);
  ts_stream_wait(stream, ticket);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
  tap_ok(signalled_elsewhere == 0, "signals are not for the stream's thread");
  ts_stream_destroy(&stream);
}

int main(void) {
  int64_t live = ts_memory_live();
  for (int threaded = 0; threaded <= 1; ++threaded) {
    test_order(threaded);
    test_times(threaded);
  }
  test_destroy_finishes();
  test_idle();
  test_signals();
  tap_ok(ts_memory_live() == live, "nothing leaked");
  return tap_done();
}
