/** \file
 * Run one kernel of a backend on arrays: a graph of one node, its tensors, its workspace with guard bytes behind it.
 * Nothing here is collective.
 */
#ifndef REGRESSION_KERNEL_RUN_H
#define REGRESSION_KERNEL_RUN_H

#include "backend/backend.h"
#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_MAX = 13, RUN_GUARD = 256 };

/** A tensor with its memory; data NULL stands for an absent optional input.  Inputs of one address are one tensor. */
typedef struct run_tensor {
  ts_dtype dtype;
  ts_shape shape;
  void *data; /**< Owned by run_free. */
} run_tensor;

/** One call of a kernel. */
typedef struct run_case {
  ts_op op;
  ts_attr attr;
  int n_in, n_out;
  run_tensor in[RUN_MAX], out[RUN_MAX];
  void *prior[RUN_MAX]; /**< Borrowed; all NULL: no priors. */
  const float *beta;    /**< NULL for 1. */
  int threads;
} run_case;

static inline int64_t run_count(const run_tensor *x) {
  int64_t count = 1;
  for (int i = 0; i < x->shape.n; ++i) {
    count *= x->shape.d[i];
  }
  return count;
}

/** Zeroed; from ts_calloc, so that a sanitizer sees writes past the end.  An empty tensor is not an absent one: it has
 * an address. Not collective. */
static inline run_tensor run_new(ts_dtype dtype, ts_shape shape) {
  run_tensor x = {dtype, shape, NULL};
  x.data = ts_calloc((size_t) (run_count(&x) > 0 ? run_count(&x) : 1), ts_dtype_size(dtype));
  return x;
}

static inline double run_get(const run_tensor *x, int64_t i) {
  switch (x->dtype) {
    case TS_F32: return ((const float *) x->data)[i];
    case TS_BF16: return ts_bf16_to_f32(((const uint16_t *) x->data)[i]);
    case TS_F16: return ts_f16_to_f32(((const uint16_t *) x->data)[i]);
    case TS_F64: return ((const double *) x->data)[i];
    case TS_I32: return ((const int32_t *) x->data)[i];
    default: return (double) ((const int64_t *) x->data)[i];
  }
}

static inline void run_set(run_tensor *x, int64_t i, double value) {
  switch (x->dtype) {
    case TS_F32: ((float *) x->data)[i] = (float) value; return;
    case TS_BF16: ((uint16_t *) x->data)[i] = ts_f32_to_bf16((float) value); return;
    case TS_F16: ((uint16_t *) x->data)[i] = ts_f32_to_f16((float) value); return;
    case TS_F64: ((double *) x->data)[i] = value; return;
    case TS_I32: ((int32_t *) x->data)[i] = (int32_t) value; return;
    default: ((int64_t *) x->data)[i] = (int64_t) value; return;
  }
}

#define RUN_EACH(count, ...)              \
  for (int64_t i = 0; i < (count); ++i) { \
    __VA_ARGS__;                          \
  }

/** All of x, as run_get.  A loop for each type: one that asks for each element took a third of the time of test_ops.
 * Not collective. */
static inline void run_get_all(const run_tensor *x, double *to) {
  const int64_t n = run_count(x);
  const uint16_t *half = (const uint16_t *) x->data;
  switch (x->dtype) {
    case TS_F32: RUN_EACH(n, to[i] = ((const float *) x->data)[i]) return;
    case TS_BF16: RUN_EACH(n, to[i] = ts_bf16_to_f32(half[i])) return;
    case TS_F16: RUN_EACH(n, to[i] = ts_f16_to_f32(half[i])) return;
    default: RUN_EACH(n, to[i] = run_get(x, i)) return;
  }
}

/** All of x, as run_set. Not collective. */
static inline void run_set_all(run_tensor *x, const float *from) {
  const int64_t n = run_count(x);
  uint16_t *half = (uint16_t *) x->data;
  switch (x->dtype) {
    case TS_F32: memcpy(x->data, from, (size_t) n * sizeof *from); return;
    case TS_BF16: RUN_EACH(n, half[i] = ts_f32_to_bf16(from[i])) return;
    case TS_F16: RUN_EACH(n, half[i] = ts_f32_to_f16(from[i])) return;
    default: RUN_EACH(n, run_set(x, i, from[i])) return;
  }
}

/** The nearest number of a float type. Not collective. */
static inline double run_rounded(ts_dtype dtype, float value) {
  double number = 0; /* as wide as any */
  run_tensor x = {dtype, TS_SHAPE(1), &number};
  run_set(&x, 0, value);
  return run_get(&x, 0);
}

/** The largest relative error of rounding to a float type: 8, 11, 24 and 53 bits.  Others hold their numbers.
 * Not collective. */
static inline double run_rounding(ts_dtype dtype) {
  switch (dtype) {
    case TS_BF16: return 0x1p-8;
    case TS_F16: return 0x1p-11;
    case TS_F32: return 0x1p-24;
    case TS_F64: return 0x1p-53;
    default: return 0;
  }
}

/* The first numbers of ts_random_normal (key).  Those of the last keys are kept: many cases begin alike, and to make
 * them took most of a test's time. */
