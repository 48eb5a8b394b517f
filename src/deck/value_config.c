/* libconfig text to values.  One scan of the text before libconfig sees it replaces @include lines, keeps where each
 * line came from, and collects the numbers in order: libconfig's tree has them in the same order, and its own
 * conversion wraps integers silently. */
#include "base/memory.h"
#include "deck/deck.h"
#include "deck/value.h"

#include <ctype.h>
#include <errno.h>
#include <libconfig.h>
#include <stdlib.h>
#include <string.h>

#define INCLUDE_DEPTH 10
#define MIXED "mismatched element type in array"
#define TWICE "duplicate setting name"

typedef struct ts_origin {
  const char *file;
  int line;
} ts_origin;

typedef struct ts_scan {
  ts_source *source;
  ts_text text;     /* What libconfig gets. */
  ts_origin *lines; /* Of the lines of text, from 0. */
  int n_lines, line_capacity;
  char **numbers; /* As written, in order. */
  int n_numbers, number_capacity, next_number;
  bool has_lines; /* False for a word of the command line. */
  ts_error *err;
} ts_scan;

/* A place in a file that is being scanned. */
typedef struct ts_cursor {
  const char *file, *at, *end;
  int line, depth;
} ts_cursor;

static ts_status fail_at(const ts_scan *scan, ts_origin at, const char *problem) {
  return scan->has_lines ? ts_error_add(scan->err, "%s:%d: %s", at.file, at.line, problem)
                         : ts_error_add(scan->err, "%s", problem);
}

static void begin_line(ts_scan *scan, const ts_cursor *c) {
  TS_GROW(scan->lines, scan->n_lines, scan->line_capacity);
  scan->lines[scan->n_lines++] = (ts_origin){c->file, scan->has_lines ? c->line : 0};
}

/* Copies up to `to`, keeping track of lines; when `visible` is false only the line ends. */
static void copy_until(ts_scan *scan, ts_cursor *c, const char *to, bool visible) {
  for (; c->at < to; ++c->at) {
    if (visible || *c->at == '\n') {
      ts_text_append(&scan->text, c->at, 1);
    }
    if (*c->at == '\n') {
      ++c->line;
      begin_line(scan, c);
    }
  }
}

static const char *end_of_string(const ts_cursor *c) {
  const char *p = c->at + 1;
  while (p < c->end && *p != '"') {
    p += *p == '\\' && p + 1 < c->end ? 2 : 1;
  }
  return p < c->end ? p + 1 : c->end;
}

static const char *end_of_comment(const ts_cursor *c) {
  if (c->at[0] == '/' && c->at[1] == '*') {
    const char *stop = memmem(c->at + 2, (size_t) (c->end - c->at - 2), "*/", 2);
    return stop != NULL ? stop + 2 : c->end;
  }
  const char *stop = memchr(c->at, '\n', (size_t) (c->end - c->at));
  return stop != NULL ? stop : c->end;
}

static const char *after_name(const ts_cursor *c) {
  const char *p = c->at;
  while (p < c->end && (isalnum((unsigned char) *p) || strchr("-_*", *p) != NULL) && *p != '\0') {
    ++p;
  }
  return p;
}

static const char *digits(const char *p) {
  return p + strspn(p, "0123456789");
}

/* The end of the number at c->at as libconfig's grammar has it, c->at when there is none.  The text is terminated. */
static const char *after_number(const ts_cursor *c) {
  const char *p = c->at + (*c->at == '-' || *c->at == '+');
  if (!isdigit((unsigned char) *p) && *p != '.') {
    return c->at;
  }
  if (p == c->at && p[0] == '0' && (p[1] == 'x' || p[1] == 'X') && isxdigit((unsigned char) p[2])) {
    p += 2 + strspn(p + 2, "0123456789abcdefABCDEF");
  } else {
    p = digits(p);
    p = *p == '.' ? digits(p + 1) : p;
    if (*p == 'e' || *p == 'E') {
      const char *exponent = p + 1 + (p[1] == '-' || p[1] == '+');
      p = isdigit((unsigned char) *exponent) ? digits(exponent) : p;
    }
  }
  for (int i = 0; i < 2 && *p == 'L'; ++i) {
    ++p;
  }
  return p;
}

/* A literal without a fraction or an exponent. */
static bool is_whole(const char *literal, bool *hex) {
  *hex = literal[0] == '0' && (literal[1] == 'x' || literal[1] == 'X');
  return *hex || strpbrk(literal, ".eE") == NULL;
}

/* False for a whole number beyond 64 bits. */
static bool fits_int64(const char *literal, int64_t *integer) {
  bool hex;
  errno = 0;
  *integer = is_whole(literal, &hex) ? strtoll(literal, NULL, hex ? 16 : 10) : 0;
  return errno != ERANGE;
}

