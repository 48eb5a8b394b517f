/* The manifest: printing, reading, and the hashes in it.  A text is accepted only when it is, byte for byte, what
 * printing its values gives: case, leading zeros, spaces and what follows the end need no checks of their own. */
#include "io/manifest.h"

#include "base/memory.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define BLOCK ((size_t) 1 << 20)
#define LARGEST_MANIFEST ((size_t) 1 << 26) /* half a million files */

/* ---- hashes ---- */

static void keep_hash(XXH128_hash_t from, uint64_t hash[2]) {
  hash[0] = from.high64;
  hash[1] = from.low64;
}

void ts_hash_bytes(const void *bytes, size_t count, uint64_t hash[2]) {
  keep_hash(XXH3_128bits(bytes, count), hash);
}

/* By read, not by a mapping: a file that becomes shorter meanwhile is an error then, not a signal. */
static ts_status sum_descriptor(int file, const char *path, ts_file_sum *sum, ts_error *err) {
  struct stat info;
  if (fstat(file, &info) == 0 && !S_ISREG(info.st_mode)) {
    return ts_error_add(err, "%s: is not a regular file", path);
  }
  posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
  XXH3_state_t *state = XXH3_createState();
  TS_CHECK(state != NULL, "out of memory for a hash");
  XXH3_128bits_reset(state);
  char *block = ts_malloc(BLOCK);
  ssize_t n;
  while ((n = read(file, block, BLOCK)) > 0 || (n < 0 && errno == EINTR)) {
    if (n > 0) {
      XXH3_128bits_update(state, block, (size_t) n);
      sum->bytes += n;
    }
  }
  int reason = errno;
  keep_hash(XXH3_128bits_digest(state), sum->hash);
  ts_free(block);
  XXH3_freeState(state);
  return n == 0 ? TS_OK : ts_error_add(err, "%s: cannot be read: %s", path, strerror(reason));
}

ts_status ts_file_sum_make(const char *directory, const char *name, ts_file_sum *sum, ts_error *err) {
  *sum = (ts_file_sum){0};
  char *path = ts_format("%s/%s", directory, name);
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block here: it is refused */
  ts_status status = TS_OK;
  if (strlen(name) >= sizeof sum->name) {
    status = ts_error_add(err, "%s: names of up to %zu letters are accepted", path, sizeof sum->name - 1);
  } else if (file < 0) {
    status = ts_error_add(err, "%s: %s", path, strerror(errno));
  } else {
    strcpy(sum->name, name);
    status = sum_descriptor(file, path, sum, err);
  }
  if (file >= 0) {
    close(file);
  }
  ts_free(path);
  return status;
}

/* ---- text ---- */

bool ts_is_listed_name(const char *name) {
  size_t length = strlen(name);
  bool good = length > 0 && length < sizeof((ts_file_sum *) 0)->name && name[0] != '.' && strcmp(name, "manifest") != 0;
  for (size_t i = 0; i < length && good; ++i) {
    good = isalnum((unsigned char) name[i]) || strchr("._-", name[i]) != NULL;
  }
  return good;
}

void ts_manifest_print(const ts_manifest *manifest, ts_text *to) {
  ts_text_add(to, "tessera checkpoint %d\nstep %lld\n", TS_MANIFEST_VERSION, (long long) manifest->step);
  for (int i = 0; i < manifest->n; ++i) {
    const ts_file_sum *file = &manifest->file[i];
    ts_text_add(to, "file %s %lld " TS_HASH_FORMAT "\n", file->name, (long long) file->bytes,
                TS_HASH_WORDS(file->hash));
  }
  uint64_t hash[2];
  ts_hash_bytes(to->text, to->length, hash);
  ts_text_add(to, "end %d " TS_HASH_FORMAT "\n", manifest->n, TS_HASH_WORDS(hash));
}

/* Copy the line at \a *at, without its end, and step over it; false for none and for one too long to be right. */
static bool take_line(const char **at, char line[128]) {
  const char *end = strchr(*at, '\n');
  if (end == NULL || end - *at >= 128) {
    return false;
  }
  memcpy(line, *at, (size_t) (end - *at));
  line[end - *at] = 0;
  *at = end + 1;
  return true;
}

