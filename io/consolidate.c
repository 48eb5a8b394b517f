#include "io/consolidate.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/consolidate_output.h"

#include <pthread.h>
#include <string.h>

#define BLOCK_BYTES ((size_t) 1 << 20)
enum { N_BLOCKS = 3 };

/* Elements [first, first + count) of a tensor, on their way. */
typedef struct block {
  int tensor;
  int64_t first, count;
  unsigned char *data; /* owned: BLOCK_BYTES */
} block;

/* A ring of blocks between the thread that reads and the one that writes. */
typedef struct ring {
  block block[N_BLOCKS];
  int first, n;  /* full ones */
  bool ended;    /* no more will come */
  bool broken;   /* the writer has given up: blocks are dropped */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  ts_output *output;
  ts_error error; /* the writer's */
} ring;

static void *write_blocks(void *argument) {
  ring *r = argument;
  pthread_mutex_lock(&r->mutex);
  for (;;) {
    while (r->n == 0 && !r->ended) {
      pthread_cond_wait(&r->changed, &r->mutex);
    }
    if (r->n == 0) {
      break;
    }
    block *b = &r->block[r->first];
    pthread_mutex_unlock(&r->mutex);
    bool ok = !r->broken && ts_output_write(r->output, b->tensor, b->first, b->count, b->data, &r->error) == TS_OK;
    pthread_mutex_lock(&r->mutex);
    r->broken = !ok;
    r->first = (r->first + 1) % N_BLOCKS;
    --r->n;
    pthread_cond_broadcast(&r->changed);
  }
  pthread_mutex_unlock(&r->mutex);
  return NULL;
}

/* The next block to fill, or NULL when the writer has given up. */
static block *next_block(ring *r) {
  pthread_mutex_lock(&r->mutex);
  while (r->n == N_BLOCKS && !r->broken) {
    pthread_cond_wait(&r->changed, &r->mutex);
  }
  block *b = r->broken ? NULL : &r->block[(r->first + r->n) % N_BLOCKS];
  pthread_mutex_unlock(&r->mutex);
  return b;
}

static void hand_over(ring *r, bool ended) {
  pthread_mutex_lock(&r->mutex);
  r->n += !ended;
  r->ended = ended;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
}

static ts_status read_tensor(ring *r, ts_checkpoint_reader *reader, const ts_consolidate_options *o, int tensor,
                             int64_t *done, int64_t bytes, ts_error *err) {
  const ts_saved_parameter *p = &o->checkpoint->parameter[r->output->tensor[tensor].parameter];
  int64_t most = (int64_t) (BLOCK_BYTES / sizeof(float));
  for (int64_t first = 0; first < p->count; first += most) {
    block *b = next_block(r);
    if (b == NULL) {
      return TS_OK; /* the writer says why */
    }
    b->tensor = tensor;
    b->first = first;
    b->count = p->count - first < most ? p->count - first : most;
    const ts_checkpoint_piece piece = {.part = p->part, .state = 0, .first = p->offset + first, .count = b->count,
                                       .to = b->data, .dtype = o->dtype};
    if (ts_checkpoint_read(reader, &piece, 1, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
    hand_over(r, false);
    *done += b->count * (int64_t) ts_dtype_size(o->dtype);
    if (o->progress != NULL) {
      o->progress(*done, bytes, o->user);
    }
  }
  return TS_OK;
}

static ts_status stream(const ts_consolidate_options *o, ts_output *output, bool *broken, ts_error *err) {
  ring r = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .output = output};
  pthread_t writer;
  for (int i = 0; i < N_BLOCKS; ++i) {
    r.block[i].data = ts_malloc(BLOCK_BYTES);
  }
  TS_CHECK(pthread_create(&writer, NULL, write_blocks, &r) == 0, "no thread to write with");
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(o->directory, o->checkpoint);
  ts_status status = TS_OK;
  int64_t done = 0;
  for (int i = 0; i < output->n_tensors && status == TS_OK; ++i) {
    status = read_tensor(&r, reader, o, i, &done, output->bytes, err);
  }
  ts_checkpoint_reader_close(&reader);
  hand_over(&r, true);
  pthread_join(writer, NULL);
  *broken = r.broken;
  if (r.broken) {
    status = ts_error_add(err, "%s", r.error.text);
  }
  ts_error_clear(&r.error);
  for (int i = 0; i < N_BLOCKS; ++i) {
    ts_free(r.block[i].data);
  }
  return status;
}

ts_status ts_consolidate(const ts_consolidate_options *o, ts_consolidated *result, bool *broken, ts_error *err) {
  ts_output *output = ts_output_create(o);
  *broken = false;
  ts_status status = stream(o, output, broken, err);
  if (status == TS_OK) {
    status = ts_output_end(output, err);
    *broken = status != TS_OK;
  }
  *result = (ts_consolidated){.n_tensors = output->n_tensors, .n_files = output->n_files, .bytes = output->bytes};
  ts_output_destroy(&output);
  return status;
}
