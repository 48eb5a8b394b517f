/* cuBLASLt of the stand-in: descriptors that are checked as the documentation says, a handful of algorithms that add in
 * different orders, and plain loops. */
#include "cublasLt.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vector>

#include "base/dtype.h"
#include "regression/shim/shim.h"

struct shim_blas {
  uint64_t magic;
};
struct shim_matrix {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t order;
};
struct shim_product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t pointer_mode, transa, transb;
  uint32_t epilogue;
  void *bias, *aux;
  int64_t aux_ld;
  int32_t bias_type, aux_type;
};
struct shim_preference {
  uint64_t workspace;
  uint32_t reductions, a, b, c, d;
};

/* An algorithm: K in `split` parts, each summed in fp64 and rounded to fp32 in the workspace, then added in order.  The
 * last two multiply C with a beta of 0 that is on the device, which no document forbids; where beta is there they are
 * the heuristic's first, and the fastest. */
struct method {
  int split;
  size_t alignment;
  uint32_t reduction;
  bool multiplies;
};
static const method methods[] = {
    {1, 16, CUBLASLT_REDUCTION_SCHEME_NONE, false},        {4, 16, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, false},
    {3, 16, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, false}, {2, 16, CUBLASLT_REDUCTION_SCHEME_INPLACE, false},
    {1, 2, CUBLASLT_REDUCTION_SCHEME_NONE, false},         {2, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, false},
    {1, 16, CUBLASLT_REDUCTION_SCHEME_NONE, true},         {2, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, true},
};
enum { N_METHODS = sizeof methods / sizeof *methods, N_GOOD = N_METHODS - 2 };
static const uint64_t HANDLE = 0x7365727065636c74, ALGO = 0x616c676f72697468;

static cublasStatus_t refuse(cublasStatus_t status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "shim: cuBLASLt: ");
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  va_end(args);
  return status;
}

static cublasStatus_t invalid(const char *why) {
  return refuse(CUBLAS_STATUS_INVALID_VALUE, "%s", why);
}

/* ---- handles and descriptors ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  *handle = new shim_blas{HANDLE};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS           ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
         : status == CUBLAS_STATUS_INVALID_VALUE   ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_NOT_SUPPORTED";
}

/* SHIM_BLAS_VERSION: to be another one. */
size_t cublasLtGetVersion(void) {
  const char *text = getenv("SHIM_BLAS_VERSION");
  return text != NULL ? (size_t) atoll(text) : CUBLAS_VERSION;
}

/* Where an attribute lives, with the size that the documentation gives it. */
struct field {
  int attribute;
  void *at;
  size_t bytes;
};

static cublasStatus_t set(const field *row, size_t n, int attribute, const void *value, size_t bytes) {
  for (size_t i = 0; i < n; ++i) {
    if (row[i].attribute == attribute) {
      if (value == NULL || bytes != row[i].bytes) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "attribute %d has %zu bytes, not %zu", attribute, row[i].bytes,
                      bytes);
      }
      memcpy(row[i].at, value, bytes);
      return CUBLAS_STATUS_SUCCESS;
    }
  }
  return refuse(CUBLAS_STATUS_INVALID_VALUE, "no attribute %d", attribute);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  *layout = new shim_matrix{type, rows, columns, ld, CUBLASLT_ORDER_COL};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t m, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes) {
  const field row[] = {{CUBLASLT_MATRIX_LAYOUT_ORDER, &m->order, sizeof m->order}};
  return set(row, 1, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *product = new shim_product{
      compute, scale, CUBLASLT_POINTER_MODE_HOST, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0,
      -1,      -1};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t p, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
  const field row[] = {{CUBLASLT_MATMUL_DESC_POINTER_MODE, &p->pointer_mode, 4},
                       {CUBLASLT_MATMUL_DESC_TRANSA, &p->transa, 4},
                       {CUBLASLT_MATMUL_DESC_TRANSB, &p->transb, 4},
                       {CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, 4},
                       {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, 8},
                       {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux, 8},
                       {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->aux_ld, 8},
                       {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &p->bias_type, 4},
                       {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &p->aux_type, 4}};
  return set(row, sizeof row / sizeof *row, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  *preference = new shim_preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
  const field row[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p->workspace, 8},
                       {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &p->reductions, 4},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->a, 4},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->b, 4},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->c, 4},
                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->d, 4}};
  return set(row, sizeof row / sizeof *row, attribute, value, bytes);
}

