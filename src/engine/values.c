/* Parameters, gradients and states of the optimizer, by name.
 *
 * Whatever is asked for, a parameter's values lie in leaves of its part (engine/holder.h): one of which they are read,
 * and all that are written.  What this rank's part has of a parameter is gathered over the part's group; what the parts
 * along tp have, along tp. */
#include "engine/values.h"

#include "base/memory.h"
#include "base/text.h"
#include "engine/engine.h"
#include "engine/holder.h"
#include "graph/op.h"
#include "pass/shard.h"
#include "pass/state.h"

#include <math.h>
#include <string.h>

_Static_assert(TS_MAX_DIMS == TS_MAX_DIMS, "a shape has as many extents");

/* ---- parameters by name ---- */

static const ts_parameter *parameter_at(const ts_engine *e, int i) {
  const ts_layout *layout = ts_engine_layout(e);
  TS_ASSERT(i >= 0 && i < layout->n_parameters);
  return &layout->parameter[i];
}

static const ts_part *part_of_parameter(const ts_engine *e, const ts_parameter *p) {
  return &ts_engine_layout(e)->part[p->part];
}

int ts_parameter_count(const ts_engine *e) {
  return ts_engine_layout(e)->n_parameters;
}

const char *ts_parameter_name(const ts_engine *e, int i) {
  return parameter_at(e, i)->name;
}

int ts_parameter_shape(const ts_engine *e, int i, int64_t extent[TS_MAX_DIMS]) {
  const ts_shape *shape = &parameter_at(e, i)->shape;
  if (extent != NULL) {
    memcpy(extent, shape->d, (size_t) shape->n * sizeof *extent);
  }
  return shape->n;
}

bool ts_parameter_is_trainable(const ts_engine *e, int i) {
  return part_of_parameter(e, parameter_at(e, i))->trainable;
}

/* The optimizer of what is trained; NULL: there is none. */
static const ts_optimizer_info *optimizer_of(const ts_engine *e, const ts_parameter *p) {
  const ts_part *part = part_of_parameter(e, p);
  return part->trainable && e->program[TS_PROGRAM_TRAIN] != NULL ? ts_optimizer_get(part->optimizer) : NULL;
}

int ts_optimizer_state_count(const ts_engine *e, int i) {
  const ts_optimizer_info *info = optimizer_of(e, parameter_at(e, i));
  return info != NULL ? info->n_states : 0;
}

const char *ts_optimizer_state_name(const ts_engine *e, int i, int state) {
  const ts_optimizer_info *info = optimizer_of(e, parameter_at(e, i));
  TS_ASSERT(info != NULL && state >= 0 && state < info->n_states);
  return ts_state_get(info->state[state])->saved;
}

