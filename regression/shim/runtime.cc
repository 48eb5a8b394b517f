/* Streams, events, graphs and memory of the stand-in: work is a graph of items, and a synchronisation runs items in a
 * random order that the graph allows, until what was waited for is done. */
#include "cuda_runtime.h"

#include <functional>
#include <map>
#include <memory>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <unordered_set>
#include <vector>

#include "regression/shim/shim.h"

using item_ref = std::shared_ptr<struct item>;

/* One piece of work. */
struct item {
  std::function<void()> run;
  std::function<bool()> go_on; /* or, of what waits for other processes: asked again and again until it is true */
  std::vector<item_ref> after;
  std::vector<item *> followers; /* what waits for this */
  size_t waits = 0;              /* for so many that are not done */
  size_t number = 0;             /* in order of adding, of what is no part of a graph */
  size_t place = 0;              /* in its graph */
  cudaEvent_t outside = nullptr; /* inside a graph: recorded anew by each launch, for who waits outside */
  bool done = false, begun = false, awaited = false;
  double finished = 0;
};

struct shim_graph {
  std::vector<item_ref> item; /* in order of capture */
  cudaStream_t origin;
};

struct shim_stream {
  item_ref last;
  shim_graph *capture;
  item_ref outside; /* the last item before the capture */
};

struct shim_event {
  item_ref item;
  shim_graph *capture; /* recorded inside a capture */
};

static std::map<size_t, item_ref> pending; /* by number */
static std::map<size_t, item *> ready;     /* those of them that wait for nothing */
static std::vector<cudaStream_t> streams;
static cudaError_t last_error;
static cudaError_t late_error; /* of a kernel that ran: every call that waits gives it from then on */

void shim_ran(void) {
  static long n;
  static const char *fails = getenv("SHIM_FAIL_RUN"), *as = getenv("SHIM_FAIL_AS");
  if (++n == (fails != NULL ? atol(fails) : 0)) {
    late_error = as != NULL ? (cudaError_t) atoi(as) : cudaErrorIllegalAddress;
  }
}

static cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess) { /* cudaErrorNotReady too, as on a device */
    last_error = error;
  }
  return error;
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

/* ---- chance ---- */

uint64_t shim_seed(void) {
  const char *seed = getenv("SHIM_SEED");
  return seed == NULL ? 0 : (uint64_t) atoll(seed);
}

unsigned shim_random(unsigned below) {
  static uint64_t state;
  if (state == 0) {
    state = 0x9e3779b97f4a7c15u * (2 * shim_seed() + 1);
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (unsigned) ((state >> 32) * below >> 32);
}

/* ---- device memory ---- */

struct allocation {
  unsigned char *map, *data;
  size_t map_bytes, bytes;
};
static std::vector<allocation> allocations;
static size_t allocated;
static int opened;

static const size_t huge_page = (size_t) 2 << 20;

static size_t page(void) {
  return (size_t) sysconf(_SC_PAGESIZE);
}

static size_t device_bytes(void) {
  const char *text = getenv("SHIM_MEMORY");
  return text != NULL ? (size_t) atoll(text) : (size_t) 4 << 30;
}

static void protect(int access) {
  for (const allocation &a : allocations) {
    mprotect(a.map, a.map_bytes - page(), access);
  }
}

void shim_open(void) {
  if (opened++ == 0) {
    protect(PROT_READ | PROT_WRITE);
  }
}

void shim_close(void) {
  if (--opened == 0) {
    protect(PROT_NONE);
  }
}

static bool capturing(void) {
  for (cudaStream_t s : streams) {
    if (s->capture != NULL) {
      return true;
    }
  }
  return false;
}

enum { SLACK = 64, FILL = 0xff };

// Protection changes with every kernel, page by page: large memory is of large pages.
static unsigned char *map_aligned(size_t bytes, size_t unit) {
  size_t all = bytes + unit;
  void *map = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    return NULL;
  }
  unsigned char *begin = (unsigned char *) map, *aligned = begin + (unit - (uintptr_t) begin % unit) % unit;
  if (aligned > begin) {
    munmap(begin, (size_t) (aligned - begin));
  }
  munmap(aligned + bytes, (size_t) (begin + all - aligned - bytes));
  if (unit == huge_page) {
    madvise(aligned, bytes, MADV_HUGEPAGE);
  }
  return aligned;
}