/* libconfig calls a number beyond 64 bits a syntax error from version 1.7 on, so it gets another in its place. */
static void scan_number(ts_scan *scan, ts_cursor *c, const char *stop) {
  int64_t integer;
  char *literal = ts_format("%.*s", (int) (stop - c->at), c->at);
  TS_GROW(scan->numbers, scan->n_numbers, scan->number_capacity);
  scan->numbers[scan->n_numbers++] = literal;
  if (fits_int64(literal, &integer)) {
    copy_until(scan, c, stop, true);
  } else {
    ts_text_append(&scan->text, "0", 1);
    c->at = stop;
  }
}

static ts_status scan_file(ts_scan *scan, const char *file, const char *text, size_t length, int depth);

/* The file of an include line, relative to the file it stands in; NULL when the line is none.  The caller frees. */
static char *include_path(const ts_cursor *c) {
  const char *p = c->at + strspn(c->at, " \t");
  if (strncmp(p, "@include", 8) != 0) {
    return NULL;
  }
  p += 8 + strspn(p + 8, " \t");
  const char *stop = *p == '"' ? strpbrk(p + 1, "\"\n") : NULL;
  if (stop == NULL || *stop == '\n') {
    return NULL;
  }
  const char *slash = p[1] == '/' ? NULL : strrchr(c->file, '/');
  int directory = slash != NULL ? (int) (slash - c->file) + 1 : 0;
  return ts_format("%.*s%.*s", directory, c->file, (int) (stop - p - 1), p + 1);
}

static ts_status scan_include(ts_scan *scan, ts_cursor *c, const char *path) {
  char *text = NULL;
  size_t length = 0;
  if (c->depth + 1 > INCLUDE_DEPTH) {
    return ts_error_add(scan->err, "%s:%d: @include: more than %d files deep", c->file, c->line, INCLUDE_DEPTH);
  }
  ts_error problem = {0};
  if (ts_read_file(path, TS_DECK_LIMIT, &text, &length, &problem) != TS_OK) {
    ts_error_add(scan->err, "%s:%d: @include: %s", c->file, c->line, problem.text);
    ts_error_clear(&problem);
    return TS_BAD_INPUT;
  }
  --scan->n_lines; /* the line of the directive becomes the first of the file */
  ts_status status = scan_file(scan, ts_source_name(scan->source, path), text, length, c->depth + 1);
  ts_free(text);
  return status;
}

/* False where no value may stand: libconfig would leak the string with its syntax error. */
static bool string_allowed(const ts_scan *scan) {
  size_t n = scan->text.length;
  while (n > 0 && strchr(" \t\r\n\f", scan->text.text[n - 1]) != NULL) {
    --n;
  }
  return n > 0 && strchr("=:([,\"", scan->text.text[n - 1]) != NULL;
}

static ts_status scan_token(ts_scan *scan, ts_cursor *c) {
  const char *stop = after_number(c);
  if (*c->at == '"' && !string_allowed(scan)) {
    return fail_at(scan, (ts_origin){c->file, c->line}, "syntax error: a string belongs after = or into a list");
  }
  if (*c->at == '"') {
    copy_until(scan, c, end_of_string(c), true);
  } else if (*c->at == '#' || (c->at[0] == '/' && (c->at[1] == '/' || c->at[1] == '*'))) {
    copy_until(scan, c, end_of_comment(c), false);
  } else if (isalpha((unsigned char) *c->at) || *c->at == '*') {
    copy_until(scan, c, after_name(c), true);
  } else if (stop > c->at) {
    scan_number(scan, c, stop);
  } else {
    copy_until(scan, c, c->at + 1, true);
  }
  return TS_OK;
}

static ts_status scan_file(ts_scan *scan, const char *file, const char *text, size_t length, int depth) {
  ts_cursor c = {file, text, text + length, 1, depth};
  const size_t most = scan->source->most > 0 ? scan->source->most : TS_DECK_LIMIT;
  if (memchr(text, '\0', length) != NULL || scan->text.length + length > most) {
    return ts_error_add(scan->err, "%s: not a text file, or larger than %zu bytes", file, most);
  }
  ts_status status = TS_OK;
  begin_line(scan, &c);
  for (bool fresh = true; c.at < c.end && status == TS_OK; fresh = c.at > text && c.at[-1] == '\n') {
    char *path = fresh ? include_path(&c) : NULL;
    if (path != NULL) {
      status = scan_include(scan, &c, path);
      const char *stop = memchr(c.at, '\n', (size_t) (c.end - c.at));
      ts_text_append(&scan->text, "\n", 1);
      c.at = stop != NULL ? stop + 1 : c.end;
      ++c.line;
      begin_line(scan, &c);
    } else {
      status = scan_token(scan, &c);
    }
    ts_free(path);
  }
  return status;
}

static ts_origin origin_of(const ts_scan *scan, int line) {
  int i = line < 1 ? 0 : line > scan->n_lines ? scan->n_lines - 1 : line - 1;
  return scan->lines[i];
}

static void take_config_number(const char *literal, ts_value *value) {
  bool hex;
  value->real = strtod(literal, NULL);
  value->kind = TS_VALUE_REAL;
  if (is_whole(literal, &hex)) {
    bool small = fits_int64(literal, &value->integer);
    value->kind = small ? TS_VALUE_INT : TS_VALUE_BIG;
    value->string = small ? NULL : ts_strdup(literal);
    value->real = small ? (double) value->integer : value->real;
  }
}

