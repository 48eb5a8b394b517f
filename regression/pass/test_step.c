/* The step's runs and slots: their order, where a micro-batch's values lie, and that simulator and verifier name what
 * is broken. */
#include "pass/lower.h"
#include "regression/pass/grid.h"
#include "regression/tap.h"
#include "run/simulate.h"

/* ---- order ---- */

/* "F0 F1 b0 B1 U1": forward, backward, backward and reduce, update; I and w, or W with what reduces, are halves. */
static char *spell(const ts_step_runs *step) {
  ts_text text = {0};
  for (int64_t i = 0; i < step->n; ++i) {
    ts_run run = ts_step_run(step, i);
    const ts_run_kind *kind = ts_step_kind(step, i);
    unsigned segments = kind->segments;
    bool inputs = (segments & TS_SEGMENT_BACKWARD_INPUT) != 0, weights = (segments & TS_SEGMENT_BACKWARD_WEIGHT) != 0;
    char letter = inputs && weights ? 'b' : inputs ? 'I' : 'w';
    letter = kind->phase == TS_RUN_FORWARD ? 'F' : kind->phase == TS_RUN_UPDATE ? 'U' : letter;
    letter = (segments & TS_SEGMENT_REDUCE) != 0 ? (char) (letter - 'a' + 'A') : letter;
    ts_text_add(&text, "%s%c%lld", i > 0 ? " " : "", letter, (long long) run.micro_batch);
  }
  return text.text;
}

static void test_order(void) {
  static const struct {
    ts_step_order order;
    int micro_batches, alive;
    const char *runs;
  } rows[] = {
      {{0}, 1, 1, "F0 B0 U0"},
      {{0}, 3, 1, "F0 b0 F1 b1 F2 B2 U2"},
      {{TS_PIPELINE_1F1B, 3, 0, 1}, 1, 1, "F0 B0 U0"},
      {{TS_PIPELINE_1F1B, 2, 0, 1}, 2, 2, "F0 F1 b0 B1 U1"},
      {{TS_PIPELINE_1F1B, 2, 0, 1}, 4, 2, "F0 F1 b0 F2 b1 F3 b2 B3 U3"},
      {{TS_PIPELINE_1F1B, 9, 0, 1}, 4, 4, "F0 F1 F2 F3 b0 b1 b2 B3 U3"},
      {{TS_PIPELINE_GPIPE, 9, 8, 1}, 4, 4, "F0 F1 F2 F3 b0 b1 b2 B3 U3"},
      {{TS_PIPELINE_ZB_H1, 1, 0, 1}, 2, 1, "F0 I0 w0 F1 I1 W1 U1"},
      {{TS_PIPELINE_ZB_H1, 2, 1, 1}, 3, 2, "F0 I0 F1 I1 w0 F2 I2 w1 W2 U2"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_step_runs step = ts_step_of(TS_MODEL_TRAIN, rows[i].micro_batches, &rows[i].order);
    char *runs = spell(&step);
    tap_ok(strcmp(runs, rows[i].runs) == 0 && ts_step_slots(&step) == rows[i].alive, "%d micro-batches, %d alive: %s",
           rows[i].micro_batches, ts_step_slots(&step), runs);
    ts_free(runs);
    ts_step_clear(&step);
  }
  ts_step_runs step = ts_step_of(TS_MODEL_LOGITS, 1, NULL);
  tap_ok(step.n == 1 && ts_step_slots(&step) == 1, "a generation is one run in one slot");
  ts_step_clear(&step);
}

/* Every micro-batch forward, then backward in its order, in a slot that is its own as long as it is alive. */
static bool is_sound(const ts_step_runs *step) {
  int64_t in_slot[16], next[3] = {0}; /* forwards, backwards of inputs, of weights */
  memset(in_slot, -1, sizeof in_slot);
  for (int64_t i = 0; i < step->n - 1; ++i) {
    ts_run run = ts_step_run(step, i);
    unsigned segments = ts_step_kind(step, i)->segments;
    bool forward = (segments & TS_SEGMENT_FORWARD) != 0, inputs = (segments & TS_SEGMENT_BACKWARD_INPUT) != 0;
    bool weights = (segments & TS_SEGMENT_BACKWARD_WEIGHT) != 0;
    if (ts_run_slot(run) < 0 || ts_run_slot(run) >= ts_step_slots(step) ||
        in_slot[ts_run_slot(run)] != (forward ? -1 : run.micro_batch) || (forward && run.micro_batch != next[0]++) ||
        (inputs && run.micro_batch != next[1]++) || (weights && run.micro_batch != next[2]++)) {
      return false;
    }
    in_slot[ts_run_slot(run)] = weights ? -1 : run.micro_batch;
  }
  ts_run last = ts_step_run(step, step->n - 1), before = ts_step_run(step, step->n - 2);
  return next[0] == step->micro_batches && next[1] == step->micro_batches && next[2] == step->micro_batches &&
         ts_run_slot(last) == ts_run_slot(before) && ts_step_kind(step, step->n - 1)->phase == TS_RUN_UPDATE &&
         (ts_step_kind(step, step->n - 2)->segments & TS_SEGMENT_REDUCE) != 0;
}

static void test_soundness(void) {
  static const ts_pipeline_schedule schedules[] = {TS_PIPELINE_GPIPE, TS_PIPELINE_1F1B, TS_PIPELINE_ZB_H1};
  int wrong = 0, cases = 0;
  for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
    for (int stages = 1; stages <= 14; ++stages) {
      for (int i = 0; i < 3 * stages; ++i, ++cases) {
        const ts_step_order order = {schedules[i % 3], stages, i / 3, 1};
        ts_step_runs step = ts_step_of(TS_MODEL_TRAIN, micro_batches, &order);
        wrong += !is_sound(&step);
        ts_step_clear(&step);
      }
    }
  }
  tap_ok(wrong == 0, "%d steps: each slot has one micro-batch at a time", cases);
}

