/* The verifier: a table of rules, each looking at one node (or, once, at the graph). */
#include "graph/verify.h"

#include "base/memory.h"
#include "graph/op.h"

#include <stdlib.h>
#include <string.h>

/* What every rule may look at besides the node. */
typedef struct verifier {
  const ts_graph *graph;
  ts_nid n;                /* the node's place */
  const ts_nid *last_read; /* per tensor: the last node that reads it, TS_NONE for none */
  ts_tid *extent;          /* per tensor made up to here: what says how many of its rows are there, TS_NONE for all */
} verifier;

static bool exists(const verifier *v, ts_tid t) {
  return t >= 0 && t < v->graph->n_tensors;
}

static const char *rule_ids(const verifier *v, const ts_node *node) {
  for (int i = 0; i < node->n_in; ++i) {
    if (node->in[i] != TS_NONE && !exists(v, node->in[i])) {
      return "an input does not exist";
    }
  }
  for (int i = 0; i < node->n_out; ++i) {
    if (!exists(v, node->out[i]) || v->graph->tensor[node->out[i]].producer != v->n) {
      return "an output does not exist or names another producer";
    }
    if (node->prior != NULL && node->prior[i] != TS_NONE && !exists(v, node->prior[i])) {
      return "a prior does not exist";
    }
  }
  return node->beta != TS_NONE && !exists(v, node->beta) ? "beta does not exist" : NULL;
}

static bool made_before(const verifier *v, ts_tid t) {
  return t == TS_NONE || v->graph->tensor[t].producer < v->n;
}

static const char *rule_order(const verifier *v, const ts_node *node) {
  for (int i = 0; i < node->n_in; ++i) {
    if (!made_before(v, node->in[i])) {
      return "an input is made later";
    }
  }
  for (int i = 0; node->prior != NULL && i < node->n_out; ++i) {
    if (!made_before(v, node->prior[i])) {
      return "a prior is made later";
    }
  }
  return NULL;
}

static const char *rule_arity(const verifier *v, const ts_node *node) {
  (void) v;
  const ts_op_info *info = ts_op_get(node->op);
  bool in = node->n_in >= info->min_in && (info->max_in < 0 || node->n_in <= info->max_in);
  bool out = node->n_out >= info->min_out && (info->max_out < 0 || node->n_out <= info->max_out);
  for (int i = 0; in && i < node->n_in; ++i) {
    if (node->in[i] == TS_NONE && (info->optional >> i & 1) == 0) {
      return "an input that it needs is absent";
    }
  }
  return in && out ? NULL : "wrong number of inputs or outputs";
}

static const char *rule_shape(const verifier *v, const ts_node *node) {
  enum { FEW = 4 };
  ts_dtype few_dtypes[FEW] = {0}, *dtype = few_dtypes;
  ts_shape few_shapes[FEW] = {0}, *shape = few_shapes;
  if (node->n_out > FEW) {
    dtype = ts_calloc((size_t) node->n_out, sizeof *dtype);
    shape = ts_calloc((size_t) node->n_out, sizeof *shape);
  }
  const char *why = ts_op_get(node->op)->shape(v->graph, node, dtype, shape);
  for (int i = 0; why == NULL && i < node->n_out; ++i) {
    const ts_tensor *t = &v->graph->tensor[node->out[i]];
    bool same = t->dtype == dtype[i] && ts_shape_equal(&t->shape, &shape[i]);
    why = same ? NULL : "an output is not what the shape rule gives";
  }
  if (node->n_out > FEW) {
    ts_free(dtype);
    ts_free(shape);
  }
  return why;
}

static const char *rule_prior(const verifier *v, const ts_node *node) {
  if (node->prior == NULL) {
    return NULL;
  }
  for (int i = 0; i < node->n_out; ++i) {
    if (node->prior[i] != TS_NONE) {
      if (!ts_op_adds(node->op, i)) {
        return "the op cannot add to a prior";
      }
      const ts_tensor *a = &v->graph->tensor[node->prior[i]], *b = &v->graph->tensor[node->out[i]];
      if (a->dtype != b->dtype || ts_shape_count(&a->shape) != ts_shape_count(&b->shape)) {
        return "a prior is not like its output";
      }
    }
  }
  return NULL;
}

