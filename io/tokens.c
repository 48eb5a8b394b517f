#include "io/tokens.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/tokens_format.h"

#include <string.h>
#include <strings.h>

ts_status ts_tokens_outside(const ts_tokens *tokens, int64_t offset, int64_t value, ts_error *err) {
  return ts_error_add(err,
                      "%s: the token at offset %lld is %lld, outside the vocabulary: vocab_size = %lld takes 0..%lld",
                      tokens->path, (long long) offset, (long long) value, (long long) tokens->vocab_size,
                      (long long) tokens->vocab_size - 1);
}

static void close_mapping(ts_tokens *tokens) {
  ts_mapping_close(&tokens->mapping);
}

static ts_status open_text(ts_tokens *tokens, ts_error *err) {
  if (ts_mapping_open(tokens->path, &tokens->mapping, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  tokens->count = (int64_t) tokens->mapping.size;
  for (int64_t i = 0; tokens->vocab_size < 256 && i < tokens->count; ++i) {
    if (tokens->mapping.bytes[i] >= tokens->vocab_size) {
      return ts_tokens_outside(tokens, i, tokens->mapping.bytes[i], err);
    }
  }
  return TS_OK;
}

static ts_status read_text_tokens(ts_tokens *tokens, int64_t first, int64_t count, int32_t *out, ts_error *err) {
  (void) err;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = tokens->mapping.bytes[first + i];
  }
  return TS_OK;
}

static int32_t little_int32(const uint8_t *bytes) {
  return (int32_t) ((uint32_t) bytes[0] | (uint32_t) bytes[1] << 8 | (uint32_t) bytes[2] << 16 |
                    (uint32_t) bytes[3] << 24);
}

#define BLOCK ((int64_t) 1 << 16)

/* A token without a sign, as files have it: 2 bytes or 4. */
static uint32_t plain_at(const uint8_t *from, int64_t i, int width) {
  return width == 2 ? (uint32_t) from[2 * i] | (uint32_t) from[2 * i + 1] << 8 : (uint32_t) little_int32(from + 4 * i);
}

/* No early end and values no wider than they are, so that the compiler vectorises it: checking a file costs reading
 * it. */
static uint32_t largest_token(const uint8_t *from, int64_t count, int width) {
  uint16_t narrow = 0;
  uint32_t wide = 0;
  for (int64_t i = 0; width == 2 && i < count; ++i) {
    uint16_t token = (uint16_t) plain_at(from, i, 2);
    narrow = token > narrow ? token : narrow;
  }
  for (int64_t i = 0; width == 4 && i < count; ++i) {
    uint32_t token = plain_at(from, i, 4);
    wide = token > wide ? token : wide;
  }
  return width == 2 ? narrow : wide;
}

static const uint8_t *plain_tokens(const ts_tokens *tokens, int64_t first) {
  return tokens->mapping.bytes + tokens->head + tokens->width * first;
}

static ts_status read_plain(ts_tokens *tokens, int64_t first, int64_t count, int32_t *out, ts_error *err) {
  const uint8_t *from = plain_tokens(tokens, first);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t token = plain_at(from, i, tokens->width);
    if (token >= tokens->vocab_size) {
      return ts_tokens_outside(tokens, first + i, token, err);
    }
    out[i] = (int32_t) token;
  }
  return TS_OK;
}

/* At most 2^31 tokens: all of them are looked at before a run begins. */
static ts_status check_plain(ts_tokens *tokens, ts_error *err) {
  ts_status status = TS_OK;
  int32_t *block = ts_malloc((size_t) BLOCK * sizeof *block);
  bool fits = tokens->width == 2 && tokens->vocab_size > UINT16_MAX;
  for (int64_t first = 0; !fits && first < tokens->count && status == TS_OK; first += BLOCK) {
    int64_t count = tokens->count - first < BLOCK ? tokens->count - first : BLOCK;
    if (largest_token(plain_tokens(tokens, first), count, tokens->width) >= tokens->vocab_size) {
      status = read_plain(tokens, first, count, block, err);
    }
  }
  ts_free(block);
  return status;
}

/* llm.c's two headers; the first is the one that is written here. */
static const struct {
  int32_t magic, version;
  int width;
} headers[] = {{TS_TOKENS_BIN_MAGIC, TS_TOKENS_BIN_VERSION, 2}, {20240801, 7, 4}};

