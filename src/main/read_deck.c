/* One rank reads the deck; the others read what it printed. */
#include "base/log.h"
#include "base/memory.h"
#include "main/command.h"

#include <string.h>

/* Beside the result, not in it: stdout belongs to what eval, plan and the others print. */
static void say_notes(const ts_deck *deck, bool stdout_is_result) {
  ts_text notes = {0};
  ts_deck_notes(deck, &notes);
  if (notes.length > 0) {
    while (notes.length > 0 && notes.text[notes.length - 1] == '\n') {
      notes.text[--notes.length] = 0;
    }
    if (stdout_is_result) {
      fprintf(stderr, "%s\n", notes.text);
    } else {
      ts_log(TS_LOG_INFO, "%s", notes.text);
    }
  }
  ts_text_free(&notes);
}

/* The printed deck of rank 0 on every rank; owned by the caller (ts_free). */
static char *share_text(ts_world *world, ts_text *mine) {
  ts_comm *all = ts_world_all(world);
  int64_t length = (int64_t) mine->length;
  all->ops->broadcast(all, &length, sizeof length, 0);
  char *text = ts_calloc((size_t) length + 1, 1);
  if (all->rank == 0) {
    memcpy(text, mine->text, (size_t) length);
  }
  all->ops->broadcast(all, text, (size_t) length, 0);
  return text;
}

ts_status ts_read_deck(const ts_arguments *arguments, ts_world *world, ts_deck **deck, ts_error *err) {
  const char *path = arguments->positional[0];
  *deck = NULL;
  bool reads = world == NULL || ts_world_rank(world) == 0;
  ts_status status = reads ? ts_deck_read(path, arguments->sets, arguments->n_sets, deck, err) : TS_OK;
  if (status == TS_OK && reads) {
    say_notes(*deck, arguments->command->run != ts_main_train);
  }
  if (world == NULL) {
    return status;
  }
  status = ts_world_agree(world, status, err);
  if (status == TS_OK) {
    ts_text text = {0};
    if (reads) {
      ts_deck_print(*deck, &text);
    }
    char *shared = share_text(world, &text);
    if (!reads) {
      status = ts_deck_read_text(path, shared, NULL, 0, deck, err);
    }
    ts_free(shared);
    ts_text_free(&text);
    status = ts_world_agree(world, status, err);
  }
  if (status != TS_OK) {
    ts_deck_destroy(deck);
  }
  return status;
}

void ts_use_one_micro_batch(ts_deck *deck, int ranks) {
  if (deck->train_micro_batch_size_per_gpu <= 0) {
    deck->train_micro_batch_size_per_gpu = 1;
  }
  deck->gradient_accumulation_steps = 1;
  deck->train_batch_size = deck->train_micro_batch_size_per_gpu * ranks;
}

void ts_warn_untrained(const ts_deck *deck) {
  if (deck->model.from[0] == 0) {
    ts_log(TS_LOG_WARNING, "model.from is not set: the weights are those of the seed, untrained (checkpoints of runs "
                           "cannot be read yet)");
  }
}
