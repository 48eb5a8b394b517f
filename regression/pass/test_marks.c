/* Marks: who speaks of a weight first, shapes laid over weights, presets on the weights of real models, and what is
 * wrong with them. */
#include "pass/marks.h"

#include "base/random.h"
#include "model/model.h"
#include "regression/deck_fixture.h"

/* Four heads of 16, two of them with keys; one width that two does not divide twice. */
#define SIZES \
  "vocab_size = 67; hidden_size = 64; num_hidden_layers = 2; num_attention_heads = 4; max_position_embeddings = 32;"
#define MODEL(type, more) "model = { model_type = \"" type "\"; " SIZES more " };\n"
#define GROUPED " intermediate_size = 86; num_key_value_heads = 2;"
#define LLAMA MODEL("llama", GROUPED)
#define PHI3 MODEL("phi3", GROUPED)
#define GPT2 MODEL("gpt2", "")
#define NEOX MODEL("gpt_neox", " intermediate_size = 256;")
#define TP(keys) "tensor_parallel = { autotp_size = 2; " keys " };\n"
#define SPECS(entries) TP("partition_config = { layer_specs = ( " entries " ); };")
#define SPEC(keys) SPECS("{ " keys " }")
#define Q "model.layers.1.self_attn.q_proj.weight"
#define LAYER "model.layers.0."
#define QKV "model.layers.0.self_attn.qkv_proj.weight"

/* ---- a mark as a line ---- */

static char *mark_text(const ts_tp_mark *mark) {
  static const char *const names[] = {"unspoken", "column", "row", "whole"};
  ts_text text = {0};
  ts_text_add(&text, "%s", names[mark->style]);
  for (int i = 0; i < mark->n_sizes; ++i) {
    ts_text_add(&text, "%s%lld", i == 0 ? " " : "+", (long long) mark->size[i]);
  }
  if (mark->unit != 1) {
    ts_text_add(&text, " by %lld", (long long) mark->unit);
  }
  ts_text_add(&text, "%s%s%s", mark->gather_output ? " gathered" : "", *mark->rule != '\0' ? ": " : "", mark->rule);
  return text.text;
}

/* Expected: the mark's line, or a part of the message. */
static void mark_is(const char *text, const char *name, int64_t out, int64_t in, const char *expected) {
  ts_error err = {0};
  ts_tp_mark mark;
  ts_deck *deck = fixture_read("deck", text, NULL);
  ts_status status = ts_tp_mark_find(deck, name, out, in, &mark, &err);
  char *found = status == TS_OK ? mark_text(&mark) : ts_strdup(err.text);
  tap_ok(status == TS_OK ? strcmp(found, expected) == 0 : strstr(found, expected) != NULL, "%s: %s", name, expected);
  tap_note("%s", found);
  tap_ok(status == TS_OK || (mark.style == TS_TP_UNSPOKEN && mark.size == NULL && err.count == 1),
         "one message, and no mark with it");
  ts_free(found);
  ts_tp_mark_clear(&mark);
  ts_error_clear(&err);
  ts_deck_destroy(&deck);
}

/* ---- the order of the sources ---- */

#define ALL(specs, preset, plan, more)                                                                             \
  LLAMA TP("partition_config = { layer_specs = ( { patterns = \"" specs "\"; partition_type = \"row\"; } ); " more \
           " };\n preset_model = \"" preset "\"; tp_plan = ( { pattern = \"" plan "\"; style = \"replicate\"; } );")

static void test_order(void) {
  mark_is(ALL(".*q_proj", "llama", "q_proj", ""), Q, 64, 64, "row: partition_config.layer_specs[0]");
  mark_is(ALL(".*k_proj", "llama", "q_proj", ""), Q, 64, 64, "column by 16: preset_model llama");
  mark_is(ALL(".*k_proj", "none", "q_proj", ""), Q, 64, 64, "whole: tp_plan[0]");
  mark_is(ALL(".*k_proj", "none", "k_proj", ""), Q, 64, 64, "unspoken");
  mark_is(ALL(".*k_proj", "none", "k_proj", "strict_mode = true;"), Q, 64, 64,
          "good.cfg:2: tensor_parallel.partition_config.strict_mode: " Q
          " [64][64] is matched by no layer_specs, preset_model or tp_plan; accepted: a pattern for it");
  mark_is(ALL(".*k_proj", "llama", "q_proj", "strict_mode = true;"), Q, 64, 64, "column by 16: preset_model llama");
  mark_is(ALL(".*k_proj", "none", "q_proj", "strict_mode = true;"), Q, 64, 64, "whole: tp_plan[0]");
  mark_is(ALL(".*k_proj", "llama", "q_proj", "use_default_specs = false;"), Q, 64, 64,
          "whole: partition_config.use_default_specs");
  mark_is(ALL(".*q_proj", "llama", "q_proj", "use_default_specs = false; strict_mode = true;"), Q, 64, 64,
          "row: partition_config.layer_specs[0]");
  mark_is(ALL(".*k_proj", "llama", "q_proj", "use_default_specs = false; strict_mode = true;"), Q, 64, 64,
          "[64][64] is matched by no layer_specs; accepted");
  mark_is(ALL(".*k_proj", "none", "k_proj", "use_default_specs = false; strict_mode = true;"), "model.norm.weight", 64,
          0, "unspoken");
}

