/* tessera generate */
#include "base/memory.h"
#include "main/command.h"
#include "main/prompts.h"
#include "tokenizer/unicode.h"
#include "train/train.h"

#include <string.h>

/* Of the command line. */
typedef struct wanted {
  const char *prompt, *prompts, *field; /* the text; the file, and which member of a line */
  int64_t batch;
  const char *tokenizer;
  bool chat;
  const char *chat_template;
  ts_generate_options options;
} wanted;

static ts_status read_wanted(const ts_arguments *arguments, wanted *w, ts_error *err) {
  int64_t seed = 0;
  *w = (wanted){.prompt = ts_argument(arguments, "--prompt"),
                .prompts = ts_argument(arguments, "--prompts"),
                .field = ts_argument(arguments, "--field"),
                .tokenizer = ts_argument(arguments, "--tokenizer"),
                .chat = ts_argument(arguments, "--chat") != NULL,
                .chat_template = ts_argument(arguments, "--chat-template")};
  ts_status status = ts_argument_int(arguments, "--tokens", 0, 1 << 20, &w->options.n_tokens, err);
  status |= ts_argument_double(arguments, "--temperature", 0, 100, &w->options.temperature, err);
  status |= ts_argument_int(arguments, "--top-k", 0, 1 << 30, &w->options.top_k, err);
  status |= ts_argument_int(arguments, "--seed", 0, INT64_MAX, &seed, err);
  status |= ts_argument_int(arguments, "--batch", 1, 1 << 16, &w->batch, err);
  w->options.seed = (uint64_t) seed;
  if (w->prompt != NULL && w->prompts != NULL) {
    status |= ts_error_add(err, "generate: --prompt and --prompts: one of the two is accepted");
  } else if (w->chat_template != NULL && !w->chat) {
    status |= ts_error_add(err, "generate: --chat-template is for --chat, which is missing");
  } else if (w->prompt == NULL && w->prompts == NULL) {
    status |= ts_error_add(err, "generate: --prompt TEXT is missing, or --prompts FILE.jsonl: what shall the model "
                                "continue?");
  }
  return status;
}

/* ---- texts to tokens ---- */

static ts_status open_words(const ts_deck *deck, const wanted *w, const char *checkpoint, ts_words **words,
                            ts_error *err) {
  char *found = NULL;
  ts_status status = w->tokenizer == NULL ? ts_words_find(deck, checkpoint, &found, err) : TS_OK;
  const char *directory = w->tokenizer != NULL ? w->tokenizer : found;
  status = status == TS_OK ? ts_words_open(deck, directory, words, err) : status;
  if (status == TS_OK && w->chat) {
    const char *name = w->chat_template != NULL ? w->chat_template : deck->data.chat_template;
    status = ts_words_chat(*words, directory, name, err);
  }
  ts_free(found);
  return status;
}

/* The mark that ends an answer ends it here too, whatever the model's configuration says. */
static void stop_at_end(ts_world *world, ts_deck *deck, const ts_words *words) {
  ts_ids end = {0};
  int32_t mark = ts_world_rank(world) == 0 ? ts_words_end(words) : -1;
  ts_ids_add(&end, &mark, 1);
  ts_words_share(world, &end);
  ts_ints *stops = &deck->model.stop_token_ids;
  if (end.id[0] >= 0) {
    if (stops->n == 0 && deck->model.eos_token_id >= 0) {
      stops->items = ts_realloc(stops->items, 1, sizeof *stops->items);
      stops->items[stops->n++] = deck->model.eos_token_id;
    }
    stops->items = ts_realloc(stops->items, (size_t) stops->n + 1, sizeof *stops->items);
    stops->items[stops->n++] = end.id[0];
  }
  ts_free(end.id);
}

static ts_status encode_prompt(const char *prompt, ts_words *words, ts_prompts *out, ts_error *err) {
  ts_status status = ts_words_encode(words, prompt, strlen(prompt), "--prompt", &out->ids, err);
  ts_ids_add(&out->n, &(int32_t){(int32_t) out->ids.n}, 1);
  return status;
}

/* Rank 0 has the tokenizer and the texts; all have their tokens. */
static ts_status read_texts(ts_world *world, const ts_deck *deck, const wanted *w, const char *checkpoint,
                            ts_words **words, ts_prompts *prompts, ts_error *err) {
  ts_status status = TS_OK;
  if (ts_world_rank(world) == 0) {
    status = open_words(deck, w, checkpoint, words, err);
    if (status == TS_OK) {
      status = w->prompt != NULL ? encode_prompt(w->prompt, *words, prompts, err)
                                 : ts_prompts_read(w->prompts, w->field, *words, prompts, err);
    }
  }
  status = ts_world_agree(world, status, err);
  if (status == TS_OK) {
    ts_prompts_share(world, prompts);
  }
  return status;
}

/* ---- a batch ---- */

/* Texts that are continued together. */
typedef struct batch {
  int64_t n;
  ts_continued *text; /* [n] */
  ts_words_stream *stream;
  ts_text *said;
  ts_words *words;
} batch;

