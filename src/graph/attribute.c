#include "graph/attribute.h"

#include "base/memory.h"
#include "graph/op.h"

#include <stddef.h>
#include <string.h>

/* A member that is compared; a shape as two, because of the gap between them. */
typedef struct member {
  size_t offset, bytes;
} member;

enum { MOST_MEMBERS = 20, NOWHERE = -1 };

struct ts_attribute {
  member member[MOST_MEMBERS]; /* ended by bytes 0 */
  int array;                   /* offset of the pointer to what the node owns, or NOWHERE */
  size_t element;              /* bytes of an element of it */
  int (*count)(const ts_node *node);
  int dtype; /* offset of the outputs' type, or NOWHERE */
  void (*print)(const ts_attr *attr, ts_text *to);
};

/* ---- how many elements an array has ---- */

static int count_inputs(const ts_node *node) {
  return node->n_in;
}

static int count_outputs(const ts_node *node) {
  return node->n_out;
}

static int count_pairs(const ts_node *node) {
  return node->attr.rope.rotated / 2;
}

static int count_intervals(const ts_node *node) {
  return node->attr.take.n;
}

static int count_segments(const ts_node *node) {
  return node->attr.segments.n;
}

static int count_update(const ts_node *node) {
  return node->attr.update.n;
}

static int count_pieces(const ts_node *node) {
  return node->attr.comm.n_pieces;
}

static int count_crossings(const ts_node *node) {
  return node->attr.message.n;
}

static int count_blocks(const ts_node *node) {
  return node->n_out + node->attr.comm.n_sent + node->attr.comm.n_received;
}

/* ---- text ---- */

static void print_view(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {offset %lld}", (long long) a->view.offset);
}

static const char *const activation_names[TS_N_ACTIVATIONS] = {"gelu_tanh", "gelu", "silu", "relu"};

static void print_activation(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%s}", activation_names[a->activation.kind]);
}

static void print_scale(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {by %g", (double) a->scale.by);
  ts_text_add(to, a->scale.softcap > 0 ? ", softcap %g}" : "}", (double) a->scale.softcap);
}

static void print_matmul(const ts_attr *a, ts_text *to) {
  if (a->matmul.transpose_a || a->matmul.transpose_b) {
    ts_text_add(to, " {%s%s}", a->matmul.transpose_a ? "a^T" : "", a->matmul.transpose_b ? "b^T" : "");
  }
}

static void print_mlp(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%s%s%s, tiles of %lld rows}", activation_names[a->mlp.kind], a->mlp.transpose_b ? ", w^T" : "",
              a->mlp.fused ? ", fused" : "", (long long) a->mlp.rows);
}

static void print_table(const ts_attr *a, ts_text *to) {
  if (a->embedding.first > 0) {
    ts_text_add(to, " {rows from %lld}", (long long) a->embedding.first);
  }
}

static void print_rmsnorm(const ts_attr *a, ts_text *to) {
  if (a->norm.offset != 0) {
    ts_text_add(to, " {offset %g}", (double) a->norm.offset);
  }
  if (a->norm.width > 0) {
    ts_text_add(to, " {width %lld}", (long long) a->norm.width);
  }
}

static void add_tokens(const char *what, const ts_tokens *tokens, ts_text *to) {
  for (int i = 0; i < tokens->n; ++i) {
    const ts_interval *s = &tokens->stretch[i];
    ts_text_add(to, ", %s %lld to %lld", what, (long long) s->begin, (long long) (s->begin + s->length - 1));
  }
}

static void print_dropout(const ts_attr *a, ts_text *to) {
  static const char *const kind[] = {"p", "jitter", "gumbel", "uniform"};
  ts_text_add(to, " {%s", kind[a->dropout.kind]);
  if (a->dropout.kind <= TS_NOISE_JITTER) {
    ts_text_add(to, " %g", (double) a->dropout.p);
  }
  if (a->dropout.length > 0) {
    ts_text_add(to, ", rows from %lld of samples of %lld", (long long) a->dropout.first, (long long) a->dropout.length);
  }
  add_tokens("tokens", &a->dropout.tokens, to);
  ts_text_add(to, "}");
}

