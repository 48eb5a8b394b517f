/* Muon's matrices: each is put together on one rank, made orthogonal there, and goes back in pieces to whoever has some
 * of it.  Ranks get matrices by what they cost, so all work equally long, and each product is made once.
 *
 * A matrix that ranks along tp have pieces of lies there piece after piece.  Where rows are cut that is the matrix with
 * its rows in another order, which changes nothing but their order; where columns are cut the pieces are told apart. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/optimizer.h"

#include <stdlib.h>
#include <string.h>

#define MATRIX_AXES (TS_AXES_DENSE | TS_AXES(TS_AXIS_TP))
enum { MATRIX_ALIGN = 64 };

/* The matrices of a run, and who has what of them. */
typedef struct matrices {
  ts_zero *z;
  int ranks, me;   /* of the group over MATRIX_AXES */
  ts_mesh *seen;   /* by rank; owned */
  ts_layout **at;  /* by place along tp; owned, and those of others */
  int *owner;      /* by parameter: the rank; -1: it is none; owned */
  int64_t *offset; /* by parameter: where it lies among those of its part that its owner has; owned */
} matrices;

static const ts_layout *layout_of(const matrices *m, int rank) {
  return m->at[m->seen[rank].coord[TS_AXIS_TP]];
}

static const ts_part *part_seen_by(const matrices *m, int rank, const ts_zero_share *share) {
  return &layout_of(m, rank)->part[share->part];
}

static bool is_matrices(const ts_zero *z, const ts_zero_share *share) {
  return ts_optimizer_get(z->layout->part[share->part].optimizer)->granularity == TS_GRANULARITY_MATRIX;
}

/* ---- pieces ---- */

/* True when the piece of place t along tp is one that no place before it has. */
static bool is_first_holder(const matrices *m, int index, int t) {
  for (int before = 0; before < t; ++before) {
    if (m->at[before]->part[index].home == m->at[t]->part[index].home) {
      return false;
    }
  }
  return true;
}

/* Elements of the pieces before that of place t; of all for t = tp. */
static int64_t piece_begin(const matrices *m, int index, int parameter, int t) {
  int tp = m->z->context->mesh->size[TS_AXIS_TP];
  int home = t < tp ? m->at[t]->part[index].home : -1;
  int64_t elements = 0;
  for (int i = 0; i < tp && m->at[i]->part[index].home != home; ++i) {
    elements += is_first_holder(m, index, i) ? m->at[i]->parameter[parameter].count : 0;
  }
  return elements;
}

/* ---- what ranks have ---- */

/* First element of the part that is in a rank's tensor. */
static int64_t first_element(const matrices *m, int rank, const ts_zero_share *share) {
  const ts_part *part = part_seen_by(m, rank, share);
  return share->whole ? 0 : part->cuts[ts_mesh_group_rank(&m->seen[rank], part->axes)];
}

/* Elements of a parameter, of the rank's piece, that are in its tensor. */
static ts_interval held_elements(const matrices *m, int rank, const ts_zero_share *share, int parameter) {
  const ts_part *part = part_seen_by(m, rank, share);
  const ts_parameter *p = &layout_of(m, rank)->parameter[parameter];
  ts_interval all = {0, p->count};
  if (share->whole) {
    return all;
  }
  int64_t begin = first_element(m, rank, share);
  ts_interval shard = {begin - p->offset, part->cuts[ts_mesh_group_rank(&m->seen[rank], part->axes) + 1] - begin};
  return ts_interval_both(all, shard);
}

/* True when a rank gives what it has to the owner: of replicas one does, where all have everything one that differs
 * from the owner along tp alone. */
