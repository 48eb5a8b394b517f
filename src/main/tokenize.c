/* tessera tokenize: texts and JSONL files into a file of tokens, by a tokenizer; or a text, a token a byte. */
#include "base/log.h"
#include "base/memory.h"
#include "io/companions.h"
#include "io/corpus.h"
#include "io/data.h"
#include "io/token_parts.h"
#include "io/tokens.h"
#include "main/command.h"
#include "train/progress.h"

#include <omp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct job {
  const ts_arguments *arguments;
  ts_tokenizer *tokenizer;
  ts_chat *chat;
  ts_error no_chat;
  struct tm today;
  ts_corpus_options options;
  ts_token_part *part; /* NULL: ids are printed */
  ts_progress progress;
  int64_t bytes, done; /* of all files */
  bool begun;          /* a line of ids */
} job;

/* ---- what becomes of tokens ---- */

static void print_ids(job *j, const ts_record_ids *ids) {
  int64_t next = 0;
  for (int64_t i = 0; i < ids->ids.n; ++i) {
    bool begins = next < ids->n_documents && ids->first[next] == i;
    next += begins;
    printf("%s%d", begins && j->begun ? "\n" : begins ? "" : " ", ids->ids.id[i]);
    j->begun = true;
  }
}

static ts_status take_tokens_of_part(void *user, const ts_corpus_part *part, ts_error *err) {
  job *j = user;
  j->done += part->bytes;
  if (j->part == NULL) {
    print_ids(j, part->ids);
    return TS_OK;
  }
  ts_progress_bytes(&j->progress, "tokenizing", j->done, j->bytes);
  return ts_token_part_add(j->part, part->ids, err);
}

static ts_status encode_file(job *j, const char *path, ts_error *err) {
  ts_corpus_options options = j->options;
  ts_status status = ts_tokens_guess(path, ts_argument(j->arguments, "--format"), &options.format, err);
  if (status == TS_OK && strcmp(options.format, "text") != 0 && strcmp(options.format, "jsonl") != 0) {
    status = ts_error_add(err, "%s: holds tokens already (%s); accepted: text, jsonl", path, options.format);
  }
  return status == TS_OK ? ts_corpus_encode(j->tokenizer, path, &options, take_tokens_of_part, j, NULL, err) : status;
}

static ts_status encode_files(job *j, ts_error *err) {
  const ts_arguments *a = j->arguments;
  for (int i = 0; i < a->n_positional; ++i) {
    struct stat info;
    j->bytes += stat(a->positional[i], &info) == 0 ? (int64_t) info.st_size : 0;
  }
  ts_progress_begin(&j->progress, 0, 0, 0);
  ts_status status = TS_OK;
  for (int i = 0; i < a->n_positional && status == TS_OK; ++i) {
    status = encode_file(j, a->positional[i], err);
  }
  ts_progress_end(&j->progress);
  return status;
}

/* ---- a file of them ---- */

static void say_tokenized(const job *j, const char *path, const ts_token_counts *counts) {
  char tokens[32];
  printf("%s: %lld document%s, %lld tokens (%s)", path, (long long) counts->documents,
         counts->documents == 1 ? "" : "s", (long long) counts->tokens,
         ts_human_count((double) counts->tokens, tokens));
  if (counts->ignored > 0) {
    printf(", %lld of them learned", (long long) (counts->tokens - counts->ignored));
  }
  if (counts->replaced > 0) {
    printf("; %lld places that were not UTF-8 became U+FFFD", (long long) counts->replaced);
  }
  double seconds = ts_seconds() - j->progress.begin;
  printf("; %.1f MB/s\n", seconds > 0 ? (double) j->bytes / seconds / 1e6 : 0);
}

static ts_status write_tokens(job *j, const char *path, ts_error *err) {
  int64_t size = ts_tokenizer_size(j->tokenizer);
  char *prefix = ts_format("%s.part", path);
  ts_status status = ts_token_part_create(prefix, size, &j->part, err);
  if (status == TS_OK) {
    status = encode_files(j, err);
    const ts_token_counts counts = *ts_token_part_counts(j->part);
    ts_status closed = ts_token_part_close(&j->part, err);
    status = status == TS_OK ? closed : status;
    if (status == TS_OK && counts.tokens == 0) {
      status = ts_error_add(err, "%s: there is no text in %s", path, j->arguments->n_positional > 1 ? "them" : "it");
    }
    status = status == TS_OK ? ts_token_parts_join(path, size, 1, &prefix, &counts, NULL, NULL, err) : status;
    if (status == TS_OK) {
      say_tokenized(j, path, &counts);
    }
    ts_token_part_remove(prefix);
  }
  ts_free(prefix);
  return status;
}