static const char *rule_segment(const verifier *v, const ts_node *node) {
  for (int i = 0; i < node->n_in; ++i) {
    const ts_node *producer = node->in[i] == TS_NONE ? NULL : ts_graph_producer(v->graph, node->in[i]);
    if (producer != NULL && ts_segment_phase(producer->segment) > ts_segment_phase(node->segment)) {
      return "it reads what a later phase makes";
    }
    bool weights = producer != NULL && producer->segment == TS_SEGMENT_BACKWARD_WEIGHT &&
                   (ts_op_get(producer->op)->flags & TS_OP_ALIAS) == 0;
    if (weights && node->segment == TS_SEGMENT_BACKWARD_INPUT) {
      return "a gradient of inputs reads what gradients of weights make";
    }
  }
  return NULL;
}

/* A value in state, or a window on it. */
static bool is_state(const ts_graph *g, ts_tid t) {
  while (g->tensor[t].producer != TS_NONE && g->node[g->tensor[t].producer].op == TS_OP_VIEW) {
    t = g->node[g->tensor[t].producer].in[0];
  }
  return g->tensor[t].role == TS_ROLE_STATE;
}

/* Of what does not exist nothing is noted. */
static ts_nid *find_last_reads(const ts_graph *g) {
  ts_nid *last = ts_ids_none(g->n_tensors);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in + node->n_out; ++i) {
      ts_tid prior = i >= node->n_in && node->prior != NULL ? node->prior[i - node->n_in] : TS_NONE;
      ts_tid t = i < node->n_in ? node->in[i] : prior;
      if (t >= 0 && t < g->n_tensors) {
        last[t] = n;
      }
    }
  }
  return last;
}

/* After an update in place the old version is gone; state that is a prior is updated in place.  Targets of collectives
 * are left out: they change in the columns of the pieces only, the others may be read. */
static const char *rule_version(const verifier *v, const ts_node *node) {
  const ts_op_info *info = ts_op_get(node->op);
  for (int i = 0; i < node->n_out; ++i) {
    bool arrives = node->op == TS_OP_RECEIVE && node->attr.message.into;
    ts_tid old = i < info->n_inplace || arrives ? node->in[i] : TS_NONE;
    if (old == TS_NONE && node->prior != NULL && node->prior[i] != TS_NONE && is_state(v->graph, node->prior[i])) {
      old = node->prior[i];
    }
    if (old != TS_NONE && v->last_read[old] > v->n) {
      return "a later node reads the version it replaces";
    }
  }
  return NULL;
}

/* ---- index letters ---- */

typedef struct letters {
  int64_t extent[128];
} letters;

/* Extents of one operand "bt*c" against a shape; '*' takes what the letters leave. */
static bool match_operand(letters *l, const char *spec, int n, const ts_shape *shape) {
  int named = 0, star = -1;
  for (int i = 0; i < n; ++i) {
    named += spec[i] != '*';
    star = spec[i] == '*' ? i : star;
  }
  if (star < 0 && named != shape->n) {
    return n == 1 && spec[0] == '.';
  }
  int64_t rest = 1;
  int d = 0;
  for (int i = 0; i < n; ++i) {
    if (i == star) {
      for (int left = shape->n - named; left > 0; --left) {
        rest *= shape->d[d++];
      }
      continue;
    }
    int64_t *extent = &l->extent[(unsigned char) spec[i]];
    if (*extent >= 0 && *extent != shape->d[d]) {
      return false;
    }
    *extent = shape->d[d++];
  }
  int64_t *stars = &l->extent['*'];
  if (star >= 0 && *stars >= 0 && *stars != rest) {
    return false;
  }
  *stars = star >= 0 ? rest : *stars;
  return true;
}

static bool match_side(letters *l, const verifier *v, const char **spec, const ts_tid *list, int n) {
  for (int i = 0; i < n; ++i) {
    int length = (int) strcspn(*spec, ",-");
    bool skip = list[i] == TS_NONE || (length == 1 && **spec == '.');
    if (!skip && !match_operand(l, *spec, length, &v->graph->tensor[list[i]].shape)) {
      return false;
    }
    *spec += length;
    *spec += **spec == ',';
  }
  return true;
}

static const char *rule_letters(const verifier *v, const ts_node *node) {
  const char *spec = ts_op_get(node->op)->index(node);
  if (*spec == 0) {
    return NULL;
  }
  letters l;
  memset(l.extent, -1, sizeof l.extent);
  bool in = match_side(&l, v, &spec, node->in, node->n_in);
  spec = strchr(spec, '>');
  if (!in || spec == NULL) {
    return "an index letter has two extents";
  }
  ++spec;
  return match_side(&l, v, &spec, node->out, node->n_out) ? NULL : "an index letter has two extents";
}

