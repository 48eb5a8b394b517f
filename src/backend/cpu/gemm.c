#include "backend/cpu/gemm.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/team.h"
#include "base/memory.h"
#include "base/status.h"

#include <omp.h>
#include <string.h>

/* The largest tile, of what is copied so low that its copy stays in the second-level cache; how many tiles there are
 * at least, as far as LEAST_M rows or LEAST_N columns are left; of what is copied, K is done in blocks, so that a
 * thread's copies stay in its caches for the most part.  Where K is long tiles keep SLICED_M rows, and parts of K of at
 * least SLICE_K make up the number. */
enum { TILE_M = 1024, COPIED_M = 256, TILE_N = 384, LEAST_M = 128, LEAST_N = 192, TILES = 16, TILE_K = 1024 };
enum { SLICED_M = 256, SLICE_K = 4096, TALL = 1 << 15 };

/* Floats between the rows of a copy, so that they do not all meet in the same sets of the caches. */
enum { PAD = 16 };

#define MOST_COPIED ((size_t) 8 << 20) /* bytes of an operand that a thread brings together for all of K */

typedef struct cut {
  int64_t m, n, down, across; /* of a tile; tiles */
} cut;

struct ts_gemm {
  ts_gemm_spec spec;
  bool vector;   /* a is one row */
  bool wide;     /* the products write an fp32 accumulator in the workspace */
  int64_t block; /* K is done in blocks of so many, the last one shorter */
  ts_product *first[TS_N_ADDENDS], *middle, *last;
  cut tile; /* all 0: not in tiles */
  int64_t tile_k;
  int64_t slices, slice; /* of K, each of `slice` (the last: fewer), with sums of its own that are added up in order */
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

/* Of a result with so many rows (a vocabulary's gradient) a turned fp32 operand has each row of K far from the last
 * one, and oneDNN reads a few columns of them at a time. */
static bool is_tall(const ts_gemm_spec *s) {
  return s->in == TS_F32 && s->transpose_a && s->m >= TALL;
}

/* Operands that are copied in fp32. */
static bool is_copied(const ts_gemm_spec *s) {
  return s->in != TS_F32 || is_tall(s);
}

/* Whether copies of b are turned: products of many rows win more by that than it takes. */
static bool is_turned(const ts_gemm_spec *s) {
  return is_copied(s) && s->transpose_b && s->m >= LEAST_M;
}

/* Pieces of n elements of at most `most`, as equal as whole cache lines can be. */
static int64_t equal_pieces(int64_t n, int64_t most) {
  int64_t pieces = (n + most - 1) / most;
  return min(n, ((n + pieces - 1) / pieces + 15) / 16 * 16);
}

static cut cut_into(int64_t m, int64_t n, int64_t most_m, int64_t most_n) {
  cut c = {.m = equal_pieces(m, most_m), .n = equal_pieces(n, most_n)};
  c.down = (m + c.m - 1) / c.m;
  c.across = (n + c.n - 1) / c.n;
  return c;
}

static cut cut_result(int64_t m, int64_t n, int64_t most_m, int64_t least_m, int64_t least_n) {
  int64_t most_n = TILE_N;
  cut c = cut_into(m, n, most_m, most_n);
  while (c.down * c.across < TILES && (most_m > least_m || most_n > least_n)) {
    *(most_m > least_m ? &most_m : &most_n) /= 2;
    c = cut_into(m, n, most_m, most_n);
  }
  return c;
}

/* By shape alone: a tile's bits may depend on what it is a tile of. */
static void make_tiles(ts_gemm *gemm) {
  const ts_gemm_spec *s = &gemm->spec;
  int64_t most_m = is_copied(s) ? COPIED_M : TILE_M;
  cut large = cut_result(s->m, s->n, most_m, SLICED_M, TILE_N);
  int64_t wanted = (TILES + large.down * large.across - 1) / (large.down * large.across);
  gemm->slices = min(wanted, s->k / SLICE_K);
  bool sliced = gemm->slices > 1;
  gemm->tile = sliced ? large : cut_result(s->m, s->n, most_m, LEAST_M, LEAST_N);
  gemm->slices = sliced ? gemm->slices : 1;
  gemm->slice = sliced ? ((s->k + gemm->slices - 1) / gemm->slices + 63) / 64 * 64 : s->k;
  gemm->tile_k = is_copied(s) ? min(gemm->slice, TILE_K) : gemm->slice;
}

int64_t ts_gemm_tiles(int64_t m, int64_t n) {
  cut c = cut_result(m, n, TILE_M, LEAST_M, LEAST_N);
  return c.down * c.across;
}

/* A part of an operand: where it is, and between its rows. */
typedef struct operand {
  const float *data;
  int64_t ld;
} operand;

/* Rows and columns of a stored matrix from an element on: themselves, or copied into `buffer` in fp32. */
static operand operand_part(const ts_gemm_spec *s, const void *x, int64_t ld, int64_t row, int64_t column, int64_t rows,
                            int64_t columns, float *buffer) {
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  int64_t at = row * ld + column, to = columns + PAD;
  if (buffer == NULL) {
    return (operand){(const float *) x + at, ld};
  }
  for (int64_t i = 0; i < rows; ++i) {
    loops->widen(buffer + i * to, (const char *) x + (size_t) (at + i * ld) * element(s->in), s->in, columns);
  }
  return (operand){buffer, to};
}

/* Memory of a thread. */
typedef struct tile_buffers {
  float *a, *b, *c;
  operand whole_a, whole_b; /* what was copied of all of K: */
  int64_t row, column;      /* of a from this row on, of b from this column */
} tile_buffers;

static bool is_sliced(const ts_gemm *gemm) {
  return gemm->slices > 1;
}

/* Whether so many rows or columns of an operand are copied for all of K at once, as tiles share them. */
static bool copies_all(const ts_gemm *gemm, bool shared, int64_t n) {
  return shared && !is_sliced(gemm) && (size_t) (gemm->spec.k * n) * sizeof(float) <= MOST_COPIED;
}

/* Of K, what is copied of a tile's part of a at a time; 0: nothing is. */
static int64_t copied_a(const ts_gemm *gemm) {
  const ts_gemm_spec *s = &gemm->spec;
  bool shared = is_copied(s) && gemm->tile.down == 1 && gemm->tile.across > 1;
  return copies_all(gemm, shared, gemm->tile.m) ? s->k : is_copied(s) ? gemm->tile_k : 0;
}

/* The same of b.  Tiles below one another share all of it where it is no more than MOST_COPIED, in fp32 too where it is
 * not turned: then it is read page by page, instead of a line of each. */
static int64_t copied_b(const ts_gemm *gemm) {
  const ts_gemm_spec *s = &gemm->spec;
  bool shared = gemm->tile.down > 1 && (is_copied(s) || !s->transpose_b);
  return copies_all(gemm, shared, gemm->tile.n) ? s->k : is_copied(s) ? gemm->tile_k : 0;
}

/* Bytes of a copy: k rows of n if `by_k`, otherwise n rows of k. */
static size_t bytes_of_copy(int64_t k, int64_t n, bool by_k) {
  return k == 0 ? 0 : ts_cpu_align((size_t) (by_k ? k * (n + PAD) : n * (k + PAD)) * sizeof(float));
}

static void count_tile_bytes(const ts_gemm *gemm, size_t bytes[3]) {
  const ts_gemm_spec *s = &gemm->spec;
  bool narrow = s->out != TS_F32 && !is_sliced(gemm);
  bytes[0] = bytes_of_copy(copied_a(gemm), gemm->tile.m, s->transpose_a);
  bytes[1] = bytes_of_copy(copied_b(gemm), gemm->tile.n, !s->transpose_b || is_turned(s));
  bytes[2] = narrow ? ts_cpu_align((size_t) (gemm->tile.m * gemm->tile.n) * sizeof(float)) : 0;
}

static tile_buffers tile_buffers_of(const ts_gemm *gemm, void *workspace, int thread) {
  size_t bytes[3];
  count_tile_bytes(gemm, bytes);
  char *at = (char *) workspace + (size_t) thread * (bytes[0] + bytes[1] + bytes[2]);
  return (tile_buffers){.a = bytes[0] > 0 ? (float *) at : NULL,
                        .b = bytes[1] > 0 ? (float *) (at + bytes[0]) : NULL,
                        .c = (float *) (at + bytes[0] + bytes[1])};
}

/* What a product is called with. */
typedef struct arguments {
  const void *a, *b, *bias, *prior;
  void *c;
  float beta;
} arguments;

/* A tile: rows from i, columns from j on, of K what is from k to end. */
typedef struct tile {
  int64_t i, j, m, n, k, end;
} tile;

/* y = acc + bias + beta prior in a tile, row by row. */
static void finish_tile(const ts_gemm_spec *s, const arguments *x, const tile *t, const float *acc, int64_t ld,
                        const void *bias, const void *prior) {
  const ts_cpu_loops *loops = ts_cpu_loops_best();
  const void *added = bias == NULL ? NULL : (const char *) bias + (size_t) t->j * element(s->in);
  for (int64_t i = 0; i < t->m; ++i) {
    size_t at = (size_t) ((t->i + i) * s->ldc + t->j) * element(s->out);
    loops->finish((char *) x->c + at, s->out, acc == NULL ? NULL : acc + i * ld, added, s->in,
                  prior == NULL ? NULL : (const char *) prior + at, x->beta, t->n);
  }
}

static operand a_part(const ts_gemm *gemm, const void *a, const tile *t, int64_t k, int64_t n_k, float *buffer) {
  const ts_gemm_spec *s = &gemm->spec;
  return s->transpose_a ? operand_part(s, a, s->lda, k, t->i, n_k, t->m, buffer)
                        : operand_part(s, a, s->lda, t->i, k, t->m, n_k, buffer);
}

/* Rows [k, k + n_k) of a tile's part of b. */
static operand b_part(const ts_gemm *gemm, const void *b, const tile *t, int64_t k, int64_t n_k, float *buffer) {
  const ts_gemm_spec *s = &gemm->spec;
  if (!s->transpose_b) {
    return operand_part(s, b, s->ldb, k, t->j, n_k, t->n, buffer);
  }
  if (!is_turned(s)) {
    return operand_part(s, b, s->ldb, t->j, k, t->n, n_k, buffer);
  }
  const char *from = (const char *) b + (size_t) (t->j * s->ldb + k) * element(s->in);
  ts_cpu_loops_best()->widen_turned(buffer, t->n + PAD, from, s->in, s->ldb, t->n, n_k);
  return (operand){buffer, t->n + PAD};
}

/* From k on: K is what rows are counted by, or columns. */
static operand later(operand x, bool by_row, int64_t k) {
  return (operand){x.data + (by_row ? k * x.ld : k), x.ld};
}

/* c = a b of a tile, or c + a b. */
static void product_of_tile(const ts_gemm *gemm, const arguments *x, const tile *t, tile_buffers *buffer, float *c,
                            int64_t ldc, bool adds) {
  const ts_gemm_spec *s = &gemm->spec;
  bool whole_a = copied_a(gemm) == s->k, whole_b = copied_b(gemm) == s->k;
  ts_sgemm g = {
      .m = t->m, .n = t->n, .ldc = ldc, .transpose_a = s->transpose_a, .transpose_b = s->transpose_b && !is_turned(s)};
  if (whole_a && (buffer->whole_a.data == NULL || buffer->row != t->i)) {
    buffer->whole_a = a_part(gemm, x->a, t, 0, s->k, buffer->a);
    buffer->row = t->i;
  }
  if (whole_b && (buffer->whole_b.data == NULL || buffer->column != t->j)) {
    buffer->whole_b = b_part(gemm, x->b, t, 0, s->k, buffer->b);
    buffer->column = t->j;
  }
  for (int64_t k = t->k; k < t->end; k += gemm->tile_k) {
    g.k = min(gemm->tile_k, t->end - k);
    operand a = whole_a ? later(buffer->whole_a, s->transpose_a, k) : a_part(gemm, x->a, t, k, g.k, buffer->a);
    operand b = whole_b ? later(buffer->whole_b, !g.transpose_b, k) : b_part(gemm, x->b, t, k, g.k, buffer->b);
    g.lda = a.ld;
    g.ldb = b.ld;
    g.adds = adds || k > t->k;
    ts_sgemm_run(&g, a.data, b.data, c);
  }
}

static void run_tile(const ts_gemm *gemm, const arguments *x, const tile *t, tile_buffers *buffer) {
  const ts_gemm_spec *s = &gemm->spec;
  bool narrow = s->out != TS_F32, adds = !narrow && x->prior != NULL;
  float *c = narrow ? buffer->c : (float *) x->c + t->i * s->ldc + t->j;
  int64_t ldc = narrow ? t->n : s->ldc;
  if (adds && (x->prior != x->c || x->beta != 1.0f)) {
    finish_tile(s, x, t, NULL, 0, NULL, x->prior);
  }
  product_of_tile(gemm, x, t, buffer, c, ldc, adds);
  if (narrow || x->bias != NULL) {
    finish_tile(s, x, t, c, ldc, x->bias, narrow ? x->prior : NULL);
  }
}

static int64_t units(const ts_gemm *gemm) {
  return gemm->tile.down * gemm->tile.across * gemm->slices;
}

static int64_t threads_of_tiles(const ts_gemm *gemm) {
  return min(gemm->spec.threads, units(gemm));
}

static tile unit_tile(const ts_gemm *gemm, int64_t unit) {
  const ts_gemm_spec *s = &gemm->spec;
  const cut *c = &gemm->tile;
  int64_t tiles = c->down * c->across, i = unit % tiles;
  tile t = {.i = i % c->down * c->m, .j = i / c->down * c->n, .k = unit / tiles * gemm->slice};
  t.m = min(c->m, s->m - t.i);
  t.n = min(c->n, s->n - t.j);
  t.end = min(t.k + gemm->slice, s->k);
  return t;
}

static size_t slices_bytes(const ts_gemm *gemm) {
  size_t floats = (size_t) (gemm->spec.m * gemm->spec.n * gemm->slices);
  return is_sliced(gemm) ? ts_cpu_align(floats * sizeof(float)) : 0;
}

/* The sums of the first slice become those of all. */
static void add_slices(const ts_gemm *gemm, float *sums) {
  int64_t n = gemm->spec.n, apart = gemm->spec.m * n;
#pragma omp parallel for schedule(static) num_threads(gemm->spec.threads)
  for (int64_t i = 0; i < gemm->spec.m; ++i) {
    float *to = sums + i * n;
    for (int64_t r = 1; r < gemm->slices; ++r) {
      const float *from = to + r * apart;
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        to[j] += from[j];
      }
    }
  }
}

