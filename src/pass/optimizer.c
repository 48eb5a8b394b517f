#include "pass/optimizer.h"

#include <string.h>

ts_optimizer ts_optimizer_of(const ts_deck *deck) {
  static const struct {
    const char *type;
    ts_optimizer optimizer;
  } rows[] = {{"AdamW", TS_OPTIMIZER_ADAMW},
              {"Adam", TS_OPTIMIZER_ADAMW},
              {"Lion", TS_OPTIMIZER_LION},
              {"Adagrad", TS_OPTIMIZER_ADAGRAD},
              {"SGD", TS_OPTIMIZER_SGD}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (strcmp(deck->optimizer.type, rows[i].type) == 0) {
      bool has_momentum = rows[i].optimizer == TS_OPTIMIZER_SGD && deck->optimizer.params.momentum > 0;
      return has_momentum ? TS_OPTIMIZER_MOMENTUM : rows[i].optimizer;
    }
  }
  ts_die(__FILE__, __LINE__, "optimizer.type = \"%s\" has no row", deck->optimizer.type);
}

ts_optimizer_numbers ts_optimizer_numbers_of(const ts_deck *deck) {
  ts_optimizer optimizer = ts_optimizer_of(deck);
  bool adam = optimizer == TS_OPTIMIZER_ADAMW;
  return (ts_optimizer_numbers){.eps = (float) deck->optimizer.params.eps,
                                .momentum = (float) deck->optimizer.params.momentum,
                                .dampening = (float) deck->optimizer.params.dampening,
                                .decoupled =
                                    optimizer == TS_OPTIMIZER_LION || (adam && deck->optimizer.params.adam_w_mode),
                                .bias_correction = adam && deck->optimizer.params.bias_correction,
                                .nesterov = deck->optimizer.params.nesterov};
}

ts_dtype ts_optimizer_moments(const ts_deck *deck, int64_t elements) {
  const char *type = deck->optimizer.state_dtype;
  return strcmp(type, "bf16") == 0                                  ? TS_BF16
         : strcmp(type, "8bit") == 0 && elements >= TS_FEW_ELEMENTS ? TS_U8
                                                                    : TS_F32;
}
