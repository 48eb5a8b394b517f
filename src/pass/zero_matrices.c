/* Muon's matrices: each is put together on one rank, that of pass/matrices.h, made orthogonal there, and goes back in
 * pieces to whoever has some of it.
 *
 * A matrix that ranks along tp, or a stack that ranks along ep, have pieces of lies there piece after piece.  Where
 * rows are cut that is the matrix with its rows in another order, which changes nothing but their order; where columns
 * are cut the pieces are told apart. */
#include "pass/zero.h"

#include "base/memory.h"
#include "comm/comm.h"
#include "pass/matrices.h"
#include "pass/optimizer.h"

static const ts_layout *layout_of(const ts_matrices *m, int rank) {
  return m->at[ts_matrices_place(&m->seen[rank])];
}

static const ts_part *part_seen_by(const ts_matrices *m, int rank, const ts_zero_share *share) {
  return &layout_of(m, rank)->part[share->part];
}

static bool has_matrices(const ts_part *part) {
  return part->trainable && ts_optimizer_get(part->optimizer)->granularity == TS_GRANULARITY_MATRIX;
}

static bool is_matrices(const ts_zero *z, const ts_zero_share *share) {
  return has_matrices(&z->layout->part[share->part]);
}

/* Elements of what it puts together of a part's matrices: there is always a tensor. */
static int64_t count_put_together(const ts_matrices *m, int part) {
  int64_t mine = ts_matrices_owned(m, part, m->me);
  return mine > 0 ? mine : 1;
}

/* ---- what ranks have ---- */

/* First element of the part that is in a rank's tensor. */
static int64_t first_element(const ts_matrices *m, int rank, const ts_zero_share *share) {
  const ts_part *part = part_seen_by(m, rank, share);
  return share->whole ? 0 : part->cuts[ts_mesh_group_rank(&m->seen[rank], part->axes)];
}