/* Embedding, head and positions. */
static void test_tables(void) {
  static const char *const strict = "partition_config = { use_default_specs = false; strict_mode = true; };";
  char *strict_deck = ts_format("%stensor_parallel = { autotp_size = 2; %s };\n", GPT2, strict);
  mark_is(LLAMA TP(""), "model.embed_tokens.weight", 67, 64, "column: vocab_parallel_lm_head");
  mark_is(LLAMA TP(""), "lm_head.weight", 67, 64, "column: vocab_parallel_lm_head");
  mark_is(LLAMA TP("vocab_parallel_lm_head = false;"), "lm_head.weight", 67, 64, "whole: vocab_parallel_lm_head");
  mark_is(LLAMA TP("vocab_parallel_lm_head = false;"), "model.embed_tokens.weight", 67, 64,
          "whole: vocab_parallel_lm_head");
  mark_is(NEOX TP(""), "embed_out.weight", 67, 64, "column: vocab_parallel_lm_head");
  mark_is(strict_deck, "transformer.wte.weight", 67, 64, "column: vocab_parallel_lm_head");
  mark_is(strict_deck, "transformer.wpe.weight", 32, 64, "whole: family");
  mark_is(strict_deck, "transformer.h.0.attn.c_attn.weight", 192, 64,
          "strict_mode: transformer.h.0.attn.c_attn.weight");
  mark_is(LLAMA SPEC("patterns = \"lm_head\"; gather_output = true;"), "lm_head.weight", 67, 64,
          "column gathered: partition_config.layer_specs[0]");
  ts_free(strict_deck);
}

/* ---- layer_specs ---- */

static void test_specs(void) {
  static const char *const two = LLAMA SPECS(
      "{ patterns = (\"x\", \".*\\\\.[qk]_proj\\\\.weight$\"); model_types = [\"Mistral\"]; partition_type = \"skip\"; "
      "},"
      "{ patterns = \".*\\\\.[qk]_proj\\\\.weight$\"; model_types = [\"phi3\", \"LLaMA\"]; gather_output = true; },"
      "{ patterns = \".*\"; partition_type = \"skip\"; gather_output = true; }");
  mark_is(two, Q, 64, 64, "column gathered: partition_config.layer_specs[1]");
  mark_is(two, "model.layers.1.self_attn.v_proj.weight", 32, 64, "whole: partition_config.layer_specs[2]");
  mark_is(LLAMA SPEC("patterns = \"self_attn\\\\.q_proj\";"), Q, 64, 64, "unspoken"); /* from the beginning */
  mark_is(LLAMA SPEC("patterns = \"(?i)MODEL.*Q_\";"), Q, 64, 64, "column: partition_config.layer_specs[0]");
  mark_is(LLAMA SPEC("patterns = \"x|model\";"), Q, 64, 64, "column: partition_config.layer_specs[0]");
  mark_is(LLAMA SPEC("patterns = \"x|q_proj\";"), Q, 64, 64, "unspoken");  /* both are */
  mark_is(LLAMA SPEC("patterns = \".*q_proj$\";"), Q, 64, 64, "unspoken"); /* the name ends in .weight */
  mark_is(LLAMA SPEC("patterns = \".*q_proj\"; partition_type = \"row\"; gather_output = true;"), Q, 64, 64,
          "row: partition_config.layer_specs[0]");
  mark_is(LLAMA SPEC("patterns = \".*q_proj\"; partition_type = \"skip\"; shape = (5, 7, -1);"), Q, 64, 64,
          "whole: partition_config.layer_specs[0]");
}

