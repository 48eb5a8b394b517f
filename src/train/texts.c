/* Texts into files of tokens, by all ranks together.  Whatever takes long is done in stages that end with all ranks:
 * every few seconds each of them says how far it is, so that nobody waits for a rank that gave up, and who waits is
 * seen to be alive. */
#include "train/texts.h"

#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/workings.h"
#include "io/cache.h"
#include "io/companions.h"
#include "io/corpus.h"
#include "io/publication.h"
#include "io/token_parts.h"
#include "io/tokens.h"
#include "train/progress.h"
#include "train/stop.h"
#include "train/train.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENIZER "tokenizer.json"
#define PULSE_SECONDS 5.0 /* ranks wait for the slowest of them each time: some 0.2 s of encoding */
#define LINE_SECONDS 30.0

/* ---- all ranks ---- */

enum { WORKING, DONE, FAILED };

typedef struct preparation {
  ts_world *world;
  const ts_deck *deck;
  char *directory; /* owned: of the tokenizer; NULL: there is none */
  ts_tokenizer *tokenizer;
  ts_chat *chat;    /* NULL: there is none that is known, */
  ts_error no_chat; /* for this reason */
  struct tm today;  /* the same on all ranks */
  int32_t end_token;
  /* the file under way */
  const char *path;
  int64_t size, bytes; /* of it; that this rank has encoded */
  ts_token_part *part;
  ts_progress progress;
  double pulsed, told;
  bool stopped; /* another rank failed, or: */
  bool asked;   /* the job is to stop */
} preparation;

/* Say how far this rank is.  \return whether anybody is at work; a failure of somebody stops all. */
static bool pulse(preparation *p, int64_t state) {
  const int64_t mine[] = {p->bytes, state, ts_stop_requested(NULL)};
  int64_t(*all)[3] = ts_world_gather(p->world, mine, sizeof mine), bytes = 0;
  bool works = false;
  for (int rank = 0; rank < ts_world_size(p->world); ++rank) {
    bytes += all[rank][0];
    works |= all[rank][1] == WORKING;
    p->asked |= all[rank][2] != 0;
    p->stopped |= all[rank][1] == FAILED || p->asked;
  }
  ts_free(all);
  p->pulsed = ts_seconds();
  ts_heartbeat_phase(ts_world_heartbeat(p->world), TS_PHASE_PREPARING);
  ts_progress_bytes(&p->progress, "tokenizing", bytes, p->size);
  if (!ts_log_is_terminal() && p->pulsed - p->told > LINE_SECONDS) {
    p->told = p->pulsed;
    ts_log(TS_LOG_INFO, "%s: %.0f %% tokenized", p->path, 100.0 * (double) bytes / (double) p->size);
  }
  return works;
}

static void pulse_sometimes(preparation *p) {
  double interval = ts_world_size(p->world) > 1 ? PULSE_SECONDS : 0.1;
  if (ts_seconds() - p->pulsed > interval) {
    pulse(p, WORKING);
  }
}

/* The end of a stage: this rank is ready.  \return agreed. */
static ts_status meet(preparation *p, ts_status status, ts_error *err) {
  while (pulse(p, status == TS_OK ? DONE : FAILED)) {
  }
  if (status == TS_OK && p->asked) {
    status = ts_error_add(err,
                          "%s: the job was asked to stop before all of it was tokenized, and nothing is kept of that: "
                          "tessera tokenize makes a file for data.path of it, outside of a job",
                          p->path);
  }
  return ts_world_agree(p->world, status, err);
}

/* ---- encoding ---- */

static ts_status take_encoded(void *user, const ts_corpus_part *part, ts_error *err) {
  preparation *p = user;
  p->bytes += part->bytes;
  ts_status status = ts_token_part_add(p->part, part->ids, err);
  pulse_sometimes(p);
  return p->stopped ? TS_BAD_INPUT : status;
}

