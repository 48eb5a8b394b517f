/* Plans of cuBLASLt: epilogues, leading dimensions, operands that are aligned to nothing, priors at
 * beta 0; the table of chosen algorithms: measured, written, read, damaged. */
#include "base/text.h"
#include "cuda/blas_choice.h"
#include "regression/backends.h"
#include "regression/kernel_run.h"
#include "regression/tap.h"

static const ts_backend *backend;

/* ---- epilogues ---- */

typedef struct product {
  ts_blas_spec spec;
  int offset; /* elements that operands lie behind an aligned address */
  bool other; /* the prior is not c itself */
  float beta; /* 0: over a prior of NaNs */
} product;

/* A matrix on the host with its copy on the device. */
typedef struct matrix {
  run_tensor host;
  char *memory; /* on the device, owned */
  void *device; /* inside it */
} matrix;

static size_t bytes_of(const matrix *x) {
  return (size_t) run_count(&x->host) * ts_dtype_size(x->host.dtype);
}

static matrix make(ts_dtype dtype, int64_t rows, int64_t columns, uint64_t key, int offset) {
  matrix x = {.host = run_random(dtype, TS_SHAPE(rows, columns), key, 1)};
  x.memory = backend->allocate(bytes_of(&x) + 64);
  x.device = x.memory + (size_t) offset * ts_dtype_size(dtype);
  run_move(backend, x.device, x.host.data, bytes_of(&x));
  return x;
}

static void drop(matrix *x) {
  backend->release(x->memory, bytes_of(x) + 64);
  ts_free(x->host.data);
}

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
  double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/* A run's operands in the order of ts_blas_operands. */
enum { A, B, C, BIAS, AUX, PRIOR, N_MATRICES };

static double dot(const ts_blas_spec *s, const matrix *x, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < s->k; ++k) {
    int64_t a = s->transpose_a ? k * s->lda + i : i * s->lda + k, b = s->transpose_b ? j * s->ldb + k : k * s->ldb + j;
    sum += run_get(&x[A].host, a) * run_get(&x[B].host, b);
  }
  return sum;
}

/* One rounding to bf16 is 2^-9 of the value, to fp16 2^-12, and so much of what is rounded on the way there; what the
 * hardware's tanh is off by (2^-11) times an argument below 16 is the rest: 2^-7 absolute. */
static bool is_near(const char *what, ts_dtype in, double got, double exact, double rounded_before) {
  bool near = fabs(got - exact) <= run_rounding(in) * (fabs(exact) + rounded_before) + 0x1p-7;
  if (!near) {
    tap_note("%s is %.9g, should be %.9g", what, got, exact);
  }
  return near;
}

/* Seen on an H100 with cuBLASLt 13.1: where rows are not aligned to 16 bytes the product is rounded before the bias is
 * added; GELU's slope and the product are rounded before they are multiplied. */
static bool check_row(const product *p, const matrix *x, const matrix *out, int64_t i) {
  const ts_blas_spec *s = &p->spec;
  bool right = true, rows_are_aligned = (s->lda | s->ldb | s->ldc) % 8 == 0;
  for (int64_t j = 0; j < s->n && right; ++j) {
    double exact = dot(s, x, i, j), before = 0, aux = run_get(&x[AUX].host, i * s->n + j);
    if (s->prior != TS_BLAS_NO_PRIOR && p->beta != 0) {
      exact += p->beta * run_get(&x[p->other ? PRIOR : C].host, i * s->ldc + j);
    }
    if (s->epilogue == TS_BLAS_BIAS || s->epilogue == TS_BLAS_GELU) {
      before = rows_are_aligned ? 0 : fabs(exact);
      exact += run_get(&x[BIAS].host, j);
    }
    if (s->epilogue == TS_BLAS_GELU) {
      right = is_near("aux", s->in, run_get(&out[AUX].host, i * s->n + j), exact, 0);
      exact = gelu(exact);
    }
    if (s->epilogue == TS_BLAS_DGELU) {
      before = fabs(exact) + fabs(exact * gelu_slope(aux));
      exact *= gelu_slope(aux);
    }
    right = right && is_near("c", s->in, run_get(&out[C].host, i * s->ldc + j), exact, before);
  }
  return right;
}

