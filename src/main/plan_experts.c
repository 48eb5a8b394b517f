#include "main/plan_experts.h"

#include "graph/op.h"
#include "run/plan_largest.h"

/* Rows of one layer's dispatch of one chunk, the largest there is; 0: no experts. */
typedef struct rows {
  int64_t room, balanced;
} rows;

static rows dispatched_rows(const ts_program *program) {
  rows most = {0};
  for (ts_nid n = 0; n < program->graph->n_nodes; ++n) {
    const ts_node *node = &program->graph->node[n];
    const ts_tensor *order = node->op == TS_OP_DISPATCH ? &program->graph->tensor[node->out[0]] : NULL;
    if (order != NULL && ts_shape_count(&order->shape) > most.room) {
      most.room = ts_shape_count(&order->shape);
      /* of ep ranks' tokens as many as go to this one */
      int64_t ranks = program->mesh.size[TS_AXIS_EP];
      most.balanced = (most.room + ranks - 1) / ranks;
    }
  }
  return most;
}

typedef struct way {
  rows rows;
  int64_t bytes;
} way;

static way plan_way(const ts_program_options *options, int64_t chunks, char *save) {
  ts_deck deck = *options->deck; /* borrows all it has */
  deck.moe.token_chunks = chunks;
  deck.moe.save = save;
  ts_program_options other = *options;
  other.deck = &deck;
  ts_program *program = ts_plan_largest(&other);
  way way = {dispatched_rows(program), program->plan->bytes[TS_PURPOSE_ACTIVATION]};
  ts_program_destroy(&program);
  return way;
}

void ts_plan_print_experts(const ts_program_options *options, bool json, ts_text *to) {
  char rows[] = "rows", nothing[] = "nothing", a[32], b[32];
  for (int64_t chunks = 1; chunks <= 8; chunks *= 2) {
    way kept = plan_way(options, chunks, rows);
    if (kept.rows.room == 0) {
      return;
    }
    way again = plan_way(options, chunks, nothing);
    if (json) {
      ts_text_add(
          to,
          "%s{\"token_chunks\": %lld, \"rows\": %lld, \"balanced_rows\": %lld, \"activation_bytes_rows\": %lld, "
          "\"activation_bytes_nothing\": %lld}%s",
          chunks == 1 ? ", \"experts\": [" : ", ", (long long) chunks, (long long) kept.rows.room,
          (long long) kept.rows.balanced, (long long) kept.bytes, (long long) again.bytes, chunks == 8 ? "]" : "");
      continue;
    }
    if (chunks == 1) {
      ts_text_add(to,
                  "\nexperts of a layer: rows at a time that a rank has room for, rows that come if all experts are "
                  "chosen alike,\nand its activations and workspaces\n  %-18s %12s %12s  %18s  %18s\n",
                  "moe.token_chunks", "room", "alike", "moe.save = rows", "nothing");
    }
    ts_text_add(to, "  %-18lld %12lld %12lld  %18s  %18s\n", (long long) chunks, (long long) kept.rows.room,
                (long long) kept.rows.balanced, ts_human_bytes((double) kept.bytes, a),
                ts_human_bytes((double) again.bytes, b));
  }
}
