#include "tokenizer/bytes.h"

#include "tokenizer/unicode.h"

static bool is_visible(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

int32_t ts_byte_character(int byte) {
  int before = 0;
  for (int b = 0; b < byte; ++b) {
    before += !is_visible(b);
  }
  return is_visible(byte) ? byte : 256 + before;
}

/* 256 and more are the bytes that are not visible, in their order: 0..32, 127..160, 173. */
static int byte_of(int32_t c) {
  if (c < 256) {
    return is_visible(c) ? c : -1;
  }
  int place = c - 256;
  return place <= 32 ? place : place <= 66 ? place - 33 + 127 : place == 67 ? 173 : -1;
}

bool ts_add_bytes_of(ts_text *to, const char *token, size_t n) {
  size_t before = to->length;
  for (size_t at = 0; at < n;) {
    int byte = byte_of(ts_utf8_next(token, &at));
    if (byte < 0) {
      to->length = before;
      return false;
    }
    ts_text_append(to, &(char){(char) byte}, 1);
  }
  return true;
}
