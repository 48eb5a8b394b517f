/* Tensor parallelism on grids of up to 512 ranks, in one process: their programs go through a step, all ranks together;
 * and every element of every parameter has one owner.
 *
 * A sample of models, grids, stages and settings; all of them where TEST_TP_ALL is set. */
#include "regression/pass/grid.h"
#include "regression/tap.h"

#include "base/log.h"
#include "pass/layout.h"
#include "run/simulate.h"

#include <stdlib.h>
#include <string.h>

typedef struct model_row {
  const char *name, *deck;
  int heads;
} model_row;

#define MODEL(type, width, q, kv, more)                                                                     \
  "model = { model_type = \"" type "\"; vocab_size = 67; hidden_size = " #width "; intermediate_size = 90;" \
  " num_hidden_layers = 2; num_attention_heads = " #q "; num_key_value_heads = " #kv ";"                    \
  " max_position_embeddings = 32; " more " };\n" COMMON

/* Key heads that ranks share, by twos or by twos and threes, or that do not divide; in pieces, in one, with norms. */
static const model_row models[] = {
    {"llama 20/4", MODEL("llama", 80, 20, 4, "tie_word_embeddings = false;"), 20},
    {"llama 9/3", MODEL("llama", 36, 9, 3, "tie_word_embeddings = true;"), 9},
    {"llama 14/2", MODEL("llama", 56, 14, 2, "attention_bias = true; mlp_bias = true;"), 14},
    {"llama 8/1", MODEL("llama", 32, 8, 1, ""), 8},
    {"gpt2 9",
     "model = { model_type = \"gpt2\"; vocab_size = 67; n_embd = 36; n_layer = 2; n_head = 9;\n"
     "  n_positions = 32; attn_pdrop = 0.1; embd_pdrop = 0.1; resid_pdrop = 0.1; };\n" COMMON,
     9},
    {"qwen3 20/4", MODEL("qwen3", 40, 20, 4, "head_dim = 4;"), 20},
    {"olmo2 20/4", MODEL("olmo2", 80, 20, 4, ""), 20},
    {"olmo2 9/3", MODEL("olmo2", 36, 9, 3, ""), 9},
    {"phi3 9/3", MODEL("phi3", 36, 9, 3, ""), 9},
    {"gemma2 20/4", MODEL("gemma2", 40, 20, 4, "head_dim = 4; sliding_window = 5;"), 20},
    {"gpt_neox 9",
     "model = { model_type = \"gpt_neox\"; vocab_size = 67; hidden_size = 72; num_hidden_layers = 2;\n"
     "  intermediate_size = 90; num_attention_heads = 9; max_position_embeddings = 32; };\n" COMMON,
     9},
    {"smollm3 20/4", MODEL("smollm3", 80, 20, 4, "no_rope_layers = [1, 0];"), 20},
};
enum { N_MODELS = sizeof models / sizeof *models };

