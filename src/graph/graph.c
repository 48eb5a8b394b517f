#include "graph/graph.h"

#include "base/memory.h"
#include "base/random.h"
#include "graph/attribute.h"
#include "graph/op.h"

#include <stdio.h>
#include <string.h>

int32_t *ts_ids_none(int n) {
  int32_t *list = ts_malloc(((size_t) n + 1) * sizeof *list);
  for (int i = 0; i <= n; ++i) {
    list[i] = TS_NONE;
  }
  return list;
}

/* ---- names and lists ---- */

/* They are as many as nodes and end with the graph: they lie behind one another in blocks. */
typedef struct ts_graph_block {
  struct ts_graph_block *older;
  size_t used, size;
  _Alignas(8) char bytes[];
} ts_graph_block;

static void *lay(ts_graph *g, size_t bytes) {
  enum { FIRST = 1 << 12, LARGE = 1 << 16 };
  bytes = (bytes + 7) / 8 * 8;
  if (g->block == NULL || g->block->size - g->block->used < bytes) {
    size_t size = g->block == NULL ? FIRST : g->block->size < LARGE ? 2 * g->block->size : LARGE;
    size = size > bytes ? size : bytes;
    ts_graph_block *block = ts_malloc(sizeof *block + size);
    *block = (ts_graph_block){.older = g->block, .size = size};
    g->block = block;
  }
  void *at = g->block->bytes + g->block->used;
  g->block->used += bytes;
  return at;
}

static char *lay_name(ts_graph *g, const char *name) {
  size_t bytes = strlen(name) + 1;
  return memcpy(lay(g, bytes), name, bytes);
}

static char *lay_output_name(ts_graph *g, const char *node, int output) {
  enum { DIGITS = 12 };
  if (output == 0) {
    return lay_name(g, node);
  }
  size_t bytes = strlen(node) + 1 + DIGITS;
  char *name = lay(g, bytes);
  snprintf(name, bytes, "%s:%d", node, output);
  return name;
}

static void *lay_list(ts_graph *g, const void *from, size_t count, size_t size) {
  return from == NULL || count == 0 ? NULL : memcpy(lay(g, count * size), from, count * size);
}

/* ---- life ---- */

ts_graph *ts_graph_create(void) {
  return ts_calloc(1, sizeof(ts_graph));
}

void ts_graph_destroy(ts_graph **graph) {
  ts_graph *g = *graph;
  if (g == NULL) {
    return;
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_attributes_free(&g->node[n]);
  }
  while (g->block != NULL) {
    ts_graph_block *older = g->block->older;
    ts_free(g->block);
    g->block = older;
  }
  for (int u = 0; u < g->n_units; ++u) {
    ts_free(g->unit[u]);
  }
  for (int m = 0; m < g->n_marks; ++m) {
    ts_free(g->mark[m].name);
  }
  ts_free(g->node);
  ts_free(g->tensor);
  ts_free(g->unit);
  ts_free(g->chunk);
  ts_free(g->mark);
  ts_free(g->leaf);
  ts_free(g);
  *graph = NULL;
}

void ts_graph_set_chunks(ts_graph *g, const int *chunk, int n_chunks) {
  ts_free(g->chunk);
  g->chunk = ts_malloc(((size_t) g->n_units + 1) * sizeof *g->chunk);
  memcpy(g->chunk, chunk, (size_t) g->n_units * sizeof *chunk);
  g->n_chunks = n_chunks;
  ++g->changes;
}

int ts_graph_unit(ts_graph *g, const char *name) {
  for (int u = 0; u < g->n_units; ++u) {
    if (strcmp(g->unit[u], name) == 0) {
      return u;
    }
  }
  TS_GROW(g->unit, g->n_units, g->unit_capacity);
  g->unit[g->n_units] = ts_strdup(name);
  ++g->changes;
  return g->n_units++;
}

ts_site ts_graph_site(ts_graph *g) {
  return (ts_site){g, TS_SEGMENT_FORWARD, -1};
}

/* ---- shapes ---- */

int64_t ts_shape_count(const ts_shape *shape) {
  int64_t count = 1;
  for (int i = 0; i < shape->n; ++i) {
    count *= shape->d[i];
  }
  return count;
}

int64_t ts_shape_rows(const ts_shape *shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape->n; ++i) {
    rows *= shape->d[i];
  }
  return rows;
}

bool ts_tokens_fit(const ts_tokens *tokens, int64_t rows, int64_t length) {
  int64_t end = 0, sum = 0;
  for (int i = 0; i < tokens->n && i < TS_MOST_STRETCHES; ++i) {
    if (tokens->stretch[i].begin < end || tokens->stretch[i].length < 1) {
      return false;
    }
    end = tokens->stretch[i].begin + tokens->stretch[i].length;
    sum += tokens->stretch[i].length;
  }
  return tokens->n <= TS_MOST_STRETCHES && (tokens->n == 0 || (sum == rows && end <= length));
}

