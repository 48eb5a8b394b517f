/* Plans of cuBLASLt.
 *
 * beta == 0.  NVIDIA's documentation of gemm says that C need not be valid when beta is 0, for a beta on the host or on
 * the device; that of cublasLtMatmul says nothing.  A beta that the host knows (no prior: 0, or 1) is therefore given
 * by the host, where cuBLASLt can see it.  Only a beta that changes under a captured graph is on the device.
 * Algorithms for that are tried on a prior of NaNs when they are measured (blas_measure.cu); one that was not measured
 * finds zeros in the prior's place when beta is 0 (settle_prior), and so is right whatever it reads. */
#include "cuda/blas_plan.h"
#include "cuda/kernel.cuh"

extern "C" {
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
}

#include <stdio.h>
#include <string.h>

/* What all plans of a device share, made with the first. */
struct ts_blas_library {
  cublasLtHandle_t handle;
  float *constant; /* on the device: 1, 0 */
};

static ts_blas_library *library(void) {
  return ts_cuda_opened()->blas;
}

void ts_blas_check(cublasStatus_t code, const char *file, int line, const char *call) {
  if (code != CUBLAS_STATUS_SUCCESS) {
    ts_die(file, line, "device %s, op %s: %s failed: %s", ts_cuda_device_name(), ts_cuda_op(), call,
           cublasLtGetStatusName(code));
  }
}

static void open_library(ts_cuda_device *device) {
  static const float values[] = {1, 0};
  cudaStream_t stream = device->stream[TS_QUEUE_COMPUTE];
  ts_blas_library *made = (ts_blas_library *) ts_calloc(1, sizeof *made);
  TS_BLAS(cublasLtCreate(&made->handle));
  TS_CUDA(cudaMalloc((void **) &made->constant, sizeof values));
  TS_CUDA(cudaMemcpyAsync(made->constant, values, sizeof values, cudaMemcpyHostToDevice, stream));
  TS_CUDA(cudaStreamSynchronize(stream));
  device->blas = made;
}

void ts_cuda_blas_close(ts_cuda_device *device) {
  ts_blas_choices_clear();
  if (device->blas != NULL) {
    TS_BLAS(cublasLtDestroy(device->blas->handle));
    TS_CUDA(cudaFree(device->blas->constant));
    ts_free(device->blas);
    device->blas = NULL;
  }
}

const char *ts_cuda_blas_describe(void) {
  static char text[64];
  size_t version = cublasLtGetVersion();
  snprintf(text, sizeof text, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
  return text;
}

const float *ts_blas_constant(bool one) {
  return library()->constant + (one ? 0 : 1);
}

/* ---- descriptors ---- */

static cudaDataType_t type_of(ts_dtype dtype) {
  TS_ASSERT(ts_dtype_is_working(dtype));
  return dtype == TS_F32 ? CUDA_R_32F : dtype == TS_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

template <typename V>
static void set_attribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, V value) {
  TS_BLAS(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value));
}

template <typename V>
static void set_attribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                          V value) {
  TS_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

/* Rows as stored are columns there; what the product takes transposed here is then plain there and the reverse is
 * too. */
static cublasLtMatrixLayout_t make_matrix(ts_dtype dtype, int64_t rows, int64_t columns, int64_t ld) {
  cublasLtMatrixLayout_t matrix;
  TS_BLAS(cublasLtMatrixLayoutCreate(&matrix, type_of(dtype), (uint64_t) columns, (uint64_t) rows, ld));
  return matrix;
}

static const uint32_t epilogues[TS_BLAS_N_EPILOGUES] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                                        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};

static bool adds_bias(const ts_blas_spec *s) {
  return s->epilogue == TS_BLAS_BIAS || s->epilogue == TS_BLAS_GELU;
}
static bool has_aux(const ts_blas_spec *s) {
  return s->epilogue >= TS_BLAS_GELU;
}