static bool is_right(const product *p, const matrix *x, const matrix *out) {
  bool right = true;
  for (int64_t i = 0; i < p->spec.m && right; ++i) {
    right = check_row(p, x, out, i);
  }
  return right;
}

/* Columns of c between n and ldc are another's. */
static bool leaves_gaps(const ts_blas_spec *s, const matrix *before, const matrix *after) {
  bool same = true;
  for (int64_t i = 0; i < s->m * s->ldc; ++i) {
    same = same && (i % s->ldc < s->n || run_get(&before->host, i) == run_get(&after->host, i));
  }
  return same;
}

static void make_nans(const ts_blas_spec *s, matrix *x) {
  for (int64_t i = 0; i < s->m * s->ldc; ++i) {
    if (i % s->ldc < s->n) {
      run_set(&x->host, i, NAN);
    }
  }
  run_move(backend, x->device, x->host.data, bytes_of(x));
}

static void check_product(const char *name, const product *p) {
  const ts_blas_spec *s = &p->spec;
  matrix x[N_MATRICES] = {make(s->in, s->transpose_a ? s->k : s->m, s->lda, 1, p->offset),
                          make(s->in, s->transpose_b ? s->n : s->k, s->ldb, 2, p->offset),
                          make(s->out, s->m, s->ldc, 3, p->offset),
                          make(s->out, 1, s->n, 4, p->offset),
                          make(s->out, s->m, s->n, 5, 0),
                          make(s->out, s->m, s->ldc, 6, p->offset)};
  matrix out[N_MATRICES];
  ts_device *device = ts_backend_device(backend);
  char *memory = backend->allocate(TS_BLAS_WORKSPACE + 128), *workspace = memory + 64; /* as aligned as plans promise */
  ts_blas *blas = ts_blas_create(s);
  matrix *prior = &x[p->other ? PRIOR : C];
  if (s->prior != TS_BLAS_NO_PRIOR && p->beta == 0) {
    make_nans(s, prior);
  }
  run_move(backend, memory, &p->beta, sizeof p->beta);
  ts_blas_operands o = {x[A].device,   x[B].device,   x[C].device,      x[BIAS].device,
                        x[AUX].device, prior->device, (float *) memory, workspace};
  ts_blas_run(blas, &o, device->ops->stream(device, TS_QUEUE_COMPUTE));
  for (int i = 0; i < N_MATRICES; ++i) {
    out[i].host = run_new(x[i].host.dtype, x[i].host.shape);
    run_move(backend, out[i].host.data, x[i].device, bytes_of(&x[i]));
  }
  bool kept = memcmp(out[PRIOR].host.data, x[PRIOR].host.data, bytes_of(&x[PRIOR])) == 0;
  tap_ok(is_right(p, x, out) && leaves_gaps(s, &x[C], &out[C]) && kept,
         "%s %dx%dx%d, ld %d %d %d, %s to %s, %d elements off, beta %g, prior %s", name, (int) s->m, (int) s->n,
         (int) s->k, (int) s->lda, (int) s->ldb, (int) s->ldc, ts_dtype_name(s->in), ts_dtype_name(s->out), p->offset,
         p->beta,
         s->prior == TS_BLAS_NO_PRIOR ? "none"
         : p->other                   ? "elsewhere"
                                      : "in place");
  ts_blas_destroy(&blas);
  backend->release(memory, TS_BLAS_WORKSPACE + 128);
  for (int i = 0; i < N_MATRICES; ++i) {
    ts_free(out[i].host.data);
    drop(&x[i]);
  }
}

