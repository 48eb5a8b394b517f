/* Sequence parallelism without kernels: who has which tokens and heads, what travels, and the programs of grids of up
 * to 512 ranks going through a step together.
 *
 * A sample of models, grids, stages and settings; all of them where TEST_SP_ALL is set.  Of some grids the rank that
 * needs most memory, as the plan finds it. */
#include "main/plan_longest.h"
#include "regression/pass/grid.h"
#include "regression/tap.h"
#include "run/plan_largest.h"

#include "pass/exchange_blocks.h"
#include "run/simulate.h"
#include "train/balance.h"

#include <stdlib.h>

static const int64_t lengths[] = {1, 2, 3, 5, 8, 127, 128, 129, 300, 512, 1000, 1025, 4096, 5003};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* ---- tokens ---- */

static void count_tokens(const ts_tokens *tokens, int *seen) {
  for (int i = 0; i < tokens->n; ++i) {
    for (int64_t t = 0; t < tokens->stretch[i].length; ++t) {
      ++seen[tokens->stretch[i].begin + t];
    }
  }
}

/* Each token has one rank; ranks of a ring have its tokens; no rank has two more than another of its ring. */
static bool tokens_are_dealt(const ts_sequence *s) {
  int *seen = ts_calloc((size_t) s->length, sizeof *seen), *ring = ts_calloc((size_t) s->length, sizeof *ring);
  bool right = true;
  for (int i = 0; i < s->ring; ++i) {
    ts_tokens all = ts_sequence_ring(s, i);
    int64_t least = s->length, most = 0, sum = 0;
    count_tokens(&all, ring);
    for (int j = 0; j < s->ulysses; ++j) {
      ts_tokens mine = ts_sequence_tokens(s, i * s->ulysses + j), inside = ts_sequence_both(&mine, &all);
      int64_t count = ts_sequence_count(&mine);
      right = right && ts_sequence_count(&inside) == count && ts_tokens_fit(&mine, count, s->length);
      least = count < least ? count : least;
      most = count > most ? count : most;
      sum += count;
      count_tokens(&mine, seen);
    }
    right = right && sum == ts_sequence_count(&all) && most - least <= 1;
  }
  for (int64_t t = 0; t < s->length; ++t) {
    right = right && seen[t] == 1 && ring[t] == 1;
  }
  ts_free(seen);
  ts_free(ring);
  return right;
}

/* Pairs of a query and a key before it, or itself, of a ring. */
static double causal_pairs(const ts_sequence *s, int i) {
  ts_tokens all = ts_sequence_ring(s, i);
  double pairs = 0;
  for (int k = 0; k < all.n; ++k) {
    double begin = (double) all.stretch[k].begin, end = begin + (double) all.stretch[k].length;
    pairs += (end * (end + 1) - begin * (begin + 1)) / 2;
  }
  return pairs;
}

static double imbalance(const ts_sequence *s) {
  double most = 0, sum = 0;
  for (int i = 0; i < s->ring; ++i) {
    double pairs = causal_pairs(s, i);
    most = pairs > most ? pairs : most;
    sum += pairs;
  }
  return most * s->ring / sum;
}

static void test_tokens(void) {
  for (int u = 1; u <= 5; ++u) {
    for (int r = 1; r <= 7; ++r) {
      bool right = true;
      for (int k = 0; k < N_LENGTHS; ++k) {
        for (int zigzag = 0; zigzag < 2; ++zigzag) {
          const ts_sequence s = {.length = lengths[k], .ulysses = u, .ring = r, .zigzag = zigzag};
          right = right && tokens_are_dealt(&s);
        }
      }
      tap_ok(right, "u %d x r %d: each token of any length has one rank", u, r);
    }
  }
  const ts_sequence zigzag = {.length = 65536, .ulysses = 1, .ring = 4, .zigzag = true};
  const ts_sequence contiguous = {.length = 65536, .ulysses = 1, .ring = 4};
  tap_ok(imbalance(&zigzag) < 1.0001 && imbalance(&contiguous) > 1.7,
         "65,536 causal tokens on 4 rings: the busiest has %.4f of the mean, %.2f without zigzag", imbalance(&zigzag),
         imbalance(&contiguous));
  ts_sequence s = {.length = 1000, .ulysses = 1, .ring = 2, .zigzag = true};
  ts_tokens t = ts_sequence_ring(&s, 0);
  tap_ok(t.n == 2 && t.stretch[0].length == 256 && t.stretch[1].begin == 768 && t.stretch[1].length == 232,
         "1000 tokens in 4 chunks are cut at multiples of 128");
}

