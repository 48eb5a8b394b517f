#include "run/program.h"

#include "base/memory.h"

ts_status ts_deck_mesh(const ts_deck *deck, int ranks, int rank, ts_mesh *mesh, ts_error *err) {
  const int size[TS_N_AXES] = {(int) deck->pipeline.stages, 0, (int) deck->expert_parallel.autoep_size,
                               (int) deck->sequence_parallel_size, (int) deck->tensor_parallel.autotp_size};
  return ts_mesh_init(mesh, size, ranks, rank, err);
}

ts_program *ts_program_create(const ts_program_options *o) {
  ts_program *program = ts_calloc(1, sizeof *program);
  program->use = o->use;
  program->batch = o->batch;
  program->length = o->length;
  program->deck = o->deck;
  program->mesh = *o->mesh;
  program->target = o->target;
  program->owns_layout = o->layout == NULL;
  program->graph = ts_model_build(o->deck, o->use, o->batch, o->length);
  ts_pass_context context = {
      .deck = o->deck, .mesh = &program->mesh, .target = o->target, .use = o->use, .layout = (ts_layout *) o->layout};
  ts_passes_run(&program->graph, &context, o->last_pass, o->observer, o->observer_user);
  program->layout = context.layout;
  program->schedule = context.schedule;
  program->plan = context.plan;
  return program;
}

void ts_program_destroy(ts_program **program) {
  ts_program *p = *program;
  if (p == NULL) {
    return;
  }
  ts_graph_destroy(&p->graph);
  if (p->owns_layout) {
    ts_layout_destroy(&p->layout);
  }
  ts_schedule_destroy(&p->schedule);
  ts_plan_destroy(&p->plan);
  ts_free(p);
  *program = NULL;
}

/* Parameters in matrix products per token: every matrix but the tables that are only looked up. */
static double product_parameters(const ts_deck_model *m) {
  double c = (double) m->hidden_size, heads = (double) (m->num_attention_heads * m->head_dim),
         kv = (double) (m->num_key_value_heads * m->head_dim), inner = (double) m->intermediate_size;
  bool gated = m->hidden_act[0] == 's'; /* silu: gate and up */
  double block = c * heads + 2 * c * kv + heads * c + (gated ? 3 : 2) * c * inner;
  return block * (double) m->num_hidden_layers + c * (double) m->vocab_size;
}

double ts_program_model_flops(const ts_program *program, double *full_attention) {
  const ts_deck_model *m = &program->deck->model;
  double tokens = (double) (program->batch * program->length), n = product_parameters(m);
  double attention =
      (double) m->num_hidden_layers * (double) (m->num_attention_heads * m->head_dim) * (double) program->length;
  double passes = program->use == TS_MODEL_TRAIN ? 3 : 1; /* forward, and twice as much backward */
  if (full_attention != NULL) {
    *full_attention = passes * tokens * (2 * n + 4 * attention);
  }
  return passes * tokens * (2 * n + 2 * attention);
}
