/* The cut: of the model's nodes a rank keeps those of its pieces.  What is made in one piece and read in a later one
 * crosses every boundary between, in one message of all that crosses there; the gradients of what something trained is
 * behind come back the same way.  Both are decided on the whole model, so both sides of a boundary agree. */
#include "pass/stage.h"

#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/autodiff.h"
#include "pass/layout.h"
#include "pass/offload.h"
#include "pass/pass.h"

#include <limits.h>
#include <string.h>

/* ---- which units are in which piece ---- */

/* One stage is not cut, whatever its schedule would be. */
ts_pipeline ts_deck_pipeline(const ts_deck *deck, const ts_mesh *mesh) {
  bool one = mesh->size[TS_AXIS_PP] == 1;
  ts_pipeline_schedule schedule = one ? TS_PIPELINE_1F1B : ts_pipeline_find(deck->pipeline.schedule);
  bool v = schedule == TS_PIPELINE_ZB_V || schedule == TS_PIPELINE_DUALPIPE_V;
  return (ts_pipeline){.schedule = schedule,
                       .stages = mesh->size[TS_AXIS_PP],
                       .chunks = v                                     ? 2
                                 : schedule == TS_PIPELINE_INTERLEAVED ? (int) deck->pipeline.virtual_stages
                                                                       : 1,
                       .micro_batches = deck->gradient_accumulation_steps > 0 ? deck->gradient_accumulation_steps : 1};
}

/* Of the whole model; a deck may ask for more than any model has. */
static int count_pieces_in(const ts_pipeline *pipeline) {
  int64_t pieces = (int64_t) pipeline->stages * pipeline->chunks;
  return pieces < INT_MAX ? (int) pieces : INT_MAX;
}

static const ts_tied *tied_of(const ts_stages *stages, const char *parameter) {
  for (int i = 0; stages != NULL && i < stages->n_tied; ++i) {
    if (strcmp(stages->tied[i].name, parameter) == 0) {
      return &stages->tied[i];
    }
  }
  return NULL;
}

/* Which other piece reads a parameter. */
static void find_tied(ts_stages *stages, const ts_graph *g) {
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in && node->unit >= 0; ++i) {
      const ts_tensor *t = node->in[i] != TS_NONE ? &g->tensor[node->in[i]] : NULL;
      if (t != NULL && t->role == TS_ROLE_PARAM && stages->piece[node->unit] != stages->piece[t->unit] &&
          tied_of(stages, t->name) == NULL) {
        TS_GROW(stages->tied, stages->n_tied, stages->tied_capacity);
        stages->tied[stages->n_tied++] = (ts_tied){ts_strdup(t->name), stages->piece[node->unit]};
      }
    }
  }
}

/* Ranks along tp and sp share what a piece computes. */
static void add_seconds(ts_stages *stages, const ts_graph *g, const ts_deck *deck, const ts_mesh *mesh,
                        const ts_backend *backend) {
  double sharers = ts_mesh_group_size(mesh, TS_AXES(TS_AXIS_TP) | TS_AXES(TS_AXIS_SP));
  ts_pipeline_seconds *unit = ts_calloc((size_t) g->n_units + 1, sizeof *unit);
  stages->seconds = ts_calloc((size_t) count_pieces_in(&stages->pipeline), sizeof *stages->seconds);
  ts_stage_seconds(g, deck, backend, unit);
  for (int u = 0; u < g->n_units; ++u) {
    ts_pipeline_seconds *of = &stages->seconds[stages->piece[u]];
    of->forward += unit[u].forward / sharers;
    of->input += unit[u].input / sharers;
    of->weight += unit[u].weight / sharers;
  }
  ts_free(unit);
}

ts_stages *ts_stages_create(const ts_graph *g, const ts_deck *deck, const ts_mesh *mesh, const ts_backend *backend) {
  ts_pipeline pipeline = ts_deck_pipeline(deck, mesh);
  int pieces = count_pieces_in(&pipeline);
  if (pieces == 1) {
    return NULL;
  }
  ts_stages *stages = ts_calloc(1, sizeof *stages);
  stages->pipeline = pipeline;
  stages->n_units = g->n_units;
  stages->piece = ts_calloc((size_t) g->n_units + 1, sizeof *stages->piece);
  int *cuts = ts_calloc((size_t) pieces + 1, sizeof *cuts);
  ts_stage_cuts(g, deck, backend, pieces, cuts);
  for (int k = 0; k < pieces; ++k) {
    for (int u = cuts[k]; u < cuts[k + 1]; ++u) {
      stages->piece[u] = k;
    }
  }
  ts_free(cuts);
  add_seconds(stages, g, deck, mesh, backend);
  find_tied(stages, g);
  return stages;
}

