/* Attention by cuDNN.  Without a device: which nodes, their workspace, and that cuDNN accepts every operation graph for
 * a device that is only described.  With one: against fp64, in slices too; the same bits every time; recorded and
 * replayed; its forward with our backward. */
#include "cuda/attention_cudnn.h"
#include "cuda/cudnn_graph.h"
#include "regression/attention_case.h"
#include "regression/backends.h"
#include "regression/tap.h"

/* What cuDNN asks of a device, for an H200 (CUDA C Programming Guide, table of compute capabilities; its datasheet). */
static const char h200[] =
    "{\"deviceName\": \"NVIDIA H200\", \"deviceVer\": 900, \"driverVer\": 13000, \"cudaRuntimeVersion\": 13000,"
    " \"cudaDeviceId\": 0, \"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1,"
    " \"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"warpSize\": 32,"
    " \"regsPerBlock\": 65536, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024,"
    " \"maxThreadsPerSM\": 2048, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448,"
    " \"reservedSharedMemoryPerBlock\": 1024, \"multiProcessorCount\": 132, \"smClockRateKHz\": 1980000,"
    " \"memClockRateKHz\": 3201000, \"l2CacheSize\": 62914560, \"totalGlobalMem\": 150000000000}";

/* ---- without a device ---- */

/* A graph of one node that only has shapes. */
typedef struct shape_node {
  ts_tensor tensor[10];
  ts_tid in[10], prior[3];
  ts_node node;
  ts_graph graph;
} shape_node;

static void make_node(shape_node *s, ts_op op, const problem *p) {
  bool backward = op == TS_OP_ATTENTION_DX;
  *s = (shape_node){0};
  for (int i = 0; i < 10; ++i) {
    s->tensor[i] = (ts_tensor){.dtype = p->dtype, .shape = TS_SHAPE(p->batch, p->length, p->heads * p->head_dim)};
    s->in[i] = i < (backward ? 6 : 3) ? i : TS_NONE;
  }
  if (p->documents) {
    s->in[backward ? 6 : 3] = 8;
  }
  s->node = (ts_node){.op = op, .n_in = backward ? 10 : 6, .in = s->in};
  s->node.attr.attention = (typeof(s->node.attr.attention)){.heads = p->heads,
                                                            .kv_heads = p->kv_heads,
                                                            .head_dim = p->head_dim,
                                                            .scale = 0.125f,
                                                            .softcap = p->softcap,
                                                            .causal = p->causal,
                                                            .window = p->window,
                                                            .dropout = p->dropout};
  s->graph = (ts_graph){.tensor = s->tensor, .n_tensors = 10, .node = &s->node, .n_nodes = 1};
}

/* ---- what is not a whole attention ---- */

static void cut_queries(shape_node *s) {
  s->node.attr.attention.queries = (ts_tokens){1, {{100, 100}}};
  s->node.attr.attention.length = 200;
}
static void cut_keys(shape_node *s) {
  s->node.attr.attention.keys = (ts_tokens){2, {{0, 50}, {150, 50}}};
}
static void lengthen_keys(shape_node *s) {
  s->tensor[s->node.op == TS_OP_ATTENTION ? 1 : 2].shape.d[1] *= 2;
}
static void lengthen_whole(shape_node *s) {
  s->node.attr.attention.length = 200;
}
static void begin_in_group(shape_node *s) {
  s->node.attr.attention.first_head = 3;
  s->node.attr.attention.group = 2;
}
static void begin_at_group(shape_node *s) {
  s->node.attr.attention.first_head = 4;
  s->node.attr.attention.group = 2;
  s->node.attr.attention.length = 100;
}
static void widen_queries(shape_node *s) {
  s->node.attr.attention.wide_queries = true;
}
static void widen_keys(shape_node *s) {
  s->node.attr.attention.wide_keys = true;
}
static void add_delta(shape_node *s) {
  if (s->node.op == TS_OP_ATTENTION_DX) {
    s->in[4] = TS_NONE;
    s->in[9] = 9;
  }
}
static void add_prior(shape_node *s) {
  s->node.prior = s->node.op == TS_OP_ATTENTION_DX ? s->prior : NULL;
}