static void print_pick(const ts_attr *a, ts_text *to) {
  if (a->pick.tokens.n > 0) {
    ts_text_add(to, " {of a sample");
    add_tokens("tokens", &a->pick.tokens, to);
    ts_text_add(to, "}");
  }
}

static void print_route(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%d%s%s", a->route.k, a->route.sigmoid ? ", sigmoid" : "",
              a->route.normalize ? ", normalized" : "");
  if (a->route.groups > 1) {
    ts_text_add(to, ", of %d of %d groups", a->route.top_groups, a->route.groups);
  }
  if (a->route.sure > 0) {
    ts_text_add(to, ", %d without noise", a->route.sure);
  }
  ts_text_add(to, a->route.scale != 1 ? ", times %g}" : "}", (double) a->route.scale);
}

static void print_soft(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {temperature %g}", (double) a->soft.temperature);
}

static void add_groups(int64_t groups, ts_text *to) {
  if (groups != 1) {
    ts_text_add(to, " {groups %lld}", (long long) groups);
  }
}

static void print_split(const ts_attr *a, ts_text *to) {
  add_groups(a->split.groups, to);
}

static void print_concat(const ts_attr *a, ts_text *to) {
  add_groups(a->concat.groups, to);
}

static void print_take(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {dim %d of %lld", a->take.dim, (long long) a->take.extent);
  for (int i = 0; i < a->take.n && i < 3; ++i) {
    ts_text_add(to, ", %lld from %lld", (long long) a->take.interval[i].length, (long long) a->take.interval[i].begin);
  }
  ts_text_add(to, a->take.n > 3 ? ", ...}" : "}");
}

static void print_rope(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {head_dim %d", a->rope.head_dim);
  if (a->rope.rotated != a->rope.head_dim) {
    ts_text_add(to, ", rotated %d", a->rope.rotated);
  }
  if (a->rope.factor != 1) {
    ts_text_add(to, ", factor %g", a->rope.factor);
  }
  ts_text_add(to, "%s}", a->rope.inverse ? ", inverse" : "");
}

static void print_attention(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {heads %d, kv_heads %d, head_dim %d%s", a->attention.heads, a->attention.kv_heads,
              a->attention.head_dim, a->attention.causal ? ", causal" : "");
  if (a->attention.first_head > 0) {
    ts_text_add(to, ", first head %d", a->attention.first_head);
  }
  if (a->attention.fused_qkv) {
    ts_text_add(to, ", fused qkv");
  }
  if (a->attention.window > 0) {
    ts_text_add(to, ", window %lld", (long long) a->attention.window);
  }
  if (a->attention.softcap > 0) {
    ts_text_add(to, ", softcap %g", (double) a->attention.softcap);
  }
  add_tokens("queries", &a->attention.queries, to);
  add_tokens("keys", &a->attention.keys, to);
  ts_text_add(to, "}");
}

static void print_head(const ts_attr *a, ts_text *to) {
  if (a->head.scale != 1) {
    ts_text_add(to, " {scale %g}", (double) a->head.scale);
  }
  if (a->head.softcap > 0) {
    ts_text_add(to, " {softcap %g}", (double) a->head.softcap);
  }
  if (a->head.first > 0) {
    ts_text_add(to, " {rows from %lld}", (long long) a->head.first);
  }
}

static void print_segments(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%s%d ranges}", a->segments.each ? "each of " : "", a->segments.n);
}

static void print_control(const ts_attr *a, ts_text *to) {
  ts_text_add(to, "%s", a->control.keep_nonfinite ? " {whatever the norm}" : "");
}

static void print_loss_scaler(const ts_attr *a, ts_text *to) {
  static const char *const rules[] = {"none", "static", "dynamic", "torch"};
  const ts_loss_scaler *s = &a->loss_scaler;
  ts_text_add(to, " {%s, window %lld, hysteresis %lld%s, minimum %g}", rules[s->rule], (long long) s->window,
              (long long) s->hysteresis, s->consecutive ? " in a row" : "", s->minimum);
}

static void print_ratios(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%g to %g%s}", (double) a->ratios.least, (double) a->ratios.most,
              a->ratios.bias_correction ? ", corrected" : "");
}

static void print_diagonal(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%g}", (double) a->diagonal.by);
}

static void print_over_norm(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {eps %g}", (double) a->over_norm.eps);
}

