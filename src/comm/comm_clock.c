/* By how much clocks differ.  Each rank in turn asks rank 0 for the time, some times over: the answer belongs to the
 * middle of the round trip, give or take half of it, so the shortest round trip says most (Cristian, "Probabilistic
 * clock synchronization", 1989).  Cost: ROUNDS round trips a rank, one rank after another so that they do not disturb
 * each other. */
#include "comm/comm_mpi.h"

#include <math.h>

enum { ROUNDS = 12, CLOCK_TAG = 2 };

static void send_time(MPI_Comm comm, int peer, double time) {
  MPI_Request request;
  TS_MPI(MPI_Isend(&time, 1, MPI_DOUBLE, peer, CLOCK_TAG, comm, &request));
  ts_mpi_wait(&request);
}

static double receive_time(MPI_Comm comm, int peer) {
  double time;
  MPI_Request request;
  TS_MPI(MPI_Irecv(&time, 1, MPI_DOUBLE, peer, CLOCK_TAG, comm, &request));
  ts_mpi_wait(&request);
  return time;
}

static void answer_peers(MPI_Comm comm, int size, double (*clock)(void)) {
  for (int peer = 1; peer < size; ++peer) {
    for (int i = 0; i < ROUNDS; ++i) {
      receive_time(comm, peer);
      send_time(comm, peer, clock());
    }
  }
}

/* The first ones wait for rank 0 to come to this rank: a long trip, which says little and is not the shortest. */
static ts_clock_offset ask_rank_0(MPI_Comm comm, double (*clock)(void)) {
  ts_clock_offset best = {0, INFINITY};
  for (int i = 0; i < ROUNDS; ++i) {
    double before = clock();
    send_time(comm, 0, before);
    double there = receive_time(comm, 0), half = (clock() - before) / 2;
    if (half < best.bound) {
      best = (ts_clock_offset){.offset = before + half - there, .bound = half};
    }
  }
  return best;
}

ts_clock_offset ts_world_clock_offset(ts_world *world, double (*clock)(void)) {
  const ts_comm_mpi *all = (const ts_comm_mpi *) ts_world_all(world);
  if (all->base.rank > 0) {
    return ask_rank_0(all->comm, clock);
  }
  answer_peers(all->comm, all->base.size, clock);
  return (ts_clock_offset){0, 0};
}