static void check_products(ts_dtype half) {
  static const char *const names[] = {"plain", "bias", "gelu", "dgelu", "dgelu dbias"};
  for (int e = 0; e < TS_BLAS_N_EPILOGUES; ++e) {
    product p = {
        .spec = {40, 24, 16, 16, 24, 24, false, false, half, half, TS_BLAS_NO_PRIOR, (ts_blas_epilogue) e, false}};
    check_product(names[e], &p);
    p.spec =
        (ts_blas_spec){33, 72, 48, 56, 64, 80, false, true, half, half, TS_BLAS_NO_PRIOR, (ts_blas_epilogue) e, false};
    check_product(names[e], &p);
  }
  for (int t = 0; t < 4; ++t) {
    bool ta = t & 1, tb = t >> 1;
    product p = {.spec = {17, 23, 9, ta ? 19 : 11, tb ? 13 : 29, 27, ta, tb, half, TS_F32, TS_BLAS_NO_PRIOR,
                          TS_BLAS_PLAIN, false},
                 .offset = 1 + t};
    check_product("unaligned", &p);
    p.spec.out = half;
    p.spec.epilogue = TS_BLAS_BIAS;
    check_product("unaligned bias", &p);
  }
}

/* No table has these: the library's own first algorithms, aligned and not, for a beta on the device.  More rows than
 * the blocks of one launch that goes over them. */
static void check_priors(ts_dtype half) {
  for (int i = 0; i < 16; ++i) {
    product p = {.offset = i & 1, .other = i & 2, .beta = i & 4 ? 0.5f : 0};
    ts_dtype out = i & 8 ? half : TS_F32;
    p.spec =
        (ts_blas_spec){40, 24, 16, 16, 24, 32, false, false, half, out, TS_BLAS_SCALED_PRIOR, TS_BLAS_PLAIN, false};
    check_product("prior", &p);
    p.spec =
        (ts_blas_spec){1100, 19, 9, 16, 19, 21, false, false, half, out, TS_BLAS_SCALED_PRIOR, TS_BLAS_BIAS, false};
    check_product("prior", &p);
  }
}

/* ---- choices ---- */

/* A product with a scaled prior, as gradients have it, and a head. */
typedef struct two_nodes {
  ts_tensor tensor[16];
  ts_tid in[2][4], out[2][4], prior[2][4];
  ts_node node[2];
  ts_graph graph;
} two_nodes;

static ts_tid tensor(two_nodes *g, ts_dtype dtype, ts_shape shape) {
  g->tensor[g->graph.n_tensors] = (ts_tensor){.dtype = dtype, .shape = shape};
  return g->graph.n_tensors++;
}

static void make_nodes(two_nodes *g) {
  *g = (two_nodes){.graph = {.tensor = g->tensor, .node = g->node, .n_nodes = 2}};
  ts_tid x = tensor(g, TS_BF16, TS_SHAPE(2, 320, 64)), dy = tensor(g, TS_BF16, TS_SHAPE(2, 320, 48)),
         beta = tensor(g, TS_F32, TS_SHAPE(1));
  ts_tid dw = tensor(g, TS_F32, TS_SHAPE(64, 48)), w = tensor(g, TS_BF16, TS_SHAPE(97, 64));
  g->in[0][0] = x;
  g->in[0][1] = dy;
  g->out[0][0] = g->prior[0][0] = dw;
  g->node[0] = (ts_node){.op = TS_OP_MATMUL,
                         .n_in = 2,
                         .n_out = 1,
                         .in = g->in[0],
                         .out = g->out[0],
                         .prior = g->prior[0],
                         .beta = beta,
                         .attr.matmul = {.transpose_a = true, .dtype = TS_F32}};
  g->in[1][0] = x;
  g->in[1][1] = w;
  g->in[1][2] = tensor(g, TS_I32, TS_SHAPE(2, 320));
  g->in[1][3] = tensor(g, TS_F32, TS_SHAPE(1));
  g->out[1][0] = tensor(g, TS_BF16, TS_SHAPE(2, 320, 64));
  g->out[1][1] = tensor(g, TS_F32, TS_SHAPE(97, 64));
  g->node[1] = (ts_node){.op = TS_OP_HEAD_LOSS_DX,
                         .n_in = 4,
                         .n_out = 2,
                         .in = g->in[1],
                         .out = g->out[1],
                         .beta = TS_NONE,
                         .attr.head = {TS_F32, 1, 0}};
}