ts_tokens ts_tokens_part(const ts_tokens *tokens, int64_t first, int64_t count) {
  const ts_tokens all = {1, {{0, first + count}}};
  const ts_tokens *from = tokens->n > 0 ? tokens : &all;
  ts_tokens part = {0};
  for (int i = 0; i < from->n && count > 0; ++i) {
    const ts_interval *s = &from->stretch[i];
    int64_t skip = first < s->length ? first : s->length, left = s->length - skip;
    int64_t length = count < left ? count : left;
    first -= skip;
    count -= length;
    if (length > 0) {
      part.stretch[part.n++] = (ts_interval){s->begin + skip, length};
    }
  }
  return part;
}

bool ts_shape_equal(const ts_shape *a, const ts_shape *b) {
  return a->n == b->n && memcmp(a->d, b->d, (size_t) a->n * sizeof a->d[0]) == 0;
}

int64_t ts_tensor_count(const ts_graph *g, ts_tid t) {
  return ts_shape_count(&g->tensor[t].shape);
}

int64_t ts_tensor_bytes(const ts_graph *g, ts_tid t) {
  return ts_tensor_count(g, t) * (int64_t) ts_dtype_size(g->tensor[t].dtype);
}

/* ---- tensors ---- */

static ts_tid add_tensor(ts_graph *g, ts_tensor tensor) {
  TS_GROW(g->tensor, g->n_tensors, g->tensor_capacity);
  g->tensor[g->n_tensors] = tensor;
  ++g->changes;
  return g->n_tensors++;
}

/* Where the leaf is, or would be. */
static int place_of_leaf(const ts_graph *g, const char *name) {
  int at = (int) (ts_hash_name(name) % (uint64_t) g->leaf_places);
  while (g->leaf[at] != TS_NONE && strcmp(g->tensor[g->leaf[at]].name, name) != 0) {
    at = (at + 1) % g->leaf_places;
  }
  return at;
}

/* At most half of the places are taken. */
static void enter_leaf(ts_graph *g, ts_tid leaf) {
  if (2 * g->n_leaves >= g->leaf_places) {
    ts_tid *old = g->leaf;
    int n = g->leaf_places;
    g->leaf_places = n > 0 ? 2 * n : 64;
    g->leaf = ts_ids_none(g->leaf_places);
    for (int i = 0; i < n; ++i) {
      if (old[i] != TS_NONE) {
        g->leaf[place_of_leaf(g, g->tensor[old[i]].name)] = old[i];
      }
    }
    ts_free(old);
  }
  g->leaf[place_of_leaf(g, g->tensor[leaf].name)] = leaf;
  ++g->n_leaves;
}

ts_tid ts_graph_find(const ts_graph *g, const char *name) {
  return g->leaf_places > 0 ? g->leaf[place_of_leaf(g, name)] : TS_NONE;
}

ts_tid ts_graph_add_leaf(ts_graph *g, const ts_tensor *like) {
  TS_CHECK(like->role != TS_ROLE_VALUE && ts_graph_find(g, like->name) == TS_NONE, "leaf %s exists already",
           like->name);
  ts_tensor leaf = *like;
  leaf.name = lay_name(g, like->name);
  leaf.producer = TS_NONE;
  ts_tid t = add_tensor(g, leaf);
  enter_leaf(g, t);
  return t;
}

ts_tid ts_graph_leaf(ts_graph *g, const char *name, ts_role role, ts_dtype dtype, ts_shape shape, int unit) {
  bool host = role == TS_ROLE_INPUT || role == TS_ROLE_SCALAR;
  return ts_graph_add_leaf(g, &(ts_tensor){.name = (char *) name,
                                           .role = role,
                                           .space = host ? TS_SPACE_HOST : TS_SPACE_BACKEND,
                                           .dtype = dtype,
                                           .shape = shape,
                                           .unit = unit});
}

const ts_shape *ts_graph_token_shape(const ts_graph *g) {
  const ts_shape *any = NULL;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *leaf = &g->tensor[t];
    if (leaf->role == TS_ROLE_INPUT && leaf->sequence > 0) {
      return &leaf->shape;
    }
    any = any == NULL && leaf->role == TS_ROLE_INPUT ? &leaf->shape : any;
  }
  return any;
}

ts_tid ts_graph_state(ts_graph *g, const char *name, ts_held held, ts_dtype dtype, ts_shape shape, int unit) {
  return ts_graph_add_leaf(
      g, &(ts_tensor){
             .name = (char *) name, .role = TS_ROLE_STATE, .dtype = dtype, .shape = shape, .held = held, .unit = unit});
}

