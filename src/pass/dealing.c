#include "pass/dealing.h"

#include "base/memory.h"
#include "base/status.h"

typedef struct index_class {
  int parent;     /* itself for a root */
  int64_t factor; /* units of this class in one of the parent's */
  int64_t units;
  int64_t grain; /* of a root: units that are dealt at a time */
  int64_t parts; /* of a root: of a unit, 1 for none */
  bool parted;   /* its units are the parts of a unit further up */
} index_class;

struct ts_dealing {
  index_class *index;
  int n, capacity;
  int ranks;
};

ts_dealing *ts_dealing_create(int ranks) {
  ts_dealing *d = ts_calloc(1, sizeof *d);
  d->ranks = ranks;
  return d;
}

void ts_dealing_destroy(ts_dealing **dealing) {
  if (*dealing != NULL) {
    ts_free((*dealing)->index);
    ts_free(*dealing);
    *dealing = NULL;
  }
}

int ts_dealing_add(ts_dealing *d, int64_t units, int64_t grain) {
  TS_ASSERT(units > 0 && grain > 0);
  TS_GROW(d->index, d->n, d->capacity);
  d->index[d->n] = (index_class){.parent = d->n, .factor = 1, .units = units, .grain = grain, .parts = 1};
  return d->n++;
}

/* ---- classes ---- */

/* Elements of the run in a unit of its root. */
static int find_root(const ts_dealing *d, ts_run_of run, int64_t *elements) {
  int c = run.index;
  *elements = run.size;
  for (; d->index[c].parent != c; c = d->index[c].parent) {
    *elements *= d->index[c].factor;
  }
  return c;
}

static index_class *root_of(const ts_dealing *d, ts_run_of run, int64_t *elements) {
  return &d->index[find_root(d, run, elements)];
}

/* On the way to its root there is a class whose units are the parts of the root's. */
bool ts_dealing_has_parts(const ts_dealing *d, ts_run_of run) {
  int64_t elements;
  const index_class *root = root_of(d, run, &elements);
  int64_t factor = 1;
  bool parted = false;
  for (int c = run.index; d->index[c].parent != c; c = d->index[c].parent) {
    factor = parted || d->index[c].parted ? factor * d->index[c].factor : 1;
    parted = parted || d->index[c].parted;
  }
  return root->parts > 1 && parted && factor == root->parts;
}

/* A root of fewer units, \a factor of the old one's each. */
static bool coarsen_root(ts_dealing *d, int root, int64_t factor) {
  if (factor == 1) {
    return true;
  }
  index_class old = d->index[root];
  if (old.units % factor != 0) {
    return false;
  }
  int above = ts_dealing_add(d, old.units / factor, (old.grain + factor - 1) / factor);
  d->index[root].parent = above;
  d->index[root].factor = factor;
  return true;
}

/* Parts stay. */
static bool coarsen(ts_dealing *d, ts_run_of run, int64_t size) {
  int64_t elements;
  int root = find_root(d, run, &elements);
  return coarsen_root(d, root, size / ts_common_divisor(elements, size));
}

bool ts_dealing_coarsen(ts_dealing *d, ts_run_of run, int64_t size) {
  int64_t elements;
  index_class *root = root_of(d, run, &elements);
  root->parts = ts_dealing_has_parts(d, run) && elements / root->parts % size != 0 ? 1 : root->parts;
  return coarsen(d, run, size);
}

bool ts_dealing_unite(ts_dealing *d, ts_run_of a, int64_t a_size, ts_run_of b, int64_t b_size) {
  if (!coarsen(d, a, a_size) || !coarsen(d, b, b_size)) {
    return false;
  }
  int64_t of_a, of_b;
  int root_a = find_root(d, a, &of_a), root_b = find_root(d, b, &of_b);
  of_a /= a_size;
  of_b /= b_size;
  if (root_a == root_b || of_a * d->index[root_a].units != of_b * d->index[root_b].units) {
    return root_a == root_b && of_a == of_b;
  }
  int64_t together = of_a / ts_common_divisor(of_a, of_b) * of_b;
  if (!coarsen_root(d, root_a, together / of_a) || !coarsen_root(d, root_b, together / of_b)) {
    return false;
  }
  root_a = find_root(d, a, &of_a);
  root_b = find_root(d, b, &of_b);
  index_class *to = &d->index[root_a], *from = &d->index[root_b];
  to->parts = to->parts > from->parts ? to->parts : from->parts;
  to->grain = to->grain > from->grain ? to->grain : from->grain;
  from->parent = root_a;
  from->factor = 1;
  return true;
}

bool ts_dealing_part(ts_dealing *d, ts_run_of run, int64_t size, int64_t parts) {
  int64_t elements;
  if (parts == 1 || ts_dealing_has_parts(d, run) || !coarsen(d, run, size / parts)) {
    return parts == 1 || ts_dealing_has_parts(d, run);
  }
  int part = find_root(d, run, &elements);
  if (elements != size / parts || !coarsen_root(d, part, parts)) {
    return false;
  }
  d->index[part].parted = true;
  root_of(d, run, &elements)->parts = parts;
  return true;
}

