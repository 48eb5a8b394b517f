#include "model/layer.h"

#include "family/family.h"

#include <string.h>

/* Every n-th layer is another than the rest. */
static bool is_nth(int64_t i, int64_t n) {
  return n > 0 && (i + 1) % n == 0;
}

static bool is_rotary(const ts_deck_model *m, const ts_family *f, int64_t i) {
  if (f->positions != NULL || !ts_family_has(f, "no_rope_layers")) {
    return f->positions == NULL;
  }
  return i < m->no_rope_layers.n ? m->no_rope_layers.items[i] != 0 : !is_nth(i, m->no_rope_layer_interval);
}

static bool has_window(const ts_deck_model *m, const ts_family *f, int64_t i) {
  if (f->windows == TS_WINDOW_NONE || (ts_family_has(f, "use_sliding_window") && !m->use_sliding_window)) {
    return false;
  }
  if (f->windows == TS_WINDOW_ALL) {
    return true;
  }
  if (i < m->layer_types.n) {
    return strcmp(m->layer_types.items[i], "sliding_attention") == 0;
  }
  return f->windows == TS_WINDOW_UPPER     ? i >= m->max_window_layers
         : f->windows == TS_WINDOW_EVEN    ? i % 2 == 0 && i < m->max_window_layers
         : f->windows == TS_WINDOW_PATTERN ? !is_nth(i, m->sliding_window_pattern)
                                           : !is_rotary(m, f, i);
}

static bool has_experts(const ts_deck_model *m, const ts_family *f, int64_t i) {
  bool has = f->router != NULL && is_nth(i, m->decoder_sparse_step) && i >= m->first_k_dense_replace;
  for (int k = 0; has && k < m->mlp_only_layers.n; ++k) {
    has = m->mlp_only_layers.items[k] != i;
  }
  return has;
}

/* Of DeepSpeed's layers. */
static int64_t experts_of(const ts_deck_moe *moe, int64_t i) {
  int64_t at = moe->layers.n == 0 && is_nth(i, 2) ? i / 2 : -1;
  for (int k = 0; k < moe->layers.n; ++k) {
    at = moe->layers.items[k] == i ? k : at;
  }
  return at < 0 ? 0 : moe->num_experts.items[moe->num_experts.n > 1 ? at : 0];
}

ts_layer ts_model_layer(const ts_deck *deck, int64_t i) {
  const ts_deck_model *m = &deck->model;
  const ts_family *f = ts_deck_family(deck);
  bool window = has_window(m, f, i);
  return (ts_layer){.window = window ? m->sliding_window : 0,
                    .rotary = is_rotary(m, f, i),
                    .experts = deck->moe.num_experts.n > 0 ? experts_of(&deck->moe, i)
                               : has_experts(m, f, i)      ? m->num_experts
                                                           : 0,
                    .local_rotary = window && ts_family_has(f, "rope_local")};
}

ts_rope ts_model_rope(const ts_deck_model *m, const ts_layer *layer) {
  const ts_deck_rope *r = layer->local_rotary ? &m->rope_local : &m->rope_scaling;
  bool is_longrope = strcmp(r->rope_type, "longrope") == 0 || strcmp(r->rope_type, "su") == 0; /* its first name */
  return (ts_rope){.rope_type = is_longrope ? "longrope" : r->rope_type,
                   .theta = layer->local_rotary ? m->rope_local_base_freq : m->rope_theta,
                   .factor = is_longrope && r->factor == 1 ? 0 : r->factor, /* it has another default */
                   .low_freq_factor = r->low_freq_factor,
                   .high_freq_factor = r->high_freq_factor,
                   .attention_factor = r->attention_factor,
                   .beta_fast = r->beta_fast,
                   .beta_slow = r->beta_slow,
                   .mscale = r->mscale,
                   .mscale_all_dim = r->mscale_all_dim,
                   .truncate = r->truncate,
                   .original_max_position_embeddings = r->original_max_position_embeddings,
                   .max_position_embeddings = m->max_position_embeddings,
                   .short_factor = r->short_factor.items,
                   .long_factor = r->long_factor.items,
                   .n_short = r->short_factor.n,
                   .n_long = r->long_factor.n};
}
