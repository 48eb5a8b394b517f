/** \file
 * Which attention the kernels of this directory can do: to refuse a deck before training.  C.  Nothing here is
 * collective.
 */
#ifndef TS_CUDA_ATTENTION_LIMITS_H
#define TS_CUDA_ATTENTION_LIMITS_H

#include "graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Whether ATTENTION, ATTENTION_DX or ATTENTION_CACHED \a node can run; needs no device.
 * \param [out] why  NULL, or what is wrong with the node, a phrase for a message; static.  Set when the answer is
 * false. Not collective. */
bool ts_cuda_attention_supported(const ts_graph *graph, const ts_node *node, const char **why);

#ifdef __cplusplus
}
#endif

#endif