static void check_parts(void) {
  static const problem p = {2, 100, 4, 2, 64, true, false, 0, TS_BF16, 0, 0};
  static const struct {
    const char *what;
    bool forward, backward;
    void (*change)(shape_node *s);
  } cases[] = {
      {"whole groups of heads", true, true, begin_at_group},
      {"some of the queries", false, false, cut_queries},
      {"some of the keys", false, false, cut_keys},
      {"more keys than queries", false, false, lengthen_keys},
      {"the first tokens of more", false, false, lengthen_whole},
      {"heads from inside a group on", false, false, begin_in_group},
      {"fp32 for queries", false, false, widen_queries},
      {"fp32 for keys", false, false, widen_keys},
      {"row sums instead of o", true, false, add_delta},
      {"a prior", true, false, add_prior},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    shape_node forward, backward;
    make_node(&forward, TS_OP_ATTENTION, &p);
    make_node(&backward, TS_OP_ATTENTION_DX, &p);
    cases[i].change(&forward);
    cases[i].change(&backward);
    tap_ok(ts_cudnn_supports(&forward.graph, &forward.node, false) == cases[i].forward &&
               ts_cudnn_supports(&backward.graph, &backward.node, false) == cases[i].backward,
           "%s: forward %s, backward %s", cases[i].what, cases[i].forward ? "yes" : "no",
           cases[i].backward ? "yes" : "no");
  }
}

static void check_supports(void) {
  static const struct {
    const char *what;
    bool forward, backward;
    problem p;
  } cases[] = {
      {"bf16, heads of 64", true, true, {2, 100, 4, 2, 64, true, false, 0, TS_BF16, 0, 0}},
      {"bf16, heads of 96, not causal", true, true, {2, 100, 4, 4, 96, false, false, 0, TS_BF16, 0, 0}},
      {"bf16, heads of 128", true, true, {2, 8192, 32, 8, 128, true, false, 0, TS_BF16, 0, 0}},
      {"fp32", false, false, {2, 100, 4, 2, 64, true, false, 0, TS_F32, 0, 0}},
      {"heads of 80", false, false, {2, 100, 4, 2, 80, true, false, 0, TS_BF16, 0, 0}},
      {"documents", false, false, {2, 100, 4, 2, 64, true, true, 0, TS_BF16, 0, 0}},
      {"a window", false, false, {2, 100, 4, 2, 64, true, false, 0, TS_BF16, 99, 0}},
      {"a window as long as the sequence", true, true, {2, 100, 4, 2, 64, true, false, 0, TS_BF16, 100, 0}},
      {"softcap", false, false, {2, 100, 4, 2, 64, true, false, 0, TS_BF16, 0, 50}},
      {"dropout", false, false, {2, 100, 4, 2, 64, true, false, 0.1f, TS_BF16, 0, 0}},
      {"one token", false, false, {2, 1, 4, 2, 64, true, false, 0, TS_BF16, 0, 0}},
      {"no sequence", false, false, {0, 100, 4, 2, 64, true, false, 0, TS_BF16, 0, 0}},
      {"a head of 65536 tokens", true, false, {1, 65536, 2, 2, 64, true, false, 0, TS_BF16, 0, 0}}, /* 8 GiB of ds */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    shape_node forward, backward;
    make_node(&forward, TS_OP_ATTENTION, &cases[i].p);
    make_node(&backward, TS_OP_ATTENTION_DX, &cases[i].p);
    tap_ok(ts_cudnn_supports(&forward.graph, &forward.node, false) == cases[i].forward &&
               ts_cudnn_supports(&backward.graph, &backward.node, false) == cases[i].backward,
           "%s: forward %s, backward %s", cases[i].what, cases[i].forward ? "yes" : "no",
           cases[i].backward ? "yes" : "no");
  }
  shape_node other;
  make_node(&other, TS_OP_ROPE, &cases[0].p);
  tap_ok(!ts_cudnn_supports(&other.graph, &other.node, false), "another op is not supported");
}

static int64_t workspace_of(ts_op op, problem p, bool any_order) {
  shape_node s;
  make_node(&s, op, &p);
  return (int64_t) ts_cudnn_workspace(&s.graph, &s.node, any_order);
}

