/* Rows to the ranks that have their experts, and home again.  A rank's rows lie by expert, so what goes to one of the
 * ranks is one stretch; there they lie by expert and then by rank, so it arrives in as many pieces as that rank has
 * experts.  Each piece is a message of its own: nothing is packed, and there is no other copy of the rows. */
#include "comm/comm_rows.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/status.h"
#include "comm/comm_mpi.h"
#include "graph/op.h"

#include <string.h>

/* Rows of an expert that a rank has. */
static int64_t counted_rows(const ts_row_plan *p, int rank, int64_t expert) {
  const int32_t *first = p->firsts + rank * (p->n_experts + 1) + expert;
  return first[1] - first[0];
}

static void check_room(const ts_row_plan *p) {
  const ts_row_exchange *e = p->rows;
  for (int rank = 0; rank < p->size; ++rank) {
    int64_t room = rank != p->rank ? INT32_MAX : e->home ? e->y_rows : e->x_rows;
    const char *wrong = ts_extent_wrong(p->firsts + rank * (p->n_experts + 1), p->n_experts, room);
    TS_CHECK(wrong == NULL, "rows of experts that group rank %d counts: %s", rank, wrong);
  }
}

ts_row_plan ts_row_plan_make(const ts_row_exchange *rows, const int32_t *firsts, int rank, int size) {
  ts_row_plan p = {.rows = rows, .firsts = firsts, .rank = rank, .size = size, .n_experts = rows->experts[size]};
  int64_t begin = rows->experts[rank], n = rows->experts[rank + 1] - begin, at = 0;
  check_room(&p);
  p.place = ts_malloc((size_t) (n * size + 1) * sizeof *p.place);
  for (int64_t e = 0; e < n; ++e) {
    for (int r = 0; r < size; ++r) {
      p.place[e * size + r] = at;
      at += counted_rows(&p, r, begin + e);
    }
  }
  int64_t room = rows->home ? rows->x_rows : rows->y_rows;
  TS_CHECK(at <= room, "group rank %d gets %lld rows for its experts, and has room for %lld", rank, (long long) at,
           (long long) room);
  return p;
}

void ts_row_plan_free(ts_row_plan *plan) {
  ts_free(plan->place);
  plan->place = NULL;
}

int64_t ts_row_plan_stretch(const ts_row_plan *p, bool sends, int peer, int64_t expert, int64_t *at) {
  bool mine = sends != p->rows->home; /* the rows of this rank, by expert alone */
  int64_t own = expert - p->rows->experts[p->rank];
  *at = (mine ? p->firsts[p->rank * (p->n_experts + 1) + expert] : p->place[own * p->size + peer]) * p->rows->row_bytes;
  return counted_rows(p, mine ? p->rank : peer, expert) * p->rows->row_bytes;
}

uint64_t ts_hash_rows(const ts_row_plan *p) {
  uint64_t hash = ts_mix((uint64_t) p->n_experts, p->rows->home);
  for (int64_t i = 0; i < p->size * (p->n_experts + 1); ++i) {
    hash = ts_mix(hash, (uint64_t) p->firsts[i]);
  }
  return hash;
}

/* ---- over MPI ---- */

/* The messages to rank + 1, rank + 2, ... (from rank - 1, rank - 2, ...), expert by expert. */
typedef struct row_list {
  const ts_row_plan *plan;
  bool sends;
  int step;
  int64_t next, done; /* expert among those of the step, bytes of its stretch */
} row_list;

static bool next_stretch(void *list, int slot, ts_message *out) {
  (void) slot;
  row_list *l = list;
  const ts_row_plan *p = l->plan;
  for (; l->step < p->size; ++l->step, l->next = 0) {
    int peer = (l->sends ? p->rank + l->step : p->rank + p->size - l->step) % p->size;
    ts_interval experts = ts_row_plan_experts(p, l->sends, peer);
    for (; l->next < experts.length; ++l->next, l->done = 0) {
      int64_t at, bytes = ts_row_plan_stretch(p, l->sends, peer, experts.begin + l->next, &at) - l->done;
      if (bytes > 0) {
        char *memory = l->sends ? (char *) p->rows->x : (char *) p->rows->y;
        *out = (ts_message){.data = memory + at + l->done,
                            .bytes = bytes < ts_comm_switch.message_limit ? bytes : ts_comm_switch.message_limit,
                            .peer = peer};
        l->done += out->bytes;
        return true;
      }
    }
  }
  return false;
}

static void keep_own(const ts_row_plan *p) {
  ts_interval experts = ts_row_plan_experts(p, true, p->rank);
  for (int64_t e = experts.begin; e < experts.begin + experts.length; ++e) {
    int64_t from, to, bytes = ts_row_plan_stretch(p, true, p->rank, e, &from);
    ts_row_plan_stretch(p, false, p->rank, e, &to);
    if (bytes > 0) {
      memcpy((char *) p->rows->y + to, (const char *) p->rows->x + from, (size_t) bytes);
    }
  }
}

void ts_comm_mpi_exchange_rows(ts_comm *comm, const ts_row_exchange *rows) {
  ts_comm_mpi *c = (ts_comm_mpi *) comm;
  ts_row_plan plan = ts_row_plan_make(rows, rows->firsts, comm->rank, comm->size);
  row_list receive = {&plan, false, 1, 0, 0}, send = {&plan, true, 1, 0, 0};
  ts_comm_agree_rows(comm, c->comm, c->member, rows->row_bytes, ts_hash_rows(&plan));
  ts_exchange_begin(&c->exchange, next_stretch, NULL, &receive, next_stretch, &send, TS_SLOTS);
  ts_exchange_poll(&c->exchange);
  keep_own(&plan);
  ts_exchange_finish(&c->exchange);
  ts_row_plan_free(&plan);
}
