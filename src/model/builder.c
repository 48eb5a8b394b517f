#include "model/parts.h"

#include "base/memory.h"
#include "base/random.h"
#include "model/leaf_modules.h"
#include "model/rope.h"
#include "ops/build.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* UNIT.base suffix; an empty base stands for the unit itself, so the prefix loses its dot. */
ts_model_name ts_builder_name(const ts_builder *b, const char *base, const char *suffix) {
  ts_model_name n;
  size_t prefix = strlen(b->prefix);
  if (base[0] == '\0' && prefix > 0) {
    --prefix;
  }
  int length = snprintf(n.text, sizeof n.text, "%.*s%s%s", (int) prefix, b->prefix, base, suffix);
  if (length <= 0 || (size_t) length >= sizeof n.text) {
    ts_builder_refuse(b, "%s%s%s: a name has 1 to %zu letters", b->prefix, base, suffix, sizeof n.text - 1);
  }
  return n;
}

void ts_builder_refuse(const ts_builder *b, const char *format, ...) {
  char *text = NULL;
  va_list args;
  va_start(args, format);
  TS_CHECK(vasprintf(&text, format, args) >= 0, "out of memory");
  va_end(args);
  TS_CHECK(b->at.graph->refused != NULL, "%s", text);
  ts_error_add(b->at.graph->refused, "%s", text);
  free(text);
}

void ts_builder_unit(ts_builder *b, const char *name) {
  size_t n = strlen(name);
  if (n == 0 || n + 2 > sizeof b->prefix) {
    ts_builder_refuse(b, "unit %s: a name has 1 to %zu letters", name, sizeof b->prefix - 2);
    return;
  }
  char *unit = ts_format("%.*s", (int) ts_leaves_unit(b->leaves, name), name);
  b->at.unit = ts_graph_unit(b->at.graph, unit);
  ts_free(unit);
  memcpy(b->prefix, name, n);
  memcpy(b->prefix + n, ".", 2);
}

void ts_builder_module(ts_builder *b, const char *path, const char *class_name) {
  if (b->leaves != NULL) {
    ts_leaves_note_class(b->leaves, path, class_name);
  }
}

/* ---- what there is ---- */

ts_model_use ts_builder_use(const ts_builder *b) {
  return b->use;
}

int64_t ts_builder_batch(const ts_builder *b) {
  return b->size.batch;
}

int ts_builder_shape(const ts_builder *b, ts_tid x, int64_t *extent) {
  if (x == TS_NONE) {
    return 0;
  }
  const ts_shape *shape = &b->at.graph->tensor[x].shape;
  memcpy(extent, shape->d, (size_t) shape->n * sizeof *extent);
  return shape->n;
}

/* ---- leaves ---- */

/* The leaf called `name`, if there is one; another one of that name is refused. */
static bool find_leaf(ts_builder *b, const char *name, ts_role role, ts_dtype dtype, const ts_shape *shape,
                      ts_tid *found) {
  *found = ts_graph_find(b->at.graph, name);
  if (*found == TS_NONE) {
    return false;
  }
  const ts_tensor *t = &b->at.graph->tensor[*found];
  if (t->role != role || t->dtype != dtype || !ts_shape_equal(&t->shape, shape)) {
    ts_builder_refuse(b, "%s: there is another %s of this name", name, t->role == role ? "shape" : "kind of tensor");
    *found = TS_NONE;
  }
  return true;
}

/* Positive extents that a tensor can have. */
static bool read_extents(const ts_builder *b, const char *name, int n, const int64_t *extent, ts_shape *shape) {
  bool fits = n > 0 && n <= TS_MAX_DIMS;
  int64_t elements = 1;
  *shape = (ts_shape){.n = n};
  for (int i = 0; fits && i < n; ++i) {
    fits = extent[i] > 0 && extent[i] <= INT32_MAX && !__builtin_mul_overflow(elements, extent[i], &elements) &&
           elements <= INT64_MAX / 16;
    shape->d[i] = extent[i];
  }
  if (!fits) {
    ts_builder_refuse(b, "%s%s: wants 1 to %d positive extents, below 2^31 each and 2^59 together", b->prefix, name,
                      TS_MAX_DIMS);
  }
  return fits;
}