/* ---- memory ---- */

#define STAGE(n) "gradient_accumulation_steps=4 zero_optimization.overlap_comm=true zero_optimization.stage=" #n
static const char *const stages[] = {STAGE(0),
                                     STAGE(1),
                                     STAGE(2),
                                     STAGE(3),
                                     STAGE(3) " zero_optimization.stage3_param_persistence_threshold=0",
                                     STAGE(2) " activation_checkpointing.enabled=true",
                                     STAGE(1) " bf16.enabled=true"};

static int64_t work(const grid *g) {
  return g->program[0]->plan->arena_bytes[TS_ARENA_WORK];
}

static grid alive(const char *text, const char *sets, int ranks, int n) {
  return make_grid_in_order(text, sets, ranks, TS_MODEL_TRAIN, (ts_step_order){TS_PIPELINE_1F1B, n, 0, 1});
}

/* With one slot nothing is apart; each further one costs what a micro-batch keeps and is given. */
static void test_plan(const char *name, const char *text, const char *sets) {
  grid one = make_grid(text, sets, 2, TS_MODEL_TRAIN), two = alive(text, sets, 2, 2), four = alive(text, sets, 2, 4);
  const ts_plan *a = one.program[0]->plan, *b = two.program[0]->plan, *c = four.program[0]->plan;
  int64_t slot = b->slot_bytes[TS_ARENA_SLOT], input = b->slot_bytes[TS_ARENA_INPUT];
  tap_ok(a->arena_bytes[TS_ARENA_SLOT] == 0 && a->arena_bytes[TS_ARENA_INPUT] == input && slot > 0 &&
             b->arena_bytes[TS_ARENA_SLOT] == 2 * slot && c->arena_bytes[TS_ARENA_SLOT] == 4 * slot,
         "%s, %s: a slot keeps %lld bytes", name, sets, (long long) slot);
  tap_ok(c->peak_bytes - b->peak_bytes == 2 * (slot + input) && work(&two) == work(&four) && work(&two) < work(&one),
         "%s, %s: another slot costs that and its inputs, scratch is shared", name, sets);
  free_grid(&one);
  free_grid(&two);
  free_grid(&four);
}

/* Four stages, four micro-batches, gradients of weights apart: of the first stage all four wait for their gradients,
 * which it takes at once; of the last the forward is followed by the backward of inputs, and gradients of weights wait.
 */
