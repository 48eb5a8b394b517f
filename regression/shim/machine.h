/** \file
 * The machine of cuda/machine.cuh on the host: a block's threads are fibers.  Nothing here is collective.
 */
#ifndef SHIM_MACHINE_H
#define SHIM_MACHINE_H

#include <functional>
#include <math.h>
#include <string.h>
#include <type_traits>

#include "cuda_fp16.h"
#include "cuda_runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) alignas(n)
#define __grid_constant__

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) {
  return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

struct shim_index {
  unsigned x, y, z;
};

/** Where the running fiber is. */
struct shim_thread {
  shim_index thread, block;
  int lane, warp; /* in the block */
};
extern shim_thread *shim_self;
extern shim_index shim_block_dim, shim_grid_dim;
#define threadIdx (shim_self->thread)
#define blockIdx (shim_self->block)
#define blockDim shim_block_dim
#define gridDim shim_grid_dim

void shim_barrier(void);
void shim_warp_barrier(unsigned mask);
/** All lanes of \a mask give \a bytes (at most 64) and get a table with everybody's, 64 bytes a lane. */
const unsigned char *shim_warp_exchange(unsigned mask, const void *mine, size_t bytes);
/** Memory of the block for the declaration \a key; the same for all threads. */
void *shim_shared(const void *key, size_t bytes, const char *name);
void *shim_shared_dynamic(void);
/** Copies that run ahead: done only when they are waited for. */
void shim_copy_ahead(void *to, const void *from, bool valid);
void shim_copy_commit(void);
void shim_copy_wait(int groups);
cudaError_t shim_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> thread);

static inline void __syncthreads(void) {
  shim_barrier();
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
  shim_warp_barrier(mask);
}

template <typename T> static inline T shim_shuffle(unsigned mask, T x, int from) {
  T y;
  memcpy(&y, shim_warp_exchange(mask, &x, sizeof x) + 64 * (from & 31), sizeof y);
  return y;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T x, int from) {
  return shim_shuffle(mask, x, from);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits) {
  return shim_shuffle(mask, x, shim_self->lane ^ bits);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by) {
  int from = shim_self->lane + (int) by;
  return shim_shuffle(mask, x, from < 32 ? from : shim_self->lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by) {
  int from = shim_self->lane - (int) by;
  return shim_shuffle(mask, x, from >= 0 ? from : shim_self->lane);
}
unsigned __ballot_sync(unsigned mask, int predicate);
static inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}

#define __expf expf /* the names of the C library's own are not for declaring */
#define __logf logf
static inline void sincospi(double x, double *sine, double *cosine) {
  *sine = sin(M_PI * x);
  *cosine = cos(M_PI * x);
}
static inline float __fdividef(float x, float y) {
  return x / y;
}
static inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned) ((uint64_t) a * b >> 32);
}
static inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
static inline int __ffs(int x) {
  return __builtin_ffs(x);
}
static inline int min(int a, int b) {
  return a < b ? a : b;
}
static inline int max(int a, int b) {
  return a > b ? a : b;
}
static inline unsigned __float_as_uint(float x) {
  unsigned u;
  memcpy(&u, &x, 4);
  return u;
}
static inline float __uint_as_float(unsigned u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}
template <typename T> static inline T __ldg(const T *x) {
  return *x;
}
template <typename T> static inline T __ldcs(const T *x) {
  return *x;
}
template <typename T> static inline void __stcs(T *to, T x) {
  *to = x;
}
static inline int atomicAdd(int *to, int x) {
  int old = *to;
  *to = old + x;
  return old;
}

#define TS_SHARED(type, name, count) \
  static const char name##_key = 0;  \
  type(&name)[count] = *(type(*)[count]) shim_shared(&name##_key, sizeof(type) * (count), #name)
#define TS_SHARED_DYNAMIC(type, name) type *name = (type *) shim_shared_dynamic()

template <typename... P, typename... A>
void ts_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A... args) {
  if (grid.x != 0 && grid.y != 0 && grid.z != 0) {
    TS_CUDA(shim_launch(grid, block, shared, stream, [=]() { kernel(static_cast<P>(args)...); }));
  }
}

static inline float ts_exp2(float x) {
  return exp2f(x);
}
/** Elements of a and b by \a element, of the bits of one. */
void shim_mma(float d[4], const uint32_t a[4], const uint32_t b[2], float (*element)(uint16_t bits));
template <typename T> static inline void ts_mma(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  shim_mma(d, a, b, std::is_same<T, __half>::value ? ts_f16_to_f32 : ts_bf16_to_f32);
}
void ts_ldmatrix(uint32_t r[4], const void *row);
void ts_ldmatrix_trans(uint32_t r[4], const void *row);
static inline void ts_copy_ahead(void *to, const void *from, bool valid) {
  shim_copy_ahead(to, from, valid);
}
static inline void ts_copy_commit(void) {
  shim_copy_commit();
}
template <int N> static inline void ts_copy_wait(void) {
  shim_copy_wait(N);
}

/** Products by warp groups: done at once or when they are waited for, as is drawn, of what is in shared memory then.
 * Operands begin at the addresses left and right and lie along k or not. */
void shim_wgmma(float *d, const void *left, const void *right, bool left_along, bool right_along, bool half);
void shim_wgmma_commit(void);
void shim_wgmma_wait(int groups);
void shim_wgmma_show_copies(void);
static inline unsigned ts_shared_address(const void *x) {
  return (unsigned) (uintptr_t) x;
}
static inline void ts_wgmma_show_copies(void) {
  shim_wgmma_show_copies();
}
static inline void ts_wgmma_settle(float *) {
}
static inline void ts_wgmma_begin(void) {
}
static inline void ts_wgmma_commit(void) {
  shim_wgmma_commit();
}
template <int N> static inline void ts_wgmma_wait(void) {
  shim_wgmma_wait(N);
}
template <typename T, bool A_ALONG, bool B_ALONG>
static inline void ts_wgmma(float *d, const void *a, const void *b, int k) {
  shim_wgmma(d, (const char *) a + k * (A_ALONG ? 2 : 128), (const char *) b + k * (B_ALONG ? 2 : 128), A_ALONG,
             B_ALONG, std::is_same<T, __half>::value);
}

#endif