static bool gives(const matrices *m, int rank, int owner, const ts_zero_share *share) {
  const ts_part *part = part_seen_by(m, rank, share);
  if (!share->whole) {
    return ts_mesh_group_number(&m->seen[rank], part->axes) == part->home;
  }
  bool near = true;
  for (int axis = 0; axis < TS_N_AXES; ++axis) {
    near = near && (axis == TS_AXIS_TP || m->seen[rank].coord[axis] == m->seen[owner].coord[axis]);
  }
  return near && is_first_holder(m, share->part, m->seen[rank].coord[TS_AXIS_TP]);
}

/* ---- owners ---- */

static ts_matrix matrix_of(const ts_deck *deck, const ts_parameter *p) {
  const ts_shape *s = &p->shape;
  ts_matrix m = {.rows = s->d[s->n - 2], .columns = s->d[s->n - 1], .count = 1};
  for (int d = 0; d < s->n - 2; ++d) {
    m.count *= s->d[d];
  }
  int64_t head = ts_optimizer_head(deck, p->name, s);
  if (head > 0) {
    m.count = m.rows / head;
    m.rows = head;
  }
  return m;
}

/* Operations, but for a factor. */
static double cost_of(const ts_deck *deck, const ts_parameter *p) {
  ts_matrix m = matrix_of(deck, p);
  double rows = (double) m.rows, columns = (double) m.columns;
  return (double) m.count * rows * columns * (rows < columns ? rows : columns);
}

typedef struct job {
  double cost;
  int parameter;
} job;

static int by_cost(const void *a, const void *b) {
  const job *x = a, *y = b;
  return x->cost != y->cost ? (x->cost < y->cost ? 1 : -1) : x->parameter - y->parameter;
}

/* The most expensive first, each to the rank with the least to do. */
static void choose_owners(matrices *m) {
  const ts_layout *layout = m->z->layout;
  job *jobs = ts_malloc((size_t) layout->n_parameters * sizeof *jobs);
  double *load = ts_calloc((size_t) m->ranks, sizeof *load);
  int n = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_part *part = &layout->part[layout->parameter[i].part];
    m->owner[i] = -1;
    if (part->trainable && ts_optimizer_get(part->optimizer)->granularity == TS_GRANULARITY_MATRIX) {
      jobs[n++] = (job){cost_of(m->z->context->deck, &layout->parameter[i]), i};
    }
  }
  qsort(jobs, (size_t) n, sizeof *jobs, by_cost);
  for (int i = 0; i < n; ++i) {
    int least = 0;
    for (int r = 1; r < m->ranks; ++r) {
      least = load[r] < load[least] ? r : least;
    }
    m->owner[jobs[i].parameter] = least;
    load[least] += jobs[i].cost;
  }
  ts_free(jobs);
  ts_free(load);
}

/* Where the matrices of a part lie on the ranks that own them. \return elements of this rank's. */
static int64_t place_matrices(matrices *m, const ts_zero_share *share) {
  const ts_part *part = &m->z->layout->part[share->part];
  int64_t *end = ts_calloc((size_t) m->ranks, sizeof *end);
  for (int p = part->first; p < part->first + part->n_parameters; ++p) {
    int owner = m->owner[p];
    m->offset[p] = end[owner];
    int64_t elements = piece_begin(m, share->part, p, m->z->context->mesh->size[TS_AXIS_TP]);
    end[owner] += (int64_t) ts_align_up((size_t) elements, MATRIX_ALIGN);
  }
  int64_t mine = end[m->me];
  ts_free(end);
  return mine;
}

/* ---- what travels ---- */

typedef struct block_list {
  ts_block *block; /* owned */
  int n, capacity;
} block_list;

static void add_matrix_block(block_list *l, int rank, int64_t begin, int64_t length) {
  if (length > 0) {
    TS_GROW(l->block, l->n, l->capacity);
    l->block[l->n++] = (ts_block){rank, 0, {0, 1}, {begin, length}};
  }
}

