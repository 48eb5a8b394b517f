/* `model.from`: a Hugging Face directory, whose config.json fills the section `model`. */
#include "base/memory.h"
#include "deck/reader.h"
#include "family/family.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t vocabulary_of(const ts_value *section) {
  for (int i = 0; i < section->n; ++i) {
    if (strcmp(section->names[i], "vocab_size") == 0 && section->items[i].kind == TS_VALUE_INT) {
      return section->items[i].integer;
    }
  }
  return INT64_MAX;
}

/* The first token of a list that the vocabulary has; 0 where none is. */
static int first_known(const ts_value *list, int64_t vocabulary) {
  for (int i = 0; i < list->n; ++i) {
    if (list->items[i].kind == TS_VALUE_INT && list->items[i].integer < vocabulary) {
      return i;
    }
  }
  return 0;
}

/* Newer files list several tokens that end a text; in training the first is the one. */
static void first_token(ts_reader *reader, ts_value *section) {
  for (int i = 0; i < section->n; ++i) {
    ts_value *value = &section->items[i];
    bool token = strcmp(section->names[i], "eos_token_id") == 0 || strcmp(section->names[i], "bos_token_id") == 0;
    if (token && value->kind == TS_VALUE_LIST && value->n > 0) {
      int chosen = first_known(value, vocabulary_of(section));
      ts_value first = value->items[chosen];
      value->items[chosen] = (ts_value){0};
      ts_reader_note(reader, "%s: %s: %lld, the first of %d that the vocabulary has, is used", value->file,
                     section->names[i], (long long) first.integer, value->n);
      ts_value_clear(value);
      *value = first;
    }
  }
}

static int find_entry(const ts_value *section, const char *name) {
  for (int i = 0; i < section->n; ++i) {
    if (strcmp(section->names[i], name) == 0) {
      return i;
    }
  }
  return -1;
}

static void drop_entry(ts_value *section, int i) {
  ts_free(section->names[i]);
  ts_value_clear(&section->items[i]);
  --section->n;
  for (int k = i; k < section->n; ++k) {
    section->names[k] = section->names[k + 1];
    section->items[k] = section->items[k + 1];
  }
}

static void add_entry(ts_value *section, const char *name, ts_value value) {
  size_t n = (size_t) section->n;
  section->items = ts_realloc(section->items, n + 1, sizeof *section->items);
  section->names = ts_realloc(section->names, n + 1, sizeof *section->names);
  section->items[n] = value;
  section->names[n] = ts_strdup(name);
  ++section->n;
}

/* The key of a deck that `name` means in the section, "hidden_act" for "hidden_activation"; NULL for none. */
static const char *meaning_of(const char *name) {
  char *path = ts_format("model.%s", name);
  int index = ts_key_find(path);
  ts_free(path);
  return index >= 0 ? ts_key_at(ts_key_canonical(index))->path + strlen("model.") : NULL;
}

/* Other spellings of a key whose own one is entry `own`; the family's class does not read them. */
static void drop_spellings(ts_value *section, const char *own, const char *path) {
  for (int i = section->n - 1; i >= 0; --i) {
    const char *meaning = strcmp(section->names[i], own) != 0 ? meaning_of(section->names[i]) : NULL;
    if (meaning != NULL && strcmp(meaning, path) == 0) {
      drop_entry(section, i);
    }
  }
}

static bool is_numeric(const ts_value *value) {
  return value->kind == TS_VALUE_INT || value->kind == TS_VALUE_REAL;
}

/* What the family's class of transformers reads: its own spelling where there are several, one name for two keys, and
 * as many key heads as heads where null is said. */
static void read_as_family(const ts_family *family, ts_value *section) {
  const ts_family_key *key;
  for (int i = 0; (key = ts_family_key_at(family, i)) != NULL; ++i) {
    const char *name = ts_family_key_name(key), *meaning = meaning_of(name);
    int own = find_entry(section, name);
    if (own >= 0 && meaning != NULL) {
      drop_spellings(section, name, key->path);
    }
    own = find_entry(section, name);
    if (own >= 0 && meaning != NULL && strcmp(meaning, key->path) != 0 && is_numeric(&section->items[own])) {
      add_entry(section, key->path, section->items[own]);
    }
  }
  int heads = find_entry(section, "num_attention_heads"), kv = find_entry(section, "num_key_value_heads");
  if (heads >= 0 && kv >= 0 && section->items[kv].kind == TS_VALUE_NULL && is_numeric(&section->items[heads])) {
    section->items[kv] = section->items[heads];
  }
}

