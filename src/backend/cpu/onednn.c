#include "backend/cpu/onednn.h"

#include "backend/cpu/onednn_version.h"
#include "backend/cpu/processor.h"
#include "base/memory.h"
#include "base/status.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define CHECK(call)                                                                  \
  do {                                                                               \
    dnnl_status_t status_ = (call);                                                  \
    TS_CHECK(status_ == dnnl_success, "%s: oneDNN status %d", #call, (int) status_); \
  } while (0)

/* The arguments of an execution, in the order of ts_product.memory. */
enum { ARG_A, ARG_B, ARG_C, ARG_BIAS, ARG_PRIOR, ARG_SCRATCH, N_ARGS };

/* What a product is made by: asked for once, as an answer takes a tenth of a millisecond, and layers, plans and
 * searches ask for the same again and again. */
typedef struct choice {
  ts_product_spec spec;
  dnnl_primitive_desc_t desc; /* NULL: oneDNN has none */
  dnnl_primitive_t primitive; /* NULL before the first run: to write its code takes milliseconds, and many never run */
  int users;                  /* products, of one that they share */
} choice;

struct ts_product {
  choice *chosen, own;          /* what is shared, or its own */
  dnnl_memory_t memory[N_ARGS]; /* NULL before the first run, and where the product has no such argument */
};

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void make_engine(void) {
  CHECK(dnnl_engine_create(&engine, dnnl_cpu, 0));
  CHECK(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
}

static void ensure_engine(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_engine);
}

static dnnl_data_type_t data_type(ts_dtype dtype) {
  TS_ASSERT(dtype == TS_F32 || dtype == TS_BF16);
  return dtype == TS_F32 ? dnnl_f32 : dnnl_bf16;
}

static ts_dnnl_desc matrix(int64_t rows, int64_t columns, int64_t ld, bool transposed, ts_dtype dtype) {
  ts_dnnl_desc result;
  dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
  CHECK(ts_dnnl_desc_create(&result, dims, data_type(dtype), strides));
  return result;
}

/* User-managed scratch, and the addend as a post-operation. */
static dnnl_primitive_attr_t attributes(const ts_product_spec *spec, ts_dnnl_const_desc c) {
  dnnl_primitive_attr_t result;
  CHECK(dnnl_primitive_attr_create(&result));
  CHECK(dnnl_primitive_attr_set_scratchpad_mode(result, dnnl_scratchpad_mode_user));
  if (spec->addend != TS_ADDEND_NONE) {
    dnnl_post_ops_t ops;
    CHECK(dnnl_post_ops_create(&ops));
    if (spec->addend == TS_ADDEND_C) {
      CHECK(ts_dnnl_append_sum(ops));
    } else {
      CHECK(dnnl_post_ops_append_binary(ops, dnnl_binary_add, c));
    }
    CHECK(dnnl_primitive_attr_set_post_ops(result, ops));
    CHECK(dnnl_post_ops_destroy(ops));
  }
  return result;
}

static bool is_dense(const ts_product_spec *spec) {
  return spec->lda == (spec->transpose_a ? spec->m : spec->k) && spec->ldb == (spec->transpose_b ? spec->k : spec->n) &&
         spec->ldc == spec->n;
}

/* The plain GEMM, below, sums slices of a short K in parallel when threads outnumber the blocks of a small result; from
 * this size on, with K < 2048, 1 to 192 threads gave the same bits.  128 x 513 does not; nor, in fp32 and at any size,
 * what does not turn a: there one thread may take another way than two. */
static bool is_large(const ts_product_spec *spec) {
  return spec->m >= 256 && spec->n >= 256;
}

/* oneDNN's first choice copies a transposed matrix a before use; its second, the plain GEMM, does not and is up to 1.4
 * times as fast on weight gradients.  It is the only choice where rows are not dense.  In oneDNN 3 (seen in 3.7.2) its
 * bf16 sums depend on threads at any size. */
static bool prefers_gemm(const ts_product_spec *spec) {
  return DNNL_VERSION_MAJOR < 3 && spec->transpose_a && is_large(spec) && spec->addend != TS_ADDEND_PRIOR;
}

static dnnl_primitive_desc_t choose_implementation(const ts_product_spec *spec, const ts_dnnl_matmul *matmul) {
  dnnl_primitive_desc_t best = ts_dnnl_implementation(engine, matmul, 0);
  for (int i = 1; best != NULL && prefers_gemm(spec); ++i) {
    dnnl_primitive_desc_t next = ts_dnnl_implementation(engine, matmul, i);
    if (next == NULL) {
      break;
    }
    const char *name = "";
    CHECK(dnnl_primitive_desc_query(next, dnnl_query_impl_info_str, 0, &name));
    bool found = strncmp(name, "gemm:jit", 8) == 0;
    CHECK(dnnl_primitive_desc_destroy(found ? best : next));
    if (found) {
      return next;
    }
  }
  return best;
}

/* A primitive is made for the number of threads OpenMP would use at that moment, and must be run with as many. */
static int set_threads(int threads) {
  int before = omp_get_max_threads();
  if (before != threads) {
    omp_set_num_threads(threads);
  }
  return before;
}

static dnnl_primitive_desc_t ask_onednn(const ts_product_spec *spec) {
  ts_dnnl_desc a = matrix(spec->m, spec->k, spec->lda, spec->transpose_a, spec->in);
  ts_dnnl_desc b = matrix(spec->k, spec->n, spec->ldb, spec->transpose_b, spec->in);
  ts_dnnl_desc c = matrix(spec->m, spec->n, spec->ldc, false, spec->out);
  ts_dnnl_desc bias = spec->bias ? matrix(1, spec->n, spec->n, false, spec->in) : NULL;
  int before = set_threads(spec->threads);
  dnnl_primitive_attr_t attr = attributes(spec, c);
  dnnl_primitive_desc_t desc = choose_implementation(spec, &(ts_dnnl_matmul){a, b, bias, c, attr});
  CHECK(dnnl_primitive_attr_destroy(attr));
  set_threads(before);
  ts_dnnl_desc descs[] = {a, b, c, bias};
  for (int i = 0; i < 4; ++i) {
    if (descs[i] != NULL) {
      CHECK(ts_dnnl_desc_destroy(descs[i]));
    }
  }
  return desc;
}

/* ---- choices ---- */

enum { N_CHOICES = 512, N_PLACES = 8 };

static choice choices[N_CHOICES]; /* by a hash; kept for who comes next, until one that meets it takes its place */
static pthread_mutex_t choices_mutex = PTHREAD_MUTEX_INITIALIZER;

enum { KEY = 13 };

static void make_key(int64_t key[KEY], const ts_product_spec *s) {
  const int64_t values[KEY] = {s->m,           s->n,           s->k,    s->lda,      s->ldb,       s->ldc,
                               s->transpose_a, s->transpose_b, s->bias, (int) s->in, (int) s->out, (int) s->addend,
                               s->threads};
  memcpy(key, values, sizeof values);
}

static bool is_same(const ts_product_spec *one, const ts_product_spec *other) {
  int64_t a[KEY], b[KEY];
  make_key(a, one);
  make_key(b, other);
  return memcmp(a, b, sizeof a) == 0;
}

static void forget_choice(choice *chosen) {
  if (chosen->primitive != NULL) {
    CHECK(dnnl_primitive_destroy(chosen->primitive));
    chosen->primitive = NULL;
  }
  if (chosen->desc != NULL) {
    CHECK(dnnl_primitive_desc_destroy(chosen->desc));
    chosen->desc = NULL;
  }
}

/* Where it is or may come: in the first places from its hash on, else `own`, as products that live share those. */
static choice *look_up_choice(const ts_product_spec *spec, choice *own) {
  int64_t key[KEY];
  make_key(key, spec);
  const uint64_t hash = XXH3_64bits(key, sizeof key);
  choice *found = own;
  for (uint64_t i = 0; i < N_PLACES; ++i) {
    choice *place = &choices[(hash + i) % N_CHOICES];
    if (is_same(&place->spec, spec)) {
      return place;
    }
    found = found == own && place->users == 0 ? place : found;
  }
  return found;
}

static choice *take_choice(const ts_product_spec *spec, choice *own) {
  pthread_mutex_lock(&choices_mutex);
  choice *chosen = look_up_choice(spec, own);
  if (!is_same(&chosen->spec, spec)) {
    forget_choice(chosen);
    *chosen = (choice){.spec = *spec, .desc = ask_onednn(spec)};
  }
  ++chosen->users;
  pthread_mutex_unlock(&choices_mutex);
  return chosen;
}

static void leave_choice(choice *chosen, choice *own) {
  pthread_mutex_lock(&choices_mutex);
  --chosen->users;
  pthread_mutex_unlock(&choices_mutex);
  forget_choice(own);
}

/* ---- products ---- */

ts_product *ts_product_create(const ts_product_spec *spec) {
  TS_ASSERT(spec->m > 0 && spec->n > 0 && spec->k > 0 && spec->threads > 0);
  ensure_engine();
  ts_product *product = ts_calloc(1, sizeof *product);
  product->chosen = take_choice(spec, &product->own);
  if (product->chosen->desc == NULL) {
    ts_product_destroy(&product);
  }
  return product;
}

void ts_product_destroy(ts_product **product) {
  if (*product == NULL) {
    return;
  }
  for (int i = 0; i < N_ARGS; ++i) {
    if ((*product)->memory[i] != NULL) {
      CHECK(dnnl_memory_destroy((*product)->memory[i]));
    }
  }
  leave_choice((*product)->chosen, &(*product)->own);
  ts_free(*product);
  *product = NULL;
}

size_t ts_product_scratch(const ts_product *product) {
  return product == NULL ? 0
                         : dnnl_memory_desc_get_size(
                               dnnl_primitive_desc_query_md(product->chosen->desc, dnnl_query_scratchpad_md, 0));
}

static dnnl_memory_t unbound(const ts_product *product, dnnl_query_t which, int index) {
  dnnl_memory_t result;
  ts_dnnl_const_desc desc = dnnl_primitive_desc_query_md(product->chosen->desc, which, index);
  CHECK(dnnl_memory_create(&result, desc, engine, DNNL_MEMORY_NONE));
  return result;
}

/* In a parallel region, too: oneDNN keeps code by shape and threads. */
static void ensure_primitive(choice *chosen) {
  pthread_mutex_lock(&choices_mutex);
  if (chosen->primitive == NULL) {
    int before = set_threads(chosen->spec.threads);
    CHECK(dnnl_primitive_create(&chosen->primitive, chosen->desc));
    set_threads(before);
  }
  pthread_mutex_unlock(&choices_mutex);
}

static void prepare_run(ts_product *product) {
  const ts_product_spec *spec = &product->chosen->spec;
  ensure_primitive(product->chosen);
  product->memory[ARG_A] = unbound(product, dnnl_query_src_md, 0);
  product->memory[ARG_B] = unbound(product, dnnl_query_weights_md, 0);
  product->memory[ARG_C] = unbound(product, dnnl_query_dst_md, 0);
  product->memory[ARG_BIAS] = spec->bias ? unbound(product, dnnl_query_weights_md, 1) : NULL;
  product->memory[ARG_PRIOR] = spec->addend == TS_ADDEND_PRIOR ? unbound(product, dnnl_query_dst_md, 0) : NULL;
  product->memory[ARG_SCRATCH] = unbound(product, dnnl_query_scratchpad_md, 0);
}

void ts_product_run(ts_product *product, const void *a, const void *b, void *c, const void *bias, const void *prior,
                    void *scratch) {
  static const int arg[N_ARGS] = {DNNL_ARG_SRC,
                                  DNNL_ARG_WEIGHTS,
                                  DNNL_ARG_DST,
                                  DNNL_ARG_BIAS,
                                  DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1,
                                  DNNL_ARG_SCRATCHPAD};
  const void *pointer[N_ARGS] = {a, b, c, bias, prior, scratch};
  if (product->memory[ARG_A] == NULL) {
    prepare_run(product);
  }
  dnnl_exec_arg_t args[N_ARGS];
  int n = 0;
  for (int i = 0; i < N_ARGS; ++i) {
    if (product->memory[i] != NULL) {
      CHECK(dnnl_memory_set_data_handle(product->memory[i], (void *) (uintptr_t) pointer[i]));
      args[n++] = (dnnl_exec_arg_t){arg[i], product->memory[i]};
    }
  }
  int threads = product->chosen->spec.threads, before = omp_in_parallel() ? threads : set_threads(threads);
  CHECK(dnnl_primitive_execute(product->chosen->primitive, stream, n, args));
  if (before != threads) {
    set_threads(before);
  }
}

void ts_sgemm_run(const ts_sgemm *g, const float *a, const float *b, float *c) {
  int before = omp_in_parallel() ? 1 : set_threads(1);
  CHECK(dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k, 1.0f, a, g->lda, b, g->ldb,
                   g->adds ? 1.0f : 0.0f, c, g->ldc));
  if (before != 1) {
    set_threads(before);
  }
}