/* ---- what is asked for ---- */

struct call {
  shim_product p;
  shim_matrix a, b, c, d;
};

static uint64_t rows_of(const shim_matrix *m, int32_t op) {
  return op == CUBLAS_OP_N ? m->rows : m->columns;
}
static uint64_t columns_of(const shim_matrix *m, int32_t op) {
  return op == CUBLAS_OP_N ? m->columns : m->rows;
}

static bool is_sound(const shim_matrix *m) {
  uint64_t least = m->order == CUBLASLT_ORDER_COL ? m->rows : m->columns;
  return m->rows > 0 && m->columns > 0 && m->ld >= 0 && (uint64_t) m->ld >= least && m->rows < (1u << 31) &&
         m->columns < (1u << 31);
}

static bool same_shape(const shim_matrix *x, const shim_matrix *y) {
  return x->type == y->type && x->rows == y->rows && x->columns == y->columns;
}

static bool has_aux(const shim_product *p) {
  return (p->epilogue & 128) != 0;
}
static bool has_bias(const shim_product *p) {
  return (p->epilogue & 4) != 0;
}

static bool is_narrow(cudaDataType_t type) {
  return type == CUDA_R_16BF || type == CUDA_R_16F;
}

static cublasStatus_t check_types(const call *k) {
  bool narrow = is_narrow(k->a.type), fast = k->p.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (k->a.type != k->b.type || k->c.type != k->d.type || (k->d.type != k->a.type && k->d.type != CUDA_R_32F) ||
      k->p.scale != CUDA_R_32F || (narrow && fast)) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no product of types %d %d to %d %d", k->a.type, k->b.type, k->c.type,
                  k->d.type);
  }
  if (has_bias(&k->p) && k->p.bias_type != -1 && k->p.bias_type != k->d.type) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the bias has the type of D");
  }
  if (has_aux(&k->p) && (!is_narrow(k->d.type) || (k->p.aux_type != -1 && k->p.aux_type != k->d.type))) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "GELU with its input, and its gradient, are for 16 bits");
  }
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check(cublasLtHandle_t handle, const call *k) {
  if (handle == NULL || handle->magic != HANDLE) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  const shim_product *p = &k->p;
  if (!is_sound(&k->a) || !is_sound(&k->b) || !is_sound(&k->c) || !is_sound(&k->d)) {
    return invalid("a matrix without elements, or a leading dimension below its rows");
  }
  if (rows_of(&k->a, p->transa) != k->d.rows || columns_of(&k->b, p->transb) != k->d.columns ||
      columns_of(&k->a, p->transa) != rows_of(&k->b, p->transb) || !same_shape(&k->c, &k->d) ||
      k->c.order != k->d.order) {
    return invalid("shapes do not fit");
  }
  if (has_aux(p) && (p->aux_ld % 8 != 0 || (uint64_t) p->aux_ld < k->d.rows)) {
    return invalid("the auxiliary leading dimension is a multiple of 8 and not below the rows of D");
  }
  return check_types(k);
}

static size_t workspace_of(const call *k, const method *m) {
  return m->split == 1 ? 0 : (size_t) m->split * k->d.rows * k->d.columns * sizeof(float);
}

