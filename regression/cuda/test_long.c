/* Tensors of more than 2^32 elements, on the stand-in: kernels run the first and last blocks of their grids only,
 * memory is there where it is written, and the last tokens must have the bits that a call of these alone gives.  An
 * index of 32 bits reads or writes elsewhere. */
#include "cuda/attention_limits.h"
#include "regression/backends.h"
#include "regression/kernel_run.h"
#include "regression/shim/cuda_runtime.h"
#include "regression/tap.h"

/* Tokens of a sample, of which the last TAIL have values; the rest is zeros.  Of all other extents none is TAIL. */
enum { TAIL = 128, HEADS = 16, HEAD_DIM = 128, COLUMNS = HEADS * HEAD_DIM, ROWS = 64, ENDS = 2, LAST = 64 };
enum { TOKENS = (1 << 21) + 4 * TAIL };

static const ts_backend *backend;

/* ---- attributes, of the last tokens alone and of all ---- */

static void set_dropout(ts_attr *a, bool tail) {
  a->dropout.p = 0.5f;
  a->dropout.name = 7;
  if (tail) {
    a->dropout.tokens = (ts_tokens){1, {{TOKENS - TAIL, TAIL}}};
  }
}
static void set_split(ts_attr *a, bool tail) {
  static const int64_t size[] = {COLUMNS / 2, COLUMNS / 2};
  (void) tail;
  a->split.groups = 1;
  a->split.size = size;
}
static void set_concat(ts_attr *a, bool tail) {
  (void) tail;
  a->concat.groups = 1;
}
static void set_take(ts_attr *a, bool tail) {
  static ts_interval all, last;
  all.length = TOKENS;
  last.length = TAIL;
  a->take.dim = 1;
  a->take.extent = tail ? TAIL : TOKENS;
  a->take.n = 1;
  a->take.interval = tail ? &last : &all;
}
static void set_norm(ts_attr *a, bool tail) {
  (void) tail;
  a->norm.eps = 1e-5f;
  a->norm.dtype = TS_F32;
}
static void set_sum(ts_attr *a, bool tail) {
  (void) tail;
  a->sum_rows.dtype = TS_F32;
}
static void set_cast(ts_attr *a, bool tail) {
  (void) tail;
  a->cast.dtype = TS_F32;
}
static void set_scale(ts_attr *a, bool tail) {
  (void) tail;
  a->scale.by = 3;
}
static void set_rope(ts_attr *a, bool tail) {
  static const double frequency[] = {1, 0.5, 0.25, 0.125};
  (void) tail;
  a->rope.head_dim = HEAD_DIM;
  a->rope.rotated = 8;
  a->rope.frequency = frequency;
  a->rope.factor = 1;
}

static const ts_tokens at_end = {1, {{TOKENS - TAIL, TAIL}}};

static void set_heads(ts_attr *a, bool tail) {
  a->attention.heads = a->attention.kv_heads = HEADS;
  a->attention.head_dim = HEAD_DIM;
  a->attention.scale = 0.0883f;
  a->attention.causal = true;
  a->attention.length = TOKENS;
  (void) tail;
}
/* All queries on the last keys; some of the kernels have a softcap. */
static void set_queries(ts_attr *a, bool tail) {
  set_heads(a, tail);
  a->attention.keys = at_end;
  a->attention.queries = tail ? at_end : (ts_tokens){0};
}
static void set_queries_capped(ts_attr *a, bool tail) {
  set_queries(a, tail);
  a->attention.softcap = 5;
}
/* The last queries on all keys, of which they see those in a window. */
static void set_keys(ts_attr *a, bool tail) {
  set_heads(a, tail);
  a->attention.window = 64;
  a->attention.queries = at_end;
  a->attention.keys = tail ? at_end : (ts_tokens){0};
}

/* ---- tensors ---- */