cudaError_t cudaMalloc(void **device, size_t bytes) {
  *device = NULL;
  if (capturing()) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (bytes > device_bytes() - allocated) {
    return fail(cudaErrorMemoryAllocation);
  }
  size_t padded = (bytes + SLACK - 1) / SLACK * SLACK, unit = padded < huge_page / 2 ? page() : huge_page;
  size_t body = (padded + unit - 1) / unit * unit;
  allocation a = {NULL, NULL, body + page(), bytes};
  a.map = map_aligned(a.map_bytes, unit);
  if (a.map == NULL) {
    return fail(cudaErrorMemoryAllocation);
  }
  mprotect(a.map + body, page(), PROT_NONE);
  a.data = a.map + body - padded;
  size_t zeros = shim_ends() > 0 ? bytes : 0;
  memset(a.data + zeros, FILL, padded - zeros);
  shim_forbid(a.data + bytes, padded - bytes);
  if (opened == 0) {
    mprotect(a.map, body, PROT_NONE);
  }
  allocated += bytes;
  allocations.push_back(a);
  *device = a.data;
  return cudaSuccess;
}

cudaError_t cudaFree(void *device) {
  if (capturing()) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  cudaDeviceSynchronize();
  for (size_t i = 0; i < allocations.size(); ++i) {
    allocation a = allocations[i];
    if (a.data == device) {
      mprotect(a.map, a.map_bytes - page(), PROT_READ);
      shim_permit(a.data, (size_t) (a.map + a.map_bytes - page() - a.data));
      for (unsigned char *c = a.data + a.bytes; c < a.map + a.map_bytes - page(); ++c) {
        if (*c != FILL) {
          fprintf(stderr, "shim: something wrote %zu bytes behind a device allocation of %zu bytes\n",
                  (size_t) (c - a.data) - a.bytes, a.bytes);
          abort();
        }
      }
      munmap(a.map, a.map_bytes);
      allocated -= a.bytes;
      allocations.erase(allocations.begin() + (long) i);
      return cudaSuccess;
    }
  }
  return device == NULL ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **host, size_t bytes, unsigned) {
  if (capturing()) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  const char *most = getenv("SHIM_PINNED"); /* at a time */
  *host = most != NULL && bytes > (size_t) atoll(most) ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
  return *host != NULL ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *host) {
  cudaDeviceSynchronize();
  free(host);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *total = device_bytes();
  *available = *total - allocated;
  return cudaSuccess;
}

/* ---- running ---- */

static void add_pending(const item_ref &i) {
  static size_t added;
  i->number = ++added;
  pending[i->number] = i;
  if (i->waits == 0) {
    ready[i->number] = i.get();
  }
}

static void wait_for(const item_ref &i, const item_ref &before) {
  i->after.push_back(before);
  if (!before->done) {
    before->followers.push_back(i.get());
    ++i->waits;
    ready.erase(i->number);
  }
}

static void finish(item *i) {
  i->done = true;
  i->finished = seconds();
  for (item *f : i->followers) {
    if (--f->waits == 0) {
      ready[f->number] = f;
    }
  }
  i->followers.clear();
  i->after.clear();
  ready.erase(i->number);
  pending.erase(i->number); /* the last that may know of it */
}

/* False: it waits for other processes. */
static bool run_item(item *i) {
  i->begun = true;
  bool done = !i->go_on || i->go_on();
  if (i->run) {
    i->run();
  }
  if (done) {
    finish(i);
  }
  return done;
}

/* Call `visit` once for `to` and each item that it waits for: there are more ways than items. */
static void visit_awaited(item *to, const std::function<void(item *)> &visit) {
  std::unordered_set<const item *> seen = {to};
  std::vector<item *> open = {to};
  while (!open.empty()) {
    item *i = open.back();
    open.pop_back();
    visit(i);
    for (const item_ref &d : i->after) {
      if (!d->done && seen.insert(d.get()).second) {
        open.push_back(d.get());
      }
    }
  }
}

/* Is `to` to wait for `from`? */
static bool leads_to(const item *from, item *to) {
  bool leads = false;
  visit_awaited(to, [&](item *i) { leads = leads || i == from; });
  return leads;
}

/* What may run now, some of it.  Work that waits for other processes begins only when it must: when it is waited for,
 * or when nothing else helps. */