/* Of a model that sees more than text the text part is taken. */
static void take_text_part(ts_reader *reader, ts_value *section) {
  int part = find_entry(section, "text_config"), type = find_entry(section, "model_type");
  if (part < 0 || section->items[part].kind != TS_VALUE_SECTION) {
    return;
  }
  static const char *const outer[] = {"bos_token_id", "eos_token_id", "tie_word_embeddings", "initializer_range",
                                      "quantization_config"};
  ts_value text = section->items[part];
  section->items[part] = (ts_value){0};
  for (size_t i = 0; i < sizeof outer / sizeof *outer; ++i) {
    int at = find_entry(section, outer[i]);
    if (at >= 0 && find_entry(&text, outer[i]) < 0) {
      add_entry(&text, outer[i], section->items[at]);
      section->items[at] = (ts_value){0};
    }
  }
  ts_text whole = {0};
  ts_value_describe(type >= 0 ? &section->items[type] : &(ts_value){0}, &whole);
  ts_reader_note(reader, "%s: of %s the text part is taken", text.file, whole.text);
  ts_text_free(&whole);
  ts_value_clear(section);
  *section = text;
}

/* DIRECTORY/NAME, newly allocated; NULL where that is not there. */
static char *find_file(const char *directory, const char *name) {
  char *path = ts_format("%s/%s", directory, name);
  bool there = *directory != '\0' && access(path, F_OK) == 0;
  if (!there) {
    ts_free(path);
  }
  return there ? path : NULL;
}

/* ---- where a generation stops ---- */

/* A token, or the tokens of a list, of those that the vocabulary has. */
static ts_value list_tokens(const ts_value *value, int64_t vocabulary) {
  bool many = value->kind == TS_VALUE_LIST;
  ts_value list = {.kind = TS_VALUE_LIST, .file = value->file, .line = value->line};
  for (int i = 0; i < (many ? value->n : 1); ++i) {
    const ts_value *token = many ? &value->items[i] : value;
    if (token->kind == TS_VALUE_INT && token->integer >= 0 && token->integer < vocabulary) {
      list.items = ts_realloc(list.items, (size_t) list.n + 1, sizeof *list.items);
      list.items[list.n++] = *token;
    }
  }
  return list;
}

static bool is_tokens(const ts_value *value) {
  bool all = value->kind == TS_VALUE_INT || value->kind == TS_VALUE_LIST;
  for (int i = 0; i < value->n && all; ++i) {
    all = value->items[i].kind == TS_VALUE_INT;
  }
  return all;
}

/* The tokens of generation_config.json, or of config.json where that says nothing, as transformers has them. */
static bool add_stop_tokens(ts_reader *reader, const char *directory, ts_value *section) {
  char *path = find_file(directory, "generation_config.json");
  ts_value json = {0};
  ts_error problem = {0};
  int own = find_entry(section, "eos_token_id"), theirs = -1;
  bool good = path == NULL || ts_value_from_json(&reader->source, path, false, &json, &problem) == TS_OK;
  if (good && path != NULL) {
    theirs = find_entry(&json, "eos_token_id");
    theirs = theirs >= 0 && json.items[theirs].kind == TS_VALUE_NULL ? -1 : theirs;
  }
  const ts_value *value = theirs >= 0 ? &json.items[theirs] : own >= 0 ? &section->items[own] : NULL;
  if (good && theirs >= 0 && !is_tokens(value)) {
    ts_error_add(&problem, "%s: eos_token_id is neither a token nor a list of tokens", path);
    good = false;
  }
  if (good && value != NULL && (theirs >= 0 || value->kind == TS_VALUE_LIST)) {
    add_entry(section, "stop_token_ids", list_tokens(value, vocabulary_of(section)));
  }
  if (!good) {
    ts_error_add(reader->err, "model.from: %s", problem.text);
  }
  ts_error_clear(&problem);
  ts_value_clear(&json);
  ts_free(path);
  return good;
}

/* ---- the directory ---- */

/* \a path as it is called from anywhere; newly allocated. */
static char *absolute(const char *path) {
  char *real = realpath(path, NULL), *here = getcwd(NULL, 0), *name;
  if (real != NULL || *path == '/' || here == NULL) {
    name = ts_strdup(real != NULL ? real : path);
  } else {
    name = ts_format("%s/%s", here, path);
  }
  free(real);
  free(here);
  return name;
}

/* Relative to the file that says it (a --set: to the working directory), and absolute from here on, so that the printed
 * deck means the same anywhere.  Decks were written relative to the working directory once.
 * Returns what to do where only that is there, newly allocated, else NULL. */
static char *resolve_from(ts_setting *setting) {
  char *name = setting->value.string, *hint = NULL;
  char *path = setting->from == TS_FROM_SET ? ts_strdup(name) : ts_reader_beside(setting->value.file, name);
  if (access(path, F_OK) != 0 && access(name, F_OK) == 0) {
    hint = ts_format("it is relative to the deck, and %s is in the working directory: --set model.from=%s takes that",
                     name, name);
  }
  setting->value.string = absolute(path);
  ts_free(path);
  ts_free(name);
  return hint;
}