static void check_workspace(void) {
  /* 8 heads of 256 x 256 bf16 and 256 bytes; delta of 8 heads of 200; 256 to align with */
  problem small = {2, 200, 4, 4, 64, true, false, 0, TS_BF16, 0, 0};
  int64_t is = workspace_of(TS_OP_ATTENTION_DX, small, false), expected = 8 * 256 * 256 * 2 + 256 + 8 * 200 * 4 + 256;
  tap_ok(is == expected, "workspace of a small backward pass is %lld, expected %lld", (long long) is,
         (long long) expected);
  /* One query head: 32 MiB of ds and 2 MiB of dk, dv; of 8 heads of keys, 4 query heads each, 4 fit 1 GiB */
  problem large = {4, 4096, 32, 8, 128, true, false, 0, TS_BF16, 0, 0};
  is = workspace_of(TS_OP_ATTENTION_DX, large, false);
  expected = 16 * (34 << 20) + 256 + 16 * 4096 * 4 + 256;
  tap_ok(is == expected, "workspace in slices is %lld, expected %lld", (long long) is, (long long) expected);
  is = workspace_of(TS_OP_ATTENTION, large, false);
  tap_ok(is == 512 && workspace_of(TS_OP_ATTENTION, large, true) == 512, "workspace of the forward pass is %lld",
         (long long) is);
  /* dk and dv of each query head, delta and the sum of dq, 256 MiB each but delta's 2; 4 MiB to spare; all at once */
  is = workspace_of(TS_OP_ATTENTION_DX, large, true);
  expected = (256 + 2 + 256 + 4) << 20 | 256;
  tap_ok(is == expected, "workspace in any order is %lld, expected %lld", (long long) is, (long long) expected);
}

