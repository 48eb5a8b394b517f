/* cuDNN's backend API: a descriptor is created, given attributes, and finalized.  Every descriptor of a graph belongs
 * to it until the graph ends: finalized descriptors refer to one another.  The order of calls and the attributes are
 * those of NVIDIA's own front end, which is not used here. */
#include "cuda/cudnn_graph.h"

#include "base/memory.h"
#include "cuda/attention_cudnn.h"
#include "cuda/device.h"

#include <stdio.h>
#include <string.h>

enum { MOST_OPERATIONS = 64, FIRST_VIRTUAL = 100, MOST_CANDIDATES = 32, MESSAGE = 512 };

struct ts_cudnn_graph {
  ts_error *err;
  bool failed;
  cudnnHandle_t handle;            /* NULL when the device is described */
  cudnnBackendDescriptor_t device; /* NULL when it is this process's */
  cudnnBackendDescriptor_t *owned;
  int n_owned, owned_capacity;
  cudnnBackendDescriptor_t operation[MOST_OPERATIONS];
  int n_operations;
  int64_t next_virtual;
  cudnnBackendDescriptor_t all;  /* the operations, once closed */
  cudnnBackendDescriptor_t plan; /* NULL until there is one */
};

/* ---- failures ---- */

static bool check_cudnn(ts_cudnn_graph *graph, cudnnStatus_t status, const char *what) {
  if (status == CUDNN_STATUS_SUCCESS) {
    return true;
  }
  if (!graph->failed) {
    char reason[MESSAGE] = "";
    cudnnGetLastErrorString(reason, sizeof reason);
    ts_error_add(graph->err, "cuDNN: %s: %s: %s", what, cudnnGetErrorString(status), reason);
  }
  graph->failed = true;
  return false;
}

/* ---- descriptors ---- */

static cudnnBackendDescriptor_t create(ts_cudnn_graph *graph, cudnnBackendDescriptorType_t type, const char *name) {
  cudnnBackendDescriptor_t made = NULL;
  if (graph->failed || !check_cudnn(graph, cudnnBackendCreateDescriptor(type, &made), name)) {
    return NULL;
  }
  TS_GROW(graph->owned, graph->n_owned, graph->owned_capacity);
  graph->owned[graph->n_owned++] = made;
  return made;
}
#define CREATE(graph, type) create((graph), CUDNN_BACKEND_##type##_DESCRIPTOR, "create " #type)

