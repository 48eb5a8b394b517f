/** \file
 * A stand-in for NCCL on a machine without a GPU: what Tessera uses of it, over MPI point to point, in stream order.
 * It is made to find mistakes, not to be fast:
 *
 * - Communicators are non-blocking: a group is put in its stream only after ncclCommGetAsyncError has been asked a few
 *   times, and a call before that is refused, as NCCL refuses it.
 * - ncclReduceScatter adds in the order of a ring that ends at the owner: not the order of ranks.
 * - Messages of different sizes on two sides end the job; so do buffers that are still registered at the end.
 *
 * SHIM_NCCL_ERROR=RANK:N makes the communicators of world rank RANK report a dead peer after N groups, queued or
 * replayed; SHIM_NCCL_STALL=1 keeps communicators from being ready.  MPI must be initialized; one thread calls.
 * Nothing here is collective but where NCCL is.
 */
#ifndef SHIM_NCCL_H
#define SHIM_NCCL_H

#include <cuda_runtime.h>

#include <limits.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_INITIALIZER \
  { sizeof(ncclConfig_t), INT_MIN, INT_MIN, INT_MIN, NULL }

/** Bytes that a new communicator is warmed up with: less than on a device. */
#define TS_NCCL_WARM_BYTES ((size_t) 4096)

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum ncclResult {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;

typedef enum ncclDataType {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclBfloat16 = 9
} ncclDataType_t;
typedef enum ncclRedOp { ncclSum = 0 } ncclRedOp_t;

typedef struct ncclConfig {
  size_t size;
  int blocking;
  int minCTAs, maxCTAs;
  const char *commName;
} ncclConfig_t;

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommCount(ncclComm_t comm, int *count);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);
ncclResult_t ncclCommRegister(ncclComm_t comm, void *buffer, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *x, void *y, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *x, void *y, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *x, void *y, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
