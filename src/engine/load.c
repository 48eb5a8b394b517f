/* An engine's state from a checkpoint of any grid and stage.
 *
 * The unit is an element of a parameter: the new layout says which ones this rank owns, the checkpoint's says in which
 * shard files they lie.  Each rank reads its own into place and a leaf that keeps the whole is completed by an
 * all_gather, so that a byte is read from disk once, however many ranks hold it. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/import.h"
#include "engine/recode.h"
#include "engine/upcycle.h"
#include "io/publication.h"
#include "pass/saved.h"
#include "pass/state.h"

#include <string.h>

#define BLOCK ((int64_t) 1 << 18)
#define MOST_PIECES (1 << 18) /* that are listed before they are read: a matrix cut along its rows has one a row */

/* ---- before anything is read ---- */

/* Rank 0: of a file that many ranks open at once a file system makes a queue. */
static ts_status read_index(const char *directory, const ts_manifest *manifest, ts_checkpoint **checkpoint,
                            ts_error *err) {
  ts_status status = ts_checkpoint_read_index(directory, checkpoint, err);
  return status != TS_OK ? status
                         : ts_manifest_match(directory, manifest, (*checkpoint)->step, (*checkpoint)->n_shards, err);
}

/* The others: what rank 0 read. */
static void share_index(ts_comm *all, ts_checkpoint **checkpoint) {
  ts_text packed = {0};
  if (all->rank == 0) {
    ts_checkpoint_pack(*checkpoint, &packed);
  }
  int64_t length = (int64_t) packed.length;
  all->ops->broadcast(all, &length, sizeof length, 0);
  char *bytes = all->rank == 0 ? packed.text : ts_malloc((size_t) length);
  all->ops->broadcast(all, bytes, (size_t) length, 0);
  if (all->rank != 0) {
    *checkpoint = ts_checkpoint_unpack(bytes);
    ts_free(bytes);
  }
  ts_text_free(&packed);
}

ts_status ts_checkpoint_check(ts_world *world, const char *directory, ts_checkpoint **checkpoint, ts_error *err) {
  ts_manifest manifest = {0};
  *checkpoint = NULL;
  ts_status status = ts_world_agree(world, ts_manifest_read(directory, &manifest, err), err);
  if (status == TS_OK) {
    status = ts_checkpoint_verify(directory, &manifest, ts_world_rank(world), ts_world_size(world), 1, err);
    status = ts_world_agree(world, status, err);
  }
  if (status == TS_OK) {
    status = ts_world_rank(world) == 0 ? read_index(directory, &manifest, checkpoint, err) : TS_OK;
    status = ts_world_agree(world, status, err);
  }
  if (status == TS_OK) {
    share_index(ts_world_all(world), checkpoint);
  } else {
    ts_checkpoint_destroy(checkpoint);
  }
  ts_manifest_clear(&manifest);
  return status;
}

static ts_status refuse_shape(const char *directory, const ts_saved_parameter *saved, const ts_parameter *p,
                              ts_error *err) {
  ts_text text = {0};
  ts_text_add_shape(&text, saved->shape, saved->n_dims);
  ts_text_add(&text, "; the deck's model has it as ");
  ts_text_add_shape(&text, p->shape.d, p->shape.n);
  ts_error_add(err, "%s: is of another model: %s is %s", directory, p->name, text.text);
  ts_text_free(&text);
  return TS_BAD_INPUT;
}

/* As it is, or each of its matrices. */
static bool has_shape_of(const ts_saved_parameter *saved, const ts_parameter *p) {
  int copies = p->shape.n - saved->n_dims;
  return (copies == 0 || copies == 1) &&
         memcmp(saved->shape, p->shape.d + copies, (size_t) saved->n_dims * sizeof *saved->shape) == 0;
}

/* Are experts to begin as copies? */
static bool all_begin_as_copies(const ts_engine *e, const ts_checkpoint *c, ts_load what) {
  ts_named *named = ts_calloc((size_t) c->n_parameters + 1, sizeof *named);
  for (int i = 0; i < c->n_parameters; ++i) {
    named[i] = (ts_named){c->parameter[i].name, c->parameter[i].n_dims};
  }
  bool copies = what == TS_LOAD_WEIGHTS && ts_upcycle_is_dense(e, named, c->n_parameters);
  ts_free(named);
  return copies;
}

/* Which of the checkpoint's a parameter is, or copies; of none it has first values, or it is missing. */
typedef struct source {
  int saved; /* -1: none */
  bool seeded;
  float scale;
} source;