ts_tid ts_graph_find_state(const ts_graph *g, ts_state state, int part) {
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *tensor = &g->tensor[t];
    if (tensor->role == TS_ROLE_STATE && tensor->held.state == state && tensor->held.part == part) {
      return t;
    }
  }
  return TS_NONE;
}

void ts_graph_reach_back(const ts_graph *g, bool by_gradients, bool *reaches) {
  for (ts_nid n = g->n_nodes - 1; n >= 0; --n) {
    const ts_node *node = &g->node[n];
    bool any = false;
    for (int i = 0; i < node->n_out; ++i) {
      any = any || reaches[node->out[i]];
    }
    for (int i = 0; i < node->n_in; ++i) {
      bool stops = by_gradients && i == 1 && (ts_op_get(node->op)->flags & TS_OP_HAS_TARGET) != 0;
      reaches[node->in[i] == TS_NONE ? g->n_tensors : node->in[i]] |= any && !stops;
    }
  }
}

const ts_node *ts_graph_producer(const ts_graph *g, ts_tid t) {
  return t == TS_NONE || g->tensor[t].producer == TS_NONE ? NULL : &g->node[g->tensor[t].producer];
}

/* ---- nodes ---- */

/* A node that breaks its op's rule ends the program, unless its graph is written by somebody who is told of it. */
static void refuse_node(ts_graph *g, const ts_node *node, const char *why) {
  ts_text text = {0};
  ts_node_print(g, node, &text);
  TS_CHECK(g->refused != NULL, "%s: %s", text.text, why);
  ts_error_add(g->refused, "%s: %s", text.text, why);
  ts_text_free(&text);
}

/* Windows and new versions lie where the old ones do. */
static ts_space space_of_output(const ts_graph *g, const ts_node *node, int i) {
  const ts_op_info *info = ts_op_get(node->op);
  ts_tid old = ts_node_makes_window(node) ? node->in[0] : i < info->n_inplace ? node->in[i] : TS_NONE;
  return old != TS_NONE           ? g->tensor[old].space
         : ts_node_takes(node)    ? ts_node_copies(node)
         : node->op == TS_OP_LOAD ? node->attr.copy.to
                                  : TS_SPACE_BACKEND;
}

/* \return whether the op's rule holds */
static bool add_outputs(ts_graph *g, ts_node *node) {
  enum { FEW = 4 };
  ts_dtype few_dtypes[FEW] = {0}, *dtype = few_dtypes;
  ts_shape few_shapes[FEW] = {0}, *shape = few_shapes;
  if (node->n_out > FEW) {
    dtype = ts_calloc((size_t) node->n_out, sizeof *dtype);
    shape = ts_calloc((size_t) node->n_out, sizeof *shape);
  }
  const char *why = ts_op_get(node->op)->shape(g, node, dtype, shape);
  if (why != NULL) {
    refuse_node(g, node, why);
  }
  for (int i = 0; why == NULL && i < node->n_out; ++i) {
    node->out[i] = add_tensor(g, (ts_tensor){.name = lay_output_name(g, node->name, i),
                                             .role = TS_ROLE_VALUE,
                                             .space = space_of_output(g, node, i),
                                             .dtype = dtype[i],
                                             .shape = shape[i],
                                             .producer = g->n_nodes,
                                             .unit = node->unit});
  }
  if (node->n_out > FEW) {
    ts_free(dtype);
    ts_free(shape);
  }
  return why == NULL;
}

static void check_arity(const ts_node *node) {
  const ts_op_info *info = ts_op_get(node->op);
  TS_CHECK(node->n_in >= info->min_in && (info->max_in < 0 || node->n_in <= info->max_in) &&
               (info->max_out < 0 || node->n_out <= info->max_out),
           "%s: %s takes %d to %d inputs, %d are given", node->name, info->name, info->min_in, info->max_in,
           node->n_in);
}

/* Are all inputs tensors of the graph? */
static bool are_of_graph(const ts_graph *g, const ts_node *node) {
  bool all = true;
  for (int i = 0; i < node->n_in; ++i) {
    bool exists = node->in[i] >= TS_NONE && node->in[i] < g->n_tensors;
    TS_CHECK(exists || g->refused != NULL, "%s: input %d does not exist", node->name, i);
    if (!exists) {
      ts_error_add(g->refused, "%s: %d is no value of this model", node->name, (int) node->in[i]);
    }
    all = all && exists;
  }
  return all;
}

/* Does it read what was refused before? */
static bool reads_refused(const ts_graph *g, const ts_node *node) {
  const ts_op_info *info = ts_op_get(node->op);
  bool reads = false;
  for (int i = 0; g->refused != NULL && i < node->n_in; ++i) {
    reads = reads || (node->in[i] == TS_NONE && (info->optional >> i & 1) == 0);
  }
  return reads;
}