static std::vector<item *> find_ready(bool helpless) {
  std::vector<item *> found;
  int fresh = 0;
  for (auto p = ready.begin(); p != ready.end() && fresh < 8; ++p) {
    item *i = p->second;
    if (!i->go_on || i->begun || helpless || i->awaited) {
      found.push_back(i);
      fresh += !i->begun;
    }
  }
  return found;
}

/* Run until `target` is done (NULL: all).  Device memory is open all the while: to open it for each item takes longer
 * than many items do, and who would touch it between them waits here. */
static void run_until(item *target) {
  if (target != NULL) {
    visit_awaited(target, [](item *i) { i->awaited = true; });
  }
  shim_open();
  for (int idle = 0; target == NULL ? !pending.empty() : !target->done;) {
    std::vector<item *> found = find_ready(target == NULL || idle > 100);
    if (found.empty()) {
      fprintf(stderr, "shim: work is waited for that can never run\n");
      abort();
    }
    if (run_item(found[shim_random((unsigned) found.size())])) {
      idle = 0;
    } else if (++idle > 1000) {
      struct timespec nap = {0, 20000};
      nanosleep(&nap, NULL);
    } else {
      sched_yield();
    }
  }
  shim_close();
}

/* Add work to a stream, or to the graph that the stream is captured into. */
static cudaError_t add(cudaStream_t s, std::function<void()> run, std::function<bool()> go_on = nullptr) {
  if (s == NULL) {
    return fail(cudaErrorInvalidValue); /* the default stream orders itself with everything: not for this program */
  }
  item_ref i = std::make_shared<item>();
  i->run = std::move(run);
  i->go_on = std::move(go_on);
  if (s->last != NULL && !s->last->done) {
    wait_for(i, s->last);
  }
  s->last = i;
  if (s->capture != NULL) {
    i->place = s->capture->item.size();
    s->capture->item.push_back(i);
  } else {
    add_pending(i);
  }
  return cudaSuccess;
}

cudaError_t shim_add(cudaStream_t stream, std::function<void()> run) {
  return add(stream, std::move(run));
}

cudaError_t shim_enqueue(cudaStream_t stream, bool (*go_on)(void *arg), void *arg) {
  std::shared_ptr<void> owned(arg, free);
  return add(stream, nullptr, [=]() { return go_on(owned.get()); });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return add(stream, [=]() { memmove(to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return add(stream, [=]() { memset(to, value, bytes); });
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  *stream = new shim_stream();
  streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaDeviceSynchronize();
  for (size_t i = 0; i < streams.size(); ++i) {
    if (streams[i] == stream) {
      streams.erase(streams.begin() + (long) i);
    }
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (capturing()) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (stream->last != NULL) {
    run_until(stream->last.get());
  }
  return fail(late_error);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  static int impatience;
  return ++impatience % 2 == 1 ? fail(cudaErrorNotReady) : cudaStreamSynchronize(stream);
}

cudaError_t cudaDeviceSynchronize(void) {
  if (capturing()) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  run_until(NULL);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  *event = new shim_event();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

/* The event of another stream's capture is nothing until a launch has recorded it. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  bool outside = flags == cudaEventRecordExternal;
  if (outside && stream->capture == NULL) {
    return fail(cudaErrorInvalidValue);
  }
  cudaError_t error = add(stream, nullptr);
  if (error == cudaSuccess && outside) {
    stream->last->outside = event;
    return error;
  }
  event->item = error == cudaSuccess ? stream->last : nullptr;
  event->capture = error == cudaSuccess ? stream->capture : NULL;
  return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->item == NULL || event->item->done) {
    return cudaSuccess;
  }
  if (event->capture != stream->capture) {
    if (event->capture == NULL || stream->capture != NULL) {
      return fail(cudaErrorStreamCaptureInvalidated); /* work outside a capture cannot be waited for inside */
    }
    stream->capture = event->capture; /* the stream is forked into the capture */
    stream->outside = stream->last;
    stream->last = nullptr;
  }
  cudaError_t error = add(stream, nullptr);
  if (error == cudaSuccess) {
    wait_for(stream->last, event->item);
  }
  return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (capturing() || event->capture != NULL) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (event->item != NULL) {
    run_until(event->item.get());
  }
  return fail(late_error);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  static int impatience;
  static const bool stuck = getenv("SHIM_STUCK") != NULL; /* a device whose work never ends */
  return stuck || ++impatience % 2 == 1 ? fail(cudaErrorNotReady) : cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (from->item == NULL || to->item == NULL) {
    return fail(cudaErrorInvalidValue);
  }
  if (!from->item->done || !to->item->done) {
    return fail(cudaErrorNotReady);
  }
  *milliseconds = (float) (1e3 * (to->item->finished - from->item->finished));
  return cudaSuccess;
}

/* ---- capture ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (capturing()) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  stream->capture = new shim_graph();
  stream->capture->origin = stream;
  stream->outside = stream->last;
  stream->last = nullptr;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  shim_graph *g = stream->capture;
  *graph = NULL;
  if (g == NULL || g->origin != stream) {
    return fail(cudaErrorStreamCaptureInvalidated);
  }
  bool joined = true;
  for (cudaStream_t s : streams) {
    if (s->capture == g) {
      joined = joined && (s->last == NULL || (stream->last != NULL && leads_to(s->last.get(), stream->last.get())));
    }
  }
  for (cudaStream_t s : streams) {
    if (s->capture == g) {
      s->capture = NULL;
      s->last = s->outside;
      s->outside = nullptr;
    }
  }
  *graph = g;
  return joined ? cudaSuccess : fail(cudaErrorStreamCaptureUnjoined);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
  *exec = new shim_graph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return cudaSuccess;
}

/* Fresh items for this launch: all after what is in the stream, and the stream goes on after all. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  std::vector<item_ref> fresh;
  item_ref before = stream->last;
  for (const item_ref &from : exec->item) {
    item_ref i = std::make_shared<item>();
    i->run = from->run;
    i->go_on = from->go_on;
    for (const item_ref &d : from->after) {
      if (d->place < fresh.size() && exec->item[d->place] == d) { /* else it is of no launch of this graph */
        wait_for(i, fresh[d->place]);
      }
    }
    if (before != NULL && !before->done) {
      wait_for(i, before);
    }
    if (from->outside != NULL) {
      from->outside->item = i;
      from->outside->capture = NULL;
    }
    fresh.push_back(i);
    add_pending(i);
  }
  cudaError_t error = add(stream, nullptr);
  if (error == cudaSuccess) {
    for (const item_ref &i : fresh) {
      wait_for(stream->last, i);
    }
  }
  return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return cudaGraphDestroy(exec);
}