ts_tid ts_builder_leaf(ts_builder *b, const char *name, ts_dtype dtype, ts_shape shape, int sequence) {
  return ts_graph_add_leaf(b->at.graph, &(ts_tensor){.name = (char *) name,
                                                     .role = TS_ROLE_INPUT,
                                                     .space = TS_SPACE_HOST,
                                                     .dtype = dtype,
                                                     .shape = shape,
                                                     .sequence = sequence,
                                                     .unit = -1});
}

ts_tid ts_builder_input(ts_builder *b, const char *name, ts_dtype dtype, int n, const int64_t *extent, int sequence) {
  ts_shape shape = {.n = n + 1, .d = {b->size.batch}};
  bool fits = n >= 0 && n < TS_MAX_DIMS && sequence >= 0 && sequence <= n;
  for (int i = 0; fits && i < n; ++i) {
    fits = extent[i] > 0 && extent[i] < INT32_MAX;
    shape.d[i + 1] = extent[i];
  }
  if (name[0] == 0 || !fits || (dtype != TS_F32 && dtype != TS_I32 && dtype != TS_I64)) {
    ts_builder_refuse(
        b,
        "input %s: wants a name, at most %d positive extents, a sequence among them or 0, and fp32, int32 "
        "or int64",
        name, TS_MAX_DIMS - 1);
    return TS_NONE;
  }
  ts_tid t;
  return find_leaf(b, name, TS_ROLE_INPUT, dtype, &shape, &t) ? t : ts_builder_leaf(b, name, dtype, shape, sequence);
}

ts_tid ts_builder_samples(ts_builder *b) {
  ts_shape shape = TS_SHAPE(b->size.batch);
  ts_tid t;
  return find_leaf(b, "sample", TS_ROLE_INPUT, TS_I64, &shape, &t) ? t : ts_builder_leaf(b, "sample", TS_I64, shape, 0);
}

ts_tid ts_builder_seed(ts_builder *b) {
  ts_tid t = ts_graph_find(b->at.graph, "seed");
  return t != TS_NONE ? t : ts_graph_leaf(b->at.graph, "seed", TS_ROLE_SCALAR, TS_I64, TS_SHAPE(1), -1);
}

ts_tid ts_builder_parameter(ts_builder *b, const char *name, int n, const int64_t *extent, ts_init init) {
  ts_model_name full = ts_builder_name(b, name, "");
  ts_shape shape;
  ts_tid t;
  if (b->at.unit < 0) {
    ts_builder_refuse(b, "parameter %s: begin a unit before", name);
    return TS_NONE;
  }
  if (!read_extents(b, name, n, extent, &shape)) {
    return TS_NONE;
  }
  if (find_leaf(b, full.text, TS_ROLE_PARAM, TS_F32, &shape, &t)) {
    return t;
  }
  return ts_graph_add_leaf(
      b->at.graph,
      &(ts_tensor){
          .name = full.text, .role = TS_ROLE_PARAM, .dtype = TS_F32, .shape = shape, .init = init, .unit = b->at.unit});
}

/* UNIT.base.what. */
static ts_tid own_parameter(ts_builder *b, const char *base, const char *what, ts_shape shape, ts_init init) {
  char *name = base[0] != 0 ? ts_format("%s.%s", base, what) : ts_strdup(what);
  ts_tid t = ts_builder_parameter(b, name, shape.n, shape.d, init);
  ts_free(name);
  return t;
}

/* ---- pieces ---- */

int64_t ts_builder_width(const ts_builder *b, ts_tid x) {
  const ts_shape *shape = &b->at.graph->tensor[x].shape;
  return shape->d[shape->n - 1];
}

