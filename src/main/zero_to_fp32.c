/* zero_to_fp32: a checkpoint as one model. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/beside.h"
#include "io/checkpoint.h"
#include "io/companions.h"
#include "io/consolidate.h"
#include "io/publication.h"
#include "main/command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_THREADS 64
#define MARK ".written_by_zero_to_fp32" /* in OUTPUT.tmp */
#define REDRAW_SECONDS 0.2
#define LINE_SECONDS 10

typedef struct job {
  char *directory; /* owned: the checkpoint */
  char *output;    /* owned */
  char *temporary; /* owned: OUTPUT.tmp until it is complete */
  ts_manifest manifest;
  ts_checkpoint *checkpoint;
  ts_consolidate_options options;
  ts_text config;      /* owned: config.json; empty for a program's own model */
  ts_beside beside;    /* owned: what lies beside the tensors */
  double begin, shown; /* seconds of the clock */
} job;

/* ---- the command line ---- */

static ts_status parse_dtype(const char *word, ts_dtype *dtype, ts_error *err) {
  static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; ++i) {
    if (strcmp(ts_dtype_name(dtypes[i]), word) == 0) {
      *dtype = dtypes[i];
      return TS_OK;
    }
  }
  return ts_error_add(err, "--dtype %s: fp32, bf16 or fp16 is accepted", word);
}

/* -t is DeepSpeed's word for --tag. */
static ts_status read_tag(const ts_arguments *arguments, const char **tag, ts_error *err) {
  const char *brief = ts_argument(arguments, "-t");
  *tag = ts_argument(arguments, "--tag");
  if (*tag != NULL && brief != NULL) {
    return ts_error_add(err, "--tag %s and -t %s: one of the two is accepted", *tag, brief);
  }
  *tag = *tag != NULL ? *tag : brief;
  return TS_OK;
}

/* --safe-serialization is DeepSpeed's word for --format safetensors; beside another format it cannot be meant. */
static ts_status read_format(const ts_arguments *arguments, ts_consolidate_format *format, ts_error *err) {
  const char *word = ts_argument(arguments, "--format");
  bool safe = ts_argument(arguments, "--safe-serialization") != NULL;
  bool safetensors = word != NULL ? strcmp(word, "safetensors") == 0 : safe;
  *format = safetensors ? TS_CONSOLIDATE_SAFETENSORS : TS_CONSOLIDATE_HDF5;
  if (word != NULL && !safetensors && strcmp(word, "hdf5") != 0) {
    return ts_error_add(err, "--format %s: hdf5 or safetensors is accepted", word);
  }
  return !safe || safetensors ? TS_OK
                              : ts_error_add(err, "--format hdf5 and --safe-serialization, which is --format "
                                                  "safetensors: one of the two is accepted");
}

static ts_status read_options(const ts_arguments *arguments, job *j, const char **tag, ts_error *err) {
  ts_status status = read_format(arguments, &j->options.format, err);
  status |= parse_dtype(ts_argument(arguments, "--dtype"), &j->options.dtype, err);
  status |= ts_argument_bytes(arguments, "--max-shard-size", &j->options.most_bytes, err);
  status |= read_tag(arguments, tag, err);
  j->options.exclude_frozen = ts_argument(arguments, "--exclude-frozen-parameters") != NULL;
  j->options.saturate = ts_argument(arguments, "--saturate") != NULL;
  if (j->options.saturate && j->options.dtype != TS_F16) {
    status |= ts_error_add(err, "--saturate: only --dtype fp16 has so small a range");
  }
  return status;
}

static ts_status check_output(const char *output, ts_error *err) {
  struct stat info;
  if (output[0] == 0) {
    return ts_error_add(err, "OUTPUT is empty: what shall the model be called?");
  }
  if (lstat(output, &info) == 0) {
    return ts_error_add(err, "%s exists already; nothing is written over: choose another name or remove it", output);
  }
  return errno == ENOENT ? TS_OK : ts_error_add(err, "%s: %s", output, strerror(errno));
}

/* "out/" is "out": its temporary name lies beside it, not in it. */
static void name_output(job *j, const char *word) {
  size_t length = strlen(word);
  while (length > 1 && word[length - 1] == '/') {
    --length;
  }
  j->output = ts_format("%.*s", (int) length, word);
  j->temporary = ts_format("%s.tmp", j->output);
}

/* ---- the checkpoint ---- */

static int count_threads(void) {
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : cores > MOST_THREADS ? MOST_THREADS : (int) cores;
}

static void say_checked(const ts_manifest *manifest) {
  double bytes = 0;
  for (int i = 0; i < manifest->n; ++i) {
    bytes += (double) manifest->file[i].bytes;
  }
  char human[32];
  ts_log(TS_LOG_INFO, "checking %d files, %s", manifest->n, ts_human_bytes(bytes, human));
}

