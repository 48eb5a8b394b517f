/* The device of this process: binding, queues, memory, capture, and the table of the backend. */
#include "cuda/attention_choice.h"
#include "cuda/attention_cudnn.h"
#include "cuda/attention_limits.h"
#include "cuda/blas_choice.h"
#include "cuda/device.h"

extern "C" {
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
}

#ifndef TS_SHIM
#include <cudaTypedefs.h>
#endif

#ifdef TS_SHIM
#define TS_RANGE_PUSH(name) ((void) (name))
#define TS_RANGE_POP() ((void) 0)
#else
#include <nvtx3/nvToolsExt.h>
#define TS_RANGE_PUSH(name) nvtxRangePushA(name)
#define TS_RANGE_POP() nvtxRangePop()
#endif

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static ts_cuda_device *opened;

ts_cuda_device *ts_cuda_opened(void) {
  return opened;
}

/* What messages and plans read, which there are before and after. */
static const ts_cuda_device *device_or_none(void) {
  static const ts_cuda_device none = {};
  return opened != NULL ? opened : &none;
}

/* ---- failures ---- */

/* A range of NVTX a node, named as in the graph dump, for profilers; free where none listens. */
static void set_op(ts_device *device, const char *name) {
  ts_cuda_device *d = (ts_cuda_device *) device;
  if (d->op != NULL) {
    TS_RANGE_POP();
  }
  if (name != NULL) {
    TS_RANGE_PUSH(name);
  }
  d->op = name;
}

const char *ts_cuda_op(void) {
  const char *op = device_or_none()->op;
  return op != NULL ? op : "between two ops";
}

static void set_run(ts_device *device, const char *name, bool recorded) {
  ts_cuda_device *d = (ts_cuda_device *) device;
  d->run = name;
  d->recorded = recorded;
}

const char *ts_cuda_run(void) {
  const char *run = device_or_none()->run;
  return run != NULL ? run : "nothing of a step";
}

bool ts_cuda_run_is_recorded(void) {
  return device_or_none()->run != NULL && device_or_none()->recorded;
}

/* What a kernel did shows at any call after it. */
static bool is_late(cudaError_t code) {
  return code >= cudaErrorIllegalAddress && code < cudaErrorStreamCaptureUnsupported;
}

/* The device itself, and nothing that was queued. */
static bool is_of_hardware(cudaError_t code) {
  return code == cudaErrorDevicesUnavailable || code == cudaErrorNoDevice || code == cudaErrorECCUncorrectable ||
         code == cudaErrorNvlinkUncorrectable || code == cudaErrorUnknown;
}

/* Whoever asked: our arena, a kernel's code, a library. */
static void end_without_memory(const ts_cuda_device *d, const char *file, int line, const char *what) {
  size_t available = 0, total = 0;
  char have[32], all[32], first[32], ours[32], theirs[32];
  (void) cudaGetLastError();
  (void) cudaMemGetInfo(&available, &total);
  size_t gone = d->free_at_first > available ? d->free_at_first - available : 0;
  size_t libraries = gone > d->arenas ? gone - d->arenas : 0;
  ts_die(
      file, line,
      "GPU %d (%s): %s, %s of %s are free.  %s were free when this process had made its context; since "
      "then its arenas took %s, its libraries and communicators (or other processes on the GPU, nvidia-smi names them) "
      "%s.  Ways out: a higher zero_optimization.stage, a smaller train_micro_batch_size_per_gpu, "
      "activation_checkpointing.enabled, more GPUs (`tessera plan` shows what each gives)",
      d->number, d->name, what, ts_human_bytes((double) available, have), ts_human_bytes((double) total, all),
      ts_human_bytes((double) d->free_at_first, first), ts_human_bytes((double) d->arenas, ours),
      ts_human_bytes((double) libraries, theirs));
}