/* The opaque words: which method, for which product, and their check sum. */
static uint64_t shape_word(const call *k) {
  uint64_t word[] = {k->d.rows,
                     k->d.columns,
                     columns_of(&k->a, k->p.transa),
                     (uint64_t) k->p.transa,
                     (uint64_t) k->p.transb,
                     k->p.epilogue,
                     (uint64_t) k->p.pointer_mode,
                     (uint64_t) k->a.type,
                     (uint64_t) k->d.type},
           hash = ALGO;
  for (uint64_t w : word) {
    hash = (hash ^ w) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash;
}

static cublasLtMatmulAlgo_t algo_of(const call *k, int index) {
  return {
      {ALGO, (uint64_t) index, shape_word(k), 0, 0, 0, 0, (shape_word(k) ^ (uint64_t) index) * 0x9e3779b97f4a7c15u}};
}

static const method *method_of(const call *k, const cublasLtMatmulAlgo_t *algo) {
  if (algo->data[0] != ALGO || algo->data[1] >= N_METHODS) {
    return NULL;
  }
  cublasLtMatmulAlgo_t right = algo_of(k, (int) algo->data[1]);
  return memcmp(&right, algo, sizeof right) == 0 ? &methods[algo->data[1]] : NULL;
}

/* ---- choosing ---- */

static size_t minimum(size_t a, size_t b) {
  return a < b ? a : b;
}

static bool is_allowed(const call *k, const shim_preference *p, const method *m) {
  size_t alignment = minimum(minimum(p->a, p->b), minimum(p->c, p->d));
  size_t element = is_narrow(k->d.type) ? 2 : 4;
  if (has_bias(&k->p) && ((uintptr_t) k->p.bias % m->alignment != 0 || (uintptr_t) k->p.bias % element != 0)) {
    return false;
  }
  return m->alignment <= alignment && (m->reduction == 0 || (m->reduction & p->reductions) != 0) &&
         workspace_of(k, m) <= p->workspace;
}

/* The method in place i: the good ones begin with any of them, by the seed alone, so all ranks have the same. */
static int place(const call *k, int i) {
  static const unsigned first = (unsigned) (shim_seed() * 0x9e3779b97f4a7c15u >> 40) % N_GOOD;
  int bad = N_METHODS - N_GOOD, good = k->p.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE ? i - bad : i;
  return good < 0 ? N_METHODS + good : good < N_GOOD ? (int) ((first + (unsigned) good) % N_GOOD) : good;
}

/* One of the results says that it is none. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *result, int *found) {
  call k = {*product, *a, *b, *c, *d};
  *found = 0;
  cublasStatus_t status = wanted <= 0 ? invalid("no results wanted") : check(handle, &k);
  for (int i = 0; i < N_METHODS && status == CUBLAS_STATUS_SUCCESS && *found < wanted; ++i) {
    int index = place(&k, i);
    if (is_allowed(&k, preference, &methods[index])) {
      result[(*found)++] = {algo_of(&k, index), workspace_of(&k, &methods[index]), CUBLAS_STATUS_SUCCESS, 1, {}};
    }
    if (*found == 1 && wanted > 1) {
      result[(*found)++] = {{{1, 2, 3}}, 0, CUBLAS_STATUS_NOT_SUPPORTED, 0, {}};
    }
  }
  return status == CUBLAS_STATUS_SUCCESS && *found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
  call k = {*product, *a, *b, *c, *d};
  cublasStatus_t status = check(handle, &k);
  if (status == CUBLAS_STATUS_SUCCESS) {
    const method *m = method_of(&k, algo);
    if (m == NULL) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    result->workspaceSize = workspace_of(&k, m);
    result->state = CUBLAS_STATUS_SUCCESS;
  }
  return status;
}

/* ---- computing ---- */

static float get(const void *data, cudaDataType_t type, int64_t i) {
  const uint16_t *half = (const uint16_t *) data;
  return type == CUDA_R_32F   ? ((const float *) data)[i]
         : type == CUDA_R_16F ? ts_f16_to_f32(half[i])
                              : ts_bf16_to_f32(half[i]);
}

static void put(void *data, cudaDataType_t type, int64_t i, double value) {
  if (type == CUDA_R_32F) {
    ((float *) data)[i] = (float) value;
  } else {
    ((uint16_t *) data)[i] = type == CUDA_R_16F ? ts_f32_to_f16((float) value) : ts_f32_to_bf16((float) value);
  }
}

static int64_t at(const shim_matrix *m, uint64_t row, uint64_t column) {
  return m->order == CUBLASLT_ORDER_COL ? (int64_t) row + (int64_t) column * m->ld
                                        : (int64_t) row * m->ld + (int64_t) column;
}

static float to_tf32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

/* op (x) as [k][width], dense, so that inner loops run along rows. */
static std::vector<float> gathered(const void *x, const shim_matrix *m, bool k_is_row, uint64_t depth, uint64_t width,
                                   bool tf32) {
  std::vector<float> y(depth * width);
  for (uint64_t k = 0; k < depth; ++k) {
    for (uint64_t i = 0; i < width; ++i) {
      float value = get(x, m->type, k_is_row ? at(m, k, i) : at(m, i, k));
      y[k * width + i] = tf32 ? to_tf32(value) : value;
    }
  }
  return y;
}

static double rounded(double x, cudaDataType_t type) {
  uint32_t word;
  put(&word, type, 0, x);
  return get(&word, type, 0);
}

/* As seen on an H100: the tanh is off by a rounding to the type of D, the slope is rounded to it.  SHIM_EXACT_GELU: for
 * tests of what else is rounded. */
static double gelu(double x, cudaDataType_t type) {
  static const bool exact = getenv("SHIM_EXACT_GELU") != NULL;
  double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * x * (1 + (exact ? t : rounded(t, type)));
}

static double gelu_slope(double x, cudaDataType_t type) {
  double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return rounded(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x), type);
}