static bool has_isa(dnnl_cpu_isa_t needed) {
  return (dnnl_get_effective_cpu_isa() & needed) == needed;
}

bool ts_onednn_has_bf16(void) {
  return has_isa(dnnl_cpu_isa_avx512_core_amx) ||
         (has_isa(dnnl_cpu_isa_avx512_core_bf16) && ts_processor_has_fast_bf16());
}

/* Where no matrix is turned oneDNN reads b where it lies, a few columns at a time: of many rows each is on a page of
 * its own, and they meet in the same sets of the caches.  A smaller result has too few tiles for many threads. */
static bool reads_far(const ts_product_spec *spec) {
  bool turned = spec->transpose_a || spec->transpose_b;
  int64_t b = spec->k * spec->n, c = spec->m * spec->n;
  return !turned && (b >= (int64_t) 1 << 20 || (b >= (int64_t) 1 << 16 && c >= (int64_t) 1 << 18));
}

bool ts_onednn_tiles(const ts_product_spec *spec) {
  switch (spec->in) {
    case TS_F32: {
      bool safe = is_dense(spec) || (is_large(spec) && spec->transpose_a);
      return !has_isa(dnnl_cpu_isa_avx512_core) || !safe || reads_far(spec);
    }
    case TS_BF16: {
      bool safe = is_dense(spec) || (is_large(spec) && DNNL_VERSION_MAJOR < 3);
      return !ts_onednn_has_bf16() || !safe;
    }
    default: return true;
  }
}

