#include "pass/exchange_blocks.h"

#include "base/memory.h"

typedef struct list {
  ts_block *block;
  int n, capacity;
} list;

static void add_routed(list *l, ts_block block) {
  TS_GROW(l->block, l->n, l->capacity);
  l->block[l->n++] = block;
}

static ts_block oriented(const ts_routed *tensor, int rank, int number, ts_interval tokens, ts_interval columns) {
  ts_block block = {.rank = rank, .tensor = number, .rows = tokens, .columns = columns};
  return tensor->transposed ? (ts_block){rank, number, columns, tokens} : block;
}

/* What rank `from` has of what is wanted in the ring of rank `to`, in its share of columns; \a inside: as `to` counts
 * them, else as `from` does.  Both find the same blocks in the same order. */
static void add_blocks(list *l, const ts_route *route, int number, int from, int to, bool inside) {
  const ts_sequence *s = route->sequence;
  const ts_routed *tensor = &route->tensor[number];
  const ts_tokens had = ts_sequence_tokens(s, from), *wanted = &tensor->at[to / s->ulysses];
  ts_interval columns = tensor->columns[to % s->ulysses];
  for (int64_t i = 0, row = 0; i < had.n; row += had.stretch[i++].length) {
    for (int64_t k = 0, place = 0; k < wanted->n; place += wanted->stretch[k++].length) {
      ts_interval a = had.stretch[i], b = wanted->stretch[k], both = ts_interval_both(a, b);
      if (both.length > 0 && columns.length > 0) {
        int64_t begin = both.begin + (inside ? place - b.begin : row - a.begin);
        ts_interval own = {inside ? 0 : columns.begin, columns.length};
        add_routed(l, oriented(tensor, inside ? from : to, number, (ts_interval){begin, both.length}, own));
      }
    }
  }
}

/* All that leaves this rank, or comes to it, on the way to heads. */
static void add_side(list *l, const ts_route *route, bool comes) {
  int me = route->sequence->rank, ranks = route->sequence->ring * route->sequence->ulysses;
  for (int peer = 0; peer < ranks; ++peer) {
    for (int number = 0; number < route->n; ++number) {
      add_blocks(l, route, number, comes ? peer : me, comes ? me : peer, comes);
    }
  }
}

static ts_block whole_of_route(const ts_route *route, int number, bool home) {
  const ts_sequence *s = route->sequence;
  const ts_routed *tensor = &route->tensor[number];
  ts_tokens own = ts_sequence_tokens(s, s->rank);
  int64_t tokens = ts_sequence_count(home ? &own : &tensor->at[s->rank / s->ulysses]);
  int64_t columns = home ? tensor->width : tensor->columns[s->rank % s->ulysses].length;
  return oriented(tensor, s->rank, number, (ts_interval){0, tokens}, (ts_interval){0, columns});
}

ts_block_list ts_route_blocks(const ts_route *route, bool home) {
  list l = {0};
  for (int number = 0; number < route->n; ++number) {
    add_routed(&l, whole_of_route(route, number, home));
  }
  add_side(&l, route, home);
  int n_sent = l.n - route->n;
  add_side(&l, route, !home);
  return (ts_block_list){l.block, n_sent, l.n - route->n - n_sent};
}
