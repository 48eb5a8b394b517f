/* A build without CUDA. */
#include "backend/backend.h"

const ts_backend *ts_backend_cuda(void) {
  return NULL;
}

int ts_cuda_devices(void) {
  return 0;
}

ts_status ts_cuda_open(const ts_cuda_options *options, ts_error *err) {
  (void) options;
  return ts_error_add(err, "this Tessera was built without CUDA: configure it with --with-cuda=DIR");
}

const char *ts_cuda_bus_id(void) {
  return "";
}

void ts_cuda_close(void) {
}
