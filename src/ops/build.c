#include "ops/build.h"

#include "base/memory.h"

#include <string.h>

static ts_tid build_node(ts_site at, ts_op op, const char *name, int n_in, const ts_tid *in, ts_attr attr) {
  return ts_graph_add(at, &(ts_node){.op = op, .name = name, .n_in = n_in, .in = in, .attr = attr, .beta = TS_NONE});
}

#define INPUTS(...)                                                            \
  (int) (sizeof((ts_tid[]){__VA_ARGS__}) / sizeof(ts_tid)), (const ts_tid[]) { \
    __VA_ARGS__                                                                \
  }

ts_tid ts_build(ts_site at, ts_op op, const char *name, int n_in, const ts_tid *in) {
  return build_node(at, op, name, n_in, in, (ts_attr){0});
}

ts_tid ts_build_load(ts_site at, const char *name, ts_tid x, ts_space to) {
  return build_node(at, TS_OP_LOAD, name, INPUTS(x), (ts_attr){.copy = {to}});
}

ts_tid ts_build_view(ts_site at, const char *name, ts_tid x, int64_t offset, ts_shape shape) {
  return build_node(at, TS_OP_VIEW, name, INPUTS(x), (ts_attr){.view = {offset, shape}});
}

ts_tid ts_build_pack(ts_site at, const char *name, int n, const ts_tid *x, const int64_t *offset, int64_t count) {
  return build_node(at, TS_OP_PACK, name, n, x, (ts_attr){.pack = {.offset = offset, .count = count}});
}

ts_tid ts_build_room(ts_site at, const char *name, ts_dtype dtype, int64_t count) {
  return build_node(at, TS_OP_PACK, name, 0, NULL, (ts_attr){.pack = {.count = count, .dtype = dtype}});
}

ts_tid ts_build_add(ts_site at, const char *name, ts_tid a, ts_tid b) {
  return build_node(at, TS_OP_ADD, name, INPUTS(a, b), (ts_attr){0});
}

ts_tid ts_build_multiply(ts_site at, const char *name, ts_tid a, ts_tid b) {
  return build_node(at, TS_OP_MULTIPLY, name, INPUTS(a, b), (ts_attr){0});
}

ts_tid ts_build_cast(ts_site at, const char *name, ts_tid x, ts_dtype dtype) {
  return build_node(at, TS_OP_CAST, name, INPUTS(x), (ts_attr){.cast = {dtype}});
}

ts_tid ts_build_scale(ts_site at, const char *name, ts_tid x, float by, float softcap) {
  return build_node(at, TS_OP_SCALE, name, INPUTS(x), (ts_attr){.scale = {by, softcap}});
}

ts_tid ts_build_activation(ts_site at, const char *name, ts_tid x, ts_activation kind) {
  return build_node(at, TS_OP_ACTIVATION, name, INPUTS(x), (ts_attr){.activation = {kind}});
}

ts_tid ts_build_glu(ts_site at, const char *name, ts_tid gate, ts_tid up, ts_activation kind) {
  return build_node(at, TS_OP_GLU, name, INPUTS(gate, up), (ts_attr){.activation = {kind}});
}

ts_tid ts_build_accumulate(ts_site at, const char *name, ts_tid prior, ts_tid x, ts_tid beta) {
  return build_node(at, TS_OP_ACCUMULATE, name, INPUTS(prior, x, beta), (ts_attr){0});
}

ts_tid ts_build_dropout(ts_site at, const char *name, ts_tid x, ts_tid seed, ts_tid sample, float p, uint64_t key) {
  return build_node(at, TS_OP_DROPOUT, name, INPUTS(x, seed, sample), (ts_attr){.dropout = {.p = p, .name = key}});
}

ts_tid ts_build_split(ts_site at, const char *name, ts_tid x, int64_t groups, int n, const int64_t *size) {
  return ts_graph_add(at, &(ts_node){.op = TS_OP_SPLIT,
                                     .name = name,
                                     .n_in = 1,
                                     .in = &x,
                                     .n_out = n,
                                     .attr = {.split = {groups, size}},
                                     .beta = TS_NONE});
}

ts_tid ts_build_concat(ts_site at, const char *name, int64_t groups, int n, const ts_tid *x) {
  return build_node(at, TS_OP_CONCAT, name, n, x, (ts_attr){.concat = {groups}});
}

ts_tid ts_build_take(ts_site at, const char *name, ts_tid x, int dim, int n, const ts_interval *interval,
                     const int64_t *cuts) {
  int64_t extent = at.graph->tensor[x].shape.d[dim];
  return build_node(at, TS_OP_TAKE, name, INPUTS(x), (ts_attr){.take = {dim, extent, n, interval, cuts}});
}

ts_tid ts_build_place(ts_site at, const char *name, ts_tid x, int dim, int64_t extent, int n,
                      const ts_interval *interval, const int64_t *cuts) {
  return build_node(at, TS_OP_PLACE, name, INPUTS(x), (ts_attr){.take = {dim, extent, n, interval, cuts}});
}

