/* view, pack, split, concat, take, place: where elements lie. */
#include "base/memory.h"
#include "graph/cut.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

const char *ts_shape_view(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  int64_t offset = node->attr.view.offset, count = ts_shape_count(&node->attr.view.shape);
  TS_RULE(offset >= 0 && count >= 0 && offset + count <= ts_shape_count(&x->shape), "the window leaves its tensor");
  dtype[0] = x->dtype;
  shape[0] = node->attr.view.shape;
  return NULL;
}

const char *ts_index_view(const ts_node *node) {
  (void) node;
  return "";
}

/* Letter a, b ... is the input's first, second ... dimension, where the output has it too, or its elements in groups,
 * or groups of it. */
bool ts_cut_view(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  const ts_shape *x = &ts_rule_in(g, node, 0)->shape, *y = &node->attr.view.shape;
  int i = index - 'a';
  if (i < 0 || i >= x->n || i >= y->n || ts_shape_count(x) != ts_shape_count(y)) {
    return false;
  }
  int64_t before_x = 1, before_y = 1, behind_x = 1, behind_y = 1;
  for (int d = 0; d < i; ++d) {
    before_x *= x->d[d];
    before_y *= y->d[d];
  }
  for (int d = i + 1; d < x->n; ++d) {
    behind_x *= x->d[d];
  }
  for (int d = i + 1; d < y->n; ++d) {
    behind_y *= y->d[d];
  }
  bool none = behind_x == 0 || behind_y == 0; /* a rank without tokens */
  if (before_x != before_y ||
      (behind_x != behind_y && (none || (behind_x % behind_y != 0 && behind_y % behind_x != 0)))) {
    return false;
  }
  int64_t in = behind_y > behind_x ? behind_y / behind_x : 1, out = behind_x > behind_y ? behind_x / behind_y : 1;
  *cut = (ts_cut){.units = x->d[i] / in, .parts = 1, .in = {{i, in, 1}}, .out = {{i, out, 1}}};
  return true;
}

/* A window on everything is a change of shape.  A part is what was packed, or a shard without its padding: nobody reads
 * the rest of the gradient's pack. */
void ts_gradient_view(ts_gradients *gradients, const ts_node *node) {
  ts_graph *g = gradients->graph;
  ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  int64_t whole = ts_tensor_count(g, node->in[0]);
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  if (ts_tensor_count(g, node->out[0]) < whole) {
    TS_CHECK(g->tensor[node->in[0]].shape.n == 1, "%s: the gradient of a part is that of a flat tensor", node->name);
    ts_gradients_add(gradients, node->in[0], ts_build_pack(at, name, 1, &dy, &node->attr.view.offset, whole));
  } else {
    ts_gradients_add(gradients, node->in[0], ts_build_view(at, name, dy, 0, g->tensor[node->in[0]].shape));
  }
  ts_free(name);
}

void ts_gradient_pack(ts_gradients *gradients, const ts_node *node) {
  ts_graph *g = gradients->graph;
  ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  for (int i = 0; i < node->n_in; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      char *name = ts_format("%s.dx:%d", node->name, i);
      ts_site at = ts_gradients_site(gradients, node->in[i]);
      ts_tid dx = ts_build_view(at, name, dy, node->attr.pack.offset[i], g->tensor[node->in[i]].shape);
      ts_gradients_add(gradients, node->in[i], dx);
      ts_free(name);
    }
  }
}

const char *ts_shape_pack(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  dtype[0] = node->n_in > 0 ? ts_rule_in(g, node, 0)->dtype : node->attr.pack.dtype;
  for (int i = 0; i < node->n_in; ++i) {
    int64_t offset = node->attr.pack.offset[i], count = ts_tensor_count(g, node->in[i]);
    TS_RULE(ts_rule_in(g, node, i)->dtype == dtype[0], "inputs have one dtype");
    TS_RULE(offset >= 0 && offset + count <= node->attr.pack.count, "an input leaves the pack");
    TS_RULE(i == 0 || offset >= node->attr.pack.offset[i - 1] + ts_tensor_count(g, node->in[i - 1]), "inputs overlap");
  }
  shape[0] = TS_SHAPE(node->attr.pack.count);
  return NULL;
}