static void test_places(void) {
  static const int to_input[] = {4, 3, 2, 1}, to_weight[] = {1, 2, 3, 4};
  static const char *const recompute = STAGE(1) " activation_checkpointing.enabled=true";
  int64_t before = 0;
  for (int stage = 0; stage < 4; ++stage) {
    grid g = make_grid_in_order(llama, recompute, 2, TS_MODEL_TRAIN, (ts_step_order){TS_PIPELINE_ZB_H1, 4, stage, 1});
    const ts_step_runs *step = &g.program[0]->step;
    const ts_plan *plan = g.program[0]->plan;
    const int64_t *bytes = plan->slot_bytes, *all = plan->arena_bytes;
    int i = step->n_places[TS_LIFETIME_TO_INPUT], w = step->n_places[TS_LIFETIME_TO_WEIGHT];
    tap_ok(ts_step_slots(step) == 4 && i == to_input[stage] && w == to_weight[stage],
           "stage %d of 4: %d slots, %d places to the backward of inputs, %d to that of weights", stage,
           ts_step_slots(step), i, w);
    int64_t kept = all[TS_ARENA_SLOT] + all[TS_ARENA_TO_INPUT] + all[TS_ARENA_TO_WEIGHT];
    tap_ok(bytes[TS_ARENA_TO_INPUT] > 0 && bytes[TS_ARENA_TO_WEIGHT] > bytes[TS_ARENA_SLOT] &&
               all[TS_ARENA_TO_INPUT] == i * bytes[TS_ARENA_TO_INPUT] &&
               all[TS_ARENA_TO_WEIGHT] == w * bytes[TS_ARENA_TO_WEIGHT] && kept > before,
           "stage %d keeps %lld bytes", stage, (long long) kept);
    before = kept;
    free_grid(&g);
  }
}

/* Of units that are gathered (stage 3): on a pipeline once for all micro-batches, where a deck lets all be there at
 * once; else by each run that reads them, and never in a slot. */
static void test_gathers(void) {
  static const struct {
    const char *sets;
    ts_step_order order;
    int prepare, forward, backward;
  } rows[] = {{"", {TS_PIPELINE_1F1B, 4, 0, 1}, 5, 0, 0},
              {"", {TS_PIPELINE_ZB_H1, 4, 2, 1}, 5, 0, 0},
              {"", {0}, 0, 5, 0},
              {" zero_optimization.stage3_max_reuse_distance=0", {0}, 0, 5, 3},
              {" zero_optimization.stage3_max_live_parameters=100000", {TS_PIPELINE_1F1B, 4, 0, 1}, 0, 4, 4}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *sets = ts_format("%s zero_optimization.stage3_param_persistence_threshold=0%s", stages[3], rows[i].sets);
    grid g = make_grid_in_order(llama, sets, 2, TS_MODEL_TRAIN, rows[i].order);
    const ts_program *p = g.program[0];
    int n[3] = {0};
    bool in_slot = false, kept = false;
    for (ts_nid k = 0; k < p->graph->n_nodes; ++k) {
      const ts_node *node = &p->graph->node[k];
      if (node->op == TS_OP_ALL_GATHER && node->segment != TS_SEGMENT_UPDATE) {
        ts_arena arena = p->plan->address[node->out[0]].arena;
        ++n[node->segment == TS_SEGMENT_PREPARE ? 0 : node->segment == TS_SEGMENT_FORWARD ? 1 : 2];
        in_slot = in_slot || ts_lifetime_is_kept(ts_arenas[arena].lifetime);
        kept = kept || ts_arenas[arena].lifetime == TS_LIFETIME_STEP;
      }
    }
    tap_ok(n[0] == rows[i].prepare && n[1] == rows[i].forward && n[2] == rows[i].backward && !in_slot &&
               kept == (rows[i].prepare > 0),
           "%s%s: %d gathers a step, %d a forward, %d a backward", ts_pipeline_name(rows[i].order.schedule),
           rows[i].sets, n[0], n[1], n[2]);
    free_grid(&g);
    ts_free(sets);
  }
}

/* Of weights that are cast (torch_autocast) a pipeline makes one copy a step; none lies in a slot. */
static void test_casts(void) {
  grid g = make_grid(llama, "torch_autocast.enabled=true pipeline.stages=2 gradient_accumulation_steps=4", 2,
                     TS_MODEL_TRAIN);
  const ts_program *p = g.program[0];
  int once = 0, kept = 0;
  for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
    const ts_node *node = &p->graph->node[n];
    if (node->op == TS_OP_CAST && strstr(node->name, ".weight.bf16") != NULL) {
      once += node->segment == TS_SEGMENT_PREPARE;
      kept += ts_lifetime_is_kept(ts_arenas[p->plan->address[node->out[0]].arena].lifetime);
    }
  }
  tap_ok(once > 0 && kept == 0, "torch_autocast: %d weights are cast once a step, %d are kept in slots", once, kept);
  free_grid(&g);
}