ts_tid ts_build_matmul(ts_site at, const char *name, ts_tid a, ts_tid b, ts_tid bias, bool transpose_a,
                       bool transpose_b, ts_dtype dtype) {
  const ts_tid in[] = {a, b, bias};
  return build_node(at, TS_OP_MATMUL, name, bias == TS_NONE ? 2 : 3, in,
                    (ts_attr){.matmul = {transpose_a, transpose_b, dtype}});
}

ts_tid ts_build_sum_rows(ts_site at, const char *name, ts_tid x, ts_dtype dtype) {
  return build_node(at, TS_OP_SUM_ROWS, name, INPUTS(x), (ts_attr){.sum_rows = {dtype}});
}

ts_tid ts_build_embedding(ts_site at, const char *name, ts_tid table, ts_tid ids) {
  return build_node(at, TS_OP_EMBEDDING, name, INPUTS(table, ids), (ts_attr){0});
}

ts_tid ts_build_embedding_dw(ts_site at, const char *name, ts_tid dy, ts_tid ids, int64_t rows, ts_dtype dtype,
                             int64_t first) {
  return build_node(at, TS_OP_EMBEDDING_DW, name, INPUTS(dy, ids), (ts_attr){.embedding = {rows, dtype, first}});
}

ts_tid ts_build_layernorm(ts_site at, const char *name, ts_tid x, ts_tid w, ts_tid b, float eps) {
  return build_node(at, TS_OP_LAYERNORM, name, INPUTS(x, w, b), (ts_attr){.norm = {.eps = eps, .dtype = TS_F32}});
}

ts_tid ts_build_rmsnorm(ts_site at, const char *name, ts_tid x, ts_tid w, float eps, float offset) {
  return build_node(at, TS_OP_RMSNORM, name, INPUTS(x, w), (ts_attr){.norm = {eps, TS_F32, offset, 0}});
}

ts_tid ts_build_head_loss(ts_site at, const char *name, ts_tid x, ts_tid w, ts_tid labels, float scale, float softcap) {
  return build_node(at, TS_OP_HEAD_LOSS, name, INPUTS(x, w, labels), (ts_attr){.head = {TS_F32, scale, softcap, 0}});
}

ts_tid ts_build_normalize(ts_site at, const char *name, ts_tid x, float eps) {
  return build_node(at, TS_OP_NORMALIZE, name, INPUTS(x), (ts_attr){.norm = {.eps = eps}});
}

ts_tid ts_build_soft_loss(ts_site at, const char *name, ts_tid z, ts_tid t, float temperature) {
  return build_node(at, TS_OP_SOFT_LOSS, name, INPUTS(z, t), (ts_attr){.soft = {temperature}});
}

ts_tid ts_build_loss(ts_site at, const char *name, ts_tid x, ts_tid mask) {
  const ts_tid in[] = {x, mask};
  return build_node(at, TS_OP_LOSS, name, mask == TS_NONE ? 1 : 2, in, (ts_attr){0});
}

ts_tid ts_build_sum_squares(ts_site at, const char *name, ts_tid x, int n, const ts_range *range) {
  return build_node(at, TS_OP_SUM_SQUARES, name, INPUTS(x), (ts_attr){.segments = {range, n, false}});
}

ts_tid ts_build_sum_squares_of_each(ts_site at, const char *name, ts_tid x, int n, const ts_range *range) {
  return build_node(at, TS_OP_SUM_SQUARES, name, INPUTS(x), (ts_attr){.segments = {range, n, true}});
}

ts_tid ts_build_trust_ratios(ts_site at, const char *name, ts_tid squares, ts_tid corrections, float least, float most,
                             bool bias_correction) {
  return build_node(at, TS_OP_TRUST_RATIOS, name, INPUTS(squares, corrections),
                    (ts_attr){.ratios = {least, most, bias_correction}});
}

ts_tid ts_build_orthogonalize(ts_site at, const char *name, ts_tid x, int n, const ts_matrix *matrix, ts_dtype dtype,
                              bool gram) {
  return build_node(at, TS_OP_ORTHOGONALIZE, name, INPUTS(x), (ts_attr){.orthogonalize = {matrix, n, dtype, gram}});
}

ts_tid ts_build_step_control(ts_site at, const char *name, ts_tid records, ts_tid static_tokens, ts_tid max_norm,
                             ts_tid loss_scale, bool keep_nonfinite) {
  return build_node(at, TS_OP_STEP_CONTROL, name, INPUTS(records, static_tokens, max_norm, loss_scale),
                    (ts_attr){.control = {keep_nonfinite}});
}

ts_tid ts_build_update_loss_scale(ts_site at, const char *name, ts_tid loss_scale, ts_tid summary,
                                  const ts_loss_scaler *scaler) {
  return build_node(at, TS_OP_UPDATE_LOSS_SCALE, name, INPUTS(loss_scale, summary), (ts_attr){.loss_scaler = *scaler});
}

