/* The logits of the next token.  Keys and values of the tokens before stay in the programs' state, so a token more
 * costs one token's work and a look at what is kept. */
#include "engine/engine.h"

#include <string.h>

static int32_t *integers_of(ts_engine *e, int which, const char *name) {
  return ts_executor_input(e->executor, e->index[which], 0, name);
}

/* \a n tokens behind the first \a past; what the program has room for beyond is padding, which nobody sees. */
static void run_tokens(ts_engine *e, int which, const int32_t *tokens, int64_t past, int64_t n) {
  int32_t *id = integers_of(e, which, "input_ids"),
          *position = integers_of(e, which, "positions"); /* NULL: the model has none */
  int64_t last = e->kept.context - 1;
  for (int64_t i = 0; i < e->program[which]->length; ++i) {
    id[i] = i < n ? tokens[past + i] : 0;
    if (position != NULL) {
      position[i] = (int32_t) (past + i < last ? past + i : last);
    }
  }
  *integers_of(e, which, "past") = (int32_t) past;
  *integers_of(e, which, "index") = (int32_t) (n - 1);
  ts_executor_run(e->executor, e->index[which], 0);
}

/* Of n tokens, those that are kept already: all but the last at most, whose logits are wanted. */
static int64_t count_kept(const ts_kept *kept, const int32_t *tokens, int64_t n) {
  int64_t same = 0;
  while (same < n - 1 && same < kept->n && kept->token[same] == tokens[same]) {
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
  e->kept.n = 0;
}

void ts_engine_logits(ts_engine *e, const int32_t *tokens, int64_t n, float *logits) {
  ts_kept *kept = &e->kept;
  int64_t forgotten = count_forgotten(n, kept->context);
  tokens += forgotten;
  n -= forgotten;
  int which = TS_PROGRAM_GENERATE;
  for (int64_t at = count_kept(kept, tokens, n), some; at < n; at += some) {
    which = choose_program(e, n - at);
    int64_t most = e->program[which]->length;
    some = n - at < most ? n - at : most;
    run_tokens(e, which, tokens, at, some);
  }
  memcpy(kept->token, tokens, (size_t) n * sizeof *tokens);
  kept->n = n;
  ts_executor_read_result(e->executor, e->index[which], "logits", logits);
}
