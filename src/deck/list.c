/* Lists of sections: where their entries lie. */
#include "base/memory.h"
#include "deck/reader.h"

#include <stdlib.h>
#include <string.h>

#define LIST(list, type) \
  { .path = #list, .items = offsetof(ts_deck, list.items), .n = offsetof(ts_deck, list.n), .entry = sizeof(type) }

static const ts_deck_list lists[] = {LIST(optimizer.groups, ts_deck_group), LIST(data.sources, ts_deck_source),
                                     LIST(tensor_parallel.partition_config.layer_specs, ts_deck_tp_spec),
                                     LIST(tensor_parallel.tp_plan, ts_deck_tp_rule)};

const ts_deck_list *ts_deck_list_at(int index) {
  return index < (int) (sizeof lists / sizeof *lists) ? &lists[index] : NULL;
}

const ts_deck_list *ts_deck_list_find(const char *path) {
  size_t length = strcspn(path, "[");
  const ts_deck_list *list = ts_deck_list_at(0);
  for (int i = 1; list != NULL && (strlen(list->path) != length || strncmp(list->path, path, length) != 0); ++i) {
    list = ts_deck_list_at(i);
  }
  return list;
}

int *ts_deck_list_length(const ts_deck *deck, const ts_deck_list *list) {
  return (int *) ((char *) deck + list->n);
}

void ts_deck_list_allocate(ts_deck *deck, const ts_deck_list *list) {
  void *items = ts_calloc((size_t) *ts_deck_list_length(deck, list), list->entry);
  memcpy((char *) deck + list->items, &items, sizeof items);
}

void *ts_deck_list_items(const ts_deck *deck, const ts_deck_list *list) {
  void *items;
  memcpy(&items, (const char *) deck + list->items, sizeof items);
  return items;
}

char *ts_deck_list_path(const ts_key *key, int entry) {
  int length = (int) strcspn(key->path, "[");
  return ts_format("%.*s[%d]%s", length, key->path, entry, key->path + length + strlen("[]"));
}

void *ts_deck_field(const ts_deck *deck, const ts_key *key, const char *path) {
  const char *bracket = strchr(path, '[');
  if (key->offset < 0) {
    return NULL;
  }
  if (bracket == NULL) {
    return (char *) deck + key->offset;
  }
  const ts_deck_list *list = ts_deck_list_find(path);
  return (char *) ts_deck_list_items(deck, list) + (size_t) strtol(bracket + 1, NULL, 10) * list->entry + key->offset;
}
