/* Megatron-LM's indexed dataset: PREFIX.bin has tokens alone, PREFIX.idx, little-endian:
 *
 *     9 bytes    "MMIDIDX", two zeros          8 bytes   version, 1
 *     1 byte     type of a token (`kinds`)     8, 8      number of sequences S, of document indices D
 *     4 S bytes  tokens of each sequence       8 S       where in the .bin each begins, in bytes
 *     8 D bytes  document indices: the sequence each document begins with, and at the end S
 *
 * The tokens of the file are those of the sequences in their order, wherever in the .bin they lie.  8 bytes a sequence
 * of memory; the files are mapped. */
#include "base/memory.h"
#include "base/text.h"
#include "io/tokens_format.h"

#include <string.h>
#include <unistd.h>

#define MAGIC "MMIDIDX\0\0"
#define MAGIC_BYTES 9
enum { HEADER = MAGIC_BYTES + 8 + 1 + 8 + 8 };

/* By their code; those without a width are no integers. */
static const struct {
  const char *name;
  int width;
  bool is_signed;
} kinds[] = {{NULL, 0, false},   {"uint8", 1, false},   {"int8", 1, true},     {"int16", 2, true},  {"int32", 4, true},
             {"int64", 8, true}, {"float64", 0, false}, {"float32", 0, false}, {"uint16", 2, false}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static uint64_t little_of(const uint8_t *bytes, int n) {
  uint64_t value = 0;
  for (int i = 0; i < n; ++i) {
    value |= (uint64_t) bytes[i] << 8 * i;
  }
  return value;
}

static int64_t integer_at(const uint8_t *bytes, int width, bool is_signed) {
  int unused = 64 - 8 * width;
  uint64_t value = little_of(bytes, width) << unused;
  return is_signed ? (int64_t) value >> unused : (int64_t) (value >> unused);
}

static int64_t size_of(const ts_tokens *tokens, int64_t sequence) {
  return integer_at(tokens->index.bytes + HEADER + 4 * sequence, 4, true);
}

static int64_t pointer_of(const ts_tokens *tokens, int64_t sequence) {
  return integer_at(tokens->index.bytes + HEADER + 4 * tokens->n_sequences + 8 * sequence, 8, true);
}

static int64_t document_of(const ts_tokens *tokens, int64_t entry) {
  return integer_at(tokens->index.bytes + HEADER + 12 * tokens->n_sequences + 8 * entry, 8, true);
}

/* ---- names ---- */

static bool is_half(const char *path) {
  return ts_tokens_is_called(path, ".idx") || ts_tokens_is_called(path, ".bin");
}

static char *prefix_of(const char *path) {
  return ts_format("%.*s", (int) (strlen(path) - (is_half(path) ? strlen(".idx") : 0)), path);
}

/* A file of just that name is what is meant. */
bool ts_tokens_is_megatron(const char *path) {
  char *prefix = prefix_of(path), *idx = ts_format("%s.idx", prefix);
  ts_mapping index = {0};
  bool there = (is_half(path) || access(path, F_OK) != 0) && access(idx, F_OK) == 0 &&
               ts_mapping_open(idx, &index, NULL) == TS_OK;
  bool is = there && index.size >= MAGIC_BYTES && memcmp(index.bytes, MAGIC, MAGIC_BYTES) == 0;
  ts_mapping_close(&index);
  ts_free(prefix);
  ts_free(idx);
  return is;
}

/* ---- opening: messages begin with the path that was given ---- */

static ts_status map_half(const ts_tokens *tokens, const char *extension, ts_mapping *out, ts_error *err) {
  char *prefix = prefix_of(tokens->path), *path = ts_format("%s%s", prefix, extension);
  ts_error why = {0};
  ts_status status = ts_mapping_open(path, out, &why);
  if (status != TS_OK) {
    bool same = strcmp(path, tokens->path) == 0;
    ts_error_add(err, "%s%s%s", same ? "" : tokens->path, same ? "" : ": ", why.text);
  }
  ts_error_clear(&why);
  ts_free(prefix);
  ts_free(path);
  return status;
}

static ts_status check_kind(ts_tokens *tokens, ts_error *err) {
  const uint8_t *head = tokens->index.bytes;
  if (tokens->index.size < HEADER) {
    return ts_error_add(err, "%s: its .idx is truncated: %zu bytes, the header alone has %d", tokens->path,
                        tokens->index.size, HEADER);
  }
  uint64_t version = little_of(head + MAGIC_BYTES, 8);
  if (memcmp(head, MAGIC, MAGIC_BYTES) != 0 || version != 1) {
    return ts_error_add(err, "%s: its .idx is not one of Megatron's that can be read here: %s", tokens->path,
                        memcmp(head, MAGIC, MAGIC_BYTES) != 0 ? "it does not begin with MMIDIDX"
                                                              : "its version is not 1");
  }
  int code = head[MAGIC_BYTES + 8];
  if (code >= N_KINDS || kinds[code].width == 0) {
    return ts_error_add(err, "%s: its .idx says type %d%s%s; accepted: integers, 1 to 5 and 8", tokens->path, code,
                        code > 0 && code < N_KINDS ? ", " : "", code > 0 && code < N_KINDS ? kinds[code].name : "");
  }
  tokens->kind = code;
  return TS_OK;
}

/* Neither number is larger than the file before they are multiplied. */
static ts_status check_lengths(ts_tokens *tokens, ts_error *err) {
  const uint8_t *head = tokens->index.bytes + MAGIC_BYTES + 9;
  uint64_t rest = tokens->index.size - HEADER, sequences = little_of(head, 8), entries = little_of(head + 8, 8);
  if (sequences > rest / 12 || entries > rest / 8 || 12 * sequences + 8 * entries != rest) {
    return ts_error_add(err,
                        "%s: its .idx is truncated, or header and size disagree: %llu sequences and %llu document "
                        "indices do not take the %llu bytes behind the header",
                        tokens->path, (unsigned long long) sequences, (unsigned long long) entries,
                        (unsigned long long) rest);
  }
  tokens->n_sequences = (int64_t) sequences;
  tokens->n_entries = (int64_t) entries;
  return TS_OK;
}

static ts_status check_sequences(ts_tokens *tokens, ts_error *err) {
  int64_t width = kinds[tokens->kind].width, bytes = (int64_t) tokens->mapping.size;
  tokens->starts = ts_malloc(((size_t) tokens->n_sequences + 1) * sizeof *tokens->starts);
  tokens->starts[0] = 0;
  for (int64_t i = 0; i < tokens->n_sequences; ++i) {
    int64_t size = size_of(tokens, i), pointer = pointer_of(tokens, i);
    if (size < 0 || pointer < 0 || pointer > bytes || size > (bytes - pointer) / width) {
      return ts_error_add(err,
                          "%s: its .idx says that sequence %lld has %lld tokens of %lld bytes from byte %lld on; its "
                          ".bin has %lld bytes",
                          tokens->path, (long long) i, (long long) size, (long long) width, (long long) pointer,
                          (long long) bytes);
    }
    if (size > INT64_MAX - tokens->starts[i]) {
      return ts_error_add(err, "%s: its .idx has more tokens than 64 bits can count", tokens->path);
    }
    tokens->starts[i + 1] = tokens->starts[i] + size;
  }
  tokens->count = tokens->starts[tokens->n_sequences];
  return TS_OK;
}

static ts_status check_entries(const ts_tokens *tokens, ts_error *err) {
  int64_t last = tokens->n_entries > 0 ? 0 : -1;
  for (int64_t i = 0; i < tokens->n_entries; ++i) {
    int64_t entry = document_of(tokens, i);
    if (entry < last || entry > tokens->n_sequences || (i == 0 && entry != 0)) {
      return ts_error_add(err,
                          "%s: document index %lld of its .idx is %lld, after %lld, of %lld sequences; accepted: "
                          "0, then ascending",
                          tokens->path, (long long) i, (long long) entry, (long long) last,
                          (long long) tokens->n_sequences);
    }
    last = entry;
  }
  return last == tokens->n_sequences
             ? TS_OK
             : ts_error_add(err, "%s: the document indices of its .idx end with %lld, not with its %lld sequences",
                            tokens->path, (long long) last, (long long) tokens->n_sequences);
}

static ts_status open_megatron(ts_tokens *tokens, ts_error *err) {
  ts_status status = map_half(tokens, ".idx", &tokens->index, err);
  status = status == TS_OK ? map_half(tokens, ".bin", &tokens->mapping, err) : status;
  status = status == TS_OK ? check_kind(tokens, err) : status;
  status = status == TS_OK ? check_lengths(tokens, err) : status;
  status = status == TS_OK ? check_sequences(tokens, err) : status;
  return status == TS_OK ? check_entries(tokens, err) : status;
}

/* ---- reading ---- */

/* The last sequence that begins at or before the token. */
static int64_t sequence_at(const ts_tokens *tokens, int64_t token) {
  int64_t low = 0, high = tokens->n_sequences;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    *(tokens->starts[middle] <= token ? &low : &high) = middle;
  }
  return low;
}