void ts_dealing_drop_grain(ts_dealing *d, ts_run_of run) {
  int64_t elements;
  root_of(d, run, &elements)->grain = 1;
}

void ts_dealing_forbid_parts(ts_dealing *d, ts_run_of run) {
  int64_t elements;
  root_of(d, run, &elements)->parts = 1;
}

ts_run_of ts_dealing_scale(const ts_dealing *d, ts_run_of run, int64_t size, int64_t of) {
  if (size == of) {
    return run;
  }
  int64_t elements;
  find_root(d, run, &elements);
  /* in the class whose units fit into both, so that parts stay known */
  int c = run.index;
  for (int64_t e = run.size; e % size != 0; e *= d->index[c].factor, c = d->index[c].parent) {
    TS_ASSERT(d->index[c].parent != c);
    run = (ts_run_of){d->index[c].parent, e * d->index[c].factor};
  }
  return (ts_run_of){run.index, run.size / size * of};
}

/* ---- dealing ---- */

int64_t ts_run_extent(const ts_dealing *d, ts_run_of run) {
  return d->index[run.index].units * run.size;
}

bool ts_dealing_reaches(const ts_dealing *d, ts_run_of run) {
  int64_t elements;
  const index_class *root = root_of(d, run, &elements);
  return root->units >= d->ranks || root->parts >= (d->ranks + root->units - 1) / root->units;
}

bool ts_dealing_is_parted(const ts_dealing *d, ts_run_of run) {
  int64_t elements;
  return root_of(d, run, &elements)->units < d->ranks && ts_dealing_has_parts(d, run);
}

bool ts_dealing_is_shared(const ts_dealing *d, ts_run_of run) {
  int64_t elements;
  return root_of(d, run, &elements)->units < d->ranks && !ts_dealing_has_parts(d, run);
}

bool ts_dealt_is_shared(const ts_dealing *d, const ts_dealt *dealt) {
  bool shared = false;
  for (int i = 0; i < dealt->n; ++i) {
    shared = shared || ts_dealing_is_shared(d, dealt->run[i]);
  }
  return shared;
}

/* Units of a root. */
static ts_interval deal_units(const index_class *root, int ranks, int rank) {
  int64_t blocks = (root->units + root->grain - 1) / root->grain, grain = root->grain;
  if (blocks < ranks) {
    blocks = root->units;
    grain = 1;
  }
  ts_interval of = ts_deal(blocks, ranks, rank);
  int64_t end = (of.begin + of.length) * grain;
  end = end < root->units ? end : root->units;
  return (ts_interval){of.begin * grain, end - of.begin * grain};
}

int64_t ts_dealing_together(const ts_dealing *d, ts_run_of run) {
  int64_t elements;
  const index_class *root = root_of(d, run, &elements);
  return ts_dealing_has_parts(d, run) ? elements / root->parts : elements;
}

ts_interval ts_dealing_units_of_rank(const ts_dealing *d, ts_run_of run, int rank) {
  int64_t elements;
  const index_class *root = root_of(d, run, &elements);
  ts_interval units = {ts_dealt_to(d->ranks, root->units, rank), 1};
  units = root->units >= d->ranks ? deal_units(root, d->ranks, rank) : units;
  return (ts_interval){units.begin * elements, units.length * elements};
}

ts_interval ts_dealing_of_rank(const ts_dealing *d, ts_run_of run, int rank) {
  int64_t elements;
  const index_class *root = root_of(d, run, &elements);
  if (!ts_dealing_is_parted(d, run)) {
    return ts_dealing_units_of_rank(d, run, rank);
  }
  int64_t unit = ts_dealt_to(d->ranks, root->units, rank);
  ts_interval sharers = ts_deal(d->ranks, root->units, unit);
  ts_interval parts = ts_deal(root->parts, sharers.length, rank - sharers.begin);
  int64_t size = elements / root->parts;
  return (ts_interval){unit * elements + parts.begin * size, parts.length * size};
}

int ts_dealt_of_rank(const ts_dealing *d, const ts_dealt *dealt, bool whole, int rank, ts_interval *out) {
  int n = 0;
  int64_t at = 0;
  for (int i = 0; i < dealt->n; ++i) {
    ts_interval of = (whole ? ts_dealing_units_of_rank : ts_dealing_of_rank)(d, dealt->run[i], rank);
    if (of.length > 0) {
      out[n++] = (ts_interval){at + of.begin, of.length};
    }
    at += ts_run_extent(d, dealt->run[i]);
  }
  return n;
}

ts_share ts_dealing_share(const ts_dealing *d, ts_run_of run, int64_t size, int64_t parts, int rank) {
  ts_interval of = ts_dealing_of_rank(d, run, rank);
  int64_t units = of.length / size;
  return (ts_share){.units = units > 0 ? units : 1,
                    .first = of.begin / size,
                    .parts = of.length * parts / size,
                    .first_part = of.begin * parts / size};
}