/* ---- the simulator and the verifier ---- */

static char *simulate(const grid *g) {
  return ts_simulate_step((const ts_program *const *) g->program, g->ranks);
}

static char *verify_commands(const ts_program *p) {
  char *wrong = NULL;
  for (int kind = 0; kind < p->step.n_kinds && wrong == NULL; ++kind) {
    ts_lowered *commands = ts_lower(p->graph, p->schedule, p->plan, p->step.kind[kind].segments, 0);
    wrong = ts_lowered_verify(commands, p->graph, p->plan);
    ts_lowered_destroy(&commands);
  }
  return wrong;
}

static void test_clean(const char *name, const char *text, const char *sets) {
  static const ts_step_order orders[] = {{TS_PIPELINE_1F1B, 2, 0, 1},  {TS_PIPELINE_1F1B, 3, 0, 1},
                                         {TS_PIPELINE_GPIPE, 2, 1, 1}, {TS_PIPELINE_ZB_H1, 1, 0, 1},
                                         {TS_PIPELINE_ZB_H1, 3, 1, 1}, {TS_PIPELINE_ZB_H1, 4, 3, 1}};
  for (size_t i = 0; i < sizeof orders / sizeof *orders; ++i) {
    grid g = make_grid_in_order(text, sets, 4, TS_MODEL_TRAIN, orders[i]);
    char *fault = simulate(&g);
    fault = fault == NULL ? verify_commands(g.program[3]) : fault;
    tap_ok(fault == NULL, "%s, %s, %s %d of %d: %s", name, sets, ts_pipeline_name(orders[i].schedule), orders[i].stage,
           orders[i].stages, fault != NULL ? fault : "clean");
    ts_free(fault);
    free_grid(&g);
  }
}

/* All forwards before all backwards, as if each had a slot. */
static void in_slot(ts_program *p, int slot) {
  for (int64_t i = 0; i < p->step.n; ++i) {
    p->step.run[i].place[TS_LIFETIME_SLOT] = slot;
  }
}

/* The first two backwards the other way round: the second one's gradient would be overwritten. */
static void swap_backwards(ts_program *p) {
  ts_run *first = &p->step.run[p->step.micro_batches], second = first[1];
  first[1] = *first;
  *first = second;
}
/* One backward left out. */
static void skip_backward(ts_program *p) {
  const ts_step_runs in_turns = ts_step_of(TS_MODEL_TRAIN, p->step.micro_batches, NULL);
  TS_CHECK(in_turns.n == p->step.n, "as many runs in turns");
  for (int64_t i = 0; i < in_turns.n; ++i) {
    p->step.run[i] = ts_step_run(&in_turns, i);
  }
  p->step.run[1] = p->step.run[2];
}
static void break_order(ts_program *p) {
  in_slot(p, 0);
}
static void break_slot(ts_program *p) {
  in_slot(p, ts_step_slots(&p->step));
}
/* Gradients of weights before those of inputs. */
static void turn_halves(ts_program *p) {
  ts_run *run = p->step.run;
  while (ts_step_kind(&p->step, run - p->step.run)->segments != TS_SEGMENT_BACKWARD_INPUT ||
         ts_step_kind(&p->step, run + 1 - p->step.run)->segments != TS_SEGMENT_BACKWARD_WEIGHT) {
    ++run;
  }
  ts_run weights = run[1];
  run[1] = *run;
  *run = weights;
}
/* The first forward is as the others, and gathers nothing. */
static void forget_gathers(ts_program *p) {
  int kind = 0;
  while (p->step.kind[kind].segments != TS_SEGMENT_FORWARD) {
    ++kind;
  }
  p->step.run[0].kind = kind;
}
static void share_place(ts_program *p, ts_lifetime lifetime) {
  for (int64_t i = 0; i < p->step.n; ++i) {
    p->step.run[i].place[lifetime] = 0;
  }
}
static void share_to_input(ts_program *p) {
  share_place(p, TS_LIFETIME_TO_INPUT);
}
static void share_to_weight(ts_program *p) {
  share_place(p, TS_LIFETIME_TO_WEIGHT);
}
static void bring_closer(ts_program *p) {
  p->plan->slot_bytes[TS_ARENA_SLOT] -= TS_PLAN_ALIGN;
}
static void forget_slots(ts_program *p) {
  p->plan->arena_bytes[TS_ARENA_SLOT] = p->plan->slot_bytes[TS_ARENA_SLOT];
}
static void bring_inputs_closer(ts_program *p) {
  p->plan->slot_bytes[TS_ARENA_INPUT] -= TS_PLAN_ALIGN;
}

