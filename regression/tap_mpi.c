#include "regression/tap_mpi.h"

#include "regression/tap.h"

#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Who waits long, for a rank that computes alone, leaves it the processors. */
static void wait_yielding(MPI_Request *request) {
  enum { YIELDS = 50, SLEEP_NANOSECONDS = 200000 };
  int done = 0;
  for (int i = 0; MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done; ++i) {
    if (i < YIELDS) {
      sched_yield();
    } else {
      nanosleep(&(struct timespec){.tv_nsec = SLEEP_NANOSECONDS}, NULL);
    }
  }
}

static int rank_of(MPI_Comm comm) {
  int rank;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

bool tap_ok_all(MPI_Comm comm, bool condition, const char *format, ...) {
  char name[1024];
  int mine = condition, all = 0, rank = rank_of(comm);
  MPI_Request request;
  va_list args;
  va_start(args, format);
  vsnprintf(name, sizeof name, format, args);
  va_end(args);
  if (!condition) {
    fprintf(stderr, "# rank %d: %s\n", rank, name);
  }
  MPI_Iallreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm, &request);
  wait_yielding(&request);
  if (rank == 0) {
    tap_ok(all != 0, "%s", name);
  }
  return all != 0;
}

void tap_skip_all(MPI_Comm comm, const char *format, ...) {
  char reason[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(reason, sizeof reason, format, args);
  va_end(args);
  if (rank_of(comm) == 0) {
    tap_skip("%s", reason);
  }
}

void tap_barrier(MPI_Comm comm) {
  MPI_Request request;
  MPI_Ibarrier(comm, &request);
  wait_yielding(&request);
}

void tap_sum_all(MPI_Comm comm, void *value, int count, MPI_Datatype type) {
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, value, count, type, MPI_SUM, comm, &request);
  wait_yielding(&request);
}

int tap_done_all(MPI_Comm comm) {
  int status = 0;
  MPI_Request request;
  tap_barrier(comm);
  if (rank_of(comm) == 0) {
    status = tap_done();
  }
  MPI_Ibcast(&status, 1, MPI_INT, 0, comm, &request);
  wait_yielding(&request);
  return status;
}

const char *tap_directory_all(MPI_Comm comm) {
  static char path[PATH_MAX];
  MPI_Request request;
  if (rank_of(comm) == 0) {
    snprintf(path, sizeof path, "%s", tap_directory());
  }
  MPI_Ibcast(path, (int) sizeof path, MPI_CHAR, 0, comm, &request);
  wait_yielding(&request);
  return path;
}
