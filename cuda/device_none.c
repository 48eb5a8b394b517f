/* A build without CUDA. */
#include "backend/backend.h"
#include "cuda/attention_limits.h"

const ts_backend *ts_backend_cuda(void) {
  return NULL;
}

bool ts_cuda_attention_supported(const ts_graph *graph, const ts_node *node, const char **why) {
  (void) graph, (void) node;
  *why = "this Tessera was built without CUDA";
  return false;
}

int ts_cuda_devices(void) {
  return 0;
}

int ts_cuda_driver(int *built) {
  *built = 0;
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
