#include "run/machine.h"

#include "base/memory.h"
#include "graph/op.h"
#include "run/turns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- work ---- */

/* Those that multiply two matrices, in the form that transpose_a and _b say. */
static bool has_forms(const ts_node *node) {
  return node->op == TS_OP_MATMUL || node->op == TS_OP_MATMUL_GELU || node->op == TS_OP_MATMUL_DGELU;
}

static void add_to_kind(ts_work *work, const char *word) {
  size_t length = strlen(work->kind);
  snprintf(work->kind + length, TS_WORK_TEXT - length, "%s", word);
}

/* The types of tensors, each once in a row: "fp32,s32". */
static void add_types(ts_work *work, const ts_graph *g, const ts_tid *tensor, int n) {
  ts_dtype last = TS_N_DTYPES;
  for (int i = 0; i < n; ++i) {
    if (tensor[i] != TS_NONE && g->tensor[tensor[i]].dtype != last) {
      add_to_kind(work, last == TS_N_DTYPES ? "" : ",");
      last = g->tensor[tensor[i]].dtype;
      add_to_kind(work, ts_dtype_name(last));
    }
  }
}

static bool adds_to_prior(const ts_node *node) {
  bool any = false;
  for (int i = 0; i < node->n_out && node->prior != NULL; ++i) {
    any = any || node->prior[i] != TS_NONE;
  }
  return any;
}

/* Of the table of an embedding some rows are read, and added to. */
static double bytes_moved(const ts_graph *g, const ts_node *node) {
  bool adds = node->op == TS_OP_EMBEDDING_DW && adds_to_prior(node);
  ts_tid table = node->op == TS_OP_EMBEDDING ? node->in[0] : adds ? node->out[0] : TS_NONE;
  return ts_node_bytes(g, node) - (table != TS_NONE ? (double) ts_tensor_bytes(g, table) : 0);
}

static ts_work computing(const ts_graph *g, const ts_node *node) {
  ts_work work = {.flops = ts_node_flops(g, node), .bytes = bytes_moved(g, node)};
  add_to_kind(&work, node->on_host ? "host." : "");
  add_to_kind(&work, ts_op_get(node->op)->name);
  work.extent[0] = work.flops;
  work.extent[1] = work.bytes;
  if (has_forms(node)) {
    add_to_kind(&work, node->attr.matmul.transpose_a ? ".t" : ".n");
    add_to_kind(&work, node->attr.matmul.transpose_b ? "t" : "n");
    const ts_shape *c = &g->tensor[node->out[0]].shape;
    double n = (double) c->d[c->n - 1], m = (double) ts_shape_count(c) / n;
    work.extent[0] = m;
    work.extent[1] = n;
    work.extent[2] = work.flops / (2 * m * n);
  }
  add_to_kind(&work, " ");
  add_types(&work, g, node->in, node->n_in);
  add_to_kind(&work, ">");
  add_types(&work, g, node->out, node->n_out);
  add_to_kind(&work, adds_to_prior(node) ? "+" : "");
  return work;
}

ts_work ts_message_work(ts_op op, ts_dtype wire, int ranks, int together, double bytes) {
  ts_work work = {.bytes = bytes, .extent = {0, bytes}};
  snprintf(work.kind, sizeof work.kind, "%s %s x%d", ts_op_get(op)->name, ts_dtype_name(wire), ranks);
  if (together < ranks) {
    char nodes[32];
    snprintf(nodes, sizeof nodes, together > 1 ? " across nodes of %d" : " across nodes", together);
    add_to_kind(&work, nodes);
  }
  return work;
}

/* How many of a group are on this rank's node? */
static int members_on_node(const ts_mesh *mesh, unsigned axes, int ranks_per_node) {
  int together = 0;
  for (int i = 0; i < ts_mesh_group_size(mesh, axes); ++i) {
    together += ts_mesh_group_member(mesh, axes, i) / ranks_per_node == mesh->rank / ranks_per_node;
  }
  return together;
}

static double bytes_together(const ts_graph *g, const ts_tid *tensor, int n) {
  double bytes = 0;
  for (int i = 0; i < n; ++i) {
    bytes += tensor[i] != TS_NONE ? (double) ts_tensor_bytes(g, tensor[i]) : 0;
  }
  return bytes;
}

ts_work ts_node_work(const ts_program *program, const ts_node *node, int ranks_per_node) {
  const ts_graph *g = program->graph;
  const ts_mesh *mesh = &program->mesh;
  if (ts_node_is_message(node)) {
    bool sends = node->op == TS_OP_SEND;
    double bytes = bytes_together(g, sends ? node->in : node->out, sends ? node->n_in : node->n_out);
    int peer = ts_mesh_group_member(mesh, TS_AXES(TS_AXIS_PP), node->attr.message.peer);
    return ts_message_work(TS_OP_SEND, TS_F32, 2, peer / ranks_per_node == mesh->rank / ranks_per_node ? 2 : 1, bytes);
  }
  if (ts_node_is_collective(node)) {
    return ts_message_work(node->op, node->attr.comm.wire, node->attr.comm.group,
                           members_on_node(mesh, node->attr.comm.axes, ranks_per_node),
                           ts_program_message_bytes(program, node));
  }
  return computing(g, node);
}

