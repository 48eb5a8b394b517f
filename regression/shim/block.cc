/* The threads of a block as fibers.  Blocks run one after another in a random order; inside a block whoever goes on is
 * drawn among those that wait for nobody, until all have ended.  Shared memory begins as NaNs with guards between its
 * arrays. */
#include "cuda/machine.cuh"
#include "regression/shim/shim.h"

#include "base/dtype.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

/* From stack to stack is no power of two, or the tops of all would share a few lines of the processor's caches. */
enum { MOST_THREADS = 1024, STACK = 128 << 10, STRIDE = STACK + 17 * 64 };
enum { STATIC_SHARED = 48 << 10, MOST_SHARED = 227 << 10, GUARD = 64 };

/* ---- switching stacks ---- */

/* A stack, for the address sanitizer: bounds, and its own stack of the frames that it follows. */
struct shim_stack {
  const void *bottom;
  size_t bytes;
  void *fake;
};

#if defined(__x86_64__)
/* Save what a call must keep on the old stack, go on with the new one. */
extern "C" void shim_switch(void **save, void *to);
__asm__(".text\n.globl shim_switch\n.type shim_switch,@function\nshim_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size shim_switch,.-shim_switch\n");
struct fiber_context {
  shim_stack stack;
  void *stack_pointer;
};
static void prepare_stack(fiber_context *c, char *stack, void (*entry)(void)) {
  void **top = (void **) (stack + STACK) - 3; /* the entry sees a stack aligned as after a call */
  *top = NULL;
  *--top = (void *) entry;
  c->stack_pointer = top - 6;
}
static void change_stack(fiber_context *from, fiber_context *to) {
  shim_switch(&from->stack_pointer, to->stack_pointer);
}
#else
struct fiber_context {
  shim_stack stack;
  ucontext_t context;
};
static void prepare_stack(fiber_context *c, char *stack, void (*entry)(void)) {
  getcontext(&c->context);
  c->context.uc_stack.ss_sp = stack;
  c->context.uc_stack.ss_size = STACK;
  c->context.uc_link = NULL;
  makecontext(&c->context, entry, 0);
}
static void change_stack(fiber_context *from, fiber_context *to) {
  swapcontext(&from->context, &to->context);
}
#endif

/* The last frames of whoever used the stack before never returned, and still have their red zones. */
static void prepare(fiber_context *c, char *stack, void (*entry)(void)) {
  enum { LAST_FRAMES = 4096 };
  c->stack = {stack, STACK, NULL};
  shim_permit(stack + STACK - LAST_FRAMES, LAST_FRAMES);
  prepare_stack(c, stack, entry);
}

static fiber_context *left; /* who ran before */

/* Go on with `to`; returns when `from` goes on, which after the `last` time it never does. */
static void change(fiber_context *from, fiber_context *to, bool last) {
  left = from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? NULL : &from->stack.fake, to->stack.bottom, to->stack.bytes);
#endif
  change_stack(from, to);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->stack.fake, NULL, NULL);
#endif
  (void) last;
}

/* The first on a new stack: learns where the stack is that it came from. */
static void arrive(void) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(NULL, &left->stack.bottom, &left->stack.bytes);
#endif
}

/* ---- the block ---- */

struct copy {
  void *to;
  const void *from;
  bool valid;
};

/* A product of a warp group: this thread's share of it. */
struct product {
  float *d;
  const char *left, *right;
  bool left_along, right_along;
  bool half; /* fp16, else bf16 */
};

/* What is done when it is waited for, in committed groups. */
template <typename T> struct pending {
  std::vector<T> open;                /* of the group that is not committed */
  std::vector<std::vector<T>> groups; /* oldest first */

  bool empty(void) const {
    return open.empty() && groups.empty();
  }
  void commit(void) {
    groups.push_back(std::move(open));
    open.clear();
  }
  /* Do all but the newest `most` groups. */
  template <typename F> void wait(int most, F make) {
    while ((int) groups.size() > most) {
      for (const T &x : groups.front()) {
        make(x);
      }
      groups.erase(groups.begin());
    }
  }
};

struct fiber {
  shim_thread self; /* first: shim_self points here */
  fiber_context context;
  bool begun, done;
  const char *waits; /* in what */
  long exchanges;
  pending<copy> copies;
  bool unshown; /* copies have arrived that products may not see yet */
  pending<product> products;
};

struct warp {
  alignas(16) unsigned char slot[2][32][64]; /* of even and odd exchanges; zeros of lanes that are not there */
  unsigned arrived[2];
  unsigned asleep; /* lanes that wait for others */
};