static void hear(int64_t text, int32_t token, void *user) {
  batch *b = user;
  ts_words_next(&b->stream[text], b->words, token, &b->said[text]);
}

/* Texts first .. first + n - 1, the first of which begins at \a ids. */
static batch make_batch(const ts_prompts *prompts, int64_t first, int64_t n, const int32_t *ids, int64_t more,
                        ts_words *words) {
  batch b = {.n = n, .words = words};
  b.text = ts_calloc((size_t) n, sizeof *b.text);
  b.stream = ts_calloc((size_t) n, sizeof *b.stream);
  b.said = ts_calloc((size_t) n, sizeof *b.said);
  for (int64_t i = 0; i < n; ++i) {
    int64_t length = prompts->n.id[first + i];
    b.text[i] = (ts_continued){.n = length, .number = first + i};
    b.text[i].token = ts_malloc((size_t) (length + more) * sizeof *ids);
    memcpy(b.text[i].token, ids, (size_t) length * sizeof *ids);
    if (words != NULL) {
      ts_words_follow(&b.stream[i], words, ids, length);
    }
    ids += length;
  }
  return b;
}

static void free_batch(batch *b) {
  for (int64_t i = 0; i < b->n; ++i) {
    ts_free(b->text[i].token);
    ts_decode_stream_clear(&b->stream[i]);
    ts_text_free(&b->said[i]);
  }
  ts_free(b->text);
  ts_free(b->stream);
  ts_free(b->said);
}

static void print_row(json_t *prompt, const ts_continued *text, const ts_text *said) {
  ts_text valid = {0};
  ts_utf8_repair(said->text, said->length, &valid);
  json_t *row = json_object();
  json_object_set(row, "prompt", prompt);
  json_object_set_new(row, "text", json_stringn(valid.text != NULL ? valid.text : "", valid.length));
  json_object_set_new(row, "tokens", json_integer(text->made - text->end));
  json_object_set_new(row, "end", json_boolean(text->end));
  json_dumpf(row, stdout, 0);
  putchar('\n');
  json_decref(row);
  ts_text_free(&valid);
}

/* ---- all of them ---- */

static void continue_all(ts_world *world, ts_engine *engine, const ts_prompts *prompts, const wanted *w,
                         ts_words *words) {
  const int32_t *ids = prompts->ids.id;
  int64_t room = ts_generate_room(engine);
  for (int64_t first = 0, n; first < prompts->n.n; first += n) {
    n = prompts->n.n - first < room ? prompts->n.n - first : room;
    batch b = make_batch(prompts, first, n, ids, w->options.n_tokens, words);
    const ts_listener listener = {hear, &b};
    ts_generate(engine, b.text, n, &w->options, words != NULL ? &listener : NULL);
    for (int64_t i = 0; i < n; ++i) {
      ids += b.text[i].n;
      if (ts_world_rank(world) == 0) {
        print_row(json_array_get(prompts->text, (size_t) (first + i)), &b.text[i], &b.said[i]);
      }
    }
    fflush(stdout);
    free_batch(&b);
  }
}

static ts_status run_model(ts_world *world, ts_deck *deck, const char *checkpoint, const ts_prompts *prompts,
                           const wanted *w, ts_words *words, ts_error *err) {
  ts_engine *engine = NULL;
  int64_t context = ts_generate_context(deck, ts_prompts_longest(prompts), w->options.n_tokens);
  if (!ts_deck_is_set(deck, "data.sequence_length")) { /* a published model: its length is that of the longest text */
    deck->data.sequence_length = context;
  }
  const ts_engine_options options = {
      .abilities = TS_CAN_GENERATE, .context = context, .texts = w->batch < prompts->n.n ? w->batch : prompts->n.n};
  ts_status status = ts_create_engine(world, deck, &options, checkpoint, &engine, err);
  if (status == TS_OK && w->prompt != NULL) {
    ts_speak(engine, words, w->chat ? "" : w->prompt, &prompts->ids, &w->options);
    if (ts_world_rank(world) == 0) {
      putchar('\n');
    }
  } else if (status == TS_OK) {
    continue_all(world, engine, prompts, w, words);
  }
  ts_engine_destroy(&engine);
  return status;
}

int ts_main_generate(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  ts_deck *deck = NULL;
  char *checkpoint = NULL;
  ts_words *words = NULL;
  ts_prompts prompts = {0};
  wanted w;
  int code = (int) read_wanted(arguments, &w, err);
  code = code == 0 ? (int) ts_read_deck_or_model(arguments, world, &deck, &checkpoint, err) : code;
  code = code == 0 ? (int) read_texts(world, deck, &w, checkpoint, &words, &prompts, err) : code;
  if (code == 0) {
    stop_at_end(world, deck, words);
  }
  code = code == 0 ? (int) run_model(world, deck, checkpoint, &prompts, &w, words, err) : code;
  ts_prompts_clear(&prompts);
  ts_words_close(&words);
  ts_free(checkpoint);
  ts_deck_destroy(&deck);
  return code;
}