/* The last line's hash is that of everything before it. */
static bool is_sealed(const char *text, size_t length) {
  size_t start = length > 0 ? length - 1 : 0;
  while (start > 0 && text[start - 1] != '\n') {
    --start;
  }
  uint64_t hash[2];
  char expected[40];
  ts_hash_bytes(text, start, hash);
  int n = snprintf(expected, sizeof expected, " " TS_HASH_FORMAT "\n", TS_HASH_WORDS(hash));
  return length - start > (size_t) n && strncmp(text + start, "end ", 4) == 0 &&
         memcmp(text + length - n, expected, (size_t) n) == 0;
}

/* Names ascend, so that none is there twice. */
static bool parse_file(const char *line, ts_manifest *out) {
  ts_file_sum *file = &out->file[out->n];
  long long bytes;
  unsigned long long high, low;
  *file = (ts_file_sum){0};
  if (sscanf(line, "file %31s %lld %16llx%16llx", file->name, &bytes, &high, &low) != 4 || bytes < 0 ||
      !ts_is_listed_name(file->name) || (out->n > 0 && strcmp(file[-1].name, file->name) >= 0)) {
    return false;
  }
  file->bytes = bytes;
  file->hash[0] = high;
  file->hash[1] = low;
  ++out->n;
  return true;
}

static bool parse_manifest(const char *text, ts_manifest *out) {
  char line[128];
  long long step;
  if (!take_line(&text, line) || !take_line(&text, line) || sscanf(line, "step %lld", &step) != 1 || step < 0) {
    return false;
  }
  out->step = step;
  int capacity = 0;
  while (take_line(&text, line) && strncmp(line, "file ", 5) == 0) {
    TS_GROW(out->file, out->n, capacity);
    if (!parse_file(line, out)) {
      return false;
    }
  }
  return true;
}

static bool is_canonical(const ts_manifest *manifest, const char *bytes, size_t length) {
  ts_text text = {0};
  ts_manifest_print(manifest, &text);
  bool same = text.length == length && memcmp(text.text, bytes, length) == 0;
  ts_text_free(&text);
  return same;
}

static ts_status read_manifest_text(const char *path, const char *text, size_t length, ts_manifest *out,
                                    ts_error *err) {
  if (!is_sealed(text, length)) {
    return ts_error_add(err, "%s: damaged: its last line is not the hash of the lines before", path);
  }
  int version = 0;
  if (sscanf(text, "tessera checkpoint %9d", &version) == 1 && version > TS_MANIFEST_VERSION) {
    return ts_error_add(err, "%s: written by a newer version of tessera: format %d, this one reads up to %d", path,
                        version, TS_MANIFEST_VERSION);
  }
  if (!parse_manifest(text, out) || !is_canonical(out, text, length)) {
    return ts_error_add(err, "%s: is not a manifest of format %d", path, TS_MANIFEST_VERSION);
  }
  ts_hash_bytes(text, length, out->hash);
  return TS_OK;
}

/* A checkpoint that was copied elsewhere may have any name; one that says a step must be of that step. */
static ts_status check_step(const char *directory, int64_t found, ts_error *err) {
  char *real = realpath(directory, NULL);
  const char *slash = real != NULL ? strrchr(real, '/') : NULL;
  int64_t step;
  bool wrong = slash != NULL && ts_step_of_name(slash + 1, &step) != NULL && step != found;
  free(real);
  return !wrong ? TS_OK
                : ts_error_add(err,
                               "%s/manifest: is of step %lld: the directory was renamed or holds another "
                               "checkpoint's manifest",
                               directory, (long long) found);
}

ts_status ts_manifest_read(const char *directory, ts_manifest *manifest, ts_error *err) {
  *manifest = (ts_manifest){0};
  char *path = ts_format("%s/manifest", directory), *text;
  size_t length;
  ts_status status = ts_read_file(path, LARGEST_MANIFEST, &text, &length, err);
  status = status == TS_OK ? read_manifest_text(path, text, length, manifest, err) : status;
  status = status == TS_OK ? check_step(directory, manifest->step, err) : status;
  ts_free(text);
  ts_free(path);
  return status;
}

static int compare_name(const void *name, const void *file) {
  return strcmp(name, ((const ts_file_sum *) file)->name);
}

int ts_manifest_find(const ts_manifest *manifest, const char *name) {
  size_t n = (size_t) manifest->n;
  const ts_file_sum *found = n > 0 ? bsearch(name, manifest->file, n, sizeof *found, compare_name) : NULL;
  return found != NULL ? (int) (found - manifest->file) : -1;
}

void ts_manifest_clear(ts_manifest *manifest) {
  ts_free(manifest->file);
  *manifest = (ts_manifest){0};
}
