#include "io/corpus.h"

#include "base/memory.h"
#include "tokenizer/unicode.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  AHEAD = 1024,       /* bytes behind a window that are looked at */
  NEAR = 256,         /* bytes on each side of a place where a text may be cut */
  BLOCK = 1 << 16,    /* bytes that are looked for a newline in at a time */
  WINDOWS_A_TURN = 16 /* of each thread */
};

/* What a thread has for itself. */
typedef struct hand {
  ts_encoder *encoder;
  ts_text text, repaired, near;
  ts_record_room room;
} hand;

/* What a window became. */
typedef struct result {
  ts_record_ids ids;
  int64_t begin, end; /* bytes of the file */
  int64_t lines;      /* up to what is wrong */
  bool parts;
  ts_status status;
  ts_error err;
} result;

typedef struct walk walk;

/* A format: where its windows may begin, and what is made of one. */
typedef struct corpus_format {
  const char *name;
  ts_status (*find_window)(const walk *w, hand *h, int64_t near, int64_t *cut, ts_error *err);
  ts_status (*encode)(const walk *w, hand *h, result *r, ts_error *err);
} corpus_format;

struct walk {
  const corpus_format *format;
  const ts_corpus_options *options;
  const char *path;
  int file;
  int64_t size, window;
  int threads;
  hand *hand;     /* owned, one a thread */
  int64_t merged; /* windows before this one are handed on, or in what is */
  int64_t last;   /* the share ends before this window */
  int64_t lines;  /* of the share, handed on */
  bool parts;     /* a share may end where it does */
  ts_corpus_sink *sink;
  void *user;
};

/* ---- the file ---- */

/* Bytes [from, to) of the file, or up to its end.  Messages get the path, or the line, where they are handed on. */
static ts_status read_bytes(const walk *w, int64_t from, int64_t to, ts_text *out, ts_error *err) {
  to = to < w->size ? to : w->size;
  from = from < to ? from : to;
  size_t wanted = (size_t) (to - from);
  if (out->capacity < wanted + 1) {
    out->capacity = wanted + 1;
    out->text = ts_realloc(out->text, out->capacity, 1);
  }
  out->length = 0;
  while (out->length < wanted) {
    ssize_t n = pread(w->file, out->text + out->length, wanted - out->length, (off_t) (from + (int64_t) out->length));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return ts_error_add(err, "cannot be read: %s", n < 0 ? strerror(errno) : "it became shorter");
    }
    out->length += (size_t) n;
  }
  out->text[wanted] = 0;
  return TS_OK;
}