/* ---- rows that are not all there ---- */

/* Element by element: of rows that are not there it makes rows that are not there. */
static bool passes_rows_on(const ts_node *node) {
  return node->op == TS_OP_CAST || node->op == TS_OP_ADD || node->op == TS_OP_ACCUMULATE;
}

/* An expert that is alone has all tokens. */
static bool is_of_all_tokens(const ts_graph *g, ts_tid first) {
  const ts_node *from = ts_graph_producer(g, first);
  from = from != NULL && from->op == TS_OP_DISPATCH ? ts_graph_producer(g, from->in[0]) : NULL;
  const ts_shape *logits = from != NULL && from->op == TS_OP_ROUTE ? &g->tensor[from->in[0]].shape : NULL;
  return logits != NULL && logits->d[logits->n - 1] == 1;
}

/* The tensor that says how many rows of t are there, TS_NONE where all are. */
static ts_tid extent_of_rows(const verifier *v, ts_tid t) {
  return t != TS_NONE ? v->extent[t] : TS_NONE;
}

/* Nodes come in order: of inputs it is noted. */
static void note_extent(const verifier *v, const ts_node *node) {
  ts_tid extent = TS_NONE;
  for (int i = 0; i < node->n_in && passes_rows_on(node) && extent == TS_NONE; ++i) {
    extent = extent_of_rows(v, node->in[i]);
  }
  int at = ts_node_extent(node);
  extent = at >= 0 && !is_of_all_tokens(v->graph, node->in[at]) ? node->in[at] : extent;
  for (int i = 0; i < node->n_out; ++i) {
    v->extent[node->out[i]] = extent;
  }
}

/* What a pass has made again of the same has the same values: names but for ".again" are equal. */
static bool says_the_same(const ts_graph *g, ts_tid a, ts_tid b) {
  static const char again[] = ".again";
  const char *x = g->tensor[a].name, *y = g->tensor[b].name;
  const size_t n = sizeof again - 1;
  bool same = true;
  while (a != b && same && (*x != 0 || *y != 0)) {
    x += strncmp(x, again, n) == 0 ? n : 0;
    y += strncmp(y, again, n) == 0 ? n : 0;
    same = *x == *y;
    x += *x != 0;
    y += *y != 0;
  }
  return same;
}

/* Does a node that reads rows read how many there are, or, element by element, rows of one extent alone? */
static bool knows(const verifier *v, const ts_node *node, ts_tid extent) {
  bool passes = passes_rows_on(node), knows = extent == TS_NONE;
  for (int i = 0; i < node->n_in && extent != TS_NONE; ++i) {
    ts_tid other = passes ? extent_of_rows(v, node->in[i]) : node->in[i];
    bool same = other != TS_NONE && says_the_same(v->graph, other, extent);
    if (passes && other != TS_NONE && !same) {
      return false;
    }
    knows = knows || same;
  }
  return knows;
}

/* What the host reads is there. */
static bool are_marks_whole(const verifier *v) {
  const ts_graph *g = v->graph;
  bool whole = true;
  for (int i = 0; i < g->n_marks && whole; ++i) {
    whole = extent_of_rows(v, g->mark[i].tensor) == TS_NONE;
  }
  return whole;
}

static const char *rule_rows(const verifier *v, const ts_node *node) {
  note_extent(v, node);
  bool good = v->n + 1 < v->graph->n_nodes || are_marks_whole(v); /* once, when all is noted */
  for (int i = 0; i < node->n_in && good; ++i) {
    good = knows(v, node, extent_of_rows(v, node->in[i]));
  }
  for (int i = 0; node->prior != NULL && i < node->n_out && good; ++i) {
    good = knows(v, node, extent_of_rows(v, node->prior[i]));
  }
  return good ? NULL : "rows that may not be there are read by what does not know how many are";
}

/* ---- spaces ---- */

static ts_space space_of_tensor(const ts_graph *g, ts_tid t) {
  return t != TS_NONE ? g->tensor[t].space : TS_SPACE_BACKEND;
}