static source saved_as(const ts_engine *e, const ts_checkpoint *c, bool copies, const ts_parameter *p) {
  source from = {.saved = ts_checkpoint_find(c, p->name), .scale = 1};
  if (from.saved < 0 && copies) {
    ts_origin origin = ts_upcycle_origin(e, p);
    from = (source){.saved = origin.copied != NULL ? ts_checkpoint_find(c, origin.copied) : -1,
                    .seeded = origin.seeded,
                    .scale = origin.scale};
    ts_free(origin.copied);
  }
  return from;
}

/* The first tensor that differs is enough. */
static ts_status check_model(const ts_engine *e, const char *directory, const ts_checkpoint *c, bool copies,
                             ts_error *err) {
  const ts_layout *layout = ts_engine_layout(e);
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    source origin = saved_as(e, c, copies, p);
    if (origin.saved < 0 && !origin.seeded) {
      return ts_error_add(err, "%s: is of another model: it has no %s", directory, p->name);
    }
    if (origin.saved >= 0 && !has_shape_of(&c->parameter[origin.saved], p)) {
      return refuse_shape(directory, &c->parameter[origin.saved], p, err);
    }
  }
  for (int i = 0; i < c->n_parameters; ++i) {
    const char *name = c->parameter[i].name;
    if (ts_layout_find(layout, name) == NULL && !(copies && ts_upcycle_copies(e, name))) {
      return ts_error_add(err, "%s: is of another model: the deck's has no %s", directory, c->parameter[i].name);
    }
  }
  return TS_OK;
}

/* ---- reading ---- */

/* Where elements that are read go. */
typedef struct destination {
  ts_executor *executor; /* borrowed */
  ts_tid leaf;
  int64_t first;
  ts_dtype dtype;
  float scale;
} destination;

typedef struct loader {
  ts_engine *engine;
  const char *directory;
  const ts_checkpoint *checkpoint;
  ts_load what;
  bool copies;                  /* experts begin as such */
  ts_checkpoint_reader *reader; /* owned */
  ts_checkpoint_piece *piece;   /* owned */
  destination *to;              /* owned: of each piece */
  int n_pieces, piece_capacity, to_capacity;
} loader;

static bool takes(const loader *l, ts_load what) {
  return (l->what & what) != 0;
}

static void write_scaled(const destination *to, int64_t first, int64_t count, const char *values) {
  enum { FEW = 1024 };
  float wide[FEW];
  uint32_t scaled[FEW];
  size_t size = ts_dtype_size(to->dtype);
  for (int64_t at = 0; at < count; at += FEW) {
    int64_t n = count - at < FEW ? count - at : FEW;
    ts_convert(wide, TS_F32, values + (size_t) at * size, to->dtype, (size_t) n);
    for (int64_t i = 0; i < n; ++i) {
      wide[i] *= to->scale;
    }
    ts_convert(scaled, to->dtype, wide, TS_F32, (size_t) n);
    ts_executor_write_state(to->executor, to->leaf, first + at, n, scaled);
  }
}

static void write_values(void *user, int64_t at, int64_t count, const void *values) {
  const destination *to = user;
  if (to->scale != 1) {
    write_scaled(to, to->first + at, count, values);
  } else {
    ts_executor_write_state(to->executor, to->leaf, to->first + at, count, values);
  }
}

static void queue_run(loader *l, const ts_checkpoint_run *run, int state, const ts_saved_leaf *leaf, int64_t first,
                      float scale) {
  TS_GROW(l->piece, l->n_pieces, l->piece_capacity);
  TS_GROW(l->to, l->n_pieces, l->to_capacity);
  l->to[l->n_pieces] = (destination){l->engine->executor, leaf->leaf, first, leaf->dtype, scale};
  l->piece[l->n_pieces++] = (ts_checkpoint_piece){.part = run->part,
                                                  .state = state,
                                                  .first = run->first,
                                                  .count = run->count,
                                                  .dtype = leaf->dtype,
                                                  .sink = write_values};
}

