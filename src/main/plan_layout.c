#include "main/plan_layout.h"

#include "base/memory.h"
#include "pass/shard.h"

#include <string.h>

/* ---- programs of other ranks ---- */

static ts_program *make_program(const ts_program_options *options, int tp, const char *last_pass) {
  ts_mesh mesh = ts_mesh_at(options->mesh, ts_mesh_group_member(options->mesh, TS_AXES(TS_AXIS_TP), tp));
  ts_program_options other = *options;
  other.mesh = &mesh;
  other.last_pass = last_pass;
  return ts_program_create(&other);
}

/* ---- heads and messages ---- */

typedef struct heads {
  int query, key; /* of a rank, in the first layer */
} heads;

static heads heads_of(const ts_program *program) {
  for (ts_nid n = 0; n < program->graph->n_nodes; ++n) {
    const ts_node *node = &program->graph->node[n];
    if (node->op == TS_OP_ATTENTION) {
      return (heads){node->attr.attention.heads, node->attr.attention.kv_heads};
    }
  }
  return (heads){0, 0};
}

/* ---- printing ---- */

static void print_interval(int i, ts_interval part, bool json, ts_text *to) {
  long long begin = (long long) part.begin, end = begin + (long long) part.length;
  ts_text_add(to, json ? "%s[%lld, %lld]" : "%s%lld-%lld",
              i == 0 ? ""
              : json ? ", "
                     : "+",
              begin, json ? end : end - 1);
}

/* What each rank along an axis has: along ep some experts, along tp some intervals of the dimension that is cut. */
static void print_ranks(const ts_program *program, const ts_shard *shard, ts_axis axis, bool json, ts_text *to) {
  ts_mesh mesh = program->mesh;
  for (int rank = 0; rank < mesh.size[axis]; ++rank) {
    mesh.coord[axis] = rank;
    ts_interval part[TS_MOST_RUNS] = {ts_shard_experts_at(shard, &mesh)};
    int n = axis == TS_AXIS_EP ? 1 : ts_shard_at(program->shards, shard, &mesh, part);
    ts_text_add(to, json ? rank > 0 ? ", [" : "[" : " ");
    for (int i = 0; i < n; ++i) {
      print_interval(i, part[i], json, to);
    }
    ts_text_add(to, json ? "]" : "");
  }
}

/* Widths of the text's columns: the longest of each. */
typedef struct columns {
  int name, shape, rule;
} columns;

static int longer(int width, const char *text) {
  int length = (int) strlen(text);
  return length > width ? length : width;
}

static columns widths_of(const ts_shards *shards) {
  columns width = {0};
  for (int i = 0; i < shards->n; ++i) {
    const ts_shard *shard = &shards->shard[i];
    ts_text shape = {0};
    ts_text_add_shape(&shape, shard->shape.d, shard->shape.n);
    width =
        (columns){longer(width.name, shard->name), longer(width.shape, shape.text), longer(width.rule, shard->rule)};
    ts_text_free(&shape);
  }
  return width;
}

/* Of what is cut over ep and not over tp. */
static bool is_along_ep(const ts_shard *shard) {
  return ts_shard_is_of_experts(shard) && shard->how != TS_HELD_EXPERTS_SPLIT;
}

static void print_shard(const ts_program *program, const ts_shard *shard, const columns *width, ts_text *to) {
  static const char *const whole[] = {
      [TS_HELD_WHOLE] = "on every rank", [TS_HELD_PARTIAL] = "on every rank, gradients summed over tp"};
  ts_text shape = {0};
  ts_text_add_shape(&shape, shard->shape.d, shard->shape.n);
  ts_text_add(to, "  %-*s  %-*s  %-*s  ", width->name, shard->name, width->shape, shape.text, width->rule, shard->rule);
  ts_text_free(&shape);
  if (shard->how < TS_HELD_SHARED) {
    ts_text_add(to, "%s\n", whole[shard->how]);
    return;
  }
  if (ts_shard_is_of_experts(shard)) {
    ts_text_add(to, "along ep, dim 0:");
    print_ranks(program, shard, TS_AXIS_EP, false, to);
  }
  if (!is_along_ep(shard)) {
    ts_text_add(to, shard->how == TS_HELD_EXPERTS_SPLIT ? ", along tp, dim %d:" : "dim %d:", shard->dim);
    print_ranks(program, shard, TS_AXIS_TP, false, to);
  }
  ts_text_add(to, shard->how == TS_HELD_SHARED ? ", shared\n" : "\n");
}

