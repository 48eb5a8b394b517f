/* The end of a step: the record, the optimizer, the gathers of what it wrote. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/optimizer.h"
#include "pass/record.h"

/* Values every optimizer node reads. */
typedef struct control {
  ts_tid scale, skip, step, corrections, lr, betas;
} control;

static ts_site site(const ts_zero *z) {
  return (ts_site){z->rewrite.to, TS_SEGMENT_UPDATE, -1};
}

/* The states of a part's optimizer, each in 8 bits with its scales. */
static void find_states(ts_zero *z, int index, bool whole, ts_update_inputs *in) {
  const ts_optimizer_info *info = ts_optimizer_get(ts_optimizer_of(z->context->deck));
  for (int i = 0; i < 2; ++i) {
    bool has = i < info->n_states, has_scales = has && z->layout->part[index].moments == TS_U8;
    in->state[i] = has ? ts_zero_state(z, index, info->state[i], whole) : TS_NONE;
    in->scales[i] = has_scales ? ts_zero_state(z, index, ts_state_scales(info->state[i]), whole) : TS_NONE;
  }
}

/* What the optimizer of one part works on: its shard, or the whole when the stage shares nothing. */
static void update_part(ts_zero *z, int index, const control *c) {
  const ts_layout *layout = z->layout;
  const ts_part *part = &layout->part[index];
  ts_part_state *s = &z->part[index];
  const ts_deck *deck = z->context->deck;
  bool whole = ts_zero_stage(z, part) == 0, has_master = ts_deck_has_masters(deck);
  bool window = !whole && !ts_zero_parameter_is_sharded(z, part);
  int64_t begin = whole ? 0 : ts_part_begin(part), end = whole ? part->count : ts_part_end(part);
  ts_tid working = window ? ts_zero_my_window(site(z), part, s->param) : s->param;
  ts_update_inputs in = {.p = has_master ? ts_zero_state(z, index, TS_STATE_MASTER, whole) : working,
                         .w = has_master ? working : TS_NONE,
                         .input = {[TS_UPDATE_G] = whole ? s->gradient : s->shard,
                                   [TS_UPDATE_STEP] = c->step,
                                   [TS_UPDATE_CORRECTIONS] = c->corrections,
                                   [TS_UPDATE_LR] = c->lr,
                                   [TS_UPDATE_BETAS] = c->betas,
                                   [TS_UPDATE_SCALE] = c->scale,
                                   [TS_UPDATE_SKIP] = c->skip}};
  find_states(z, index, whole, &in);
  ts_range *range;
  int n = ts_layout_ranges(layout, part, begin, end, &range);
  const ts_attr attr = {.update = {.range = range,
                                   .n = n,
                                   .rule = ts_optimizer_of(deck),
                                   .numbers = ts_optimizer_numbers_of(deck),
                                   .rounding = ts_layout_rounding(deck, part, begin)}};
  char *name = ts_format("%s.%s", part->name, ts_optimizer_get(attr.update.rule)->name);
  ts_tid out = ts_build_update_elements(site(z), name, &in, &attr);
  s->updated = window ? out + has_master : TS_NONE;
  ts_free(name);
  ts_free(range);
}

static void gather_bucket(ts_zero *z, ts_site at, ts_bucket *b) {
  ts_tid *into = ts_malloc((size_t) b->n * sizeof *into);
  for (int i = 0; i < b->n; ++i) {
    into[i] = z->part[b->part[i]].param;
  }
  char *name = ts_bucket_name(z, b, "gather_update");
  ts_tid y = ts_build_all_gather(at, name, b->axes, b->group, b->n, b->x, into, b->n, b->piece);
  for (int i = 0; i < b->n; ++i) {
    z->part[b->part[i]].param = y + i;
  }
  ts_free(name);
  ts_free(into);
}

/* The optimizer of every part; new values that everybody needs are gathered while the next part is updated. */
static void update_parts(ts_zero *z, const control *c) {
  ts_buckets buckets = {0};
  int64_t limit = z->context->deck->zero_optimization.allgather_bucket_size;
  for (int i = 0; i < z->layout->n_parts; ++i) {
    if (z->layout->part[i].trainable) {
      update_part(z, i, c);
      if (z->part[i].updated != TS_NONE) {
        ts_bucket_add(z, site(z), &buckets, i, z->part[i].updated, limit, INT64_MAX, gather_bucket);
      }
    }
  }
  ts_bucket_flush(z, site(z), &buckets, gather_bucket);
  ts_bucket_free(&buckets);
}

void ts_zero_add_update(ts_zero *z, ts_tid loss, ts_tid valid) {
  ts_tid *shard = ts_malloc((size_t) z->layout->n_parts * sizeof *shard);
  for (int i = 0; i < z->layout->n_parts; ++i) {
    shard[i] = z->part[i].shard;
  }
  const ts_deck *deck = z->context->deck;
  ts_record_row row = {.loss = loss,
                       .valid = valid,
                       .loss_is_split = z->context->shards != NULL && z->context->shards->loss_by_rows,
                       .shard = shard};
  if (ts_zero_is_training(z)) {
    row.scaler = ts_deck_loss_scaler(deck);
    row.keep_nonfinite = deck->bf16.enabled == TS_SWITCH_ON && !deck->bf16.check_grad_overflow;
  }
  ts_record_result record = ts_record_add(site(z), z->context->mesh, z->layout, &row);
  ts_free(shard);
  if (!ts_zero_is_training(z)) {
    return;
  }
  control c = {.scale = record.scale,
               .skip = record.skip,
               .lr = ts_record_scalar(site(z), "lr", TS_F32, 1),
               .betas = ts_record_scalar(site(z), "betas", TS_F32, 2)};
  const ts_state_info *updates = ts_state_get(TS_STATE_UPDATES);
  ts_tid step = ts_graph_state(z->rewrite.to, updates->name, (ts_held){TS_STATE_UPDATES, -1, true},
                               (ts_dtype) updates->dtype, TS_SHAPE(1), -1);
  c.step = ts_build_advance(site(z), "optimizer.advance", step, c.betas, c.skip);
  c.corrections = c.step + 1;
  update_parts(z, &c);
}
