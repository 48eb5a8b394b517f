/* MATMUL: a product of cuBLASLt, and what that has no type or shape for finished by a kernel of our own:
 * - fp32 rounded to 16 bits, and a bias that would be added to what was rounded: by way of an fp32 product in the
 *   workspace;
 * - 16 bits to fp32 with a bias, which would have to be fp32 there: added in place afterwards;
 * - K = 0, which has no product: bias and prior alone.
 * Cost: 2 m n k operations; see blas.h and ts_blas_finish for bytes. */
#include "cuda/blas.h"
#include "cuda/kernel.cuh"

extern "C" {
#include "base/memory.h"
}

enum { FINISH_THREADS = 256 };

/* ---- finishing ---- */

/* W elements a thread; columns is a multiple of W. */
template <typename T, typename B, int W>
__global__ void __launch_bounds__(FINISH_THREADS) finish_product(T *c, const float *wide, const B *__restrict__ bias,
                                                                 ts_prior<T> prior, int64_t count, int64_t columns) {
  int64_t i = ((int64_t) blockIdx.x * FINISH_THREADS + threadIdx.x) * W;
  if (i >= count) {
    return;
  }
  float x[W] = {};
  if (wide != nullptr) {
    ts_load<W>(x, wide + i);
  }
  if (bias != nullptr) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      x[k] += ts_float(bias[i % columns + k]);
    }
  }
  ts_add_prior<W>(x, prior, ts_prior_beta(prior), i);
  ts_store<W>(c + i, x);
}

struct finish_call {
  void *c;
  const float *wide;
  const void *bias, *prior;
  const float *beta;
  int64_t m, n;
  cudaStream_t stream;
};

template <typename T, typename B, int W> static void launch_finish(const finish_call *f) {
  int64_t count = f->m * f->n;
  ts_prior<T> prior = {(const T *) f->prior, f->beta};
  ts_launch(finish_product<T, B, W>, ts_blocks(count / W, FINISH_THREADS), FINISH_THREADS, 0, f->stream, (T *) f->c,
            f->wide, (const B *) f->bias, prior, count, f->n);
}

template <typename T, typename B> static void choose_finish(const finish_call *f) {
  const void *pointer[] = {f->c, f->wide, f->prior};
  if (ts_is_wide<ts_bf16>(f->n, pointer, 3)) {
    launch_finish<T, B, 4>(f);
  } else {
    launch_finish<T, B, 1>(f);
  }
}

void ts_blas_finish(void *c, ts_dtype dtype, const float *wide, const void *bias, ts_dtype bias_dtype,
                    const void *prior, const float *beta, int64_t m, int64_t n, cudaStream_t stream) {
  finish_call f = {c, wide, bias, prior, beta, m, n, stream};
  TS_FOR_FLOATS(dtype, bias_dtype, choose_finish, &f);
}

/* ---- the op ---- */

struct matmul {
  ts_blas_spec spec;
  ts_blas *blas;   /* NULL: no product at all */
  ts_dtype c;      /* of the output; the product's is fp32 when it is finished from the workspace */
  bool bias_after; /* the epilogue cannot add it */
};

static bool has_bias(const ts_node *node) {
  return node->op != TS_OP_MATMUL_DGELU && node->n_in > 2 && node->in[2] != TS_NONE;
}

/* The values before a GELU: written forward, read backward. */
static void *aux_of(const ts_kernel_call *call) {
  return call->node->op == TS_OP_MATMUL_GELU    ? call->out[1]
         : call->node->op == TS_OP_MATMUL_DGELU ? (void *) call->in[2]
                                                : NULL;
}

static bool is_wide(const matmul *p) {
  return p->spec.out != p->c;
}

/* Where rows are not aligned to 16 bytes cuBLASLt (13.1) rounds the product before it adds the bias, and then again. */
static bool rounds_twice(const ts_node *node, const matmul *p) {
  const ts_blas_spec *s = &p->spec;
  int64_t rows = (s->transpose_a ? s->m : s->k) | (s->transpose_b ? s->k : s->n) | s->n;
  return node->op == TS_OP_MATMUL && has_bias(node) && ts_dtype_is_half(p->c) && rows % 8 != 0;
}