/* ---- heads ---- */

static bool shares_are(int heads, int group, int first, int ulysses, const int *expected) {
  int64_t at = 0;
  bool right = true;
  for (int j = 0; j < ulysses; ++j) {
    ts_interval share = ts_sequence_share(heads, group, first, ulysses, j);
    right = right && share.begin == at && share.length == expected[j];
    at += share.length;
  }
  return right && at == heads;
}

static void test_heads(void) {
  tap_ok(shares_are(7, 1, 0, 4, (int[]){2, 2, 2, 1}), "7 heads on 4 ranks: 2 2 2 1");
  tap_ok(shares_are(32, 4, 0, 8, (int[]){4, 4, 4, 4, 4, 4, 4, 4}), "32 heads by fours on 8 ranks: whole groups");
  tap_ok(shares_are(32, 4, 0, 16, (int[]){2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}),
         "on 16 ranks: halves of groups");
  tap_ok(shares_are(32, 4, 0, 3, (int[]){11, 11, 10}), "on 3 ranks: one by one, as whole groups would make 12");
  tap_ok(shares_are(6, 2, 0, 4, (int[]){2, 2, 1, 1}), "6 heads by twos on 4 ranks: everybody has one");
  tap_ok(shares_are(6, 3, 6, 2, (int[]){3, 3}), "behind others: whole groups");
}

/* ---- what travels: on numbers ---- */

enum { HEADS = 6, GROUP = 2, DIM = 2 };

typedef struct holder {
  int64_t rows, columns;
  int64_t *value;
} holder;

static holder make_holder(int64_t rows, int64_t columns) {
  return (holder){rows, columns, ts_calloc((size_t) (rows * columns) + 1, sizeof(int64_t))};
}

/* Do the lists of two ranks fit?  The k-th block that one sends the other is the k-th that this receives. */
static bool move_blocks(const ts_block_list *from, const ts_block_list *to, int a, int b, int n, const holder *x,
                        const holder *y) {
  int k = 0;
  const ts_block *sent = from->block + n, *came = to->block + n + to->n_sent;
  bool right = true;
  for (int i = 0; i < from->n_sent && right; ++i) {
    if (sent[i].rank != b) {
      continue;
    }
    while (k < to->n_received && came[k].rank != a) {
      ++k;
    }
    right = k < to->n_received && came[k].tensor == sent[i].tensor && came[k].rows.length == sent[i].rows.length &&
            came[k].columns.length == sent[i].columns.length;
    for (int64_t row = 0; right && row < sent[i].rows.length; ++row) {
      for (int64_t c = 0; c < sent[i].columns.length; ++c) {
        const holder *in = &x[sent[i].tensor], *out = &y[came[k].tensor];
        out->value[(came[k].rows.begin + row) * out->columns + came[k].columns.begin + c] +=
            in->value[(sent[i].rows.begin + row) * in->columns + sent[i].columns.begin + c];
      }
    }
    ++k;
  }
  while (k < to->n_received && right) {
    right = came[k++].rank != a;
  }
  return right;
}

enum { WIDTH = HEADS / GROUP * DIM };

/* A route of keys by rows and of their transpose, among all ranks of a sequence. */
typedef struct travel {
  const ts_sequence *s;
  int ranks;
  ts_tokens *seen;                        /* owned: of each ring */
  ts_interval *column;                    /* owned: of each rank of a ring */
  ts_block_list *there, *home;            /* owned: of each rank, as what follows */
  holder (*own)[2], (*at)[2], (*back)[2]; /* owned: before, on the way, come home */
} travel;

