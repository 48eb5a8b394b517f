/* The one builder: blocks of attention and an MLP as the family's row and the deck say. */
#include "base/memory.h"
#include "model/parts.h"
#include "model/rope.h"

#include "ops/build.h"

#include <math.h>
#include <string.h>

/* ---- pieces by the row ---- */

static bool is_biased(const ts_model_builder *b, ts_bias_rule rule) {
  return rule == TS_BIAS_ALL || (rule == TS_BIAS_ATTENTION && b->model->attention_bias) ||
         (rule == TS_BIAS_MLP && b->model->mlp_bias);
}

static ts_tid project(ts_model_builder *b, const char *name, ts_tid x, int64_t out, ts_bias_rule rule) {
  return ts_model_linear(b, name, x, out, is_biased(b, rule), !b->family->in_first);
}

static ts_tid normalise(ts_model_builder *b, const char *name, ts_tid x) {
  return b->family->norm_kind == TS_NORM_LAYER ? ts_model_layernorm(b, name, x) : ts_model_rmsnorm(b, name, x);
}

/* `name` in the part of the block that begins with `part`. */
static ts_model_name inside(const char *part, const char *name) {
  ts_model_name n;
  int length = snprintf(n.text, sizeof n.text, "%s.%s", part, name);
  TS_ASSERT(length > 0 && (size_t) length < sizeof n.text);
  return n;
}

/* ---- attention ---- */

static ts_rope rope_of(const ts_deck_model *m) {
  const ts_deck_rope *r = &m->rope_scaling;
  return (ts_rope){.rope_type = r->rope_type,
                   .theta = m->rope_theta,
                   .factor = r->factor,
                   .low_freq_factor = r->low_freq_factor,
                   .high_freq_factor = r->high_freq_factor,
                   .original_max_position_embeddings = r->original_max_position_embeddings};
}

static ts_tid rope(ts_model_builder *b, const char *base, ts_tid x) {
  int head = (int) b->model->head_dim;
  ts_rope how = rope_of(b->model);
  ts_attr attr = {.rope = {.head_dim = head, .rotated = head}};
  double *frequency = ts_malloc((size_t) (head / 2) * sizeof *frequency);
  ts_rope_frequencies(&how, head, b->length, frequency, &attr.rope.factor);
  attr.rope.frequency = frequency;
  ts_tid y = ts_graph_add(b->at, &(ts_node){.op = TS_OP_ROPE,
                                            .name = ts_model_name_of(b, inside(b->family->attention, base).text).text,
                                            .n_in = 2,
                                            .in = (ts_tid[]){x, b->positions},
                                            .beta = TS_NONE,
                                            .attr = attr});
  ts_free(frequency);
  return y;
}

static void make_qkv(ts_model_builder *b, ts_tid x, ts_tid qkv[3]) {
  const ts_family *f = b->family;
  const ts_deck_model *m = b->model;
  int64_t width = m->num_attention_heads * m->head_dim, kv_width = m->num_key_value_heads * m->head_dim;
  const int64_t widths[] = {width, kv_width, kv_width};
  if (f->qkv != NULL) {
    ts_tid all = project(b, f->qkv, x, width + 2 * kv_width, f->qkv_bias);
    ts_model_name name = ts_model_name_of(b, inside(f->attention, "split").text);
    qkv[0] = ts_build_split(b->at, name.text, all, 1, 3, widths);
    qkv[1] = qkv[0] + 1;
    qkv[2] = qkv[0] + 2;
    return;
  }
  const char *const names[] = {f->q, f->k, f->v};
  for (int i = 0; i < 3; ++i) {
    qkv[i] = project(b, names[i], x, widths[i], f->qkv_bias);
  }
}

static ts_tid attend(ts_model_builder *b, ts_tid x) {
  const ts_family *f = b->family;
  ts_tid qkv[3];
  make_qkv(b, x, qkv);
  if (f->positions == NULL) {
    qkv[0] = rope(b, "q_rope", qkv[0]);
    qkv[1] = rope(b, "k_rope", qkv[1]);
  }
  ts_tid o = ts_model_attention(b, f->attention, qkv[0], qkv[1], qkv[2]);
  o = project(b, f->o, o, b->model->hidden_size, f->o_bias);
  return ts_model_dropout(b, inside(f->attention, "resid_dropout").text, o, b->model->resid_pdrop);
}

/* ---- the MLP ---- */

static ts_tid think(ts_model_builder *b, ts_tid x) {
  const ts_family *f = b->family;
  int64_t inner = b->model->intermediate_size;
  ts_model_name act = inside(f->mlp, "act");
  ts_tid y;
  if (f->gate != NULL) {
    ts_tid gate = project(b, f->gate, x, inner, f->mlp_bias), up = project(b, f->up, x, inner, f->mlp_bias);
    y = ts_build_glu(b->at, ts_model_name_of(b, act.text).text, gate, up, TS_ACTIVATION_SILU);
  } else {
    y = project(b, f->up, x, inner, f->mlp_bias);
    y = ts_build_activation(b->at, ts_model_name_of(b, act.text).text, y, TS_ACTIVATION_GELU_TANH);
  }
  y = project(b, f->down, y, b->model->hidden_size, f->mlp_bias);
  return ts_model_dropout(b, inside(f->mlp, "dropout").text, y, b->model->resid_pdrop);
}

/* ---- the model ---- */

static ts_tid add_layer(ts_model_builder *b, ts_tid x) {
  const ts_family *f = b->family;
  ts_tid y = attend(b, normalise(b, f->norm[TS_NORM_ATTENTION_IN], x));
  x = ts_model_add(b, inside(f->attention, "add").text, x, y);
  y = think(b, normalise(b, f->norm[TS_NORM_MLP_IN], x));
  return ts_model_add(b, inside(f->mlp, "add").text, x, y);
}

static ts_tid embed(ts_model_builder *b, ts_tid *table) {
  const ts_family *f = b->family;
  ts_model_unit(b, "%s", f->embedding);
  *table = ts_model_matrix(b, b->model->vocab_size);
  ts_tid x = ts_model_embedding(b, *table, b->input_ids);
  if (f->positions != NULL) {
    ts_model_unit(b, "%s", f->positions);
    ts_tid positions = ts_model_embedding(b, ts_model_matrix(b, b->model->max_position_embeddings), b->positions);
    x = ts_model_add(b, "add", x, positions);
  }
  return ts_model_dropout(b, "drop", x, b->model->embd_pdrop);
}

void ts_model_decoder(const ts_deck *deck, ts_model_use use, int64_t batch, int64_t length, ts_graph *g) {
  const ts_deck_model *m = &deck->model;
  double dropout = fmax(m->embd_pdrop, fmax(m->attn_pdrop, m->resid_pdrop));
  ts_model_builder b = ts_model_begin(deck, use, batch, length, dropout, g);
  ts_tid table, x = embed(&b, &table);
  for (int64_t i = 0; i < m->num_hidden_layers; ++i) {
    ts_model_unit(&b, "%s.%lld", b.family->layers, (long long) i);
    x = add_layer(&b, x);
  }
  ts_model_unit(&b, "%s", b.family->final_norm);
  ts_model_head(&b, x, m->tie_word_embeddings ? table : TS_NONE, normalise);
}
