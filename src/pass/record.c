#include "pass/record.h"

#include "base/memory.h"
#include "graph/record.h"
#include "ops/build.h"
#include "pass/state.h"

ts_tid ts_record_scalar(ts_site at, const char *name, ts_dtype dtype, int64_t count) {
  return ts_graph_leaf(at.graph, name, TS_ROLE_SCALAR, dtype, TS_SHAPE(count), -1);
}

/* The loss is made where the model ends, once for all ranks along tp or by each for its tokens. */
static bool owns_loss(const ts_mesh *mesh, const ts_record_row *row) {
  return row->loss != TS_NONE && (row->loss_is_split || mesh->coord[TS_AXIS_TP] == 0);
}

ts_tid ts_record_squares(ts_site at, const ts_layout *layout, const ts_part *part, ts_tid shard) {
  ts_range *range;
  int64_t begin = ts_part_begin(part), end = part->owned ? ts_part_end(part) : begin;
  int n = ts_layout_ranges(layout, part, begin, end, &range);
  char *name = ts_format("%s.squares", part->name);
  ts_tid squares = ts_build_sum_squares(at, name, shard, n, range);
  ts_free(name);
  ts_free(range);
  return squares;
}

/* What a rank says of what it has not, which nobody writes. */
static ts_tid nothing(ts_site at, const char *name) {
  ts_tid leaf = ts_graph_find(at.graph, name);
  return leaf != TS_NONE ? leaf : ts_record_scalar(at, name, TS_F64, 1);
}

/* This rank's row; *n elements. */
static ts_tid make_row(ts_site at, const ts_mesh *mesh, const ts_layout *layout, const ts_record_row *row, int64_t *n) {
  ts_tid *entry = ts_malloc((size_t) (layout->n_parts + 4) * sizeof *entry);
  int n_entries = 0;
  bool owns = owns_loss(mesh, row);
  entry[n_entries++] = owns ? row->loss : nothing(at, "zero");
  entry[n_entries++] = owns ? row->valid : nothing(at, "zero");
  entry[n_entries++] = owns && row->balance != TS_NONE ? row->balance : nothing(at, "no_balance");
  entry[n_entries++] = ts_record_scalar(at, "flags", TS_F64, TS_N_FLAGS);
  *n = TS_RECORD_SQUARES;
  for (int i = 0; i < layout->n_parts; ++i) {
    if (row->squares && ts_part_has_norm(&layout->part[i])) {
      bool here = row->shard[i] != TS_NONE;
      entry[n_entries++] = row->sum[i] != TS_NONE ? row->sum[i]
                           : here                 ? ts_record_squares(at, layout, &layout->part[i], row->shard[i])
                                                  : nothing(at, "no_squares");
      ++*n;
    }
  }
  ts_tid made = ts_build_concat(at, "record", 1, n_entries, entry);
  ts_free(entry);
  return made;
}

/* Every rank's row, [ranks][n]. */
static ts_tid gather_rows(ts_site at, const ts_mesh *mesh, const ts_layout *layout, ts_tid row, int64_t n) {
  if (mesh->ranks > 1) {
    const int64_t *cuts = n > TS_RECORD_SQUARES ? layout->record_cuts : layout->loss_cuts;
    ts_piece piece = {.input = 0, .cuts = cuts, .begin = 0, .end = n};
    row = ts_build_all_gather(at, "record.gather", TS_AXES_ALL, mesh->ranks, 1, &row, NULL, 1, &piece);
  }
  return ts_build_view(at, "records", row, 0, TS_SHAPE(mesh->ranks, n));
}

ts_tid ts_record_loss_scale(ts_graph *g) {
  const ts_state_info *info = ts_state_get(TS_STATE_LOSS_SCALE);
  ts_tid state = ts_graph_find_state(g, TS_STATE_LOSS_SCALE, -1);
  return state != TS_NONE ? state
                          : ts_graph_state(g, info->name, (ts_held){TS_STATE_LOSS_SCALE, -1, true},
                                           (ts_dtype) info->dtype, TS_SHAPE(TS_LOSS_SCALE_SIZE), -1);
}

ts_record_result ts_record_add(ts_site at, const ts_mesh *mesh, const ts_layout *layout, const ts_record_row *row) {
  int64_t n;
  ts_tid mine = make_row(at, mesh, layout, row, &n), all = gather_rows(at, mesh, layout, mine, n);
  bool scaled = row->scaler.rule != TS_LOSS_SCALE_NONE;
  ts_tid state = scaled ? ts_record_loss_scale(at.graph) : TS_NONE;
  ts_tid control = ts_build_step_control(at, "control", all, ts_record_scalar(at, "static_tokens", TS_F64, 1),
                                         ts_record_scalar(at, "max_norm", TS_F32, 1), state, row->keep_nonfinite);
  ts_tid summary =
      scaled ? ts_build_update_loss_scale(at, "loss_scale.update", state, control, &row->scaler) + 1 : control;
  ts_graph_mark(at.graph, "summary", summary);
  return (ts_record_result){.summary = summary, .scale = control + 1, .skip = control + 2};
}
