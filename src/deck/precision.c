/* What a model computes in. */
#include "deck/deck.h"

ts_dtype ts_deck_dtype(const ts_deck *deck) {
  TS_CHECK(deck->bf16.enabled != TS_SWITCH_AUTO, "bf16.enabled is used before it was decided");
  return deck->bf16.enabled == TS_SWITCH_ON ? TS_BF16 : TS_F32;
}

void ts_deck_decide_precision(ts_deck *deck, bool has_bf16) {
  if (deck->bf16.enabled == TS_SWITCH_AUTO) {
    deck->bf16.enabled = has_bf16 ? TS_SWITCH_ON : TS_SWITCH_OFF;
  }
}
