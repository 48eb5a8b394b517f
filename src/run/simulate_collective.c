/* Collectives, simulated: they wait in the queues of the ranks until every member of the group has the same one at its
 * head.  What members say of one is compared, and of a step that does not go on it is told who waits for whom. */
#include "base/memory.h"
#include "base/text.h"
#include "graph/op.h"
#include "pass/blocks.h"
#include "run/simulation.h"

#include <string.h>

/* The collective at the head of a rank's queue, NULL when it is empty. */
static const ts_node *head(const ts_sim_rank *r) {
  return r->n_done < r->n_issued ? ts_sim_node(r, r->queue[r->n_done]) : NULL;
}

static char *print_collective(const ts_sim_rank *r, const ts_node *node) {
  int64_t columns = 0;
  if (node->op == TS_OP_ALL_TO_ALL) {
    return ts_format("rank %d: %s %s of %d blocks sent, %d received", r->program->mesh.rank, ts_op_get(node->op)->name,
                     node->name, node->attr.comm.n_sent, node->attr.comm.n_received);
  }
  for (int i = 0; i < node->attr.comm.n_pieces; ++i) {
    columns += node->attr.comm.piece[i].end - node->attr.comm.piece[i].begin;
  }
  return ts_format("rank %d: %s %s of %lld columns in %d pieces", r->program->mesh.rank, ts_op_get(node->op)->name,
                   node->name, (long long) columns, node->attr.comm.n_pieces);
}

static bool same_piece(const ts_piece *a, const ts_piece *b, int group) {
  return a->input == b->input && a->begin == b->begin && a->end == b->end &&
         (a->cuts == b->cuts || memcmp(a->cuts, b->cuts, (size_t) (group + 1) * sizeof *a->cuts) == 0);
}

/* How two members' collectives differ, NULL when they do not. */
static const char *difference(const ts_sim_rank *ra, const ts_node *a, const ts_sim_rank *rb, const ts_node *b) {
  const ts_tensor *ta = ra->program->graph->tensor, *tb = rb->program->graph->tensor;
  if (a->op != b->op) {
    return "op differs";
  }
  if (ra->now.micro_batch != rb->now.micro_batch) {
    return "micro-batch differs";
  }
  if (strcmp(a->name, b->name) != 0) {
    return "name differs";
  }
  if (a->n_in != b->n_in || a->n_out != b->n_out || a->attr.comm.into != b->attr.comm.into) {
    return "number of values differs";
  }
  if (ta[a->in[0]].dtype != tb[b->in[0]].dtype || ta[a->out[0]].dtype != tb[b->out[0]].dtype) {
    return "dtype differs";
  }
  if (a->attr.comm.wire != b->attr.comm.wire || a->attr.comm.divisor != b->attr.comm.divisor) {
    return "wire dtype or its divisor differs";
  }
  if (a->op == TS_OP_ALL_REDUCE &&
      ts_tensor_count(ra->program->graph, a->in[0]) != ts_tensor_count(rb->program->graph, b->in[0])) {
    return "number of elements differs";
  }
  if (a->attr.comm.home != b->attr.comm.home ||
      (a->op == TS_OP_EXCHANGE_ROWS && ta[a->in[0]].shape.d[1] != tb[b->in[0]].shape.d[1])) {
    return "direction or columns differ";
  }
  if (a->op == TS_OP_ALL_TO_ALL) { /* each rank has lists of its own: find_unpaired */
    return NULL;
  }
  bool same = a->attr.comm.n_pieces == b->attr.comm.n_pieces && a->attr.comm.group == b->attr.comm.group;
  for (int i = 0; same && i < a->attr.comm.n_pieces; ++i) {
    same = same_piece(&a->attr.comm.piece[i], &b->attr.comm.piece[i], a->attr.comm.group);
  }
  return same ? NULL : "pieces differ";
}

/* Two members at the same collective, and what is wrong with that: owned. */
static char *print_mismatch(const ts_sim_rank *ra, const ts_node *a, const ts_sim_rank *rb, const ts_node *b,
                            const char *what) {
  char *ours = print_collective(ra, a), *theirs = print_collective(rb, b);
  char *fault = ts_format("%s, while %s: %s", ours, theirs, what);
  ts_free(ours);
  ts_free(theirs);
  return fault;
}

/* One side of an exchange: what a rank sends, or receives. */
typedef struct side {
  const ts_exchange_tensor *tensor;
  const ts_block *block;
  int n;
} side;

static side blocks_of_peer(side s, int rank) {
  int first = ts_first_block(s.block, s.n, rank), end = ts_first_block(s.block, s.n, rank + 1);
  return (side){s.tensor, s.block + first, end - first};
}

static char *print_block(const side *s, int i) {
  const ts_block *b = &s->block[i];
  const ts_exchange_tensor *t = &s->tensor[b->tensor];
  return ts_format("%lld x %lld x %lld of %s of tensor %d", (long long) t->batches, (long long) b->rows.length,
                   (long long) b->columns.length, ts_dtype_name(t->dtype), b->tensor);
}