static void convert_setting(ts_scan *scan, config_setting_t *setting, ts_value *value);

static void convert_entries(ts_scan *scan, config_setting_t *setting, ts_value *value) {
  int n = config_setting_length(setting);
  value->kind = config_setting_is_group(setting) ? TS_VALUE_SECTION : TS_VALUE_LIST;
  value->items = ts_calloc((size_t) n, sizeof *value->items);
  value->names = value->kind == TS_VALUE_SECTION ? ts_calloc((size_t) n, sizeof *value->names) : NULL;
  for (; value->n < n; ++value->n) {
    config_setting_t *entry = config_setting_get_elem(setting, (unsigned) value->n);
    if (value->names != NULL) {
      value->names[value->n] = ts_strdup(config_setting_name(entry));
    }
    convert_setting(scan, entry, &value->items[value->n]);
  }
}

/* The parser's stack bounds the depth of the recursion. */
static void convert_setting(ts_scan *scan, config_setting_t *setting, ts_value *value) {
  ts_origin origin = origin_of(scan, config_setting_source_line(setting));
  *value = (ts_value){.file = origin.file, .line = origin.line};
  if (config_setting_is_aggregate(setting)) {
    convert_entries(scan, setting, value);
  } else if (config_setting_is_number(setting)) {
    TS_CHECK(scan->next_number < scan->n_numbers, "libconfig found a number that is not in its text");
    take_config_number(scan->numbers[scan->next_number++], value);
  } else if (config_setting_type(setting) == CONFIG_TYPE_BOOL) {
    value->kind = TS_VALUE_BOOL;
    value->truth = config_setting_get_bool(setting) != 0;
  } else {
    const char *text = config_setting_get_string(setting);
    value->kind = TS_VALUE_STRING;
    value->string = ts_strdup(text != NULL ? text : "");
  }
}

/* libconfig's message in the words of this room; newly allocated. */
static char *explain_syntax(const ts_scan *scan, const char *text, int line) {
  if (text == NULL) {
    return ts_strdup("syntax error");
  }
  if (strcmp(text, MIXED) == 0) {
    return ts_strdup("an array [ ] holds values of one type; accepted: [0.9, 1.0], or a list, ( 0.9, 1 )");
  }
  if (strcmp(text, TWICE) == 0) {
    char *name = ts_config_twice(scan->text.text, line);
    char *problem = ts_format("%s: set twice in one section", name != NULL ? name : "a key");
    ts_free(name);
    return problem;
  }
  return ts_strdup(text);
}

static ts_status parse_config(ts_scan *scan, ts_value *value) {
  config_t config;
  config_init(&config);
  ts_status status = TS_OK;
  if (config_read_string(&config, scan->text.text != NULL ? scan->text.text : "") == CONFIG_TRUE) {
    convert_setting(scan, config_root_setting(&config), value);
  } else {
    ts_origin origin = origin_of(scan, config_error_line(&config));
    char *problem = explain_syntax(scan, config_error_text(&config), config_error_line(&config));
    status = fail_at(scan, origin, problem);
    ts_free(problem);
  }
  config_destroy(&config);
  return status;
}

static ts_status read_config_text(ts_source *source, const char *file, const char *text, size_t length, bool has_lines,
                                  ts_value *value, ts_error *err) {
  ts_scan scan = {.source = source, .has_lines = has_lines, .err = err};
  *value = (ts_value){0};
  ts_status status = scan_file(&scan, ts_source_name(source, file), text, length, 0);
  if (status == TS_OK) {
    status = parse_config(&scan, value);
  }
  for (int i = 0; i < scan.n_numbers; ++i) {
    ts_free(scan.numbers[i]);
  }
  ts_free(scan.numbers);
  ts_free(scan.lines);
  ts_text_free(&scan.text);
  return status;
}

ts_status ts_value_from_config(ts_source *source, const char *file, const char *text, size_t length, ts_value *value,
                               ts_error *err) {
  return read_config_text(source, file, text, length, true, value, err);
}

ts_status ts_value_from_word(ts_source *source, const char *file, const char *word, ts_value *value, ts_error *err) {
  char *text = ts_format("value = %s;", word);
  ts_value root = {0};
  ts_error problem = {0};
  ts_status status = read_config_text(source, file, text, strlen(text), false, &root, &problem);
  bool single = status == TS_OK && root.n == 1 && strcmp(word, ".") != 0; /* libconfig has that directory for 0 */
  if (single) {
    *value = root.items[0];
    root.items[0] = (ts_value){0};
  } else if (*word != '\0' && strchr("[({\"", *word) != NULL) {
    *value = (ts_value){0};
    status = ts_error_add(err, "%s", problem.text != NULL ? problem.text : "one value is wanted");
  } else {
    *value = (ts_value){.kind = TS_VALUE_STRING, .string = ts_strdup(word), .file = ts_source_name(source, file)};
    status = TS_OK;
  }
  ts_value_clear(&root);
  ts_error_clear(&problem);
  ts_free(text);
  return status;
}
