/* Preloaded by run_test.  MPICH polls without end where it waits itself (MPI_Init, new communicators, shared memory),
 * so that with more ranks than processors those who wait take what the others need: the start of four ranks on two
 * processors costs 1.1 s of these, and 0.5 where a rank that has polled in vain gives its processor away. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>

enum { POLLS = 50 };

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
