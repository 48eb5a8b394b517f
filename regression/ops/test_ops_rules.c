/* The rules of every op of ops.def: what the shape rule gives, what it refuses, index letters, FLOPs.
 *
 * A row is a good call.  The test then spoils one input at a time, its type or its last extent, and the rule must
 * refuse it, except where the row says that the op takes any. */
#include "base/memory.h"
#include "graph/attribute.h"
#include "graph/op.h"
#include "graph/record.h"
#include "regression/tap.h"

#include <math.h>
#include <string.h>

enum { MAX = 13 };

typedef struct type {
  ts_dtype dtype;
  ts_shape shape;
} type;

typedef struct op_case {
  ts_op op;
  const char *what;
  int n_in, n_out;
  type in[MAX];
  type out[MAX];
  ts_attr attr;
  /* masks of inputs of which any type, a longer or a shorter last extent is fine */
  unsigned any_type, any_longer, any_shorter;
  double flops;
} op_case;

#define X \
  { TS_F32, TS_SHAPE(2, 3, 8) }
#define NORMAL(...) \
  { TS_F32, TS_SHAPE(__VA_ARGS__) }
#define NARROW(...) \
  { TS_BF16, TS_SHAPE(__VA_ARGS__) }
#define WIDE(...) \
  { TS_F64, TS_SHAPE(__VA_ARGS__) }
#define INTS(...) \
  { TS_I32, TS_SHAPE(__VA_ARGS__) }
#define LONGS(...) \
  { TS_I64, TS_SHAPE(__VA_ARGS__) }
#define BYTES(...) \
  { TS_U8, TS_SHAPE(__VA_ARGS__) }
/* Two choices of each token of X, of seven experts. */
#define GATES NORMAL(6, 8), NORMAL(6, 8)
#define PLACES INTS(2, 3, 2), INTS(8)
#define CHOICES INTS(12), PLACES
#define STEP_NUMBERS LONGS(1), WIDE(2), NORMAL(1), NORMAL(2), NORMAL(1), NORMAL(1)
#define ALL (~0u)

static int64_t pack_offset[] = {0, 5}, split_size[] = {3, 5}, cuts[] = {0, 5, 8};
static double frequency[] = {1, 0.01};
static ts_interval intervals[] = {{5, 3}, {0, 2}};
static ts_range range[] = {{0, 5, 0, 1, 0}, {8, 12, 0, 1, 0}};
static ts_range some[] = {{0, 5, 0, 1, 0}, {5, 0, 0, 1, 0}, {8, 12, 0, 1, 0}};
static ts_matrix matrices[] = {{0, 2, 3, 2, 0}, {16, 3, 4, 1, 0}, {28, 3, 2, 1, 1}};

static const ts_crossing crossings[] = {{1, 1, TS_F32, 2, {3, 4}}, {0, 0, TS_F32, 1, {5}}};
static ts_piece piece[] = {{0, cuts, 0, 5}};
static ts_piece expert_cuts[] = {{0, (const int64_t[]){0, 2, 5}, 0, 5}},
                fewer_cuts[] = {{0, (const int64_t[]){0, 2, 4}, 0, 4}};
#define ROWS(of, n)                                                                         \
  {                                                                                         \
    .comm = {.axes = 2, .group = 2, .wire = TS_F32, .piece = of, .n_pieces = 1, .rows = n } \
  }
/* extents of two outputs; three blocks that leave two inputs; four that arrive, some in one place */
static ts_block blocks[] = {{.rows = {0, 3}, .columns = {0, 2}},
                            {.rows = {0, 2}, .columns = {0, 7}},
                            {0, 0, {0, 4}, {4, 2}},
                            {0, 1, {1, 1}, {0, 5}},
                            {1, 0, {1, 2}, {0, 6}},
                            {0, 0, {0, 1}, {0, 2}},
                            {0, 1, {0, 2}, {0, 7}},
                            {1, 0, {1, 2}, {0, 2}},
                            {1, 1, {0, 2}, {3, 4}}};

#define HEADS                                                                                                \
  {                                                                                                          \
    .attention = {.heads = 4, .kv_heads = 2, .head_dim = 2, .scale = 0.5f, .causal = true, .dropout = 0.1f } \
  }
#define TURNS(head, width, times)                                                          \
  {                                                                                        \
    .rope = {.head_dim = head, .rotated = width, .frequency = frequency, .factor = times } \
  }
#define HEADS_OF(...)                                                                    \
  {                                                                                      \
    .attention = {.heads = 4, .kv_heads = 4, .head_dim = 2, .scale = 0.5f, __VA_ARGS__ } \
  }
#define WINDOW(n) HEADS_OF(.softcap = 2, .causal = true, .window = n)
#define RANDOM INTS(2, 3), LONGS(1), LONGS(2)
#define CACHE NORMAL(2, 5, 4)
#define K NORMAL(2, 3, 4)
#define KEPT(n)                                                                                          \
  {                                                                                                      \
    .attention = {.heads = 4, .kv_heads = 2, .head_dim = 2, .scale = 0.5f, .causal = true, .window = n } \
  }

/* Query heads 5 to 8 of the whole, of which so many read one key head; queries and keys that are tokens of a sample. */
#define PARTS(each, tokens, mine, theirs, ...) \
  {                                            \
    .attention = {                             \
      .heads = 4,                              \
      .kv_heads = 2,                           \
      .head_dim = 2,                           \
      .scale = 0.5f,                           \
      .causal = true,                          \
      .first_head = 5,                         \
      .group = each,                           \
      .length = tokens,                        \
      .queries = mine,                         \
      .keys = theirs,                          \
      __VA_ARGS__                              \
    }                                          \
  }
#define MINE    \
  {             \
    2, {        \
      {1, 2}, { \
        8, 3    \
      }         \
    }           \
  }
#define THEIRS  \
  {             \
    2, {        \
      {0, 1}, { \
        7, 3    \
      }         \
    }           \
  }
#define BACK    \
  {             \
    2, {        \
      {5, 2}, { \
        4, 2    \
      }         \
    }           \
  }
#define EMPTY   \
  {             \
    2, {        \
      {0, 4}, { \
        7, 0    \
      }         \
    }           \
  }
#define ONE(at, count) \
  {                    \
    1, {               \
      { at, count }    \
    }                  \
  }
#define Q5 NORMAL(2, 5, 8)
#define K4 NORMAL(2, 4, 4)
#define LSE5 NORMAL(2, 4, 5)
#define NOTHING \
  {             \
    TS_F32, {   \
      0         \
    }           \
  }
#define RANDOM12 INTS(2, 12), LONGS(1), LONGS(2)
#define NONE \
  { .dtype = TS_F32 }
#define MLP(...)                     \
  {                                  \
    .mlp = {.rows = 4, __VA_ARGS__ } \
  }

/* Three of a sample's tokens. */
#define ROUTED(...)                     \
  {                                     \
    .route = {.scale = 1, __VA_ARGS__ } \
  }
#define LOADED(groups, length)     \
  {                                \
    .loads = { groups, length, 0 } \
  }
#define LIMITED(...)                                   \
  {                                                    \
    .limit = {.experts = 8, .factor = 1, __VA_ARGS__ } \
  }
#define BALANCED(layers)                 \
  {                                      \
    .balance = { layers, 0.01f, 0.001f } \
  }
#define PICKED                                            \
  {                                                       \
    .pick = {.tokens = {2, {{1, 1}, {5, 2}}}, .rows = 3 } \
  }
#define LOST                            \
  {                                     \
    .loss = { TS_SHAPE(2, 3), TS_BF16 } \
  }

