#include "model/parts.h"

#include "base/memory.h"
#include "base/random.h"
#include "ops/build.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* ---- names ---- */

/* UNIT.base suffix; an empty base stands for the unit itself, so the prefix loses its dot. */
static ts_model_name make_name(const ts_model_builder *b, const char *base, const char *suffix) {
  ts_model_name n;
  size_t prefix = strlen(b->prefix);
  if (base[0] == '\0' && prefix > 0) {
    --prefix;
  }
  int length = snprintf(n.text, sizeof n.text, "%.*s%s%s", (int) prefix, b->prefix, base, suffix);
  TS_ASSERT(length > 0 && (size_t) length < sizeof n.text);
  return n;
}

ts_model_name ts_model_name_of(const ts_model_builder *b, const char *base) {
  return make_name(b, base, "");
}

bool ts_model_ends_in(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

void ts_model_unit(ts_model_builder *b, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int length = vsnprintf(b->prefix, sizeof b->prefix - 1, format, args);
  va_end(args);
  TS_ASSERT(length > 0 && (size_t) length < sizeof b->prefix - 1);
  b->at.unit = ts_graph_unit(b->at.graph, b->prefix);
  strcat(b->prefix, ".");
}

/* ---- leaves ---- */

static ts_tid input(ts_graph *g, const char *name, ts_dtype dtype, ts_shape shape) {
  return ts_graph_leaf(g, name, TS_ROLE_INPUT, dtype, shape, -1);
}

ts_model_builder ts_model_begin(const ts_deck *deck, ts_model_use use, ts_model_size size, double dropout,
                                ts_graph *g) {
  ts_shape rows = TS_SHAPE(size.batch, size.length);
  bool drops = use == TS_MODEL_TRAIN && dropout > 0;
  bool documents = use != TS_MODEL_LOGITS && ts_deck_by_documents(deck);
  return (ts_model_builder){.model = &deck->model,
                            .family = ts_family_find(deck->model.model_type),
                            .at = ts_graph_site(g),
                            .use = use,
                            .size = size,
                            .rope_length = use == TS_MODEL_LOGITS ? deck->data.sequence_length : size.length,
                            .input_ids = input(g, "input_ids", TS_I32, rows),
                            .positions = input(g, "positions", TS_I32, rows),
                            .labels = use != TS_MODEL_LOGITS ? input(g, "labels", TS_I32, rows) : TS_NONE,
                            .documents = documents ? input(g, "documents", TS_I32, rows) : TS_NONE,
                            .index = use == TS_MODEL_LOGITS ? input(g, "index", TS_I32, TS_SHAPE(size.batch)) : TS_NONE,
                            .past = use == TS_MODEL_LOGITS ? input(g, "past", TS_I32, TS_SHAPE(size.batch)) : TS_NONE,
                            .seed = drops ? ts_graph_leaf(g, "seed", TS_ROLE_SCALAR, TS_I64, TS_SHAPE(1), -1) : TS_NONE,
                            .sample = drops ? input(g, "sample", TS_I64, TS_SHAPE(size.batch)) : TS_NONE};
}

static ts_tid parameter(ts_model_builder *b, const char *base, const char *suffix, ts_shape shape) {
  ts_model_name n = make_name(b, base, suffix);
  ts_tid t = ts_graph_find(b->at.graph, n.text);
  return t != TS_NONE ? t : ts_graph_leaf(b->at.graph, n.text, TS_ROLE_PARAM, TS_F32, shape, b->at.unit);
}

ts_tid ts_model_matrix(ts_model_builder *b, int64_t rows) {
  return parameter(b, "", ".weight", TS_SHAPE(rows, b->model->hidden_size));
}

static int64_t last_extent(const ts_model_builder *b, ts_tid x) {
  const ts_shape *shape = &b->at.graph->tensor[x].shape;
  return shape->d[shape->n - 1];
}

/* ---- pieces ---- */

ts_tid ts_model_embedding(ts_model_builder *b, ts_tid table, ts_tid ids) {
  return ts_build_embedding(b->at, ts_model_name_of(b, "").text, table, ids);
}

ts_tid ts_model_linear(ts_model_builder *b, const char *base, ts_tid x, int64_t out, bool bias, bool out_first) {
  int64_t in = last_extent(b, x);
  ts_tid w = parameter(b, base, ".weight", out_first ? TS_SHAPE(out, in) : TS_SHAPE(in, out));
  ts_tid add = bias ? parameter(b, base, ".bias", TS_SHAPE(out)) : TS_NONE;
  return ts_build_matmul(b->at, ts_model_name_of(b, base).text, x, w, add, false, out_first, TS_F32);
}

ts_tid ts_model_layernorm(ts_model_builder *b, const char *base, ts_tid x) {
  ts_shape shape = TS_SHAPE(last_extent(b, x));
  ts_tid w = parameter(b, base, ".weight", shape), bias = parameter(b, base, ".bias", shape);
  return ts_build_layernorm(b->at, ts_model_name_of(b, base).text, x, w, bias, (float) b->model->layer_norm_epsilon);
}

ts_tid ts_model_rmsnorm(ts_model_builder *b, const char *base, ts_tid x) {
  ts_tid w = parameter(b, base, ".weight", TS_SHAPE(last_extent(b, x)));
  float offset = b->family->norm_kind == TS_NORM_RMS_PLUS ? 1 : 0;
  return ts_build_rmsnorm(b->at, ts_model_name_of(b, base).text, x, w, (float) b->model->rms_norm_eps, offset);
}

ts_tid ts_model_op(ts_model_builder *b, ts_op op, const char *base, int n_in, const ts_tid *in) {
  return ts_build(b->at, op, ts_model_name_of(b, base).text, n_in, in);
}

ts_tid ts_model_add(ts_model_builder *b, const char *base, ts_tid x, ts_tid y) {
  return ts_model_op(b, TS_OP_ADD, base, 2, (ts_tid[]){x, y});
}

ts_tid ts_model_dropout(ts_model_builder *b, const char *base, ts_tid x, double p) {
  if (b->use != TS_MODEL_TRAIN || p <= 0) {
    return x;
  }
  ts_model_name n = ts_model_name_of(b, base);
  return ts_build_dropout(b->at, n.text, x, b->seed, b->sample, (float) p, ts_hash_name(n.text));
}

/* What is kept of k or v. */
static ts_tid cache(ts_model_builder *b, const char *base, const char *suffix, ts_tid like) {
  ts_shape shape = b->at.graph->tensor[like].shape;
  shape.d[1] = b->size.context;
  return ts_graph_state(b->at.graph, make_name(b, base, suffix).text, (ts_held){TS_STATE_CACHE, -1, true}, TS_F32,
                        shape, b->at.unit);
}

static ts_tid attend_cached(ts_model_builder *b, const char *base, const ts_tid qkv[3], const ts_attr *attr) {
  ts_tid keys = cache(b, base, ".key_cache", qkv[1]), values = cache(b, base, ".value_cache", qkv[2]);
  ts_tid out = ts_graph_add(b->at, &(ts_node){.op = TS_OP_ATTENTION_CACHED,
                                              .name = ts_model_name_of(b, base).text,
                                              .n_in = 6,
                                              .in = (ts_tid[]){keys, values, qkv[0], qkv[1], qkv[2], b->past},
                                              .beta = TS_NONE,
                                              .attr = *attr});
  return out + 2;
}

ts_tid ts_model_attention(ts_model_builder *b, const char *base, const ts_tid qkv[3], double scale, int64_t window) {
  const ts_deck_model *m = b->model;
  ts_model_name n = ts_model_name_of(b, base);
  bool drops = b->use == TS_MODEL_TRAIN && m->attn_pdrop > 0;
  const ts_attr attr = {.attention = {.heads = (int) m->num_attention_heads,
                                      .kv_heads = (int) m->num_key_value_heads,
                                      .head_dim = (int) m->head_dim,
                                      .scale = (float) scale,
                                      .window = window,
                                      .softcap = (float) m->attn_logit_softcapping,
                                      .causal = true,
                                      .dropout = drops ? (float) m->attn_pdrop : 0,
                                      .name = ts_hash_name(n.text)}};
  if (b->use == TS_MODEL_LOGITS) {
    return attend_cached(b, base, qkv, &attr);
  }
  ts_tid in[] = {qkv[0], qkv[1], qkv[2], b->documents, b->seed, b->sample};
  int n_in = drops ? 6 : b->documents != TS_NONE ? 4 : 3;
  return ts_graph_add(
      b->at, &(ts_node){.op = TS_OP_ATTENTION, .name = n.text, .n_in = n_in, .in = in, .beta = TS_NONE, .attr = attr});
}

void ts_model_head(ts_model_builder *b, ts_tid x, ts_tid tied,
                   ts_tid (*norm)(ts_model_builder *b, const char *base, ts_tid x)) {
  if (b->use == TS_MODEL_LOGITS) {
    x = ts_build(b->at, TS_OP_PICK, "pick", 2, (ts_tid[]){x, b->index});
  }
  float scale = (float) (1 / b->model->logits_scaling), softcap = (float) b->model->final_logit_softcapping;
  x = norm(b, "", x);
  ts_tid w = tied;
  if (w == TS_NONE) {
    ts_model_unit(b, "%s", b->family->head);
    w = ts_model_matrix(b, b->model->vocab_size);
  }
  if (b->use == TS_MODEL_LOGITS) {
    ts_tid logits = ts_build_matmul(b->at, "logits", x, w, TS_NONE, false, true, TS_F32);
    logits = scale != 1 || softcap > 0 ? ts_build_scale(b->at, "logits.scale", logits, scale, softcap) : logits;
    ts_graph_mark(b->at.graph, "logits", logits);
  } else {
    ts_tid loss = ts_build_head_loss(b->at, "loss", x, w, b->labels, scale, softcap);
    ts_graph_mark(b->at.graph, "loss", loss);
    ts_graph_mark(b->at.graph, "valid", loss + 1);
  }
}
