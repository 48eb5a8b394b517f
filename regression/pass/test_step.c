/* The step's runs and slots: their order, where a micro-batch's values lie, and that simulator and verifier name what
 * is broken. */
#include "pass/lower.h"
#include "regression/pass/grid.h"
#include "regression/tap.h"
#include "run/simulate.h"

/* ---- order ---- */

/* "F0 F1 b0 B1 U1": forward, backward, backward and reduce, update. */
static char *spell(const ts_step_runs *step) {
  ts_text text = {0};
  for (int64_t i = 0; i < step->n; ++i) {
    ts_run run = ts_step_run(step, i);
    const ts_run_kind *kind = ts_step_kind(step, i);
    bool reduces = (kind->segments & TS_SEGMENT_REDUCE) != 0;
    char letter = kind->phase == TS_RUN_FORWARD ? 'F' : kind->phase == TS_RUN_UPDATE ? 'U' : reduces ? 'B' : 'b';
    ts_text_add(&text, "%s%c%lld", i > 0 ? " " : "", letter, (long long) run.micro_batch);
  }
  return text.text;
}

static void test_order(void) {
  static const struct {
    int micro_batches, slots;
    const char *order;
  } rows[] = {
      {1, 1, "F0 B0 U0"},
      {1, 3, "F0 B0 U0"},
      {3, 1, "F0 b0 F1 b1 F2 B2 U2"},
      {2, 2, "F0 F1 b0 B1 U1"},
      {4, 2, "F0 F1 b0 F2 b1 F3 b2 B3 U3"},
      {4, 4, "F0 F1 F2 F3 b0 b1 b2 B3 U3"},
      {4, 9, "F0 F1 F2 F3 b0 b1 b2 B3 U3"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_step_runs step = ts_step_of(TS_MODEL_TRAIN, rows[i].micro_batches, rows[i].slots);
    char *order = spell(&step);
    tap_ok(strcmp(order, rows[i].order) == 0, "%d micro-batches, %d alive: %s", rows[i].micro_batches, rows[i].slots,
           order);
    ts_free(order);
  }
  ts_step_runs step = ts_step_of(TS_MODEL_LOGITS, 1, 4);
  tap_ok(step.n == 1 && step.n_slots == 1, "a generation is one run in one slot");
}

/* Every micro-batch forward, then backward in its order, in a slot that is its own as long as it is alive. */
static bool is_sound(const ts_step_runs *step) {
  int64_t in_slot[16], next_forward = 0, next_backward = 0;
  memset(in_slot, -1, sizeof in_slot);
  for (int64_t i = 0; i < step->n - 1; ++i) {
    ts_run run = ts_step_run(step, i);
    if (run.slot < 0 || run.slot >= step->n_slots) {
      return false;
    }
    bool forward = ts_step_kind(step, i)->phase == TS_RUN_FORWARD;
    if (in_slot[run.slot] != (forward ? -1 : run.micro_batch) ||
        run.micro_batch != (forward ? next_forward++ : next_backward++)) {
      return false;
    }
    in_slot[run.slot] = forward ? run.micro_batch : -1;
  }
  ts_run last = ts_step_run(step, step->n - 1), before = ts_step_run(step, step->n - 2);
  return next_forward == step->micro_batches && next_backward == step->micro_batches && last.slot == before.slot &&
         ts_step_kind(step, step->n - 1)->phase == TS_RUN_UPDATE &&
         (ts_step_kind(step, step->n - 2)->segments & TS_SEGMENT_REDUCE) != 0;
}

static void test_soundness(void) {
  int wrong = 0, cases = 0;
  for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
    for (int slots = 1; slots <= 14; ++slots, ++cases) {
      ts_step_runs step = ts_step_of(TS_MODEL_TRAIN, micro_batches, slots);
      wrong += step.n_slots != (slots < micro_batches ? slots : micro_batches) || !is_sound(&step);
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

/* With one slot nothing is apart; each further one costs what a micro-batch keeps and is given. */
static void test_plan(const char *name, const char *text, const char *sets) {
  grid one = make_grid_of_slots(text, sets, 2, TS_MODEL_TRAIN, 1),
       two = make_grid_of_slots(text, sets, 2, TS_MODEL_TRAIN, 2);
  grid four = make_grid_of_slots(text, sets, 2, TS_MODEL_TRAIN, 4);
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

/* ---- the simulator and the verifier ---- */

static char *simulate(const grid *g) {
  return ts_simulate_step((const ts_program *const *) g->program, g->ranks);
}

static char *verify_commands(const ts_program *p) {
  char *wrong = NULL;
  for (int kind = 0; kind < p->step.n_kinds && wrong == NULL; ++kind) {
    ts_lowered *commands = ts_lower(p->graph, p->schedule, p->step.kind[kind].segments);
    wrong = ts_lowered_verify(commands, p->graph, p->plan);
    ts_lowered_destroy(&commands);
  }
  return wrong;
}

static void test_clean(const char *name, const char *text, const char *sets) {
  for (int slots = 2; slots <= 4; ++slots) {
    grid g = make_grid_of_slots(text, sets, 4, TS_MODEL_TRAIN, slots);
    char *fault = simulate(&g);
    fault = fault == NULL ? verify_commands(g.program[3]) : fault;
    tap_ok(fault == NULL, "%s, %s, %d alive: %s", name, sets, slots, fault != NULL ? fault : "clean");
    ts_free(fault);
    free_grid(&g);
  }
}

/* All forwards before all backwards, as if each had a slot. */
static ts_run in_one_slot(const ts_step_runs *step, int64_t i) {
  ts_step_runs all = ts_step_of(TS_MODEL_TRAIN, step->micro_batches, (int) step->micro_batches);
  ts_run run = ts_step_run(&all, i);
  run.slot = 0;
  return run;
}

static ts_run beyond(const ts_step_runs *step, int64_t i) {
  ts_run run = in_one_slot(step, i);
  run.slot = step->n_slots;
  return run;
}

/* The first two backwards the other way round: the second one's gradient would be overwritten. */
static ts_run swapped(const ts_step_runs *step, int64_t i) {
  ts_step_runs all = ts_step_of(TS_MODEL_TRAIN, step->micro_batches, (int) step->micro_batches);
  int64_t first = step->micro_batches;
  return ts_step_run(&all, i == first ? i + 1 : i == first + 1 ? i - 1 : i);
}

/* One backward left out. */
static ts_run skipping(const ts_step_runs *step, int64_t i) {
  ts_step_runs all = ts_step_of(TS_MODEL_TRAIN, step->micro_batches, 1);
  return ts_step_run(&all, i == 1 ? 2 : i);
}

static void swap_backwards(ts_program *p) {
  p->step.at = swapped;
}
static void skip_backward(ts_program *p) {
  p->step.at = skipping;
}
static void break_order(ts_program *p) {
  p->step.at = in_one_slot;
}
static void break_slot(ts_program *p) {
  p->step.at = beyond;
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
  } rows[] = {
      {"two micro-batches in one slot", break_order, {"rank 1:", "finds micro-batch 0 in slot 0"}, false},
      {"a slot that is not there", break_slot, {"rank 1:", "is in slot 4 of 4"}, false},
      {"backwards out of order", swap_backwards, {"rank 1:", "of micro-batch 1 where that of 0 is due"}, false},
      {"a backward left out", skip_backward, {"rank 1:", "finds micro-batch 0 in slot 0"}, false},
      {"an arena for one slot", forget_slots, {"rank 1:", "lies outside the slot arena"}, false},
      {"slots that overlap", bring_closer, {"rank 1:", "lies outside the slot arena"}, true},
      {"inputs that overlap", bring_inputs_closer, {"rank 1:", "lies outside the input arena"}, true},
      {"a kept value among the scratch", keep_in_scratch, {"rank 1:", "input_layernorm:1 before it is made"}, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    grid g = make_grid_of_slots(llama, STAGE(2), 2, TS_MODEL_TRAIN, 4);
    rows[i].damage(g.program[1]);
    char *fault = simulate(&g), *wrong = verify_commands(g.program[1]);
    bool named = fault != NULL && strstr(fault, rows[i].expect[0]) && strstr(fault, rows[i].expect[1]);
    tap_ok(named, "%s: %s", rows[i].what, fault != NULL ? fault : "not found");
    tap_ok(!rows[i].commands || (wrong != NULL && strstr(wrong, "of which a slot has")), "%s, as commands: %s",
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
  test_faults();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
