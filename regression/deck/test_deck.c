/* The deck: the table itself, good decks in every form, derived values, the batch triple, printing. */
#include "deck/schema.h"
#include "deck/value.h"
#include "regression/deck_fixture.h"

#include <stdlib.h>
#include <unistd.h>

static void test_rows(void) {
  int n = ts_key_count(), bad = 0;
  for (int i = 0; i < n; ++i) {
    const ts_key *key = ts_key_at(i);
    bool helpful = key->help != NULL && strlen(key->help) > 4 && key->status <= TS_KEY_RENAMED;
    bool reachable = ts_key_find(key->path) == i;
    bool target = key->alias == NULL || (ts_key_find(key->alias) >= 0 && ts_key_at(ts_key_canonical(i))->alias == NULL);
    bool selected = key->only == NULL || ts_key_selector(key) != NULL;
    if (!helpful || !reachable || !target || !selected) {
      tap_note("row %s: help %d, found %d, alias %d, selector %d", key->path, helpful, reachable, target, selected);
      ++bad;
    }
  }
  tap_ok(n > 500 && bad == 0, "all %d rows have a status, a help line, a path of their own", n);
}

static void test_deepspeed_keys(void) {
  char *text = NULL;
  size_t length = 0;
  ts_error err = {0};
  int n = 0, missing = 0;
  tap_ok(ts_read_file(tap_path("regression/deck/deepspeed.keys"), 1 << 20, &text, &length, &err) == TS_OK, "key list");
  for (char *line = text, *stop; line != NULL && (stop = strchr(line, '\n')) != NULL; line = stop + 1) {
    *stop = '\0';
    if (*line != '#') {
      ++n;
      if (ts_key_find(line) < 0) {
        tap_note("no row for %s", line);
        ++missing;
      }
    }
  }
  tap_ok(n > 400 && missing == 0, "all %d keys of DeepSpeed have a row", n);
  ts_error_clear(&err);
  ts_free(text);
}

/* DeepSpeed 0.19.6's own defaults of the keys that work here and are numbers or words. */
static void test_defaults(void) {
  static const char *const defaults[][2] = {
      {"gradient_clipping", "1.0"},
      {"bf16.enabled", "false"},
      {"wall_clock_breakdown", "false"},
      {"zero_optimization.stage", "0"},
      {"zero_optimization.reduce_bucket_size", "500000000"},
      {"zero_optimization.allgather_bucket_size", "500000000"},
      {"zero_optimization.stage3_prefetch_bucket_size", "50000000"},
      {"zero_optimization.stage3_param_persistence_threshold", "100000"},
      {"zero_optimization.stage3_max_live_parameters", "1000000000"},
      {"zero_optimization.stage3_max_reuse_distance", "1000000000"},
      {"optimizer.params.lr", "0.001"},
      {"optimizer.params.betas", "[0.9, 0.999]"},
      {"optimizer.params.eps", "1e-8"},
      {"optimizer.params.weight_decay", "0.0"},
      {"optimizer.params.bias_correction", "true"},
      {"optimizer.params.torch_adam", "false"},
      {"scheduler.params.lr_range_test_min_lr", "0.001"},
      {"scheduler.params.lr_range_test_step_size", "2000"},
      {"scheduler.params.lr_range_test_step_rate", "1.0"},
      {"scheduler.params.lr_range_test_staircase", "false"},
      {"scheduler.params.warmup_min_lr", "0.0"},
      {"scheduler.params.warmup_num_steps", "1000"},
      {"scheduler.params.warmup_type", "log"},
      {"scheduler.params.warmup_min_ratio", "0.0"},
      {"scheduler.params.cos_min_ratio", "0.0001"},
      {"scheduler.params.decay_lr_rate", "0.0"},
      {"scheduler.params.cycle_first_step_size", "2000"},
      {"scheduler.params.cycle_first_stair_count", "0"},
      {"scheduler.params.decay_step_size", "0"},
      {"scheduler.params.cycle_momentum", "true"},
      {"scheduler.params.cycle_min_mom", "0.8"},
      {"scheduler.params.cycle_max_mom", "0.9"},
      {"scheduler.params.decay_mom_rate", "0.0"},
      {"scheduler.params.last_batch_iteration", "-1"},
  };
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; ++i) {
    ts_source source = {0};
    ts_value ours = {0}, theirs = {0};
    const char *initial = ts_key_at(ts_key_find(defaults[i][0]))->initial;
    ts_value_from_word(&source, "", initial, &ours, NULL);
    ts_value_from_word(&source, "", defaults[i][1], &theirs, NULL);
    tap_ok(ts_value_equal(&ours, &theirs), "default of %s is DeepSpeed's", defaults[i][0]);
    ts_value_clear(&ours);
    ts_value_clear(&theirs);
    ts_source_clear(&source);
  }
}

static void test_derived(void) {
  ts_deck *d = fixture_read("small deck", GOOD_DECK, NULL);
  tap_ok(d->model.head_dim == 16 && !d->model.tie_word_embeddings && strcmp(d->model.hidden_act, "silu") == 0 &&
             d->model.attn_pdrop == 0 && d->data.sequence_length == 128 && d->run.log_every == 10,
         "what the deck leaves out follows from the rest (llama)");
  tap_ok(!d->zero_optimization.overlap_comm && d->communication_data_type == TS_F32 &&
             d->optimizer.params.adam_w_mode && d->train_batch_size == 0,
         "overlap is off below stage 3, gradients travel as they are kept, AdamW decouples");
  ts_deck_destroy(&d);
  d = fixture_read("gpt2's names",
                   "model = { model_type = \"gpt2\"; vocab_size = 256; n_embd = 64; n_layer = 2; n_head = 4;"
                   " n_positions = 128; n_inner = 100; };\n steps_per_print = 7;"
                   "zero_optimization = { stage = 3; }; data_types = { grad_accum_dtype = \"bfloat16\"; };",
                   NULL);
  tap_ok(d->model.hidden_size == 64 && d->model.num_hidden_layers == 2 && d->model.num_key_value_heads == 4 &&
             d->model.intermediate_size == 100 && d->model.tie_word_embeddings && d->model.resid_pdrop == 0.1 &&
             strcmp(d->model.hidden_act, "gelu_new") == 0 && d->run.log_every == 7,
         "gpt2's names and defaults");
  tap_ok(d->zero_optimization.overlap_comm && d->tensor_parallel.tp_overlap_comm &&
             d->communication_data_type == TS_BF16,
         "overlap is on at stage 3, the wire is the type of the gradients");
  ts_deck_destroy(&d);
}

/* Adam as DeepSpeed means it. */
static void test_adam(void) {
  static const struct {
    const char *params;
    bool decoupled;
  } rows[] = {
      {"type = \"AdamW\";", true},
      {"type = \"adam\";", true},
      {"type = \"Adam\"; params = { adam_w_mode = false; };", false},
      {"type = \"Adam\"; params = { torch_adam = true; };", true},
      {"type = \"Adam\"; params = { torch_adam = true; adam_w_mode = false; };", false},
      {"type = \"AdamW\"; params = { torch_adam = true; };", true},
      {"type = \"AdamW\"; params = { adam_w_mode = false; };", true},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *text = ts_format("%soptimizer = { %s };\n", GOOD_DECK, rows[i].params);
    ts_deck *d = fixture_read("optimizer", text, NULL);
    tap_ok(d->optimizer.params.adam_w_mode == rows[i].decoupled, "%s decay %s", rows[i].params,
           rows[i].decoupled ? "is decoupled" : "goes into the gradient");
    ts_deck_destroy(&d);
    ts_free(text);
  }
}

static void test_numbers(void) {
  char *include = fixture_file("part.cfg", "seed = 0x10; # 99\n steps = 5000000000; /* 7 */\n");
  char *text = ts_format("%srun = {\n@include \"%s\"\n};\n"
                         "zero_optimization = { reduce_bucket_size = 5e8; allgather_bucket_size = 7L; };\n"
                         "optimizer = { params = { betas = ( 0.5, 0 ); lr = 1; }; };\n",
                         GOOD_DECK, include);
  ts_deck *d = fixture_read("numbers in every form", text, NULL);
  tap_ok(d->run.seed == 16 && d->run.steps == 5000000000, "integers beyond 32 bits, from an included file");
  tap_ok(d->zero_optimization.reduce_bucket_size == 500000000 && d->zero_optimization.allgather_bucket_size == 7,
         "5e8 is an integer");
  tap_ok(d->optimizer.params.betas[0] == 0.5 && d->optimizer.params.betas[1] == 0 && d->optimizer.params.lr == 1,
         "integers are numbers, a list may be mixed");
  ts_deck_destroy(&d);
  ts_free(text);
  ts_free(include);
}

static void test_sets(void) {
  char *sets[] = {"run.device=cpu",
                  "optimizer.params={ lr = 0.5; eps = 1e-6; }",
                  "run.steps=1",
                  "run.steps=3e2",
                  "frozen=[\"wte\", \"h.0\"]",
                  "data.path=my file.txt",
                  "bf16.enabled=auto",
                  "run.directory=."};
  ts_deck *d = NULL;
  ts_error err = {0};
  ts_deck_read_text("good.cfg", GOOD_DECK "run = { steps = 9; };\n", sets, 8, &d, &err);
  tap_ok(d != NULL, "--set: %s", d != NULL ? "reads" : err.text);
  tap_ok(strcmp(d->run.device, "cpu") == 0 && d->optimizer.params.lr == 0.5 && d->optimizer.params.eps == 1e-6 &&
             d->run.steps == 300 && d->frozen.n == 2 && strcmp(d->frozen.items[1], "h.0") == 0 &&
             strcmp(d->data.path, "my file.txt") == 0 && strcmp(d->run.directory, ".") == 0,
         "--set overrides the file; the last one wins; words need no quotes");
  ts_deck_destroy(&d);
  ts_error_clear(&err);
}