void ts_stages_destroy(ts_stages **stages) {
  if (*stages != NULL) {
    for (int i = 0; i < (*stages)->n_tied; ++i) {
      ts_free((*stages)->tied[i].name);
    }
    ts_free((*stages)->tied);
    ts_free((*stages)->piece);
    ts_free((*stages)->seconds);
    ts_free(*stages);
    *stages = NULL;
  }
}

int ts_stages_home(const ts_stages *stages, int unit) {
  int chunk;
  return stages == NULL || unit < 0 ? 0 : ts_pipeline_rank_of(&stages->pipeline, stages->piece[unit], &chunk);
}

int ts_stages_copy(const ts_stages *stages, const char *parameter) {
  const ts_tied *tied = tied_of(stages, parameter);
  int chunk;
  return tied != NULL ? ts_pipeline_rank_of(&stages->pipeline, tied->piece, &chunk) : -1;
}

int ts_stages_end(const ts_stages *stages) {
  int chunk;
  return stages == NULL ? 0 : ts_pipeline_rank_of(&stages->pipeline, count_pieces_in(&stages->pipeline) - 1, &chunk);
}

/* ---- which nodes ---- */

/* What is known of the whole model. */
typedef struct cut {
  const ts_graph *from;
  const ts_stages *stages;
  const ts_shards *shards;
  int *piece;       /* per node */
  int *made, *read; /* per tensor: the piece that makes it (of a leaf -1), the last one that reads it */
  int *answers;     /* per tensor: the last piece that a gradient of it comes from, -1 for none */
  bool *wanted;     /* per tensor: something trained is behind it */
} cut;

static void free_cut(cut *c) {
  ts_free(c->piece);
  ts_free(c->made);
  ts_free(c->read);
  ts_free(c->answers);
  ts_free(c->wanted);
}

/* A node of no unit is where the last of what it reads is made. */
static void find_pieces(cut *c) {
  const ts_graph *g = c->from;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    int piece = node->unit >= 0 ? c->stages->piece[node->unit] : 0;
    for (int i = 0; i < node->n_in && node->unit < 0; ++i) {
      int made = node->in[i] != TS_NONE ? c->made[node->in[i]] : -1;
      piece = made > piece ? made : piece;
    }
    c->piece[n] = piece;
    for (int i = 0; i < node->n_in; ++i) {
      ts_tid t = node->in[i];
      if (t != TS_NONE) {
        c->read[t] = c->read[t] > piece ? c->read[t] : piece;
      }
    }
    for (int i = 0; i < node->n_out; ++i) {
      c->made[node->out[i]] = piece;
    }
  }
}

static void find_answers(cut *c) {
  const ts_graph *g = c->from;
  bool *reached = ts_calloc((size_t) g->n_tensors + 1, sizeof *reached);
  const ts_tid roots[] = {ts_graph_marked(g, "loss"), ts_graph_marked(g, "balance")};
  for (int i = 0; i < 2; ++i) {
    if (roots[i] != TS_NONE) {
      reached[roots[i]] = true;
    }
  }
  ts_graph_reach_back(g, true, reached);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    bool any = false;
    for (int i = 0; i < node->n_out; ++i) {
      any = any || reached[node->out[i]];
    }
    for (int i = 0; i < node->n_in && any; ++i) {
      bool stops = i == 1 && (ts_op_get(node->op)->flags & TS_OP_HAS_TARGET) != 0;
      ts_tid t = node->in[i];
      if (t != TS_NONE && !stops && c->answers[t] < c->piece[n]) {
        c->answers[t] = c->piece[n];
      }
    }
  }
  ts_free(reached);
}

static cut look_at(const ts_graph *g, const ts_stages *stages, const ts_shards *shards, const ts_deck *deck) {
  cut c = {.from = g,
           .stages = stages,
           .shards = shards,
           .piece = ts_ids_none(g->n_nodes),
           .made = ts_ids_none(g->n_tensors),
           .read = ts_ids_none(g->n_tensors),
           .answers = ts_ids_none(g->n_tensors),
           .wanted = ts_calloc((size_t) g->n_tensors + 1, sizeof *c.wanted)};
  find_pieces(&c);
  find_answers(&c);
  ts_find_trained(g, deck, c.wanted);
  return c;
}

/* ---- messages ---- */

static bool crosses(const cut *c, ts_tid t, int boundary) {
  return c->made[t] >= 0 && c->made[t] <= boundary && c->read[t] > boundary;
}

