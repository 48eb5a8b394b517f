/** \file
 * What the files of the stand-in share.  Nothing here is collective.
 */
#ifndef SHIM_SHIM_H
#define SHIM_SHIM_H

#include <functional>

#include "cuda_runtime.h"

/** A number below \a below, drawn from SHIM_SEED. */
unsigned shim_random(unsigned below);

/** Device memory can be touched between these two; they nest. */
void shim_open(void);
void shim_close(void);

/** Work for a stream that waits for nobody outside. */
cudaError_t shim_add(cudaStream_t stream, std::function<void()> run);

/** A kernel runs: the SHIM_FAIL_RUN-th one fails, and from then on every wait. Not collective. */
void shim_ran(void);

#endif