static travel new_travel(const ts_sequence *s, bool causal, int64_t window) {
  const int ranks = s->ring * s->ulysses;
  const size_t n = (size_t) ranks;
  travel t = {.s = s,
              .ranks = ranks,
              .seen = ts_calloc((size_t) s->ring, sizeof *t.seen),
              .column = ts_calloc((size_t) s->ulysses, sizeof *t.column),
              .there = ts_calloc(n, sizeof *t.there),
              .home = ts_calloc(n, sizeof *t.home),
              .own = ts_calloc(n, sizeof *t.own),
              .at = ts_calloc(n, sizeof *t.at),
              .back = ts_calloc(n, sizeof *t.back)};
  for (int i = 0; i < s->ring; ++i) {
    t.seen[i] = ts_sequence_seen(s, i, causal, window);
  }
  for (int j = 0; j < s->ulysses; ++j) { /* key heads of 6 query heads by twos */
    ts_interval heads = ts_sequence_share(HEADS, GROUP, 0, s->ulysses, j);
    int64_t begin = heads.begin / GROUP, end = (heads.begin + heads.length - 1) / GROUP + 1;
    t.column[j] = heads.length > 0 ? (ts_interval){begin * DIM, (end - begin) * DIM} : (ts_interval){0, 0};
  }
  return t;
}

static void free_travel(travel *t) {
  for (int a = 0; a < t->ranks; ++a) {
    for (int k = 0; k < 2; ++k) {
      ts_free(t->own[a][k].value);
      ts_free(t->at[a][k].value);
      ts_free(t->back[a][k].value);
    }
    ts_free(t->there[a].block);
    ts_free(t->home[a].block);
  }
  ts_free(t->own);
  ts_free(t->at);
  ts_free(t->back);
  ts_free(t->there);
  ts_free(t->home);
  ts_free(t->seen);
  ts_free(t->column);
}

/* The lists of rank \a a, and its keys: each a number of its own. */
static void pack(travel *t, int a) {
  ts_sequence own = *t->s;
  own.rank = a;
  const ts_route route = {
      .sequence = &own, .n = 2, .tensor = {{t->seen, t->column, WIDTH, false}, {t->seen, t->column, WIDTH, true}}};
  t->there[a] = ts_route_blocks(&route, false);
  t->home[a] = ts_route_blocks(&route, true);
  const ts_tokens mine = ts_sequence_tokens(t->s, a);
  const int64_t count = ts_sequence_count(&mine);
  for (int k = 0; k < 2; ++k) {
    const ts_block *extent = &t->there[a].block[k];
    t->own[a][k] = make_holder(k == 0 ? count : WIDTH, k == 0 ? WIDTH : count);
    t->back[a][k] = make_holder(t->own[a][k].rows, t->own[a][k].columns);
    t->at[a][k] = make_holder(extent->rows.length, extent->columns.length);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < WIDTH; ++c) {
        t->own[a][k].value[k == 0 ? i * WIDTH + c : c * count + i] = ts_tokens_at(&mine, i) * WIDTH + c + 1;
      }
    }
  }
}

static bool move_all(const travel *t, const ts_block_list *list, holder (*from)[2], holder (*to)[2]) {
  bool right = true;
  for (int a = 0; a < t->ranks; ++a) {
    for (int b = 0; b < t->ranks; ++b) {
      right = right && move_blocks(&list[a], &list[b], a, b, 2, from[a], to[b]);
    }
  }
  return right;
}

/* Rank \a b has its columns of what its ring sees. */
static bool arrived(const travel *t, int b) {
  const ts_tokens *keys = &t->seen[b / t->s->ulysses];
  const ts_interval own = t->column[b % t->s->ulysses];
  const int64_t count = ts_sequence_count(keys);
  bool right = true;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < own.length; ++c) {
      int64_t expected = ts_tokens_at(keys, i) * WIDTH + own.begin + c + 1;
      right =
          right && t->at[b][0].value[i * own.length + c] == expected && t->at[b][1].value[c * count + i] == expected;
    }
  }
  return right;
}

/* Ranks that had a column of a token. */
static int64_t count_holders(const travel *t, int64_t token, int64_t c) {
  int64_t had = 0;
  for (int b = 0; b < t->ranks; ++b) {
    const ts_tokens one = {.n = 1, .stretch = {{token, 1}}}, both = ts_sequence_both(&one, &t->seen[b / t->s->ulysses]);
    const ts_interval own = t->column[b % t->s->ulysses];
    had += both.n > 0 && c >= own.begin && c < own.begin + own.length;
  }
  return had;
}