/* What crosses a boundary, in the order of the model; both lists are the caller's (ts_free). \return their length. */
static int find_crossings(const cut *c, int boundary, ts_tid **tensors, ts_crossing **crossings) {
  const ts_graph *g = c->from;
  *tensors = ts_ids_none(g->n_tensors);
  *crossings = ts_calloc((size_t) g->n_tensors + 1, sizeof **crossings);
  int n = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (crosses(c, t, boundary)) {
      const ts_tensor *tensor = &g->tensor[t];
      ts_crossing *k = &(*crossings)[n];
      k->wanted = c->wanted[t] && c->answers[t] > boundary;
      k->alike = ts_shards_are_alike(c->shards, tensor->name);
      k->dtype = (int64_t) tensor->dtype;
      k->n = tensor->shape.n;
      memcpy(k->d, tensor->shape.d, sizeof k->d);
      (*tensors)[n++] = t;
    }
  }
  return n;
}

static int first_unit_of(const ts_stages *stages, int piece) {
  int u = 0;
  while (u < stages->n_units && stages->piece[u] < piece) {
    ++u;
  }
  return u;
}

/* What only passes through a piece is sent from a place of its own: the next one may come where it has come. */
static ts_tid own_memory(ts_site at, ts_tid t) {
  const ts_node *producer = ts_graph_producer(at.graph, t);
  while (producer != NULL && producer->op == TS_OP_VIEW) { /* in another shape it lies where it came */
    producer = ts_graph_producer(at.graph, producer->in[0]);
  }
  if (producer == NULL || producer->op != TS_OP_RECEIVE) {
    return t;
  }
  const ts_interval all = {0, at.graph->tensor[t].shape.d[0]};
  char *name = ts_format("%s.passed", at.graph->tensor[t].name);
  ts_tid copy = ts_build_take(at, name, t, 0, 1, &all, NULL);
  ts_free(name);
  return copy;
}

/* The message over a boundary, as the piece before it or the one behind it has it. */
static void add_message(ts_rewrite *r, const cut *c, int boundary, bool sends) {
  ts_tid *tensor;
  ts_crossing *crossing;
  int n = find_crossings(c, boundary, &tensor, &crossing), chunk, piece = sends ? boundary : boundary + 1;
  int end = first_unit_of(c->stages, boundary + 1);
  const ts_attr attr = {
      .message = {.boundary = boundary,
                  .peer = ts_pipeline_rank_of(&c->stages->pipeline, sends ? piece + 1 : boundary, &chunk),
                  .n = n,
                  .crossing = crossing}};
  char *name = ts_format("boundary.%d.%s", boundary, sends ? "send" : "receive");
  ts_site at = {r->to, TS_SEGMENT_FORWARD, sends ? end - 1 : end};
  for (int i = 0; i < n && sends; ++i) {
    tensor[i] = own_memory(at, ts_rewrite_tensor(r, tensor[i]));
  }
  if (n > 0 && sends) {
    ts_build_send(at, name, tensor, &attr);
  } else if (n > 0) {
    ts_tid y = ts_build_receive(at, name, &attr, NULL);
    for (int i = 0; i < n; ++i) {
      r->map[tensor[i]] = y + i;
    }
  }
  ts_free(name);
  ts_free(tensor);
  ts_free(crossing);
}

static void write_piece(ts_rewrite *r, const cut *c, int piece) {
  if (piece > 0) {
    add_message(r, c, piece - 1, false);
  }
  for (ts_nid n = 0; n < r->from->n_nodes; ++n) {
    if (c->piece[n] == piece) {
      ts_rewrite_copy(r, n);
    }
  }
  if (piece < count_pieces_in(&c->stages->pipeline) - 1) {
    add_message(r, c, piece, true);
  }
}

/* Marks of what other ranks make go with it: a value that only passes here is no result. */
static void keep_marks(ts_rewrite *r, const cut *c, int rank) {
  for (int i = 0; i < r->from->n_marks; ++i) {
    ts_tid t = r->from->mark[i].tensor;
    int chunk;
    bool here = c->made[t] < 0 || ts_pipeline_rank_of(&c->stages->pipeline, c->made[t], &chunk) == rank;
    if (here && r->map[t] != TS_NONE) {
      ts_graph_mark(r->to, r->from->mark[i].name, r->map[t]);
    }
  }
}

static void set_chunks(ts_graph *g, const ts_stages *stages) {
  int *chunk = ts_calloc((size_t) g->n_units + 1, sizeof *chunk);
  for (int u = 0; u < g->n_units; ++u) {
    ts_pipeline_rank_of(&stages->pipeline, stages->piece[u], &chunk[u]);
  }
  if (stages->pipeline.chunks > 1) {
    ts_graph_set_chunks(g, chunk, stages->pipeline.chunks);
  }
  ts_free(chunk);
}

