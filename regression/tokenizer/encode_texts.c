/* encode_texts DIRECTORY < TEXTS: for regression/tokenizer/fuzz.  Each text is its bytes behind their number; of each,
 * with special tokens and without: the number of ids, the ids, the number of bytes of what they decode to with as many
 * special tokens shown, and these.  Numbers are 32 bits of this machine. */
#include "base/memory.h"
#include "tokenizer/tokenizer.h"

#include <stdint.h>

static void put_number(int64_t number) {
  TS_CHECK(fwrite(&(uint32_t){(uint32_t) number}, 4, 1, stdout) == 1, "not written");
}

static void put_text(ts_encoder *encoder, const char *text, size_t n, bool special) {
  ts_ids ids = {0};
  ts_text decoded = {0};
  ts_error err = {0};
  if (ts_encode(encoder, text, n, special, &ids, &err) != TS_OK) {
    fprintf(stderr, "%s\n", err.text);
    ids.n = 0;
  }
  ts_error_clear(&err);
  ts_decode(encoder, ids.id, ids.n, special, &decoded);
  put_number(ids.n);
  fwrite(ids.id, sizeof *ids.id, (size_t) ids.n, stdout);
  put_number((int64_t) decoded.length);
  fwrite(decoded.text, 1, decoded.length, stdout);
  ts_free(ids.id);
  ts_text_free(&decoded);
}

int main(int argc, char **argv) {
  ts_tokenizer *tokenizer = NULL;
  ts_error err = {0};
  if (argc != 2 || ts_tokenizer_open(argv[1], &tokenizer, &err) != TS_OK) {
    fprintf(stderr, "%s\n", argc == 2 ? err.text : "usage: encode_texts DIRECTORY");
    ts_error_clear(&err);
    return 2;
  }
  ts_encoder *encoder = ts_encoder_create(tokenizer);
  for (uint32_t n; fread(&n, sizeof n, 1, stdin) == 1;) {
    char *text = ts_malloc((size_t) n + 1);
    TS_CHECK(fread(text, 1, n, stdin) == n, "a text is cut off");
    put_text(encoder, text, n, true);
    put_text(encoder, text, n, false);
    ts_free(text);
  }
  ts_encoder_destroy(&encoder);
  ts_tokenizer_close(&tokenizer);
  return ts_memory_live() == 0 ? 0 : 1;
}