static const char *const variants[] = {
    "",
    "gradient_accumulation_steps=2 activation_checkpointing={enabled=true;policy=\"sac\";interval=2;}",
    "bf16.enabled=true zero_optimization.stage3_param_persistence_threshold=0 zero_optimization.overlap_comm=true",
    "tensor_parallel.sequence_parallel=false",
    "tensor_parallel.sequence_parallel=false activation_checkpointing={enabled=true;interval=2;} "
    "zero_optimization.stage3_param_persistence_threshold=0",
    "tensor_parallel.vocab_parallel_lm_head=false zero_optimization.reduce_bucket_size=3000 "
    "zero_optimization.allgather_bucket_size=2000 zero_optimization.overlap_comm=true",
    "frozen=[\"mlp\",\"norm|ln_\"] gradient_accumulation_steps=2 zero_optimization.overlap_comm=true "
    "zero_optimization.stage3_max_reuse_distance=0 zero_optimization.stage3_param_persistence_threshold=0",
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

typedef struct grid_row {
  int tp, ranks;
} grid_row;

static const grid_row grids[] = {{2, 8}, {3, 9}, {4, 4}, {5, 10}, {6, 12}, {7, 7}, {8, 16}};
enum { N_GRIDS = sizeof grids / sizeof *grids };

/* ---- whose elements are ---- */

/* Rank by rank, what it owns of a parameter. */
static void count_owned(const ts_layout *layout, const ts_parameter *p, int *owners) {
  const ts_part *part = &layout->part[p->part];
  int64_t from = ts_part_begin(part) > p->offset ? ts_part_begin(part) - p->offset : 0;
  int64_t to = ts_part_end(part) - p->offset < p->count ? ts_part_end(part) - p->offset : p->count;
  for (int64_t at = from, n; part->owned && at < to; at += n) {
    n = to - at;
    int64_t whole = ts_parameter_in_whole(p, at, &n);
    for (int64_t i = 0; i < n; ++i) {
      ++owners[whole + i];
    }
  }
}

/* \return the name of a parameter of which an element has not one owner, NULL for none. */
static const char *find_unowned(const grid *g) {
  const ts_layout *first = g->program[0]->layout;
  const char *found = NULL;
  for (int i = 0; i < first->n_parameters && found == NULL; ++i) {
    const ts_parameter *p = &first->parameter[i];
    int64_t count = ts_shape_count(&p->shape);
    int *owners = ts_calloc((size_t) count, sizeof *owners);
    for (int r = 0; r < g->ranks; ++r) {
      count_owned(g->program[r]->layout, ts_layout_find(g->program[r]->layout, p->name), owners);
    }
    for (int64_t k = 0; k < count; ++k) {
      found = owners[k] == 1 ? found : p->name;
    }
    ts_free(owners);
  }
  return found;
}

static bool same_part(const ts_part *a, const ts_part *b) {
  return a->count == b->count && a->home == b->home && a->axes == b->axes && a->group == b->group &&
         memcmp(a->cuts, b->cuts, (size_t) (a->group + 1) * sizeof *a->cuts) == 0;
}

/* Parts of one name are one part: who has it knows it alike.  \return the name of one that is not, NULL for none. */
static const char *find_other(const ts_layout *a, const ts_layout *b, bool same_names) {
  for (int i = 0; i < a->n_parts && i < b->n_parts; ++i) {
    bool same_name = strcmp(a->part[i].name, b->part[i].name) == 0;
    if (same_name ? !same_part(&a->part[i], &b->part[i]) : same_names) {
      return a->part[i].name;
    }
  }
  return a->n_parts == b->n_parts ? NULL : "one of the parts";
}

/* Ranks with one place along tp have parts of the same names. */
static const char *find_other_part(const grid *g, int tp) {
  const char *found = NULL;
  for (int r = 0; r < g->ranks && found == NULL; ++r) {
    found = find_other(g->program[r]->layout, g->program[r % tp]->layout, true);
    found = found != NULL ? found : find_other(g->program[r]->layout, g->program[0]->layout, false);
  }
  return found;
}

/* ---- a step ---- */

static void test_program(const model_row *model, grid_row on, int stage, const char *variant, ts_model_use use) {
  static const char *const uses[] = {
      [TS_MODEL_TRAIN] = "train", [TS_MODEL_LOSS] = "loss", [TS_MODEL_LOGITS] = "logits"};
  char *sets = ts_format("tensor_parallel.autotp_size=%d zero_optimization.stage=%d %s", on.tp, stage, variant);
  grid g = make_grid(model->deck, sets, on.ranks, use);
  char *fault = ts_simulate_step((const ts_program *const *) g.program, g.ranks);
  const char *unowned = use == TS_MODEL_TRAIN ? find_unowned(&g) : NULL, *other = find_other_part(&g, on.tp);
  tap_ok(fault == NULL && unowned == NULL && other == NULL, "%s, tp %d of %d ranks, stage %d, %s %s: %s%s%s",
         model->name, on.tp, on.ranks, stage, uses[use], variant, fault != NULL ? fault : "clean",
         unowned != NULL || other != NULL ? "; owners differ of " : "",
         unowned != NULL ? unowned
         : other != NULL ? other
                         : "");
  ts_free(fault);
  free_grid(&g);
  ts_free(sets);
}

static void test_product(void) {
  for (int m = 0; m < N_MODELS; ++m) {
    for (int k = 0; k < N_GRIDS && grids[k].tp <= models[m].heads; ++k) {
      for (int i = 0; i < N_VARIANTS; ++i) {
        for (int stage = 0; stage < 4; ++stage) {
          test_program(&models[m], grids[k], stage, variants[i], TS_MODEL_TRAIN);
        }
      }
      test_program(&models[m], grids[k], 0, "", TS_MODEL_LOSS);
      test_program(&models[m], grids[k], 3, "", TS_MODEL_LOGITS);
    }
  }
}

/* Every model on two grids, every setting and stage with several models. */
static void test_sample(void) {
  for (int m = 0; m < N_MODELS; ++m) {
    for (int j = 0; j < 3; ++j) {
      grid_row on = grids[(2 * m + 3 * j) % N_GRIDS];
      test_program(&models[m], on, (m + j) % 4, variants[(m + 2 * j) % N_VARIANTS], TS_MODEL_TRAIN);
    }
    test_program(&models[m], grids[m % N_GRIDS], m % 4, "", m % 2 == 0 ? TS_MODEL_LOSS : TS_MODEL_LOGITS);
  }
}

/* tp 8 x dp 64. */
static void test_large(bool all) {
  const grid_row on = {8, 512};
  for (int stage = 0; stage < 4; ++stage) {
    for (int m = 0; m < N_MODELS && all; ++m) {
      for (int i = 0; i < N_VARIANTS; ++i) {
        test_program(&models[m], on, stage, variants[i], TS_MODEL_TRAIN);
      }
    }
    if (!all) {
      test_program(&models[stage % 2], on, stage, variants[stage + 1], TS_MODEL_TRAIN);
    }
  }
}

/* ---- programs of one engine ---- */

static ts_program *make_uses(const ts_deck *deck, const ts_mesh *mesh, ts_model_use use) {
  return ts_program_create(&(ts_program_options){.deck = deck,
                                                 .mesh = mesh,
                                                 .target = {ts_backend_null(), 1, TS_CUDNN_NEVER},
                                                 .use = use,
                                                 .batch = 1,
                                                 .length = use == TS_MODEL_LOGITS ? 1 : deck->data.sequence_length,
                                                 .context = deck->data.sequence_length,
                                                 .last_pass = "shard"});
}

/* The first parameter of which two uses of the model keep other parts, NULL for none. */
static const char *find_other_shape(const ts_graph *a, const ts_graph *b) {
  for (ts_tid t = 0; t < a->n_tensors; ++t) {
    ts_tid other = a->tensor[t].role == TS_ROLE_PARAM ? ts_graph_find(b, a->tensor[t].name) : TS_NONE;
    if (other != TS_NONE && !ts_shape_equal(&a->tensor[t].shape, &b->tensor[other].shape)) {
      return a->tensor[t].name;
    }
  }
  return NULL;
}

/* Training, validation and generation share one layout: whatever the marks, they deal parameters alike, though in
 * generation nothing is in rows and the head is a product like others. */
static void test_uses(const model_row *model, const char *specs) {
  char *sets = ts_format("tensor_parallel={autotp_size=3;partition_config={layer_specs=(%s);};}", specs);
  ts_deck *deck = read_deck(model->deck, sets, 1);
  ts_mesh mesh;
  TS_CHECK(ts_deck_mesh(deck, 3, 1, &mesh, NULL) == TS_OK, "tp 3");
  ts_program *p[] = {[TS_MODEL_TRAIN] = make_uses(deck, &mesh, TS_MODEL_TRAIN),
                     [TS_MODEL_LOSS] = make_uses(deck, &mesh, TS_MODEL_LOSS),
                     [TS_MODEL_LOGITS] = make_uses(deck, &mesh, TS_MODEL_LOGITS)};
  const char *loss = find_other_shape(p[TS_MODEL_LOSS]->graph, p[TS_MODEL_TRAIN]->graph);
  const char *logits = find_other_shape(p[TS_MODEL_LOGITS]->graph, p[TS_MODEL_TRAIN]->graph);
  tap_ok(loss == NULL && logits == NULL, "%s, %s: its uses have equal parameters%s%s", model->name, specs,
         loss != NULL || logits != NULL ? " but for " : "",
         loss != NULL     ? loss
         : logits != NULL ? logits
                          : "");
  for (int i = 0; i < 3; ++i) {
    ts_program_destroy(&p[i]);
  }
  ts_deck_destroy(&deck);
  ts_free(sets);
}

#define SPEC(patterns_, type) "{patterns=\"" patterns_ "\";partition_type=\"" type "\";}"

static void test_all_uses(void) {
  static const char *const specs[] = {
      "",
      SPEC(".*(o_proj|attn.c_proj|attention.dense).weight", "column"),
      SPEC(".*(down_proj|mlp.c_proj|dense_4h_to_h).weight", "column"),
      SPEC(".*(embed_tokens|wte|embed_in).weight", "row"),
      SPEC(".*(embed_tokens|wte|embed_in).weight", "skip"),
      SPEC(".*(q_proj|c_attn|query_key_value|qkv_proj).weight", "row"),
      SPEC(".*(o_proj|c_proj|dense|down_proj).weight", "skip"),
      SPEC(".*", "column"),
      SPEC(".*", "row"),
  };
  for (int m = 0; m < N_MODELS; ++m) {
    for (size_t i = 0; i < sizeof specs / sizeof *specs; ++i) {
      test_uses(&models[m], specs[i]);
    }
  }
  test_uses(&models[0], SPEC("lm_head.weight", "row"));
  test_uses(&models[0], SPEC("lm_head.weight", "skip"));
}

/* Rows of experts' products in the forward step of a rank, of a layer. */
static int64_t expert_rows(const ts_graph *g) {
  int64_t rows = 0, products = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (g->node[n].op == TS_OP_GROUPED && g->node[n].segment == TS_SEGMENT_FORWARD) {
      rows += g->tensor[g->node[n].in[0]].shape.d[0];
      ++products;
    }
  }
  return products > 0 ? rows / products : 0;
}