void ts_cuda_check(cudaError_t code, const char *file, int line, const char *call) {
  if (code == cudaSuccess) {
    return;
  }
  const ts_cuda_device *d = device_or_none();
  if (code == cudaErrorMemoryAllocation && d->free_at_first > 0) {
    char what[512];
    snprintf(what, sizeof what, "out of memory in op %s, %s", ts_cuda_op(), call);
    end_without_memory(d, file, line, what);
  }
  if (is_of_hardware(code) && d->free_at_first > 0) {
    ts_die(file, line,
           "GPU %d (%s, %s) has failed: %s gave %s (%s) in op %s.  It is the device or its driver, not the run, which "
           "goes on from its last checkpoint: `nvidia-smi -q` and the node's log (Xid) say more, `sbatch --exclude` or "
           "`scontrol update nodename=... state=drain` leaves the node out",
           d->number, d->name, d->bus, call, cudaGetErrorName(code), cudaGetErrorString(code), ts_cuda_op());
  }
  if (is_late(code)) {
    ts_die(file, line,
           "device %d, op %s: %s failed: %s (%s).  Something queued before may have done it; queued last: "
           "%s%s.  For the op, where pipeline.stages is 1: environment CUDA_LAUNCH_BLOCKING=1 and "
           "--set run.cuda_graphs=false",
           d->number, ts_cuda_op(), call, cudaGetErrorName(code), cudaGetErrorString(code), ts_cuda_run(),
           ts_cuda_run_is_recorded() ? ", recorded" : "");
  }
  ts_die(file, line, "device %d, op %s: %s failed: %s (%s)", d->number, ts_cuda_op(), call, cudaGetErrorName(code),
         cudaGetErrorString(code));
}

/* ---- binding ---- */

/* Before CUDA's first call.  Queues that share one of the device hold each other up, and pipelines have many. */
static void prepare_environment(void) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int ts_cuda_driver(int *built) {
  prepare_environment();
  int driver = 0;
  *built = CUDART_VERSION;
  (void) cudaDriverGetVersion(&driver);
  (void) cudaGetLastError();
  return driver;
}

int ts_cuda_devices(void) {
  prepare_environment();
  int n = 0, driver = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess) {
    (void) cudaGetLastError();
    return 0;
  }
  return n;
}