static matmul describe_matmul(const ts_graph *graph, const ts_node *node) {
  const ts_tensor *a = &graph->tensor[node->in[0]], *b = &graph->tensor[node->in[1]];
  bool ta = node->attr.matmul.transpose_a, tb = node->attr.matmul.transpose_b;
  matmul p = {};
  p.c = graph->tensor[node->out[0]].dtype;
  p.spec.m = ta ? ts_columns_of(a) : ts_shape_rows(&a->shape);
  p.spec.n = tb ? ts_shape_rows(&b->shape) : ts_columns_of(b);
  p.spec.k = ta ? ts_shape_rows(&a->shape) : ts_columns_of(a);
  p.spec.transpose_a = ta;
  p.spec.transpose_b = tb;
  p.spec.in = a->dtype;
  p.spec.out = a->dtype == TS_F32 || rounds_twice(node, &p) ? TS_F32 : p.c;
  p.spec.prior = is_wide(&p) ? TS_BLAS_NO_PRIOR : ts_blas_prior_of(node, 0);
  p.bias_after = has_bias(node) && (is_wide(&p) || p.c != a->dtype);
  p.spec.epilogue = has_bias(node) && !p.bias_after ? TS_BLAS_BIAS : TS_BLAS_PLAIN;
  if (node->op != TS_OP_MATMUL) {
    p.spec.epilogue = node->op == TS_OP_MATMUL_GELU ? TS_BLAS_GELU : TS_BLAS_DGELU;
    p.bias_after = false;
  }
  TS_ASSERT(a->dtype == b->dtype && (tb ? ts_columns_of(b) : ts_shape_rows(&b->shape)) == p.spec.k);
  TS_ASSERT(!has_bias(node) || graph->tensor[node->in[2]].dtype == a->dtype);
  return p;
}

static bool is_product(const matmul *p) {
  return p->spec.m > 0 && p->spec.n > 0 && p->spec.k > 0;
}

static size_t set_up_matmul(const ts_target *, const ts_graph *graph, const ts_node *node, void **prepared) {
  matmul p = describe_matmul(graph, node);
  if (prepared != NULL) {
    matmul *kept = (matmul *) ts_calloc(1, sizeof *kept);
    *kept = p;
    kept->blas = is_product(&p) ? ts_blas_create(&p.spec) : NULL;
    *prepared = kept;
  }
  return !is_product(&p) ? 0 : TS_BLAS_WORKSPACE + (is_wide(&p) ? (size_t) (p.spec.m * p.spec.n) * sizeof(float) : 0);
}

static void launch_matmul(const ts_kernel_call *call) {
  const matmul *p = (const matmul *) call->prepared;
  const void *bias = has_bias(call->node) ? call->in[2] : NULL, *prior = call->prior == NULL ? NULL : call->prior[0];
  float *product = is_wide(p) ? (float *) ((char *) call->workspace + TS_BLAS_WORKSPACE) : (float *) call->out[0];
  bool adds_prior = p->blas == NULL || is_wide(p); /* otherwise the product does */
  if (p->blas != NULL) {
    ts_blas_operands o = {call->in[0],  call->in[1], product,    (void *) bias,
                          aux_of(call), prior,       call->beta, call->workspace};
    ts_blas_run(p->blas, &o, ts_call_stream(call));
  }
  if (adds_prior || p->bias_after) {
    ts_blas_finish(call->out[0], p->c, p->blas == NULL ? NULL : product, bias, p->spec.in, adds_prior ? prior : NULL,
                   call->beta, p->spec.m, p->spec.n, ts_call_stream(call));
  }
}

static void take_down_matmul(void *prepared) {
  matmul *p = (matmul *) prepared;
  ts_blas_destroy(&p->blas);
  ts_free(p);
}

const ts_kernel *ts_cuda_matmul(ts_op op) {
  static const ts_kernel row = {set_up_matmul, launch_matmul, take_down_matmul}, none = {};
  return op == TS_OP_MATMUL || op == TS_OP_MATMUL_GELU || op == TS_OP_MATMUL_DGELU ? &row : &none;
}
