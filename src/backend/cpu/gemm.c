#include "backend/cpu/gemm.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/onednn.h"
#include "base/memory.h"
#include "base/status.h"

#include <omp.h>
#include <string.h>

/* Largest tile: three fp32 tiles of 1.3 MB together fit a second-level cache partly, and at 256 columns the copies cost
 * about 2 % of the arithmetic. */
enum { TILE_M = 256, TILE_N = 256, TILE_K = 512 };

struct ts_gemm {
  ts_gemm_spec spec;
  bool vector;   /* a is one row */
  bool wide;     /* the products write an fp32 accumulator in the workspace */
  int64_t block; /* K is done in blocks of so many, the last one shorter */
  ts_product *first[TS_N_ADDENDS], *middle, *last;
  int64_t tile_m, tile_n, tile_k;    /* all 0: not in tiles */
  ts_product **set_tile, **add_tile; /* owned; one per thread */
  size_t scratch, workspace;
};

static int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static size_t element(ts_dtype dtype) {
  return ts_dtype_size(dtype);
}

/* ---- direct and wide ---- */

static ts_product_spec block_spec(const ts_gemm *gemm, int64_t k, ts_addend addend) {
  const ts_gemm_spec *s = &gemm->spec;
  return (ts_product_spec){.m = s->m,
                           .n = s->n,
                           .k = k,
                           .lda = s->lda,
                           .ldb = s->ldb,
                           .ldc = gemm->wide ? s->n : s->ldc,
                           .transpose_a = s->transpose_a,
                           .transpose_b = s->transpose_b,
                           .bias = s->bias && !gemm->wide,
                           .in = s->in,
                           .out = gemm->wide ? TS_F32 : s->out,
                           .addend = addend,
                           .threads = s->threads};
}

static ts_product *make_product(ts_gemm *gemm, const ts_product_spec *spec) {
  ts_product *product = ts_product_create(spec);
  size_t scratch = ts_product_scratch(product);
  gemm->scratch = scratch > gemm->scratch ? scratch : gemm->scratch;
  return product;
}

/* Primitives for the first block with every addend that can occur, and for the blocks that follow it. */
static bool make_chain(ts_gemm *gemm) {
  const ts_gemm_spec *s = &gemm->spec;
  int n_addends = s->adds && !gemm->wide ? TS_N_ADDENDS : 1;
  for (int addend = 0; addend < n_addends; ++addend) {
    ts_product_spec spec = block_spec(gemm, gemm->block, (ts_addend) addend);
    gemm->first[addend] = make_product(gemm, &spec);
    if (gemm->first[addend] == NULL) {
      return false;
    }
  }
  if (gemm->block < s->k) {
    ts_product_spec spec = block_spec(gemm, gemm->block, TS_ADDEND_C);
    spec.bias = false;
    gemm->middle = make_product(gemm, &spec);
    spec.k = s->k - (s->k - 1) / gemm->block * gemm->block;
    gemm->last = make_product(gemm, &spec);
  }
  return gemm->block == s->k || (gemm->middle != NULL && gemm->last != NULL);
}

static void destroy_chain(ts_gemm *gemm) {
  for (int addend = 0; addend < TS_N_ADDENDS; ++addend) {
    ts_product_destroy(&gemm->first[addend]);
  }
  ts_product_destroy(&gemm->middle);
  ts_product_destroy(&gemm->last);
}

static void run_chain(ts_gemm *gemm, ts_addend addend, const void *a, const void *b, void *c, const void *bias,
                      const void *prior, void *scratch) {
  const ts_gemm_spec *s = &gemm->spec;
  size_t step_a = (size_t) (s->transpose_a ? gemm->block * s->lda : gemm->block) * element(s->in);
  size_t step_b = (size_t) (s->transpose_b ? gemm->block : gemm->block * s->ldb) * element(s->in);
  ts_product_run(gemm->first[addend], a, b, c, bias, prior, scratch);
  for (int64_t k = gemm->block; k < s->k; k += gemm->block) {
    a = (const char *) a + step_a;
    b = (const char *) b + step_b;
    ts_product_run(k + gemm->block < s->k ? gemm->middle : gemm->last, a, b, c, NULL, NULL, scratch);
  }
}