/* {batch, length, heads, kv_heads, head_dim, causal}: full and broken tiles, all head sizes, groups of query heads. */
static const problem shapes[] = {
    {2, 128, 2, 2, 64, true, false, 0, TS_BF16, 0, 0},   {1, 200, 4, 2, 64, true, false, 0, TS_BF16, 0, 0},
    {2, 67, 4, 1, 128, true, false, 0, TS_BF16, 0, 0},   {1, 129, 3, 3, 96, false, false, 0, TS_BF16, 0, 0},
    {1, 260, 4, 1, 128, false, false, 0, TS_BF16, 0, 0}, {1, 256, 2, 2, 96, true, false, 0, TS_BF16, 0, 0},
    {1, 16, 1, 1, 64, true, false, 0, TS_BF16, 0, 0},    {2, 160, 4, 2, 64, true, false, 0, TS_BF16, 0, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static const char *name_of(const problem *p, char text[80]) {
  snprintf(text, 80, "B%d T%d H%d/%d D%d%s", p->batch, p->length, p->heads, p->kv_heads, p->head_dim,
           p->causal ? " causal" : "");
  return text;
}

/* cuDNN finalizes every tensor and operation, whole and in slices of one head of keys. */
static void check_accepted(void) {
  char text[80];
  for (int i = 0; i < N_SHAPES; ++i) {
    for (int op = 0; op < 4; ++op) {
      shape_node s;
      ts_error err = {0};
      make_node(&s, op == 0 ? TS_OP_ATTENTION : TS_OP_ATTENTION_DX, &shapes[i]);
      ts_cudnn_slice(op == 2 ? 1 : 0);
      bool accepted = ts_cudnn_accepts(&s.graph, &s.node, op == 3, h200, &err);
      tap_ok(accepted, "%s: %s accepted%s%s", name_of(&shapes[i], text),
             op == 0   ? "forward"
             : op == 1 ? "backward"
             : op == 2 ? "backward in slices"
                       : "backward in any order",
             accepted ? "" : ": ", accepted ? "" : err.text);
      ts_error_clear(&err);
    }
  }
  ts_cudnn_slice(0);
}

static bool names(const ts_error *err, const char *what) {
  return err->count == 1 && strstr(err->text, what) != NULL;
}

static void check_refused(void) {
  ts_cudnn_shape a = {{1, 1, 64, 32}, {2048, 2048, 32, 1}}, b = {{1, 1, 48, 64}, {3072, 3072, 64, 1}};
  ts_error err = {0};
  ts_cudnn_graph *g = ts_cudnn_graph_create(h200, &err);
  ts_cudnn_tensor x = ts_cudnn_memory(g, 1, CUDNN_DATA_BFLOAT16, a), y = ts_cudnn_memory(g, 2, CUDNN_DATA_BFLOAT16, b);
  ts_cudnn_matmul(g, x, y, ts_cudnn_memory(g, 3, CUDNN_DATA_BFLOAT16, a)); /* 32 columns, 48 rows */
  ts_cudnn_unary(g, CUDNN_POINTWISE_EXP, x, y);                            /* nothing: one message is enough */
  bool closed = ts_cudnn_graph_close(g);
  tap_ok(!closed && names(&err, "finalize OPERATION_MATMUL") && names(&err, "CUDNN_STATUS"),
         "a product that does not fit is refused by name: %s", err.count > 0 ? err.text : "");
  ts_cudnn_graph_destroy(&g);
  ts_error_clear(&err);
  g = ts_cudnn_graph_create("{}", &err);
  tap_ok(!ts_cudnn_graph_close(g) && names(&err, "finalize DEVICEPROP"),
         "a device without properties is refused by name: %s", err.count > 0 ? err.text : "");
  ts_cudnn_graph_destroy(&g);
  ts_error_clear(&err);
}

/* The stand-in takes the graphs of attention_cudnn.c alone: a window by arithmetic on indices, or another comparison of
 * them, nobody has seen cuDNN do. */
static void check_not_given(void) {
  ts_cudnn_shape shape = {{1, 1, 64, 64}, {4096, 4096, 64, 1}};
  for (int i = 0; i < 2; ++i) {
    ts_error err = {0};
    ts_cudnn_graph *g = ts_cudnn_graph_create(h200, &err);
    ts_cudnn_tensor s = ts_cudnn_memory(g, 1, CUDNN_DATA_FLOAT, shape);
    ts_cudnn_tensor query = ts_cudnn_index(g, 2, s, ts_cudnn_virtual(g, CUDNN_DATA_INT32, shape));
    ts_cudnn_tensor key = ts_cudnn_index(g, 3, s, ts_cudnn_virtual(g, CUDNN_DATA_INT32, shape));
    ts_cudnn_binary(g, i == 0 ? CUDNN_POINTWISE_SUB : CUDNN_POINTWISE_CMP_EQ, query, key,
                    ts_cudnn_virtual(g, i == 0 ? CUDNN_DATA_INT32 : CUDNN_DATA_BOOLEAN, shape));
    tap_ok(!ts_cudnn_graph_close(g) && names(&err, "does not give"), "%s of indices is refused by the stand-in: %s",
           i == 0 ? "a difference" : "equality", err.count > 0 ? err.text : "");
    ts_cudnn_graph_destroy(&g);
    ts_error_clear(&err);
  }
}

/* ---- with a device ---- */

static const ts_backend *cuda;
static bool stand_in;  /* slow: less of everything */
static bool any_order; /* of plans that are made from now on */

/* What versions before 9.16 cannot; there our kernel computes it. */
static bool is_refused(const problem *p) {
  return cudnnGetVersion() < 91600 && p->length % 128 != 0;
}

/* The plan for a described device is that of the real one: what a plan made without a device can count on. */
static void check_described(void) {
  for (int op = 0; op < 2; ++op) {
    shape_node s;
    ts_error err = {0};
    make_node(&s, op == 0 ? TS_OP_ATTENTION : TS_OP_ATTENTION_DX, is_refused(&shapes[1]) ? &shapes[0] : &shapes[1]);
    ts_cudnn_plan *described = ts_cudnn_plan_create(&s.graph, &s.node, false, h200, &err);
    ts_cudnn_plan *real = ts_cudnn_plan_create(&s.graph, &s.node, false, NULL, &err);
    bool both = described != NULL && real != NULL;
    tap_ok(both && ts_cudnn_plan_workspace(described) <= ts_cudnn_workspace(&s.graph, &s.node, false) &&
               ts_cudnn_plan_workspace(real) <= ts_cudnn_workspace(&s.graph, &s.node, false),
           "%s: plans for a described device and this one%s%s", op == 0 ? "forward" : "backward", both ? "" : ": ",
           both ? "" : err.text);
    ts_cudnn_plan_destroy(&described);
    ts_cudnn_plan_destroy(&real);
    ts_error_clear(&err);
  }
}

static size_t plan_prepare(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  (void) target;
  ts_error err = {0};
  *prepared = ts_cudnn_plan_create(graph, node, any_order, NULL, &err);
  if (*prepared == NULL) {
    tap_note("%s", err.text);
  }
  ts_error_clear(&err);
  return ts_cudnn_workspace(graph, node, any_order);
}

static void plan_run(const ts_kernel_call *call) {
  if (call->prepared != NULL) {
    ts_cudnn_plan_run(call->prepared, call);
  }
}

static void plan_release(void *prepared) {
  ts_cudnn_plan *plan = prepared;
  ts_cudnn_plan_destroy(&plan);
}

static const ts_kernel *plan_kernel(ts_op op) {
  static const ts_kernel row = {plan_prepare, plan_run, plan_release};
  (void) op;
  return &row;
}

/* The backend of CUDA with this attention alone. */
static ts_backend only_cudnn(void) {
  ts_backend backend = *cuda;
  backend.kernel = plan_kernel;
  return backend;
}

static void clear_outputs(run_case *c) {
  for (int i = 0; i < c->n_out; ++i) {
    memset(c->out[i].data, 0xff, run_bytes(&c->out[i])); /* NaN */
  }
}

static double worst_gradient(const run_case *g, const reference *r) {
  double worst = 0;
  for (int i = 0; i < 3; ++i) {
    double is = distance(&g->out[i], r->array[DQ + i]);
    worst = is <= worst ? worst : is;
  }
  return worst;
}

/* Both calls with q, k and v in one tensor; the results go to the cases where these are three. */
static bool run_fused(const ts_backend *backend, const problem *p, run_case *f, run_case *g) {
  run_case ff = fused_case(p, f, 0), gg = fused_case(p, g, 1);
  clear_outputs(&ff);
  clear_outputs(&gg);
  bool clean = run_kernel(backend, &ff) && run_kernel(backend, &gg);
  for (int i = 0; i < 2; ++i) {
    memcpy(f->out[i].data, ff.out[i].data, run_bytes(&f->out[i]));
  }
  for (int i = 0; i < 3; ++i) {
    move_columns(p, i, &g->out[i], &gg.out[0], true);
  }
  run_free(&ff);
  run_free(&gg);
  return clean;
}

/* As in test_attention: weights, score gradients and results are each rounded to 2^-9 of themselves, and delta takes
 * the rounding of o; here also dk and dv of each of up to 4 query heads: together below 2^-6 of the largest value.  lse
 * stays in fp32: a hundred roundings of 2^-24 of scores up to ten. */
static void check_values(const problem *p, const char *how) {
  char text[80];
  if (is_refused(p)) {
    shape_node s;
    ts_error err = {0};
    make_node(&s, TS_OP_ATTENTION_DX, p);
    bool refused = ts_cudnn_plan_create(&s.graph, &s.node, any_order, NULL, &err) == NULL;
    tap_ok(refused && names(&err, "multiple of 128"), "%s%s: %s refuses the backward pass", name_of(p, text), how,
           ts_cudnn_describe());
    ts_error_clear(&err);
    return;
  }
  ts_backend backend = only_cudnn();
  reference r = reference_create(p);
  forward(p, &r);
  backward(p, &r);
  run_case f = forward_case(p, &r);
  clear_outputs(&f);
  bool clean = run_kernel(&backend, &f);
  run_case g = backward_case(p, &r, &f);
  clear_outputs(&g);
  clean = run_kernel(&backend, &g) && clean;
  double o = distance(&f.out[0], r.array[O]), lse = distance(&f.out[1], r.lse), d = worst_gradient(&g, &r);
  run_kernel(cuda, &g);
  double mixed = worst_gradient(&g, &r);
  tap_ok(clean && o <= 0x1p-6 && lse <= 1e-5 && d <= 0x1p-6 && mixed <= 0x1p-6,
         "%s%s: o %.2g lse %.2g gradients %.2g, by our backward %.2g%s", name_of(p, text), how, o, lse, d, mixed,
         clean ? "" : ": writes past its workspace");
  clean = run_fused(&backend, p, &f, &g);
  o = distance(&f.out[0], r.array[O]);
  lse = distance(&f.out[1], r.lse);
  d = worst_gradient(&g, &r);
  tap_ok(clean && o <= 0x1p-6 && lse <= 1e-5 && d <= 0x1p-6,
         "%s%s, q, k and v in one tensor: o %.2g lse %.2g gradients %.2g%s", name_of(p, text), how, o, lse, d,
         clean ? "" : ": writes past its workspace");
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

static void keep_outputs(const run_case *c, void *kept[3]) {
  for (int i = 0; i < c->n_out; ++i) {
    kept[i] = ts_malloc(run_bytes(&c->out[i]));
    memcpy(kept[i], c->out[i].data, run_bytes(&c->out[i]));
  }
}

/* Compare with what was kept, and spoil the outputs for the next run; on the device they stay. */
static bool same_outputs(const run_case *c, void *const kept[3]) {
  bool same = true;
  for (int i = 0; i < c->n_out; ++i) {
    same = same && run_same(&c->out[i], kept[i]);
    memset(c->out[i].data, 0xff, run_bytes(&c->out[i]));
  }
  return same;
}

/* One run recorded and replayed twice: outputs come back as run_go brings them. */
static bool same_replayed(run_state *s, const run_case *c, void *const kept[3]) {
  ts_device *device = ts_backend_device(cuda);
  bool same = true;
  device->ops->capture_begin(device);
  s->row->run(&s->call);
  void *recorded = device->ops->capture_end(device);
  for (int i = 0; i < 2; ++i) {
    for (int m = 0; m < s->n_mirrors; ++m) {
      if (s->mirror[m].written && !s->mirror[m].part) {
        device->ops->copy(device, s->mirror[m].device, s->mirror[m].host, s->mirror[m].bytes,
                          TS_QUEUE_COMPUTE); /* spoiled */
      }
    }
    device->ops->replay(device, recorded);
    for (int m = 0; m < s->n_mirrors; ++m) {
      if (s->mirror[m].written) {
        device->ops->copy(device, (void *) s->mirror[m].host, s->mirror[m].device, s->mirror[m].bytes,
                          TS_QUEUE_COMPUTE);
      }
    }
    run_finish(s->device);
    same = same_outputs(c, kept) && same;
  }
  device->ops->graph_destroy(device, recorded);
  return same;
}

/* Many blocks on all multiprocessors, many times: sums in the order of their finishing would differ. */
static void check_bits(run_case *c, const char *what) {
  ts_backend backend = only_cudnn();
  run_state s;
  void *kept[3] = {NULL};
  run_begin(&backend, c, &s);
  run_go(&s);
  keep_outputs(c, kept);
  bool planned = s.call.prepared != NULL, same = planned;
  int times = stand_in ? 2 : 20;
  for (int i = 0; i < times && planned; ++i) {
    run_go(&s);
    same = same_outputs(c, kept) && same;
  }
  tap_ok(same, "%s: the same bits %d times%s", what, times, planned ? "" : ": refused");
  tap_ok(planned && same_replayed(&s, c, kept), "%s: the same bits recorded and replayed", what);
  if (planned) {
    tap_note("%s: engine %lld, %zu bytes of workspace", what, (long long) ts_cudnn_plan_engine(s.call.prepared),
             ts_cudnn_plan_workspace(s.call.prepared));
  }
  run_end(&s);
  for (int i = 0; i < 3; ++i) {
    ts_free(kept[i]);
  }
}

static void check_device(void) {
  check_described();
  for (int i = 0; i < N_SHAPES; ++i) {
    check_values(&shapes[i], "");
  }
  ts_cudnn_slice(1);
  check_values(&shapes[N_SHAPES - 1], " in slices");
  ts_cudnn_slice(0);
  any_order = true;
  for (int i = 0; i < N_SHAPES; ++i) {
    check_values(&shapes[i], " in any order");
  }
  any_order = false;
  problem large = {4, 1024, 16, 4, 128, true, false, 0, TS_BF16, 0, 0},
          small = {2, 130, 4, 2, 64, true, false, 0, TS_BF16, 0, 0};
  problem p = stand_in ? small : large;
  reference r = reference_create(&p);
  run_case f = forward_case(&p, &r);
  check_bits(&f, "forward");
  run_kernel(cuda, &f); /* o and lse for the other, from the other kernels */
  run_case g = backward_case(&p, &r, &f);
  check_bits(&g, "backward");
  run_free(&f);
  run_free(&g);
  reference_free(&r);
}

int main(void) {
  tap_note("%s", ts_cudnn_describe());
  check_supports();
  check_parts();
  check_workspace();
  check_accepted();
  check_refused();
  cuda = test_backend();
  if (cuda != NULL) {
    stand_in = strstr(cuda->describe(), "stand-in") != NULL;
    if (stand_in) {
      check_not_given();
    }
    check_device();
    test_backend_close();
  }
  tap_ok(ts_memory_live() == 0, "everything is freed");
  return tap_done();
}
