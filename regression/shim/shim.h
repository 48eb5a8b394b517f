/** \file
 * What the files of the stand-in share.  Nothing here is collective.
 */
#ifndef SHIM_SHIM_H
#define SHIM_SHIM_H

#include <functional>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "cuda_runtime.h"

/** SHIM_SEED, 0 where there is none. */
uint64_t shim_seed(void);

/** A number below \a below, drawn from it, and by when processes come to wait. */
unsigned shim_random(unsigned below);

/** Device memory can be touched between these two; they nest. */
void shim_open(void);
void shim_close(void);

/** What shim_only_ends was told last. Not collective. */
unsigned shim_ends(void);

/** Work for a stream that waits for nobody outside. */
cudaError_t shim_add(cudaStream_t stream, std::function<void()> run);

/** A kernel runs: the SHIM_FAIL_RUN-th one fails, as the error SHIM_FAIL_AS or with a bad address, and from then on
 * every wait. Not collective. */
void shim_ran(void);

/** Bytes that nobody may touch from now on, or may again.  The address sanitizer is told; without it nothing is done.
 * Not collective. */
static inline void shim_forbid(const void *at, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(at, bytes);
#endif
  (void) at;
  (void) bytes;
}
static inline void shim_permit(const void *at, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(at, bytes);
#endif
  (void) at;
  (void) bytes;
}

#endif
