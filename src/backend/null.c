#include "backend/backend.h"
#include "base/memory.h"
#include "base/status.h"

/* What the CPU's row of the op would need; the row's own function does not know its op, the node does. */
static size_t prepare_like_cpu(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  if (prepared != NULL) {
    *prepared = NULL;
  }
  const ts_kernel *row = ts_backend_cpu()->kernel(node->op);
  if (target->threads <= 0 || row->prepare == NULL) {
    return 0;
  }
  ts_target cpu = {ts_backend_cpu(), target->threads, TS_CUDNN_NEVER};
  return row->prepare(&cpu, graph, node, NULL);
}

static void run_nothing(const ts_kernel_call *call) {
  (void) call;
}

static const ts_kernel *null_kernel(ts_op op) {
  static const ts_kernel row = {prepare_like_cpu, run_nothing, NULL}, none = {0};
  return ts_backend_cpu()->kernel(op)->run != NULL ? &row : &none;
}

static const char *describe_null(void) {
  return "null";
}

static bool null_has_bf16(void) {
  return true;
}

const ts_backend *ts_backend_null(void) {
  static const ts_backend backend = {.name = "null",
                                     .kernel = null_kernel,
                                     .allocate = ts_map,
                                     .release = ts_unmap,
                                     .describe = describe_null,
                                     .has_bf16 = null_has_bf16,
                                     .reserves = ts_cpu_reserves};
  return &backend;
}
