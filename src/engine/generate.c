/* Continuing text, one token at a time.  Every rank computes the same logits but for roundings, where processors
 * differ; so rank 0 draws, for all. */
#include "base/memory.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/train.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
  float logit;
  int32_t token;
} candidate;

static int by_logit(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->token - y->token;
}

static double uniform(uint64_t seed, int64_t position) {
  uint32_t words[4];
  ts_philox(ts_mix(seed, ts_hash_name("generate")), 0, (uint64_t) position, words);
  return ((double) words[0] + 0.5) * 0x1p-32;
}

/* The first of the most likely tokens. */
static int32_t most_likely(const candidate *list, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    best = list[i].logit > list[best].logit ? i : best;
  }
  return list[best].token;
}

static int32_t draw_token(candidate *list, int64_t n, const ts_generate_options *o, int64_t position) {
  if (o->temperature <= 0) {
    return most_likely(list, n);
  }
  qsort(list, (size_t) n, sizeof *list, by_logit);
  int64_t k = o->top_k > 0 && o->top_k < n ? o->top_k : n;
  double total = 0;
  for (int64_t i = 0; i < k; ++i) {
    total += exp((list[i].logit - list[0].logit) / o->temperature);
  }
  double left = uniform(o->seed, position) * total;
  for (int64_t i = 0; i < k; ++i) {
    left -= exp((list[i].logit - list[0].logit) / o->temperature);
    if (left <= 0) {
      return list[i].token;
    }
  }
  return list[k - 1].token;
}

static int32_t draw_for_all(ts_engine *engine, const float *logits, candidate *list, const ts_generate_options *o,
                            int64_t position) {
  ts_comm *all = ts_world_all(engine->world);
  int64_t vocabulary = engine->deck->model.vocab_size;
  int32_t token = 0;
  for (int64_t v = 0; v < vocabulary && all->rank == 0; ++v) {
    list[v] = (candidate){logits[v], (int32_t) v};
  }
  if (all->rank == 0) {
    token = draw_token(list, vocabulary, o, position);
  }
  all->ops->broadcast(all, &token, sizeof token, 0);
  return token;
}

static bool is_end(const ts_deck *deck, int32_t token) {
  const ts_ints *stops = &deck->model.stop_token_ids;
  bool end = stops->n == 0 && token == deck->model.eos_token_id;
  for (int i = 0; i < stops->n; ++i) {
    end = end || token == stops->items[i];
  }
  return end;
}

int64_t ts_generate_context(const ts_deck *deck, int64_t n, int64_t more) {
  return n + more < deck->data.sequence_length ? n + more : deck->data.sequence_length;
}

int64_t ts_generate(ts_engine *engine, int32_t *tokens, int64_t n, const ts_generate_options *o,
                    void (*emit)(int32_t token, void *user), void *user) {
  int64_t vocabulary = engine->deck->model.vocab_size, made = 0;
  float *logits = ts_malloc((size_t) vocabulary * sizeof *logits);
  candidate *list = ts_malloc((size_t) vocabulary * sizeof *list);
  bool end = false;
  for (; made < o->n_tokens && !end; ++made) {
    ts_engine_logits(engine, tokens, n + made, logits);
    int32_t token = tokens[n + made] = draw_for_all(engine, logits, list, o, n + made);
    end = is_end(engine->deck, token);
    if (emit != NULL && !end) {
      emit(token, user);
    }
  }
  ts_free(list);
  ts_free(logits);
  return made;
}