/* Only what is cut has a dimension and pieces along it. */
static void print_shard_json(const ts_program *program, const ts_shard *shard, ts_text *to) {
  static const char *const hows[] = {[TS_HELD_WHOLE] = "whole",
                                     [TS_HELD_PARTIAL] = "partial",
                                     [TS_HELD_SHARED] = "shared",
                                     [TS_HELD_SPLIT] = "split",
                                     [TS_HELD_EXPERTS] = "experts",
                                     [TS_HELD_EXPERTS_PARTIAL] = "experts, partial",
                                     [TS_HELD_EXPERTS_SPLIT] = "experts, split"};
  ts_text_add(to, "{\"name\": \"%s\", \"rule\": \"%s\", \"how\": \"%s\", \"shape\": [", shard->name, shard->rule,
              hows[shard->how]);
  for (int i = 0; i < shard->shape.n; ++i) {
    ts_text_add(to, i > 0 ? ", %lld" : "%lld", (long long) shard->shape.d[i]);
  }
  ts_text_add(to, "]");
  if (shard->how >= TS_HELD_SHARED) {
    ts_text_add(to, ", \"dim\": %d, \"pieces\": [", shard->dim);
    print_ranks(program, shard, is_along_ep(shard) ? TS_AXIS_EP : TS_AXIS_TP, true, to);
    ts_text_add(to, "]");
  }
  if (shard->how == TS_HELD_EXPERTS_SPLIT) {
    ts_text_add(to, ", \"experts\": [");
    print_ranks(program, shard, TS_AXIS_EP, true, to);
    ts_text_add(to, "]");
  }
  ts_text_add(to, "}");
}

static void print_heads(const ts_program_options *options, int ranks, bool json, ts_text *to) {
  for (int rank = 0; rank < ranks; ++rank) {
    ts_program *program = make_program(options, rank, "experts");
    heads h = heads_of(program);
    ts_text_add(to, json ? "%s[%d, %d]" : "%s%d+%d", rank == 0 ? "" : json ? ", " : " ", h.query, h.key);
    ts_program_destroy(&program);
  }
}

/* In the model's order, as the graph has them. */
static void print_shards(const ts_program *program, bool json, ts_text *to) {
  const ts_graph *g = program->graph;
  const columns width = widths_of(program->shards);
  bool first = true;
  for (ts_tid t = 0; t < g->n_tensors; ++t) { /* without tp the table has what is cut over ep alone */
    const ts_shard *shard = ts_shards_find(program->shards, g->tensor[t].name);
    if (g->tensor[t].role == TS_ROLE_PARAM && shard != NULL) {
      ts_text_add(to, json && !first ? ", " : "");
      if (json) {
        print_shard_json(program, shard, to);
      } else {
        print_shard(program, shard, &width, to);
      }
      first = false;
    }
  }
}

static void print_messages(const ts_program_options *options, bool json, ts_text *to) {
  ts_program *program = make_program(options, 0, "zero");
  ts_sent sent = ts_program_sent(program, TS_AXIS_TP);
  double token = sent.micro_batch / (double) (program->batch * program->length);
  char a[32], b[32], c[32];
  if (json) {
    ts_text_add(to,
                "\"tp_messages\": %d, \"tp_bytes_per_token\": %.17g, \"tp_with_others_bytes_per_step\": %.17g, "
                "\"tp_bytes_per_step\": %.17g",
                sent.messages, token, sent.with_others, sent.step);
  } else {
    ts_text_add(to,
                "  a rank sends %s a token along tp, forward and backward, in %d messages a micro-batch;\n"
                "  and %s a step along tp with other axes: gradients of what is not split, new values, the record;\n"
                "  together %s a step\n",
                ts_human_bytes(token, a), sent.messages, ts_human_bytes(sent.with_others, b),
                ts_human_bytes(sent.step, c));
  }
  ts_program_destroy(&program);
}

static void print_products(const ts_program_options *options, int ranks, ts_text *to) {
  if (ranks == 1) {
    return;
  }
  ts_text_add(to, "\ntensor parallelism: %d ranks share each product\n  query + key heads of a rank: ", ranks);
  print_heads(options, ranks, false, to);
  ts_text_add(to, "\n");
  print_messages(options, false, to);
}

void ts_plan_print_layout(const ts_program_options *options, bool json, ts_text *to) {
  ts_program *program = make_program(options, 0, "experts");
  int ranks = options->mesh->size[TS_AXIS_TP];
  if (json) {
    ts_text_add(to, ", \"tp\": %d, \"heads\": [", ranks);
    print_heads(options, ranks, true, to);
    ts_text_add(to, "], ");
    print_messages(options, true, to);
    ts_text_add(to, ", \"layout\": [");
    if (program->shards != NULL) {
      print_shards(program, true, to);
    }
    ts_text_add(to, "]");
  } else if (program->shards == NULL) {
    ts_text_add(to, "\ntensor parallelism is off: every rank computes with whole parameters\n");
  } else {
    print_products(options, ranks, to);
    if (program->mesh.size[TS_AXIS_EP] > 1) {
      ts_text_add(to, "\nexpert parallelism: %d ranks have some of each layer's experts each\n",
                  program->mesh.size[TS_AXIS_EP]);
    }
    ts_text_add(to, "\n");
    print_shards(program, false, to);
  }
  ts_program_destroy(&program);
}
