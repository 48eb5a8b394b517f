/* The logits of the next token of each text.  Keys and values of the tokens before stay in the programs' state, so a
 * token more costs one token's work and a look at what is kept.  A run takes new tokens of every text; the last one
 * ends all of them, so texts that have fewer new tokens wait in the first ones:
 *
 *     text 0   ....|....|....|..      16 tokens, then one at a time
 *     text 1                |..
 */
#include "base/memory.h"
#include "engine/engine.h"

#include <string.h>

/* What is left to compute of a text. */
typedef struct rest {
  const int32_t *token; /* Without those that are forgotten. */
  int64_t n, kept;      /* Tokens; how many of them are kept. */
} rest;

/* An input from element \a at on; NULL where no piece of the model that this rank has reads it. */
static int32_t *row_of_input(ts_engine *e, int which, const char *name, int64_t at) {
  int32_t *values = ts_executor_input(e->executor, e->index[which], 0, name);
  return values != NULL ? values + at : NULL;
}

static void put_number(ts_engine *e, int which, const char *name, int64_t b, int64_t value) {
  int32_t *number = row_of_input(e, which, name, b);
  if (number != NULL) {
    *number = (int32_t) value;
  }
}

/* \a n tokens behind the kept ones become row \a b; what the program has room for beyond is padding, which nobody sees.
 * Without any the row is idle: behind the last place nothing is kept. */
static void set_row(ts_engine *e, int which, int64_t b, const rest *r, int64_t n) {
  int64_t length = e->program[which]->length, last = e->kept.context - 1, past = n > 0 ? r->kept : last + 1;
  int32_t *id = row_of_input(e, which, "input_ids", b * length);
  int32_t *position = row_of_input(e, which, "positions", b * length);
  for (int64_t i = 0; i < length; ++i) {
    if (id != NULL) {
      id[i] = i < n ? r->token[past + i] : 0;
    }
    if (position != NULL) {
      position[i] = (int32_t) (past + i < last ? past + i : last);
    }
  }
  put_number(e, which, "past", b, past);
  put_number(e, which, "index", b, n > 0 ? n - 1 : 0);
}

/* Of n tokens, those that are kept already: all but the last at most, whose logits are wanted. */
static int64_t count_kept(const ts_kept *kept, int64_t b, const int32_t *tokens, int64_t n) {
  const int32_t *had = kept->token + b * kept->context;
  int64_t same = 0;
  while (same < n - 1 && same < kept->n[b] && had[same] == tokens[same]) {
    ++same;
  }
  return same;
}

/* A text that is longer than the context loses its beginning, half a context at a time: what is left is read again
 * seldom. */
static int64_t count_forgotten(int64_t n, int64_t context) {
  int64_t half = context > 1 ? context / 2 : 1;
  return n <= context ? 0 : (n - context + half - 1) / half * half;
}

/* The shortest program that takes \a n tokens at once, or the longest. */
static int choose_program(const ts_engine *e, int64_t n) {
  int which = TS_PROGRAM_GENERATE;
  while (which + 1 < TS_N_PROGRAMS && e->program[which + 1] != NULL && e->program[which]->length < n) {
    ++which;
  }
  return which;
}

void ts_engine_forget(ts_engine *e) {
  for (int64_t b = 0; b < e->kept.texts; ++b) {
    e->kept.n[b] = 0;
  }
}

static rest find_rest(const ts_kept *kept, int64_t b, const ts_tokens_of *text) {
  int64_t forgotten = count_forgotten(text->n, kept->context);
  rest r = {.token = text->token + forgotten, .n = text->n - forgotten};
  r.kept = count_kept(kept, b, r.token, r.n);
  return r;
}

/* The most new tokens of a text, of all ranks: they compute in lock step. */
static int64_t count_most(const ts_engine *e, const rest *r) {
  int64_t most = 0;
  for (int64_t b = 0; b < e->kept.texts; ++b) {
    most = r[b].n - r[b].kept > most ? r[b].n - r[b].kept : most;
  }
  if (ts_mesh_group_size(&e->mesh, TS_AXES_BATCH) > 1) {
    int64_t *all = ts_world_gather(e->world, &most, sizeof most);
    for (int i = 0; i < ts_world_size(e->world); ++i) {
      most = all[i] > most ? all[i] : most;
    }
    ts_free(all);
  }
  return most;
}

/* What all texts have beyond their last \a after tokens, of those that are left. */
static void run_until(ts_engine *e, int which, rest *r, int64_t after) {
  for (int64_t b = 0; b < e->kept.texts; ++b) {
    int64_t left = r[b].n - r[b].kept, n = left > after ? left - after : 0;
    set_row(e, which, b, &r[b], n);
    r[b].kept += n;
  }
  for (int64_t i = 0; i < e->program[which]->step.n; ++i) { /* the chunks that this rank has */
    ts_executor_run(e->executor, e->index[which], i);
  }
}

/* Where the pipeline ends they are known, then on all its stages. */
static void read_logits(ts_engine *e, int which, float *logits) {
  const ts_program *p = e->program[which];
  ts_tid t = ts_graph_marked(p->graph, "logits");
  int64_t count = e->kept.texts * e->deck->model.vocab_size;
  if (t != TS_NONE) {
    TS_CHECK(ts_tensor_count(p->graph, t) == count, "%lld logits are not of %lld texts", (long long) count,
             (long long) e->kept.texts);
    ts_executor_read_result(e->executor, e->index[which], "logits", logits);
  }
  if (p->stages != NULL) {
    ts_comm *comm = ts_world_comm(e->world, &e->mesh, TS_AXES(TS_AXIS_PP));
    comm->ops->broadcast(comm, logits, (size_t) count * sizeof *logits, ts_stages_end(p->stages));
  }
}

void ts_engine_logits(ts_engine *e, const ts_tokens_of *text, float *logits) {
  e->hand.forwarded = false;
  ts_kept *kept = &e->kept;
  rest *r = ts_calloc((size_t) kept->texts, sizeof *r);
  for (int64_t b = 0; b < kept->texts; ++b) {
    r[b] = text[b].n > 0 ? find_rest(kept, b, &text[b]) : (rest){0};
  }
  int which = TS_PROGRAM_GENERATE;
  int64_t most = count_most(e, r);
  for (int64_t left = most, some; left > 0; left -= some) {
    which = choose_program(e, left);
    int64_t longest = e->program[which]->length;
    some = left < longest ? left : longest;
    run_until(e, which, r, left - some);
  }
  for (int64_t b = 0; b < kept->texts; ++b) {
    if (r[b].n > 0) {
      memcpy(kept->token + b * kept->context, r[b].token, (size_t) r[b].n * sizeof *r[b].token);
      kept->n[b] = r[b].n;
    }
  }
  if (most > 0) {
    read_logits(e, which, logits);
  }
  ts_free(r);
}
