#include "pass/state.h"

static const ts_state_info rows[TS_N_STATES] = {
    [TS_STATE_NONE] = {NULL, NULL, TS_PURPOSE_BUFFER, NULL, TS_F32, 0},
#define STATE(ENUM, name, shard, purpose, saved, dtype, block) \
  [TS_STATE_##ENUM] = {name, shard, TS_PURPOSE_##purpose, saved, TS_##dtype, block},
#include "graph/states.def"
#undef STATE
};

const ts_state_info *ts_state_get(ts_state state) {
  TS_ASSERT((unsigned) state < TS_N_STATES);
  return &rows[state];
}

ts_tid ts_state_loss_scale(ts_graph *g) {
  const ts_state_info *info = ts_state_get(TS_STATE_LOSS_SCALE);
  ts_tid state = ts_graph_find_state(g, TS_STATE_LOSS_SCALE, -1);
  return state != TS_NONE ? state
                          : ts_graph_state(g, info->name, (ts_held){TS_STATE_LOSS_SCALE, -1, true},
                                           (ts_dtype) info->dtype, TS_SHAPE(TS_LOSS_SCALE_SIZE), -1);
}
