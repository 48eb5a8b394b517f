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

void ts_comm_nccl_register(ts_comm *comm, void *memory, size_t bytes) {
  (void) comm, (void) memory, (void) bytes;
  REFUSE();
}

void ts_comm_nccl_deregister(ts_comm *comm, const void *memory) {
  (void) comm, (void) memory;
  REFUSE();
}
