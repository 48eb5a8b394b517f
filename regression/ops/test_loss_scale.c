/* How a loss scale changes, step by step: the op against DeepSpeed's DynamicLossScaler and torch's GradScaler
 * (regression/golden/loss_scale.txt, made by make_loss_scale.py). */
#include "graph/record.h"
#include "regression/backends.h"
#include "regression/kernel_run.h"
#include "regression/tap.h"

enum { STEPS = 50, LINE = 4096 };

typedef struct sequence {
  ts_loss_scaler scaler;
  char overflow[STEPS + 1];
  double scale[STEPS]; /* after each step; -1: stuck */
  int n;
} sequence;

static bool read_sequence(char *line, sequence *s) {
  char rule[16], consecutive, *at;
  long long window, hysteresis;
  int begin = 0;
  *s = (sequence){0};
  if (sscanf(line, "%15s %lf %lld %lld %c %lf : %50[01] :%n", rule, &s->scaler.initial, &window, &hysteresis,
             &consecutive, &s->scaler.minimum, s->overflow, &begin) != 7) {
    return false;
  }
  s->scaler.rule = strcmp(rule, "torch") == 0 ? TS_LOSS_SCALE_TORCH : TS_LOSS_SCALE_DYNAMIC;
  s->scaler.window = window;
  s->scaler.hysteresis = hysteresis;
  s->scaler.consecutive = consecutive == '1';
  for (char *word = strtok_r(line + begin, " \n", &at); word != NULL; word = strtok_r(NULL, " \n", &at)) {
    double before = s->n > 0 ? s->scale[s->n - 1] : s->scaler.initial;
    s->scale[s->n++] = strcmp(word, ".") == 0 ? before : strcmp(word, "stuck") == 0 ? -1 : strtod(word, NULL);
  }
  return s->n == (int) strlen(s->overflow);
}

/* One step. */
static void update(const ts_backend *set, const ts_loss_scaler *scaler, double state[TS_LOSS_SCALE_SIZE],
                   double summary[TS_SUMMARY_SIZE]) {
  run_case c = {.op = TS_OP_UPDATE_LOSS_SCALE, .attr.loss_scaler = *scaler, .n_in = 2, .n_out = 2, .threads = 1};
  c.in[0] = c.out[0] = (run_tensor){TS_F64, TS_SHAPE(TS_LOSS_SCALE_SIZE), state};
  c.in[1] = c.out[1] = (run_tensor){TS_F64, TS_SHAPE(TS_SUMMARY_SIZE), summary};
  run_kernel(set, &c);
}

/* The step where it goes otherwise, or -1. */
static int first_difference(const ts_backend *set, const sequence *s) {
  double state[TS_LOSS_SCALE_SIZE];
  ts_loss_scale_begin(&s->scaler, state);
  for (int i = 0; i < s->n; ++i) {
    double used = state[TS_LOSS_SCALE];
    double summary[TS_SUMMARY_SIZE] = {
        [TS_SUMMARY_VALID] = 5, [TS_SUMMARY_OVERFLOW] = s->overflow[i] == '1', [TS_SUMMARY_SCALE] = used};
    update(set, &s->scaler, state, summary);
    bool stuck = summary[TS_SUMMARY_STUCK] != 0, same = state[TS_LOSS_SCALE] == (stuck ? used : s->scale[i]);
    if (!same || stuck != (s->scale[i] < 0) || summary[TS_SUMMARY_NEXT_SCALE] != state[TS_LOSS_SCALE]) {
      return i;
    }
    summary[TS_SUMMARY_VALID] = 0; /* a step without a label between two others */
    double before[TS_LOSS_SCALE_SIZE];
    memcpy(before, state, sizeof before);
    update(set, &s->scaler, state, summary);
    if (memcmp(before, state, sizeof before) != 0) {
      return i;
    }
  }
  return -1;
}

static void test_golden(const ts_backend *set) {
  FILE *file = fopen(tap_path("regression/golden/loss_scale.txt"), "r");
  TS_CHECK(file != NULL, "no golden");
  char line[LINE];
  int n = 0, stuck = 0, torch = 0, wrong = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    sequence s;
    TS_CHECK(read_sequence(line, &s), "line %d of the golden", n + 1);
    int at = first_difference(set, &s);
    if (at >= 0) {
      tap_note("line %d goes otherwise at step %d", n + 1, at + 1);
    }
    wrong += at >= 0;
    stuck += s.scale[s.n - 1] < 0;
    torch += s.scaler.rule == TS_LOSS_SCALE_TORCH;
    ++n;
  }
  fclose(file);
  tap_ok(wrong == 0 && n - torch == 72 && torch == 18 && stuck > 20,
         "%s: %d sequences as DeepSpeed's, of which %d end at the minimum, and %d as torch's", set->name, n - torch,
         stuck, torch);
}

static void test_static(const ts_backend *set) {
  const ts_loss_scaler scaler = {.rule = TS_LOSS_SCALE_STATIC, .initial = 300, .minimum = 1, .window = 1};
  double state[TS_LOSS_SCALE_SIZE];
  bool same = true;
  ts_loss_scale_begin(&scaler, state);
  for (int i = 0; i < 20; ++i) {
    double summary[TS_SUMMARY_SIZE] = {[TS_SUMMARY_VALID] = 5, [TS_SUMMARY_OVERFLOW] = i % 3 > 0};
    update(set, &scaler, state, summary);
    same = same && state[TS_LOSS_SCALE] == 300 && summary[TS_SUMMARY_STUCK] == 0;
  }
  tap_ok(same && !ts_loss_scale_is_searching(&scaler, 300), "%s: a static scale stays", set->name);
}

/* What counts as a run that finds its scale, and what as one that is not finite. */
static void test_searching(void) {
  const ts_loss_scaler dynamic = {.rule = TS_LOSS_SCALE_DYNAMIC, .minimum = 1}, torch = ts_loss_scaler_torch();
  tap_ok(ts_loss_scale_is_searching(&dynamic, 65536) && ts_loss_scale_is_searching(&torch, 2) &&
             !ts_loss_scale_is_searching(&torch, 1),
         "overflows are handled by a scale that can be made smaller");
  tap_ok(torch.initial == 65536 && torch.window == 2000, "GradScaler's defaults");
}

int main(void) {
  const ts_backend *backend = test_backend();
  test_golden(backend);
  test_static(backend);
  test_searching();
  test_backend_close();
  return tap_done();
}
