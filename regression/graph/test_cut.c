/* Dividing an op's work along an index: the shares' results are the whole's, put together or added up.  For every op
 * that has such a rule, and every index of it, on 2 and 3 ranks with unequal shares; where units have parts, also with
 * each unit on two ranks. */
#include "graph/op.h"
#include "regression/kernel_run.h"
#include "regression/tap.h"

typedef struct type {
  ts_dtype dtype;
  ts_shape shape;
} type;

typedef struct cut_case {
  ts_op op;
  const char *what;
  type in[RUN_MAX], out[RUN_MAX]; /* ended by an empty shape; an absent input is NONE */
  ts_attr attr;
  const char *can, *cannot; /* indices */
} cut_case;

#define F(...) \
  { TS_F32, TS_SHAPE(__VA_ARGS__) }
#define D(...) \
  { TS_F64, TS_SHAPE(__VA_ARGS__) }
#define I(...) \
  { TS_I32, TS_SHAPE(__VA_ARGS__) }
#define L(...) \
  { TS_I64, TS_SHAPE(__VA_ARGS__) }
#define X F(4, 3, 8)
#define NONE  \
  {           \
    TS_F32, { \
      .n = -1 \
    }         \
  }
enum { IDS = 3 }; /* what integers are below: rows of tables, documents */

#define HEADS(p)                                                                                                     \
  {                                                                                                                  \
    .attention = {.heads = 8, .kv_heads = 4, .head_dim = 2, .scale = 0.5f, .causal = true, .dropout = p, .name = 3 } \
  }
#define CAPPED                                                                                                         \
  {                                                                                                                    \
    .attention = {.heads = 8, .kv_heads = 4, .head_dim = 2, .scale = 0.5f, .softcap = 1, .causal = true, .window = 2 } \
  }
#define Q F(4, 3, 16)
#define LSE F(4, 8, 3)
/* three query heads for a key head, and documents, seed and sample */
#define THREES(...)    \
  {                    \
    .attention = {     \
      .heads = 6,      \
      .kv_heads = 2,   \
      .head_dim = 2,   \
      .scale = 0.5f,   \
      .causal = true,  \
      .dropout = 0.5f, \
      .name = 3,       \
      .first_head = 6, \
      __VA_ARGS__      \
    }                  \
  }
#define Q6 F(4, 3, 12)
#define K2 F(4, 3, 4)
#define RANDOM I(4, 3), L(1), L(4)

/* likewise, 3 of 9 tokens and 4 keys */
#define PARTS THREES(.length = 9, .queries = {2, {{1, 1}, {7, 2}}}, .keys = {2, {{0, 2}, {6, 2}}})
#define K4 F(4, 4, 4)
#define LSE6 F(4, 6, 3)

static const int64_t part_size[] = {3, 5};
static const ts_interval intervals[] = {{5, 3}, {0, 2}};
static const double frequency[] = {1, 0.1};
#define TURNS(width, times)                                                             \
  {                                                                                     \
    .rope = {.head_dim = 4, .rotated = width, .frequency = frequency, .factor = times } \
  }

#define MLP(...)           \
  {                        \
    .mlp = { __VA_ARGS__ } \
  }

/* Five of nine tokens, in two stretches. */
#define PICKED                                            \
  {                                                       \
    .pick = {.tokens = {2, {{1, 2}, {5, 3}}}, .rows = 5 } \
  }