static const op_case cases[] = {
    {TS_OP_VIEW, "", 1, 1, {NORMAL(6, 8)}, {NORMAL(2, 4)}, {.view = {40, TS_SHAPE(2, 4)}}, ALL, ALL, 0, 0},
    {TS_OP_PACK, "", 2, 1, {NORMAL(5), NORMAL(3)}, {NORMAL(8)}, {.pack = {pack_offset, 8}}, 0, 0, ALL, 0},
    {TS_OP_ADD, "", 2, 1, {X, X}, {X}, {{0}}, 0, 0, 0, 48},
    {TS_OP_ADD, "of losses", 2, 1, {WIDE(1), WIDE(1)}, {WIDE(1)}, {{0}}, 0, 0, 0, 1},
    {TS_OP_MULTIPLY, "", 2, 1, {X, X}, {X}, {{0}}, 0, 0, 0, 48},
    {TS_OP_BIAS, "", 2, 1, {X, NORMAL(8)}, {X}, {{0}}, 0, 0, 0, 48},
    {TS_OP_CAST, "", 1, 1, {X}, {NARROW(2, 3, 8)}, {.cast = {TS_BF16}}, ALL, ALL, ALL, 0},
    {TS_OP_ACCUMULATE, "", 3, 1, {X, X, NORMAL(1)}, {X}, {{0}}, 0, 0, 0, 48},
    {TS_OP_SCALE, "", 1, 1, {X}, {X}, {.scale = {0.5f, 30.0f}}, ALL, ALL, ALL, 48},
    {TS_OP_ACTIVATION, "", 1, 1, {X}, {X}, {.activation = {TS_ACTIVATION_RELU}}, ALL, ALL, ALL, 48},
    {TS_OP_ACTIVATION_DX, "", 2, 1, {X, X}, {X}, {.activation = {TS_ACTIVATION_GELU}}, 0, 0, 0, 48},
    {TS_OP_ACTIVATION, "of rows", 2, 1, {NORMAL(6, 8), INTS(4)}, {NORMAL(6, 8)}, {{0}}, 1, 3, 3, 48},
    {TS_OP_ACTIVATION_DX, "of rows", 3, 1, {NORMAL(6, 8), NORMAL(6, 8), INTS(4)}, {NORMAL(6, 8)}, {{0}}, 0, 4, 4, 48},
    {TS_OP_GLU, "", 2, 1, {X, X}, {X}, {.activation = {TS_ACTIVATION_SILU}}, 0, 0, 0, 48},
    {TS_OP_GLU_DX, "", 3, 2, {X, X, X}, {X, X}, {.activation = {TS_ACTIVATION_SILU}}, 0, 0, 0, 48},
    {TS_OP_GLU, "of rows", 3, 1, {GATES, INTS(4)}, {NORMAL(6, 8)}, {.activation = {TS_ACTIVATION_SILU}}, 0, 4, 4, 48},
    {TS_OP_GLU_DX,
     "of rows",
     4,
     2,
     {NORMAL(6, 8), GATES, INTS(4)},
     {NORMAL(6, 8), NORMAL(6, 8)},
     {.activation = {TS_ACTIVATION_SILU}},
     0,
     8,
     8,
     48},
    {TS_OP_DROPOUT, "", 3, 1, {X, LONGS(1), LONGS(2)}, {X}, {.dropout = {0.1f, 7}}, 1, 1, 1, 48},
    {TS_OP_DROPOUT,
     "of rows",
     3,
     1,
     {NORMAL(5, 8), LONGS(1), LONGS(2)},
     {NORMAL(5, 8)},
     {.dropout = {0.1f, 7, 1, 3}},
     1,
     ALL & ~2u,
     1,
     40},
    {TS_OP_SPLIT, "", 1, 2, {X}, {NORMAL(2, 3, 3), NORMAL(2, 3, 5)}, {.split = {1, split_size}}, ALL, 0, 0, 0},
    {TS_OP_SPLIT,
     "by groups",
     1,
     2,
     {NORMAL(2, 3, 32)},
     {NORMAL(2, 3, 12), NORMAL(2, 3, 20)},
     {.split = {4, split_size}},
     ALL,
     0,
     0,
     0},
    {TS_OP_CONCAT, "", 2, 1, {NORMAL(2, 3, 3), NORMAL(2, 3, 5)}, {X}, {.concat = {1}}, 0, ALL, ALL, 0},
    {TS_OP_CONCAT, "by groups", 2, 1, {NORMAL(2, 3, 2), NORMAL(2, 3, 6)}, {X}, {.concat = {2}}, 0, 0, 0, 0},
    {TS_OP_TAKE, "", 1, 1, {INTS(8, 3)}, {INTS(5, 3)}, {.take = {0, 8, 2, intervals}}, ALL, ALL, ALL, 0},
    {TS_OP_TAKE, "along the last", 1, 1, {X}, {NORMAL(2, 3, 5)}, {.take = {2, 8, 2, intervals}}, ALL, 0, 0, 0},
    {TS_OP_PLACE, "", 1, 1, {NORMAL(2, 3, 5)}, {NORMAL(2, 3, 9)}, {.take = {2, 9, 2, intervals}}, 0, 0, 0, 0},
    {TS_OP_MATMUL,
     "a b + bias",
     3,
     1,
     {X, NORMAL(8, 5), NORMAL(5)},
     {NARROW(2, 3, 5)},
     {.matmul = {false, false, TS_BF16}},
     0,
     0,
     0,
     480},
    {TS_OP_MATMUL,
     "a b^T",
     2,
     1,
     {X, NORMAL(5, 8)},
     {NORMAL(2, 3, 5)},
     {.matmul = {false, true, TS_F32}},
     0,
     0,
     0,
     480},
    {TS_OP_MATMUL,
     "a^T b",
     2,
     1,
     {X, NORMAL(2, 3, 5)},
     {NORMAL(8, 5)},
     {.matmul = {true, false, TS_F32}},
     0,
     ALL,
     ALL,
     480},
    {TS_OP_MLP,
     "gated",
     7,
     1,
     {X, NORMAL(5, 8), NONE, NORMAL(5, 8), NONE, NORMAL(4, 5), NONE},
     {NORMAL(2, 3, 4)},
     MLP(.kind = TS_ACTIVATION_SILU, .transpose_b = true),
     0,
     0,
     0,
     1200},
    {TS_OP_MLP,
     "of [in][out], with biases",
     7,
     1,
     {X, NONE, NONE, NORMAL(8, 5), NORMAL(5), NORMAL(5, 4), NORMAL(4)},
     {NORMAL(2, 3, 4)},
     MLP(.kind = TS_ACTIVATION_GELU),
     0,
     0,
     0,
     720},
    {TS_OP_MLP,
     "fused",
     7,
     1,
     {NARROW(2, 3, 8), NONE, NONE, NARROW(10, 8), NARROW(10), NARROW(4, 5), NARROW(4)},
     {NARROW(2, 3, 4)},
     MLP(.fused = true, .transpose_b = true),
     0,
     0,
     0,
     1200},
    {TS_OP_MLP_DX,
     "gated",
     8,
     4,
     {NARROW(2, 3, 4), NARROW(2, 3, 8), NARROW(8, 5), NONE, NARROW(8, 5), NONE, NARROW(5, 4), NONE},
     {NARROW(2, 3, 8), NORMAL(8, 5), NORMAL(8, 5), NORMAL(5, 4)},
     MLP(.dtype = TS_F32),
     0,
     0,
     0,
     2400},
    {TS_OP_MLP_DX,
     "gated, with biases",
     8,
     7,
     {NORMAL(2, 3, 4), X, NORMAL(5, 8), NORMAL(5), NORMAL(5, 8), NORMAL(5), NORMAL(4, 5), NORMAL(4)},
     {X, NORMAL(5, 8), NORMAL(5), NORMAL(5, 8), NORMAL(5), NORMAL(4, 5), NORMAL(4)},
     MLP(.transpose_b = true, .dtype = TS_F32),
     0,
     0,
     0,
     2400},
    {TS_OP_MLP_DX,
     "fused, of x alone",
     8,
     1,
     {NORMAL(2, 3, 4), X, NONE, NONE, NORMAL(10, 8), NORMAL(10), NORMAL(4, 5), NORMAL(4)},
     {X},
     MLP(.fused = true, .transpose_b = true),
     0,
     0,
     0,
     1200},
    {TS_OP_MATMUL_GELU,
     "",
     3,
     2,
     {NARROW(2, 3, 8), NARROW(8, 16), NARROW(16)},
     {NARROW(2, 3, 16), NARROW(2, 3, 16)},
     {.matmul = {false, false, TS_BF16}},
     0,
     0,
     0,
     1536},
    {TS_OP_MATMUL_DGELU,
     "",
     3,
     1,
     {NARROW(2, 3, 8), NARROW(16, 8), NARROW(2, 3, 16)},
     {NARROW(2, 3, 16)},
     {.matmul = {false, true, TS_BF16}},
     0,
     0,
     0,
     1536},
    {TS_OP_SUM_ROWS, "", 1, 1, {X}, {NORMAL(8)}, {.sum_rows = {TS_F32}}, ALL, ALL, ALL, 48},
    {TS_OP_EMBEDDING, "", 2, 1, {NORMAL(11, 8), INTS(2, 3)}, {X}, {{0}}, 1, ALL, ALL, 0},
    {TS_OP_EMBEDDING_DW, "", 2, 1, {X, INTS(2, 3)}, {NORMAL(11, 8)}, {.embedding = {11, TS_F32}}, 1, 1, 1, 48},
    {TS_OP_PICK, "", 2, 1, {X, INTS(2)}, {NORMAL(2, 1, 8)}, {{0}}, 0, 1, 1, 0},
    {TS_OP_PICK, "of a mask", 2, 1, {X, INTS(2, 3)}, {NORMAL(2, 1, 8)}, {{0}}, 0, ALL, 1, 48},
    {TS_OP_PICK, "of some tokens", 2, 1, {X, INTS(2, 9)}, {NORMAL(2, 1, 8)}, PICKED, 0, ALL, 3, 48},
    {TS_OP_PICK_DX, "", 2, 1, {NORMAL(2, 1, 8), INTS(2)}, {X}, PICKED, 0, 1, 1, 48},
    {TS_OP_PICK_DX, "of a mask", 2, 1, {NORMAL(2, 1, 8), INTS(2, 9)}, {X}, PICKED, 0, ALL, 3, 48},
    {TS_OP_LAYERNORM,
     "",
     3,
     3,
     {X, NORMAL(8), NORMAL(8)},
     {X, NORMAL(2, 3), NORMAL(2, 3)},
     {.norm = {.eps = 1e-5f}},
     0,
     0,
     0,
     384},
    {TS_OP_LAYERNORM_DX,
     "",
     5,
     1,
     {X, X, NORMAL(8), NORMAL(2, 3), NORMAL(2, 3)},
     {X},
     {.norm = {.eps = 1e-5f}},
     0,
     0,
     0,
     384},
    {TS_OP_LAYERNORM_DW,
     "",
     4,
     2,
     {X, X, NORMAL(2, 3), NORMAL(2, 3)},
     {NARROW(8), NARROW(8)},
     {.norm = {.dtype = TS_BF16}},
     0,
     0,
     0,
     384},
    {TS_OP_RMSNORM, "", 2, 2, {X, NORMAL(8)}, {X, NORMAL(2, 3)}, {.norm = {.eps = 1e-5f}}, 0, 0, 0, 384},
    {TS_OP_RMSNORM,
     "of heads, with an offset",
     2,
     2,
     {NORMAL(2, 3, 4, 6), NORMAL(6)},
     {NORMAL(2, 3, 4, 6), NORMAL(2, 3, 4)},
     {.norm = {.eps = 1e-5f, .offset = 1}},
     0,
     0,
     0,
     1152},
    {TS_OP_RMSNORM_DX, "", 4, 1, {X, X, NORMAL(8), NORMAL(2, 3)}, {X}, {.norm = {.eps = 1e-5f}}, 0, 0, 0, 384},
    {TS_OP_RMSNORM_DX,
     "of heads",
     4,
     1,
     {NORMAL(2, 3, 4, 6), NORMAL(2, 3, 4, 6), NORMAL(6), NORMAL(2, 3, 4)},
     {NORMAL(2, 3, 4, 6)},
     {.norm = {.offset = 1}},
     0,
     0,
     0,
     1152},
    {TS_OP_RMSNORM,
     "of some columns",
     3,
     2,
     {X, NORMAL(8), NORMAL(2, 3)},
     {X, NORMAL(2, 3)},
     {.norm = {.eps = 1e-5f, .width = 20}},
     0,
     0,
     0,
     384},
    {TS_OP_RMSNORM_DX,
     "of some columns",
     5,
     1,
     {X, X, NORMAL(8), NORMAL(2, 3), NORMAL(2, 3)},
     {X},
     {.norm = {.eps = 1e-5f, .width = 20}},
     0,
     0,
     0,
     384},
    {TS_OP_NORMALIZE, "", 1, 2, {X}, {X, NORMAL(2, 3)}, {.norm = {.eps = 1e-5f}}, 0, ALL, ALL, 384},
    {TS_OP_NORMALIZE_DX, "", 3, 1, {X, X, NORMAL(2, 3)}, {X}, {.norm = {.eps = 1e-5f}}, 0, 0, 0, 384},
    {TS_OP_ROW_SQUARES, "", 1, 1, {X}, {NORMAL(2, 3)}, {{0}}, 0, ALL, ALL, 48},
    {TS_OP_ROW_DOTS, "", 3, 1, {X, X, NORMAL(8)}, {NORMAL(2, 3)}, {.norm = {.offset = 1}}, 0, 0, 0, 48},
    {TS_OP_RMSNORM_DW, "", 3, 1, {X, X, NORMAL(2, 3)}, {NORMAL(8)}, {.norm = {1e-5f, TS_F32, 0, 0}}, 0, 0, 0, 384},
    {TS_OP_RMSNORM_DW,
     "of heads",
     3,
     1,
     {NORMAL(2, 3, 4, 6), NORMAL(2, 3, 4, 6), NORMAL(2, 3, 4)},
     {NARROW(6)},
     {.norm = {.dtype = TS_BF16}},
     0,
     0,
     0,
     1152},
    {TS_OP_ROPE, "", 2, 1, {X, INTS(2, 3)}, {X}, TURNS(4, 4, 1), 1, 0, 0, 48},
    {TS_OP_ROPE, "of a part", 2, 1, {X, INTS(2, 3)}, {X}, TURNS(4, 2, 1.25), 1, 0, 0, 48},
    /* 4 B H T T D, halved by the mask: 4 x 2 x 4 x 9 x 2 / 2 */
    {TS_OP_ATTENTION,
     "",
     6,
     2,
     {X, NORMAL(2, 3, 4), NORMAL(2, 3, 4), RANDOM},
     {X, NORMAL(2, 4, 3)},
     HEADS,
     0,
     0,
     0,
     288},
    {TS_OP_ATTENTION_DX,
     "",
     9,
     3,
     {X, X, NORMAL(2, 3, 4), NORMAL(2, 3, 4), X, NORMAL(2, 4, 3), RANDOM},
     {X, NORMAL(2, 3, 4), NORMAL(2, 3, 4)},
     HEADS,
     0,
     0,
     0,
     576},
    /* a window of 2 leaves 1 + 2 + 2 of 9 pairs, one of 3 or more the causal half: 4 x 2 x 4 x 5 x 2, twice backward */
    {TS_OP_ATTENTION, "with a window", 3, 2, {X, X, X}, {X, NORMAL(2, 4, 3)}, WINDOW(2), 0, 0, 0, 320},
    {TS_OP_ATTENTION, "with a long window", 3, 2, {X, X, X}, {X, NORMAL(2, 4, 3)}, WINDOW(3), 0, 0, 0, 288},
    {TS_OP_ATTENTION_DX, "with a window", 6, 3, {X, X, X, X, X, NORMAL(2, 4, 3)}, {X, X, X}, WINDOW(2), 0, 0, 0, 640},
    /* 2 pairs with the first key of the first stretch of queries, 3 of the second, and 7 with the other keys:
     * 4 x 2 x 12 x 8 */
    {TS_OP_ATTENTION,
     "of parts",
     6,
     2,
     {Q5, K4, K4, RANDOM12},
     {Q5, LSE5},
     PARTS(3, 12, MINE, THEIRS, .dropout = 0.1f),
     0,
     0,
     0,
     768},
    {TS_OP_ATTENTION,
     "of parts, wide",
     6,
     2,
     {NARROW(2, 5, 8), NARROW(2, 4, 4), NARROW(2, 4, 4), RANDOM12},
     {Q5, LSE5},
     PARTS(3, 12, MINE, THEIRS, .dropout = 0.1f, .wide_queries = true),
     0,
     0,
     0,
     768},
    {TS_OP_ATTENTION_DX,
     "of parts",
     9,
     3,
     {Q5, Q5, K4, K4, Q5, LSE5, RANDOM12},
     {Q5, K4, K4},
     PARTS(3, 12, MINE, THEIRS, .dropout = 0.1f),
     0,
     0,
     0,
     1536},
    {TS_OP_ATTENTION_DX,
     "of parts by delta, wide",
     10,
     3,
     {NARROW(2, 5, 8), NARROW(2, 5, 8), NARROW(2, 4, 4), NARROW(2, 4, 4), NOTHING, LSE5, RANDOM12, LSE5},
     {Q5, K4, K4},
     PARTS(3, 12, MINE, THEIRS, .dropout = 0.1f, .wide_queries = true, .wide_keys = true),
     0,
     0,
     0,
     1536},
    {TS_OP_ATTENTION_DELTA, "", 2, 1, {X, X}, {NORMAL(2, 4, 3)}, HEADS, 0, 0, 0, 48},
    {TS_OP_ATTENTION_MERGE,
     "",
     4,
     2,
     {X, NORMAL(2, 4, 3), X, NORMAL(2, 4, 3)},
     {X, NORMAL(2, 4, 3)},
     HEADS,
     0,
     0,
     0,
     48},
    /* 4 H D for each of 6 tokens and 5 rows, or the 2 of a window */
    {TS_OP_ATTENTION_CACHED, "", 6, 3, {CACHE, CACHE, X, K, K, INTS(2)}, {CACHE, CACHE, X}, KEPT(0), 0, 0, 0, 960},
    {TS_OP_ATTENTION_CACHED,
     "in a window",
     6,
     3,
     {CACHE, CACHE, X, K, K, INTS(2)},
     {CACHE, CACHE, X},
     KEPT(2),
     0,
     0,
     0,
     384},
    {TS_OP_HEAD_LOSS,
     "",
     3,
     2,
     {X, NORMAL(11, 8), INTS(2, 3)},
     {WIDE(1), WIDE(1)},
     {.head = {TS_F32, 1, 0}},
     0,
     0,
     0,
     1056},
    {TS_OP_HEAD_LOSS_DX,
     "",
     4,
     2,
     {X, NORMAL(11, 8), INTS(2, 3), NORMAL(1)},
     {X, NARROW(11, 8)},
     {.head = {TS_BF16, 1, 0}},
     0,
     0,
     0,
     2112},
    /* what three ranks measured costs nothing to combine; a share of 11 rows of w is a product of it each way */
    {TS_OP_HEAD_STATS,
     "",
     3,
     1,
     {X, NORMAL(11, 8), INTS(2, 3)},
     {NORMAL(2, 3, 2)},
     {.head = {TS_F32, 1, 0, 22}},
     0,
     0,
     0,
     1056},
    {TS_OP_HEAD_LOSS,
     "of shares",
     4,
     2,
     {X, NORMAL(11, 8), INTS(2, 3), NORMAL(3, 2, 3, 2)},
     {WIDE(1), WIDE(1)},
     {.head = {TS_F32, 1, 0, 22}},
     0,
     0,
     0,
     0},
    {TS_OP_HEAD_LOSS_DX,
     "of shares",
     5,
     2,
     {X, NORMAL(11, 8), INTS(2, 3), NORMAL(1), NORMAL(3, 2, 3, 2)},
     {X, NARROW(11, 8)},
     {.head = {TS_BF16, 1, 0, 22}},
     0,
     0,
     0,
     2112},
    {TS_OP_HEAD_LOSS_TRAIN,
     "",
     4,
     4,
     {X, NORMAL(11, 8), INTS(2, 3), NORMAL(1)},
     {WIDE(1), WIDE(1), X, NORMAL(11, 8)},
     {.head = {TS_F32, 0.5f, 30}},
     0,
     0,
     0,
     3168},
    {TS_OP_ROUTE, "", 1, 2, {X}, {NORMAL(2, 3, 2), INTS(2, 3, 2)}, ROUTED(.k = 2), 0, 1, 1, 48},
    {TS_OP_ROUTE,
     "of groups, with a bias",
     2,
     2,
     {X, NORMAL(8)},
     {NORMAL(2, 3, 4), INTS(2, 3, 4)},
     ROUTED(.k = 4, .groups = 4, .top_groups = 2, .sigmoid = true),
     0,
     0,
     0,
     48},
    {TS_OP_ROUTE_DX, "", 3, 1, {NORMAL(2, 3, 2), X, INTS(2, 3, 2)}, {X}, ROUTED(.k = 2), 0, 2, 2, 48},
    {TS_OP_ROUTE,
     "for a bias",
     3,
     2,
     {X, NORMAL(8), INTS(2, 3)},
     {NORMAL(2, 3, 2), INTS(2, 3, 2)},
     ROUTED(.k = 2),
     0,
     0,
     0,
     48},
    {TS_OP_ROUTE_EXCESS, "", 2, 1, {INTS(2, 3, 2), INTS(2, 3)}, {NORMAL(8)}, {.experts = {.n = 8}}, 0, 1, 1, 12},
    {TS_OP_ROUTE,
     "by noised logits",
     4,
     2,
     {X, NOTHING, NOTHING, X},
     {NORMAL(2, 3, 2), INTS(2, 3, 2)},
     ROUTED(.k = 2, .sure = 1),
     0,
     0,
     0,
     48},
    {TS_OP_ROUTE_LIMIT,
     "",
     2,
     2,
     {NORMAL(2, 3, 2), INTS(2, 3, 2)},
     {NORMAL(2, 3, 2), INTS(2, 3, 2)},
     LIMITED(.least = 2),
     0,
     0,
     0,
     12},
    {TS_OP_ROUTE_LIMIT,
     "by priorities",
     3,
     2,
     {NORMAL(2, 3, 2), INTS(2, 3, 2), NORMAL(2, 3, 2)},
     {NORMAL(2, 3, 2), INTS(2, 3, 2)},
     LIMITED(.length = 3),
     0,
     0,
     0,
     12},
    {TS_OP_ROUTE_LIMIT_DX,
     "",
     3,
     1,
     {NORMAL(2, 3, 2), NORMAL(2, 3, 2), INTS(2, 3, 2)},
     {NORMAL(2, 3, 2)},
     LIMITED(.normalize = true),
     0,
     0,
     0,
     12},
    {TS_OP_ROUTE_LOADS,
     "of choices that are taken",
     4,
     1,
     {X, INTS(2, 3, 2), INTS(2, 3), INTS(2, 3, 2)},
     {NORMAL(1, 19)},
     LOADED(1, 6),
     0,
     1,
     1,
     48},
    {TS_OP_ROUTE_LOADS, "", 3, 1, {X, INTS(2, 3, 2), INTS(2, 3)}, {NORMAL(1, 19)}, LOADED(1, 6), 0, 3, 3, 48},
    {TS_OP_ROUTE_LOADS, "by samples", 3, 1, {X, INTS(2, 3, 2), INTS(2, 3)}, {NORMAL(3, 19)}, LOADED(3, 2), 0, 3, 3, 57},
    {TS_OP_ROUTE_LOADS_DX, "", 3, 1, {NORMAL(1, 19), X, INTS(2, 3)}, {X}, LOADED(1, 6), 0, 0, 0, 48},
    {TS_OP_BALANCE_LOSS, "", 2, 1, {NORMAL(2, 19), NORMAL(2, 19)}, {WIDE(1)}, BALANCED(1), 0, 0, 0, 38},
    {TS_OP_BALANCE_LOSS_DX, "", 2, 1, {NORMAL(1), NORMAL(2, 19)}, {NORMAL(2, 19)}, BALANCED(1), 0, 0, 0, 38},
    {TS_OP_DISPATCH, "", 1, 3, {INTS(2, 3, 4)}, {INTS(24), INTS(2, 3, 4), INTS(8)}, {.experts = {7}}, 0, 1, 1, 0},
    {TS_OP_FIRST_OF_ALL, "", 1, 1, {INTS(2, 8)}, {INTS(4)}, {.experts = {3, 4}}, 0, 1, 0, 0},
    {TS_OP_TAKE_ROWS, "", 4, 1, {X, CHOICES}, {NORMAL(12, 8)}, {{0}}, 0, 13, 11, 96}, /* room for fewer than choices */
    {TS_OP_TAKE_ROWS, "weighted", 5, 1, {X, CHOICES, NORMAL(2, 3, 2)}, {NORMAL(12, 8)}, {{0}}, 0, 9, 11, 96},
    {TS_OP_COMBINE, "", 4, 1, {NORMAL(12, 8), CHOICES}, {X}, {{0}}, 0, 13, 9, 96},
    {TS_OP_COMBINE, "weighted", 5, 1, {NARROW(12, 8), CHOICES, NORMAL(2, 3, 2)}, {NARROW(2, 3, 8)}, {{0}}, 0, 9, 9, 96},
    {TS_OP_COMBINE_DOTS, "", 4, 1, {X, NORMAL(12, 8), PLACES}, {NORMAL(2, 3, 2)}, {{0}}, 0, 12, 8, 96},
    {TS_OP_GROUPED, "", 3, 1, {NORMAL(12, 8), NORMAL(7, 8, 5), INTS(8)}, {NORMAL(12, 5)}, {{0}}, 0, 2, 2, 960},
    {TS_OP_GROUPED,
     "turned, in bf16",
     3,
     1,
     {NARROW(12, 8), NARROW(7, 5, 8), INTS(8)},
     {NORMAL(12, 5)},
     {.matmul = {.transpose_b = true}},
     0,
     0,
     0,
     960},
    {TS_OP_GROUPED_DW, "", 3, 1, {NORMAL(12, 5), NORMAL(12, 8), INTS(4)}, {NORMAL(3, 5, 8)}, {{0}}, 0, 7, 7, 960},
    {TS_OP_GROUPED_BIAS, "", 3, 1, {NARROW(12, 5), NARROW(3, 5), INTS(4)}, {NARROW(12, 5)}, {{0}}, 0, 0, 0, 60},
    {TS_OP_GROUPED_SUM, "", 2, 1, {NARROW(12, 5), INTS(4)}, {NORMAL(3, 5)}, {.sum_rows = {TS_F32}}, 0, 3, 3, 60},
    {TS_OP_BLEND, "", 3, 1, {X, X, NORMAL(2, 3, 2)}, {X}, {{0}}, 0, 0, 0, 48},
    {TS_OP_BLEND_DX,
     "",
     4,
     3,
     {NARROW(6, 8), NARROW(6, 8), NARROW(6, 8), NORMAL(6, 2)},
     {NARROW(6, 8), NARROW(6, 8), NORMAL(6, 2)},
     {{0}},
     0,
     0,
     0,
     48},
    {TS_OP_SOFT_LOSS, "", 2, 3, {X, X}, {NORMAL(2, 3), NORMAL(2, 3), NORMAL(2, 3)}, {.soft = {2}}, 0, 0, 0, 384},
    {TS_OP_SOFT_LOSS_DX,
     "",
     5,
     1,
     {NORMAL(2, 3), NARROW(2, 3, 8), NARROW(2, 3, 8), NORMAL(2, 3), NORMAL(2, 3)},
     {NARROW(2, 3, 8)},
     {.soft = {2}},
     0,
     0,
     0,
     48},
    {TS_OP_LOSS, "", 1, 2, {X}, {WIDE(1), WIDE(1)}, {{0}}, 0, ALL, ALL, 48},
    {TS_OP_LOSS, "of a mask", 2, 2, {X, INTS(2, 3, 8)}, {WIDE(1), WIDE(1)}, {{0}}, 0, 0, 0, 48},
    {TS_OP_LOSS_DX, "", 1, 1, {NORMAL(1)}, {NARROW(2, 3)}, {.loss = {TS_SHAPE(2, 3), TS_BF16}}, 0, 0, 0, 6},
    {TS_OP_LOSS_DX, "of a mask", 2, 1, {NORMAL(1), INTS(2, 3)}, {NARROW(2, 3)}, LOST, 0, 0, 0, 6},
    {TS_OP_SUM_SQUARES, "", 1, 1, {NORMAL(20)}, {WIDE(1)}, {.segments = {range, 2}}, ALL, ALL, 0, 20},
    {TS_OP_STEP_CONTROL,
     "",
     4,
     3,
     {WIDE(2, 7), WIDE(1), NORMAL(1), WIDE(3)},
     {WIDE(TS_SUMMARY_SIZE), NORMAL(1), NORMAL(1)},
     {{0}},
     0,
     1,
     1,
     0},
    {TS_OP_SCALE_LOSS, "", 2, 1, {NORMAL(1), WIDE(3)}, {NORMAL(1)}, {{0}}, 0, 0, 0, 0},
    {TS_OP_UPDATE_LOSS_SCALE,
     "",
     2,
     2,
     {WIDE(3), WIDE(TS_SUMMARY_SIZE)},
     {WIDE(3), WIDE(TS_SUMMARY_SIZE)},
     {.loss_scaler = {TS_LOSS_SCALE_DYNAMIC, 8, 1, 3, 2, false}},
     0,
     0,
     0,
     0},
    {TS_OP_ADVANCE, "", 3, 2, {LONGS(1), NORMAL(2), NORMAL(1)}, {LONGS(1), WIDE(2)}, {{0}}, 0, 0, 0, 0},
    {TS_OP_UPDATE_ELEMENTS,
     "with a bf16 copy",
     11,
     4,
     {NORMAL(20), NARROW(20), NORMAL(20), NORMAL(20), NORMAL(20), STEP_NUMBERS},
     {NORMAL(20), NARROW(20), NORMAL(20), NORMAL(20)},
     {.update = {.range = range, .n = 2, .copy = true}},
     1 << 1 | 1 << 4,
     0,
     0,
     280},
    {TS_OP_UPDATE_ELEMENTS,
     "with ratios",
     9,
     1,
     {NORMAL(20), NORMAL(20), STEP_NUMBERS, NORMAL(2)},
     {NORMAL(20)},
     {.update = {.range = range, .n = 2, .rule = TS_OPTIMIZER_SGD, .has_ratios = true}},
     1 << 1,
     1 << 8,
     1 << 8,
     280},
    {TS_OP_SUM_SQUARES, "of each", 1, 1, {NORMAL(20)}, {NORMAL(3)}, {.segments = {some, 3, true}}, ALL, ALL, 0, 20},
    {TS_OP_TRUST_RATIOS, "", 2, 1, {NORMAL(6), WIDE(2)}, {NORMAL(3)}, {.ratios = {0.01f, 10, true}}, 0, 0, 0, 0},
    {TS_OP_OVER_NORM, "", 2, 1, {NORMAL(3, 5), WIDE(1)}, {NARROW(3, 5)}, {.over_norm = {1e-7f, TS_BF16}}, 0, 1, 1, 15},
    {TS_OP_ADD_DIAGONAL, "", 1, 1, {NORMAL(5, 5)}, {NORMAL(5, 5)}, {.diagonal = {2}}, 0, 0, 0, 25},
    {TS_OP_ORTHOGONALIZE,
     "",
     1,
     1,
     {NORMAL(40)},
     {NORMAL(40)},
     {.orthogonalize = {matrices, 3, TS_BF16, true}},
     0,
     1,
     1,
     2 * (2 * 2 * 2 * (4 * 3 + 14 * 2)) + 2 * 3 * 3 * (4 * 6 + 14 * 3)},
    {TS_OP_ALL_GATHER,
     "",
     1,
     1,
     {NORMAL(5)},
     {NORMAL(8)},
     {.comm = {.axes = 2, .group = 2, .piece = piece, .n_pieces = 1}},
     ALL,
     ALL,
     0,
     0},
    {TS_OP_ALL_GATHER,
     "into",
     2,
     1,
     {NORMAL(5), NORMAL(9)},
     {NORMAL(9)},
     {.comm = {.axes = 2, .group = 2, .into = true, .piece = piece, .n_pieces = 1}},
     0,
     ALL,
     1 << 1,
     0},
    {TS_OP_REDUCE_SCATTER,
     "",
     1,
     1,
     {NORMAL(8)},
     {NORMAL(5)},
     {.comm = {.axes = 2, .group = 2, .wire = TS_F32, .piece = piece, .n_pieces = 1}},
     ALL,
     ALL,
     0,
     0},
    {TS_OP_ALL_TO_ALL,
     "",
     2,
     2,
     {NORMAL(3, 4, 6), NARROW(2, 5)},
     {NORMAL(3, 3, 2), NARROW(2, 7)},
     {.comm = {.axes = 2, .group = 2, .block = blocks, .n_sent = 3, .n_received = 4}},
     1 << 0,
     ALL,
     0,
     0},
    {TS_OP_EXCHANGE_ROWS,
     "",
     4,
     1,
     {NORMAL(12, 8), INTS(2, 6), INTS(4), INTS(6)},
     {NORMAL(20, 8)},
     ROWS(expert_cuts, 20),
     0,
     5,
     5,
     0},
    {TS_OP_ALL_REDUCE, "", 1, 1, {X}, {X}, {.comm = {.axes = 2, .group = 2, .wire = TS_F32}}, 0, 1, 1, 0},
    {TS_OP_SHARE, "", 1, 1, {X}, {X}, {.comm = {.axes = 2, .group = 2, .wire = TS_F32}}, 1, 1, 1, 0},
    {TS_OP_LOAD, "", 1, 1, {X}, {X}, {{0}}, 1, 1, 1, 0},
    {TS_OP_STORE, "", 2, 1, {X, X}, {X}, {{0}}, 0, 0, 0, 0},
    {TS_OP_COPY_IN, "", 1, 1, {X}, {X}, {{0}}, 1, 1, 1, 0},
    {TS_OP_COPY_OUT, "", 2, 1, {X, X}, {X}, {{0}}, 0, 0, 0, 0},
    {TS_OP_COPY_OUT, "of what is new there", 2, 1, {NONE, X}, {X}, {{0}}, 2, 2, 2, 0},
    {TS_OP_COPY_INTO, "", 2, 1, {X, X}, {X}, {{0}}, 0, 0, 0, 0},
    {TS_OP_SEND, "", 2, 0, {NORMAL(3, 4), NORMAL(5)}, {{0}}, {.message = {.n = 2, .crossing = crossings}}, 0, 0, 0, 0},
    {TS_OP_RECEIVE,
     "",
     0,
     2,
     {{0}},
     {NORMAL(3, 4), NORMAL(5)},
     {.message = {.n = 2, .crossing = crossings}},
     0,
     0,
     0,
     0},
};