struct array {
  const void *key;
  const char *name;
  size_t offset, bytes;
};

shim_thread *shim_self;
shim_index shim_block_dim, shim_grid_dim;

static struct block {
  int threads, live, at_barrier;
  std::vector<struct fiber> fibers;
  std::vector<int> ready, asleep; /* those that can go on, and those in a barrier */
  std::vector<char *> stacks;     /* that nobody uses */
  std::vector<struct warp> warps;
  std::vector<array> arrays;
  size_t shared_used, dynamic_bytes;
  unsigned char *shared;
  fiber_context scheduler;
  const std::function<void()> *body;
} b;
static long launches, barriers;
static unsigned ends; /* blocks that run at each end of a dimension; 0: all */

long shim_launches(void) {
  return launches;
}

void shim_only_ends(unsigned blocks) {
  ends = blocks;
}

unsigned shim_ends(void) {
  return ends;
}

long shim_barriers(void) {
  return barriers;
}

static void die(const char *what) {
  fprintf(stderr, "shim: block (%u, %u, %u) thread (%u, %u, %u): %s\n", shim_self->block.x, shim_self->block.y,
          shim_self->block.z, shim_self->thread.x, shim_self->thread.y, shim_self->thread.z, what);
  abort();
}

static fiber *self(void) {
  return (fiber *) shim_self;
}

static int number(const fiber *f) {
  return 32 * f->self.warp + f->self.lane;
}

/* One of those that can go on; NULL: there is none. */
static fiber *draw(void) {
  if (b.ready.empty()) {
    return NULL;
  }
  std::swap(b.ready[shim_random((unsigned) b.ready.size())], b.ready.back());
  fiber *f = &b.fibers[(size_t) b.ready.back()];
  b.ready.pop_back();
  return f;
}

static void entry(void);

/* Go on with `to`, or, without one, where the block began. */
static void go_on(fiber_context *from, fiber *to, bool last) {
  if (to == NULL) {
    change(from, &b.scheduler, last);
    return;
  }
  if (!to->begun) {
    to->begun = true;
    prepare(&to->context, b.stacks.back(), entry);
    b.stacks.pop_back();
  }
  shim_self = &to->self;
  change(from, &to->context, last);
}

/* Until somebody makes it ready. */
static void pause(const char *waits) {
  self()->waits = waits;
  go_on(&self()->context, draw(), false);
}

/* Whether all have arrived. */
static bool release_barrier(void) {
  if (b.live == 0 || b.at_barrier < b.live) {
    return false;
  }
  b.at_barrier = 0;
  ++barriers;
  b.ready.insert(b.ready.end(), b.asleep.begin(), b.asleep.end());
  b.asleep.clear();
  return true;
}

static void run_thread(void) {
  (*b.body)();
  fiber *f = self();
  if (!f->copies.empty()) {
    die("ends with copies under way");
  }
  if (!f->products.empty()) {
    die("ends with products under way");
  }
  f->done = true;
  --b.live;
  release_barrier();
}

/* On one stack after another thread that has ended: most kernels' never wait, and all run on this one. */
static void entry(void) {
  arrive();
  run_thread();
  fiber *next = draw();
  while (next != NULL && !next->begun) {
    next->begun = true;
    next->context.stack = self()->context.stack;
    shim_self = &next->self;
    run_thread();
    next = draw();
  }
  b.stacks.push_back((char *) self()->context.stack.bottom);
  go_on(&self()->context, next, true);
}

/* A thread that has ended counts as arrived, as on the device; and so does one in another __syncthreads. */
void shim_barrier(void) {
  ++b.at_barrier;
  if (!release_barrier()) {
    b.asleep.push_back(number(self()));
    pause("waits in a barrier for threads that never come");
  }
}

/* Two tables in turn: whoever writes into a table again has been through the other exchange with all lanes, so nobody
 * reads the old one any more.  Only whole warps: kernels use no other masks. */
const unsigned char *shim_warp_exchange(unsigned mask, const void *mine, size_t bytes) {
  fiber *f = self();
  warp *w = &b.warps[(size_t) f->self.warp];
  int turn = (int) (f->exchanges++ % 2), lanes = b.threads - 32 * f->self.warp;
  unsigned expected = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
  if ((mask & expected) != expected) {
    die("calls a warp function for a part of the warp");
  }
  memcpy(w->slot[turn][f->self.lane], mine, bytes);
  w->arrived[turn] |= 1u << f->self.lane;
  if (w->arrived[turn] != expected) {
    w->asleep |= 1u << f->self.lane;
    pause("waits in a warp function for lanes that never come");
    return w->slot[turn][0];
  }
  w->arrived[1 - turn] = 0;
  for (; w->asleep != 0; w->asleep &= w->asleep - 1) {
    b.ready.push_back(32 * f->self.warp + __builtin_ctz(w->asleep));
  }
  return w->slot[turn][0];
}

