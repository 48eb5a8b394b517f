/* The MLP of a block. */
#include "base/memory.h"
#include "model/parts.h"

#include "ops/build.h"

#include <string.h>

ts_activation ts_model_activation(const ts_model_builder *b) {
  static const struct {
    const char *name;
    ts_activation kind;
  } rows[] = {{"silu", TS_ACTIVATION_SILU},
              {"swish", TS_ACTIVATION_SILU},
              {"gelu", TS_ACTIVATION_GELU},
              {"gelu_new", TS_ACTIVATION_GELU_TANH},
              {"gelu_fast", TS_ACTIVATION_GELU_TANH},
              {"gelu_pytorch_tanh", TS_ACTIVATION_GELU_TANH},
              {"relu", TS_ACTIVATION_RELU}};
  size_t i = 0;
  while (i < sizeof rows / sizeof *rows && strcmp(rows[i].name, b->model->hidden_act) != 0) {
    ++i;
  }
  TS_CHECK(i < sizeof rows / sizeof *rows, "there is no activation %s", b->model->hidden_act);
  bool tanh = b->family->gelu_is_tanh && rows[i].kind == TS_ACTIVATION_GELU;
  return tanh ? TS_ACTIVATION_GELU_TANH : rows[i].kind;
}

/* A name of the row's in an MLP that is called otherwise. */
static ts_model_name in_part(const ts_model_builder *b, const char *part, const char *name) {
  size_t n = strlen(b->family->mlp);
  TS_ASSERT(strncmp(name, b->family->mlp, n) == 0 && name[n] == '.');
  return ts_model_inside(part, name + n + 1);
}

/* Gate and up. */
static ts_tid gate(ts_model_builder *b, const char *part, ts_tid x, int64_t inner) {
  const ts_family *f = b->family;
  ts_tid both[2];
  if (f->gate_up != NULL) {
    ts_tid all = ts_model_project(b, in_part(b, part, f->gate_up).text, x, 2 * inner, f->mlp_bias);
    ts_model_name name = ts_model_name_of(b, ts_model_inside(part, "split").text);
    both[0] = ts_build_split(b->base.at, name.text, all, 1, 2, (int64_t[]){inner, inner});
    both[1] = both[0] + 1;
  } else {
    both[0] = ts_model_project(b, in_part(b, part, f->gate).text, x, inner, f->mlp_bias);
    both[1] = ts_model_project(b, in_part(b, part, f->up).text, x, inner, f->mlp_bias);
  }
  ts_model_name act = ts_model_name_of(b, ts_model_inside(part, "act").text);
  return ts_build_glu(b->base.at, act.text, both[0], both[1], ts_model_activation(b));
}

ts_tid ts_model_mlp(ts_model_builder *b, const char *part, ts_tid x, int64_t inner) {
  const ts_family *f = b->family;
  ts_tid y;
  if (f->gate != NULL || f->gate_up != NULL) {
    y = gate(b, part, x, inner);
  } else {
    y = ts_model_project(b, in_part(b, part, f->up).text, x, inner, f->mlp_bias);
    y = ts_build_activation(b->base.at, ts_model_name_of(b, ts_model_inside(part, "act").text).text, y,
                            ts_model_activation(b));
  }
  return ts_model_project(b, in_part(b, part, f->down).text, y, b->model->hidden_size, f->mlp_bias);
}
