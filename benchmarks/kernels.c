/* Speed of matrix products, attention and the head at the shapes of GPT-2 124M (B4 T256) and of a small Llama, beside
 * the GEMM peak: the best of five sizes up to 4096^3 in the same run.  Medians of short runs.  Then attention over 8192
 * tokens in a window or in packed documents, as a part of its time without; and products of experts, as a part of the
 * rate of one dense product of the same FLOPs.
 *
 *     kernels [THREADS [fp32|bf16|fp16 [head|attention|products|experts]]]   default: 2, all, everything
 */
#include "base/log.h"
#include "regression/kernel_run.h"

#include <stdio.h>
#include <sys/mman.h>

typedef struct product {
  const char *name;
  int64_t m, n, k;
  bool ta, tb, wide; /* wide: fp32 result, added to (a weight gradient), or logits */
} product;

static int compare(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* Median seconds of one call, over at least 0.3 s. */
static double seconds_of(const run_case *c) {
  enum { MOST = 200 };
  double time[MOST], begin = ts_seconds();
  run_state s;
  run_begin(ts_backend_cpu(), c, &s);
  s.row->run(&s.call);
  int n = 0;
  while (n < MOST && (n < 5 || ts_seconds() - begin < 0.3)) {
    double start = ts_seconds();
    s.row->run(&s.call);
    time[n++] = ts_seconds() - start;
  }
  run_end(&s);
  qsort(time, (size_t) n, sizeof *time, compare);
  return time[n / 2];
}

/* Of large pages, as arenas are: they are asked for before anything is touched. */
static run_tensor room(ts_dtype dtype, ts_shape shape) {
  enum { PAGE = 2 << 20 };
  run_tensor x = {dtype, shape, NULL};
  const size_t bytes = (size_t) run_count(&x) * ts_dtype_size(dtype);
  x.data = ts_malloc(bytes);
  const uintptr_t begin = (uintptr_t) x.data, first = (begin + PAGE - 1) / PAGE * PAGE;
  const uintptr_t last = (begin + bytes) / PAGE * PAGE;
  if (first < last) {
    madvise((void *) first, last - first, MADV_HUGEPAGE);
  }
  memset(x.data, 0, bytes);
  return x;
}

/* Values do not matter for time, as long as they are no denormals. */
static run_tensor filled(ts_dtype dtype, ts_shape shape, double value) {
  run_tensor x = room(dtype, shape);
  for (int64_t i = 0; i < run_count(&x); ++i) {
    run_set(&x, i, value * (double) (1 + i % 7));
  }
  return x;
}

static double product_rate(const product *p, ts_dtype dtype, int threads) {
  run_case c = {.op = TS_OP_MATMUL, .n_in = 2, .n_out = 1, .threads = threads};
  ts_dtype out = p->wide ? TS_F32 : dtype;
  c.attr.matmul.transpose_a = p->ta;
  c.attr.matmul.transpose_b = p->tb;
  c.attr.matmul.dtype = out;
  c.in[0] = filled(dtype, p->ta ? TS_SHAPE(p->k, p->m) : TS_SHAPE(p->m, p->k), 0.01);
  c.in[1] = filled(dtype, p->tb ? TS_SHAPE(p->n, p->k) : TS_SHAPE(p->k, p->n), 0.01);
  c.out[0] = room(out, TS_SHAPE(p->m, p->n));
  c.prior[0] = p->wide && p->ta ? c.out[0].data : NULL;
  double rate = 2e-9 * (double) p->m * (double) p->n * (double) p->k / seconds_of(&c);
  run_free(&c);
  return rate;
}

static double peak_rate(ts_dtype dtype, int threads) {
  static const int64_t size[] = {1024, 1536, 2048, 3072, 4096};
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    product p = {"square", size[i], size[i], size[i], false, false, false};
    best = fmax(best, product_rate(&p, dtype, threads));
  }
  return best;
}

static void print_rate(const char *name, const char *shape, double rate, double peak) {
  printf("  %-24s %-22s %7.0f GFLOP/s  %3.0f %% of peak\n", name, shape, rate, 100 * rate / peak);
  fflush(stdout);
}