/* What is left to the machine stays open in print and in reading back until it is decided, and is decided once. */
static void test_switch(void) {
  const char *rounded = GOOD_DECK "bf16 = { enabled = \"auto\"; stochastic_rounding = true; "
                                  "bf16_master_weights_and_grads = true; bf16_optimizer_states = true; };\n";
  ts_deck *d = fixture_read("bf16.enabled = auto", rounded, NULL), *again = NULL;
  ts_text text = {0}, notes = {0};
  ts_error err = {0};
  ts_deck_print(d, &text);
  ts_deck_notes(d, &notes);
  tap_ok(d->bf16.enabled == TS_SWITCH_AUTO && strstr(text.text, "enabled = \"auto\";") != NULL && notes.length == 0,
         "a switch is open, printed so, and nothing is said of it yet");
  ts_deck_read_text("again.cfg", text.text, NULL, 0, &again, &err);
  tap_ok(again != NULL && again->bf16.enabled == TS_SWITCH_AUTO, "it reads back open: %s",
         err.text != NULL ? err.text : "");
  ts_deck_decide_precision(d, false, "the test says so", &notes);
  ts_deck_decide_precision(again, true, "the test says so", &notes);
  tap_ok(ts_deck_dtype(d) == TS_F32 && ts_deck_dtype(again) == TS_BF16, "it is decided");
  ts_deck_decide_precision(again, false, "the test says so", &notes);
  tap_ok(ts_deck_dtype(again) == TS_BF16, "once");
  tap_ok(!d->bf16.stochastic_rounding && again->bf16.stochastic_rounding, "fp32 has no rounding by chance");
  tap_ok(!d->bf16.bf16_master_weights_and_grads && d->data_types.grad_accum_dtype == TS_F32 &&
             ts_deck_wire(d) == TS_F32 && strcmp(d->optimizer.state_dtype, "fp32") == 0,
         "nor anything else in bf16");
  tap_ok(!ts_deck_has_masters(again) && again->data_types.grad_accum_dtype == TS_BF16 &&
             ts_deck_wire(again) == TS_BF16 && strcmp(again->optimizer.state_dtype, "bf16") == 0,
         "bf16 has masters, gradients and states in bf16 where the deck says so");
  tap_ok(strcmp(notes.text, "bf16.enabled: \"auto\": false: the test says so; "
                            "bf16.stochastic_rounding has no effect: fp32 parameters are not rounded; "
                            "bf16.bf16_master_weights_and_grads has no effect: parameters and gradients are fp32, and "
                            "travel in it; "
                            "bf16.bf16_optimizer_states has no effect: states are fp32bf16.enabled: "
                            "\"auto\": true: the test says so") == 0,
         "and said each time: %s", notes.text);
  ts_text_free(&text);
  ts_text_free(&notes);
  ts_error_clear(&err);
  ts_deck_destroy(&d);
  ts_deck_destroy(&again);
}

static const char deepspeed_json[] =
    "{ \"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": \"auto\", \"steps_per_print\": 2000,\n"
    "  \"optimizer\": { \"type\": \"Adam\", \"params\": { \"lr\": 0.001, \"betas\": [0.8, 0.999], \"eps\": 1e-8 } },\n"
    "  \"scheduler\": { \"type\": \"WarmupLR\", \"params\": { \"warmup_min_lr\": 0, \"warmup_num_steps\": 1e3 } },\n"
    "  \"fp16\": { \"enabled\": false, \"loss_scale\": 5, \"initial_scale_power\": 15 },\n"
    "  \"bf16\": { \"enabled\": true }, \"gradient_clipping\": null, \"wall_clock_breakdown\": true,\n"
    "  \"zero_optimization\": { \"stage\": 2, \"allgather_partitions\": true, \"reduce_bucket_size\": 5e8,\n"
    "    \"offload_optimizer\": { \"device\": \"none\", \"pin_memory\": false } } }\n";

static void test_json(void) {
  ts_free(fixture_file("ds.json", deepspeed_json));
  char *text = ts_format("%sdeepspeed_config = \"%s/ds.json\";\n", LLAMA_MODEL, tap_directory());
  ts_deck *d = fixture_read("deepspeed_config", text, "steps_per_print=5");
  tap_ok(d->train_batch_size == 16 && d->train_micro_batch_size_per_gpu == 0 && d->run.log_every == 5,
         "batch, \"auto\", --set over json");
  tap_ok(d->optimizer.params.betas[0] == 0.8 && d->scheduler.params.warmup_num_steps == 1000 &&
             d->bf16.enabled == TS_SWITCH_ON && d->zero_optimization.stage == 2 && d->gradient_clipping == 1.0,
         "numbers as json has them; null is the default");
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  tap_ok(strstr(notes.text, "fp16.loss_scale: no effect: fp16.enabled is false") != NULL &&
             strstr(notes.text, "zero_optimization.allgather_partitions: no effect: ") != NULL &&
             strstr(notes.text, "offload_optimizer.pin_memory: no effect: ") != NULL,
         "keys without an effect are said");
  ts_text_free(&notes);
  ts_deck_destroy(&d);
  ts_free(text);
}

static ts_deck *read_noted(const char *more, char *set, const char *note, bool said) {
  char *text = ts_format(GOOD_DECK "%s", more);
  ts_deck *d = fixture_read("notes", text, set);
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  tap_ok((notes.text != NULL && strstr(notes.text, note) != NULL) == said, "%s %s: %s%s", more, set,
         said ? "" : "not: ", note);
  ts_text_free(&notes);
  ts_free(text);
  return d;
}

/* The policy and interval of recomputation: DeepSpeed's name of the latter is taken, with its 0 for "not given"; what
 * says nothing because recomputation is off is noted. */
static void test_recomputation(void) {
  static const struct {
    const char *more;
    char *set;
    const char *policy;
    bool enabled;
    int interval;
    const char *note;
  } rows[] = {
      {"", "run.seed=2", "auto", false, 1, NULL},
      {"activation_checkpointing = { enabled = true; policy = \"SAC\"; };\n", "run.seed=2", "sac", true, 1, NULL},
      {"pipeline = { activation_checkpoint_interval = 3; };\n", "activation_checkpointing.enabled=true", "auto", true,
       3, NULL},
      {"pipeline = { activation_checkpoint_interval = 0; };\n", "activation_checkpointing.enabled=true", "auto", true,
       0, NULL},
      {"pipeline = { activation_checkpoint_interval = 1; };\n", "run.seed=2", "auto", false, 1,
       "pipeline.activation_checkpoint_interval: no effect: activation_checkpointing.enabled is false"},
      {"activation_checkpointing = { interval = 2; };\n", "run.seed=2", "auto", false, 2,
       "activation_checkpointing.interval: no effect: activation_checkpointing.enabled is false"},
      {"activation_checkpointing = { policy = \"sac\"; interval = 1; };\n", "run.seed=2", "sac", false, 1,
       "activation_checkpointing.policy: no effect: activation_checkpointing.enabled is false"},
      {"activation_checkpointing = { policy = \"auto\"; interval = 1; };\n", "run.seed=2", "auto", false, 1, NULL},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *d =
        read_noted(rows[i].more, rows[i].set, rows[i].note != NULL ? rows[i].note : "no effect", rows[i].note != NULL);
    tap_ok(d->activation_checkpointing.enabled == rows[i].enabled &&
               d->activation_checkpointing.interval == rows[i].interval &&
               strcmp(d->activation_checkpointing.policy, rows[i].policy) == 0,
           "recomputation %zu: %s, %d", i, rows[i].policy, rows[i].interval);
    ts_deck_destroy(&d);
  }
}

/* Keys that the optimizer or its schedule does not read. */
static void test_optimizer_notes(void) {
  static const struct {
    const char *more, *note;
    bool said;
  } rows[] = {
      {"optimizer = { type = \"SGD\"; params = { betas = [0.5, 0.5]; }; };\n", "params.betas: no effect", true},
      {"optimizer = { type = \"SGD\"; state_dtype = \"8bit\"; };\n", "state_dtype: no effect", true},
      {"optimizer = { type = \"SGD\"; state_dtype = \"8bit\"; params = { momentum = 0.9; }; };\n",
       "state_dtype: no effect", false},
      {"optimizer = { type = \"Lion\"; params = { eps = 1e-3; }; };\n", "params.eps: no effect", true},
      {"optimizer = { type = \"Lion\"; params = { betas = [0.5, 0.5]; }; };\n", "no effect", false},
      {"optimizer = { type = \"Adagrad\"; params = { bias_correction = false; }; };\n", "bias_correction: no effect",
       true},
      {"optimizer = { params = { eps = 0.0; }; };\n", "params.eps: 0: an element", true},
      {"optimizer = { type = \"Muon\"; params = { lr = 1e-4; muon_lr = 0.02; adam_lr = 0.003; }; };\n",
       "params.lr: no effect: muon_lr 0.02", true},
      {"optimizer = { type = \"Muon\"; params = { lr = 0.02; muon_lr = 0.02; adam_lr = 0.003; }; };\n",
       "params.lr: no effect", false},
      {"optimizer = { params = { lr = 1e-4; }; };\nscheduler = { type = \"WarmupLR\"; params = { warmup_max_lr = 1e-2; "
       "}; "
       "};\n",
       "params.lr: no effect: WarmupLR goes to", true},
      {"communication_data_type = \"fp16\";\n", "\"fp16\" without a loss scale", true},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *d = read_noted(rows[i].more, "run.seed=2", rows[i].note, rows[i].said);
    ts_deck_destroy(&d);
  }
}