/* The index is checked before it is read; the shards while they are. */
static ts_status open_checkpoint(job *j, ts_error *err) {
  ts_status status = ts_manifest_read(j->directory, &j->manifest, err);
  if (status == TS_OK) {
    say_checked(&j->manifest);
  }
  status = status == TS_OK ? ts_checkpoint_verify_file(j->directory, &j->manifest, "model.h5", err) : status;
  status = status == TS_OK ? ts_checkpoint_read_index(j->directory, &j->checkpoint, err) : status;
  return status == TS_OK
             ? ts_manifest_match(j->directory, &j->manifest, j->checkpoint->step, j->checkpoint->n_shards, err)
             : status;
}

/* ---- what lies beside the tensors ---- */

/* It is made before anything is written: what goes wrong here is the input's fault. */
static ts_status make_config(job *j, ts_error *err) {
  ts_deck *deck;
  ts_status status = ts_deck_read_text(j->directory, j->checkpoint->deck, NULL, 0, &deck, err);
  if (status == TS_OK && ts_deck_model_is_own(deck)) {
    ts_log(TS_LOG_INFO, "the model is a program's own: there is no config.json for it");
  } else if (status == TS_OK) {
    char *run = ts_format("%s/..", j->directory);
    ts_beside_find(run, j->checkpoint->source, deck, &j->beside);
    status = ts_beside_config(&j->beside, deck, j->options.dtype, &j->config, err);
    ts_free(run);
  }
  ts_deck_destroy(&deck);
  return status;
}

static ts_status write_directory(const job *j, ts_error *err) {
  return j->config.length > 0 ? ts_beside_write(&j->beside, &j->config, j->temporary, err) : TS_OK;
}

/* ---- progress ---- */

static void show(int64_t done, int64_t bytes, void *user) {
  job *j = user;
  double now = ts_seconds(), part = bytes > 0 ? (double) done / (double) bytes : 1;
  double every = ts_log_is_terminal() ? REDRAW_SECONDS : LINE_SECONDS;
  if (now - j->shown < every) {
    return;
  }
  j->shown = now;
  double rate = 1e-9 * (double) done / (now - j->begin);
  char bar[25], left[32], text[128];
  memset(bar, '-', 24);
  memset(bar, '#', (size_t) (24 * part));
  bar[24] = 0;
  ts_human_seconds((now - j->begin) * (1 - part) / (part > 0 ? part : 1), left);
  snprintf(text, sizeof text, "[%s] %3.0f %%  %.2f GB/s  ETA %s", bar, 100 * part, rate, left);
  if (ts_log_is_terminal()) {
    ts_log_status_line(text);
  } else {
    ts_log(TS_LOG_INFO, "%3.0f %%  %.2f GB/s  ETA %s", 100 * part, rate, left);
  }
}

/* ---- all of it ---- */

static bool sync_output(const char *path) {
  int directory = open(path, O_RDONLY | O_DIRECTORY);
  bool ok = directory >= 0 && (fsync(directory) == 0 || errno == EINVAL);
  if (directory >= 0) {
    close(directory);
  }
  return ok;
}

static bool sync_parent(const char *path) {
  const char *slash = strrchr(path, '/');
  char *parent = slash == NULL ? ts_strdup(".") : ts_format("%.*s", slash == path ? 1 : (int) (slash - path), path);
  bool ok = sync_output(parent);
  ts_free(parent);
  return ok;
}

/* The mark goes last: a directory that is half removed is still known. */
static void remove_files(const char *path) {
  DIR *entries = opendir(path);
  for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
    if (strcmp(entry->d_name, MARK) != 0) {
      unlinkat(dirfd(entries), entry->d_name, 0); /* files only; "." and ".." are refused */
    }
  }
  if (entries != NULL) {
    unlinkat(dirfd(entries), MARK, 0);
    closedir(entries);
  }
  rmdir(path);
}

static void remove_temporary(const job *j) {
  char *below = ts_format("%s/" TS_COMPANIONS_BELOW, j->temporary);
  remove_files(below);
  remove_files(j->temporary);
  ts_free(below);
}

/* OUTPUT.tmp is a directory with a mark in it.  Without the mark it is somebody else's, and stays. */
static ts_status make_temporary(const job *j, ts_error *err) {
  char *mark = ts_format("%s/" MARK, j->temporary);
  if (access(mark, F_OK) == 0) {
    remove_temporary(j);
  } else {
    rmdir(j->temporary); /* of one killed before its mark, nothing is in it */
  }
  bool made = mkdir(j->temporary, 0777) == 0;
  int file = made ? open(mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0666) : -1;
  ts_status status = TS_OK;
  if (!made && errno == EEXIST) {
    status =
        ts_error_add(err,
                     "%s is in the way, and is not what an interrupted zero_to_fp32 left: move it or choose another "
                     "OUTPUT",
                     j->temporary);
  } else if (file < 0) {
    status = ts_error_add(err, "%s: cannot be made: %s", made ? mark : j->temporary, strerror(errno));
  }
  if (file >= 0) {
    close(file);
  }
  ts_free(mark);
  return status;
}

/* The complete OUTPUT.tmp gets its name: what is in it is on the disk before.  A directory takes OUTPUT's; a file moves
 * out of the directory it was written in. */
