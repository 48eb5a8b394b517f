/* Which directory has the tokenizer of a deck. */
#include "base/memory.h"
#include "train/texts.h"

#define TOKENIZER "tokenizer.json"

static bool keep_if_there(char *directory, char **out) {
  bool there = directory != NULL && ts_has_file(directory, TOKENIZER);
  if (there) {
    *out = directory;
  } else {
    ts_free(directory);
  }
  return there;
}

static char *kept_in(const char *run, const char *name) {
  return run != NULL && run[0] != 0 ? ts_format("%s/%s", run, name) : NULL;
}

/* Hugging Face's own loader makes a tokenizer.json of these. */
static ts_status refuse_other_kind(const ts_deck *deck, const char *from, ts_error *err) {
  static const char *const others[] = {"tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
    if (ts_has_file(from, others[i])) {
      ts_text word = {0};
      ts_text_add_shell(&word, from);
      ts_status status =
          ts_deck_error(deck, "model.from", err,
                        "%s has no " TOKENIZER " but a %s; make one: python3 -c 'import sys, transformers; "
                        "transformers.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' %s",
                        from, others[i], word.text);
      ts_text_free(&word);
      return status;
    }
  }
  return TS_OK;
}

ts_status ts_find_tokenizer(const ts_deck *deck, const char *run, bool kept, char **directory, ts_error *err) {
  const char *named = deck->data.tokenizer, *from = deck->model.from;
  *directory = NULL;
  if (kept && keep_if_there(kept_in(run, named[0] != 0 ? TS_RUN_TOKENIZER : TS_RUN_FROM), directory)) {
    return TS_OK;
  }
  if (named[0] != 0) {
    return keep_if_there(ts_strdup(named), directory) || keep_if_there(kept_in(run, TS_RUN_TOKENIZER), directory)
               ? TS_OK
               : ts_deck_error(deck, "data.tokenizer", err, "%s: there is no " TOKENIZER " in it", named);
  }
  if (from[0] == 0 || keep_if_there(ts_strdup(from), directory) ||
      keep_if_there(kept_in(run, TS_RUN_FROM), directory)) {
    return TS_OK;
  }
  return refuse_other_kind(deck, from, err);
}