static ts_status encode_share(preparation *p, const ts_corpus_options *options, const char *prefix, bool *parts,
                              ts_token_counts *counts, ts_error *err) {
  ts_status status = ts_token_part_create(prefix, ts_tokenizer_size(p->tokenizer), &p->part, err);
  if (status == TS_OK) {
    status = ts_corpus_encode(p->tokenizer, p->path, options, take_encoded, p, parts, err);
    *counts = *ts_token_part_counts(p->part);
    ts_status closed = ts_token_part_close(&p->part, err);
    status = status == TS_OK ? closed : status;
  }
  return status == TS_OK || err->count > 0 ? status : TS_OK; /* stopped: who failed has the message */
}

/* Every rank its share; where a text cannot be cut so, rank 0 all of it. */
static ts_status encode_parts(preparation *p, ts_corpus_options *options, const char *prefix, ts_token_counts *counts,
                              ts_error *err) {
  int rank = ts_world_rank(p->world), ranks = ts_world_size(p->world);
  bool parts = true;
  options->share = rank;
  options->n_shares = ranks;
  p->bytes = 0;
  ts_status status = meet(p, encode_share(p, options, prefix, &parts, counts, err), err);
  bool *all = ts_world_gather(p->world, &parts, sizeof parts), fit = true;
  for (int i = 0; i < ranks; ++i) {
    fit &= all[i];
  }
  ts_free(all);
  if (status != TS_OK || fit) {
    return status;
  }
  ts_log(TS_LOG_INFO, "%s: found no place between two tokens to share it at: rank 0 tokenizes it alone", p->path);
  options->share = 0;
  options->n_shares = 1;
  p->bytes = 0;
  *counts = (ts_token_counts){0};
  status = rank == 0 ? encode_share(p, options, prefix, NULL, counts, err) : TS_OK;
  return meet(p, status, err);
}

static void move_pulse(void *user) {
  pulse_sometimes(user);
}

static char *prefix_of_rank(const char *path, int rank) {
  return ts_format("%s.part-%d", path, rank);
}

/* Rank 0: one file of all parts. */
static ts_status join_parts(preparation *p, const char *path, const ts_token_counts *counts, ts_error *err) {
  int n = ts_world_size(p->world);
  char **prefix = ts_calloc((size_t) n, sizeof *prefix);
  int64_t tokens = 0;
  for (int i = 0; i < n; ++i) {
    prefix[i] = prefix_of_rank(path, i);
    tokens += counts[i].tokens;
  }
  ts_status status = tokens > 0 ? TS_OK : ts_error_add(err, "%s: there is no text in it", p->path);
  if (status == TS_OK) {
    status = ts_token_parts_join(path, ts_tokenizer_size(p->tokenizer), n, prefix, counts, move_pulse, p, err);
  }
  for (int i = 0; i < n; ++i) {
    ts_free(prefix[i]);
  }
  ts_free(prefix);
  return status;
}

static void say_prepared(const preparation *p, const char *path, const ts_token_counts *counts) {
  ts_token_counts all = {0};
  for (int i = 0; i < ts_world_size(p->world); ++i) {
    all.tokens += counts[i].tokens;
    all.documents += counts[i].documents;
    all.ignored += counts[i].ignored;
    all.replaced += counts[i].replaced;
  }
  char tokens[32], learned[32], took[32];
  ts_human_count((double) (all.tokens - all.ignored), learned);
  ts_log(TS_LOG_INFO, "%s: %lld document%s, %s tokens%s%s%s, in %s, now in %s", p->path, (long long) all.documents,
         all.documents == 1 ? "" : "s", ts_human_count((double) all.tokens, tokens),
         all.ignored > 0 ? ", of which " : "", all.ignored > 0 ? learned : "", all.ignored > 0 ? " are learned" : "",
         ts_human_seconds(ts_seconds() - p->progress.begin, took), path);
  if (all.replaced > 0) {
    ts_log(TS_LOG_WARNING, "%s: %lld places that were not UTF-8 became U+FFFD", p->path, (long long) all.replaced);
  }
}