/* What goes between `rank`, which has a part of a matrix, and its owner; as the owner counts elements, or the other. */
static void add_part_of_matrix(const matrices *m, block_list *l, int peer, int rank, int parameter,
                               const ts_zero_share *share, bool as_owner) {
  ts_interval held = held_elements(m, rank, share, parameter);
  int t = m->seen[rank].coord[TS_AXIS_TP];
  int64_t begin = as_owner ? m->offset[parameter] + piece_begin(m, share->part, parameter, t)
                           : layout_of(m, rank)->parameter[parameter].offset - first_element(m, rank, share);
  add_matrix_block(l, peer, begin + held.begin, held.length);
}

/* All that this rank exchanges as an owner, or as one that has some of what others own; on the way there, or back. */
static void add_matrix_side(const matrices *m, block_list *l, const ts_zero_share *share, bool as_owner, bool back) {
  const ts_part *part = &m->z->layout->part[share->part];
  for (int peer = 0; peer < m->ranks; ++peer) {
    int rank = as_owner ? peer : m->me, owner = as_owner ? m->me : peer;
    for (int p = part->first; p < part->first + part->n_parameters; ++p) {
      if (m->owner[p] == owner && (back || gives(m, rank, owner, share))) {
        add_part_of_matrix(m, l, peer, rank, p, share, as_owner);
      }
    }
  }
}

static ts_tid add_exchange(const matrices *m, ts_site at, const ts_zero_share *share, ts_tid x, int64_t count,
                           bool back) {
  const ts_part *part = &m->z->layout->part[share->part];
  block_list l = {0};
  add_matrix_block(&l, m->me, 0, count);
  add_matrix_side(m, &l, share, back, back);
  int n_sent = l.n - 1;
  add_matrix_side(m, &l, share, !back, back);
  char *name = ts_format("%s.%s", part->name, back ? "scatter" : "gather"), *shaped = ts_format("%s.rows", name);
  ts_tid rows = ts_build_view(at, shaped, x, 0, TS_SHAPE(1, ts_tensor_count(at.graph, x)));
  ts_tid y = ts_build_all_to_all(at, name, MATRIX_AXES, m->ranks, 1, &rows, l.block, n_sent, l.n - 1 - n_sent);
  ts_free(shaped);
  shaped = ts_format("%s.flat", name);
  y = ts_build_view(at, shaped, y, 0, TS_SHAPE(count));
  ts_free(shaped);
  ts_free(name);
  ts_free(l.block);
  return y;
}

/* ---- what is done with them ---- */

/* The matrices of a part that this rank has. \return their number, and pieces of one each for itself. */
static int describe_matrices(const matrices *m, const ts_zero_share *share, ts_matrix *matrix) {
  const ts_part *part = &m->z->layout->part[share->part];
  int n = 0, tp = m->z->context->mesh->size[TS_AXIS_TP];
  for (int p = part->first; p < part->first + part->n_parameters; ++p) {
    if (m->owner[p] != m->me) {
      continue;
    }
    const ts_parameter *whole = &m->z->layout->parameter[p];
    ts_matrix of = matrix_of(m->z->context->deck, whole);
    of.offset = m->ranks > 1 ? m->offset[p] : whole->offset;
    bool by_columns = whole->dim == whole->shape.n - 1 && whole->shape.n > 1;
    TS_CHECK(!by_columns || of.count == 1, "%s: a stack of matrices whose columns are cut", whole->name);
    for (int t = 0; by_columns && t < tp; ++t) {
      if (is_first_holder(m, share->part, t)) {
        int64_t before = piece_begin(m, share->part, p, t);
        int64_t columns = m->at[t]->parameter[p].held.d[whole->dim];
        matrix[n++] = (ts_matrix){of.offset + before, of.rows, columns, 1, before > 0};
      }
    }
    if (!by_columns) {
      matrix[n++] = of;
    }
  }
  return n;
}

