/* What crosses from a piece of a pipeline to the next is, where the ranks along tp have it alike, sent by each in part
 * and gathered behind the message: 1 / tp of the bytes go from stage to stage, all of them between the ranks of one,
 * which are near each other (Megatron-LM's scatter-gather, Narayanan et al. 2021, section 4.1; DeepSpeed's
 * pipe_partitioned and grad_partitioned).  Values stay what they are, bit for bit. */
#include "pass/pass.h"

#include "base/memory.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "ops/build.h"

typedef struct crosser {
  ts_rewrite rewrite;
  ts_shards *shards;
  const ts_mesh *mesh;
  int ranks;                    /* along tp */
  bool of_values, of_gradients; /* are sent in parts */
} crosser;

static int64_t crossing_elements(const ts_crossing *k) {
  const ts_shape shape = ts_crossing_shape(k);
  int64_t count = 1;
  for (int i = 0; i < shape.n; ++i) {
    count *= shape.d[i];
  }
  return count;
}

/* Both ends see the same of the same numbers. */
static bool is_parted(const crosser *c, const ts_node *message, int i) {
  const ts_crossing *k = &message->attr.message.crossing[i];
  return (message->attr.message.back ? c->of_gradients : c->of_values) && k->alike != 0 &&
         crossing_elements(k) % c->ranks == 0;
}

/* What the message has then; the caller's (ts_free). */
static ts_crossing *part_crossings(const crosser *c, const ts_node *message) {
  int n = message->attr.message.n;
  ts_crossing *parted = ts_calloc((size_t) n + 1, sizeof *parted);
  for (int i = 0; i < n; ++i) {
    parted[i] = message->attr.message.crossing[i];
    if (is_parted(c, message, i)) {
      parted[i] = (ts_crossing){.wanted = parted[i].wanted,
                                .dtype = parted[i].dtype,
                                .n = 1,
                                .d = {crossing_elements(&parted[i]) / c->ranks}};
    }
  }
  return parted;
}

static void write_message(crosser *c, ts_nid n) {
  ts_rewrite *r = &c->rewrite;
  const ts_node *old = &r->from->node[n];
  ts_site at = {r->to, old->segment, old->unit};
  ts_crossing *parted = part_crossings(c, old);
  ts_tid *in = ts_calloc((size_t) old->n_in + 1, sizeof *in);
  for (int i = 0; i < old->n_in; ++i) {
    in[i] = ts_rewrite_tensor(r, old->in[i]);
    in[i] = is_parted(c, old, i) ? ts_shard_part(at, c->mesh, in[i]) : in[i];
  }
  ts_node node = *old;
  node.in = in;
  node.attr.message.crossing = parted;
  ts_rewrite_add(r, n, &node);
  for (int i = 0; i < old->n_out; ++i) {
    ts_tid *y = &r->map[old->out[i]];
    if (is_parted(c, old, i)) {
      *y = ts_shard_gather_parts(at, r->to->tensor[*y].name, c->shards, *y, r->from->tensor[old->out[i]].shape);
    }
  }
  ts_free(in);
  ts_free(parted);
}

void ts_pass_crossing(ts_graph **graph, ts_pass_context *context) {
  const ts_deck *deck = context->deck;
  crosser c = {.shards = context->shards,
               .mesh = context->mesh,
               .ranks = context->mesh->size[TS_AXIS_TP],
               .of_values = deck->pipeline.pipe_partitioned,
               .of_gradients = deck->pipeline.grad_partitioned};
  if (context->stages == NULL || c.ranks == 1) {
    return;
  }
  c.rewrite = ts_rewrite_begin(*graph);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    if (ts_node_is_message(&(*graph)->node[n])) {
      write_message(&c, n);
    } else {
      ts_rewrite_copy(&c.rewrite, n);
    }
  }
  ts_rewrite_marks(&c.rewrite);
  ts_rewrite_end(&c.rewrite, graph);
}