static ts_status make_tokens(preparation *p, ts_corpus_options *options, const char *path, ts_error *err) {
  int rank = ts_world_rank(p->world);
  char *prefix = prefix_of_rank(path, rank);
  ts_token_counts counts = {0};
  ts_progress_begin(&p->progress, 0, 0, 0);
  p->told = p->progress.begin;
  ts_status status = encode_parts(p, options, prefix, &counts, err);
  ts_token_counts *all = ts_world_gather(p->world, &counts, sizeof counts);
  if (status == TS_OK) {
    status = meet(p, rank == 0 ? join_parts(p, path, all, err) : TS_OK, err);
  }
  ts_progress_end(&p->progress);
  if (status == TS_OK) {
    say_prepared(p, path, all);
  }
  ts_free(all);
  ts_token_part_remove(prefix);
  ts_free(prefix);
  ts_free(ts_world_gather(p->world, &rank, sizeof rank)); /* all parts are gone before the lock is */
  return status;
}

/* ---- one file ---- */

/* A file of the deck. */
typedef struct text_file {
  const char *path, *format, *field, *completion_field;
} text_file;

/* What a chat template writes, the tokens of the tokenizer's directory in it; on no day in particular: the date that a
 * template tells is that of the first run. */
static void add_sample(const ts_chat *chat, ts_text *how) {
  static const ts_chat_turn turns[] = {{TS_CHAT_USER, " a ", 3},
                                       {TS_CHAT_ASSISTANT, " b\n", 3},
                                       {TS_CHAT_USER, "\n", 1},
                                       {TS_CHAT_ASSISTANT, "<think>\n\n</think>\n\nd", 21}};
  const struct tm day = {.tm_year = 100, .tm_mday = 1};
  if (chat != NULL) {
    ts_text_add(how, " %s ", ts_chat_name(chat));
    ts_status status = ts_chat_render(chat, turns, 4, (ts_chat_options){.today = &day}, how, NULL, NULL);
    TS_CHECK(status == TS_OK, "a chat template refuses a question and its answer");
  }
}

/* All that its tokens depend on but its own bytes. */
static ts_status describe_making(const preparation *p, const ts_corpus_options *o, ts_text *how, ts_error *err) {
  ts_file_sum sum;
  ts_status status = ts_file_sum_make(p->directory, TOKENIZER, &sum, err);
  if (status == TS_OK) {
    ts_text_add(how, "1 %s %llx %llx %d %d", o->format, (unsigned long long) sum.hash[0],
                (unsigned long long) sum.hash[1], o->record.end_token, o->record.train_on_prompt);
    if (strcmp(o->format, "jsonl") == 0) {
      ts_text_add_json(how, o->record.field);
      ts_text_add_json(how, o->record.completion_field);
      add_sample(o->record.chat, how);
    }
  }
  return status;
}

static void wait_for_job(void *user, bool first) {
  preparation *p = user;
  if (first) {
    ts_log(TS_LOG_INFO, "%s: another job tokenizes it; waiting for its end", p->path);
  }
  pulse_sometimes(p);
}

/* Rank 0: the name of the file of tokens, and the lock where it has to be made. */
static ts_status find_prepared(preparation *p, const ts_corpus_options *o, char **path, int *lock, ts_error *err) {
  ts_text how = {0};
  *path = NULL;
  ts_status status = describe_making(p, o, &how, err);
  status = status == TS_OK ? ts_cache_path(p->path, p->deck->data.cache, &how, path, err) : status;
  if (status == TS_OK && access(*path, R_OK) != 0) {
    status = ts_cache_lock(*path, wait_for_job, p, lock, err);
  }
  if (status == TS_OK && *lock >= 0 && access(*path, R_OK) == 0) { /* made meanwhile */
    ts_cache_unlock(*path, *lock);
    *lock = -1;
  }
  ts_text_free(&how);
  return status;
}

/* One that the deck names has to be there; one that is not known matters where there are chats. */
static ts_status open_chat(preparation *p, ts_error *err) {
  const char *name = p->deck->data.chat_template;
  ts_status status = ts_chat_open(p->directory, name, &p->chat, &p->no_chat);
  return status != TS_OK && name[0] != 0 ? ts_deck_error(p->deck, "data.chat_template", err, "%s", p->no_chat.text)
                                         : TS_OK;
}