static int count_matrices(const ts_node *node) {
  return node->attr.orthogonalize.n;
}

static void print_orthogonalize(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%d matrices, %s, %s}", a->orthogonalize.n, ts_dtype_name(a->orthogonalize.dtype),
              a->orthogonalize.gram ? "gram" : "standard");
}

static void print_update(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%s, %d ranges, eps %g%s%s}", ts_optimizer_get(a->update.rule)->name, a->update.n,
              (double) a->update.numbers.eps, a->update.numbers.decoupled ? "" : ", L2",
              a->update.rounding.stochastic ? ", rounded by chance" : "");
}

static void print_comm(const ts_attr *a, ts_text *to) {
  int64_t columns = 0;
  for (int i = 0; i < a->comm.n_pieces; ++i) {
    columns += a->comm.piece[i].end - a->comm.piece[i].begin;
  }
  ts_text_add(to, " {group %d, columns %lld, wire %s%s", a->comm.group, (long long) columns,
              ts_dtype_name(a->comm.wire), a->comm.into ? ", into" : "");
  if (a->comm.rows > 0) {
    ts_text_add(to, ", %lld rows%s", (long long) a->comm.rows, a->comm.home ? " home" : "");
  }
  if (a->comm.divisor != 0 && a->comm.divisor != 1) {
    ts_text_add(to, ", divided by %g", (double) a->comm.divisor);
  }
  ts_text_add(to, "}");
}

static void print_exchange(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {group %d, %d blocks sent, %d received}", a->comm.group, a->comm.n_sent, a->comm.n_received);
}

static void print_message(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {boundary %d, %s stage %d, %d tensors}", a->message.boundary,
              a->message.back ? "gradients, with" : "with", a->message.peer, a->message.n);
}

/* ---- the table ---- */

#define MEMBER(m) \
  { offsetof(ts_attr, m), sizeof((ts_attr *) 0)->m }
#define ARRAY(m, n) .array = (int) offsetof(ts_attr, m), .element = sizeof *((ts_attr *) 0)->m, .count = n
#define NO_ARRAY .array = NOWHERE
#define DTYPE(m) .dtype = (int) offsetof(ts_attr, m)
#define NO_DTYPE .dtype = NOWHERE

const ts_attribute ts_attribute_none = {NO_ARRAY, NO_DTYPE};

const ts_attribute ts_attribute_view = {
    {MEMBER(view.offset), MEMBER(view.shape.n), MEMBER(view.shape.d)}, NO_ARRAY, NO_DTYPE, .print = print_view};

const ts_attribute ts_attribute_pack = {
    {MEMBER(pack.count), MEMBER(pack.dtype)}, ARRAY(pack.offset, count_inputs), NO_DTYPE};

const ts_attribute ts_attribute_cast = {{MEMBER(cast.dtype)}, NO_ARRAY, DTYPE(cast.dtype)};

const ts_attribute ts_attribute_copy = {{MEMBER(copy.to)}, NO_ARRAY, NO_DTYPE};

const ts_attribute ts_attribute_activation = {{MEMBER(activation.kind)}, NO_ARRAY, NO_DTYPE, .print = print_activation};

const ts_attribute ts_attribute_scale = {
    {MEMBER(scale.by), MEMBER(scale.softcap)}, NO_ARRAY, NO_DTYPE, .print = print_scale};

const ts_attribute ts_attribute_matmul = {
    {MEMBER(matmul.transpose_a), MEMBER(matmul.transpose_b), MEMBER(matmul.dtype)},
    NO_ARRAY,
    DTYPE(matmul.dtype),
    .print = print_matmul};

const ts_attribute ts_attribute_sum_rows = {{MEMBER(sum_rows.dtype)}, NO_ARRAY, DTYPE(sum_rows.dtype)};

const ts_attribute ts_attribute_mlp = {
    {MEMBER(mlp.kind), MEMBER(mlp.transpose_b), MEMBER(mlp.fused), MEMBER(mlp.rows), MEMBER(mlp.dtype)},
    NO_ARRAY,
    DTYPE(mlp.dtype),
    .print = print_mlp};

const ts_attribute ts_attribute_table = {{MEMBER(embedding.first)}, NO_ARRAY, NO_DTYPE, .print = print_table};