/* What nobody reads while no ranks share samples: a printed deck has all of these, and says nothing. */
static void test_sequence_keys(void) {
#define ALONE ": no effect: sequence_parallel_size is 1"
  static const struct {
    const char *more;
    char *set;
    const char *note;
  } rows[] = {
      {"sequence_parallel = { ulysses_degree = 1; };\n", "run.seed=2", "sequence_parallel.ulysses_degree" ALONE},
      {"sequence_parallel = { ring_degree = 1; };\n", "run.seed=2", "sequence_parallel.ring_degree" ALONE},
      {"sequence_parallel = { ring_exchange = \"p2p\"; };\n", "run.seed=2", "sequence_parallel.ring_exchange" ALONE},
      {"sequence_parallel = { load_balancer = \"contiguous\"; };\n", "sequence_parallel_size=0",
       "sequence_parallel.load_balancer" ALONE},
      {"seq_parallel_communication_data_type = \"bf16\";\n", "run.seed=2",
       "seq_parallel_communication_data_type" ALONE},
      {"seq_parallel_comm_data_type = \"fp32\";\n", "run.seed=2", "seq_parallel_comm_data_type" ALONE},
      {"sequence_parallel = { ulysses_degree = \"auto\"; ring_exchange = \"auto\"; load_balancer = \"zigzag\"; };\n",
       "seq_parallel_communication_data_type=fp32", NULL},
      {"sequence_parallel = { ulysses_degree = 2; };\n", "run.seed=2", NULL}, /* an error, once the grid is known */
      {"sequence_parallel = { head_groups = 2; };\n", "run.seed=2", NULL},
      {"sequence_parallel = { ulysses_degree = 1; ring_exchange = \"p2p\"; load_balancer = \"contiguous\"; };\n",
       "sequence_parallel_size=2", NULL},
      {"communication_data_type = \"bf16\";\n", "sequence_parallel_size=2",
       "communication_data_type: no effect: where sequence_parallel_size is above 1, "
       "seq_parallel_communication_data_type decides"},
      {"fp32_allreduce = true; seq_parallel_communication_data_type = \"bf16\";\n", "sequence_parallel_size=2",
       "fp32_allreduce: no effect: where"},
      {"communication_data_type = \"fp32\";\n", "sequence_parallel_size=2", NULL},
      {"communication_data_type = \"fp32\"; seq_parallel_communication_data_type = \"bf16\";\n", /* as printed */
       "sequence_parallel_size=2", NULL},
      {"data_types = { grad_accum_dtype = \"bf16\"; };\n", "sequence_parallel_size=2", NULL},
  };
#undef ALONE
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *d =
        read_noted(rows[i].more, rows[i].set, rows[i].note != NULL ? rows[i].note : "no effect", rows[i].note != NULL);
    ts_deck_destroy(&d);
  }
}

/* Each number of ranks has a key of its own, which the other one leaves as it is. */
static void test_wire(void) {
  static const struct {
    const char *more;
    ts_dtype alone, shared;
  } rows[] = {{"", TS_F32, TS_F32},
              {"communication_data_type = \"bf16\";\n", TS_BF16, TS_F32},
              {"data_types = { grad_accum_dtype = \"bf16\"; };\n", TS_BF16, TS_F32},
              {"seq_parallel_communication_data_type = \"bf16\";\n", TS_F32, TS_BF16}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *text = ts_format(GOOD_DECK "%s", rows[i].more);
    ts_deck *shared = fixture_read("shared samples", text, "sequence_parallel_size=2");
    ts_text printed = {0};
    ts_deck_print(shared, &printed);
    ts_deck *alone = fixture_read("the same, printed, of one rank", printed.text, "sequence_parallel_size=1");
    tap_ok(ts_deck_wire(shared) == rows[i].shared && ts_deck_wire(alone) == rows[i].alone,
           "wire of gradients, %s: shared samples %s, whole ones %s", rows[i].more, ts_dtype_name(rows[i].shared),
           ts_dtype_name(rows[i].alone));
    ts_deck_destroy(&alone);
    ts_deck_destroy(&shared);
    ts_text_free(&printed);
    ts_free(text);
  }
}

/* Rotary positions go on beyond what the model was made for. */
static void test_long_samples(void) {
  const char *note = "data.sequence_length: 300 is more than model.max_position_embeddings 128";
  ts_deck *d = read_noted("", "data.sequence_length=300", note, true);
  ts_deck_destroy(&d);
}

static void test_auto(void) {
  ts_deck *d = fixture_read("auto",
                            GOOD_DECK "optimizer = { params = { lr = 0.002; betas = \"auto\"; }; };\n"
                                      "scheduler = { type = \"WarmupLR\";\n"
                                      "  params = { warmup_max_lr = \"Auto\"; warmup_type = \"auto\"; }; };\n"
                                      "fp16 = { enabled = \"auto\"; }; train_batch_size = \"auto\";\n",
                            "communication_data_type=fp32");
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  tap_ok(d->scheduler.params.warmup_max_lr == 0.002, "\"auto\" in any case is chosen here");
  tap_ok(strcmp(notes.text, "optimizer.params.betas: \"auto\": [0.9, 0.999] (Hugging Face's default of adam_beta1, "
                            "adam_beta2)\n"
                            "scheduler.params.warmup_max_lr: \"auto\": 0.002 (optimizer.params.lr)\n"
                            "scheduler.params.warmup_type: \"auto\": \"log\"\n"
                            "fp16.enabled: \"auto\": false (Hugging Face's default of fp16)") == 0,
         "what \"auto\" became and why is said once it is known, and nothing of the batch: %s", notes.text);
  ts_text_free(&notes);
  ts_deck_destroy(&d);
}

#define LINE(key) key "\": \"auto\", \""
static const char all_auto[] =
    "{ \"" LINE("train_batch_size") LINE("train_micro_batch_size_per_gpu") LINE("gradient_accumulation_steps") LINE(
        "gradient_clipping") "fp16\": { \"enabled\": \"auto\", \"initial_scale_power\": 32 },\n"
                             "  \"optimizer\": { \"type\": \"AdamW\", \"params\": { \"" LINE("lr") LINE("betas") LINE(
                                 "eps") "weight_decay\": \"auto\" } },\n"
                                        "  \"scheduler\": { \"type\": \"WarmupDecayLR\", \"params\": { \"" LINE(
                                            "warmup_min_lr") LINE("warmup_max_lr")
                                            LINE("warmup_num_steps") "total_num_steps\": \"auto\" } },\n"
                                                                     "  \"zero_optimization\": { \"stage\": 3, \"" LINE(
                                                                         "reduce_bucket_size")
                                                                         LINE("allgather_bucket_size") LINE(
                                                                             "stage3_prefetch_bucket_size")
                                                                             LINE("overlap_comm") LINE(
                                                                                 "stage3_gather_16bit_weights_on_model_"
                                                                                 "save") "stage3_param_persistence_"
                                                                                         "threshold\": \"auto\" } }\n";

static ts_deck *read_beside(const char *json, const char *more, char *set) {
  ts_free(fixture_file("ds.json", json));
  char *text = ts_format("%s%s\ndeepspeed_config = \"%s/ds.json\";\n", LLAMA_MODEL, more, tap_directory());
  ts_deck *d = fixture_read("a json", text, set);
  ts_free(text);
  return d;
}

/* Hugging Face's values where the deck is silent; the deck's, without a word, where it is not. */
static void test_auto_json(void) {
  ts_deck *d = read_beside(all_auto, "run = { steps = 900; };", NULL);
  const ts_deck_zero *z = &d->zero_optimization;
  tap_ok(d->optimizer.params.lr == 5e-5 && d->optimizer.params.betas[1] == 0.999 && d->optimizer.params.eps == 1e-8 &&
             d->optimizer.params.weight_decay == 0 && d->gradient_clipping == 1.0,
         "\"auto\": the optimizer of TrainingArguments");
  tap_ok(d->scheduler.params.warmup_min_lr == 0 && d->scheduler.params.warmup_max_lr == 5e-5 &&
             d->scheduler.params.warmup_num_steps == 1 && d->scheduler.params.total_num_steps == 900,
         "\"auto\": the schedule warms up to lr in one step and ends with the run");
  tap_ok(z->reduce_bucket_size == 64 * 64 && z->stage3_prefetch_bucket_size == 3686 &&
             z->stage3_param_persistence_threshold == 640 && z->allgather_bucket_size == 500000000 && z->overlap_comm,
         "\"auto\": buckets follow from hidden_size; what Hugging Face does not fill has its default");
  bool resolved = ts_deck_resolve_batch(d, 3, NULL) == TS_OK;
  tap_ok(resolved && d->train_micro_batch_size_per_gpu == 8 && d->train_batch_size == 24,
         "\"auto\": a micro-batch of 8 where nothing says otherwise");
  ts_deck_destroy(&d);
  d = read_beside(all_auto,
                  "run = { steps = 900; }; train_batch_size = 32;\n"
                  "optimizer = { params = { lr = 2e-3; weight_decay = 0.1; }; };\n"
                  "scheduler = { params = { warmup_num_steps = 50; }; };\n"
                  "zero_optimization = { reduce_bucket_size = 77; };",
                  "gradient_clipping=0.5");
  tap_ok(d->optimizer.params.lr == 2e-3 && d->optimizer.params.weight_decay == 0.1 && d->gradient_clipping == 0.5 &&
             d->scheduler.params.warmup_max_lr == 2e-3 && d->scheduler.params.warmup_num_steps == 50 &&
             d->zero_optimization.reduce_bucket_size == 77,
         "the deck is the trainer: its values stand beside \"auto\"");
  bool open = d->train_micro_batch_size_per_gpu == 0;
  tap_ok(open && ts_deck_resolve_batch(d, 4, NULL) == TS_OK && d->train_micro_batch_size_per_gpu == 8 &&
             d->gradient_accumulation_steps == 1,
         "a batch that is given determines the rest");
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  tap_ok(strstr(notes.text, "optimizer.params.lr: ") == NULL &&
             strstr(notes.text, "params.eps: \"auto\": 1e-08 (Hugging Face's default of adam_epsilon)") != NULL,
         "said of what the deck left out only");
  ts_text_free(&notes);
  ts_deck_destroy(&d);
  d = read_beside(all_auto, "run = { steps = 9; }; optimizer = { params = { lr = 1e-3; }; };",
                  "optimizer.params.lr=auto");
  tap_ok(d->optimizer.params.lr == 5e-5, "--set KEY=auto is stronger than the deck");
  ts_deck_destroy(&d);
  d = read_beside("{ \"gradient_clipping\": 0.25, \"train_batch_size\": 6 }", "gradient_clipping = \"auto\";", NULL);
  tap_ok(d->gradient_clipping == 0.25, "an \"auto\" of the deck takes what the json says");
  ts_deck_destroy(&d);
}

/* Numbers of 64 bits come through a formula whole; what is too large for it is as large as can be. */
static void test_auto_large(void) {
  ts_deck *d = read_beside(all_auto, "run = { steps = 9223372036854775807; };", NULL);
  tap_ok(d->scheduler.params.total_num_steps == INT64_MAX, "total_num_steps is run.steps to the last bit");
  ts_deck_destroy(&d);
}