static ts_status open_tokenizer(preparation *p, ts_error *err) {
  if (p->tokenizer != NULL) {
    return TS_OK;
  }
  const char *key = p->deck->data.tokenizer[0] != 0 ? "data.tokenizer" : "model.from";
  ts_error why = {0};
  ts_status status = ts_tokenizer_open(p->directory, &p->tokenizer, &why);
  p->end_token = (int32_t) p->deck->model.eos_token_id;
  if (status == TS_OK && p->end_token < 0) {
    status = ts_companions_end_token(p->directory, p->tokenizer, &p->end_token, &why);
  }
  long long size = status == TS_OK ? (long long) ts_tokenizer_size(p->tokenizer) : 0;
  if (size > p->deck->model.vocab_size) {
    status = ts_error_add(&why, "%s/" TOKENIZER " has %lld tokens, but the model %lld (model.vocab_size)", p->directory,
                          size, (long long) p->deck->model.vocab_size);
  }
  if (status != TS_OK) {
    ts_deck_error(p->deck, key, err, "%s", why.text);
  }
  ts_error_clear(&why);
  return status == TS_OK ? open_chat(p, err) : status;
}

static ts_status prepare_file(preparation *p, const text_file *file, char **path, ts_error *err) {
  bool first = ts_world_rank(p->world) == 0;
  struct stat info;
  char *name = NULL;
  int lock = -1;
  p->path = file->path;
  p->size = stat(file->path, &info) == 0 ? (int64_t) info.st_size : 0;
  ts_status status = ts_world_agree(p->world, open_tokenizer(p, err), err);
  if (status != TS_OK) {
    return status;
  }
  ts_corpus_options options = {.format = file->format,
                               .record = {.field = file->field,
                                          .completion_field = file->completion_field,
                                          .train_on_prompt = p->deck->data.train_on_prompt,
                                          .chat = p->chat,
                                          .no_chat = p->no_chat.text,
                                          .today = &p->today,
                                          .end_token = p->end_token},
                               .threads = ts_engine_threads(p->deck, ts_world_local_size(p->world))};
  status = meet(p, first ? find_prepared(p, &options, &name, &lock, err) : TS_OK, err);
  *path = ts_world_share_text(p->world, name, 0);
  bool *makes, mine = lock >= 0;
  makes = ts_world_gather(p->world, &mine, sizeof mine);
  if (status == TS_OK && makes[0]) {
    status = make_tokens(p, &options, *path, err);
  } else if (status == TS_OK) {
    ts_log(TS_LOG_INFO, "%s: tokens are those of %s", p->path, *path);
  }
  ts_cache_unlock(name, lock);
  ts_free(makes);
  ts_free(name);
  return status;
}

/* ---- a deck ---- */

/* That of rank 0. */
static void find_today(preparation *p) {
  const time_t now = time(NULL);
  time_t *all = ts_world_gather(p->world, &now, sizeof now);
  localtime_r(&all[0], &p->today);
  ts_free(all);
}

static text_file *list_files(const ts_deck *deck, int *n) {
  const ts_deck_data *d = &deck->data;
  int sources = d->sources.n > 0 ? d->sources.n : 1;
  text_file *files = ts_calloc((size_t) sources + 1, sizeof *files);
  *n = sources + (d->validation_path[0] != 0);
  files[0] = (text_file){d->path, d->format, d->field, d->completion_field};
  for (int i = 0; i < d->sources.n; ++i) {
    const ts_deck_source *s = &d->sources.items[i];
    files[i] = (text_file){s->path, s->format, s->field, s->completion_field};
  }
  files[sources] = (text_file){d->validation_path, d->format, d->field, d->completion_field};
  return files;
}

