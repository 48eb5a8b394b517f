#include "run/memcheck.h"

#include "base/memory.h"
#include "pass/storage.h"

#include <string.h>

#define POISON 0xff /* every float type reads it as NaN */

struct ts_memcheck {
  const ts_program *program;
  ts_place *place;
  int *last; /* last instruction that touches a root, n for the end; -1 never */
  unsigned char *work, *copy;
  size_t bytes;
};

static void note_use(ts_memcheck *m, ts_tid t, int at) {
  if (t != TS_NONE && m->last[m->place[t].root] < at) {
    m->last[m->place[t].root] = at;
  }
}

static void find_last(ts_memcheck *m) {
  const ts_program *p = m->program;
  for (int i = 0; i < p->schedule->n; ++i) {
    const ts_node *node = &p->graph->node[p->schedule->instruction[i].node];
    for (int k = 0; k < node->n_in; ++k) {
      note_use(m, node->in[k], i);
    }
    for (int k = 0; k < node->n_out; ++k) {
      note_use(m, node->out[k], i);
      note_use(m, node->prior != NULL ? node->prior[k] : TS_NONE, i);
    }
  }
  for (ts_tid t = 0; t < p->graph->n_tensors; ++t) {
    if (p->graph->tensor[t].producer == TS_NONE) {
      m->last[m->place[t].root] = p->schedule->n;
    }
  }
  for (int i = 0; i < p->graph->n_marks; ++i) {
    note_use(m, p->graph->mark[i].tensor, p->schedule->n);
  }
}

ts_memcheck *ts_memcheck_create(const ts_program *program, void *work, size_t bytes) {
  ts_memcheck *m = ts_calloc(1, sizeof *m);
  m->program = program;
  m->place = ts_storage_find(program->graph);
  m->last = ts_malloc(((size_t) program->graph->n_tensors + 1) * sizeof *m->last);
  memset(m->last, -1, ((size_t) program->graph->n_tensors + 1) * sizeof *m->last);
  m->work = work;
  m->bytes = bytes;
  m->copy = ts_malloc(bytes);
  find_last(m);
  memset(m->work, POISON, bytes);
  return m;
}

void ts_memcheck_destroy(ts_memcheck **check) {
  ts_memcheck *m = *check;
  if (m != NULL) {
    ts_free(m->place);
    ts_free(m->last);
    ts_free(m->copy);
    ts_free(m);
    *check = NULL;
  }
}

void ts_memcheck_begin(ts_memcheck *m) {
  memcpy(m->copy, m->work, m->bytes);
}

static void allow(ts_memcheck *m, ts_address at, int64_t bytes) {
  if (at.arena == TS_ARENA_WORK && bytes > 0) {
    memcpy(m->copy + at.offset, m->work + at.offset, (size_t) bytes);
  }
}

static void poison(ts_memcheck *m, ts_tid root) {
  ts_address at = m->program->plan->address[root];
  if (at.arena == TS_ARENA_WORK) {
    size_t bytes = (size_t) ts_tensor_bytes(m->program->graph, root);
    memset(m->work + at.offset, POISON, bytes);
    memset(m->copy + at.offset, POISON, bytes);
  }
}

void ts_memcheck_allow(ts_memcheck *m, ts_nid n) {
  const ts_program *p = m->program;
  const ts_node *node = &p->graph->node[n];
  for (int k = 0; k < node->n_out; ++k) {
    allow(m, p->plan->address[node->out[k]], ts_tensor_bytes(p->graph, node->out[k]));
  }
}

char *ts_memcheck_after(ts_memcheck *m, int i) {
  const ts_program *p = m->program;
  ts_nid n = p->schedule->instruction[i].node;
  const ts_node *node = &p->graph->node[n];
  ts_memcheck_allow(m, n);
  allow(m, p->plan->workspace[n], p->plan->workspace_bytes[n]);
  if (memcmp(m->copy, m->work, m->bytes) != 0) {
    size_t at = 0;
    while (m->copy[at] == m->work[at]) {
      ++at;
    }
    return ts_format("%s wrote byte %zu of the work arena, outside its outputs and workspace", node->name, at);
  }
  for (ts_tid t = 0; t < p->graph->n_tensors; ++t) {
    if (m->place[t].root == t && m->last[t] == i) {
      poison(m, t);
    }
  }
  return NULL;
}