/* ---- the command ---- */

static ts_status find_end_token(job *j, const char *directory, ts_error *err) {
  const char *name = ts_argument(j->arguments, "--end-token");
  int32_t *id = &j->options.record.end_token;
  if (name == NULL) {
    return ts_companions_end_token(directory, j->tokenizer, id, err);
  }
  *id = strcmp(name, "none") == 0 ? -1 : ts_tokenizer_id(j->tokenizer, name);
  return *id >= 0 || strcmp(name, "none") == 0
             ? TS_OK
             : ts_error_add(err, "--end-token %s: the tokenizer has no such token; accepted: a token, or none", name);
}

static ts_status find_chat_template(job *j, const char *directory, ts_error *err) {
  const char *name = ts_argument(j->arguments, "--chat-template");
  const time_t now = time(NULL);
  ts_status status = ts_chat_open(directory, name, &j->chat, &j->no_chat);
  j->options.record.chat = j->chat;
  j->options.record.no_chat = j->no_chat.text;
  j->options.record.today = localtime_r(&now, &j->today);
  return status == TS_OK || name == NULL ? TS_OK : ts_error_add(err, "--chat-template: %s", j->no_chat.text);
}

static ts_status read_tokenize_options(job *j, const char *directory, ts_error *err) {
  const ts_arguments *a = j->arguments;
  int64_t threads = 0;
  const char *format = ts_argument(a, "--format");
  ts_status status = ts_argument_int(a, "--threads", 0, 4096, &threads, err);
  if (strcmp(format, "auto") != 0 && strcmp(format, "text") != 0 && strcmp(format, "jsonl") != 0) {
    status = ts_error_add(err, "--format %s: accepted: auto, text, jsonl", format);
  }
  j->options.threads = threads > 0 ? (int) threads : omp_get_num_procs();
  j->options.n_shares = 1;
  j->options.record = (ts_record_options){.field = ts_argument(a, "--field"),
                                          .completion_field = ts_argument(a, "--completion-field"),
                                          .train_on_prompt = ts_argument(a, "--train-on-prompt") != NULL};
  status = status == TS_OK ? ts_tokenizer_open(directory, &j->tokenizer, err) : status;
  status = status == TS_OK ? find_chat_template(j, directory, err) : status;
  return status == TS_OK ? find_end_token(j, directory, err) : status;
}

static ts_status refuse_existing(const char *path, ts_error *err) {
  return access(path, F_OK) != 0 ? TS_OK
                                 : ts_error_add(err, "%s exists already; choose another name or remove it", path);
}

static ts_status encode_all(const ts_arguments *arguments, const char *directory, const char *output, ts_error *err) {
  job j = {.arguments = arguments};
  ts_status status = read_tokenize_options(&j, directory, err);
  if (status == TS_OK && output != NULL) {
    status = write_tokens(&j, output, err);
  } else if (status == TS_OK) {
    status = encode_files(&j, err);
    fputs(j.begun ? "\n" : "", stdout);
  }
  ts_tokenizer_close(&j.tokenizer);
  ts_chat_close(&j.chat);
  ts_error_clear(&j.no_chat);
  return status;
}

static ts_status write_bytes(const ts_arguments *arguments, ts_error *err) {
  if (arguments->n_positional != 2 || ts_argument(arguments, "-o") != NULL) {
    return ts_error_add(err,
                        "tokenize: --tokenizer DIRECTORY is missing; without it: tessera tokenize TEXT OUTPUT.bin, "
                        "a token a byte");
  }
  int64_t count;
  const char *output = arguments->positional[1];
  ts_status status = refuse_existing(output, err);
  status = status == TS_OK ? ts_data_write_bin(arguments->positional[0], output, &count, err) : status;
  if (status == TS_OK) {
    printf("%s: %lld tokens\n", output, (long long) count);
  }
  return status;
}

int ts_main_tokenize(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  const char *directory = ts_argument(arguments, "--tokenizer"), *output = ts_argument(arguments, "-o");
  bool prints = ts_argument(arguments, "--print") != NULL;
  if (directory == NULL && !prints) {
    return write_bytes(arguments, err);
  }
  if (directory == NULL || prints == (output != NULL)) {
    return ts_error_add(err, "tokenize: --tokenizer DIRECTORY and one of -o OUT.h5 and --print are needed");
  }
  ts_status status = output != NULL ? refuse_existing(output, err) : TS_OK;
  return status == TS_OK ? encode_all(arguments, directory, output, err) : status;
}