/* c = acc + bias + beta prior, row by row; acc [m][n] or NULL. */
static void finish_rows(const ts_gemm_spec *s, void *c, const float *acc, const void *bias, const void *prior,
                        float beta) {
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  size_t stride = (size_t) s->ldc * element(s->out);
#pragma omp parallel for schedule(static) num_threads(s->threads)
  for (int64_t i = 0; i < s->m; ++i) {
    size_t at = (size_t) i * stride;
    loops->finish((char *) c + at, s->out, acc == NULL ? NULL : acc + i * s->n, bias, s->in,
                  prior == NULL ? NULL : (const char *) prior + at, beta, s->n);
  }
}

/* ---- tiles ---- */

static void make_tiles(ts_gemm *gemm) {
  const ts_gemm_spec *s = &gemm->spec;
  gemm->tile_m = min(s->m, TILE_M);
  gemm->tile_n = min(s->n, TILE_N);
  gemm->tile_k = min(s->k, TILE_K);
  gemm->set_tile = ts_calloc((size_t) s->threads, sizeof *gemm->set_tile);
  gemm->add_tile = ts_calloc((size_t) s->threads, sizeof *gemm->add_tile);
  ts_product_spec spec = {.m = gemm->tile_m,
                          .n = gemm->tile_n,
                          .k = gemm->tile_k,
                          .lda = s->transpose_a ? gemm->tile_m : gemm->tile_k,
                          .ldb = s->transpose_b ? gemm->tile_k : gemm->tile_n,
                          .ldc = gemm->tile_n,
                          .transpose_a = s->transpose_a,
                          .transpose_b = s->transpose_b,
                          .in = TS_F32,
                          .out = TS_F32,
                          .threads = 1};
  for (int thread = 0; thread < s->threads; ++thread) {
    spec.addend = TS_ADDEND_NONE;
    gemm->set_tile[thread] = make_product(gemm, &spec);
    spec.addend = TS_ADDEND_C;
    gemm->add_tile[thread] = make_product(gemm, &spec);
    TS_CHECK(gemm->set_tile[thread] != NULL && gemm->add_tile[thread] != NULL, "oneDNN has no fp32 matrix product");
  }
}

/* The part [row, row + rows) x [column, column + columns) of a stored matrix in fp32, zeros beyond its ends. */
static void load_tile(float *tile, int64_t rows, int64_t columns, const void *from, ts_dtype dtype, int64_t ld,
                      int64_t row, int64_t column, int64_t n_rows, int64_t n_columns) {
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  int64_t width = min(columns, n_columns - column);
  for (int64_t i = 0; i < rows; ++i) {
    float *to = tile + i * columns;
    int64_t used = row + i < n_rows ? width : 0;
    if (used > 0) {
      loops->widen(to, (const char *) from + (size_t) ((row + i) * ld + column) * element(dtype), dtype, used);
    }
    memset(to + used, 0, (size_t) (columns - used) * sizeof *to);
  }
}

/* Tile buffers of one thread inside the workspace. */
typedef struct tile_buffers {
  float *a, *b, *c;
  void *scratch;
} tile_buffers;

static size_t tile_bytes(const ts_gemm *gemm) {
  return ts_cpu_align((size_t) (gemm->tile_m * gemm->tile_k) * sizeof(float)) +
         ts_cpu_align((size_t) (gemm->tile_k * gemm->tile_n) * sizeof(float)) +
         ts_cpu_align((size_t) (gemm->tile_m * gemm->tile_n) * sizeof(float)) + ts_cpu_align(gemm->scratch);
}

static tile_buffers tile_buffers_of(const ts_gemm *gemm, void *workspace, int thread) {
  char *at = (char *) workspace + (size_t) thread * tile_bytes(gemm);
  tile_buffers result = {.a = (float *) at};
  at += ts_cpu_align((size_t) (gemm->tile_m * gemm->tile_k) * sizeof(float));
  result.b = (float *) at;
  at += ts_cpu_align((size_t) (gemm->tile_k * gemm->tile_n) * sizeof(float));
  result.c = (float *) at;
  at += ts_cpu_align((size_t) (gemm->tile_m * gemm->tile_n) * sizeof(float));
  result.scratch = at;
  return result;
}

