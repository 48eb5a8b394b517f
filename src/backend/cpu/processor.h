/** \file
 * What no instruction set's name tells of this processor.
 *
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_PROCESSOR_H
#define TS_BACKEND_CPU_PROCESSOR_H

#include <stdbool.h>

/** True where dot products of bf16 pairs (AVX512_BF16) do more operations a second than fp32's multiply-adds: twice as
 * many on AMD's processors and Cooper Lake.  Intel's with AVX512_FP16, from Sapphire Rapids on, leave bf16 to AMX and
 * begin a VDPBF16PS in every second cycle: half of fp32's rate (78 and 158 GFLOP/s of a core of an Emerald Rapids at
 * 2.5 GHz).  Whether there is AMX is not asked here.  TESSERA_BF16, for tests, is "instructions" (where there are any)
 * or "widened"; another word ends the program.  Not collective. */
bool ts_processor_has_fast_bf16(void);

/** True where there are such instructions, fast or not.  Not collective. */
bool ts_processor_has_bf16(void);

#endif