void shim_warp_barrier(unsigned mask) {
  char nothing = 0;
  shim_warp_exchange(mask, &nothing, 1);
}

unsigned __ballot_sync(unsigned mask, int predicate) {
  int mine = predicate != 0;
  const unsigned char *table = shim_warp_exchange(mask, &mine, sizeof mine);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    int theirs = 0;
    if (32 * shim_self->warp + lane < b.threads) {
      memcpy(&theirs, table + 64 * lane, sizeof theirs);
    }
    ballot |= (unsigned) theirs << lane;
  }
  return ballot;
}

/* ---- shared memory ---- */

void *shim_shared(const void *key, size_t bytes, const char *name) {
  for (const array &a : b.arrays) {
    if (a.key == key) {
      return b.shared + a.offset;
    }
  }
  size_t padded = (bytes + 15) / 16 * 16;
  if (b.shared_used + padded + GUARD > 2 * STATIC_SHARED) {
    die("more than 48 KB of static shared memory");
  }
  shim_permit(b.shared + b.shared_used, bytes);
  b.arrays.push_back({key, name, b.shared_used, bytes});
  b.shared_used += padded + GUARD;
  return b.shared + b.arrays.back().offset;
}

void *shim_shared_dynamic(void) {
  if (b.dynamic_bytes == 0) {
    die("uses dynamic shared memory that the launch did not ask for");
  }
  return b.shared + 2 * STATIC_SHARED;
}

/* For the address sanitizer what is not an array is out of bounds, so that it names who reads there too.  Behind the
 * arrays of the block before it is clear. */
static void clear_shared(void) {
  size_t bytes = 2 * STATIC_SHARED + b.dynamic_bytes + GUARD;
  shim_permit(b.shared, bytes);
  memset(b.shared, 0xff, b.shared_used);
  memset(b.shared + 2 * STATIC_SHARED, 0xff, b.dynamic_bytes + GUARD);
  shim_forbid(b.shared, 2 * STATIC_SHARED);
  shim_forbid(b.shared + bytes - GUARD, GUARD);
}

static void check_guards(void) {
  shim_permit(b.shared, 2 * STATIC_SHARED + b.dynamic_bytes + GUARD);
  size_t sum = b.dynamic_bytes;
  for (const array &a : b.arrays) {
    sum += a.bytes;
    for (size_t i = a.bytes; i < (a.bytes + 15) / 16 * 16 + GUARD; ++i) {
      if (b.shared[a.offset + i] != 0xff) {
        fprintf(stderr, "shim: something wrote behind the shared array %s of %zu bytes\n", a.name, a.bytes);
        abort();
      }
    }
  }
  for (size_t i = 0; i < GUARD; ++i) {
    if (b.shared[2 * STATIC_SHARED + b.dynamic_bytes + i] != 0xff) {
      fprintf(stderr, "shim: something wrote behind the dynamic shared memory of %zu bytes\n", b.dynamic_bytes);
      abort();
    }
  }
  if (sum > MOST_SHARED) {
    fprintf(stderr, "shim: %zu bytes of shared memory, a block has %d\n", sum, MOST_SHARED);
    abort();
  }
}

/* ---- copies that run ahead ---- */

static void do_copy(const copy &c) {
  if (c.valid) {
    memcpy(c.to, c.from, 16);
  } else {
    memset(c.to, 0, 16);
  }
}

void shim_copy_ahead(void *to, const void *from, bool valid) {
  if ((uintptr_t) to % 16 != 0 || (valid && (uintptr_t) from % 16 != 0)) {
    die("a copy of 16 bytes is not aligned");
  }
  self()->copies.open.push_back({to, from, valid});
}

void shim_copy_commit(void) {
  self()->copies.commit();
}

void shim_copy_wait(int groups) {
  fiber *f = self();
  f->copies.wait(groups, [f](const copy &c) {
    do_copy(c);
    f->unshown = true;
  });
}

/* ---- matrix instructions ---- */

