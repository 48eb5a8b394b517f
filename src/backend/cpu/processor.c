#include "backend/cpu/processor.h"

#include "base/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>

bool ts_processor_has_bf16(void) {
  return __builtin_cpu_supports("avx512bf16");
}

static bool has_slow_bf16(void) {
  const unsigned avx512_fp16 = 1u << 23; /* leaf 7, EDX */
  unsigned a, b, c, d, vendor;
  bool intel = __get_cpuid(0, &a, &vendor, &c, &d) && vendor == signature_INTEL_ebx;
  return intel && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & avx512_fp16) != 0;
}
#else
bool ts_processor_has_bf16(void) {
  return false;
}

static bool has_slow_bf16(void) {
  return false;
}
#endif

static bool fast_bf16;

/* Asked once: in a virtual machine each CPUID leaves it. */
static void ask_processor(void) {
  const char *wanted = getenv("TESSERA_BF16");
  bool instructions = wanted != NULL && strcmp(wanted, "instructions") == 0;
  bool widened = wanted != NULL && strcmp(wanted, "widened") == 0;
  TS_CHECK(wanted == NULL || instructions || widened, "TESSERA_BF16=%s is unknown; accepted: instructions, widened",
           wanted);
  TS_CHECK(!instructions || ts_processor_has_bf16(), "TESSERA_BF16=%s: this processor does not have it", wanted);
  fast_bf16 = ts_processor_has_bf16() && (instructions || (!widened && !has_slow_bf16()));
}

bool ts_processor_has_fast_bf16(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, ask_processor);
  return fast_bf16;
}