static ts_status check_driver(ts_error *err) {
  int n = 0, driver = 0, runtime = 0;
  cudaError_t code = cudaGetDeviceCount(&n);
  (void) cudaGetLastError();
  (void) cudaDriverGetVersion(&driver);
  (void) cudaRuntimeGetVersion(&runtime);
  if (code == cudaErrorInsufficientDriver && driver > 0) {
    return ts_error_add(
        err,
        "run.device is cuda: the driver knows CUDA %d.%d, and this Tessera was built with CUDA %d.%d; use a newer "
        "driver or build with its toolkit",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  if (code != cudaSuccess || n == 0) {
    return ts_error_add(
        err,
        "run.device is cuda, but this process sees no GPU (%s): check nvidia-smi, CUDA_VISIBLE_DEVICES and, under "
        "Slurm, --gpus-per-node; or set run.device = \"cpu\"",
        cudaGetErrorName(code));
  }
  return TS_OK;
}

static ts_status check_architecture(ts_cuda_device *d, ts_error *err) {
  struct cudaDeviceProp prop;
  TS_CUDA(cudaGetDeviceProperties(&prop, d->number));
  int built = TS_CUDA_ARCHITECTURE, has = 10 * prop.major + prop.minor;
  snprintf(d->name, sizeof d->name, "%s", prop.name);
  d->processors = prop.multiProcessorCount;
  return has == built
             ? TS_OK
             : ts_error_add(err,
                            "GPU %d is a %s of architecture sm_%d, and the kernels were built for sm_%d; build with "
                            "NVCC_GENCODE=\"-gencode arch=compute_%d%s,code=sm_%d%s\"",
                            d->number, prop.name, has, built, has, has == 90 ? "a" : "", has, has == 90 ? "a" : "");
}

/* ---- loading ---- */

enum { MOST_MODULES = 32 };
static const void *modules[MOST_MODULES];
static int n_modules;

bool ts_cuda_module_add(const void *kernel) {
  modules[n_modules < MOST_MODULES ? n_modules++ : MOST_MODULES - 1] = kernel;
  return true;
}

/* The driver's functions are looked up, for its library is not linked.  A driver that lacks them loads kernels one by
 * one, as they are launched. */
static void load_kernels(void) {
#if !defined TS_SHIM && CUDART_VERSION >= 12050
  void *entry[4] = {};
  static const struct {
    const char *name;
    unsigned version;
  } wanted[] = {{"cuFuncGetModule", 11000},
                {"cuModuleGetFunctionCount", 12040},
                {"cuModuleEnumerateFunctions", 12040},
                {"cuFuncLoad", 12040}};
  bool ok = true;
  for (int i = 0; i < 4; ++i) {
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    ok = ok &&
         cudaGetDriverEntryPointByVersion(wanted[i].name, &entry[i], wanted[i].version, cudaEnableDefault, &result) ==
             cudaSuccess &&
         result == cudaDriverEntryPointSuccess;
  }
  int loaded = 0;
  for (int m = 0; ok && m < n_modules; ++m) {
    cudaFunction_t mark;
    CUmodule module;
    unsigned n = 0;
    ok = cudaGetFuncBySymbol(&mark, modules[m]) == cudaSuccess &&
         ((PFN_cuFuncGetModule_v11000) entry[0])(&module, (CUfunction) mark) == CUDA_SUCCESS &&
         ((PFN_cuModuleGetFunctionCount_v12040) entry[1])(&n, module) == CUDA_SUCCESS;
    CUfunction *function = (CUfunction *) ts_calloc(n + 1, sizeof *function);
    ok = ok && ((PFN_cuModuleEnumerateFunctions_v12040) entry[2])(function, n, module) == CUDA_SUCCESS;
    for (unsigned i = 0; ok && i < n; ++i) {
      ok = ((PFN_cuFuncLoad_v12040) entry[3])(function[i]) == CUDA_SUCCESS;
      loaded += ok;
    }
    ts_free(function);
  }
  (void) cudaGetLastError();
  ts_log(TS_LOG_DEBUG, "%d kernels loaded%s", loaded, ok ? "" : "; the others when they are first launched");
#endif
}

/* Messages first: what waits for them is on the critical path. */
static void make_queue(ts_cuda_device *d, int queue) {
  int least, greatest;
  TS_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  TS_CUDA(cudaStreamCreateWithPriority(&d->stream[queue], cudaStreamNonBlocking,
                                       queue == TS_QUEUE_COMPUTE ? least : greatest));
}

static void take_device(ts_cuda_device *d) {
  size_t memory;
  TS_CUDA(cudaSetDevice(d->number));
  TS_CUDA(cudaDeviceGetPCIBusId(d->bus, (int) sizeof d->bus, d->number));
  TS_CUDA(cudaMemGetInfo(&d->free_at_first, &memory));
  load_kernels();
  for (int q = 0; q < TS_N_QUEUES; ++q) {
    make_queue(d, q);
  }
}

const char *ts_cuda_bus_id(void) {
  return device_or_none()->bus;
}

bool ts_cuda_tf32(void) {
  return device_or_none()->tf32;
}

const char *ts_cuda_device_name(void) {
  return device_or_none()->name;
}

/* ---- queues, events ---- */

static cudaStream_t stream_of(const ts_device *device, ts_queue queue) {
  return ((const ts_cuda_device *) device)->stream[queue];
}

static void *queue_stream(ts_device *device, ts_queue queue) {
  return stream_of(device, queue);
}

static ts_queue queue_create(ts_device *device) {
  ts_cuda_device *d = (ts_cuda_device *) device;
  int q = TS_N_QUEUES;
  while (q < TS_MOST_QUEUES && d->stream[q] != NULL) {
    ++q;
  }
  TS_CHECK(q < TS_MOST_QUEUES, "more than %d queues", (int) TS_MOST_QUEUES);
  make_queue(d, q);
  return (ts_queue) q;
}

static void queue_destroy(ts_device *device, ts_queue queue) {
  TS_CUDA(cudaStreamDestroy(stream_of(device, queue)));
  ((ts_cuda_device *) device)->stream[queue] = NULL;
}

static void queue_copy(ts_device *device, void *to, const void *from, size_t bytes, ts_queue queue) {
  if (bytes > 0) {
    TS_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(device, queue)));
  }
}

