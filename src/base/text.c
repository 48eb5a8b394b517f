#include "base/text.h"

#include "base/memory.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pcre2.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static void reserve_text(ts_text *to, size_t more) {
  size_t need = to->length + more + 1;
  if (need > to->capacity) {
    size_t capacity = to->capacity * 2 > need ? to->capacity * 2 : need + 64;
    to->text = ts_realloc(to->text, capacity, 1);
    to->capacity = capacity;
  }
}

static void add_arguments(ts_text *to, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  TS_CHECK(length >= 0, "bad format: %s", format);
  reserve_text(to, (size_t) length);
  vsnprintf(to->text + to->length, (size_t) length + 1, format, args);
  to->length += (size_t) length;
}

void ts_text_add(ts_text *to, const char *format, ...) {
  va_list args;
  va_start(args, format);
  add_arguments(to, format, args);
  va_end(args);
}

void ts_text_append(ts_text *to, const char *bytes, size_t length) {
  reserve_text(to, length);
  memcpy(to->text + to->length, bytes, length);
  to->length += length;
  to->text[to->length] = 0;
}

void ts_text_add_json(ts_text *to, const char *text) {
  ts_text_append(to, "\"", 1);
  for (const unsigned char *c = (const unsigned char *) text; *c != 0; ++c) {
    if (*c == '"' || *c == '\\') {
      ts_text_add(to, "\\%c", *c);
    } else if (*c < 0x20) {
      ts_text_add(to, "\\u%04x", *c);
    } else {
      ts_text_append(to, (const char *) c, 1);
    }
  }
  ts_text_append(to, "\"", 1);
}

void ts_text_add_shell(ts_text *to, const char *word) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-:,@%";
  bool quoted = word[0] == 0 || word[strspn(word, plain)] != 0;
  ts_text_append(to, "'", quoted);
  for (const char *c = word; *c != 0; ++c) {
    ts_text_add(to, *c == '\'' ? "'\\''" : "%c", *c);
  }
  ts_text_append(to, "'", quoted);
}

void ts_text_add_shape(ts_text *to, const int64_t *d, int n) {
  ts_text_add(to, "[");
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, i > 0 ? ", %lld" : "%lld", (long long) d[i]);
  }
  ts_text_add(to, "]");
}

void ts_text_free(ts_text *text) {
  ts_free(text->text);
  *text = (ts_text){0};
}

char *ts_format(const char *format, ...) {
  ts_text text = {0};
  va_list args;
  va_start(args, format);
  add_arguments(&text, format, args);
  va_end(args);
  return text.text;
}

bool ts_has_file(const char *directory, const char *name) {
  char *path = ts_format("%s/%s", directory, name);
  bool there = access(path, F_OK) == 0;
  ts_free(path);
  return there;
}

bool ts_is_same_file(const char *a, const char *b) {
  struct stat one, other;
  return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* Go on from a directory by the words of a path. */
static void follow_words(ts_text *to, const char *words) {
  for (size_t length; *words != 0; words += length) {
    words += strspn(words, "/");
    length = strcspn(words, "/");
    if (length == 2 && strncmp(words, "..", 2) == 0) {
      const char *slash = strrchr(to->text, '/');
      to->length = slash != NULL ? (size_t) (slash - to->text) : 0;
      to->text[to->length] = 0;
    } else if (length > 0 && !(length == 1 && words[0] == '.')) {
      ts_text_add(to, "%s%.*s", ts_ends_in(to->text, "/") ? "" : "/", (int) length, words);
    }
  }
}

/* Cut the last word of a path; false: it has one alone. */
static bool cut_last_word(char *path) {
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') {
    --length;
  }
  while (length > 1 && path[length - 1] != '/') {
    --length;
  }
  bool shorter = path[length] != 0;
  path[length] = 0;
  return shorter;
}

char *ts_full_path(const char *path) {
  if (path[0] == 0) {
    return ts_strdup("");
  }
  char *whole = ts_format("%s%s", path[0] == '/' ? "" : "./", path), *begin = ts_strdup(whole), *there;
  while ((there = realpath(begin, NULL)) == NULL && cut_last_word(begin)) {
  }
  ts_text full = {0};
  ts_text_add(&full, "%s", there != NULL ? there : begin);
  follow_words(&full, whole + strlen(begin));
  free(there);
  ts_free(begin);
  ts_free(whole);
  return full.text;
}