/* The workspace: slices' sums [slices][m][n], then the threads' buffers. */
static void multiply_tiles(const ts_gemm *gemm, const arguments *x, void *workspace) {
  const ts_gemm_spec *s = &gemm->spec;
  float *sums = workspace;
  ts_team team;
  ts_team_begin(&team, units(gemm), (int) threads_of_tiles(gemm));
#pragma omp parallel num_threads(threads_of_tiles(gemm))
  {
    int thread = omp_get_thread_num();
    tile_buffers buffer = {0};
    if (gemm->workspace > 0) {
      buffer = tile_buffers_of(gemm, (char *) workspace + slices_bytes(gemm), thread);
    }
    for (int64_t i = ts_team_next(&team, thread); i >= 0; i = ts_team_next(&team, thread)) {
      tile t = unit_tile(gemm, i);
      if (is_sliced(gemm)) {
        float *own = sums + (t.k / gemm->slice * s->m + t.i) * s->n + t.j;
        product_of_tile(gemm, x, &t, &buffer, own, s->n, false);
      } else {
        run_tile(gemm, x, &t, &buffer);
      }
    }
  }
  if (is_sliced(gemm)) {
    add_slices(gemm, sums);
    finish_rows(s, x->c, sums, x->bias, x->prior, x->beta);
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
  if (is_tall(s) || ts_onednn_tiles(&whole) || !make_chain(gemm)) {
    destroy_chain(gemm);
    gemm->scratch = 0;
    size_t bytes[3];
    make_tiles(gemm);
    count_tile_bytes(gemm, bytes);
    gemm->workspace = slices_bytes(gemm) + (size_t) threads_of_tiles(gemm) * (bytes[0] + bytes[1] + bytes[2]);
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
  if (gemm->tile.m > 0) {
    const arguments x = {.a = a, .b = b, .bias = bias, .prior = prior, .c = c, .beta = beta};
    multiply_tiles(gemm, &x, workspace);
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
