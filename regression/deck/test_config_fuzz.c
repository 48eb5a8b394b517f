/* config.json of every family, changed at random: it is refused with a message that names file and key, or its model
 * builds, has a plan, prints, and is written as a config.json that says the same.  CONFIGS=N in the environment is how
 * many of each. */
#include "base/random.h"
#include "regression/deck_fixture.h"

#include "model/config_json.h"
#include "model/model.h"
#include "run/program.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#define ROUNDS 100
#define MOST_ENTRIES 80
#define MOST_LAYERS 64 /* of models that are built */
#define FASTEST 1e3    /* radians from one position to the next, whose sines mean something at 2^31 */
#define DECK "fuzz.cfg"

/* ---- chance ---- */

typedef struct chance {
  uint64_t key, round, drawn;
} chance;

static uint32_t draw(chance *c, uint32_t n) {
  uint32_t out[4];
  ts_philox(c->key, c->round, c->drawn++, out);
  return out[0] % n;
}

#define DRAW_OF(c, rows) (rows)[draw(c, sizeof(rows) / sizeof *(rows))]

static const char *const odd[] = {"null",      "true",  "false",      "\"\"",  "\"auto\"",
                                  "\"1\"",     "[]",    "{}",         "[1]",   "[\"x\", null]",
                                  "{\"a\":1}", "0",     "-0.0",       "1",     "2",
                                  "3",         "4",     "6",          "8",     "12",
                                  "36",        "-1",    "0.5",        "2.0",   "0.25",
                                  "-1e-3",     "1e-30", "1e-60",      "1e30",  "1e18",
                                  "1e308",     "1e400", "2147483647", "1e999", "1024",
                                  "1e-300",    "NaN",   "1.0",        "5",     "99999999999999999999"};
static const char *const kinds[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "proportional"};
static const char *const numbers[] = {"1",  "1.0", "2.0", "0.5",  "4",     "8",     "16",  "64.0", "1.5",
                                      "32", "0.1", "1e6", "1e30", "1e-30", "1e308", "500", "null", "0"};
static const char *const rope_fields[] = {"factor",           "low_freq_factor",
                                          "high_freq_factor", "attention_factor",
                                          "beta_fast",        "beta_slow",
                                          "mscale",           "mscale_all_dim",
                                          "truncate",         "short_factor",
                                          "long_factor",      "original_max_position_embeddings",
                                          "rope_theta",       "partial_rotary_factor",
                                          "unheard_of"};
static const char *const layer_words[] = {"\"full_attention\"", "\"sliding_attention\"", "\"chunked_attention\"", "0",
                                          "1"};
static const char *const strangers[] = {
    "rope_scaling",        "rope_parameters",     "layer_types",  "no_rope_layers",
    "text_config",         "quantization_config", "num_experts",  "use_bidirectional_attention",
    "mlp_only_layers",     "num_experts_per_tok", "eos_token_id", "a.b",
    "rope_scaling.factor", "unheard_of"};

/* ---- a config as pairs of texts ---- */

typedef struct entry {
  char *key, *value; /* Owned. */
} entry;

typedef struct config {
  int n;
  entry entry[MOST_ENTRIES];
} config;

static void put(config *c, const char *key, const char *value) {
  if (c->n < MOST_ENTRIES) {
    c->entry[c->n++] = (entry){ts_strdup(key), ts_strdup(value)};
  }
}

static void put_value(entry *e, const char *value) {
  ts_free(e->value);
  e->value = ts_strdup(value);
}

static void drop(config *c, int i) {
  ts_free(c->entry[i].key);
  ts_free(c->entry[i].value);
  c->entry[i] = c->entry[--c->n];
}

static void clear(config *c) {
  while (c->n > 0) {
    drop(c, c->n - 1);
  }
}