/* A graph of leaves and one node that is not in it. */
typedef struct setting {
  ts_graph *graph;
  ts_node node;
  ts_tid in[MAX];
} setting;

static setting make(ts_op op, int n_in, const type *in, int n_out, ts_attr attr) {
  setting s = {.graph = ts_graph_create()};
  for (int i = 0; i < n_in; ++i) {
    char *name = ts_format("in%d", i);
    s.in[i] = in[i].shape.n == 0 ? TS_NONE : ts_graph_leaf(s.graph, name, TS_ROLE_STATE, in[i].dtype, in[i].shape, -1);
    ts_free(name);
  }
  s.node = (ts_node){.op = op, .name = (char *) "node", .n_in = n_in, .n_out = n_out, .attr = attr};
  const int away = op == TS_OP_COPY_INTO ? 1 : 0;
  if (ts_node_is_copy(&s.node) && s.in[away] != TS_NONE) {
    s.graph->tensor[s.in[away]].space = ts_node_copies(&s.node);
  }
  return s;
}

static setting make_good(const op_case *c) {
  return make(c->op, c->n_in, c->in, c->n_out, c->attr);
}

/* What the shape rule says of the call, with its results. */
static const char *ask(setting *s, ts_dtype *dtype, ts_shape *shape) {
  s->node.in = s->in;
  return ts_op_get(s->node.op)->shape(s->graph, &s->node, dtype, shape);
}

