/* What autocast makes of a graph: how often weights are cast, what travels in which type; no state is added. */
#include "regression/pass/grid.h"
#include "regression/tap.h"

#include "graph/op.h"
#include "pass/layout.h"
#include "pass/plan.h"

#include <fnmatch.h>

#define ON "torch_autocast.enabled=true "
#define LISTED(class) "torch_autocast.lower_precision_safe_modules=[\"" class "\"] "
#define SHARDED "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0 "
#define RMSNORM "transformers.models.llama.modeling_llama.LlamaRMSNorm"

/* ---- casts ---- */

static int count_casts(const ts_graph *g, const char *pattern) {
  int n = 0;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    n += g->node[i].op == TS_OP_CAST && fnmatch(pattern, g->node[i].name, 0) == 0;
  }
  return n;
}

static void expect_casts(const char *sets, int ranks, const char *pattern, int expected, const char *what) {
  grid g = make_grid(llama, sets, ranks, TS_MODEL_TRAIN);
  int n = count_casts(g.program[0]->graph, pattern);
  tap_ok(n == expected, "%s: %d casts of %s", what, n, pattern);
  free_grid(&g);
}

/* Two blocks of seven matrices, and the head. */
static void test_casts(void) {
  expect_casts(ON, 1, "*.weight.bf16", 15, "once a micro-batch");
  expect_casts(ON, 1, "*norm.weight*", 0, "norms read fp32");
  expect_casts(ON, 1, "model.embed_tokens.weight*", 0, "so do lookups");
  expect_casts(ON "model.tie_word_embeddings=true", 1, "model.embed_tokens.weight.bf16", 1, "a tied head does not");
  expect_casts(ON "activation_checkpointing.enabled=true", 1, "*.weight.bf16", 29, "blocks again, not the head");
  expect_casts(ON SHARDED, 2, "*.weight.bf16", 0, "gathered in bf16");
  expect_casts(ON SHARDED, 2, "*.shard.bf16", 3, "each unit's shard");
  expect_casts(ON "frozen=[\"mlp\"] ", 1, "*.weight.bf16", 15, "frozen ones too");
  expect_casts(ON SHARDED LISTED("torch.nn.Conv2d"), 2, "*.weight.bf16", 15, "gathered in fp32");
}

/* ---- messages ---- */

static ts_dtype wire_of(const ts_graph *g, const ts_node *node) {
  return node->op == TS_OP_ALL_GATHER ? g->tensor[node->out[0]].dtype : node->attr.comm.wire;
}

/* Elements that collectives of one kind carry for the ranks of dp, in one type. */
static int64_t count_elements(const ts_graph *g, ts_op op, int phase, ts_dtype wire) {
  int64_t n = 0;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const ts_node *node = &g->node[i];
    if (node->op == op && ts_segment_phase(node->segment) == phase && wire_of(g, node) == wire) {
      for (int k = 0; k < node->attr.comm.n_pieces; ++k) {
        const ts_piece *piece = &node->attr.comm.piece[k];
        for (int r = 0; r < node->attr.comm.group; ++r) {
          int64_t shard = piece->cuts[r + 1] - piece->cuts[r], end = piece->end < shard ? piece->end : shard;
          n += end > piece->begin ? end - piece->begin : 0;
        }
      }
    }
  }
  return n;
}

typedef struct travels {
  const char *text, *sets, *what;
  const char *low, *gathered; /* parameters whose gradients, and those whose values, travel in the lower type */
} travels;

