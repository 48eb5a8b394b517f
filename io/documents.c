#include "io/documents.h"

#include "base/memory.h"

#define WINDOW ((int64_t) 65536) /* entries or tokens read at a time */

/* The list while it is made. */
typedef struct growing {
  ts_documents *to;
  int64_t capacity;
} growing;

static void add_first(growing *list, int64_t first) {
  TS_GROW(list->to->first, list->to->n, list->capacity);
  list->to->first[list->to->n++] = first;
}

static ts_status fail_entry(const ts_tokens *tokens, int64_t entry, int64_t value, ts_error *err) {
  return ts_error_add(err, "%s: entry %lld of its index of documents is %lld; accepted: %s%lld", ts_tokens_path(tokens),
                      (long long) entry, (long long) value, entry == 0 ? "" : "from the one before it to ",
                      entry == 0 ? 0LL : (long long) ts_tokens_count(tokens));
}

/* Two that are equal are a document of no tokens, which is left out. */
static ts_status take_entries_of(const ts_tokens *tokens, growing *list, int64_t at, const int64_t *entry, int64_t n,
                                 int64_t *last, ts_error *err) {
  int64_t count = ts_tokens_count(tokens);
  for (int64_t i = 0; i < n; ++i) {
    if (entry[i] < *last || entry[i] > count || (at + i == 0 && entry[i] != 0)) {
      return fail_entry(tokens, at + i, entry[i], err);
    }
    if (list->to->n > 0 && list->to->first[list->to->n - 1] == entry[i]) {
      --list->to->n;
    }
    *last = entry[i];
    add_first(list, entry[i]);
  }
  return TS_OK;
}

static ts_status read_document_index(ts_tokens *tokens, int64_t n, growing *list, ts_error *err) {
  int64_t *window = ts_malloc((size_t) WINDOW * sizeof *window), last = 0;
  ts_status status = TS_OK;
  for (int64_t at = 0; at < n && status == TS_OK; at += WINDOW) {
    int64_t some = n - at < WINDOW ? n - at : WINDOW;
    status = ts_tokens_read_documents(tokens, at, some, window, err);
    status = status == TS_OK ? take_entries_of(tokens, list, at, window, some, &last, err) : status;
  }
  if (status == TS_OK && n == 0 && ts_tokens_count(tokens) > 0) {
    status = ts_error_add(err, "%s: its index of documents is empty; it begins with 0", ts_tokens_path(tokens));
  }
  ts_free(window);
  return status;
}

static ts_status scan_tokens(ts_tokens *tokens, int32_t end_token, growing *list, ts_error *err) {
  int32_t *window = ts_malloc((size_t) WINDOW * sizeof *window);
  int64_t count = ts_tokens_count(tokens);
  ts_status status = TS_OK;
  bool begins = true;
  for (int64_t at = 0; at < count && status == TS_OK; at += WINDOW) {
    int64_t some = count - at < WINDOW ? count - at : WINDOW;
    status = ts_tokens_read(tokens, at, some, window, err);
    for (int64_t i = 0; i < some && status == TS_OK; ++i) {
      if (begins) {
        add_first(list, at + i);
      }
      begins = window[i] == end_token;
    }
  }
  ts_free(window);
  return status;
}

ts_status ts_documents_find(ts_tokens *tokens, int32_t end_token, ts_documents *out, ts_error *err) {
  *out = (ts_documents){0};
  growing list = {.to = out};
  int64_t n, count = ts_tokens_count(tokens);
  ts_status status = ts_tokens_find_documents(tokens, &n, err);
  if (status == TS_OK && n < 0 && end_token < 0) {
    status = ts_error_add(err, "%s: has no index of its documents: model.eos_token_id must say which token ends one",
                          ts_tokens_path(tokens));
  } else if (status == TS_OK) {
    status = n >= 0 ? read_document_index(tokens, n, &list, err) : scan_tokens(tokens, end_token, &list, err);
  }
  if (status != TS_OK) {
    ts_documents_clear(out);
    return status;
  }
  if (out->n > 0 && out->first[out->n - 1] == count) {
    --out->n; /* the last one has no tokens */
  }
  out->first = ts_realloc(out->first, (size_t) out->n + 1, sizeof *out->first);
  out->first[out->n] = count;
  return TS_OK;
}

int64_t ts_documents_at(const ts_documents *documents, int64_t offset) {
  int64_t low = 0, high = documents->n;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    *(documents->first[middle] <= offset ? &low : &high) = middle;
  }
  return low;
}

void ts_documents_clear(ts_documents *documents) {
  ts_free(documents->first);
  *documents = (ts_documents){0};
}