static config read_golden(const char *golden) {
  char *path = ts_format("regression/golden/%s/config.json", golden);
  json_t *json = json_load_file(tap_path(path), 0, NULL), *value;
  const char *key;
  config c = {0};
  TS_CHECK(json != NULL, "%s", path);
  json_object_foreach(json, key, value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    put(&c, key, text);
    free(text);
  }
  json_decref(json);
  ts_free(path);
  return c;
}

static char *print(const config *c) {
  ts_text text = {0};
  ts_text_add(&text, "{");
  for (int i = 0; i < c->n; ++i) {
    ts_text_add(&text, "%s\n  \"%s\": %s", i > 0 ? "," : "", c->entry[i].key, c->entry[i].value);
  }
  ts_text_add(&text, "\n}\n");
  return text.text;
}

/* ---- changes ---- */

static void drop_one(config *c, chance *at) {
  if (c->n > 0) {
    drop(c, (int) draw(at, (uint32_t) c->n));
  }
}

static void change_one(config *c, chance *at) {
  if (c->n > 0) {
    put_value(&c->entry[draw(at, (uint32_t) c->n)], DRAW_OF(at, odd));
  }
}

static void double_one(config *c, chance *at) {
  if (c->n > 0) {
    const entry *e = &c->entry[draw(at, (uint32_t) c->n)];
    put(c, e->key, draw(at, 2) == 0 ? e->value : DRAW_OF(at, odd));
  }
}

static void add_stranger(config *c, chance *at) {
  put(c, DRAW_OF(at, strangers), DRAW_OF(at, odd));
}

static const ts_family *any_family(chance *at) {
  uint32_t n = 0;
  while (ts_families[n] != NULL) {
    ++n;
  }
  return ts_families[draw(at, n)];
}

/* In the family's own spelling or the deck's. */
static void add_of_family(config *c, chance *at) {
  const ts_family *family = any_family(at);
  int n = 0;
  while (ts_family_key_at(family, n) != NULL) {
    ++n;
  }
  const ts_family_key *key = ts_family_key_at(family, (int) draw(at, (uint32_t) n));
  put(c, draw(at, 2) == 0 ? key->path : ts_family_key_name(key), DRAW_OF(at, odd));
}

static void change_type(config *c, chance *at) {
  for (int i = 0; i < c->n; ++i) {
    if (strcmp(c->entry[i].key, "model_type") == 0) {
      const char *type = any_family(at)->model_type;
      ts_free(c->entry[i].value);
      c->entry[i].value = ts_format("\"%s%s\"", type, draw(at, 4) == 0 ? "_moe" : "");
    }
  }
}

static void add_numbers(ts_text *to, chance *at) {
  ts_text_add(to, "[");
  for (uint32_t i = 0, n = draw(at, 9); i < n; ++i) {
    ts_text_add(to, "%s%s", i > 0 ? ", " : "", draw(at, 16) == 0 ? DRAW_OF(at, odd) : DRAW_OF(at, numbers));
  }
  ts_text_add(to, "]");
}

static void add_rope(ts_text *to, chance *at) {
  ts_text_add(to, "{\"rope_type\": \"%s\"", DRAW_OF(at, kinds));
  uint32_t rare = 2 + draw(at, 8);
  for (size_t i = 0; i < sizeof rope_fields / sizeof *rope_fields; ++i) {
    uint32_t how = draw(at, rare);
    if (how < 2) {
      ts_text_add(to, ", \"%s\": ", rope_fields[i]);
      if (strncmp(rope_fields[i] + strcspn(rope_fields[i], "_"), "_factor", 7) == 0 && how > 0) {
        add_numbers(to, at);
      } else {
        ts_text_add(to, "%s", draw(at, 16) == 0 ? DRAW_OF(at, odd) : DRAW_OF(at, numbers));
      }
    }
  }
  ts_text_add(to, "}");
}

