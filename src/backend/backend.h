/** \file
 * A backend: a table of kernels by op.  A row has three functions; an op without a row is not supported there.
 *
 * A kernel is called with pointers into planned memory and computes synchronously with \a threads OpenMP threads (CPU)
 * or in order on a stream (device).  It writes its outputs and its workspace, nothing else, and allocates nothing.
 * None of these functions is collective.
 */
#ifndef TS_BACKEND_BACKEND_H
#define TS_BACKEND_BACKEND_H

#include "graph/graph.h"
#include "graph/op.h"

/** What a plan is made for.  Two equal targets give equal plans. */
typedef struct ts_target {
  const struct ts_backend *backend;
  int threads; /**< OpenMP threads of one rank. */
} ts_target;

/** One call of a kernel. */
typedef struct ts_kernel_call {
  const ts_graph *graph;
  const ts_node *node;
  const void *const *in;    /**< n_in pointers; NULL where an optional input is absent. */
  void *const *out;         /**< n_out pointers. */
  const void *const *prior; /**< NULL, or n_out pointers (NULL: none); prior[i] is out[i] itself or does not overlap it. */
  const float *beta;        /**< NULL for 1; *beta == 0 must not read the prior. */
  void *workspace;          /**< 64-byte aligned. */
  size_t workspace_bytes;
  void *prepared; /**< What the row's prepare made for this node. */
  int threads;
} ts_kernel_call;

typedef struct ts_kernel {
  /** Build what the node needs once (primitives, tables) and state the workspace in bytes.  NULL: nothing, 0 bytes.
   * \param [out] prepared  May be NULL when only the workspace is asked for (planning for memory). Not collective. */
  size_t (*prepare)(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared);
  /** Compute. NULL for an op the backend does not have. Not collective. */
  void (*run)(const ts_kernel_call *call);
  /** Free what prepare made; NULL when there is nothing to free. Not collective. */
  void (*release)(void *prepared);
} ts_kernel;

typedef struct ts_backend {
  const char *name;
  const ts_kernel *(*kernel)(ts_op op);       /**< Row of an op; its run is NULL when there is none. */
  void *(*allocate)(size_t bytes);            /**< An arena: 64-byte aligned (4096 on the CPU), zeroed. */
  void (*release)(void *arena, size_t bytes); /**< NULL is allowed. */
  const char *(*describe)(void);              /**< ISA and library versions: part of the target's identity. */
} ts_backend;

/** The backend of the host's processors: oneDNN for products, own kernels in the best instruction set there is.
 * Not collective. */
const ts_backend *ts_backend_cpu(void);

/** A backend whose kernels do nothing: for plans and schedules.  Workspaces are those of the CPU when
 * \a threads of the target is positive. Not collective. */
const ts_backend *ts_backend_null(void);

/** Tensor of an input or output of a call. Not collective. */
static inline const ts_tensor *ts_call_in(const ts_kernel_call *call, int i) {
  return &call->graph->tensor[call->node->in[i]];
}
static inline const ts_tensor *ts_call_out(const ts_kernel_call *call, int i) {
  return &call->graph->tensor[call->node->out[i]];
}

#endif
