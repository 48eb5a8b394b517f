/* The end of a step: the record, the optimizer, the gathers of what it wrote.
 *
 * Updates of what has left wait for the next step's first forward (ts_offload_waits), where their copies are hidden
 * behind what is computed: they are at the begin of the graph, and read what the step before has left, its gradients
 * and the control values, which the record's end keeps for them.  What others need of a unit is gathered behind its
 * last update. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/optimizer.h"
#include "pass/record.h"

#include <stddef.h>

static ts_site site(const ts_zero *z) {
  return (ts_site){z->rewrite.to, TS_SEGMENT_UPDATE, -1};
}

/* The states of a part's optimizer, each in 8 bits with its scales. */
static void find_states(ts_zero *z, const ts_zero_share *share, ts_update_inputs *in) {
  const ts_part *part = &z->layout->part[share->part];
  const ts_optimizer_info *info = ts_optimizer_get(part->optimizer);
  for (int i = 0; i < info->n_states; ++i) {
    in->state[i] = ts_zero_state(z, share->part, info->state[i], share->whole);
    if (part->moments == TS_U8) {
      in->scales[i] = ts_zero_state(z, share->part, ts_state_scales(info->state[i]), share->whole);
    }
  }
}

/* What the optimizer of a part works on. */
static ts_zero_share share_of(ts_zero *z, ts_site at, int index) {
  const ts_part *part = &z->layout->part[index];
  const ts_part_state *s = &z->part[index];
  bool whole = ts_zero_stage(z, part) == 0, has_master = ts_deck_has_masters(z->context->deck) && part->work != TS_F32;
  bool window = !whole && !ts_zero_parameter_is_sharded(z, part);
  ts_tid working = window ? ts_zero_my_window(at, part, s->param) : s->param;
  return (ts_zero_share){.part = index,
                         .whole = whole,
                         .window = window,
                         .begin = whole ? 0 : ts_part_begin(part),
                         .end = whole ? part->count : ts_part_end(part),
                         .p = has_master ? ts_zero_state(z, index, TS_STATE_MASTER, whole) : working,
                         .w = has_master ? working : TS_NONE,
                         .g = whole ? s->gradient : s->shard};
}

/* One sweep over a part. */
typedef struct sweep {
  ts_site at;
  const char *name; /* behind the part's */
  ts_optimizer rule;
  ts_optimizer_numbers numbers;
  bool decays;
  ts_tid ratios; /* TS_NONE: none */
  ts_rounding rounding;
  bool on_host;
} sweep;

/* Elements [first, first + count) of a share's storage; all: nothing is cut. */
typedef struct piece {
  int64_t first, count;
  bool all;
} piece;

static ts_tid add_update(ts_zero *z, const ts_zero_share *share, const sweep *s, piece cut,
                         const ts_update_inputs *in) {
  const ts_part *part = &z->layout->part[share->part];
  int64_t begin = share->begin + cut.first, end = begin + cut.count;
  ts_range *range;
  int n = ts_layout_ranges(z->layout, part, begin, end < share->end ? end : share->end, &range);
  for (int i = 0; i < n; ++i) {
    range[i].weight_decay = s->decays ? range[i].weight_decay : 0;
    range[i].ratio = s->ratios != TS_NONE ? share->first_ratio + range[i].ratio : 0;
  }
  ts_attr attr = {.update = {.range = range,
                             .n = n,
                             .rule = s->rule,
                             .numbers = s->numbers,
                             .has_ratios = s->ratios != TS_NONE,
                             .rounding = s->rounding}};
  attr.update.rounding.first += cut.first;
  char *name = cut.all ? ts_format("%s.%s", part->name, s->name)
                       : ts_format("%s.%s.%lld", part->name, s->name, (long long) cut.first);
  ts_tid out = ts_build_update_elements(s->at, name, in, &attr, s->on_host);
  ts_free(name);
  ts_free(range);
  return out;
}

/* A piece of a tensor of which one element stands for `block` of the share. */
static ts_tid cut_piece(ts_site at, ts_tid t, piece cut, int64_t block) {
  if (t == TS_NONE || cut.all) {
    return t;
  }
  char *name = ts_format("%s.from.%lld", at.graph->tensor[t].name, (long long) cut.first);
  ts_tid y = ts_build_view(at, name, t, cut.first / block, TS_SHAPE(ts_state_elements(block, cut.count)));
  ts_free(name);
  return y;
}

