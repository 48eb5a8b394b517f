/** \file
 * A backend: a table of kernels by op.  A row has three functions; an op without a row is not supported there.
 *
 * A kernel is called with pointers into planned memory and computes synchronously with \a threads OpenMP threads (CPU)
 * or is queued on a stream (device).  It writes its outputs and its workspace, nothing else, and allocates nothing.
 * None of these functions is collective.
 */
#ifndef TS_BACKEND_BACKEND_H
#define TS_BACKEND_BACKEND_H

#include "graph/graph.h"
#include "graph/op.h"

/** Whether cuDNN may compute attention on a GPU where it takes it, its workspace being planned then; with the same bits
 * every time, or in any order. */
typedef enum ts_cudnn_use { TS_CUDNN_NEVER, TS_CUDNN_ORDERED, TS_CUDNN_ANY_ORDER } ts_cudnn_use;

/** What a plan is made for.  Two equal targets give equal plans. */
typedef struct ts_target {
  const struct ts_backend *backend;
  int threads; /**< OpenMP threads of one rank. */
  ts_cudnn_use cudnn;
} ts_target;

/** One call of a kernel. */
typedef struct ts_kernel_call {
  const ts_graph *graph;
  const ts_node *node;
  const void *const *in; /**< n_in pointers; NULL where an optional input is absent. */
  void *const *out;      /**< n_out pointers. */
  /** NULL, or n_out pointers (NULL: none); prior[i] is out[i] itself or does not overlap it. */
  const void *const *prior;
  /** NULL for 1; *beta == 0 must not read the prior.  In the backend's memory, like all else. */
  const float *beta;
  void *workspace; /**< 64-byte aligned. */
  size_t workspace_bytes;
  void *prepared; /**< What the row's prepare made for this node; addresses differ from slot to slot. */
  int threads;
  void *stream; /**< Of the device: ts_device_ops.stream; NULL on the host. */
} ts_kernel_call;

typedef struct ts_kernel {
  /** Choose or build what the node needs once (primitives, tables) and state the workspace in bytes.  NULL: nothing, 0
   * bytes.
   * \param [out] prepared  May be NULL when only the workspace is asked for (planning for memory). Not collective. */
  size_t (*prepare)(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared);
  /** Compute. NULL for an op the backend does not have. Not collective. */
  void (*run)(const ts_kernel_call *call);
  /** Free what prepare made; NULL when there is nothing to free. Not collective. */
  void (*release)(void *prepared);
} ts_kernel;

/** The queues of a device: what is in one runs in order, what is in two is ordered by events only.  There may be more,
 * from TS_N_QUEUES on (ts_device_ops.queue_create). */
typedef enum ts_queue {
  TS_QUEUE_COMPUTE,
  TS_QUEUE_COMM,
  TS_QUEUE_IN,  /**< Copies of state from the host's memory, */
  TS_QUEUE_OUT, /**< and back. */
  TS_N_QUEUES,
  TS_MOST_QUEUES = 64
} ts_queue;

typedef struct ts_device ts_device;

/** What a device has that the host does not: memory of its own and queues.  A failure of the device ends the job (class
 * b), whenever it shows, with rank, device and op named.  All but `finish` and the memory functions return at once. */
typedef struct ts_device_ops {
  void *(*stream)(ts_device *device, ts_queue queue);       /**< What kernels get as their stream. */
  ts_queue (*queue_create)(ts_device *device);              /**< One more, as urgent as COMM. */
  void (*queue_destroy)(ts_device *device, ts_queue queue); /**< After what is in it. */
  void *(*allocate_host)(ts_device *device, size_t bytes);  /**< Host memory that copies can run from; zeroed. */
  void (*release_host)(ts_device *device, void *memory);    /**< NULL is allowed. */
  /** Host or device memory either way. */
  void (*copy)(ts_device *device, void *to, const void *from, size_t bytes, ts_queue queue);
  void *(*event_create)(ts_device *device, bool timed);
  void (*event_destroy)(ts_device *device, void *event); /**< NULL is allowed. */
  void (*record)(ts_device *device, void *event, ts_queue queue);
  /** The same for queues that are not recorded with this one: inside a recording each replay records the event anew. */
  void (*announce)(ts_device *device, void *event, ts_queue queue);
  void (*wait)(ts_device *device, void *event, ts_queue queue); /**< The queue goes on after the event, the host now. */
  double (*seconds)(ts_device *device, void *from, void *to);   /**< Between two timed events that have happened. */
  /** The host waits for an event, watching for failures of device and peers. */
  void (*finish)(ts_device *device, void *event);
  void (*set_time_limit)(ts_device *device, double seconds); /**< Of such waits from now on, as in ts_cuda_options. */
  void (*capture_begin)(ts_device *device);                  /**< From now on what is queued is recorded, not run. */
  /** \return a graph; all queues that took part have been waited for by COMPUTE. */
  void *(*capture_end)(ts_device *device);
  void (*replay)(ts_device *device, void *graph);        /**< Run it all in COMPUTE. */
  void (*graph_destroy)(ts_device *device, void *graph); /**< NULL is allowed. */
  void (*set_op)(ts_device *device, const char *name);   /**< What is queued next, for messages; borrowed. */
  /** The run it belongs to; recorded: replayed as a whole; borrowed. */
  void (*set_run)(ts_device *device, const char *name, bool recorded);
  void (*choices_measure)(ts_device *device, const ts_graph *graph); /**< Time the candidates for all its products. */
  char *(*choices_write)(ts_device *device); /**< All choices as text; the caller's (ts_free). */
  /** Take them; TS_BAD_INPUT: of another device, damaged. */
  ts_status (*choices_read)(ts_device *device, const char *text, ts_error *err);
  /** Why a node cannot run, a phrase; NULL: it can. */
  const char *(*refuses)(ts_device *device, const ts_graph *graph, const ts_node *node);
  /** Datasheet's dense FLOP/s of products; 0 when the device is not known. */
  double (*peak_flops)(ts_device *device, ts_dtype dtype);
  /** The most memory of the device that was taken since this process had its context; at least its arenas. */
  size_t (*used)(ts_device *device);
  size_t (*available)(ts_device *device); /**< Bytes that are free on it. */
} ts_device_ops;