/* Expected: blocks and unit as in a mark's line, or a part of what is wrong. */
static const struct {
  const char *type, *shape;
  int dim;
  int64_t out, in;
  const char *expected;
} shapes[] = {
    {"column", "(3, -1)", 0, 192, 64, "column 64+64+64"},
    {"column", "(-1, 64)", 0, 192, 64, "column"},
    {"column", "(192, 64)", 0, 192, 64, "column"}, /* the extent is no number of blocks */
    {"column", "(4, 48, 64)", 0, 192, 64, "column by 48"},
    {"column", "(2, 48, 64)", 0, 192, 64, "column 96+96 by 48"},
    {"column", "((128, 32, 32), -1)", 0, 192, 64, "column 128+32+32"},
    {"column", "((128, 32, 32), 64)", 0, 192, 64, "column 128+32+32"},
    {"column", "((192), -1)", 0, 192, 64, "column"},
    {"column", "((5120, 1280, 1280), -1)", 0, 7680, 5120, "column 5120+1280+1280"},
    {"column", "(2, -1, 64)", 1, 172, 64, "column 86+86"},
    {"column", "(-1, 48, 64)", 0, 192, 64, "column by 48"},
    {"column", "(-1, 3, 16, 64)", 0, 192, 64, "column by 48"},
    {"column", "(4, 3, -1, 64)", 1, 192, 64, "are open"},
    {"column", "(4, (1, 2), -1, 64)", 1, 192, 64, "column 16+32+16+32+16+32+16+32 by 16"},
    {"column", "((8, 2, 2), -1, 64)", 0, 192, 64, "column 128+32+32 by 16"},
    {"column", "(3, 64, (32, 32))", 2, 192, 64,
     "partition_dim: 2 does not fit w [192][64]: a dimension of in, and a column"},
    {"column", "(-1, 1, 64)", 0, 192, 64, "column"},
    {"column", "(-1, 2, 64)", 1, 192, 64, "are open"},
    {"column", "(96, -1, 64)", 1, 192, 64, "it makes 96 blocks; accepted: at most 8"},
    {"column", "(2, 48, 64)", 1, 192, 64, "it makes 96 blocks; accepted: at most 8"},
    {"column", "(2, 96, 64)", 1, 192, 64, "column 96+96"},
    {"row", "(-1, 3)", 1, 64, 192, "row 64+64+64"},
    {"row", "(-1, (128, 32, 32))", 1, 64, 192, "row 128+32+32"},
    {"row", "(64, -1, 16)", 1, 64, 192, "row by 16"},
    {"column", "((64, 32), 64)", 0, 192, 64, "its extents make 6144 elements, the weight has 12288"},
    {"row", "(64, 1, 192)", 1, 64, 192, "row by 192"},
    {"column", "(192, (1), 64)", 1, 192, 64, "it makes 192 blocks; accepted: at most 8"},
    {"row", "(64, 2, -1)", 2, 64, 192, "row 96+96"},
    {"row", "(2, -1, 192)", 1, 64, 192, "partition_dim: 1 does not fit w [64][192]: a dimension of out, and a row"},
    {"row", "((8, 8), -1)", 0, 16, 9, "partition_dim: 0 does not fit w [16][9]: a dimension of out, and a row"},
    {"column", "(5, -1)", 0, 192, 64,
     "shape: (5, -1) does not fit w [192][64]: 192 along partition_dim are not 5 equal"},
    {"column", "(-1, 5, 64)", 0, 192, 64,
     "shape: (-1, 5, 64) does not fit w [192][64]: its extents make 320 x -1 elements, "
     "the weight has 12288"},
    {"column", "((100, 50), -1)", 0, 192, 64, "its extents make 150 x -1 elements"},
    {"column", "((128, 32), 64)", 0, 192, 64, "its extents make 10240 elements, the weight has 12288"},
    {"column", "((128, 64), -1)", 0, 192, 0x7fffffff, "column 128+64"},
    {"column", "((64), -1)", 0, 192, 64,
     "shape: ((64), -1) does not fit w [192][64]: its first dimensions must make out"},
    {"column", "(96, -1, 32)", 1, 192, 64, "its first dimensions must make out, and the rest in"},
    {"column", "(2147483647, -1, 2147483647, 2147483647)", 1, 192, 64, "more elements than can be counted"},
    {"column", "(100000, (1, 1), 64)", 1, 200000, 64, "it makes 200000 blocks; accepted: at most 8"},
    {"column", "(8, -1)", 0, 192, 64, "column 24+24+24+24+24+24+24+24"},
    {"column", "(9, -1)", 0, 198, 64, "it makes 9 blocks; accepted: at most 8"},
    {"column", "(70000, -1)", 0, 140000, 64, "it makes 70000 blocks; accepted: at most 8"},
};

