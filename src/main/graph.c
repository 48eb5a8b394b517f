/* tessera graph: the graph after a pass. */
#include "base/memory.h"
#include "main/command.h"
#include "pass/lower.h"
#include "run/cuts.h"
#include "run/program.h"

#include <string.h>

typedef struct name_row {
  const char *name;
  int value;
} name_row;

enum { COMMANDS = -1 }; /* of the graph in the end: what the queues of a GPU are given */
static const name_row formats[] = {
    {"text", TS_GRAPH_TEXT}, {"dot", TS_GRAPH_DOT}, {"json", TS_GRAPH_JSON}, {"commands", COMMANDS}, {NULL, 0}};
static const name_row uses[] = {
    {"train", TS_MODEL_TRAIN}, {"loss", TS_MODEL_LOSS}, {"logits", TS_MODEL_LOGITS}, {NULL, 0}};

static ts_status choose_by_name(const ts_arguments *arguments, const char *option, const name_row *rows, int *value,
                                ts_error *err) {
  const char *name = ts_argument(arguments, option);
  ts_text list = {0};
  for (const name_row *r = rows; r->name != NULL; ++r) {
    if (strcmp(r->name, name) == 0) {
      *value = r->value;
      ts_text_free(&list);
      return TS_OK;
    }
    ts_text_add(&list, list.length > 0 ? ", %s" : "%s", r->name);
  }
  ts_status status = ts_error_add(err, "%s %s: accepted are %s", option, name, list.text);
  ts_text_free(&list);
  return status;
}

static ts_status check_pass(const char *name, ts_error *err) {
  ts_text list = {0};
  for (const ts_pass *p = ts_passes; p->name != NULL; ++p) {
    if (name == NULL || strcmp(p->name, name) == 0) {
      ts_text_free(&list);
      return TS_OK;
    }
    ts_text_add(&list, list.length > 0 ? ", %s" : "%s", p->name);
  }
  ts_status status = ts_error_add(err, "--pass %s: the passes are %s", name, list.text);
  ts_text_free(&list);
  return status;
}

/* The commands of a kind of runs, verified. */
static void add_commands_of(const ts_program *p, int run, int chunk, ts_text *to) {
  const ts_run_kind *kind = &p->step.kind[run];
  ts_lowered *commands = ts_lower(p->graph, p->schedule, p->plan, kind->segments, chunk);
  char *wrong = ts_lowered_verify(commands, p->graph, p->plan);
  TS_CHECK(wrong == NULL, "%s: %s", kind->title, wrong);
  ts_text_add(to, p->graph->chunk != NULL ? "# %s of chunk %d\n" : "# %s\n", kind->name, chunk);
  ts_lowered_dump(commands, p->graph, to);
  ts_lowered_destroy(&commands);
}

/* Of every kind of runs of the step. */
static void add_commands(const ts_program *p, ts_text *to) {
  for (int chunk = 0; chunk < ts_graph_chunks(p->graph); ++chunk) {
    for (int i = 0; i < p->step.n_kinds; ++i) {
      if (ts_step_has(&p->step, i)) {
        add_commands_of(p, i, chunk, to);
      }
    }
  }
}

int ts_main_graph(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  int64_t ranks = 1, rank = 0;
  int format = 0, use = 0;
  ts_deck *deck = NULL;
  ts_mesh mesh;
  const ts_backend *backend;
  const char *pass = ts_argument(arguments, "--pass");
  ts_status status = choose_by_name(arguments, "--format", formats, &format, err);
  status = status == TS_OK ? choose_by_name(arguments, "--use", uses, &use, err) : status;
  status = status == TS_OK ? check_pass(pass, err) : status;
  status = status == TS_OK ? ts_argument_int(arguments, "--ranks", 1, 1 << 20, &ranks, err) : status;
  status = status == TS_OK ? ts_argument_int(arguments, "--rank", 0, ranks - 1, &rank, err) : status;
  status = status == TS_OK ? ts_read_deck(arguments, NULL, &deck, err) : status;
  status = status == TS_OK ? ts_deck_mesh(deck, (int) ranks, (int) rank, &mesh, err) : status;
  status = status == TS_OK ? ts_deck_resolve_batch(deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), err) : status;
  status = status == TS_OK ? ts_engine_choose_target(ts_argument(arguments, "--target"), deck, &backend, err) : status;
  if (status == TS_OK && format == COMMANDS && pass != NULL) {
    status = ts_error_add(err, "--format commands: is of the graph after all passes; leave out --pass");
  }
  ts_program_options options = {.deck = deck, .mesh = &mesh, .use = (ts_model_use) use, .last_pass = pass};
  if (status == TS_OK) {
    options.target = (ts_target){backend, ts_engine_threads(deck, mesh.ranks), ts_engine_cudnn_use(deck, backend)};
    options.batch = use == TS_MODEL_LOGITS ? 1 : deck->train_micro_batch_size_per_gpu;
    options.length = use == TS_MODEL_LOGITS ? 1 : deck->data.sequence_length;
    options.context = deck->data.sequence_length;
    status = ts_program_check(&options, err);
    status = status == TS_OK ? ts_cuts_decide(&options, deck, 0, err) : status;
  }
  if (status == TS_OK) {
    ts_program *program = ts_program_create(&options);
    ts_text text = {0};
    if (format == COMMANDS) {
      add_commands(program, &text);
    } else {
      ts_graph_dump(program->graph, (ts_graph_format) format, &text);
    }
    fputs(text.text, stdout);
    ts_text_free(&text);
    ts_program_destroy(&program);
  }
  ts_deck_destroy(&deck);
  return status;
}
