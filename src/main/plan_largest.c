#include "main/plan_largest.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/shard.h"

#define MOST_RINGS 16

static ts_mesh along(const ts_mesh *mesh, ts_axis axis, int rank) {
  return ts_mesh_at(mesh, ts_mesh_group_member(mesh, TS_AXES(axis), rank));
}

static ts_program *stop_after(const ts_program_options *options, const ts_mesh *mesh, const char *last_pass) {
  ts_program_options other = *options;
  other.mesh = mesh;
  other.last_pass = last_pass;
  return ts_program_create(&other);
}

/* Who is visited, and by whom. */
typedef struct visit {
  const ts_program_options *options;
  ts_plan_visitor *visitor;
  void *user;
} visit;

static void visit_rank(const visit *v, ts_mesh mesh) {
  ts_program_options options = *v->options;
  options.mesh = &mesh;
  v->visitor(&options, v->user);
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

/* Of ranks of a ring that share alike one. */
static void visit_ring(const visit *v, const ts_program *heads, int ring) {
  int u = heads->sequence.ulysses;
  for (int j = 0; j < u; ++j) {
    int same = 0;
    while (same < j && !share_alike(heads, ring, same, j)) {
      ++same;
    }
    if (same == j) {
      visit_rank(v, along(&heads->mesh, TS_AXIS_SP, ring * u + j));
    }
  }
}

/* All rings where these are few, else the ends and the middle: chunks are as even as can be, but which of them are
 * longer, what a ring sees under the mask and what it sends at which step is another in each, and no ring always needs
 * most. */
static void visit_rings(const visit *v, const ts_mesh *mesh) {
  ts_program *heads = stop_after(v->options, mesh, "heads");
  const int r = heads->sequence.ring, few[] = {0, 1, r / 2, r - 1};
  for (int i = 0; i < (r <= MOST_RINGS ? r : 4); ++i) {
    visit_ring(v, heads, r <= MOST_RINGS ? i : few[i]);
  }
  ts_program_destroy(&heads);
}

void ts_plan_visit(const ts_program_options *options, ts_plan_visitor *visitor, void *user) {
  const visit v = {options, visitor, user};
  ts_program *cut = stop_after(options, options->mesh, "shard");
  for (int rank = 0; rank < options->mesh->size[TS_AXIS_TP]; ++rank) {
    ts_mesh mesh = along(options->mesh, TS_AXIS_TP, rank);
    int same = 0;
    while (same < rank && !hold_alike(cut->shards, same, rank)) {
      ++same;
    }
    if (same == rank && mesh.size[TS_AXIS_SP] > 1) {
      visit_rings(&v, &mesh);
    } else if (same == rank) {
      visit_rank(&v, mesh);
    }
  }
  ts_program_destroy(&cut);
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