static void test_shapes(void) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    char *text =
        ts_format("%stensor_parallel = { partition_config = { layer_specs = ( { patterns = \"w\"; partition_type "
                  "= \"%s\"; shape = %s; partition_dim = %d; } ); }; };\n",
                  LLAMA, shapes[i].type, shapes[i].shape, shapes[i].dim);
    ts_tp_mark mark;
    ts_error err = {0};
    ts_deck *deck = fixture_read(shapes[i].shape, text, NULL);
    ts_status status = ts_tp_mark_find(deck, "w", shapes[i].out, shapes[i].in, &mark, &err);
    char *found = status == TS_OK ? mark_text(&mark) : ts_strdup(err.text);
    int64_t sum = 0, cut = mark.style == TS_TP_ROW ? shapes[i].in : shapes[i].out;
    bool whole_units = cut % mark.unit == 0;
    for (int k = 0; k < mark.n_sizes; ++k) {
      sum += mark.size[k];
      whole_units = whole_units && mark.size[k] > 0 && mark.size[k] % mark.unit == 0;
    }
    tap_ok(strstr(found, shapes[i].expected) != NULL, "%s of %s %lld x %lld: %.80s", shapes[i].shape, shapes[i].type,
           (long long) shapes[i].out, (long long) shapes[i].in, found);
    tap_ok(status != TS_OK || (whole_units && (mark.n_sizes == 0 || sum == cut)),
           "blocks of whole units make the extent");
    ts_tp_mark_clear(&mark);
    ts_free(found);
    ts_error_clear(&err);
    ts_deck_destroy(&deck);
    ts_free(text);
  }
}

/* A view of small extents: of [out][in] the dimensions from `inputs` on are in. */
typedef struct view_case {
  int n, inputs, cut, blocks;
  int64_t extent[4], size[4];
  bool row;
} view_case;

static view_case random_view(uint64_t round, uint32_t *kind) {
  uint32_t r[4], e[4];
  ts_philox(3, round, 0, r);
  ts_philox(3, round, 1, e);
  view_case v = {.n = 2 + (int) (r[0] % 3), .row = r[1] % 2 == 1};
  v.inputs = 1 + (int) (r[2] % (uint32_t) (v.n - 1));
  v.cut = v.row ? v.inputs + (int) (r[3] % (uint32_t) (v.n - v.inputs)) : (int) (r[3] % (uint32_t) v.inputs);
  for (int d = 0; d < v.n; ++d) {
    v.extent[d] = 1 + e[d] % 4;
  }
  *kind = r[0] / 3 % 3;
  for (int64_t left = v.extent[v.cut]; left > 0; left -= v.size[v.blocks++]) {
    ts_philox(3, round, 2 + (uint32_t) v.blocks, r);
    v.size[v.blocks] = *kind == 0                 ? left
                       : *kind == 1               ? 1 + r[0] % (uint32_t) left
                       : v.extent[v.cut] % 2 == 0 ? 2
                                                  : left;
  }
  return v;
}

/* Which block an index along out (of a row: in) is in, by its coordinates. */
static int64_t block_of(const view_case *v, int64_t i, int64_t inner) {
  int64_t outer = i / (inner * v->extent[v->cut]), at = i / inner % v->extent[v->cut];
  int block = 0;
  for (; at >= v->size[block]; ++block) {
    at -= v->size[block];
  }
  return outer * v->blocks + block;
}

static int64_t extents_of(const view_case *v, int from, int to) {
  int64_t n = 1;
  for (int d = from; d < to; ++d) {
    n *= v->extent[d];
  }
  return n;
}

static bool is_as_counted(const view_case *v, const ts_tp_mark *mark) {
  int64_t length = v->row ? extents_of(v, v->inputs, v->n) : extents_of(v, 0, v->inputs);
  int64_t inner = extents_of(v, v->cut + 1, v->row ? v->n : v->inputs), at = 0;
  bool same = mark->unit == inner;
  for (int k = 0; k < (mark->n_sizes > 0 ? mark->n_sizes : 1) && same; ++k) {
    int64_t end = at + (mark->n_sizes > 0 ? mark->size[k] : length);
    for (int64_t i = at; i < end && same; ++i) {
      same = i < length && block_of(v, i, inner) == k;
    }
    at = end;
  }
  return same && at == length;
}