/* By letter; k and m have as many tokens as the tail in either call. */
static const struct {
  char letter;
  ts_dtype dtype;
  bool is_long;
  ts_shape shape; /* of the tail */
} kinds[] = {
    {'x', TS_BF16, true, {3, {1, TAIL, COLUMNS}}},
    {'f', TS_F32, true, {3, {1, TAIL, COLUMNS}}},
    {'h', TS_BF16, true, {3, {1, TAIL, COLUMNS / 2}}},
    {'d', TS_BF16, true, {3, {2, TAIL, COLUMNS}}},
    {'r', TS_F32, true, {2, {1, TAIL}}},
    {'i', TS_I32, true, {2, {1, TAIL}}},
    {'l', TS_F32, true, {3, {1, HEADS, TAIL}}},
    {'m', TS_F32, false, {3, {1, HEADS, TAIL}}},
    {'k', TS_BF16, false, {3, {1, TAIL, COLUMNS}}},
    {'c', TS_BF16, false, {1, {COLUMNS}}},
    {'w', TS_F32, false, {1, {COLUMNS}}},
    {'t', TS_BF16, false, {2, {ROWS, COLUMNS}}},
    {'s', TS_I64, false, {1, {1}}},
    {'e', TS_F32, false, {1, {1}}},
};

static const struct call {
  const char *name;
  ts_op op;
  const char *in, *out; /* '-': absent */
  void (*set)(ts_attr *attr, bool tail);
} calls[] = {
    {"add", TS_OP_ADD, "xx", "x", NULL},
    {"bias", TS_OP_BIAS, "xc", "x", NULL},
    {"scale", TS_OP_SCALE, "x", "x", set_scale},
    {"activation", TS_OP_ACTIVATION, "x", "x", NULL},
    {"activation_dx", TS_OP_ACTIVATION_DX, "xx", "x", NULL},
    {"glu", TS_OP_GLU, "xx", "x", NULL},
    {"glu_dx", TS_OP_GLU_DX, "xxx", "xx", NULL},
    {"cast", TS_OP_CAST, "x", "f", set_cast},
    {"accumulate", TS_OP_ACCUMULATE, "fxe", "f", NULL},
    {"dropout", TS_OP_DROPOUT, "xss", "x", set_dropout},
    {"split", TS_OP_SPLIT, "x", "hh", set_split},
    {"concat", TS_OP_CONCAT, "hh", "x", set_concat},
    {"take", TS_OP_TAKE, "d", "d", set_take},
    {"place", TS_OP_PLACE, "d", "d", set_take},
    {"embedding", TS_OP_EMBEDDING, "ti", "x", NULL},
    {"layernorm", TS_OP_LAYERNORM, "xcc", "xrr", set_norm},
    {"layernorm_dx", TS_OP_LAYERNORM_DX, "xxcrr", "x", set_norm},
    {"layernorm_dw", TS_OP_LAYERNORM_DW, "xxrr", "ww", set_norm},
    {"rmsnorm", TS_OP_RMSNORM, "xc", "xr", set_norm},
    {"rmsnorm_dx", TS_OP_RMSNORM_DX, "xxcr", "x", set_norm},
    {"rmsnorm_dw", TS_OP_RMSNORM_DW, "xxr", "w", set_norm},
    {"row_squares", TS_OP_ROW_SQUARES, "x", "r", NULL},
    {"row_dots", TS_OP_ROW_DOTS, "xxc", "r", set_norm},
    {"sum_rows", TS_OP_SUM_ROWS, "x", "w", set_sum},
    {"rope", TS_OP_ROPE, "xi", "x", set_rope},
    {"attention_delta", TS_OP_ATTENTION_DELTA, "xx", "l", set_heads},
    {"attention_merge", TS_OP_ATTENTION_MERGE, "flfl", "fl", set_heads},
    {"attention, many queries", TS_OP_ATTENTION, "xkk", "xl", set_queries},
    {"attention, many queries and a softcap", TS_OP_ATTENTION, "xkk", "xl", set_queries_capped},
    {"attention, many keys", TS_OP_ATTENTION, "kxx", "km", set_keys},
    {"attention_dx, many queries", TS_OP_ATTENTION_DX, "xxkkxl", "xkk", set_queries},
    {"attention_dx, many queries and a softcap", TS_OP_ATTENTION_DX, "xxkk-l---l", "xkk", set_queries_capped},
    {"attention_dx, many keys", TS_OP_ATTENTION_DX, "kkxxkm", "kxx", set_keys},
};

static size_t kind_of(char letter) {
  size_t k = 0;
  while (kinds[k].letter != letter) {
    ++k;
  }
  return k;
}

static ts_shape shape_of(char letter, bool tail) {
  size_t k = kind_of(letter);
  ts_shape shape = kinds[k].shape;
  for (int i = 0; i < shape.n && kinds[k].is_long && !tail; ++i) {
    shape.d[i] = shape.d[i] == TAIL ? TOKENS : shape.d[i];
  }
  return shape;
}

