/* GPT-2 (Radford et al. 2019), names as in GPT2LMHeadModel: pre-norm blocks, learned positions, GELU by tanh, weights
 * of the blocks stored [in][out], the head tied to the token embedding. */
#include "model/parts.h"

#include "ops/build.h"

#include <math.h>
#include <string.h>

static ts_tid gpt2_attention(ts_model_builder *b, ts_tid x) {
  int64_t c = b->model->hidden_size;
  ts_tid qkv = ts_model_linear(b, "attn.c_attn", x, 3 * c, true, false);
  ts_tid q = ts_build_split(b->at, ts_model_name_of(b, "attn.split").text, qkv, 3, (int64_t[]){c, c, c});
  ts_tid o = ts_model_attention(b, "attn", q, q + 1, q + 2);
  o = ts_model_linear(b, "attn.c_proj", o, c, true, false);
  return ts_model_dropout(b, "attn.resid_dropout", o, b->model->resid_pdrop);
}

static ts_tid gpt2_mlp(ts_model_builder *b, ts_tid x) {
  x = ts_model_linear(b, "mlp.c_fc", x, b->model->intermediate_size, true, false);
  x = ts_model_op(b, TS_OP_GELU, "mlp.act", 1, &x);
  x = ts_model_linear(b, "mlp.c_proj", x, b->model->hidden_size, true, false);
  return ts_model_dropout(b, "mlp.dropout", x, b->model->resid_pdrop);
}

static void gpt2_build(const ts_deck *deck, ts_model_use use, int64_t batch, int64_t length, ts_graph *g) {
  const ts_deck_model *m = &deck->model;
  double dropout = fmax(m->embd_pdrop, fmax(m->attn_pdrop, m->resid_pdrop));
  ts_model_builder b = ts_model_begin(deck, use, batch, length, dropout, g);
  ts_model_unit(&b, "transformer.wte");
  ts_tid table = ts_model_matrix(&b, m->vocab_size);
  ts_tid tokens = ts_model_embedding(&b, table, b.input_ids);
  ts_model_unit(&b, "transformer.wpe");
  ts_tid positions = ts_model_embedding(&b, ts_model_matrix(&b, m->max_position_embeddings), b.positions);
  ts_tid x = ts_model_add(&b, "add", tokens, positions);
  x = ts_model_dropout(&b, "drop", x, m->embd_pdrop);
  for (int64_t i = 0; i < m->num_hidden_layers; ++i) {
    ts_model_unit(&b, "transformer.h.%lld", (long long) i);
    x = ts_model_add(&b, "attn.add", x, gpt2_attention(&b, ts_model_layernorm(&b, "ln_1", x)));
    x = ts_model_add(&b, "mlp.add", x, gpt2_mlp(&b, ts_model_layernorm(&b, "ln_2", x)));
  }
  ts_model_unit(&b, "transformer.ln_f");
  ts_model_head(&b, x, m->tie_word_embeddings ? table : TS_NONE, ts_model_layernorm);
}

/* GPT2PreTrainedModel._init_weights: the projections back into the residual stream are narrower with depth. */
static ts_init gpt2_init(const ts_deck *deck, const char *parameter) {
  double std = deck->model.initializer_range;
  if (ts_model_ends_in(parameter, ".bias")) {
    return (ts_init){TS_INIT_ZERO, 0};
  }
  if (strstr(parameter, ".ln_") != NULL) {
    return (ts_init){TS_INIT_ONE, 0};
  }
  if (ts_model_ends_in(parameter, ".c_proj.weight")) {
    std /= sqrt(2.0 * (double) deck->model.num_hidden_layers);
  }
  return (ts_init){TS_INIT_NORMAL, std};
}

static const char *const prefixes[] = {"transformer.", "module.", NULL};
static const char *const buffers[] = {".attn.bias", ".attn.masked_bias", NULL}; /* the causal mask */

const ts_model_family ts_model_gpt2 = {.name = "gpt2",
                                       .build = gpt2_build,
                                       .init = gpt2_init,
                                       .embedding = "transformer.wte.weight",
                                       .prefixes = prefixes,
                                       .buffers = buffers};