const char *ts_index_pack(const ts_node *node) {
  (void) node;
  return "";
}

/* ---- the last dimension in groups ---- */

/* Of each tensor the part that belongs to a unit: an element of a leading dimension, or a group. */
static bool cut_side(const ts_graph *g, const ts_tid *list, int n, char index, int64_t groups, ts_slice *slice) {
  for (int i = 0; i < n && n <= TS_CUT_MOST; ++i) {
    const ts_shape *shape = &g->tensor[list[i]].shape;
    slice[i] =
        index == 'g' ? (ts_slice){shape->n - 1, ts_shape_last(shape) / groups, 1} : (ts_slice){index - '0', 1, 1};
  }
  return n <= TS_CUT_MOST;
}

static bool cut_groups(const ts_graph *g, const ts_node *node, char index, int64_t groups, ts_cut *cut,
                       void (*localise)(ts_attr *attr, const ts_share *share)) {
  const ts_shape *shape = &ts_rule_in(g, node, 0)->shape;
  if (index != 'g' && (index < '0' || index - '0' >= shape->n - 1)) {
    return false;
  }
  *cut = index == 'g' ? (ts_cut){.units = groups, .parts = 1, .localise = localise}
                      : (ts_cut){.units = shape->d[index - '0'], .parts = 1};
  return cut_side(g, node->in, node->n_in, index, groups, cut->in) &&
         cut_side(g, node->out, node->n_out, index, groups, cut->out);
}

const char *ts_shape_split(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  int64_t sum = 0, groups = node->attr.split.groups;
  for (int i = 0; i < node->n_out; ++i) {
    sum += node->attr.split.size[i];
    dtype[i] = x->dtype;
    shape[i] = ts_shape_with_last(x->shape, groups * node->attr.split.size[i]);
  }
  TS_RULE(groups > 0 && groups * sum == ts_shape_last(&x->shape), "sizes add up to a group of the last extent");
  return NULL;
}

const char *ts_index_split(const ts_node *node) {
  (void) node;
  return "";
}

static void localise_split(ts_attr *attr, const ts_share *share) {
  attr->split.groups = share->units;
}

bool ts_cut_split(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return cut_groups(g, node, index, node->attr.split.groups, cut, localise_split);
}

void ts_gradient_split(ts_gradients *gradients, const ts_node *node) {
  ts_tid *dy = ts_malloc((size_t) node->n_out * sizeof *dy);
  for (int i = 0; i < node->n_out; ++i) {
    dy[i] = ts_gradients_of(gradients, node->out[i]);
    TS_CHECK(dy[i] != TS_NONE, "%s: output %d has no gradient", node->name, i);
  }
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_gradients_add(gradients, node->in[0], ts_build_concat(at, name, node->attr.split.groups, node->n_out, dy));
  ts_free(name);
  ts_free(dy);
}

const char *ts_shape_concat(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  const ts_tensor *first = ts_rule_in(g, node, 0);
  int64_t sum = 0, groups = node->attr.concat.groups;
  for (int i = 0; i < node->n_in; ++i) {
    const ts_tensor *x = ts_rule_in(g, node, i);
    ts_shape same = ts_shape_with_last(x->shape, ts_shape_last(&first->shape));
    TS_RULE(groups > 0 && ts_shape_last(&x->shape) % groups == 0, "inputs have whole groups");
    TS_RULE(x->dtype == first->dtype && ts_shape_equal(&same, &first->shape), "inputs differ in the last extent only");
    sum += ts_shape_last(&x->shape);
  }
  dtype[0] = first->dtype;
  shape[0] = ts_shape_with_last(first->shape, sum);
  return NULL;
}

const char *ts_index_concat(const ts_node *node) {
  (void) node;
  return "";
}

static void localise_concat(ts_attr *attr, const ts_share *share) {
  attr->concat.groups = share->units;
}

bool ts_cut_concat(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  return cut_groups(g, node, index, node->attr.concat.groups, cut, localise_concat);
}