static void test_good(const op_case *c) {
  setting s = make_good(c);
  ts_dtype dtype[MAX];
  ts_shape shape[MAX];
  const char *name = ts_op_get(c->op)->name, *why = ask(&s, dtype, shape);
  bool same = why == NULL;
  for (int i = 0; i < c->n_out && same; ++i) {
    same = dtype[i] == c->out[i].dtype && ts_shape_equal(&shape[i], &c->out[i].shape);
  }
  tap_ok(same, "%s %s: types and shapes of the outputs %s", name, c->what, why != NULL ? why : "");
  ts_graph_destroy(&s.graph);
}

static void test_spoiled(const op_case *c) {
  int wrong = 0;
  for (int i = 0; i < c->n_in; ++i) {
    for (int kind = 0; kind < 3 && c->in[i].shape.n > 0; ++kind) { /* another type, one more, one less */
      setting s = make_good(c);
      ts_dtype dtype[MAX];
      ts_shape shape[MAX];
      ts_tensor *t = &s.graph->tensor[s.in[i]];
      t->dtype = kind == 0 ? TS_U8 : t->dtype;
      t->shape.d[t->shape.n - 1] += kind == 1 ? 1 : kind == 2 ? -1 : 0;
      unsigned any = kind == 0 ? c->any_type : kind == 1 ? c->any_longer : c->any_shorter;
      bool taken = ask(&s, dtype, shape) == NULL;
      if (taken != ((any >> i & 1) != 0)) {
        tap_note("%s %s: input %d with %s is %s", ts_op_get(c->op)->name, c->what, i,
                 kind == 0   ? "another type"
                 : kind == 1 ? "one element more"
                             : "one element less",
                 taken ? "taken" : "refused");
        ++wrong;
      }
      ts_graph_destroy(&s.graph);
    }
  }
  tap_ok(wrong == 0, "%s %s: spoiled inputs are refused", ts_op_get(c->op)->name, c->what);
}

