/* What a model computes in, and what its gradients travel in. */
#include "base/memory.h"
#include "base/text.h"
#include "deck/deck.h"

#include <math.h>

ts_dtype ts_deck_dtype(const ts_deck *deck) {
  TS_CHECK(deck->bf16.enabled != TS_SWITCH_AUTO, "bf16.enabled is used before it was decided");
  return deck->fp16.enabled ? TS_F16 : deck->bf16.enabled == TS_SWITCH_ON ? TS_BF16 : TS_F32;
}

float ts_deck_wire_divisor(const ts_deck *deck, ts_dtype wire, int ranks) {
  return wire != TS_F16 ? 1 : deck->prescale_gradients ? (float) ranks : (float) deck->gradient_predivide_factor;
}

static const ts_loss_scaler *test_scaler;

void ts_deck_test_loss_scaler(const ts_loss_scaler *scaler) {
  test_scaler = scaler;
}

ts_loss_scaler ts_deck_loss_scaler(const ts_deck *deck) {
  if (test_scaler != NULL) {
    return *test_scaler;
  }
  if (ts_deck_autocasts(deck) && ts_deck_products(deck) == TS_F16) {
    return ts_loss_scaler_torch();
  }
  if (!deck->fp16.enabled) {
    return (ts_loss_scaler){.rule = TS_LOSS_SCALE_NONE, .initial = 1};
  }
  bool dynamic = deck->fp16.loss_scale == 0;
  return (ts_loss_scaler){.rule = dynamic ? TS_LOSS_SCALE_DYNAMIC : TS_LOSS_SCALE_STATIC,
                          .initial = dynamic ? ldexp(1, (int) deck->fp16.initial_scale_power) : deck->fp16.loss_scale,
                          .minimum = (double) deck->fp16.min_loss_scale,
                          .window = deck->fp16.loss_scale_window,
                          .hysteresis = deck->fp16.hysteresis,
                          .consecutive = deck->fp16.consecutive_hysteresis};
}

bool ts_deck_has_masters(const ts_deck *deck) {
  return ts_deck_dtype(deck) != TS_F32 && !deck->bf16.bf16_master_weights_and_grads &&
         !deck->fp16.fp16_master_weights_and_grads;
}

bool ts_deck_autocasts(const ts_deck *deck) {
  return deck->torch_autocast.enabled;
}

ts_dtype ts_deck_products(const ts_deck *deck) {
  return deck->torch_autocast.enabled ? deck->torch_autocast.dtype : ts_deck_dtype(deck);
}

void ts_deck_add_types(const ts_deck *deck, ts_text *to) {
  ts_text_add(to, "%s", ts_dtype_name(ts_deck_dtype(deck)));
  if (ts_deck_autocasts(deck)) {
    ts_text_add(to, " with products in %s", ts_dtype_name(ts_deck_products(deck)));
  }
}

ts_dtype ts_deck_wire(const ts_deck *deck) {
  return deck->sequence_parallel_size > 1 ? deck->seq_parallel_communication_data_type : deck->communication_data_type;
}

/* What is for bf16 alone, where that became fp32. */
static void put_out_bf16(ts_deck *deck, ts_text *said) {
  if (deck->bf16.stochastic_rounding) {
    ts_text_add(said, "; bf16.stochastic_rounding has no effect: fp32 parameters are not rounded");
  }
  if (deck->bf16.bf16_master_weights_and_grads) {
    ts_text_add(said, "; bf16.bf16_master_weights_and_grads has no effect: parameters and gradients are fp32, and "
                      "travel in it");
    deck->data_types.grad_accum_dtype = deck->communication_data_type = TS_F32;
  }
  if (deck->bf16.bf16_optimizer_states) {
    ts_text_add(said, "; bf16.bf16_optimizer_states has no effect: states are fp32");
    ts_free(deck->optimizer.state_dtype);
    deck->optimizer.state_dtype = ts_strdup("fp32");
  }
  if (!deck->bf16.check_grad_overflow) {
    ts_text_add(said, "; bf16.check_grad_overflow has no effect: a step that is not finite is skipped");
  }
  deck->bf16.check_grad_overflow = true;
  deck->bf16.stochastic_rounding = deck->bf16.bf16_master_weights_and_grads = deck->bf16.bf16_optimizer_states = false;
}

void ts_deck_decide_precision(ts_deck *deck, bool bf16, const char *why, ts_text *said) {
  if (deck->bf16.enabled != TS_SWITCH_AUTO) {
    return;
  }
  deck->bf16.enabled = bf16 ? TS_SWITCH_ON : TS_SWITCH_OFF;
  ts_text_add(said, "bf16.enabled: \"auto\": %s: %s", bf16 ? "true" : "false", why);
  if (!bf16) {
    put_out_bf16(deck, said);
  }
}
