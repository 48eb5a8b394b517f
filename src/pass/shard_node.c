/* One node along one index: what it asks of the dealing of its inputs, and how its outputs are dealt then. */
#include "base/memory.h"
#include "pass/shard_cut.h"

/* ---- dealt dimensions ---- */

static bool unite(ts_sharding *s, const ts_dealt *a, int64_t a_unit, const ts_dealt *b, int64_t b_unit) {
  bool united = a->n == b->n;
  for (int i = 0; i < a->n && united; ++i) {
    united = ts_dealing_unite(s->dealing, a->run[i], a_unit, b->run[i], b_unit);
  }
  return united;
}

static ts_dealt scale(const ts_sharding *s, const ts_dealt *of, int64_t unit, int64_t to) {
  ts_dealt scaled = *of;
  for (int i = 0; i < of->n; ++i) {
    scaled.run[i] = ts_dealing_scale(s->dealing, of->run[i], unit, to);
  }
  return scaled;
}

/* Do the inputs that are dealt have the index in the dimensions they are dealt by?  \return the first, -1 for no. */
static int find_reference(const ts_sharding *s, const ts_node *node, const ts_cut *cut) {
  int first = -1;
  for (int i = 0; i < node->n_in; ++i) {
    const ts_spread *x = node->in[i] == TS_NONE ? NULL : &s->spread[node->in[i]];
    if (x == NULL || !x->dealt) {
      continue;
    }
    if (cut->in[i].dim != x->dim) {
      return -1;
    }
    first = first < 0 ? i : first;
  }
  return first;
}

/* What is dealt by the same index as x, in units of which an op knows no parts. */
static bool keep_together(ts_sharding *s, const ts_dealt *x, int64_t unit, const ts_dealt *first) {
  bool fits = true;
  for (int k = 0; k < x->n && fits; ++k) {
    if (ts_dealing_has_parts(s->dealing, x->run[k]) != ts_dealing_has_parts(s->dealing, first->run[k])) {
      ts_dealing_forbid_parts(s->dealing, x->run[k]);
    }
    fits = ts_dealing_coarsen(s->dealing, x->run[k], unit);
  }
  return fits;
}

/* Inputs that are dealt are dealt alike. */
static bool unite_inputs(ts_sharding *s, const ts_node *node, const ts_cut *cut, int first) {
  const ts_dealt *of = &s->spread[node->in[first]].of;
  int64_t unit = cut->in[first].unit;
  bool united = unit == 1 || of->n == 1;
  for (int i = 0; i < node->n_in && united; ++i) {
    if (node->in[i] != TS_NONE && s->spread[node->in[i]].dealt) {
      const ts_dealt *x = &s->spread[node->in[i]].of;
      united = unite(s, of, unit, x, cut->in[i].unit) && (cut->parts > 1 || keep_together(s, x, cut->in[i].unit, of));
    }
  }
  return united;
}

/* ---- along an index of the op's rule ---- */

/* What ranks keep the part of that they use. */
static bool follows(const ts_sharding *s, ts_tid t) {
  return ts_sharding_is_parameter(s, t) || ts_sharding_tensor(s, t)->role == TS_ROLE_STATE;
}

/* Whole inputs that have the index: parameters follow; of others this rank's part is taken. */
static void cut_input(ts_sharding *s, const ts_node *node, ts_node_share *how, int i, const ts_dealt *of) {
  ts_tid t = node->in[i];
  if (s->spread[t].dealt) {
    return;
  }
  if (how->cut.in[i].dim >= 0) {
    ts_spread part = {.dealt = true, .dim = how->cut.in[i].dim, .of = *of};
    if (follows(s, t)) {
      s->spread[t] = part;
      return;
    }
    how->in = how->in == NULL ? ts_calloc((size_t) node->n_in, sizeof *how->in) : how->in;
    how->in[i] = part;
    how->take |= 1u << i;
    how->share |= ts_sharding_is_differentiable(s, t) ? 1u << i : 0;
  } else if (ts_sharding_is_parameter(s, t)) {
    s->partial[t] = true;
  } else {
    how->share |= ts_sharding_is_differentiable(s, t) ? 1u << i : 0;
  }
}

/* Parts can be told by attention alone: what has none is needed whole by all that have parts of the rest. */
static void find_parts(ts_sharding *s, const ts_node *node, const ts_cut *cut) {
  for (int i = 0; i < node->n_in; ++i) {
    const ts_spread *x = node->in[i] == TS_NONE ? NULL : &s->spread[node->in[i]];
    if (x != NULL && x->dealt && cut->parts > 1 && cut->in[i].parts == cut->parts) {
      ts_dealing_part(s->dealing, x->of.run[0], cut->in[i].unit, cut->parts);
    }
  }
}