static int lines_of(const char *text) {
  int n = 0;
  for (; *text != '\0'; ++text) {
    n += *text == '\n';
  }
  return n;
}

/* Forget the table. */
static void open_again(void) {
  ts_error err = {0};
  ts_cuda_options options = {.local_rank = 0};
  ts_cuda_close();
  tap_ok(backend->device != NULL && ts_backend_device(backend) == NULL, "closed, a backend of devices has none");
  tap_ok(ts_cuda_open(&options, &err) == TS_OK && ts_backend_device(backend) != NULL, "closed and opened again");
}

static bool reads(const char *text, const char *why) {
  ts_error err = {0};
  bool as_said = ts_cuda_choices_read(text, &err) == TS_OK ? why == NULL : why != NULL && strstr(err.text, why) != NULL;
  if (!as_said) {
    tap_note("%s", err.count > 0 ? err.text : "accepted");
  }
  ts_error_clear(&err);
  return as_said;
}

static bool is_empty(void) {
  char *text = ts_cuda_choices_write();
  bool empty = lines_of(text) == 3;
  ts_free(text);
  return empty;
}

/* `text` with the first `old` replaced by `new`. */
static char *replaced(const char *text, const char *old, const char *new) {
  const char *at = strstr(text, old);
  return at == NULL ? ts_strdup("") : ts_format("%.*s%s%s", (int) (at - text), text, new, at + strlen(old));
}

static void check_damage(const char *text) {
  static const struct {
    const char *old, *new, *why;
  } row[] = {
      {"tessera algorithms 1", "tessera algorithms 2", "begin with"},
      {"device ", "device not ", "were chosen on"},
      {"cublaslt 1", "cublaslt 9", "were chosen on"},
      {"\nm=", "\nm=-", "line 4"},
      {"\nm=", "\nm= ", "line 4"},
      {"\nm=", "\nm=0", "line 4"},
      {"\nm=", "\nm=99999999999999999999", "line 4"},
      {"\nm=", "\n\nm=", "line 4"},
      {" lda=", " lda=-", "line 4"},
      {"in=bf16", "in=fp64", "line 4"},
      {"in=bf16", "in=bf16x", "line 4"},
      {"out=fp32", "out=fp16", "line 4"},
      {"prior=2", "prior=3", "line 4"},
      {"prior=2", "prior=02", "line 4"},
      {"epilogue=0", "epilogue=77", "line 4"},
      {"tf32=0", "tf32=2", "line 4"},
      {"algo=", "algo=0", "line 4"},
      {"algo=", "algo=G", "line 4"},
      {"a=t", "a=x", "line 4"},
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    char *damaged = replaced(text, row[i].old, row[i].new);
    tap_ok(reads(damaged, row[i].why) && is_empty(), "refused: damage %d, at \"%s\"", (int) i,
           row[i].old + (*row[i].old == '\n'));
    ts_free(damaged);
  }
  char *cut = ts_format("%.*s", (int) strlen(text) - 9, text),
       *twice = ts_format("%s%s", text, strchr(strstr(text, "cublaslt"), '\n') + 1);
  tap_ok(reads(cut, "is no product") && is_empty(), "refused: cut short");
  tap_ok(reads(twice, "second time") && is_empty(), "refused: every product twice");
  tap_ok(reads("", "begin with") && is_empty(), "refused: nothing at all");
  ts_free(cut);
  ts_free(twice);
}

