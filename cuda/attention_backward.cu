/* Backward attention: by the plain kernels so far. */
#include "cuda/attention.cuh"

void ts_attention_backward(const ts_attention_problem *p, cudaStream_t stream) { ts_attention_backward_plain(p, TS_BF16, stream); }