static void run_tile(ts_gemm *gemm, const tile_buffers *buffer, int64_t i, int64_t j, const void *a, const void *b) {
  const ts_gemm_spec *s = &gemm->spec;
  int thread = omp_get_thread_num();
  for (int64_t k = 0; k < s->k; k += gemm->tile_k) {
    if (s->transpose_a) {
      load_tile(buffer->a, gemm->tile_k, gemm->tile_m, a, s->in, s->lda, k, i, s->k, s->m);
    } else {
      load_tile(buffer->a, gemm->tile_m, gemm->tile_k, a, s->in, s->lda, i, k, s->m, s->k);
    }
    if (s->transpose_b) {
      load_tile(buffer->b, gemm->tile_n, gemm->tile_k, b, s->in, s->ldb, j, k, s->n, s->k);
    } else {
      load_tile(buffer->b, gemm->tile_k, gemm->tile_n, b, s->in, s->ldb, k, j, s->k, s->n);
    }
    ts_product *product = k == 0 ? gemm->set_tile[thread] : gemm->add_tile[thread];
    ts_product_run(product, buffer->a, buffer->b, buffer->c, NULL, NULL, buffer->scratch);
  }
}

static void multiply_tiles(ts_gemm *gemm, const void *a, const void *b, void *c, const void *bias, const void *prior,
                           float beta, void *workspace) {
  const ts_gemm_spec *s = &gemm->spec;
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  int64_t tiles_m = (s->m + gemm->tile_m - 1) / gemm->tile_m, tiles_n = (s->n + gemm->tile_n - 1) / gemm->tile_n;
#pragma omp parallel for schedule(static) num_threads(s->threads)
  for (int64_t tile = 0; tile < tiles_m * tiles_n; ++tile) {
    tile_buffers buffer = tile_buffers_of(gemm, workspace, omp_get_thread_num());
    int64_t i = tile / tiles_n * gemm->tile_m, j = tile % tiles_n * gemm->tile_n;
    run_tile(gemm, &buffer, i, j, a, b);
    for (int64_t row = i; row < min(i + gemm->tile_m, s->m); ++row) {
      size_t at = (size_t) (row * s->ldc + j) * element(s->out);
      loops->finish((char *) c + at, s->out, buffer.c + (row - i) * gemm->tile_n,
                    bias == NULL ? NULL : (const char *) bias + (size_t) j * element(s->in), s->in,
                    prior == NULL ? NULL : (const char *) prior + at, beta, min(gemm->tile_n, s->n - j));
    }
  }
}

/* ---- a row ---- */

/* Elements of c that a thread does at least: whole lines of it. */
enum { LEAST_COLUMNS = 64 };

/* The row in fp32, and sums. */
static size_t vector_bytes(const ts_gemm_spec *s) {
  return ts_cpu_align((size_t) s->k * sizeof(float)) + ts_cpu_align((size_t) s->n * sizeof(float));
}

/* Elements [j, j + n) of c: no sum depends on which others are done with it. */
static void multiply_columns(const ts_gemm_spec *s, const float *x, float *y, const void *b, void *c, const void *bias,
                             const void *prior, float beta, int64_t j, int64_t n) {
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  size_t at = (size_t) j * element(s->out), from = (size_t) j * element(s->in);
  const char *columns = (const char *) b + (s->transpose_b ? (size_t) s->ldb * from : from);
  (s->transpose_b ? loops->times_columns : loops->times_rows)(y + j, x, columns, s->in, s->ldb, s->k, n);
  loops->finish((char *) c + at, s->out, y + j, bias == NULL ? NULL : (const char *) bias + from, s->in,
                prior == NULL ? NULL : (const char *) prior + at, beta, n);
}

static void multiply_vector(const ts_gemm_spec *s, const void *a, const void *b, void *c, const void *bias,
                            const void *prior, float beta, void *workspace) {
  float *x = workspace, *y = (float *) ((char *) workspace + ts_cpu_align((size_t) s->k * sizeof *x));
  int64_t blocks = (s->n + LEAST_COLUMNS - 1) / LEAST_COLUMNS;
  ts_cpu_loops_best()->widen(x, a, s->in, s->k);
#pragma omp parallel num_threads(s->threads)
  {
    int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    int64_t first = blocks * thread / threads * LEAST_COLUMNS;
    int64_t last = min(blocks * (thread + 1) / threads * LEAST_COLUMNS, s->n);
    if (first < last) {
      multiply_columns(s, x, y, b, c, bias, prior, beta, first, last - first);
    }
  }
}