static const cut_case cases[] = {
    {TS_OP_ADD, "", {X, X}, {X}, {{0}}, "01c*", "2xC"},
    {TS_OP_ADD, "of two dimensions", {F(6, 8), F(6, 8)}, {F(6, 8)}, {{0}}, "0c", "1"},
    {TS_OP_MULTIPLY, "", {X, X}, {X}, {{0}}, "01c*", "2xC"},
    {TS_OP_BIAS, "", {X, F(8)}, {X}, {{0}}, "01c*", "2"},
    {TS_OP_CAST, "", {X}, {X}, {.cast = {TS_F32}}, "01c*", "2"},
    {TS_OP_ACCUMULATE, "", {X, X, F(1)}, {X}, {{0}}, "01c", ""},
    {TS_OP_SCALE, "", {X}, {X}, {.scale = {0.5f, 0}}, "01c*", ""},
    {TS_OP_ACTIVATION, "", {X}, {X}, {.activation = {TS_ACTIVATION_GELU}}, "01c*", ""},
    {TS_OP_ACTIVATION_DX, "", {X, X}, {X}, {.activation = {TS_ACTIVATION_GELU}}, "01c", ""},
    {TS_OP_ACTIVATION, "of rows", {F(12, 8), I(IDS + 1)}, {F(12, 8)}, {{0}}, "c", "MF01*"},
    {TS_OP_ACTIVATION_DX, "of rows", {F(12, 8), F(12, 8), I(IDS + 1)}, {F(12, 8)}, {{0}}, "c", "MF01*"},
    {TS_OP_GLU, "", {X, X}, {X}, {.activation = {TS_ACTIVATION_SILU}}, "01c*", ""},
    {TS_OP_GLU, "of rows", {F(12, 8), F(12, 8), I(4)}, {F(12, 8)}, {.activation = {TS_ACTIVATION_SILU}}, "c", "MF01*"},
    {TS_OP_GLU_DX, "", {X, X, X}, {X, X}, {.activation = {TS_ACTIVATION_SILU}}, "01c", ""},
    {TS_OP_DROPOUT, "", {X, L(1), L(4)}, {X}, {.dropout = {0.5f, 7}}, "b*", "tc"},
    {TS_OP_DROPOUT, "of rows", {F(7, 8), L(1), L(3)}, {F(7, 8)}, {.dropout = {0.5f, 7, 2, 3}}, "0", "c"},
    {TS_OP_DROPOUT, "of rows in two dimensions", {X, L(1), L(4)}, {X}, {.dropout = {0.5f, 7, 0, 3}}, "", "01c"},
    {TS_OP_MATMUL, "a b", {X, F(8, 6)}, {F(4, 3, 6)}, {.matmul = {false, false, TS_F32}}, "01kn*", "m"},
    {TS_OP_MATMUL, "a b^T + bias", {X, F(6, 8), F(6)}, {F(4, 3, 6)}, {.matmul = {false, true, TS_F32}}, "01n*", "k"},
    {TS_OP_MATMUL, "a^T b", {X, F(4, 3, 6)}, {F(8, 6)}, {.matmul = {true, false, TS_F32}}, "01mn", "k"},
    {TS_OP_MATMUL,
     "a^T b of other leading dimensions",
     {X, F(12, 6)},
     {F(8, 6)},
     {.matmul = {true, false, TS_F32}},
     "mn",
     "01"},
    {TS_OP_MATMUL_GELU, "", {X, F(8, 6), F(6)}, {F(4, 3, 6), F(4, 3, 6)}, {.matmul = {false, false, TS_F32}}, "", "k"},
    {TS_OP_MATMUL_DGELU, "", {X, F(8, 6), X}, {X}, {.matmul = {false, false, TS_F32}}, "", "k"},
    {TS_OP_SUM_ROWS, "", {X}, {F(8)}, {.sum_rows = {TS_F32}}, "01c*", ""},
    {TS_OP_MLP, "", {X, NONE, NONE, F(8, 6), F(6), F(6, 5), NONE}, {F(4, 3, 5)}, MLP(.rows = 2), "01f*", "cd"},
    {TS_OP_MLP,
     "gated, with all biases",
     {X, F(6, 8), F(6), F(6, 8), F(6), F(5, 6), F(5)},
     {F(4, 3, 5)},
     MLP(.rows = 5, .transpose_b = true),
     "01*",
     "cdf"},
    {TS_OP_MLP,
     "fused",
     {X, NONE, NONE, F(12, 8), NONE, F(5, 6), NONE},
     {F(4, 3, 5)},
     MLP(.rows = 5, .transpose_b = true, .fused = true),
     "01*",
     "cdfg"},
    {TS_OP_MLP_DX,
     "gated",
     {F(4, 3, 5), X, F(6, 8), F(6), F(6, 8), F(6), F(5, 6), NONE},
     {X, F(6, 8), F(6), F(6, 8), F(6), F(5, 6)},
     MLP(.rows = 5, .transpose_b = true, .dtype = TS_F32),
     "01f*",
     "cd"},
    {TS_OP_MLP_DX,
     "fused, with all biases",
     {F(4, 3, 5), X, NONE, NONE, F(12, 8), F(12), F(5, 6), F(5)},
     {X, F(12, 8), F(12), F(5, 6), F(5)},
     MLP(.rows = 5, .transpose_b = true, .fused = true, .dtype = TS_F32),
     "01*",
     "cdfg"},
    {TS_OP_EMBEDDING, "", {F(IDS, 8), I(4, 3)}, {X}, {{0}}, "01cv*", ""},
    {TS_OP_EMBEDDING, "of some rows", {F(IDS, 8), I(4, 3)}, {X}, {.embedding = {.first = 1}}, "01cv*", ""},
    {TS_OP_EMBEDDING_DW, "", {X, I(4, 3)}, {F(IDS, 8)}, {.embedding = {IDS, TS_F32}}, "btcv", ""},
    {TS_OP_PICK, "", {X, I(4)}, {F(4, 1, 8)}, {{0}}, "btc", "p01*"},
    {TS_OP_PICK, "of a mask", {X, I(4, 3)}, {F(4, 1, 8)}, {{0}}, "btc", "mp01*"},
    {TS_OP_PICK, "of some tokens", {F(4, 5, 8), I(4, 9)}, {F(4, 1, 8)}, PICKED, "btc", "mp01*"},
    {TS_OP_PICK_DX, "", {F(4, 1, 8), I(4)}, {F(4, 5, 8)}, PICKED, "btc", "mp01*"},
    {TS_OP_PICK_DX, "of a mask", {F(4, 1, 8), I(4, 9)}, {F(4, 5, 8)}, PICKED, "btc", "mp01*"},
    {TS_OP_NORMALIZE, "", {X}, {X, F(4, 3)}, {.norm = {.eps = 1e-5f}}, "01*", "Cc"},
    {TS_OP_NORMALIZE_DX, "", {X, X, F(4, 3)}, {X}, {.norm = {.eps = 1e-5f}}, "01*", "Cc"},
    {TS_OP_ROUTE, "", {X, F(8)}, {F(4, 3, 2), I(4, 3, 2)}, {.route = {.k = 2, .scale = 1}}, "01*", "EK2"},
    {TS_OP_ROUTE_DX, "", {F(4, 3, 2), X, I(4, 3, 2)}, {X}, {.route = {.k = 2, .scale = 1}}, "01*", "EK2"},
    {TS_OP_ROUTE,
     "by noised logits",
     {X, NONE, NONE, X},
     {F(4, 3, 2), I(4, 3, 2)},
     {.route = {.k = 2, .scale = 1}},
     "01*",
     "EK2"},
    {TS_OP_ROUTE_LIMIT,
     "",
     {F(4, 3, 2), I(4, 3, 2), F(4, 3, 2)},
     {F(4, 3, 2), I(4, 3, 2)},
     {.limit = {.experts = IDS, .factor = 0.5f}},
     "",
     "01*K"},
    {TS_OP_ROUTE_LIMIT_DX,
     "",
     {F(4, 3, 2), F(4, 3, 2), I(4, 3, 2)},
     {F(4, 3, 2)},
     {.limit = {.experts = IDS, .normalize = true}},
     "01*",
     "K2"},
    {TS_OP_ROUTE_EXCESS, "", {I(4, 3, 2), I(4, 3)}, {F(8)}, {.experts = {.n = 8}}, "01*", "EK"},
    {TS_OP_ROUTE_LOADS, "", {X, I(4, 3, 2), I(4, 3)}, {F(1, 19)}, {.loads = {1, 12}}, "", "01*EKGS"},
    {TS_OP_ROUTE_LOADS_DX, "", {F(1, 19), X, I(4, 3)}, {X}, {.loads = {1, 12}}, "", "01*EGS"},
    {TS_OP_BALANCE_LOSS, "", {F(2, 19), F(2, 19)}, {D(1)}, {.balance = {1, 0.1f, 0.1f}}, "", "AGS"},
    {TS_OP_BALANCE_LOSS_DX, "", {F(1), F(2, 19)}, {F(2, 19)}, {.balance = {1, 0.1f, 0.1f}}, "", "AGS"},
    {TS_OP_DISPATCH, "", {I(4, 3, 2)}, {I(24), I(4, 3, 2), I(IDS + 1)}, {.experts = {IDS}}, "", "01*KMF"},
    {TS_OP_TAKE_ROWS, "", {X, I(24), I(4, 3, 2), I(IDS + 1), F(4, 3, 2)}, {F(24, 8)}, {{0}}, "c", "01*KMF"},
    {TS_OP_COMBINE, "", {F(24, 8), I(24), I(4, 3, 2), I(IDS + 1), F(4, 3, 2)}, {X}, {{0}}, "c", "01*KMF"},
    {TS_OP_COMBINE_DOTS, "", {X, F(24, 8), I(4, 3, 2), I(IDS + 1)}, {F(4, 3, 2)}, {{0}}, "c", "01*KMF"},
    {TS_OP_GROUPED, "", {F(12, 8), F(IDS, 8, 5), I(IDS + 1)}, {F(12, 5)}, {{0}}, "cf", "MEG01*"},
    {TS_OP_GROUPED,
     "turned",
     {F(12, 8), F(IDS, 5, 8), I(IDS + 1)},
     {F(12, 5)},
     {.matmul = {.transpose_b = true}},
     "cf",
     "MEG01*"},
    {TS_OP_BLEND, "", {X, X, F(4, 3, 2)}, {X}, {{0}}, "01c*", "K2"},
    {TS_OP_BLEND_DX, "", {X, X, X, F(4, 3, 2)}, {X, X, F(4, 3, 2)}, {{0}}, "01*", "CKc2"},
    {TS_OP_GROUPED_BIAS, "", {F(12, 8), F(IDS, 8), I(IDS + 1)}, {F(12, 8)}, {{0}}, "f", "MEG01*"},
    {TS_OP_GROUPED_SUM, "", {F(12, 8), I(IDS + 1)}, {F(IDS, 8)}, {.sum_rows = {TS_F32}}, "f", "MEG01*"},
    {TS_OP_GROUPED_DW, "", {F(12, 5), F(12, 8), I(IDS + 1)}, {F(IDS, 5, 8)}, {{0}}, "cf", "MEG01*"},
    {TS_OP_SOFT_LOSS, "", {X, X}, {F(4, 3), F(4, 3), F(4, 3)}, {.soft = {2}}, "01*", "Cc2"},
    {TS_OP_SOFT_LOSS_DX, "", {F(4, 3), X, X, F(4, 3), F(4, 3)}, {X}, {.soft = {2}}, "01*", "Cc2"},
    {TS_OP_LOSS, "", {F(4, 3)}, {D(1), D(1)}, {{0}}, "01*", "2c"},
    {TS_OP_LOSS, "of a mask", {X, I(4, 3, 8)}, {D(1), D(1)}, {{0}}, "012", "3c"},
    {TS_OP_LOSS_DX, "", {F(1)}, {F(4, 3)}, {.loss = {TS_SHAPE(4, 3), TS_F32}}, "01", "2*"},
    {TS_OP_LOSS_DX, "of a mask", {F(1), I(4, 3)}, {F(4, 3)}, {.loss = {TS_SHAPE(4, 3), TS_F32}}, "01", "2*"},
    {TS_OP_SPLIT, "", {X}, {F(4, 3, 3), F(4, 3, 5)}, {.split = {1, part_size}}, "01", "2c"},
    {TS_OP_SPLIT, "by groups", {F(2, 3, 32)}, {F(2, 3, 12), F(2, 3, 20)}, {.split = {4, part_size}}, "01g", "2c"},
    {TS_OP_CONCAT, "", {F(4, 3, 3), F(4, 3, 5)}, {X}, {.concat = {1}}, "01", "2c"},
    {TS_OP_CONCAT, "by groups", {F(2, 3, 12), F(2, 3, 20)}, {F(2, 3, 32)}, {.concat = {4}}, "01g", "2c"},
    {TS_OP_TAKE, "", {X}, {F(4, 3, 5)}, {.take = {2, 8, 2, intervals}}, "01", "23c"},
    {TS_OP_TAKE, "of rows", {F(8, 6)}, {F(5, 6)}, {.take = {0, 8, 2, intervals}}, "1", "0"},
    {TS_OP_PLACE, "", {F(4, 5, 3)}, {F(4, 9, 3)}, {.take = {1, 9, 2, intervals}}, "02", "1"},
    {TS_OP_LAYERNORM, "", {X, F(8), F(8)}, {X, F(4, 3), F(4, 3)}, {.norm = {.eps = 1e-5f}}, "01*", "Cc"},
    {TS_OP_LAYERNORM_DX, "", {X, X, F(8), F(4, 3), F(4, 3)}, {X}, {{0}}, "01", "C"},
    {TS_OP_LAYERNORM_DW, "", {X, X, F(4, 3), F(4, 3)}, {F(8), F(8)}, {.norm = {.dtype = TS_F32}}, "01", "C"},
    {TS_OP_RMSNORM, "", {X, F(8)}, {X, F(4, 3)}, {.norm = {.eps = 1e-5f}}, "01*", "C"},
    {TS_OP_RMSNORM_DX, "", {X, X, F(8), F(4, 3)}, {X}, {{0}}, "01", "C"},
    {TS_OP_RMSNORM,
     "of heads, with an offset",
     {F(4, 3, 5, 6), F(6)},
     {F(4, 3, 5, 6), F(4, 3, 5)},
     {.norm = {.eps = 1e-5f, .offset = 1}},
     "012",
     "C3"},
    {TS_OP_RMSNORM_DX,
     "of heads, with an offset",
     {F(4, 3, 5, 6), F(4, 3, 5, 6), F(6), F(4, 3, 5)},
     {F(4, 3, 5, 6)},
     {.norm = {.offset = 1}},
     "012",
     "C3"},
    {TS_OP_RMSNORM_DW,
     "of heads",
     {F(4, 3, 5, 6), F(4, 3, 5, 6), F(4, 3, 5)},
     {F(6)},
     {.norm = {.dtype = TS_F32}},
     "012",
     "C3"},
    {TS_OP_RMSNORM, "of some columns", {X, F(8), F(4, 3)}, {X, F(4, 3)}, {.norm = {1, TS_F32, 0, 50}}, "01*", "Cc"},
    {TS_OP_RMSNORM_DX,
     "of some columns",
     {X, X, F(8), F(4, 3), F(4, 3)},
     {X},
     {.norm = {.offset = 1, .width = 20}},
     "01c",
     "C"},
    {TS_OP_RMSNORM_DX, "of all columns", {X, X, F(8), F(4, 3), F(4, 3)}, {X}, {{0}}, "01", "Cc"},
    {TS_OP_ROW_SQUARES, "", {X}, {F(4, 3)}, {{0}}, "01c*", "2"},
    {TS_OP_ROW_DOTS, "", {X, X, F(8)}, {F(4, 3)}, {.norm = {.offset = 1}}, "01c", "2"},
    {TS_OP_RMSNORM_DW, "", {X, X, F(4, 3)}, {F(8)}, {.norm = {.dtype = TS_F32}}, "01", "C"},
    {TS_OP_ROPE, "", {Q, I(4, 3)}, {Q}, TURNS(4, 1), "bth", ""},
    {TS_OP_ROPE, "of a part", {Q, I(4, 3)}, {Q}, TURNS(2, 1.25), "bth", ""},
    {TS_OP_ATTENTION, "", {Q, X, X, I(4, 3)}, {Q, LSE}, HEADS(0), "bh", "t"},
    {TS_OP_ATTENTION, "with dropout", {Q, X, X, RANDOM}, {Q, LSE}, HEADS(0.5f), "bh", "t"},
    {TS_OP_ATTENTION_DX, "with dropout", {Q, Q, X, X, Q, LSE, RANDOM}, {Q, X, X}, HEADS(0.5f), "bh", "t"},
    {TS_OP_ATTENTION, "of threes", {Q6, K2, K2, RANDOM}, {Q6, F(4, 6, 3)}, THREES(), "bh", "t"},
    {TS_OP_ATTENTION_DX, "of threes", {Q6, Q6, K2, K2, Q6, F(4, 6, 3), RANDOM}, {Q6, K2, K2}, THREES(), "bh", "t"},
    {TS_OP_ATTENTION, "of parts", {Q6, K4, K4, I(4, 9), L(1), L(4)}, {Q6, LSE6}, PARTS, "bh", "t"},
    {TS_OP_ATTENTION_DX, "of parts", {Q6, Q6, K4, K4, Q6, LSE6, I(4, 9), L(1), L(4)}, {Q6, K4, K4}, PARTS, "bh", "t"},
    {TS_OP_ATTENTION_DX,
     "of parts by delta",
     {Q6, Q6, K4, K4, NONE, LSE6, I(4, 9), L(1), L(4), LSE6},
     {Q6, K4, K4},
     PARTS,
     "bh",
     "t"},
    {TS_OP_ATTENTION_DELTA, "", {Q6, Q6}, {LSE6}, THREES(), "bh", "t"},
    {TS_OP_ATTENTION_MERGE, "", {Q6, LSE6, Q6, LSE6}, {Q6, LSE6}, THREES(), "bh", "t"},
    {TS_OP_ATTENTION, "in a window with a softcap", {Q, X, X}, {Q, LSE}, CAPPED, "bh", "t"},
    {TS_OP_ATTENTION_DX, "in a window with a softcap", {Q, Q, X, X, Q, LSE}, {Q, X, X}, CAPPED, "bh", "t"},
    {TS_OP_ATTENTION_CACHED,
     "",
     {F(4, 5, 8), F(4, 5, 8), Q, X, X, I(4)},
     {F(4, 5, 8), F(4, 5, 8), Q},
     HEADS(0),
     "bh",
     "t"},
    {TS_OP_ATTENTION_DX, "", {Q, Q, X, X, Q, LSE}, {Q, X, X}, HEADS(0), "bh", "t"},
    {TS_OP_HEAD_LOSS, "", {X, F(IDS, 8), I(4, 3)}, {D(1), D(1)}, {.head = {TS_F32, 1, 0}}, "01*", "vc"},
    {TS_OP_HEAD_LOSS_DX, "", {X, F(IDS, 8), I(4, 3), F(1)}, {X, F(IDS, 8)}, {.head = {TS_F32, 1, 0}}, "01*", "vc"},
    {TS_OP_HEAD_STATS, "", {X, F(IDS, 8), I(4, 3)}, {F(4, 3, 2)}, {.head = {TS_F32, 1, 0}}, "01*", "vcp"},
    {TS_OP_HEAD_LOSS,
     "of shares",
     {X, F(IDS, 8), I(4, 3), F(2, 4, 3, 2)},
     {D(1), D(1)},
     {.head = {TS_F32, 1, 0}},
     "01",
     "vcrp"},
    {TS_OP_HEAD_LOSS_DX,
     "of shares",
     {X, F(IDS, 8), I(4, 3), F(1), F(2, 4, 3, 2)},
     {X, F(IDS, 8)},
     {.head = {TS_F32, 1, 0}},
     "01v",
     "crp"},
    {TS_OP_HEAD_LOSS_TRAIN,
     "",
     {X, F(IDS, 8), I(4, 3), F(1)},
     {D(1), D(1), X, F(IDS, 8)},
     {.head = {TS_F32, 1, 0}},
     "01*",
     "vc"},
    {TS_OP_SUM_SQUARES, "", {F(8)}, {D(1)}, {{0}}, "", "c0"},
};