static ts_status check_header(ts_tokens *tokens, ts_error *err) {
  int32_t magic = little_int32(tokens->mapping.bytes), version = little_int32(tokens->mapping.bytes + 4);
  for (int i = 0; i < 2; ++i) {
    if (headers[i].magic == magic && headers[i].version == version) {
      tokens->width = headers[i].width;
      return TS_OK;
    }
  }
  return ts_error_add(
      err,
      "%s: not a token file that can be read here: magic %d, version %d; accepted: magic %d, version %d (uint16 "
      "tokens), magic %d, version %d (uint32 tokens), or with data.format = \"uint16\" a file of uint16 tokens "
      "without a header, as nanoGPT writes it",
      tokens->path, magic, version, headers[0].magic, headers[0].version, headers[1].magic, headers[1].version);
}

static ts_status open_bin(ts_tokens *tokens, ts_error *err) {
  const ts_mapping *file = &tokens->mapping;
  if (ts_mapping_open(tokens->path, &tokens->mapping, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (file->size < TS_TOKENS_BIN_HEADER) {
    return ts_error_add(err, "%s: truncated: %zu bytes, the header alone has %d", tokens->path, file->size,
                        TS_TOKENS_BIN_HEADER);
  }
  if (check_header(tokens, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  tokens->head = TS_TOKENS_BIN_HEADER;
  tokens->count = little_int32(file->bytes + 8);
  int64_t found = (int64_t) file->size - TS_TOKENS_BIN_HEADER, bytes = tokens->width * tokens->count;
  if (tokens->count < 0 || found != bytes) {
    return ts_error_add(err, "%s: %s: the header says %lld tokens of %d bytes, %lld bytes follow it", tokens->path,
                        found < bytes ? "truncated" : "header and size disagree", (long long) tokens->count,
                        tokens->width, (long long) found);
  }
  return check_plain(tokens, err);
}

static ts_status open_uint16(ts_tokens *tokens, ts_error *err) {
  if (ts_mapping_open(tokens->path, &tokens->mapping, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (tokens->mapping.size % 2 != 0) {
    return ts_error_add(err, "%s: truncated: %zu bytes are no whole number of tokens of 2 bytes", tokens->path,
                        tokens->mapping.size);
  }
  tokens->width = 2;
  tokens->count = (int64_t) (tokens->mapping.size / 2);
  return tokens->count <= INT32_MAX ? check_plain(tokens, err) : TS_OK;
}

static const ts_tokens_format text = {
    .name = "text", .open = open_text, .read = read_text_tokens, .close = close_mapping};
static const ts_tokens_format bin = {.name = "bin",
                                     .magic = {"\x88\xd8\x34\x01", "\xa1\xd9\x34\x01"}, /* of `headers` */
                                     .magic_bytes = 4,
                                     .extensions = {".bin"},
                                     .open = open_bin,
                                     .read = read_plain,
                                     .close = close_mapping};
static const ts_tokens_format uint16 = {
    .name = "uint16", .open = open_uint16, .read = read_plain, .close = close_mapping};

/* It has no tokens of its own, and nobody has made them. */
static ts_status refuse_jsonl(ts_tokens *tokens, ts_error *err) {
  return ts_error_add(err, "%s: is jsonl, an object a line, of which a tokenizer makes tokens: set data.tokenizer",
                      tokens->path);
}

static const ts_tokens_format jsonl = {
    .name = "jsonl", .extensions = {".jsonl", ".ndjson"}, .open = refuse_jsonl, .close = close_mapping};
static const ts_tokens_format *const formats[] = {&text, &jsonl, &bin, &uint16, &ts_tokens_hdf5, &ts_tokens_megatron};
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

static const ts_tokens_format *find_format(const char *name) {
  for (int i = 0; i < N_FORMATS; ++i) {
    if (strcmp(formats[i]->name, name) == 0) {
      return formats[i];
    }
  }
  return NULL;
}

bool ts_tokens_is_called(const char *path, const char *extension) {
  size_t n = strlen(path), m = extension == NULL ? 0 : strlen(extension);
  return m > 0 && n >= m && strcasecmp(path + n - m, extension) == 0;
}

static bool begins_with(const ts_mapping *file, const char *magic, size_t n) {
  return magic != NULL && file->size >= n && memcmp(file->bytes, magic, n) == 0;
}

/* NULL where no first bytes are known. */
static ts_status guess_by_head(const char *path, const ts_tokens_format **out, ts_error *err) {
  ts_mapping file;
  if (ts_mapping_open(path, &file, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  for (int i = 0; i < N_FORMATS && *out == NULL; ++i) {
    if (begins_with(&file, formats[i]->magic[0], formats[i]->magic_bytes) ||
        begins_with(&file, formats[i]->magic[1], formats[i]->magic_bytes)) {
      *out = formats[i];
    }
  }
  ts_status status = *out != NULL ? TS_OK : ts_tokens_check_head(path, &file, err);
  ts_mapping_close(&file);
  return status;
}

static ts_status guess_by_name(const char *path, const ts_tokens_format **out, ts_error *err) {
  for (int i = 0; i < N_FORMATS && *out == NULL; ++i) {
    if (ts_tokens_is_called(path, formats[i]->extensions[0]) || ts_tokens_is_called(path, formats[i]->extensions[1])) {
      *out = formats[i];
    }
  }
  return *out != NULL ? TS_OK : ts_tokens_check_name(path, err);
}

static ts_status guess_format(const char *path, const ts_tokens_format **out, ts_error *err) {
  *out = ts_tokens_is_megatron(path) ? &ts_tokens_megatron : NULL;
  ts_status status = *out == NULL ? guess_by_head(path, out, err) : TS_OK;
  status = status == TS_OK && *out == NULL ? guess_by_name(path, out, err) : status;
  *out = *out == NULL ? &text : *out;
  return status;
}

static ts_status choose_format(const char *path, const char *name, const ts_tokens_format **out, ts_error *err) {
  if (strcmp(name, "auto") == 0) {
    return guess_format(path, out, err);
  }
  *out = find_format(name);
  return *out != NULL
             ? TS_OK
             : ts_error_add(err, "%s: unknown format \"%s\"; accepted: auto, text, jsonl, bin, uint16, hdf5, megatron",
                            path, name);
}

ts_status ts_tokens_guess(const char *path, const char *format, const char **name, ts_error *err) {
  const ts_tokens_format *row;
  ts_status status = choose_format(path, format, &row, err);
  *name = status == TS_OK ? row->name : NULL;
  return status;
}

ts_status ts_tokens_open(const char *path, const char *format, const char *dataset, int64_t vocab_size, ts_tokens **out,
                         ts_error *err) {
  *out = NULL;
  TS_ASSERT(vocab_size > 0 && vocab_size <= INT32_MAX);
  const ts_tokens_format *row;
  if (choose_format(path, format, &row, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_tokens *tokens = ts_calloc(1, sizeof *tokens);
  tokens->format = row;
  tokens->path = ts_strdup(path);
  tokens->dataset = ts_strdup(dataset);
  tokens->vocab_size = vocab_size;
  if (row->open(tokens, err) != TS_OK) {
    ts_tokens_close(&tokens);
    return TS_BAD_INPUT;
  }
  *out = tokens;
  return TS_OK;
}

int64_t ts_tokens_count(const ts_tokens *tokens) {
  return tokens->count;
}

ts_status ts_tokens_read(ts_tokens *tokens, int64_t first, int64_t count, int32_t *out, ts_error *err) {
  TS_ASSERT(first >= 0 && count >= 0 && count <= tokens->count - first);
  return tokens->format->read(tokens, first, count, out, err);
}

const char *ts_tokens_path(const ts_tokens *tokens) {
  return tokens->path;
}

ts_status ts_tokens_find_documents(ts_tokens *tokens, int64_t *n, ts_error *err) {
  *n = -1;
  return tokens->format->find_documents != NULL ? tokens->format->find_documents(tokens, n, err) : TS_OK;
}

ts_status ts_tokens_read_documents(ts_tokens *tokens, int64_t first, int64_t count, int64_t *out, ts_error *err) {
  return tokens->format->read_documents(tokens, first, count, out, err);
}

bool ts_tokens_are_masked(const ts_tokens *tokens) {
  return tokens->masked;
}

ts_status ts_tokens_read_mask(ts_tokens *tokens, int64_t first, int64_t count, uint8_t *out, ts_error *err) {
  TS_ASSERT(tokens->masked && first >= 0 && count >= 0 && count <= tokens->count - first);
  return tokens->format->read_mask(tokens, first, count, out, err);
}

void ts_tokens_close(ts_tokens **tokens) {
  if (*tokens != NULL) {
    (*tokens)->format->close(*tokens);
    ts_free((*tokens)->path);
    ts_free((*tokens)->dataset);
    ts_free(*tokens);
    *tokens = NULL;
  }
}