/** A device that is open: what every implementation's object begins with. */
struct ts_device {
  const ts_device_ops *ops;
};

/** A declared reserve: what a library allocates outside the plan. */
typedef struct ts_reserve {
  const char *name;
  int64_t bytes;
  int64_t bytes_if_several; /**< More when there is another rank. */
  int64_t bytes_per_rank;   /**< Per other rank of the world. */
  int64_t bytes_per_line;   /**< Per message of a pipeline that this rank sends or receives again and again. */
} ts_reserve;

/** Those of the host's processors, ended by a NULL name. */
extern const ts_reserve ts_cpu_reserves[];

typedef struct ts_backend {
  const char *name;
  const ts_kernel *(*kernel)(ts_op op);       /**< Row of an op; its run is NULL when there is none. */
  void *(*allocate)(size_t bytes);            /**< An arena: 64-byte aligned (4096 on the CPU), zeroed. */
  void (*release)(void *arena, size_t bytes); /**< NULL is allowed. */
  const char *(*describe)(void);              /**< ISA and library versions: part of the target's identity. */
  bool (*has_bf16)(void);                     /**< Products in bf16 are instructions here, and faster than fp32's. */
  const ts_reserve *reserves;                 /**< Ended by a NULL name; NULL for none. */
  /** NULL: memory is the host's and kernels return when they are done.  Else the device of this process, NULL while it
   * is not open: plans are made without one. Not collective. */
  ts_device *(*device)(void);
} ts_backend;

/** The open device of a backend; NULL where memory is the host's, and while none is open. Not collective. */
static inline ts_device *ts_backend_device(const ts_backend *backend) {
  return backend->device != NULL ? backend->device() : NULL;
}

/** The backend of the host's processors: oneDNN for products, own kernels in the best instruction set there is.
 * Not collective. */
const ts_backend *ts_backend_cpu(void);

/** What a node is computed by: the target, or beside a device the host's processors. Not collective. */
static inline ts_target ts_node_target(const ts_target *target, const ts_node *node) {
  ts_target host = *target;
  host.backend = ts_backend_cpu();
  return node->on_host ? host : *target;
}

/** A backend whose kernels do nothing: for plans and schedules.  Workspaces are those of the CPU when
 * \a threads of the target is positive. Not collective. */
const ts_backend *ts_backend_null(void);

/** The backend of this process's GPU.  Its table, and so plans for it, exist without one; memory and queues only after
 * ts_cuda_open.
 * \return NULL when Tessera was built without CUDA. Not collective. */
const ts_backend *ts_backend_cuda(void);

/** The row of an op that is made of others (MLP, MLP_DX, ORTHOGONALIZE), for any backend that has those; run NULL for
 * other ops. Not collective. */
const ts_kernel *ts_backend_nested(ts_op op);

/** How a process takes its GPU. */
typedef struct ts_cuda_options {
  int local_rank;    /**< Of this process on its node. */
  bool tf32;         /**< fp32 products may round their operands to TF32. */
  bool any_order;    /**< Sums may be made in the order in which blocks finish. */
  double time_limit; /**< Seconds that the host waits for the device before it ends the job; 0: for ever. */
} ts_cuda_options;

/** Devices that this process can see; 0 when there is no driver, or none that is new enough. Not collective. */
int ts_cuda_devices(void);

/** CUDA version of the driver, 1000 major + 10 minor; 0: none.
 * \param [out] built  The version this program was built with; 0: without CUDA. Not collective. */
int ts_cuda_driver(int *built);

/** Bind this process to the device local_rank of those that it sees, modulo their number, and make its queues.  When
 * open already: any_order alone counts, for what is measured from now on, and TS_OK.
 * \return TS_BAD_INPUT with the reason: built without CUDA, no device, an old driver, another architecture than the
 *         kernels were built for. Not collective. */
ts_status ts_cuda_open(const ts_cuda_options *options, ts_error *err);

/** The PCI bus id of the bound device, the same for all processes of a node that are bound to it; "" when none is. Not
 * collective. */
const char *ts_cuda_bus_id(void);

/** Give back queues and handles, and end the device; nothing when not open. Not collective. */
void ts_cuda_close(void);

/** Tensor of an input or output of a call. Not collective. */
static inline const ts_tensor *ts_call_in(const ts_kernel_call *call, int i) {
  return &call->graph->tensor[call->node->in[i]];
}
static inline const ts_tensor *ts_call_out(const ts_kernel_call *call, int i) {
  return &call->graph->tensor[call->node->out[i]];
}

/** Input \a i of a call; NULL where the node has fewer, or has none there. Not collective. */
static inline const void *ts_call_optional(const ts_kernel_call *call, int i) {
  return call->node->n_in > i ? call->in[i] : NULL;
}

#endif