static void *event_create(ts_device *, bool timed) {
  cudaEvent_t event;
  TS_CUDA(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}

static void event_destroy(ts_device *, void *event) {
  if (event != NULL) {
    TS_CUDA(cudaEventDestroy((cudaEvent_t) event));
  }
}

static void record_event(ts_device *device, void *event, ts_queue queue) {
  TS_CUDA(cudaEventRecord((cudaEvent_t) event, stream_of(device, queue)));
}

static void announce_event(ts_device *device, void *event, ts_queue queue) {
  unsigned flags = ((const ts_cuda_device *) device)->capturing ? cudaEventRecordExternal : cudaEventRecordDefault;
  TS_CUDA(cudaEventRecordWithFlags((cudaEvent_t) event, stream_of(device, queue), flags));
}

static void wait(ts_device *device, void *event, ts_queue queue) {
  TS_CUDA(cudaStreamWaitEvent(stream_of(device, queue), (cudaEvent_t) event, 0));
}

static double seconds(ts_device *, void *from, void *to) {
  float milliseconds;
  TS_CUDA(cudaEventElapsedTime(&milliseconds, (cudaEvent_t) from, (cudaEvent_t) to));
  return 1e-3 * (double) milliseconds;
}

/* ---- watching ---- */

void ts_cuda_watch_add(const ts_cuda_watcher *watcher) {
  for (ts_cuda_watcher &w : opened->watcher) {
    if (w.watch == NULL) {
      w = *watcher;
      return;
    }
  }
  TS_CHECK(false, "more than %d communicators to watch", TS_CUDA_WATCHERS);
}

void ts_cuda_watch_remove(void *user) {
  for (int i = 0; opened != NULL && i < TS_CUDA_WATCHERS; ++i) {
    if (opened->watcher[i].user == user) {
      opened->watcher[i] = {};
    }
  }
}

/* Not blamed on one communicator: nothing is known but that something that was queued does not end. */
static void end_wait(const ts_cuda_device *d, double waited) {
  ts_text text = {};
  for (const ts_cuda_watcher &w : d->watcher) {
    if (w.describe != NULL) {
      w.describe(w.user, &text);
    }
  }
  ts_die(__FILE__, __LINE__,
         "device %d, waiting for the device: nothing came for %.0f s (run.peer_timeout); queued "
         "last: %s%s%s.  A peer may be dead, or a kernel does not end",
         d->number, waited, ts_cuda_run(), ts_cuda_run_is_recorded() ? ", recorded" : "",
         text.text != NULL ? text.text : "");
}

static void watch_wait(const ts_cuda_device *d, double began) {
  for (const ts_cuda_watcher &w : d->watcher) {
    if (w.watch != NULL) {
      w.watch(w.user);
    }
  }
  double waited = ts_seconds() - began;
  if (d->time_limit > 0 && waited > d->time_limit) {
    end_wait(d, waited);
  }
}

/* Polls, so that a dead peer is noticed; sleeps once a wait is long. */
static void finish_event(ts_device *device, void *event) {
  cudaError_t code;
  double began = ts_seconds();
  for (long polls = 0; (code = cudaEventQuery((cudaEvent_t) event)) == cudaErrorNotReady; ++polls) {
    if (polls % 256 == 0) {
      watch_wait((const ts_cuda_device *) device, began);
    }
    if (polls > 20000) {
      struct timespec nap = {0, 20000};
      nanosleep(&nap, NULL);
    } else if (polls > 100) {
      sched_yield();
    }
  }
  (void) cudaGetLastError(); /* "not ready" counts as one: the next launch would be blamed for it */
  ts_cuda_check(code, __FILE__, __LINE__, "what was queued before");
}

static void set_time_limit(ts_device *device, double seconds) {
  ((ts_cuda_device *) device)->time_limit = seconds;
}

/* ---- memory ---- */

static size_t available_bytes(ts_device *) {
  size_t available, total;
  TS_CUDA(cudaMemGetInfo(&available, &total));
  return available;
}

/* The device is asked once a second at most: it takes a system call. */
static size_t used_bytes(ts_device *device) {
  ts_cuda_device *d = (ts_cuda_device *) device;
  if (d->asked == 0 || ts_seconds() - d->asked > 1) {
    size_t available = available_bytes(device);
    size_t now = d->free_at_first > available ? d->free_at_first - available : 0;
    d->most_used = now > d->most_used ? now : d->most_used;
    d->asked = ts_seconds();
  }
  return d->most_used > d->arenas ? d->most_used : d->arenas;
}

static void *allocate_arena(size_t bytes) {
  void *arena = NULL;
  cudaError_t code = cudaMalloc(&arena, bytes > 0 ? bytes : 1);
  if (code == cudaErrorMemoryAllocation) {
    char need[32], what[64];
    snprintf(what, sizeof what, "an arena of %s is needed", ts_human_bytes((double) bytes, need));
    end_without_memory(device_or_none(), __FILE__, __LINE__, what);
  }
  ts_cuda_check(code, __FILE__, __LINE__, "cudaMalloc of an arena");
  opened->arenas += bytes;
  TS_CUDA(cudaMemsetAsync(arena, 0, bytes, opened->stream[TS_QUEUE_COMPUTE]));
  TS_CUDA(cudaStreamSynchronize(opened->stream[TS_QUEUE_COMPUTE]));
  return arena;
}

static void release_arena(void *arena, size_t bytes) {
  if (arena != NULL) {
    TS_CUDA(cudaFree(arena));
    opened->arenas -= bytes <= opened->arenas ? bytes : opened->arenas;
  }
}

static void *allocate_host(ts_device *, size_t bytes) {
  void *memory;
  cudaError_t code = cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocDefault);
  if (code == cudaErrorMemoryAllocation) {
    char need[32];
    ts_die(__FILE__, __LINE__,
           "%s of the host's memory that a GPU can reach cannot be had (page-locked: the limits of "
           "the job's memory and of `ulimit -l` hold for it).  Ways out: more of both (`#SBATCH --mem`), a lower "
           "run.host_memory_limit with device = \"auto\" and an nvme_path, or less in zero_optimization.offload_*",
           ts_human_bytes((double) bytes, need));
  }
  TS_CUDA(code);
  memset(memory, 0, bytes);
  return memory;
}