ts_tid ts_builder_linear(ts_builder *b, const char *name, ts_tid x, int64_t out, bool bias) {
  if (x == TS_NONE || out < 1) {
    return TS_NONE;
  }
  int64_t in = ts_builder_width(b, x);
  ts_tid w = own_parameter(b, name, "weight", TS_SHAPE(out, in), (ts_init){TS_INIT_NORMAL, 1 / sqrt((double) in)});
  ts_tid add = bias ? own_parameter(b, name, "bias", TS_SHAPE(out), (ts_init){TS_INIT_ZERO, 0}) : TS_NONE;
  return ts_build_matmul(b->at, ts_builder_name(b, name, "").text, x, w, add, false, true, TS_F32);
}

ts_tid ts_builder_product(ts_builder *b, const char *name, ts_tid x, ts_tid w) {
  return ts_build_matmul(b->at, ts_builder_name(b, name, "").text, x, w, TS_NONE, false, true, TS_F32);
}

ts_tid ts_builder_embedding(ts_builder *b, const char *name, ts_tid ids, int64_t rows, int64_t width) {
  ts_tid table = own_parameter(b, name, "weight", TS_SHAPE(rows, width), (ts_init){TS_INIT_NORMAL, 0.02});
  return ts_build_embedding(b->at, ts_builder_name(b, name, "").text, table, ids);
}

ts_tid ts_builder_layernorm(ts_builder *b, const char *name, ts_tid x, double eps) {
  if (x == TS_NONE) {
    return TS_NONE;
  }
  ts_shape shape = TS_SHAPE(ts_builder_width(b, x));
  ts_tid w = own_parameter(b, name, "weight", shape, (ts_init){TS_INIT_ONE, 0});
  ts_tid bias = own_parameter(b, name, "bias", shape, (ts_init){TS_INIT_ZERO, 0});
  return ts_build_layernorm(b->at, ts_builder_name(b, name, "").text, x, w, bias, (float) eps);
}

ts_tid ts_builder_rmsnorm(ts_builder *b, const char *name, ts_tid x, double eps) {
  if (x == TS_NONE) {
    return TS_NONE;
  }
  ts_tid w = own_parameter(b, name, "weight", TS_SHAPE(ts_builder_width(b, x)), (ts_init){TS_INIT_ONE, 0});
  return ts_build_rmsnorm(b->at, ts_builder_name(b, name, "").text, x, w, (float) eps, 0);
}

ts_tid ts_builder_normalize(ts_builder *b, const char *name, ts_tid x, double eps) {
  return ts_build_normalize(b->at, ts_builder_name(b, name, "").text, x, (float) eps);
}

ts_tid ts_builder_activation(ts_builder *b, const char *name, ts_tid x, ts_activation kind) {
  return ts_build_activation(b->at, ts_builder_name(b, name, "").text, x, kind);
}

ts_tid ts_builder_glu(ts_builder *b, const char *name, ts_tid gate, ts_tid up, ts_activation kind) {
  return ts_build_glu(b->at, ts_builder_name(b, name, "").text, gate, up, kind);
}

ts_tid ts_builder_add(ts_builder *b, const char *name, ts_tid x, ts_tid y) {
  return ts_build_add(b->at, ts_builder_name(b, name, "").text, x, y);
}

ts_tid ts_builder_multiply(ts_builder *b, const char *name, ts_tid x, ts_tid y) {
  return ts_build_multiply(b->at, ts_builder_name(b, name, "").text, x, y);
}

ts_tid ts_builder_scale(ts_builder *b, const char *name, ts_tid x, double by) {
  return ts_build_scale(b->at, ts_builder_name(b, name, "").text, x, (float) by, 0);
}

ts_tid ts_builder_dropout(ts_builder *b, const char *name, ts_tid x, double p) {
  if (b->use != TS_MODEL_TRAIN || p <= 0) {
    return x;
  }
  ts_model_name n = ts_builder_name(b, name, "");
  return ts_build_dropout(b->at, n.text, x, ts_builder_seed(b), ts_builder_samples(b), (float) p, ts_hash_name(n.text));
}

