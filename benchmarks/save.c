/* Checkpoints of a real engine against what the machine can do; `benchmarks/checkpoint` runs it.
 *
 *     mpiexec -n 4 benchmarks/save save DIRECTORY     plain files of the same bytes (1 MiB writes, fsync) and saves,
 *                                                     in turn
 *     mpiexec -n 3 benchmarks/save load DIRECTORY     the newest checkpoint there, checked and loaded
 *
 * 89 M parameters in fp32 with two moments: 1.07 GB over all ranks.  Prints the median of the rounds; `wait` is what
 * training stands still for, against a memcpy of the same bytes. */
#include "engine/save.h"
#include "base/log.h"
#include "base/memory.h"
#include "io/publication.h"
#include "train/resume.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 5 };

static const char deck_text[] = "model = { model_type = \"llama\"; vocab_size = 256; hidden_size = 768; "
                                "intermediate_size = 2048; num_hidden_layers = 12;\n"
                                "  num_attention_heads = 12; num_key_value_heads = 12; max_position_embeddings = 16; "
                                "tie_word_embeddings = true; };\n"
                                "data = { path = \"none\"; sequence_length = 16; };\n"
                                "run = { steps = 1; save_every = 1; threads = 1; };\n"
                                "train_micro_batch_size_per_gpu = 1;\n"
                                "zero_optimization = { stage = 3; };\n";

typedef struct bench {
  ts_world *world;
  ts_deck *deck;
  ts_engine *engine;
  ts_comm *all;
  size_t bytes; /* of this rank's shard */
  unsigned char *block;
} bench;

static int by_value(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

static double median(double *seconds) {
  qsort(seconds, ROUNDS, sizeof *seconds, by_value);
  return seconds[ROUNDS / 2];
}

static double plain(bench *b, const char *directory) {
  char *path = ts_format("%s/plain_%d", directory, b->all->rank);
  b->all->ops->barrier(b->all);
  double start = ts_seconds();
  int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
  for (size_t at = 0; at < b->bytes; at += 1 << 20) {
    size_t n = b->bytes - at < 1 << 20 ? b->bytes - at : 1 << 20;
    TS_CHECK(write(file, b->block + at, n) == (ssize_t) n, "%s cannot be written", path);
  }
  TS_CHECK(fsync(file) == 0 && close(file) == 0, "%s cannot be synced", path);
  b->all->ops->barrier(b->all);
  double seconds = ts_seconds() - start;
  unlink(path);
  ts_free(path);
  return seconds;
}

static double copy(bench *b, unsigned char *to) {
  b->all->ops->barrier(b->all);
  double start = ts_seconds();
  memcpy(to, b->block, b->bytes);
  b->all->ops->barrier(b->all);
  return ts_seconds() - start;
}

static void run_save(bench *b, const char *directory) {
  double files[ROUNDS], saves[ROUNDS], waits[ROUNDS], copies[ROUNDS];
  unsigned char *to = ts_map(b->bytes);
  memset(to, 1, b->bytes);
  ts_saver *saver = ts_saver_create(b->engine);
  for (int i = -1; i < ROUNDS; ++i) { /* the first of each warms up */
    double file = plain(b, directory), copied = copy(b, to);
    b->all->ops->barrier(b->all);
    double start = ts_seconds();
    ts_saver_begin(saver, &(ts_position){.step = i + 2});
    double waited = ts_seconds() - start;
    TS_CHECK(ts_saver_finish(saver), "not saved");
    double saved = ts_seconds() - start;
    if (b->all->rank == 0) { /* not timed: plain files are not removed in their time either */
      ts_publication_prune(directory, 1);
    }
    if (i >= 0) {
      files[i] = file, copies[i] = copied, saves[i] = saved, waits[i] = waited;
    }
  }
  double gb = 1e-9 * (double) b->bytes * b->all->size, p = median(files), s = median(saves), w = median(waits),
         c = median(copies);
  if (b->all->rank == 0) {
    printf("plain files        %6.3f s  %5.2f GB/s\nsave               %6.3f s  %5.2f GB/s  %.2f of plain files\n", p,
           gb / p, s, gb / s, p / s);
    printf("wait of a save     %6.3f s  %5.2f of a memcpy of the state (%.3f s)\n", w, w / c, c);
  }
  ts_saver_destroy(&saver);
  ts_unmap(to, b->bytes);
}

static void run_load(bench *b) {
  double seconds[ROUNDS];
  for (int i = -1; i < ROUNDS; ++i) {
    ts_error err = {0};
    ts_resume resume;
    b->all->ops->barrier(b->all);
    double start = ts_seconds();
    ts_status status = ts_resume_find(b->world, b->deck, "auto", &resume, &err);
    TS_CHECK(status == TS_OK && resume.checkpoint != NULL, "%s", err.text != NULL ? err.text : "no checkpoint");
    status = ts_engine_load(b->engine, resume.directory, resume.checkpoint, TS_LOAD_ALL, &err);
    TS_CHECK(status == TS_OK, "%s", err.text);
    ts_resume_clear(&resume);
    seconds[i < 0 ? 0 : i] = ts_seconds() - start;
  }
  double s = median(seconds);
  if (b->all->rank == 0) {
    printf("load on %d ranks    %6.3f s\n", b->all->size, s);
  }
}

int main(int argc, char **argv) {
  bench b = {.world = ts_world_create(&argc, &argv)};
  if (argc != 3 || (strcmp(argv[1], "save") != 0 && strcmp(argv[1], "load") != 0)) {
    fprintf(stderr, "usage: save save|load DIRECTORY\n");
    return 2;
  }
  ts_log_configure(TS_LOG_WARNING, ts_world_rank(b.world) == 0);
  char *set = ts_format("run.directory=%s", argv[2]);
  ts_error err = {0};
  ts_status status = ts_deck_read_text("deck", deck_text, &set, 1, &b.deck, &err);
  status = status == TS_OK ? ts_deck_resolve_batch(b.deck, ts_world_size(b.world), &err) : status;
  const ts_engine_options options = {.world = b.world, .deck = b.deck, .abilities = TS_CAN_TRAIN};
  status = status == TS_OK ? ts_engine_create(&options, &b.engine, &err) : status;
  TS_CHECK(status == TS_OK, "%s", err.text);
  b.all = ts_world_all(b.world);
  b.bytes = (size_t) ts_engine_program(b.engine)->plan->bytes[TS_PURPOSE_CHECKPOINT];
  if (strcmp(argv[1], "save") == 0) {
    b.block = ts_map(b.bytes);
    memset(b.block, 7, b.bytes);
    run_save(&b, argv[2]);
    ts_unmap(b.block, b.bytes);
  } else {
    run_load(&b);
  }
  ts_engine_destroy(&b.engine);
  ts_deck_destroy(&b.deck);
  ts_free(set);
  ts_world_destroy(&b.world);
  return 0;
}
