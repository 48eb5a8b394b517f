#include "regression/tap.h"

#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int n_results, n_failed;
static char directory[PATH_MAX];

static void print_list(const char *format, va_list args) {
  vprintf(format, args);
  putchar('\n');
  fflush(stdout);
}

bool tap_ok(bool condition, const char *format, ...) {
  va_list args;
  n_failed += !condition;
  printf("%sok %d - ", condition ? "" : "not ", ++n_results);
  va_start(args, format);
  print_list(format, args);
  va_end(args);
  return condition;
}

void tap_skip(const char *format, ...) {
  va_list args;
  printf("ok %d # SKIP ", ++n_results);
  va_start(args, format);
  print_list(format, args);
  va_end(args);
}

void tap_note(const char *format, ...) {
  va_list args;
  printf("# ");
  va_start(args, format);
  print_list(format, args);
  va_end(args);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
  (void) info;
  (void) type;
  (void) place;
  return remove(path);
}

bool tap_wanted(const char *name) {
  const char *only = getenv("TEST_ONLY");
  size_t n = strlen(name);
  for (const char *at = only; at != NULL && *at != 0; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
    if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == 0)) {
      return true;
    }
  }
  return only == NULL;
}

int tap_done(void) {
  if (directory[0] != 0) {
    nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  }
  printf("1..%d\n", n_results);
  fflush(stdout);
  return n_failed > 0 || n_results == 0;
}

const char *tap_path(const char *path) {
  enum { N_PATHS = 256 };
  static char paths[N_PATHS][PATH_MAX];
  static int n_paths;
  const char *root = getenv("srcdir");
  char *result = paths[n_paths++ % N_PATHS];
  snprintf(result, PATH_MAX, "%s/%s", root != NULL ? root : ".", path);
  return result;
}

const char *tap_directory(void) {
  if (directory[0] == 0) {
    const char *root = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/tessera-test-XXXXXX", root != NULL ? root : "/tmp");
    if (mkdtemp(directory) == NULL) {
      perror(directory);
      exit(99); /* automake's "hard error" */
    }
  }
  return directory;
}
