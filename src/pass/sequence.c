#include "pass/sequence.h"

#include "base/deal.h"
#include "pass/rates.h"

#include <math.h>
#include <string.h>

/* ---- tokens ---- */

int64_t ts_sequence_count(const ts_tokens *tokens) {
  int64_t count = 0;
  for (int i = 0; i < tokens->n; ++i) {
    count += tokens->stretch[i].length;
  }
  return count;
}

/* Behind what is there; neighbours become one stretch. */
static void append(ts_tokens *tokens, ts_interval more) {
  ts_interval *last = tokens->n > 0 ? &tokens->stretch[tokens->n - 1] : NULL;
  if (more.length == 0) {
    return;
  }
  if (last != NULL && last->begin + last->length >= more.begin) {
    int64_t end = more.begin + more.length;
    last->length = end > last->begin + last->length ? end - last->begin : last->length;
  } else {
    TS_CHECK(tokens->n < TS_MOST_STRETCHES, "tokens in more than %d stretches", TS_MOST_STRETCHES);
    tokens->stretch[tokens->n++] = more;
  }
}

ts_tokens ts_sequence_both(const ts_tokens *a, const ts_tokens *b) {
  ts_tokens both = {0};
  for (int i = 0; i < a->n; ++i) {
    for (int k = 0; k < b->n; ++k) {
      append(&both, ts_interval_both(a->stretch[i], b->stretch[k]));
    }
  }
  return both;
}

/* Elements [begin, begin + length) of them, counted through. */
static ts_tokens part_of(const ts_tokens *tokens, ts_interval part) {
  ts_tokens some = {0};
  int64_t at = 0;
  for (int i = 0; i < tokens->n; ++i) {
    ts_interval here = ts_interval_both(part, (ts_interval){at, tokens->stretch[i].length});
    append(&some, (ts_interval){tokens->stretch[i].begin + here.begin - at, here.length});
    at += tokens->stretch[i].length;
  }
  return some;
}

/* Chunk c of n. */
static ts_interval chunk_of(const ts_sequence *s, int n, int c) {
  int64_t unit = s->length / n > TS_CHUNK_TOKENS ? TS_CHUNK_TOKENS : 1;
  ts_interval units = ts_deal((s->length + unit - 1) / unit, n, c);
  return ts_interval_both((ts_interval){units.begin * unit, units.length * unit}, (ts_interval){0, s->length});
}

ts_tokens ts_sequence_ring(const ts_sequence *s, int ring) {
  ts_tokens tokens = {0};
  int chunks = s->zigzag ? 2 * s->ring : s->ring;
  append(&tokens, chunk_of(s, chunks, ring));
  if (s->zigzag) {
    append(&tokens, chunk_of(s, chunks, chunks - 1 - ring));
  }
  return tokens;
}

ts_tokens ts_sequence_tokens(const ts_sequence *s, int rank) {
  ts_tokens ring = ts_sequence_ring(s, rank / s->ulysses);
  return part_of(&ring, ts_deal(ts_sequence_count(&ring), s->ulysses, rank % s->ulysses));
}

static int64_t find_count(const ts_sequence *s, bool most) {
  int64_t found = -1;
  for (int rank = 0; rank < s->ring * s->ulysses; ++rank) {
    ts_tokens tokens = ts_sequence_tokens(s, rank);
    int64_t count = ts_sequence_count(&tokens);
    found = found < 0 || (most ? count > found : count < found) ? count : found;
  }
  return found;
}

int64_t ts_sequence_least(const ts_sequence *s) {
  return find_count(s, false);
}

int64_t ts_sequence_most(const ts_sequence *s) {
  return find_count(s, true);
}

ts_tokens ts_sequence_seen(const ts_sequence *s, int ring, bool causal, int64_t window) {
  ts_tokens queries = ts_sequence_ring(s, ring), seen = {0};
  for (int i = 0; i < queries.n; ++i) {
    ts_interval q = queries.stretch[i];
    int64_t begin = window > 0 && q.begin >= window ? q.begin - window + 1 : 0;
    int64_t end = causal ? q.begin + q.length : s->length;
    append(&seen, (ts_interval){begin, end - begin});
  }
  return seen;
}

/* ---- heads ---- */

ts_interval ts_sequence_share(int heads, int group, int first, int ulysses, int j) {
  bool whole = first % group == 0 && heads % group == 0;
  int64_t groups = heads / group, most = (heads + ulysses - 1) / ulysses;
  if (whole && groups >= ulysses && (groups + ulysses - 1) / ulysses * group <= most) {
    ts_interval mine = ts_deal(groups, ulysses, j);
    return (ts_interval){mine.begin * group, mine.length * group};
  }
  return ts_deal(heads, ulysses, j);
}