static inline const float *run_normal(uint64_t key, double std, int64_t count) {
  enum { KEPT = 32 };
  static struct {
    uint64_t key;
    double std;
    int64_t count;
    float *value; /* never freed, and not of ts_malloc, whose users count what is left */
  } kept[KEPT];
  static int next;
  for (int i = 0; i < KEPT; ++i) {
    if (kept[i].value != NULL && kept[i].key == key && kept[i].std == std && kept[i].count >= count) {
      return kept[i].value;
    }
  }
  int at = next++ % KEPT;
  free(kept[at].value);
  kept[at].key = key;
  kept[at].std = std;
  kept[at].count = count;
  kept[at].value = (float *) malloc(((size_t) count + 1) * sizeof(float));
  TS_CHECK(kept[at].value != NULL, "no memory for %lld numbers", (long long) count);
  ts_random_normal(key, 0, count, std, kept[at].value);
  return kept[at].value;
}

/** Normal numbers of standard deviation \a std, rounded to the type: a function of \a key. Not collective. */
static inline run_tensor run_random(ts_dtype dtype, ts_shape shape, uint64_t key, double std) {
  run_tensor x = run_new(dtype, shape);
  run_set_all(&x, run_normal(key, std, run_count(&x)));
  return x;
}

/** The first input that is the same tensor as input \a i. Not collective. */
static inline int run_first(const run_case *c, int i) {
  int first = 0;
  while (c->in[first].data != c->in[i].data) {
    ++first;
  }
  return first;
}

static inline void run_free(run_case *c) {
  for (int i = RUN_MAX - 1; i >= 0; --i) {
    ts_free(run_first(c, i) == i ? c->in[i].data : NULL);
    ts_free(c->out[i].data);
    c->in[i].data = c->out[i].data = NULL;
  }
}

static inline bool run_same(const run_tensor *a, const void *bytes) {
  return run_count(a) == 0 || memcmp(a->data, bytes, (size_t) run_count(a) * ts_dtype_size(a->dtype)) == 0;
}

/** Wait for all that is queued. Not collective. */
static inline void run_finish(ts_device *device) {
  void *event = device->ops->event_create(device, false);
  device->ops->record(device, event, TS_QUEUE_COMPUTE);
  device->ops->finish(device, event);
  device->ops->event_destroy(device, event);
}

/** Copy to the backend's device or from it, and wait. Not collective. */
static inline void run_move(const ts_backend *backend, void *to, const void *from, size_t bytes) {
  ts_device *device = ts_backend_device(backend);
  device->ops->copy(device, to, from, bytes, TS_QUEUE_COMPUTE);
  run_finish(device);
}

/** Host memory of a case and its copy on a device. */
typedef struct run_mirror {
  const void *host; /**< Borrowed. */
  void *device;     /**< Owned by run_end. */
  size_t bytes;
  bool written; /**< By the kernel. */
  bool part;    /**< Of another allocation. */
} run_mirror;

/** A kernel prepared for a case.  Points into itself: not to be moved. */
typedef struct run_state {
  const ts_backend *backend;
  ts_device *device; /**< NULL: memory is the host's. */
  run_mirror mirror[3 * RUN_MAX + 2];
  int n_mirrors;
  ts_tensor tensor[2 * RUN_MAX + 1]; /**< Inputs, outputs, beta. */
  ts_tid in[RUN_MAX], out[RUN_MAX], prior[RUN_MAX];
  const void *in_data[RUN_MAX], *prior_data[RUN_MAX];
  void *out_data[RUN_MAX];
  ts_node node;
  ts_graph graph;
  const ts_kernel *row;
  char *workspace;        /**< Owned by run_end. */
  char *device_workspace; /**< Its copy, of which only the guard comes back; owned by run_end; NULL on the host. */
  ts_kernel_call call;
} run_state;

/** Where the backend finds host memory: there, or a copy of its own; what is one on the host is one there. Not
 * collective. */
static inline void *run_mirrored(run_state *s, const void *host, size_t bytes, bool written) {
  if (s->device == NULL || host == NULL) {
    return (void *) host;
  }
  for (int i = 0; i < s->n_mirrors; ++i) {
    if (s->mirror[i].host == host) {
      s->mirror[i].written = s->mirror[i].written || written;
      return s->mirror[i].device;
    }
  }
  run_mirror *m = &s->mirror[s->n_mirrors++];
  *m = (run_mirror){host, s->backend->allocate(bytes), bytes, written, false};
  run_move(s->backend, m->device, host, bytes);
  return m->device;
}

static inline size_t run_bytes(const run_tensor *x) {
  return (size_t) run_count(x) * ts_dtype_size(x->dtype);
}