/* The gradient product of the graph, with beta 0 over a prior of NaNs, by whatever algorithm the table has. */
static bool product_is_right(void) {
  float beta = 0;
  run_case c = {.op = TS_OP_MATMUL,
                .n_in = 2,
                .n_out = 1,
                .threads = 1,
                .beta = &beta,
                .attr.matmul = {.transpose_a = true, .dtype = TS_F32}};
  c.in[0] = run_random(TS_BF16, TS_SHAPE(2, 320, 64), 1, 1);
  c.in[1] = run_random(TS_BF16, TS_SHAPE(2, 320, 48), 2, 1);
  c.out[0] = run_new(TS_F32, TS_SHAPE(64, 48));
  c.prior[0] = c.out[0].data;
  memset(c.out[0].data, 0xff, 64 * 48 * sizeof(float));
  bool right = run_kernel(backend, &c);
  for (int64_t i = 0; i < 64 * 48; ++i) {
    double exact = 0;
    for (int64_t k = 0; k < 640; ++k) {
      exact += run_get(&c.in[0], k * 64 + i / 48) * run_get(&c.in[1], k * 48 + i % 48);
    }
    right =
        right && fabs(run_get(&c.out[0], i) - exact) < 1e-3; /* 640 terms of size 1 in fp32: 2^-24 640 below 10^-4 */
  }
  run_free(&c);
  return right;
}

static void check_choices(void) {
  two_nodes g;
  make_nodes(&g);
  tap_ok(is_empty(), "a table that begins empty");
  ts_cuda_choices_measure(&g.graph);
  char *text = ts_cuda_choices_write();
  tap_ok(lines_of(text) >= 3 + 4, "measured: the product, and logits, dx and dw of the head: %d lines", lines_of(text));
  tap_ok(
      strstr(text, "\nm=64 n=48 k=640 lda=64 ldb=48 ldc=48 a=t b=n in=bf16 out=fp32 prior=2 epilogue=0 tf32=0 algo=") !=
          NULL,
      "the gradient has a scaled prior");
  ts_cuda_choices_measure(&g.graph);
  char *again = ts_cuda_choices_write();
  tap_ok(strcmp(text, again) == 0, "what is in the table is not measured again");
  ts_free(again);
  tap_ok(product_is_right(), "a measured product leaves its prior alone at beta 0");
  open_again();
  check_damage(text);
  tap_ok(reads(text, NULL), "the whole text is read");
  again = ts_cuda_choices_write();
  tap_ok(strcmp(text, again) == 0, "and written as it was");
  ts_free(again);
  open_again();
  char *strange = ts_strdup(text);
  memset(strstr(strange, "algo=") + 5, '7', 128);
  tap_ok(reads(strange, NULL) && product_is_right(), "an algorithm that the library does not know is not used");
  again = ts_cuda_choices_write();
  tap_ok(lines_of(again) == lines_of(text) - 1, "nor kept");
  ts_free(again);
  ts_free(strange);
  ts_free(text);
}

/* ---- without a device; captured; TF32 ---- */

enum { N_NODES = 2 };

/* Planning for memory: workspaces, and plans that are thrown away. */
static void check_planning(size_t workspace[N_NODES]) {
  two_nodes g;
  make_nodes(&g);
  for (int i = 0; i < N_NODES; ++i) {
    void *prepared = NULL;
    const ts_kernel *row = ts_backend_cuda()->kernel(g.node[i].op);
    ts_target target = {ts_backend_cuda(), 1, TS_CUDNN_NEVER};
    workspace[i] = row->prepare(&target, &g.graph, &g.node[i], NULL);
    tap_ok(workspace[i] == row->prepare(&target, &g.graph, &g.node[i], &prepared) && workspace[i] >= TS_BLAS_WORKSPACE,
           "node %d needs %zu bytes of workspace", i, workspace[i]);
    row->release(prepared);
  }
}