static ts_status find_parameter(const ts_engine *e, const char *call, const char *name, const ts_parameter **p,
                                ts_error *err) {
  const ts_layout *layout = ts_engine_layout(e);
  *p = ts_layout_find(layout, name);
  if (*p != NULL) {
    return ts_engine_check_no_feed(e, call, err);
  }
  const char **names = ts_malloc((size_t) layout->n_parameters * sizeof *names);
  for (int i = 0; i < layout->n_parameters; ++i) {
    names[i] = layout->parameter[i].name;
  }
  const char *nearest = ts_nearest(name, names, (size_t) layout->n_parameters);
  ts_error_add(err, "%s: the model has no parameter %s%s%s%s", call, name, nearest != NULL ? "; did you mean " : "",
               nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
  ts_free(names);
  return TS_BAD_INPUT;
}

/* ---- where values are ---- */

/* Values of one kind of a parameter. */
typedef struct value_place {
  ts_engine *engine;
  const ts_parameter *parameter;
  const ts_part *part;
  ts_holder read;     /* valid where it says so: whole, or this rank's shard */
  ts_holder write[2]; /* all that is kept of them */
  int n;
} value_place;

static ts_status find_parameter_values(ts_engine *e, const char *call, const char *name, value_place *v,
                                       ts_error *err) {
  const ts_parameter *p;
  if (find_parameter(e, call, name, &p, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  const ts_part *part = part_of_parameter(e, p);
  *v = (value_place){.engine = e,
                     .parameter = p,
                     .part = part,
                     .read = ts_holder_of_values(e, part),
                     .write = {ts_holder_find(e, part, TS_STATE_PARAMETER), ts_holder_find(e, part, TS_STATE_MASTER)},
                     .n = 2};
  return TS_OK;
}

/* This rank's elements of the part. */
static ts_interval elements_of_share(const value_place *v) {
  const ts_parameter *p = v->parameter;
  int64_t begin = ts_part_begin(v->part);
  if (!v->part->of_stage) { /* a copy's elements are counted at home */
    return (ts_interval){p->offset, 0};
  }
  return ts_interval_both((ts_interval){p->offset, p->count}, (ts_interval){begin, ts_part_end(v->part) - begin});
}

static ts_status check_is_trained(const value_place *v, const char *call, ts_error *err) {
  if (!v->part->trainable) {
    return ts_error_add(err, "%s: %s is frozen: it has neither a gradient nor states of the optimizer", call,
                        v->parameter->name);
  }
  if (v->engine->program[TS_PROGRAM_TRAIN] == NULL) {
    return ts_error_add(err, "%s: the engine was made without TS_CAN_TRAIN and TS_CAN_STEP, so nothing is trained",
                        call);
  }
  return TS_OK;
}

/* ---- gradients ---- */

static ts_status check_reduced(const ts_engine *e, const char *call, ts_error *err) {
  const ts_hand_steps *h = &e->hand;
  if ((e->abilities & TS_CAN_STEP) == 0) {
    return ts_error_add(err,
                        "%s: the engine was made without TS_CAN_STEP: in whole steps the update follows the last "
                        "backward at once, and may use the gradient's memory",
                        call);
  }
  if (h->local) {
    return ts_error_add(err,
                        "%s: gradients are this rank's alone until they are reduced: by the step's last ts_backward "
                        "(ts_is_gradient_accumulation_boundary), or by ts_coalesce_grad_reduction_end",
                        call);
  }
  if (!h->reduced) {
    return ts_error_add(
        err, "%s: there is no gradient: there is one after the last ts_backward of a step, until ts_step", call);
  }
  return TS_OK;
}

/* The labels that count, as the step's record has them: of ranks that make a loss, or these ranks. */
static double add_up_labels(const ts_engine *e) {
  const ts_graph *g = e->program[TS_PROGRAM_TRAIN]->graph;
  ts_tid sum = ts_graph_find(g, "valid_sum");
  double mine = 1, all = 0;
  if (ts_graph_find(g, "zero") != TS_NONE) { /* what it enters */
    mine = 0;
  } else if (sum != TS_NONE) {
    ts_executor_read_state(e->executor, sum, 0, 1, &mine);
  }
  double *each = ts_world_gather(e->world, &mine, sizeof mine);
  for (int r = 0; r < ts_world_size(e->world); ++r) {
    all += each[r];
  }
  ts_free(each);
  return all;
}

/* What the record multiplies gradients by, clipping apart. */
static ts_status find_factor(const ts_engine *e, const char *call, float *factor, ts_error *err) {
  double scale[TS_LOSS_SCALE_SIZE], labels = add_up_labels(e);
  if (!ts_engine_read_scale(e, scale)) {
    scale[TS_LOSS_SCALE] = 1;
  }
  *factor = (float) (ts_engine_static_tokens(e, TS_PROGRAM_TRAIN) / labels / scale[TS_LOSS_SCALE]);
  return labels > 0
             ? TS_OK
             : ts_error_add(err, "%s: no label of this step counts: it has no gradient and will be skipped", call);
}

/* Reduced gradients are this rank's shard, of the leaf that has shards alone or of that of the whole; a stage that
 * updates the whole reads the latter. */
static ts_status find_gradient_values(ts_engine *e, const char *call, const char *name, value_place *v, ts_error *err) {
  float factor;
  ts_status status = find_parameter_values(e, call, name, v, err);
  status = status == TS_OK ? check_is_trained(v, call, err) : status;
  status = status == TS_OK ? check_reduced(e, call, err) : status;
  if (status != TS_OK || find_factor(e, call, &factor, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  const ts_graph *g = ts_engine_program(e)->graph;
  v->n = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *leaf = &g->tensor[t];
    if (leaf->role == TS_ROLE_STATE && leaf->held.state == TS_STATE_GRADIENT && leaf->held.part == v->parameter->part) {
      bool whole = leaf->held.whole;
      int64_t begin = whole ? 0 : ts_part_begin(v->part);
      v->write[v->n] = (ts_holder){.leaf = t,
                                   .dtype = leaf->dtype,
                                   .whole = whole,
                                   .begin = begin,
                                   .count = whole ? v->part->count : ts_part_end(v->part) - begin,
                                   .factor = factor};
      v->read = v->n == 0 || !whole ? ts_holder_of_shard(&v->write[v->n], v->part) : v->read;
      ++v->n;
    }
  }
  TS_CHECK(v->n > 0 || !v->part->here, "part %s has no gradient", v->part->name);
  return TS_OK;
}

/* ---- states of the optimizer ---- */

static ts_status refuse_state(const value_place *v, const char *call, const char *state, ts_error *err) {
  const ts_optimizer_info *info = ts_optimizer_get(v->part->optimizer);
  ts_text there = {0};
  for (int i = 0; i < info->n_states; ++i) {
    ts_text_add(&there, "%s%s", i > 0 ? ", " : "", ts_state_get(info->state[i])->saved);
  }
  ts_error_add(err, "%s: the optimizer of %s, %s, keeps no %s; it keeps %s", call, v->parameter->name, info->name,
               state, info->n_states > 0 ? there.text : "nothing");
  ts_text_free(&there);
  return TS_BAD_INPUT;
}

/* Does the first update not look at what is there? */
static bool begins_with_update(ts_optimizer optimizer) {
  return optimizer == TS_OPTIMIZER_ADAGRAD || optimizer == TS_OPTIMIZER_MOMENTUM;
}

static ts_status check_begun(const value_place *v, const char *call, const char *state, ts_error *err) {
  int64_t updates = 1;
  if (begins_with_update(v->part->optimizer)) {
    ts_tid leaf = ts_graph_find_state(ts_engine_program(v->engine)->graph, TS_STATE_UPDATES, -1);
    ts_executor_read_state(v->engine->executor, leaf, 0, 1, &updates);
  }
  return updates > 0 ? TS_OK
                     : ts_error_add(err, "%s: %s of %s begins with the first update: there is none yet", call, state,
                                    v->parameter->name);
}

static ts_status find_state_values(ts_engine *e, const char *call, const char *name, const char *state, value_place *v,
                                   ts_error *err) {
  ts_status status = find_parameter_values(e, call, name, v, err);
  status = status == TS_OK ? check_is_trained(v, call, err) : status;
  if (status != TS_OK) {
    return status;
  }
  const ts_optimizer_info *info = ts_optimizer_get(v->part->optimizer);
  int i = 0;
  while (i < info->n_states && strcmp(ts_state_get(info->state[i])->saved, state) != 0) {
    ++i;
  }
  if (i == info->n_states) {
    return refuse_state(v, call, state, err);
  }
  v->read = v->write[0] = ts_holder_find(e, v->part, info->state[i]);
  v->n = 1;
  TS_CHECK(v->read.leaf != TS_NONE || !v->part->of_stage, "part %s has no %s", v->part->name, state);
  return check_begun(v, call, state, err);
}

/* ---- reading all ---- */

/* In place: each rank of the part's group has its share of \a held, what the part has of the parameter.
 * Collective over the group. */
static void complete_held(const value_place *v, float *held) {
  const ts_parameter *p = v->parameter;
  ts_comm *comm = ts_world_comm(v->engine->world, &v->engine->mesh, v->part->axes);
  int64_t *cuts = ts_malloc(((size_t) comm->size + 1) * sizeof *cuts);
  for (int r = 0; r <= comm->size; ++r) {
    int64_t cut = v->part->cuts[r] - p->offset;
    cuts[r] = cut < 0 ? 0 : cut < p->count ? cut : p->count;
  }
  ts_transfer transfer = {.x = held + cuts[comm->rank], .y = held, .cuts = cuts, .begin = 0, .end = p->count};
  comm->ops->all_gather(comm, &transfer, 1, TS_F32);
  ts_free(cuts);
}

/* What this rank's part has of the parameter; ts_free.  Collective over the part's group. */
static float *gather_held(const value_place *v) {
  const ts_parameter *p = v->parameter;
  float *held = ts_malloc((size_t) p->count * sizeof *held + 1);
  if (v->read.whole) {
    ts_holder_read(v->engine, &v->read, p->offset, p->count, held);
    return held;
  }
  ts_interval share = elements_of_share(v);
  if (share.length > 0) {
    ts_holder_read(v->engine, &v->read, share.begin, share.length, held + (share.begin - p->offset));
  }
  complete_held(v, held);
  return held;
}

static void put_in_place(const ts_parameter *p, size_t size, const char *held, char *value) {
  for (int64_t at = 0, n; at < p->count; at += n) {
    n = p->count - at;
    int64_t whole = ts_parameter_in_whole(p, at, &n);
    memcpy(value + (size_t) whole * size, held + (size_t) at * size, (size_t) n * size);
  }
}

/* What all ranks along \a axes hold of parameter \a index: the one of several that have an element does not matter. */
static void gather_along(ts_engine *e, unsigned axes, int index, ts_dtype dtype, const void *held, void *value) {
  size_t size = ts_dtype_size(dtype);
  ts_comm *comm = ts_world_comm(e->world, &e->mesh, axes);
  ts_layout **layout = ts_malloc((size_t) comm->size * sizeof *layout);
  int64_t *cuts = ts_calloc((size_t) comm->size + 1, sizeof *cuts), most = 0;
  for (int r = 0; r < comm->size; ++r) {
    ts_mesh there = ts_mesh_at(&e->mesh, ts_mesh_group_member(&e->mesh, axes, r));
    layout[r] = ts_engine_layout_at(e, &there);
    int64_t count = layout[r]->parameter[index].count;
    cuts[r + 1] = cuts[r] + count;
    most = count > most ? count : most;
  }
  char *all = ts_malloc((size_t) cuts[comm->size] * size);
  ts_transfer transfer = {.x = held, .y = all, .cuts = cuts, .begin = 0, .end = most};
  comm->ops->all_gather(comm, &transfer, 1, dtype);
  for (int r = 0; r < comm->size; ++r) {
    put_in_place(&layout[r]->parameter[index], size, all + (size_t) cuts[r] * size, value);
    ts_layout_destroy(&layout[r]);
  }
  ts_free(all);
  ts_free(cuts);
  ts_free(layout);
}

void ts_engine_refresh_copies(ts_engine *e) {
  const ts_program *p = ts_engine_program(e);
  for (int i = 0; i < p->layout->n_parts; ++i) {
    const ts_part *part = &p->layout->part[i];
    ts_tid leaf = part->copy >= 0 ? ts_graph_find_state(p->graph, TS_STATE_PARAMETER, i) : TS_NONE;
    if (part->copy < 0 || part->copy == part->stage) {
      continue;
    }
    int64_t n = leaf != TS_NONE ? ts_tensor_count(p->graph, leaf) : 0, most = part->group * part->shard;
    size_t size = ts_dtype_size(part->work);
    void *values = ts_calloc((size_t) most * size + 1, 1);
    if (part->of_stage) {
      ts_executor_read_state(e->executor, leaf, 0, n, values);
    }
    ts_engine_tell_stages(e, part, values, (size_t) most * size);
    if (ts_part_is_copy(part)) {
      ts_executor_write_state(e->executor, leaf, 0, n, values);
    }
    ts_free(values);
  }
}

void ts_engine_tell_stages(ts_engine *e, const ts_part *part, void *data, size_t bytes) {
  if (e->mesh.size[TS_AXIS_PP] > 1) {
    ts_comm *comm = ts_world_comm(e->world, &e->mesh, TS_AXES(TS_AXIS_PP));
    comm->ops->broadcast(comm, data, bytes, part->stage);
  }
}

void ts_engine_put_together(ts_engine *e, int index, ts_dtype dtype, const void *held, void *value) {
  const ts_parameter *p = &ts_engine_layout(e)->parameter[index];
  const ts_shard *shard = ts_shards_find(ts_engine_program(e)->shards, p->name);
  unsigned axes = shard != NULL && ts_shard_is_of_experts(shard) ? TS_AXES_HOLDERS : TS_AXES(TS_AXIS_TP);
  if (ts_mesh_group_size(&e->mesh, axes) == 1) {
    put_in_place(p, ts_dtype_size(dtype), held, value);
  } else {
    gather_along(e, axes, index, dtype, held, value);
  }
}

/* Of the stage that has it all ranks learn it. Collective over the world. */
static void read_whole(const value_place *v, float *value) {
  ts_executor_complete(v->engine->executor);
  if (v->part->of_stage) {
    float *held = gather_held(v);
    int index = (int) (v->parameter - ts_engine_layout(v->engine)->parameter);
    ts_engine_put_together(v->engine, index, TS_F32, held, value);
    ts_free(held);
  }
  ts_engine_tell_stages(v->engine, v->part, value, (size_t) ts_shape_count(&v->parameter->shape) * sizeof *value);
}

/* ---- writing all ---- */

static void take_given(void *user, int64_t first, int64_t count, bool owned, float *value) {
  (void) owned;
  memcpy(value, (const float *) user + first, (size_t) count * sizeof *value);
}

static void write_whole(const value_place *v, const float *value) {
  ts_engine_forget(v->engine);
  ts_holders_fill(v->engine, v->parameter, v->write, v->n, take_given, (float *) value);
}

ts_status ts_get_full_fp32_parameter(ts_engine *e, const char *name, float *value, ts_error *err) {
  value_place v;
  ts_status status = find_parameter_values(e, "ts_get_full_fp32_parameter", name, &v, err);
  if (status == TS_OK) {
    read_whole(&v, value);
  }
  return status;
}

ts_status ts_set_full_fp32_parameter(ts_engine *e, const char *name, const float *value, ts_error *err) {
  value_place v;
  ts_status status = find_parameter_values(e, "ts_set_full_fp32_parameter", name, &v, err);
  if (status == TS_OK) {
    write_whole(&v, value);
  }
  return status;
}

ts_status ts_get_full_fp32_gradient(ts_engine *e, const char *name, float *value, ts_error *err) {
  value_place v;
  ts_status status = find_gradient_values(e, "ts_get_full_fp32_gradient", name, &v, err);
  if (status == TS_OK) {
    read_whole(&v, value);
  }
  return status;
}

ts_status ts_set_full_fp32_gradient(ts_engine *e, const char *name, const float *value, ts_error *err) {
  value_place v;
  ts_status status = find_gradient_values(e, "ts_set_full_fp32_gradient", name, &v, err);
  if (status == TS_OK) {
    write_whole(&v, value);
  }
  return status;
}

ts_status ts_get_full_optimizer_state(ts_engine *e, const char *name, const char *state, float *value, ts_error *err) {
  value_place v;
  ts_status status = find_state_values(e, "ts_get_full_optimizer_state", name, state, &v, err);
  if (status == TS_OK) {
    read_whole(&v, value);
  }
  return status;
}

ts_status ts_set_full_optimizer_state(ts_engine *e, const char *name, const char *state, const float *value,
                                      ts_error *err) {
  value_place v;
  ts_status status = find_state_values(e, "ts_set_full_optimizer_state", name, state, &v, err);
  if (status == TS_OK) {
    write_whole(&v, value);
  }
  return status;
}

/* ---- this rank's share ---- */

/* \return how many pieces; they are written where \a piece is not NULL. */
static int64_t list_share(const value_place *v, ts_local_piece *piece) {
  ts_interval share = elements_of_share(v);
  int64_t at = share.begin - v->parameter->offset, end = at + share.length, n = 0;
  for (int64_t count; at < end; at += count, ++n) {
    count = end - at;
    int64_t first = ts_parameter_in_whole(v->parameter, at, &count);
    if (piece != NULL) {
      piece[n] = (ts_local_piece){first, count};
    }
  }
  return n;
}

ts_status ts_get_local_share(const ts_engine *e, const char *name, ts_local_share *out, ts_error *err) {
  value_place v;
  ts_status status = find_parameter_values((ts_engine *) e, "ts_get_local_share", name, &v, err);
  if (status == TS_OK) {
    *out = (ts_local_share){
        .elements = elements_of_share(&v).length, .n_pieces = list_share(&v, NULL), .is_owner = v.part->owned};
  }
  return status;
}

ts_status ts_get_local_pieces(const ts_engine *e, const char *name, ts_local_piece *piece, ts_error *err) {
  value_place v;
  ts_status status = find_parameter_values((ts_engine *) e, "ts_get_local_pieces", name, &v, err);
  if (status == TS_OK) {
    list_share(&v, piece);
  }
  return status;
}

static void read_share(const value_place *v, float *value) {
  ts_interval share = elements_of_share(v);
  if (share.length > 0) {
    ts_holder_read(v->engine, &v->read, share.begin, share.length, value);
  }
}

/* Collective over the part's group where it keeps more than shares. */
static void write_at_home(const value_place *v, const float *value) {
  const ts_parameter *p = v->parameter;
  ts_interval share = elements_of_share(v);
  bool any_whole = false;
  ts_engine_forget(v->engine);
  for (int i = 0; i < v->n; ++i) {
    any_whole = any_whole || (v->write[i].leaf != TS_NONE && v->write[i].whole);
    ts_holder_write(v->engine, &v->write[i], share.begin, share.length, value);
  }
  if (!any_whole || v->part->group == 1) {
    return;
  }
  float *held = ts_malloc((size_t) p->count * sizeof *held + 1);
  if (share.length > 0) {
    memcpy(held + (share.begin - p->offset), value, (size_t) share.length * sizeof *value);
  }
  complete_held(v, held);
  for (int i = 0; i < v->n; ++i) {
    if (v->write[i].whole) {
      ts_holder_write(v->engine, &v->write[i], p->offset, p->count, held);
    }
  }
  ts_free(held);
}

/* Whoever has a copy takes the new values. Collective over the part's group, of a tied table over the stages too. */
static void write_share(const value_place *v, const float *value) {
  if (v->part->of_stage) {
    write_at_home(v, value);
  }
  if (v->part->copy >= 0) {
    ts_engine_refresh_copies(v->engine);
  }
}

ts_status ts_get_local_fp32_parameter(ts_engine *e, const char *name, float *value, ts_error *err) {
  value_place v;
  ts_status status = find_parameter_values(e, "ts_get_local_fp32_parameter", name, &v, err);
  if (status == TS_OK) {
    read_share(&v, value);
  }
  return status;
}

ts_status ts_set_local_fp32_parameter(ts_engine *e, const char *name, const float *value, ts_error *err) {
  value_place v;
  ts_status status = find_parameter_values(e, "ts_set_local_fp32_parameter", name, &v, err);
  if (status == TS_OK) {
    write_share(&v, value);
  }
  return status;
}

ts_status ts_get_local_fp32_gradient(ts_engine *e, const char *name, float *value, ts_error *err) {
  value_place v;
  ts_status status = find_gradient_values(e, "ts_get_local_fp32_gradient", name, &v, err);
  if (status == TS_OK) {
    read_share(&v, value);
  }
  return status;
}

ts_status ts_set_local_fp32_gradient(ts_engine *e, const char *name, const float *value, ts_error *err) {
  value_place v;
  ts_status status = find_gradient_values(e, "ts_set_local_fp32_gradient", name, &v, err);
  if (status == TS_OK) {
    write_share(&v, value);
  }
  return status;
}

ts_status ts_get_local_optimizer_state(ts_engine *e, const char *name, const char *state, float *value, ts_error *err) {
  value_place v;
  ts_status status = find_state_values(e, "ts_get_local_optimizer_state", name, state, &v, err);
  if (status == TS_OK) {
    read_share(&v, value);
  }
  return status;
}

ts_status ts_set_local_optimizer_state(ts_engine *e, const char *name, const char *state, const float *value,
                                       ts_error *err) {
  value_place v;
  ts_status status = find_state_values(e, "ts_set_local_optimizer_state", name, state, &v, err);
  if (status == TS_OK) {
    write_share(&v, value);
  }
  return status;
}

/* ---- several parameters ---- */

static ts_status check_parameters(const ts_engine *e, const char *call, const char *const *name, int n, ts_error *err) {
  ts_status status = TS_OK;
  for (int i = 0; i < n; ++i) {
    const ts_parameter *p;
    status = find_parameter(e, call, name[i], &p, err) == TS_OK ? status : TS_BAD_INPUT;
  }
  return status;
}

ts_status ts_gather_parameters(ts_engine *e, const char *const *name, int n, float *const *value, ts_error *err) {
  ts_status status = check_parameters(e, "ts_gather_parameters", name, n, err);
  for (int i = 0; i < n && status == TS_OK; ++i) {
    status = ts_get_full_fp32_parameter(e, name[i], value[i], err);
  }
  return status;
}

/* One parameter, from rank \a root. */
static ts_status scatter_parameter(ts_engine *e, const char *name, float *value, int root, ts_error *err) {
  const ts_parameter *p = ts_layout_find(ts_engine_layout(e), name);
  size_t bytes = (size_t) ts_shape_count(&p->shape) * sizeof *value;
  float *room = value == NULL ? ts_malloc(bytes) : NULL, *all = value != NULL ? value : room;
  ts_comm *world = ts_world_all(e->world);
  world->ops->broadcast(world, all, bytes, root);
  ts_status status = ts_set_full_fp32_parameter(e, name, all, err);
  ts_free(room);
  return status;
}

ts_status ts_scatter_parameters(ts_engine *e, const char *const *name, int n, float *const *value, int modifier_rank,
                                ts_error *err) {
  const char *call = "ts_scatter_parameters";
  if (modifier_rank < 0 || modifier_rank >= ts_world_size(e->world)) {
    return ts_error_add(err, "%s: there is no rank %d: the world has %d, from 0", call, modifier_rank,
                        ts_world_size(e->world));
  }
  ts_status status = check_parameters(e, call, name, n, err);
  for (int i = 0; i < n && status == TS_OK; ++i) {
    status = scatter_parameter(e, name[i], value[i], modifier_rank, err);
  }
  return status;
}