/* Sums over tp of nothing but rows that each rank has placed, which are gathered instead; and such rows that are: what
 * experts give back, at least. */
static int placed_sums(const ts_graph *g, int *gathered) {
  int n = 0;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const ts_node *node = &g->node[i], *from = ts_graph_producer(g, node->in[0]);
    from = from != NULL && from->op == TS_OP_VIEW ? ts_graph_producer(g, from->in[0]) : from;
    n += node->op == TS_OP_ALL_REDUCE && from != NULL && from->op == TS_OP_PLACE && from->attr.take.cuts != NULL;
    *gathered += node->op == TS_OP_ALL_GATHER && strstr(node->name, "combine.all_reduce.gather") != NULL;
  }
  return n;
}

/* Of 8 tokens with 3 choices each rank along tp brings its own to the experts, whether it has them alone between
 * products or all of them. */
static void test_expert_rows(void) {
  static const char *const how[] = {"true", "false"};
  for (int tp = 2; tp <= 5; ++tp) {
    for (int i = 0; i < 2; ++i) {
      char *sets = ts_format("tensor_parallel.autotp_size=%d tensor_parallel.sequence_parallel=%s", tp, how[i]);
      grid g = make_grid(mixture, sets, tp, TS_MODEL_TRAIN);
      int64_t all = 0, most = 0;
      int placed = 0, gathered = 0;
      for (int r = 0; r < tp; ++r) {
        int64_t rows = expert_rows(g.program[r]->graph);
        placed += placed_sums(g.program[r]->graph, &gathered);
        all += rows;
        most = rows > most ? rows : most;
      }
      tap_ok(all == 8 * 3 && most == (8 + tp - 1) / tp * 3 && placed == 0,
             "tp %d, sequence_parallel %s: experts have each token once", tp, how[i]);
      free_grid(&g);
      ts_free(sets);
    }
  }
}

