/* tessera deck: what a deck says once everything is taken in; for scripts, one value of it. */
#include "base/memory.h"
#include "deck/reader.h"
#include "main/command.h"

#include <string.h>

/* A list, or what an entry of one has, as a deck has it. */
static bool print_listed(const ts_deck *deck, const char *path, ts_text *to) {
  char *value = ts_deck_list_find(path) != NULL ? ts_deck_value(deck, path) : NULL;
  if (value != NULL) {
    ts_text_add(to, "%s\n", value);
  }
  ts_free(value);
  return value != NULL;
}

/* A string without its quotes, anything else as a deck has it. */
static ts_status print_value(const ts_deck *deck, const char *path, ts_text *to, ts_error *err) {
  int index = ts_key_find(path);
  const ts_key *key = index >= 0 ? ts_key_at(ts_key_canonical(index)) : NULL;
  if (key == NULL || key->offset < 0 || strchr(key->path, '[') != NULL) {
    char *near = key == NULL ? ts_key_nearest(path) : NULL;
    ts_error_add(err, "--key %s: no such value in a deck%s%s%s", path, near != NULL ? "; did you mean " : "",
                 near != NULL ? near : "", near != NULL ? "?" : "; `tessera keys` lists them");
    ts_free(near);
    return TS_BAD_INPUT;
  }
  const void *field = ts_deck_field(deck, key, key->path);
  if (key->type == TS_KEY_STRING) {
    ts_text_add(to, "%s", *(char *const *) field);
  } else {
    ts_deck_print_value(to, key, field);
  }
  ts_text_add(to, "\n");
  return TS_OK;
}

int ts_main_deck(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  ts_deck *deck = NULL;
  ts_text text = {0};
  const char *key = ts_argument(arguments, "--key");
  ts_status status = ts_read_deck(arguments, world, &deck, err);
  if (status == TS_OK && key != NULL) {
    status = print_listed(deck, key, &text) ? TS_OK : print_value(deck, key, &text, err);
  } else if (status == TS_OK) {
    ts_deck_print(deck, &text);
  }
  if (status == TS_OK) {
    fputs(text.text, stdout);
  }
  ts_text_free(&text);
  ts_deck_destroy(&deck);
  return status;
}