static void set_checked(ts_cudnn_graph *graph, cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t attribute,
                        cudnnBackendAttributeType_t type, int64_t count, const void *value, const char *name) {
  if (!graph->failed) {
    check_cudnn(graph, cudnnBackendSetAttribute(to, attribute, type, count, value), name);
  }
}
#define SET(graph, to, attribute, type, count, value) \
  set_checked((graph), (to), CUDNN_ATTR_##attribute, CUDNN_TYPE_##type, (count), (value), "set " #attribute)

/* One descriptor as an attribute of another; NULL: an optional one that is absent. */
#define SET_DESCRIPTOR(graph, to, attribute, value)                     \
  do {                                                                  \
    cudnnBackendDescriptor_t set_value = (value);                       \
    if (set_value != NULL) {                                            \
      SET((graph), (to), attribute, BACKEND_DESCRIPTOR, 1, &set_value); \
    }                                                                   \
  } while (0)

static void finalize(ts_cudnn_graph *graph, cudnnBackendDescriptor_t d, const char *name) {
  if (!graph->failed) {
    check_cudnn(graph, cudnnBackendFinalize(d), name);
  }
}
#define FINALIZE(graph, d, type) finalize((graph), (d), "finalize " #type)

/* ---- a graph ---- */

static void find_device(ts_cudnn_graph *graph, const char *device) {
  if (device == NULL) {
    ts_cuda_device *own = ts_cuda_opened();
    if (own->cudnn == NULL) {
      check_cudnn(graph, cudnnCreate(&own->cudnn), "cudnnCreate");
    }
    graph->handle = own->cudnn;
    return;
  }
  graph->device = CREATE(graph, DEVICEPROP);
  SET(graph, graph->device, DEVICEPROP_JSON_REPRESENTATION, CHAR, (int64_t) strlen(device), device);
  FINALIZE(graph, graph->device, DEVICEPROP);
}

ts_cudnn_graph *ts_cudnn_graph_create(const char *device, ts_error *err) {
  ts_cudnn_graph *graph = ts_calloc(1, sizeof *graph);
  graph->err = err;
  graph->next_virtual = FIRST_VIRTUAL;
  find_device(graph, device);
  return graph;
}

void ts_cudnn_graph_destroy(ts_cudnn_graph **graph) {
  if (*graph != NULL) {
    for (int i = (*graph)->n_owned - 1; i >= 0; --i) {
      cudnnBackendDestroyDescriptor((*graph)->owned[i]);
    }
    ts_free((*graph)->owned);
    ts_free(*graph);
    *graph = NULL;
  }
}

/* ---- tensors ---- */

static ts_cudnn_tensor make_tensor(ts_cudnn_graph *graph, int64_t uid, cudnnDataType_t type, ts_cudnn_shape shape,
                                   bool is_virtual, bool by_value) {
  int64_t align = TS_CUDNN_ALIGN;
  ts_cudnn_tensor t = CREATE(graph, TENSOR);
  SET(graph, t, TENSOR_UNIQUE_ID, INT64, 1, &uid);
  SET(graph, t, TENSOR_DATA_TYPE, DATA_TYPE, 1, &type);
  SET(graph, t, TENSOR_BYTE_ALIGNMENT, INT64, 1, &align);
  SET(graph, t, TENSOR_DIMENSIONS, INT64, TS_CUDNN_DIMS, shape.dim);
  SET(graph, t, TENSOR_STRIDES, INT64, TS_CUDNN_DIMS, shape.stride);
  SET(graph, t, TENSOR_IS_VIRTUAL, BOOLEAN, 1, &is_virtual);
  SET(graph, t, TENSOR_IS_BY_VALUE, BOOLEAN, 1, &by_value);
  FINALIZE(graph, t, TENSOR);
  return t;
}

ts_cudnn_tensor ts_cudnn_memory(ts_cudnn_graph *graph, int64_t uid, cudnnDataType_t type, ts_cudnn_shape shape) {
  TS_ASSERT(0 < uid && uid < FIRST_VIRTUAL);
  return make_tensor(graph, uid, type, shape, false, false);
}

ts_cudnn_tensor ts_cudnn_scalar(ts_cudnn_graph *graph, int64_t uid, cudnnDataType_t type) {
  return make_tensor(graph, uid, type, (ts_cudnn_shape){{1, 1, 1, 1}, {1, 1, 1, 1}}, false, true);
}

ts_cudnn_tensor ts_cudnn_virtual(ts_cudnn_graph *graph, cudnnDataType_t type, ts_cudnn_shape shape) {
  return make_tensor(graph, graph->next_virtual++, type, shape, true, false);
}

/* ---- operations ---- */

static void add_operation(ts_cudnn_graph *graph, cudnnBackendDescriptor_t operation) {
  TS_CHECK(graph->n_operations < MOST_OPERATIONS, "an operation graph of more than %d operations", MOST_OPERATIONS);
  graph->operation[graph->n_operations++] = operation;
}

static ts_cudnn_tensor pointwise(ts_cudnn_graph *graph, cudnnPointwiseMode_t mode, int64_t axis, ts_cudnn_tensor x,
                                 ts_cudnn_tensor b, ts_cudnn_tensor t, ts_cudnn_tensor y) {
  bool compares = mode >= CUDNN_POINTWISE_CMP_EQ && mode <= CUDNN_POINTWISE_CMP_LE;
  cudnnDataType_t compute = compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
  cudnnBackendDescriptor_t kind = CREATE(graph, POINTWISE);
  SET(graph, kind, POINTWISE_MODE, POINTWISE_MODE, 1, &mode);
  SET(graph, kind, POINTWISE_MATH_PREC, DATA_TYPE, 1, &compute);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) {
    SET(graph, kind, POINTWISE_AXIS, INT64, 1, &axis);
  }
  FINALIZE(graph, kind, POINTWISE);
  cudnnBackendDescriptor_t operation = CREATE(graph, OPERATION_POINTWISE);
  SET_DESCRIPTOR(graph, operation, OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  SET_DESCRIPTOR(graph, operation, OPERATION_POINTWISE_XDESC, x);
  SET_DESCRIPTOR(graph, operation, OPERATION_POINTWISE_BDESC, b);
  SET_DESCRIPTOR(graph, operation, OPERATION_POINTWISE_TDESC, t);
  SET_DESCRIPTOR(graph, operation, OPERATION_POINTWISE_YDESC, y);
  FINALIZE(graph, operation, OPERATION_POINTWISE);
  add_operation(graph, operation);
  return y;
}

ts_cudnn_tensor ts_cudnn_unary(ts_cudnn_graph *graph, cudnnPointwiseMode_t mode, ts_cudnn_tensor x, ts_cudnn_tensor y) {
  return pointwise(graph, mode, 0, x, NULL, NULL, y);
}

ts_cudnn_tensor ts_cudnn_binary(ts_cudnn_graph *graph, cudnnPointwiseMode_t mode, ts_cudnn_tensor x, ts_cudnn_tensor b,
                                ts_cudnn_tensor y) {
  return pointwise(graph, mode, 0, x, b, NULL, y);
}

ts_cudnn_tensor ts_cudnn_select(ts_cudnn_graph *graph, ts_cudnn_tensor x, ts_cudnn_tensor b, ts_cudnn_tensor t,
                                ts_cudnn_tensor y) {
  return pointwise(graph, CUDNN_POINTWISE_BINARY_SELECT, 0, x, b, t, y);
}

ts_cudnn_tensor ts_cudnn_index(ts_cudnn_graph *graph, int64_t axis, ts_cudnn_tensor x, ts_cudnn_tensor y) {
  return pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, axis, x, NULL, NULL, y);
}