/* The largest message along tp, in elements. */
static int64_t largest_message(const ts_graph *g) {
  int64_t most = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    bool sends = (ts_op_get(node->op)->flags & TS_OP_COMM) != 0 && node->attr.comm.axes == TS_AXES(TS_AXIS_TP);
    int64_t in = sends ? ts_tensor_count(g, node->in[0]) : 0, out = sends ? ts_tensor_count(g, node->out[0]) : 0;
    most = in > most ? in : most;
    most = out > most ? out : most;
  }
  return most;
}

/* Where tp cuts experts each rank brings all 24 choices, has its part of their 40 columns, and sends tokens alone, of
 * width 96, no rows of experts. */
static void test_cut_experts(void) {
  static const char *const how[] = {"true", "false"};
  for (int tp = 2; tp <= 5; ++tp) {
    for (int i = 0; i < 2; ++i) {
      char *sets = ts_format("tensor_parallel.autotp_size=%d expert_parallel.expert_tensor_parallel_size=%d "
                             "tensor_parallel.sequence_parallel=%s tensor_parallel.vocab_parallel_lm_head=false",
                             tp, tp, how[i]);
      grid g = make_grid(mixture, sets, tp, TS_MODEL_TRAIN);
      int64_t columns = 0, rows = 0, largest = 0;
      for (int r = 0; r < tp; ++r) {
        const ts_parameter *up = ts_layout_find(g.program[r]->layout, "model.layers.0.mlp.experts.up_proj.weight"),
                           *down = ts_layout_find(g.program[r]->layout, "model.layers.0.mlp.experts.down_proj.weight");
        int64_t message = largest_message(g.program[r]->graph);
        columns += up->held.d[1] == down->held.d[2] && up->held.d[0] == 13 ? up->held.d[1] : 0;
        rows += expert_rows(g.program[r]->graph);
        largest = message > largest ? message : largest;
      }
      tap_ok(rows == tp * 8 * 3 && columns == 40 && largest <= (8 + tp - 1) / tp * tp * 96,
             "tp %d, sequence_parallel %s: experts are cut, of all tokens", tp, how[i]);
      free_grid(&g);
      ts_free(sets);
    }
  }
}

int main(void) {
  double start = ts_seconds();
  bool all = getenv("TEST_TP_ALL") != NULL;
  test_all_uses();
  test_expert_rows();
  test_cut_experts();
  if (all) {
    test_product();
  } else {
    test_sample();
  }
  tap_note("%.1f seconds", ts_seconds() - start);
  test_large(all);
  tap_note("%.1f seconds", ts_seconds() - start);
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