/** Move all addresses of a call to the device. Not collective. */
static inline void run_mirror_call(run_state *s, const run_case *c) {
  for (int i = 0; i < c->n_in; ++i) {
    s->in_data[i] = run_mirrored(s, c->in[i].data, run_bytes(&c->in[i]), false);
  }
  for (int i = 0; i < c->n_out; ++i) {
    s->out_data[i] = run_mirrored(s, c->out[i].data, run_bytes(&c->out[i]), true);
    s->prior_data[i] = run_mirrored(s, c->prior[i], run_bytes(&c->out[i]), false);
  }
  s->call.beta = run_mirrored(s, c->beta, sizeof *c->beta, false);
  s->call.workspace = s->device_workspace = s->backend->allocate(s->call.workspace_bytes + RUN_GUARD);
  run_mirror *guard = &s->mirror[s->n_mirrors++];
  *guard = (run_mirror){s->workspace + s->call.workspace_bytes, s->device_workspace + s->call.workspace_bytes,
                        RUN_GUARD, true, true};
  run_move(s->backend, s->device_workspace, s->workspace, s->call.workspace_bytes + RUN_GUARD);
  s->call.stream = s->device->ops->stream(s->device, TS_QUEUE_COMPUTE);
}

/** Run a prepared kernel and bring its results to the host. Not collective. */
static inline void run_go(run_state *s) {
  s->row->run(&s->call);
  if (s->device != NULL) {
    for (int i = 0; i < s->n_mirrors; ++i) {
      const run_mirror *m = &s->mirror[i];
      if (m->written) {
        s->device->ops->copy(s->device, (void *) m->host, m->device, m->bytes, TS_QUEUE_COMPUTE);
      }
    }
    run_finish(s->device);
  }
}

/** Make the graph and prepare; `run_go (s)` then runs, any number of times. Not collective. */
static inline void run_begin(const ts_backend *backend, const run_case *c, run_state *s) {
  *s = (run_state){.backend = backend, .device = ts_backend_device(backend), .row = backend->kernel(c->op)};
  bool adds = false;
  for (int i = 0; i < c->n_in; ++i) {
    s->in[i] = c->in[i].data == NULL ? TS_NONE : run_first(c, i);
    s->in_data[i] = c->in[i].data;
    s->tensor[i] = (ts_tensor){.dtype = c->in[i].dtype, .shape = c->in[i].shape};
  }
  for (int i = 0; i < c->n_out; ++i) {
    s->out[i] = RUN_MAX + i;
    s->out_data[i] = c->out[i].data;
    s->prior[i] = c->prior[i] == NULL ? TS_NONE : RUN_MAX + i;
    s->prior_data[i] = c->prior[i];
    adds = adds || c->prior[i] != NULL;
    s->tensor[RUN_MAX + i] = (ts_tensor){.dtype = c->out[i].dtype, .shape = c->out[i].shape};
  }
  s->node = (ts_node){.op = c->op,
                      .name = (char *) "node",
                      .n_in = c->n_in,
                      .n_out = c->n_out,
                      .in = s->in,
                      .out = s->out,
                      .prior = adds ? s->prior : NULL,
                      .beta = c->beta == NULL ? TS_NONE : 2 * RUN_MAX,
                      .attr = c->attr};
  s->tensor[2 * RUN_MAX] = (ts_tensor){.dtype = TS_F32, .shape = TS_SHAPE(1)};
  s->graph = (ts_graph){.tensor = s->tensor, .n_tensors = 2 * RUN_MAX + 1, .node = &s->node, .n_nodes = 1};
  ts_target target = {backend, c->threads, false};
  void *prepared = NULL;
  size_t bytes = s->row->prepare == NULL ? 0 : s->row->prepare(&target, &s->graph, &s->node, &prepared);
  s->workspace = aligned_alloc(64, (bytes + 63) / 64 * 64 + RUN_GUARD);
  memset(s->workspace, 0x5a, bytes + RUN_GUARD);
  s->call = (ts_kernel_call){.graph = &s->graph,
                             .node = &s->node,
                             .in = s->in_data,
                             .out = s->out_data,
                             .prior = adds ? s->prior_data : NULL,
                             .beta = c->beta,
                             .workspace = s->workspace,
                             .workspace_bytes = bytes,
                             .prepared = prepared,
                             .threads = c->threads};
  if (s->device != NULL) {
    run_mirror_call(s, c);
  }
}

/** Release.  \return true when the guard behind the workspace is untouched. Not collective. */
static inline bool run_end(run_state *s) {
  bool clean = true;
  for (size_t i = 0; i < RUN_GUARD; ++i) {
    clean = clean && s->workspace[s->call.workspace_bytes + i] == 0x5a;
  }
  free(s->workspace);
  for (int i = 0; i < s->n_mirrors; ++i) {
    if (!s->mirror[i].part) {
      s->backend->release(s->mirror[i].device, s->mirror[i].bytes);
    }
  }
  if (s->device_workspace != NULL) {
    s->backend->release(s->device_workspace, s->call.workspace_bytes + RUN_GUARD);
  }
  if (s->row->release != NULL) {
    s->row->release(s->call.prepared);
  }
  return clean;
}

/** Prepare, run once and release.  \return as run_end. Not collective. */
static inline bool run_kernel(const ts_backend *backend, const run_case *c) {
  run_state s;
  run_begin(backend, c, &s);
  run_go(&s);
  return run_end(&s);
}

#endif