/* Numbers of rows, positions, seeds: whole and not large. */
static run_tensor make(char letter, uint64_t key) {
  size_t k = kind_of(letter);
  run_tensor x = run_random(kinds[k].dtype, kinds[k].shape, key, 1);
  for (int64_t i = 0; i < run_count(&x) && !ts_dtype_is_float(x.dtype); ++i) {
    run_set(&x, i, (double) ((i * 7 + 3) % ROWS));
  }
  return x;
}

static run_case make_case(const struct call *call) {
  run_case c = {.op = call->op, .n_in = (int) strlen(call->in), .n_out = (int) strlen(call->out), .threads = 1};
  for (int i = 0; i < c.n_in; ++i) {
    if (call->in[i] != '-') {
      c.in[i] = make(call->in[i], (uint64_t) (100 + i));
    }
  }
  for (int i = 0; i < c.n_out; ++i) {
    c.out[i] = run_new(kinds[kind_of(call->out[i])].dtype, shape_of(call->out[i], true));
  }
  if (call->set != NULL) {
    call->set(&c.attr, true);
  }
  return c;
}

/* ---- the long call ---- */

static void *allocate(size_t bytes) {
  void *memory = NULL;
  return cudaMalloc(&memory, bytes > 0 ? bytes : 1) == cudaSuccess ? memory : NULL;
}

static size_t bytes_of(char letter, bool tail) {
  ts_shape shape = shape_of(letter, tail);
  return (size_t) ts_shape_count(&shape) * ts_dtype_size(kinds[kind_of(letter)].dtype);
}

/* The tail's part of a tensor on the device, to it or from it: behind every index of what lies before the tokens. */
static void move_tail(char letter, char *device, char *host, bool back) {
  ts_shape shape = shape_of(letter, true);
  size_t outer = 1, whole = bytes_of(letter, false), part = bytes_of(letter, true);
  for (int i = 0; whole > part && shape.d[i] != TAIL; ++i) {
    outer *= (size_t) shape.d[i];
  }
  whole /= outer;
  part /= outer;
  for (size_t i = 0; i < outer; ++i) {
    char *there = device + (i + 1) * whole - part, *here = host + i * part;
    run_move(backend, back ? here : there, back ? there : here, part);
  }
}

/* As in kernel_run.h, with memory that is there where it is used. */
typedef struct long_run {
  run_state state;
  void *memory[2 * RUN_MAX + 1]; /* of inputs, outputs, workspace; owned */
  bool there;
} long_run;

/* Input or output \a at of the state: its tensor, and its memory. */
static ts_tid take_tensor(long_run *r, char letter, int at) {
  if (letter == '-') {
    return TS_NONE;
  }
  r->memory[at] = allocate(bytes_of(letter, false));
  r->there = r->there && r->memory[at] != NULL;
  r->state.tensor[at] = (ts_tensor){.dtype = kinds[kind_of(letter)].dtype, .shape = shape_of(letter, false)};
  return at;
}

static void take_tensors(long_run *r, const struct call *call) {
  for (int i = 0; call->in[i] != 0; ++i) {
    r->state.in[i] = take_tensor(r, call->in[i], i);
    r->state.in_data[i] = r->memory[i];
  }
  for (int i = 0; call->out[i] != 0; ++i) {
    r->state.out[i] = take_tensor(r, call->out[i], RUN_MAX + i);
    r->state.out_data[i] = r->memory[RUN_MAX + i];
  }
}

static void prepare(long_run *r, const struct call *call) {
  run_state *s = &r->state;
  ts_target target = {backend, 1, TS_CUDNN_NEVER};
  s->row = backend->kernel(call->op);
  s->node = (ts_node){.op = call->op, .name = (char *) "node", .in = s->in, .out = s->out, .beta = TS_NONE};
  s->node.n_in = (int) strlen(call->in);
  s->node.n_out = (int) strlen(call->out);
  if (call->set != NULL) {
    call->set(&s->node.attr, false);
  }
  s->graph = (ts_graph){.tensor = s->tensor, .n_tensors = 2 * RUN_MAX, .node = &s->node, .n_nodes = 1};
  s->call = (ts_kernel_call){.graph = &s->graph, .node = &s->node, .in = s->in_data, .out = s->out_data, .threads = 1};
  s->call.workspace_bytes =
      s->row->prepare == NULL ? 0 : s->row->prepare(&target, &s->graph, &s->node, &s->call.prepared);
  s->call.workspace = r->memory[2 * RUN_MAX] = allocate(s->call.workspace_bytes);
  s->call.stream = ts_backend_device(backend)->ops->stream(ts_backend_device(backend), TS_QUEUE_COMPUTE);
  r->there = r->there && s->call.workspace != NULL;
}

