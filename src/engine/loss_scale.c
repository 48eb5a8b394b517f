/* The loss scale of a run: its first value, and what a checkpoint has of it. */
#include "engine/engine.h"
#include "io/checkpoint.h"

static ts_tid find_scale(const ts_engine *e) {
  return ts_graph_find_state(ts_engine_program(e)->graph, TS_STATE_LOSS_SCALE, -1);
}

static void set_scale(ts_engine *e, const double state[TS_LOSS_SCALE_SIZE]) {
  ts_tid leaf = find_scale(e);
  if (leaf != TS_NONE) { /* an engine that does not train has none */
    ts_executor_write_state(e->executor, leaf, 0, TS_LOSS_SCALE_SIZE, state);
  }
}

void ts_engine_begin_scale(ts_engine *e) {
  double state[TS_LOSS_SCALE_SIZE];
  ts_loss_scale_begin(&e->scaler, state);
  set_scale(e, state);
}

bool ts_engine_read_scale(const ts_engine *e, double state[TS_LOSS_SCALE_SIZE]) {
  ts_tid leaf = find_scale(e);
  if (leaf != TS_NONE) {
    ts_executor_read_state(e->executor, leaf, 0, TS_LOSS_SCALE_SIZE, state);
  }
  return leaf != TS_NONE;
}

void ts_engine_save_scale(const ts_engine *e, ts_checkpoint *c) {
  double state[TS_LOSS_SCALE_SIZE] = {[TS_LOSS_SCALE] = 1};
  bool changes = ts_engine_read_scale(e, state) && e->scaler.rule != TS_LOSS_SCALE_STATIC;
  c->loss_scale = state[TS_LOSS_SCALE];
  c->loss_scale_good_steps = (int64_t) state[TS_LOSS_SCALE_GOOD_STEPS];
  c->loss_scale_hysteresis = changes ? (int64_t) state[TS_LOSS_SCALE_HYSTERESIS] : 0;
}

void ts_engine_load_scale(ts_engine *e, const ts_checkpoint *c) {
  bool changes = e->scaler.rule != TS_LOSS_SCALE_NONE && e->scaler.rule != TS_LOSS_SCALE_STATIC;
  if (changes && c->loss_scale_hysteresis > 0) {
    int64_t left = c->loss_scale_hysteresis, most = e->scaler.hysteresis;
    const double state[TS_LOSS_SCALE_SIZE] = {[TS_LOSS_SCALE] = c->loss_scale,
                                              [TS_LOSS_SCALE_GOOD_STEPS] = (double) c->loss_scale_good_steps,
                                              [TS_LOSS_SCALE_HYSTERESIS] = (double) (left < most ? left : most)};
    set_scale(e, state);
  } else {
    ts_engine_begin_scale(e);
  }
}
