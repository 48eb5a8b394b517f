/* The head and its loss in chunks of rows.  A chunk's logits are fp32 and become their own gradient in place; where
 * they are scaled or capped, they are so before, in the cache.  Weight gradients read and write dw once a chunk, so
 * chunks are as long as LONGEST_CHUNK and CHUNK_BYTES allow.  At V = 50257 and C = 768 in bf16 a Zen 4 core reaches
 * 98 % of its GEMM peak with 512 rows, 94 % with 256, 84 % with 128.
 * Cost: 2 V C operations a row for the loss, 6 V C with gradients.
 *
 * Ranks that share the vocabulary measure their logits first (HEAD_STATS: 2 V C, and one reading of the logits); the
 * loss is then what all of them measured, and the gradients (6 V C) need no sum over the logits, which are made again:
 * kept from one op to the other they would take 4 V bytes a row of the whole batch. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

enum { LONGEST_CHUNK = 512, CHUNK_BYTES = 104 << 20, IGNORED = -100 };

/* Products of a chunk of so many rows. */
typedef struct chunk {
  int64_t rows;
  ts_gemm *logits, *dx, *dw;
} chunk;

typedef struct head {
  int64_t rows, vocabulary, width, ld; /* ld: floats between rows of logits */
  int64_t n_chunks;
  chunk full, last; /* all chunks but the last, and the last; equal when there is one */
  ts_dtype dtype, dw_dtype;
  float scale, softcap;
  bool loss, gradients, stats; /* which outputs the op has */
  int64_t first;               /* row of the whole vocabulary that row 0 is */
  int64_t shares;              /* that are given measured; 0: none */
  bool accumulator;            /* dw is summed in fp32 in the workspace: a narrower dw would be rounded every chunk */
  int threads;
  size_t logits_bytes, row_bytes, accumulator_bytes, product_bytes;
} head;

/* At least one, so that what has no rows is multiplied too: nothing is 0, and a prior. */
static int64_t chunk_rows(int64_t rows, int64_t ld) {
  int64_t fitting = CHUNK_BYTES / (ld * (int64_t) sizeof(float)) / 64 * 64;
  int64_t longest = fitting < 64 ? 64 : fitting > LONGEST_CHUNK ? LONGEST_CHUNK : fitting;
  int64_t n = (rows + longest - 1) / longest;
  return rows == 0 ? 1 : (rows + n - 1) / n;
}

/* Rows of logits start on a cache line, and not all in the same cache sets. */
static int64_t leading_dimension(int64_t vocabulary) {
  int64_t ld = (vocabulary + 15) / 16 * 16;
  return ld % 1024 == 0 ? ld + 16 : ld;
}

static ts_gemm *make_gemm(head *h, const ts_gemm_spec *spec) {
  ts_gemm *gemm = ts_gemm_create(spec);
  size_t bytes = ts_gemm_workspace(gemm);
  h->product_bytes = bytes > h->product_bytes ? bytes : h->product_bytes;
  return gemm;
}

static chunk make_chunk(head *h, int64_t rows) {
  chunk c = {.rows = rows};
  int64_t ld_gradient = h->dtype == TS_F32 ? h->ld : 2 * h->ld; /* narrowed in place */
  c.logits = make_gemm(h, &(ts_gemm_spec){.m = rows,
                                          .n = h->vocabulary,
                                          .k = h->width,
                                          .ldc = h->ld,
                                          .transpose_b = true,
                                          .in = h->dtype,
                                          .out = TS_F32,
                                          .threads = h->threads});
  if (h->gradients) {
    c.dx = make_gemm(h, &(ts_gemm_spec){.m = rows,
                                        .n = h->width,
                                        .k = h->vocabulary,
                                        .lda = ld_gradient,
                                        .in = h->dtype,
                                        .out = h->dtype,
                                        .threads = h->threads});
    c.dw = make_gemm(h, &(ts_gemm_spec){.m = h->vocabulary,
                                        .n = h->width,
                                        .k = rows,
                                        .lda = ld_gradient,
                                        .transpose_a = true,
                                        .adds = true,
                                        .in = h->dtype,
                                        .out = h->accumulator ? TS_F32 : h->dw_dtype,
                                        .threads = h->threads});
  }
  return c;
}

static void destroy_chunk(chunk *c) {
  ts_gemm_destroy(&c->logits);
  ts_gemm_destroy(&c->dx);
  ts_gemm_destroy(&c->dw);
}

static void release_head(void *prepared) {
  head *h = prepared;
  destroy_chunk(&h->full);
  destroy_chunk(&h->last);
  ts_free(h);
}

/* All but the loss of measured shares needs logits. */
static void plan_chunks(head *h) {
  int64_t rows = chunk_rows(h->rows, h->ld);
  h->n_chunks = h->rows == 0 ? 1 : (h->rows + rows - 1) / rows;
  h->accumulator = h->n_chunks > 1 && h->dw_dtype != TS_F32;
  h->last = make_chunk(h, h->rows - (h->n_chunks - 1) * rows);
  h->full = h->n_chunks > 1 ? make_chunk(h, rows) : (chunk){.rows = rows};
  h->logits_bytes = ts_cpu_align((size_t) (rows * h->ld) * sizeof(float));
  h->row_bytes = ts_cpu_align((size_t) rows * sizeof(double));
  h->accumulator_bytes = h->accumulator ? ts_cpu_align((size_t) (h->vocabulary * h->width) * sizeof(float)) : 0;
}