/* Rank \a a has its keys again, each as often as ranks had it. */
static bool came_home(const travel *t, int a) {
  const ts_tokens mine = ts_sequence_tokens(t->s, a);
  const int64_t count = ts_sequence_count(&mine);
  bool right = true;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < WIDTH; ++c) {
      int64_t token = ts_tokens_at(&mine, i), expected = count_holders(t, token, c) * (token * WIDTH + c + 1);
      right = right && t->back[a][0].value[i * WIDTH + c] == expected && t->back[a][1].value[c * count + i] == expected;
    }
  }
  return right;
}

/* There and back: the numbers arrive where they belong, and come home times the ranks that had them. */
static bool travels(const ts_sequence *s, bool causal, int64_t window) {
  travel t = new_travel(s, causal, window);
  for (int a = 0; a < t.ranks; ++a) {
    pack(&t, a);
  }
  bool right = move_all(&t, t.there, t.own, t.at);
  for (int b = 0; b < t.ranks; ++b) {
    right = right && arrived(&t, b);
  }
  right = right && move_all(&t, t.home, t.at, t.back);
  for (int a = 0; a < t.ranks; ++a) {
    right = right && came_home(&t, a);
  }
  free_travel(&t);
  return right;
}

static void test_travel(void) {
  for (int u = 1; u <= HEADS; ++u) {
    for (int r = 1; r <= 4; ++r) {
      bool right = true;
      for (int k = 0; k < 10; ++k) {
        for (int how = 0; how < 6; ++how) {
          const ts_sequence s = {.length = lengths[k], .ulysses = u, .ring = r, .zigzag = how % 2 == 0};
          right = right && travels(&s, how > 1, how > 3 ? 9 : 0);
        }
      }
      tap_ok(right, "u %d x r %d: what is sent arrives, and comes home as often as it was had", u, r);
    }
  }
}

/* ---- how even documents are ---- */

/* Of 8 tokens ring 0 has 0, 1, 6 and 7, ring 1 the others. */
static double balance_of(int first_document) {
  const ts_sequence s = {.length = 8, .ulysses = 1, .ring = 2, .zigzag = true};
  ts_batch *batch = ts_batch_create(1, 8, TS_INPUTS_ALL);
  int32_t tokens[9] = {1, 1, 1, 1, 2, 2, 2, 2, 2};
  tokens[first_document - 1] = 2; /* ends a document */
  ts_batch_set(batch, 0, 0, tokens, first_document < 8 ? 2 : -1);
  ts_balance balance = {0};
  ts_balance_add(&balance, &s, batch, 1);
  double ratio = ts_balance_take(&balance);
  ts_batch_destroy(&batch);
  return balance.mean == 0 ? ratio : 0;
}

static void test_balance(void) {
  tap_ok(balance_of(8) == 1, "one document: both rings see as many keys");
  tap_ok(balance_of(4) == 9.0 / 7, "one of 4 tokens and 4 of one: 5 pairs and 9, %.3f", balance_of(4));
}

/* ---- what is printed ---- */

static void test_print(void) {
  grid g =
      make_grid(llama, "sequence_parallel_size=2 sequence_parallel.ring_degree=2 sequence_parallel.ring_exchange=p2p",
                2, TS_MODEL_LOSS);
  ts_text text = {0};
  ts_graph_dump(g.program[0]->graph, TS_GRAPH_TEXT, &text);
  tap_ok(strstr(text.text, "queries 0 to 1, queries 6 to 7, keys 0 to 1, keys 6 to 7") != NULL &&
             strstr(text.text, "keys 2 to 5") != NULL && strstr(text.text, "{group 2, ") != NULL,
         "which tokens attention has, and the blocks of a message");
  ts_text_free(&text);
  free_grid(&g);
}

/* ---- what gradients travel in ---- */