static cublasLtMatmulDesc_t make_matmul_desc(const ts_blas_spec *s) {
  cublasLtMatmulDesc_t product;
  cublasComputeType_t compute = s->in == TS_F32 && s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  TS_BLAS(cublasLtMatmulDescCreate(&product, compute, CUDA_R_32F));
  set_attribute(product, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t) (s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  set_attribute(product, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t) (s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  set_attribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogues[s->epilogue]);
  if (s->prior == TS_BLAS_SCALED_PRIOR) {
    set_attribute(product, CUBLASLT_MATMUL_DESC_POINTER_MODE, (int32_t) CUBLASLT_POINTER_MODE_DEVICE);
  }
  if (has_aux(s)) {
    set_attribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s->n);
  }
  return product;
}

/* Addresses of epilogues; until they are known, numbers as aligned as they will be: the heuristic looks at that. */
static void set_pointers(const ts_blas *blas, void *bias, void *aux) {
  if (adds_bias(&blas->spec)) {
    set_attribute(blas->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  if (has_aux(&blas->spec)) {
    set_attribute(blas->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  }
}

/* ---- algorithms ---- */

int ts_blas_candidates(const ts_blas *blas, bool aligned, cublasLtMatmulHeuristicResult_t *result, int wanted) {
  cublasLtMatmulPreference_t preference;
  int found = 0, good = 0;
  TS_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  set_attribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t) TS_BLAS_LIBRARY_WORKSPACE);
  set_attribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                (uint32_t) CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  const ts_blas_spec *s = &blas->spec;
  uint32_t in = aligned ? TS_BLAS_ALIGN : (uint32_t) ts_dtype_size(s->in),
           out = aligned ? TS_BLAS_ALIGN : (uint32_t) ts_dtype_size(s->out); /* fp32 at 2 bytes it does not take */
  set_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, in);
  set_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, in);
  set_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out);
  set_attribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out);
  set_pointers(blas, (void *) (uintptr_t) out, (void *) (uintptr_t) TS_BLAS_ALIGN);
  cublasStatus_t code = cublasLtMatmulAlgoGetHeuristic(library()->handle, blas->product, blas->b, blas->a, blas->c,
                                                       blas->c, preference, wanted, result, &found);
  TS_BLAS(cublasLtMatmulPreferenceDestroy(preference));
  for (int i = 0; code == CUBLAS_STATUS_SUCCESS && i < found; ++i) {
    if (result[i].state == CUBLAS_STATUS_SUCCESS && result[i].workspaceSize <= TS_BLAS_LIBRARY_WORKSPACE) {
      result[good++] = result[i];
    }
  }
  return good;
}

static cublasLtMatmulAlgo_t first_candidate(const ts_blas *blas) {
  cublasLtMatmulHeuristicResult_t result[TS_BLAS_CANDIDATES];
  char text[TS_BLAS_SPEC_TEXT];
  TS_CHECK(ts_blas_candidates(blas, true, result, TS_BLAS_CANDIDATES) > 0, "%s has no algorithm for the product %s",
           ts_cuda_blas_describe(), ts_blas_spec_text(&blas->spec, text));
  return result[0].algo;
}

/* A choice that was read from a file is checked by the library before it is used. */
static bool is_usable(const ts_blas *blas, const cublasLtMatmulAlgo_t *algo) {
  cublasLtMatmulHeuristicResult_t result;
  memset(&result, 0, sizeof result);
  set_pointers(blas, (void *) (uintptr_t) TS_BLAS_ALIGN, (void *) (uintptr_t) TS_BLAS_ALIGN);
  cublasStatus_t code =
      cublasLtMatmulAlgoCheck(library()->handle, blas->product, blas->b, blas->a, blas->c, blas->c, algo, &result);
  return code == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= TS_BLAS_LIBRARY_WORKSPACE;
}

/* What is in the table was measured, and with it that it leaves the prior alone. */
static cublasLtMatmulAlgo_t choose_algorithm(const ts_blas *blas, bool *measured) {
  static_assert(sizeof(cublasLtMatmulAlgo_t) == TS_BLAS_ALGO_BYTES, "the table keeps algorithms as bytes");
  const unsigned char *kept = ts_blas_choices_find(&blas->spec);
  if (kept != NULL) {
    cublasLtMatmulAlgo_t algo;
    char text[TS_BLAS_SPEC_TEXT];
    memcpy(&algo, kept, sizeof algo);
    *measured = is_usable(blas, &algo);
    if (*measured) {
      return algo;
    }
    ts_log(TS_LOG_WARNING, "the chosen algorithm of the product %s is not one of %s: its heuristic decides",
           ts_blas_spec_text(&blas->spec, text), ts_cuda_blas_describe());
    ts_blas_choices_drop(&blas->spec);
  }
  *measured = false;
  return first_candidate(blas);
}

