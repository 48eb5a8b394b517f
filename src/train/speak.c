/* A text that is continued on standard output, as it is made. */
#include "base/memory.h"
#include "train/train.h"

#include <string.h>

typedef struct speaker {
  ts_words *words;
  ts_words_stream stream;
} speaker;

static void print_token(int64_t text, int32_t token, void *user) {
  (void) text;
  speaker *s = user;
  ts_text more = {0};
  ts_words_next(&s->stream, s->words, token, &more);
  if (more.length > 0) {
    fwrite(more.text, 1, more.length, stdout);
    fflush(stdout);
  }
  ts_text_free(&more);
}

void ts_speak(ts_engine *engine, ts_words *words, const char *prompt, const ts_ids *ids,
              const ts_generate_options *options) {
  speaker s = {.words = words};
  const ts_listener aloud = {print_token, &s};
  ts_continued text = {.token = ts_malloc((size_t) (ids->n + options->n_tokens) * sizeof *text.token), .n = ids->n};
  memcpy(text.token, ids->id, (size_t) ids->n * sizeof *text.token);
  bool speaks = ts_engine_mesh(engine)->rank == 0;
  if (speaks) {
    fputs(prompt, stdout);
    ts_words_follow(&s.stream, words, ids->id, ids->n);
  }
  ts_generate(engine, &text, 1, options, speaks ? &aloud : NULL);
  ts_decode_stream_clear(&s.stream);
  ts_free(text.token);
}