/* How what leaves differs from what arrives: owned; NULL when it does not. */
static char *compare_sides(const side *leaves, const side *arrives) {
  if (leaves->n != arrives->n) {
    return ts_format("%d blocks leave the one for the other, %d are expected there", leaves->n, arrives->n);
  }
  for (int i = 0; i < leaves->n; ++i) {
    const ts_block *a = &leaves->block[i], *b = &arrives->block[i];
    const ts_exchange_tensor *ta = &leaves->tensor[a->tensor], *tb = &arrives->tensor[b->tensor];
    if (a->tensor != b->tensor || a->rows.length != b->rows.length || a->columns.length != b->columns.length ||
        ta->batches != tb->batches || ta->dtype != tb->dtype) {
      char *left = print_block(leaves, i), *right = print_block(arrives, i);
      char *what = ts_format("block %d between them leaves as %s and is expected as %s", i, left, right);
      ts_free(left);
      ts_free(right);
      return what;
    }
  }
  return NULL;
}

/* Of an exchange that every member has come to the first two whose lists do not fit: owned; NULL when all do. */
static char *find_unpaired(const ts_simulation *s, const ts_sim_rank *first, unsigned axes) {
  const ts_mesh *mesh = &first->program->mesh;
  int size = ts_mesh_group_size(mesh, axes);
  for (int from = 0; from < size; ++from) {
    const ts_sim_rank *ra = &s->rank[ts_mesh_group_member(mesh, axes, from)];
    ts_exchange_tensors ours, theirs;
    ts_exchange_lists a = ts_node_exchange(ra->program->graph, head(ra), &ours);
    for (int to = 0; to < size; ++to) {
      const ts_sim_rank *rb = &s->rank[ts_mesh_group_member(mesh, axes, to)];
      ts_exchange_lists b = ts_node_exchange(rb->program->graph, head(rb), &theirs);
      side leaves = blocks_of_peer((side){a.x, a.sent, a.n_sent}, to);
      side arrives = blocks_of_peer((side){b.y, b.received, b.n_received}, from);
      char *what = compare_sides(&leaves, &arrives);
      if (what != NULL) {
        char *fault = print_mismatch(ra, head(ra), rb, head(rb), what);
        ts_free(what);
        return fault;
      }
    }
  }
  return NULL;
}

/* The first member of the group of a collective that is not at a collective over the same axes, -1 when all are. */
static int missing_member(const ts_simulation *s, const ts_sim_rank *r, unsigned axes) {
  int size = ts_mesh_group_size(&r->program->mesh, axes);
  for (int i = 0; i < size; ++i) {
    int member = ts_mesh_group_member(&r->program->mesh, axes, i);
    const ts_node *theirs = head(&s->rank[member]);
    if (theirs == NULL || theirs->attr.comm.axes != axes) {
      return member;
    }
  }
  return -1;
}

char *ts_sim_match_collective(ts_simulation *s, ts_sim_rank *first, bool *moved) {
  const ts_node *node = head(first);
  if (node == NULL || ts_mesh_group_rank(&first->program->mesh, node->attr.comm.axes) != 0 ||
      missing_member(s, first, node->attr.comm.axes) >= 0) {
    return NULL;
  }
  const ts_mesh *mesh = &first->program->mesh;
  int size = ts_mesh_group_size(mesh, node->attr.comm.axes);
  for (int i = 1; i < size; ++i) {
    const ts_sim_rank *other = &s->rank[ts_mesh_group_member(mesh, node->attr.comm.axes, i)];
    const char *what = difference(first, node, other, head(other));
    if (what != NULL) {
      return print_mismatch(first, node, other, head(other), what);
    }
  }
  char *fault = node->op == TS_OP_ALL_TO_ALL ? find_unpaired(s, first, node->attr.comm.axes) : NULL;
  if (fault != NULL) {
    return fault;
  }
  for (int i = 0; i < size; ++i) {
    ++s->rank[ts_mesh_group_member(mesh, node->attr.comm.axes, i)].n_done;
  }
  *moved = true;
  return NULL;
}

/* Whom a rank waits for, and with what: owned; -1: it has ended. */
static int follow(const ts_simulation *s, const ts_sim_rank *r, char **line) {
  const ts_node *node = head(r);
  if (node != NULL) {
    *line = print_collective(r, node);
    return missing_member(s, r, node->attr.comm.axes);
  }
  if (r->waits.node == TS_NONE) {
    return -1;
  }
  node = ts_sim_node(r, r->waits.node);
  *line =
      ts_format("rank %d: %s of micro-batch %lld", r->program->mesh.rank, node->name, (long long) r->waits.micro_batch);
  return ts_mesh_group_member(&r->program->mesh, TS_AXES(TS_AXIS_PP), node->attr.message.peer);
}

char *ts_sim_explain_deadlock(const ts_simulation *s) {
  ts_text text = {0};
  ts_text_add(&text, "deadlock: ");
  int at = 0;
  while (head(&s->rank[at]) == NULL && s->rank[at].waits.node == TS_NONE) {
    ++at;
  }
  for (int steps = 0; steps < s->n_ranks && steps < 8; ++steps) {
    char *line;
    int next = follow(s, &s->rank[at], &line);
    if (next < 0) {
      ts_text_add(&text, "rank %d, which has ended", at);
      break;
    }
    at = next;
    ts_text_add(&text, "%s waits for ", line);
    ts_free(line);
    if (steps == s->n_ranks - 1 || steps == 7) {
      ts_text_add(&text, "rank %d", at);
    }
  }
  return text.text;
}
