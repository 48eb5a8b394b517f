/* Where the elements of parameters lie.  A piece is rows of elements that lie together, a pitch apart. */
#include "base/memory.h"
#include "io/checkpoint_format.h"

#include <stdlib.h>

static int64_t extent_product(const int64_t *d, int n) {
  int64_t count = 1;
  for (int i = 0; i < n; ++i) {
    count *= d[i];
  }
  return count;
}

/* Elements of one index along the dimension that is cut. */
static int64_t slice_of(const ts_saved_parameter *p) {
  return extent_product(p->shape + p->dim + 1, p->n_dims - p->dim - 1);
}

int64_t ts_saved_rows(const ts_saved_parameter *p) {
  return extent_product(p->shape, p->dim);
}

int64_t ts_saved_row(const ts_saved_parameter *p, const ts_saved_piece *piece) {
  return piece->length * slice_of(p);
}

void ts_saved_parameter_set_whole(ts_saved_parameter *p, int part, int64_t offset) {
  p->dim = 0;
  p->n_pieces = 1;
  p->piece = ts_malloc(sizeof *p->piece);
  *p->piece = (ts_saved_piece){.part = part, .offset = offset, .pitch = p->count, .rows = 1, .length = p->shape[0]};
}

const ts_saved_part *ts_checkpoint_part(const ts_checkpoint *c, const ts_saved_parameter *p) {
  return &c->part[p->piece[0].part];
}

/* ---- runs ---- */

/* All its elements lie together in their order. */
static bool is_whole_piece(const ts_saved_parameter *p) {
  return p->n_pieces == 1 && (p->piece[0].pitch == ts_saved_row(p, p->piece) || ts_saved_rows(p) == 1);
}

/* Does it begin at this row and index along the dimension that is cut, or before? */
static bool begins_before(const ts_saved_piece *piece, int64_t row, int64_t index) {
  return piece->first_row + piece->rows <= row || (piece->first_row <= row && piece->begin <= index);
}

/* The piece that has these. */
static const ts_saved_piece *piece_at(const ts_saved_parameter *p, int64_t row, int64_t index) {
  int low = 0, high = p->n_pieces; /* low begins before, high does not */
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    if (begins_before(&p->piece[middle], row, index)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return &p->piece[low];
}

ts_checkpoint_run ts_checkpoint_run_at(const ts_saved_parameter *p, int64_t first, int64_t count) {
  TS_ASSERT(first >= 0 && count >= 1 && count <= p->count - first);
  int64_t slice = slice_of(p), whole_row = p->shape[p->dim] * slice;
  int64_t row = first / whole_row, index = first % whole_row / slice;
  const ts_saved_piece *piece = piece_at(p, row, index);
  int64_t at = first % whole_row - piece->begin * slice, rest = ts_saved_row(p, piece) - at;
  return (ts_checkpoint_run){.part = piece->part,
                             .first = piece->offset + (row - piece->first_row) * piece->pitch + at,
                             .count = count <= rest || is_whole_piece(p) ? count : rest};
}

bool ts_saved_parameter_is_covered(const ts_saved_parameter *p) {
  int64_t row = 0, rows = 0, end = 0; /* of the pieces of some rows: their first, their number, what is covered */
  for (int i = 0; i < p->n_pieces; ++i) {
    const ts_saved_piece *piece = &p->piece[i];
    if (end == 0 || end == p->shape[p->dim]) { /* others come */
      row += rows;
      rows = piece->rows;
      end = 0;
    }
    if (piece->first_row != row || piece->rows != rows || piece->begin != end) {
      return false;
    }
    end += piece->length;
  }
  return row + rows == ts_saved_rows(p) && end == p->shape[p->dim];
}

int ts_checkpoint_shard_of(const ts_checkpoint *c, const ts_saved_part *part, int state, int64_t at) {
  int low = 0, high = c->n_shards; /* cuts[low] <= at < cuts[high] */
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    if (ts_saved_state_cut(part, state, middle) <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* ---- all pieces beside each other ---- */

bool ts_saved_state_is_plain(const ts_saved_state *state) {
  return state->block <= 1 && state->own == 0;
}

static bool is_in_order(const ts_checkpoint *c) {
  for (int i = 0; i < c->n_parts; ++i) {
    for (int k = 0; k < c->part[i].n_states; ++k) {
      if (!ts_saved_state_is_plain(&c->part[i].state[k])) {
        return false;
      }
    }
  }
  for (int i = 0; i < c->n_parameters; ++i) {
    const ts_saved_parameter *p = &c->parameter[i];
    const ts_saved_piece *piece = p->piece, *before = i > 0 ? p[-1].piece : piece;
    if (!is_whole_piece(p) || piece->part < before->part ||
        (piece->part == before->part && piece->offset < before->offset)) {
      return false;
    }
  }
  return true;
}

int ts_checkpoint_version(const ts_checkpoint *c) {
  bool all_rows = true;
  for (int i = 0; i < c->n_parameters; ++i) {
    all_rows = all_rows && c->parameter[i].piece[0].rows == ts_saved_rows(&c->parameter[i]);
  }
  return is_in_order(c) ? 1 : all_rows ? 2 : 3;
}

typedef struct place {
  int part;
  int64_t first, row, pitch, rows;
} place;

static int compare_piece_places(const void *x, const void *y) {
  const place *a = x, *b = y;
  return a->part != b->part ? (a->part > b->part) - (a->part < b->part) : (a->first > b->first) - (a->first < b->first);
}

/* Numbers from a file: nothing may overflow. */
static bool is_inside_part(const place *p, int64_t count) {
  return p->first >= 0 && p->row <= count && p->first <= count - p->row && p->pitch >= p->row &&
         (p->rows == 1 || p->pitch <= (count - p->row - p->first) / (p->rows - 1));
}

/* \a next is right behind \a last in the order of first elements, which is of the block of rows that \a block began. */
static bool is_behind(const place *last, const place *next) {
  return next->part != last->part || next->first >= last->first + (last->rows - 1) * last->pitch + last->row;
}

static bool is_between(const place *block, const place *last, const place *next) {
  return next->rows == block->rows && next->pitch == block->pitch && next->first >= last->first + last->row &&
         next->first + next->row <= block->first + block->pitch;
}

static bool have_room(place *p, int n) {
  qsort(p, (size_t) n, sizeof *p, compare_piece_places);
  for (int i = 1, block = 0; i < n; ++i) {
    if (is_behind(&p[i - 1], &p[i])) {
      block = i;
    } else if (!is_between(&p[block], &p[i - 1], &p[i])) {
      return false;
    }
  }
  return true;
}

bool ts_checkpoint_has_room(const ts_checkpoint *c) {
  place *list = NULL;
  int n = 0, capacity = 0;
  bool ok = true;
  for (int i = 0; ok && i < c->n_parameters; ++i) {
    const ts_saved_parameter *p = &c->parameter[i];
    for (int k = 0; ok && k < p->n_pieces; ++k) {
      const ts_saved_piece *piece = &p->piece[k];
      TS_GROW(list, n, capacity);
      list[n] = (place){.part = piece->part,
                        .first = piece->offset,
                        .row = ts_saved_row(p, piece),
                        .pitch = piece->pitch,
                        .rows = piece->rows};
      ok = is_inside_part(&list[n++], c->part[piece->part].count);
    }
  }
  ok = ok && have_room(list, n);
  ts_free(list);
  return ok;
}
