/* The ceilings of a device, by device events and medians: what every figure of benchmarks/gpu is to be compared with.
 *
 *     benchmarks/device
 *
 * Copy: 2 GiB from device memory to device memory, bytes read and written counted.  Products: 8192^3 in bf16 and fp32
 * on normal random data, through the backend's own kernel. */
#include "backend/backend.h"
#include "engine/peak.h"

#include <stdio.h>

int main(void) {
  ts_error err = {0};
  const ts_cuda_options options = {.local_rank = 0};
  if (ts_cuda_open(&options, &err) != TS_OK) {
    fprintf(stderr, "benchmarks/device: %s\n", err.text);
    return 2;
  }
  const ts_backend *backend = ts_backend_cuda();
  printf("%s\n", backend->describe());
  printf("device copy %.0f GB/s (read and write)\n", 1e-9 * ts_copy_rate(backend, (size_t) 1 << 31));
  const ts_product_shape large = {8192, 8192, 8192, false, false};
  printf("product 8192^3 bf16 %.1f TFLOP/s, fp32 %.1f TFLOP/s\n",
         1e-12 * ts_product_flops(backend, &large, TS_BF16, 1, 1, false),
         1e-12 * ts_product_flops(backend, &large, TS_F32, 1, 1, false));
  ts_cuda_close();
  return 0;
}