static const ts_backend *backend;

/* What a new version of an input begins as; else what is not written shows, but of rows that need not be. */
static void begin_output(run_case *run, int i) {
  bool rows = ts_node_extent(&(ts_node){.op = run->op, .n_in = run->n_in}) >= 0;
  if (i < ts_op_get(run->op)->n_inplace) {
    memcpy(run->out[i].data, run->in[i].data, run_bytes(&run->out[i]));
  } else {
    memset(run->out[i].data, rows ? 0 : 0x5a, run_bytes(&run->out[i]));
  }
}

static run_case make(const cut_case *c) {
  run_case run = {.op = c->op, .attr = c->attr, .threads = 1};
  for (int i = 0; i < RUN_MAX && c->in[i].shape.n != 0; ++i, ++run.n_in) {
    if (c->in[i].shape.n < 0) {
      continue;
    }
    bool real = c->in[i].dtype == TS_F32;
    run.in[i] =
        real ? run_random(TS_F32, c->in[i].shape, (uint64_t) (i + 1), 1) : run_new(c->in[i].dtype, c->in[i].shape);
    for (int64_t k = 0; k < run_count(&run.in[i]) && !real; ++k) {
      run_set(&run.in[i], k, (double) (k * k % IDS));
    }
  }
  for (int i = 0; i < RUN_MAX && c->out[i].shape.n > 0; ++i, ++run.n_out) {
    run.out[i] = run_new(c->out[i].dtype, c->out[i].shape);
    begin_output(&run, i);
  }
  return run;
}