/* Whole samples, whole batches; what is too many for 64 bits is as many as can be. */
static void test_epochs(void) {
  static const struct {
    double epochs;
    int64_t samples, done, batch, steps;
  } rows[] = {{2, 10, 0, 4, 5},
              {1, 10, 0, 4, 3},
              {0.1, 10, 0, 4, 1},
              {1.1, 10, 0, 11, 1},
              {1.11, 10, 0, 11, 2},
              {2, 10, 12, 8, 1},
              {2, 10, 13, 8, 1},
              {2, 10, 20, 4, 0},
              {1, 10, 20, 4, 0},
              {0, 10, 0, 4, 0},
              {3, 1000000007, 0, 1, 3000000021},
              {1e9, INT64_MAX, 0, 1, INT64_MAX}};
  ts_deck *d = read_beside("{}", "", NULL);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    d->run.epochs = rows[i].epochs;
    d->train_batch_size = rows[i].batch;
    int64_t steps = ts_deck_steps_left(d, rows[i].samples, rows[i].done);
    tap_ok(steps == rows[i].steps, "%g epochs of %lld samples, %lld done, in batches of %lld: %lld steps (%lld)",
           rows[i].epochs, (long long) rows[i].samples, (long long) rows[i].done, (long long) rows[i].batch,
           (long long) rows[i].steps, (long long) steps);
  }
  ts_deck_destroy(&d);
}

static void test_auto_rules(void) {
  int bad = 0;
  for (int i = 0; i < ts_auto_count(); ++i) {
    int key = ts_key_find(ts_auto_at(i)->path);
    if (key < 0 || (ts_key_at(key)->flags & TS_KEY_AUTO) == 0 || ts_key_at(key)->alias != NULL) {
      tap_note("%s has a rule for \"auto\", which its row does not accept", ts_auto_at(i)->path);
      ++bad;
    }
  }
  tap_ok(bad == 0 && ts_auto_find("run.steps") == NULL, "the %d rules for \"auto\" belong to keys that accept it",
         ts_auto_count());
}

/* doc/deepspeed.md has a line of each rule. */
static void test_auto_documented(void) {
  char *text = NULL;
  size_t length;
  ts_error err = {0};
  tap_ok(ts_read_file(tap_path("doc/deepspeed.md"), 1 << 20, &text, &length, &err) == TS_OK, "doc/deepspeed.md");
  int missing = 0;
  for (int i = 0; i < ts_auto_count() && text != NULL; ++i) {
    const ts_auto *row = ts_auto_at(i);
    char *line = row->argument != NULL ? ts_format("| `%s` | %s | %s |\n", row->path, row->formula, row->argument)
                                       : ts_format("| `%s` | %s | |\n", row->path, row->formula);
    if (strstr(text, line) == NULL) {
      tap_note("not there: %s", line);
      ++missing;
    }
    ts_free(line);
  }
  tap_ok(missing == 0, "it has every rule for \"auto\" as the deck follows it");
  ts_error_clear(&err);
  ts_free(text);
}

/* What DeepSpeed takes as json: hjson's comments and commas.  Lines stay right. */
static void test_relaxed_json(void) {
  static const char *const good[] = {
      "{\n # one\n \"run\": {\"steps\": 5, /* two\n three */ \"seed\": 4,},\n // four, \"five\": 6\n"
      " \"data\": {\"path\": \"a//b # c\"}, }\n# end",
      "{ \"run\": {\n \"steps\": 5\n \"seed\": 4 // no comma\n }\n \"data\": {\"path\": \"a//b # c\"}\n}",
      "#!\n{\"run\":{\"steps\":5#x\n,\"seed\":4//y\n},\"data\":{\"path\":\"a//b # c\",},\"frozen\":[\"x\"\n\"y\",\n],}",
      "{ \"_comment\": {\"any\": [1]}, \"run\": {\"steps\": 5, \"seed\": 4, \"_why\": 3}, \"_\": null,\n"
      "  \"data\": {\"path\": \"a//b # c\"}}",
  };
  static const char *const bad[][2] = {
      {"{ # x\n \"run\": {\n \"steps\": -1 /* \n */ } }", "ds.json:3: run.steps: -1 is out of range"},
      {"{\n /* \n\n */ \"run\": {\n // { \"steps\": 3 }\n \"stepz\": 1 } }", "ds.json:6: run.stepz: unknown key"},
      {"{ \"run\": { \"steps\": 1 \"seed\": 2 } }", "ds.json:1: json: "},
      {"{ \"run\": { \"steps\": 1,, \"seed\": 2 } }", "ds.json:1: json: "},
      {"{ \"run\", : { \"steps\": 1 } }", "ds.json:1: json: "},
      {"{ \"frozen\": [,] }", "ds.json:1: json: "},
      {"{\n \"run\": { \"device\": cpu } }",
       "ds.json:2: json: invalid token near 'cpu'; keys and strings need double quotes"},
      {"{ \"run\": { \"steps\": 1 } /* open", "ds.json:1: json: "},
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i) {
    ts_deck *d = read_beside(good[i], "train_batch_size = 8;", NULL);
    tap_ok(d != NULL && d->run.steps == 5 && d->run.seed == 4 && strcmp(d->data.path, "a//b # c") == 0, "hjson %zu", i);
    ts_deck_destroy(&d);
  }
  char *text = ts_format("%sdeepspeed_config = \"%s/ds.json\";\n", GOOD_DECK, tap_directory());
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    ts_deck *d = NULL;
    ts_error err = {0};
    ts_free(fixture_file("ds.json", bad[i][0]));
    ts_deck_read_text("good.cfg", text, NULL, 0, &d, &err);
    tap_ok(d == NULL && strstr(err.text, bad[i][1]) != NULL, "bad hjson %zu: %s", i, bad[i][1]);
    ts_deck_destroy(&d);
    ts_error_clear(&err);
  }
  ts_free(text);
}

/* DeepSpeed's old spellings, in one line each, and what they are now. */
static void test_spellings(void) {
  ts_deck *d = read_beside("{ \"zero_optimization\": true, \"fp32_allreduce\": true, \"max_grad_norm\": 0.5,\n"
                           "  \"train_batch_size\": 4 }",
                           "data_types = { grad_accum_dtype = \"bf16\"; };", NULL);
  tap_ok(d->zero_optimization.stage == 1 && d->communication_data_type == TS_F32 && d->gradient_clipping == 0.5,
         "zero_optimization: true is stage 1, fp32_allreduce a type on the wire, max_grad_norm gradient_clipping");
  ts_deck_destroy(&d);
  d = read_beside("{ \"zero_optimization\": false, \"fp32_allreduce\": false, \"train_batch_size\": 4 }",
                  "data_types = { grad_accum_dtype = \"bf16\"; };", NULL);
  tap_ok(d->zero_optimization.stage == 0 && d->communication_data_type == TS_BF16,
         "false is stage 0, and says nothing of the wire");
  ts_deck_destroy(&d);
  d = read_beside("{ \"zero_optimization\": { \"stage\": 2, \"cpu_offload\": true, \"cpu_offload_params\": false },\n"
                  "  \"train_batch_size\": 4 }",
                  "", NULL);
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  tap_ok(strcmp(d->zero_optimization.offload_optimizer.device, "cpu") == 0 &&
             strcmp(d->zero_optimization.offload_param.device, "none") == 0 &&
             strstr(notes.text, "zero_optimization.offload_optimizer.device: \"cpu\": no effect on processors, where "
                                "all state is in host memory") != NULL,
         "cpu_offload is an offload to the host: nothing on processors, and said: %s", notes.text);
  ts_text_free(&notes);
  ts_deck_destroy(&d);
  d = read_beside("{ \"compile\": {\"offload_opt_states\": true, \"offload_activation\": true},\n"
                  "  \"activation_checkpointing\": {\"partition_activations\": true}, \"train_batch_size\": 4 }",
                  "run = { offload_update = \"host\"; };", NULL);
  ts_deck_notes(d, &notes);
  tap_ok(strcmp(d->zero_optimization.offload_optimizer.device, "cpu") == 0 &&
             strcmp(d->zero_optimization.offload_param.device, "none") == 0 && d->compile.offload_activation &&
             strstr(notes.text, "compile.offload_activation: no effect on processors") != NULL &&
             strstr(notes.text, "partition_activations: no effect: tensor_parallel.autotp_size is 1") != NULL &&
             strstr(notes.text, "run.offload_update: \"host\": no effect on processors") != NULL,
         "compile's offload is that of zero_optimization; what has no effect is said: %s", notes.text);
  ts_text_free(&notes);
  ts_deck_destroy(&d);
  d = read_beside("{ \"activation_checkpoint_cpu_offload\": true, \"train_batch_size\": 4,\n"
                  "  \"aio\": {\"block_size\": 8192, \"queue_depth\": 3, \"thread_count\": 2},\n"
                  "  \"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/x\"}} }",
                  "activation_checkpointing = { enabled = true; };", NULL);
  ts_deck_notes(d, &notes);
  tap_ok(d->activation_checkpointing.cpu_checkpointing && d->aio.block_size == 8192 && d->aio.queue_depth == 3 &&
             d->aio.intra_op_parallelism == 2 &&
             strstr(notes.text, "cpu_checkpointing: no effect on processors") != NULL,
         "other names of cpu_checkpointing and of aio's threads; without a limit nothing leaves: %s", notes.text);
  ts_text_free(&notes);
  ts_deck_destroy(&d);
  d = read_beside("{ \"comms_config\": {\"verbose\": false}, \"monitor_config\": {\"enabled\": true, \"tag\": \"x\"},\n"
                  "  \"cuda_visible_devices\": 0, \"compile\": {\"disable\": false, \"backend\": \"inductor\"},\n"
                  "  \"train_batch_size\": 4 }",
                  "", NULL);
  ts_deck_notes(d, &notes);
  tap_ok(strstr(notes.text, "comms_config: no effect: ") != NULL &&
             strstr(notes.text, "monitor_config: no effect: ") != NULL &&
             strstr(notes.text, "cuda_visible_devices: no effect: ") != NULL &&
             strstr(notes.text, "compile.backend: no effect: ") != NULL,
         "what other programs leave in a json has no effect, and that is said");
  ts_text_free(&notes);
  ts_deck_destroy(&d);
}

static bool is_noted(const ts_deck *d, const char *line) {
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  bool found = notes.text != NULL && strstr(notes.text, line) != NULL;
  ts_text_free(&notes);
  return found;
}

static bool scales(const ts_deck *d, ts_loss_scale_rule rule, double initial, double minimum, int64_t window,
                   int64_t hysteresis, bool consecutive) {
  ts_loss_scaler s = ts_deck_loss_scaler(d);
  return s.rule == rule && s.initial == initial && s.minimum == minimum && s.window == window &&
         s.hysteresis == hysteresis && s.consecutive == consecutive;
}

