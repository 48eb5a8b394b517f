/* cuDNN of the stand-in: descriptors that are checked against a table of attributes and the shapes of operations, and
 * an interpreter of operation graphs. */
#include "cudnn.h"

#include <map>
#include <math.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "regression/shim/shim.h"

struct cudnnContext {
  cudaStream_t stream;
};

/* An attribute as it was set. */
struct attribute {
  int64_t count;
  std::vector<char> bytes;
};

struct descriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized;
  std::map<int, attribute> set;
  int candidate;           /* of an engine and its configuration */
  const descriptor *graph; /* that it is for */
};

/* A tensor descriptor, read. */
struct tensor {
  int64_t uid, align;
  cudnnDataType_t type;
  int64_t dim[4], stride[4];
  bool is_virtual, by_value;
};

enum { DIMS = 4, N_CANDIDATES = 4, NONDETERMINISTIC = 0, GREEDY = 1, UNBUILDABLE = 2 };

static char last_error[400];

static cudnnStatus_t refuse(cudnnStatus_t status, const char *why) {
  snprintf(last_error, sizeof last_error, "shim: %s", why);
  return status;
}
static cudnnStatus_t bad(const char *why) {
  return refuse(CUDNN_STATUS_BAD_PARAM, why);
}

/* ---- attributes ---- */

/* Which descriptor has which attribute, of which type; count 0: any number. */
static const struct rule {
  cudnnBackendDescriptorType_t owner;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t count;
  bool required;
} rules[] = {
#define RULE(owner, name, type, count, required) \
  {CUDNN_BACKEND_##owner##_DESCRIPTOR, CUDNN_ATTR_##name, CUDNN_TYPE_##type, count, required},
    RULE(TENSOR, TENSOR_UNIQUE_ID, INT64, 1, true) RULE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, 1, true) RULE(
        TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, 1, true) RULE(TENSOR, TENSOR_DIMENSIONS, INT64, DIMS, true)
        RULE(TENSOR, TENSOR_STRIDES, INT64, DIMS, true) RULE(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, 1, false) RULE(
            TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN, 1, false) RULE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, 1, true)
            RULE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, 1, true) RULE(POINTWISE, POINTWISE_AXIS, INT64, 1, false)
                RULE(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, BACKEND_DESCRIPTOR, 1,
                     true) RULE(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, BACKEND_DESCRIPTOR, 1, true)
                    RULE(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, BACKEND_DESCRIPTOR, 1, false) RULE(
                        OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, BACKEND_DESCRIPTOR,
                        1, false) RULE(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, BACKEND_DESCRIPTOR,
                                       1, true) RULE(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE, 1, true)
                        RULE(OPERATION_MATMUL, OPERATION_MATMUL_DESC, BACKEND_DESCRIPTOR, 1,
                             true) RULE(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, BACKEND_DESCRIPTOR, 1, true)
                            RULE(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, BACKEND_DESCRIPTOR, 1,
                                 true) RULE(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, BACKEND_DESCRIPTOR, 1, true)
                                RULE(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, true) RULE(
                                    REDUCTION, REDUCTION_COMP_TYPE,
                                    DATA_TYPE, 1, true) RULE(REDUCTION, REDUCTION_IS_DETERMINISTIC, BOOLEAN, 1, false)
                                    RULE(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, BACKEND_DESCRIPTOR, 1,
                                         true) RULE(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, BACKEND_DESCRIPTOR,
                                                    1, true) RULE(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC,
                                                                  BACKEND_DESCRIPTOR, 1, true)
                                        RULE(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, BACKEND_DESCRIPTOR, 1,
                                             true) RULE(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, BACKEND_DESCRIPTOR,
                                                        1, true) RULE(OPERATIONGRAPH, OPERATIONGRAPH_OPS,
                                                                      BACKEND_DESCRIPTOR, 0, true)
                                            RULE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, 1,
                                                 false) RULE(DEVICEPROP, DEVICEPROP_JSON_REPRESENTATION, CHAR, 0, true)
                                                RULE(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, BACKEND_DESCRIPTOR, 1,
                                                     true) RULE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, 1, true)
                                                    RULE(ENGINEHEUR, ENGINEHEUR_DEVICEPROP, BACKEND_DESCRIPTOR, 1,
                                                         false) RULE(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG,
                                                                     BACKEND_DESCRIPTOR, 1, true)
                                                        RULE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, 1,
                                                             false) RULE(EXECUTION_PLAN, EXECUTION_PLAN_DEVICEPROP,
                                                                         BACKEND_DESCRIPTOR, 1, false)
                                                            RULE(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, 0, true)
                                                                RULE(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR,
                                                                     0, true) RULE(VARIANT_PACK, VARIANT_PACK_WORKSPACE,
                                                                                   VOID_PTR, 1, true)
