/* Messages of a device: a lane is a queue and a communicator of two, in which all lines of a number send or receive in
 * the order in which they are started.  From a rank to itself they are copies, made when both ends are started. */
#include "comm/comm_line.h"
#include "comm/comm_nccl_group.h"

#include "backend/backend.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/comm_device.h"

typedef struct device_line {
  ts_message_line base;
  struct ts_nccl_lane *lane;
  ts_message_part *part; /* owned */
  int n;
  void *ready, *done;       /* events: it may begin; it is complete */
  bool announced, queued;   /* ready is recorded by who computes; done by this start */
  struct device_line *next; /* of those that wait for their other end */
} device_line;

struct ts_nccl_lane {
  const ts_comm_mpi *mpi;
  bool sends;
  int peer, number;
  ts_device *device;
  ts_queue queue;
  ts_comm_nccl *c; /* owned; NULL: to oneself */
  device_line *first, *last;
};

/* ---- moving ---- */

static void *stream_of_lane(const ts_nccl_lane *lane) {
  return lane->device->ops->stream(lane->device, lane->queue);
}

static void transfer_parts(const ts_nccl_lane *lane, bool sends, const ts_message_part *part, int n) {
  ts_comm_nccl *c = lane->c;
  ts_nccl_begin(c, TS_MESSAGE);
  ts_nccl_open(c);
  for (int i = 0; i < n; ++i) {
    if (sends) {
      TS_NCCL(c, ncclSend(part[i].data, part[i].bytes, ncclInt8, 1, c->nccl, stream_of_lane(lane)));
    } else {
      TS_NCCL(c, ncclRecv(part[i].data, part[i].bytes, ncclInt8, 0, c->nccl, stream_of_lane(lane)));
    }
  }
  ts_nccl_close(c);
}

static void note_done(device_line *line) {
  const ts_nccl_lane *lane = line->lane;
  lane->device->ops->record(lane->device, line->done, lane->queue);
  line->queued = true;
}

/* ---- to oneself ---- */

static void put_aside(device_line *line) {
  ts_nccl_lane *lane = line->lane;
  line->next = NULL;
  *(lane->first == NULL ? &lane->first : &lane->last->next) = line;
  lane->last = line;
}

static void copy_parts(const device_line *from, const device_line *to) {
  ts_device *device = from->lane->device;
  TS_CHECK(from->n == to->n, "a message to oneself of %d parts, where %d are received", from->n, to->n);
  for (int i = 0; i < from->n; ++i) {
    TS_CHECK(from->part[i].bytes == to->part[i].bytes, "a message to oneself of %zu bytes, where %zu are received",
             from->part[i].bytes, to->part[i].bytes);
    device->ops->copy(device, to->part[i].data, from->part[i].data, from->part[i].bytes, from->lane->queue);
  }
}

static void meet_oneself(device_line *line) {
  ts_nccl_lane *lane = line->lane;
  device_line *other = lane->first;
  if (other == NULL || other->base.sends == line->base.sends) {
    put_aside(line);
    return;
  }
  lane->first = other->next;
  copy_parts(line->base.sends ? line : other, line->base.sends ? other : line);
  note_done(line);
  note_done(other);
}

/* ---- lines ---- */

static void announce_on_device(ts_message_line *base) {
  device_line *line = (device_line *) base;
  line->lane->device->ops->announce(line->lane->device, line->ready, TS_QUEUE_COMPUTE);
  line->announced = true;
}

static void start_on_device(ts_message_line *base) {
  device_line *line = (device_line *) base;
  const ts_nccl_lane *lane = line->lane;
  line->queued = false;
  if (!line->announced) {
    lane->device->ops->record(lane->device, line->ready, TS_QUEUE_COMPUTE);
  }
  lane->device->ops->wait(lane->device, line->ready, lane->queue);
  if (lane->c == NULL) {
    meet_oneself(line);
  } else {
    transfer_parts(lane, base->sends, line->part, line->n);
    note_done(line);
  }
}

/* The host does not look. */
static bool poll_on_device(ts_message_line *line) {
  (void) line;
  return false;
}

static void wait_on_device(ts_message_line *base) {
  device_line *line = (device_line *) base;
  TS_CHECK(line->queued, "a message to oneself is waited for that has no other end");
  line->lane->device->ops->wait(line->lane->device, line->done, TS_QUEUE_COMPUTE);
}

static void destroy_on_device(ts_message_line *base) {
  device_line *line = (device_line *) base;
  ts_device *device = line->lane->device;
  device->ops->event_destroy(device, line->ready);
  device->ops->event_destroy(device, line->done);
  ts_free(line->part);
  ts_free(line);
}

ts_message_line *ts_nccl_line_create(ts_nccl_lane *lane, bool sends, const ts_message_part *part, int n) {
  static const ts_message_line_ops ops = {announce_on_device, start_on_device, poll_on_device, wait_on_device,
                                          destroy_on_device};
  device_line *line = ts_calloc(1, sizeof *line);
  line->base = (ts_message_line){.ops = &ops, .sends = sends};
  line->lane = lane;
  line->part = ts_calloc((size_t) n + 1, sizeof *line->part);
  for (int i = 0; i < n; ++i) {
    if (part[i].bytes > 0) {
      line->part[line->n++] = part[i];
    }
  }
  line->ready = lane->device->ops->event_create(lane->device, false);
  line->done = lane->device->ops->event_create(lane->device, false);
  return &line->base;
}

/* ---- lanes ---- */

/* Connected at the first message, for which NCCL allocates. */
static void warm_lane(const ts_nccl_lane *lane) {
  ts_device *device = lane->device;
  const ts_backend *backend = ts_backend_cuda();
  size_t bytes = TS_NCCL_WARM_BYTES;
  const ts_message_part part = {.data = backend->allocate(bytes), .bytes = bytes};
  device->ops->set_op(device, "first connections");
  transfer_parts(lane, lane->sends, &part, 1);
  void *event = device->ops->event_create(device, false);
  device->ops->record(device, event, lane->queue);
  device->ops->finish(device, event);
  device->ops->event_destroy(device, event);
  device->ops->set_op(device, NULL);
  backend->release(part.data, bytes);
}

ts_nccl_lane *ts_nccl_lane_create(ts_comm_mpi *mpi, bool sends, int peer, int number,
                                  const ts_device_options *options) {
  ts_nccl_lane *lane = ts_calloc(1, sizeof *lane);
  int own = mpi->base.rank;
  *lane = (ts_nccl_lane){.mpi = mpi, .sends = sends, .peer = peer, .number = number};
  lane->device = ts_backend_device(ts_backend_cuda());
  lane->queue = lane->device->ops->queue_create(lane->device);
  if (peer != own) {
    lane->c = ts_nccl_pair_create(mpi, sends ? own : peer, sends ? peer : own, TS_FIRST_LINE_TAG + number, options);
    warm_lane(lane);
  }
  return lane;
}

bool ts_nccl_lane_is(const ts_nccl_lane *lane, const ts_comm_mpi *mpi, bool sends, int peer, int number) {
  return lane->mpi == mpi && lane->peer == peer && lane->number == number &&
         (lane->sends == sends || peer == mpi->base.rank);
}

void ts_nccl_lane_destroy(ts_nccl_lane *lane) {
  if (lane->c != NULL) {
    ts_nccl_group_destroy(lane->c);
  }
  lane->device->ops->queue_destroy(lane->device, lane->queue);
  ts_free(lane);
}