/* Either spelling, plain or by type of layers; beside the other one that may be there. */
static void change_rope(config *c, chance *at) {
  ts_text text = {0};
  bool by_layers = draw(at, 3) == 0;
  if (by_layers) {
    ts_text_add(&text, "{\"full_attention\": ");
  }
  add_rope(&text, at);
  if (by_layers) {
    ts_text_add(&text, ", \"sliding_attention\": ");
    add_rope(&text, at);
    ts_text_add(&text, "}");
  }
  for (int i = c->n - 1; i >= 0 && draw(at, 4) > 0; --i) {
    if (strncmp(c->entry[i].key, "rope_", 5) == 0) {
      drop(c, i);
    }
  }
  put(c, draw(at, 2) == 0 ? "rope_scaling" : "rope_parameters", text.text);
  ts_text_free(&text);
}

static void change_layers(config *c, chance *at) {
  ts_text text = {0};
  uint32_t known = draw(at, 3) > 0 ? 2 : sizeof layer_words / sizeof *layer_words;
  ts_text_add(&text, "[");
  for (uint32_t i = 0, n = draw(at, 5); i < n; ++i) {
    ts_text_add(&text, "%s%s", i > 0 ? ", " : "", layer_words[draw(at, known)]);
  }
  ts_text_add(&text, "]");
  for (int i = c->n - 1; i >= 0; --i) {
    if (strcmp(c->entry[i].key, "layer_types") == 0) {
      drop(c, i);
    }
  }
  put(c, draw(at, 4) > 0 ? "layer_types" : "no_rope_layers", text.text);
  ts_text_free(&text);
}

/* A model that sees more, with this as its text part. */
static void nest(config *c, chance *at) {
  char *text = print(c);
  if (draw(at, 2) == 0) {
    clear(c);
  }
  put(c, "text_config", text);
  ts_free(text);
}

/* One number of the positions that are there. */
static void change_rope_field(config *c, chance *at) {
  for (int i = 0; i < c->n; ++i) {
    json_t *rope = strncmp(c->entry[i].key, "rope_", 5) == 0 ? json_loads(c->entry[i].value, 0, NULL) : NULL;
    json_t *value = json_loads(DRAW_OF(at, numbers), JSON_DECODE_ANY, NULL);
    if (rope != NULL && draw(at, 4) > 0) {
      json_object_set(rope, DRAW_OF(at, rope_fields), value);
    } else if (rope != NULL) {
      json_object_del(rope, DRAW_OF(at, rope_fields));
    }
    if (rope != NULL) {
      char *text = json_dumps(rope, 0);
      put_value(&c->entry[i], text);
      free(text);
    }
    json_decref(value);
    json_decref(rope);
  }
}

static void (*const changes[])(config *c, chance *at) = {
    drop_one,          drop_one,      change_one,    change_one,   change_one,  change_one,
    double_one,        nest,          add_stranger,  change_type,  change_rope, change_rope_field,
    change_rope_field, change_layers, add_of_family, add_of_family};

static void garble(char *text, chance *at) {
  size_t length = strlen(text);
  uint32_t where = draw(at, (uint32_t) length), how = draw(at, 16);
  if (how == 0) {
    text[where] = '\0';
  } else if (how == 1) {
    text[where] = (char) (1 + draw(at, 255));
  }
}

/* Owned by the caller. */
static char *changed_config(const char *golden, uint64_t round) {
  chance at = {ts_hash_name(golden), round, 0};
  config c = read_golden(golden);
  for (uint32_t i = 0, n = 1 + draw(&at, 3); i < n; ++i) {
    DRAW_OF(&at, changes)(&c, &at);
  }
  char *text = print(&c);
  garble(text, &at);
  clear(&c);
  return text;
}

/* ---- what must hold ---- */

