#include "train/flops_report.h"

#include "base/memory.h"
#include "graph/op.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_FORWARD (1.0 / 3) /* of HEAD_LOSS_TRAIN: one product of three */

/* What counts. */
typedef struct amount {
  int64_t params;
  double macs, flops, seconds;
} amount;

typedef struct module {
  char *name; /* owned: the last word of its path */
  int parent; /* -1: the whole model */
  int depth;
  amount all; /* with those in it */
} module;

typedef struct report {
  const ts_deck *deck;
  const ts_program *program;
  const ts_flops_step *step;
  module *module; /* owned; a parent comes before its children */
  int n, capacity;
  double backward_flops; /* with what is repeated */
  double moved;          /* seconds of the loss that are forward, and run with the backward */
} report;

static int add_module(report *r, int parent, const char *name, int length) {
  TS_GROW(r->module, r->n, r->capacity);
  r->module[r->n] = (module){
      .name = ts_format("%.*s", length, name), .parent = parent, .depth = parent < 0 ? 0 : r->module[parent].depth + 1};
  return r->n++;
}

static int find_submodule(report *r, int parent, const char *name, int length) {
  for (int i = parent + 1; i < r->n; ++i) {
    const module *m = &r->module[i];
    if (m->parent == parent && strncmp(m->name, name, (size_t) length) == 0 && m->name[length] == 0) {
      return i;
    }
  }
  return add_module(r, parent, name, length);
}

static void add_amount(amount *to, const amount *what) {
  to->params += what->params;
  to->macs += what->macs;
  to->flops += what->flops;
  to->seconds += what->seconds;
}

/* To a module, by the first `length` characters of a name, and to all that it is in. */
static void count_module(report *r, const char *path, size_t length, const amount *what) {
  int at = 0;
  add_amount(&r->module[0].all, what);
  for (size_t begin = 0; begin < length;) {
    size_t word = strcspn(path + begin, ".");
    word = begin + word > length ? length - begin : word;
    at = find_submodule(r, at, path + begin, (int) word);
    add_amount(&r->module[at].all, what);
    begin += word + 1;
  }
}

/* Those of this rank's part of the model: whole, however ZeRO deals them out. */
static void count_params(report *r) {
  const ts_layout *layout = r->program->layout;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    const char *last = strrchr(p->name, '.');
    if (layout->part[p->part].of_stage) {
      count_module(r, p->name, last != NULL ? (size_t) (last - p->name) : 0, &(amount){.params = p->count});
    }
  }
}

/* Of the whole model, of all ranks. */
static int64_t count_all_params(const ts_layout *layout) {
  int64_t count = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    count += ts_shape_count(&layout->parameter[i].shape);
  }
  return count;
}

static void count_node(report *r, const ts_node *node, double times, double seconds) {
  const ts_graph *g = r->program->graph;
  double flops = times * ts_node_flops(g, node), forward = 0;
  if (ts_segment_phase(node->segment) == 0) {
    forward = 1;
  } else if (node->op == TS_OP_HEAD_LOSS_TRAIN) {
    forward = HEAD_FORWARD;
    r->moved += forward * seconds;
  }
  if (ts_segment_phase(node->segment) == 1) {
    r->backward_flops += (1 - forward) * flops;
  }
  if (forward > 0) {
    bool product = (ts_op_get(node->op)->flags & TS_OP_PRODUCT) != 0;
    const char *dx = node->op == TS_OP_HEAD_LOSS_TRAIN ? strstr(node->name, ".dx") : NULL;
    size_t length = dx != NULL ? (size_t) (dx - node->name) : strlen(node->name);
    count_module(
        r, node->name, length,
        &(amount){.macs = product ? forward * flops / 2 : 0, .flops = forward * flops, .seconds = forward * seconds});
  }
}

static void count_nodes(report *r) {
  const ts_graph *g = r->program->graph;
  double *seconds = ts_calloc((size_t) g->n_nodes + 1, sizeof *seconds);
  int64_t *times = ts_calloc((size_t) g->n_nodes + 1, sizeof *times);
  for (int i = 0; i < r->step->n; ++i) {
    const ts_observed_event *e = &r->step->event[i];
    if (!e->collective && !ts_node_is_copy(e->node)) {
      seconds[e->node - g->node] += e->seconds;
      ++times[e->node - g->node];
    }
  }
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    if (times[i] > 0) {
      count_node(r, &g->node[i], (double) times[i], seconds[i]);
    }
  }
  ts_free(seconds);
  ts_free(times);
}

/* ---- printing ---- */

