#include "comm/comm_mpi.h"

#include "base/log.h"
#include "base/status.h"

#include <sched.h>
#include <time.h>

/* A poll takes about 0.2 us.  Sleeping starts late enough that an exchange between ranks that are both in it never
 * sleeps, and costs a few per cent of a core at most. */
enum { SPINS = 100, SLEEP_NANOSECONDS = 30000 };
#define YIELD_SECONDS 1e-3

void ts_mpi_check(int code, const char *file, int line, const char *call) {
  if (code != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;
    MPI_Error_string(code, text, &length);
    ts_die(file, line, "%s: %s", call, text);
  }
}

void ts_patience_pause(ts_patience *p) {
  if (++p->idle < SPINS) {
    return;
  }
  double now = ts_seconds();
  if (p->idle == SPINS) {
    p->since = now;
  }
  if (now - p->since < YIELD_SECONDS) {
    sched_yield();
  } else {
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_NANOSECONDS}, NULL);
  }
}

void ts_mpi_wait(MPI_Request *request) {
  ts_patience patience = {0};
  int done = 0;
  for (;;) {
    TS_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
    if (done) {
      return;
    }
    ts_patience_pause(&patience);
  }
}