/* A state of the part that parameter p was saved in, as this engine has it, or NULL. */
static const ts_saved_state *find_saved_state(const loader *l, const ts_saved_parameter *saved,
                                              const ts_saved_leaf *leaf, int *index, ts_error *err) {
  const ts_saved_part *part = ts_checkpoint_part(l->checkpoint, saved);
  *index = ts_checkpoint_find_state(part, leaf->state);
  if (*index < 0) {
    ts_error_add(err, "%s: has no %s of %s, which was %s; `--weights` (a program: module_only) takes the weights alone",
                 l->directory, leaf->state, saved->name,
                 part->trainable ? "saved without it, as by another optimizer.type" : "frozen when it was saved");
    return NULL;
  }
  const ts_saved_state *state = &part->state[*index];
  if ((state->dtype == TS_U8) != (leaf->dtype == TS_U8)) {
    ts_error_add(err,
                 "%s: %s of %s is in %s; optimizer.state_dtype as it was goes on, `--weights` (a program: module_only) "
                 "takes the weights alone",
                 l->directory, leaf->state, saved->name,
                 state->dtype == TS_U8 ? "8 bits" : ts_dtype_name(state->dtype));
    return NULL;
  }
  int64_t own = leaf->block == 0 ? leaf->count : 0, block = leaf->block > 1 ? leaf->block : 1;
  if (state->own != own || (state->block > 1 ? state->block : 1) != block) {
    ts_error_add(err, "%s: %s of %s is of another size; `--weights` (a program: module_only) takes the weights alone",
                 l->directory, leaf->state, saved->name);
    return NULL;
  }
  return state;
}

/* A run of the part's elements, of which the first is element `first` of this rank's shard. */
static ts_status queue_blocks(loader *l, const ts_checkpoint_run *run, int state, const ts_saved_leaf *leaf,
                              int64_t first, float scale, ts_error *err) {
  int64_t block = leaf->block;
  if (run->first % block != 0 || first % block != 0) {
    return ts_error_add(
        err,
        "%s: blocks of %s lie across those of this grid; `--weights` (a program: module_only) takes the weights alone",
        l->directory, leaf->state);
  }
  const ts_checkpoint_run blocks = {run->part, run->first / block, ts_state_elements(block, run->count)};
  queue_run(l, &blocks, state, leaf, leaf->first + first / block, scale);
  return TS_OK;
}

/* Codes of 8 bits and their scales whose blocks are not those of this grid: both are read when the codes are due.
 * \return whether \a leaf is one of the two. */
static bool recode(loader *l, const ts_saved_leaf *leaf, ts_recode *r, ts_status *status, ts_error *err) {
  const ts_program *program = ts_engine_program(l->engine);
  ts_state state = program->graph->tensor[leaf->leaf].held.state;
  ts_state code = leaf->dtype == TS_U8 ? state : ts_state_codes(state);
  int part = r->parameter->part;
  bool has_codes = code != TS_STATE_NONE && ts_saved_leaf_find(program->graph, program->layout, part, code, &r->code);
  if (!has_codes || r->code.dtype != TS_U8 || ts_recode_fits(r)) {
    return false;
  }
  if (code == state) {
    bool found = ts_saved_leaf_find(program->graph, program->layout, part, ts_state_scales(code), &r->scale);
    TS_CHECK(found, "%s has no scales", leaf->state);
    r->has_sign = ts_state_has_sign(code);
    found = find_saved_state(l, r->saved, &r->code, &r->saved_code, err) != NULL &&
            find_saved_state(l, r->saved, &r->scale, &r->saved_scale, err) != NULL;
    *status = found ? ts_recode_read(r, l->reader, l->engine->executor, err) : TS_BAD_INPUT;
  }
  return true;
}

/* The elements of parameter p that this rank has, into the leaf of its part. */
static ts_status add_piece(loader *l, const ts_parameter *p, const ts_saved_leaf *leaf, ts_error *err) {
  const ts_part *part = &ts_engine_layout(l->engine)->part[p->part];
  int64_t mine = ts_part_begin(part), end = ts_part_end(part);
  int64_t from = p->offset > mine ? p->offset : mine, to = p->offset + p->count < end ? p->offset + p->count : end;
  source origin = saved_as(l->engine, l->checkpoint, l->copies, p);
  if (from >= to || origin.saved < 0) {
    return TS_OK;
  }
  const ts_saved_parameter *saved = &l->checkpoint->parameter[origin.saved];
  int index;
  if (find_saved_state(l, saved, leaf, &index, err) == NULL) {
    return TS_BAD_INPUT;
  }
  ts_status status = TS_OK;
  ts_recode walk = {.parameter = p, .saved = saved, .from = from, .to = to, .mine = mine};
  if (recode(l, leaf, &walk, &status, err)) {
    return status;
  }
  ts_checkpoint_run run;
  for (int64_t at = from; at < to && status == TS_OK; at += run.count) {
    run = ts_recode_run(&walk, at);
    status = queue_blocks(l, &run, index, leaf, at - mine, origin.scale, err);
  }
  return status;
}