static void products(ts_dtype dtype, int threads, double peak) {
  static const product shape[] = {
      {"gpt2 qkv", 1024, 2304, 768, false, false, false},
      {"gpt2 qkv dx", 1024, 768, 2304, false, true, false},
      {"gpt2 qkv dw", 768, 2304, 1024, true, false, true},
      {"gpt2 proj", 1024, 768, 768, false, false, false},
      {"gpt2 proj dx", 1024, 768, 768, false, true, false},
      {"gpt2 proj dw", 768, 768, 1024, true, false, true},
      {"gpt2 fc", 1024, 3072, 768, false, false, false},
      {"gpt2 fc dx", 1024, 768, 3072, false, true, false},
      {"gpt2 fc dw", 768, 3072, 1024, true, false, true},
      {"gpt2 fc2", 1024, 768, 3072, false, false, false},
      {"gpt2 fc2 dx", 1024, 3072, 768, false, true, false},
      {"gpt2 fc2 dw", 3072, 768, 1024, true, false, true},
      {"llama q", 2048, 256, 256, false, true, false},
      {"llama q dx", 2048, 256, 256, false, false, false},
      {"llama q dw", 256, 256, 2048, true, false, true},
      {"llama k", 2048, 128, 256, false, true, false},
      {"llama k dw", 128, 256, 2048, true, false, true},
      {"llama gate", 2048, 688, 256, false, true, false},
      {"llama gate dx", 2048, 256, 688, false, false, false},
      {"llama gate dw", 688, 256, 2048, true, false, true},
      {"llama down", 2048, 256, 688, false, true, false},
      {"llama down dw", 256, 688, 2048, true, false, true},
      {"stride 4096 bytes", 1024, 1024, 1024, false, true, false},
      {"strides 8192 bytes", 1024, 2048, 2048, false, true, false},
      {"muon x x^T", 768, 768, 3072, false, true, false},
      {"muon x^T x", 768, 768, 3072, true, false, false},
      {"muon a a", 768, 768, 768, false, false, false},
      {"muon z x", 768, 3072, 768, false, false, false},
      {"muon x z", 3072, 768, 768, false, false, false},
      {"one row", 1, 2304, 768, false, false, false},
      {"eight rows", 8, 2304, 768, false, false, false},
  };
  for (size_t i = 0; i < sizeof shape / sizeof *shape; ++i) {
    char text[64];
    snprintf(text, sizeof text, "%d x %d x %d", (int) shape[i].m, (int) shape[i].n, (int) shape[i].k);
    print_rate(shape[i].name, text, product_rate(&shape[i], dtype, threads), peak);
  }
}

/* Causal attention, and what it may have beyond that. */
typedef struct attention_shape {
  int64_t batch, length;
  int heads, kv_heads, head_dim;
  float dropout;
  int64_t window, document; /* keys of a window, tokens of a document; 0: none */
} attention_shape;

