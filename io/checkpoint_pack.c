/* The tables of a checkpoint as bytes, for other ranks: one walk packs and unpacks, so that the two cannot differ. */
#include "base/memory.h"
#include "io/checkpoint.h"

#include <string.h>

typedef struct parcel {
  ts_text *to;      /* packing; NULL: unpacking */
  const char *from; /* unpacking: what comes next */
} parcel;

static void carry(parcel *p, void *value, size_t bytes) {
  if (p->to != NULL) {
    ts_text_append(p->to, value, bytes);
  } else {
    memcpy(value, p->from, bytes);
    p->from += bytes;
  }
}

/* The array itself, or a new one where it is unpacked: a pointer that came with its struct is another rank's. */
static void *carry_array(parcel *p, void *array, int64_t n, size_t size) {
  void *here = p->to != NULL ? array : ts_calloc((size_t) n + 1, size);
  if (n > 0) {
    carry(p, here, (size_t) n * size);
  }
  return here;
}

static char *carry_word(parcel *p, char *word) {
  int64_t length = p->to != NULL ? (int64_t) strlen(word) : 0;
  carry(p, &length, sizeof length);
  return carry_array(p, word, length, 1);
}

static void carry_part(parcel *p, ts_saved_part *part, int n_shards) {
  part->name = carry_word(p, part->name);
  part->cuts = carry_array(p, part->cuts, n_shards + 1, sizeof *part->cuts);
  part->state = carry_array(p, part->state, part->n_states, sizeof *part->state);
  for (int i = 0; i < part->n_states; ++i) {
    part->state[i].name = carry_word(p, part->state[i].name);
  }
}

static void carry_parameter(parcel *p, ts_saved_parameter *parameter) {
  parameter->name = carry_word(p, parameter->name);
  parameter->piece = carry_array(p, parameter->piece, parameter->n_pieces, sizeof *parameter->piece);
}

static void carry_all(parcel *p, ts_checkpoint *c) {
  carry(p, c, sizeof *c);
  c->deck = carry_word(p, c->deck);
  c->source = carry_word(p, c->source);
  c->part = carry_array(p, c->part, c->n_parts, sizeof *c->part);
  c->parameter = carry_array(p, c->parameter, c->n_parameters, sizeof *c->parameter);
  c->fact = carry_array(p, c->fact, c->n_facts, sizeof *c->fact);
  for (int i = 0; i < c->n_parts; ++i) {
    carry_part(p, &c->part[i], c->n_shards);
  }
  for (int i = 0; i < c->n_parameters; ++i) {
    carry_parameter(p, &c->parameter[i]);
  }
  for (int i = 0; i < c->n_facts; ++i) {
    c->fact[i].name = carry_word(p, c->fact[i].name);
    c->fact[i].value = carry_word(p, c->fact[i].value);
  }
}

void ts_checkpoint_pack(ts_checkpoint *checkpoint, ts_text *to) {
  carry_all(&(parcel){.to = to}, checkpoint);
}

ts_checkpoint *ts_checkpoint_unpack(const char *bytes) {
  ts_checkpoint *c = ts_calloc(1, sizeof *c);
  carry_all(&(parcel){.from = bytes}, c);
  return c;
}
