#include "model/parts.h"

#include "model/leaf_modules.h"

#include "base/memory.h"
#include "base/random.h"
#include "ops/build.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

ts_model_name ts_model_name_of(const ts_model_builder *b, const char *base) {
  return ts_builder_name(&b->base, base, "");
}

bool ts_model_ends_in(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

ts_model_name ts_model_inside(const char *part, const char *name) {
  ts_model_name n;
  int length = snprintf(n.text, sizeof n.text, "%s.%s", part, name);
  TS_ASSERT(length > 0 && (size_t) length < sizeof n.text);
  return n;
}

void ts_model_unit(ts_model_builder *b, const char *format, ...) {
  char name[sizeof b->base.prefix];
  va_list args;
  va_start(args, format);
  vsnprintf(name, sizeof name, format, args);
  va_end(args);
  ts_builder_unit(&b->base, name);
}

/* ---- leaves ---- */

ts_model_builder ts_model_begin(const ts_deck *deck, ts_model_use use, ts_model_size size, ts_graph *g) {
  ts_shape rows = TS_SHAPE(size.batch, size.length), one = TS_SHAPE(size.batch);
  bool generates = use == TS_MODEL_LOGITS, documents = !generates && ts_deck_by_documents(deck);
  ts_model_builder b = {.base = {.at = ts_graph_site(g), .use = use, .size = size, .leaves = ts_leaves_begin(deck)},
                        .deck = deck,
                        .model = &deck->model,
                        .family = ts_deck_family(deck),
                        .rope_length = generates ? deck->data.sequence_length : size.length};
  b.input_ids = ts_builder_leaf(&b.base, "input_ids", TS_I32, rows, 1);
  b.positions = ts_builder_leaf(&b.base, "positions", TS_I32, rows, 1);
  b.loads = b.balance = TS_NONE;
  b.labels = generates ? TS_NONE : ts_builder_leaf(&b.base, "labels", TS_I32, rows, 1);
  b.documents = documents ? ts_builder_leaf(&b.base, "documents", TS_I32, rows, 0) : TS_NONE;
  b.index = generates ? ts_builder_leaf(&b.base, "index", TS_I32, one, 0) : TS_NONE;
  b.past = generates ? ts_builder_leaf(&b.base, "past", TS_I32, one, 0) : TS_NONE;
  return b;
}

/* UNIT.base suffix, with the family's first values. */
static ts_tid parameter(ts_model_builder *b, const char *base, const char *suffix, ts_shape shape) {
  ts_init init = ts_model_init(b->deck, ts_builder_name(&b->base, base, suffix).text);
  char *name = base[0] != 0 ? ts_format("%s%s", base, suffix) : ts_strdup(suffix + 1);
  ts_tid t = ts_builder_parameter(&b->base, name, shape.n, shape.d, init);
  ts_free(name);
  return t;
}

ts_tid ts_model_matrix(ts_model_builder *b, int64_t rows) {
  return parameter(b, "", ".weight", TS_SHAPE(rows, b->model->hidden_size));
}

ts_tid ts_model_stack(ts_model_builder *b, const char *name, const char *suffix, ts_shape shape) {
  return parameter(b, name, suffix, shape);
}

ts_tid ts_model_router_bias(ts_model_builder *b, int64_t experts) {
  return parameter(b, b->family->router_bias, "", TS_SHAPE(experts));
}

/* ---- pieces ---- */

ts_tid ts_model_embedding(ts_model_builder *b, ts_tid table, ts_tid ids) {
  return ts_build_embedding(b->base.at, ts_model_name_of(b, "").text, table, ids);
}

ts_tid ts_model_linear(ts_model_builder *b, const char *base, ts_tid x, int64_t out, bool bias, bool out_first) {
  int64_t in = ts_builder_width(&b->base, x);
  ts_tid w = parameter(b, base, ".weight", out_first ? TS_SHAPE(out, in) : TS_SHAPE(in, out));
  ts_tid add = bias ? parameter(b, base, ".bias", TS_SHAPE(out)) : TS_NONE;
  return ts_build_matmul(b->base.at, ts_model_name_of(b, base).text, x, w, add, false, out_first, TS_F32);
}

bool ts_model_is_biased(const ts_model_builder *b, ts_bias_rule rule) {
  return rule == TS_BIAS_ALL || (rule == TS_BIAS_ATTENTION && b->model->attention_bias) ||
         (rule == TS_BIAS_MLP && b->model->mlp_bias);
}

ts_tid ts_model_project(ts_model_builder *b, const char *name, ts_tid x, int64_t out, ts_bias_rule rule) {
  return ts_model_linear(b, name, x, out, ts_model_is_biased(b, rule), !b->family->in_first);
}

ts_tid ts_model_layernorm(ts_model_builder *b, const char *base, ts_tid x) {
  ts_shape shape = TS_SHAPE(ts_builder_width(&b->base, x));
  ts_tid w = parameter(b, base, ".weight", shape), bias = parameter(b, base, ".bias", shape);
  return ts_build_layernorm(b->base.at, ts_model_name_of(b, base).text, x, w, bias,
                            (float) b->model->layer_norm_epsilon);
}

ts_tid ts_model_rmsnorm(ts_model_builder *b, const char *base, ts_tid x) {
  ts_tid w = parameter(b, base, ".weight", TS_SHAPE(ts_builder_width(&b->base, x)));
  float offset = b->family->norm_kind == TS_NORM_RMS_PLUS ? 1 : 0;
  return ts_build_rmsnorm(b->base.at, ts_model_name_of(b, base).text, x, w, (float) b->model->rms_norm_eps, offset);
}

ts_tid ts_model_add(ts_model_builder *b, const char *base, ts_tid x, ts_tid y) {
  return ts_builder_add(&b->base, base, x, y);
}

ts_tid ts_model_dropout(ts_model_builder *b, const char *base, ts_tid x, double p) {
  return ts_builder_dropout(&b->base, base, x, p);
}

/* What is kept of k or v. */
static ts_tid cache(ts_model_builder *b, const char *base, const char *suffix, ts_tid like) {
  ts_shape shape = b->base.at.graph->tensor[like].shape;
  shape.d[1] = b->base.size.context;
  return ts_graph_state(b->base.at.graph, ts_builder_name(&b->base, base, suffix).text,
                        (ts_held){TS_STATE_CACHE, -1, true}, TS_F32, shape, b->base.at.unit);
}

static ts_tid attend_cached(ts_model_builder *b, const char *base, const ts_tid qkv[3], const ts_attr *attr) {
  ts_tid keys = cache(b, base, ".key_cache", qkv[1]), values = cache(b, base, ".value_cache", qkv[2]);
  ts_tid out = ts_graph_add(b->base.at, &(ts_node){.op = TS_OP_ATTENTION_CACHED,
                                                   .name = ts_model_name_of(b, base).text,
                                                   .n_in = 6,
                                                   .in = (ts_tid[]){keys, values, qkv[0], qkv[1], qkv[2], b->past},
                                                   .beta = TS_NONE,
                                                   .attr = *attr});
  return out + 2;
}

ts_tid ts_model_attention(ts_model_builder *b, const char *base, const ts_tid qkv[3], double scale, int64_t window) {
  const ts_deck_model *m = b->model;
  bool generates = b->base.use == TS_MODEL_LOGITS;
  const ts_attr attr = {.attention = {.heads = (int) m->num_attention_heads,
                                      .kv_heads = (int) m->num_key_value_heads,
                                      .head_dim = (int) m->head_dim,
                                      .scale = (float) scale,
                                      .window = window,
                                      .softcap = (float) m->attn_logit_softcapping,
                                      .causal = true,
                                      .dropout = generates ? 0 : (float) m->attn_pdrop}};
  return generates ? attend_cached(b, base, qkv, &attr) : ts_builder_attend(&b->base, base, qkv, b->documents, attr);
}

void ts_model_head(ts_model_builder *b, ts_tid x, ts_tid tied,
                   ts_tid (*norm)(ts_model_builder *b, const char *base, ts_tid x)) {
  if (b->base.use == TS_MODEL_LOGITS) {
    x = ts_build(b->base.at, TS_OP_PICK, "pick", 2, (ts_tid[]){x, b->index});
  }
  float scale = (float) (1 / b->model->logits_scaling), softcap = (float) b->model->final_logit_softcapping;
  x = norm(b, "", x);
  ts_tid w = tied;
  if (w == TS_NONE) {
    ts_model_unit(b, "%s", b->family->head);
    w = ts_model_matrix(b, b->model->vocab_size);
  }
  if (b->base.use == TS_MODEL_LOGITS) {
    ts_tid logits = ts_build_matmul(b->base.at, "logits", x, w, TS_NONE, false, true, TS_F32);
    logits = scale != 1 || softcap > 0 ? ts_build_scale(b->base.at, "logits.scale", logits, scale, softcap) : logits;
    ts_graph_mark(b->base.at.graph, "logits", logits);
  } else {
    ts_tid loss = ts_build_head_loss(b->base.at, "loss", x, w, b->labels, scale, softcap);
    ts_graph_mark(b->base.at.graph, "loss", loss);
    ts_graph_mark(b->base.at.graph, "valid", loss + 1);
    ts_model_balance(b);
  }
}