int64_t ts_onednn_split_k(const ts_product_spec *spec) {
  const int64_t longest = 1024;
  if ((is_dense(spec) && !spec->transpose_a) || spec->k < 2 * longest) {
    return spec->k;
  }
  int64_t blocks = (spec->k + longest - 1) / longest;
  return ((spec->k + blocks - 1) / blocks + 63) / 64 * 64;
}

void ts_onednn_limit(const char *isa) {
  static const struct {
    const char *name;
    dnnl_cpu_isa_t isa;
  } row[] = {{"generic", dnnl_cpu_isa_sse41}, {"v3", dnnl_cpu_isa_avx2}};
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    if (strcmp(isa, row[i].name) == 0) {
      CHECK(dnnl_set_max_cpu_isa(row[i].isa));
    }
  }
}

const char *ts_onednn_describe(void) {
  static const struct {
    dnnl_cpu_isa_t isa;
    const char *name;
  } row[] = {{dnnl_cpu_isa_sse41, "sse41"},
             {dnnl_cpu_isa_avx, "avx"},
             {dnnl_cpu_isa_avx2, "avx2"},
             {dnnl_cpu_isa_avx512_core, "avx512_core"},
             {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
             {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
             {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"},
             {dnnl_cpu_isa_avx2_vnni, "avx2_vnni"}};
  static char text[64];
  const dnnl_version_t *version = dnnl_version();
  dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  const char *name = "unknown";
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    name = row[i].isa == isa ? row[i].name : name;
  }
  snprintf(text, sizeof text, "%d.%d.%d, %s", version->major, version->minor, version->patch, name);
  return text;
}
