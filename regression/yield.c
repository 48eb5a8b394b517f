/* Preloaded by run_test.  Who waits polls: MPICH without end where it waits itself (MPI_Init, new communicators, shared
 * memory), Tessera for a millisecond.  With more ranks than processors those who wait take what the others need, and a
 * processor that is given away comes back at once.  Here a rank that has polled in vain sleeps: engine/test_golden on
 * four ranks takes 25 s of two processors that are busy otherwise too, where it took 64. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { POLLS = 50, SLEEP_NANOSECONDS = 50000 };

/* The C library's, which Tessera calls between its polls. */
int sched_yield(void) {
  return nanosleep(&(struct timespec){.tv_nsec = SLEEP_NANOSECONDS}, NULL);
}

/* UCX's, which MPICH calls for each poll. */
unsigned ucp_worker_progress(void *worker) {
  static unsigned (*progress)(void *);
  static _Thread_local int idle;
  if (progress == NULL) {
    *(void **) &progress = dlsym(RTLD_NEXT, "ucp_worker_progress");
  }
  if (progress == NULL) {
    abort(); /* UCX is not where a program's libraries are */
  }
  const unsigned came = progress(worker);
  idle = came > 0 ? 0 : idle + 1;
  if (idle >= POLLS) {
    idle = 0;
    sched_yield();
  }
  return came;
}
