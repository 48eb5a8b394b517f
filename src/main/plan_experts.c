#include "main/plan_experts.h"

#include "graph/op.h"
#include "run/plan_largest.h"

/* Of one chunk of a layer's tokens, and bytes of activations; the largest of any rank.  And how they travel. */
typedef struct way {
  int64_t room, alike, bytes;
  bool exchanged; /* alltoall */
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

static void note_rows(way *w, int64_t room, int64_t choices, int64_t own, int64_t experts) {
  int64_t alike = (choices * own + experts - 1) / experts;
  w->room = room > w->room ? room : w->room;
  w->alike = alike > w->alike ? alike : w->alike;
}

/* Rows that come to the experts of a rank: of an exchange, or of all choices that it sees. */
static void look_at_node(const ts_program *program, const ts_node *node, way *w) {
  const ts_tensor *tensor = program->graph->tensor;
  if (node->op == TS_OP_EXCHANGE_ROWS && !node->attr.comm.home) {
    int64_t own = tensor[node->in[2]].shape.d[0] - 1, experts = tensor[node->in[3]].shape.d[0] - 1;
    note_rows(w, node->attr.comm.rows, node->attr.comm.group * tensor[node->in[0]].shape.d[0], own, experts);
    w->exchanged = true;
    return;
  }
  int64_t experts = node->op == TS_OP_DISPATCH ? experts_of_choices(program->graph, node->in[0]) : 0;
  bool all = node->attr.experts.n == experts && program->mesh.size[TS_AXIS_EP] > 1; /* then exchanged */
  if (experts > 1 && !all) {                                                        /* one: that of all tokens */
    int64_t room = ts_shape_count(&tensor[node->out[0]].shape), choices = ts_shape_count(&tensor[node->out[1]].shape);
    note_rows(w, room, choices, node->attr.experts.n, experts);
  }
}

static void look_at_rank(const ts_program_options *options, void *user) {
  way *w = user;
  ts_program *program = ts_program_create(options);
  for (ts_nid n = 0; n < program->graph->n_nodes; ++n) {
    const ts_node *node = &program->graph->node[n];
    if (node->segment == TS_SEGMENT_FORWARD) {
      look_at_node(program, node, w);
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

/* How tokens come to experts of other ranks. */
static void print_dispatch(const ts_program_options *options, bool exchanged, ts_text *to) {
  int ranks = options->mesh->size[TS_AXIS_EP];
  bool device = options->target.backend->device != NULL;
  if (ranks > 1 && exchanged) {
    ts_text_add(to, "  moe.dispatch: alltoall, each of a token's rows to the rank that has its expert and back%s\n",
                device ? ";\n  the host reads counts on the way, where recordings are cut" : "");
  } else if (ranks > 1) {
    ts_text_add(to, "  moe.dispatch: allgather, each token to all %d ranks, and sums of what they make back\n", ranks);
  }
}

void ts_plan_print_experts(const ts_program_options *options, bool json, ts_text *to) {
  char rows[] = "rows", nothing[] = "nothing", a[32], b[32];
  if (ts_deck_experts_of_token(options->deck) == 0) {
    return;
  }
  for (int64_t chunks = 1; chunks <= 8; chunks *= 2) {
    way kept = plan_way(options, chunks, rows), again = plan_way(options, chunks, nothing);
    if (json) {
      bool spread = options->mesh->size[TS_AXIS_EP] > 1;
      const char *dispatch = kept.exchanged ? ", \"dispatch\": \"alltoall\"" : ", \"dispatch\": \"allgather\"";
      ts_text_add(
          to,
          "%s{\"token_chunks\": %lld, \"rows\": %lld, \"balanced_rows\": %lld, \"activation_bytes_rows\": %lld, "
          "\"activation_bytes_nothing\": %lld%s}%s",
          chunks == 1 ? ", \"experts\": [" : ", ", (long long) chunks, (long long) kept.room, (long long) kept.alike,
          (long long) kept.bytes, (long long) again.bytes, spread ? dispatch : "", chunks == 8 ? "]" : "");
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
    if (chunks == 8) {
      print_dispatch(options, kept.exchanged, to);
    }
  }
}