const ts_attribute ts_attribute_embedding = {{MEMBER(embedding.rows), MEMBER(embedding.dtype), MEMBER(embedding.first)},
                                             NO_ARRAY,
                                             DTYPE(embedding.dtype),
                                             .print = print_table};

const ts_attribute ts_attribute_pick = {
    {MEMBER(pick.tokens.n), MEMBER(pick.tokens.stretch), MEMBER(pick.rows)}, NO_ARRAY, NO_DTYPE, .print = print_pick};

static void print_experts(const ts_attr *a, ts_text *to) {
  ts_text_add(to, a->experts.first > 0 ? " {%d from %d}" : " {%d}", a->experts.n, a->experts.first);
}
const ts_attribute ts_attribute_experts = {
    {MEMBER(experts.n), MEMBER(experts.first), MEMBER(experts.rows)}, NO_ARRAY, NO_DTYPE, .print = print_experts};
const ts_attribute ts_attribute_route = {{MEMBER(route.k), MEMBER(route.groups), MEMBER(route.top_groups),
                                          MEMBER(route.sigmoid), MEMBER(route.normalize), MEMBER(route.scale),
                                          MEMBER(route.sure)},
                                         NO_ARRAY,
                                         NO_DTYPE,
                                         .print = print_route};

static void print_limit(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%d, %g shares, at least %d%s%s", a->limit.experts, (double) a->limit.factor, a->limit.least,
              a->limit.by_choice ? ", by choice" : "", a->limit.normalize ? ", normalized" : "");
  if (a->limit.length > 0) {
    ts_text_add(to, ", of %lld tokens", (long long) a->limit.length);
  }
  ts_text_add(to, "}");
}
const ts_attribute ts_attribute_limit = {{MEMBER(limit.experts), MEMBER(limit.least), MEMBER(limit.factor),
                                          MEMBER(limit.length), MEMBER(limit.by_choice), MEMBER(limit.normalize)},
                                         NO_ARRAY,
                                         NO_DTYPE,
                                         .print = print_limit};