bool ts_ends_in(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

static ts_status refuse_larger(const char *path, size_t limit, ts_error *err) {
  return ts_error_add(err, "%s: larger than the %zu bytes accepted here", path, limit);
}

/* Closes the file. */
static ts_status read_to_end(FILE *file, const char *path, size_t limit, char **text, size_t *length, ts_error *err) {
  ts_text all = {0};
  char block[65536];
  size_t n;
  while ((n = fread(block, 1, sizeof block, file)) > 0 && all.length + n <= limit) {
    ts_text_append(&all, block, n);
  }
  bool failed = ferror(file) != 0, larger = n > 0;
  int reason = errno;
  fclose(file);
  if (failed || larger) {
    ts_text_free(&all);
    return failed ? ts_error_add(err, "%s: cannot be read: %s", path, strerror(reason))
                  : refuse_larger(path, limit, err);
  }
  if (all.text == NULL) {
    ts_text_append(&all, "", 0);
  }
  *text = all.text;
  *length = all.length;
  return TS_OK;
}

ts_status ts_read_file(const char *path, size_t limit, char **text, size_t *length, ts_error *err) {
  *text = NULL;
  *length = 0;
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    return ts_error_add(err, "%s: %s", path, strerror(errno));
  }
  struct stat info;
  bool known = fstat(fileno(file), &info) == 0;
  if (known && S_ISDIR(info.st_mode)) {
    fclose(file);
    return ts_error_add(err, "%s: is a directory, not a file", path);
  }
  if (known && S_ISREG(info.st_mode) && (uint64_t) info.st_size > limit) { /* not read to find that out */
    fclose(file);
    return refuse_larger(path, limit, err);
  }
  return read_to_end(file, path, limit, text, length, err);
}

FILE *ts_open_plain(const char *path, size_t limit, ts_error *err) {
  struct stat info;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0 || fstat(file, &info) != 0) {
    ts_error_add(err, "%s: %s", path, strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    ts_error_add(err, "%s: is no regular file", path);
  } else if ((uint64_t) info.st_size > limit) {
    refuse_larger(path, limit, err);
  } else {
    FILE *opened = fdopen(file, "rb");
    if (opened != NULL) {
      return opened;
    }
    ts_error_add(err, "%s: %s", path, strerror(errno));
  }
  if (file >= 0) {
    close(file);
  }
  return NULL;
}

ts_status ts_read_plain_file(const char *path, size_t limit, char **text, size_t *length, ts_error *err) {
  *text = NULL;
  *length = 0;
  FILE *file = ts_open_plain(path, limit, err);
  return file != NULL ? read_to_end(file, path, limit, text, length, err) : TS_BAD_INPUT;
}

int64_t ts_next_line(FILE *file, char *line, size_t size) {
  int64_t length = 0;
  int c;
  while ((c = getc_unlocked(file)) != EOF && c != '\n') {
    if ((size_t) length + 1 < size) {
      line[length] = (char) c;
    }
    ++length;
  }
  line[(size_t) length < size ? (size_t) length : size - 1] = 0;
  return length > 0 || c != EOF ? length : -1;
}

ts_status ts_try_writing(const char *path, ts_error *err) {
  char *beside = ts_format("%s.tmp", path);
  FILE *file = fopen(beside, "w");
  ts_status status = file != NULL ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  if (file != NULL) {
    fclose(file);
    remove(beside);
  }
  ts_free(beside);
  return status;
}

ts_status ts_write_file(const char *path, const char *text, size_t length, ts_error *err) {
  char *temporary = ts_format("%s.tmp", path);
  FILE *file = fopen(temporary, "wb");
  bool ok = file != NULL && fwrite(text, 1, length, file) == length && fflush(file) == 0 && fsync(fileno(file)) == 0;
  if (file != NULL && fclose(file) != 0) {
    ok = false;
  }
  ok = ok && rename(temporary, path) == 0;
  ts_status status = ok ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  if (!ok) {
    unlink(temporary);
  }
  ts_free(temporary);
  return status;
}

ts_status ts_make_directory(const char *path, ts_error *err) {
  char *copy = ts_strdup(path);
  ts_status status = TS_OK;
  for (char *end = copy + 1; status == TS_OK; ++end) {
    if (*end == '/' || *end == 0) {
      char kept = *end;
      *end = 0;
      struct stat info;
      if (mkdir(copy, 0777) != 0 && !(errno == EEXIST && stat(copy, &info) == 0 && S_ISDIR(info.st_mode))) {
        status = ts_error_add(err, "%s: cannot be created: %s", copy, strerror(errno));
      }
      *end = kept;
      if (kept == 0) {
        break;
      }
    }
  }
  ts_free(copy);
  return status;
}