ts_cudnn_tensor ts_cudnn_matmul(ts_cudnn_graph *graph, ts_cudnn_tensor a, ts_cudnn_tensor b, ts_cudnn_tensor c) {
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnBackendDescriptor_t kind = CREATE(graph, MATMUL);
  SET(graph, kind, MATMUL_COMP_TYPE, DATA_TYPE, 1, &compute);
  FINALIZE(graph, kind, MATMUL);
  cudnnBackendDescriptor_t operation = CREATE(graph, OPERATION_MATMUL);
  SET_DESCRIPTOR(graph, operation, OPERATION_MATMUL_DESC, kind);
  SET_DESCRIPTOR(graph, operation, OPERATION_MATMUL_ADESC, a);
  SET_DESCRIPTOR(graph, operation, OPERATION_MATMUL_BDESC, b);
  SET_DESCRIPTOR(graph, operation, OPERATION_MATMUL_CDESC, c);
  FINALIZE(graph, operation, OPERATION_MATMUL);
  add_operation(graph, operation);
  return c;
}

ts_cudnn_tensor ts_cudnn_reduce(ts_cudnn_graph *graph, cudnnReduceTensorOp_t op, ts_cudnn_tensor x, ts_cudnn_tensor y) {
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  bool deterministic = true;
  cudnnBackendDescriptor_t kind = CREATE(graph, REDUCTION);
  SET(graph, kind, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, &op);
  SET(graph, kind, REDUCTION_COMP_TYPE, DATA_TYPE, 1, &compute);
  SET(graph, kind, REDUCTION_IS_DETERMINISTIC, BOOLEAN, 1, &deterministic);
  FINALIZE(graph, kind, REDUCTION);
  cudnnBackendDescriptor_t operation = CREATE(graph, OPERATION_REDUCTION);
  SET_DESCRIPTOR(graph, operation, OPERATION_REDUCTION_DESC, kind);
  SET_DESCRIPTOR(graph, operation, OPERATION_REDUCTION_XDESC, x);
  SET_DESCRIPTOR(graph, operation, OPERATION_REDUCTION_YDESC, y);
  FINALIZE(graph, operation, OPERATION_REDUCTION);
  add_operation(graph, operation);
  return y;
}