ts_tid ts_builder_reshape(ts_builder *b, const char *name, ts_tid x, int n, const int64_t *extent) {
  ts_shape shape;
  if (x == TS_NONE || !read_extents(b, name, n, extent, &shape)) {
    return TS_NONE;
  }
  if (ts_shape_count(&shape) != ts_tensor_count(b->at.graph, x)) {
    ts_builder_refuse(b, "%s%s: %lld elements cannot lie in a shape of %lld", b->prefix, name,
                      (long long) ts_tensor_count(b->at.graph, x), (long long) ts_shape_count(&shape));
    return TS_NONE;
  }
  return ts_build_view(b->at, ts_builder_name(b, name, "").text, x, 0, shape);
}

ts_tid ts_builder_float(ts_builder *b, const char *name, ts_tid x) {
  return ts_build_cast(b->at, ts_builder_name(b, name, "").text, x, TS_F32);
}

/* ---- tokens ---- */

/* What is picked has a dimension of one token. */
static ts_tid pick_rows(ts_builder *b, const char *name, ts_tid x, ts_tid which, int dims, const char *wants) {
  if (x == TS_NONE || which == TS_NONE) {
    return TS_NONE;
  }
  if (b->at.graph->tensor[which].shape.n != dims) {
    ts_builder_refuse(b, "%s%s: wants %s", b->prefix, name, wants);
    return TS_NONE;
  }
  const ts_tid in[] = {x, which};
  ts_tid picked = ts_build(b->at, TS_OP_PICK, ts_builder_name(b, name, ".pick").text, 2, in);
  if (picked == TS_NONE) {
    return TS_NONE;
  }
  ts_shape shape = b->at.graph->tensor[picked].shape;
  return ts_build_view(b->at, ts_builder_name(b, name, "").text, picked, 0, TS_SHAPE(shape.d[0], shape.d[2]));
}

ts_tid ts_builder_pick(ts_builder *b, const char *name, ts_tid x, ts_tid index) {
  return pick_rows(b, name, x, index, 1, "an index [batch] int32");
}

ts_tid ts_builder_mean_pool(ts_builder *b, const char *name, ts_tid x, ts_tid mask) {
  return pick_rows(b, name, x, mask, 2, "a mask [batch][T] int32");
}

ts_tid ts_builder_rope(ts_builder *b, const char *name, ts_tid x, ts_tid positions, int head_dim, double theta) {
  if (head_dim < 2 || head_dim % 2 != 0 || !(theta > 0)) {
    ts_builder_refuse(b, "%s%s: wants an even head_dim and a positive theta", b->prefix, name);
    return TS_NONE;
  }
  const ts_rope how = {.rope_type = "default", .theta = theta};
  double *frequency = ts_malloc((size_t) (head_dim / 2) * sizeof *frequency);
  ts_attr attr = {.rope = {.head_dim = head_dim, .rotated = head_dim, .frequency = frequency}};
  ts_rope_frequencies(&how, head_dim, 0, frequency, &attr.rope.factor);
  ts_tid y = ts_graph_add(b->at, &(ts_node){.op = TS_OP_ROPE,
                                            .name = ts_builder_name(b, name, "").text,
                                            .n_in = 2,
                                            .in = (ts_tid[]){x, positions},
                                            .beta = TS_NONE,
                                            .attr = attr});
  ts_free(frequency);
  return y;
}

ts_tid ts_builder_attend(ts_builder *b, const char *name, const ts_tid qkv[3], ts_tid documents, ts_attr attr) {
  ts_model_name n = ts_builder_name(b, name, "");
  bool drops = b->use == TS_MODEL_TRAIN && attr.attention.dropout > 0;
  attr.attention.dropout = drops ? attr.attention.dropout : 0;
  attr.attention.name = ts_hash_name(n.text);
  ts_tid in[] = {qkv[0], qkv[1], qkv[2], documents, TS_NONE, TS_NONE};
  if (drops) {
    in[4] = ts_builder_seed(b);
    in[5] = ts_builder_samples(b);
  }
  int n_in = drops ? 6 : documents != TS_NONE ? 4 : 3;
  return ts_graph_add(
      b->at, &(ts_node){.op = TS_OP_ATTENTION, .name = n.text, .n_in = n_in, .in = in, .beta = TS_NONE, .attr = attr});
}