static int count_operands(const char *list, const char *end) {
  int n = 1;
  for (const char *p = list; p < end; ++p) {
    n += *p == ',';
  }
  return n;
}

/* The node in a graph: letters fit the shapes, FLOPs are as said, bytes are those of the tensors. */
static void test_in_graph(const op_case *c) {
  const ts_op_info *info = ts_op_get(c->op);
  setting s = make_good(c);
  ts_graph_add(ts_graph_site(s.graph), &(ts_node){.op = c->op,
                                                  .name = "node",
                                                  .n_in = c->n_in,
                                                  .in = s.in,
                                                  .n_out = c->n_out,
                                                  .attr = c->attr,
                                                  .beta = TS_NONE});
  const ts_node *node = &s.graph->node[0];
  ts_text why = {0};
  int violations = ts_graph_verify(s.graph, &why);
  tap_ok(violations == 0, "%s %s: verifies %s", info->name, c->what, violations > 0 ? why.text : "");
  const char *letters = info->index(node), *arrow = strchr(letters, '>');
  tap_ok(letters[0] == '\0' ||
             (count_operands(letters, arrow) == c->n_in && count_operands(arrow, arrow + strlen(arrow)) == c->n_out),
         "%s %s: letters for every tensor: \"%s\"", info->name, c->what, letters);
  double flops = ts_node_flops(s.graph, node), bytes = 0;
  tap_ok(flops == c->flops, "%s %s: %g FLOPs", info->name, c->what, flops);
  for (ts_tid t = 0; t < s.graph->n_tensors && (info->flags & TS_OP_ALIAS) == 0; ++t) {
    bytes += (double) ts_tensor_bytes(s.graph, t);
  }
  tap_ok(ts_node_bytes(s.graph, node) == bytes, "%s %s: %g bytes", info->name, c->what, bytes);
  ts_text_free(&why);
  ts_graph_destroy(&s.graph);
}

/* What spoiling one extent does not reach. */
static int64_t outside[] = {0, 6}, negative[] = {-1, 5}, short_sum[] = {3, 4};
static ts_interval crossing[] = {{2, 3}, {0, 3}}, leaving[] = {{6, 3}}, before[] = {{-1, 2}}, huge[] = {{1, INT64_MAX}};
static ts_range overlap[] = {{0, 5, 0, 1, 0}, {4, 2, 0, 1, 0}}, beyond[] = {{16, 5, 0, 1, 0}},
                third[] = {{0, 5, 0, 1, 2}};
static ts_matrix stack[] = {{0, 2, 3, 2, 0}, {12, 2, 4, 1, 1}};
static ts_piece no_input[] = {{1, cuts, 0, 5}}, backwards[] = {{0, cuts, 5, 4}};
#define WHOLE \
  {0, 4}, {   \
    0, 5      \
  }
#define BLOCKS(...) \
  { {0, 0, WHOLE}, __VA_ARGS__ }
static ts_block block_outside[] = BLOCKS({0, 0, {1, 4}, {0, 5}}, {0, 0, WHOLE});
static ts_block to_nobody[] = BLOCKS({2, 0, WHOLE}, {0, 0, WHOLE});
static ts_block of_nothing[] = BLOCKS({0, 1, WHOLE}, {0, 0, WHOLE});
static ts_block unordered[] = BLOCKS({1, 0, WHOLE}, {0, 0, WHOLE}, {0, 0, WHOLE});
static ts_block incomplete[] = BLOCKS({0, 0, WHOLE}, {0, 0, {0, 3}, {0, 5}});
static ts_block twice[] = BLOCKS({0, 0, WHOLE}, {0, 0, WHOLE}, {1, 0, WHOLE});
static ts_block one_half_twice[] = BLOCKS({0, 0, WHOLE}, {0, 0, {0, 2}, {0, 5}}, {1, 0, {0, 2}, {0, 5}});
#define EXCHANGE(list, sent, received)                                           \
  {                                                                              \
    .comm = {.group = 2, .block = list, .n_sent = sent, .n_received = received } \
  }

/* A call that is refused. */
typedef struct bad_case {
  ts_op op;
  const char *what;
  int n_in, n_out;
  type in[MAX];
  ts_attr attr;
} bad_case;