struct work {
  call k;
  method m;
  const void *a, *b, *c;
  void *d;
  float *partial;
  const float *alpha, *beta; /* on the device, or NULL */
  float host_alpha, host_beta;
};

/* Sums of one column of D, a part of K after another; as an algorithm with workspace does, by way of it. */
static void sum_column(const work *w, const std::vector<float> &a, const std::vector<float> &b, uint64_t column,
                       float *sum) {
  uint64_t rows = w->k.d.rows, columns = w->k.d.columns, depth = a.size() / rows, split = (uint64_t) w->m.split;
  std::vector<double> part(rows);
  for (uint64_t s = 0; s < split; ++s) {
    std::fill(part.begin(), part.end(), 0.0);
    for (uint64_t k = depth * s / split; k < depth * (s + 1) / split; ++k) {
      double factor = b[k * columns + column];
      for (uint64_t i = 0; i < rows; ++i) {
        part[i] += a[k * rows + i] * factor;
      }
    }
    for (uint64_t i = 0; i < rows; ++i) {
      float *to = split == 1 ? &sum[i] : &w->partial[(s * columns + column) * rows + i];
      *to = (float) part[i];
    }
  }
  for (uint64_t i = 0; split > 1 && i < rows; ++i) {
    sum[i] = 0;
    for (uint64_t s = 0; s < split; ++s) {
      sum[i] += w->partial[(s * columns + column) * rows + i];
    }
  }
}

static bool rows_are_aligned(const call *k) {
  return (k->a.ld | k->b.ld | k->d.ld) % 8 == 0;
}

/* The epilogue of one element. */
static double finish(const work *w, double x, uint64_t row, uint64_t column) {
  const shim_product *p = &w->k.p;
  cudaDataType_t type = w->k.d.type;
  if (p->epilogue & 4) {
    x = rows_are_aligned(&w->k) ? x : rounded(x, type); /* seen on an H100 */
    x += get(p->bias, type, (int64_t) row);
  }
  int64_t aux = (int64_t) row + (int64_t) column * p->aux_ld;
  if (p->epilogue & 32) {
    put(p->aux, type, aux, x);
    x = gelu(x, type);
  } else if (p->epilogue & 64) {
    x = rounded(x, type) * gelu_slope(get(p->aux, type, aux), type);
  }
  return x;
}