static ts_tid add_orthogonalize(const matrices *m, ts_site at, const ts_zero_share *share, ts_tid x) {
  const ts_part *part = &m->z->layout->part[share->part];
  const ts_deck *deck = m->z->context->deck;
  bool gram = strcmp(deck->optimizer.params.ns_method, "gram") == 0;
  ts_dtype dtype = m->z->work == TS_F32 ? TS_F32 : gram ? TS_F16 : TS_BF16;
  size_t most = (size_t) (part->n_parameters * m->z->context->mesh->size[TS_AXIS_TP]);
  ts_matrix *matrix = ts_malloc(most * sizeof *matrix);
  int n = describe_matrices(m, share, matrix);
  if (n > 0) {
    char *name = ts_format("%s.orthogonalize", part->name);
    x = ts_build_orthogonalize(at, name, x, n, matrix, dtype, gram);
    ts_free(name);
  }
  ts_free(matrix);
  return x;
}

/* ---- all of it ---- */

static matrices find_matrices(ts_zero *z) {
  const ts_pass_context *c = z->context;
  matrices m = {
      .z = z, .ranks = ts_mesh_group_size(c->mesh, MATRIX_AXES), .me = ts_mesh_group_rank(c->mesh, MATRIX_AXES)};
  m.seen = ts_malloc((size_t) m.ranks * sizeof *m.seen);
  m.at = ts_calloc((size_t) c->mesh->size[TS_AXIS_TP], sizeof *m.at);
  m.owner = ts_malloc((size_t) z->layout->n_parameters * sizeof *m.owner);
  m.offset = ts_calloc((size_t) z->layout->n_parameters, sizeof *m.offset);
  for (int r = 0; r < m.ranks; ++r) {
    m.seen[r] = ts_mesh_at(c->mesh, ts_mesh_group_member(c->mesh, MATRIX_AXES, r));
    ts_layout **at = &m.at[m.seen[r].coord[TS_AXIS_TP]];
    *at = *at != NULL ? *at : ts_layout_at(z->layout, z->rewrite.to, c->shards, c->deck, &m.seen[r]);
  }
  choose_owners(&m);
  return m;
}

static void end_matrices(matrices *m) {
  for (int t = 0; t < m->z->context->mesh->size[TS_AXIS_TP]; ++t) {
    ts_layout_destroy(&m->at[t]);
  }
  ts_free(m->seen);
  ts_free(m->at);
  ts_free(m->owner);
  ts_free(m->offset);
}

/* All are gathered before the first is computed, and computed before the first goes back: nobody waits for an owner
 * that others keep busy. */
static void exchange_matrices(matrices *m, ts_site at, ts_zero_share *share, int n) {
  ts_tid *x = ts_malloc((size_t) n * sizeof *x);
  for (int i = 0; i < n; ++i) {
    if (is_matrices(m->z, &share[i])) {
      int64_t mine = place_matrices(m, &share[i]);
      x[i] = add_exchange(m, at, &share[i], share[i].g, mine > 0 ? mine : 1, false);
    }
  }
  for (int i = 0; i < n; ++i) {
    x[i] = is_matrices(m->z, &share[i]) ? add_orthogonalize(m, at, &share[i], x[i]) : TS_NONE;
  }
  for (int i = 0; i < n; ++i) {
    if (is_matrices(m->z, &share[i])) {
      share[i].g = add_exchange(m, at, &share[i], x[i], ts_tensor_count(at.graph, share[i].g), true);
    }
  }
  ts_free(x);
}

void ts_zero_orthogonalize(ts_zero *z, ts_site at, ts_zero_share *share, int n) {
  bool any = false;
  for (int i = 0; i < n; ++i) {
    any = any || is_matrices(z, &share[i]);
  }
  if (!any) {
    return;
  }
  matrices m = find_matrices(z);
  for (int i = 0; m.ranks == 1 && i < n; ++i) {
    share[i].g = is_matrices(z, &share[i]) ? add_orthogonalize(&m, at, &share[i], share[i].g) : share[i].g;
  }
  if (m.ranks > 1) {
    exchange_matrices(&m, at, share, n);
  }
  end_matrices(&m);
}
