/* Random changes of good input never crash the reader: run under the sanitizers, this is the test.  What is accepted
 * must print and read back. */
#include "base/random.h"
#include "regression/deck_fixture.h"

#define ROUNDS 1000

static const char deck_text[] = GOOD_DECK
    "data = { sources = ( { path = \"kjv.txt\"; weight = 0.7; }, { path = \"b.h5\"; format = \"hdf5\"; } );\n"
    "  sequence_length = 64; validation_fraction = 0.1; shuffle = true; };  # 12\n"
    "optimizer = { type = \"AdamW\"; params = { lr = 2e-3; betas = [0.9, 0.95]; }; no_decay = [\"norm\"];\n"
    "  groups = ( { pattern = \"wte\"; lr_factor = 0x3; }, { pattern = \"h.[0-9]+\"; frozen = true; } ); };\n"
    "scheduler = { type = \"WarmupCosineLR\"; params = { total_num_steps = 600L; warmup_num_steps = 50; }; };\n"
    "tensor_parallel = { autotp_size = 2; partition_config = { layer_specs = ( { patterns = \"a.*\"; },\n"
    "  { patterns = (\"b\", \"c\"); shape = ((8, 4, 4), -1); }, { patterns = \"d\"; shape = [2, -1, 64]; partition_dim "
    "= 1; } );\n"
    "  strict_mode = true; }; tp_plan = ( { pattern = \"x.*.y\"; style = \"rowwise\"; } ); };\n"
    "/* a comment */ zero_optimization : { stage = 2; }; gradient_clipping = .5;\n";

static const char json_text[] =
    "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": [0.9, 0.99],}}, // the rest\n"
    " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\"}, /* \"fp16\" */\n"
    " \"fp16\": {\"enabled\": false}\n"
    " \"tensor_parallel\": {\"partition_config\": {\"layer_specs\": [{\"patterns\": \"a\", \"shape\": [[3, 2], "
    "-1]}]}},\n"
    " \"frozen\": [\"a\"], \"bf16\": {\"enabled\": \"auto\"}, # none\n \"gradient_clipping\": null, \"_why\": [1]}\n";

static const char model_text[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 172, \"num_hidden_layers\": 2,\n"
    " \"num_attention_heads\": 4, \"vocab_size\": 256, \"max_position_embeddings\": 128, \"eos_token_id\": [1, 2],\n"
    " \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.0}, \"attention_dropout\": 0.0}\n";

/* A few bytes replaced, removed or doubled; the result is the caller's. */
static char *mutate(const char *text, uint64_t round) {
  static const char bytes[] = "{}[]()\"\\;,.:=#*/-+0199eExL \n@includetrue\x01\xff";
  char *copy = ts_strdup(text);
  size_t length = strlen(copy);
  uint32_t random[4];
  ts_philox(7, round, 0, random);
  for (uint32_t i = 0; i < 1 + random[0] % 4; ++i) {
    ts_philox(7, round, 1 + i, random);
    size_t at = random[0] % length;
    if (random[1] % 3 == 0) {
      memmove(copy + at, copy + at + 1, length - at);
      length -= length > 1;
    } else if (random[1] % 3 == 1) {
      copy[at] = bytes[random[2] % (sizeof bytes - 1)];
    } else {
      copy[at] = copy[random[2] % length];
    }
  }
  return copy;
}

static bool reads_back(const ts_deck *deck) {
  ts_text first = {0}, second = {0};
  ts_error err = {0};
  ts_deck *again = NULL;
  ts_deck_print(deck, &first);
  ts_deck_read_text("printed", first.text, NULL, 0, &again, &err);
  if (again != NULL) {
    ts_deck_print(again, &second);
  }
  bool same = again != NULL && strcmp(first.text, second.text) == 0;
  if (!same) {
    tap_note("%s in\n%s", err.text != NULL ? err.text : "differs", first.text);
  }
  ts_deck_destroy(&again);
  ts_text_free(&first);
  ts_text_free(&second);
  ts_error_clear(&err);
  return same;
}

/* Counts decks that are neither refused with a message nor accepted whole. */
static int read_mutated(const char *text, int *accepted) {
  ts_error err = {0};
  ts_deck *deck = NULL;
  ts_status status = ts_deck_read_text("fuzz.cfg", text, NULL, 0, &deck, &err);
  bool good = status == TS_OK ? deck != NULL && err.count == 0 && reads_back(deck) : deck == NULL && err.count > 0;
  *accepted += status == TS_OK;
  ts_deck_destroy(&deck);
  ts_error_clear(&err);
  return !good;
}

static void fuzz(const char *what, const char *file, const char *original, const char *deck) {
  int bad = 0, accepted = 0;
  for (uint64_t round = 0; round < ROUNDS; ++round) {
    char *text = mutate(original, round);
    if (file != NULL) {
      ts_free(fixture_file(file, text));
    }
    bad += read_mutated(file != NULL ? deck : text, &accepted);
    ts_free(text);
  }
  tap_ok(bad == 0 && accepted > 0 && accepted < ROUNDS, "%s: %d of %d changed texts accepted, the rest refused", what,
         accepted, ROUNDS);
}

static void nested(const char *open, int depth) {
  ts_text text = {0};
  ts_text_add(&text, "%sfrozen = ", GOOD_DECK);
  for (int i = 0; i < depth; ++i) {
    ts_text_add(&text, "%s", open);
  }
  int accepted = 0;
  tap_ok(read_mutated(text.text, &accepted) == 0 && accepted == 0, "%d x %s is refused", depth, open);
  ts_text_free(&text);
}

int main(void) {
  char *json = ts_format("%sdeepspeed_config = \"%s/ds.json\";\n", GOOD_DECK, tap_directory());
  char *model = ts_format("model = { from = \"%s\"; };\n", tap_directory());
  fuzz("deck", NULL, deck_text, NULL);
  fuzz("json", "ds.json", json_text, json);
  fuzz("config.json", "config.json", model_text, model);
  nested("(", 200000);
  nested("{ a = ", 50000);
  ts_free(json);
  ts_free(model);
  tap_ok(ts_memory_live() == 0, "nothing leaks (%lld live)", (long long) ts_memory_live());
  return tap_done();
}