#define MATRICES "@(*_proj.weight|lm_head.weight)"
static const travels rows[] = {
    {llama, ON SHARDED, "Linear, by default", MATRICES, MATRICES},
    {llama, ON SHARDED "torch_autocast.dtype=torch.bfloat16 " LISTED("torch.nn.modules.linear.Linear"),
     "Linear by its other name", MATRICES, MATRICES},
    {llama, ON SHARDED "frozen=[\"mlp\"] ", "frozen ones are gathered", MATRICES, MATRICES},
    {llama, ON SHARDED LISTED("torch.nn.Conv1d"), "no Conv1d is there", "-", "-"},
    {llama, ON SHARDED LISTED(RMSNORM), "norms, which are read in fp32", "*norm.weight", "-"},
    {llama, ON SHARDED LISTED("torch.nn.Embedding"), "lookups, likewise", "model.embed_tokens.weight", "-"},
    {llama, ON SHARDED LISTED("torch.nn.Linear") "model.tie_word_embeddings=true",
     "a tied head makes the table Linear's", "@(*_proj.weight|model.embed_tokens.weight)", "*_proj.weight"},
    {gpt2, ON SHARDED, "GPT-2's Conv1D is no Linear, its head is", "transformer.wte.weight", "-"},
    {gpt2, ON SHARDED LISTED("transformers.pytorch_utils.Conv1D"), "Conv1D with its biases", "@(*.c_*)", "@(*.c_*)"},
    {gpt2, ON SHARDED LISTED("torch.nn.LayerNorm"), "LayerNorm", "*ln_*", "-"},
    {gpt2, SHARDED LISTED("torch.nn.LayerNorm"), "without autocast nothing is lower", "-", "-"},
};

static bool is_low(const char *pattern, const char *name) {
  return fnmatch(pattern, name, FNM_EXTMATCH) == 0;
}

/* Messages hold what lies between two parameters too: at most an alignment each. */
static bool is_near(int64_t elements, int64_t expected, int n) {
  return elements >= expected && elements <= expected + n * TS_LAYOUT_ALIGN;
}

static void test_row(const travels *row) {
  grid g = make_grid(row->text, row->sets, 2, TS_MODEL_TRAIN);
  const ts_program *p = g.program[0];
  int64_t low = 0, gathered = 0;
  bool parts = true;
  for (int i = 0; i < p->layout->n_parameters; ++i) {
    const ts_parameter *one = &p->layout->parameter[i];
    const ts_part *part = &p->layout->part[one->part];
    bool is_wire = is_low(row->low, one->name), is_gathered = is_low(row->gathered, one->name);
    low += is_wire && part->trainable ? one->count : 0;
    gathered += is_gathered ? one->count : 0;
    parts = parts && (part->wire == TS_BF16) == is_wire && (part->gathered == TS_BF16) == is_gathered;
  }
  int n = p->layout->n_parameters;
  int64_t reduced = count_elements(p->graph, TS_OP_REDUCE_SCATTER, 1, TS_BF16);
  int64_t values = count_elements(p->graph, TS_OP_ALL_GATHER, 0, TS_BF16);
  tap_ok(parts, "%s: parts", row->what);
  tap_ok(is_near(reduced, low, n) && is_near(values, gathered, n), "%s: %lld elements reduced, %lld gathered",
         row->what, (long long) reduced, (long long) values);
  free_grid(&g);
}

/* ---- memory ---- */

/* Parameters are their own masters. */
static void test_state(void) {
  grid plain = make_grid(gpt2, "", 1, TS_MODEL_TRAIN), cast = make_grid(gpt2, ON, 1, TS_MODEL_TRAIN);
  const ts_plan *a = plain.program[0]->plan, *b = cast.program[0]->plan;
  tap_ok(a->bytes[TS_PURPOSE_PARAMETER] == b->bytes[TS_PURPOSE_PARAMETER] &&
             a->bytes[TS_PURPOSE_GRADIENT] == b->bytes[TS_PURPOSE_GRADIENT] &&
             a->bytes[TS_PURPOSE_OPTIMIZER] == b->bytes[TS_PURPOSE_OPTIMIZER],
         "state as in fp32, %lld bytes of parameters", (long long) b->bytes[TS_PURPOSE_PARAMETER]);
  free_grid(&plain);
  free_grid(&cast);
}

int main(void) {
  test_casts();
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    test_row(&rows[i]);
  }
  test_state();
  return tap_done();
}