/* Seconds forward and backward. */
static void time_attention(const attention_shape *p, ts_dtype dtype, int threads, double seconds[2]) {
  int64_t batch = p->batch, length = p->length;
  ts_attr attr = {.attention = {.heads = p->heads,
                                .kv_heads = p->kv_heads,
                                .head_dim = p->head_dim,
                                .scale = (float) (1 / sqrt((double) p->head_dim)),
                                .causal = true,
                                .window = p->window,
                                .dropout = p->dropout}};
  ts_shape q = TS_SHAPE(batch, length, p->heads * p->head_dim), k = TS_SHAPE(batch, length, p->kv_heads * p->head_dim);
  run_case f = {.op = TS_OP_ATTENTION, .attr = attr, .n_in = 6, .n_out = 2, .threads = threads};
  f.in[0] = run_random(dtype, q, 1, 1);
  f.in[1] = run_random(dtype, k, 2, 1);
  f.in[2] = run_random(dtype, k, 3, 1);
  f.out[0] = run_new(dtype, q);
  f.out[1] = run_new(TS_F32, TS_SHAPE(batch, p->heads, length));
  run_case b = {.op = TS_OP_ATTENTION_DX, .attr = attr, .n_in = 9, .n_out = 3, .threads = threads};
  for (int i = 0; i < 6; ++i) {
    b.in[i] = i < 4 ? run_random(dtype, i < 2 ? q : k, 4 + (uint64_t) i, 1) : f.out[i - 4];
  }
  if (p->document > 0) {
    f.in[3] = run_new(TS_I32, TS_SHAPE(batch, length));
    for (int64_t i = 0; i < batch * length; ++i) {
      run_set(&f.in[3], i, (double) (i % length / p->document));
    }
    b.in[6] = f.in[3];
  }
  if (p->dropout > 0) {
    f.in[4] = run_new(TS_I64, TS_SHAPE(1));
    f.in[5] = run_new(TS_I64, TS_SHAPE(batch));
    b.in[7] = f.in[4];
    b.in[8] = f.in[5];
  }
  b.out[0] = run_new(dtype, q);
  b.out[1] = run_new(dtype, k);
  b.out[2] = run_new(dtype, k);
  seconds[0] = seconds_of(&f);
  seconds[1] = seconds_of(&b);
  for (int i = 4; i < 9; ++i) {
    b.in[i].data = NULL; /* owned by f */
  }
  run_free(&f);
  run_free(&b);
}

static void name_of(const attention_shape *p, char text[64]) {
  snprintf(text, 64, "B%d T%d H%d/%d D%d", (int) p->batch, (int) p->length, p->heads, p->kv_heads, p->head_dim);
}

/* FLOPs of visible pairs: 4 D each way forward, 10 D backward. */
static void attention(attention_shape p, ts_dtype dtype, int threads, double peak) {
  char text[64];
  double pairs = (double) (p.batch * p.heads) * (double) p.length * (double) (p.length + 1) / 2, seconds[2];
  time_attention(&p, dtype, threads, seconds);
  name_of(&p, text);
  print_rate(p.dropout > 0 ? "attention, dropout" : "attention", text, 4e-9 * p.head_dim * pairs / seconds[0], peak);
  print_rate(p.dropout > 0 ? "attention dx, dropout" : "attention dx", text, 10e-9 * p.head_dim * pairs / seconds[1],
             peak);
}

/* A sixteenth of the sequence as a window, and sixteen documents: parts of the time that all keys take. */
static void masked_attention(attention_shape p, ts_dtype dtype, int threads) {
  attention_shape window = p, documents = p;
  double all[2], part[2];
  char text[64];
  window.window = documents.document = p.length / 16;
  time_attention(&p, dtype, threads, all);
  name_of(&p, text);
  for (int i = 0; i < 2; ++i) {
    time_attention(i == 0 ? &window : &documents, dtype, threads, part);
    printf("  %s of %d, %-22s forward %.3f, backward %.3f, together %.3f of all keys' time (%.0f and %.0f ms)\n",
           i == 0 ? "a window" : "documents", (int) p.length / 16, text, part[0] / all[0], part[1] / all[1],
           (part[0] + part[1]) / (all[0] + all[1]), 1e3 * all[0], 1e3 * all[1]);
    fflush(stdout);
  }
}

static void head(int64_t rows, int64_t width, int64_t vocabulary, ts_dtype dtype, int threads, double peak) {
  run_case c = {.op = TS_OP_HEAD_LOSS_TRAIN, .n_in = 4, .n_out = 4, .threads = threads};
  c.attr.head.dtype = TS_F32;
  c.attr.head.scale = 1;
  c.in[0] = run_random(dtype, TS_SHAPE(1, rows, width), 1, 1);
  c.in[1] = run_random(dtype, TS_SHAPE(vocabulary, width), 2, 0.02);
  c.in[2] = run_new(TS_I32, TS_SHAPE(1, rows));
  c.in[3] = filled(TS_F32, TS_SHAPE(1), 1e-3);
  c.out[0] = run_new(TS_F64, TS_SHAPE(1));
  c.out[1] = run_new(TS_F64, TS_SHAPE(1));
  c.out[2] = room(dtype, TS_SHAPE(1, rows, width));
  c.out[3] = room(TS_F32, TS_SHAPE(vocabulary, width));
  char text[64];
  snprintf(text, sizeof text, "%d x %d x %d", (int) rows, (int) vocabulary, (int) width);
  print_rate("head, loss, gradients", text,
             6e-9 * (double) rows * (double) width * (double) vocabulary / seconds_of(&c), peak);
  run_free(&c);
}

