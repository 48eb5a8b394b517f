/* Texts as tokens and back, with each of the tokenizers of regression/tokenizer/golden: what a model says is streamed
 * in whole characters, and is what follows its prompt when all tokens are decoded at once.  That these are those of
 * Hugging Face is known to test_tokenizer. */
#include "base/memory.h"
#include "base/random.h"
#include "regression/tap.h"
#include "tokenizer/unicode.h"
#include "train/words.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 20, MADE = 40 };
static const char prompt[] = "In the beginning \xc3\xa9\xe4\xb8\xad, 12";

static ts_deck *deck_of(int64_t vocabulary) {
  ts_deck *deck;
  ts_error err = {0};
  char *text = ts_format("model = { model_type = \"llama\"; vocab_size = %lld; hidden_size = 8; intermediate_size = 8; "
                         "num_hidden_layers = 1; "
                         "num_attention_heads = 1; max_position_embeddings = 8; };",
                         (long long) vocabulary);
  TS_CHECK(ts_deck_read_text("words", text, NULL, 0, &deck, &err) == TS_OK, "%s", err.text);
  ts_free(text);
  return deck;
}

/* What \a text says beyond the prompt. \return whether it begins with the prompt, as it was decoded. */
static bool takes_prompt(const ts_text *text, const ts_text *begin, ts_text *rest) {
  bool begins = text->length >= begin->length && memcmp(text->text, begin->text, begin->length) == 0;
  rest->length = 0;
  if (begins && text->length > begin->length) {
    ts_text_append(rest, text->text + begin->length, text->length - begin->length);
  }
  return begins;
}

static bool begins_with(const ts_text *text, const ts_text *begin) {
  return begin->length <= text->length && (begin->length == 0 || memcmp(text->text, begin->text, begin->length) == 0);
}

static bool is_whole(const ts_text *text) {
  return ts_utf8_valid(text->text != NULL ? text->text : "", text->length) == text->length;
}

/* The stream has all of it, or all but a character that is not complete.  With tokens for bytes one that is wrong may
 * unmake characters that were said: then what follows is no longer compared, and no token is counted. */
static bool stream_is_whole(ts_words *words, ts_encoder *encoder, int64_t size, uint64_t round, int *compared) {
  ts_ids ids = {0};
  ts_error err = {0};
  ts_words_stream stream = {0};
  ts_text begin = {0}, all = {0}, rest = {0}, said = {0};
  TS_CHECK(ts_words_encode(words, prompt, strlen(prompt), "prompt", &ids, &err) == TS_OK, "%s", err.text);
  ts_decode(encoder, ids.id, ids.n, false, &begin);
  ts_words_follow(&stream, words, ids.id, ids.n);
  bool same = true, goes_on = true;
  for (uint64_t i = 0; i < MADE && same; ++i) {
    uint32_t random[4];
    ts_philox(3, round, i, random);
    int32_t id = (int32_t) (random[0] % (uint32_t) size);
    ts_ids_add(&ids, &id, 1);
    all.length = 0;
    ts_decode(encoder, ids.id, ids.n, false, &all);
    goes_on = goes_on && takes_prompt(&all, &begin, &rest) && begins_with(&rest, &said);
    ts_words_next(&stream, words, id, &said);
    same = is_whole(&said) &&
           (!goes_on || (begins_with(&rest, &said) &&
                         (said.length == rest.length || memcmp(rest.text + rest.length - 3, "\xef\xbf\xbd", 3) == 0)));
    *compared += goes_on;
  }
  if (!same) {
    printf("# round %d: said \"%.*s\", decoded \"%.*s\"\n", (int) round, (int) said.length, said.text,
           (int) rest.length, rest.text);
  }
  ts_text *const texts[] = {&begin, &all, &rest, &said};
  for (int i = 0; i < 4; ++i) {
    ts_text_free(texts[i]);
  }
  ts_decode_stream_clear(&stream);
  ts_free(ids.id);
  return same;
}

