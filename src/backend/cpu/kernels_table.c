#include "backend/cpu/kernels.h"

static const ts_kernel *const table[TS_N_OPS] = {
#define X(ENUM, name) [TS_OP_##ENUM] = &TS_ISA_NAME(ts_cpu_kernel_##name),
    TS_CPU_KERNELS(X)
#undef X
};

const ts_kernel *TS_ISA_NAME(ts_cpu_kernels)(ts_op op) {
  static const ts_kernel none;
  return table[op] != NULL ? table[op] : &none;
}
