/* A build without NCCL: one GPU a run. */
#include "comm/comm.h"

#include "base/status.h"

ts_comm *ts_world_device_comm(ts_world *world, const ts_mesh *mesh, unsigned axes) {
  (void) world, (void) mesh, (void) axes;
  TS_CHECK(false, "this Tessera was built without NCCL: configure it with --with-nccl=DIR");
  return NULL;
}
