/* The end of a step: the agreed record, the control values made from it, the optimizer, the gathers of what it
 * wrote. */
#include "pass/zero.h"

#include "base/memory.h"
#include "graph/record.h"

/* Values every optimizer node reads. */
typedef struct control {
  ts_tid scale, skip, step, lr, betas;
} control;

static ts_tid scalar(const ts_zero *z, const char *name, ts_dtype dtype, int64_t count) {
  return ts_graph_leaf(z->rewrite.to, name, TS_ROLE_SCALAR, dtype, TS_SHAPE(count), -1);
}

static ts_site site(const ts_zero *z) {
  return (ts_site){z->rewrite.to, TS_SEGMENT_UPDATE, -1};
}

/* This rank's row (graph/record.h), with the sum of squares of each part's shard.
 * \return the row; *n elements. */
static ts_tid make_row(ts_zero *z, ts_tid loss, ts_tid valid, int64_t *n) {
  const ts_layout *layout = z->layout;
  ts_tid *entry = ts_malloc((size_t) (layout->n_parts + 3) * sizeof *entry);
  int n_entries = 0;
  entry[n_entries++] = loss;
  entry[n_entries++] = valid;
  entry[n_entries++] = scalar(z, "flags", TS_F64, TS_N_FLAGS);
  *n = TS_RECORD_SQUARES;
  for (int i = 0; i < layout->n_parts; ++i) {
    const ts_part *part = &layout->part[i];
    if (z->part[i].shard != TS_NONE) {
      ts_range *range;
      int64_t begin = part->cuts[layout->my_shard], end = part->cuts[layout->my_shard + 1];
      int n_ranges = ts_layout_ranges(layout, part, begin, end, &range);
      char *name = ts_format("%s.squares", part->name);
      entry[n_entries++] = ts_build_sum_squares(site(z), name, z->part[i].shard, n_ranges, range);
      ++*n;
      ts_free(name);
      ts_free(range);
    }
  }
  ts_tid row = ts_build_concat(site(z), "record", n_entries, entry);
  ts_free(entry);
  return row;
}

/* Every rank's row, [ranks][n]. */
static ts_tid gather_record(ts_zero *z, ts_tid row, int64_t n) {
  int ranks = z->layout->n_shards;
  if (ts_zero_is_shared(z)) {
    const int64_t *cuts = ts_zero_is_training(z) ? z->layout->record_cuts : z->layout->loss_cuts;
    ts_piece piece = {.input = 0, .cuts = cuts, .begin = 0, .end = n};
    row = ts_build_all_gather(site(z), "record.gather", TS_AXES_DENSE, ranks, 1, &row, NULL, 1, &piece);
  }
  return ts_build_view(site(z), "records", row, 0, TS_SHAPE(ranks, n));
}

/* What the optimizer of one part works on: its shard, or the whole when the stage shares nothing. */
static void update_part(ts_zero *z, int index, const control *c) {
  const ts_layout *layout = z->layout;
  const ts_part *part = &layout->part[index];
  ts_part_state *s = &z->part[index];
  bool whole = z->stage == 0;
  bool window = !whole && !ts_zero_parameter_is_sharded(z, part);
  ts_tid working = window ? ts_zero_my_window(z, site(z), part, s->param) : s->param;
  ts_tid master = z->work == TS_F32 ? working : ts_zero_state(z, index, TS_STATE_MASTER, TS_F32, whole);
  ts_range *range;
  int n = ts_layout_ranges(layout, part, whole ? 0 : part->cuts[layout->my_shard],
                           whole ? part->count : part->cuts[layout->my_shard + 1], &range);
  const ts_deck *deck = z->context->deck;
  char *name = ts_format("%s.adamw", part->name);
  ts_tid out = ts_build_adamw(site(z), name,
                              &(ts_adamw_inputs){.p = master,
                                                 .m = ts_zero_state(z, index, TS_STATE_EXP_AVG, TS_F32, whole),
                                                 .v = ts_zero_state(z, index, TS_STATE_EXP_AVG_SQ, TS_F32, whole),
                                                 .w = z->work == TS_F32 ? TS_NONE : working,
                                                 .g = whole ? s->gradient : s->shard,
                                                 .step = c->step,
                                                 .lr = c->lr,
                                                 .betas = c->betas,
                                                 .scale = c->scale,
                                                 .skip = c->skip},
                              n, range, (float) deck->optimizer.params.eps, deck->optimizer.params.adam_w_mode,
                              deck->optimizer.params.bias_correction,
                              ts_layout_rounding(deck, part, whole ? 0 : part->cuts[layout->my_shard]));
  ts_tid written = z->work == TS_F32 ? out : out + 3;
  s->updated = window ? written : TS_NONE;
  ts_free(name);
  ts_free(range);
}

static void gather_bucket(ts_zero *z, ts_site at, ts_bucket *b) {
  ts_tid *into = ts_malloc((size_t) b->n * sizeof *into);
  for (int i = 0; i < b->n; ++i) {
    into[i] = z->part[b->part[i]].param;
  }
  char *name = ts_bucket_name(z, b, "gather_update");
  ts_tid y = ts_build_all_gather(at, name, TS_AXES_DENSE, z->layout->n_shards, b->n, b->x, into, b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    z->part[b->part[i]].param = y + i;
  }
  ts_free(name);
  ts_free(into);
}

/* The optimizer of every part; new values that everybody needs are gathered while the next part is updated. */
static void update_parts(ts_zero *z, const control *c) {
  ts_bucket bucket = {0};
  int64_t limit = z->context->deck->zero_optimization.allgather_bucket_size;
  for (int i = 0; i < z->layout->n_parts; ++i) {
    if (z->layout->part[i].trainable) {
      update_part(z, i, c);
      if (z->part[i].updated != TS_NONE) {
        ts_bucket_add(z, site(z), &bucket, i, z->part[i].updated, limit, gather_bucket);
      }
    }
  }
  if (bucket.n > 0) {
    gather_bucket(z, site(z), &bucket);
  }
  ts_bucket_free(&bucket);
}

void ts_zero_add_update(ts_zero *z, ts_tid loss, ts_tid valid) {
  int64_t n;
  ts_tid row = make_row(z, loss, valid, &n);
  ts_tid records = gather_record(z, row, n);
  ts_tid summary = ts_build_step_control(site(z), "control", records, scalar(z, "static_tokens", TS_F64, 1),
                                         scalar(z, "max_norm", TS_F32, 1), scalar(z, "loss_scale", TS_F32, 1));
  ts_graph_mark(z->rewrite.to, "summary", summary);
  if (!ts_zero_is_training(z)) {
    return;
  }
  control c = {.scale = summary + 1,
               .skip = summary + 2,
               .lr = scalar(z, "lr", TS_F32, 1),
               .betas = scalar(z, "betas", TS_F32, 2)};
  ts_tid step = ts_graph_state(z->rewrite.to, ts_state_get(TS_STATE_UPDATES)->name,
                               (ts_held){TS_STATE_UPDATES, -1, true}, TS_I64, TS_SHAPE(1), -1);
  c.step = ts_build_advance(site(z), "optimizer.advance", step, c.skip);
  update_parts(z, &c);
}
