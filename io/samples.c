#include "io/samples.h"

#include "base/memory.h"

#include <math.h>

/* A split: consecutive samples of the stream, or a packing. */
typedef struct part {
  int64_t first, count;
  ts_packing *packing; /* owned; NULL: cut from the stream */
} part;

struct ts_samples {
  ts_tokens *tokens;      /* owned */
  ts_documents documents; /* empty where the stream does without */
  bool indexed;           /* they are there */
  int64_t length;
  int32_t end_token; /* of a stream: -1 where it closes nothing */
  part parts[TS_N_SPLITS];
};

/* ---- opening ---- */

static bool is_packed(const ts_samples_options *o) {
  return o->packing == TS_PACKING_BEST_FIT || o->packing == TS_PACKING_NONE;
}

/* A stream is closed by end tokens as it is read, unless the file knows better. */
static ts_status find_documents(ts_samples *s, const ts_samples_options *o, ts_error *err) {
  int64_t entries = -1;
  if (o->packing == TS_PACKING_STREAM) {
    return TS_OK;
  }
  ts_status status = ts_tokens_find_documents(s->tokens, &entries, err);
  s->indexed = is_packed(o) || entries >= 0 || o->end_token < 0;
  s->end_token = s->indexed ? -1 : o->end_token;
  return status == TS_OK && s->indexed ? ts_documents_find(s->tokens, o->end_token, &s->documents, err) : status;
}

static ts_status refuse_split(const ts_samples_options *o, int64_t all, int64_t tail, ts_error *err) {
  return ts_error_add(err, "%s: no %s is left for %s: validation_fraction = %g of %lld %s is %lld", o->path,
                      is_packed(o) ? "document" : "sample", tail == 0 ? "validation" : "training", o->fraction,
                      (long long) all, is_packed(o) ? "documents" : "samples", (long long) tail);
}

static ts_status pack_documents(ts_samples *s, const ts_samples_options *o, ts_split split, int64_t first, int64_t n,
                                ts_error *err) {
  ts_error why = {0};
  part *to = &s->parts[split];
  bool together = o->packing == TS_PACKING_BEST_FIT;
  ts_status status = ts_packing_create(&s->documents, first, n, o->length, together, &to->packing, &why);
  if (status != TS_OK) {
    ts_error_add(err, "%s: %s", o->path, why.text);
  } else {
    to->count = ts_packing_samples(to->packing);
  }
  ts_error_clear(&why);
  return status;
}

/* `all` samples of the stream, or documents, of which `tail` are for validation. */
static ts_status make_parts(ts_samples *s, const ts_samples_options *o, int64_t all, int64_t tail, ts_error *err) {
  if (!is_packed(o)) {
    s->parts[TS_SPLIT_TRAINING] = (part){.first = 0, .count = all - tail};
    s->parts[TS_SPLIT_VALIDATION] = (part){.first = all - tail, .count = tail};
    return TS_OK;
  }
  ts_status status = pack_documents(s, o, TS_SPLIT_TRAINING, 0, all - tail, err);
  return status == TS_OK ? pack_documents(s, o, TS_SPLIT_VALIDATION, all - tail, tail, err) : status;
}

static ts_status split_file(ts_samples *s, const ts_samples_options *o, ts_error *err) {
  int64_t count = ts_tokens_count(s->tokens), all = is_packed(o) ? s->documents.n : (count - 1) / o->length;
  if (is_packed(o) && all == 0) {
    return ts_error_add(err, "%s: too short: it has no document", o->path);
  }
  if (!is_packed(o) && count < o->length + 1) {
    return ts_error_add(err, "%s: too short: it has %lld tokens, one sample of sequence_length = %lld needs %lld",
                        o->path, (long long) count, (long long) o->length, (long long) o->length + 1);
  }
  int64_t tail = (int64_t) floor(o->fraction * (double) all);
  if (o->fraction > 0 && (tail == 0 || tail == all)) {
    return refuse_split(o, all, tail, err);
  }
  return make_parts(s, o, all, tail, err);
}

ts_status ts_samples_open(const ts_samples_options *options, ts_samples **out, ts_error *err) {
  *out = NULL;
  ts_samples *s = ts_calloc(1, sizeof *s);
  s->length = options->length;
  s->end_token = -1;
  ts_status status =
      ts_tokens_open(options->path, options->format, options->dataset, options->vocab_size, &s->tokens, err);
  status = status == TS_OK ? find_documents(s, options, err) : status;
  status = status == TS_OK ? split_file(s, options, err) : status;
  if (status != TS_OK) {
    ts_samples_close(&s);
  }
  *out = s;
  return status;
}