static void release_host(ts_device *, void *memory) {
  if (memory != NULL) {
    TS_CUDA(cudaFreeHost(memory));
  }
}

/* ---- capture ---- */

static void capture_begin(ts_device *device) {
  ((ts_cuda_device *) device)->capturing = true;
  TS_CUDA(cudaStreamBeginCapture(stream_of(device, TS_QUEUE_COMPUTE), cudaStreamCaptureModeThreadLocal));
}

static void *capture_end(ts_device *device) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ((ts_cuda_device *) device)->capturing = false;
  TS_CUDA(cudaStreamEndCapture(stream_of(device, TS_QUEUE_COMPUTE), &graph));
  TS_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  TS_CUDA(cudaGraphDestroy(graph));
  TS_CUDA(cudaGraphUpload(exec, stream_of(device, TS_QUEUE_COMPUTE)));
  return exec;
}

static void replay(ts_device *device, void *graph) {
  TS_CUDA(cudaGraphLaunch((cudaGraphExec_t) graph, stream_of(device, TS_QUEUE_COMPUTE)));
}

static void graph_destroy(ts_device *, void *graph) {
  if (graph != NULL) {
    TS_CUDA(cudaGraphExecDestroy((cudaGraphExec_t) graph));
  }
}

/* ---- the table ---- */

/* Dense rates by NVIDIA's datasheets, TFLOP/s, of the SXM parts where no other form is named; fp32 is that of the units
 * without TF32.  The first name that is found in the device's counts. */
static double peak_flops(ts_device *device, ts_dtype dtype) {
  static const struct {
    const char *name;
    double half, fp32; /* bf16 and fp16 */
  } rows[] = {{"GB200", 2500, 80},      {"B200", 2250, 75},    {"GH200", 989.4, 66.9},
              {"H200 NVL", 835.5, 60},  {"H200", 989.4, 66.9}, {"H100 NVL", 835.5, 60},
              {"H100 PCIe", 756.5, 51}, {"H100", 989.4, 66.9}, {"A100", 312, 19.5}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (strstr(((const ts_cuda_device *) device)->name, rows[i].name) != NULL) {
      return 1e12 * (ts_dtype_is_half(dtype) ? rows[i].half : rows[i].fp32);
    }
  }
  return 0;
}

