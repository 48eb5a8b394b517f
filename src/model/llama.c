/* Llama (Touvron et al. 2023), names as in LlamaForCausalLM: pre-norm blocks with RMSNorm, rotary positions, grouped
 * query heads, SwiGLU, weights stored [out][in]. */
#include "model/parts.h"

#include <string.h>

typedef struct scaling_row {
  const char *name;
  int value;
} scaling_row;

static const scaling_row scalings[] = {
    {"default", TS_ROPE_DEFAULT}, {"llama3", TS_ROPE_LLAMA3}, {"linear", TS_ROPE_LINEAR}, {NULL, 0}};

static int find_scaling(const char *name) {
  const scaling_row *row = scalings;
  while (row->name != NULL && strcmp(row->name, name) != 0) {
    ++row;
  }
  TS_ASSERT(row->name != NULL);
  return row->value;
}

static ts_tid rope(ts_model_builder *b, const char *base, ts_tid x) {
  const ts_deck_rope *r = &b->model->rope_scaling;
  ts_model_name name = ts_model_name_of(b, base);
  return ts_graph_add(
      b->at, &(ts_node){.op = TS_OP_ROPE,
                        .name = name.text,
                        .n_in = 2,
                        .in = (ts_tid[]){x, b->positions},
                        .beta = TS_NONE,
                        .attr = {.rope = {.head_dim = (int) b->model->head_dim,
                                          .scaling = find_scaling(r->rope_type),
                                          .theta = b->model->rope_theta,
                                          .factor = r->factor,
                                          .low_freq_factor = r->low_freq_factor,
                                          .high_freq_factor = r->high_freq_factor,
                                          .original_max_position = (double) r->original_max_position_embeddings}}});
}

static ts_tid llama_attention(ts_model_builder *b, ts_tid x) {
  const ts_deck_model *m = b->model;
  int64_t heads = m->num_attention_heads * m->head_dim, kv_heads = m->num_key_value_heads * m->head_dim;
  ts_tid q = ts_model_linear(b, "self_attn.q_proj", x, heads, m->attention_bias, true);
  ts_tid k = ts_model_linear(b, "self_attn.k_proj", x, kv_heads, m->attention_bias, true);
  ts_tid v = ts_model_linear(b, "self_attn.v_proj", x, kv_heads, m->attention_bias, true);
  q = rope(b, "self_attn.q_rope", q);
  k = rope(b, "self_attn.k_rope", k);
  ts_tid o = ts_model_attention(b, "self_attn", q, k, v);
  return ts_model_linear(b, "self_attn.o_proj", o, m->hidden_size, m->attention_bias, true);
}

static ts_tid llama_mlp(ts_model_builder *b, ts_tid x) {
  const ts_deck_model *m = b->model;
  ts_tid gate = ts_model_linear(b, "mlp.gate_proj", x, m->intermediate_size, m->mlp_bias, true);
  ts_tid up = ts_model_linear(b, "mlp.up_proj", x, m->intermediate_size, m->mlp_bias, true);
  ts_tid y = ts_model_op(b, TS_OP_SWIGLU, "mlp.act", 2, (ts_tid[]){gate, up});
  return ts_model_linear(b, "mlp.down_proj", y, m->hidden_size, m->mlp_bias, true);
}

static void llama_build(const ts_deck *deck, ts_model_use use, int64_t batch, int64_t length, ts_graph *g) {
  const ts_deck_model *m = &deck->model;
  ts_model_builder b = ts_model_begin(deck, use, batch, length, m->attn_pdrop, g);
  ts_model_unit(&b, "model.embed_tokens");
  ts_tid table = ts_model_matrix(&b, m->vocab_size);
  ts_tid x = ts_model_embedding(&b, table, b.input_ids);
  for (int64_t i = 0; i < m->num_hidden_layers; ++i) {
    ts_model_unit(&b, "model.layers.%lld", (long long) i);
    x = ts_model_add(&b, "self_attn.add", x, llama_attention(&b, ts_model_rmsnorm(&b, "input_layernorm", x)));
    x = ts_model_add(&b, "mlp.add", x, llama_mlp(&b, ts_model_rmsnorm(&b, "post_attention_layernorm", x)));
  }
  ts_model_unit(&b, "model.norm");
  ts_model_head(&b, x, m->tie_word_embeddings ? table : TS_NONE, ts_model_rmsnorm);
}

/* LlamaPreTrainedModel._init_weights. */
static ts_init llama_init(const ts_deck *deck, const char *parameter) {
  if (ts_model_ends_in(parameter, ".bias")) {
    return (ts_init){TS_INIT_ZERO, 0};
  }
  if (ts_model_ends_in(parameter, "norm.weight")) {
    return (ts_init){TS_INIT_ONE, 0};
  }
  return (ts_init){TS_INIT_NORMAL, deck->model.initializer_range};
}

static const char *const prefixes[] = {"model.", "module.", NULL};
static const char *const buffers[] = {".rotary_emb.inv_freq", NULL};

const ts_model_family ts_model_llama = {.name = "llama",
                                        .build = llama_build,
                                        .init = llama_init,
                                        .embedding = "model.embed_tokens.weight",
                                        .prefixes = prefixes,
                                        .buffers = buffers};