/* FILE: KEY: what, on every line. */
static bool is_told(const ts_error *err) {
  bool told = err->count > 0;
  char *rest = ts_strdup(err->text);
  for (char *line = strtok(rest, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    told = told && ts_matches("^(" DECK "|.*/config\\.json)(:[0-9]+)?: [a-z0-9_.]+: .{9}", line) == 1;
  }
  ts_free(rest);
  return told;
}

static const char *wrong_rope(const ts_attr *attr) {
  bool good = attr->rope.rotated > 0 && attr->rope.rotated % 2 == 0 && attr->rope.rotated <= attr->rope.head_dim &&
              isfinite(attr->rope.factor) && attr->rope.factor > 0;
  for (int i = 0; good && i < attr->rope.rotated / 2; ++i) {
    good = attr->rope.frequency[i] >= 0 && attr->rope.frequency[i] <= FASTEST;
  }
  return good ? NULL : "rotary positions that are none";
}

static const char *wrong_attention(const ts_attr *attr) {
  bool good = attr->attention.head_dim > 0 && attr->attention.kv_heads > 0 &&
              attr->attention.heads % attr->attention.kv_heads == 0 && isfinite(attr->attention.scale) &&
              attr->attention.scale > 0 && isfinite(attr->attention.softcap) && attr->attention.softcap >= 0 &&
              attr->attention.window >= 0;
  return good ? NULL : "attention that is none";
}

static const char *wrong_scale(const ts_attr *attr) {
  return isfinite(attr->scale.by) && isfinite(attr->scale.softcap) ? NULL : "a scale that is no number";
}

static const char *wrong_norm(const ts_attr *attr) {
  return attr->norm.eps > 0 && isfinite(attr->norm.eps) ? NULL : "a norm that can divide by zero";
}

static const char *wrong_node(const ts_node *node) {
  switch (node->op) {
    case TS_OP_ROPE: return wrong_rope(&node->attr);
    case TS_OP_ATTENTION:
    case TS_OP_ATTENTION_CACHED: return wrong_attention(&node->attr);
    case TS_OP_SCALE: return wrong_scale(&node->attr);
    case TS_OP_RMSNORM:
    case TS_OP_LAYERNORM: return wrong_norm(&node->attr);
    default: return NULL;
  }
}

static bool builds(const ts_deck *deck, ts_model_use use) {
  ts_text why = {0};
  ts_graph *graph = ts_model_build(deck, use, (ts_model_size){2, 48, 48});
  bool good = ts_graph_verify(graph, &why) == 0;
  for (ts_nid n = 0; good && n < graph->n_nodes; ++n) {
    const char *wrong = wrong_node(&graph->node[n]);
    if (wrong != NULL) {
      ts_text_add(&why, "%s: %s", graph->node[n].name, wrong);
      good = false;
    }
  }
  if (!good) {
    tap_note("%s", why.text);
  }
  ts_graph_destroy(&graph);
  ts_text_free(&why);
  return good;
}

/* The whole program of a step. */
static bool plans(const ts_deck *deck) {
  ts_mesh mesh;
  if (ts_deck_mesh(deck, 1, 0, &mesh, NULL) != TS_OK) {
    return false;
  }
  const ts_program_options options = {.deck = deck,
                                      .mesh = &mesh,
                                      .target = {ts_backend_null(), 1, TS_CUDNN_NEVER},
                                      .use = TS_MODEL_TRAIN,
                                      .batch = 2,
                                      .length = 48};
  ts_program *program = ts_program_create(&options);
  bool good = program->plan->peak_bytes > 0;
  ts_program_destroy(&program);
  return good;
}

/* The deck of DIRECTORY/config.json. */
static ts_status read_directory(const char *directory, ts_deck **deck, ts_error *err) {
  char *text = ts_format("model = { from = \"%s\"; };\ntrain_micro_batch_size_per_gpu = 2;\n", directory);
  ts_status status = ts_deck_read_text(DECK, text, NULL, 0, deck, err);
  ts_free(text);
  return status;
}

static char *config_of(const ts_deck *deck) {
  ts_text text = {0};
  ts_model_config_json(deck, "float32", &text);
  return text.text;
}

/* What is written for the deck reads back as the same model. */
static bool means_the_same(const char *what, const ts_deck *deck, const char *written) {
  ts_deck *again = NULL;
  ts_error err = {0};
  ts_free(fixture_file("again/config.json", written));
  char *directory = ts_format("%s/again", tap_directory()), *before = config_of(deck), *after = NULL;
  if (read_directory(directory, &again, &err) == TS_OK) {
    after = config_of(again);
  }
  bool same = after != NULL && strcmp(before, after) == 0;
  if (!same) {
    tap_note("%s: %s\nof\n%s\nnot\n%s", what, written, before, after != NULL ? after : err.text);
  }
  ts_deck_destroy(&again);
  ts_error_clear(&err);
  ts_free(directory);
  ts_free(before);
  ts_free(after);
  return same;
}

static bool writes_back(const ts_deck *deck) {
  ts_error err = {0};
  ts_text copy = {0};
  char *ours = config_of(deck);
  bool good = ts_model_config_copy(tap_directory(), deck, "float32", &copy, &err) == TS_OK &&
              means_the_same("the copy", deck, copy.text) && means_the_same("our own", deck, ours);
  ts_error_clear(&err);
  ts_text_free(&copy);
  ts_free(ours);
  return good;
}

static bool prints_back(const ts_deck *deck) {
  ts_text text = {0}, second = {0}, notes = {0};
  ts_deck *again = NULL;
  ts_deck_print(deck, &text);
  bool good = ts_deck_read_text("printed", text.text, NULL, 0, &again, NULL) == TS_OK;
  if (good) {
    ts_deck_print(again, &second);
  }
  ts_deck_notes(deck, &notes);
  ts_deck_destroy(&again);
  good = good && strcmp(text.text, second.text) == 0;
  ts_text_free(&text);
  ts_text_free(&second);
  ts_text_free(&notes);
  return good;
}

static bool is_usable(const ts_deck *deck) {
  bool small = deck->model.num_hidden_layers <= MOST_LAYERS;
  return prints_back(deck) &&
         (!small || (builds(deck, TS_MODEL_TRAIN) && builds(deck, TS_MODEL_LOGITS) && plans(deck))) &&
         (!small || writes_back(deck));
}

/* False where neither a model nor a message came of it. */
static bool read_changed(const char *text, int *accepted) {
  ts_deck *deck = NULL;
  ts_error err = {0};
  ts_free(fixture_file("config.json", text));
  ts_status status = read_directory(tap_directory(), &deck, &err);
  bool good = status == TS_OK ? err.count == 0 && is_usable(deck) : deck == NULL && is_told(&err);
  *accepted += status == TS_OK;
  if (!good) {
    tap_note("%s\nof %s", err.text != NULL ? err.text : "accepted", text);
  }
  ts_deck_destroy(&deck);
  ts_error_clear(&err);
  return good;
}

static void fuzz(const char *golden, uint64_t rounds) {
  if (!tap_wanted(golden)) {
    return;
  }
  int bad = 0, accepted = 0;
  for (uint64_t round = 0; round < rounds && bad < 5; ++round) {
    char *text = changed_config(golden, round);
    bad += !read_changed(text, &accepted);
    ts_free(text);
  }
  tap_ok(bad == 0 && accepted > 0 && accepted < (int) rounds,
         "%s: %d of %d changed config.json accepted, the rest refused", golden, accepted, (int) rounds);
}

int main(void) {
  static const char *const ropes[] = {"llama_rope", "llama_dynamic", "llama_yarn", "phi3_long"};
  const char *configs = getenv("CONFIGS");
  uint64_t rounds = configs != NULL ? strtoull(configs, NULL, 10) : ROUNDS;
  char *again = ts_format("%s/again", tap_directory());
  mkdir(again, 0700);
  ts_free(again);
  for (int i = 0; ts_families[i] != NULL; ++i) {
    fuzz(ts_families[i]->model_type, rounds);
  }
  for (size_t i = 0; i < sizeof ropes / sizeof *ropes; ++i) {
    fuzz(ropes[i], rounds);
  }
  tap_ok(ts_memory_live() == 0, "nothing leaks (%lld live)", (long long) ts_memory_live());
  return tap_done();
}
