#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"

static ts_gemm_spec spec_of(const ts_target *target, const ts_graph *graph, const ts_node *node) {
  const ts_tensor *a = &graph->tensor[node->in[0]], *b = &graph->tensor[node->in[1]];
  int64_t rows_a = ts_shape_rows(&a->shape), last_a = a->shape.d[a->shape.n - 1];
  int64_t rows_b = ts_shape_rows(&b->shape), last_b = b->shape.d[b->shape.n - 1];
  bool ta = node->attr.matmul.transpose_a, tb = node->attr.matmul.transpose_b;
  ts_gemm_spec spec = {.m = ta ? last_a : rows_a,
                       .n = tb ? rows_b : last_b,
                       .k = ta ? rows_a : last_a,
                       .transpose_a = ta,
                       .transpose_b = tb,
                       .bias = node->n_in > 2 && node->in[2] != TS_NONE,
                       .adds = node->prior != NULL && node->prior[0] != TS_NONE,
                       .in = a->dtype,
                       .out = graph->tensor[node->out[0]].dtype,
                       .threads = target->threads};
  TS_ASSERT(a->dtype == b->dtype && (tb ? last_b : rows_b) == spec.k);
  TS_ASSERT(!spec.bias || graph->tensor[node->in[2]].dtype == a->dtype);
  return spec;
}

static size_t prepare_matmul(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  ts_gemm_spec spec = spec_of(target, graph, node);
  ts_gemm *gemm = ts_gemm_create(&spec);
  size_t workspace = ts_gemm_workspace(gemm);
  if (prepared != NULL) {
    *prepared = gemm;
  } else {
    ts_gemm_destroy(&gemm);
  }
  return workspace;
}

static void run_matmul(const ts_kernel_call *call) {
  ts_gemm_run(call->prepared, call->in[0], call->in[1], call->out[0], call->node->n_in > 2 ? call->in[2] : NULL,
              call->prior == NULL ? NULL : call->prior[0], call->beta == NULL ? 1.0f : *call->beta, call->workspace);
}

static void release_matmul(void *prepared) {
  ts_gemm *gemm = prepared;
  ts_gemm_destroy(&gemm);
}

const ts_kernel *ts_cpu_matmul(ts_op op) {
  static const ts_kernel row = {prepare_matmul, run_matmul, release_matmul}, none = {0};
  return op == TS_OP_MATMUL ? &row : &none;
}
