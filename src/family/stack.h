/** \file
 * Stacks: a parameter [E][out][in] that has the matrices of all E experts of a layer, or [E][out] with their biases.
 * Its name is that of one expert's without the number, "model.layers.3.mlp.experts.gate_proj.weight"; in files of
 * Hugging Face expert 17 of it is "model.layers.3.mlp.experts.17.gate_proj.weight", and behind "deepspeed_experts" in
 * those of DeepSpeed's layers.  Nothing here is collective.
 */
#ifndef TS_FAMILY_STACK_H
#define TS_FAMILY_STACK_H

#include <stdbool.h>
#include <stdint.h>

/** Is a parameter of this name and so many dimensions a stack? Not collective. */
bool ts_stack_is(const char *name, int n_dims);

/** The name of expert \a e of a stack.
 * \return owned by the caller (ts_free). Not collective. */
char *ts_stack_name(const char *stack, int64_t e);

/** The other way: whose matrix a tensor of this name may be.
 * \param [out] e  The expert.
 * \return the name of the stack, owned by the caller (ts_free); NULL when the name is none of an expert's.
 *         Not collective. */
char *ts_stack_of(const char *name, int64_t *e);

#endif