/* "1.50 GFLOPS", "23.71 k params". */
static char *spell(double value, const char *unit, char out[48]) {
  static const char *const prefix[] = {"", "k", "M", "G", "T", "P", "E"};
  int i = 0;
  for (; value >= 999.995 && i < 6; ++i) {
    value /= 1000;
  }
  const char *between = i > 0 && islower((unsigned char) unit[0]) ? " " : "";
  snprintf(out, 48, "%.*f %s%s%s", i > 0 ? 2 : 0, value, prefix[i], between, unit);
  return out;
}

static void add_figure(ts_text *to, const char *label, double value, const char *unit) {
  char number[48];
  ts_text_add(to, "  %-70s %s\n", label, spell(value, unit, number));
}

static void add_latency(ts_text *to, const char *label, double seconds) {
  ts_text_add(to, "  %-70s %.3f ms\n", label, 1e3 * seconds);
}

static void add_rate(ts_text *to, const char *label, double flops, double seconds) {
  if (seconds > 0) {
    add_figure(to, label, flops / seconds, "FLOPS");
  }
}

static void add_grid(const report *r, ts_text *to) {
  const ts_mesh *mesh = &r->program->mesh;
  const ts_deck *deck = r->deck;
  ts_text_add(to, "  %-70s %d\n", "world size", mesh->ranks);
  ts_text_add(to, "  %-70s %d\n", "data parallel size", ts_mesh_group_size(mesh, TS_AXES_BATCH));
  ts_text_add(to, "  %-70s %d x %d x %d\n", "model parallel size (stages x sequence x tensor)", mesh->size[TS_AXIS_PP],
              mesh->size[TS_AXIS_SP], mesh->size[TS_AXIS_TP]);
  ts_text_add(to, "  %-70s %lld x %lld\n", "batch size of a rank (micro-batch x accumulation steps)",
              (long long) deck->train_micro_batch_size_per_gpu, (long long) deck->gradient_accumulation_steps);
}

static void add_summary(const report *r, ts_text *to) {
  const amount *all = &r->module[0].all;
  double model = ts_program_step_flops(r->program) / (3 * ts_mesh_group_size(&r->program->mesh, TS_AXES_BATCH));
  double factor = 2 + r->deck->flops_profiler.recompute_fwd_factor, flops = all->flops;
  double forward = r->step->forward + r->moved, backward = r->step->backward - r->moved, update = r->step->update;
  char label[96];
  add_grid(r, to);
  add_figure(to, "params of this rank's part of the model", (double) all->params, "params");
  add_figure(to, "params of the model", (double) count_all_params(r->program->layout), "params");
  add_figure(to, "fwd MACs of a rank", all->macs, "MACs");
  add_figure(to, "fwd FLOPs of a rank", flops, "FLOPs");
  add_figure(to, "fwd FLOPs of the model (products, of all ranks that share a sample)", model, "FLOPs");
  add_figure(to, "fwd + bwd FLOPs of a rank, repeated ones too", flops + r->backward_flops, "FLOPs");
  add_latency(to, "fwd latency", forward);
  add_rate(to, "fwd FLOPS of a rank = fwd FLOPs / fwd latency", flops, forward);
  add_latency(to, "bwd latency", backward);
  snprintf(label, sizeof label, "bwd FLOPS of a rank = %g x fwd FLOPs / bwd latency", factor);
  add_rate(to, label, factor * flops, backward);
  add_rate(to, "bwd FLOPS of a rank = bwd FLOPs, repeated ones too / bwd latency", r->backward_flops, backward);
  snprintf(label, sizeof label, "fwd + bwd FLOPS of a rank = %g x fwd FLOPs / (fwd + bwd latency)", factor + 1);
  add_rate(to, label, (factor + 1) * flops, forward + backward);
  add_latency(to, "step latency (update of the weights)", update);
  add_latency(to, "iter latency = fwd + bwd + step latency", forward + backward + update);
  snprintf(label, sizeof label, "FLOPS of a rank = %g x fwd FLOPs / iter latency", factor + 1);
  add_rate(to, label, (factor + 1) * flops, forward + backward + update);
  ts_text_add(to, "  %-70s %.2f\n", "samples/second",
              (double) r->deck->train_batch_size / fmax(forward + backward + update, 1e-9));
}

static double percent_of(double part, double all) {
  return all > 0 ? 100 * part / all : 0;
}

static void add_module_line(const report *r, int at, ts_text *to) {
  const module *m = &r->module[at];
  const amount *all = &r->module[0].all, *own = &m->all;
  char params[48], macs[48], rate[48];
  spell((double) own->params, "params", params);
  spell(own->macs, "MACs", macs);
  spell(own->seconds > 0 ? own->flops / own->seconds : 0, "FLOPS", rate);
  ts_text_add(to, "  %*s%s: %s = %.2f%%, %s = %.2f%%, %.3f ms = %.2f%%, %s\n", 2 * m->depth, "", m->name, params,
              percent_of((double) own->params, (double) all->params), macs, percent_of(own->macs, all->macs),
              1e3 * own->seconds, percent_of(own->seconds, all->seconds), rate);
}

