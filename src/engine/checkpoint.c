/* What an engine would save: tables and facts. */
#include "engine/checkpoint.h"

#include "base/memory.h"
#include "engine/engine.h"
#include "pass/saved.h"
#include "pass/state.h"

#include <stdlib.h>
#include <string.h>

/* What is saved of a part. */
typedef struct saved_states {
  int n;
  struct {
    ts_state kind;
    ts_dtype dtype;
    int64_t block, own; /* of a shape of its own: elements */
  } state[TS_MOST_SAVED];
} saved_states;

/* What is described: this engine, as each rank along ep and tp sees it. */
typedef struct describer {
  const ts_engine *engine;
  int ranks;            /* along these */
  ts_mesh *mesh;        /* owned; of each */
  ts_layout **layout;   /* owned; likewise */
  saved_states *states; /* owned; of each part */
} describer;

/* Of parts that other stages have, these know it. Collective over the ranks along pp. */
static saved_states *learn_states(ts_engine *e) {
  const ts_layout *layout = ts_engine_layout(e);
  saved_states *all = ts_calloc((size_t) layout->n_parts + 1, sizeof *all);
  for (int i = 0; i < layout->n_parts; ++i) {
    ts_saved_leaf leaf[TS_MOST_SAVED];
    all[i].n = ts_saved_leaves(ts_engine_program(e)->graph, layout, i, leaf);
    for (int k = 0; k < all[i].n; ++k) {
      all[i].state[k].kind = leaf[k].kind;
      all[i].state[k].dtype = leaf[k].dtype;
      all[i].state[k].block = leaf[k].block;
      all[i].state[k].own = leaf[k].block == 0 ? leaf[k].count : 0;
    }
    ts_engine_tell_stages(e, &layout->part[i], &all[i], sizeof all[i]);
  }
  return all;
}

static describer begin_description(ts_engine *e) {
  describer d = {.engine = e, .ranks = ts_mesh_group_size(&e->mesh, TS_AXES_HOLDERS), .states = learn_states(e)};
  d.mesh = ts_malloc((size_t) d.ranks * sizeof *d.mesh);
  d.layout = ts_malloc((size_t) d.ranks * sizeof *d.layout);
  for (int r = 0; r < d.ranks; ++r) {
    d.mesh[r] = ts_mesh_at(&e->mesh, ts_mesh_group_member(&e->mesh, TS_AXES_HOLDERS, r));
    d.layout[r] = ts_engine_layout_at(e, &d.mesh[r]);
  }
  return d;
}

static void end_description(describer *d) {
  for (int r = 0; r < d->ranks; ++r) {
    ts_layout_destroy(&d->layout[r]);
  }
  ts_free(d->layout);
  ts_free(d->mesh);
  ts_free(d->states);
}

/* ---- parts ---- */

/* Does a rank before r have part i too?  Neighbours have a unit in common, all ranks what is not cut. */
static bool is_told(const describer *d, int i, int r) {
  bool told = false;
  for (int before = 0; before < r && !told; ++before) {
    told = strcmp(d->layout[before]->part[i].name, d->layout[r]->part[i].name) == 0;
  }
  return told;
}

static const char *saved_name(const saved_states *states, int i) {
  return ts_state_get(states->state[i].kind)->saved;
}

static ts_saved_part describe_part(const describer *d, int index, int rank) {
  const ts_part *part = &d->layout[rank]->part[index];
  const saved_states *states = &d->states[index];
  int n = states->n;
  ts_saved_part saved = {.name = ts_strdup(part->name),
                         .trainable = part->trainable,
                         .count = part->count,
                         .n_states = n,
                         .cuts = ts_malloc(((size_t) d->mesh->ranks + 1) * sizeof *saved.cuts),
                         .state = ts_calloc((size_t) n, sizeof *saved.state)};
  ts_layout_mesh_cuts(part, &d->mesh[rank], saved.cuts);
  for (int i = 0; i < n; ++i) {
    saved.state[i] = (ts_saved_state){.name = ts_strdup(saved_name(states, i)),
                                      .dtype = states->state[i].dtype,
                                      .block = states->state[i].block,
                                      .own = states->state[i].own};
  }
  return saved;
}

/* Those of a unit together; of what is cut one for each rank or unit. */
static void describe_parts(const describer *d, ts_checkpoint *c) {
  int capacity = 0;
  for (int i = 0; i < d->layout[0]->n_parts; ++i) {
    for (int r = 0; r < d->ranks; ++r) {
      if (!is_told(d, i, r)) {
        TS_GROW(c->part, c->n_parts, capacity);
        c->part[c->n_parts++] = describe_part(d, i, r);
      }
    }
  }
}

/* ---- parameters ---- */

/* The pieces of parameter p that a rank has: columns of one matrix, side by side. */
static void add_pieces(ts_saved_parameter *saved, const ts_parameter *p, int part) {
  int64_t slice = 1, at = 0, rows = 1;
  for (int d = 0; d < p->dim; ++d) {
    rows *= p->held.d[d];
  }
  for (int d = p->dim + 1; d < p->shape.n; ++d) {
    slice *= p->shape.d[d];
  }
  saved->piece = ts_realloc(saved->piece, (size_t) (saved->n_pieces + p->n_pieces), sizeof *saved->piece);
  for (int i = 0; i < p->n_pieces; ++i) {
    saved->piece[saved->n_pieces++] = (ts_saved_piece){.part = part,
                                                       .offset = p->offset + at,
                                                       .pitch = p->held.d[p->dim] * slice,
                                                       .first_row = p->first_row,
                                                       .rows = rows,
                                                       .begin = p->piece[i].begin,
                                                       .length = p->piece[i].length};
    at += p->piece[i].length * slice;
  }
}