ts_cudnn_tensor ts_cudnn_reshape(ts_cudnn_graph *graph, ts_cudnn_tensor x, ts_cudnn_tensor y) {
  cudnnBackendDescriptor_t operation = CREATE(graph, OPERATION_RESHAPE);
  SET_DESCRIPTOR(graph, operation, OPERATION_RESHAPE_XDESC, x);
  SET_DESCRIPTOR(graph, operation, OPERATION_RESHAPE_YDESC, y);
  FINALIZE(graph, operation, OPERATION_RESHAPE);
  add_operation(graph, operation);
  return y;
}

/* ---- a plan ---- */

bool ts_cudnn_graph_close(ts_cudnn_graph *graph) {
  graph->all = CREATE(graph, OPERATIONGRAPH);
  SET(graph, graph->all, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, graph->n_operations, graph->operation);
  if (graph->device == NULL) {
    SET(graph, graph->all, OPERATIONGRAPH_HANDLE, HANDLE, 1, &graph->handle);
  }
  FINALIZE(graph, graph->all, OPERATIONGRAPH);
  return !graph->failed;
}

/* Engine configurations, best first. */
static int64_t find_candidates(ts_cudnn_graph *graph, cudnnBackendDescriptor_t *candidate) {
  cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  int64_t count = 0;
  cudnnBackendDescriptor_t heuristic = CREATE(graph, ENGINEHEUR);
  SET_DESCRIPTOR(graph, heuristic, ENGINEHEUR_OPERATION_GRAPH, graph->all);
  SET(graph, heuristic, ENGINEHEUR_MODE, HEUR_MODE, 1, &mode);
  SET_DESCRIPTOR(graph, heuristic, ENGINEHEUR_DEVICEPROP, graph->device);
  FINALIZE(graph, heuristic, ENGINEHEUR);
  for (int i = 0; i < MOST_CANDIDATES; ++i) {
    candidate[i] = CREATE(graph, ENGINECFG);
  }
  if (!graph->failed) {
    check_cudnn(graph,
                cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         MOST_CANDIDATES, &count, candidate),
                "get ENGINEHEUR_RESULTS");
  }
  return graph->failed ? 0 : count < MOST_CANDIDATES ? count : MOST_CANDIDATES;
}

/* False when the engine says that its bits may change; its number.  Silence is no promise: cuDNN 9.19 does not say it
 * of blocks that add to one tensor in memory, so that graphs must not ask for that. */
static bool is_deterministic(ts_cudnn_graph *graph, cudnnBackendDescriptor_t candidate, int64_t *number) {
  cudnnBackendDescriptor_t engine = CREATE(graph, ENGINE);
  cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t count = 0;
  if (graph->failed) {
    return false;
  }
  check_cudnn(graph,
              cudnnBackendGetAttribute(candidate, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                       &engine),
              "get ENGINECFG_ENGINE");
  check_cudnn(graph,
              cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, number),
              "get ENGINE_GLOBAL_INDEX");
  check_cudnn(graph,
              cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, note),
              "get ENGINE_NUMERICAL_NOTE");
  bool deterministic = !graph->failed;
  for (int64_t i = 0; !graph->failed && i < count; ++i) {
    deterministic = deterministic && note[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
  }
  return deterministic;
}

/* Build one candidate; NULL, with the reason in \a why, when that fails.  Not a failure of the graph. */
static cudnnBackendDescriptor_t try_candidate(ts_cudnn_graph *graph, cudnnBackendDescriptor_t candidate,
                                              char why[MESSAGE]) {
  cudnnBackendDescriptor_t plan = CREATE(graph, EXECUTION_PLAN);
  SET_DESCRIPTOR(graph, plan, EXECUTION_PLAN_ENGINE_CONFIG, candidate);
  SET_DESCRIPTOR(graph, plan, EXECUTION_PLAN_DEVICEPROP, graph->device);
  if (graph->device == NULL) {
    SET(graph, plan, EXECUTION_PLAN_HANDLE, HANDLE, 1, &graph->handle);
  }
  cudnnStatus_t status = graph->failed ? CUDNN_STATUS_BAD_PARAM : cudnnBackendFinalize(plan);
  if (status == CUDNN_STATUS_SUCCESS) {
    return plan;
  }
  char reason[MESSAGE - 80] = "";
  cudnnGetLastErrorString(reason, sizeof reason);
  snprintf(why, MESSAGE, "%s: %s", cudnnGetErrorString(status), reason);
  return NULL;
}