#undef RULE
};

static size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return sizeof(int); /* enumerations */
  }
}

template <typename T> static T value_of(const descriptor *d, int name, T absent, int64_t i = 0) {
  auto at = d->set.find(name);
  if (at == d->set.end()) {
    return absent;
  }
  T value;
  memcpy(&value, at->second.bytes.data() + (size_t) i * sizeof value, sizeof value);
  return value;
}

static const descriptor *child(const descriptor *d, int name, int64_t i = 0) {
  return value_of<const descriptor *>(d, name, nullptr, i);
}

static int64_t count_of(const descriptor *d, int name) {
  auto at = d->set.find(name);
  return at == d->set.end() ? 0 : at->second.count;
}

static tensor read_tensor(const descriptor *d) {
  tensor t = {};
  t.uid = value_of<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
  t.align = value_of<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
  t.type = value_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
  t.is_virtual = value_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  t.by_value = value_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
  for (int i = 0; i < DIMS; ++i) {
    t.dim[i] = value_of<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS, 0, i);
    t.stride[i] = value_of<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES, 0, i);
  }
  return t;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *value) {
  descriptor *d = (descriptor *) to;
  const rule *r = nullptr;
  for (const rule &each : rules) {
    r = d != nullptr && each.owner == d->type && each.name == name ? &each : r;
  }
  if (r == nullptr || d->finalized || value == nullptr || count <= 0 || (r->count > 0 && count != r->count)) {
    return bad("not an attribute of this descriptor, not so many of it, or set after finalize");
  }
  if (r->type != type) {
    return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "an attribute of another type");
  }
  attribute a = {count, std::vector<char>((const char *) value, (const char *) value + (size_t) count * size_of(type))};
  for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; ++i) {
    const descriptor *each = ((const descriptor *const *) value)[i];
    if (each == nullptr || !each->finalized) {
      return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor that is not finalized");
    }
  }
  d->set[name] = a;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- shapes ---- */

static cudnnStatus_t check_tensor(const descriptor *d) {
  tensor t = read_tensor(d);
  for (int i = 0; i < DIMS; ++i) {
    if (t.dim[i] < 1 || t.stride[i] < 1) {
      return bad("a dimension or stride below 1");
    }
  }
  return t.is_virtual && t.by_value ? bad("virtual and by value") : CUDNN_STATUS_SUCCESS;
}

static bool broadcasts(const descriptor *from, const tensor *to) {
  tensor t = read_tensor(from);
  bool good = true;
  for (int i = 0; i < DIMS; ++i) {
    good = good && (t.dim[i] == to->dim[i] || t.dim[i] == 1);
  }
  return good;
}

/* What Tessera gives to cuDNN.  All else is refused, arithmetic on indices too: nothing was ever tried with it. */
static bool is_given(cudnnPointwiseMode_t mode, const tensor *x) {
  static const cudnnPointwiseMode_t given[] = {
      CUDNN_POINTWISE_ADD,           CUDNN_POINTWISE_SUB,     CUDNN_POINTWISE_MUL,    CUDNN_POINTWISE_DIV,
      CUDNN_POINTWISE_EXP,           CUDNN_POINTWISE_LOG,     CUDNN_POINTWISE_CMP_GE, CUDNN_POINTWISE_GEN_INDEX,
      CUDNN_POINTWISE_BINARY_SELECT, CUDNN_POINTWISE_IDENTITY};
  bool listed = false;
  for (cudnnPointwiseMode_t each : given) {
    listed = listed || each == mode;
  }
  return listed && (x->type != CUDNN_DATA_INT32 || mode == CUDNN_POINTWISE_CMP_GE);
}