static char *merge_adapter(const char *from) {
  ts_text way = {0};
  ts_text_add(&way, "; it is a LoRA adapter, and this merges it into its model: python3 -c 'import peft, sys; "
                    "peft.AutoPeftModelForCausalLM.from_pretrained(sys.argv[1]).merge_and_unload()"
                    ".save_pretrained(\"OUT\")' ");
  ts_text_add_shell(&way, from);
  return way.text;
}

/* DeepSpeed leaves this script in what it saves; io, which knows the rest, is above this room. */
static char *take_weights(const char *script, const char *from) {
  ts_text way = {0};
  ts_text_add(&way, "; it is a checkpoint of DeepSpeed, of which this makes weights: python3 ");
  ts_text_add_shell(&way, script);
  ts_text_add(&way, " ");
  ts_text_add_shell(&way, from);
  ts_text_add(&way, " OUT --safe_serialization; then copy the model's config.json into OUT and begin with model.from = "
                    "OUT");
  return way.text;
}

/* The directory is gone, or holds no model: what to do. */
static char *explain_directory(const ts_reader *reader, const char *from, const char *hint) {
  char *adapter = find_file(from, "adapter_config.json"), *script = find_file(from, "zero_to_fp32.py");
  char *deck = find_file(ts_setting_string(ts_reader_find(reader, "run.directory")), "deck.cfg");
  char *text = hint != NULL      ? ts_format("; %s", hint)
               : adapter != NULL ? merge_adapter(from)
               : script != NULL  ? take_weights(script, from)
               : deck != NULL    ? ts_format("; a run that began from it goes on with %s as its deck", deck)
               : access(from, F_OK) != 0
                   ? ts_strdup("; a run that began from it goes on with the deck.cfg of its run directory")
                   : ts_strdup("");
  ts_free(adapter);
  ts_free(script);
  ts_free(deck);
  return text;
}

/* Which layers have experts of DeepSpeed's kind, as an exported directory says it: keys of `moe`. */
static void take_moe(ts_reader *reader, ts_value *section) {
  int moe = find_entry(section, "moe");
  if (moe >= 0 && section->items[moe].kind == TS_VALUE_SECTION) {
    ts_reader_take(reader, "moe", &section->items[moe], TS_FROM_MODEL);
    drop_entry(section, moe);
  }
}

static bool read_config(ts_reader *reader, const ts_setting *setting, const char *hint) {
  const char *from = setting->value.string, *run = ts_setting_string(ts_reader_find(reader, "run.directory"));
  char *path = ts_format("%s/config.json", from), *kept = NULL;
  ts_value json = {0};
  ts_error problem = {0};
  if (access(from, F_OK) != 0 && hint == NULL && (kept = find_file(run, TS_RUN_FROM "/config.json")) != NULL) {
    ts_reader_note(reader, "model.from: %s is not there; %s is: enough to go on with that run, not to begin one", from,
                   kept);
  }
  const char *file = kept != NULL ? kept : path;
  bool readable = ts_value_from_json(&reader->source, file, false, &json, &problem) == TS_OK;
  if (readable) {
    reader->config = json.file;
    take_text_part(reader, &json);
    int type = find_entry(&json, "model_type");
    const ts_family *family =
        type >= 0 && json.items[type].kind == TS_VALUE_STRING ? ts_family_find(json.items[type].string) : NULL;
    if (family != NULL) {
      read_as_family(family, &json);
    }
    take_moe(reader, &json);
    char *directory = ts_format("%.*s", (int) (strlen(file) - strlen("/config.json")), file);
    readable = add_stop_tokens(reader, directory, &json);
    ts_free(directory);
    first_token(reader, &json);
    ts_reader_take(reader, "model", &json, TS_FROM_MODEL);
  } else {
    char *where = ts_reader_where(reader, setting), *help = explain_directory(reader, from, hint);
    ts_error_add(reader->err, "%s: model.from: %s%s", where, problem.text, help);
    ts_free(where);
    ts_free(help);
  }
  ts_error_clear(&problem);
  ts_value_clear(&json);
  ts_free(kept);
  ts_free(path);
  return readable;
}

bool ts_reader_read_model(ts_reader *reader) {
  const ts_setting *wanted = ts_reader_find(reader, "model.from_config");
  ts_setting *setting = (ts_setting *) ts_reader_find(reader, "model.from");
  bool readable = true;
  if (*ts_setting_string(setting) == '\0') {
    return true;
  }
  char *hint = resolve_from(setting);
  if (wanted == NULL || wanted->value.kind != TS_VALUE_BOOL || wanted->value.truth) {
    readable = read_config(reader, setting, hint);
  } else if (hint != NULL) {
    ts_reader_note(reader, "model.from: %s is not there; %s", setting->value.string, hint);
  }
  ts_free(hint);
  return readable;
}