/* ---- plans ---- */

static ts_blas_spec completed(const ts_blas_spec *from) {
  ts_blas_spec s = *from;
  TS_ASSERT(s.m > 0 && s.n > 0 && s.k > 0 && (s.out == s.in || s.out == TS_F32));
  TS_ASSERT(!has_aux(&s) || (ts_dtype_is_half(s.out) && s.n % 8 == 0));
  s.lda = s.lda != 0 ? s.lda : s.transpose_a ? s.m : s.k;
  s.ldb = s.ldb != 0 ? s.ldb : s.transpose_b ? s.k : s.n;
  s.ldc = s.ldc != 0 ? s.ldc : s.n;
  s.tf32 = s.in == TS_F32 && ts_cuda_tf32();
  return s;
}

ts_blas *ts_blas_create(const ts_blas_spec *spec) {
  ts_blas *blas = (ts_blas *) ts_calloc(1, sizeof *blas);
  blas->spec = completed(spec);
  ts_cuda_device *device = ts_cuda_opened();
  if (device == NULL) {
    return blas;
  }
  if (device->blas == NULL) {
    open_library(device);
  }
  const ts_blas_spec *s = &blas->spec;
  blas->product = make_matmul_desc(s);
  blas->a = s->transpose_a ? make_matrix(s->in, s->k, s->m, s->lda) : make_matrix(s->in, s->m, s->k, s->lda);
  blas->b = s->transpose_b ? make_matrix(s->in, s->n, s->k, s->ldb) : make_matrix(s->in, s->k, s->n, s->ldb);
  blas->c = make_matrix(s->out, s->m, s->n, s->ldc);
  ts_blas_measure(blas);
  blas->aligned = choose_algorithm(blas, &blas->leaves_prior);
  cublasLtMatmulHeuristicResult_t result[TS_BLAS_CANDIDATES] = {};
  blas->runs_unaligned = ts_blas_candidates(blas, false, result, TS_BLAS_CANDIDATES) > 0;
  blas->unaligned = result[0].algo;
  return blas;
}

void ts_blas_destroy(ts_blas **blas) {
  ts_blas *old = *blas;
  if (old != NULL && old->product != NULL) {
    TS_BLAS(cublasLtMatmulDescDestroy(old->product));
    TS_BLAS(cublasLtMatrixLayoutDestroy(old->a));
    TS_BLAS(cublasLtMatrixLayoutDestroy(old->b));
    TS_BLAS(cublasLtMatrixLayoutDestroy(old->c));
  }
  ts_free(old);
  *blas = NULL;
}

/* ---- priors ---- */

enum { SETTLE_THREADS = 256, SETTLE_BLOCKS = 1024 };

/* c = prior, or 0 when beta is; in place there is nothing to do but for that. */
template <typename T, int W>
__global__ void __launch_bounds__(SETTLE_THREADS)
    settle(T *c, const T *prior, const float *__restrict__ beta, int64_t rows, int64_t columns, int64_t ld) {
  bool zero = *beta == 0.0f;
  if (!zero && prior == c) {
    return;
  }
  for (int64_t row = blockIdx.x; row < rows; row += SETTLE_BLOCKS) {
    for (int64_t i = (int64_t) threadIdx.x * W; i < columns; i += SETTLE_THREADS * W) {
      float x[W] = {};
      if (!zero) {
        ts_load<W>(x, prior + row * ld + i);
      }
      ts_store<W>(c + row * ld + i, x);
    }
  }
}

