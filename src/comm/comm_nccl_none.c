/* A build without NCCL: one GPU a run. */
#include "comm/comm_nccl.h"

#include "base/status.h"

#define REFUSE() TS_CHECK(false, "this Tessera was built without NCCL: configure it with --with-nccl=DIR")

const char *ts_comm_nccl_describe(void) {
  return "no NCCL";
}

bool ts_comm_nccl_available(void) {
  return false;
}

void ts_comm_nccl_place(MPI_Comm all, int node) {
  (void) all, (void) node;
}

ts_comm *ts_comm_nccl_create(ts_comm_mpi *mpi, const ts_device_options *options) {
  (void) mpi, (void) options;
  REFUSE();
  return NULL;
}

ts_nccl_lane *ts_nccl_lane_create(ts_comm_mpi *mpi, bool sends, int peer, int number,
                                  const ts_device_options *options) {
  (void) mpi, (void) sends, (void) peer, (void) number, (void) options;
  REFUSE();
  return NULL;
}

bool ts_nccl_lane_is(const ts_nccl_lane *lane, const ts_comm_mpi *mpi, bool sends, int peer, int number) {
  (void) lane, (void) mpi, (void) sends, (void) peer, (void) number;
  return false;
}

ts_message_line *ts_nccl_line_create(ts_nccl_lane *lane, bool sends, const ts_message_part *part, int n) {
  (void) lane, (void) sends, (void) part, (void) n;
  REFUSE();
  return NULL;
}

void ts_nccl_lane_destroy(ts_nccl_lane *lane) {
  (void) lane;
}

void ts_comm_nccl_register(ts_comm *comm, void *memory, size_t bytes) {
  (void) comm, (void) memory, (void) bytes;
  REFUSE();
}

void ts_comm_nccl_deregister(ts_comm *comm, const void *memory) {
  (void) comm, (void) memory;
  REFUSE();
}