void ts_pass_stage(ts_graph **graph, ts_pass_context *context) {
  if (context->layout == NULL) { /* of the whole model: its parts are the same on every rank */
    context->layout = ts_layout_create(*graph, context->shards, context->stages, context->deck, context->mesh);
    ts_offload_choose(context, context->layout);
  }
  if (context->use == TS_MODEL_TRAIN && context->layout->n_loads == 0) {
    ts_layout_add_loads(context->layout, *graph);
  }
  if (context->stages == NULL) {
    return;
  }
  set_chunks(*graph, context->stages);
  cut c = look_at(*graph, context->stages, context->shards, context->deck);
  ts_rewrite r = ts_rewrite_begin(*graph);
  int rank = context->mesh->coord[TS_AXIS_PP];
  for (int chunk = 0; chunk < context->stages->pipeline.chunks; ++chunk) {
    write_piece(&r, &c, ts_pipeline_piece(&context->stages->pipeline, rank, chunk));
  }
  keep_marks(&r, &c, rank);
  free_cut(&c);
  ts_rewrite_end(&r, graph);
}

/* ---- what can be wrong with a deck ---- */

/* Is a parameter read by its own piece, and by how many others?  \param [out] other  The last of these, -1. */
static bool is_read_at_home(const cut *c, ts_tid t, int *other, bool *several) {
  const ts_graph *g = c->from;
  int home = c->stages->piece[g->tensor[t].unit];
  bool at_home = false;
  *other = -1;
  *several = false;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    for (int i = 0; i < g->node[n].n_in; ++i) {
      if (g->node[n].in[i] == t && c->piece[n] == home) {
        at_home = true;
      } else if (g->node[n].in[i] == t) {
        *several = *several || (*other >= 0 && *other != c->piece[n]);
        *other = c->piece[n];
      }
    }
  }
  return at_home;
}

/* A parameter is read by its own piece, and at most one other. */
static ts_status check_tied(const cut *c, const ts_deck *deck, ts_error *err) {
  const ts_graph *g = c->from;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *p = &g->tensor[t];
    int other;
    bool several;
    if (p->role != TS_ROLE_PARAM) {
      continue;
    }
    bool at_home = is_read_at_home(c, t, &other, &several);
    if (!at_home && other >= 0) {
      return ts_deck_error(
          deck, "pipeline.stages", err,
          "%s is of unit %s, in piece %d of the model, but read in piece %d alone; accepted: a unit that "
          "begins where it is read",
          p->name, g->unit[p->unit], c->stages->piece[p->unit], other);
    }
    if (several) {
      return ts_deck_error(deck, "pipeline.stages", err,
                           "%s is read in more than two pieces of the model, %d and %d among them, which is not there; "
                           "accepted: a cut with all uses of it in two pieces",
                           p->name, c->stages->piece[p->unit], other);
    }
  }
  return TS_OK;
}

/* What a node reads is made in its piece, or before it. */
static ts_status check_direction(const cut *c, const ts_deck *deck, ts_error *err) {
  const ts_graph *g = c->from;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      ts_tid t = node->in[i];
      if (t != TS_NONE && c->made[t] > c->piece[n]) {
        return ts_deck_error(
            deck, "pipeline.stages", err,
            "%s, of unit %s, reads %s, which a later piece of the pipeline makes: units have to come in "
            "the order in which they are computed",
            node->name, g->unit[node->unit], g->tensor[t].name);
      }
    }
  }
  return TS_OK;
}

ts_status ts_stages_check(const ts_graph *model, const ts_deck *deck, const ts_mesh *mesh, const ts_backend *backend,
                          bool trains, ts_error *err) {
  ts_pipeline pipeline = ts_deck_pipeline(deck, mesh);
  if (count_pieces_in(&pipeline) == 1) {
    return TS_OK;
  }
  ts_error why = {0};
  ts_status status = ts_stage_cuts_check(model, deck, backend, count_pieces_in(&pipeline), err);
  if (status == TS_OK && trains && ts_pipeline_check(&pipeline, &why) != TS_OK) {
    status = ts_deck_error(deck, "gradient_accumulation_steps", err, "%s", why.text);
    ts_error_clear(&why);
  }
  if (status != TS_OK) {
    return status;
  }
  ts_stages *stages = ts_stages_create(model, deck, mesh, backend);
  cut c = look_at(model, stages, NULL, deck);
  status = check_tied(&c, deck, err);
  status = status == TS_OK ? check_direction(&c, deck, err) : status;
  free_cut(&c);
  ts_stages_destroy(&stages);
  return status;
}