/* ---- the object ---- */

static int64_t dense(int64_t ld, int64_t columns) {
  return ld == 0 ? columns : ld;
}

ts_gemm *ts_gemm_create(const ts_gemm_spec *spec) {
  ts_gemm *gemm = ts_calloc(1, sizeof *gemm);
  gemm->spec = *spec;
  ts_gemm_spec *s = &gemm->spec;
  s->lda = dense(s->lda, s->transpose_a ? s->m : s->k);
  s->ldb = dense(s->ldb, s->transpose_b ? s->k : s->n);
  s->ldc = dense(s->ldc, s->n);
  if (s->m == 0 || s->n == 0 || s->k == 0) {
    return gemm; /* no product: bias and prior alone */
  }
  gemm->block = s->k;
  gemm->vector = s->m == 1 && !s->transpose_a;
  if (gemm->vector) {
    gemm->workspace = vector_bytes(s);
    return gemm;
  }
  ts_product_spec whole = block_spec(gemm, s->k, TS_ADDEND_NONE);
  gemm->block = ts_onednn_split_k(&whole);
  gemm->wide = s->out != TS_F32 && (s->in != s->out || gemm->block < s->k);
  if (ts_onednn_tiles(&whole) || !make_chain(gemm)) {
    destroy_chain(gemm);
    gemm->scratch = 0;
    make_tiles(gemm);
    gemm->workspace = (size_t) s->threads * tile_bytes(gemm);
  } else {
    size_t accumulator = gemm->wide ? ts_cpu_align((size_t) (s->m * s->n) * sizeof(float)) : 0;
    gemm->workspace = accumulator + ts_cpu_align(gemm->scratch);
  }
  return gemm;
}

void ts_gemm_destroy(ts_gemm **gemm) {
  if (*gemm == NULL) {
    return;
  }
  destroy_chain(*gemm);
  for (int thread = 0; (*gemm)->tile_m > 0 && thread < (*gemm)->spec.threads; ++thread) {
    ts_product_destroy(&(*gemm)->set_tile[thread]);
    ts_product_destroy(&(*gemm)->add_tile[thread]);
  }
  ts_free((*gemm)->set_tile);
  ts_free((*gemm)->add_tile);
  ts_free(*gemm);
  *gemm = NULL;
}

size_t ts_gemm_workspace(const ts_gemm *gemm) {
  return gemm->workspace;
}

void ts_gemm_run(ts_gemm *gemm, const void *a, const void *b, void *c, const void *bias, const void *prior, float beta,
                 void *workspace) {
  const ts_gemm_spec *s = &gemm->spec;
  TS_ASSERT(prior == NULL || s->adds);
  prior = beta == 0.0f ? NULL : prior;
  if (gemm->block == 0) {
    finish_rows(s, c, NULL, bias, prior, beta);
    return;
  }
  if (gemm->vector) {
    multiply_vector(s, a, b, c, bias, prior, beta, workspace);
    return;
  }
  if (gemm->tile_m > 0) {
    multiply_tiles(gemm, a, b, c, bias, prior, beta, workspace);
    return;
  }
  if (gemm->wide) {
    char *scratch = (char *) workspace + ts_cpu_align((size_t) (s->m * s->n) * sizeof(float));
    run_chain(gemm, TS_ADDEND_NONE, a, b, workspace, NULL, NULL, scratch);
    finish_rows(s, c, workspace, bias, prior, beta);
    return;
  }
  if (prior != NULL && beta != 1.0f) {
    finish_rows(s, c, NULL, NULL, prior, beta);
    prior = c;
  }
  ts_addend addend = prior == NULL ? TS_ADDEND_NONE : prior == c ? TS_ADDEND_C : TS_ADDEND_PRIOR;
  run_chain(gemm, addend, a, b, c, bias, prior, workspace);
}
