/** \file
 * A stand-in for the CUDA runtime on a machine without a GPU: what Tessera uses of it, so that cuda/ compiles as host
 * C++ and runs for tests.  It is made to find mistakes, not to be fast:
 *
 * - Nothing runs when it is issued.  Work waits in its streams and runs at the next synchronisation, in an order drawn
 *   from SHIM_SEED among those that streams and events allow: a missing event gives wrong numbers for some seed.
 * - Device memory can be touched by kernels and copies only (the host faults), ends at a page without access, and is
 *   filled with NaNs.
 * - The threads of a block are fibers; which one goes on is drawn as well: a missing barrier shows.
 * - Capture, its forks and joins are followed as the runtime does it, and what may not happen inside is refused.
 *
 * Nothing here is collective.
 */
#ifndef SHIM_CUDA_RUNTIME_H
#define SHIM_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000

/** Of cuda/blas.h: less than on a device, for each test fills and copies it. */
#define TS_BLAS_LIBRARY_WORKSPACE ((size_t) 4 << 20)

/** Of cuda/head.cu: so that small tests have several chunks. */
#define TS_HEAD_LONGEST_CHUNK 256

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorUnknown = 999
} cudaError_t;

typedef struct shim_stream *cudaStream_t;
typedef struct shim_event *cudaEvent_t;
typedef struct shim_graph *cudaGraph_t;
typedef struct shim_graph *cudaGraphExec_t;

typedef enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDefault = 4
} cudaMemcpyKind;
typedef enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
} cudaStreamCaptureMode;
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
enum { cudaEventRecordDefault = 0, cudaEventRecordExternal = 1 };
typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
typedef enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
} cudaDeviceAttr;

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaFree(void *device);
cudaError_t cudaFreeHost(void *host);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaMalloc(void **device, size_t bytes);
cudaError_t cudaHostAlloc(void **host, size_t bytes, unsigned flags);

/** Put what waits for other processes in a stream as if it were a kernel: how the stand-in of NCCL does its work.
 * \a go_on is called again and again, while other streams go on, until it returns true.  \a arg is freed with free()
 * afterwards (once the graph is destroyed, when captured).  Device memory can be touched inside. */
cudaError_t shim_enqueue(cudaStream_t stream, bool (*go_on)(void *arg), void *arg);

/** Kernels launched since the start. */
long shim_launches(void);

/** Barriers that whole blocks have passed since the start. */
long shim_barriers(void);

/** From now on only the \a blocks first and last blocks of each dimension of a grid run, and memory begins as zeros,
 * which take no room until they are written: for tensors that are larger than the machine.  0: all blocks again, and
 * NaNs. */
void shim_only_ends(unsigned blocks);

#ifdef __cplusplus
}

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
  }
};
#endif
#endif
