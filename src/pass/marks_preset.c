/* Tables of which weights are cut how: DeepSpeed's presets and Hugging Face's styles. */
#include "base/memory.h"
#include "base/text.h"
#include "deck/parallel_words.h"
#include "family/family.h"
#include "pass/marks_rules.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- how the cut dimension is made up ---- */

typedef enum ts_tp_form {
  FORM_PLAIN,
  FORM_HEADS, /* Whole heads. */
  FORM_QKV,   /* Queries, keys and values in one, as the family has them. */
  FORM_HALVES /* Gate and up in one. */
} ts_tp_form;

static int64_t cut_extent(const ts_tp_query *q, const ts_tp_mark *mark) {
  return mark->style == TS_TP_ROW ? q->in : q->out;
}

static ts_status fit_plain(const ts_tp_query *q, const char *key, ts_tp_mark *mark) {
  (void) q;
  (void) key;
  (void) mark;
  return TS_OK;
}

/* The extent that the model's sizes do not explain. */
static ts_status unfit(const ts_tp_query *q, const char *key, const ts_tp_mark *mark, const char *expected) {
  return ts_deck_error(q->deck, key, q->err,
                       "%s has %lld %s, which are not %s; accepted: an entry of partition_config.layer_specs for it",
                       q->name, (long long) cut_extent(q, mark), mark->style == TS_TP_ROW ? "inputs" : "outputs",
                       expected);
}

static ts_status fit_heads(const ts_tp_query *q, const char *key, ts_tp_mark *mark) {
  mark->unit = q->deck->model.head_dim;
  return cut_extent(q, mark) % mark->unit == 0 ? TS_OK : unfit(q, key, mark, "whole heads of model.head_dim");
}

static ts_status fit_qkv(const ts_tp_query *q, const char *key, ts_tp_mark *mark) {
  const ts_deck_model *m = &q->deck->model;
  int64_t queries = m->num_attention_heads * m->head_dim, keys = m->num_key_value_heads * m->head_dim;
  if (cut_extent(q, mark) != queries + 2 * keys) {
    return unfit(q, key, mark, "the queries, keys and values of the model's heads");
  }
  if (ts_family_find(m->model_type)->qkv_by_heads) {
    mark->unit = (queries + 2 * keys) / m->num_key_value_heads;
    return TS_OK;
  }
  mark->unit = m->head_dim;
  ts_tp_mark_blocks(mark, 3);
  mark->size[0] = queries;
  mark->size[1] = mark->size[2] = keys;
  return TS_OK;
}

static ts_status fit_halves(const ts_tp_query *q, const char *key, ts_tp_mark *mark) {
  int64_t extent = cut_extent(q, mark);
  if (extent % 2 != 0) {
    return unfit(q, key, mark, "two halves");
  }
  ts_tp_mark_blocks(mark, 2);
  mark->size[0] = mark->size[1] = extent / 2;
  return TS_OK;
}

static ts_status (*const fit_form[])(const ts_tp_query *, const char *, ts_tp_mark *) = {
    [FORM_PLAIN] = fit_plain, [FORM_HEADS] = fit_heads, [FORM_QKV] = fit_qkv, [FORM_HALVES] = fit_halves};

/* ---- presets ---- */

typedef struct ts_preset_row {
  const char *pattern;
  ts_tp_style style;
  ts_tp_form form;
} ts_preset_row;

#define END \
  { NULL, TS_TP_UNSPOKEN, FORM_PLAIN }
#define OUTPUT(name) \
  { ".*\\." name "\\.weight$", TS_TP_ROW, FORM_HEADS }
#define QKV(name) \
  { ".*\\." name "\\.weight$", TS_TP_COLUMN, FORM_QKV }
#define COLUMN(name) \
  { ".*\\." name "\\.weight$", TS_TP_COLUMN, FORM_PLAIN }
#define ROW(name) \
  { ".*\\." name "\\.weight$", TS_TP_ROW, FORM_PLAIN }
#define WHOLE(name) \
  { ".*\\." name "\\.weight$", TS_TP_WHOLE, FORM_PLAIN }
#define HEADS \
  { ".*\\.self_attn\\.[qkv]_proj\\.weight$", TS_TP_COLUMN, FORM_HEADS }
#define HALVES(name) \
  { ".*\\." name "\\.weight$", TS_TP_COLUMN, FORM_HALVES }

static const ts_preset_row llama_rows[] = {OUTPUT("self_attn\\.o_proj"), HEADS, ROW("mlp\\.down_proj"),
                                           COLUMN("mlp\\.(up|gate)_proj"), END};
/* GPT-NeoX calls it attention, and has it as Bloom does. */
static const ts_preset_row bloom_rows[] = {OUTPUT("(self_)?attention\\.dense"),
                                           QKV("(self_)?attention\\.query_key_value"), ROW("mlp\\.dense_4h_to_h"),
                                           COLUMN("mlp\\.dense_h_to_4h"), END};
static const ts_preset_row chatglm_rows[] = {OUTPUT("(self_)?attention\\.dense"),
                                             QKV("(self_)?attention\\.query_key_value"), ROW("mlp\\.dense_4h_to_h"),
                                             HALVES("mlp\\.dense_h_to_4h"), END};