/* DeepSpeed's keys and defaults. */
static void test_fp16(void) {
  ts_deck *d = read_beside("{ \"fp16\": { \"enabled\": true, \"auto_cast\": true } }", "", NULL);
  tap_ok(ts_deck_dtype(d) == TS_F16 && scales(d, TS_LOSS_SCALE_DYNAMIC, 65536, 1, 1000, 2, false),
         "fp16.enabled alone: a dynamic scale from 65536");
  tap_ok(is_noted(d, "fp16.auto_cast: no effect: "), "auto_cast has nothing to cast");
  ts_deck_destroy(&d);
  d = read_beside(
      "{ \"fp16\": { \"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 32, \"hysteresis\": 3,\n"
      "  \"loss_scale_window\": 500, \"min_loss_scale\": 4, \"consecutive_hysteresis\": true },\n"
      "  \"bf16\": { \"enabled\": \"auto\" } }",
      "", NULL);
  tap_ok(ts_deck_dtype(d) == TS_F16 && scales(d, TS_LOSS_SCALE_DYNAMIC, 0x1p32, 4, 500, 3, true),
         "all of its keys; a bf16 that is \"auto\" gives way");
  ts_deck_destroy(&d);
  d = read_beside("{ \"fp16\": { \"enabled\": true, \"loss_scale\": 300.5, \"hysteresis\": 3 } }", "", NULL);
  tap_ok(ts_deck_has_masters(d) && d->data_types.grad_accum_dtype == TS_F32 &&
             scales(d, TS_LOSS_SCALE_STATIC, 300.5, 1, 1000, 3, false) &&
             is_noted(d, "fp16.hysteresis: no effect: fp16.loss_scale is set"),
         "a static scale, beside which those of a dynamic one have no effect");
  ts_deck_destroy(&d);
  d = read_beside("{ \"fp16\": { \"enabled\": true, \"fp16_master_weights_and_grads\": true } }", "", NULL);
  tap_ok(!ts_deck_has_masters(d) && d->data_types.grad_accum_dtype == TS_F16 && ts_deck_wire(d) == TS_F16 &&
             strcmp(d->optimizer.state_dtype, "fp32") == 0,
         "masters and gradients in fp16, states as optimizer.state_dtype says");
  ts_deck_destroy(&d);
  d = read_beside("{ \"fp16\": { \"enabled\": \"auto\", \"loss_scale\": 3, \"hysteresis\": 3 } }", "", NULL);
  tap_ok(!d->fp16.enabled && ts_deck_loss_scaler(d).rule == TS_LOSS_SCALE_NONE &&
             is_noted(d, "fp16.loss_scale: no effect: fp16.enabled is false") &&
             is_noted(d, "fp16.hysteresis: no effect: fp16.enabled is false"),
         "\"auto\" is false, and the other keys have no effect");
  ts_deck_destroy(&d);
  d = read_beside(
      "{ \"bf16\": { \"enabled\": true, \"check_grad_overflow\": false, \"immediate_grad_update\": true } }", "",
      "communication_data_type=fp16");
  tap_ok(ts_deck_dtype(d) == TS_BF16 && !d->bf16.check_grad_overflow && ts_deck_wire(d) == TS_F16 &&
             is_noted(d, "bf16.immediate_grad_update: no effect: "),
         "bf16 without the check; fp16 on the wire");
  ts_deck_destroy(&d);
  d = read_beside("{ \"prescale_gradients\": true, \"gradient_predivide_factor\": 3 }", "", NULL);
  tap_ok(ts_deck_wire_divisor(d, ts_deck_wire(d), 8) == 1 &&
             is_noted(d, "prescale_gradients: no effect: gradients do not travel in fp16") &&
             is_noted(d, "gradient_predivide_factor: no effect: gradients do not travel in fp16"),
         "nothing is divided on an fp32 wire, and that is said");
  ts_deck_destroy(&d);
  d = read_beside("{ \"prescale_gradients\": true, \"gradient_predivide_factor\": 3 }", "",
                  "communication_data_type=fp16");
  tap_ok(ts_deck_wire_divisor(d, ts_deck_wire(d), 8) == 8 &&
             is_noted(d, "gradient_predivide_factor: no effect: prescale_gradients is true"),
         "on an fp16 wire by the ranks");
  ts_deck_destroy(&d);
  d = read_beside("{ \"gradient_predivide_factor\": 3 }", "", "communication_data_type=fp16");
  tap_ok(ts_deck_wire_divisor(d, ts_deck_wire(d), 8) == 3, "or by the factor");
  ts_deck_destroy(&d);
}

static void test_autocast(void) {
  ts_deck *d =
      read_beside("{ \"torch_autocast\": { \"enabled\": true, \"dtype\": \"float16\" }, \"prescale_gradients\": true }",
                  "bf16 = { enabled = \"auto\"; };\n", "communication_data_type=bf16");
  tap_ok(ts_deck_dtype(d) == TS_F32 && ts_deck_products(d) == TS_F16 && !ts_deck_has_masters(d) &&
             scales(d, TS_LOSS_SCALE_TORCH, 65536, 1, 2000, 1, false),
         "autocast: fp32 parameters, products in fp16, GradScaler's rule; a bf16 that is \"auto\" gives way");
  tap_ok(is_noted(d, "communication_data_type: no effect: with torch_autocast") &&
             !is_noted(d, "prescale_gradients: no effect"),
         "autocast: its list says what travels in fp16, which is divided");
  ts_deck_destroy(&d);
  d = read_beside("{ \"torch_autocast\": { \"dtype\": \"fp16\" } }", "", NULL);
  tap_ok(ts_deck_products(d) == TS_F32 && ts_deck_loss_scaler(d).rule == TS_LOSS_SCALE_NONE &&
             is_noted(d, "torch_autocast.dtype: no effect: torch_autocast.enabled is false"),
         "autocast: off, and its other keys have no effect");
  ts_deck_destroy(&d);
}

/* Each key knows where it came from, also on ranks that read a printed deck. */
static void test_origins(void) {
  ts_deck *d = read_beside("{\n \"gradient_clipping\": 0.5,\n \"zero_optimization\": { \"stage\": 1 } }",
                           "\ndata = { path = \"x\"; };\ntrain_batch_size = 3;", "run.steps=7");
  char *json = ts_format("%s/ds.json", tap_directory());
  const char *expected[][2] = {{"data.path", "good.cfg:4"},
                               {"train_batch_size", "good.cfg:5"},
                               {"run.steps", "--set"},
                               {"run.seed", "good.cfg"}};
  ts_text origins = {0}, text = {0};
  ts_deck *again = NULL;
  ts_deck_print_origins(d, &origins);
  ts_deck_print(d, &text);
  ts_deck_read_text("good.cfg", text.text, NULL, 0, &again, NULL);
  ts_deck_take_origins(again, origins.text);
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    const char *here = ts_deck_origin(d, expected[i][0]), *there = ts_deck_origin(again, expected[i][0]);
    tap_ok(strcmp(here, expected[i][1]) == 0 && strcmp(there, here) == 0, "%s was set at %s", expected[i][0], here);
  }
  tap_ok(strncmp(ts_deck_origin(again, "gradient_clipping"), json, strlen(json)) == 0 &&
             strcmp(ts_deck_origin(again, "gradient_clipping") + strlen(json), ":2") == 0 &&
             strcmp(ts_deck_origin(again, "zero_optimization.stage") + strlen(json), ":3") == 0,
         "a json's key at its line, under its own name");
  ts_error err = {0};
  tap_ok(ts_deck_resolve_batch(again, 2, &err) == TS_BAD_INPUT &&
             strncmp(err.text, "good.cfg:5: train_batch_size: 3 is not a multiple of ", 53) == 0,
         "a batch that does not divide");
  ts_error_clear(&err);
  tap_ok(ts_deck_error(d, "data.path", &err, "%d", 1) == TS_BAD_INPUT &&
             strcmp(err.text, "good.cfg:4: data.path: 1") == 0,
         "ts_deck_error");
  ts_error_clear(&err);
  ts_text_free(&origins);
  ts_text_free(&text);
  ts_free(json);
  ts_deck_destroy(&d);
  ts_deck_destroy(&again);
}

static void test_bad_json(void) {
  static const char *const rows[][2] = {
      {"{\"run\": {\"steps\": 1 2}}", "bad.json:1: json: "},
      {"{\"run\": {\"steps\": 1, \"steps\": 2}}", "bad.json:1: json: duplicate object key near '\"steps\"'"},
      {"{\"run\":\n {\"steps\": 99999999999999999999}}", "bad.json:2: json: too big integer"},
      {"{\"gradient_clipping\": 1e999}", "bad.json:1: json: real number overflow"},
      {"[1]", "must hold an object"},
      {"{\"stage\": 1}", "bad.json:1: stage: unknown key; did you mean zero_optimization.stage?"},
      {"{\"run.steps\": 1}", "bad.json:1: run.steps: unknown key"},
      {"{\"a\\\"\": \"\\\\\",\n \"optimizer\": {\"type\":\n \"type\", \"params\"\n : {\n\"lr\": -1}}}",
       "bad.json:5: optimizer.params.lr: -1 is"},
      {"{\"optimizer\": {\"groups[7].pattern\": \"x\"}}", "unknown key"},
      {"{\"zero_optimization\": {\"stage\": \"2\"}}", "bad.json:1: zero_optimization.stage: \"2\" is not an integer"},
      {"{\"zero_optimization\": 2}", "bad.json:1: zero_optimization: must be a section, { ... }, or true, false"},
      {"{\"zero_optimization\": {\"cpu_offload\": 1}}",
       "bad.json:1: zero_optimization.cpu_offload: must be true or false"},
      {"{\"zero_optimization\": {\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"none\"}}}",
       "offload_optimizer.device: \"none\", but zero_optimization.cpu_offload is \"cpu\" at "},
      {"{\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/x\"}}}",
       "device: \"nvme\" needs zero_optimization.stage = 3"},
      {"{\"optimizer\": {\"type\": \"OneBitAdam\"}}", "optimizer.type: \"OneBitAdam\" is removed from DeepSpeed"},
  };
  char *text = ts_format("%sdeepspeed_config = \"%s/bad.json\";\n", GOOD_DECK, tap_directory());
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *d = NULL;
    ts_error err = {0};
    ts_free(fixture_file("bad.json", rows[i][0]));
    ts_deck_read_text("good.cfg", text, NULL, 0, &d, &err);
    tap_ok(d == NULL && strstr(err.text, rows[i][1]) != NULL, "bad json: %s", rows[i][1]);
    ts_deck_destroy(&d);
    ts_error_clear(&err);
  }
  ts_free(text);
}