static double stats_seconds(run_case *c, ts_dtype dtype, int64_t rows, int64_t width, int64_t share, int threads) {
  *c = (run_case){.op = TS_OP_HEAD_STATS, .n_in = 3, .n_out = 1, .threads = threads};
  c->attr.head.dtype = TS_F32;
  c->attr.head.scale = 1;
  c->in[0] = run_random(dtype, TS_SHAPE(1, rows, width), 1, 1);
  c->in[1] = run_random(dtype, TS_SHAPE(share, width), 2, 0.02);
  c->in[2] = run_new(TS_I32, TS_SHAPE(1, rows));
  c->out[0] = run_new(TS_F32, TS_SHAPE(1, rows, 2));
  return seconds_of(c);
}

/* The same call for the ops that come after what `ranks` of them measured. */
static double shared_seconds(run_case *c, ts_op op, int64_t ranks) {
  ts_shape x = c->in[0].shape;
  run_tensor stats = filled(TS_F32, TS_SHAPE(ranks, 1, x.d[1], 2), 10);
  c->op = op;
  ts_free(c->out[0].data);
  c->n_out = 2;
  c->n_in = op == TS_OP_HEAD_LOSS ? 4 : 5;
  if (op == TS_OP_HEAD_LOSS) {
    c->out[0] = run_new(TS_F64, TS_SHAPE(1));
    c->out[1] = run_new(TS_F64, TS_SHAPE(1));
    c->in[3] = stats;
    return seconds_of(c);
  }
  ts_free(c->out[1].data);
  ts_free(c->in[3].data);
  c->out[0] = run_new(c->in[0].dtype, x);
  c->out[1] = run_new(TS_F32, c->in[1].shape);
  c->in[3] = filled(TS_F32, TS_SHAPE(1), 1e-3);
  c->in[4] = stats;
  return seconds_of(c);
}

/* A share of the vocabulary: each op in units of a product of x with w's rows at the peak rate. */
static void shared_head(int64_t rows, int64_t width, int64_t vocabulary, int64_t ranks, ts_dtype dtype, int threads,
                        double peak) {
  run_case c;
  int64_t share = vocabulary / ranks;
  double product = 2e-9 * (double) rows * (double) width * (double) share / peak;
  double measure = stats_seconds(&c, dtype, rows, width, share, threads);
  double loss = shared_seconds(&c, TS_OP_HEAD_LOSS, ranks), dx = shared_seconds(&c, TS_OP_HEAD_LOSS_DX, ranks);
  printf("  head of 1 / %d of %d rows of the vocabulary: stats %.2f, loss %.4f, gradients %.2f products (of %.0f ms)\n",
         (int) ranks, (int) vocabulary, measure / product, loss / product, dx / product, 1e3 * product);
  fflush(stdout);
  run_free(&c);
}

/* Rows of experts times their matrices [out][in] (y), the gradient of the rows (dx) and of the matrices (dw). */
static double grouped_seconds(int which, int64_t experts, int64_t each, int64_t in, int64_t out, ts_dtype dtype,
                              int threads) {
  run_case c = {.op = which == 2 ? TS_OP_GROUPED_DW : TS_OP_GROUPED, .n_in = 3, .n_out = 1, .threads = threads};
  int64_t rows = experts * each;
  ts_shape w = TS_SHAPE(experts, out, in);
  c.attr.matmul.transpose_b = which == 0;
  c.attr.matmul.dtype = which == 2 ? TS_F32 : dtype;
  c.in[0] = filled(dtype, TS_SHAPE(rows, which == 0 ? in : out), 0.01);
  c.in[1] = filled(dtype, which == 2 ? TS_SHAPE(rows, in) : w, 0.01);
  c.in[2] = run_new(TS_I32, TS_SHAPE(experts + 1));
  for (int64_t e = 0; e <= experts; ++e) {
    run_set(&c.in[2], e, (double) (e * each));
  }
  c.out[0] = room(c.attr.matmul.dtype, which == 2 ? w : TS_SHAPE(rows, which == 0 ? out : in));
  c.prior[0] = which == 2 ? c.out[0].data : NULL;
  double seconds = seconds_of(&c);
  run_free(&c);
  return seconds;
}

