/* DeepSpeed jsons of other projects (regression/deck/jsons), each beside a deck of few words and beside one that is the
 * trainer: what runs runs as it is, what does not is refused where it should be. */
#include "deck/value.h"
#include "regression/deck_fixture.h"

#include <ctype.h>

#define RANKS 8
#define BARE LLAMA_MODEL "data = { path = \"x\"; }; run = { steps = 100; };\n"
#define TRAINER                                            \
  BARE "train_batch_size = 64; gradient_clipping = 0.5;\n" \
       "optimizer = { params = { weight_decay = 0.1; }; };\n"

typedef struct json_case {
  char *name, *expected;
  ts_text text;
} json_case;

typedef struct json_file {
  ts_strings names, texts; /* What $name stands for. */
  json_case *cases;
  int n_cases;
} json_file;

static const char *fragment(const json_file *f, const char *name, size_t length) {
  for (int i = 0; i < f->names.n; ++i) {
    if (strlen(f->names.items[i]) == length && memcmp(f->names.items[i], name, length) == 0) {
      return f->texts.items[i];
    }
  }
  return NULL;
}

static size_t name_length(const char *p) {
  size_t n = 0;
  while (isalnum((unsigned char) p[n]) || p[n] == '_') {
    ++n;
  }
  return n;
}

/* A line of a case, with its fragments. */
static void add_line(const json_file *f, ts_text *to, const char *line) {
  for (const char *p = line; *p != '\0';) {
    size_t length = *p == '$' ? name_length(p + 1) : 0;
    const char *text = length > 0 ? fragment(f, p + 1, length) : NULL;
    TS_CHECK(length == 0 || text != NULL, "no fragment %.*s", (int) length, p + 1);
    ts_text_append(to, text != NULL ? text : p, text != NULL ? strlen(text) : 1);
    p += 1 + length;
  }
  ts_text_add(to, "\n");
}

static void begin_case(json_file *f, const char *line) {
  const char *colon = strrchr(line, ':');
  f->cases = ts_realloc(f->cases, (size_t) f->n_cases + 1, sizeof *f->cases);
  f->cases[f->n_cases++] =
      (json_case){.name = ts_format("%.*s", (int) (colon - line - 2), line + 2), .expected = ts_strdup(colon + 2)};
}

static void take_line(json_file *f, const char *line) {
  if (*line == '$') {
    size_t length = name_length(line + 1);
    char *name = ts_format("%.*s", (int) length, line + 1);
    ts_strings_add(&f->names, name);
    ts_strings_add(&f->texts, line + 1 + length);
    ts_free(name);
  } else if (strncmp(line, "= ", 2) == 0) {
    begin_case(f, line);
  } else if (f->n_cases > 0) {
    add_line(f, &f->cases[f->n_cases - 1].text, line);
  } else if (*line != '#') { /* the last fragment goes on */
    char **last = &f->texts.items[f->texts.n - 1], *longer = ts_format("%s%s", *last, line + 3);
    ts_free(*last);
    *last = longer;
  }
}

static void read_cases(json_file *f) {
  char *text = NULL;
  size_t length;
  ts_error err = {0};
  TS_CHECK(ts_read_file(tap_path("regression/deck/jsons"), 1 << 20, &text, &length, &err) == TS_OK, "%s", err.text);
  for (char *line = text, *stop; (stop = strchr(line, '\n')) != NULL; line = stop + 1) {
    *stop = '\0';
    take_line(f, line);
  }
  ts_free(text);
}

static void clear_cases(json_file *f) {
  for (int i = 0; i < f->n_cases; ++i) {
    ts_free(f->cases[i].name);
    ts_free(f->cases[i].expected);
    ts_text_free(&f->cases[i].text);
  }
  ts_free(f->cases);
  ts_strings_clear(&f->names);
  ts_strings_clear(&f->texts);
}

static ts_deck *read_case(const json_case *c, const char *deck, char *const *sets, int n_sets, ts_error *err) {
  ts_deck *d = NULL;
  ts_free(fixture_file("ds.json", c->text.text));
  char *text = ts_format("%sdeepspeed_config = \"%s/ds.json\";\n", deck, tap_directory());
  ts_deck_read_text("good.cfg", text, sets, n_sets, &d, err);
  ts_free(text);
  return d;
}

static bool reads_back(const ts_deck *d) {
  ts_text first = {0}, second = {0};
  ts_deck *again = NULL;
  ts_deck_print(d, &first);
  ts_deck_read_text("printed", first.text, NULL, 0, &again, NULL);
  if (again != NULL) {
    ts_deck_print(again, &second);
  }
  bool same = again != NULL && strcmp(first.text, second.text) == 0;
  ts_deck_destroy(&again);
  ts_text_free(&first);
  ts_text_free(&second);
  return same;
}

static void expect_runs(const json_case *c, const char *deck, const char *which, char *const *sets, int n_sets) {
  ts_error err = {0};
  ts_deck *d = read_case(c, deck, sets, n_sets, &err);
  bool good = d != NULL && ts_deck_resolve_batch(d, RANKS, &err) == TS_OK && reads_back(d);
  tap_ok(good, "%s, %s: %s", c->name, which, err.text != NULL ? err.text : "runs");
  ts_error_clear(&err);
  ts_deck_destroy(&d);
}

static void expect_refused(const json_case *c, const char *key) {
  ts_error err = {0};
  char *place = ts_format(": %s: ", key);
  ts_deck *d = read_case(c, BARE, NULL, 0, &err);
  tap_ok(d == NULL && strstr(err.text, place) != NULL, "%s: %s", c->name,
         err.text != NULL ? err.text : "is not refused");
  ts_deck_destroy(&d);
  ts_error_clear(&err);
  ts_free(place);
}

static void test_case(const json_case *c) {
  char *more = strchr(c->expected, '=') != NULL ? strchr(c->expected, ' ') + 1 : NULL;
  if (strncmp(c->expected, "runs", 4) == 0) {
    expect_runs(c, BARE, "beside a bare deck", &more, more != NULL);
    if (more == NULL) {
      expect_runs(c, TRAINER, "beside a trainer", NULL, 0);
    }
  } else {
    expect_refused(c, c->expected);
  }
}

int main(void) {
  json_file file = {0};
  read_cases(&file);
  tap_ok(file.n_cases >= 50 && file.names.n >= 20, "%d cases of %d fragments", file.n_cases, file.names.n);
  for (int i = 0; i < file.n_cases; ++i) {
    test_case(&file.cases[i]);
  }
  clear_cases(&file);
  tap_ok(ts_memory_live() == 0, "nothing leaks (%lld live)", (long long) ts_memory_live());
  return tap_done();
}