static ts_tid bring(const ts_zero *z, const sweep *s, ts_tid t) {
  return s->on_host ? ts_zero_bring_to_host(s->at, t) : ts_zero_bring(z, s->at, t);
}

static ts_tid put_back(const ts_zero *z, const sweep *s, ts_tid home, ts_tid x) {
  return s->on_host ? ts_zero_put_back_from_host(s->at, home, x) : ts_zero_put_back(z, s->at, home, x);
}

/* One piece of a share, of which each state comes from where it lives and goes back there.
 * \return the new w if there is one, else the new p, where that lives. */
static ts_tid sweep_piece(ts_zero *z, const ts_zero_share *share, const sweep *s, piece cut, ts_update_inputs in) {
  ts_tid *const versions[] = {&in.p, &in.w, &in.state[0], &in.scales[0], &in.state[1], &in.scales[1]};
  enum { VERSIONS = sizeof versions / sizeof *versions };
  ts_tid home[VERSIONS], *g = &in.input[TS_UPDATE_G];
  for (int i = 0; i < VERSIONS; ++i) {
    home[i] = cut_piece(s->at, *versions[i], cut, i == 3 || i == 5 ? TS_STATE_BLOCK : 1);
    *versions[i] = bring(z, s, home[i]);
  }
  *g = bring(z, s, cut_piece(s->at, *g, cut, 1));
  ts_tid out = add_update(z, share, s, cut, &in), read = TS_NONE;
  for (int i = 0; i < VERSIONS; ++i) {
    if (home[i] != TS_NONE) {
      ts_tid new = put_back(z, s, home[i], out++);
      read = i < 2 ? new : read;
    }
  }
  return read;
}

/* All of `t`, whose pieces are new. */
static ts_tid swept(ts_site at, ts_tid t) {
  char *name = ts_format("%s.swept", at.graph->tensor[t].name);
  ts_tid y = ts_build_view(at, name, t, 0, at.graph->tensor[t].shape);
  ts_free(name);
  return y;
}

/* All of a share, in pieces where states of it live elsewhere.
 * \return the new w if there is one, else the new p, where that lives. */
static ts_tid add_sweep(ts_zero *z, const ts_zero_share *share, const sweep *s, const ts_update_inputs *in) {
  const ts_part *part = &z->layout->part[share->part];
  int64_t elements = ts_tensor_count(z->rewrite.to, in->p), most = ts_offload_piece(z->context, part);
  ts_tid out = TS_NONE;
  for (int64_t first = 0; first == 0 || share->begin + first < share->end; first += most) {
    int64_t count = elements - first < most ? elements - first : most;
    out = sweep_piece(z, share, s, (piece){first, count, count == elements}, *in);
    if (count == elements - first) {
      break;
    }
  }
  return elements <= most ? out : swept(s->at, in->w != TS_NONE ? in->w : in->p);
}

static ts_update_inputs inputs_of(const ts_zero_control *c, ts_tid p, ts_tid w, ts_tid g, ts_tid scale) {
  return (ts_update_inputs){.p = p,
                            .w = w,
                            .state = {TS_NONE, TS_NONE},
                            .scales = {TS_NONE, TS_NONE},
                            .input = {[TS_UPDATE_G] = g,
                                      [TS_UPDATE_STEP] = c->step,
                                      [TS_UPDATE_CORRECTIONS] = c->corrections,
                                      [TS_UPDATE_LR] = c->lr,
                                      [TS_UPDATE_BETAS] = c->betas,
                                      [TS_UPDATE_SCALE] = scale,
                                      [TS_UPDATE_SKIP] = c->skip}};
}

static ts_granularity granularity_of(const ts_zero *z, const ts_zero_share *share) {
  return ts_optimizer_get(z->layout->part[share->part].optimizer)->granularity;
}