/* ---- samples ---- */

int ts_work_order(const ts_work *a, const ts_work *b) {
  int order = strcmp(a->kind, b->kind);
  for (int i = 0; i < TS_WORK_EXTENTS && order == 0; ++i) {
    bool same = fabs(a->extent[i] - b->extent[i]) <= 1e-6 * fabs(a->extent[i]);
    order = same ? 0 : a->extent[i] > b->extent[i] ? 1 : -1;
  }
  return order;
}

static bool same_work(const ts_work *a, const ts_work *b) {
  return ts_work_order(a, b) == 0;
}

/* The sample of a work, a new one of no known time where there was none. */
static ts_sample *sample_of(ts_measured *m, const ts_work *work) {
  for (int i = 0; i < m->n; ++i) {
    if (same_work(&m->sample[i].work, work)) {
      return &m->sample[i];
    }
  }
  TS_GROW(m->sample, m->n, m->capacity);
  m->sample[m->n] = (ts_sample){*work, INFINITY};
  return &m->sample[m->n++];
}

void ts_measured_add(ts_measured *m, const ts_work *work, double seconds) {
  ts_sample *sample = sample_of(m, work);
  sample->seconds = fmin(sample->seconds, seconds);
}

void ts_measured_replace(ts_measured *m, const ts_work *work, double seconds) {
  sample_of(m, work)->seconds = seconds;
}

/* Ranks of a collective, 2 of a message; 0: it is none (ts_message_work). */
static int ranks_of_message(const char *kind) {
  const char *x = strstr(kind, " x");
  return x != NULL ? atoi(x + 2) : 0;
}

/* Bytes/s of a rank.  A sum or a gather passes each node once, over the links of all of the group that are there; what
 * each sends to each goes over its own. */
static double link_rate(const ts_measured *m, const char *kind) {
  const char *across = strstr(kind, " across nodes");
  double inside = m->link[TS_LINK_INSIDE] > 0 ? m->link[TS_LINK_INSIDE] : m->copy, each = m->link[TS_LINK_ACROSS];
  if (across == NULL) {
    return inside;
  }
  int together = 1;
  (void) sscanf(across, " across nodes of %d", &together);
  bool own = strncmp(kind, ts_op_get(TS_OP_ALL_TO_ALL)->name, strlen(ts_op_get(TS_OP_ALL_TO_ALL)->name)) == 0;
  return each > 0 ? fmin(inside, each * (own ? 1 : together)) : inside;
}

/* Of a message nothing goes below what its bytes take on the link, and a start for each doubling of the ranks. */
static double floor_of_message(const ts_measured *m, const ts_work *work, int ranks) {
  return m->start * ceil(log2(fmax(ranks, 2))) + work->bytes / link_rate(m, work->kind);
}

/* What nothing goes below, in seconds; at least what one line of memory takes, so that there is a logarithm. */
static double floor_of(const ts_measured *m, const ts_work *work) {
  enum { LINE = 64 };
  const int ranks = ranks_of_message(work->kind);
  if (ranks > 0) {
    return fmax(floor_of_message(m, work, ranks), LINE / m->copy);
  }
  if (strncmp(work->kind, "host.", 5) == 0 && m->host > 0) {
    return fmax(work->bytes, LINE) / m->host;
  }
  bool low = strstr(work->kind, "bf16") != NULL || strstr(work->kind, "fp16") != NULL;
  double products = work->flops / m->product[low ? TS_RATED_LOW : TS_RATED_FP32];
  return fmax(products, fmax(work->bytes, LINE) / m->copy);
}

/* How many times as large, in powers of two: the square of the distance of all extents. */
static double distance(const ts_work *a, const ts_work *b) {
  double sum = 0;
  for (int i = 0; i < TS_WORK_EXTENTS; ++i) {
    double d = log2((a->extent[i] + 1) / (b->extent[i] + 1));
    sum += d * d;
  }
  return sum;
}

/* As long as the parts that tell kinds apart: all, or the op alone. */
static bool is_akin(const char *kind, const char *other, bool whole) {
  if (whole) {
    return strcmp(kind, other) == 0;
  }
  size_t length = strcspn(kind, ". ");
  return strncmp(kind, other, length) == 0 && (other[length] == ' ' || other[length] == '.');
}

enum { NEAR = 4 };

typedef struct neighbours {
  const ts_sample *near[NEAR]; /* ascending by distance */
  double distance[NEAR];
  int n;
  bool smaller, larger; /* some are */
} neighbours;