template <typename T> static void launch_settle(const ts_blas_spec *s, const ts_blas_operands *o, cudaStream_t stream) {
  const void *pointer[] = {o->c, o->prior};
  bool wide = ts_is_wide<T>(s->n, pointer, 2) && s->ldc % ts_lanes<T> == 0;
  unsigned blocks = s->m < SETTLE_BLOCKS ? (unsigned) s->m : (unsigned) SETTLE_BLOCKS;
  ts_launch(wide ? settle<T, ts_lanes<T>> : settle<T, 1>, blocks, SETTLE_THREADS, 0, stream, (T *) o->c,
            (const T *) o->prior, o->beta, s->m, s->n, s->ldc);
}

/* The operands with c itself as a prior that may be read at any beta.  Bytes: none in place but when beta is 0, then
 * those of c; twice that elsewhere. */
static ts_blas_operands settle_prior(const ts_blas_spec *s, const ts_blas_operands *o, cudaStream_t stream) {
  ts_blas_operands settled = *o;
  TS_FOR_FLOAT(s->out, launch_settle, s, o, stream);
  settled.prior = o->c;
  return settled;
}

/* ---- runs ---- */

static bool is_aligned(const ts_blas_spec *s, const ts_blas_operands *o) {
  uintptr_t bits = (uintptr_t) o->a | (uintptr_t) o->b | (uintptr_t) o->c;
  bits |= adds_bias(s) ? (uintptr_t) o->bias : 0;
  bits |= s->prior != TS_BLAS_NO_PRIOR ? (uintptr_t) o->prior : 0;
  return bits % TS_BLAS_ALIGN == 0;
}

cublasStatus_t ts_blas_try_algorithm(const ts_blas *blas, const ts_blas_operands *o, const cublasLtMatmulAlgo_t *algo,
                                     cudaStream_t stream) {
  static const float one = 1, zero = 0;
  const ts_blas_spec *s = &blas->spec;
  bool scaled = s->prior == TS_BLAS_SCALED_PRIOR;
  const float *alpha = scaled ? library()->constant : &one, *beta = scaled                      ? o->beta
                                                                    : s->prior == TS_BLAS_PRIOR ? &one
                                                                                                : &zero;
  void *workspace = (void *) (((uintptr_t) o->workspace + 255) / 256 * 256);
  set_pointers(blas, o->bias, o->aux);
  return cublasLtMatmul(library()->handle, blas->product, alpha, o->b, blas->b, o->a, blas->a, beta,
                        s->prior == TS_BLAS_NO_PRIOR ? o->c : o->prior, blas->c, o->c, blas->c, algo, workspace,
                        TS_BLAS_LIBRARY_WORKSPACE, stream);
}

void ts_blas_run_algorithm(const ts_blas *blas, const ts_blas_operands *o, const cublasLtMatmulAlgo_t *algo,
                           cudaStream_t stream) {
  TS_BLAS(ts_blas_try_algorithm(blas, o, algo, stream));
}

void ts_blas_run(const ts_blas *blas, const ts_blas_operands *o, cudaStream_t stream) {
  TS_ASSERT(blas->product != NULL && (uintptr_t) o->aux % TS_BLAS_ALIGN == 0);
  TS_ASSERT(blas->spec.prior == TS_BLAS_NO_PRIOR || o->prior != NULL);
  TS_ASSERT(blas->spec.prior != TS_BLAS_SCALED_PRIOR || o->beta != NULL);
  bool aligned = is_aligned(&blas->spec, o);
  char text[TS_BLAS_SPEC_TEXT];
  TS_CHECK(aligned || blas->runs_unaligned, "op %s: %s wants operands aligned to %d bytes for the product %s",
           ts_cuda_op(), ts_cuda_blas_describe(), TS_BLAS_ALIGN, ts_blas_spec_text(&blas->spec, text));
  const cublasLtMatmulAlgo_t *algo = aligned ? &blas->aligned : &blas->unaligned;
  if (blas->spec.prior == TS_BLAS_SCALED_PRIOR && !(aligned && blas->leaves_prior)) {
    ts_blas_operands settled = settle_prior(&blas->spec, o, stream);
    ts_blas_run_algorithm(blas, &settled, algo, stream);
  } else {
    ts_blas_run_algorithm(blas, o, algo, stream);
  }
}