static ts_status read_megatron(ts_tokens *tokens, int64_t first, int64_t count, int32_t *out, ts_error *err) {
  int width = kinds[tokens->kind].width;
  bool is_signed = kinds[tokens->kind].is_signed;
  int64_t sequence = count > 0 ? sequence_at(tokens, first) : 0;
  for (int64_t i = 0; i < count; ++i) {
    while (first + i >= tokens->starts[sequence + 1]) {
      ++sequence;
    }
    int64_t byte = pointer_of(tokens, sequence) + (first + i - tokens->starts[sequence]) * width;
    int64_t value = integer_at(tokens->mapping.bytes + byte, width, is_signed);
    if (value < 0 || value >= tokens->vocab_size) {
      return ts_tokens_outside(tokens, first + i, value, err);
    }
    out[i] = (int32_t) value;
  }
  return TS_OK;
}

static ts_status find_megatron_documents(ts_tokens *tokens, int64_t *n, ts_error *err) {
  (void) err;
  *n = tokens->n_entries > 0 ? tokens->n_entries - 1 : 0; /* the last one is the end */
  return TS_OK;
}

static ts_status read_megatron_documents(ts_tokens *tokens, int64_t first, int64_t count, int64_t *out, ts_error *err) {
  (void) err;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = tokens->starts[document_of(tokens, first + i)];
  }
  return TS_OK;
}

static void close_megatron(ts_tokens *tokens) {
  ts_mapping_close(&tokens->mapping);
  ts_mapping_close(&tokens->index);
  ts_free(tokens->starts);
}

const ts_tokens_format ts_tokens_megatron = {.name = "megatron",
                                             .magic = {MAGIC},
                                             .magic_bytes = MAGIC_BYTES,
                                             .extensions = {".idx"},
                                             .open = open_megatron,
                                             .read = read_megatron,
                                             .close = close_megatron,
                                             .find_documents = find_megatron_documents,
                                             .read_documents = read_megatron_documents};
