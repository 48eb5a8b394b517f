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
#include <type_traits>

#ifndef TS_CUDA_WARPGROUPS
#define TS_CUDA_WARPGROUPS 0 /**< 1: built for sm_90a, whose warp groups multiply matrices (ts_wgmma). */
#endif

/* ---- matrix products by warp groups: of 128 threads, 64 x 256 of the result with 16 of k at a time ---- */

/** A thread's result 4 j + 2 h + i is row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + i, of warp w of the group and
 * lane l. */
enum {
  TS_WGMMA_M = 64,
  TS_WGMMA_N = 256,
  TS_WGMMA_DEPTH = 64, /**< Of k in an operand's tile. */
  TS_WGMMA_RESULTS = TS_WGMMA_M * TS_WGMMA_N / 128,
  TS_WGMMA_ALIGN = 1024 /**< Of a tile in shared memory. */
};

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

static __device__ __forceinline__ unsigned ts_shared_address(const void *x) {
  return (unsigned) __cvta_generic_to_shared(x);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/** What this thread wrote to shared memory or has waited for becomes visible to ts_wgmma, after a barrier. */
static __device__ __forceinline__ void ts_wgmma_show_copies(void) {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
/** The results are this thread's again, after ts_wgmma_wait <0>, or have been set by it, before the first ts_wgmma. */
static __device__ __forceinline__ void ts_wgmma_settle(float d[TS_WGMMA_RESULTS]) {
#pragma unroll
  for (int i = 0; i < TS_WGMMA_RESULTS; ++i) {
    asm volatile("" : "+f"(d[i]) : : "memory");
  }
}
/** Before the products of a group. */
static __device__ __forceinline__ void ts_wgmma_begin(void) {
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
/** End a group of products. */
static __device__ __forceinline__ void ts_wgmma_commit(void) {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
/** Wait until at most N groups of products are under way. */
template <int N> static __device__ __forceinline__ void ts_wgmma_wait(void) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
}

/** What describes a tile: its address, and the bytes from 64 rows to the next (not along k) and from 8 lines to the
 * next, all in 16 bytes; 1 << 62: 128 bytes a line, exchanged. */
static __device__ __forceinline__ uint64_t ts_wgmma_operand(const void *tile) {
  return (uint64_t) ((ts_shared_address(tile) & 0x3ffff) >> 4) | (uint64_t) (TS_WGMMA_DEPTH * 128 / 16) << 16 |
         (uint64_t) (8 * 128 / 16) << 32 | (uint64_t) 1 << 62;
}

#define TS_TEN(x) "%" x "0,%" x "1,%" x "2,%" x "3,%" x "4,%" x "5,%" x "6,%" x "7,%" x "8,%" x "9,"
#define TS_OF_8(i)                                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define TS_WGMMA(name, turned_a, turned_b)                                                                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name " {" TS_TEN("") TS_TEN("1") TS_TEN("2")    \
                   TS_TEN("3") TS_TEN("4") TS_TEN("5") TS_TEN("6") TS_TEN("7") TS_TEN("8") TS_TEN("9") TS_TEN("10")    \
                       TS_TEN("11") "%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, 1, 1, 1, %130, %131;"       \
               : TS_OF_8(0), TS_OF_8(8), TS_OF_8(16), TS_OF_8(24), TS_OF_8(32), TS_OF_8(40), TS_OF_8(48), TS_OF_8(56), \
                 TS_OF_8(64), TS_OF_8(72), TS_OF_8(80), TS_OF_8(88), TS_OF_8(96), TS_OF_8(104), TS_OF_8(112),          \
                 TS_OF_8(120)                                                                                          \
               : "l"(left), "l"(right), "n"(turned_a), "n"(turned_b)                                                   \
               : "memory")

/** d [64][256] += a [64][16] b [16][256] of T, bf16 or fp16, in fp32: the 16 of k from \a k on of tiles in shared
 * memory, laid out as ts_wgmma_place has it.  By a whole warp group, asynchronous until ts_wgmma_wait. */
template <typename T, bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ void ts_wgmma(float d[TS_WGMMA_RESULTS], const void *a, const void *b, int k) {
  uint64_t left = ts_wgmma_operand((const char *) a + k * (A_ALONG ? 2 : 128)),
           right = ts_wgmma_operand((const char *) b + k * (B_ALONG ? 2 : 128));
  if constexpr (std::is_same<T, __half>::value) {
    TS_WGMMA("f16", A_ALONG ? 0 : 1, B_ALONG ? 0 : 1);
  } else {
    TS_WGMMA("bf16", A_ALONG ? 0 : 1, B_ALONG ? 0 : 1);
  }
}
#undef TS_WGMMA
#undef TS_OF_8
#undef TS_TEN
#else /* another architecture's device code, never run: see TS_CUDA_WARPGROUPS */
static __device__ __forceinline__ void ts_wgmma_show_copies(void) {
}
static __device__ __forceinline__ void ts_wgmma_settle(float *) {
}
static __device__ __forceinline__ void ts_wgmma_begin(void) {
}
static __device__ __forceinline__ void ts_wgmma_commit(void) {
}
template <int N> static __device__ __forceinline__ void ts_wgmma_wait(void) {
}
template <typename T, bool A_ALONG, bool B_ALONG>
static __device__ __forceinline__ void ts_wgmma(float *, const void *, const void *, int) {
  __trap();
}
#endif

#endif

/** Where the 8 elements of 16 bits from (row, k) on are in a tile, in bytes: along k if ALONG, else along rows.  Lines
 * of 128 bytes (64 elements), of which 8 exchange their vectors of 16 bytes so that no two of a column share banks;
 * not along k, 64 rows and all of k lie together, and then the next 64. */
template <bool ALONG> static __device__ __forceinline__ int ts_wgmma_place(int row, int k) {
  int line = ALONG ? row : row / 64 * TS_WGMMA_DEPTH + k, vector = (ALONG ? k : row % 64) / 8;
  return line * 128 + (vector ^ line % 8) * 16;
}

#endif