static void note_neighbour(neighbours *found, const ts_sample *sample, double distance) {
  int at = found->n < NEAR ? found->n++ : NEAR;
  while (at > 0 && distance < found->distance[at - 1]) {
    if (at < NEAR) {
      found->near[at] = found->near[at - 1];
      found->distance[at] = found->distance[at - 1];
    }
    --at;
  }
  if (at < NEAR) {
    found->near[at] = sample;
    found->distance[at] = distance;
  }
}

static neighbours find_neighbours(const ts_measured *m, const ts_work *work, bool whole) {
  neighbours found = {.n = 0};
  for (int i = 0; i < m->n; ++i) {
    const ts_sample *s = &m->sample[i];
    if (is_akin(work->kind, s->work.kind, whole)) {
      note_neighbour(&found, s, distance(work, &s->work));
      double size = floor_of(m, work) / floor_of(m, &s->work);
      found.smaller = found.smaller || size >= 1;
      found.larger = found.larger || size <= 1;
    }
  }
  return found;
}

/* By its neighbours, the nearer the more.  What they take beyond their floors is the beginning of a node, of no size,
 * up to so many seconds; the rest is in units of the floor. */
static double rate_by(const ts_measured *m, const neighbours *found, double floor) {
  const double most = 1e-5;
  double slowness = 0, begin = 0, weights = 0;
  for (int i = 0; i < found->n; ++i) {
    double weight = 1 / (1e-6 + found->distance[i]), seconds = found->near[i]->seconds,
           own = floor_of(m, &found->near[i]->work), beyond = fmin(fmax(seconds - own, 0), most);
    slowness += weight * log((seconds - beyond) / own);
    begin += weight * beyond;
    weights += weight;
  }
  return floor * exp(slowness / weights) + begin / weights;
}

double ts_measured_seconds(const ts_measured *m, const ts_work *work, ts_known *known) {
  const double far = 4; /* two powers of two, squared */
  ts_known how = TS_KNOWN_NOTHING;
  neighbours found = find_neighbours(m, work, true);
  double seconds = floor_of(m, work);
  if (found.n > 0 && same_work(work, &found.near[0]->work)) {
    how = TS_KNOWN_MEASURED;
    seconds = found.near[0]->seconds;
  } else if (found.n > 0) {
    how = (found.smaller && found.larger) || found.distance[0] <= far ? TS_KNOWN_BETWEEN : TS_KNOWN_BEYOND;
    seconds = rate_by(m, &found, seconds);
  } else {
    found = find_neighbours(m, work, false);
    how = found.n > 0 ? TS_KNOWN_ALIKE : TS_KNOWN_NOTHING;
    seconds = found.n > 0 ? rate_by(m, &found, seconds) : seconds;
  }
  if (known != NULL) {
    *known = how;
  }
  return seconds;
}

const char *ts_known_text(ts_known known) {
  static const char *const text[TS_N_KNOWN] = {"measured", "between sizes that were measured", "beyond these",
                                               "as ops or groups that are alike", "not known, at the floor"};
  return text[known];
}

/* ---- machines ---- */

const ts_measured *ts_machine_find(const ts_machine *machine, int ranks, int threads) {
  const ts_measured *best = NULL;
  double least = INFINITY;
  for (int i = 0; i < machine->n; ++i) {
    const ts_measured *m = &machine->measured[i];
    double off = fabs(log((double) m->threads / threads)) * 4 +
                 fabs(log((double) m->ranks * m->threads / ((double) ranks * threads)));
    if (off < least) {
      least = off;
      best = m;
    }
  }
  return best;
}

ts_measured *ts_machine_of(ts_machine *machine, int ranks, int threads) {
  int at = 0;
  while (at < machine->n && (machine->measured[at].ranks < ranks ||
                             (machine->measured[at].ranks == ranks && machine->measured[at].threads < threads))) {
    ++at;
  }
  if (at < machine->n && machine->measured[at].ranks == ranks && machine->measured[at].threads == threads) {
    return &machine->measured[at];
  }
  machine->measured = ts_realloc(machine->measured, (size_t) machine->n + 1, sizeof *machine->measured);
  memmove(&machine->measured[at + 1], &machine->measured[at], (size_t) (machine->n - at) * sizeof *machine->measured);
  ++machine->n;
  machine->measured[at] = (ts_measured){.ranks = ranks, .threads = threads};
  return &machine->measured[at];
}

void ts_machine_clear(ts_machine *machine) {
  for (int i = 0; i < machine->n; ++i) {
    ts_free(machine->measured[i].sample);
  }
  ts_free(machine->measured);
  ts_free(machine->backend);
  ts_free(machine->device);
  ts_free(machine->libraries);
  ts_free(machine->date);
  *machine = (ts_machine){0};
}
