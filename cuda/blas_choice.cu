/* The table of chosen algorithms and its text. */
#include "cuda/attention_choice.h"
#include "cuda/blas_choice.h"
#include "cuda/device.h"

#include <cublasLt.h>

extern "C" {
#include "base/memory.h"
#include "base/text.h"
}

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct choice {
  ts_blas_spec spec;
  unsigned char algo[TS_BLAS_ALGO_BYTES];
} choice;

typedef struct choices {
  choice *row;
  int n, capacity;
  ts_attention_choice *attention;
  int n_attention, attention_capacity;
} choices;

static choices table;

/* ---- the table ---- */

static bool same_spec(const ts_blas_spec *x, const ts_blas_spec *y) {
  return x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc &&
         x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b && x->in == y->in && x->out == y->out &&
         x->prior == y->prior && x->epilogue == y->epilogue && x->tf32 == y->tf32;
}

static const unsigned char *find_algorithm(const choices *in, const ts_blas_spec *spec) {
  for (int i = 0; i < in->n; ++i) {
    if (same_spec(&in->row[i].spec, spec)) {
      return in->row[i].algo;
    }
  }
  return NULL;
}

static void put_algorithm(choices *to, const ts_blas_spec *spec, const void *algo) {
  if (to->n >= to->capacity) {
    to->capacity = to->capacity > 0 ? 2 * to->capacity : 32;
    to->row = (choice *) ts_realloc(to->row, (size_t) to->capacity, sizeof *to->row);
  }
  to->row[to->n].spec = *spec;
  memcpy(to->row[to->n++].algo, algo, TS_BLAS_ALGO_BYTES);
}

const unsigned char *ts_blas_choices_find(const ts_blas_spec *spec) {
  return find_algorithm(&table, spec);
}

void ts_blas_choices_put(const ts_blas_spec *spec, const void *algo) {
  put_algorithm(&table, spec, algo);
}

void ts_blas_choices_drop(const ts_blas_spec *spec) {
  for (int i = 0; i < table.n; ++i) {
    if (same_spec(&table.row[i].spec, spec)) {
      memmove(&table.row[i], &table.row[i + 1], (size_t) (--table.n - i) * sizeof *table.row);
    }
  }
}

void ts_blas_choices_clear(void) {
  ts_free(table.row);
  memset(&table, 0, sizeof table);
  ts_attention_choices_clear();
}

/* ---- text ---- */

char *ts_blas_spec_text(const ts_blas_spec *s, char *text) {
  snprintf(text, TS_BLAS_SPEC_TEXT,
           "m=%" PRId64 " n=%" PRId64 " k=%" PRId64 " lda=%" PRId64 " ldb=%" PRId64 " ldc=%" PRId64
           " a=%c b=%c in=%s out=%s prior=%d epilogue=%d tf32=%d",
           s->m, s->n, s->k, s->lda, s->ldb, s->ldc, s->transpose_a ? 't' : 'n', s->transpose_b ? 't' : 'n',
           ts_dtype_name(s->in), ts_dtype_name(s->out), (int) s->prior, (int) s->epilogue, s->tf32);
  return text;
}

static char *head_text(void) {
  return ts_format("tessera algorithms 1\ndevice %s\ncublaslt %zu\n", ts_cuda_device_name(), cublasLtGetVersion());
}

char *ts_cuda_choices_write(void) {
  ts_text text = {};
  char *head = head_text(), spec[TS_BLAS_SPEC_TEXT];
  ts_text_add(&text, "%s", head);
  ts_free(head);
  for (int i = 0; i < table.n; ++i) {
    ts_text_add(&text, "%s algo=", ts_blas_spec_text(&table.row[i].spec, spec));
    for (int k = 0; k < TS_BLAS_ALGO_BYTES; ++k) {
      ts_text_add(&text, "%02x", table.row[i].algo[k]);
    }
    ts_text_add(&text, "\n");
  }
  ts_attention_choices_write(&text);
  return text.text;
}

static bool is_float_name(const char *name, ts_dtype *dtype) {
  static const ts_dtype types[] = {TS_F32, TS_BF16, TS_F16};
  for (ts_dtype type : types) {
    if (strcmp(name, ts_dtype_name(type)) == 0) {
      *dtype = type;
      return true;
    }
  }
  return false;
}