/* Elements before the cut dimension and behind it. */
static void extents(const run_tensor *x, int dim, int64_t *outer, int64_t *inner) {
  *outer = *inner = 1;
  for (int i = 0; i < x->shape.n; ++i) {
    *outer *= i < dim ? x->shape.d[i] : 1;
    *inner *= i > dim ? x->shape.d[i] : 1;
  }
}

static ts_share share_of_units(const ts_cut *cut, int64_t first, int64_t units) {
  return (ts_share){units, first, units * cut->parts, first * cut->parts};
}

static ts_share share_of_parts(const ts_cut *cut, int64_t first_part, int64_t parts) {
  TS_ASSERT(parts > 0 && first_part % cut->parts + parts <= cut->parts);
  return (ts_share){1, first_part / cut->parts, parts, first_part};
}

static ts_interval slice_share(const ts_slice *slice, const ts_share *share) {
  TS_ASSERT(slice->dim >= 0);
  if (slice->parts == 1) {
    return (ts_interval){share->first * slice->unit, share->units * slice->unit};
  }
  int64_t part = slice->unit / slice->parts;
  return (ts_interval){share->first_part * part, share->parts * part};
}

/* What a share has of a tensor: all of one that does not have the index. */
static ts_interval interval_of(const ts_slice *slice, const ts_share *share) {
  return slice->dim < 0 ? (ts_interval){0, 1} : slice_share(slice, share);
}