static const ts_preset_row mixtral_rows[] = {OUTPUT("self_attn\\.o_proj"),
                                             HEADS,
                                             ROW("block_sparse_moe\\.experts\\.\\d+\\.w2"),
                                             COLUMN("block_sparse_moe\\.experts\\.\\d+\\.w[13]"),
                                             WHOLE("block_sparse_moe\\.gate"),
                                             END};
/* Latent attention: what is compressed is whole, and heads have widths of their own. */
static const ts_preset_row deepseek_rows[] = {ROW("self_attn\\.o_proj"),
                                              WHOLE("self_attn\\.(q_a_proj|kv_a_proj_with_mqa)"),
                                              COLUMN("self_attn\\.(q_b_proj|kv_b_proj)"),
                                              ROW("mlp\\.experts\\.\\d+\\.down_proj"),
                                              COLUMN("mlp\\.experts\\.\\d+\\.(up|gate)_proj"),
                                              WHOLE("mlp\\.gate"),
                                              ROW("mlp\\.shared_experts\\.down_proj"),
                                              COLUMN("mlp\\.shared_experts\\.(up|gate)_proj"),
                                              END};
static const ts_preset_row phi3_rows[] = {OUTPUT("self_attn\\.o_proj"), QKV("self_attn\\.qkv_proj"),
                                          ROW("mlp\\.down_proj"), HALVES("mlp\\.gate_up_proj"), END};
static const ts_preset_row no_rows[] = {END};

#define PRESET(word, rows) {#word, rows},
static const struct {
  const char *name;
  const ts_preset_row *rows;
} presets[] = {TS_TP_PRESETS(PRESET)};

static const ts_preset_row *rows_of(const char *name) {
  size_t i = 0, n = sizeof presets / sizeof *presets;
  while (i < n && strcmp(presets[i].name, name) != 0) {
    ++i;
  }
  TS_CHECK(i < n, "preset_model %s is accepted and has no rows", name);
  return presets[i].rows;
}

ts_status ts_tp_preset_find(const ts_tp_query *q, ts_tp_mark *mark) {
  const char *name = q->deck->tensor_parallel.preset_model;
  for (const ts_preset_row *row = rows_of(name); row->pattern != NULL; ++row) {
    if (ts_matches_from(row->pattern, q->name) == 1) {
      mark->style = row->style;
      snprintf(mark->rule, sizeof mark->rule, "preset_model %s", name);
      return fit_form[row->form](q, "tensor_parallel.preset_model", mark);
    }
  }
  return TS_OK;
}

/* ---- Hugging Face's plans ---- */

typedef struct ts_plan_style {
  const char *name;
  ts_tp_style style;
  ts_tp_form form;
  bool gather, tables; /* For embeddings too. */
} ts_plan_style;

#define STYLE(word, style, form, gather, tables) {#word, TS_TP_##style, FORM_##form, gather, tables},
static const ts_plan_style styles[] = {TS_TP_STYLES(STYLE)};

static const ts_plan_style *style_of(const char *name) {
  size_t i = 0, n = sizeof styles / sizeof *styles;
  while (i < n && strcmp(styles[i].name, name) != 0) {
    ++i;
  }
  TS_CHECK(i < n, "style %s is accepted and has no row", name);
  return &styles[i];
}

int ts_tp_plan_matches(const char *pattern, const char *name) {
  ts_text regex = {0};
  ts_text_add(&regex, "(.*\\.)?");
  for (const char *c = pattern; *c != '\0'; ++c) {
    ts_text_add(&regex, *c == '*' ? "\\d+" : isalnum((unsigned char) *c) || *c == '_' ? "%c" : "\\%c", *c);
  }
  ts_text_add(&regex, ts_ends_in(pattern, ".weight") ? "$" : "\\.weight$");
  int found = ts_matches_from(regex.text, name);
  ts_text_free(&regex);
  return found;
}

static bool is_table(const ts_tp_query *q) {
  const ts_family *family = ts_deck_family(q->deck);
  return family != NULL &&
         (ts_tp_is_weight_of(q->name, family->embedding) || ts_tp_is_weight_of(q->name, family->positions));
}

ts_status ts_tp_plan_find(const ts_tp_query *q, ts_tp_mark *mark) {
  const ts_deck_tp_plan *plan = &q->deck->tensor_parallel.tp_plan;
  int i = 0;
  while (i < plan->n && ts_tp_plan_matches(plan->items[i].pattern, q->name) != 1) {
    ++i;
  }
  if (i == plan->n) {
    return TS_OK;
  }
  const ts_plan_style *style = style_of(plan->items[i].style);
  char *key = ts_format("tensor_parallel.tp_plan[%d].style", i);
  ts_status status = TS_OK;
  mark->style = style->style;
  mark->gather_output = style->gather;
  snprintf(mark->rule, sizeof mark->rule, "tp_plan[%d]", i);
  if (is_table(q) && !style->tables) {
    status = ts_deck_error(q->deck, key, q->err,
                           "\"%s\" is for products, and %s is a table; accepted: embedding_rowwise, replicate",
                           style->name, q->name);
  } else {
    status = fit_form[style->form](q, key, mark);
  }
  ts_free(key);
  return status;
}
