/** \file
 * The device of this process: checked calls and its streams.  Private to cuda/ and comm_nccl.  Nothing here is
 * collective.
 */
#ifndef TS_CUDA_DEVICE_H
#define TS_CUDA_DEVICE_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"
#include "base/text.h"

/** What cudaMalloc aligns to, and cuBLASLt wants of its workspace, bytes. */
#define TS_CUDA_ALIGN 256

/** A CUDA call that must succeed (class b): TS_CUDA (cudaMemsetAsync (...)). */
#define TS_CUDA(call) ts_cuda_check((call), __FILE__, __LINE__, #call)

/** End the job unless \a code is cudaSuccess, with rank, device, the op that was being issued and the call. Not
 * collective. */
void ts_cuda_check(cudaError_t code, const char *file, int line, const char *call);

/** Remember a file's kernels by one of them, to be loaded by ts_cuda_open: else each is loaded when it is first
 * launched, and the device's memory may be full by then.  Called before main. \return true. Not collective. */
bool ts_cuda_module_add(const void *kernel);

/** Who looks on while the host waits for the device. */
typedef struct ts_cuda_watcher {
  void (*watch)(void *user);                       /**< Ends the job when it sees a failure (a dead peer). */
  void (*describe)(const void *user, ts_text *to); /**< Appends "; ..." to the message about a wait that is too long. */
  void *user;                                      /**< Names it for removal. */
} ts_cuda_watcher;

enum { TS_CUDA_WATCHERS = TS_MOST_QUEUES + 16 };

/** The device of this process, from ts_cuda_open to ts_cuda_close. */
typedef struct ts_cuda_device {
  ts_device base;
  int number, processors; /**< How many multiprocessors it has. */
  bool tf32, any_order;
  double time_limit; /**< Of ts_cuda_options, or set since. */
  char bus[32], name[256];
  cudaStream_t stream[TS_MOST_QUEUES]; /**< NULL: there is no such queue. */
  bool capturing;
  const char *op, *run; /**< What is being issued, and the run it belongs to, borrowed; NULL: none. */
  bool recorded;        /**< The run. */
  size_t free_at_first; /**< Bytes that were free once this process's context was there; 0: it is not there yet. */
  size_t arenas;        /**< Bytes this process allocated by the table. */
  size_t most_used;     /**< Seen so far, */
  double asked;         /**< and when the device was asked last; 0: never. */
  ts_cuda_watcher watcher[TS_CUDA_WATCHERS];
  struct ts_blas_library *blas; /**< Owned by blas.cu; NULL before the first product. */
  struct cudnnContext *cudnn;   /**< cuDNN's handle, owned by cudnn_graph.c; NULL before the first attention of it. */
} ts_cuda_device;

/** The open device; NULL: none is. Not collective. */
ts_cuda_device *ts_cuda_opened(void);

/** What is being issued, and the run that was queued last, for messages, whether or not a device is open; whether that
 * run is a recording that is replayed: then what happens inside cannot be told op by op. Not collective. */
const char *ts_cuda_op(void);
const char *ts_cuda_run(void);
bool ts_cuda_run_is_recorded(void);

/** The device's name; whether fp32 products may use TF32.  "", false when none is open. Not collective. */
const char *ts_cuda_device_name(void);
bool ts_cuda_tf32(void);

/** Add a watcher to the open device, copied; remove it, if it is there. Not collective. */
void ts_cuda_watch_add(const ts_cuda_watcher *watcher);
void ts_cuda_watch_remove(void *user);

/** The libraries' handles go, made with their first plans for the device; nothing when there are none.  All plans must
 * be gone. Not collective. */
void ts_cuda_blas_close(ts_cuda_device *device);
void ts_cudnn_close(ts_cuda_device *device);

/** "cuBLASLt 13.1.0", part of the target's identity. Not collective. */
const char *ts_cuda_blas_describe(void);

#ifndef TS_CUDA_ARCHITECTURE
#define TS_CUDA_ARCHITECTURE 90 /**< What the kernels were built for: 10 major + minor. */
#endif

/** Output \a output of a call = the sum over \a rows rows of fp32 \a partial sums [rows][columns], in order, with the
 * prior. Asynchronous on the call's stream. Not collective. */
void ts_cuda_add_rows(const ts_kernel_call *call, int output, const float *partial, int64_t rows, int64_t columns);

/** Why ROPE \a node cannot run, a phrase for a message, static; NULL when it can. Not collective. */
const char *ts_cuda_rope_refuses(const ts_node *node);

/* Rows of the table, a file per op family.  Not collective. */
/* clang-format off */
#define TS_CUDA_FAMILIES(X) \
  X(norm) X(pointwise) X(rope) X(lookup) X(loss) X(sum) X(update) X(optimizer) X(matmul) X(attention) X(head) \
  X(limit) X(route) X(experts) X(grouped)
/* clang-format on */
#define X(family) const ts_kernel *ts_cuda_##family(ts_op op);
TS_CUDA_FAMILIES(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
