/* cuBLASLt, opened when its first function is called.
 *
 * Linked in, it costs every process 0.06 s and 200 MB before main: 350,000 addresses in its tables are relocated one by
 * one, also in processes that never ask for a GPU.  So the functions that we use are defined here by its header's own
 * prototypes and call those of the library, which dlopen finds as the dynamic linker does: by the program's run path,
 * LD_LIBRARY_PATH, the system's directories.  Not collective; any thread.  A library that is not there ends the job
 * (class b): whoever asks for a device has it, or has a broken installation. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"

#pragma GCC visibility push(hidden) /* cuDNN's libraries, which use cuBLASLt too, do not see these. */
#include <cublasLt.h>
#pragma GCC visibility pop

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static void *library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_cublaslt(void) {
  library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    ts_die(__FILE__, __LINE__, "%s: part of the CUDA toolkit: load its module or set LD_LIBRARY_PATH", dlerror());
  }
}

static void *cublaslt_function(const char *name) {
  pthread_once(&once, open_cublaslt);
  void *function = dlsym(library, name);
  if (function == NULL) {
    ts_die(__FILE__, __LINE__, "%s", dlerror());
  }
  return function;
}

/* RESULT NAME PARAMETERS calls the library's NAME ARGUMENTS.  Threads that come first may each look it up. */
#define FORWARD(RESULT, NAME, PARAMETERS, ARGUMENTS)                 \
  RESULT NAME PARAMETERS {                                           \
    static _Atomic(void *) function;                                 \
    void *f = atomic_load_explicit(&function, memory_order_acquire); \
    if (f == NULL) {                                                 \
      f = cublaslt_function(#NAME);                                  \
      atomic_store_explicit(&function, f, memory_order_release);     \
    }                                                                \
    return ((RESULT(*) PARAMETERS) f) ARGUMENTS;                     \
  }

FORWARD(size_t, cublasLtGetVersion, (void), ())
FORWARD(const char *, cublasLtGetStatusName, (cublasStatus_t status), (status))
FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))

FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
        (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld),
        (layout, type, rows, columns, ld))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))

FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
        (cublasLtMatmulDesc_t * product, cublasComputeType_t compute, cudaDataType_t scale), (product, compute, scale))
FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t product), (product))
FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes),
        (product, attribute, value, bytes))

FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
         size_t bytes),
        (preference, attribute, value, bytes))

FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
         cublasLtMatmulHeuristicResult_t result[], int *returned),
        (handle, product, a, b, c, d, preference, wanted, result, returned))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoCheck,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
         cublasLtMatmulHeuristicResult_t *result),
        (handle, product, a, b, c, d, algo, result))
FORWARD(cublasStatus_t, cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
         cublasLtMatrixLayout_t layout_a, const void *b, cublasLtMatrixLayout_t layout_b, const void *beta,
         const void *c, cublasLtMatrixLayout_t layout_c, void *d, cublasLtMatrixLayout_t layout_d,
         const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, cudaStream_t stream),
        (handle, product, alpha, a, layout_a, b, layout_b, beta, c, layout_c, d, layout_d, algo, workspace,
         workspace_bytes, stream))