/* Query heads of the rank along tp that has fewest.  As pass/dealing deals them: key heads, or where these are fewer
 * than ranks the query heads of each. */
static int64_t least_heads(const ts_attention_heads *model, const ts_mesh *mesh) {
  int64_t kv_heads = model->kv_heads, group = model->heads / kv_heads;
  int64_t tp = mesh->size[TS_AXIS_TP], sharers = (tp + kv_heads - 1) / kv_heads;
  return tp <= kv_heads ? kv_heads / tp * group : group / sharers;
}

/* Those of the smallest of some groups: whole groups of one key's are dealt where that gives nobody more. */
static int64_t smallest_group(int64_t heads, int64_t group, int64_t groups) {
  int64_t least = heads;
  for (int64_t i = 0; i < groups; ++i) {
    int64_t length = ts_sequence_share((int) heads, (int) group, 0, (int) groups, (int) i).length;
    least = length < least ? length : least;
  }
  return least;
}

/* Ranks along tp have least_heads, or those of one key head more, or one head more: another number may leave a smaller
 * group. */
int ts_sequence_heads(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh) {
  int64_t kv_heads = model->kv_heads, group = model->heads / kv_heads;
  int64_t tp = mesh->size[TS_AXIS_TP], groups = deck->sequence_parallel.head_groups;
  int64_t heads = least_heads(model, mesh), more = tp <= kv_heads ? group : 1;
  bool even = tp <= kv_heads ? kv_heads % tp == 0 : group % ((tp + kv_heads - 1) / kv_heads) == 0;
  int64_t least = smallest_group(heads, group, groups), other = smallest_group(heads + more, group, groups);
  return (int) (even || least < other ? least : other);
}

ts_attention_heads ts_attention_heads_of(const ts_deck *deck, const ts_graph *own, const ts_mesh *mesh) {
  const ts_deck_model *m = &deck->model;
  if (own == NULL) {
    return (ts_attention_heads){m->num_attention_heads, m->num_key_value_heads, m->head_dim};
  }
  ts_attention_heads least = {INT16_MAX, INT16_MAX, 1};
  for (ts_nid n = 0; n < own->n_nodes; ++n) {
    const ts_attr *attr = &own->node[n].attr;
    const ts_attention_heads here = {attr->attention.heads, attr->attention.kv_heads, attr->attention.head_dim};
    if (own->node[n].op == TS_OP_ATTENTION &&
        ts_sequence_heads(deck, &here, mesh) < ts_sequence_heads(deck, &least, mesh)) {
      least = here;
    }
  }
  return least;
}

/* ---- u and r ---- */

/* Key heads that u ranks are sent of one rank's, in all groups of heads. */
static int64_t sent_keys(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh, int ulysses) {
  int64_t tp = mesh->size[TS_AXIS_TP], groups = deck->sequence_parallel.head_groups;
  int64_t of_group = (model->kv_heads / tp + groups - 1) / groups;
  return groups * (of_group > ulysses ? of_group : ulysses);
}

/* While the keys of all rings take no more room than queries and outputs do. */
static bool gathers(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh, int ulysses, int ring) {
  const char *exchange = deck->sequence_parallel.ring_exchange;
  bool fits = ring * sent_keys(deck, model, mesh, ulysses) <= model->heads / mesh->size[TS_AXIS_TP];
  return strcmp(exchange, "auto") == 0 ? fits : strcmp(exchange, "all_gather") == 0;
}

ts_sequence_cost ts_sequence_cost_of(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh,
                                     int64_t length, int ulysses, int ring, const ts_backend *backend) {
  double tp = mesh->size[TS_AXIS_TP], heads = fmax(1, (double) model->heads / tp);
  double keys = (double) sent_keys(deck, model, mesh, ulysses), d = (double) model->head_dim;
  double e = (double) ts_dtype_size(ts_deck_products(deck)), u = ulysses, r = ring;
  double t = (double) length * (double) deck->train_micro_batch_size_per_gpu / (u * r);
  const ts_rates rates = ts_rates_of(deck, backend);
  ts_sequence_cost cost = {.ulysses_bytes = e * t * (u - 1) / u * (2 * heads * d + 2 * keys * d),
                           .ring_bytes = 2 * e * (r - 1) * t * keys * d};
  double attention = 2 * t * (double) length * heads * d / rates.product; /* causal */
  bool at_once = gathers(deck, model, mesh, ulysses, ring);
  double hidden = at_once ? 0 : (r - 1) / r * attention, merged = at_once ? 0 : 12 * (r - 1) * t * heads * d;
  cost.seconds =
      cost.ulysses_bytes / rates.link + fmax(0, cost.ring_bytes / rates.link - hidden) + merged / rates.memory;
  return cost;
}