static ts_deck *read_model(const char *what, const char *config, const char *more) {
  ts_free(fixture_file("config.json", config));
  char *text = ts_format("model = { from = \"%s\"; %s };\ntrain_batch_size = 4;\n", tap_directory(), more);
  ts_deck *d = fixture_read(what, text, NULL);
  ts_free(text);
  return d;
}

static void test_gpt2_config(void) {
  ts_deck *d =
      read_model("config.json of gpt2",
                 "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"n_embd\": 768,"
                 " \"n_layer\": 12, \"n_head\": 12, \"n_positions\": 1024, \"n_ctx\": 1024,"
                 " \"vocab_size\": 50257,"
                 " \"activation_function\": \"gelu_new\", \"bos_token_id\": 50256, \"eos_token_id\": 50256,"
                 " \"layer_norm_epsilon\": 1e-05, \"resid_pdrop\": 0.1, \"n_inner\": null,"
                 " \"task_specific_params\": {\"a\": {\"b\": 1}}, \"scale_attn_weights\": true,"
                 " \"summary_type\": \"cls_index\", \"use_cache\": true, \"novelty\": 3, \"no\\nvel\\u001b\": 3}",
                 "resid_pdrop = 0.0;");
  tap_ok(d->model.hidden_size == 768 && d->model.intermediate_size == 3072 && d->model.vocab_size == 50257 &&
             d->model.eos_token_id == 50256 && d->model.tie_word_embeddings && !d->model.from_config,
         "gpt2's config.json fills the model");
  tap_ok(d->model.resid_pdrop == 0.0 && d->model.attn_pdrop == 0.1, "a deck may choose its own dropout");
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  tap_ok(strstr(notes.text, "novelty: unknown key of a config.json, ignored") != NULL &&
             strstr(notes.text, "config.json: no?vel?: unknown key") != NULL &&
             strstr(notes.text, "resid_pdrop") != NULL && strstr(notes.text, "summary_type") == NULL,
         "unknown keys are said, foreign ones are not");
  ts_text_free(&notes);
  ts_deck_destroy(&d);
}

static void test_llama_config(void) {
  static const char base[] =
      "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16,"
      " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256, \"rms_norm_eps\": 1e-05,"
      " \"max_position_embeddings\": 131072, \"eos_token_id\": [128256, 128001, 128008], \"tie_word_embeddings\": true,"
      " \"attention_dropout\": 0.0, \"hidden_act\": \"silu\", \"pretraining_tp\": 1,"
      " \"torch_dtype\": \"bfloat16\", %s}";
  static const char *const ropes[] = {
      "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0,"
      " \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
      "\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 32.0, \"rope_theta\": 500000.0,"
      " \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
      "\"rope_theta\": 500000.0, \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 32,"
      " \"original_max_position_embeddings\": 8192}",
  };
  for (int i = 0; i < 3; ++i) {
    char *config = ts_format(base, ropes[i]);
    ts_deck *d = read_model("config.json of llama", config, "");
    const ts_deck_rope *r = &d->model.rope_scaling;
    tap_ok(strcmp(r->rope_type, "llama3") == 0 && r->factor == 32 && r->high_freq_factor == 4 &&
               r->original_max_position_embeddings == 8192 && d->model.rope_theta == 5e5,
           "rope spelling %d", i);
    tap_ok(d->model.eos_token_id == 128001 && d->model.tie_word_embeddings && d->model.num_key_value_heads == 8,
           "llama's config.json fills the model");
    ts_deck_destroy(&d);
    ts_free(config);
  }
}

/* What a family's class of transformers reads of a file, and assumes where it says nothing. */
static void test_family_configs(void) {
#define SIZES                                                                                     \
  "\"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2," \
  " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64"
  static const struct {
    const char *config, *path, *value; /* NULL: the deck has no such key */
  } rows[] = {
      {"{\"model_type\": \"mistral\", " SIZES "}", "model.sliding_window", "4096"},
      {"{\"model_type\": \"mistral\", " SIZES ", \"sliding_window\": null}", "model.sliding_window", "0"},
      {"{\"model_type\": \"gemma\", " SIZES "}", "model.head_dim", "256"},
      {"{\"model_type\": \"gemma2\", " SIZES
       ", \"hidden_act\": \"gelu\", \"hidden_activation\": \"gelu_pytorch_tanh\"}",
       "model.hidden_act", "\"gelu_pytorch_tanh\""},
      {"{\"model_type\": \"GEMMA2\", " SIZES
       ", \"hidden_act\": \"gelu\", \"hidden_activation\": \"gelu_pytorch_tanh\"}",
       "model.hidden_act", "\"gelu_pytorch_tanh\""},
      {"{\"model_type\": \"gemma2\", " SIZES ", \"attn_logit_softcapping\": null}", "model.attn_logit_softcapping",
       "0.0"},
      {"{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma3_text\", " SIZES "}}",
       "model.model_type", "\"gemma3_text\""},
      /* as google/gemma-3-12b says it */
      {"{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 106], \"text_config\": {\"hidden_size\": 3840, "
       "\"intermediate_size\": 15360,"
       " \"model_type\": \"gemma3_text\", \"num_attention_heads\": 16, \"num_hidden_layers\": 48, "
       "\"num_key_value_heads\": 8,"
       " \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, \"sliding_window\": 1024}}",
       "model.vocab_size", "262208"},
      {"{\"model_type\": \"gemma3\", \"eos_token_id\": [1, 106], \"text_config\": {\"hidden_size\": 3840, "
       "\"intermediate_size\": 15360,"
       " \"model_type\": \"gemma3_text\", \"num_attention_heads\": 16, \"num_hidden_layers\": 48, "
       "\"num_key_value_heads\": 8,"
       " \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, \"sliding_window\": 1024}}",
       "model.eos_token_id", "1"},
      {"{\"model_type\": \"gemma\", " SIZES ", \"hidden_act\": \"gelu\", \"hidden_activation\": \"gelu_pytorch_tanh\"}",
       "model.hidden_act", "\"gelu\""},
      {"{\"model_type\": \"qwen2\", \"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 48, "
       "\"num_hidden_layers\": 2,"
       " \"num_attention_heads\": 4, \"num_key_value_heads\": null, \"max_position_embeddings\": 64, \"head_dim\": 10}",
       "model.num_key_value_heads", "4"},
      {"{\"model_type\": \"qwen2\", " SIZES ", \"head_dim\": 10}", "model.head_dim", "10"},
      {"{\"model_type\": \"llama\", " SIZES ", \"rope_scaling\": {\"rope_type\": \"default\", \"rope_theta\": 7.0}}",
       "model.rope_theta", "7.0"},
      {"{\"model_type\": \"gpt_neox\", " SIZES ", \"hidden_dropout\": 0.25}", "model.embd_pdrop", "0.25"},
      {"{\"model_type\": \"gpt_neox\", " SIZES ", \"hidden_dropout\": 0.25}", "model.resid_pdrop", "0.25"},
      {"{\"model_type\": \"gpt_neox\", " SIZES ", \"rotary_pct\": 0.5}", "model.partial_rotary_factor", "0.5"},
      {"{\"model_type\": \"gpt_neox\", " SIZES "}", "model.num_key_value_heads", NULL},
      {"{\"model_type\": \"starcoder2\", " SIZES ", \"use_bias\": false}", "model.attention_bias", "false"},
      {"{\"model_type\": \"mixtral\", " SIZES ", \"num_local_experts\": 6}", "model.num_experts", "6"},
      {"{\"model_type\": \"mixtral\", " SIZES ", \"sliding_window\": null}", "model.sliding_window", "0"},
      {"{\"model_type\": \"qwen3_moe\", " SIZES "}", "model.num_experts_per_tok", "8"},
      {"{\"model_type\": \"qwen2_moe\", " SIZES ", \"mlp_only_layers\": null, \"qkv_bias\": false}",
       "model.attention_bias", "false"},
      {"{\"model_type\": \"olmoe\", " SIZES ", \"clip_qkv\": null}", "model.router_aux_loss_coef", "0.01"},
      {"{\"model_type\": \"dots1\", " SIZES ", \"n_routed_experts\": 12}", "model.num_experts", "12"},
      {"{\"model_type\": \"olmo3\", " SIZES
       ", \"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"default\","
       " \"rope_theta\": 7.0}, \"full_attention\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}}",
       "model.rope_local_base_freq", "7.0"},
      {"{\"model_type\": \"olmo3\", " SIZES ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\","
       " \"factor\": 4.0}}}",
       "model.rope_scaling.rope_type", "\"yarn\""},
      {"{\"model_type\": \"llama\", " SIZES ", \"embedding_multiplier\": 12.0}", "model.embedding_multiplier", NULL},
  };
#undef SIZES
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *d = read_model("config.json of a family", rows[i].config, "");
    char *value = ts_deck_value(d, rows[i].path);
    tap_ok(rows[i].value == NULL ? value == NULL : value != NULL && strcmp(value, rows[i].value) == 0, "%s: %s is %s",
           d->model.model_type, rows[i].path, value != NULL ? value : "not there");
    tap_ok(d->model.embedding_multiplier == 1, "what is another family's has no effect");
    ts_free(value);
    ts_deck_destroy(&d);
  }
}

