/* The one builder: blocks of attention and an MLP as the family's row and the deck say. */
#include "base/memory.h"
#include "model/layer.h"
#include "model/leaf_modules.h"
#include "model/parts.h"

#include "ops/build.h"

#include <math.h>
#include <string.h>

/* ---- pieces by the row ---- */

static ts_tid normalise(ts_model_builder *b, const char *name, ts_tid x) {
  return b->family->norm_kind == TS_NORM_LAYER ? ts_model_layernorm(b, name, x) : ts_model_rmsnorm(b, name, x);
}

/* ---- attention ---- */

static ts_tid turn(ts_model_builder *b, const ts_layer *layer, const char *base, ts_tid x) {
  int head = (int) b->model->head_dim, rotated = (int) (head * b->model->partial_rotary_factor);
  ts_rope how = ts_model_rope(b->model, layer);
  ts_attr attr = {.rope = {.head_dim = head, .rotated = rotated}};
  double *frequency = ts_malloc((size_t) (rotated / 2) * sizeof *frequency);
  ts_rope_frequencies(&how, rotated, b->rope_length, frequency, &attr.rope.factor);
  attr.rope.frequency = frequency;
  ts_tid y = ts_graph_add(b->base.at,
                          &(ts_node){.op = TS_OP_ROPE,
                                     .name = ts_model_name_of(b, ts_model_inside(b->family->attention, base).text).text,
                                     .n_in = 2,
                                     .in = (ts_tid[]){x, b->positions},
                                     .beta = TS_NONE,
                                     .attr = attr});
  ts_free(frequency);
  return y;
}

/* The norm of queries or keys: of each head, or of all together. */
static ts_tid normalise_heads(ts_model_builder *b, const char *name, ts_tid x) {
  const ts_family *f = b->family;
  if (f->qk_norm == TS_QK_NORM_NONE) {
    return x;
  }
  if (f->qk_norm == TS_QK_NORM_WIDTH) {
    return normalise(b, name, x);
  }
  ts_shape whole = b->base.at.graph->tensor[x].shape, heads = {.n = 4, .d = {whole.d[0], whole.d[1]}};
  heads.d[3] = b->model->head_dim;
  heads.d[2] = whole.d[2] / heads.d[3];
  ts_model_name split = ts_model_name_of(b, ts_model_inside(name, "heads").text);
  ts_model_name join = ts_model_name_of(b, ts_model_inside(name, "join").text);
  ts_tid y = normalise(b, name, ts_build_view(b->base.at, split.text, x, 0, heads));
  return ts_build_view(b->base.at, join.text, y, 0, whole);
}

/* Attention's scale. */
static double scale_of(const ts_deck_model *m) {
  if (m->attention_multiplier > 0) {
    return m->attention_multiplier;
  }
  return 1 / sqrt((double) (m->query_pre_attn_scalar > 0 ? m->query_pre_attn_scalar : m->head_dim));
}

static void make_qkv(ts_model_builder *b, ts_tid x, ts_tid qkv[3]) {
  const ts_family *f = b->family;
  const ts_deck_model *m = b->model;
  int64_t width = m->num_attention_heads * m->head_dim, kv_width = m->num_key_value_heads * m->head_dim;
  const int64_t widths[] = {width, kv_width, kv_width};
  if (f->qkv != NULL) {
    ts_tid all = ts_model_project(b, f->qkv, x, width + 2 * kv_width, f->qkv_bias);
    ts_model_name name = ts_model_name_of(b, ts_model_inside(f->attention, "split").text);
    bool by_heads = f->qkv_by_heads;
    const int64_t of_head[] = {m->head_dim, m->head_dim, m->head_dim};
    qkv[0] = ts_build_split(b->base.at, name.text, all, by_heads ? m->num_attention_heads : 1, 3,
                            by_heads ? of_head : widths);
    qkv[1] = qkv[0] + 1;
    qkv[2] = qkv[0] + 2;
    return;
  }
  const char *const names[] = {f->q, f->k, f->v};
  for (int i = 0; i < 3; ++i) {
    qkv[i] = ts_model_project(b, names[i], x, widths[i], f->qkv_bias);
  }
}