/* Levenshtein distance with one row of the table; words are short (deck keys). */
static size_t edit_distance(const char *a, const char *b) {
  size_t n = strlen(b);
  size_t *row = ts_malloc((n + 1) * sizeof *row);
  for (size_t j = 0; j <= n; ++j) {
    row[j] = j;
  }
  for (size_t i = 1; a[i - 1] != 0; ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= n; ++j) {
      size_t best = diagonal + (a[i - 1] != b[j - 1]);
      best = row[j] + 1 < best ? row[j] + 1 : best;
      best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
      diagonal = row[j];
      row[j] = best;
    }
  }
  size_t distance = row[n];
  ts_free(row);
  return distance;
}

const char *ts_nearest(const char *word, const char *const *candidates, size_t n) {
  const char *best = NULL;
  size_t length = strlen(word), limit = length < 4 ? 1 : length < 9 ? 2 : length / 3; /* two letters change places: 2 */
  for (size_t i = 0; i < n; ++i) {
    size_t distance = edit_distance(word, candidates[i]);
    if (distance <= limit) {
      best = candidates[i];
      limit = distance > 0 ? distance - 1 : 0;
      if (distance == 0) {
        break;
      }
    }
  }
  return best;
}

/* Steps of one match: a few milliseconds; without nested repetitions names need thousands at worst. */
#define MOST_STEPS 100000

static int run_match(const pcre2_code *regex, const char *text) {
  pcre2_match_data *match = pcre2_match_data_create_from_pattern(regex, NULL);
  pcre2_match_context *limits = pcre2_match_context_create(NULL);
  TS_CHECK(match != NULL && limits != NULL, "out of memory for a regular expression");
  pcre2_set_match_limit(limits, MOST_STEPS);
  int found = pcre2_match(regex, (PCRE2_SPTR) text, strlen(text), 0, 0, match, limits);
  pcre2_match_context_free(limits);
  pcre2_match_data_free(match);
  return found >= 0 ? 1 : found == PCRE2_ERROR_NOMATCH ? 0 : TS_MATCH_GIVEN_UP;
}

static int find_match(const char *pattern, const char *text, uint32_t options) {
  int code;
  PCRE2_SIZE where;
  pcre2_code *regex = pcre2_compile((PCRE2_SPTR) pattern, PCRE2_ZERO_TERMINATED, options, &code, &where, NULL);
  if (regex == NULL) {
    return -1;
  }
  int found = run_match(regex, text);
  pcre2_code_free(regex);
  return found;
}

int ts_matches(const char *pattern, const char *text) {
  return find_match(pattern, text, 0);
}

int ts_matches_from(const char *pattern, const char *text) {
  return find_match(pattern, text, PCRE2_ANCHORED);
}

double ts_shown(double value) {
  return isnan(value) ? (double) NAN : value;
}

char *ts_json_number(double value, char *out) {
  snprintf(out, 32, isfinite(value) ? "%.17g" : "null", value);
  return out;
}

bool ts_parse_bytes(const char *word, int64_t *bytes) {
  static const struct {
    const char *unit;
    double factor;
  } units[] = {{"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
               {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  char *end;
  double value = strtod(word, &end);
  end += end != word && *end == ' ';
  for (size_t i = 0; end != word && i < sizeof units / sizeof units[0]; ++i) {
    double product = value * units[i].factor; /* not a number is in no range */
    if (strcasecmp(end, units[i].unit) == 0 && product >= 1 && product < 9e18) {
      *bytes = (int64_t) product;
      return true;
    }
  }
  return false;
}

char *ts_human_bytes(double bytes, char *out) {
  static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int u = 0;
  while (bytes >= 1000 && u < 5) {
    bytes /= 1000;
    ++u;
  }
  snprintf(out, 32, u == 0 ? "%.0f %s" : "%.2f %s", bytes, unit[u]);
  return out;
}

char *ts_human_count(double count, char *out) {
  static const char *const unit[] = {"", " k", " M", " B", " T"};
  int u = 0;
  while (count >= 1000 && u < 4) {
    count /= 1000;
    ++u;
  }
  snprintf(out, 32, u == 0 ? "%.0f%s" : "%.2f%s", count, unit[u]);
  return out;
}

char *ts_human_seconds(double seconds, char *out) {
  if (!(seconds >= 0 && seconds < 1e9)) {
    snprintf(out, 32, "?");
    return out;
  }
  long s = (long) (seconds + 0.5);
  if (s >= 3600) {
    snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  } else {
    snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
  }
  return out;
}

char *ts_directory_name(const char *directory) {
  char *real = realpath(directory, NULL);
  const char *path = real != NULL ? real : directory, *slash = strrchr(path, '/');
  char *name = ts_strdup(slash != NULL && slash[1] != 0 ? slash + 1 : path);
  free(real);
  return name;
}
