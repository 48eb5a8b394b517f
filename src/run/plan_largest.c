#include "run/plan_largest.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/matrices.h"
#include "pass/shard.h"

#define MOST_RINGS 16
#define FEW_OWNERS 16

static ts_mesh along(const ts_mesh *mesh, ts_axis axis, int rank) {
  return ts_mesh_at(mesh, ts_mesh_group_member(mesh, TS_AXES(axis), rank));
}

/* The place along tp and sp. */
static ts_mesh rank_at_place(const ts_mesh *mesh, int tp, int sp) {
  ts_mesh of = along(mesh, TS_AXIS_TP, tp);
  return along(&of, TS_AXIS_SP, sp);
}

static ts_program *stop_after(const ts_program_options *options, const ts_mesh *mesh, const char *last_pass) {
  ts_program_options other = *options;
  other.mesh = mesh;
  other.last_pass = last_pass;
  return ts_program_create(&other);
}

/* ---- along tp ---- */

/* Elements along its cut dimension that a rank uses: of units in parts its own. */
static int64_t used_extent(const ts_shards *shards, const ts_shard *shard, int rank) {
  ts_interval part[TS_MOST_RUNS];
  int n = shard->how < TS_HELD_SHARED ? 0 : ts_dealt_of_rank(shards->dealing, &shard->dealt, false, rank, part);
  int64_t extent = 0;
  for (int i = 0; i < n; ++i) {
    extent += part[i].length;
  }
  return extent;
}

/* Do two ranks hold and use as much of every parameter, and both or neither the loss of all tokens (pass/record.h)?
 * Then their programs need the same memory. */
static bool hold_alike(const ts_shards *shards, int a, int b) {
  bool alike = shards->loss_by_rows || (a == 0) == (b == 0);
  for (int i = 0; i < shards->n && alike; ++i) {
    ts_shape x = ts_shard_held(shards, &shards->shard[i], a), y = ts_shard_held(shards, &shards->shard[i], b);
    alike = ts_shape_equal(&x, &y) &&
            used_extent(shards, &shards->shard[i], a) == used_extent(shards, &shards->shard[i], b);
  }
  return alike;
}

/* ---- along sp ---- */

/* Key heads that query heads `mine` of an attention read. */
static int64_t key_heads(const ts_attr *attr, ts_interval mine) {
  int64_t group = ts_attention_group(attr), begin = attr->attention.first_head + mine.begin;
  return mine.length > 0 ? (begin + mine.length - 1) / group - begin / group + 1 : 0;
}

/* Do ranks j and k of a ring have as many tokens, and as many heads in each attention of `heads`, a program before
 * heads are shared? */
static bool share_alike(const ts_program *heads, int ring, int j, int k) {
  const ts_sequence *s = &heads->sequence;
  ts_tokens a = ts_sequence_tokens(s, ring * s->ulysses + j), b = ts_sequence_tokens(s, ring * s->ulysses + k);
  bool alike = ts_sequence_count(&a) == ts_sequence_count(&b);
  for (ts_nid n = 0; n < heads->graph->n_nodes && alike; ++n) {
    const ts_attr *attr = &heads->graph->node[n].attr;
    if (heads->graph->node[n].op == TS_OP_ATTENTION) {
      int group = ts_attention_group(attr), first = attr->attention.first_head, all = attr->attention.heads;
      ts_interval x = ts_sequence_share(all, group, first, s->ulysses, j);
      ts_interval y = ts_sequence_share(all, group, first, s->ulysses, k);
      alike = x.length == y.length && key_heads(attr, x) == key_heads(attr, y);
    }
  }
  return alike;
}

/* Of ranks of a ring those that share alike. */
static void liken_ring(const ts_program *heads, int ring, int first, int *like) {
  int u = heads->sequence.ulysses;
  for (int j = 0; j < u; ++j) {
    int same = 0;
    while (same < j && !share_alike(heads, ring, same, j)) {
      ++same;
    }
    like[ring * u + j] = first + ring * u + same;
  }
}

/* All rings where these are few, else the ends and the middle: chunks are as even as can be, but which of them are
 * longer, what a ring sees under the mask and what it sends at which step is another in each, and no ring always needs
 * most. */
static void liken_rings(const ts_program_options *options, const ts_mesh *mesh, int first, int *like) {
  ts_program *heads = stop_after(options, mesh, "heads");
  const int r = heads->sequence.ring, few[] = {0, 1, r / 2, r - 1};
  for (int i = 0; i < (r <= MOST_RINGS ? r : 4); ++i) {
    liken_ring(heads, r <= MOST_RINGS ? i : few[i], first, like);
  }
  ts_program_destroy(&heads);
}

/* ---- places ---- */

/* By place, tp * size of sp + sp: the first place whose ranks need the same memory but for matrices; -1: it is none of
 * those that are looked at.  The caller's. */
static int *find_alike(const ts_program_options *options) {
  const int tp = options->mesh->size[TS_AXIS_TP], sp = options->mesh->size[TS_AXIS_SP];
  int *like = ts_ids_none(tp * sp);
  ts_program *cut = stop_after(options, options->mesh, "shard");
  for (int t = 0; t < tp; ++t) {
    int same = 0;
    while (same < t && !hold_alike(cut->shards, same, t)) {
      ++same;
    }
    for (int s = 0; s < sp; ++s) {
      like[t * sp + s] = same < t ? like[same * sp + s] : sp == 1 ? t : -1;
    }
    if (same == t && sp > 1) {
      ts_mesh mesh = along(options->mesh, TS_AXIS_TP, t);
      liken_rings(options, &mesh, t * sp, &like[t * sp]);
    }
  }
  ts_program_destroy(&cut);
  return like;
}