/* Is any of what a node touches where only copies come? */
static bool touches_away(const ts_graph *g, const ts_node *node) {
  bool touches = ts_space_is_away(space_of_tensor(g, node->beta));
  for (int i = 0; i < node->n_in; ++i) {
    touches = touches || ts_space_is_away(space_of_tensor(g, node->in[i]));
  }
  for (int i = 0; i < node->n_out; ++i) {
    touches = touches || ts_space_is_away(space_of_tensor(g, node->out[i])) ||
              (node->prior != NULL && ts_space_is_away(space_of_tensor(g, node->prior[i])));
  }
  return touches;
}

/* Is all that it touches in the host's memory? */
static bool is_of_host(const ts_graph *g, const ts_node *node) {
  bool all = node->beta == TS_NONE && node->prior == NULL;
  for (int i = 0; i < node->n_in + node->n_out; ++i) {
    ts_tid t = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
    all = all && (t == TS_NONE || space_of_tensor(g, t) == TS_SPACE_PINNED);
  }
  return all;
}

/* Files are beside the host's memory, which may be beside a device's. */
static bool is_beside(ts_space away, ts_space here) {
  return away == TS_SPACE_FILE ? here != TS_SPACE_FILE : !ts_space_is_away(here);
}

static const char *rule_space(const verifier *v, const ts_node *node) {
  const ts_graph *g = v->graph;
  if (ts_node_is_copy(node)) {
    ts_space away = space_of_tensor(g, ts_copy_away(node)), here = space_of_tensor(g, ts_copy_here(node));
    return away == ts_node_copies(node) && is_beside(away, here)
               ? NULL
               : "a copy is of another space, or has one end there alone";
  }
  if (node->on_host) {
    return is_of_host(g, node) ? NULL : "what the host computes is not in its memory";
  }
  return ts_node_makes_window(node) || !touches_away(g, node)
             ? NULL
             : "what is not in the backend's memory is touched by something else than a copy";
}

/* ---- the graph as a whole ---- */

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static const char *rule_names(const verifier *v, const ts_node *node) {
  (void) node;
  const ts_graph *g = v->graph;
  if (v->n > 0) { /* once a graph */
    return NULL;
  }
  const char **name = ts_malloc((size_t) g->n_tensors * sizeof *name);
  size_t n = 0, same = 1;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (g->tensor[t].role != TS_ROLE_VALUE) {
      name[n++] = g->tensor[t].name;
    }
  }
  qsort(name, n, sizeof *name, by_name);
  while (same < n && strcmp(name[same - 1], name[same]) != 0) {
    ++same;
  }
  ts_free(name);
  return same < n ? "two leaves have one name" : NULL;
}

static const struct {
  const char *name;
  const char *(*check)(const verifier *v, const ts_node *node);
} rules[] = {{"ids", rule_ids},     {"arity", rule_arity},     {"order", rule_order},     {"shape", rule_shape},
             {"prior", rule_prior}, {"segment", rule_segment}, {"letters", rule_letters}, {"version", rule_version},
             {"rows", rule_rows},   {"space", rule_space},     {"names", rule_names}};

enum { N_RULES = sizeof rules / sizeof rules[0] };

static const char *disabled;

void ts_graph_verify_disable(const char *names) {
  disabled = names;
}

const char *ts_graph_rule_name(int i) {
  return i >= 0 && i < N_RULES ? rules[i].name : NULL;
}

static bool is_disabled(int rule) {
  return disabled != NULL && strstr(disabled, rules[rule].name) != NULL;
}

static int verify_node(const verifier *v, const ts_node *node, ts_text *why) {
  for (int r = 0; r < N_RULES; ++r) {
    const char *reason = is_disabled(r) ? NULL : rules[r].check(v, node);
    if (reason != NULL) {
      ts_node_print(v->graph, node, why);
      ts_text_add(why, "\n  %s: %s\n", rules[r].name, reason);
      return 1; /* later rules may rely on this one */
    }
  }
  return 0;
}

int ts_graph_verify(const ts_graph *graph, ts_text *why) {
  int violations = 0;
  ts_nid *last_read = find_last_reads(graph);
  ts_tid *extent = ts_ids_none(graph->n_tensors);
  for (ts_nid n = 0; n < graph->n_nodes; ++n) {
    violations += verify_node(&(verifier){graph, n, last_read, extent}, &graph->node[n], why);
  }
  ts_free(last_read);
  ts_free(extent);
  return violations;
}