static void add_tree(const report *r, int at, int depth, ts_text *to) {
  add_module_line(r, at, to);
  for (int i = at + 1; i < r->n && r->module[at].depth < depth; ++i) {
    if (r->module[i].parent == at) {
      add_tree(r, i, depth, to);
    }
  }
}

/* ---- by depth ---- */

/* Modules of a depth that are called alike: all layers of a list are one kind. */
typedef struct kind {
  char name[96];
  amount all;
} kind;

static void name_kind(const report *r, const module *m, char name[96]) {
  bool number = m->name[strspn(m->name, "0123456789")] == 0 && m->parent > 0;
  if (number) {
    snprintf(name, 96, "%.80s[]", r->module[m->parent].name);
  } else {
    snprintf(name, 96, "%.90s", m->name);
  }
}

static int collect_kinds(const report *r, int depth, kind *to) {
  int n = 0;
  for (int i = 0; i < r->n; ++i) {
    if (r->module[i].depth == depth) {
      char name[96];
      int k = 0;
      name_kind(r, &r->module[i], name);
      while (k < n && strcmp(to[k].name, name) != 0) {
        ++k;
      }
      if (k == n) {
        to[n] = (kind){.all = {0}};
        memcpy(to[n++].name, name, sizeof name);
      }
      add_amount(&to[k].all, &r->module[i].all);
    }
  }
  return n;
}

static int by_params(const void *a, const void *b) {
  int64_t x = ((const kind *) a)->all.params, y = ((const kind *) b)->all.params;
  return (x < y) - (x > y);
}

static int by_macs(const void *a, const void *b) {
  double x = ((const kind *) a)->all.macs, y = ((const kind *) b)->all.macs;
  return (x < y) - (x > y);
}

static int by_latency(const void *a, const void *b) {
  double x = ((const kind *) a)->all.seconds, y = ((const kind *) b)->all.seconds;
  return (x < y) - (x > y);
}

static void add_depth(const report *r, int depth, kind *room, ts_text *to) {
  const struct {
    const char *what;
    int (*order)(const void *, const void *);
  } rows[] = {{"params", by_params}, {"MACs", by_macs}, {"fwd latency", by_latency}};
  int n = collect_kinds(r, depth, room), top = n;
  if (r->deck->flops_profiler.top_modules < n) {
    top = (int) r->deck->flops_profiler.top_modules;
  }
  ts_text_add(to, "  depth %d\n", depth);
  for (int i = 0; i < 3; ++i) {
    qsort(room, (size_t) n, sizeof *room, rows[i].order);
    ts_text_add(to, "    %-12s", rows[i].what);
    for (int k = 0; k < top; ++k) {
      const amount *all = &room[k].all;
      char number[48];
      if (i == 2) {
        snprintf(number, sizeof number, "%.3f ms", 1e3 * all->seconds);
      } else {
        spell(i == 0 ? (double) all->params : all->macs, rows[i].what, number);
      }
      ts_text_add(to, "%s %s: %s", k > 0 ? "," : "", room[k].name, number);
    }
    ts_text_add(to, "\n");
  }
}

void ts_flops_report(const ts_deck *deck, const ts_program *program, const ts_flops_step *step, ts_text *to) {
  report r = {.deck = deck, .program = program, .step = step};
  add_module(&r, -1, deck->model.model_type, (int) strlen(deck->model.model_type));
  count_params(&r);
  count_nodes(&r);
  int deepest = 0;
  for (int i = 0; i < r.n; ++i) {
    deepest = r.module[i].depth > deepest ? r.module[i].depth : deepest;
  }
  int64_t wanted = deck->flops_profiler.module_depth;
  int depth = wanted >= 0 && wanted < deepest ? (int) wanted : deepest;
  ts_text_add(to, "flops_profiler: step %lld as rank %d observed it\n", (long long) step->step, program->mesh.rank);
  add_summary(&r, to);
  ts_text_add(to, "\n  the largest kinds of modules of each depth: %lld by params, MACs and fwd latency\n",
              (long long) deck->flops_profiler.top_modules);
  kind *room = ts_calloc((size_t) r.n, sizeof *room);
  for (int d = 0; d <= depth; ++d) {
    add_depth(&r, d, room, to);
  }
  ts_free(room);
  if (deck->flops_profiler.detailed) {
    ts_text_add(to, "\n  each module: params, MACs, fwd latency with their shares of the model's, fwd FLOPS\n");
    add_tree(&r, 0, depth, to);
  }
  for (int i = 0; i < r.n; ++i) {
    ts_free(r.module[i].name);
  }
  ts_free(r.module);
}