static size_t prepare_head(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  const ts_tensor *x = &graph->tensor[node->in[0]], *w = &graph->tensor[node->in[1]];
  int stats = ts_head_stats(node);
  head *h = ts_calloc(1, sizeof *h);
  TS_ASSERT(x->dtype == w->dtype);
  h->rows = ts_shape_rows(&x->shape);
  h->vocabulary = w->shape.d[0];
  h->width = w->shape.d[1];
  h->ld = leading_dimension(h->vocabulary);
  h->dtype = x->dtype;
  h->scale = node->attr.head.scale;
  h->softcap = node->attr.head.softcap;
  h->loss = node->op == TS_OP_HEAD_LOSS || node->op == TS_OP_HEAD_LOSS_TRAIN;
  h->gradients = node->op == TS_OP_HEAD_LOSS_DX || node->op == TS_OP_HEAD_LOSS_TRAIN;
  h->stats = node->op == TS_OP_HEAD_STATS;
  h->first = node->attr.head.first;
  h->shares = stats < 0 ? 0 : graph->tensor[node->in[stats]].shape.d[0];
  h->dw_dtype = h->gradients ? graph->tensor[node->out[node->n_out - 1]].dtype : TS_F32;
  h->threads = target->threads;
  if (h->loss && h->shares > 0) {
    h->row_bytes = ts_cpu_align((size_t) h->rows * sizeof(double));
  } else {
    plan_chunks(h);
  }
  size_t workspace = h->logits_bytes + h->row_bytes + h->accumulator_bytes + h->product_bytes;
  if (prepared != NULL) {
    *prepared = h;
  } else {
    release_head(h);
  }
  return workspace;
}

/* One call: its operands and the parts of its workspace. */
typedef struct sweep {
  const head *h;
  const char *x, *w;
  const int32_t *label;
  const float *shares; /* [shares][rows][2] */
  float *stats;        /* [rows][2] */
  float seed;
  char *dx;
  void *dw; /* where products write: the output or the accumulator */
  const void *prior;
  float beta;
  float *logits;
  double *row_loss;
  void *scratch;
  double loss, valid;
} sweep;

/* The place of a label among w's rows, -1: it is none of them. */
static int64_t label_place(const head *h, int32_t label) {
  int64_t at = (int64_t) label - h->first;
  return label != IGNORED && at >= 0 && at < h->vocabulary ? at : -1;
}

/* The logarithm of the sum of all shares' exponentials of a row, in order. */
static double shared_lse(const sweep *s, int64_t row) {
  const float *lse = s->shares + 2 * row;
  int64_t step = 2 * s->h->rows;
  double max = lse[0], sum = 0;
  for (int64_t r = 1; r < s->h->shares; ++r) {
    max = lse[r * step] > max ? lse[r * step] : max;
  }
  for (int64_t r = 0; r < s->h->shares; ++r) {
    sum += exp(lse[r * step] - max);
  }
  return max + log(sum); // cppcheck-suppress invalidFunctionArg
}

/* The logit of a row's label: of the one share that has it. */
static double shared_logit(const sweep *s, int64_t row) {
  double sum = 0;
  for (int64_t r = 0; r < s->h->shares; ++r) {
    sum += s->shares[2 * (r * s->h->rows + row) + 1];
  }
  return sum;
}

/* Logits of a row to seed (softmax - onehot), times the slope of what was done to them, over their own memory. */
static void differentiate_row(const sweep *s, float *row, int32_t label, double lse) {
  const head *h = s->h;
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  if (label == IGNORED) {
    memset(row, 0, (size_t) h->vocabulary * ts_dtype_size(h->dtype));
    return;
  }
  int64_t at = label_place(h, label);
  float seed = s->seed * h->scale, logit = at < 0 ? 0 : row[at];
  loops->exp_scaled(row, h->dtype, row, (float) lse, seed, h->softcap, h->vocabulary);
  if (at < 0) {
    return;
  }
  float at_label = seed * (expf((float) (logit - lse)) - 1.0f);
  if (h->softcap > 0.0f) {
    float t = logit / h->softcap;
    at_label *= 1.0f - t * t;
  }
  ts_convert((char *) row + (size_t) at * ts_dtype_size(h->dtype), h->dtype, &at_label, TS_F32, 1);
}

static void measure_row(const sweep *s, int64_t i, const float *row) {
  int64_t at = label_place(s->h, s->label[i]);
  s->stats[2 * i] = (float) ts_cpu_loops_best()->logsumexp(row, s->h->vocabulary);
  s->stats[2 * i + 1] = at < 0 ? 0 : row[at];
}