static cudnnStatus_t check_pointwise(const descriptor *d) {
  const descriptor *kind = child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  cudnnPointwiseMode_t mode = value_of(kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
  cudnnDataType_t compute = value_of(kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  const descriptor *b = child(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                   *t = child(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  tensor x = read_tensor(child(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
         y = read_tensor(child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  if (!is_given(mode, &x)) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a pointwise operation that Tessera does not give to cuDNN");
  }
  bool unary = mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG || mode == CUDNN_POINTWISE_GEN_INDEX ||
               mode == CUDNN_POINTWISE_IDENTITY;
  bool selects = mode == CUDNN_POINTWISE_BINARY_SELECT;
  bool compares = mode >= CUDNN_POINTWISE_CMP_EQ && mode <= CUDNN_POINTWISE_CMP_LE;
  if ((b != nullptr) == unary || (t != nullptr) != selects) {
    return bad("too many or too few operands");
  }
  if (!broadcasts(child(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), &y) || (b != nullptr && !broadcasts(b, &y)) ||
      (t != nullptr && !broadcasts(t, &y))) {
    return bad("shapes that do not broadcast");
  }
  if (compares != (compute == CUDNN_DATA_BOOLEAN) || compares != (y.type == CUDNN_DATA_BOOLEAN) ||
      (selects && read_tensor(t).type != CUDNN_DATA_BOOLEAN)) {
    return bad("booleans where there are none, or none where there are");
  }
  return mode == CUDNN_POINTWISE_GEN_INDEX && kind->set.count(CUDNN_ATTR_POINTWISE_AXIS) == 0 ? bad("no axis")
                                                                                              : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_matmul(const descriptor *d) {
  tensor a = read_tensor(child(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
         b = read_tensor(child(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
  tensor c = read_tensor(child(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  bool fits = a.dim[0] == b.dim[0] && a.dim[0] == c.dim[0] && a.dim[1] == c.dim[1] && a.dim[1] % b.dim[1] == 0 &&
              a.dim[3] == b.dim[2] && a.dim[2] == c.dim[2] && b.dim[3] == c.dim[3];
  return fits ? CUDNN_STATUS_SUCCESS : bad("shapes of a product that do not fit");
}

static cudnnStatus_t check_reduction(const descriptor *d) {
  tensor x = read_tensor(child(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
         y = read_tensor(child(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
  for (int i = 0; i < DIMS; ++i) {
    if (x.dim[i] % y.dim[i] != 0) {
      return bad("a reduction by no whole factor");
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

static int64_t elements(const tensor *t) {
  return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
}

static cudnnStatus_t check_reshape(const descriptor *d) {
  tensor x = read_tensor(child(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)),
         y = read_tensor(child(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
  return elements(&x) == elements(&y) ? CUDNN_STATUS_SUCCESS : bad("a reshape to another number of elements");
}

/* Operands of an operation in order, the last one written. */
static std::vector<const descriptor *> operands(const descriptor *op) {
  static const int names[][4] = {
      {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
       CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
      {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC, -1},
      {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, -1, -1},
      {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, -1, -1},
  };
  std::vector<const descriptor *> all;
  for (const auto &row : names) {
    for (int name : row) {
      const descriptor *t = child(op, name);
      if (t != nullptr) {
        all.push_back(t);
      }
    }
  }
  return all;
}

/* Every virtual tensor is written once and then read; a uid belongs to one descriptor. */
static cudnnStatus_t check_graph(const descriptor *graph) {
  std::map<int64_t, const descriptor *> by_uid;
  std::map<const descriptor *, bool> written;
  for (int64_t i = 0; i < count_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS); ++i) {
    std::vector<const descriptor *> all = operands(child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i));
    for (const descriptor *each : all) {
      tensor t = read_tensor(each);
      bool output = each == all.back();
      if (by_uid.count(t.uid) > 0 && by_uid[t.uid] != each) {
        return bad("two tensors of one uid");
      }
      by_uid[t.uid] = each;
      if (output ? written[each] || t.by_value : t.is_virtual && !written[each]) {
        return bad("a tensor written twice, or by value, or read before it is written");
      }
      written[each] = written[each] || output;
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_plan(const descriptor *d) {
  const descriptor *config = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if ((value_of<void *>(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, nullptr) == nullptr) ==
      (child(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP) == nullptr)) {
    return bad("a plan is for the device of a handle or a described one");
  }
  return config->candidate == UNBUILDABLE ? refuse(CUDNN_STATUS_NOT_SUPPORTED, "this engine cannot be built")
                                          : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_device(const descriptor *d) {
  const std::vector<char> &text = d->set.at(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).bytes;
  std::string json(text.begin(), text.end());
  return json.find("\"multiProcessorCount\"") == std::string::npos ? bad("a device without multiProcessorCount")
                                                                   : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_pack(const descriptor *d) {
  return count_of(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) == count_of(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
             ? CUDNN_STATUS_SUCCESS
             : bad("as many uids as pointers");
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor_) {
  static const std::map<int, cudnnStatus_t (*)(const descriptor *)> checks = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR, check_tensor},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, check_pointwise},
      {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, check_matmul},
      {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, check_reduction},
      {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, check_reshape},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, check_graph},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, check_plan},
      {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, check_device},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, check_pack},
  };
  descriptor *d = (descriptor *) descriptor_;
  for (const rule &r : rules) {
    if (r.owner == d->type && r.required && d->set.count(r.name) == 0) {
      return bad("an attribute is missing");
    }
  }
  auto check = checks.find(d->type);
  cudnnStatus_t status = d->finalized            ? bad("finalized twice")
                         : check == checks.end() ? CUDNN_STATUS_SUCCESS
                                                 : check->second(d);
  d->finalized = d->finalized || status == CUDNN_STATUS_SUCCESS;
  return status;
}

/* ---- engines ---- */

/* What cuDNN 9.19 asks for on sm_90: nothing to speak of, or the bf16 gradients of scores where the graph transposes.
 */
static int64_t workspace_of(const descriptor *graph, int candidate) {
  int64_t bytes = 256;
  for (int64_t i = 0; i < count_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS); ++i) {
    const descriptor *op = child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
    if (op->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) {
      tensor y = read_tensor(operands(op).back());
      int64_t padded = (y.dim[2] + 127) / 128 * 128;
      bytes = y.dim[2] == y.dim[3] && bytes == 256 ? y.dim[0] * y.dim[1] * padded * padded * 2 + 256 : bytes;
    }
  }
  return candidate == GREEDY ? 100 * bytes : bytes;
}

static cudnnStatus_t give(void *to, int64_t room, int64_t *count, const void *from, size_t bytes) {
  if (room < 1) {
    return bad("no room for the attribute");
  }
  memcpy(to, from, bytes);
  if (count != nullptr) {
    *count = 1;
  }
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t give_candidates(const descriptor *heuristic, int64_t room, int64_t *count, void *value) {
  *count = room < N_CANDIDATES ? room : (int64_t) N_CANDIDATES;
  for (int i = 0; i < (int) *count; ++i) {
    descriptor *config = ((descriptor **) value)[i];
    if (config == nullptr || config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR || config->finalized) {
      return bad("results go to engine configurations that were just created");
    }
    config->finalized = true;
    config->candidate = i;
    config->graph = child(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  }
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t give_engine(const descriptor *config, int64_t *count, void *value) {
  descriptor *engine = *(descriptor **) value;
  if (engine == nullptr || engine->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    return bad("an engine goes to an engine that was just created");
  }
  engine->finalized = true;
  engine->candidate = config->candidate;
  engine->graph = config->graph;
  *count = 1;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *value) {
  const descriptor *d = (const descriptor *) from;
  (void) type;
  if (d == nullptr || !d->finalized) {
    return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "get before finalize");
  }
  int64_t number = d->candidate;
  cudnnBackendNumericalNote_t note =
      number == NONDETERMINISTIC ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return give_candidates(d, room, count, value);
    case CUDNN_ATTR_ENGINECFG_ENGINE: return give_engine(d, count, value);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return give(value, room, count, &number, sizeof number);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: return give(value, room, count, &note, sizeof note);
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
      number = workspace_of(d->graph, d->candidate);
      return give(value, room, count, &number, sizeof number);
    default: return bad("not an attribute that can be read");
  }
}

/* ---- runs ---- */

/* Where a tensor is while a graph runs: memory of the device, or floats that are laid out by its strides. */
struct place {
  tensor t;
  char *memory; /* NULL: values */
  std::vector<float> values;
};

struct run {
  std::vector<const descriptor *> operation;
  std::map<const descriptor *, place> places;
  char *workspace;
  int64_t workspace_bytes;
};

static int64_t span(const tensor *t) {
  int64_t last = 0;
  for (int i = 0; i < DIMS; ++i) {
    last += (t->dim[i] - 1) * t->stride[i];
  }
  return last + 1;
}

static float get(const place *p, int64_t at) {
  if (p->memory == nullptr) {
    return p->values[(size_t) at];
  }
  return p->t.type == CUDNN_DATA_BFLOAT16 ? ts_bf16_to_f32(((const uint16_t *) p->memory)[at])
                                          : ((const float *) p->memory)[at];
}

static void put(place *p, int64_t at, double x) {
  float rounded = p->t.type == CUDNN_DATA_BFLOAT16 ? ts_bf16_to_f32(ts_f32_to_bf16((float) x)) : (float) x;
  if (p->memory == nullptr) {
    p->values[(size_t) at] = rounded;
  } else if (p->t.type == CUDNN_DATA_BFLOAT16) {
    ((uint16_t *) p->memory)[at] = ts_f32_to_bf16((float) x);
  } else {
    ((float *) p->memory)[at] = rounded;
  }
}

/* Offset of an index; where the tensor is shorter, of the part of it that the index falls into. */
static int64_t offset(const tensor *t, const int64_t *index, const int64_t *dim) {
  int64_t at = 0;
  for (int i = 0; i < DIMS; ++i) {
    at += (t->dim[i] == dim[i] ? index[i] : index[i] / (dim[i] / t->dim[i])) * t->stride[i];
  }
  return at;
}

template <typename F> static void for_each(const int64_t *dim, F f) {
  int64_t i[DIMS];
  for (i[0] = 0; i[0] < dim[0]; ++i[0]) {
    for (i[1] = 0; i[1] < dim[1]; ++i[1]) {
      for (i[2] = 0; i[2] < dim[2]; ++i[2]) {
        for (i[3] = 0; i[3] < dim[3]; ++i[3]) {
          f(i);
        }
      }
    }
  }
}

static double apply(cudnnPointwiseMode_t mode, double x, double b, double t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return exp(x);
    case CUDNN_POINTWISE_LOG: return log(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: return NAN;
  }
}

static void run_pointwise(run *r, const descriptor *op) {
  const descriptor *kind = child(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  cudnnPointwiseMode_t mode = value_of(kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
  int64_t axis = value_of<int64_t>(kind, CUDNN_ATTR_POINTWISE_AXIS, 0);
  const descriptor *bd = child(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                   *td = child(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  const place *x = &r->places[child(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)];
  const place *b = bd != nullptr ? &r->places[bd] : nullptr, *t = td != nullptr ? &r->places[td] : nullptr;
  place *y = &r->places[child(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC)];
  const int64_t *dim = y->t.dim;
  for_each(dim, [&](const int64_t *i) {
    double value = mode == CUDNN_POINTWISE_GEN_INDEX
                       ? (double) i[axis]
                       : apply(mode, get(x, offset(&x->t, i, dim)), b == nullptr ? 0 : get(b, offset(&b->t, i, dim)),
                               t == nullptr ? 0 : get(t, offset(&t->t, i, dim)));
    put(y, offset(&y->t, i, dim), value);
  });
}

/* One matrix as dense floats, in its order or transposed. */
static std::vector<float> gathered(const place *p, int64_t batch, int64_t head, bool transposed) {
  int64_t rows = p->t.dim[2], columns = p->t.dim[3], first = batch * p->t.stride[0] + head * p->t.stride[1];
  std::vector<float> dense((size_t) (rows * columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      dense[(size_t) (transposed ? j * rows + i : i * columns + j)] =
          get(p, first + i * p->t.stride[2] + j * p->t.stride[3]);
    }
  }
  return dense;
}

static void run_matmul(run *r, const descriptor *op) {
  const place *a = &r->places[child(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC)],
              *b = &r->places[child(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC)];
  place *c = &r->places[child(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC)];
  int64_t m = a->t.dim[2], k = a->t.dim[3], n = b->t.dim[3], group = a->t.dim[1] / b->t.dim[1];
  for (int64_t batch = 0; batch < a->t.dim[0]; ++batch) {
    for (int64_t head = 0; head < a->t.dim[1]; ++head) {
      std::vector<float> x = gathered(a, batch, head, false), y = gathered(b, batch, head / group, true);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) {
            sum += (double) x[(size_t) (i * k + l)] * (double) y[(size_t) (j * k + l)];
          }
          put(c, batch * c->t.stride[0] + head * c->t.stride[1] + i * c->t.stride[2] + j * c->t.stride[3], sum);
        }
      }
    }
  }
}

static void run_reduction(run *r, const descriptor *op) {
  const descriptor *kind = child(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  bool adds = value_of(kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_REDUCE_TENSOR_ADD) == CUDNN_REDUCE_TENSOR_ADD;
  const place *x = &r->places[child(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)];
  place *y = &r->places[child(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC)];
  std::vector<double> sum((size_t) span(&y->t), adds ? 0 : -INFINITY);
  for_each(x->t.dim, [&](const int64_t *i) {
    double *at = &sum[(size_t) offset(&y->t, i, x->t.dim)], value = get(x, offset(&x->t, i, x->t.dim));
    *at = adds ? *at + value : value > *at ? value : *at;
  });
  for_each(y->t.dim, [&](const int64_t *i) {
    int64_t at = offset(&y->t, i, y->t.dim);
    put(y, at, sum[(size_t) at]);
  });
}

/* The same memory, seen otherwise. */
static void run_reshape(run *r, const descriptor *op) {
  const place *x = &r->places[child(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)];
  place *y = &r->places[child(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC)];
  for_each(y->t.dim, [&](const int64_t *i) {
    int64_t at = offset(&y->t, i, y->t.dim);
    put(y, at, get(x, at));
  });
}

static void compute(run *r) {
  for (auto &each : r->places) {
    if (each.second.t.is_virtual) {
      each.second.values.assign((size_t) span(&each.second.t), NAN);
    }
  }
  for (const descriptor *op : r->operation) {
    memset(r->workspace, 0xee, (size_t) r->workspace_bytes); /* cuDNN's all the time */
    switch (op->type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: run_pointwise(r, op); break;
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: run_matmul(r, op); break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: run_reduction(r, op); break;
      default: run_reshape(r, op);
    }
  }
}

/* Find the memory of every tensor that is not virtual; scalars are read now. */
static cudnnStatus_t place_tensor(run *r, const descriptor *d, const descriptor *pack) {
  place p = {read_tensor(d), nullptr, {}};
  for (int64_t i = 0; i < count_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS); ++i) {
    if (value_of<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 0, i) == p.t.uid) {
      p.memory = value_of<char *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, nullptr, i);
    }
  }
  if ((p.memory == nullptr) != p.t.is_virtual || (!p.t.by_value && (uintptr_t) p.memory % (uintptr_t) p.t.align != 0)) {
    return bad("a tensor without memory, a virtual one with, or one that is not aligned");
  }
  if (p.t.by_value) {
    p.values.assign(1, *(const float *) p.memory);
    p.memory = nullptr;
  }
  r->places[d] = p;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_,
                                  cudnnBackendDescriptor_t pack_) {
  const descriptor *plan = (const descriptor *) plan_, *pack = (const descriptor *) pack_;
  if (!plan->finalized || !pack->finalized ||
      value_of<cudnnHandle_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, nullptr) != handle) {
    return bad("not finalized, or a plan for another device");
  }
  const descriptor *config = child(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  auto r = std::make_shared<run>();
  r->workspace = value_of<char *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  r->workspace_bytes = workspace_of(config->graph, config->candidate);
  for (int64_t i = 0; i < count_of(config->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS); ++i) {
    r->operation.push_back(child(config->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i));
    for (const descriptor *each : operands(r->operation.back())) {
      cudnnStatus_t status = r->places.count(each) > 0 ? CUDNN_STATUS_SUCCESS : place_tensor(r.get(), each, pack);
      if (status != CUDNN_STATUS_SUCCESS) {
        return status;
      }
    }
  }
  return shim_add(handle->stream, [r]() { compute(r.get()); }) == cudaSuccess
             ? CUDNN_STATUS_SUCCESS
             : refuse(CUDNN_STATUS_EXECUTION_FAILED, "the stream");
}

/* ---- the rest ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
  *made = new descriptor{type, false, {}, 0, nullptr};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete (descriptor *) d;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  *handle = new cudnnContext{nullptr};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void) {
  return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS of the stand-in";
}

void cudnnGetLastErrorString(char *message, size_t size) {
  snprintf(message, size, "%s", last_error);
}
