/** \file
 * Checkpoints of programs of their own: DeepSpeed's save_checkpoint, load_checkpoint and save_16bit_model.
 *
 *     DIRECTORY/TAG/      complete or absent, whatever the moment a process dies; loads on any grid and ZeRO stage
 *     DIRECTORY/latest    the tag saved last
 *
 * These are the directories that `tessera train` writes and goes on from, so its commands read them: verify,
 * zero_to_fp32, --weights; of families eval and generate too.  Only --resume does not, as a program alone knows its
 * place in the data.  Nothing is removed but what a save of the same tag replaces.
 */
#ifndef TS_ENGINE_CHECKPOINTS_H
#define TS_ENGINE_CHECKPOINTS_H

#include "base/error.h"
#include "engine/tessera.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Save everything that training goes on from: parameters (masters), states of the optimizer, loss scale, place in the
 * schedule, steps done, micro-steps since the last update; and bytes of the program's own.  Gradients and the rank's
 * samples are not saved, so it is called between steps: not inside of a block (ts_no_sync, ts_coalesce_grad_reduction)
 * and not while a step has gradients (after ts_backward, before its last ts_step or ts_zero_grad).  What
 * ts_set_gradient_accumulation_boundary said is not saved either.  Returns when all is on the disk and has its name.
 * Collective over the world: every rank gives the same directory and tag.
 * \param [in] directory     Made where it is missing.  One job at a time writes it.
 * \param [in] tag           NULL: step_00000200, of the steps done, skipped ones included.  Else 1 to 128 letters,
 *                           digits, ".", "_" or "-", of which the first is no "." and no "-"; not "latest", nor what
 *                           ends in ".tmp" or ".aside", nor another step's.  A checkpoint that has this tag is replaced
 *                           once the new one is complete.
 * \param [in] client        Of rank 0; any bytes, which ts_load_checkpoint gives back; NULL for none.
 * \param [in] client_bytes  Their number, 0 among them.
 * \return TS_BAD_INPUT, agreed: one of these rules is broken, the engine does not train, or it cannot be written (a
 *         full disk).  The engine and what was saved before are as they were then; only where `latest` alone cannot be
 *         replaced the new checkpoint is there all the same, which is said. */
ts_status ts_save_checkpoint(ts_engine *engine, const char *directory, const char *tag, const void *client,
                             size_t client_bytes, ts_error *err);

/** What is not taken; all false, or NULL, takes everything. */
typedef struct ts_load_options {
  bool module_only;         /**< Parameters alone: all else stays as the engine has it. */
  bool no_optimizer_states; /**< The optimizer and the loss scale begin anew; masters are taken. */
  bool no_lr_schedule;      /**< The schedule stays where the engine has it. */
} ts_load_options;

/** Take the state of an engine from a checkpoint: this function's, or that of `tessera train`.  An engine that does not
 * train takes the parameters, whatever is asked.  Gradients, values of a forward and micro-steps of the step that was
 * under way are forgotten; not inside of a block (ts_no_sync, ts_coalesce_grad_reduction).
 * Collective over the world: every rank gives the same directory, tag and options.
 * \param [in]  directory     Of ts_save_checkpoint, a run of `tessera train`, or (without a tag) one checkpoint.
 * \param [in]  tag           NULL: what `latest` names, or where that is damaged or missing the checkpoint of most
 *                            steps that is intact; a warning names those that are not.  A tag is never replaced by
 *                            another.
 * \param [in]  options       NULL: everything.
 * \param [out] loaded        Its directory; the caller's (ts_free).  NULL: without a tag, where the
 *                            directory is missing or has no checkpoint, nothing is loaded and the engine is as it was,
 *                            which is TS_OK and a warning, so a program may begin with this call.  May be NULL.
 * \param [out] client        On every rank the bytes that were saved, with a 0 behind them; the caller's (ts_free);
 *                            NULL where there are none.  May be NULL.
 * \param [out] client_bytes  Their number.  May be NULL.
 * \return TS_BAD_INPUT, agreed: no such tag, every checkpoint is damaged, another model (the first tensor that differs
 *         is named), a state is missing as of another optimizer.  The engine is as it was, except where reading failed
 *         half-way: then its parameters are undefined until a load succeeds. */
ts_status ts_load_checkpoint(ts_engine *engine, const char *directory, const char *tag, const ts_load_options *options,
                             char **loaded, char **client, size_t *client_bytes, ts_error *err);

/** Write the parameters as they compute, in the deck's type (bf16, fp16, or fp32), to one safetensors file, under the
 * model's names, which are Hugging Face's for families.  At every ZeRO stage and grid: a unit at a time is put together
 * on each rank and written by rank 0, so no rank has the whole model.  Beside it lie config.json and the files of the
 * tokenizer where the model is a family's and the directory has no config.json; then it is a model.from, and one of
 * transformers' from_pretrained.
 * Collective over the world: every rank gives the same arguments.
 * \param [in]  directory       Made where it is missing.
 * \param [in]  file            A name that ends in ".safetensors"; NULL: model.safetensors.  It appears complete or not
 *                              at all; an older one is replaced.
 * \param [in]  exclude_frozen  Leave out what the deck's `frozen` names.
 * \param [out] saved           False: at stage 3 zero_optimization.stage3_gather_16bit_weights_on_model_save asks for
 *                              nothing to be gathered; nothing is written then, and a warning says so.  May be NULL.
 * \return TS_BAD_INPUT, agreed: a name that is none, every parameter is frozen, or it cannot be written. */
ts_status ts_save_16bit_model(ts_engine *engine, const char *directory, const char *file, bool exclude_frozen,
                              bool *saved, ts_error *err);

#endif