/* Row `first + i` of the batch, i of the chunk. */
static void visit_row(const sweep *s, int64_t first, int64_t i) {
  const head *h = s->h;
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  int32_t label = s->label[first + i];
  float *row = s->logits + i * h->ld;
  if ((label != IGNORED || h->stats) && (h->scale != 1.0f || h->softcap > 0.0f)) {
    loops->cap(row, h->scale, h->softcap, h->vocabulary);
  }
  if (h->stats) {
    measure_row(s, first + i, row);
    return;
  }
  double lse = label == IGNORED ? 0 : h->shares > 0 ? shared_lse(s, first + i) : loops->logsumexp(row, h->vocabulary);
  int64_t at = label_place(h, label);
  s->row_loss[i] = label == IGNORED || !h->loss ? 0 : lse - (at < 0 ? 0 : row[at]);
  if (h->gradients) {
    differentiate_row(s, row, label, lse);
  }
}

static void add_losses(sweep *s, int64_t first, int64_t rows) {
  for (int64_t i = 0; i < rows && s->h->loss; ++i) {
    s->loss += s->row_loss[i];
    s->valid += s->label[first + i] != IGNORED;
  }
}

static void visit_rows(sweep *s, int64_t first, int64_t rows) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(s->h->threads)
  for (int64_t i = 0; i < rows; ++i) {
    visit_row(s, first, i);
  }
  add_losses(s, first, rows);
}

/* The loss of what all shares measured. */
static void combine_shares(sweep *s) {
  const head *h = s->h;
#pragma omp parallel for schedule(static) num_threads(h->threads)
  for (int64_t i = 0; i < h->rows; ++i) {
    s->row_loss[i] = s->label[i] == IGNORED ? 0 : shared_lse(s, i) - shared_logit(s, i);
  }
  add_losses(s, 0, h->rows);
}

static void run_chunk(sweep *s, const chunk *c, int64_t first) {
  const head *h = s->h;
  size_t row = (size_t) h->width * ts_dtype_size(h->dtype);
  const char *x = s->x + (size_t) first * row;
  ts_gemm_run(c->logits, x, s->w, s->logits, NULL, NULL, 0, s->scratch);
  visit_rows(s, first, c->rows);
  if (h->gradients) {
    const void *prior = first > 0 ? s->dw : h->accumulator ? NULL : s->prior;
    ts_gemm_run(c->dx, s->logits, s->w, s->dx + (size_t) first * row, NULL, NULL, 0, s->scratch);
    ts_gemm_run(c->dw, s->logits, x, s->dw, NULL, prior, first > 0 ? 1.0f : s->beta, s->scratch);
  }
}

static void finish_dw(const sweep *s, void *out) {
  const head *h = s->h;
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  size_t row = (size_t) h->width * ts_dtype_size(h->dw_dtype);
#pragma omp parallel for schedule(static) num_threads(h->threads)
  for (int64_t i = 0; i < h->vocabulary; ++i) {
    const void *prior = s->prior == NULL || s->beta == 0.0f ? NULL : (const char *) s->prior + (size_t) i * row;
    loops->finish((char *) out + (size_t) i * row, h->dw_dtype, (const float *) s->dw + i * h->width, NULL, TS_F32,
                  prior, s->beta, h->width);
  }
}

static sweep sweep_of(const ts_kernel_call *call) {
  const head *h = call->prepared;
  int last = call->node->n_out - 1;
  char *at = call->workspace;
  sweep s = {.h = h, .x = call->in[0], .w = call->in[1], .label = call->in[2]};
  s.shares = h->shares > 0 ? call->in[ts_head_stats(call->node)] : NULL;
  s.stats = h->stats ? call->out[0] : NULL;
  s.logits = (float *) at;
  s.row_loss = (double *) (at += h->logits_bytes);
  void *accumulator = at += h->row_bytes;
  s.scratch = at + h->accumulator_bytes;
  if (h->gradients) {
    s.seed = *(const float *) call->in[3];
    s.dx = call->out[last - 1];
    s.dw = h->accumulator ? accumulator : call->out[last];
    s.prior = call->prior == NULL ? NULL : call->prior[last];
    s.beta = call->beta == NULL ? 1.0f : *call->beta;
  }
  return s;
}

static void run_head(const ts_kernel_call *call) {
  const head *h = call->prepared;
  sweep s = sweep_of(call);
  for (int64_t i = 0; i < h->n_chunks; ++i) {
    run_chunk(&s, i + 1 < h->n_chunks ? &h->full : &h->last, i * h->full.rows);
  }
  if (h->loss && h->shares > 0) {
    combine_shares(&s);
  }
  if (h->accumulator) {
    finish_dw(&s, call->out[call->node->n_out - 1]);
  }
  if (h->loss) {
    *(double *) call->out[0] = s.loss;
    *(double *) call->out[1] = s.valid;
  }
}

const ts_kernel *ts_cpu_head(ts_op op) {
  static const ts_kernel row = {prepare_head, run_head, release_head}, none = {0};
  bool mine =
      op == TS_OP_HEAD_LOSS || op == TS_OP_HEAD_LOSS_DX || op == TS_OP_HEAD_STATS || op == TS_OP_HEAD_LOSS_TRAIN;
  return mine ? &row : &none;
}
