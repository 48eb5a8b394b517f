/* tokenizer.json as it should not be: parts that are not known or wrong, each refused by name, and files of which bytes
 * are missing or others, which are refused or read, and never crash.  The seed is fixed; TEST_SEED gives another,
 * TEST_MUTATIONS how many files of each kind (default 300). */
#include "base/memory.h"
#include "regression/tap.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *member; /* of tokenizer.json; NULL: the text is the file */
  const char *value;
  const char *message;
} bad[] = {
    {NULL, "", "line"},
    {NULL, "{\"model\": {", "line 1"},
    {NULL, "[]", "no object model"},
    {NULL, "{}", "no object model"},
    {"model", "{\"type\": \"WordPiece\", \"vocab\": {}}", "model: WordPiece is not known here; known is BPE"},
    {"model", "{\"type\": \"Unigram\", \"vocab\": []}", "model: Unigram is not known here"},
    {"model", "{\"vocab\": {\"a\": 0}}", "model: none is not known here"},
    {"model", "{\"type\": \"BPE\", \"merges\": []}", "model.vocab: not an object"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}}", "model.merges: not a list"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}", "the id of \"a\" is no integer from 0 to"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 16777216}, \"merges\": []}", "the id of \"a\" is no integer"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 1.5}, \"merges\": []}", "the id of \"a\" is no integer"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}", "entry 0 is no pair of tokens"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b c\"]}", "entry 0 is no pair of tokens"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [[\"a\", 3]]}", "entry 0 is no pair of tokens"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}",
     "entry 0: \"b\" is not in model.vocab"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}", "entry 0: \"aa\" is not in"},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"unk_token\": \"u\"}",
     "model.unk_token: \"u\""},
    {"model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": 0.1}", "model.dropout"},
    {"normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"\"}",
     "normalizer: Precompiled is not known here; known are Sequence, NFC"},
    {"normalizer", "{\"type\": \"BertNormalizer\"}", "normalizer: BertNormalizer is not known here"},
    {"normalizer", "7", "normalizer: not an object with a type"},
    {"normalizer", "{\"type\": \"Sequence\"}", "normalizer: Sequence has no list normalizers"},
    {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Nmt\"}]}",
     "normalizer: Nmt is not known here"},
    {"normalizer", "{\"type\": \"Prepend\"}", "normalizer: Prepend: prepend: not a text"},
    {"normalizer", "{\"type\": \"Strip\", \"strip_left\": 1}", "normalizer: Strip: strip_left, strip_right"},
    {"normalizer", "{\"type\": \"Replace\", \"content\": \"\"}", "normalizer: Replace: pattern: neither"},
    {"normalizer", "{\"type\": \"Replace\", \"content\": \"\", \"pattern\": {\"Regex\": \"(\"}}",
     "pattern: (: missing"},
    {"pre_tokenizer", "{\"type\": \"UnicodeScripts\"}", "pre_tokenizer: UnicodeScripts is not known here; known are"},
    {"pre_tokenizer", "{\"type\": \"Split\", \"behavior\": \"Torn\"}", "Split: behavior: \"Torn\" is not known"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"ab\"}",
     "Metaspace: replacement: not one character"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}",
     "\"last\" is not known"},
    {"pre_tokenizer",
     "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": \"Digits\"}]}",
     "Digits: not known here after ByteLevel"},
    {"decoder", "{\"type\": \"WordPiece\"}", "decoder: WordPiece is not known here; known are Sequence, ByteLevel"},
    {"decoder", "{\"type\": \"CTC\"}", "decoder: CTC is not known here"},
    {"decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}", "decoder: Strip: start, stop"},
    {"post_processor", "{\"type\": \"BertProcessing\"}", "post_processor: BertProcessing is not known here"},
    {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]}",
     "x is not among special_tokens"},
    {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": []}", "the text is there 0 times"},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}, {\"Sequence\": {\"id\": "
     "\"A\"}}],"
     " \"special_tokens\": {\"x\": {\"ids\": [520]}}}",
     "an id of x is no integer from 0 to 519"},
    {"decoder", "{\"type\": \"Metaspace\", \"replacement\": \"\"}", "replacement: not one character"},
    {"added_tokens", "{}", "added_tokens: not a list"},
    {"added_tokens", "[{\"id\": 3}]", "added_tokens: entry 0 has no content"},
};