static void test_tokenizer(const char *directory, const char *name) {
  ts_tokenizer *tokenizer;
  ts_words *words = NULL;
  ts_error err = {0};
  TS_CHECK(ts_tokenizer_open(directory, &tokenizer, &err) == TS_OK, "%s", err.text);
  int64_t size = ts_tokenizer_size(tokenizer);
  ts_deck *deck = deck_of(size), *small = deck_of(size - 1);
  ts_encoder *encoder = ts_encoder_create(tokenizer);
  bool fits = ts_words_open(deck, directory, &words, &err) == TS_OK;
  int good = 0, compared = 0;
  for (int round = 0; fits && round < ROUNDS; ++round) {
    good += stream_is_whole(words, encoder, size, (uint64_t) round, &compared);
  }
  tap_ok(good == ROUNDS && compared > ROUNDS, "%s: what follows a prompt is streamed, %d of %d texts, %d of %d tokens",
         name, good, ROUNDS, compared, ROUNDS * MADE);
  ts_words_close(&words);
  char *numbers =
      ts_format("it has %lld tokens, but the model has a vocabulary of %lld", (long long) size, (long long) size - 1);
  bool refused = ts_words_open(small, directory, &words, &err) == TS_BAD_INPUT && words == NULL;
  tap_ok(refused && strstr(err.text, numbers) != NULL, "%s: larger than the model: %s", name,
         err.text != NULL ? err.text : "");
  ts_free(numbers);
  ts_error_clear(&err);
  ts_encoder_destroy(&encoder);
  ts_tokenizer_close(&tokenizer);
  ts_deck_destroy(&deck);
  ts_deck_destroy(&small);
}

static void test_bytes(void) {
  ts_deck *deck = deck_of(256), *large = deck_of(257);
  ts_words *words = NULL;
  ts_error err = {0};
  ts_ids ids = {0};
  ts_text said = {0};
  ts_words_stream stream = {0};
  bool opened = ts_words_open(deck, NULL, &words, &err) == TS_OK;
  TS_CHECK(opened && ts_words_encode(words, "a\xff\0b", 4, "text", &ids, &err) == TS_OK, "%s", err.text);
  ts_words_follow(&stream, words, ids.id, ids.n);
  for (int64_t i = 0; i < ids.n; ++i) {
    ts_words_next(&stream, words, ids.id[i], &said);
  }
  bool same = ids.n == 4 && ids.id[1] == 255 && said.length == 4 && memcmp(said.text, "a\xff\0b", 4) == 0;
  tap_ok(same, "bytes: any of them, there and back");
  bool empty = ts_words_encode(words, "", 0, "text", &ids, &err) == TS_BAD_INPUT;
  tap_ok(empty && strstr(err.text, "text: the text is empty") != NULL, "bytes: an empty text");
  ts_words_close(&words);
  bool many = ts_words_open(large, NULL, &words, &err) == TS_BAD_INPUT && words == NULL;
  tap_ok(many && strstr(err.text, "the model has a vocabulary of 257") != NULL, "bytes: more tokens than bytes");
  ts_error_clear(&err);
  ts_text_free(&said);
  ts_free(ids.id);
  ts_deck_destroy(&deck);
  ts_deck_destroy(&large);
}

int main(void) {
  const char *top = getenv("srcdir");
  char *golden = ts_format("%s/regression/tokenizer/golden", top != NULL ? top : ".");
  DIR *entries = opendir(golden);
  TS_CHECK(entries != NULL, "%s", golden);
  int n = 0;
  for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
    char *directory = ts_format("%s/%s", golden, entry->d_name);
    if (entry->d_name[0] != '.' && ts_has_file(directory, "tokenizer.json")) {
      test_tokenizer(directory, entry->d_name);
      ++n;
    }
    ts_free(directory);
  }
  closedir(entries);
  tap_ok(n > 20, "%d tokenizers", n);
  test_bytes();
  ts_free(golden);
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