static void compute(const work *w) {
  const call *k = &w->k;
  bool tf32 = k->p.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  uint64_t rows = k->d.rows, columns = k->d.columns, depth = columns_of(&k->a, k->p.transa);
  std::vector<float> a = gathered(w->a, &k->a, k->p.transa != CUBLAS_OP_N, depth, rows, tf32), sum(rows);
  std::vector<float> b = gathered(w->b, &k->b, k->p.transb == CUBLAS_OP_N, depth, columns, tf32);
  bool reads_c = w->beta != NULL && w->m.multiplies;
  if (w->beta != NULL && !reads_c) {
    usleep(500);
  }
  float alpha = w->alpha != NULL ? *w->alpha : w->host_alpha, beta = w->beta != NULL ? *w->beta : w->host_beta;
  for (uint64_t j = 0; j < columns; ++j) {
    sum_column(w, a, b, j, sum.data());
    for (uint64_t i = 0; i < rows; ++i) {
      double x = (double) alpha * sum[i] +
                 (beta == 0 && !reads_c ? 0.0 : (double) beta * get(w->c, k->c.type, at(&k->c, i, j)));
      put(w->d, k->d.type, at(&k->d, i, j), finish(w, x, i, j));
    }
  }
}

static bool is_aligned(const void *p, size_t bytes) {
  return (uintptr_t) p % bytes == 0;
}

static cublasStatus_t check_pointers(const work *w, size_t workspace_bytes) {
  const call *k = &w->k;
  size_t least = w->m.alignment;
  if (workspace_of(k, &w->m) > workspace_bytes || !is_aligned(w->partial, 256)) {
    return invalid("the workspace is smaller than the algorithm needs, or not aligned");
  }
  if (w->a == NULL || w->b == NULL || w->c == NULL || w->d == NULL || (has_bias(&k->p) && k->p.bias == NULL) ||
      (has_aux(&k->p) && k->p.aux == NULL)) {
    return invalid("an operand is missing");
  }
  if (!is_aligned(w->a, least) || !is_aligned(w->b, least) || !is_aligned(w->c, least) || !is_aligned(w->d, least) ||
      (has_bias(&k->p) && !is_aligned(k->p.bias, least)) || (has_aux(&k->p) && !is_aligned(k->p.aux, 16))) {
    return invalid("an operand is not as aligned as the algorithm needs");
  }
  return w->c == w->d && k->c.ld != k->d.ld ? invalid("C in place of D has its layout") : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  work w = {
      {*product, *a_layout, *b_layout, *c_layout, *d_layout}, {}, a, b, c, d, (float *) workspace, NULL, NULL, 0, 0};
  cublasStatus_t status = check(handle, &w.k);
  const method *m = status == CUBLAS_STATUS_SUCCESS && algo != NULL ? method_of(&w.k, algo) : NULL;
  if (status != CUBLAS_STATUS_SUCCESS || m == NULL) {
    return status != CUBLAS_STATUS_SUCCESS ? status : invalid("no algorithm, or one for another product");
  }
  const char *refused = getenv("SHIM_BLAS_REFUSE"); /* the number of a method that is offered and does not run */
  if (refused != NULL && m == &methods[atoi(refused) % N_METHODS]) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  w.m = *m;
  status = check_pointers(&w, workspace_bytes);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  if (product->pointer_mode == CUBLASLT_POINTER_MODE_HOST) {
    w.host_alpha = *(const float *) alpha;
    w.host_beta = *(const float *) beta;
  } else {
    w.alpha = (const float *) alpha;
    w.beta = (const float *) beta;
  }
  return shim_add(stream, [=]() { compute(&w); }) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
