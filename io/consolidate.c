#include "io/consolidate.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/consolidate_output.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#define BLOCK_BYTES ((size_t) 1 << 20)
#define LARGEST_F16 65504.0f
#define FIRST_INFINITE_F16 65520.0f /* from here on rounding to nearest gives infinity */
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
  int first, n; /* full ones */
  bool ended;   /* no more will come */
  bool broken;  /* the writer has given up: blocks are dropped */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  ts_output *output;
  ts_error error; /* the writer's */
  float *wide;    /* owned: BLOCK_BYTES, values on their way to F16; NULL for other types */
  ts_consolidated *result;
  ts_checkpoint_piece *piece; /* owned: the runs of a block; the reader's */
  int capacity;
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

static void hand_over_block(ring *r, bool ended) {
  pthread_mutex_lock(&r->mutex);
  r->n += !ended;
  r->ended = ended;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
}

/* The values of fp16 that are infinite only there, as they shall be written; returns their number. */
static int64_t narrow(float *value, int64_t n, bool saturate) {
  int64_t beyond = 0;
  for (int64_t i = 0; i < n; ++i) {
    bool is_beyond = fabsf(value[i]) >= FIRST_INFINITE_F16 && isfinite(value[i]);
    beyond += is_beyond;
    value[i] = is_beyond && saturate ? copysignf(LARGEST_F16, value[i]) : value[i];
  }
  return beyond;
}

/* The elements of a block as fp32 or what is written, from wherever they lie. */
static ts_status read_runs(ring *r, ts_checkpoint_reader *reader, const ts_saved_parameter *p, const block *b, void *to,
                           ts_dtype dtype, ts_error *err) {
  ts_checkpoint_run run;
  int n = 0;
  for (int64_t at = 0; at < b->count; at += run.count) {
    run = ts_checkpoint_run_at(p, b->first + at, b->count - at);
    TS_GROW(r->piece, n, r->capacity);
    r->piece[n++] = (ts_checkpoint_piece){.part = run.part,
                                          .first = run.first,
                                          .count = run.count,
                                          .to = (char *) to + (size_t) at * ts_dtype_size(dtype),
                                          .dtype = dtype};
  }
  return ts_checkpoint_read(reader, r->piece, n, err);
}

static ts_status read_block(ring *r, ts_checkpoint_reader *reader, const ts_consolidate_options *o, block *b,
                            ts_error *err) {
  const ts_saved_parameter *p = &o->checkpoint->parameter[r->output->tensor[b->tensor].parameter];
  ts_dtype dtype = r->output->tensor[b->tensor].dtype;
  if (dtype != TS_F16) {
    return read_runs(r, reader, p, b, b->data, dtype, err);
  }
  ts_status status = read_runs(r, reader, p, b, r->wide, TS_F32, err);
  if (status == TS_OK) {
    r->result->n_beyond += narrow(r->wide, b->count, o->saturate);
    ts_convert(b->data, TS_F16, r->wide, TS_F32, (size_t) b->count);
  }
  return status;
}

/* A tensor was read that had \a before values beyond fp16 before it. */
static void note_beyond(ts_consolidated *result, const ts_saved_parameter *p, int64_t before) {
  if (result->n_beyond > before && result->n_tensors_beyond++ == 0) {
    result->first_beyond = p->name;
  }
}

static ts_status read_tensor_blocks(ring *r, ts_checkpoint_reader *reader, const ts_consolidate_options *o, int tensor,
                                    int64_t *done, int64_t bytes, ts_error *err) {
  const ts_saved_parameter *p = &o->checkpoint->parameter[r->output->tensor[tensor].parameter];
  int64_t most = (int64_t) (BLOCK_BYTES / sizeof(float)), before = r->result->n_beyond;
  for (int64_t first = 0; first < p->count; first += most) {
    block *b = next_block(r);
    if (b == NULL) {
      return TS_OK; /* the writer says why */
    }
    b->tensor = tensor;
    b->first = first;
    b->count = p->count - first < most ? p->count - first : most;
    if (read_block(r, reader, o, b, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
    hand_over_block(r, false);
    *done += b->count * (int64_t) ts_dtype_size(r->output->tensor[tensor].dtype);
    if (o->progress != NULL) {
      o->progress(*done, bytes, o->user);
    }
  }
  note_beyond(r->result, p, before);
  return TS_OK;
}

static ts_status stream_tensors(const ts_consolidate_options *o, ts_output *output, ts_consolidated *result,
                                bool *broken, ts_error *err) {
  ring r = {.mutex = PTHREAD_MUTEX_INITIALIZER,
            .changed = PTHREAD_COND_INITIALIZER,
            .output = output,
            .wide = o->dtype == TS_F16 ? ts_malloc(BLOCK_BYTES) : NULL,
            .result = result};
  pthread_t writer;
  for (int i = 0; i < N_BLOCKS; ++i) {
    r.block[i].data = ts_malloc(BLOCK_BYTES);
  }
  TS_CHECK(pthread_create(&writer, NULL, write_blocks, &r) == 0, "no thread to write with");
  ts_checkpoint_reader *reader = ts_checkpoint_reader_open(o->directory, o->checkpoint);
  ts_status status = TS_OK;
  int64_t done = 0;
  for (int i = 0; i < output->n_tensors && status == TS_OK; ++i) {
    status = read_tensor_blocks(&r, reader, o, i, &done, output->bytes, err);
  }
  ts_checkpoint_reader_close(&reader);
  hand_over_block(&r, true);
  pthread_join(writer, NULL);
  *broken = r.broken;
  if (r.broken) {
    status = ts_error_add(err, "%s", r.error.text);
  }
  ts_error_clear(&r.error);
  for (int i = 0; i < N_BLOCKS; ++i) {
    ts_free(r.block[i].data);
  }
  ts_free(r.wide);
  ts_free(r.piece);
  return status;
}

/* ---- the hashes, meanwhile ---- */

typedef struct check {
  const ts_consolidate_options *options;
  ts_status status;
  ts_error error; /* its thread's, until that is joined */
} check;

static void *check_files(void *argument) {
  check *c = argument;
  const ts_consolidate_options *o = c->options;
  c->status = ts_checkpoint_verify(o->directory, o->manifest, 0, 1, o->threads, &c->error);
  return NULL;
}

ts_status ts_consolidate(const ts_consolidate_options *o, ts_consolidated *result, bool *broken, ts_error *err) {
  ts_output *output = ts_output_create(o);
  *result = (ts_consolidated){.n_tensors = output->n_tensors, .n_files = output->n_files, .bytes = output->bytes};
  *broken = false;
  check c = {.options = o};
  ts_error own = {0};
  pthread_t checker;
  TS_CHECK(pthread_create(&checker, NULL, check_files, &c) == 0, "no thread to check with");
  ts_status status = stream_tensors(o, output, result, broken, &own);
  if (status == TS_OK) {
    status = ts_output_end(output, &own);
    *broken = status != TS_OK;
  }
  ts_output_destroy(&output);
  pthread_join(checker, NULL);
  if (c.status != TS_OK) { /* says which file, and why what was read of it was wrong */
    *broken = false;
    status = ts_error_add(err, "%s", c.error.text);
  } else if (status != TS_OK) {
    ts_error_add(err, "%s", own.text);
  }
  ts_error_clear(&c.error);
  ts_error_clear(&own);
  return status;
}