/* What the first norm keeps for its backward is scratch. */
static void keep_in_scratch(ts_program *p) {
  for (ts_tid t = 0; t < p->graph->n_tensors; ++t) {
    if (strstr(p->graph->tensor[t].name, "input_layernorm:1") != NULL) {
      p->plan->address[t] = (ts_address){TS_ARENA_WORK, 0};
      return;
    }
  }
  TS_CHECK(false, "no norm keeps anything");
}

static void test_faults(void) {
  static const struct {
    const char *what;
    void (*damage)(ts_program *program);
    const char *expect[2];
    bool commands; /* the verifier sees it too */
    ts_step_order order;
  } rows[] = {
      {"two micro-batches in one slot", break_order, {"rank 1:", "finds micro-batch 0 in slot 0"}, false, {0}},
      {"a slot that is not there", break_slot, {"rank 1:", "is in slot 4 of 4"}, false, {0}},
      {"backwards out of order", swap_backwards, {"rank 1:", "of micro-batch 1 where that of 0 is due"}, false, {0}},
      {"a backward left out", skip_backward, {"rank 1:", "finds micro-batch 0 in slot 0"}, false, {0}},
      {"an arena for one slot", forget_slots, {"rank 1:", "lies outside the slot arena"}, false, {0}},
      {"slots that overlap", bring_closer, {"rank 1:", "lies outside the slot arena"}, true, {0}},
      {"inputs that overlap", bring_inputs_closer, {"rank 1:", "lies outside the input arena"}, true, {0}},
      {"halves the other way round",
       turn_halves,
       {"rank 1:", "finds micro-batch -1 in place to backward of weights 0"},
       false,
       {TS_PIPELINE_ZB_H1, 1, 0, 1}},
      {"a first forward that gathers nothing",
       forget_gathers,
       {"rank 1:", "model.embed_tokens.weight before it is made"},
       false,
       {TS_PIPELINE_1F1B, 4, 0, 1}},
      {"one place for all to the backward of inputs",
       share_to_input,
       {"rank 1:", "finds micro-batch 0 in place to backward of inputs 0"},
       false,
       {TS_PIPELINE_ZB_H1, 4, 0, 1}},
      {"one place for all to the backward of weights",
       share_to_weight,
       {"rank 1:", "finds micro-batch 0 in place to backward of weights 0"},
       false,
       {TS_PIPELINE_ZB_H1, 4, 3, 1}},
      {"a kept value among the scratch",
       keep_in_scratch,
       {"rank 1:", "input_layernorm:1 before it is made"},
       false,
       {0}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    const ts_step_order four = {TS_PIPELINE_1F1B, 4, 0, 1};
    const char *sets = rows[i].damage == forget_gathers ? stages[4] : STAGE(2);
    grid g = make_grid_in_order(llama, sets, 2, TS_MODEL_TRAIN, rows[i].order.stages > 0 ? rows[i].order : four);
    rows[i].damage(g.program[1]);
    char *fault = simulate(&g), *wrong = verify_commands(g.program[1]);
    bool named = fault != NULL && strstr(fault, rows[i].expect[0]) && strstr(fault, rows[i].expect[1]);
    tap_ok(named, "%s: %s", rows[i].what, fault != NULL ? fault : "not found");
    tap_ok(!rows[i].commands || (wrong != NULL && strstr(wrong, "of which a place has")), "%s, as commands: %s",
           rows[i].what, wrong != NULL ? wrong : "not found");
    ts_free(fault);
    ts_free(wrong);
    free_grid(&g);
  }
}

int main(void) {
  test_order();
  test_soundness();
  for (size_t i = 0; i < sizeof stages / sizeof *stages; ++i) {
    test_plan("llama", llama, stages[i]);
    test_plan("gpt2", gpt2, stages[i]);
    test_clean("llama", llama, stages[i]);
    test_clean("gpt2", gpt2, stages[i]);
  }
  test_places();
  test_gathers();
  test_casts();
  test_faults();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