static run_tensor take(const run_tensor *x, const ts_slice *slice, const ts_share *share) {
  if (x->data == NULL) {
    return *x;
  }
  int64_t outer, inner, whole = slice->dim < 0 ? 1 : x->shape.d[slice->dim];
  extents(x, slice->dim, &outer, &inner);
  ts_interval some = interval_of(slice, share);
  ts_shape shape = x->shape;
  if (slice->dim >= 0) {
    shape.d[slice->dim] = some.length;
  }
  run_tensor part = run_new(x->dtype, shape);
  size_t size = ts_dtype_size(x->dtype) * (size_t) inner;
  for (int64_t o = 0; o < outer; ++o) {
    memcpy((char *) part.data + (size_t) (o * some.length) * size,
           (char *) x->data + (size_t) (o * whole + some.begin) * size, (size_t) some.length * size);
  }
  return part;
}

/* Add a share's result to what it is of in the whole; new versions, which ranks may both have, are put there. */
static void add_part(const run_tensor *part, const run_tensor *whole, const ts_slice *slice, const ts_share *share,
                     bool version, double *sum) {
  int64_t outer, inner, extent = slice->dim < 0 ? 1 : whole->shape.d[slice->dim];
  extents(whole, slice->dim, &outer, &inner);
  ts_interval some = interval_of(slice, share);
  for (int64_t i = 0; i < run_count(part); ++i) {
    int64_t o = i / inner / some.length, at = o * extent + some.begin + i / inner % some.length;
    double *to = &sum[at * inner + i % inner];
    *to = version ? run_get(part, i) : *to + run_get(part, i);
  }
}