/* A state with a shape of its own, whole on every rank: that of the part its first parameter was saved in. */
static ts_status add_own(loader *l, const ts_part *part, const ts_saved_leaf *leaf, ts_error *err) {
  const char *name = ts_engine_layout(l->engine)->parameter[part->first].name;
  const ts_saved_parameter *saved = &l->checkpoint->parameter[ts_checkpoint_find(l->checkpoint, name)];
  int index;
  if (find_saved_state(l, saved, leaf, &index, err) == NULL) {
    return TS_BAD_INPUT;
  }
  queue_run(l, &(ts_checkpoint_run){saved->piece[0].part, 0, leaf->count}, index, leaf, 0, 1);
  return TS_OK;
}

static ts_status list_part(loader *l, int index, ts_error *err) {
  const ts_layout *layout = ts_engine_layout(l->engine);
  const ts_part *part = &layout->part[index];
  ts_saved_leaf leaf[TS_MOST_SAVED];
  int n = ts_saved_leaves(ts_engine_program(l->engine)->graph, layout, index, leaf);
  ts_status status = TS_OK;
  for (int k = 0; k < n && (k == 0 || takes(l, TS_LOAD_OPTIMIZER)) && status == TS_OK; ++k) {
    if (leaf[k].block == 0) {
      status = add_own(l, part, &leaf[k], err);
      continue;
    }
    for (int i = part->first; i < part->first + part->n_parameters && status == TS_OK; ++i) {
      status = add_piece(l, &layout->parameter[i], &leaf[k], err);
    }
  }
  return status;
}

/* What is listed, shard by shard; the list is empty afterwards. */
static ts_status read_pieces(loader *l, ts_error *err) {
  for (int i = 0; i < l->n_pieces; ++i) {
    l->piece[i].user = &l->to[i];
  }
  ts_status status = ts_checkpoint_read(l->reader, l->piece, l->n_pieces, err);
  l->n_pieces = 0;
  return status;
}

/* As many parts at once as the list has room for, so that each file is opened seldom: as a rule once. */
static ts_status read_owned(loader *l, ts_error *err) {
  l->reader = ts_checkpoint_reader_open(l->directory, l->checkpoint);
  ts_status status = TS_OK;
  for (int i = 0; i < ts_engine_layout(l->engine)->n_parts && status == TS_OK; ++i) {
    status = list_part(l, i, err);
    status = status == TS_OK && l->n_pieces >= MOST_PIECES ? read_pieces(l, err) : status;
  }
  status = status == TS_OK ? read_pieces(l, err) : status;
  ts_checkpoint_reader_close(&l->reader);
  return status;
}

/* ---- the rest of each part ---- */

/* Everybody's elements of a leaf that keeps the whole. */
static void complete_leaf(loader *l, int index, const ts_saved_leaf *leaf) {
  const ts_part *part = &ts_engine_layout(l->engine)->part[index];
  if (leaf->whole && leaf->block > 0) {
    int64_t *cuts = ts_malloc(((size_t) part->group + 1) * sizeof *cuts);
    for (int r = 0; r <= part->group; ++r) {
      cuts[r] = ts_state_elements(leaf->block, part->cuts[r]);
    }
    ts_executor_gather_state(l->engine->executor, leaf->leaf, part->axes, cuts);
    ts_free(cuts);
  }
}

/* Working values that the last update rounded by chance are rounded so again; before the first update, and where only
 * the weights are loaded, they are rounded to nearest, as first values are. */
static bool is_rounded_by_chance(const loader *l, const ts_saved_leaf *working) {
  return takes(l, TS_LOAD_OPTIMIZER) && l->checkpoint->optimizer_step > 0 && working->dtype == TS_BF16 &&
         l->engine->deck->bf16.stochastic_rounding;
}

/* Working values follow from the masters, as the optimizer makes them. */
static void derive(loader *l, int index, const ts_saved_leaf *parameter) {
  ts_saved_leaf leaf;
  const ts_program *program = ts_engine_program(l->engine);
  if (!ts_saved_leaf_find(program->graph, program->layout, index, TS_STATE_PARAMETER, &leaf) ||
      leaf.leaf == parameter->leaf) {
    return;
  }
  const ts_part *part = &program->layout->part[index];
  const ts_rounding rounding = ts_layout_rounding(l->engine->deck, part, ts_part_begin(part));
  size_t from_size = ts_dtype_size(parameter->dtype), to_size = ts_dtype_size(leaf.dtype);
  void *block = ts_malloc(BLOCK * from_size), *converted = ts_malloc(BLOCK * to_size);
  for (int64_t at = 0; at < leaf.count; at += BLOCK) {
    int64_t n = leaf.count - at < BLOCK ? leaf.count - at : BLOCK;
    ts_executor_read_state(l->engine->executor, parameter->leaf, parameter->first + at, n, block);
    if (is_rounded_by_chance(l, &leaf)) {
      ts_random_to_bf16(rounding.key, (uint64_t) l->checkpoint->optimizer_step, rounding.first + at, n, block,
                        converted);
    } else {
      ts_convert(converted, leaf.dtype, block, parameter->dtype, (size_t) n);
    }
    ts_executor_write_state(l->engine->executor, leaf.leaf, leaf.first + at, n, converted);
  }
  ts_free(block);
  ts_free(converted);
  complete_leaf(l, index, &leaf);
}

