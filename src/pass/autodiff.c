/* Reverse-mode differentiation: from the loss back, each node's rule adds the nodes of its gradients.  Backward nodes
 * belong to the unit of their forward node and follow in reverse order. */
#include "pass/autodiff.h"

#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "pass/optimizer.h"
#include "pass/pass.h"

#include <string.h>

ts_tid ts_gradients_of(const ts_gradients *gradients, ts_tid t) {
  return t != TS_NONE && t < gradients->n ? gradients->of[t] : TS_NONE;
}

bool ts_gradients_wanted(const ts_gradients *gradients, ts_tid t) {
  return t != TS_NONE && t < gradients->n && gradients->wanted[t];
}

ts_dtype ts_gradients_dtype(const ts_gradients *gradients, ts_tid t) {
  const ts_tensor *tensor = &gradients->graph->tensor[t];
  bool exact = gradients->exact != NULL && gradients->exact[t];
  return tensor->role != TS_ROLE_PARAM ? tensor->dtype : exact ? TS_F32 : gradients->accumulate;
}

ts_site ts_gradients_site(const ts_gradients *gradients, ts_tid t) {
  bool parameter = gradients->graph->tensor[t].role == TS_ROLE_PARAM;
  return (ts_site){gradients->graph, parameter ? TS_SEGMENT_BACKWARD_WEIGHT : TS_SEGMENT_BACKWARD_INPUT,
                   gradients->unit};
}

ts_tid ts_gradients_seed(ts_gradients *gradients, ts_tid loss) {
  ts_graph *g = gradients->graph;
  ts_tid seed = ts_gradients_of(gradients, loss);
  seed = seed != TS_NONE ? seed : ts_graph_find(g, "gradient_seed");
  return seed != TS_NONE ? seed : ts_graph_leaf(g, "gradient_seed", TS_ROLE_SCALAR, TS_F32, TS_SHAPE(1), -1);
}

/* What is made of an activation is of its type; of a parameter gradients are added up in theirs. */
static ts_tid cast_to_sums(const ts_gradients *gradients, ts_tid t, ts_tid gradient) {
  const ts_graph *g = gradients->graph;
  ts_dtype dtype = ts_gradients_dtype(gradients, t);
  if (g->tensor[t].role != TS_ROLE_PARAM || g->tensor[gradient].dtype == dtype) {
    return gradient;
  }
  char *name = ts_format("%s.cast", g->tensor[gradient].name);
  ts_tid cast = ts_build_cast(ts_gradients_site(gradients, t), name, gradient, dtype);
  ts_free(name);
  return cast;
}

/* Of a parameter that two of this rank's pieces read, was a gradient made in the other one? */
static bool is_of_other_chunk(const ts_gradients *gradients, ts_tid t, ts_tid gradient) {
  const ts_graph *g = gradients->graph;
  const ts_node *here = &(ts_node){.unit = gradients->unit};
  return g->tensor[t].role == TS_ROLE_PARAM &&
         ts_node_chunk(g, ts_graph_producer(g, gradient)) != ts_node_chunk(g, here);
}

void ts_gradients_add(ts_gradients *gradients, ts_tid t, ts_tid gradient) {
  TS_ASSERT(ts_gradients_wanted(gradients, t));
  gradient = cast_to_sums(gradients, t, gradient);
  ts_tid *of = &gradients->of[t];
  if (*of != TS_NONE && is_of_other_chunk(gradients, t, *of)) { /* which has runs of its own: ZeRO adds them up */
    ts_graph_mark_earlier(gradients->graph, gradients->graph->tensor[t].name, *of);
    *of = TS_NONE;
  }
  if (*of == TS_NONE) {
    *of = gradient;
    return;
  }
  char *name = ts_format("%s.gradient", gradients->graph->tensor[t].name);
  *of = ts_build_add(ts_gradients_site(gradients, t), name, *of, gradient);
  ts_free(name);
}

void ts_find_trained(const ts_graph *g, const ts_deck *deck, bool *trained) {
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *tensor = &g->tensor[t];
    trained[t] = tensor->role == TS_ROLE_PARAM && !ts_parameter_is_frozen(deck, tensor->name);
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    bool any = false, received = node->op == TS_OP_RECEIVE;
    for (int i = 0; i < node->n_in; ++i) {
      any = any || (node->in[i] != TS_NONE && trained[node->in[i]]);
    }
    for (int i = 0; i < node->n_out; ++i) {
      trained[node->out[i]] = received ? node->attr.message.crossing[i].wanted != 0 : any;
    }
  }
}