/* A direction in place of the gradient, where the optimizer makes one. */
static void make_direction(ts_zero *z, ts_zero_share *share, const ts_zero_control *c) {
  if (granularity_of(z, share) != TS_GRANULARITY_ELEMENT) {
    const ts_part *part = &z->layout->part[share->part];
    ts_optimizer rule = part->optimizer;
    if (z->accumulate == TS_F16) { /* without the loss scale a direction may be too small for fp16 */
      char *name = ts_format("%s.wide", part->name);
      share->g = ts_build_cast(site(z), name, share->g, TS_F32);
      ts_free(name);
    }
    ts_update_inputs in = inputs_of(c, share->g, TS_NONE, share->p, c->scale);
    find_states(z, share, &in);
    const sweep s = {.at = site(z),
                     .name = ts_optimizer_get(rule)->name,
                     .rule = rule,
                     .numbers = ts_optimizer_numbers_of(z->context->deck, rule),
                     .decays = true,
                     .ratios = TS_NONE};
    share->g = add_sweep(z, share, &s, &in);
  }
}

/* Control values where updates read them: as they are made, and of each chunk a copy in the host's memory once it is
 * wanted. */
typedef struct controls {
  ts_zero_control here, *on_host; /* owned; .step TS_NONE: not yet */
} controls;

static controls controls_of(const ts_zero *z, ts_zero_control here) {
  int n = ts_graph_chunks(z->rewrite.to);
  controls c = {here, ts_malloc((size_t) n * sizeof *c.on_host)};
  for (int i = 0; i < n; ++i) {
    c.on_host[i].step = TS_NONE;
  }
  return c;
}

static const ts_zero_control *control_for(ts_site at, controls *c, bool on_host) {
  ts_zero_control *copy = &c->on_host[ts_node_chunk(at.graph, &(ts_node){.unit = at.unit})];
  if (on_host && copy->step == TS_NONE) {
    *copy = (ts_zero_control){.scale = ts_zero_bring_to_host(at, c->here.scale),
                              .skip = ts_zero_bring_to_host(at, c->here.skip),
                              .step = ts_zero_bring_to_host(at, c->here.step),
                              .corrections = ts_zero_bring_to_host(at, c->here.corrections),
                              .lr = ts_zero_bring_to_host(at, c->here.lr),
                              .betas = ts_zero_bring_to_host(at, c->here.betas),
                              .one = TS_NONE,
                              .ratios = TS_NONE};
  }
  return on_host ? copy : &c->here;
}

/* The step of a part: of its rule, or p -= lr ratio direction. */
static void update_part(ts_zero *z, ts_site at, const ts_zero_share *share, controls *all) {
  const ts_part *part = &z->layout->part[share->part];
  const ts_deck *deck = z->context->deck;
  const bool on_host = ts_offload_updates_on_host(z->context, part);
  const ts_zero_control *c = control_for(at, all, on_host);
  ts_granularity granularity = granularity_of(z, share);
  bool direct = granularity == TS_GRANULARITY_ELEMENT;
  ts_update_inputs in = inputs_of(c, share->p, share->w, share->g, direct ? c->scale : c->one);
  sweep s = {.at = at,
             .name = "step",
             .rule = TS_OPTIMIZER_SGD,
             .numbers = {.decoupled = true},
             .decays = granularity != TS_GRANULARITY_TENSOR,
             .ratios = granularity == TS_GRANULARITY_TENSOR ? c->ratios : TS_NONE,
             .rounding = ts_layout_rounding(deck, part, share->begin),
             .on_host = on_host};
  in.ratios = s.ratios;
  if (direct) {
    s.rule = part->optimizer;
    s.name = ts_optimizer_get(s.rule)->name;
    s.numbers = ts_optimizer_numbers_of(deck, s.rule);
    find_states(z, share, &in);
  }
  z->part[share->part].fresh = add_sweep(z, share, &s, &in);
  z->part[share->part].updated = share->window ? z->part[share->part].fresh : TS_NONE;
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

/* New values that others of this stage need too. */
static void gather_updated(ts_zero *z, ts_site at, ts_buckets *buckets, int part) {
  ts_tid updated = z->part[part].updated;
  if (updated != TS_NONE) {
    ts_bucket_add(z, at, buckets, part, updated, z->layout->part[part].work,
                  z->context->deck->zero_optimization.allgather_bucket_size, INT64_MAX, gather_bucket);
  }
}

/* The optimizer of every part; new values that everybody needs are gathered while the next part is updated. */
static void update_parts(ts_zero *z, ts_zero_control *c) {
  ts_buckets buckets = {0};
  ts_zero_share *share = ts_malloc((size_t) z->layout->n_parts * sizeof *share);
  int n = 0;
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    if (part->trainable && part->of_stage && !ts_offload_waits(z->context, part)) {
      share[n] = share_of(z, site(z), i);
      make_direction(z, &share[n++], c);
    }
  }
  c->ratios = ts_zero_trust_ratios(z, site(z), share, n, c->corrections);
  ts_zero_orthogonalize(z, site(z), share, n);
  controls all = controls_of(z, *c);
  for (int i = 0; i < n; ++i) {
    update_part(z, site(z), &share[i], &all);
    gather_updated(z, site(z), &buckets, share[i].part);
  }
  ts_zero_spread_tied(z, site(z));
  for (int i = 0; i < z->layout->n_parts; ++i) {
    if (ts_part_is_copy(&z->layout->part[i])) {
      gather_updated(z, site(z), &buckets, i);
    }
  }
  ts_bucket_flush(z, site(z), &buckets, gather_bucket);
  ts_bucket_free(&buckets);
  ts_free(all.on_host);
  ts_free(share);
}