static ts_status give_name(const job *j, bool directory, ts_error *err) {
  bool ok;
  if (directory) {
    char *mark = ts_format("%s/" MARK, j->output), *below = ts_format("%s/" TS_COMPANIONS_BELOW, j->temporary);
    ok = (access(below, F_OK) != 0 || sync_output(below)) && sync_output(j->temporary) &&
         rename(j->temporary, j->output) == 0 && unlink(mark) == 0 && sync_parent(j->output);
    ts_free(mark);
    ts_free(below);
  } else {
    ok = rename(j->options.output, j->output) == 0 && sync_parent(j->output);
    remove_temporary(j);
  }
  return ok ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", j->output, strerror(errno));
}

static void say_written(const job *j, const ts_consolidated *result) {
  double seconds = ts_seconds() - j->begin;
  char bytes[32];
  ts_log(TS_LOG_INFO, "%s: %d tensors of step %lld, %s in %d file%s, %.1f s, %.2f GB/s", j->output, result->n_tensors,
         (long long) j->checkpoint->step, ts_human_bytes((double) result->bytes, bytes), result->n_files,
         result->n_files > 1 ? "s" : "", seconds, 1e-9 * (double) result->bytes / seconds);
}

/* Weights that are finite shall not become infinite unasked. */
static ts_status check_beyond(const job *j, const ts_consolidated *result, ts_error *err) {
  if (result->n_beyond == 0) {
    return TS_OK;
  }
  char *what = ts_format("%lld value%s of %d tensor%s are beyond fp16, which ends at 65504; the first is in %s",
                         (long long) result->n_beyond, result->n_beyond > 1 ? "s" : "", result->n_tensors_beyond,
                         result->n_tensors_beyond > 1 ? "s" : "", result->first_beyond);
  ts_status status = TS_OK;
  if (j->options.saturate) {
    ts_log(TS_LOG_WARNING, "%s; 65504 or -65504 is written for them", what);
  } else {
    status = ts_error_add(err, "%s: %s: --saturate writes 65504 or -65504 for them, --dtype bf16 has their range",
                          j->directory, what);
  }
  ts_free(what);
  return status;
}

/* Write OUTPUT.tmp, then give it its name.  \return the exit code. */
static int write_output(job *j, ts_error *err) {
  bool directory = j->options.format == TS_CONSOLIDATE_SAFETENSORS, broken = false;
  if (make_temporary(j, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_consolidated result;
  ts_status status = ts_consolidate(&j->options, &result, &broken, err);
  ts_log_status_line(NULL);
  status = status == TS_OK ? check_beyond(j, &result, err) : status;
  if (status == TS_OK) {
    status = directory ? write_directory(j, err) : TS_OK;
    status = status == TS_OK ? give_name(j, directory, err) : status;
    broken = status != TS_OK; /* the checkpoint was read: what fails now is the disk */
  }
  if (status != TS_OK) {
    remove_temporary(j);
    return broken ? 1 : status;
  }
  say_written(j, &result);
  return 0;
}

/* Leaving out what is frozen must leave something. */
static ts_status check_trained(const job *j, ts_error *err) {
  const ts_checkpoint *c = j->checkpoint;
  for (int i = 0; i < c->n_parameters; ++i) {
    if (!j->options.exclude_frozen || ts_checkpoint_part(c, &c->parameter[i])->trainable) {
      return TS_OK;
    }
  }
  return ts_error_add(err, "%s: every parameter is frozen: --exclude-frozen-parameters leaves nothing", j->directory);
}

int ts_main_zero_to_fp32(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  job j = {.begin = ts_seconds()};
  const char *tag = NULL;
  name_output(&j, arguments->positional[1]);
  int code = read_options(arguments, &j, &tag, err) == TS_OK ? (int) check_output(j.output, err) : TS_BAD_INPUT;
  code = code == 0 ? (int) ts_checkpoint_locate(arguments->positional[0], tag, &j.directory, err) : code;
  code = code == 0 ? (int) open_checkpoint(&j, err) : code;
  code = code == 0 ? (int) check_trained(&j, err) : code;
  code = code == 0 && j.options.format == TS_CONSOLIDATE_SAFETENSORS ? (int) make_config(&j, err) : code;
  if (code == 0) {
    j.options.directory = j.directory;
    j.options.checkpoint = j.checkpoint;
    j.options.manifest = &j.manifest;
    j.options.threads = count_threads();
    bool directory = j.options.format == TS_CONSOLIDATE_SAFETENSORS;
    char *file = ts_format("%s/model.h5", j.temporary);
    j.options.output = directory ? j.temporary : file;
    j.options.progress = show;
    j.options.user = &j;
    j.shown = ts_seconds();
    code = write_output(&j, err);
    ts_free(file);
  }
  if (code == 1) {
    ts_log(TS_LOG_ERROR, "%s", err->text);
  }
  ts_checkpoint_destroy(&j.checkpoint);
  ts_manifest_clear(&j.manifest);
  ts_text_free(&j.config);
  ts_beside_clear(&j.beside);
  ts_free(j.directory);
  ts_free(j.temporary);
  ts_free(j.output);
  return code;
}