ts_tid ts_graph_add(ts_site at, const ts_node *like) {
  ts_graph *g = at.graph;
  const ts_op_info *info = ts_op_get(like->op);
  ts_node node = *like;
  node.segment = at.segment;
  node.unit = at.unit;
  node.n_out = like->n_out > 0 ? like->n_out : info->min_out;
  check_arity(&node);
  if (!are_of_graph(g, &node) || reads_refused(g, &node)) {
    return TS_NONE;
  }
  bool into = (info->flags & TS_OP_COMM) != 0 && like->attr.comm.into;
  node.beta = like->prior != NULL || into ? like->beta : TS_NONE;
  node.name = lay_name(g, like->name);
  node.in = lay_list(g, like->in, (size_t) node.n_in, sizeof *node.in);
  node.prior = lay_list(g, like->prior, (size_t) node.n_out, sizeof *node.prior);
  node.out = lay(g, (size_t) node.n_out * sizeof *node.out);
  for (int i = 0; i < node.n_out; ++i) {
    node.out[i] = TS_NONE;
  }
  ts_attributes_own(&node);
  if (!add_outputs(g, &node)) {
    ts_attributes_free(&node);
    return TS_NONE;
  }
  TS_GROW(g->node, g->n_nodes, g->node_capacity);
  g->node[g->n_nodes++] = node;
  ++g->changes;
  return node.n_out > 0 ? node.out[0] : TS_NONE;
}

ts_shape ts_crossing_shape(const ts_crossing *crossing) {
  ts_shape shape = {.n = (int) crossing->n};
  memcpy(shape.d, crossing->d, sizeof shape.d);
  return shape;
}

int *ts_graph_use_counts(const ts_graph *g) {
  int *uses = ts_calloc((size_t) g->n_tensors + 1, sizeof *uses);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      uses[node->in[i] == TS_NONE ? g->n_tensors : node->in[i]]++;
    }
    for (int i = 0; node->prior != NULL && i < node->n_out; ++i) {
      uses[node->prior[i] == TS_NONE ? g->n_tensors : node->prior[i]]++;
    }
    uses[node->beta == TS_NONE ? g->n_tensors : node->beta]++;
  }
  return uses;
}

/* ---- marks ---- */

void ts_graph_mark(ts_graph *g, const char *name, ts_tid tensor) {
  TS_ASSERT(tensor >= 0 && tensor < g->n_tensors);
  ++g->changes;
  for (int i = 0; i < g->n_marks; ++i) {
    if (strcmp(g->mark[i].name, name) == 0) {
      g->mark[i].tensor = tensor;
      return;
    }
  }
  TS_GROW(g->mark, g->n_marks, g->mark_capacity);
  g->mark[g->n_marks++] = (ts_mark){ts_strdup(name), tensor};
}

ts_tid ts_graph_marked(const ts_graph *g, const char *name) {
  for (int i = 0; i < g->n_marks; ++i) {
    if (strcmp(g->mark[i].name, name) == 0) {
      return g->mark[i].tensor;
    }
  }
  return TS_NONE;
}

bool ts_graph_is_marked(const ts_graph *g, ts_tid tensor) {
  for (int i = 0; i < g->n_marks; ++i) {
    if (g->mark[i].tensor == tensor) {
      return true;
    }
  }
  return false;
}

static void mark_for(ts_graph *g, const char *what, const char *parameter, ts_tid gradient) {
  char *name = ts_format("%s:%s", what, parameter);
  ts_graph_mark(g, name, gradient);
  ts_free(name);
}

static ts_tid marked_for(const ts_graph *g, const char *what, ts_tid parameter, int64_t m) {
  if (parameter == TS_NONE) {
    return TS_NONE;
  }
  char *name = m == 0 ? ts_format("%s:%s", what, g->tensor[parameter].name)
                      : ts_format("%s:%s/%lld", what, g->tensor[parameter].name, (long long) m);
  ts_tid t = ts_graph_marked(g, name);
  ts_free(name);
  return t;
}

void ts_graph_mark_gradient(ts_graph *g, const char *parameter, ts_tid gradient) {
  mark_for(g, "gradient", parameter, gradient);
}

ts_tid ts_graph_gradient_of(const ts_graph *g, ts_tid parameter, int64_t m) {
  return marked_for(g, "gradient", parameter, m);
}

void ts_graph_mark_earlier(ts_graph *g, const char *parameter, ts_tid gradient) {
  mark_for(g, "earlier", parameter, gradient);
}

ts_tid ts_graph_earlier_of(const ts_graph *g, ts_tid parameter, int64_t m) {
  return marked_for(g, "earlier", parameter, m);
}