static void run_part(const run_case *whole, const ts_cut *cut, const ts_share *share, double **sum) {
  run_case part = {.op = whole->op, .attr = whole->attr, .n_in = whole->n_in, .n_out = whole->n_out, .threads = 1};
  if (cut->localise != NULL) {
    cut->localise(&part.attr, share);
  }
  for (int i = 0; i < whole->n_in; ++i) {
    part.in[i] = whole->in[i].data == NULL ? (run_tensor){0} : take(&whole->in[i], &cut->in[i], share);
  }
  for (int i = 0; i < whole->n_out; ++i) {
    part.out[i] = take(&whole->out[i], &cut->out[i], share);
    begin_output(&part, i);
  }
  run_kernel(backend, &part);
  for (int i = 0; i < whole->n_out; ++i) {
    bool version = i < ts_op_get(whole->op)->n_inplace;
    add_part(&part.out[i], &whole->out[i], &cut->out[i], share, version, sum[i]);
  }
  run_free(&part);
}

/* Shares of the whole units, the last with what is left. */
static int share_units(const ts_cut *cut, int ranks, ts_share *share) {
  for (int r = 0; r < ranks; ++r) {
    int64_t each = cut->units / ranks, n = r + 1 < ranks ? each : cut->units - each * (ranks - 1);
    share[r] = share_of_units(cut, r * each, n);
  }
  return ranks;
}

