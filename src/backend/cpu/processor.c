#include "backend/cpu/processor.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <pthread.h>

static bool fast_bf16;

/* Asked once: in a virtual machine each CPUID leaves it. */
static void ask_processor(void) {
  const unsigned avx512_fp16 = 1u << 23; /* leaf 7, EDX */
  unsigned a, b, c, d, vendor;
  bool intel = __get_cpuid(0, &a, &vendor, &c, &d) && vendor == signature_INTEL_ebx;
  bool fp16 = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & avx512_fp16) != 0;
  fast_bf16 = __builtin_cpu_supports("avx512bf16") && !(intel && fp16);
}

bool ts_processor_has_fast_bf16(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, ask_processor);
  return fast_bf16;
}
#else
bool ts_processor_has_fast_bf16(void) {
  return false;
}
#endif