static const ts_kernel *cuda_kernel(ts_op op) {
  static const ts_kernel *(*const families[])(ts_op) = {
#define X(family) ts_cuda_##family,
      TS_CUDA_FAMILIES(X)
#undef X
  };
  const ts_kernel *row = families[0](op);
  for (size_t f = 1; row->run == NULL && f < sizeof families / sizeof *families; ++f) {
    row = families[f](op);
  }
  return row->run != NULL ? row : ts_backend_nested(op);
}

static const char *describe_device(void) {
  static char text[512];
  snprintf(text, sizeof text, "%s, sm_%d, CUDA %d.%d, %s, %s", opened != NULL ? opened->name : "no device",
           TS_CUDA_ARCHITECTURE, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, ts_cuda_blas_describe(),
           ts_cudnn_describe());
  return text;
}

/* Of the device's memory.  Estimates from what these libraries document; regression/gpu prints what a device says. */
static const ts_reserve reserves[] = {
    {"CUDA context, all kernels loaded", 600 << 20, 0, 0, 0},
    {"cuBLASLt, cuDNN", 64 << 20, 0, 0, 0},
    {"NCCL", 0, 384 << 20, 4 << 20, 24 << 20}, /* of a line: some blocks' buffers of 4 MB and less */
    {NULL, 0, 0, 0, 0},
};

static const char *refuses(ts_device *, const ts_graph *graph, const ts_node *node) {
  const char *why = ts_cuda_rope_refuses(node);
  if (ts_cuda_attention(node->op)->run != NULL) {
    (void) ts_cuda_attention_supported(graph, node, &why);
  }
  return why;
}

static void choices_measure(ts_device *, const ts_graph *graph) {
  ts_cuda_choices_measure(graph);
  ts_attention_measure(graph, ts_cuda_opened()->any_order);
}

static char *choices_write(ts_device *) {
  return ts_cuda_choices_write();
}

static ts_status choices_read(ts_device *, const char *text, ts_error *err) {
  return ts_cuda_choices_read(text, err);
}

static bool cuda_has_bf16() {
  return true;
} // every architecture that the kernels are built for

static ts_device *cuda_device(void) {
  return opened != NULL ? &opened->base : NULL;
}

const ts_backend *ts_backend_cuda(void) {
  static const ts_backend backend = {"cuda",          cuda_kernel,   allocate_arena, release_arena,
                                     describe_device, cuda_has_bf16, reserves,       cuda_device};
  return &backend;
}

/* ---- opening ---- */

ts_status ts_cuda_open(const ts_cuda_options *o, ts_error *err) {
  static const ts_device_ops ops = {
      queue_stream,  queue_create, queue_destroy,  allocate_host, release_host, queue_copy,     event_create,
      event_destroy, record_event, announce_event, wait,          seconds,      finish_event,   set_time_limit,
      capture_begin, capture_end,  replay,         graph_destroy, set_op,       set_run,        choices_measure,
      choices_write, choices_read, refuses,        peak_flops,    used_bytes,   available_bytes};
  prepare_environment();
  ts_status status = opened != NULL ? TS_OK : check_driver(err);
  if (opened != NULL || status != TS_OK) {
    if (opened != NULL) {
      opened->any_order = o->any_order;
    }
    return status;
  }
  ts_cuda_device *d = (ts_cuda_device *) ts_calloc(1, sizeof *d);
  d->base.ops = &ops;
  d->number = o->local_rank % ts_cuda_devices();
  d->tf32 = o->tf32;
  d->any_order = o->any_order;
  d->time_limit = o->time_limit;
  status = check_architecture(d, err);
  if (status == TS_OK) {
    opened = d;
    take_device(d);
  } else {
    ts_free(d);
  }
  return status;
}

void ts_cuda_close(void) {
  if (opened != NULL) {
    ts_cuda_blas_close(opened);
    ts_cudnn_close(opened);
    for (int q = 0; q < TS_N_QUEUES; ++q) {
      TS_CUDA(cudaStreamDestroy(opened->stream[q]));
    }
    ts_free(opened);
    opened = NULL;
  }
}
