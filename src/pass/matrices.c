#include "pass/matrices.h"

#include "base/memory.h"
#include "pass/optimizer.h"

#include <stdlib.h>
#include <string.h>

enum { MATRIX_ALIGN = 64 };

/* ---- pieces ---- */

bool ts_matrices_is_first_holder(const ts_matrices *m, int part, int t) {
  for (int before = 0; before < t; ++before) {
    if (m->at[before]->part[part].home == m->at[t]->part[part].home) {
      return false;
    }
  }
  return true;
}

int64_t ts_matrices_piece_begin(const ts_matrices *m, int parameter, int t) {
  int part = m->layout->parameter[parameter].part;
  int home = t < m->places ? m->at[t]->part[part].home : -1;
  int64_t elements = 0;
  for (int i = 0; i < m->places && m->at[i]->part[part].home != home; ++i) {
    elements += ts_matrices_is_first_holder(m, part, i) ? m->at[i]->parameter[parameter].count : 0;
  }
  return elements;
}

/* As its owner lays it. */
static int64_t laid_elements(const ts_matrices *m, int parameter) {
  return (int64_t) ts_align_up((size_t) ts_matrices_piece_begin(m, parameter, m->places), MATRIX_ALIGN);
}

/* ---- owners ---- */

ts_matrix ts_matrices_shape(const ts_matrices *m, int parameter) {
  const ts_parameter *p = &m->layout->parameter[parameter];
  const ts_shape *s = &p->shape;
  ts_matrix of = {.rows = s->d[s->n - 2], .columns = s->d[s->n - 1], .count = 1};
  for (int d = 0; d < s->n - 2; ++d) {
    of.count *= s->d[d];
  }
  int64_t head = ts_optimizer_head(m->deck, p->name, s);
  if (head > 0) {
    of.count = of.rows / head;
    of.rows = head;
  }
  return of;
}

static double cost_of(const ts_matrices *m, int parameter) {
  ts_matrix of = ts_matrices_shape(m, parameter);
  return (double) of.count * ts_orthogonalize_flops((double) of.rows, (double) of.columns, m->gram);
}

static bool is_matrix(const ts_layout *layout, int parameter) {
  const ts_part *part = &layout->part[layout->parameter[parameter].part];
  return part->trainable && ts_optimizer_get(part->optimizer)->granularity == TS_GRANULARITY_MATRIX;
}

typedef struct job {
  double cost;
  int64_t rows;
  int parameter;
} job;

/* Of equal ones those of a shape together, that each rank gets some: tall ones and wide ones differ by a quarter. */
static int by_cost(const void *a, const void *b) {
  const job *x = a, *y = b;
  if (x->cost != y->cost) {
    return x->cost < y->cost ? 1 : -1;
  }
  return x->rows != y->rows ? (x->rows < y->rows ? 1 : -1) : x->parameter - y->parameter;
}

/* The most expensive first, each to the rank with the least to do. */
static void choose_owners(ts_matrices *m) {
  const int all = m->layout->n_parameters;
  job *jobs = ts_malloc((size_t) all * sizeof *jobs);
  double *load = ts_calloc((size_t) m->ranks, sizeof *load);
  int n = 0;
  for (int i = 0; i < all; ++i) {
    m->owner[i] = -1;
    if (is_matrix(m->layout, i)) {
      jobs[n++] = (job){cost_of(m, i), ts_matrices_shape(m, i).rows, i};
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

/* Each part's matrices on their owners, in the order of parameters. */
static void place(ts_matrices *m) {
  int64_t *end = ts_calloc((size_t) m->ranks, sizeof *end);
  for (int i = 0; i < m->layout->n_parts; ++i) {
    const ts_part *part = &m->layout->part[i];
    for (int r = 0; r < m->ranks; ++r) {
      end[r] = 0;
    }
    for (int p = part->first; p < part->first + part->n_parameters; ++p) {
      if (m->owner[p] >= 0) {
        m->offset[p] = end[m->owner[p]];
        end[m->owner[p]] += laid_elements(m, p);
      }
    }
  }
  ts_free(end);
}

int64_t ts_matrices_owned(const ts_matrices *m, int part, int rank) {
  const ts_part *of = &m->layout->part[part];
  int64_t elements = 0;
  for (int p = of->first; p < of->first + of->n_parameters; ++p) {
    elements += m->owner[p] == rank ? laid_elements(m, p) : 0;
  }
  return elements;
}

static bool is_same_kind(const ts_matrices *m, int p, int q) {
  ts_matrix a = ts_matrices_shape(m, p), b = ts_matrices_shape(m, q);
  return a.rows == b.rows && a.columns == b.columns && m->layout->parameter[p].dim == m->layout->parameter[q].dim;
}

ts_matrix_share *ts_matrices_shares(const ts_matrices *m) {
  ts_matrix_share *share = ts_calloc((size_t) m->ranks * (size_t) m->layout->n_parts, sizeof *share);
  int first[64], n = 0;
  for (int p = 0; p < m->layout->n_parameters; ++p) {
    if (m->owner[p] < 0) {
      continue;
    }
    int kind = 0;
    while (kind < n && !is_same_kind(m, first[kind], p)) {
      ++kind;
    }
    if (kind == n && n < 64) {
      first[n++] = p;
    }
    ts_matrix_share *of = &share[m->owner[p] * m->layout->n_parts + m->layout->parameter[p].part];
    of->elements += laid_elements(m, p);
    of->kinds |= (uint64_t) 1 << (kind < 64 ? kind : 63);
  }
  return share;
}

/* ---- the table ---- */

ts_matrices ts_matrices_find(const ts_layout *layout, const ts_graph *graph, const ts_shards *shards,
                             const ts_stages *stages, const ts_deck *deck, const ts_mesh *mesh) {
  ts_matrices m = {.deck = deck,
                   .layout = layout,
                   .ranks = ts_mesh_group_size(mesh, TS_MATRIX_AXES),
                   .me = ts_mesh_group_rank(mesh, TS_MATRIX_AXES),
                   .places = ts_mesh_group_size(mesh, TS_AXES_HOLDERS),
                   .gram = strcmp(deck->optimizer.params.ns_method, "gram") == 0};
  m.seen = ts_malloc((size_t) m.ranks * sizeof *m.seen);
  m.at = ts_calloc((size_t) m.places, sizeof(ts_layout *));
  m.owner = ts_malloc((size_t) layout->n_parameters * sizeof *m.owner);
  m.offset = ts_calloc((size_t) layout->n_parameters, sizeof *m.offset);
  for (int r = 0; r < m.ranks; ++r) {
    m.seen[r] = ts_mesh_at(mesh, ts_mesh_group_member(mesh, TS_MATRIX_AXES, r));
    ts_layout **at = &m.at[ts_matrices_place(&m.seen[r])];
    *at = *at != NULL ? *at : ts_layout_at(layout, graph, shards, stages, deck, &m.seen[r]);
  }
  choose_owners(&m);
  place(&m);
  return m;
}

void ts_matrices_end(ts_matrices *m) {
  for (int t = 0; t < m->places; ++t) {
    ts_layout_destroy(&m->at[t]);
  }
  ts_free(m->seen);
  ts_free(m->at);
  ts_free(m->owner);
  ts_free(m->offset);
}
