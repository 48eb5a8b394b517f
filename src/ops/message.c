/* Messages between the pieces of a pipeline: send, receive, each the other's gradient. */
#include "base/memory.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "ops/rules.h"

const char *ts_index_send(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_index_receive(const ts_node *node) {
  (void) node;
  return "";
}

const char *ts_shape_send(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  (void) dtype;
  (void) shape;
  TS_RULE(node->n_in == node->attr.message.n && node->n_out == 0, "it sends all that crosses, and makes nothing");
  for (int i = 0; i < node->n_in; ++i) {
    const ts_tensor *x = ts_rule_in(g, node, i);
    const ts_crossing *c = &node->attr.message.crossing[i];
    const ts_shape crosses = ts_crossing_shape(c);
    TS_RULE((int64_t) x->dtype == c->dtype && ts_shape_equal(&x->shape, &crosses), "a tensor is not what crosses");
  }
  return NULL;
}

const char *ts_shape_receive(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  bool into = node->attr.message.into;
  TS_RULE(node->n_out == node->attr.message.n, "an output for each tensor that crosses");
  TS_RULE(node->n_in == (into ? node->n_out : 0), "a target for each of them, or none");
  for (int i = 0; i < node->n_out; ++i) {
    const ts_crossing *c = &node->attr.message.crossing[i];
    TS_RULE(c->n > 0 && c->n <= TS_MAX_DIMS && c->dtype >= 0 && c->dtype < TS_N_DTYPES, "what crosses has no type");
    dtype[i] = (ts_dtype) c->dtype;
    shape[i] = ts_crossing_shape(c);
    TS_RULE(!into || (ts_rule_in(g, node, i)->dtype == dtype[i] &&
                      ts_shape_equal(&ts_rule_in(g, node, i)->shape, &shape[i])),
            "a target is not what crosses");
  }
  return NULL;
}

/* The message that goes the other way, of what is wanted there; its list is the caller's (ts_free). */
static ts_attr answer_to(const ts_node *node) {
  ts_attr attr = node->attr;
  ts_crossing *c = ts_malloc((size_t) node->attr.message.n * sizeof *c);
  attr.message.back = true;
  attr.message.n = 0;
  for (int i = 0; i < node->attr.message.n; ++i) {
    if (node->attr.message.crossing[i].wanted != 0) {
      c[attr.message.n] = node->attr.message.crossing[i];
      c[attr.message.n].dtype = c[attr.message.n].dtype == TS_F64 ? TS_F32 : c[attr.message.n].dtype; /* of a loss */
      c[attr.message.n++].wanted = 0;
    }
  }
  attr.message.crossing = c;
  return attr;
}

void ts_gradient_send(ts_gradients *gradients, const ts_node *node) {
  ts_attr attr = answer_to(node);
  char *name = ts_format("%s.dx", node->name);
  ts_tid dx = ts_build_receive(ts_gradients_site(gradients, node->in[0]), name, &attr, NULL);
  for (int i = 0; i < node->n_in; ++i) {
    if (node->attr.message.crossing[i].wanted != 0) {
      ts_gradients_add(gradients, node->in[i], dx++);
    }
  }
  ts_free((void *) attr.message.crossing);
  ts_free(name);
}

void ts_gradient_receive(ts_gradients *gradients, const ts_node *node) {
  ts_attr attr = answer_to(node);
  char *name = ts_format("%s.dx", node->name);
  ts_tid *dy = ts_malloc((size_t) node->n_out * sizeof *dy);
  int n = 0;
  for (int i = 0; i < node->n_out; ++i) {
    if (node->attr.message.crossing[i].wanted != 0) {
      dy[n] = ts_gradients_of(gradients, node->out[i]);
      TS_CHECK(dy[n] != TS_NONE, "%s: no gradient comes back to %s", node->name,
               gradients->graph->tensor[node->out[i]].name);
      ++n;
    }
  }
  ts_build_send(ts_gradients_site(gradients, node->out[0]), name, dy, &attr);
  ts_free((void *) attr.message.crossing);
  ts_free(dy);
  ts_free(name);
}