/* Elements of a parameter, of the rank's piece, that are in its tensor. */
static ts_interval held_elements(const ts_matrices *m, int rank, const ts_zero_share *share, int parameter) {
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
 * from the owner along tp and ep alone. */
static bool gives(const ts_matrices *m, int rank, int owner, const ts_zero_share *share) {
  const ts_part *part = part_seen_by(m, rank, share);
  if (!share->whole) {
    return ts_mesh_group_number(&m->seen[rank], part->axes) == part->home;
  }
  bool near = true;
  for (int axis = 0; axis < TS_N_AXES; ++axis) {
    near = near && ((TS_AXES_HOLDERS >> axis & 1) != 0 || m->seen[rank].coord[axis] == m->seen[owner].coord[axis]);
  }
  return near && ts_matrices_is_first_holder(m, share->part, ts_matrices_place(&m->seen[rank]));
}

/* Of directions: gradients in fp16 are made wide before. */
static ts_dtype direction_dtype(const ts_deck *deck) {
  ts_dtype gradients = deck->data_types.grad_accum_dtype;
  return gradients == TS_F16 ? TS_F32 : gradients;
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
static void add_part_of_matrix(const ts_matrices *m, block_list *l, int peer, int rank, int parameter,
                               const ts_zero_share *share, bool as_owner) {
  ts_interval held = held_elements(m, rank, share, parameter);
  int t = ts_matrices_place(&m->seen[rank]);
  int64_t begin = as_owner ? m->offset[parameter] + ts_matrices_piece_begin(m, parameter, t)
                           : layout_of(m, rank)->parameter[parameter].offset - first_element(m, rank, share);
  add_matrix_block(l, peer, begin + held.begin, held.length);
}

/* All that this rank exchanges as an owner, or as one that has some of what others own; on the way there, or back. */
static void add_matrix_side(const ts_matrices *m, block_list *l, const ts_zero_share *share, bool as_owner, bool back) {
  const ts_part *part = &m->layout->part[share->part];
  for (int peer = 0; peer < m->ranks; ++peer) {
    int rank = as_owner ? peer : m->me, owner = as_owner ? m->me : peer;
    for (int p = part->first; p < part->first + part->n_parameters; ++p) {
      if (m->owner[p] == owner && (back || gives(m, rank, owner, share))) {
        add_part_of_matrix(m, l, peer, rank, p, share, as_owner);
      }
    }
  }
}

/* What an exchange makes, \a count elements, what is sent, and what is received. */
static block_list list_exchange(const ts_matrices *m, const ts_zero_share *share, int64_t count, bool back,
                                int *n_sent) {
  block_list l = {0};
  add_matrix_block(&l, m->me, 0, count);
  add_matrix_side(m, &l, share, back, back);
  *n_sent = l.n - 1;
  add_matrix_side(m, &l, share, !back, back);
  return l;
}

/* Ranks along tp that have parts of their own call it by what their names begin with. */
static ts_tid add_exchange(const ts_matrices *m, ts_site at, const ts_zero_share *share, ts_tid x, int64_t count,
                           bool back) {
  const ts_part *part = &m->layout->part[share->part];
  int n_sent;
  block_list l = list_exchange(m, share, count, back, &n_sent);
  char *name = ts_format("%.*s.%s", part->stem, part->name, back ? "scatter" : "gather");
  char *shaped = ts_format("%s.rows", name);
  ts_tid rows = ts_build_view(at, shaped, x, 0, TS_SHAPE(1, ts_tensor_count(at.graph, x)));
  ts_tid y = ts_build_all_to_all(at, name, TS_MATRIX_AXES, m->ranks, 1, &rows, l.block, n_sent, l.n - 1 - n_sent);
  ts_free(shaped);
  shaped = ts_format("%s.flat", name);
  y = ts_build_view(at, shaped, y, 0, TS_SHAPE(count));
  ts_free(shaped);
  ts_free(name);
  ts_free(l.block);
  return y;
}

static int64_t exchange_workspace(const ts_matrices *m, const ts_zero_share *share, ts_dtype dtype, bool back) {
  const ts_part *part = &m->layout->part[share->part];
  int64_t own = share->whole ? ts_zero_whole(part) : part->shard, all = count_put_together(m, share->part);
  const ts_exchange_tensor x = {NULL, dtype, 1, 1, back ? all : own}, y = {NULL, dtype, 1, 1, back ? own : all};
  int n_sent;
  block_list l = list_exchange(m, share, y.columns, back, &n_sent);
  const ts_block *sent = l.block + 1;
  const ts_exchange_lists lists = {1, &x, &y, sent, sent + n_sent, n_sent, l.n - 1 - n_sent};
  int64_t bytes = (int64_t) ts_comm_exchange_workspace(&lists, m->me);
  ts_free(l.block);
  return bytes;
}

int64_t ts_matrices_workspace(const ts_matrices *m, int rank) {
  ts_matrices its = *m;
  its.me = rank;
  its.layout = layout_of(m, rank);
  int64_t most = 0;
  for (int i = 0; i < its.layout->n_parts && its.ranks > 1; ++i) {
    const ts_part *part = &its.layout->part[i];
    const ts_zero_share share = {.part = i, .whole = m->deck->zero_optimization.stage == 0 || !ts_zero_is_spread(part)};
    for (int back = 0; back < 2 && has_matrices(part); ++back) {
      int64_t bytes = exchange_workspace(&its, &share, direction_dtype(m->deck), back);
      most = bytes > most ? bytes : most;
    }
  }
  return most;
}

/* ---- what is done with them ---- */

/* The matrices of a part that this rank has. \return their number, and pieces of one each for itself. */
static int describe_matrices(const ts_matrices *m, const ts_zero_share *share, ts_matrix *matrix) {
  const ts_part *part = &m->layout->part[share->part];
  int n = 0;
  for (int p = part->first; p < part->first + part->n_parameters; ++p) {
    if (m->owner[p] != m->me) {
      continue;
    }
    const ts_parameter *whole = &m->layout->parameter[p];
    ts_matrix of = ts_matrices_shape(m, p);
    of.offset = m->ranks > 1 ? m->offset[p] : whole->offset;
    bool by_columns = whole->dim == whole->shape.n - 1 && whole->shape.n > 1;
    TS_CHECK(!by_columns || of.count == 1, "%s: a stack of matrices whose columns are cut", whole->name);
    for (int t = 0; by_columns && t < m->places; ++t) {
      if (ts_matrices_is_first_holder(m, share->part, t)) {
        int64_t before = ts_matrices_piece_begin(m, p, t);
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

static ts_tid add_orthogonalize(const ts_zero *z, const ts_matrices *m, ts_site at, const ts_zero_share *share,
                                ts_tid x) {
  const ts_part *part = &m->layout->part[share->part];
  ts_dtype dtype = z->work == TS_F32 ? TS_F32 : m->gram ? TS_F16 : TS_BF16;
  size_t most = (size_t) (part->n_parameters * m->places);
  ts_matrix *matrix = ts_malloc(most * sizeof *matrix);
  int n = describe_matrices(m, share, matrix);
  if (n > 0) {
    char *name = ts_format("%s.orthogonalize", part->name);
    x = ts_build_orthogonalize(at, name, x, n, matrix, dtype, m->gram);
    ts_free(name);
  }
  ts_free(matrix);
  return x;
}

/* ---- all of it ---- */

/* All are gathered before the first is computed, and computed before the first goes back: nobody waits for an owner
 * that others keep busy. */
static void exchange_matrices(const ts_zero *z, const ts_matrices *m, ts_site at, ts_zero_share *share, int n) {
  ts_tid *x = ts_malloc((size_t) n * sizeof *x);
  for (int i = 0; i < n; ++i) {
    if (is_matrices(z, &share[i])) {
      x[i] = add_exchange(m, at, &share[i], share[i].g, count_put_together(m, share[i].part), false);
    }
  }
  for (int i = 0; i < n; ++i) {
    x[i] = is_matrices(z, &share[i]) ? add_orthogonalize(z, m, at, &share[i], x[i]) : TS_NONE;
  }
  for (int i = 0; i < n; ++i) {
    if (is_matrices(z, &share[i])) {
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
  const ts_pass_context *c = z->context;
  ts_matrices m = ts_matrices_find(z->layout, z->rewrite.to, c->shards, c->stages, c->deck, c->mesh);
  for (int i = 0; m.ranks == 1 && i < n; ++i) {
    share[i].g = is_matrices(z, &share[i]) ? add_orthogonalize(z, &m, at, &share[i], share[i].g) : share[i].g;
  }
  if (m.ranks > 1) {
    exchange_matrices(z, &m, at, share, n);
  }
  ts_matrices_end(&m);
}