/* Recorded with one beta, replayed with another: as a step's micro-batches do. */
static void check_capture(void) {
  float beta = 0;
  run_case c = {.op = TS_OP_MATMUL, .n_in = 2, .n_out = 1, .threads = 1, .beta = &beta, .attr.matmul.dtype = TS_F32};
  c.in[0] = run_random(TS_F32, TS_SHAPE(5, 7), 1, 1);
  c.in[1] = run_random(TS_F32, TS_SHAPE(7, 3), 2, 1);
  c.out[0] = run_new(TS_F32, TS_SHAPE(5, 3));
  c.prior[0] = c.out[0].data;
  memset(c.out[0].data, 0xff, 15 * sizeof(float));
  run_state s;
  run_begin(backend, &c, &s);
  ts_device *device = ts_backend_device(backend);
  device->ops->capture_begin(device);
  s.row->run(&s.call);
  void *graph = device->ops->capture_end(device);
  float two = 2, once[15], more[15];
  device->ops->replay(device, graph);
  run_move(backend, once, s.call.out[0], sizeof once);
  run_move(backend, (void *) s.call.beta, &two, sizeof two);
  device->ops->replay(device, graph);
  run_move(backend, more, s.call.out[0], sizeof more);
  bool right = true;
  for (int i = 0; i < 15; ++i) {
    right = right && fabsf(more[i] - 3 * once[i]) <= 1e-5f;
  }
  tap_ok(right, "a captured product reads its beta when it is replayed");
  device->ops->graph_destroy(device, graph);
  tap_ok(run_end(&s), "and leaves the rest alone");
  run_free(&c);
}

static double worst_error(void) {
  run_case c = {.op = TS_OP_MATMUL, .n_in = 2, .n_out = 1, .threads = 1, .attr.matmul.dtype = TS_F32};
  c.in[0] = run_random(TS_F32, TS_SHAPE(64, 64), 1, 1);
  c.in[1] = run_random(TS_F32, TS_SHAPE(64, 64), 2, 1);
  c.out[0] = run_new(TS_F32, TS_SHAPE(64, 64));
  double worst = run_kernel(backend, &c) ? 0 : INFINITY;
  for (int i = 0; i < 64 * 64; ++i) {
    double exact = 0;
    for (int k = 0; k < 64; ++k) {
      exact += run_get(&c.in[0], i / 64 * 64 + k) * run_get(&c.in[1], k * 64 + i % 64);
    }
    worst = fmax(worst, fabs(run_get(&c.out[0], i) - exact));
  }
  run_free(&c);
  return worst;
}

/* fp32: 64 terms of size 1, 2^-24 each and less in the sum: below 10^-5.  TF32 cuts operands to 11 bits: an error of at
 * most 2^-10 each, so sqrt (128) 2^-11 = 0.006 is usual at most, the worst of 4096 sums some 4 times that.  It is
 * allowed, not asked for: only the stand-in must use it. */
static void check_tf32(void) {
  ts_error err = {0};
  ts_cuda_options options = {.tf32 = true};
  double plain = worst_error();
  ts_cuda_close();
  tap_ok(ts_cuda_open(&options, &err) == TS_OK, "opened with TF32");
  double fast = worst_error();
  tap_ok(plain < 1e-5, "fp32 stays fp32: %g", plain);
  bool must = strstr(backend->describe(), "stand-in") != NULL;
  tap_ok((!must || fast > 1e-4) && fast < 3e-2, "TF32 where it is allowed: %g", fast);
}

int main(void) {
  size_t without[N_NODES] = {0}, with[N_NODES];
  if (ts_backend_cuda() != NULL) {
    check_planning(without);
  }
  backend = test_backend();
  if (backend == NULL) {
    return tap_done();
  }
  check_choices();
  check_products(TS_BF16);
  check_products(TS_F16);
  check_priors(TS_BF16);
  check_priors(TS_F16);
  check_planning(with);
  tap_ok(memcmp(with, without, sizeof with) == 0, "a plan needs the same with a device and without");
  check_capture();
  check_tf32();
  test_backend_close();
  tap_ok(ts_memory_live() == 0, "everything is freed");
  return tap_done();
}