/* ---- updates that wait ---- */

/* What they read of the record and of the host, which write it anew each step. */
enum { KEPT = 5 };
static const struct {
  const char *name;
  size_t control; /* in ts_zero_control */
  ts_dtype dtype;
  int64_t count;
} kept[KEPT] = {{"late.scale", offsetof(ts_zero_control, scale), TS_F32, 1},
                {"late.skip", offsetof(ts_zero_control, skip), TS_F32, 1},
                {"late.lr", offsetof(ts_zero_control, lr), TS_F32, 1},
                {"late.betas", offsetof(ts_zero_control, betas), TS_F32, 2},
                {"late.corrections", offsetof(ts_zero_control, corrections), TS_F64, 2}};

static ts_tid *kept_value(ts_zero_control *c, int i) {
  return (ts_tid *) ((char *) c + kept[i].control);
}

static ts_tid updates_leaf(ts_zero *z) {
  const ts_state_info *updates = ts_state_get(TS_STATE_UPDATES);
  ts_tid leaf = ts_graph_find_state(z->rewrite.to, TS_STATE_UPDATES, -1);
  return leaf != TS_NONE ? leaf
                         : ts_graph_state(z->rewrite.to, updates->name, (ts_held){TS_STATE_UPDATES, -1, true},
                                          (ts_dtype) updates->dtype, TS_SHAPE(1), -1);
}

/* As the step before has left them. */
static ts_zero_control control_before(ts_zero *z) {
  ts_zero_control c = {.step = updates_leaf(z), .one = TS_NONE, .ratios = TS_NONE};
  for (int i = 0; i < KEPT; ++i) {
    *kept_value(&c, i) = ts_graph_state(z->rewrite.to, kept[i].name, (ts_held){TS_STATE_CONTROL, -1, true},
                                        kept[i].dtype, TS_SHAPE(kept[i].count), -1);
  }
  return c;
}

/* For the next step: whatever was there, times nought, and these. */
static void keep_control(ts_zero *z, ts_zero_control *c) {
  ts_tid nought = ts_zero_nought(z);
  for (int i = 0; i < KEPT; ++i) {
    char *name = ts_format("%s.kept", kept[i].name);
    ts_build_accumulate(site(z), name, ts_graph_find(z->rewrite.to, kept[i].name), *kept_value(c, i), nought);
    ts_free(name);
  }
}

static bool any_waits(const ts_zero *z) {
  bool any = false;
  for (int i = 0; i < z->layout->n_parts && !any; ++i) {
    any = ts_offload_waits(z->context, &z->layout->part[i]);
  }
  return any;
}

static void update_late(ts_zero *z, int index, controls *all) {
  const ts_part *part = &z->layout->part[index];
  ts_part_state *s = &z->part[index];
  const ts_site at = {z->rewrite.to, TS_SEGMENT_LATE_UPDATE, part->unit};
  ts_zero_share share = share_of(z, at, index);
  if (share.g == TS_NONE) { /* of what is reduced once a step, where it was */
    share.g = ts_zero_my_window(at, part, s->gradient);
  }
  update_part(z, at, &share, all);
  s->param = share.window ? s->param : s->fresh;
}

