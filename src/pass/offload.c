#include "pass/offload.h"

#include "graph/op.h"
#include "pass/plan.h"
#include "pass/state.h"

#include <string.h>

/* What a deck's device means on a backend: processors have no other memory than the host's. */
static ts_space space_of_device(const ts_pass_context *context, const ts_deck_offload *offload) {
  bool host = strcmp(offload->device, "cpu") == 0 && context->target.backend->device != NULL;
  return strcmp(offload->device, "nvme") == 0 ? TS_SPACE_FILE : host ? TS_SPACE_PINNED : TS_SPACE_BACKEND;
}

/* Of what two stages of a pipeline read each gives the other what is in its memory. */
static ts_space space_of_parameters(const ts_pass_context *context, const ts_part *part) {
  const ts_deck_zero *zero = &context->deck->zero_optimization;
  bool leave = zero->stage == 3 && part->copy < 0;
  return leave ? space_of_device(context, &zero->offload_param) : TS_SPACE_BACKEND;
}

static ts_space space_of_states(const ts_pass_context *context, const ts_part *part) {
  bool leave = part->trainable && context->use == TS_MODEL_TRAIN;
  return leave ? space_of_device(context, &context->deck->zero_optimization.offload_optimizer) : TS_SPACE_BACKEND;
}

ts_space ts_offload_space(const ts_pass_context *context, const ts_part *part, ts_state state) {
  ts_purpose purpose = ts_state_get(state)->purpose;
  return part->persistent                  ? TS_SPACE_BACKEND
         : purpose == TS_PURPOSE_PARAMETER ? space_of_parameters(context, part)
         : purpose == TS_PURPOSE_OPTIMIZER ? space_of_states(context, part)
                                           : TS_SPACE_BACKEND;
}

/* The fewest elements whose states are whole units of a file: of codes in 8 bits the scales are. */
static int64_t least_piece(const ts_part *part) {
  return part->moments == TS_U8 ? TS_PLAN_PAGE / (int64_t) sizeof(float) * TS_STATE_BLOCK
                                : TS_PLAN_PAGE / (int64_t) ts_dtype_size(TS_BF16);
}

int64_t ts_offload_piece(const ts_pass_context *context, const ts_part *part) {
  if (ts_offload_space(context, part, TS_STATE_MASTER) == TS_SPACE_BACKEND &&
      ts_offload_space(context, part, TS_STATE_PARAMETER) == TS_SPACE_BACKEND) {
    return INT64_MAX;
  }
  const int64_t whole = TS_OFFLOAD_BLOCK / (int64_t) sizeof(float); /* of fp32, in blocks of the largest size */
  int64_t most = context->deck->zero_optimization.sub_group_size;
  most = most > 0 && most < TS_OFFLOAD_PIECE ? most : TS_OFFLOAD_PIECE;
  int64_t piece = least_piece(part);
  while (2 * piece <= most && 2 * piece <= whole) {
    piece *= 2;
  }
  return most > whole ? most / whole * whole : piece;
}

bool ts_offload_activations(const ts_pass_context *context) {
  const ts_deck *deck = context->deck;
  return deck->activation_checkpointing.enabled && deck->activation_checkpointing.cpu_checkpointing &&
         context->target.backend->device != NULL;
}

int ts_offload_ahead(const ts_deck *deck) {
  return deck->zero_optimization.offload_optimizer.pipeline_read ? 1 : 0;
}

int ts_offload_units_ahead(const ts_deck *deck) {
  return deck->zero_optimization.stage3_prefetch_bucket_size > 0 ? 1 : 0;
}

int ts_offload_behind(const ts_deck *deck) {
  return deck->zero_optimization.offload_optimizer.pipeline_write ? 1 : 0;
}
