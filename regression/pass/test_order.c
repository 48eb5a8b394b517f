/* The order of messages along sp: an exchange is on its way while the attention before it is worked on, parameters wait
 * until the exchanges before theirs are on their way, and all ranks of a grid have one order. */
#include "regression/pass/grid.h"
#include "regression/tap.h"

#include "graph/op.h"

static bool is_attention(const ts_node *node) {
  return node->op == TS_OP_ATTENTION || node->op == TS_OP_ATTENTION_DX;
}

static const ts_node *node_at(const ts_program *p, int i) {
  return &p->graph->node[p->schedule->instruction[i].node];
}

/* Does an attention read what this exchange brings? */
static bool is_to_heads(const ts_program *p, const ts_node *exchange) {
  bool found = false;
  for (ts_nid n = 0; n < p->graph->n_nodes && !found; ++n) {
    const ts_node *node = &p->graph->node[n];
    for (int i = 0; i < node->n_in && is_attention(node) && !found; ++i) {
      found = node->in[i] >= exchange->out[0] && node->in[i] < exchange->out[0] + exchange->n_out;
    }
  }
  return found;
}

typedef struct counts {
  int attention; /* how often attention ran */
  int covered;   /* while an exchange that a later one reads was on its way */
  int most;      /* of these at a time */
} counts;

/* Exchanges to heads that are issued and not waited for while attention runs, but those that it has just been given. */
static counts count_covered(const ts_program *p) {
  counts c = {0};
  int under_way = 0;
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_node *node = node_at(p, i);
    ts_instruction_kind kind = p->schedule->instruction[i].kind;
    if (node->op == TS_OP_ALL_TO_ALL && kind != TS_RUN && is_to_heads(p, node)) {
      under_way += kind == TS_ISSUE ? 1 : -1;
    } else if (is_attention(node)) {
      ++c.attention;
      c.covered += under_way > 0;
      c.most = under_way > c.most ? under_way : c.most;
    }
  }
  return c;
}

/* Of two layers and n groups, each pass over a layer's attention has one that nothing follows: the last group's. */
static void test_covered(const char *deck, const char *what, int passes, int pieces) {
  char *sets = ts_format("sequence_parallel_size=2 sequence_parallel.head_groups=2 zero_optimization.stage=3 "
                         "zero_optimization.overlap_comm=true %s",
                         what);
  grid g = make_grid(deck, sets, 2, TS_MODEL_TRAIN);
  counts c = count_covered(g.program[1]);
  int all = 2 * passes * 2 * pieces, expected = all - 2 * passes;
  tap_ok(c.attention == all && c.covered == expected && c.most == 1,
         "%s: %d of %d times one exchange travels under attention, %d at most (expected %d)", what, c.covered,
         c.attention, c.most, expected);
  free_grid(&g);
  ts_free(sets);
}

/* A gather of parameters that a later unit reads, issued while an exchange of the units before it is still to come. */
static int count_hasty(const ts_program *p) {
  int hasty = 0;
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_node *gather = node_at(p, i);
    if (gather->op != TS_OP_ALL_GATHER || p->schedule->instruction[i].kind != TS_ISSUE) {
      continue;
    }
    bool own = false; /* its unit has begun */
    for (int k = i + 1; k < p->schedule->n && !own; ++k) {
      const ts_node *node = node_at(p, k);
      own = node->unit == gather->unit && ts_segment_phase(node->segment) == ts_segment_phase(gather->segment);
      hasty += node->op == TS_OP_ALL_TO_ALL && p->schedule->instruction[k].kind == TS_ISSUE && !own;
    }
  }
  return hasty;
}

/* How many gathers are issued before their unit begins: while the node before is another unit's. */
static int count_early(const ts_program *p) {
  int early = 0;
  for (int i = 1; i < p->schedule->n; ++i) {
    const ts_node *gather = node_at(p, i);
    bool issues = gather->op == TS_OP_ALL_GATHER && p->schedule->instruction[i].kind == TS_ISSUE;
    for (int k = i + 1; issues && k < p->schedule->n; ++k) {
      if (node_at(p, k)->unit != gather->unit && p->schedule->instruction[k].kind == TS_RUN) {
        ++early;
        break;
      }
      if (node_at(p, k)->unit == gather->unit && p->schedule->instruction[k].kind == TS_RUN) {
        break;
      }
    }
  }
  return early;
}

static void test_gathers(const char *deck, const char *sets) {
  char *all = ts_format("zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0 "
                        "zero_optimization.overlap_comm=true %s",
                        sets);
  grid g = make_grid(deck, all, 4, TS_MODEL_TRAIN);
  int hasty = count_hasty(g.program[0]), early = count_early(g.program[0]);
  tap_ok(hasty == 0 && early > 0, "%s: %d gathers come ahead of their units, %d times ahead of an exchange", sets,
         early, hasty);
  free_grid(&g);
  ts_free(all);
}

/* The order of all messages, on all ranks along sp. */
static void test_alike(const char *deck, const char *sets, int ranks) {
  grid g = make_grid(deck, sets, ranks, TS_MODEL_TRAIN);
  bool alike = true;
  for (int r = 1; r < ranks; ++r) {
    const ts_program *a = g.program[0], *b = g.program[r];
    alike = alike && a->schedule->n == b->schedule->n;
    for (int i = 0; i < a->schedule->n && alike; ++i) {
      alike = a->schedule->instruction[i].kind == b->schedule->instruction[i].kind &&
              node_at(a, i)->op == node_at(b, i)->op && strcmp(node_at(a, i)->name, node_at(b, i)->name) == 0;
    }
  }
  tap_ok(alike, "%s: all of %d ranks have one order", sets, ranks);
  free_grid(&g);
}

int main(void) {
  test_covered(gpt2, "sequence_parallel.ring_degree=2 sequence_parallel.ring_exchange=all_gather", 2, 1);
  test_covered(gpt2, "sequence_parallel.ring_degree=2 sequence_parallel.ring_exchange=p2p", 2, 2);
  test_covered(llama, "sequence_parallel.ulysses_degree=2", 2, 1);
  test_covered(llama, "activation_checkpointing.enabled=true activation_checkpointing.policy=sac", 2, 1);
  test_covered(llama, "activation_checkpointing.enabled=true activation_checkpointing.policy=block", 3, 1);
  test_gathers(llama, "sequence_parallel_size=2");
  test_gathers(llama, "sequence_parallel_size=4 activation_checkpointing.enabled=true");
  test_gathers(gpt2, "sequence_parallel_size=2 sequence_parallel.ring_degree=2 sequence_parallel.ring_exchange=p2p");
  test_alike(llama, "sequence_parallel_size=6 sequence_parallel.head_groups=2 zero_optimization.overlap_comm=true", 6);
  test_alike(llama,
             "sequence_parallel_size=16 sequence_parallel.ring_exchange=p2p sequence_parallel.head_groups=3 "
             "zero_optimization.overlap_comm=true",
             16);
  return tap_done();
}