/* ---- matrices ---- */

/* What is known of a grid, and who asks. */
typedef struct visit {
  const ts_program_options *options;
  ts_plan_visitor *visitor;
  void *user;
  int *like; /* owned */
  ts_matrices matrices;
  ts_matrix_share *share; /* by rank of theirs and part; owned; NULL: there are none */
  int64_t *workspace;     /* of exchanges, by rank; owned */
} visit;

static void visit_rank(const visit *v, const ts_mesh *mesh) {
  ts_program_options options = *v->options;
  options.mesh = mesh;
  v->visitor(&options, v->user);
}

static bool is_like(const visit *v, const ts_mesh *mesh, int place) {
  return v->like[mesh->coord[TS_AXIS_TP] * mesh->size[TS_AXIS_SP] + mesh->coord[TS_AXIS_SP]] == place;
}

/* Matrices are gathered part by part, those of all parts are computed, then sent back part by part: what is there at a
 * time is of the parts up to one, or from one on.  So a rank needs no more than another that has as much of either, and
 * as large a workspace of its exchanges, which is there all the time and grows with what others own: but for the gaps
 * between tensors, which are a few hundred bytes.
 * \param [in] back  From one on, else up to one. */
static bool has_as_much(const visit *v, int rank, int other, bool back) {
  const int n = v->matrices.layout->n_parts;
  ts_matrix_share its = {0, 0}, mine = {0, 0};
  bool has = v->workspace[rank] >= v->workspace[other];
  for (int i = 0; i < n && has; ++i) {
    int part = back ? n - 1 - i : i;
    const ts_matrix_share *a = &v->share[rank * n + part], *b = &v->share[other * n + part];
    mine = (ts_matrix_share){mine.elements + a->elements, mine.kinds | a->kinds};
    its = (ts_matrix_share){its.elements + b->elements, its.kinds | b->kinds};
    has = mine.elements >= its.elements && (its.kinds & ~mine.kinds) == 0;
  }
  return has;
}

/* Has another rank of the place as much?  Of equal ones the first has. */
static bool is_exceeded(const visit *v, int place, int rank, bool back) {
  bool is = false;
  for (int r = 0; r < v->matrices.ranks && !is; ++r) {
    is = r != rank && is_like(v, &v->matrices.seen[r], place) && has_as_much(v, r, rank, back) &&
         (r < rank || !has_as_much(v, rank, r, back));
  }
  return is;
}

/* Of few all: the gaps count as well. */
static void visit_owners(const visit *v, int place) {
  bool all = v->matrices.ranks <= FEW_OWNERS;
  for (int r = 0; r < v->matrices.ranks; ++r) {
    if (is_like(v, &v->matrices.seen[r], place) &&
        (all || !is_exceeded(v, place, r, false) || !is_exceeded(v, place, r, true))) {
      visit_rank(v, &v->matrices.seen[r]);
    }
  }
}

static bool uses_matrices(const ts_layout *layout) {
  bool has = false;
  for (int i = 0; i < layout->n_parts; ++i) {
    has = has || ts_optimizer_get(layout->part[i].optimizer)->granularity == TS_GRANULARITY_MATRIX;
  }
  return has;
}

/* Those of one stage of a pipeline. */
static void visit_stage(const ts_program_options *options, ts_plan_visitor *visitor, void *user) {
  const ts_mesh *mesh = options->mesh;
  visit v = {.options = options, .visitor = visitor, .user = user, .like = find_alike(options)};
  ts_program *zero = stop_after(options, mesh, "zero");
  if (uses_matrices(zero->layout)) {
    v.matrices = ts_matrices_find(zero->layout, zero->graph, zero->shards, zero->stages, options->deck, mesh);
    v.share = ts_matrices_shares(&v.matrices);
    v.workspace = ts_malloc((size_t) v.matrices.ranks * sizeof *v.workspace);
    for (int r = 0; r < v.matrices.ranks; ++r) {
      v.workspace[r] = ts_matrices_workspace(&v.matrices, r);
    }
  }
  const int sp = mesh->size[TS_AXIS_SP];
  for (int place = 0; place < mesh->size[TS_AXIS_TP] * sp; ++place) {
    if (v.like[place] == place && v.share != NULL) {
      visit_owners(&v, place);
    } else if (v.like[place] == place) {
      ts_mesh of = rank_at_place(mesh, place / sp, place % sp);
      visit_rank(&v, &of);
    }
  }
  ts_matrices_end(&v.matrices);
  ts_program_destroy(&zero);
  ts_free(v.workspace);
  ts_free(v.share);
  ts_free(v.like);
}

void ts_plan_visit(const ts_program_options *options, ts_plan_visitor *visitor, void *user) {
  for (int stage = 0; stage < options->mesh->size[TS_AXIS_PP]; ++stage) {
    ts_mesh mesh = along(options->mesh, TS_AXIS_PP, stage);
    ts_program_options of = *options;
    of.mesh = &mesh;
    visit_stage(&of, visitor, user);
  }
}

/* ---- the largest ---- */

static void keep_larger(const ts_program_options *options, void *user) {
  ts_program **largest = user, *program = ts_program_create(options);
  bool more = *largest == NULL || program->plan->peak_bytes > (*largest)->plan->peak_bytes;
  ts_program_destroy(more ? largest : &program);
  *largest = more ? program : *largest;
}

ts_program *ts_plan_largest(const ts_program_options *options) {
  ts_program *largest = NULL;
  ts_plan_visit(options, keep_larger, &largest);
  return largest;
}
