/** \file
 * The backends that a conformance test runs on.  A test program is made three times: for the processors, for a GPU
 * (RUN_CUDA) and for the stand-in of one (RUN_CUDA, linked with regression/shim).  Nothing here is collective.
 */
#ifndef REGRESSION_BACKENDS_H
#define REGRESSION_BACKENDS_H

#include "backend/backend.h"
#include "regression/tap.h"

/** The backend under test, opened; what it is, as a note.
 * \return NULL after a visible skip, where there is no device. Not collective. */
static inline const ts_backend *test_backend(void) {
#ifdef RUN_CUDA
  if (ts_backend_cuda() == NULL || ts_cuda_devices() == 0) {
    tap_skip("cuda: %s", ts_backend_cuda() == NULL ? "built without it" : "no device here");
    return NULL;
  }
  ts_error err = {0};
  ts_cuda_options options = {.local_rank = 0};
  if (ts_cuda_open(&options, &err) != TS_OK) {
    tap_ok(false, "cuda: %s", err.text);
    ts_error_clear(&err);
    return NULL;
  }
  const ts_backend *backend = ts_backend_cuda();
#else
  const ts_backend *backend = ts_backend_cpu();
#endif
  tap_note("%s", backend->describe());
  return backend;
}

/** Give the device back. Not collective. */
static inline void test_backend_close(void) {
#ifdef RUN_CUDA
  ts_cuda_close();
#endif
}

#endif
