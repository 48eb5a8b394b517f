/* LAMB's ratios: norms of whole parameters and of their directions, of which every rank has a part. */
#include "pass/zero.h"

#include "base/memory.h"

#include <string.h>

static bool has_ratio(const ts_zero *z, const ts_zero_share *share) {
  return ts_optimizer_get(z->layout->part[share->part].optimizer)->granularity == TS_GRANULARITY_TENSOR;
}

/* The sums of squares of all parameters of a part, of what this rank owns of them: others count replicas. */
static ts_tid add_squares_of(ts_zero *z, ts_site at, const ts_zero_share *share, ts_tid x, const char *what) {
  const ts_part *part = &z->layout->part[share->part];
  int64_t begin = ts_part_begin(part), end = part->owned ? ts_part_end(part) : begin, last = 0;
  ts_range *own, *all = ts_calloc((size_t) part->n_parameters, sizeof *all);
  int n = ts_layout_ranges(z->layout, part, begin, end, &own);
  for (int i = 0, k = 0; i < part->n_parameters; ++i) {
    all[i].offset = last;
    if (k < n && own[k].ratio == i) {
      all[i] = own[k++];
      all[i].offset += begin - share->begin;
      last = all[i].offset + all[i].count;
    }
  }
  char *name = ts_format("%s.%s", part->name, what);
  ts_tid squares = ts_build_sum_squares_of_each(at, name, x, part->n_parameters, all);
  ts_free(name);
  ts_free(own);
  ts_free(all);
  return squares;
}

ts_tid ts_zero_trust_ratios(ts_zero *z, ts_site at, ts_zero_share *share, int n, ts_tid corrections) {
  const unsigned axes = TS_AXES_DENSE | TS_AXES(TS_AXIS_TP);
  const ts_deck_optimizer_params *params = &z->context->deck->optimizer.params;
  ts_tid *squares = ts_malloc((size_t) (2 * n + 1) * sizeof *squares);
  int64_t ratios = 0;
  int count = 0;
  for (int i = 0; i < n; ++i) {
    if (has_ratio(z, &share[i])) {
      share[i].first_ratio = ratios;
      ratios += z->layout->part[share[i].part].n_parameters;
      squares[count++] = add_squares_of(z, at, &share[i], ts_zero_bring(z, at, share[i].p), "squares.param");
    }
  }
  for (int i = 0; i < n; ++i) {
    if (has_ratio(z, &share[i])) {
      squares[count++] = add_squares_of(z, at, &share[i], share[i].g, "squares.step");
    }
  }
  ts_tid result = TS_NONE;
  if (count > 0) {
    ts_tid sums = ts_build_concat(at, "ratios.squares", 1, count, squares);
    int group = ts_mesh_group_size(z->context->mesh, axes);
    sums = group > 1 ? ts_build_all_reduce(at, "ratios.reduce", axes, group, sums) : sums;
    result = ts_build_trust_ratios(at, "ratios", sums, corrections, (float) params->min_coeff,
                                   (float) params->max_coeff, params->bias_correction);
  }
  ts_free(squares);
  return result;
}
