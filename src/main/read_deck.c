/* One rank reads the deck; the others read what it printed. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/checkpoint.h"
#include "io/publication.h"
#include "main/command.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void ts_say_notes(const ts_deck *deck, bool stdout_is_result) {
  ts_text notes = {0};
  ts_deck_notes(deck, &notes);
  if (notes.length > 0) {
    if (stdout_is_result) {
      fprintf(stderr, "%s\n", notes.text);
    } else {
      ts_log(TS_LOG_INFO, "%s", notes.text);
    }
  }
  ts_text_free(&notes);
}

/* The index of a checkpoint, once it is known to be what was written. */
static ts_status read_verified_index(const char *directory, ts_checkpoint **index, ts_error *err) {
  ts_manifest manifest = {0};
  ts_status status = ts_manifest_read(directory, &manifest, err);
  status = status == TS_OK ? ts_checkpoint_verify_file(directory, &manifest, "model.h5", err) : status;
  status = status == TS_OK ? ts_checkpoint_read_index(directory, index, err) : status;
  ts_manifest_clear(&manifest);
  return status;
}

/* The deck of a Hugging Face directory, whatever characters its name has; owned by the caller (ts_free). */
static char *deck_of_model(const char *directory) {
  char *real = realpath(directory, NULL);
  ts_text text = {0};
  ts_text_add(&text, "model = { from = ");
  ts_text_add_json(&text, real != NULL ? real : directory);
  ts_text_add(&text, "; };\n");
  free(real);
  return text.text;
}

/* Rank 0: the deck of a file, of a checkpoint, or of a Hugging Face directory. */
static ts_status read_here(const ts_arguments *arguments, ts_deck **deck, char **checkpoint, ts_error *err) {
  const char *path = arguments->positional[0];
  struct stat info;
  if (checkpoint == NULL || stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
    return ts_deck_read(path, arguments->sets, arguments->n_sets, deck, err);
  }
  char *config = ts_format("%s/config.json", path), *text = NULL;
  ts_checkpoint *index = NULL;
  ts_status status = TS_OK;
  if (access(config, F_OK) == 0) {
    text = deck_of_model(path);
  } else {
    status = ts_checkpoint_locate(path, NULL, checkpoint, err);
    status = status == TS_OK ? read_verified_index(*checkpoint, &index, err) : status;
    text = ts_strdup(index != NULL ? index->deck : NULL);
  }
  if (status == TS_OK) {
    status = ts_deck_read_text(path, text, arguments->sets, arguments->n_sets, deck, err);
  }
  ts_checkpoint_destroy(&index);
  ts_free(config);
  ts_free(text);
  return status;
}

static ts_status read_and_share(const ts_arguments *arguments, ts_world *world, ts_deck **deck, char **checkpoint,
                                ts_error *err) {
  *deck = NULL;
  bool reads = world == NULL || ts_world_rank(world) == 0;
  ts_status status = reads ? read_here(arguments, deck, checkpoint, err) : TS_OK;
  if (status == TS_OK && reads) {
    ts_say_notes(*deck, arguments->command->run != ts_main_train);
  }
  if (world == NULL) {
    return status;
  }
  status = ts_world_agree(world, status, err);
  status = status == TS_OK ? ts_engine_share_deck(world, arguments->positional[0], deck, err) : status;
  if (status != TS_OK) {
    ts_deck_destroy(deck);
  }
  return status;
}

ts_status ts_read_deck(const ts_arguments *arguments, ts_world *world, ts_deck **deck, ts_error *err) {
  return read_and_share(arguments, world, deck, NULL, err);
}

ts_status ts_read_deck_or_model(const ts_arguments *arguments, ts_world *world, ts_deck **deck, char **checkpoint,
                                ts_error *err) {
  *checkpoint = NULL;
  ts_status status = read_and_share(arguments, world, deck, checkpoint, err);
  if (status == TS_OK) {
    char *path = *checkpoint;
    *checkpoint = ts_world_share_text(world, path, 0);
    ts_free(path);
  }
  if (status == TS_OK && ts_deck_model_is_own(*deck)) { /* before its data and words are asked for */
    status = ts_deck_error(*deck, "model.model_type", err,
                           "\"" TS_MODEL_OWN "\": the model is written in a program, and this one has none");
  }
  return status;
}

static ts_status use_one_micro_batch(ts_deck *deck, const ts_world *world, ts_mesh *mesh, ts_error *err) {
  ts_status status = ts_deck_mesh(deck, ts_world_size(world), ts_world_rank(world), mesh, err);
  if (status != TS_OK) {
    return status;
  }
  if (deck->train_micro_batch_size_per_gpu <= 0) {
    deck->train_micro_batch_size_per_gpu = 1;
  }
  deck->gradient_accumulation_steps = 1;
  deck->train_batch_size = deck->train_micro_batch_size_per_gpu * ts_mesh_group_size(mesh, TS_AXES_BATCH);
  return TS_OK;
}

ts_status ts_create_engine(ts_world *world, ts_deck *deck, const ts_engine_options *wanted, const char *checkpoint,
                           ts_engine **engine, ts_error *err) {
  ts_mesh mesh;
  const ts_engine_options options = {.world = world,
                                     .deck = deck,
                                     .mesh = &mesh,
                                     .abilities = wanted->abilities,
                                     .context = wanted->context,
                                     .texts = wanted->texts,
                                     .loads = checkpoint != NULL};
  *engine = NULL;
  ts_status status = use_one_micro_batch(deck, world, &mesh, err);
  if (status != TS_OK) {
    return status;
  }
  if (checkpoint == NULL && deck->model.from[0] == 0) {
    ts_log(TS_LOG_WARNING,
           "model.from is not set: the weights are those of the seed, untrained; give a run or checkpoint "
           "directory instead of the deck to use what was trained");
  }
  ts_text said = {0};
  status = ts_engine_decide_precision(world, deck, &said, err);
  if (said.length > 0 && ts_world_rank(world) == 0) { /* stdout is for the result */
    fprintf(stderr, "%s\n", said.text);
  }
  ts_text_free(&said);
  status = status == TS_OK ? ts_engine_create(&options, engine, err) : status;
  if (status == TS_OK && checkpoint != NULL) {
    status = ts_engine_load_weights(*engine, checkpoint, NULL, err);
  }
  if (status != TS_OK) {
    ts_engine_destroy(engine);
  }
  return status;
}