static void complete_part(loader *l, int index) {
  const ts_program *program = ts_engine_program(l->engine);
  ts_saved_leaf leaf[TS_MOST_SAVED];
  int n = ts_saved_leaves(program->graph, program->layout, index, leaf);
  if (n > 0) {
    derive(l, index, &leaf[0]);
  }
  for (int k = 0; k < n && (k == 0 || takes(l, TS_LOAD_OPTIMIZER)); ++k) {
    complete_leaf(l, index, &leaf[k]);
  }
}

static void take_numbers(loader *l) {
  ts_engine *e = l->engine;
  const ts_checkpoint *c = l->checkpoint;
  if (takes(l, TS_LOAD_OPTIMIZER)) {
    ts_tid updates = ts_graph_find_state(ts_engine_program(e)->graph, TS_STATE_UPDATES, -1);
    ts_executor_write_state(e->executor, updates, 0, 1, &c->optimizer_step);
    ts_engine_load_scale(e, c);
  }
  e->updates = takes(l, TS_LOAD_SCHEDULE) ? c->updates : e->updates;
  if (takes(l, TS_LOAD_COUNTS)) {
    e->steps = c->step;
    e->skipped = c->skipped;
  }
}

/* First values of what a dense model has not. */
static void seed_new(const loader *l) {
  const ts_layout *layout = ts_engine_layout(l->engine);
  int n = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    if (ts_checkpoint_find(l->checkpoint, p->name) < 0) {
      ts_origin origin = ts_upcycle_origin(l->engine, p);
      if (origin.seeded) {
        ts_upcycle_seed(l->engine, p, &origin);
        ++n;
      }
      ts_free(origin.copied);
    }
  }
  ts_upcycle_say(l->directory, n);
}

ts_status ts_engine_load(ts_engine *e, const char *directory, const ts_checkpoint *c, ts_load what, ts_error *err) {
  loader l = {
      .engine = e, .directory = directory, .checkpoint = c, .what = what, .copies = all_begin_as_copies(e, c, what)};
  ts_engine_forget(e);
  ts_status status = check_model(e, directory, c, l.copies, err);
  if (status == TS_OK && l.copies) {
    seed_new(&l);
  }
  status = status == TS_OK ? read_owned(&l, err) : status;
  status = ts_world_agree(e->world, status, err);
  if (status == TS_OK) {
    for (int i = 0; i < ts_engine_layout(e)->n_parts; ++i) {
      complete_part(&l, i);
    }
    ts_engine_refresh_copies(e);
    take_numbers(&l);
  }
  ts_free(l.piece);
  ts_free(l.to);
  if (status == TS_OK) {
    ts_engine_say_overflow(e);
  }
  return status;
}

/* A directory of tensors and no checkpoint, nor a run with any.  On any rank, as all read it then. */
static bool is_import(const ts_engine *e, const char *path) {
  ts_published *list = NULL;
  uint64_t there = ts_safetensors_are_in(path) && !ts_is_checkpoint(path) && ts_published_list(path, &list) == 0;
  ts_free(list);
  ts_engine_sum(e, &there, 1);
  return there > 0;
}

ts_status ts_engine_load_weights(ts_engine *e, const char *path, char **deck, ts_error *err) {
  if (deck != NULL) {
    *deck = NULL;
  }
  if (is_import(e, path)) {
    return ts_world_agree(e->world, ts_engine_import(e, path, err), err);
  }
  char *directory;
  ts_checkpoint *c = NULL;
  ts_status status = ts_world_agree(e->world, ts_checkpoint_locate(path, NULL, &directory, err), err);
  status = status == TS_OK ? ts_checkpoint_check(e->world, directory, &c, err) : status;
  status = status == TS_OK ? ts_engine_load(e, directory, c, TS_LOAD_WEIGHTS, err) : status;
  if (status == TS_OK && deck != NULL) {
    *deck = ts_strdup(c->deck);
  }
  ts_checkpoint_destroy(&c);
  ts_free(directory);
  return status;
}