/* Of two ranks that write one of the two keys. */
static bool gradients_travel_in(const char *sets, ts_dtype wire) {
  grid g = make_grid(llama, sets, 2, TS_MODEL_TRAIN);
  const ts_graph *graph = g.program[0]->graph;
  int reductions = 0, right = 0;
  for (ts_nid n = 0; n < graph->n_nodes; ++n) {
    bool reduces = graph->node[n].op == TS_OP_REDUCE_SCATTER;
    reductions += reduces;
    right += reduces && graph->node[n].attr.comm.wire == wire;
  }
  free_grid(&g);
  return reductions > 0 && right == reductions;
}

static void test_wire(void) {
  tap_ok(gradients_travel_in("communication_data_type=bf16", TS_BF16) &&
             gradients_travel_in("seq_parallel_communication_data_type=bf16", TS_F32),
         "whole samples: gradients travel in communication_data_type");
  tap_ok(gradients_travel_in("sequence_parallel_size=2 communication_data_type=bf16", TS_F32) &&
             gradients_travel_in("sequence_parallel_size=2 seq_parallel_communication_data_type=bf16", TS_BF16),
         "shared samples: in seq_parallel_communication_data_type");
}

/* ---- programs ---- */

typedef struct grid_row {
  int sp, tp, ranks;
  const char *sets;
} grid_row;

#define DEGREES(u, r) \
  "sequence_parallel.ulysses_degree=" #u " sequence_parallel.ring_degree=" #r " sequence_parallel.ring_exchange="

static const grid_row grids[] = {{2, 1, 4, ""},
                                 {4, 1, 4, DEGREES(2, 2) "p2p"},
                                 {6, 1, 12, DEGREES(2, 3) "all_gather"},
                                 {8, 1, 8, DEGREES(1, 8) "p2p sequence_parallel.load_balancer=contiguous"},
                                 {8, 1, 16, ""},
                                 {3, 2, 12, ""},
                                 {4, 2, 8, DEGREES(1, 4) "p2p"},
                                 {2, 2, 8, DEGREES(2, 1) "auto"}};
enum { N_GRIDS = sizeof grids / sizeof *grids };