void ts_samples_close(ts_samples **samples) {
  if (*samples != NULL) {
    for (int split = 0; split < TS_N_SPLITS; ++split) {
      ts_packing_destroy(&(*samples)->parts[split].packing);
    }
    ts_documents_clear(&(*samples)->documents);
    ts_tokens_close(&(*samples)->tokens);
    ts_free(*samples);
    *samples = NULL;
  }
}

/* ---- numbers ---- */

int64_t ts_samples_tokens(const ts_samples *samples) {
  return ts_tokens_count(samples->tokens);
}

int64_t ts_samples_count(const ts_samples *samples, ts_split split) {
  return samples->parts[split].count;
}

int64_t ts_samples_documents(const ts_samples *samples, ts_split split) {
  const ts_packing *packing = samples->parts[split].packing;
  return packing != NULL ? ts_packing_documents(packing) : 0;
}

int64_t ts_samples_filled(const ts_samples *samples, ts_split split) {
  const part *p = &samples->parts[split];
  return p->packing != NULL ? ts_packing_tokens(p->packing) : p->count * samples->length;
}

/* ---- reading ---- */

/* The mask that belongs to `count` tokens; NULL: there is none. */
static ts_status read_mask(ts_samples *s, int64_t first, int64_t count, uint8_t **mask, ts_error *err) {
  *mask = ts_tokens_are_masked(s->tokens) ? *mask : NULL;
  return *mask != NULL ? ts_tokens_read_mask(s->tokens, first, count, *mask, err) : TS_OK;
}

ts_status ts_samples_stream(ts_samples *s, ts_split split, int64_t i, int32_t *tokens, ts_error *err) {
  const part *p = &s->parts[split];
  TS_ASSERT(p->packing == NULL && i >= 0 && i < p->count);
  return ts_tokens_read(s->tokens, (p->first + i) * s->length, s->length + 1, tokens, err);
}

/* Tokens of the file from `first` on, as the documents they are in. */
static void add_documents(const ts_samples *s, int64_t first, const int32_t *tokens, const uint8_t *mask,
                          ts_batch_row *row) {
  int64_t document = ts_documents_at(&s->documents, first);
  for (int64_t at = 0; at < s->length; ++document) {
    int64_t rest = s->documents.first[document + 1] - first - at, room = s->length - at;
    int64_t count = rest < room ? rest : room;
    ts_batch_add(row, tokens + at, mask != NULL ? mask + at : NULL, count, rest > count);
    at += count;
  }
}

static ts_status read_stream(ts_samples *s, ts_split split, int64_t i, ts_samples_room room, ts_batch_row *row,
                             ts_error *err) {
  int64_t first = (s->parts[split].first + i) * s->length;
  ts_status status = ts_samples_stream(s, split, i, room.tokens, err);
  status = status == TS_OK ? read_mask(s, first, s->length + 1, &room.mask, err) : status;
  if (status == TS_OK && s->indexed) {
    add_documents(s, first, room.tokens, room.mask, row);
  } else if (status == TS_OK) {
    ts_batch_add_stream(row, room.tokens, room.mask, s->length, s->end_token);
  }
  return status;
}

static ts_status read_packed(ts_samples *s, const ts_packing *packing, int64_t i, ts_samples_room room,
                             ts_batch_row *row, ts_error *err) {
  ts_status status = TS_OK;
  for (int64_t k = 0; k < ts_packing_pieces(packing, i) && status == TS_OK; ++k) {
    ts_packed piece = ts_packing_piece(packing, i, k);
    status = ts_tokens_read(s->tokens, piece.first, piece.count + piece.goes_on, room.tokens, err);
    status = status == TS_OK ? read_mask(s, piece.first, piece.count + piece.goes_on, &room.mask, err) : status;
    if (status == TS_OK) {
      ts_batch_add(row, room.tokens, room.mask, piece.count, piece.goes_on);
    }
  }
  return status;
}

ts_status ts_samples_read(ts_samples *s, ts_split split, int64_t i, ts_samples_room room, ts_batch_row *row,
                          ts_error *err) {
  const ts_packing *packing = s->parts[split].packing;
  return packing != NULL ? read_packed(s, packing, i, room, row, err) : read_stream(s, split, i, room, row, err);
}