static void experts(int64_t experts, int64_t each, int64_t in, int64_t out, ts_dtype dtype, int threads) {
  const int64_t rows = experts * each;
  const product dense[] = {{"y", rows, out, in, false, true, false},
                           {"dx", rows, in, out, false, false, false},
                           {"dw", out, in, rows, true, false, true}};
  printf("  %d experts of %d rows, %d x %d:", (int) experts, (int) each, (int) in, (int) out);
  for (int i = 0; i < 3; ++i) {
    double rate =
        2e-9 * (double) rows * (double) in * (double) out / grouped_seconds(i, experts, each, in, out, dtype, threads);
    double of = product_rate(&dense[i], dtype, threads);
    printf("  %s %.0f GFLOP/s, %.0f %% of a dense product's", dense[i].name, rate, 100 * rate / of);
  }
  printf("\n");
  fflush(stdout);
}

/* Their products are measured against dense ones beside them, not against the peak. */
static void all_experts(ts_dtype dtype, int threads, double peak) {
  (void) peak;
  static const int64_t each[] = {8, 16, 64, 256};
  for (int i = 0; i < 4; ++i) {
    experts(64, each[i], 1024, 512, dtype, threads);
  }
  experts(8, 512, 1024, 1792, dtype, threads);
}

static void heads(ts_dtype dtype, int threads, double peak) {
  head(1024, 768, 50257, dtype, threads, peak);
  head(2048, 256, 256, dtype, threads, peak);
  shared_head(1024, 768, 50257, 1, dtype, threads, peak);
  shared_head(1024, 768, 50257, 2, dtype, threads, peak);
  shared_head(1024, 768, 50257, 4, dtype, threads, peak);
}

static void attentions(ts_dtype dtype, int threads, double peak) {
  attention((attention_shape){4, 256, 12, 12, 64, 0, 0, 0}, dtype, threads, peak);
  attention((attention_shape){8, 256, 4, 2, 64, 0, 0, 0}, dtype, threads, peak);
  attention((attention_shape){1, 2048, 8, 8, 128, 0, 0, 0}, dtype, threads, peak);
  attention((attention_shape){4, 256, 12, 12, 64, 0.1f, 0, 0}, dtype, threads, peak);
  masked_attention((attention_shape){1, 8192, 4, 2, 64, 0, 0, 0}, dtype, threads);
}

int main(int n_arguments, char **argument) {
  static const struct {
    const char *name;
    void (*run)(ts_dtype dtype, int threads, double peak);
  } section[] = {{"head", heads}, {"attention", attentions}, {"products", products}, {"experts", all_experts}};
  static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
  int threads = n_arguments > 1 ? atoi(argument[1]) : 2;
  for (int i = 0; i < 3; ++i) {
    ts_dtype dtype = dtypes[i];
    if (n_arguments > 2 && strcmp(argument[2], ts_dtype_name(dtype)) != 0) {
      continue;
    }
    double peak = peak_rate(dtype, threads);
    printf("%s, %d threads, %s: peak %.0f GFLOP/s\n", ts_dtype_name(dtype), threads, ts_backend_cpu()->describe(),
           peak);
    for (int k = 0; k < 4; ++k) {
      if (n_arguments <= 3 || strcmp(argument[3], section[k].name) == 0) {
        section[k].run(dtype, threads, peak);
      }
    }
  }
  return 0;
}
