/** \file
 * Who computes attention: our kernels, which are always there, or cuDNN, where it takes the call and was faster when
 * both were timed.  The choices are lines of the table of chosen algorithms (blas_choice.h) and live as long:
 *
 *   attention pass=forward b=8 t=4096 h=32 g=8 d=128 causal=1 by=cudnn
 *   attention pass=backward b=8 t=4096 h=32 g=8 d=128 causal=1 order=any by=cudnn
 *   attention pass=forward b=64 t=1024 h=12 g=12 d=64 causal=1 qkv=fused by=cudnn
 *
 * What was not timed is ours: among it all attention with documents, a softcap, a window shorter than the sequence, or
 * on parts of the tokens, which cuDNN is not given (attention_cudnn.c says why); a longer window is none.  Nothing here
 * is collective.
 */
#ifndef TS_CUDA_ATTENTION_CHOICE_H
#define TS_CUDA_ATTENTION_CHOICE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/text.h"
#include "graph/graph.h"

#include <stdbool.h>

typedef struct ts_attention_choice {
  int64_t batch, length;
  int heads, kv_heads, head_dim;
  bool backward, causal;
  bool any_order; /**< The backward pass need not give the same bits every time. */
  bool fused;     /**< q, k and v are columns of one tensor. */
  bool cudnn;     /**< The answer. */
} ts_attention_choice;

/** The question that a node of ATTENTION or ATTENTION_DX asks. Not collective. */
ts_attention_choice ts_attention_question(const ts_graph *graph, const ts_node *node, bool any_order);

/** True when the table says that cuDNN computes it. Not collective. */
bool ts_attention_by_cudnn(const ts_attention_choice *question);

/** Enter an answer that the table lacks. Not collective. */
void ts_attention_choose(const ts_attention_choice *choice);

/** All answers as lines. Not collective. */
void ts_attention_choices_write(ts_text *to);

/** One line without its end.  \return false: it is none of ours, or damaged. Not collective. */
bool ts_attention_choice_read(const char *line, ts_attention_choice *choice);

/** Empty the table. Not collective. */
void ts_attention_choices_clear(void);

/** Time both for every attention of a graph that the table lacks and that cuDNN takes, compare what they compute, and
 * enter the faster; ours when they differ by more than bf16 explains, with a warning.  Takes memory for one at a time.
 * Not collective. */
void ts_attention_measure(const ts_graph *graph, bool any_order);

#ifdef __cplusplus
}
#endif
#endif