static int by_place(const void *a, const void *b) {
  const ts_saved_piece *x = a, *y = b;
  return x->first_row != y->first_row ? (x->first_row > y->first_row) - (x->first_row < y->first_row)
                                      : (x->begin > y->begin) - (x->begin < y->begin);
}

static ts_saved_parameter describe_parameter(const describer *d, const ts_checkpoint *c, int index) {
  const ts_parameter *p = &d->layout[0]->parameter[index];
  ts_saved_parameter saved = {
      .name = ts_strdup(p->name), .n_dims = p->shape.n, .count = ts_shape_count(&p->shape), .dim = p->dim};
  TS_CHECK(p->shape.n <= TS_CHECKPOINT_LARGEST_RANK, "%s has %d dimensions", p->name, p->shape.n);
  memcpy(saved.shape, p->shape.d, (size_t) p->shape.n * sizeof *saved.shape);
  for (int r = 0; r < d->ranks; ++r) {
    if (!is_told(d, p->part, r)) {
      const char *part = d->layout[r]->part[p->part].name;
      add_pieces(&saved, &d->layout[r]->parameter[index], ts_checkpoint_find_part(c, part));
    }
  }
  qsort(saved.piece, (size_t) saved.n_pieces, sizeof *saved.piece, by_place);
  TS_CHECK(ts_saved_parameter_is_covered(&saved), "%s: no rank has some of it, or several have", p->name);
  return saved;
}

/* ---- facts: what bits depend on, beside the deck ---- */

static void add_fact(ts_checkpoint *c, const char *name, char *value) {
  c->fact = ts_realloc(c->fact, (size_t) c->n_facts + 1, sizeof *c->fact);
  c->fact[c->n_facts++] = (ts_saved_fact){.name = ts_strdup(name), .value = value};
}

static char *describe_grid(const ts_mesh *mesh) {
  ts_text text = {0};
  for (int axis = 0; axis < TS_N_AXES; ++axis) {
    ts_text_add(&text, "%s%s %d", axis > 0 ? " x " : "", ts_axis_name(axis), mesh->size[axis]);
  }
  return text.text;
}

static void add_facts(ts_checkpoint *c, const ts_engine *e) {
  const ts_program *p = ts_engine_program(e);
  const ts_deck *deck = e->deck;
  add_fact(c, "tessera", ts_strdup(PACKAGE_VERSION));
  add_fact(c, "ranks", ts_format("%d", e->mesh.ranks));
  add_fact(c, "grid", describe_grid(&e->mesh));
  add_fact(c, "ZeRO stage", ts_format("%lld", (long long) deck->zero_optimization.stage));
  add_fact(c, "threads of a rank", ts_format("%d", p->target.threads));
  add_fact(c, "device", ts_strdup(p->target.backend->describe()));
  add_fact(c, "precision", ts_strdup(ts_dtype_name(ts_deck_dtype(deck))));
  add_fact(c, "micro-batch",
           ts_format("%lld x %lld", (long long) deck->train_micro_batch_size_per_gpu,
                     (long long) deck->gradient_accumulation_steps));
}

bool ts_checkpoint_differences(const ts_checkpoint *checkpoint, const ts_engine *engine, ts_text *to) {
  ts_checkpoint now = {0};
  bool same = true;
  add_facts(&now, engine);
  for (int i = 0; i < now.n_facts; ++i) {
    for (int k = 0; k < checkpoint->n_facts; ++k) {
      const ts_saved_fact *a = &checkpoint->fact[k], *b = &now.fact[i];
      if (strcmp(a->name, b->name) == 0 && strcmp(a->value, b->value) != 0) {
        ts_text_add(to, "%s  %s: %s, now %s", same ? "" : "\n", a->name, a->value, b->value);
        same = false;
      }
    }
    ts_free(now.fact[i].name);
    ts_free(now.fact[i].value);
  }
  ts_free(now.fact);
  return same;
}

/* ---- all of it ---- */

ts_checkpoint *ts_engine_describe(ts_engine *e) {
  ts_checkpoint *c = ts_calloc(1, sizeof *c);
  ts_text deck = {0};
  ts_deck_print(e->deck, &deck);
  c->deck = deck.text;
  char *source = e->deck->model.from[0] != 0 ? realpath(e->deck->model.from, NULL) : NULL;
  c->source = ts_strdup(source != NULL ? source : e->deck->model.from);
  free(source);
  c->n_shards = e->mesh.ranks;
  describer d = begin_description(e);
  describe_parts(&d, c);
  c->n_parameters = d.layout[0]->n_parameters;
  c->parameter = ts_calloc((size_t) c->n_parameters, sizeof *c->parameter);
  for (int i = 0; i < c->n_parameters; ++i) {
    c->parameter[i] = describe_parameter(&d, c, i);
  }
  end_description(&d);
  add_facts(c, e);
  return c;
}
