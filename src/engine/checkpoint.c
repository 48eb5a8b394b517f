/* What an engine would save: tables and facts. */
#include "engine/checkpoint.h"

#include "base/memory.h"
#include "engine/engine.h"
#include "pass/saved.h"

#include <stdlib.h>
#include <string.h>

static ts_saved_part describe_part(const ts_graph *graph, const ts_layout *layout, const ts_mesh *mesh, int index) {
  const ts_part *part = &layout->part[index];
  ts_saved_leaf leaf[TS_MOST_SAVED];
  int n = ts_saved_leaves(graph, layout, index, leaf);
  ts_saved_part saved = {.name = ts_strdup(part->name),
                         .trainable = part->trainable,
                         .count = part->count,
                         .n_states = n,
                         .cuts = ts_malloc(((size_t) mesh->ranks + 1) * sizeof *saved.cuts),
                         .state = ts_calloc((size_t) n, sizeof *saved.state)};
  ts_layout_mesh_cuts(part, mesh, saved.cuts);
  for (int i = 0; i < n; ++i) {
    saved.state[i] = (ts_saved_state){.name = ts_strdup(leaf[i].state),
                                      .dtype = leaf[i].dtype,
                                      .block = leaf[i].block,
                                      .own = leaf[i].block == 0 ? leaf[i].count : 0};
  }
  return saved;
}

static ts_saved_parameter describe_parameter(const ts_parameter *p) {
  ts_saved_parameter saved = {.name = ts_strdup(p->name), .n_dims = p->shape.n, .count = p->count};
  TS_CHECK(p->shape.n <= TS_CHECKPOINT_LARGEST_RANK, "%s has %d dimensions", p->name, p->shape.n);
  TS_CHECK(ts_parameter_is_whole(p), "%s: this rank does not hold all of it", p->name);
  memcpy(saved.shape, p->shape.d, (size_t) p->shape.n * sizeof *saved.shape);
  ts_saved_parameter_set_whole(&saved, p->part, p->offset);
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

ts_checkpoint *ts_engine_describe(const ts_engine *e) {
  const ts_layout *layout = ts_engine_layout(e);
  ts_checkpoint *c = ts_calloc(1, sizeof *c);
  ts_text deck = {0};
  ts_deck_print(e->deck, &deck);
  c->deck = deck.text;
  char *source = e->deck->model.from[0] != 0 ? realpath(e->deck->model.from, NULL) : NULL;
  c->source = ts_strdup(source != NULL ? source : e->deck->model.from);
  free(source);
  c->n_shards = e->mesh.ranks;
  c->n_parts = layout->n_parts;
  c->n_parameters = layout->n_parameters;
  c->part = ts_calloc((size_t) c->n_parts, sizeof *c->part);
  c->parameter = ts_calloc((size_t) c->n_parameters, sizeof *c->parameter);
  for (int i = 0; i < c->n_parts; ++i) {
    c->part[i] = describe_part(ts_engine_program(e)->graph, layout, &e->mesh, i);
  }
  for (int i = 0; i < c->n_parameters; ++i) {
    c->parameter[i] = describe_parameter(&layout->parameter[i]);
  }
  add_facts(c, e);
  return c;
}