ts_tid ts_build_advance(ts_site at, const char *name, ts_tid step, ts_tid betas, ts_tid skip) {
  return ts_graph_add(at, &(ts_node){.op = TS_OP_ADVANCE,
                                     .name = name,
                                     .n_in = 3,
                                     .in = (ts_tid[]){step, betas, skip},
                                     .n_out = 2,
                                     .beta = TS_NONE});
}

ts_tid ts_build_update_elements(ts_site at, const char *name, const ts_update_inputs *in, const ts_attr *attr,
                                bool on_host) {
  const ts_tid versions[] = {in->p, in->w, in->state[0], in->scales[0], in->state[1], in->scales[1]};
  ts_tid list[6 + TS_UPDATE_INPUTS + 1];
  int n = 0;
  for (int i = 0; i < 6; ++i) {
    if (versions[i] != TS_NONE) {
      list[n++] = versions[i];
    }
  }
  memcpy(list + n, in->input, sizeof in->input);
  list[n + TS_UPDATE_RATIOS] = in->ratios;
  ts_node node = {.op = TS_OP_UPDATE_ELEMENTS,
                  .name = name,
                  .n_in = n + TS_UPDATE_INPUTS + attr->update.has_ratios,
                  .in = list,
                  .n_out = n,
                  .beta = TS_NONE,
                  .attr = *attr,
                  .on_host = on_host};
  node.attr.update.copy = in->w != TS_NONE;
  return ts_graph_add(at, &node);
}

static ts_tid build_comm(ts_site at, ts_op op, const char *name, int n, const ts_tid *x, const ts_tid *into,
                         ts_tid beta, ts_attr attr) {
  ts_tid *in = ts_malloc((size_t) (2 * n) * sizeof *in);
  memcpy(in, x, (size_t) n * sizeof *in);
  if (into != NULL) {
    memcpy(in + n, into, (size_t) n * sizeof *in);
  }
  attr.comm.into = into != NULL;
  ts_tid y = ts_graph_add(
      at,
      &(ts_node){
          .op = op, .name = name, .n_in = into != NULL ? 2 * n : n, .in = in, .n_out = n, .attr = attr, .beta = beta});
  ts_free(in);
  return y;
}

ts_tid ts_build_all_gather(ts_site at, const char *name, unsigned axes, int group, int n, const ts_tid *x,
                           const ts_tid *into, int n_pieces, const ts_piece *piece) {
  ts_dtype dtype = at.graph->tensor[x[0]].dtype;
  return build_comm(
      at, TS_OP_ALL_GATHER, name, n, x, into, TS_NONE,
      (ts_attr){.comm = {.axes = axes, .group = group, .wire = dtype, .piece = piece, .n_pieces = n_pieces}});
}

static ts_tid build_alike(ts_site at, ts_op op, const char *name, unsigned axes, int group, ts_tid x) {
  return build_comm(at, op, name, 1, &x, NULL, TS_NONE,
                    (ts_attr){.comm = {.axes = axes, .group = group, .wire = at.graph->tensor[x].dtype}});
}

ts_tid ts_build_all_reduce(ts_site at, const char *name, unsigned axes, int group, ts_tid x) {
  return build_alike(at, TS_OP_ALL_REDUCE, name, axes, group, x);
}

ts_tid ts_build_share(ts_site at, const char *name, unsigned axes, int group, ts_tid x) {
  return build_alike(at, TS_OP_SHARE, name, axes, group, x);
}

ts_tid ts_build_reduce_scatter(ts_site at, const char *name, unsigned axes, int group, ts_dtype wire, float divisor,
                               int n, const ts_tid *x, const ts_tid *into, ts_tid beta, int n_pieces,
                               const ts_piece *piece) {
  return build_comm(
      at, TS_OP_REDUCE_SCATTER, name, n, x, into, beta,
      (ts_attr){
          .comm = {
              .axes = axes, .group = group, .wire = wire, .divisor = divisor, .piece = piece, .n_pieces = n_pieces}});
}

ts_tid ts_build_all_to_all(ts_site at, const char *name, unsigned axes, int group, int n, const ts_tid *x,
                           const ts_block *block, int n_sent, int n_received) {
  return build_comm(at, TS_OP_ALL_TO_ALL, name, n, x, NULL, TS_NONE,
                    (ts_attr){.comm = {.axes = axes,
                                       .group = group,
                                       .wire = at.graph->tensor[x[0]].dtype,
                                       .block = block,
                                       .n_sent = n_sent,
                                       .n_received = n_received}});
}

void ts_build_send(ts_site at, const char *name, const ts_tid *x, const ts_attr *message) {
  ts_graph_add(at, &(ts_node){.op = TS_OP_SEND, .name = name, .n_in = message->message.n, .in = x, .attr = *message});
}

ts_tid ts_build_receive(ts_site at, const char *name, const ts_attr *message, const ts_tid *into) {
  return ts_graph_add(at, &(ts_node){.op = TS_OP_RECEIVE,
                                     .name = name,
                                     .n_in = into != NULL ? message->message.n : 0,
                                     .in = into,
                                     .n_out = message->message.n,
                                     .attr = *message});
}
