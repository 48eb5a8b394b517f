/* tessera generate */
#include "base/memory.h"
#include "engine/train.h"
#include "main/command.h"

#include <string.h>

static void print_byte(int32_t token, void *user) {
  (void) user;
  putchar(token);
  fflush(stdout);
}

static ts_status read_generate_options(const ts_arguments *arguments, ts_generate_options *o, ts_error *err) {
  int64_t seed = 0;
  ts_status status = ts_argument_int(arguments, "--tokens", 0, 1 << 20, &o->n_tokens, err);
  status |= ts_argument_double(arguments, "--temperature", 0, 100, &o->temperature, err);
  status |= ts_argument_int(arguments, "--top-k", 0, 1 << 30, &o->top_k, err);
  status |= ts_argument_int(arguments, "--seed", 0, INT64_MAX, &seed, err);
  o->seed = (uint64_t) seed;
  if (ts_argument(arguments, "--prompt") == NULL) {
    status |= ts_error_add(err, "generate: --prompt TEXT is missing: what shall the model continue?");
  }
  return status;
}

ts_status ts_check_prompt(const ts_deck *deck, const char *prompt, ts_error *err) {
  if (prompt[0] == 0) {
    return ts_error_add(err, "--prompt: the text is empty; the model needs something to continue");
  }
  for (const char *c = prompt; *c != 0; ++c) {
    if ((unsigned char) *c >= deck->model.vocab_size) {
      return ts_error_add(err, "--prompt: byte %d is outside the model's vocabulary of %lld", (unsigned char) *c,
                          (long long) deck->model.vocab_size);
    }
  }
  return deck->model.vocab_size <= 256
             ? TS_OK
             : ts_error_add(err, "--prompt: tokens are bytes here, but the model has a vocabulary of %lld",
                            (long long) deck->model.vocab_size);
}

static int continue_prompt(ts_world *world, ts_deck *deck, const char *checkpoint, const char *prompt,
                           const ts_generate_options *o, ts_error *err) {
  ts_engine *engine = NULL;
  int64_t n = (int64_t) strlen(prompt), context = ts_generate_context(deck, n, o->n_tokens);
  if (!ts_deck_is_set(deck, "data.sequence_length")) { /* a published model: its length is that of this text */
    deck->data.sequence_length = context;
  }
  ts_status status = ts_create_engine(world, deck, TS_CAN_GENERATE, context, checkpoint, &engine, err);
  if (status == TS_OK) {
    int32_t *tokens = ts_malloc((size_t) (n + o->n_tokens + 1) * sizeof *tokens);
    for (int64_t i = 0; i < n; ++i) {
      tokens[i] = (unsigned char) prompt[i];
    }
    bool speaks = ts_world_rank(world) == 0;
    if (speaks) {
      fputs(prompt, stdout);
    }
    ts_generate(engine, tokens, n, o, speaks ? print_byte : NULL, NULL);
    if (speaks) {
      putchar('\n');
    }
    ts_free(tokens);
  }
  ts_engine_destroy(&engine);
  return status;
}

int ts_main_generate(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  ts_deck *deck = NULL;
  char *checkpoint = NULL;
  ts_generate_options options;
  int code = (int) read_generate_options(arguments, &options, err);
  code = code == 0 ? (int) ts_read_deck_or_model(arguments, world, &deck, &checkpoint, err) : code;
  code = code == 0 ? (int) ts_check_prompt(deck, ts_argument(arguments, "--prompt"), err) : code;
  code = code == 0 ? continue_prompt(world, deck, checkpoint, ts_argument(arguments, "--prompt"), &options, err) : code;
  ts_free(checkpoint);
  ts_deck_destroy(&deck);
  return code;
}
