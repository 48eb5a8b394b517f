/* Continuing text, one token at a time.  Every rank computes the same logits and draws the same token. */
#include "base/memory.h"
#include "base/random.h"
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

static int32_t draw_token(candidate *list, int64_t n, const ts_generate_options *o, int64_t position) {
  qsort(list, (size_t) n, sizeof *list, by_logit);
  if (o->temperature <= 0) {
    return list[0].token;
  }
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

void ts_generate(ts_engine *engine, const ts_deck *deck, int32_t *tokens, int64_t n, const ts_generate_options *o,
                 void (*emit)(int32_t token, void *user), void *user) {
  int64_t vocabulary = deck->model.vocab_size;
  float *logits = ts_malloc((size_t) vocabulary * sizeof *logits);
  candidate *list = ts_malloc((size_t) vocabulary * sizeof *list);
  for (int64_t i = 0; i < o->n_tokens; ++i) {
    ts_engine_logits(engine, tokens, n + i, logits);
    for (int64_t v = 0; v < vocabulary; ++v) {
      list[v] = (candidate){logits[v], (int32_t) v};
    }
    tokens[n + i] = draw_token(list, vocabulary, o, n + i);
    if (emit != NULL) {
      emit(tokens[n + i], user);
    }
  }
  ts_free(list);
  ts_free(logits);
}