/* model.from is relative to the file that says it (a --set: to the working directory), and printed absolute. */
static void test_from_path(void) {
  static const char config[] = "{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 1,"
                               " \"n_positions\": 8, \"vocab_size\": 256}";
  char *directory = ts_format("%s/hf", tap_directory()), *name = ts_format("%s/deck.cfg", tap_directory());
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  ts_free(fixture_file("hf/config.json", config));
  char *set = ts_format("model.from=%s", directory), *real = realpath(directory, NULL);
  ts_deck *d = NULL;
  ts_text text = {0};
  ts_deck_read_text(name, "model = { from = \"hf\"; }; train_batch_size = 4;", NULL, 0, &d, NULL);
  tap_ok(d != NULL && strcmp(d->model.from, real) == 0, "model.from beside the deck");
  ts_deck_print(d, &text);
  ts_deck_destroy(&d);
  ts_deck_read_text("elsewhere/deck.cfg", text.text, NULL, 0, &d, NULL);
  tap_ok(d != NULL && strcmp(d->model.from, real) == 0, "printed, it is the same from elsewhere");
  ts_deck_destroy(&d);
  ts_deck_read_text("elsewhere/deck.cfg", "train_batch_size = 4;", &set, 1, &d, NULL);
  tap_ok(d != NULL && strcmp(d->model.from, real) == 0, "a --set is not beside the deck");
  ts_deck_destroy(&d);
  ts_error err = {0};
  ts_deck_read_text("elsewhere/deck.cfg", "\nmodel = { from = \"regression\"; };", NULL, 0, &d, &err);
  tap_ok(d == NULL && strstr(err.text, "elsewhere/deck.cfg:2: model.from: ") != NULL &&
             strstr(err.text, "/elsewhere/regression/config.json: No such file") != NULL &&
             strstr(err.text, "regression is in the working directory: --set model.from=regression") != NULL,
         "what lies in the working directory alone is refused, with the way: %s", err.text);
  ts_error_clear(&err);
  ts_text_free(&text);
  free(real);
  ts_free(set);
  ts_free(name);
  ts_free(directory);
}

static void test_default_tokens(void) {
  ts_deck *d = read_model("config.json with its class's tokens",
                          "{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 1, \"n_positions\": 8,"
                          " \"vocab_size\": 256, \"bos_token_id\": 50256, \"eos_token_id\": 255}",
                          "");
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  tap_ok(d->model.bos_token_id == -1 && d->model.eos_token_id == 255 &&
             strstr(notes.text, "config.json: model.bos_token_id: 50256 is not below vocab_size 256: taken as none") &&
             strstr(notes.text, "eos_token_id") == NULL,
         "default tokens above the vocabulary are noted, and none");
  ts_text_free(&notes);
  ts_deck_destroy(&d);
}