/* The key that a problem is about: the file's, or that of the cache, whose files' names begin with the file's too. */
static ts_status blame_file(const preparation *p, int i, const char *file, const char *made, const char *problem,
                            ts_error *err) {
  const char *cache = p->deck->data.cache;
  size_t n = strlen(file);
  if (strncmp(problem, file, n) == 0 && problem[n] == ':') {
    return ts_data_blame(p->deck, i, problem, err);
  }
  bool in_cache = (made != NULL && strncmp(problem, made, strlen(made)) == 0) ||
                  (cache[0] != 0 && strncmp(problem, cache, strlen(cache)) == 0);
  return in_cache ? ts_deck_error(p->deck, "data.cache", err, "%s; accepted: a directory that all ranks can write to",
                                  problem)
                  : ts_error_add(err, "%s", problem);
}

/* Rank 0: which of the files are texts: their formats, a line each, "-" where a file is read as it is. */
static ts_status find_texts(const ts_deck *deck, const text_file *files, int n, ts_text *formats, bool *any,
                            ts_error *err) {
  ts_status status = TS_OK;
  *any = false;
  for (int i = 0; i < n && status == TS_OK; ++i) {
    ts_error why = {0};
    const char *name = "-";
    if (ts_tokens_guess(files[i].path, files[i].format, &name, &why) != TS_OK) {
      status = ts_data_blame(deck, i, why.text, err);
    }
    bool text = name != NULL && (strcmp(name, "text") == 0 || strcmp(name, "jsonl") == 0);
    ts_text_add(formats, "%s ", text ? name : "-");
    *any |= text;
    ts_error_clear(&why);
  }
  return status;
}

static ts_status prepare_files(preparation *p, text_file *files, ts_prepared *out, const char *formats, ts_error *err) {
  ts_status status = TS_OK;
  for (int i = 0; i < out->n && status == TS_OK; ++i) {
    bool text = formats[0] == 't';
    files[i].format = text ? "text" : "jsonl";
    if (formats[0] != '-') {
      ts_error why = {0};
      status = prepare_file(p, &files[i], &out->path[i], &why);
      if (status != TS_OK) {
        status = blame_file(p, i, files[i].path, out->path[i], why.text, err);
      }
      ts_error_clear(&why);
    }
    formats = strchr(formats, ' ') + 1;
  }
  return status;
}

ts_status ts_prepare_texts(ts_world *world, const ts_deck *deck, ts_prepared *out, ts_error *err) {
  preparation p = {.world = world, .deck = deck, .told = ts_seconds()};
  text_file *files = list_files(deck, &out->n);
  ts_text mine = {0};
  out->path = ts_calloc((size_t) out->n, sizeof *out->path);
  char *found = NULL;
  bool any = false;
  ts_status status = TS_OK;
  if (ts_world_rank(world) == 0) {
    status = find_texts(deck, files, out->n, &mine, &any, err);
    status = status == TS_OK && any ? ts_find_tokenizer(deck, deck->run.directory, false, &found, err) : status;
  }
  status = ts_world_agree(world, status, err);
  char *formats = ts_world_share_text(world, mine.text, 0);
  p.directory = ts_world_share_text(world, found, 0); /* without one a text's bytes are tokens */
  if (status == TS_OK && p.directory != NULL) {
    ts_heartbeat_phase(ts_world_heartbeat(world), TS_PHASE_PREPARING);
    find_today(&p);
    status = prepare_files(&p, files, out, formats, err);
    ts_heartbeat_step(ts_world_heartbeat(world), 0); /* the first step, with loading, begins now */
    ts_heartbeat_phase(ts_world_heartbeat(world), TS_PHASE_LOADING);
  }
  ts_free(found);
  ts_free(formats);
  ts_text_free(&mine);
  ts_chat_close(&p.chat);
  ts_error_clear(&p.no_chat);
  ts_tokenizer_close(&p.tokenizer);
  ts_free(p.directory);
  ts_free(files);
  return status;
}

void ts_prepared_clear(ts_prepared *prepared) {
  for (int i = 0; i < prepared->n; ++i) {
    ts_free(prepared->path[i]);
  }
  ts_free(prepared->path);
  *prepared = (ts_prepared){0};
}