/* Views of all kinds against the definition. */
static void test_by_counting(void) {
  ts_deck *deck = fixture_read("deck", LLAMA SPEC("patterns = \"w\"; shape = (1, -1);"), NULL);
  ts_deck_tp_spec *spec = &deck->tensor_parallel.partition_config.layer_specs.items[0], kept = *spec;
  int wrong = 0;
  for (uint64_t round = 0; round < 3000; ++round) {
    uint32_t kind;
    view_case v = random_view(round, &kind);
    ts_deck_extent items[4] = {{0}};
    for (int d = 0; d < v.n; ++d) {
      items[d].count = d != v.cut ? v.extent[d] : kind == 0 ? -1 : v.blocks > 1 ? v.blocks : v.extent[d];
    }
    items[v.cut].sizes = kind == 1 ? (ts_ints){v.blocks, v.size} : (ts_ints){0};
    spec->shape = (ts_deck_view){v.n, items};
    spec->partition_dim = v.cut;
    spec->partition_type = v.row ? "row" : "column";
    ts_tp_mark mark;
    ts_status status =
        ts_tp_mark_find(deck, "w", extents_of(&v, 0, v.inputs), extents_of(&v, v.inputs, v.n), &mark, NULL);
    bool many = v.blocks * extents_of(&v, v.row ? v.inputs : 0, v.cut) > 8;
    wrong += many ? status != TS_BAD_INPUT : status != TS_OK || !is_as_counted(&v, &mark);
    ts_tp_mark_clear(&mark);
  }
  *spec = kept;
  ts_deck_destroy(&deck);
  tap_ok(wrong == 0, "3000 views are cut as their coordinates say (%d are not)", wrong);
}

/* ---- tp_plan ---- */

#define PLAN(pattern, style) TP("tp_plan = ( { pattern = \"" pattern "\"; style = \"" style "\"; } );")