static ts_status open_corpus(walk *w, ts_error *err) {
  struct stat info;
  w->file = open(w->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (w->file < 0 || fstat(w->file, &info) != 0) {
    return ts_error_add(err, "%s: cannot be read: %s", w->path, strerror(errno));
  }
  w->size = (int64_t) info.st_size;
  return S_ISREG(info.st_mode) ? TS_OK : ts_error_add(err, "%s: is not a regular file", w->path);
}

static int64_t count_windows(const walk *w) {
  return (w->size + w->window - 1) / w->window;
}

static ts_status find_window(const walk *w, hand *h, int64_t k, int64_t *cut, ts_error *err) {
  if (k == 0 || k >= count_windows(w)) {
    *cut = k == 0 ? 0 : w->size;
    return TS_OK;
  }
  return w->format->find_window(w, h, k * w->window, cut, err);
}

/* ---- a text ---- */

static bool is_continuation(char c) {
  return ((unsigned char) c & 0xc0) == 0x80;
}

static size_t back_to_character(const char *text, size_t at) {
  while (at > 0 && is_continuation(text[at])) {
    --at;
  }
  return at;
}

static const char *repair_bytes(const char *text, size_t *n, ts_text *to, int64_t *replaced) {
  size_t before = to->length;
  *replaced += ts_utf8_repair(text, *n, to);
  *n = to->length - before;
  return to->text;
}

/* How good a place looks before anybody has asked the tokenizer: after a line, before a word. */
static int rank_place(const char *text, size_t at) {
  char before = text[at - 1], after = text[at];
  bool space = after == ' ' || after == '\n' || after == '\t' || after == '\r';
  return before == '\n' && !space ? 0 : after == ' ' && before != ' ' && before != '\n' ? 1 : 2;
}

/* Does the tokenizer cut here, as far as the next bytes tell? */
static ts_status try_place(hand *h, const char *text, size_t n, size_t at, bool *parts, ts_error *err) {
  size_t begin = back_to_character(text, at > NEAR ? at - NEAR : 0);
  size_t end = at + NEAR < n ? back_to_character(text, at + NEAR) : n;
  ts_ids ids = {0};
  *parts = ts_utf8_valid(text + begin, end - begin) == end - begin;
  ts_status status = TS_OK;
  if (*parts) {
    ts_joint ends;
    status = ts_encode_part(h->encoder, text + begin, at - begin, end - at, TS_JOINT_INSIDE, &ends, &ids, err);
    *parts = ends == TS_JOINT_INSIDE;
  }
  ts_free(ids.id);
  return status;
}

/* From a place on, the first one of the best rank where the tokenizer cuts; else the first character. */
static ts_status find_text_cut(const walk *w, hand *h, int64_t near, int64_t *cut, ts_error *err) {
  int64_t from = near - NEAR - 3 > 0 ? near - NEAR - 3 : 0, span = w->window - 1 < AHEAD ? w->window - 1 : AHEAD;
  if (read_bytes(w, from, near + span + NEAR, &h->near, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  const char *text = h->near.text;
  size_t n = h->near.length, first = (size_t) (near - from),
         end = first + (size_t) span < n ? first + (size_t) span : n;
  while (first < end && is_continuation(text[first])) {
    ++first;
  }
  size_t begin = 0, found = first;
  while (begin < n && is_continuation(text[begin])) {
    ++begin;
  }
  ts_status status = TS_OK;
  bool parts = false;
  for (int rank = 0; rank < 3; ++rank) {
    for (size_t at = first; at < end && status == TS_OK && !parts; ++at) {
      if (at > begin && !is_continuation(text[at]) && rank_place(text, at) == rank) {
        status = try_place(h, text + begin, n - begin, at - begin, &parts, err);
        found = parts ? at : found;
      }
    }
  }
  *cut = from + (int64_t) found;
  return status;
}

static void add_template(const ts_ids *ids, result *r) {
  int64_t before = r->ids.ids.n;
  ts_ids_add(&r->ids.ids, ids->id, ids->n);
  ts_record_mark(&r->ids, before, true);
}

static ts_status encode_text_window(const walk *w, hand *h, result *r, ts_error *err) {
  const ts_tokenizer *tokenizer = ts_encoder_tokenizer(h->encoder);
  bool begins = r->begin == 0, ends = r->end == w->size;
  if (read_bytes(w, r->begin, r->end + AHEAD, &h->text, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  const char *text = h->text.text;
  size_t n = (size_t) (r->end - r->begin), all = h->text.length;
  all = r->end + AHEAD < w->size ? back_to_character(text, all - 1) : all; /* its last character may be cut */
  size_t ahead = all > n ? all - n : 0;
  if (ts_utf8_valid(text, n + ahead) != n + ahead) {
    int64_t others = 0;
    h->repaired.length = 0;
    repair_bytes(text, &n, &h->repaired, &r->ids.replaced);
    text = repair_bytes(text + (r->end - r->begin), &ahead, &h->repaired, &others);
  }
  if (begins) {
    ts_record_begin(&r->ids);
    add_template(ts_tokenizer_before(tokenizer), r);
  }
  int64_t before = r->ids.ids.n;
  ts_joint end; /* nobody tells the next window of a token before it */
  ts_status status =
      ts_encode_part(h->encoder, text, n, ahead, begins ? TS_JOINT_BEGIN : TS_JOINT_INSIDE, &end, &r->ids.ids, err);
  ts_record_mark(&r->ids, before, true);
  r->parts = end == TS_JOINT_INSIDE || ends;
  if (ends) {
    add_template(ts_tokenizer_after(tokenizer), r);
    ts_record_end(&r->ids, w->options->record.end_token);
  }
  return status;
}

/* ---- lines ---- */

/* Behind the first newline that is not before \a near - 1. */
static ts_status find_line_cut(const walk *w, hand *h, int64_t near, int64_t *cut, ts_error *err) {
  for (int64_t at = near - 1; at < w->size; at += BLOCK) {
    if (at - near > TS_CORPUS_LONGEST) { /* whose line it is says so */
      break;
    }
    if (read_bytes(w, at, at + BLOCK, &h->near, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
    const char *newline = memchr(h->near.text, '\n', h->near.length);
    if (newline != NULL) {
      *cut = at + (newline - h->near.text) + 1;
      return TS_OK;
    }
  }
  *cut = w->size;
  return TS_OK;
}

/* It is the last one of the window. */
static ts_status refuse_longest(const walk *w, hand *h, result *r, ts_error *err) {
  ts_status status = read_bytes(w, r->begin, r->begin + w->window, &h->text, err);
  for (size_t i = 0; i < h->text.length; ++i) {
    r->lines += h->text.text[i] == '\n';
  }
  ++r->lines;
  return status != TS_OK
             ? status
             : ts_error_add(err, "the line is longer than %d MiB; make several of it", TS_CORPUS_LONGEST >> 20);
}

static ts_status encode_lines(const walk *w, hand *h, result *r, ts_error *err) {
  if (r->end - r->begin > TS_CORPUS_LONGEST + w->window) {
    return refuse_longest(w, h, r, err);
  }
  if (read_bytes(w, r->begin, r->end, &h->text, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  const char *line = h->text.text, *end = line + h->text.length;
  if (r->begin == 0 && h->text.length >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
    line += 3; /* as programs of Windows begin a file */
  }
  ts_status status = TS_OK;
  while (line < end && status == TS_OK) {
    const char *newline = memchr(line, '\n', (size_t) (end - line)), *stop = newline != NULL ? newline : end;
    ++r->lines;
    if (!ts_record_is_blank(line, (size_t) (stop - line))) {
      status = ts_record_encode(h->encoder, line, (size_t) (stop - line), &w->options->record, &h->room, &r->ids, err);
    }
    line = stop + 1;
  }
  return status;
}

static const corpus_format formats[] = {{"text", find_text_cut, encode_text_window},
                                        {"jsonl", find_line_cut, encode_lines}};

static const corpus_format *corpus_format_of(const char *name) {
  return &formats[strcmp(name, "jsonl") == 0];
}

/* ---- windows, and their order ---- */

static void reset_result(result *r) {
  ts_record_ids_reset(&r->ids);
  ts_error_clear(&r->err);
  r->lines = 0;
  r->parts = true;
}

/* Windows [k, end) as one. */
static void encode_windows(const walk *w, hand *h, int64_t k, int64_t end, result *r) {
  reset_result(r);
  r->status = find_window(w, h, k, &r->begin, &r->err);
  r->status = r->status == TS_OK ? find_window(w, h, end, &r->end, &r->err) : r->status;
  if (r->status == TS_OK && r->end > r->begin) {
    r->status = w->format->encode(w, h, r, &r->err);
  }
}

/* Lines of the file before the share. */
static int64_t count_lines_before(const walk *w, hand *h, int64_t k) {
  ts_error err = {0};
  int64_t lines = 0, end = 0;
  ts_status status = find_window(w, h, k, &end, &err);
  for (int64_t at = 0; at < end && status == TS_OK; at += BLOCK) {
    status = read_bytes(w, at, at + BLOCK < end ? at + BLOCK : end, &h->text, &err);
    for (size_t i = 0; status == TS_OK && i < h->text.length; ++i) {
      lines += h->text.text[i] == '\n';
    }
  }
  ts_error_clear(&err);
  return lines;
}

static int64_t first_window(const walk *w, int share) {
  return count_windows(w) * share / w->options->n_shares;
}

static ts_status say_wrong(const walk *w, hand *h, const result *r, ts_error *err) {
  if (r->lines == 0) {
    return ts_error_add(err, "%s: %s", w->path, r->err.text);
  }
  int64_t line = count_lines_before(w, h, first_window(w, w->options->share)) + w->lines + r->lines;
  return ts_error_add(err, "%s:%lld: %s", w->path, (long long) line, r->err.text);
}

/* A window that ends where no token may be cut becomes one with the next. */
static ts_status hand_on(walk *w, hand *h, int64_t k, result *r, ts_error *err) {
  if (k < w->merged) {
    return TS_OK;
  }
  int64_t end = k + 1;
  while (r->status == TS_OK && !r->parts && end < w->last) {
    end = end + (end - k) < w->last ? end + (end - k) : w->last; /* twice as many: all tries together cost two */
    if ((end - k) * w->window > TS_CORPUS_UNCUT) {
      return ts_error_add(err, "%s: no place between two tokens was found in %d MiB", w->path, TS_CORPUS_UNCUT >> 21);
    }
    encode_windows(w, h, k, end, r);
  }
  if (r->status != TS_OK) {
    return say_wrong(w, h, r, err);
  }
  w->parts &= r->parts;
  w->merged = end;
  w->lines += r->lines;
  const ts_corpus_part part = {.ids = &r->ids, .bytes = r->end - r->begin};
  return w->sink(w->user, &part, err);
}

static ts_status hand_on_all(walk *w, int64_t first, int64_t n, result *r, ts_error *err) {
  ts_status status = TS_OK;
  hand *h = &w->hand[w->threads]; /* the others have theirs in use */
  for (int64_t i = 0; i < n && status == TS_OK; ++i) {
    status = hand_on(w, h, first + i, &r[i], err);
  }
  return status;
}

/* What one turn has made is handed on while the next one is made. */
static ts_status walk_share(walk *w, result *turn[2], int64_t most, ts_error *err) {
  int64_t at = w->merged, before = 0;
  ts_status status = TS_OK;
  for (int now = 0; (at < w->last || before > 0) && status == TS_OK; now = !now) {
    int64_t n = w->last - at < most ? w->last - at : most;
#pragma omp parallel num_threads(w->threads)
    {
#pragma omp master
      status = hand_on_all(w, at - before, before, turn[!now], err);
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < n; ++i) {
        encode_windows(w, &w->hand[omp_get_thread_num()], at + i, at + i + 1, &turn[now][i]);
      }
    }
    at += n;
    before = n;
  }
  return status;
}

static void clear_hand(hand *h) {
  ts_encoder_destroy(&h->encoder);
  ts_text_free(&h->text);
  ts_text_free(&h->repaired);
  ts_text_free(&h->near);
  ts_record_room_clear(&h->room);
}

static ts_status walk_file(walk *w, const ts_tokenizer *tokenizer, ts_error *err) {
  int64_t most = (int64_t) WINDOWS_A_TURN * w->threads;
  w->merged = first_window(w, w->options->share);
  w->last = first_window(w, w->options->share + 1);
  w->hand = ts_calloc((size_t) w->threads + 1, sizeof *w->hand);
  for (int i = 0; i <= w->threads; ++i) {
    w->hand[i].encoder = ts_encoder_create(tokenizer);
  }
  result *turn[2] = {ts_calloc((size_t) most, sizeof *turn[0]), ts_calloc((size_t) most, sizeof *turn[0])};
  ts_status status = walk_share(w, turn, most, err);
  for (int64_t i = 0; i < 2 * most; ++i) {
    ts_record_ids_clear(&turn[i / most][i % most].ids);
    ts_error_clear(&turn[i / most][i % most].err);
  }
  ts_free(turn[0]);
  ts_free(turn[1]);
  for (int i = 0; i <= w->threads; ++i) {
    clear_hand(&w->hand[i]);
  }
  ts_free(w->hand);
  return status;
}

ts_status ts_corpus_encode(const ts_tokenizer *tokenizer, const char *path, const ts_corpus_options *options,
                           ts_corpus_sink *sink, void *user, bool *parts, ts_error *err) {
  walk w = {.format = corpus_format_of(options->format),
            .options = options,
            .path = path,
            .file = -1,
            .window = options->window > 0 ? options->window : TS_CORPUS_WINDOW,
            .threads = options->threads > 1 ? options->threads : 1,
            .parts = true,
            .sink = sink,
            .user = user};
  TS_ASSERT(options->n_shares > 0 && options->share >= 0 && options->share < options->n_shares);
  ts_status status = open_corpus(&w, err);
  status = status == TS_OK ? walk_file(&w, tokenizer, err) : status;
  if (w.file >= 0) {
    close(w.file);
  }
  if (parts != NULL) {
    *parts = w.parts;
  }
  return status;
}