static void print_loads(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {%d of %lld%s", a->loads.groups, (long long) a->loads.length, a->loads.sigmoid ? ", sigmoid" : "");
  if (a->loads.first > 0) {
    ts_text_add(to, ", behind %lld", (long long) a->loads.first);
  }
  if (a->loads.counted > 0) {
    ts_text_add(to, ", of %d choices", a->loads.counted);
  }
  ts_text_add(to, "}");
}
const ts_attribute ts_attribute_loads = {
    {MEMBER(loads.groups), MEMBER(loads.length), MEMBER(loads.first), MEMBER(loads.sigmoid), MEMBER(loads.counted)},
    NO_ARRAY,
    NO_DTYPE,
    .print = print_loads};

static void print_balance(const ts_attr *a, ts_text *to) {
  ts_text_add(to, " {of %d layers, %g, %g}", a->balance.layers, (double) a->balance.aux, (double) a->balance.z);
}
const ts_attribute ts_attribute_balance = {
    {MEMBER(balance.layers), MEMBER(balance.aux), MEMBER(balance.z)}, NO_ARRAY, NO_DTYPE, .print = print_balance};

const ts_attribute ts_attribute_soft = {{MEMBER(soft.temperature)}, NO_ARRAY, NO_DTYPE, .print = print_soft};

const ts_attribute ts_attribute_loss = {
    {MEMBER(loss.shape.n), MEMBER(loss.shape.d), MEMBER(loss.dtype)}, NO_ARRAY, DTYPE(loss.dtype)};

const ts_attribute ts_attribute_eps = {{MEMBER(norm.eps)}, NO_ARRAY, NO_DTYPE};

const ts_attribute ts_attribute_rmsnorm = {
    {MEMBER(norm.eps), MEMBER(norm.offset), MEMBER(norm.width)}, NO_ARRAY, NO_DTYPE, .print = print_rmsnorm};

const ts_attribute ts_attribute_norm = {{MEMBER(norm.eps), MEMBER(norm.dtype)}, NO_ARRAY, DTYPE(norm.dtype)};

const ts_attribute ts_attribute_dropout = {{MEMBER(dropout.p), MEMBER(dropout.name), MEMBER(dropout.first),
                                            MEMBER(dropout.length), MEMBER(dropout.tokens.n),
                                            MEMBER(dropout.tokens.stretch), MEMBER(dropout.kind)},
                                           NO_ARRAY,
                                           NO_DTYPE,
                                           .print = print_dropout};

const ts_attribute ts_attribute_split = {
    {MEMBER(split.groups)}, ARRAY(split.size, count_outputs), NO_DTYPE, .print = print_split};

const ts_attribute ts_attribute_concat = {{MEMBER(concat.groups)}, NO_ARRAY, NO_DTYPE, .print = print_concat};

const ts_attribute ts_attribute_take = {{MEMBER(take.dim), MEMBER(take.extent), MEMBER(take.n)},
                                        ARRAY(take.interval, count_intervals),
                                        NO_DTYPE,
                                        .print = print_take};

const ts_attribute ts_attribute_rope = {
    {MEMBER(rope.head_dim), MEMBER(rope.rotated), MEMBER(rope.inverse), MEMBER(rope.factor)},
    ARRAY(rope.frequency, count_pairs),
    NO_DTYPE,
    .print = print_rope};

const ts_attribute ts_attribute_attention = {
    {MEMBER(attention.heads), MEMBER(attention.kv_heads), MEMBER(attention.head_dim), MEMBER(attention.scale),
     MEMBER(attention.softcap), MEMBER(attention.causal), MEMBER(attention.window), MEMBER(attention.dropout),
     MEMBER(attention.name), MEMBER(attention.first_head), MEMBER(attention.group), MEMBER(attention.length),
     MEMBER(attention.queries.n), MEMBER(attention.queries.stretch), MEMBER(attention.keys.n),
     MEMBER(attention.keys.stretch), MEMBER(attention.wide_queries), MEMBER(attention.wide_keys),
     MEMBER(attention.fused_qkv)},
    NO_ARRAY,
    NO_DTYPE,
    .print = print_attention};

const ts_attribute ts_attribute_head = {
    {MEMBER(head.dtype), MEMBER(head.scale), MEMBER(head.softcap), MEMBER(head.first)},
    NO_ARRAY,
    DTYPE(head.dtype),
    .print = print_head};

const ts_attribute ts_attribute_segments = {{MEMBER(segments.n), MEMBER(segments.each)},
                                            ARRAY(segments.range, count_segments),
                                            NO_DTYPE,
                                            .print = print_segments};

const ts_attribute ts_attribute_control = {
    {MEMBER(control.keep_nonfinite)}, NO_ARRAY, NO_DTYPE, .print = print_control};

const ts_attribute ts_attribute_loss_scaler = {{MEMBER(loss_scaler.rule), MEMBER(loss_scaler.initial),
                                                MEMBER(loss_scaler.minimum), MEMBER(loss_scaler.window),
                                                MEMBER(loss_scaler.hysteresis), MEMBER(loss_scaler.consecutive)},
                                               NO_ARRAY,
                                               NO_DTYPE,
                                               .print = print_loss_scaler};

const ts_attribute ts_attribute_ratios = {{MEMBER(ratios.least), MEMBER(ratios.most), MEMBER(ratios.bias_correction)},
                                          NO_ARRAY,
                                          NO_DTYPE,
                                          .print = print_ratios};

const ts_attribute ts_attribute_diagonal = {{MEMBER(diagonal.by)}, NO_ARRAY, NO_DTYPE, .print = print_diagonal};

const ts_attribute ts_attribute_over_norm = {
    {MEMBER(over_norm.eps), MEMBER(over_norm.dtype)}, NO_ARRAY, DTYPE(over_norm.dtype), .print = print_over_norm};

const ts_attribute ts_attribute_orthogonalize = {
    {MEMBER(orthogonalize.n), MEMBER(orthogonalize.dtype), MEMBER(orthogonalize.gram)},
    ARRAY(orthogonalize.matrix, count_matrices),
    NO_DTYPE,
    .print = print_orthogonalize};

const ts_attribute ts_attribute_update = {
    {MEMBER(update.n), MEMBER(update.rule), MEMBER(update.numbers.eps), MEMBER(update.numbers.momentum),
     MEMBER(update.numbers.dampening), MEMBER(update.numbers.lr_decay), MEMBER(update.numbers.initial),
     MEMBER(update.numbers.rate), MEMBER(update.numbers.decoupled), MEMBER(update.numbers.bias_correction),
     MEMBER(update.numbers.nesterov), MEMBER(update.numbers.eps_inside), MEMBER(update.copy), MEMBER(update.has_ratios),
     MEMBER(update.rounding.stochastic), MEMBER(update.rounding.key), MEMBER(update.rounding.first)},
    ARRAY(update.range, count_update),
    NO_DTYPE,
    .print = print_update};

const ts_attribute ts_attribute_comm = {{MEMBER(comm.axes), MEMBER(comm.group), MEMBER(comm.wire), MEMBER(comm.divisor),
                                         MEMBER(comm.into), MEMBER(comm.n_pieces), MEMBER(comm.rows),
                                         MEMBER(comm.home)},
                                        ARRAY(comm.piece, count_pieces),
                                        NO_DTYPE,
                                        .print = print_comm};

const ts_attribute ts_attribute_exchange = {
    {MEMBER(comm.axes), MEMBER(comm.group), MEMBER(comm.n_sent), MEMBER(comm.n_received)},
    ARRAY(comm.block, count_blocks),
    NO_DTYPE,
    .print = print_exchange};

const ts_attribute ts_attribute_message = {
    {MEMBER(message.boundary), MEMBER(message.back), MEMBER(message.into), MEMBER(message.peer), MEMBER(message.n)},
    ARRAY(message.crossing, count_crossings),
    NO_DTYPE,
    .print = print_message};

/* ---- what is done with them ---- */

static const ts_attribute *row_of(const ts_node *node) {
  return ts_op_get(node->op)->attribute;
}

static const void *get_array(const ts_node *node) {
  return *(const void *const *) ((const char *) &node->attr + row_of(node)->array);
}

static void set_array(ts_node *node, const void *array) {
  *(const void **) ((char *) &node->attr + row_of(node)->array) = array;
}

static size_t array_bytes(const ts_node *node) {
  return (size_t) row_of(node)->count(node) * row_of(node)->element;
}

void ts_attributes_own(ts_node *node) {
  if (row_of(node)->array != NOWHERE) {
    size_t bytes = array_bytes(node);
    set_array(node, bytes > 0 ? memcpy(ts_malloc(bytes), get_array(node), bytes) : NULL);
  }
}

void ts_attributes_free(ts_node *node) {
  if (row_of(node)->array != NOWHERE) {
    ts_free((void *) get_array(node));
  }
}

static bool same_pieces(const ts_node *a, const ts_node *b) {
  for (int i = 0; i < a->attr.comm.n_pieces; ++i) {
    const ts_piece *p = &a->attr.comm.piece[i], *q = &b->attr.comm.piece[i];
    if (p->input != q->input || p->cuts != q->cuts || p->begin != q->begin || p->end != q->end) {
      return false;
    }
  }
  return true;
}

static bool same_arrays(const ts_node *a, const ts_node *b) {
  const ts_attribute *row = row_of(a);
  if (row == &ts_attribute_comm) { /* a piece has a gap */
    return same_pieces(a, b);
  }
  const size_t bytes = row->array == NOWHERE ? 0 : array_bytes(a); /* of a pack of nothing there is none */
  return bytes == 0 || memcmp(get_array(a), get_array(b), bytes) == 0;
}

bool ts_attributes_equal(const ts_node *a, const ts_node *b) {
  if (a->op != b->op || a->n_in != b->n_in || a->n_out != b->n_out) {
    return false;
  }
  for (const member *m = row_of(a)->member; m->bytes > 0; ++m) {
    if (memcmp((const char *) &a->attr + m->offset, (const char *) &b->attr + m->offset, m->bytes) != 0) {
      return false;
    }
  }
  return same_arrays(a, b);
}

void ts_attributes_print(const ts_node *node, ts_text *to) {
  if (row_of(node)->print != NULL) {
    row_of(node)->print(&node->attr, to);
  }
}

ts_dtype *ts_attributes_dtype(ts_node *node) {
  int at = row_of(node)->dtype;
  return at == NOWHERE ? NULL : (ts_dtype *) ((char *) &node->attr + at);
}