void ts_gradient_concat(ts_gradients *gradients, const ts_node *node) {
  ts_graph *g = gradients->graph;
  int64_t *size = ts_malloc((size_t) node->n_in * sizeof *size), groups = node->attr.concat.groups;
  for (int i = 0; i < node->n_in; ++i) {
    size[i] = ts_shape_last(&g->tensor[node->in[i]].shape) / groups;
  }
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_tid dx = ts_build_split(at, name, ts_gradients_of(gradients, node->out[0]), groups, node->n_in, size);
  for (int i = 0; i < node->n_in; ++i) {
    if (ts_gradients_wanted(gradients, node->in[i])) {
      ts_gradients_add(gradients, node->in[i], dx + i);
    }
  }
  ts_free(name);
  ts_free(size);
}

/* ---- some indices along a dimension ---- */

/* Whether an interval is inside the whole and touches none before it. */
static bool interval_fits(const ts_node *node, int i) {
  const ts_interval *list = node->attr.take.interval, *mine = &list[i];
  bool fits = mine->begin >= 0 && mine->length >= 0 && mine->begin <= node->attr.take.extent - mine->length;
  for (int k = 0; k < i && fits; ++k) {
    fits = list[k].begin + list[k].length <= mine->begin || mine->begin + mine->length <= list[k].begin;
  }
  return fits;
}

/* \a taken: elements along the dimension in all intervals. */
static const char *check_take(const ts_graph *g, const ts_node *node, int64_t *taken) {
  *taken = 0;
  TS_RULE(node->attr.take.dim >= 0 && node->attr.take.dim < ts_rule_in(g, node, 0)->shape.n,
          "there is no such dimension");
  for (int i = 0; i < node->attr.take.n; ++i) {
    TS_RULE(interval_fits(node, i), "intervals are disjoint, inside the extent");
    *taken += node->attr.take.interval[i].length;
  }
  return NULL;
}

/* x with \a from elements along the dimension becomes y with \a to. */
static const char *change_extent(const ts_graph *g, const ts_node *node, int64_t from, int64_t to, ts_dtype *dtype,
                                 ts_shape *shape) {
  const ts_tensor *x = ts_rule_in(g, node, 0);
  TS_RULE(x->shape.d[node->attr.take.dim] == from, "x has the extent that is said along the dimension");
  dtype[0] = x->dtype;
  shape[0] = x->shape;
  shape[0].d[node->attr.take.dim] = to;
  return NULL;
}

const char *ts_shape_take(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  int64_t taken;
  const char *why = check_take(g, node, &taken);
  return why == NULL ? change_extent(g, node, node->attr.take.extent, taken, dtype, shape) : why;
}

const char *ts_shape_place(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  int64_t taken;
  const char *why = check_take(g, node, &taken);
  TS_RULE(ts_dtype_is_float(ts_rule_in(g, node, 0)->dtype), "x is of a float type");
  return why == NULL ? change_extent(g, node, taken, node->attr.take.extent, dtype, shape) : why;
}

const char *ts_index_take(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_index_place(const ts_node *node) {
  (void) node;
  return "";
}

bool ts_cut_take(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  const ts_shape *shape = &ts_rule_in(g, node, 0)->shape;
  int dim = index - '0';
  if (dim < 0 || dim >= shape->n || dim == node->attr.take.dim) {
    return false;
  }
  *cut = (ts_cut){.units = shape->d[dim], .parts = 1, .in = {{dim, 1, 1}}, .out = {{dim, 1, 1}}};
  return true;
}

/* Each is the other's gradient. */
static void gradient_inverse(ts_gradients *gradients, const ts_node *node, ts_op inverse) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  const ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  ts_tid dx = ts_graph_add(at, &(ts_node){.op = inverse, .name = name, .n_in = 1, .in = &dy, .attr = node->attr});
  ts_gradients_add(gradients, node->in[0], dx);
  ts_free(name);
}

void ts_gradient_take(ts_gradients *gradients, const ts_node *node) {
  gradient_inverse(gradients, node, TS_OP_PLACE);
}

void ts_gradient_place(ts_gradients *gradients, const ts_node *node) {
  gradient_inverse(gradients, node, TS_OP_TAKE);
}
