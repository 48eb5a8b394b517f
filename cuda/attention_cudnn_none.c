/* Built without cuDNN: nothing is supported, so that no plan is ever made. */
#include "cuda/attention_cudnn.h"
#include "cuda/device.h"

bool ts_cudnn_supports(const ts_graph *graph, const ts_node *node, bool any_order) {
  (void) any_order;
  (void) graph;
  (void) node;
  return false;
}

size_t ts_cudnn_workspace(const ts_graph *graph, const ts_node *node, bool any_order) {
  (void) any_order;
  (void) graph;
  (void) node;
  return 0;
}

void ts_cudnn_slice(int64_t bytes) {
  (void) bytes;
}

bool ts_cudnn_accepts(const ts_graph *graph, const ts_node *node, bool any_order, const char *device, ts_error *err) {
  return ts_cudnn_plan_create(graph, node, any_order, device, err) != NULL;
}

ts_cudnn_plan *ts_cudnn_plan_create(const ts_graph *graph, const ts_node *node, bool any_order, const char *device,
                                    ts_error *err) {
  (void) any_order;
  (void) graph;
  (void) node;
  (void) device;
  ts_error_add(err, "built without cuDNN");
  return NULL;
}

void ts_cudnn_plan_destroy(ts_cudnn_plan **plan) {
  *plan = NULL;
}

size_t ts_cudnn_plan_workspace(const ts_cudnn_plan *plan) {
  (void) plan;
  return 0;
}

int64_t ts_cudnn_plan_engine(const ts_cudnn_plan *plan) {
  (void) plan;
  return -1;
}

void ts_cudnn_plan_run(ts_cudnn_plan *plan, const ts_kernel_call *call) {
  (void) call;
  ts_die(__FILE__, __LINE__, "built without cuDNN, but given a plan of it (%p)", (void *) plan);
}

void ts_cudnn_close(ts_cuda_device *device) {
  (void) device;
}

const char *ts_cudnn_describe(void) {
  return "no cuDNN";
}
