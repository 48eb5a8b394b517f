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

/** Name what is being issued, for messages; borrowed until the next call. Not collective. */
void ts_cuda_set_op(const char *name);
const char *ts_cuda_op(void);

/** Name the run that is queued from now on, and whether it is a recording that is replayed: then what happens inside
 * cannot be told op by op; borrowed until the next call.  Not collective. */
void ts_cuda_set_run(const char *name, bool recorded);
const char *ts_cuda_run(void);
bool ts_cuda_run_is_recorded(void);

/** Multiprocessors of the device; its name; bytes that are free on it; whether fp32 products may use TF32. Not
 * collective. */
int ts_cuda_multiprocessors(void);
const char *ts_cuda_device_name(void);
size_t ts_cuda_available(void);
bool ts_cuda_tf32(void);

/** Who looks on while the host waits for the device. */
typedef struct ts_cuda_watcher {
  void (*watch)(void *user);                       /**< Ends the job when it sees a failure (a dead peer). */
  void (*describe)(const void *user, ts_text *to); /**< Appends "; ..." to the message about a wait that is too long. */
  void *user;                                      /**< Names it for removal. */
} ts_cuda_watcher;

/** Add one, copied; remove it. Not collective. */
void ts_cuda_watch_add(const ts_cuda_watcher *watcher);
void ts_cuda_watch_remove(void *user);

/** cuBLASLt's handle goes; its version. Not collective. */
void ts_cuda_blas_close(void);
const char *ts_cuda_blas_describe(void);

#ifndef TS_CUDA_ARCHITECTURE
#define TS_CUDA_ARCHITECTURE 90 /**< What the kernels were built for: 10 major + minor. */
#endif

/** Output \a output of a call = the sum over \a rows rows of fp32 \a partial sums [rows][columns], in order, with the
 * prior. Asynchronous on the call's stream. Not collective. */
void ts_cuda_add_rows(const ts_kernel_call *call, int output, const float *partial, int64_t rows, int64_t columns);

/* Rows of the table, a file per op family.  Not collective. */
#define TS_CUDA_FAMILIES(X) X(norm) X(pointwise) X(rope) X(lookup) X(sum) X(update) X(matmul) X(attention) X(head)
#define X(family) const ts_kernel *ts_cuda_##family(ts_op op);
TS_CUDA_FAMILIES(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