static const bad_case bad[] = {
    {TS_OP_VIEW, "beyond the end", 1, 1, {NORMAL(6, 8)}, {.view = {41, TS_SHAPE(2, 4)}}},
    {TS_OP_VIEW, "before the start", 1, 1, {NORMAL(6, 8)}, {.view = {-1, TS_SHAPE(2, 4)}}},
    {TS_OP_PACK, "beyond the end", 2, 1, {NORMAL(5), NORMAL(3)}, {.pack = {outside, 8}}},
    {TS_OP_PACK, "before the start", 2, 1, {NORMAL(5), NORMAL(3)}, {.pack = {negative, 8}}},
    {TS_OP_SCALE, "a negative softcap", 1, 1, {X}, {.scale = {1, -1}}},
    {TS_OP_DROPOUT, "rows behind the last", 3, 1, {NORMAL(5, 8), LONGS(1), LONGS(2)}, {.dropout = {0.1f, 7, 2, 3}}},
    {TS_OP_DROPOUT, "a first row of samples", 3, 1, {X, LONGS(1), LONGS(2)}, {.dropout = {0.1f, 7, 1, 0}}},
    {TS_OP_ATTENTION, "a head before the first", 3, 2, {X, X, X}, HEADS_OF(.first_head = -1)},
    {TS_OP_ATTENTION, "a head without a key head", 3, 2, {Q5, K4, K4}, PARTS(2, 12, MINE, THEIRS, .window = 0)},
    {TS_OP_ATTENTION, "more queries than it has", 3, 2, {Q5, K4, K4}, PARTS(3, 12, ONE(0, 6), THEIRS, .window = 0)},
    {TS_OP_ATTENTION, "keys before keys", 3, 2, {Q5, K4, K4}, PARTS(3, 12, MINE, BACK, .window = 0)},
    {TS_OP_ATTENTION, "an empty stretch", 3, 2, {Q5, K4, K4}, PARTS(3, 12, MINE, EMPTY, .window = 0)},
    {TS_OP_ATTENTION, "keys behind the last", 3, 2, {Q5, K4, K4}, PARTS(3, 12, MINE, ONE(9, 4), .window = 0)},
    {TS_OP_ATTENTION, "more stretches than there are", 3, 2, {Q5, K4, K4}, PARTS(3, 12, MINE, {.n = 3}, .window = 0)},
    {TS_OP_ATTENTION, "a sample below its queries", 3, 2, {Q5, K4, K4}, PARTS(3, 4, MINE, THEIRS, .window = 0)},
    {TS_OP_ATTENTION_DX,
     "neither o nor delta",
     6,
     3,
     {Q5, Q5, K4, K4, NOTHING, LSE5},
     PARTS(3, 12, MINE, THEIRS, .dropout = 0.1f)},
    {TS_OP_ATTENTION_DX,
     "both o and delta",
     10,
     3,
     {Q5, Q5, K4, K4, Q5, LSE5, RANDOM12, LSE5},
     PARTS(3, 12, MINE, THEIRS, .dropout = 0.1f)},
    {TS_OP_ACTIVATION, "an unknown kind", 1, 1, {X}, {.activation = {TS_N_ACTIVATIONS}}},
    {TS_OP_GLU, "of rows of samples", 3, 1, {X, X, INTS(4)}, {{0}}},
    {TS_OP_GLU, "of rows that begin nowhere", 3, 1, {GATES, INTS(1)}, {{0}}},
    {TS_OP_GLU_DX, "an unknown kind", 3, 2, {X, X, X}, {.activation = {TS_N_ACTIVATIONS}}},
    {TS_OP_RMSNORM, "another offset", 2, 2, {X, NORMAL(8)}, {.norm = {.offset = 2}}},
    {TS_OP_RMSNORM, "a width and no sums", 2, 2, {X, NORMAL(8)}, {.norm = {.width = 20}}},
    {TS_OP_RMSNORM, "a width below x's", 3, 2, {X, NORMAL(8), NORMAL(2, 3)}, {.norm = {.width = 7}}},
    {TS_OP_RMSNORM_DX, "a width and no sums", 4, 1, {X, X, NORMAL(8), NORMAL(2, 3)}, {.norm = {.width = 20}}},
    {TS_OP_ROW_DOTS, "another offset", 3, 1, {X, X, NORMAL(8)}, {.norm = {.offset = 2}}},
    {TS_OP_RMSNORM_DX, "another offset", 4, 1, {X, X, NORMAL(8), NORMAL(2, 3)}, {.norm = {.offset = 0.5f}}},
    {TS_OP_SPLIT, "sizes that do not add up", 1, 2, {X}, {.split = {1, short_sum}}},
    {TS_OP_SPLIT, "groups that do not add up", 1, 2, {X}, {.split = {2, split_size}}},
    {TS_OP_SPLIT, "no groups", 1, 2, {NORMAL(2, 3, 0)}, {.split = {0, split_size}}},
    {TS_OP_CONCAT, "part of a group", 2, 1, {NORMAL(2, 3, 2), NORMAL(2, 3, 3)}, {.concat = {2}}},
    {TS_OP_CONCAT, "no groups", 2, 1, {X, X}, {.concat = {0}}},
    {TS_OP_TAKE, "intervals that overlap", 1, 1, {X}, {.take = {2, 8, 2, crossing}}},
    {TS_OP_TAKE, "an interval that leaves", 1, 1, {X}, {.take = {2, 8, 1, leaving}}},
    {TS_OP_TAKE, "an interval before the first", 1, 1, {X}, {.take = {2, 8, 1, before}}},
    {TS_OP_TAKE, "an interval without end", 1, 1, {X}, {.take = {2, 8, 1, huge}}},
    {TS_OP_TAKE, "no such dimension", 1, 1, {X}, {.take = {3, 8, 2, intervals}}},
    {TS_OP_PLACE, "no such dimension", 1, 1, {X}, {.take = {-1, 8, 2, intervals}}},
    {TS_OP_MLP,
     "no rows in a tile",
     7,
     1,
     {X, NONE, NONE, NORMAL(8, 5), NONE, NORMAL(5, 4), NONE},
     {.mlp = {.rows = 0}}},
    {TS_OP_MLP,
     "an unknown kind",
     7,
     1,
     {X, NONE, NONE, NORMAL(8, 5), NONE, NORMAL(5, 4), NONE},
     MLP(.kind = TS_N_ACTIVATIONS)},
    {TS_OP_MLP,
     "a gate twice",
     7,
     1,
     {X, NORMAL(5, 8), NONE, NORMAL(10, 8), NONE, NORMAL(4, 5), NONE},
     MLP(.fused = true, .transpose_b = true)},
    {TS_OP_MLP, "fused columns", 7, 1, {X, NONE, NONE, NORMAL(8, 10), NONE, NORMAL(5, 4), NONE}, MLP(.fused = true)},
    {TS_OP_MLP,
     "a bias of down alone",
     7,
     1,
     {X, NONE, NONE, NORMAL(8, 5), NONE, NORMAL(5, 4), NORMAL(4)},
     MLP(.kind = TS_ACTIVATION_RELU)},
    {TS_OP_MLP,
     "a bias of up but not of the gate",
     7,
     1,
     {X, NORMAL(8, 5), NONE, NORMAL(8, 5), NORMAL(5), NORMAL(5, 4), NONE},
     MLP(.kind = TS_ACTIVATION_RELU)},
    {TS_OP_MLP_DX,
     "gradients of some weights",
     8,
     2,
     {NORMAL(2, 3, 4), X, NONE, NONE, NORMAL(8, 5), NONE, NORMAL(5, 4), NONE},
     MLP(.dtype = TS_F32)},
    {TS_OP_EMBEDDING, "a row before the first", 2, 1, {NORMAL(11, 8), INTS(2, 3)}, {.embedding = {.first = -1}}},
    {TS_OP_EMBEDDING_DW, "a row before the first", 2, 1, {X, INTS(2, 3)}, {.embedding = {11, TS_F32, -1}}},
    {TS_OP_HEAD_LOSS, "a scale of 0", 3, 2, {X, NORMAL(11, 8), INTS(2, 3)}, {.head = {TS_F32, 0, 0}}},
    {TS_OP_HEAD_LOSS_DX,
     "a negative softcap",
     4,
     2,
     {X, NORMAL(11, 8), INTS(2, 3), NORMAL(1)},
     {.head = {TS_F32, 1, -30}}},
    {TS_OP_HEAD_LOSS, "a share and no stats", 3, 2, {X, NORMAL(11, 8), INTS(2, 3)}, {.head = {TS_F32, 1, 0, 1}}},
    {TS_OP_HEAD_LOSS_TRAIN, "a share", 4, 4, {X, NORMAL(11, 8), INTS(2, 3), NORMAL(1)}, {.head = {TS_F32, 1, 0, 1}}},
    {TS_OP_HEAD_STATS, "a row before the first", 3, 1, {X, NORMAL(11, 8), INTS(2, 3)}, {.head = {TS_F32, 1, 0, -1}}},
    {TS_OP_HEAD_LOSS,
     "stats of nobody",
     4,
     2,
     {X, NORMAL(11, 8), INTS(2, 3), NORMAL(0, 2, 3, 2)},
     {.head = {TS_F32, 1, 0, 0}}},
    {TS_OP_SCALE, "a softcap in fp64", 1, 1, {WIDE(1)}, {.scale = {1, 2}}},
    {TS_OP_MULTIPLY, "numbers in fp64", 2, 1, {WIDE(1), WIDE(1)}, {{0}}},
    {TS_OP_ROUTE, "logits in bf16", 1, 2, {NARROW(2, 3, 8)}, ROUTED(.k = 2)},
    {TS_OP_ROUTE, "nothing chosen", 1, 2, {X}, ROUTED(.k = 0)},
    {TS_OP_ROUTE, "more than there are", 1, 2, {X}, ROUTED(.k = 9)},
    {TS_OP_ROUTE, "groups that are not equal", 1, 2, {X}, ROUTED(.k = 1, .groups = 3, .top_groups = 1)},
    {TS_OP_ROUTE, "more than the groups have", 1, 2, {X}, ROUTED(.k = 3, .groups = 4, .top_groups = 1)},
    {TS_OP_ROUTE, "no group", 1, 2, {X}, ROUTED(.k = 1, .groups = 4)},
    {TS_OP_ROUTE, "a bias of another model", 2, 2, {X, NORMAL(7)}, ROUTED(.k = 2)},
    {TS_OP_ROUTE, "a factor that is no number", 1, 2, {X}, {.route = {.k = 2, .scale = NAN}}},
    {TS_OP_ROUTE_DX, "gradients of others", 3, 1, {NORMAL(2, 3, 3), X, INTS(2, 3, 2)}, ROUTED(.k = 2)},
    {TS_OP_ROUTE_DX, "choices that are floats", 3, 1, {NORMAL(2, 3, 2), X, NORMAL(2, 3, 2)}, ROUTED(.k = 2)},
    {TS_OP_ROUTE, "labels of others", 3, 2, {X, NORMAL(8), INTS(2, 2)}, ROUTED(.k = 2)},
    {TS_OP_ROUTE, "noise beside groups", 4, 2, {X, NOTHING, NOTHING, X}, ROUTED(.k = 2, .groups = 4, .top_groups = 2)},
    {TS_OP_ROUTE, "noise beside a bias", 4, 2, {X, NORMAL(8), NOTHING, X}, ROUTED(.k = 2)},
    {TS_OP_ROUTE, "noise of others", 4, 2, {X, NOTHING, NOTHING, NORMAL(2, 2, 8)}, ROUTED(.k = 2)},
    {TS_OP_ROUTE, "more sure choices than there are", 1, 2, {X}, ROUTED(.k = 2, .sure = 3)},
    {TS_OP_ROUTE_LIMIT, "no experts", 2, 2, {NORMAL(2, 3, 2), INTS(2, 3, 2)}, {.limit = {.factor = 1}}},
    {TS_OP_ROUTE_LIMIT, "no capacity", 2, 2, {NORMAL(2, 3, 2), INTS(2, 3, 2)}, {.limit = {.experts = 8}}},
    {TS_OP_ROUTE_LIMIT,
     "a capacity that is no number",
     2,
     2,
     {NORMAL(2, 3, 2), INTS(2, 3, 2)},
     {.limit = {.experts = 8, .factor = NAN}}},
    {TS_OP_ROUTE_LIMIT, "less than nothing", 2, 2, {NORMAL(2, 3, 2), INTS(2, 3, 2)}, LIMITED(.least = -1)},
    {TS_OP_ROUTE_LIMIT, "half a group", 2, 2, {NORMAL(2, 3, 2), INTS(2, 3, 2)}, LIMITED(.length = 4)},
    {TS_OP_ROUTE_LIMIT, "choices of others", 2, 2, {NORMAL(2, 3, 2), INTS(2, 2, 2)}, LIMITED(.least = 1)},
    {TS_OP_ROUTE_LIMIT_DX, "no experts", 3, 1, {NORMAL(6, 2), NORMAL(6, 2), INTS(6, 2)}, {.limit = {.factor = 1}}},
    {TS_OP_ROUTE_LOADS, "others are taken", 4, 1, {X, INTS(2, 3, 2), INTS(2, 3), INTS(2, 2, 2)}, LOADED(1, 6)},
    {TS_OP_BLEND, "three logits", 3, 1, {X, X, NORMAL(2, 3, 3)}, {{0}}},
    {TS_OP_BLEND, "another kind", 3, 1, {X, NARROW(2, 3, 8), NORMAL(2, 3, 2)}, {{0}}},
    {TS_OP_BLEND, "logits in bf16", 3, 1, {X, X, NARROW(2, 3, 2)}, {{0}}},
    {TS_OP_GROUPED_BIAS, "biases of others", 3, 1, {NORMAL(12, 5), NORMAL(4, 5), INTS(4)}, {{0}}},
    {TS_OP_GROUPED_BIAS, "another type", 3, 1, {NORMAL(12, 5), NARROW(3, 5), INTS(4)}, {{0}}},
    {TS_OP_GROUPED_SUM, "first rows that are floats", 2, 1, {NORMAL(12, 5), NORMAL(4)}, {.sum_rows = {TS_F32}}},
    {TS_OP_ROUTE_EXCESS, "labels of others", 2, 1, {INTS(2, 3, 2), INTS(2, 2)}, {.experts = {.n = 8}}},
    {TS_OP_ROUTE_EXCESS, "choices that are floats", 2, 1, {NORMAL(2, 3, 2), INTS(2, 3)}, {.experts = {.n = 8}}},
    {TS_OP_ROUTE_EXCESS, "no experts", 2, 1, {INTS(2, 3, 2), INTS(2, 3)}, {.experts = {.n = 0}}},
    {TS_OP_ROUTE_LOADS, "more tokens than groups have", 3, 1, {X, INTS(2, 3, 2), INTS(2, 3)}, LOADED(1, 5)},
    {TS_OP_ROUTE_LOADS, "no group", 3, 1, {X, INTS(2, 3, 2), INTS(2, 3)}, LOADED(0, 6)},
    {TS_OP_ROUTE_LOADS, "labels of others", 3, 1, {X, INTS(2, 3, 2), INTS(2, 2)}, LOADED(1, 6)},
    {TS_OP_ROUTE_LOADS, "choices of others", 3, 1, {X, INTS(2, 2, 2), INTS(2, 3)}, LOADED(1, 6)},
    {TS_OP_ROUTE_LOADS, "logits in bf16", 3, 1, {NARROW(2, 3, 8), INTS(2, 3, 2), INTS(2, 3)}, LOADED(1, 6)},
    {TS_OP_ROUTE_LOADS_DX, "gradients of others", 3, 1, {NORMAL(1, 16), X, INTS(2, 3)}, LOADED(1, 6)},
    {TS_OP_BALANCE_LOSS, "loads of others", 2, 1, {NORMAL(2, 19), NORMAL(1, 19)}, BALANCED(1)},
    {TS_OP_BALANCE_LOSS, "no expert", 2, 1, {NORMAL(2, 3), NORMAL(2, 3)}, BALANCED(1)},
    {TS_OP_BALANCE_LOSS, "no layer", 2, 1, {NORMAL(2, 19), NORMAL(2, 19)}, BALANCED(0)},
    {TS_OP_BALANCE_LOSS, "loads in bf16", 2, 1, {NARROW(2, 19), NARROW(2, 19)}, BALANCED(1)},
    {TS_OP_BALANCE_LOSS_DX, "a seed in fp64", 2, 1, {WIDE(1), NORMAL(2, 19)}, BALANCED(1)},
    {TS_OP_DISPATCH, "choices that are floats", 1, 3, {NORMAL(2, 3, 2)}, {.experts = {7}}},
    {TS_OP_DISPATCH, "a choice of no token", 1, 3, {INTS(6)}, {.experts = {7}}},
    {TS_OP_DISPATCH, "no experts", 1, 3, {INTS(2, 3, 2)}, {.experts = {0}}},
    {TS_OP_DISPATCH, "too many experts", 1, 3, {INTS(2, 3, 2)}, {.experts = {TS_MOST_EXPERTS + 1}}},
    {TS_OP_TAKE_ROWS, "an order of others", 4, 1, {X, INTS(13), PLACES}, {{0}}},
    {TS_OP_TAKE_ROWS, "other tokens", 4, 1, {NORMAL(2, 2, 8), CHOICES}, {{0}}},
    {TS_OP_TAKE_ROWS, "places that are floats", 4, 1, {X, INTS(12), NORMAL(2, 3, 2), INTS(8)}, {{0}}},
    {TS_OP_TAKE_ROWS, "no first rows", 4, 1, {X, INTS(12), INTS(2, 3, 2), INTS(1)}, {{0}}},
    {TS_OP_TAKE_ROWS, "weights in bf16", 5, 1, {X, CHOICES, NARROW(2, 3, 2)}, {{0}}},
    {TS_OP_TAKE_ROWS, "numbers in fp64", 4, 1, {WIDE(2, 3, 8), CHOICES}, {{0}}},
    {TS_OP_COMBINE, "rows of others", 4, 1, {NORMAL(11, 8), CHOICES}, {{0}}},
    {TS_OP_COMBINE, "weights of others", 5, 1, {NORMAL(12, 8), CHOICES, NORMAL(2, 3, 3)}, {{0}}},
    {TS_OP_COMBINE_DOTS, "rows of another type", 4, 1, {X, NARROW(12, 8), PLACES}, {{0}}},
    {TS_OP_COMBINE_DOTS, "rows of another width", 4, 1, {X, NORMAL(12, 9), PLACES}, {{0}}},
    {TS_OP_GROUPED, "experts without matrices", 3, 1, {NORMAL(12, 8), NORMAL(7, 8, 5), INTS(9)}, {{0}}},
    {TS_OP_GROUPED, "matrices of others", 3, 1, {NORMAL(12, 8), NORMAL(7, 5, 8), INTS(8)}, {{0}}},
    {TS_OP_GROUPED, "matrices of another type", 3, 1, {NORMAL(12, 8), NARROW(7, 8, 5), INTS(8)}, {{0}}},
    {TS_OP_GROUPED, "rows turned", 3, 1, {NORMAL(12, 8), NORMAL(7, 8, 5), INTS(8)}, {.matmul = {.transpose_a = true}}},
    {TS_OP_GROUPED_DW, "rows of others", 3, 1, {NORMAL(11, 5), NORMAL(12, 8), INTS(4)}, {{0}}},
    {TS_OP_GROUPED_DW, "first rows that are floats", 3, 1, {NORMAL(12, 5), NORMAL(12, 8), NORMAL(4)}, {{0}}},
    {TS_OP_PICK, "more tokens than a sample has", 2, 1, {X, INTS(2, 2)}, {{0}}},
    {TS_OP_PICK, "an index of three dimensions", 2, 1, {X, INTS(2, 3, 1)}, {{0}}},
    {TS_OP_PICK, "tokens that x has not", 2, 1, {NORMAL(2, 2, 8), INTS(2, 9)}, PICKED},
    {TS_OP_PICK, "tokens beyond the sample", 2, 1, {X, INTS(2, 6)}, PICKED},
    {TS_OP_PICK_DX, "two rows of dy", 2, 1, {NORMAL(2, 2, 8), INTS(2, 9)}, PICKED},
    {TS_OP_NORMALIZE, "no eps", 1, 2, {X}, {{0}}},
    {TS_OP_NORMALIZE_DX, "no eps", 3, 1, {X, X, NORMAL(2, 3)}, {{0}}},
    {TS_OP_SOFT_LOSS, "no temperature", 2, 3, {X, X}, {{0}}},
    {TS_OP_LOSS_DX, "a type of no model", 1, 1, {NORMAL(1)}, {.loss = {TS_SHAPE(2, 3), TS_I32}}},
    {TS_OP_SUM_SQUARES, "overlapping ranges", 1, 1, {NORMAL(20)}, {.segments = {overlap, 2}}},
    {TS_OP_SUM_SQUARES, "a range beyond the end", 1, 1, {NORMAL(20)}, {.segments = {beyond, 1}}},
    {TS_OP_UPDATE_ELEMENTS,
     "a copy in fp32 that is rounded by chance",
     11,
     4,
     {NORMAL(20), NORMAL(20), NORMAL(20), NORMAL(20), NORMAL(20), STEP_NUMBERS},
     {.update = {.range = range, .n = 2, .copy = true, .rounding = {.stochastic = true}}}},
    {TS_OP_UPDATE_ELEMENTS,
     "a ratio beyond the last",
     9,
     1,
     {NORMAL(20), NORMAL(20), STEP_NUMBERS, NORMAL(2)},
     {.update = {.range = third, .n = 1, .rule = TS_OPTIMIZER_SGD, .has_ratios = true}}},
    {TS_OP_UPDATE_ELEMENTS,
     "ratios that are not there",
     8,
     1,
     {NORMAL(20), NORMAL(20), STEP_NUMBERS},
     {.update = {.range = range, .n = 2, .rule = TS_OPTIMIZER_SGD, .has_ratios = true}}},
    {TS_OP_UPDATE_ELEMENTS,
     "a direction with a copy",
     10,
     3,
     {NORMAL(20), NARROW(20), NORMAL(20), NORMAL(20), STEP_NUMBERS},
     {.update = {.range = range, .n = 2, .rule = TS_OPTIMIZER_MUON, .copy = true}}},
    {TS_OP_TRUST_RATIOS, "squares of no pairs", 2, 1, {NORMAL(5), WIDE(2)}, {.ratios = {0, 1}}},
    {TS_OP_ADD_DIAGONAL, "a matrix that is not square", 1, 1, {NORMAL(5, 4)}, {.diagonal = {1}}},
    {TS_OP_OVER_NORM, "squares in fp32", 2, 1, {NORMAL(5), NORMAL(1)}, {.over_norm = {0, TS_F32}}},
    {TS_OP_ORTHOGONALIZE, "a matrix beyond the end", 1, 1, {NORMAL(33)}, {.orthogonalize = {matrices, 3, TS_F32}}},
    {TS_OP_ORTHOGONALIZE, "one that joins none", 1, 1, {NORMAL(40)}, {.orthogonalize = {matrices + 2, 1, TS_F32}}},
    {TS_OP_ORTHOGONALIZE, "one that joins a stack", 1, 1, {NORMAL(40)}, {.orthogonalize = {stack, 2, TS_F32}}},
    {TS_OP_UPDATE_ELEMENTS,
     "a state too few",
     9,
     2,
     {NORMAL(20), NORMAL(20), NORMAL(20), STEP_NUMBERS},
     {.update = {.range = range, .n = 2}}},
    {TS_OP_UPDATE_ELEMENTS,
     "a state in 8 bits without its scales",
     9,
     2,
     {NORMAL(20), BYTES(20), NORMAL(20), STEP_NUMBERS},
     {.update = {.range = range, .n = 1, .rule = TS_OPTIMIZER_LION}}},
    {TS_OP_UPDATE_ELEMENTS,
     "a range that begins inside a block of 8 bits",
     10,
     3,
     {NORMAL(20), BYTES(20), NORMAL(1), NORMAL(20), STEP_NUMBERS},
     {.update = {.range = range, .n = 2, .rule = TS_OPTIMIZER_LION}}},
    {TS_OP_ATTENTION,
     "heads that do not divide",
     3,
     2,
     {X, NORMAL(2, 3, 6), NORMAL(2, 3, 6)},
     {.attention = {.heads = 4, .kv_heads = 3, .head_dim = 2}}},
    {TS_OP_ATTENTION, "dropout without a seed", 3, 2, {X, NORMAL(2, 3, 4), NORMAL(2, 3, 4)}, HEADS},
    {TS_OP_ROPE, "an odd width", 2, 1, {NORMAL(2, 3, 9), INTS(2, 3)}, TURNS(3, 3, 1)},
    {TS_OP_ROPE, "more than a head", 2, 1, {NORMAL(2, 3, 4), INTS(2, 3)}, TURNS(2, 4, 1)},
    {TS_OP_ROPE, "nothing that turns", 2, 1, {NORMAL(2, 3, 4), INTS(2, 3)}, TURNS(4, 0, 1)},
    {TS_OP_ROPE, "part of a head", 2, 1, {NORMAL(2, 3, 6), INTS(2, 3)}, TURNS(4, 4, 1)},
    {TS_OP_ROPE, "no factor", 2, 1, {NORMAL(2, 3, 4), INTS(2, 3)}, TURNS(4, 4, 0)},
    {TS_OP_ATTENTION, "a window that is not causal", 3, 2, {X, X, X}, HEADS_OF(.window = 2)},
    {TS_OP_ATTENTION, "a negative window", 3, 2, {X, X, X}, HEADS_OF(.causal = true, .window = -1)},
    {TS_OP_ATTENTION, "a negative softcap", 3, 2, {X, X, X}, HEADS_OF(.softcap = -1)},
    {TS_OP_ATTENTION, "a softcap that is no number", 3, 2, {X, X, X}, HEADS_OF(.softcap = NAN)},
    {TS_OP_ATTENTION_CACHED,
     "caches of other heads",
     6,
     3,
     {NORMAL(2, 5, 8), NORMAL(2, 5, 8), X, K, K, INTS(2)},
     KEPT(0)},
    {TS_OP_ATTENTION_CACHED, "no room", 6, 3, {NORMAL(2, 0, 4), NORMAL(2, 0, 4), X, K, K, INTS(2)}, KEPT(0)},
    {TS_OP_ATTENTION_CACHED, "one past for two texts", 6, 3, {CACHE, CACHE, X, K, K, INTS(1)}, KEPT(0)},
    {TS_OP_ATTENTION_CACHED, "dropout", 6, 3, {CACHE, CACHE, X, K, K, INTS(2)}, HEADS},
    {TS_OP_ATTENTION, "an infinite softcap", 3, 2, {X, X, X}, HEADS_OF(.softcap = INFINITY)},
    {TS_OP_ATTENTION_DX, "a window that is not causal", 6, 3, {X, X, X, X, X, NORMAL(2, 4, 3)}, HEADS_OF(.window = 2)},
    {TS_OP_FIRST_OF_ALL, "experts beyond all", 1, 1, {INTS(2, 8)}, {.experts = {3, 5}}},
    {TS_OP_FIRST_OF_ALL, "counts that are floats", 1, 1, {NORMAL(2, 8)}, {.experts = {3, 4}}},
    {TS_OP_EXCHANGE_ROWS, "integers", 4, 1, {INTS(12, 8), INTS(2, 6), INTS(4), INTS(6)}, ROWS(expert_cuts, 20)},
    {TS_OP_EXCHANGE_ROWS,
     "experts of nobody",
     4,
     1,
     {NORMAL(12, 8), INTS(2, 6), INTS(4), INTS(6)},
     ROWS(fewer_cuts, 20)},
    {TS_OP_EXCHANGE_ROWS,
     "counts of fewer ranks",
     4,
     1,
     {NORMAL(12, 8), INTS(1, 6), INTS(4), INTS(6)},
     ROWS(expert_cuts, 20)},
    {TS_OP_EXCHANGE_ROWS,
     "counts of other experts",
     4,
     1,
     {NORMAL(12, 8), INTS(2, 6), INTS(4), INTS(7)},
     ROWS(expert_cuts, 20)},
    {TS_OP_EXCHANGE_ROWS,
     "rows below none",
     4,
     1,
     {NORMAL(12, 8), INTS(2, 6), INTS(4), INTS(6)},
     ROWS(expert_cuts, -1)},
    {TS_OP_ALL_TO_ALL, "a block beyond its tensor", 1, 1, {NORMAL(4, 5)}, EXCHANGE(block_outside, 1, 1)},
    {TS_OP_ALL_TO_ALL, "a rank beyond its group", 1, 1, {NORMAL(4, 5)}, EXCHANGE(to_nobody, 1, 1)},
    {TS_OP_ALL_TO_ALL, "a block of no tensor", 1, 1, {NORMAL(4, 5)}, EXCHANGE(of_nothing, 1, 1)},
    {TS_OP_ALL_TO_ALL, "ranks in another order", 1, 1, {NORMAL(4, 5)}, EXCHANGE(unordered, 2, 1)},
    {TS_OP_ALL_TO_ALL, "integers that nobody sends", 1, 1, {INTS(4, 5)}, EXCHANGE(incomplete, 1, 1)},
    {TS_OP_ALL_TO_ALL, "a sum of integers", 1, 1, {INTS(4, 5)}, EXCHANGE(twice, 1, 2)},
    {TS_OP_ALL_TO_ALL, "one half of integers twice", 1, 1, {INTS(4, 5)}, EXCHANGE(one_half_twice, 1, 2)},
    {TS_OP_ALL_TO_ALL, "one dimension", 1, 1, {NORMAL(4)}, EXCHANGE(twice, 1, 2)},
    {TS_OP_ALL_REDUCE, "of numbers that are not fp32 or bf16", 1, 1, {WIDE(5)}, {.comm = {.group = 2}}},
    {TS_OP_ALL_REDUCE, "in pieces", 1, 1, {X}, {.comm = {.group = 2, .piece = piece, .n_pieces = 1}}},
    {TS_OP_ALL_GATHER, "no pieces", 1, 1, {NORMAL(5)}, {.comm = {.group = 2}}},
    {TS_OP_ALL_GATHER,
     "a piece of nothing",
     1,
     1,
     {NORMAL(5)},
     {.comm = {.group = 2, .piece = no_input, .n_pieces = 1}}},
    {TS_OP_REDUCE_SCATTER,
     "a piece that ends before it begins",
     1,
     1,
     {NORMAL(8)},
     {.comm = {.group = 2, .piece = backwards, .n_pieces = 1}}},
};

