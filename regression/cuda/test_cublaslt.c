/* cuBLASLt is opened by the first call of it, not with the program; what is called there is what was meant.  Needs the
 * library, not a GPU. */
#include <cublasLt.h>
#include <string.h>

#include "regression/tap.h"

/* Whether the library is in this process. */
static bool is_open(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[4096];
  bool found = false;
  while (fgets(line, sizeof line, maps) != NULL) {
    found |= strstr(line, "libcublasLt.so") != NULL;
  }
  fclose(maps);
  return found;
}

int main(void) {
  tap_ok(!is_open(), "not open in a program that has not called it");
  size_t version = cublasLtGetVersion();
  tap_ok(is_open(), "opened by the first call");
  tap_ok(version / 10000 == CUBLAS_VER_MAJOR, "version %zu, of the header's %d", version, CUBLAS_VER_MAJOR);
  tap_ok(strcmp(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED") == 0, "a name");

  cublasLtMatmulDesc_t product;
  tap_ok(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS, "a product");
  int32_t transpose = 1;
  cublasStatus_t whole =
      cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
  tap_ok(whole == CUBLAS_STATUS_SUCCESS, "its attribute");
  cublasStatus_t half = cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, 2);
  tap_ok(half == CUBLAS_STATUS_INVALID_VALUE, "which half of its bytes are not");
  tap_ok(cublasLtMatmulDescDestroy(product) == CUBLAS_STATUS_SUCCESS, "freed");
  cublasLtMatrixLayout_t layout;
  tap_ok(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 5, 7, 11) == CUBLAS_STATUS_SUCCESS, "a layout");
  tap_ok(cublasLtMatrixLayoutDestroy(layout) == CUBLAS_STATUS_SUCCESS, "freed");
  cublasLtMatmulPreference_t preference;
  tap_ok(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS, "a preference");
  size_t most = 1 << 20;
  cublasLtMatmulPreferenceAttributes_t bytes = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  tap_ok(cublasLtMatmulPreferenceSetAttribute(preference, bytes, &most, sizeof most) == CUBLAS_STATUS_SUCCESS,
         "its own");
  half = cublasLtMatmulPreferenceSetAttribute(preference, bytes, &most, 2);
  tap_ok(half == CUBLAS_STATUS_INVALID_VALUE, "which two bytes are not");
  tap_ok(cublasLtMatmulPreferenceDestroy(preference) == CUBLAS_STATUS_SUCCESS, "freed");
  return tap_done();
}
