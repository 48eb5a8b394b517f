/** \file
 * What of the machine's own the kernels use: launching, shared memory, copies that run ahead, matrix instructions.  The
 * kernels name no other feature of nvcc, so that they also compile as host C++ (regression/shim), where a block's
 * threads are fibers.  None of these functions is collective over ranks.
 */
#ifndef TS_CUDA_MACHINE_CUH
#define TS_CUDA_MACHINE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#ifdef TS_SHIM
#include "regression/shim/machine.h"
#else

/** Static shared memory: TS_SHARED (float, sum, 32); declares float sum[32], 16-byte aligned. */
#define TS_SHARED(type, name, count) __shared__ __align__(16) type name[count]

/** The dynamic shared memory of the launch, as a pointer: TS_SHARED_DYNAMIC (float, tile); 16-byte aligned. */
#define TS_SHARED_DYNAMIC(type, name)                            \
  extern __shared__ __align__(16) unsigned char ts_shared_all[]; \
  type *name = (type *) ts_shared_all

/* A kernel of each file by which the others of its module are found (cuda/device.cu loads them all before the
 * arena). */
static __global__ void ts_module_mark(void) {
}
static const bool ts_module_known = ts_cuda_module_add((const void *) ts_module_mark);

/** Start a kernel; a grid of no blocks is no launch.  A refused launch ends the job.
 * \param [in] shared  Bytes of dynamic shared memory, up to 227 KB. Asynchronous on \a stream. Not collective. */
template <typename... P, typename... A>
void ts_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return;
  }
  if (shared > 48 * 1024) {
    TS_CUDA(cudaFuncSetAttribute((const void *) kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared));
  }
  kernel<<<grid, block, shared, stream>>>(static_cast<P>(args)...);
  TS_CUDA(cudaGetLastError());
}

/** d [16][8] += a [16][16] b [16][8], of T, bf16 or fp16, with fp32 sums: mma.m16n8k16, row-major a, column-major b.
 * By all lanes of a warp; with g = lane / 4 and t = lane % 4 a lane holds
 *   a: (g, 2t..2t+1), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..)
 *   b: (2t..2t+1, g), (2t + 8.., g)   d: (g, 2t..), (g + 8, 2t..)
 * the lower element in the lower half of a word. */
template <typename T> __device__ __forceinline__ void ts_mma(float d[4], const uint32_t a[4], const uint32_t b[2]);
#define TS_MMA(T, name)                                                                                         \
  template <> __device__ __forceinline__ void ts_mma<T>(float d[4], const uint32_t a[4], const uint32_t b[2]) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                         \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                           \
  }
TS_MMA(__nv_bfloat16, "bf16")
TS_MMA(__half, "f16")
#undef TS_MMA

/** 2 to the power of x, to 2 units in the last place; results below 2^-126 are 0. */
static __device__ __forceinline__ float ts_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/** Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + j gives the address of row j of matrix i
 * (16-byte aligned); r[i] is elements (lane / 4, 2 (lane % 4)..+1) of matrix i, with _trans elements (2 (lane % 4)..+1,
 * lane / 4). */
static __device__ __forceinline__ void ts_ldmatrix(uint32_t r[4], const void *row) {
  uint32_t at = (uint32_t) __cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
static __device__ __forceinline__ void ts_ldmatrix_trans(uint32_t r[4], const void *row) {
  uint32_t at = (uint32_t) __cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

/** Copy 16 bytes from global to shared memory without waiting, or write 16 zero bytes when not \a valid (\a from is
 * then not read).  Visible to this thread after ts_copy_wait, to the block after a barrier more. */
static __device__ __forceinline__ void ts_copy_ahead(void *to, const void *from, bool valid) {
  uint32_t at = (uint32_t) __cvta_generic_to_shared(to);
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(bytes) : "memory");
}
/** End a group of copies. */
static __device__ __forceinline__ void ts_copy_commit(void) {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
/** Wait until at most N groups of this thread are under way. */
template <int N> static __device__ __forceinline__ void ts_copy_wait(void) {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

#endif
#endif