ts_tid ts_builder_attention(ts_builder *b, const char *name, ts_tid q, ts_tid k, ts_tid v, ts_tid documents,
                            const ts_heads *heads) {
  double scale = heads->scale > 0 ? heads->scale : heads->head_dim > 0 ? 1 / sqrt((double) heads->head_dim) : 0;
  ts_attr attr = {.attention = {.heads = heads->heads,
                                .kv_heads = heads->kv_heads > 0 ? heads->kv_heads : heads->heads,
                                .head_dim = heads->head_dim,
                                .scale = (float) scale,
                                .causal = heads->causal,
                                .window = heads->window,
                                .dropout = (float) heads->dropout}};
  return ts_builder_attend(b, name, (const ts_tid[]){q, k, v}, documents, attr);
}

/* ---- losses ---- */

/* A sum, and behind it the number of what it is a sum of; the first one's number is the model's. */
static void add_loss(ts_builder *b, const char *name, ts_tid loss, double weight) {
  if (!isfinite(weight)) {
    ts_builder_refuse(b, "%s%s: wants a weight that is a number", b->prefix, name);
  }
  if (loss == TS_NONE) {
    return;
  }
  ts_graph *g = b->at.graph;
  ts_tid before = ts_graph_marked(g, "loss"), valid = loss + 1;
  if (weight != 1) {
    loss = ts_build_scale(b->at, ts_builder_name(b, name, ".weighted").text, loss, (float) weight, 0);
  }
  if (before != TS_NONE) {
    loss = ts_build_add(b->at, ts_builder_name(b, name, ".sum").text, before, loss);
  } else {
    ts_graph_mark(g, "valid", valid);
  }
  ts_graph_mark(g, "loss", loss);
}

void ts_builder_head_loss(ts_builder *b, const char *name, ts_tid x, ts_tid w, ts_tid labels, double weight) {
  add_loss(b, name, ts_build_head_loss(b->at, ts_builder_name(b, name, "").text, x, w, labels, 1, 0), weight);
}

void ts_builder_loss(ts_builder *b, const char *name, ts_tid x, ts_tid mask, double weight) {
  add_loss(b, name, ts_build_loss(b->at, ts_builder_name(b, name, "").text, x, mask), weight);
}

ts_tid ts_builder_soft_cross_entropy(ts_builder *b, const char *name, ts_tid logits, ts_tid target,
                                     double temperature) {
  return ts_build_soft_loss(b->at, ts_builder_name(b, name, "").text, logits, target, (float) temperature);
}

ts_tid ts_builder_squared_error(ts_builder *b, const char *name, ts_tid x, ts_tid target) {
  ts_tid wide = ts_build_cast(b->at, ts_builder_name(b, name, ".x").text, x, TS_F32);
  ts_tid other = ts_build_cast(b->at, ts_builder_name(b, name, ".target").text, target, TS_F32);
  other = ts_build_scale(b->at, ts_builder_name(b, name, ".minus").text, other, -1, 0);
  ts_tid apart = ts_build_add(b->at, ts_builder_name(b, name, ".difference").text, wide, other);
  return ts_build_multiply(b->at, ts_builder_name(b, name, "").text, apart, apart);
}

/* ---- results ---- */

void ts_builder_output(ts_builder *b, const char *name, ts_tid x) {
  if (x != TS_NONE) {
    char *mark = ts_format(TS_OUTPUT_MARK "%s", name);
    ts_graph_mark(b->at.graph, mark, x);
    ts_free(mark);
  }
}
