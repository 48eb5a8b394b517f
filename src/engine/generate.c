/* Continuing texts, a token of each at a time.  Ranks that differ in TS_AXES_BATCH have different texts; those of one
 * place there compute the same logits but for roundings, where processors differ; so the first of them draws. */
#include "engine/generate.h"

#include "base/memory.h"
#include "base/random.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
  float logit;
  int32_t token;
} candidate;

static int by_logit(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->token - y->token;
}

static double uniform(uint64_t seed, int64_t number, int64_t position) {
  uint32_t words[4];
  ts_philox(ts_mix(seed, ts_hash_name("generate")), (uint64_t) number, (uint64_t) position, words);
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

static int32_t draw_token(candidate *list, int64_t n, const ts_generate_options *o, int64_t number, int64_t position) {
  if (o->temperature <= 0) {
    return most_likely(list, n);
  }
  qsort(list, (size_t) n, sizeof *list, by_logit);
  int64_t k = o->top_k > 0 && o->top_k < n ? o->top_k : n;
  double total = 0;
  for (int64_t i = 0; i < k; ++i) {
    total += exp((list[i].logit - list[0].logit) / o->temperature);
  }
  double left = uniform(o->seed, number, position) * total;
  for (int64_t i = 0; i < k; ++i) {
    left -= exp((list[i].logit - list[0].logit) / o->temperature);
    if (left <= 0) {
      return list[i].token;
    }
  }
  return list[k - 1].token;
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

int64_t ts_generate_room(const ts_engine *engine) {
  return engine->kept.texts * ts_mesh_group_size(&engine->mesh, TS_AXES_BATCH);
}

static bool goes_on(const ts_continued *text, const ts_generate_options *o) {
  return !text->end && text->made < o->n_tokens;
}

/* This rank's texts, one in a row of the engine: texts are dealt to the ranks in turn. */
typedef struct rows {
  int64_t first, every, n, vocabulary;
  ts_tokens_of *of;     /* [n] */
  float *logits;        /* [n][vocabulary] */
  candidate *candidate; /* [n][vocabulary] */
} rows;

static rows make_rows(const ts_engine *engine) {
  rows r = {.first = ts_mesh_group_rank(&engine->mesh, TS_AXES_BATCH),
            .every = ts_mesh_group_size(&engine->mesh, TS_AXES_BATCH),
            .n = engine->kept.texts,
            .vocabulary = engine->deck->model.vocab_size};
  r.of = ts_calloc((size_t) r.n, sizeof *r.of);
  r.logits = ts_malloc((size_t) (r.n * r.vocabulary) * sizeof *r.logits);
  r.candidate = ts_malloc((size_t) (r.n * r.vocabulary) * sizeof *r.candidate);
  return r;
}

static void free_rows(rows *r) {
  ts_free(r->of);
  ts_free(r->logits);
  ts_free(r->candidate);
}

static int64_t text_of(const rows *r, int64_t i) {
  return r->first + i * r->every;
}

static void draw_row(const rows *r, int64_t i, const ts_continued *text, const ts_generate_options *o, int32_t *token) {
  candidate *list = r->candidate + i * r->vocabulary;
  for (int64_t v = 0; v < r->vocabulary; ++v) {
    list[v] = (candidate){r->logits[i * r->vocabulary + v], (int32_t) v};
  }
  *token = draw_token(list, r->vocabulary, o, text->number, r->of[i].n);
}

/* The next token of every text that goes on, on all ranks.  \return [n], owned by the caller. */
static int32_t *draw_tokens(ts_engine *engine, rows *r, const ts_continued *text, int64_t n,
                            const ts_generate_options *o) {
  int32_t *token = ts_malloc((size_t) n * sizeof *token);
  memset(token, -1, (size_t) n * sizeof *token);
  bool draws = ts_mesh_group_rank(&engine->mesh, TS_AXES_ALL & ~TS_AXES_BATCH) == 0;
#pragma omp parallel for num_threads(engine->program[TS_PROGRAM_GENERATE]->target.threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < r->n; ++i) {
    if (draws && r->of[i].n > 0) {
      draw_row(r, i, &text[text_of(r, i)], o, &token[text_of(r, i)]);
    }
  }
  int32_t *all = ts_world_gather(engine->world, token, (size_t) n * sizeof *token);
  for (int64_t i = 0; i < n * ts_world_size(engine->world); ++i) {
    token[i % n] = all[i] > token[i % n] ? all[i] : token[i % n]; /* one rank has drawn it */
  }
  ts_free(all);
  return token;
}

/* A token more for each text that goes on.  \return whether there was one. */
static bool grow_texts(ts_engine *engine, rows *r, ts_continued *text, int64_t n, const ts_generate_options *o,
                       const ts_listener *listener) {
  bool any = false;
  for (int64_t i = 0; i < n; ++i) {
    any = any || goes_on(&text[i], o);
  }
  for (int64_t i = 0; i < r->n; ++i) {
    const ts_continued *t = text_of(r, i) < n ? &text[text_of(r, i)] : NULL;
    bool here = t != NULL && goes_on(t, o);
    r->of[i] = here ? (ts_tokens_of){t->token, t->n + t->made} : (ts_tokens_of){0};
  }
  if (!any) {
    return false;
  }
  ts_engine_logits(engine, r->of, r->logits);
  int32_t *token = draw_tokens(engine, r, text, n, o);
  for (int64_t i = 0; i < n; ++i) {
    if (goes_on(&text[i], o)) {
      text[i].token[text[i].n + text[i].made++] = token[i];
      text[i].end = is_end(engine->deck, token[i]);
      if (listener != NULL && !text[i].end) {
        listener->hear(i, token[i], listener->user);
      }
    }
  }
  ts_free(token);
  return true;
}

void ts_generate(ts_engine *engine, ts_continued *text, int64_t n, const ts_generate_options *options,
                 const ts_listener *listener) {
  TS_ASSERT(n <= ts_generate_room(engine));
  rows r = make_rows(engine);
  while (grow_texts(engine, &r, text, n, options, listener)) {
  }
  free_rows(&r);
}