static ts_tid attend(ts_model_builder *b, const ts_layer *layer, ts_tid x) {
  const ts_family *f = b->family;
  ts_tid qkv[3];
  make_qkv(b, x, qkv);
  qkv[0] = normalise_heads(b, f->q_norm, qkv[0]);
  qkv[1] = normalise_heads(b, f->k_norm, qkv[1]);
  if (layer->rotary) {
    qkv[0] = turn(b, layer, "q_rope", qkv[0]);
    qkv[1] = turn(b, layer, "k_rope", qkv[1]);
  }
  ts_tid o = ts_model_attention(b, f->attention, qkv, scale_of(b->model), layer->window);
  return ts_model_project(b, f->o, o, b->model->hidden_size, f->o_bias);
}

/* ---- the model ---- */

static ts_tid multiply(ts_model_builder *b, const char *base, ts_tid x, double by) {
  return by == 1 ? x : ts_build_scale(b->base.at, ts_model_name_of(b, base).text, x, (float) by, 0);
}

static ts_tid normalise_if(ts_model_builder *b, const char *norm, ts_tid x) {
  return norm != NULL ? normalise(b, norm, x) : x;
}

/* What a half of the block has made, on its way to the sum. */
static ts_tid finish_half(ts_model_builder *b, const char *norm, const char *part, const char *dropout, ts_tid y) {
  y = normalise_if(b, norm, y);
  y = ts_model_dropout(b, ts_model_inside(part, dropout).text, y, b->model->resid_pdrop);
  return multiply(b, ts_model_inside(part, "scale").text, y, b->model->residual_multiplier);
}

static ts_tid add_layer(ts_model_builder *b, int64_t i, ts_tid x) {
  const ts_family *f = b->family;
  const ts_layer layer = ts_model_layer(b->deck, i);
  ts_tid y = attend(b, &layer, normalise_if(b, f->norm[TS_NORM_ATTENTION_IN], x));
  y = finish_half(b, f->norm[TS_NORM_ATTENTION_OUT], f->attention, "resid_dropout", y);
  ts_tid sum = ts_model_add(b, ts_model_inside(f->attention, "add").text, x, y);
  y = normalise_if(b, f->norm[TS_NORM_MLP_IN], b->model->use_parallel_residual ? x : sum);
  y = layer.experts > 0 ? ts_model_experts(b, y, layer.experts)
                        : ts_model_mlp(b, f->mlp, y, b->model->intermediate_size);
  y = finish_half(b, f->norm[TS_NORM_MLP_OUT], f->mlp, "dropout", y);
  return ts_model_add(b, ts_model_inside(f->mlp, "add").text, sum, y);
}

/* sqrt (hidden_size) in the type of the weights, as transformers multiplies. */
static double embedding_scale(const ts_deck *deck, const ts_family *f) {
  if (!f->scaled_embedding) {
    return deck->model.embedding_multiplier;
  }
  float root = (float) sqrt((double) deck->model.hidden_size), rounded; /* which is as wide as any of them */
  ts_convert(&rounded, ts_deck_dtype(deck), &root, TS_F32, 1);
  ts_convert(&root, TS_F32, &rounded, ts_deck_dtype(deck), 1);
  return root;
}

static ts_tid embed(ts_model_builder *b, const ts_deck *deck, ts_tid *table) {
  const ts_family *f = b->family;
  ts_model_unit(b, "%s", f->embedding);
  *table = ts_model_matrix(b, b->model->vocab_size);
  ts_tid x = multiply(b, "scale", ts_model_embedding(b, *table, b->input_ids), embedding_scale(deck, f));
  if (f->positions != NULL) {
    ts_model_unit(b, "%s", f->positions);
    ts_tid positions = ts_model_embedding(b, ts_model_matrix(b, b->model->max_position_embeddings), b->positions);
    x = ts_model_add(b, "add", x, positions);
  }
  return ts_model_dropout(b, "drop", x, b->model->embd_pdrop);
}

void ts_model_decoder(const ts_deck *deck, ts_model_use use, ts_model_size size, ts_graph *g) {
  const ts_deck_model *m = &deck->model;
  ts_model_builder b = ts_model_begin(deck, use, size, g);
  ts_tid table, x = embed(&b, deck, &table);
  for (int64_t i = 0; i < m->num_hidden_layers; ++i) {
    ts_model_unit(&b, "%s.%lld", b.family->layers, (long long) i);
    x = add_layer(&b, i, x);
  }
  ts_model_unit(&b, "%s", b.family->final_norm);
  ts_model_head(&b, x, m->tie_word_embeddings ? table : TS_NONE, normalise);
  ts_leaves_drop(&b.base.leaves);
}