static void test_plan(void) {
  static const struct {
    const char *style, *expected;
  } rows[] = {{"colwise", "column: tp_plan[0]"},
              {"colwise_rep", "column gathered: tp_plan[0]"},
              {"colwise_gather_output", "column gathered: tp_plan[0]"},
              {"packed_colwise", "column 86+86: tp_plan[0]"},
              {"rowwise", "row: tp_plan[0]"},
              {"rowwise_rep", "row: tp_plan[0]"},
              {"rowwise_split_input", "row: tp_plan[0]"},
              {"packed_rowwise", "row 32+32: tp_plan[0]"},
              {"embedding_rowwise", "column: tp_plan[0]"},
              {"replicate", "whole: tp_plan[0]"},
              {"replicated", "whole: tp_plan[0]"},
              {"replicated_with_grad_allreduce", "whole: tp_plan[0]"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *text =
        ts_format("%stensor_parallel = { tp_plan = ( { pattern = \"layers.*.mlp.gate_up_proj\"; style = \"%s\"; } "
                  "); };\n",
                  PHI3, rows[i].style);
    mark_is(text, "model.layers.11.mlp.gate_up_proj.weight", 172, 64, rows[i].expected);
    ts_free(text);
  }
  mark_is(LLAMA PLAN("model.layers.*.self_attn.q_proj.weight", "rowwise"), Q, 64, 64, "row: tp_plan[0]");
  mark_is(LLAMA PLAN("layers.1.self_attn.q_proj", "rowwise"), Q, 64, 64, "row: tp_plan[0]");
  mark_is(LLAMA PLAN("q_proj", "rowwise"), Q, 64, 64, "row: tp_plan[0]");
  mark_is(LLAMA PLAN("proj", "rowwise"), Q, 64, 64, "unspoken");               /* from a dot on */
  mark_is(LLAMA PLAN("layers.*.q_proj", "rowwise"), Q, 64, 64, "unspoken");    /* a number */
  mark_is(LLAMA PLAN("layers.*.self_attn", "rowwise"), Q, 64, 64, "unspoken"); /* to the end */
  mark_is(LLAMA PLAN("self.attn.q_proj", "rowwise"), Q, 64, 64, "unspoken");
  mark_is(LLAMA PLAN("self_attn\\\\.q_proj", "rowwise"), Q, 64, 64, "unspoken"); /* no expression */
  mark_is(LLAMA PLAN("embed_tokens", "embedding_rowwise"), "model.embed_tokens.weight", 67, 64, "column: tp_plan[0]");
  mark_is(
      LLAMA PLAN("embed_tokens", "colwise"), "model.embed_tokens.weight", 67, 64,
      "good.cfg:2: tensor_parallel.tp_plan[0].style: \"colwise\" is for products, and model.embed_tokens.weight is a "
      "table; accepted: embedding_rowwise, replicate");
  mark_is(LLAMA PLAN("lm_head", "packed_colwise"), "lm_head.weight", 67, 64,
          "tp_plan[0].style: lm_head.weight has 67 outputs, which are not two halves");
}

/* ---- the weights of real models ---- */

typedef struct weights {
  ts_graph *graph; /* Owns the names. */
  int n;
  ts_tp_weight items[64];
} weights;

static weights weights_of(const ts_deck *deck) {
  const ts_family *family = ts_family_find(deck->model.model_type);
  weights w = {.graph = ts_model_build(deck, TS_MODEL_LOSS, (ts_model_size){1, 8, 8})};
  for (ts_tid t = 0; t < w.graph->n_tensors; ++t) {
    const ts_tensor *x = &w.graph->tensor[t];
    if (x->role == TS_ROLE_PARAM && ts_ends_in(x->name, ".weight")) {
      bool table = ts_ends_in(x->name, "wte.weight") || ts_ends_in(x->name, "wpe.weight");
      bool turned = family->in_first && !table && x->shape.n == 2;
      w.items[w.n++] = (ts_tp_weight){x->name, x->shape.d[turned], x->shape.n == 2 ? x->shape.d[!turned] : 0};
    }
  }
  return w;
}

/* Of the weights of layer 0, in the order of the model; each is said once. */
static char *marks_of(const ts_deck *deck, const weights *w) {
  ts_text text = {0};
  for (int i = 0; i < w->n; ++i) {
    ts_error err = {0};
    ts_tp_mark mark;
    bool of_layer = strstr(w->items[i].name, ".0.") != NULL && w->items[i].columns_in > 0;
    const char *dot = strrchr(w->items[i].name, '.');
    while (dot > w->items[i].name && dot[-1] != '.') {
      --dot;
    }
    if (of_layer &&
        ts_tp_mark_find(deck, w->items[i].name, w->items[i].rows_out, w->items[i].columns_in, &mark, &err) == TS_OK) {
      *mark.rule = '\0';
      char *line = mark_text(&mark);
      ts_text_add(&text, "%s%.*s %s", text.length > 0 ? ", " : "", (int) strcspn(dot, "."), dot, line);
      ts_free(line);
      ts_tp_mark_clear(&mark);
    } else if (of_layer) {
      ts_text_add(&text, "%s", err.text);
    }
    ts_error_clear(&err);
  }
  return text.text;
}

#define LIKE_LLAMA                                                                                              \
  "q_proj column by 16, k_proj column by 16, v_proj column by 16, o_proj row by 16, gate_proj column, up_proj " \
  "column, "                                                                                                    \
  "down_proj row"
#define ATTENTION_ONLY                                                                                            \
  "q_proj column by 16, k_proj column by 16, v_proj column by 16, o_proj row by 16, gate_proj unspoken, up_proj " \
  "unspoken, down_proj unspoken"
#define LIKE_NEOX(up) "query_key_value column by 48, dense row by 16, dense_h_to_4h column" up ", dense_4h_to_h row"

static const struct {
  const char *preset, *model, *expected;
} on_models[] = {
    {"llama", LLAMA, LIKE_LLAMA},
    {"qwen2", LLAMA, LIKE_LLAMA},
    {"llama", MODEL("mistral", GROUPED), LIKE_LLAMA},
    {"qwen2", MODEL("qwen2", GROUPED), LIKE_LLAMA},
    {"llama", MODEL("qwen3", GROUPED " head_dim = 16;"), LIKE_LLAMA},
    {"llama", MODEL("gemma3_text", GROUPED " head_dim = 16;"), LIKE_LLAMA},
    {"mixtral", MODEL("mistral", GROUPED), ATTENTION_ONLY},
    {"deepseek_v2", LLAMA,
     "q_proj unspoken, k_proj unspoken, v_proj unspoken, o_proj row, gate_proj unspoken, up_proj unspoken, down_proj "
     "unspoken"},
    {"phi3", PHI3, "qkv_proj column 64+32+32 by 16, o_proj row by 16, gate_up_proj column 86+86, down_proj row"},
    {"phi3", MODEL("phi3", " intermediate_size = 86; num_key_value_heads = 4;"),
     "qkv_proj column 64+64+64 by 16, o_proj row by 16, gate_up_proj column 86+86, down_proj row"},
    {"llama", PHI3, "qkv_proj unspoken, o_proj row by 16, gate_up_proj unspoken, down_proj row"},
    {"bloom", NEOX, LIKE_NEOX("")},
    {"chatglm", NEOX, LIKE_NEOX(" 128+128")},
    {"llama", MODEL("starcoder2", GROUPED),
     "q_proj column by 16, k_proj column by 16, v_proj column by 16, o_proj row by 16, c_fc unspoken, c_proj unspoken"},
    {"bloom", GPT2, "c_attn unspoken, c_proj unspoken, c_fc unspoken, c_proj unspoken"},
};

static void test_presets(void) {
  for (size_t i = 0; i < sizeof on_models / sizeof *on_models; ++i) {
    char *set = ts_format("tensor_parallel={autotp_size=2;preset_model=\"%s\";}", on_models[i].preset);
    ts_deck *deck = fixture_read(on_models[i].preset, on_models[i].model, set);
    ts_error err = {0};
    weights w = weights_of(deck);
    char *found = marks_of(deck, &w);
    tap_ok(strcmp(found, on_models[i].expected) == 0, "%s on %s", on_models[i].preset, deck->model.model_type);
    tap_note("%s", found);
    bool knows = strstr(found, "column") != NULL || strstr(found, "row") != NULL;
    tap_ok((ts_tp_marks_check(deck, w.items, w.n, &err) == TS_OK) == knows, "wrong only if it knows no weight");
    ts_error_clear(&err);
    ts_graph_destroy(&w.graph);
    ts_free(found);
    ts_deck_destroy(&deck);
    ts_free(set);
  }
  mark_is(PHI3 TP("preset_model = \"phi3\";"), QKV, 130, 64,
          "good.cfg:2: tensor_parallel.preset_model: " QKV
          " has 130 outputs, which are not the queries, keys and values of "
          "the model's heads; accepted: an entry of partition_config.layer_specs");
  mark_is(LLAMA TP("preset_model = \"llama\";"), "model.layers.0.self_attn.o_proj.weight", 64, 60,
          "has 60 inputs, which are not whole heads");
  mark_is(LLAMA TP("preset_model = \"mixtral\";"), "model.layers.0.block_sparse_moe.experts.12.w2.weight", 64, 60,
          "row: preset_model mixtral");
  mark_is(LLAMA TP("preset_model = \"mixtral\";"), "model.layers.0.block_sparse_moe.gate.weight", 8, 64,
          "whole: preset_model mixtral");
  mark_is(LLAMA TP("preset_model = \"deepseek_v2\";"), "model.layers.0.self_attn.kv_b_proj.weight", 96, 8,
          "column: preset_model deepseek_v2");
}

/* ---- patterns that match nothing ---- */

static void check_is(const char *text, const char *first, const char *second) {
  ts_deck *deck = fixture_read("deck", text, NULL);
  weights w = weights_of(deck);
  ts_error err = {0};
  ts_status status = ts_tp_marks_check(deck, w.items, w.n, &err);
  const char *found = err.text != NULL ? err.text : "";
  tap_ok(status == (first != NULL ? TS_BAD_INPUT : TS_OK) && strstr(found, first != NULL ? first : "") != NULL &&
             strstr(found, second != NULL ? second : "") != NULL && err.count == (first != NULL) + (second != NULL),
         "%s", first != NULL ? first : "nothing is wrong");
  tap_note("%s", found);
  ts_error_clear(&err);
  ts_graph_destroy(&w.graph);
  ts_deck_destroy(&deck);
}

#define TIED MODEL("llama", GROUPED " tie_word_embeddings = true;")

/* Expressions that are given up on: for every name, and for those alone that do not match at once. */
static void test_endless(void) {
  check_is(LLAMA SPEC("patterns = \"^(([a-z._0-9]+)+)+Z|.*q_proj\";"),
           "good.cfg:2: tensor_parallel.partition_config.layer_specs[0].patterns: \"^(([a-z._0-9]+)+)+Z|.*q_proj\" "
           "takes too "
           "long to match model.embed_tokens.weight; accepted: an expression without nested repetitions",
           NULL);
  check_is(LLAMA SPEC("patterns = \".*(embed_tokens|q_proj)|(([a-z._0-9]+)+)+Z\";"),
           "takes too long to match " LAYER "input_layernorm.weight", NULL);
  check_is(LLAMA SPEC("patterns = (\".*[._].*[._].*[._].*q_proj\", \"(.*\\\\.)?([a-z_]+\\\\.)*q_proj\\\\.weight\");"),
           NULL, NULL);
}

static void test_check(void) {
  check_is(LLAMA TP(""), NULL, NULL);
  check_is(LLAMA SPECS("{ patterns = \".*q_proj\"; }, { patterns = (\".*norm.*\", \"lm_head\"); }"), NULL, NULL);
  check_is(LLAMA SPECS("{ patterns = \".*\"; }, { patterns = \".*q_proj\"; }"), NULL, NULL); /* shadowed, and there */
  check_is(
      LLAMA SPECS("{ patterns = (\".*q_proj\",\n \".*\\\\.self_attn\\\\.q_prj\\\\.weight$\"); },\n"
                  "{ patterns = \"lm_haed\\\\.weight\"; }"),
      "good.cfg:2: tensor_parallel.partition_config.layer_specs[0].patterns: "
      "\".*\\\\.self_attn\\\\.q_prj\\\\.weight$\" matches no weight; there is model.layers.0.self_attn.q_proj.weight",
      "good.cfg:4: tensor_parallel.partition_config.layer_specs[1].patterns: \"lm_haed\\\\.weight\" matches no weight; "
      "there is lm_head.weight");
  check_is(LLAMA SPEC("patterns = \"(((\\\\d{20}\\\\n)))\";"), "matches no weight; there is model.embed_tokens.weight",
           NULL);
  check_is(LLAMA SPEC("patterns = \"nothing\"; model_types = [\"phi3\"];"), NULL, NULL);
  check_is(LLAMA SPEC("patterns = \"q_proj\";"),
           "\"q_proj\" matches no weight; there is " LAYER "self_attn.q_proj.weight", NULL);
  check_is(LLAMA SPEC("patterns = \".*gate_prj\";"), "there is " LAYER "mlp.gate_proj.weight", NULL);
  check_is(
      LLAMA PLAN("layers.*.self_attn.q_norm", "replicated_with_grad_allreduce"),
      "good.cfg:2: tensor_parallel.tp_plan[0].pattern: \"layers.*.self_attn.q_norm\" matches no weight; there is " LAYER
      "self_attn.q_proj.weight",
      NULL);
  check_is(LLAMA PLAN("up_prj", "colwise"), "\"up_prj\" matches no weight; there is " LAYER "mlp.up_proj.weight", NULL);
  check_is(PHI3 PLAN("layers.*.mlp.gate_up_prj", "packed_colwise"), "there is " LAYER "mlp.gate_up_proj.weight", NULL);
  check_is(LLAMA PLAN("layers.1.mlp.up_prj.weight", "colwise"), "there is model.layers.1.mlp.up_proj.weight", NULL);
  check_is(MODEL("qwen3", GROUPED) PLAN("layers.*.self_attn.q_norm", "replicated_with_grad_allreduce"), NULL, NULL);
  check_is(LLAMA PLAN("lm_head", "colwise_gather_output"), NULL, NULL);
  check_is(TIED PLAN("lm_head", "colwise_gather_output"), NULL, NULL);
  check_is(TIED SPEC("patterns = \".*lm_head\\\\.weight$\";"), NULL, NULL);
  check_is(TIED PLAN("lm_haed", "colwise"),
           "tp_plan[0].pattern: \"lm_haed\" matches no weight; there is lm_head.weight", NULL);
  check_is(LLAMA PLAN("lm_haed", "colwise"), "there is lm_head.weight", NULL);
  check_is(LLAMA SPEC("patterns = \".*q_proj\"; shape = (5, -1);"),
           "layer_specs[0].shape: (5, -1) does not fit model.layers.0.self_attn.q_proj.weight [64][64]", NULL);
  check_is(GPT2 SPEC("patterns = \".*c_attn\"; shape = (3, -1);"), NULL, NULL);
  check_is(
      LLAMA SPEC("patterns = \".*layernorm\"; shape = (7, -1);"),
      "layer_specs[0].shape: model.layers.0.input_layernorm.weight is a vector, which is never cut; accepted: no shape",
      NULL);
  check_is(LLAMA SPEC("patterns = \".*norm\"; partition_type = \"skip\"; shape = (7, -1);"), NULL, NULL);
  check_is(GPT2 SPEC("patterns = \".*c_attn\"; shape = (3, -1, 64); partition_dim = 1;"), NULL, NULL);
  check_is(
      GPT2 TP("partition_config = { strict_mode = true; };"),
      "strict_mode: transformer.h.0.attn.c_attn.weight [192][64] is matched by no layer_specs, preset_model or tp_plan",
      NULL);
}

int main(void) {
  test_order();
  test_tables();
  test_specs();
  test_shapes();
  test_by_counting();
  test_plan();
  test_presets();
  test_check();
  test_endless();
  tap_ok(ts_memory_live() == 0, "nothing leaks (%lld live)", (long long) ts_memory_live());
  return tap_done();
}