static void write_tokenizer(const char *text, size_t n) {
  char *path = ts_format("%s/tokenizer.json", tap_directory());
  TS_CHECK(ts_write_file(path, text, n, NULL) == TS_OK, "%s cannot be written", path);
  ts_free(path);
}

static char *read_golden(const char *name, size_t *n) {
  char *path = ts_format("%s/%s/tokenizer.json", tap_path("regression/tokenizer/golden"), name), *text = NULL;
  TS_CHECK(ts_read_file(path, 1 << 24, &text, n, NULL) == TS_OK, "%s cannot be read", path);
  ts_free(path);
  return text;
}

static void test_bad(void) {
  size_t n;
  char *text = read_golden("llama2", &n);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    json_t *root = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    if (bad[i].member != NULL) {
      json_object_set_new(root, bad[i].member, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
    }
    char *whole = json_dumps(root, JSON_COMPACT);
    const char *file = bad[i].member != NULL ? whole : bad[i].value;
    write_tokenizer(file, strlen(file));
    ts_tokenizer *tokenizer = NULL;
    ts_error err = {0};
    ts_status status = ts_tokenizer_open(tap_directory(), &tokenizer, &err);
    const char *said = err.count > 0 ? err.text : "", *name = strrchr(said, '/');
    tap_ok(status == TS_BAD_INPUT && tokenizer == NULL && strstr(said, "tokenizer.json: ") != NULL &&
               strstr(said, bad[i].message) != NULL,
           "%s: %s", bad[i].message, name != NULL ? name + 1 : "was taken");
    ts_tokenizer_close(&tokenizer);
    ts_error_clear(&err);
    free(whole);
    json_decref(root);
  }
  ts_free(text);
  ts_error err = {0};
  ts_tokenizer *tokenizer = NULL;
  ts_status status = ts_tokenizer_open("nowhere", &tokenizer, &err);
  const char *said = status != TS_OK && err.count > 0 ? err.text : "";
  tap_ok(strstr(said, "nowhere/tokenizer.json") != NULL, "a directory without one: %s", said);
  ts_error_clear(&err);
}

/* ---- what is taken, but odd ---- */

static ts_tokenizer *open_with_model(const char *model) {
  char *text = ts_format("{\"model\": {\"type\": \"BPE\", %s}}", model);
  write_tokenizer(text, strlen(text));
  ts_free(text);
  ts_tokenizer *tokenizer = NULL;
  ts_error err = {0};
  ts_tokenizer_open(tap_directory(), &tokenizer, &err);
  ts_error_clear(&err);
  return tokenizer;
}

static void test_zero_bytes(void) {
  ts_tokenizer *t = open_with_model("\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [],"
                                    "\"continuing_subword_prefix\": \"\\u0000aaaaaaaaaaaaaaaaaaaaaaaaaaaa\"");
  if (tap_ok(t != NULL, "a prefix with a byte 0 is read")) {
    ts_encoder *e = ts_encoder_create(t);
    ts_ids ids = {0};
    ts_status status = ts_encode(e, "ab", 2, false, &ids, NULL);
    tap_ok(status == TS_OK && ids.n == 1 && ids.id[0] == 0, "and is a prefix of its whole length");
    ts_free(ids.id);
    ts_encoder_destroy(&e);
  }
  ts_tokenizer_close(&t);
}

static void test_bad_texts(const char *path) {
  static const char *const bad_texts[] = {"a\xff", "\xe6\x97", "\xed\xa0\x80", "x\xf0"};
  ts_tokenizer *t = NULL;
  TS_CHECK(ts_tokenizer_open(path, &t, NULL) == TS_OK, "%s is not read", path);
  ts_encoder *e = ts_encoder_create(t);
  ts_ids ids = {0};
  for (size_t i = 0; i < sizeof bad_texts / sizeof bad_texts[0]; ++i) {
    ts_error err = {0};
    ts_joint cut = TS_JOINT_INSIDE;
    ts_status status = ts_encode(e, bad_texts[i], strlen(bad_texts[i]), true, &ids, &err);
    ts_status part = ts_encode_part(e, bad_texts[i], strlen(bad_texts[i]), 0, TS_JOINT_BEGIN, &cut, &ids, NULL);
    tap_ok(status == TS_BAD_INPUT && part == TS_BAD_INPUT && cut == TS_JOINT_NONE &&
               strstr(err.text, "no UTF-8") != NULL,
           "%s", err.count > 0 ? err.text : "was taken");
    ts_error_clear(&err);
  }
  ts_joint cut = TS_JOINT_INSIDE;
  ts_status status = ts_encode_part(e, "ab", 0, 2, TS_JOINT_BEGIN, &cut, &ids, NULL);
  tap_ok(status == TS_OK && cut == TS_JOINT_NONE, "no cut before a text that gets a space there");
  ts_free(ids.id);
  ts_encoder_destroy(&e);
  ts_tokenizer_close(&t);
}