/* Gradients of what a message has come from behind it: those of what is wanted there. */
static bool is_answered(const ts_node *node) {
  bool wanted = false;
  for (int i = 0; node->op == TS_OP_SEND && i < node->attr.message.n; ++i) {
    wanted = wanted || node->attr.message.crossing[i].wanted != 0;
  }
  return wanted;
}

static bool is_reached(const ts_gradients *gradients, const ts_node *node) {
  if (node->n_out == 0) {
    return is_answered(node);
  }
  bool reached = false;
  for (int i = 0; i < node->n_out; ++i) {
    reached = reached || ts_gradients_of(gradients, node->out[i]) != TS_NONE;
  }
  bool wanted = false;
  for (int i = 0; i < node->n_out; ++i) {
    wanted = wanted || ts_gradients_wanted(gradients, node->out[i]);
  }
  return reached && wanted;
}

/* Outputs that a program may go back from have the gradient that the host gives. */
static void seed_outputs(ts_gradients *gradients) {
  ts_graph *g = gradients->graph;
  for (int m = 0; m < g->n_marks; ++m) {
    const char *name = g->mark[m].name;
    ts_tid t = g->mark[m].tensor;
    if (strncmp(name, TS_OUTPUT_MARK, strlen(TS_OUTPUT_MARK)) == 0 && ts_gradients_wanted(gradients, t)) {
      char *seed = ts_format(TS_SEED_LEAF "%s", name + strlen(TS_OUTPUT_MARK));
      gradients->unit = g->tensor[t].unit;
      ts_gradients_add(gradients, t, ts_graph_leaf(g, seed, TS_ROLE_INPUT, g->tensor[t].dtype, g->tensor[t].shape, -1));
      ts_free(seed);
    }
  }
}

static void mark_gradients(ts_gradients *gradients) {
  ts_graph *g = gradients->graph;
  for (ts_tid t = 0; t < gradients->n; ++t) {
    if (g->tensor[t].role == TS_ROLE_PARAM && gradients->of[t] != TS_NONE) {
      ts_graph_mark_gradient(g, g->tensor[t].name, gradients->of[t]);
    }
  }
}

/* The parameters whose gradients are not added up in the deck's type. */
static void find_exact(ts_gradients *gradients, const ts_deck *deck) {
  gradients->exact = ts_calloc((size_t) gradients->n, sizeof *gradients->exact);
  for (ts_tid t = 0; t < gradients->n; ++t) {
    const ts_tensor *tensor = &gradients->graph->tensor[t];
    if (tensor->role == TS_ROLE_PARAM) {
      ts_optimizer optimizer = ts_optimizer_of(deck, tensor->name, &tensor->shape);
      gradients->exact[t] = ts_optimizer_sums(deck, optimizer) != gradients->accumulate;
    }
  }
}

void ts_pass_autodiff(ts_graph **graph, ts_pass_context *context) {
  ts_graph *g = *graph; /* nodes are only added: the forward part stays as it is */
  ts_gradients gradients = {.graph = g,
                            .n = g->n_tensors,
                            .accumulate = context->deck->data_types.grad_accum_dtype,
                            .of = ts_ids_none(g->n_tensors),
                            .wanted = ts_calloc((size_t) g->n_tensors, sizeof *gradients.wanted)};
  ts_find_trained(g, context->deck, gradients.wanted);
  find_exact(&gradients, context->deck);
  const ts_tid roots[] = {ts_graph_marked(g, "loss"), ts_graph_marked(g, "balance")};
  if (context->seeded) {
    seed_outputs(&gradients);
  }
  for (int i = 0; i < 2; ++i) {
    if (ts_gradients_wanted(&gradients, roots[i])) {
      gradients.of[roots[i]] = ts_gradients_seed(&gradients, roots[i]);
    }
  }
  for (ts_nid n = g->n_nodes - 1; n >= 0; --n) {
    ts_node node = g->node[n]; /* the array moves while nodes are added; what the node points to does not */
    if (is_reached(&gradients, &node)) {
      gradients.unit = node.unit;
      ts_op_get(node.op)->gradient(&gradients, &node);
    }
  }
  mark_gradients(&gradients);
  ts_free(gradients.of);
  ts_free(gradients.wanted);
  ts_free(gradients.exact);
}
