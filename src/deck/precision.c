/* What a model computes in, and what its gradients travel in. */
#include "deck/deck.h"

ts_dtype ts_deck_dtype(const ts_deck *deck) {
  TS_CHECK(deck->bf16.enabled != TS_SWITCH_AUTO, "bf16.enabled is used before it was decided");
  return deck->bf16.enabled == TS_SWITCH_ON ? TS_BF16 : TS_F32;
}

bool ts_deck_has_masters(const ts_deck *deck) {
  return ts_deck_dtype(deck) != TS_F32 && !deck->bf16.bf16_master_weights_and_grads;
}

ts_dtype ts_deck_wire(const ts_deck *deck) {
  return deck->sequence_parallel_size > 1 ? deck->seq_parallel_communication_data_type : deck->communication_data_type;
}

void ts_deck_decide_precision(ts_deck *deck, bool bf16, const char *why, ts_text *said) {
  if (deck->bf16.enabled != TS_SWITCH_AUTO) {
    return;
  }
  bool idle = !bf16 && deck->bf16.stochastic_rounding;
  deck->bf16.enabled = bf16 ? TS_SWITCH_ON : TS_SWITCH_OFF;
  deck->bf16.stochastic_rounding = bf16 && deck->bf16.stochastic_rounding;
  ts_text_add(said, "bf16.enabled: \"auto\": %s: %s%s", bf16 ? "true" : "false", why,
              idle ? "; bf16.stochastic_rounding has no effect: fp32 parameters are not rounded" : "");
}
