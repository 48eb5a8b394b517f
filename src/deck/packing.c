#include "deck/deck.h"

#include <string.h>

bool ts_deck_by_documents(const ts_deck *deck) {
  return strcmp(deck->data.packing, "documents") == 0 || strcmp(deck->data.packing, "best_fit") == 0;
}