/* The cheapest u that divides sp and leaves everybody a head in each group; the larger one of two that cost the same.
 */
static int choose_ulysses(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh, int64_t length,
                          const ts_backend *backend) {
  int sp = mesh->size[TS_AXIS_SP], heads = ts_sequence_heads(deck, model, mesh), best = 1;
  double least = INFINITY;
  for (int u = 1; u <= sp && u <= heads; ++u) {
    if (sp % u == 0) {
      double seconds = ts_sequence_cost_of(deck, model, mesh, length, u, sp / u, backend).seconds;
      best = seconds <= least ? u : best;
      least = fmin(least, seconds);
    }
  }
  return best;
}

ts_sequence ts_sequence_of(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh, int64_t length,
                           const ts_backend *backend) {
  int sp = mesh->size[TS_AXIS_SP], u = (int) deck->sequence_parallel.ulysses_degree;
  int r = (int) deck->sequence_parallel.ring_degree;
  u = u > 0 ? u : r > 0 ? sp / r : choose_ulysses(deck, model, mesh, length, backend);
  ts_sequence s = {.length = length, .ulysses = u, .ring = sp / u, .rank = mesh->coord[TS_AXIS_SP]};
  s.zigzag = s.ring > 1 && strcmp(deck->sequence_parallel.load_balancer, "zigzag") == 0;
  s.gathers = gathers(deck, model, mesh, s.ulysses, s.ring);
  return s;
}

/* "1, 2, 4": divisors of sp that are heads enough. */
static void list_degrees(int sp, int heads, bool ring, char *text, size_t size) {
  int length = 0;
  text[0] = 0;
  for (int u = 1; u <= sp && u <= heads && (size_t) length < size; ++u) {
    int v = ring ? sp / u : u;
    length += sp % u == 0 ? snprintf(text + length, size - (size_t) length, length > 0 ? ", %d" : "%d", v) : 0;
  }
}

static ts_status check_groups(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh,
                              ts_error *err) {
  int64_t heads = least_heads(model, mesh), groups = deck->sequence_parallel.head_groups;
  if (groups > heads) {
    return ts_deck_error(deck, "sequence_parallel.head_groups", err,
                         "%lld groups of heads, but %s %lld query heads, and a group has one at least; accepted: 1 to "
                         "%lld",
                         (long long) groups, mesh->size[TS_AXIS_TP] > 1 ? "some rank along tp has" : "the model has",
                         (long long) heads, (long long) heads);
  }
  return TS_OK;
}

static ts_status check_degrees(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh,
                               ts_error *err) {
  int sp = mesh->size[TS_AXIS_SP], heads = ts_sequence_heads(deck, model, mesh);
  int64_t u = deck->sequence_parallel.ulysses_degree, r = deck->sequence_parallel.ring_degree;
  if ((u > 0 && (sp % u != 0 || u > heads)) || (r > 0 && (sp % r != 0 || sp / r > heads || (u > 0 && u * r != sp)))) {
    bool ring = u == 0 || (sp % u == 0 && u <= heads);
    const char *key = ring ? "sequence_parallel.ring_degree" : "sequence_parallel.ulysses_degree";
    char accepted[256];
    list_degrees(sp, heads, ring, accepted, sizeof accepted);
    if (ring && u > 0 && r > 0) {
      snprintf(accepted, sizeof accepted, "%lld", (long long) (sp / u));
    }
    return ts_deck_error(
        deck, key, err,
        "%lld: sequence_parallel_size %d is ring_degree x ulysses_degree, and ranks of a ring share %d "
        "heads%s, one each at least; accepted: %s, or \"auto\"",
        (long long) (ring ? r : u), sp, heads,
        deck->sequence_parallel.head_groups > 1 ? " (of the smallest of sequence_parallel.head_groups)" : "", accepted);
  }
  return TS_OK;
}

ts_status ts_sequence_check(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh, ts_error *err) {
  ts_status status = check_groups(deck, model, mesh, err);
  return status == TS_OK ? check_degrees(deck, model, mesh, err) : status;
}
