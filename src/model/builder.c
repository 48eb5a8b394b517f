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

/* Checkpoints have "/" between a tensor and its states, and a line of a message or a file has one name. */
static bool is_writable(const char *name) {
  bool is = true;
  for (; *name != 0; ++name) {
    is = is && *name != '/' && (unsigned char) *name >= ' ' && *name != 127;
  }
  return is;
}

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
  } else if (!is_writable(base)) {
    ts_builder_refuse(b, "%s%s: a name has no \"/\" and no control characters", b->prefix, base);
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
  if (n == 0 || n + 2 > sizeof b->prefix || !is_writable(name)) {
    ts_builder_refuse(b, "unit %s: a name has 1 to %zu letters, no \"/\" and no control characters among them", name,
                      sizeof b->prefix - 2);
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

/* Is it a value of this model?  TS_NONE is told already, where it was refused. */
static bool is_of_floats(const ts_builder *b, ts_tid x) {
  if (x != TS_NONE && (x < 0 || x >= b->at.graph->n_tensors)) {
    ts_builder_refuse(b, "%s: %d is no value of this model", b->prefix, (int) x);
    return false;
  }
  return x != TS_NONE;
}

/* Elements of what is computed with; what is no value is told elsewhere. */
static bool are_floats(const ts_builder *b, const char *name, int n, const ts_tid *x) {
  bool all = true;
  for (int i = 0; i < n; ++i) {
    const ts_tensor *t = x[i] >= 0 && x[i] < b->at.graph->n_tensors ? &b->at.graph->tensor[x[i]] : NULL;
    if (t != NULL && t->dtype != TS_F32 && t->dtype != TS_BF16 && t->dtype != TS_F16) {
      ts_builder_refuse(b, "%s%s: wants floats, and %s is %s", b->prefix, name, t->name, ts_dtype_name(t->dtype));
      all = false;
    }
  }
  return all;
}

int ts_builder_shape(const ts_builder *b, ts_tid x, int64_t *extent) {
  if (!is_of_floats(b, x)) {
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

#define MOST_ELEMENTS ((int64_t) 1 << 56) /* of which bytes, and sums over a model, can be counted */

/* Positive extents from dimension \a first on, of a tensor whose elements can be counted. */
static bool count_extents(ts_shape *shape, int first, int n, const int64_t *extent) {
  int64_t elements = first > 0 ? shape->d[0] : 1;
  for (int i = 0; i < n; ++i) {
    if (extent[i] <= 0 || extent[i] > INT32_MAX || extent[i] > MOST_ELEMENTS / elements) {
      return false;
    }
    elements *= extent[i];
    shape->d[first + i] = extent[i];
  }
  return true;
}

static bool read_extents(const ts_builder *b, const char *name, int n, const int64_t *extent, ts_shape *shape) {
  *shape = (ts_shape){.n = n};
  bool fits = n > 0 && n <= TS_MAX_DIMS && count_extents(shape, 0, n, extent);
  if (!fits) {
    ts_builder_refuse(b, "%s%s: wants 1 to %d positive extents, below 2^31 each and 2^56 elements together", b->prefix,
                      name, TS_MAX_DIMS);
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

/* What steps themselves have. */
static bool is_reserved(const char *input) {
  static const char *const reserved[] = {"accumulate", "accumulate_local", "accumulate_reduced",
                                         "betas",      "counted",          "flags",
                                         "lr",         "gradient_seed",    "loss_scale",
                                         "no_loss",    "loss_sum",         "max_norm",
                                         "one",        "optimizer.step",   "seed",
                                         "zero",       "static_tokens",    "valid_sum",
                                         "nought",     "no_balance",       "no_squares"};
  bool is = strncmp(input, TS_SEED_LEAF, strlen(TS_SEED_LEAF)) == 0 || strncmp(input, "late.", strlen("late.")) == 0;
  for (size_t i = 0; i < sizeof reserved / sizeof *reserved; ++i) {
    is = is || strcmp(input, reserved[i]) == 0;
  }
  return is;
}

ts_tid ts_builder_input(ts_builder *b, const char *name, ts_dtype dtype, int n, const int64_t *extent, int sequence) {
  ts_shape shape = {.n = n + 1, .d = {b->size.batch}};
  bool fits = n >= 0 && n < TS_MAX_DIMS && sequence >= 0 && sequence <= n && count_extents(&shape, 1, n, extent);
  if (is_reserved(name)) {
    ts_builder_refuse(b, "input %s: steps have one of this name themselves", name);
    return TS_NONE;
  }
  if (name[0] == 0 || strchr(name, '/') != NULL || !fits || (dtype != TS_F32 && dtype != TS_I32 && dtype != TS_I64)) {
    ts_builder_refuse(b,
                      "input %s: wants a name without \"/\", at most %d positive extents, a sequence among them or 0, "
                      "and fp32, int32 "
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
  if (init.kind < TS_INIT_ZERO || init.kind > TS_INIT_NORMAL || !isfinite(init.std) || init.std < 0) {
    ts_builder_refuse(b, "%s: begins as TS_INIT_ZERO, TS_INIT_ONE or TS_INIT_NORMAL, of a deviation of at least 0",
                      full.text);
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
  if (!is_of_floats(b, x)) {
    return TS_NONE;
  }
  int64_t in = ts_builder_width(b, x);
  ts_tid w = own_parameter(b, name, "weight", TS_SHAPE(out, in), (ts_init){TS_INIT_NORMAL, 1 / sqrt((double) in)});
  ts_tid add = bias ? own_parameter(b, name, "bias", TS_SHAPE(out), (ts_init){TS_INIT_ZERO, 0}) : TS_NONE;
  return ts_build_matmul(b->at, ts_builder_name(b, name, "").text, x, w, add, false, true, TS_F32);
}

ts_tid ts_builder_product(ts_builder *b, const char *name, ts_tid x, ts_tid w) {
  if (!are_floats(b, name, 2, (const ts_tid[]){x, w})) {
    return TS_NONE;
  }
  return ts_build_matmul(b->at, ts_builder_name(b, name, "").text, x, w, TS_NONE, false, true, TS_F32);
}

ts_tid ts_builder_embedding(ts_builder *b, const char *name, ts_tid ids, int64_t rows, int64_t width) {
  ts_tid table = own_parameter(b, name, "weight", TS_SHAPE(rows, width), (ts_init){TS_INIT_NORMAL, 0.02});
  return ts_build_embedding(b->at, ts_builder_name(b, name, "").text, table, ids);
}

/* What is added to the square root's argument. */
static bool is_eps(const ts_builder *b, const char *name, double eps) {
  if (!isfinite(eps) || eps < 0) {
    ts_builder_refuse(b, "%s%s: wants an eps of at least 0", b->prefix, name);
    return false;
  }
  return true;
}

ts_tid ts_builder_layernorm(ts_builder *b, const char *name, ts_tid x, double eps) {
  if (!is_of_floats(b, x) || !is_eps(b, name, eps)) {
    return TS_NONE;
  }
  ts_shape shape = TS_SHAPE(ts_builder_width(b, x));
  ts_tid w = own_parameter(b, name, "weight", shape, (ts_init){TS_INIT_ONE, 0});
  ts_tid bias = own_parameter(b, name, "bias", shape, (ts_init){TS_INIT_ZERO, 0});
  return ts_build_layernorm(b->at, ts_builder_name(b, name, "").text, x, w, bias, (float) eps);
}

ts_tid ts_builder_rmsnorm(ts_builder *b, const char *name, ts_tid x, double eps) {
  if (!is_of_floats(b, x) || !is_eps(b, name, eps)) {
    return TS_NONE;
  }
  ts_tid w = own_parameter(b, name, "weight", TS_SHAPE(ts_builder_width(b, x)), (ts_init){TS_INIT_ONE, 0});
  return ts_build_rmsnorm(b->at, ts_builder_name(b, name, "").text, x, w, (float) eps, 0);
}

ts_tid ts_builder_normalize(ts_builder *b, const char *name, ts_tid x, double eps) {
  return ts_build_normalize(b->at, ts_builder_name(b, name, "").text, x, (float) eps);
}

static bool is_activation(const ts_builder *b, const char *name, ts_activation kind) {
  if ((unsigned) kind >= TS_N_ACTIVATIONS) {
    ts_builder_refuse(b, "%s%s: %d is no kind of activation", b->prefix, name, (int) kind);
    return false;
  }
  return true;
}

ts_tid ts_builder_activation(ts_builder *b, const char *name, ts_tid x, ts_activation kind) {
  if (!are_floats(b, name, 1, (const ts_tid[]){x})) {
    return TS_NONE;
  }
  if (!is_activation(b, name, kind)) {
    return TS_NONE;
  }
  return ts_build_activation(b->at, ts_builder_name(b, name, "").text, x, kind);
}

ts_tid ts_builder_glu(ts_builder *b, const char *name, ts_tid gate, ts_tid up, ts_activation kind) {
  if (!are_floats(b, name, 2, (const ts_tid[]){gate, up})) {
    return TS_NONE;
  }
  if (!is_activation(b, name, kind)) {
    return TS_NONE;
  }
  return ts_build_glu(b->at, ts_builder_name(b, name, "").text, gate, up, kind);
}

ts_tid ts_builder_add(ts_builder *b, const char *name, ts_tid x, ts_tid y) {
  if (!are_floats(b, name, 2, (const ts_tid[]){x, y})) {
    return TS_NONE;
  }
  return ts_build_add(b->at, ts_builder_name(b, name, "").text, x, y);
}

ts_tid ts_builder_multiply(ts_builder *b, const char *name, ts_tid x, ts_tid y) {
  return ts_build_multiply(b->at, ts_builder_name(b, name, "").text, x, y);
}

ts_tid ts_builder_scale(ts_builder *b, const char *name, ts_tid x, double by) {
  if (!are_floats(b, name, 1, (const ts_tid[]){x})) {
    return TS_NONE;
  }
  if (!isfinite(by)) {
    ts_builder_refuse(b, "%s%s: wants a factor that is a number", b->prefix, name);
    return TS_NONE;
  }
  return ts_build_scale(b->at, ts_builder_name(b, name, "").text, x, (float) by, 0);
}

static bool is_dropout(const ts_builder *b, const char *name, double p) {
  if (!(p >= 0 && p < 1)) {
    ts_builder_refuse(b, "%s%s: wants a dropout of at least 0 and below 1", b->prefix, name);
    return false;
  }
  return true;
}

/* Two of one name would drop the same elements. */
static bool is_new_draw(const ts_builder *b, const char *name) {
  const ts_graph *g = b->at.graph;
  uint64_t key = ts_hash_name(name);
  bool is = true;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_attr *attr = &g->node[n].attr;
    is = is && (g->node[n].op != TS_OP_DROPOUT || attr->dropout.name != key) &&
         (g->node[n].op != TS_OP_ATTENTION || attr->attention.dropout <= 0 || attr->attention.name != key);
  }
  if (!is) {
    ts_builder_refuse(b, "%s: there is another dropout of this name, and would drop the same elements", name);
  }
  return is;
}

ts_tid ts_builder_dropout(ts_builder *b, const char *name, ts_tid x, double p) {
  if (!are_floats(b, name, 1, (const ts_tid[]){x})) {
    return TS_NONE;
  }
  if (!is_dropout(b, name, p)) {
    return TS_NONE;
  }
  if (b->use != TS_MODEL_TRAIN || p <= 0) {
    return x;
  }
  ts_model_name n = ts_builder_name(b, name, "");
  if (!is_new_draw(b, n.text)) {
    return TS_NONE;
  }
  return ts_build_dropout(b->at, n.text, x, ts_builder_seed(b), ts_builder_samples(b), (float) p, ts_hash_name(n.text));
}

ts_tid ts_builder_reshape(ts_builder *b, const char *name, ts_tid x, int n, const int64_t *extent) {
  ts_shape shape;
  if (!is_of_floats(b, x) || !read_extents(b, name, n, extent, &shape)) {
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
  if (!are_floats(b, name, 1, (const ts_tid[]){x})) {
    return TS_NONE;
  }
  return ts_build_cast(b->at, ts_builder_name(b, name, "").text, x, TS_F32);
}

/* ---- tokens ---- */

/* What is picked has a dimension of one token. */
static ts_tid pick_rows(ts_builder *b, const char *name, ts_tid x, ts_tid which, int dims, const char *wants) {
  if (!is_of_floats(b, x) || !is_of_floats(b, which)) {
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
  if (!is_of_floats(b, x)) {
    return TS_NONE;
  }
  if (head_dim < 2 || head_dim % 2 != 0 || head_dim > ts_builder_width(b, x) || !(theta > 0) || !isfinite(theta)) {
    ts_builder_refuse(b, "%s%s: wants an even head_dim, not wider than x, and a positive theta", b->prefix, name);
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
  if (drops && !is_new_draw(b, n.text)) {
    return TS_NONE;
  }
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
  if (!are_floats(b, name, 3, (const ts_tid[]){q, k, v})) {
    return TS_NONE;
  }
  if (!is_dropout(b, name, heads->dropout)) {
    return TS_NONE;
  }
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
  if (!are_floats(b, name, 2, (const ts_tid[]){x, target})) {
    return TS_NONE;
  }
  ts_tid wide = ts_build_cast(b->at, ts_builder_name(b, name, ".x").text, x, TS_F32);
  ts_tid other = ts_build_cast(b->at, ts_builder_name(b, name, ".target").text, target, TS_F32);
  other = ts_build_scale(b->at, ts_builder_name(b, name, ".minus").text, other, -1, 0);
  ts_tid apart = ts_build_add(b->at, ts_builder_name(b, name, ".difference").text, wide, other);
  return ts_build_multiply(b->at, ts_builder_name(b, name, "").text, apart, apart);
}

/* ---- results ---- */

static const char *refused_output(const ts_graph *g, const char *mark, ts_tid x) {
  const ts_tensor *t = &g->tensor[x];
  bool is_float = t->dtype == TS_F32 || t->dtype == TS_BF16 || t->dtype == TS_F16;
  return ts_graph_marked(g, mark) != TS_NONE ? "there is another output of this name"
         : t->role == TS_ROLE_PARAM          ? "is a parameter: its values have functions of their own"
         : !is_float                         ? "its elements are no floats"
                                             : NULL;
}

void ts_builder_output(ts_builder *b, const char *name, ts_tid x) {
  if (!is_of_floats(b, x)) {
    return;
  }
  char *mark = ts_format(TS_OUTPUT_MARK "%s", name);
  const char *why = refused_output(b->at.graph, mark, x);
  if (why != NULL) {
    ts_builder_refuse(b, "output %s: %s", name, why);
  } else {
    ts_graph_mark(b->at.graph, mark, x);
  }
  ts_free(mark);
}