/* ---- the device ---- */

static int devices(void) {
  const char *text = getenv("SHIM_DEVICES");
  return text != NULL ? atoi(text) : 1;
}

static int current;

cudaError_t cudaGetDeviceCount(int *count) {
  int driver;
  cudaDriverGetVersion(&driver);
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return fail(cudaErrorInsufficientDriver); /* and the count is left as it was, as by the real one */
  }
  if (devices() <= 0) {
    return fail(cudaErrorNoDevice);
  }
  *count = devices();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current = device;
  return device >= 0 && device < devices() ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int) {
  *prop = {};
  const char *architecture = getenv("SHIM_ARCHITECTURE");
  int number = architecture != NULL ? atoi(architecture) : 90;
  snprintf(prop->name, sizeof prop->name, "stand-in");
  prop->totalGlobalMem = device_bytes();
  prop->major = number / 10;
  prop->minor = number % 10;
  prop->multiProcessorCount = 4;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
  snprintf(id, (size_t) length, "0000:%02d:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  const char *text = getenv("SHIM_DRIVER");
  *version = text != NULL ? atoi(text) : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error) {
  static const struct {
    cudaError_t error;
    const char *name;
  } rows[] = {
#define ROW(name) {name, #name}
      ROW(cudaSuccess),
      ROW(cudaErrorInvalidValue),
      ROW(cudaErrorMemoryAllocation),
      ROW(cudaErrorInvalidConfiguration),
      ROW(cudaErrorInsufficientDriver),
      ROW(cudaErrorNoDevice),
      ROW(cudaErrorInvalidDevice),
      ROW(cudaErrorNotReady),
      ROW(cudaErrorNoKernelImageForDevice),
      ROW(cudaErrorIllegalAddress),
      ROW(cudaErrorStreamCaptureUnsupported),
      ROW(cudaErrorStreamCaptureInvalidated),
      ROW(cudaErrorStreamCaptureUnjoined),
      ROW(cudaErrorDevicesUnavailable),
      ROW(cudaErrorECCUncorrectable),
      ROW(cudaErrorNvlinkUncorrectable),
      ROW(cudaErrorUnknown)
#undef ROW
  };
  for (const auto &row : rows) {
    if (row.error == error) {
      return row.name;
    }
  }
  return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) {
  return last_error;
}
