/* Checkpoints of DeepSpeed: not read here, but known, with the command that makes weights of them.
 *
 *     DIR/latest                                      "global_step200"
 *     DIR/global_step200/mp_rank_00_model_states.pt   zero_pp_rank_0_mp_rank_00_model_states.pt at stage 3
 *     DIR/global_step200/..._optim_states.pt          from stage 1 on: its zero_to_fp32 needs them */
#include "base/memory.h"
#include "io/manifest.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define STEP "global_step"

typedef struct found {
  char *directory, *tag; /* owned */
  char *states;          /* owned: the first file of model states */
  bool has_optimizer;
} found;

static void look_into(const char *path, found *f) {
  DIR *entries = opendir(path);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    f->has_optimizer = f->has_optimizer || ts_ends_in(entry->d_name, "_optim_states.pt");
    if (ts_ends_in(entry->d_name, "_model_states.pt") && (f->states == NULL || strcmp(entry->d_name, f->states) < 0)) {
      ts_free(f->states);
      f->states = ts_strdup(entry->d_name);
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
}

static void look_into_step(const char *path, const char *tag, found *f) {
  char *inner = ts_format("%s/%s", path, tag);
  look_into(inner, f);
  f->directory = ts_strdup(path);
  f->tag = ts_strdup(tag);
  ts_free(inner);
}

/* The newest DIR/global_step20 of a directory that was copied without its `latest`; NULL for none. */
static char *find_step(const char *path) {
  DIR *entries = opendir(path);
  char *newest = NULL;
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    if (strncmp(entry->d_name, STEP, strlen(STEP)) == 0 &&
        (newest == NULL || atoll(entry->d_name + strlen(STEP)) > atoll(newest + strlen(STEP)))) {
      ts_free(newest);
      newest = ts_strdup(entry->d_name);
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
  return newest;
}

/* The directory of a step itself. */
static void find_itself(const char *path, found *f) {
  char *real = realpath(path, NULL), *slash = real != NULL ? strrchr(real, '/') : NULL;
  look_into(path, f);
  f->directory = ts_format("%.*s", slash != NULL ? (int) (slash - real) : 0, real != NULL ? real : "");
  f->tag = ts_strdup(slash != NULL ? slash + 1 : "");
  free(real);
}

/* What DIR/latest names, else the newest step there, else the directory of a step itself. */
static bool find_checkpoint(const char *path, found *f) {
  char *latest = ts_format("%s/latest", path), *tag = NULL;
  size_t length;
  if (ts_read_file(latest, 256, &tag, &length, NULL) == TS_OK) {
    tag[strcspn(tag, " \t\r\n/")] = 0;
  } else {
    tag = find_step(path);
  }
  if (tag != NULL) {
    look_into_step(path, tag, f);
  } else {
    find_itself(path, f);
  }
  ts_free(tag);
  ts_free(latest);
  return f->states != NULL;
}

static ts_status explain_conversion(const char *path, const found *f, ts_error *err) {
  ts_text command = {0};
  if (f->has_optimizer) {
    ts_text_add(&command, "`python3 -m deepspeed.utils.zero_to_fp32 ");
    ts_text_add_shell(&command, f->directory);
    ts_text_add(&command, " OUT -t ");
    ts_text_add_shell(&command, f->tag);
    ts_text_add(&command, " --safe_serialization` (without the last word when the head is tied)");
  } else {
    char *states = ts_format("%s/%s/%s", f->directory, f->tag, f->states);
    ts_text_add(&command,
                "`mkdir OUT && python3 -c 'import safetensors.torch as s, sys, torch; s.save_file({k: v.clone() "
                "for k, v in torch.load(sys.argv[1], weights_only=False)[\"module\"].items()}, "
                "\"OUT/model.safetensors\")' ");
    ts_text_add_shell(&command, states);
    ts_text_add(&command, "`");
    ts_free(states);
  }
  ts_status status = ts_error_add(err,
                                  "%s: is a checkpoint of DeepSpeed, of which the weights can be taken: %s, then "
                                  "copy the model's config.json into OUT and begin a run with model.from = OUT",
                                  path, command.text);
  ts_text_free(&command);
  return status;
}

ts_status ts_deepspeed_refuse(const char *path, ts_error *err) {
  found f = {0};
  ts_status status = find_checkpoint(path, &f) ? explain_conversion(path, &f, err) : TS_OK;
  ts_free(f.directory);
  ts_free(f.tag);
  ts_free(f.states);
  return status;
}