/* A byte that was shown as a character is none any more with what follows. */
static void test_stream(const char *path) {
  static const char *const tokens[] = {"<0x41>", "<0xE6>", "<0x42>", "he"};
  ts_tokenizer *t = NULL;
  TS_CHECK(ts_tokenizer_open(path, &t, NULL) == TS_OK, "%s is not read", path);
  ts_encoder *e = ts_encoder_create(t);
  ts_decode_stream stream = {0};
  ts_text text = {0};
  for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; ++i) {
    ts_decode_next(&stream, e, ts_tokenizer_id(t, tokens[i]), true, &text);
  }
  tap_ok(ts_utf8_valid(text.text, text.length) == text.length && text.text[0] == 'A' && ts_ends_in(text.text, "he"),
         "a text of bytes that are none together is UTF-8 token by token");
  ts_text_free(&text);
  ts_decode_stream_clear(&stream);
  ts_encoder_destroy(&e);
  ts_tokenizer_close(&t);
}

/* ---- other bytes ---- */

static uint64_t state;

static size_t draw(size_t below) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (size_t) (state >> 33) % below;
}

/* A few bytes are others, move, or are missing; often ones that json is made of. */
static size_t mutate(char *text, size_t n) {
  static const char marks[] = "{}[]\":,0123456789-.truefalsn\\u";
  for (size_t k = draw(4) + 1; k > 0 && n > 1; --k) {
    size_t at = draw(n), some = draw(n - at < 40 ? n - at : 40);
    switch (draw(5)) {
      case 0: text[at] = (char) draw(256); break;
      case 1: text[at] = marks[draw(sizeof marks - 1)]; break;
      case 2: n = draw(20) == 0 ? at : n; break;
      case 3: memmove(text + at, text + at + some, n - at - some), n -= some; break;
      default: memmove(text + at, text + draw(n - some), some);
    }
  }
  return n;
}

static void use_tokenizer(const ts_tokenizer *tokenizer) {
  static const char text[] = "In the  beginning\n</s>[MASK] 12345 \xc3\xa9\xe6\x97\xa5 <0x41> x";
  ts_encoder *encoder = ts_encoder_create(tokenizer);
  ts_ids ids = {0};
  ts_text back = {0};
  ts_encode(encoder, text, sizeof text - 1, true, &ids, NULL);
  ts_decode(encoder, ids.id, ids.n, false, &back);
  TS_CHECK(ts_utf8_valid(back.text, back.length) == back.length, "a text that is no UTF-8");
  ts_text_free(&back);
  ts_free(ids.id);
  ts_encoder_destroy(&encoder);
}

static void test_mutations(const char *name) {
  const char *seed = getenv("TEST_SEED"), *count = getenv("TEST_MUTATIONS");
  state = seed != NULL ? strtoull(seed, NULL, 10) : 1;
  size_t n;
  char *golden = read_golden(name, &n), *text = ts_malloc(n + 1);
  int refused = 0, read = 0, explained = 0;
  for (int i = 0; i < (count != NULL ? atoi(count) : 300); ++i) {
    memcpy(text, golden, n);
    write_tokenizer(text, mutate(text, n));
    ts_tokenizer *tokenizer = NULL;
    ts_error err = {0};
    if (ts_tokenizer_open(tap_directory(), &tokenizer, &err) == TS_OK) {
      use_tokenizer(tokenizer);
      ++read;
    } else {
      ++refused;
      explained += err.count > 0;
    }
    ts_tokenizer_close(&tokenizer);
    ts_error_clear(&err);
  }
  tap_ok(refused > 0 && explained == refused, "%s, bytes changed: %d refused, with a reason, %d read", name, refused,
         read);
  ts_free(golden);
  ts_free(text);
}

int main(void) {
  test_bad();
  test_zero_bytes();
  test_bad_texts(tap_path("regression/tokenizer/golden/gpt2_prefix"));
  test_stream(tap_path("regression/tokenizer/golden/llama2"));
  test_mutations("llama2");
  test_mutations("llama3");
  test_mutations("added");
  tap_ok(ts_memory_live() == 0, "all memory freed");
  return tap_done();
}
