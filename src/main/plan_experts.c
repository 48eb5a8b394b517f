#include "main/plan_experts.h"

#include "graph/op.h"
#include "run/plan_largest.h"

/* Of one chunk of a layer's tokens, and bytes of activations; the largest of any rank. */
typedef struct way {
  int64_t room, alike, bytes;
} way;

/* How many experts the router has whose choices a DISPATCH reads. */
static int64_t experts_of_choices(const ts_graph *g, ts_tid chosen) {
  const ts_node *from = ts_graph_producer(g, chosen);
  while (from != NULL && from->op != TS_OP_ROUTE) {
    from = ts_graph_producer(g, from->in[from->op == TS_OP_ROUTE_LIMIT ? 1 : 0]);
  }
  const ts_shape *logits = from != NULL ? &g->tensor[from->in[0]].shape : NULL;
  return logits != NULL ? logits->d[logits->n - 1] : 0;
}

static void look_at_rank(const ts_program_options *options, void *user) {
  way *w = user;
  ts_program *program = ts_program_create(options);
  for (ts_nid n = 0; n < program->graph->n_nodes; ++n) {
    const ts_node *node = &program->graph->node[n];
    int64_t experts = node->op == TS_OP_DISPATCH ? experts_of_choices(program->graph, node->in[0]) : 0;
    if (experts > 1) { /* one: that of all tokens */
      int64_t room = ts_shape_count(&program->graph->tensor[node->out[0]].shape);
      int64_t alike = (room * node->attr.experts.n + experts - 1) / experts;
      w->room = room > w->room ? room : w->room;
      w->alike = alike > w->alike ? alike : w->alike;
    }
  }
  int64_t bytes = program->plan->bytes[TS_PURPOSE_ACTIVATION];
  w->bytes = bytes > w->bytes ? bytes : w->bytes;
  ts_program_destroy(&program);
}

static way plan_way(const ts_program_options *options, int64_t chunks, char *save) {
  ts_deck deck = *options->deck; /* borrows all it has */
  deck.moe.token_chunks = chunks;
  deck.moe.save = save;
  ts_program_options other = *options;
  other.deck = &deck;
  way way = {0};
  ts_plan_visit(&other, look_at_rank, &way);
  return way;
}

void ts_plan_print_experts(const ts_program_options *options, bool json, ts_text *to) {
  char rows[] = "rows", nothing[] = "nothing", a[32], b[32];
  if (ts_deck_experts_of_token(options->deck) == 0) {
    return;
  }
  for (int64_t chunks = 1; chunks <= 8; chunks *= 2) {
    way kept = plan_way(options, chunks, rows), again = plan_way(options, chunks, nothing);
    if (json) {
      ts_text_add(
          to,
          "%s{\"token_chunks\": %lld, \"rows\": %lld, \"balanced_rows\": %lld, \"activation_bytes_rows\": %lld, "
          "\"activation_bytes_nothing\": %lld}%s",
          chunks == 1 ? ", \"experts\": [" : ", ", (long long) chunks, (long long) kept.room, (long long) kept.alike,
          (long long) kept.bytes, (long long) again.bytes, chunks == 8 ? "]" : "");
      continue;
    }
    if (chunks == 1) {
      ts_text_add(
          to,
          "\nexperts of a layer: rows at a time that a rank has room for, rows that come if all experts are "
          "chosen alike,\nand activations and workspaces; of the ranks that have most\n  %-18s %12s %12s  %18s  "
          "%18s\n",
          "moe.token_chunks", "room", "alike", "moe.save = rows", "nothing");
    }
    ts_text_add(to, "  %-18lld %12lld %12lld  %18s  %18s\n", (long long) chunks, (long long) kept.room,
                (long long) kept.alike, ts_human_bytes((double) kept.bytes, a),
                ts_human_bytes((double) again.bytes, b));
  }
}
