#include "io/checkpoint.h"

#include "base/memory.h"
#include "base/text.h"

#include <string.h>

void ts_checkpoint_destroy(ts_checkpoint **checkpoint) {
  ts_checkpoint *c = *checkpoint;
  if (c == NULL) {
    return;
  }
  for (int i = 0; c->part != NULL && i < c->n_parts; ++i) {
    for (int k = 0; c->part[i].state != NULL && k < c->part[i].n_states; ++k) {
      ts_free(c->part[i].state[k].name);
    }
    ts_free(c->part[i].name);
    ts_free(c->part[i].cuts);
    ts_free(c->part[i].state);
  }
  for (int i = 0; c->parameter != NULL && i < c->n_parameters; ++i) {
    ts_free(c->parameter[i].name);
    ts_free(c->parameter[i].piece);
  }
  for (int i = 0; c->fact != NULL && i < c->n_facts; ++i) {
    ts_free(c->fact[i].name);
    ts_free(c->fact[i].value);
  }
  ts_free(c->deck);
  ts_free(c->source);
  ts_free(c->part);
  ts_free(c->parameter);
  ts_free(c->fact);
  ts_free(c);
  *checkpoint = NULL;
}

char *ts_checkpoint_shard_name(int shard) {
  return ts_format("shard_%05d.h5", shard);
}

int64_t ts_checkpoint_bytes(const ts_checkpoint *c) {
  int64_t bytes = 0;
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      int64_t count = ts_saved_state_cut(&c->part[i], k, c->n_shards);
      bytes += count * (int64_t) ts_dtype_size(c->part[i].state[k].dtype) + 1024;
    }
  }
  return bytes + (int64_t) c->n_shards * 65536;
}

int64_t ts_saved_state_cut(const ts_saved_part *part, int state, int shard) {
  const ts_saved_state *s = &part->state[state];
  int64_t cut = part->cuts[shard];
  return s->own > 0 ? (cut > 0 ? s->own : 0) : s->block > 1 ? (cut + s->block - 1) / s->block : cut;
}

int ts_checkpoint_find(const ts_checkpoint *c, const char *name) {
  for (int i = 0; i < c->n_parameters; ++i) {
    if (strcmp(c->parameter[i].name, name) == 0) {
      return i;
    }
  }
  return -1;
}

int ts_checkpoint_find_part(const ts_checkpoint *c, const char *name) {
  for (int i = 0; i < c->n_parts; ++i) {
    if (strcmp(c->part[i].name, name) == 0) {
      return i;
    }
  }
  return -1;
}

int ts_checkpoint_find_state(const ts_saved_part *part, const char *name) {
  for (int i = 0; i < part->n_states; ++i) {
    if (strcmp(part->state[i].name, name) == 0) {
      return i;
    }
  }
  return -1;
}