/* What waits of one unit, from part `first` on. \return the first part behind it. */
static int update_unit_late(ts_zero *z, int first, controls *all) {
  const int unit = z->layout->part[first].unit;
  const ts_site at = {z->rewrite.to, TS_SEGMENT_LATE_GATHER, unit};
  ts_buckets buckets = {0};
  int end = first;
  for (; end < z->layout->n_parts && z->layout->part[end].unit == unit; ++end) {
    if (ts_offload_waits(z->context, &z->layout->part[end])) {
      update_late(z, end, all);
    }
  }
  for (int i = first; i < end; ++i) {
    gather_updated(z, at, &buckets, i);
  }
  ts_bucket_flush(z, at, &buckets, gather_bucket);
  ts_bucket_free(&buckets);
  for (int i = first; i < end; ++i) {
    z->part[i].whole = z->part[i].whole != TS_NONE ? z->part[i].param : TS_NONE;
  }
  return end;
}

void ts_zero_update_late(ts_zero *z) {
  if (!any_waits(z)) {
    return;
  }
  controls all = controls_of(z, control_before(z));
  for (int i = 0; i < z->layout->n_parts;) {
    i = update_unit_late(z, i, &all);
  }
  ts_free(all.on_host);
}

/* ---- all of it ---- */

static ts_tid constant(ts_zero *z, const char *name) {
  ts_tid there = ts_graph_find(z->rewrite.to, name);
  return there != TS_NONE ? there : ts_record_scalar(site(z), name, TS_F32, 1);
}

ts_tid ts_zero_one(ts_zero *z) {
  return constant(z, "one");
}

ts_tid ts_zero_nought(ts_zero *z) {
  return constant(z, "nought");
}

/* Directions are scaled when they are made. */
static ts_tid scale_of_directions(ts_zero *z) {
  bool needed = false;
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    needed = needed || (part->trainable && part->of_stage &&
                        ts_optimizer_get(part->optimizer)->granularity != TS_GRANULARITY_ELEMENT);
  }
  return needed ? ts_zero_one(z) : TS_NONE;
}

/* Of a gradient that lives elsewhere: as its last sum was made, or of what is brought now. */
static ts_tid squares_of(ts_zero *z, int index) {
  const ts_part_state *s = &z->part[index];
  const ts_part *part = &z->layout->part[index];
  bool brought = s->squares == TS_NONE && ts_zero_is_elsewhere(z, s->shard) && ts_part_has_norm(part);
  return brought ? ts_record_squares(site(z), z->layout, part, ts_zero_bring(z, site(z), s->shard)) : s->squares;
}

void ts_zero_add_update(ts_zero *z, ts_tid loss, ts_tid valid, ts_tid balance) {
  if (ts_zero_is_training(z)) {
    ts_zero_collect_tied(z, site(z));
  }
  ts_tid *shard = ts_malloc((size_t) z->layout->n_parts * sizeof *shard);
  ts_tid *sum = ts_malloc((size_t) z->layout->n_parts * sizeof *sum);
  for (int i = 0; i < z->layout->n_parts; ++i) {
    shard[i] = z->part[i].shard;
    sum[i] = squares_of(z, i);
  }
  const ts_deck *deck = z->context->deck;
  ts_record_row row = {.loss = loss,
                       .valid = valid,
                       .balance = balance,
                       .loss_is_split = z->context->shards != NULL && z->context->shards->loss_by_rows,
                       .shard = shard,
                       .sum = sum,
                       .squares = ts_zero_is_training(z)};
  if (ts_zero_is_training(z)) {
    row.scaler = ts_deck_loss_scaler(deck);
    row.keep_nonfinite = deck->bf16.enabled == TS_SWITCH_ON && !deck->bf16.check_grad_overflow;
  }
  ts_record_result record = ts_record_add(site(z), z->context->mesh, z->layout, &row);
  ts_free(shard);
  ts_free(sum);
  if (!ts_zero_is_training(z)) {
    return;
  }
  ts_zero_control c = {.scale = record.scale,
                       .skip = record.skip,
                       .lr = ts_record_scalar(site(z), "lr", TS_F32, 1),
                       .betas = ts_record_scalar(site(z), "betas", TS_F32, 2),
                       .one = scale_of_directions(z)};
  c.step = ts_build_advance(site(z), "optimizer.advance", updates_leaf(z), c.betas, c.skip);
  c.corrections = c.step + 1;
  update_parts(z, &c);
  if (any_waits(z)) {
    keep_control(z, &c);
  }
}