bool ts_sharding_cut_node(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  int first = find_reference(s, node, &how->cut);
  if (first < 0) {
    return false;
  }
  find_parts(s, node, &how->cut);
  if (!unite_inputs(s, node, &how->cut, first)) {
    return false;
  }
  if (how->index == 'h') { /* heads are dealt one by one, whatever the grain of widths */
    ts_dealing_drop_grain(s->dealing, s->spread[node->in[first]].of.run[0]);
  }
  const ts_dealt of = s->spread[node->in[first]].of;
  int64_t unit = how->cut.in[first].unit;
  for (int i = 0; i < node->n_in; ++i) {
    if (node->in[i] != TS_NONE) {
      ts_dealt scaled = how->cut.in[i].dim >= 0 ? scale(s, &of, unit, how->cut.in[i].unit) : of;
      cut_input(s, node, how, i, &scaled);
    }
  }
  for (int i = 0; i < node->n_out; ++i) {
    int dim = how->cut.out[i].dim;
    how->sums = how->sums || dim < 0;
    if (dim >= 0) {
      s->spread[node->out[i]] = (ts_spread){.dealt = true, .dim = dim, .of = scale(s, &of, unit, how->cut.out[i].unit)};
    }
  }
  how->run = of.run[0];
  how->size = unit;
  return true;
}

void ts_sharding_leave_whole(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  for (int i = 0; i < node->n_in; ++i) {
    const ts_spread *x = node->in[i] == TS_NONE ? NULL : &s->spread[node->in[i]];
    how->complete |= x != NULL && (x->dealt || x->rows) ? 1u << i : 0;
  }
}

/* Partial sums are added up by messages, which have no fp64: a loss of which each rank had a part would be the record's
 * to add up, where ranks along tp count once. */
static bool adds_up(const ts_sharding *s, const ts_node *node, const ts_cut *cut) {
  bool can = true;
  for (int i = 0; i < node->n_out; ++i) {
    can = can && (cut->out[i].dim >= 0 || ts_dtype_is_working(ts_sharding_tensor(s, node->out[i])->dtype));
  }
  return can;
}

void ts_sharding_cut_by_inputs(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  for (const char *c = TS_INDICES; *c != 0; ++c) {
    how->index = *c;
    if (ts_node_cut(s->graph, node, *c, &how->cut) && adds_up(s, node, &how->cut) &&
        ts_sharding_cut_node(s, node, how)) {
      return;
    }
  }
  how->index = 0;
  ts_sharding_leave_whole(s, node, how);
}

/* ---- the last dimension in one group: each output is a part of the runs ---- */

bool ts_sharding_split_runs(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  const ts_spread *x = &s->spread[node->in[0]];
  int at = 0;
  if (x->dim != ts_sharding_last_dim(s, node->in[0])) {
    return false;
  }
  for (int i = 0; i < node->n_out; ++i) {
    ts_spread *y = &s->spread[node->out[i]];
    int64_t left = node->attr.split.size[i];
    *y = (ts_spread){.dealt = true, .dim = x->dim, .of = {0}};
    for (; left > 0 && at < x->of.n; ++at) {
      y->of.run[y->of.n++] = x->of.run[at];
      left -= ts_run_extent(s->dealing, x->of.run[at]);
    }
    if (left != 0) {
      for (int k = 0; k <= i; ++k) {
        s->spread[node->out[k]].dealt = false;
      }
      return false;
    }
  }
  how->index = TS_INDEX_RUNS;
  how->run = x->of.run[0];
  how->size = 1;
  return true;
}

/* ---- norms whose rows are dealt by columns ---- */

bool ts_sharding_cut_norm(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  const ts_spread *x = &s->spread[node->in[0]];
  if (!x->dealt || !ts_sharding_is_norm_of_columns(s, node, node->in[0], x->dim)) {
    return false;
  }
  ts_tid w = node->in[1];
  if (s->spread[w].dealt && !unite(s, &x->of, 1, &s->spread[w].of, 1)) {
    return false;
  }
  s->spread[w] = (ts_spread){.dealt = true, .dim = 0, .of = x->of};
  s->rule[w] = "column";
  s->spread[node->out[0]] = *x;
  how->index = TS_INDEX_NORM;
  how->run = x->of.run[0];
  how->size = 1;
  return true;
}
