/* A build without CUDA. */
#include "comm/comm_device.h"

#include "base/status.h"

ts_comm *ts_comm_device_alone(void) {
  TS_CHECK(false, "this Tessera was built without CUDA: configure it with --with-cuda=DIR");
  return NULL;
}