/* Two shares of each unit, the first larger in every other unit where it can be. */
static int share_parts(const ts_cut *cut, ts_share *share) {
  for (int u = 0; u < cut->units; ++u) {
    int64_t first = u * cut->parts, n = u % 2 == 0 ? (cut->parts + 1) / 2 : cut->parts / 2;
    share[2 * u] = share_of_parts(cut, first, n);
    share[2 * u + 1] = share_of_parts(cut, first + n, cut->parts - n);
  }
  return (int) (2 * cut->units);
}

/* The largest difference of the shares' results together from the whole's. */
static double run_shares(const run_case *whole, const ts_cut *cut, int n, const ts_share *share) {
  double *sum[RUN_MAX], worst = 0;
  for (int i = 0; i < whole->n_out; ++i) {
    sum[i] = ts_calloc((size_t) run_count(&whole->out[i]), sizeof **sum);
  }
  for (int r = 0; r < n; ++r) {
    run_part(whole, cut, &share[r], sum);
  }
  for (int i = 0; i < whole->n_out; ++i) {
    for (int64_t k = 0; k < run_count(&whole->out[i]); ++k) {
      worst = fmax(worst, fabs(sum[i][k] - run_get(&whole->out[i], k)));
    }
    ts_free(sum[i]);
  }
  return worst;
}