static void test_attributes(void) {
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    const bad_case *c = &bad[i];
    setting s = make(c->op, c->n_in, c->in, c->n_out, c->attr);
    ts_dtype dtype[MAX];
    ts_shape shape[MAX];
    tap_ok(ask(&s, dtype, shape) != NULL, "%s with %s is refused", ts_op_get(c->op)->name, c->what);
    ts_graph_destroy(&s.graph);
  }
}

/* What attention does beyond the usual is printed, and makes it another node. */
static void test_attention_attributes(void) {
  ts_node plain = {.op = TS_OP_ATTENTION, .attr = HEADS_OF(.causal = true)}, window = plain, softcap = plain;
  window.attr.attention.window = 7;
  softcap.attr.attention.softcap = 2.5f;
  const ts_node *node[] = {&plain, &window, &softcap};
  const char *expected[] = {" {heads 4, kv_heads 4, head_dim 2, causal}",
                            " {heads 4, kv_heads 4, head_dim 2, causal, window 7}",
                            " {heads 4, kv_heads 4, head_dim 2, causal, softcap 2.5}"};
  for (int i = 0; i < 3; ++i) {
    ts_text text = {0};
    ts_attributes_print(node[i], &text);
    tap_ok(strcmp(text.text, expected[i]) == 0, "attention prints%s", text.text);
    tap_ok(ts_attributes_equal(&plain, node[i]) == (i == 0), "and is %s plain one", i == 0 ? "the" : "not the");
    ts_text_free(&text);
  }
}