/* Known before it is built: what is too large is not compiled. */
static size_t candidate_workspace(ts_cudnn_graph *graph, cudnnBackendDescriptor_t candidate) {
  int64_t count, bytes = 0;
  if (!graph->failed) {
    check_cudnn(
        graph,
        cudnnBackendGetAttribute(candidate, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes),
        "get ENGINECFG_WORKSPACE_SIZE");
  }
  return (size_t) bytes;
}

/* Whether one candidate becomes the plan; otherwise \a why. */
static bool take_candidate(ts_cudnn_graph *graph, cudnnBackendDescriptor_t candidate, size_t most_workspace,
                           bool any_order, ts_cudnn_choice *choice, char why[MESSAGE]) {
  if (!is_deterministic(graph, candidate, &choice->engine) && !any_order) {
    snprintf(why, MESSAGE, "engine %d is not deterministic", (int) choice->engine);
    return false;
  }
  choice->workspace = candidate_workspace(graph, candidate);
  if (choice->workspace > most_workspace) {
    snprintf(why, MESSAGE, "engine %d wants %zu bytes of workspace, planned are %zu", (int) choice->engine,
             choice->workspace, most_workspace);
    return false;
  }
  graph->plan = try_candidate(graph, candidate, why);
  return graph->plan != NULL;
}

bool ts_cudnn_graph_plan(ts_cudnn_graph *graph, bool any_order, size_t most_workspace, ts_cudnn_choice *choice) {
  cudnnBackendDescriptor_t candidate[MOST_CANDIDATES] = {NULL};
  char why[MESSAGE] = "no driver, or no engine for this device and shape";
  int64_t count = find_candidates(graph, candidate);
  *choice = (ts_cudnn_choice){0};
  for (; choice->refused < count && !graph->failed; ++choice->refused) {
    if (take_candidate(graph, candidate[choice->refused], most_workspace, any_order, choice, why)) {
      graph->err = NULL; /* may end before the graph does */
      return true;
    }
  }
  if (!graph->failed) {
    graph->failed = true;
    ts_error_add(graph->err, "cuDNN: none of %d candidates will do; the last: %s", (int) count, why);
  }
  return false;
}

/* ---- a run ---- */

/* From here on a refusal is class (b): the plan promised it. */
static void must(cudnnStatus_t status, const char *what) {
  if (status != CUDNN_STATUS_SUCCESS) {
    char reason[MESSAGE] = "";
    cudnnGetLastErrorString(reason, sizeof reason);
    ts_die(__FILE__, __LINE__, "cuDNN: %s: %s: %s", what, cudnnGetErrorString(status), reason);
  }
}
#define MUST(call) must((call), #call)

ts_cudnn_pack ts_cudnn_pack_create(const int64_t *uid, void *const *pointer, int n, void *workspace) {
  ts_cudnn_pack pack;
  MUST(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
  MUST(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid));
  MUST(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointer));
  MUST(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
  MUST(cudnnBackendFinalize(pack));
  return pack;
}

void ts_cudnn_pack_destroy(ts_cudnn_pack *pack) {
  if (*pack != NULL) {
    MUST(cudnnBackendDestroyDescriptor(*pack));
    *pack = NULL;
  }
}

void ts_cudnn_graph_run(const ts_cudnn_graph *graph, ts_cudnn_pack pack, cudaStream_t stream) {
  TS_ASSERT(graph->plan != NULL && graph->handle != NULL);
  MUST(cudnnSetStream(graph->handle, stream));
  MUST(cudnnBackendExecute(graph->handle, graph->plan, pack));
}

void ts_cudnn_close(ts_cuda_device *device) {
  if (device->cudnn != NULL) {
    MUST(cudnnDestroy(device->cudnn));
    device->cudnn = NULL;
  }
}

const char *ts_cudnn_describe(void) {
  static char text[40];
  size_t version = cudnnGetVersion(); /* 10000 major + 100 minor + patch */
  snprintf(text, sizeof text, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
  return text;
}