static double run_parts(const run_case *whole, const ts_cut *cut) {
  ts_share share[16];
  double worst = run_shares(whole, cut, share_units(cut, 2, share), share);
  worst = fmax(worst, run_shares(whole, cut, share_units(cut, cut->units < 3 ? 1 : 3, share), share));
  return cut->parts == 1 ? worst : fmax(worst, run_shares(whole, cut, share_parts(cut, share), share));
}

/* Rows are cut where samples and tokens are one dimension. */
static void join_rows(run_tensor *x, ts_slice *slice) {
  if (slice->dim == 0) {
    x->shape.d[1] *= x->shape.d[0];
    x->shape.d[0] = 1;
    slice->dim = 1;
  }
}

static void join_all_rows(run_case *whole, ts_cut *cut) {
  if (whole->op == TS_OP_DROPOUT) {
    whole->attr.dropout.length = whole->in[0].shape.d[1];
  }
  for (int i = 0; i < whole->n_in; ++i) {
    join_rows(&whole->in[i], &cut->in[i]);
  }
  for (int i = 0; i < whole->n_out; ++i) {
    join_rows(&whole->out[i], &cut->out[i]);
  }
}

/* Sums of at most 24 products of normal numbers: a few dozen times 2^-24 each, in another order. */
enum { ROUNDINGS = 256 };

static void test_case(const cut_case *c) {
  run_case whole = make(c);
  run_state state;
  const char *name = ts_op_get(c->op)->name;
  ts_cut cut;
  if (backend->kernel(c->op)->run == NULL) {
    run_free(&whole);
    return;
  }
  run_begin(backend, &whole, &state);
  run_go(&state);
  for (const char *index = c->can; *index != '\0'; ++index) {
    bool can = ts_node_cut(&state.graph, &state.node, *index, &cut);
    if (can && *index == '*') { /* the last */
      join_all_rows(&whole, &cut);
    }
    double worst = can ? run_parts(&whole, &cut) : INFINITY;
    tap_ok(worst <= ROUNDINGS * 0x1p-24, "%s %s: cut along %c (off by %.1e)", name, c->what, *index, worst);
  }
  for (const char *index = c->cannot; *index != '\0'; ++index) {
    tap_ok(!ts_node_cut(&state.graph, &state.node, *index, &cut), "%s %s: whole along %c", name, c->what, *index);
  }
  tap_ok(run_end(&state), "%s %s: stays inside its workspace", name, c->what);
  run_free(&whole);
}

/* An op whose rule has letters has a case above. */
static void test_coverage(ts_op op) {
  const ts_op_info *info = ts_op_get(op);
  bool listed = false;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    listed = listed || cases[i].op == op;
  }
  tap_ok(listed || info->index(&(ts_node){.op = op})[0] == '\0', "%s has a case here, or no letters", info->name);
}

int main(void) {
  backend = ts_backend_cpu();
  for (int op = 0; op < TS_N_OPS; ++op) {
    test_coverage((ts_op) op);
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    test_case(&cases[i]);
  }
  tap_ok(ts_memory_live() == 0, "nothing leaked");
  return tap_done();
}