/* An exchange prints how many blocks it has; another block, rank or extent makes it another one. */
static void test_exchange_attributes(void) {
  const ts_attr attr = {.comm = {.axes = 2, .group = 2, .block = blocks, .n_sent = 3, .n_received = 4}};
  ts_node node = {.op = TS_OP_ALL_TO_ALL, .attr = attr, .n_in = 2, .n_out = 2}, other = node;
  ts_block changed[sizeof blocks / sizeof *blocks];
  ts_text text = {0};
  ts_attributes_print(&node, &text);
  tap_ok(strcmp(text.text, " {group 2, 3 blocks sent, 4 received}") == 0, "an exchange prints%s", text.text);
  ts_text_free(&text);
  other.attr.comm.block = changed;
  bool differs = true;
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; ++i) {
    memcpy(changed, blocks, sizeof changed);
    bool same = ts_attributes_equal(&node, &other);
    ++changed[i].columns.length;
    differs = differs && same && !ts_attributes_equal(&node, &other);
  }
  tap_ok(differs, "and is another one with any other block");
}

/* Properties of the table itself, and that each op has a case above. */
static void test_table(void) {
  for (int op = 0; op < TS_N_OPS; ++op) {
    const ts_op_info *info = ts_op_get((ts_op) op);
    bool listed = false;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
      listed = listed || cases[i].op == (ts_op) op;
    }
    tap_ok(listed, "%s has a case here", info->name);
    bool rules = info->shape != NULL && info->index != NULL && info->gradient != NULL && info->flops != NULL;
    tap_ok(rules && info->n_inplace <= info->min_in && (info->min_out >= 1 || op == TS_OP_SEND),
           "%s: the row is complete", info->name);
  }
}

int main(void) {
  test_table();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    test_good(&cases[i]);
    test_spoiled(&cases[i]);
    test_in_graph(&cases[i]);
  }
  test_attributes();
  test_attention_attributes();
  test_exchange_attributes();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
