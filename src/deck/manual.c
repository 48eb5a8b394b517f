/* The list of all keys, from the rows that read them. */
#include "deck/reader.h"

#include <string.h>

static const char *const status_names[] = {[TS_KEY_WORKS] = "works",
                                           [TS_KEY_NO_EFFECT] = "no effect",
                                           [TS_KEY_REFUSED] = "refused, not there yet",
                                           [TS_KEY_REMOVED] = "refused, removed from DeepSpeed",
                                           [TS_KEY_RENAMED] = "refused, called otherwise here"};

/* Roff takes a backslash, and a dot or quote that begins a line, for its own. */
static void add_man(ts_text *to, const char *text) {
  if (*text == '.' || *text == '\'') {
    ts_text_add(to, "\\&");
  }
  for (; *text != '\0'; ++text) {
    if (*text == '\\' || *text == '-') {
      ts_text_add(to, *text == '-' ? "\\-" : "\\e");
    } else {
      ts_text_append(to, text, 1);
    }
  }
}

static void add_details(ts_text *to, const ts_key *key) {
  ts_text accepted = {0};
  if (key->alias != NULL) {
    ts_text_add(to, "%s", key->help);
    return;
  }
  ts_text_add(to, "%s%s%s", key->status == TS_KEY_WORKS ? "" : status_names[key->status],
              key->status == TS_KEY_WORKS ? "" : ": ", key->help);
  if (key->status == TS_KEY_WORKS) {
    ts_key_describe(key, &accepted);
    ts_text_add(to, " Accepted: %s.", accepted.text);
    ts_text_free(&accepted);
  }
  if (key->instead != NULL) {
    ts_text_add(to, " Instead: %s.", key->instead);
  }
  if (ts_key_selector(key) != NULL) {
    ts_text_add(to, " Only with %s = ", ts_key_selector(key));
    ts_key_describe_owners(key, to);
    ts_text_add(to, ".");
  }
}

static void add_title(ts_text *to, const ts_key *key) {
  ts_text_add(to, "%s", key->path);
  if (key->alias == NULL) {
    ts_text_add(to, "  (%s", ts_key_type_name(key->type));
    if (key->flags & TS_KEY_REQUIRED) {
      ts_text_add(to, ", required");
    } else if (key->initial != NULL && *key->initial != '\0') {
      ts_text_add(to, ", default %s", key->initial);
    }
    ts_text_add(to, ")");
  }
}

void ts_deck_manual(ts_text *to, ts_deck_format format) {
  int n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    ts_text title = {0}, details = {0};
    add_title(&title, ts_key_at(i));
    add_details(&details, ts_key_at(i));
    if (format == TS_DECK_MAN) {
      ts_text_add(to, ".TP\n.B ");
      add_man(to, title.text);
      ts_text_add(to, "\n");
      add_man(to, details.text);
      ts_text_add(to, "\n");
    } else {
      ts_text_add(to, "%s\n    %s\n", title.text, details.text);
    }
    ts_text_free(&title);
    ts_text_free(&details);
  }
}