/* generation_config.json's tokens, where it has some that the vocabulary has, else those of config.json. */
static void test_stop_tokens(void) {
  static const struct {
    const char *config, *generation, *more, *tokens; /* generation NULL: no such file; tokens: printed, or an error */
    bool good;
  } rows[] = {
      {"7", NULL, "", "stop_token_ids = []", true},
      {"[7, 9]", NULL, "", "stop_token_ids = [7, 9]", true},
      {"[900, 9]", NULL, "", "stop_token_ids = [9]", true},
      {"null", "{\"eos_token_id\": 5}", "", "stop_token_ids = [5]", true},
      {"7", "{\"eos_token_id\": [5, 300, -1, 6], \"top_k\": 50}", "", "stop_token_ids = [5, 6]", true},
      {"[7, 9]", "{\"eos_token_id\": null}", "", "stop_token_ids = [7, 9]", true},
      {"7", "{\"do_sample\": true}", "", "stop_token_ids = []", true},
      {"7", "{\"eos_token_id\": [5]}", "stop_token_ids = [1, 2];", "stop_token_ids = [1, 2]", true},
      {"7", NULL, "stop_token_ids = [256];", "model.stop_token_ids: 256 is not below vocab_size 256", false},
      {"7", "{\"eos_token_id\": \"five\"}", "",
       "generation_config.json: eos_token_id is neither a token nor a list of tokens", false},
      {"7", "{\"eos_token_id\": [[5]]}", "",
       "generation_config.json: eos_token_id is neither a token nor a list of tokens", false},
      {"7", "{\"eos_token_id\": ", "", "generation_config.json", false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *config = ts_format("{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 1,"
                             " \"n_positions\": 8, \"vocab_size\": 256, \"eos_token_id\": %s}",
                             rows[i].config);
    ts_free(fixture_file("config.json", config));
    char *generation = fixture_file("generation_config.json", rows[i].generation != NULL ? rows[i].generation : "");
    if (rows[i].generation == NULL) {
      TS_CHECK(unlink(generation) == 0, "%s", generation);
    }
    char *text = ts_format("model = { from = \"%s\"; %s };\ntrain_batch_size = 4;\n", tap_directory(), rows[i].more);
    ts_error err = {0};
    ts_deck *d = NULL;
    ts_text printed = {0};
    if (ts_deck_read_text("good.cfg", text, NULL, 0, &d, &err) == TS_OK) {
      ts_deck_print(d, &printed);
    }
    const char *found = rows[i].good ? printed.text : err.text;
    tap_ok(found != NULL && (d != NULL) == rows[i].good && strstr(found, rows[i].tokens) != NULL,
           "stop tokens of %s and %s: %s", rows[i].config, rows[i].generation != NULL ? rows[i].generation : "no file",
           rows[i].tokens);
    unlink(generation);
    ts_text_free(&printed);
    ts_error_clear(&err);
    ts_deck_destroy(&d);
    ts_free(generation);
    ts_free(config);
    ts_free(text);
  }
}

static void test_round_trip(void) {
  static const char *const more[] = {
      "",
      "data = { path = \"a \\\"b\\\" \\\\ \\n\\t\x01 end\"; }; frozen = [\"a|b\", \"\\\\.bias$\"];",
      "optimizer = { type = \"Adam\"; params = { lr = 3.3e-7; betas = (0, 0.1); torch_adam = true; };"
      " groups = ( { pattern = \"wte\"; lr_factor = 0.3; }, { pattern = \"h\"; frozen = true; } ); };",
      "scheduler = { type = \"OneCycle\"; params = { cycle_min_lr = 1e-5; cycle_max_lr = 0.1; "
      "cycle_second_step_size = 0; }; }; run = { seed = 9223372036854775807; };",
      "data = { packing = \"best_fit\"; sources = ( { path = \"a \\\"b\\\"\"; weight = 0.3; }, { path = \"c\"; "
      "format = \"hdf5\"; dataset = \"x/y\"; } ); };",
      "tensor_parallel = { autotp_size = 4; tp = { tp_size = 4; tp_grain_size = 64; }; tp_overlap_comm = true;"
      " vocab_parallel_lm_head = false; sequence_parallel = false; preset_model = \"PHI3\"; partition_config = {"
      " strict_mode = true; layer_specs = ( { patterns = \"a\\\\.b\"; shape = ((8), -1); model_types = (\"llama\"); },"
      " { patterns = [\"c\", \"d\"]; partition_type = \"Row\"; shape = (-1, (8, 4, 4)); gather_output = true; } ); };"
      " tp_plan = ( { pattern = \"layers.*.x\"; style = \"colwise\"; } ); }; sequence_parallel_size = 1;",
      "zero_optimization = { stage = 3; overlap_comm = false; }; communication_data_type = \"bf16\";"
      " gradient_clipping = 0; steps_per_print = 3; train_batch_size = 12;",
  };
  for (size_t i = 0; i < sizeof more / sizeof *more; ++i) {
    char *text = ts_format("%s%s", GOOD_DECK, more[i]);
    ts_text first = {0}, second = {0};
    ts_deck *d = fixture_read("deck", text, NULL);
    ts_deck_print(d, &first);
    ts_deck *again = fixture_read("printed deck", first.text, NULL);
    ts_deck_print(again, &second);
    tap_ok(strcmp(first.text, second.text) == 0 && strstr(first.text, "learning") == NULL, "deck %zu reads back", i);
    tap_ok(strcmp(d->data.path, again->data.path) == 0 && d->run.seed == again->run.seed &&
               d->optimizer.params.lr == again->optimizer.params.lr &&
               d->zero_optimization.overlap_comm == again->zero_optimization.overlap_comm &&
               d->optimizer.groups.n == again->optimizer.groups.n && d->data.sources.n == again->data.sources.n &&
               d->train_batch_size == again->train_batch_size,
           "deck %zu is the same", i);
    ts_deck_destroy(&d);
    ts_deck_destroy(&again);
    ts_text_free(&first);
    ts_text_free(&second);
    ts_free(text);
  }
}

/* Limits that nobody set are left out: read back they would be set, and a run could not take more. */
static void test_print_least(void) {
  ts_deck *d = fixture_read("deck", GOOD_DECK, "run.step_timeout=600");
  ts_text text = {0};
  ts_deck_print(d, &text);
  ts_deck *again = fixture_read("printed deck", text.text, NULL);
  tap_ok(ts_deck_is_set(again, "run.step_timeout") && again->run.step_timeout == 600,
         "a time limit that is set is printed");
  tap_ok(!ts_deck_is_set(again, "run.first_step_timeout") && again->run.first_step_timeout == 1800 &&
             !ts_deck_is_set(again, "run.peer_timeout") && again->run.peer_timeout == 1800,
         "one that is not is its default again");
  ts_text_free(&text);
  ts_deck_destroy(&d);
  ts_deck_destroy(&again);
}

static void value_is(const ts_deck *deck, const char *path, const char *expected) {
  char *value = ts_deck_value(deck, path);
  bool same = expected == NULL ? value == NULL : value != NULL && strcmp(value, expected) == 0;
  tap_ok(same, "%s is %s", path, value != NULL ? value : "not there");
  ts_free(value);
}

/* Lists of sections: as values, and as what differs between two decks. */
static void test_lists(void) {
  static const char *const ignored[] = {"run.", NULL};
  const char *text = GOOD_DECK "data = { sources = ( { path = \"a\"; }, { path = \"b\"; weight = 2.0; } ); };\n";
  ts_deck *before = fixture_read("sources", text, NULL),
          *now = fixture_read("others", text, "data.sources[1].weight=3");
  ts_text said = {0};
  ts_error err = {0};
  value_is(before, "data.sources[1].path", "\"b\"");
  value_is(before, "data.sources[0].weight", "1.0");
  value_is(before, "data.sources[2].path", NULL);
  value_is(before, "optimizer.groups[0].pattern", NULL);
  ts_deck_destroy(&before);
  before = fixture_read("sources of a format", text, "data.format=bin");
  value_is(before, "data.sources[1].format", "\"bin\"");
  ts_deck_destroy(&before);
  before = fixture_read("sources", text, NULL);
  value_is(before, "optimizer.groups", "()");
  value_is(now, "data.sources",
           "({ path = \"a\"; weight = 1.0; format = \"auto\"; dataset = \"tokens\"; field = \"text\"; completion_field "
           "= \"\"; }, "
           "{ path = \"b\"; weight = 3.0; format = \"auto\"; dataset = \"tokens\"; field = \"text\"; completion_field "
           "= \"\"; })");
  tap_ok(ts_deck_differences(before, before, "", ignored, &said) == 0, "a list is as itself");
  tap_ok(ts_deck_differences(before, now, "model.", ignored, &said) == 0 && said.length == 0,
         "elsewhere nothing differs");
  tap_ok(ts_deck_differences(before, now, "data.", ignored, &said) == 1 &&
             strncmp(said.text, "  data.sources: (", 17) == 0 &&
             strstr(said.text, "weight = 2.0; format = \"auto\"; dataset = \"tokens\"; field = \"text\"; "
                               "completion_field = \"\"; }), now ({") != NULL,
         "a list that differs is named once");
  tap_ok(ts_deck_error(now, "data.sources[1].path", &err, "x") == TS_BAD_INPUT &&
             strcmp(err.text, "good.cfg:4: data.sources[1].path: x") == 0,
         "what is wrong with an entry has its place");
  tap_ok(ts_deck_check_training(now, NULL) == TS_BAD_INPUT, "sources alone are no run");
  ts_error_clear(&err);
  tap_ok(ts_deck_check_training(now, &err) == TS_BAD_INPUT && strstr(err.text, "data.") == NULL,
         "sources are data to train on");
  ts_error_clear(&err);
  ts_text_free(&said);
  ts_deck_destroy(&before);
  ts_deck_destroy(&now);
}

/* The keys of tensor parallelism from a deck and, the same, from a json. */
static void test_tensor_parallel(void) {
  static const char *const specs =
      "({ patterns = [\"a\"]; partition_type = \"column\"; partition_dim = 0; shape = ((8, 4, 4), -1); model_types = "
      "[]; "
      "gather_output = false; }, { patterns = [\"b\", \"c\"]; partition_type = \"row\"; partition_dim = 1; shape = (); "
      "model_types = [\"llama\"]; gather_output = true; })";
  static const char *const texts[] = {
      "tensor_parallel = { autotp_size = 2; partition_config = { use_default_specs = false; layer_specs = ("
      "{ patterns = \"a\"; shape = ((8, 4, 4), -1); }, { patterns = (\"b\", \"c\"); partition_type = \"row\";"
      " model_types = [\"llama\"]; gather_output = true; grad_allreduce = true; } ); }; };\n",
      "{\"tensor_parallel\": {\"autotp_size\": 2, \"partition_config\": {\"use_default_specs\": false, \"layer_specs\":"
      " [{\"patterns\": \"a\", \"shape\": [[8, 4, 4], -1], \"partition_dim\": null}, {\"patterns\": [\"b\", \"c\"],"
      " \"partition_type\": \"row\", \"model_types\": [\"llama\"], \"gather_output\": true}]}}}"};
  ts_free(fixture_file("tp.json", texts[1]));
  for (int json = 0; json < 2; ++json) {
    char *more = json ? ts_format("deepspeed_config = \"%s/tp.json\";\n", tap_directory()) : ts_strdup(texts[0]);
    char *text = ts_format("%s%s", GOOD_DECK, more);
    ts_deck *d = fixture_read(json ? "tensor_parallel of a json" : "tensor_parallel", text, NULL);
    value_is(d, "tensor_parallel.partition_config.layer_specs", specs);
    value_is(d, "tensor_parallel.autotp_size", "2");
    value_is(d, "tensor_parallel.partition_config.use_default_specs", "false");
    value_is(d, "tensor_parallel.partition_config.strict_mode", "false");
    const ts_deck_view *shape = &d->tensor_parallel.partition_config.layer_specs.items[0].shape;
    tap_ok(shape->n == 2 && shape->items[0].sizes.n == 3 && shape->items[0].sizes.items[1] == 4 &&
               shape->items[1].sizes.n == 0 && shape->items[1].count == -1,
           "a shape has a list of sizes and a count");
    ts_deck_destroy(&d);
    ts_free(text);
    ts_free(more);
  }
  ts_deck *d = fixture_read("autotp_size 0", GOOD_DECK, "tensor_parallel={autotp_size=0;}");
  const ts_deck_tensor_parallel *tp = &d->tensor_parallel;
  tap_ok(tp->autotp_size == 1 && tp->tp.tp_size == 1 && tp->tp.tp_grain_size == 1 && !tp->tp_overlap_comm &&
             tp->vocab_parallel_lm_head && tp->sequence_parallel && strcmp(tp->preset_model, "none") == 0 &&
             tp->partition_config.use_default_specs && !tp->partition_config.strict_mode &&
             tp->partition_config.layer_specs.n == 0 && tp->tp_plan.n == 0,
         "autotp_size 0 is 1; defaults");
  ts_deck_destroy(&d);
  d = fixture_read("model_types", GOOD_DECK,
                   "tensor_parallel={partition_config={layer_specs=({patterns=\"a\";model_types=(\"lama\");},{patterns="
                   "\"b\";model_types=(\"lama\",\"LLAMA\",\"GPT2\");});};}");
  ts_text notes = {0};
  ts_deck_notes(d, &notes);
  ts_text_add(&notes, "%s", "");
  tap_ok(strstr(notes.text, "layer_specs[0]: not for a ") != NULL && strstr(notes.text, "layer_specs[1]") == NULL,
         "an entry for another model is told: %s", notes.text);
  ts_text_free(&notes);
  ts_deck_destroy(&d);
}

static void test_batch(void) {
  static const struct {
    int64_t batch, micro, steps, ranks, result[3];
    const char *error;
  } rows[] = {
      {32, 4, 2, 4, {32, 4, 2}, NULL},
      {32, 4, 0, 4, {32, 4, 2}, NULL},
      {32, 0, 2, 4, {32, 4, 2}, NULL},
      {0, 4, 2, 4, {32, 4, 2}, NULL},
      {32, 0, 0, 4, {32, 8, 1}, NULL},
      {0, 4, 0, 4, {16, 4, 1}, NULL},
      {32,
       4,
       2,
       3,
       {0},
       "train_batch_size: 32 != train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 2 x "
       "data-parallel size 3 = 24; leave out one of the three keys and it follows"},
      {32,
       5,
       0,
       3,
       {0},
       "32 is not a multiple of train_micro_batch_size_per_gpu 5 x data-parallel size 3 = 15; "
       "accepted: a multiple of 15, or other ranks (train_batch_size = train_micro_batch_size_per_gpu 5 x "
       "gradient_accumulation_steps x data-parallel size 3)"},
      {32,
       0,
       0,
       5,
       {0},
       "32 is not a multiple of gradient_accumulation_steps 1 (not given) x data-parallel size 5 = 5; "
       "accepted: a multiple of 5, or other ranks (train_batch_size = train_micro_batch_size_per_gpu x "
       "gradient_accumulation_steps 1 (not given) x data-parallel size 5)"},
      {0, 0, 3, 2, {0}, "train_batch_size: missing"},
      {0, INT64_C(1) << 31, INT64_C(1) << 31, 8, {0}, "= more than 64 bits hold"},
      {5, 1, 0, INT64_MAX, {0}, "5 is not a multiple"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck d = {.train_batch_size = rows[i].batch,
                 .train_micro_batch_size_per_gpu = rows[i].micro,
                 .gradient_accumulation_steps = rows[i].steps};
    ts_error err = {0};
    ts_status status = ts_deck_resolve_batch(&d, rows[i].ranks, &err);
    bool same = d.train_batch_size == rows[i].result[0] && d.train_micro_batch_size_per_gpu == rows[i].result[1] &&
                d.gradient_accumulation_steps == rows[i].result[2];
    bool untouched = d.train_batch_size == rows[i].batch && d.train_micro_batch_size_per_gpu == rows[i].micro &&
                     d.gradient_accumulation_steps == rows[i].steps;
    tap_ok(rows[i].error == NULL ? status == TS_OK && same
                                 : status == TS_BAD_INPUT && untouched && strstr(err.text, rows[i].error) != NULL,
           "batch %zu: %s", i, err.text != NULL ? err.text : "resolved");
    ts_error_clear(&err);
  }
}

static void test_manual(void) {
  ts_text text = {0}, man = {0};
  ts_deck_manual(&text, TS_DECK_TEXT);
  ts_deck_manual(&man, TS_DECK_MAN);
  int missing = 0, n = ts_key_count();
  for (int i = 0; i < n; ++i) {
    missing += strstr(text.text, ts_key_at(i)->path) == NULL;
  }
  tap_ok(missing == 0, "the manual has every row");
  tap_ok(strstr(text.text, "zero_optimization.stage  (integer, default 0)") != NULL &&
             strstr(text.text, "an integer from 0 to 3, \"auto\": 2 (Hugging Face's default of zero_stage).") != NULL &&
             strstr(text.text, "refused, not there yet: ") != NULL && strstr(text.text, "no effect: ") != NULL &&
             strstr(text.text, "refused, removed from DeepSpeed: ") != NULL,
         "with type, default, range and status");
  int lines = 0, titles = 0;
  for (const char *p = man.text; p != NULL && *p != '\0'; p = strchr(p, '\n') + 1) {
    ++lines;
    titles += strncmp(p, ".TP\n.B ", 7) == 0;
  }
  tap_ok(titles == n && lines == 3 * n, "the man page has an entry of three lines for each");
  ts_text_free(&text);
  ts_text_free(&man);
}

int main(void) {
  test_rows();
  test_deepspeed_keys();
  test_defaults();
  test_derived();
  test_adam();
  test_numbers();
  test_sets();
  test_switch();
  test_json();
  test_recomputation();
  test_sequence_keys();
  test_wire();
  test_long_samples();
  test_auto();
  test_auto_json();
  test_auto_large();
  test_epochs();
  test_auto_rules();
  test_auto_documented();
  test_relaxed_json();
  test_spellings();
  test_fp16();
  test_autocast();
  test_origins();
  test_bad_json();
  test_gpt2_config();
  test_llama_config();
  test_family_configs();
  test_from_path();
  test_default_tokens();
  test_stop_tokens();
  test_round_trip();
  test_print_least();
  test_lists();
  test_tensor_parallel();
  test_batch();
  test_manual();
  tap_ok(ts_memory_live() == 0, "nothing leaks (%lld live)", (long long) ts_memory_live());
  test_optimizer_notes();
  return tap_done();
}