static int digit_of(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_algo(const char *text, unsigned char *algo) {
  for (int k = 0; k < TS_BLAS_ALGO_BYTES; ++k) {
    int high = digit_of(text[2 * k]), low = high < 0 ? -1 : digit_of(text[2 * k + 1]);
    if (low < 0) {
      return false;
    }
    algo[k] = (unsigned char) (16 * high + low);
  }
  return text[2 * TS_BLAS_ALGO_BYTES] == '\0';
}

static bool is_size(int64_t value) {
  return value > 0 && value <= INT32_MAX;
}

static bool is_possible(const ts_blas_spec *s, int prior, int epilogue) {
  return is_size(s->m) && is_size(s->n) && is_size(s->k) && s->lda >= (s->transpose_a ? s->m : s->k) &&
         s->ldb >= (s->transpose_b ? s->k : s->n) && s->ldc >= s->n && (s->out == s->in || s->out == TS_F32) &&
         prior >= 0 && prior < TS_BLAS_N_PRIORS && epilogue >= 0 && epilogue < TS_BLAS_N_EPILOGUES;
}

/* What was understood is written again and must be the same text: nothing is overlooked, whatever scanf let pass. */
static bool read_choice(const char *line, choice *c) {
  char a, b, in[8], out[8], again[TS_BLAS_SPEC_TEXT];
  int prior, epilogue, tf32, end = 0;
  ts_blas_spec *s = &c->spec;
  int fields = sscanf(line,
                      "m=%" SCNd64 " n=%" SCNd64 " k=%" SCNd64 " lda=%" SCNd64 " ldb=%" SCNd64 " ldc=%" SCNd64
                      " a=%c b=%c in=%7s out=%7s prior=%d epilogue=%d tf32=%d%n",
                      &s->m, &s->n, &s->k, &s->lda, &s->ldb, &s->ldc, &a, &b, in, out, &prior, &epilogue, &tf32, &end);
  if (fields != 13 || !is_float_name(in, &s->in) || !is_float_name(out, &s->out)) {
    return false;
  }
  s->transpose_a = a == 't';
  s->transpose_b = b == 't';
  s->tf32 = tf32 != 0;
  if (!is_possible(s, prior, epilogue)) {
    return false;
  }
  s->prior = (ts_blas_prior) prior;
  s->epilogue = (ts_blas_epilogue) epilogue;
  ts_blas_spec_text(s, again);
  return strlen(again) == (size_t) end && memcmp(again, line, (size_t) end) == 0 &&
         strncmp(line + end, " algo=", 6) == 0 && read_algo(line + end + 6, c->algo);
}

/* The next line without its end, cut to what a line can have; NULL after the last. */
static const char *cut_line(const char **text, char *line, size_t room) {
  if (**text == '\0') {
    return NULL;
  }
  size_t length = strcspn(*text, "\n"), kept = length < room ? length : room - 1;
  memcpy(line, *text, kept);
  line[kept] = '\0';
  *text += length + ((*text)[length] == '\n');
  return line;
}

static ts_status check_first_lines(const char **text, ts_error *err) {
  char *right = head_text(), mine[512], theirs[512];
  const char *want = right;
  ts_status status = TS_OK;
  for (int i = 0; i < 3 && status == TS_OK; ++i) {
    (void) cut_line(&want, mine, sizeof mine);
    if (cut_line(text, theirs, sizeof theirs) == NULL || strcmp(mine, theirs) != 0) {
      status = i == 0 ? ts_error_add(err, "this is no file of chosen algorithms: it does not begin with \"%s\"", mine)
                      : ts_error_add(err, "algorithms were chosen on \"%.128s\", and this is \"%s\"", theirs, mine);
    }
  }
  ts_free(right);
  return status;
}

static bool read_attention(const char *line, choices *to) {
  ts_attention_choice c;
  if (to->n_attention == TS_BLAS_MOST_CHOICES || !ts_attention_choice_read(line, &c)) {
    return false;
  }
  if (to->n_attention >= to->attention_capacity) {
    to->attention_capacity = to->attention_capacity > 0 ? 2 * to->attention_capacity : 8;
    to->attention =
        (ts_attention_choice *) ts_realloc(to->attention, (size_t) to->attention_capacity, sizeof *to->attention);
  }
  to->attention[to->n_attention++] = c;
  return true;
}

static ts_status read_algorithms(const char *text, choices *to, ts_error *err) {
  char line[TS_BLAS_SPEC_TEXT + 2 * TS_BLAS_ALGO_BYTES + 16];
  for (int number = 4; cut_line(&text, line, sizeof line) != NULL; ++number) {
    choice c = {};
    if (strncmp(line, "attention ", 10) == 0) {
      if (!read_attention(line, to)) {
        return ts_error_add(err, "line %d is no attention with its choice: \"%.64s\"", number, line);
      }
      continue;
    }
    if (!read_choice(line, &c)) {
      return ts_error_add(err, "line %d is no product with its algorithm: \"%.64s\"", number, line);
    }
    if (find_algorithm(to, &c.spec) != NULL) {
      return ts_error_add(err, "line %d has a product for the second time", number);
    }
    if (to->n == TS_BLAS_MOST_CHOICES) {
      return ts_error_add(err, "line %d is one of more than %d products", number, TS_BLAS_MOST_CHOICES);
    }
    put_algorithm(to, &c.spec, c.algo);
  }
  return TS_OK;
}

ts_status ts_cuda_choices_read(const char *text, ts_error *err) {
  choices fresh = {};
  ts_status status = check_first_lines(&text, err);
  status = status == TS_OK ? read_algorithms(text, &fresh, err) : status;
  for (int i = 0; status == TS_OK && i < fresh.n; ++i) {
    if (find_algorithm(&table, &fresh.row[i].spec) == NULL) {
      put_algorithm(&table, &fresh.row[i].spec, fresh.row[i].algo);
    }
  }
  for (int i = 0; status == TS_OK && i < fresh.n_attention; ++i) {
    ts_attention_choose(&fresh.attention[i]);
  }
  ts_free(fresh.row);
  ts_free(fresh.attention);
  return status;
}