void shim_mma(float d[4], const uint32_t a[4], const uint32_t bb[2], float (*element)(uint16_t bits)) {
  float mine[12];
  for (int i = 0; i < 6; ++i) {
    for (int h = 0; h < 2; ++h) {
      mine[2 * i + h] = element((uint16_t) ((i < 4 ? a[i] : bb[i - 4]) >> (16 * h)));
    }
  }
  const unsigned char *table = shim_warp_exchange(0xffffffffu, mine, sizeof mine);
  float A[2][16], B[2][16]; // the rows g and g + 8, the columns 2t and 2t + 1: what this lane sums
  const int g = shim_self->lane / 4, t = shim_self->lane % 4;
  for (int q = 0; q < 4; ++q) {
    const float *w = (const float *) (table + 64 * (4 * g + q));
    for (int i = 0; i < 4; ++i) {
      for (int h = 0; h < 2; ++h) {
        A[i % 2][2 * q + 8 * (i / 2) + h] = w[2 * i + h];
      }
    }
    for (int column = 0; column < 2; ++column) {
      w = (const float *) (table + 64 * (4 * (2 * t + column) + q));
      for (int i = 0; i < 2; ++i) {
        for (int h = 0; h < 2; ++h) {
          B[column][2 * q + 8 * i + h] = w[8 + 2 * i + h];
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) {
      d[i] += A[i / 2][k] * B[i % 2][k];
    }
  }
}

/* ---- products of warp groups ---- */

/* An element of a tile whose address decides which vectors of a line are exchanged. */
template <bool HALF> static float wgmma_element(const char *tile, bool along, int row, int k) {
  uintptr_t at = (uintptr_t) tile + (along ? (uintptr_t) (row * 128 + k * 2)
                                           : (uintptr_t) (row / 64 * TS_WGMMA_DEPTH * 128 + k * 128 + row % 64 * 2));
  uint16_t bits;
  memcpy(&bits, (const void *) (at ^ (at >> 7) % 8 << 4), sizeof bits);
  return HALF ? ts_f16_to_f32(bits) : ts_bf16_to_f32(bits);
}

template <bool HALF> static void multiply(const product &p) {
  int warp = shim_self->warp % 4, lane = shim_self->lane, row = 16 * warp + lane / 4;
  for (int k = 0; k < 16; ++k) {
    float a[2];
    for (int h = 0; h < 2; ++h) {
      a[h] = wgmma_element<HALF>(p.left, p.left_along, row + 8 * h, k);
    }
    for (int pair = 0; pair < TS_WGMMA_RESULTS / 4; ++pair) {
      for (int i = 0; i < 2; ++i) {
        float b = wgmma_element<HALF>(p.right, p.right_along, pair * 8 + lane % 4 * 2 + i, k);
        p.d[4 * pair + i] += a[0] * b;
        p.d[4 * pair + 2 + i] += a[1] * b;
      }
    }
  }
}

static void multiply_now(const product &p) {
  p.half ? multiply<true>(p) : multiply<false>(p);
}

/* Some are done at once, with what is there then, others as late as may be. */
void shim_wgmma(float *d, const void *left, const void *right, bool left_along, bool right_along, bool half) {
  fiber *f = self();
  if (f->unshown) {
    die("multiplies what it copied and has not shown");
  }
  if (((uintptr_t) left | (uintptr_t) right) % 16 != 0) {
    die("an operand of wgmma is not aligned to 16 bytes");
  }
  product p = {d, (const char *) left, (const char *) right, left_along, right_along, half};
  if (f->products.empty() && shim_random(2) == 0) {
    multiply_now(p);
  } else {
    f->products.open.push_back(p);
  }
}

void shim_wgmma_commit(void) {
  self()->products.commit();
}

void shim_wgmma_wait(int groups) {
  self()->products.wait(groups, multiply_now);
}

void shim_wgmma_show_copies(void) {
  self()->unshown = false;
}

static void load_matrices(uint32_t r[4], const void *row, bool transposed) {
  if ((uintptr_t) row % 16 != 0) {
    die("a row of ldmatrix is not aligned to 16 bytes");
  }
  uint16_t values[8];
  memcpy(values, row, sizeof values);
  const unsigned char *table = shim_warp_exchange(0xffffffffu, values, sizeof values);
  int major = shim_self->lane / 4, minor = 2 * (shim_self->lane % 4);
  for (int m = 0; m < 4; ++m) {
    uint16_t element[2];
    for (int h = 0; h < 2; ++h) {
      int i = transposed ? minor + h : major, j = transposed ? major : minor + h;
      memcpy(&element[h], table + 64 * (8 * m + i) + 2 * j, 2);
    }
    r[m] = (uint32_t) element[0] | (uint32_t) element[1] << 16;
  }
}

void ts_ldmatrix(uint32_t r[4], const void *row) {
  load_matrices(r, row, false);
}
void ts_ldmatrix_trans(uint32_t r[4], const void *row) {
  load_matrices(r, row, true);
}

/* ---- launching ---- */

/* What a thread is in all blocks. */
static void name_thread(int i) {
  fiber *f = &b.fibers[(size_t) i];
  unsigned x = (unsigned) i;
  f->self.thread = {x % shim_block_dim.x, x / shim_block_dim.x % shim_block_dim.y,
                    x / (shim_block_dim.x * shim_block_dim.y)};
  f->self.lane = i % 32;
  f->self.warp = i / 32;
}

static void start_fiber(int i, shim_index block) {
  fiber *f = &b.fibers[(size_t) i];
  f->self.block = block;
  f->begun = f->done = false;
  f->exchanges = 0;
  f->unshown = false;
}

template <typename T> static void shuffle(std::vector<T> &list) {
  for (size_t i = list.size(); i > 1; --i) {
    std::swap(list[i - 1], list[shim_random((unsigned) i)]);
  }
}

static void run_block(shim_index block) {
  b.live = b.threads;
  b.at_barrier = 0;
  b.ready.clear();
  clear_shared();
  b.arrays.clear();
  b.shared_used = 0;
  for (warp &w : b.warps) {
    w.arrived[0] = w.arrived[1] = w.asleep = 0;
  }
  for (int i = 0; i < b.threads; ++i) {
    start_fiber(i, block);
    b.ready.push_back(i);
  }
  go_on(&b.scheduler, draw(), false);
  for (int i = 0; i < b.threads; ++i) {
    if (!b.fibers[(size_t) i].done) {
      shim_self = &b.fibers[(size_t) i].self;
      die(b.fibers[(size_t) i].waits);
    }
  }
  check_guards();
}

/* Of the blocks of a dimension those that run. */
static std::vector<unsigned> indices_of(unsigned blocks) {
  std::vector<unsigned> list;
  for (unsigned i = 0; i < blocks; ++i) {
    if (ends > 0 && i == ends && blocks > 2 * ends) {
      i = blocks - ends;
    }
    list.push_back(i);
  }
  return list;
}

static void run_grid(dim3 grid, dim3 block, size_t shared, const std::function<void()> &body) {
  b.threads = (int) (block.x * block.y * block.z);
  b.body = &body;
  b.dynamic_bytes = shared;
  b.fibers.resize((size_t) std::max<size_t>(b.fibers.size(), (size_t) b.threads));
  b.warps.assign((size_t) (b.threads + 31) / 32, warp());
  shim_block_dim = {block.x, block.y, block.z};
  shim_grid_dim = {grid.x, grid.y, grid.z};
  for (int i = 0; i < b.threads; ++i) {
    name_thread(i);
  }
  std::vector<shim_index> order;
  for (unsigned z : indices_of(grid.z)) {
    for (unsigned y : indices_of(grid.y)) {
      for (unsigned x : indices_of(grid.x)) {
        order.push_back({x, y, z});
      }
    }
  }
  shuffle(order);
  for (const shim_index &i : order) {
    run_block(i);
  }
}

static void make_stacks(void) {
  char *all = (char *) mmap(NULL, (size_t) MOST_THREADS * STRIDE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) {
    fprintf(stderr, "shim: no memory for stacks\n");
    abort();
  }
  for (int i = MOST_THREADS; i-- > 0;) {
    b.stacks.push_back(all + (size_t) i * STRIDE);
  }
}

cudaError_t shim_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> thread) {
  if (block.x * block.y * block.z > MOST_THREADS || block.x * block.y * block.z == 0 || shared > MOST_SHARED ||
      grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535 || block.z > 64) {
    return cudaErrorInvalidConfiguration;
  }
  if (b.stacks.empty()) {
    make_stacks();
    b.shared = (unsigned char *) aligned_alloc(1024, 2 * STATIC_SHARED + MOST_SHARED + GUARD + 1024 - GUARD);
    memset(b.shared, 0xff, 2 * STATIC_SHARED);
  }
  const char *fails = getenv("SHIM_FAIL_LAUNCH");
  if (++launches == (fails != NULL ? atol(fails) : 0)) {
    return cudaErrorIllegalAddress;
  }
  cudaError_t code = shim_add(stream,
                              [=]() {
                                shim_ran();
                                run_grid(grid, block, shared, thread);
                              }),
              before = cudaGetLastError();
  return code != cudaSuccess ? code : before; /* a launch on a device is asked so, and blamed for what came before */
}