static void release(long_run *r) {
  if (r->state.row->release != NULL) {
    r->state.row->release(r->state.call.prepared);
  }
  for (int i = 0; i <= 2 * RUN_MAX; ++i) {
    cudaFree(r->memory[i]);
  }
}

/* The last tokens of the results.  \return false: the machine promises no such memory. */
static bool run_long(const struct call *call, const run_case *tail, run_tensor *result) {
  long_run r = {.there = true};
  take_tensors(&r, call);
  prepare(&r, call);
  for (int i = 0; r.there && call->in[i] != 0; ++i) {
    if (r.memory[i] != NULL) {
      move_tail(call->in[i], r.memory[i], tail->in[i].data, false);
    }
  }
  if (r.there) {
    r.state.row->run(&r.state.call);
  }
  for (int i = 0; r.there && call->out[i] != 0; ++i) {
    move_tail(call->out[i], r.memory[RUN_MAX + i], result[i].data, true);
  }
  release(&r);
  return r.there;
}

/* ---- the test ---- */

/* Of what ends with the tokens those of the last head, else the last elements, which the last blocks write. */
static bool is_same_end(const run_tensor *x, const run_tensor *y) {
  bool by_head = x->shape.d[x->shape.n - 1] == TAIL;
  int64_t count = run_count(x), last = by_head ? 1 : LAST;
  size_t size = ts_dtype_size(x->dtype), at = (size_t) (count - last) * size;
  return memcmp((char *) x->data + at, (char *) y->data + at, (size_t) last * size) == 0;
}

static void check(const struct call *call) {
  run_case c = make_case(call);
  run_tensor result[RUN_MAX];
  for (int i = 0; i < c.n_out; ++i) {
    result[i] = run_new(c.out[i].dtype, c.out[i].shape);
  }
  shim_only_ends(ENDS);
  bool ran = run_long(call, &c, result);
  shim_only_ends(0);
  run_kernel(backend, &c);
  bool same = true;
  for (int i = 0; i < c.n_out; ++i) {
    same = is_same_end(&c.out[i], &result[i]) && same;
    ts_free(result[i].data);
  }
  if (ran) {
    tap_ok(same, "%s of %d tokens of %d: the last ones are right", call->name, TOKENS, COLUMNS);
  } else {
    tap_skip("%s: so much memory is not promised here", call->name);
  }
  run_free(&c);
}

/* What is longer than the kernels' numbers is refused before training. */
static void check_limits(void) {
  static const struct {
    int64_t rows, length;
    bool good;
  } cases[] = {{4194240, 4194240, true},
               {4194241, 4194241, false},
               {4194240, (int64_t) 1 << 29, true},
               {4194240, ((int64_t) 1 << 29) + 1, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    ts_tensor q = {.dtype = TS_BF16, .shape = TS_SHAPE(1, cases[i].rows, COLUMNS)}, tensor[] = {q, q, q};
    ts_tid in[] = {0, 1, 2};
    ts_node node = {.op = TS_OP_ATTENTION, .n_in = 3, .in = in};
    ts_graph graph = {.tensor = tensor, .n_tensors = 3, .node = &node, .n_nodes = 1};
    const char *why = NULL;
    set_heads(&node.attr, true);
    node.attr.attention.length = cases[i].length;
    bool good = ts_cuda_attention_supported(&graph, &node, &why);
    tap_ok(good == cases[i].good && good == (why == NULL), "%lld tokens of %lld: %s", (long long) cases[i].rows,
           (long long) cases[i].length, good ? "yes" : why);
  }
}

int main(void) {
  setenv("SHIM_MEMORY", "1000000000000", 1);
  backend = test_backend();
  for (size_t i = 0; backend != NULL && i < sizeof calls / sizeof *calls; ++i) {
    if (tap_wanted(ts_op_get(calls[i].op)->name)) {
      check(&calls[i]);
    }
  }
  check_limits();
  test_backend_close();
  tap_ok(ts_memory_live() == 0, "everything is freed");
  return tap_done();
}