static const char *const variants[] = {
    "",
    "gradient_accumulation_steps=2 activation_checkpointing.enabled=true",
    "bf16.enabled=true zero_optimization.stage3_param_persistence_threshold=0 zero_optimization.overlap_comm=true",
    "data.sequence_length=1 model.max_position_embeddings=1100",
    "data.sequence_length=1030 model.max_position_embeddings=1100 zero_optimization.overlap_comm=true",
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

static void test_program(const char *model, const char *deck, grid_row on, int stage, const char *variant,
                         ts_model_use use) {
  static const char *const uses[] = {
      [TS_MODEL_TRAIN] = "train", [TS_MODEL_LOSS] = "loss", [TS_MODEL_LOGITS] = "logits"};
  char *sets = ts_format("sequence_parallel_size=%d tensor_parallel.autotp_size=%d zero_optimization.stage=%d %s %s",
                         on.sp, on.tp, stage, on.sets, variant);
  grid g = make_grid(deck, sets, on.ranks, use);
  char *fault = ts_simulate_step((const ts_program *const *) g.program, g.ranks);
  tap_ok(fault == NULL, "%s, sp %d x tp %d of %d ranks, stage %d, %s %s %s: %s", model, on.sp, on.tp, on.ranks, stage,
         uses[use], on.sets, variant, fault != NULL ? fault : "clean");
  ts_free(fault);
  free_grid(&g);
  ts_free(sets);
}

static void test_programs(bool all) {
  for (int k = 0; k < N_GRIDS; ++k) {
    for (int i = 0; i < N_VARIANTS; ++i) {
      for (int stage = 0; stage < 4; ++stage) {
        if (all || (k + i) % 4 == stage) {
          test_program("llama", llama, grids[k], stage, variants[i], TS_MODEL_TRAIN);
        }
        if ((all || (k + i + 1) % 4 == stage) && grids[k].tp == 1 && grids[k].sp <= 4) {
          test_program("gpt2", gpt2, grids[k], stage, variants[i], TS_MODEL_TRAIN);
        }
      }
    }
    test_program("llama", llama, grids[k], k % 4, "", TS_MODEL_LOSS);
    test_program("llama", llama, grids[k], k % 4, "", TS_MODEL_LOGITS);
  }
  /* matrices of parts that each rank along tp has of its own */
  static const grid_row apart[] = {{1, 2, 2, ""}, {2, 2, 4, ""}, {1, 4, 8, ""}};
  for (int k = 0; k < 3; ++k) {
    test_program("llama", llama, apart[k], k, "optimizer.type=Muon", TS_MODEL_TRAIN);
  }
}

/* sp 8 x dp 32 x tp 2; one sample on 64 ranks, or on 512, which takes a minute. */
static void test_large(bool all) {
  const grid_row large[] = {{8, 2, 512, DEGREES(2, 4) "p2p"}, {all ? 512 : 64, 1, all ? 512 : 64, ""}};
  for (int stage = 0; stage < 4; ++stage) {
    if (all || stage == 3) {
      test_program("llama", llama, large[0], stage, variants[2], TS_MODEL_TRAIN);
      test_program("llama", llama, large[1], stage, variants[4], TS_MODEL_TRAIN);
    }
  }
}

/* ---- the rank that needs most ---- */

/* Bytes of the rank of the mesh that needs most: the programs of all are made. */
static int64_t most_of_all(const ts_program_options *options, int64_t length) {
  int64_t most = 0;
  for (int rank = 0; rank < options->mesh->ranks; ++rank) {
    ts_mesh mesh = ts_mesh_at(options->mesh, rank);
    ts_program_options other = *options;
    other.mesh = &mesh;
    other.length = length;
    ts_program *program = ts_program_create(&other);
    most = program->plan->peak_bytes > most ? program->plan->peak_bytes : most;
    ts_program_destroy(&program);
  }
  return most;
}

/* The plan finds that one, and the longest sample that all ranks have room for when they have as much as it needs. */
static void test_largest_of(const grid_row *row, const char *more) {
  char *sets =
      ts_format("sequence_parallel_size=%d tensor_parallel.autotp_size=%d %s %s", row->sp, row->tp, row->sets, more);
  ts_deck *deck = read_deck(llama, sets, row->ranks);
  ts_mesh mesh;
  TS_CHECK(ts_deck_mesh(deck, row->ranks, 0, &mesh, NULL) == TS_OK, "a grid of %d ranks", row->ranks);
  const ts_program_options options = {.deck = deck,
                                      .mesh = &mesh,
                                      .target = {ts_backend_cpu(), 1, TS_CUDNN_NEVER},
                                      .use = TS_MODEL_TRAIN,
                                      .batch = 1,
                                      .length = deck->data.sequence_length};
  ts_program *largest = ts_plan_largest(&options);
  int64_t most = most_of_all(&options, options.length), found = largest->plan->peak_bytes;
  tap_ok(found == most, "%s: rank %d needs most, %lld of %lld bytes", sets, largest->mesh.rank, (long long) found,
         (long long) most);
  int64_t host, longest = ts_plan_longest(&options, most, &host);
  tap_ok(longest >= options.length / TS_PLAN_LENGTH_STEP * TS_PLAN_LENGTH_STEP &&
             most_of_all(&options, longest) <= most && most_of_all(&options, longest + TS_PLAN_LENGTH_STEP) > most,
         "%s: and %lld tokens fit into that", sets, (long long) longest);
  ts_program_destroy(&largest);
  ts_deck_destroy(&deck);
  ts_free(sets);
}

static void test_largest(void) {
  static const grid_row rows[] = {{4, 1, 4, DEGREES(4, 1) "auto"}, /* the second rank's heads have two keys */
                                  {7, 1, 14, DEGREES(1, 7) "p2p"},
                                  {7, 1, 7, DEGREES(1, 7) "all_gather sequence_parallel.load_balancer=contiguous"},
                                  {6, 1, 6, DEGREES(2, 3) "all_gather sequence_parallel.head_groups=2"},
                                  {15, 1, 15, DEGREES(3, 5) "p2p sequence_parallel.load_balancer=contiguous"},
                                  {5, 2, 10, DEGREES(1, 5) "all_gather"},
                                  {12, 2, 24, DEGREES(3, 4) "all_gather sequence_parallel.load_balancer=contiguous"},
                                  /* of many rings some are looked at; the last one sees all tokens */
                                  {20, 1, 20, DEGREES(1, 20) "all_gather sequence_parallel.load_balancer=contiguous"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    test_largest_of(&rows[i], "data.sequence_length=1000 zero_optimization.stage=3");
    test_largest_of(&rows[i], "data.sequence_length=2500 model.model_type=mistral model.sliding_window=300");
  }
  /* along dp ranks own other matrices of Muon's */
  static const grid_row owners[] = {
      {1, 1, 7, "zero_optimization.stage=2"},
      {1, 2, 6, "zero_optimization.stage=2"},
      {2, 2, 12, DEGREES(2, 1) "auto zero_optimization.stage=2"},
      /* and who owns less may need more: others' come back */
      {1, 1, 2, "zero_optimization.stage=0"},
      {1, 1, 4,
       "zero_optimization.stage=1 bf16.enabled=true model.num_hidden_layers=4 optimizer.params.ns_method=standard "
       "model.num_key_value_heads=1 zero_optimization.stage3_param_persistence_threshold=0"},
      {1, 1, 4, "zero_optimization.stage=1 bf16.enabled=true model.num_hidden_layers=4 model.num_key_value_heads=1"},
      {1, 2, 6,
       "zero_optimization.stage=0 model.num_hidden_layers=5 zero_optimization.stage3_param_persistence_threshold=0"}};
  for (size_t i = 0; i < sizeof owners / sizeof *owners; ++i) {
    test_largest_of(&owners[i], "optimizer.type=Muon data.sequence_length=128 model.hidden_size=384 "
                                "model.intermediate_size=800");
  }
}

/* Groups of heads of unequal size: as many ranks share a ring as the smallest has heads. */
static void test_smallest_group(void) {
  static const struct {
    int heads, kv_heads, groups, sp, ulysses;
  } rows[] = {{16, 8, 5, 3, 1}, {16, 8, 3, 5, 1}, {16, 8, 3, 10, 2}, {14, 7, 4, 3, 1}, {10, 5, 3, 4, 2}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *sets = ts_format("sequence_parallel_size=%d sequence_parallel.head_groups=%d model.head_dim=8 "
                           "model.num_attention_heads=%d model.num_key_value_heads=%d",
                           rows[i].sp, rows[i].groups, rows[i].heads, rows[i].kv_heads);
    grid g = make_grid(llama, sets, rows[i].sp, TS_MODEL_TRAIN);
    int ulysses = g.program[0]->sequence.ulysses;
    tap_ok(ulysses == rows[i].ulysses, "%d heads of %d keys in %d groups on %d ranks: %d share heads (expected %d)",
           rows[i].heads, rows[i].kv_heads, rows[i].groups, rows[i].sp, ulysses, rows[i].ulysses);
    free_grid(&g);
    ts_free(sets);
  }
}

/* Ranks without tokens have the others' program, also where heads are views that groups or tp cut. */
static void test_without_tokens(const char *sets, int ranks) {
  char *all = ts_format("model.model_type=qwen3 model.head_dim=16 %s", sets);
  grid g = make_grid(llama, all, ranks, TS_MODEL_TRAIN);
  int without = 0, alike = 0;
  for (int r = 0; r < ranks; ++r) {
    ts_tokens own = ts_sequence_tokens(&g.program[r]->sequence, g.program[r]->sequence.rank);
    without += ts_sequence_count(&own) == 0;
    alike += g.program[r]->graph->n_nodes == g.program[0]->graph->n_nodes;
  }
  tap_ok(without > 0 && alike == ranks, "%s: %d ranks without tokens, %d programs of %d nodes", sets, without, alike,
         g.program[0]->graph->n_nodes);
  free_grid(&g);
  ts_free(all);
}

int main(void) {
  bool all = getenv("TEST_SP_ALL") != NULL;
  test_tokens();
  test_smallest_group();
  test_without_tokens("sequence_parallel_size=4 sequence_parallel.head_groups=2 data.sequence_length=3", 4);
  test_without_tokens("sequence_parallel_size=3 tensor_parallel.autotp_size=2 data.sequence_length=2", 6);
  test_heads();
  test_travel();
  test_balance();
  test_print();
  test_wire();
  test_programs(all);
  test_large(all);
  test_largest();
  return tap_done();
}
