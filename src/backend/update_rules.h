/** \file
 * The arithmetic of the optimizers of graph/optimizers.def, written once for processors and GPUs: C, and C++ in .cu
 * files.  Every product that is added to something is an explicit fused multiply-add, and all else (sums, products,
 * quotients, roots) is rounded as IEEE 754 says, so an element gets the same bits on every instruction set and GPU.
 *
 * A rule changes its states and returns the new p; g is the gradient before it is scaled.  Nothing here is collective.
 */
#ifndef TS_BACKEND_UPDATE_RULES_H
#define TS_BACKEND_UPDATE_RULES_H

#include "base/host_device.h"
#include "graph/graph.h"

#include <math.h>

#define TS_RULE_FUNCTION static inline TS_HOST_DEVICE __attribute__((always_inline))

/** What a step is for the elements of a range. */
typedef struct ts_update_constants {
  float scale;         /**< Of the gradient. */
  float shrink, decay; /**< lr wd p is taken off where the decay is decoupled, else wd p added to g; the other is 0. */
  float beta1, rest1;  /**< Of the first state, */
  float beta2, rest2;  /**< and of the second. */
  float rate, root;    /**< lr over the first correction, 1 / the root of the second. */
  float eps, inside;   /**< Beside a root, and beside what it is taken of. */
  float ahead, straight; /**< MOMENTUM: what is taken of m, and of g. */
  float start;           /**< ADAGRAD: what is added to s, at the first update. */
} ts_update_constants;

/** The values of a step that every range has, as they lie in the inputs. */
typedef struct ts_update_step {
  int64_t step;
  double corrections[2];
  float lr, betas[2], scale;
} ts_update_step;

/** The constants of a range.  In fp64, each rounded once; decay goes with lr, the step with lr times ratio.
 * Not collective. */
TS_RULE_FUNCTION ts_update_constants ts_update_constants_of(ts_optimizer rule, const ts_optimizer_numbers *n,
                                                            const ts_update_step *s, float weight_decay,
                                                            float lr_factor, float ratio) {
  double lr = (double) s->lr * (double) lr_factor, rate = lr * (double) ratio;
  ts_update_constants k;
  k.scale = s->scale;
  k.shrink = n->decoupled ? (float) (lr * (double) weight_decay) : 0.0f;
  k.decay = n->decoupled ? 0.0f : weight_decay;
  k.beta1 = s->betas[0];
  k.rest1 = (float) (1.0 - (double) s->betas[0]);
  k.beta2 = s->betas[1];
  k.rest2 = (float) (1.0 - (double) s->betas[1]);
  k.rate = (float) (n->bias_correction ? rate / s->corrections[0] : rate);
  k.root = n->bias_correction ? (float) (1.0 / sqrt(s->corrections[1])) : 1.0f;
  k.eps = n->eps_inside ? 0.0f : n->eps;
  k.inside = n->eps_inside ? n->eps : 0.0f;
  k.ahead = 1.0f;
  k.straight = 0.0f;
  k.start = 0.0f;
  if (rule == TS_OPTIMIZER_ADAGRAD) {
    k.rate = (float) (rate / fma((double) (s->step - 1), (double) n->lr_decay, 1.0));
    k.start = s->step == 1 ? n->initial : 0.0f;
  }
  if (rule == TS_OPTIMIZER_MOMENTUM) {
    k.beta1 = n->momentum;
    k.rest1 = s->step == 1 ? 1.0f : (float) (1.0 - (double) n->dampening);
    k.ahead = n->nesterov ? n->momentum : 1.0f;
    k.straight = n->nesterov ? 1.0f : 0.0f;
  }
  if (rule == TS_OPTIMIZER_BALANCE) {
    k.rate = n->rate;
    k.shrink = 0.0f;
    k.decay = 0.0f;
  }
  if (rule == TS_OPTIMIZER_MUON) {
    k.beta1 = n->momentum;
    k.rest1 = (float) (1.0 - (double) n->momentum);
  }
  return k;
}

/** p - rate u - lr wd p, added up before p is rounded: a decay of less than fp32 tells from 1 is not lost.
 * Not collective. */
TS_RULE_FUNCTION float ts_update_moved(float p, float u, const ts_update_constants *k) {
  return p - fmaf(k->shrink, p, k->rate * u);
}

/** A step of each: from p and g, with the states it has, to the new p, or to a direction. Not collective. */
TS_RULE_FUNCTION float ts_update_adamw(float p, float g, float *m, float *v, const ts_update_constants *k) {
  float d = fmaf(k->decay, p, g * k->scale);
  *m = fmaf(k->beta1, *m, k->rest1 * d);
  *v = fmaf(k->beta2, *v, k->rest2 * d * d);
  return ts_update_moved(p, *m / fmaf(sqrtf(*v), k->root, k->eps), k);
}

/** 1, -1 or 0. Not collective. */
TS_RULE_FUNCTION float ts_update_sign(float x) {
  return (x > 0.0f ? 1.0f : 0.0f) - (x < 0.0f ? 1.0f : 0.0f);
}

/** sign (0) = 0: what no token reached stays where it is. Not collective. */
TS_RULE_FUNCTION float ts_update_lion(float p, float g, float *m, float *unused, const ts_update_constants *k) {
  (void) unused;
  float d = fmaf(k->decay, p, g * k->scale), c = fmaf(k->beta1, *m, k->rest1 * d);
  *m = fmaf(k->beta2, *m, k->rest2 * d);
  return ts_update_moved(p, ts_update_sign(c), k);
}

/** Likewise; only whether g is above 0 or below counts, and so its scale does not. Not collective. */
TS_RULE_FUNCTION float ts_update_balance(float p, float g, float *unused, float *too, const ts_update_constants *k) {
  (void) unused;
  (void) too;
  return ts_update_moved(p, ts_update_sign(g), k);
}

/** Likewise. Not collective. */
TS_RULE_FUNCTION float ts_update_adagrad(float p, float g, float *s, float *unused, const ts_update_constants *k) {
  (void) unused;
  float d = fmaf(k->decay, p, g * k->scale);
  *s = fmaf(d, d, *s + k->start);
  return ts_update_moved(p, d / (sqrtf(*s) + k->eps), k);
}

/** Likewise. Not collective. */
TS_RULE_FUNCTION float ts_update_sgd(float p, float g, float *unused, float *too, const ts_update_constants *k) {
  (void) unused;
  (void) too;
  return ts_update_moved(p, fmaf(k->decay, p, g * k->scale), k);
}

/** Likewise. Not collective. */
TS_RULE_FUNCTION float ts_update_momentum(float p, float g, float *m, float *unused, const ts_update_constants *k) {
  (void) unused;
  float d = fmaf(k->decay, p, g * k->scale);
  *m = fmaf(k->beta1, *m, k->rest1 * d);
  return ts_update_moved(p, fmaf(k->ahead, *m, k->straight * d), k);
}

/** The direction. Not collective. */
TS_RULE_FUNCTION float ts_update_lamb(float p, float g, float *m, float *v, const ts_update_constants *k) {
  float d = g * k->scale;
  *m = fmaf(k->beta1, *m, k->rest1 * d);
  *v = fmaf(k->beta2, *v, k->rest2 * d * d);
  return fmaf(k->decay, p, *m / (sqrtf(*v + k->inside) + k->eps));
}

/** Likewise. Not collective. */
TS_RULE_FUNCTION float ts_update_muon(float p, float g, float *m, float *unused, const ts_update_constants *k) {
  (void) p;
  (void) unused;
  float d = g * k->scale;
  *m = fmaf(k->beta1, *m, k->rest1 * d);
  return fmaf(k->beta1, *m - d, d);
}

/** 1 - beta^step, the power by squaring: the same bits everywhere. Not collective. */
TS_RULE_FUNCTION double ts_update_correction(double beta, int64_t step) {
  double power = 1.0;
  for (; step > 0; step /= 2) {
    power = step % 2 == 1 ? power * beta : power;
    beta *= beta;
  }
  return 1.0 - power;
}

/* ---- of whole parameters ---- */

/** LAMB's ratio of a parameter, from its sum of squares and that of its direction, times \a correction.
 * Not collective. */
TS_RULE_FUNCTION float ts_update_trust_ratio(float p, float u, float least, float most, double correction) {
  double ratio = p > 0.0f && u > 0.0f ? sqrt((double) p / (double) u) : 1.0;
  ratio = p > 0.0f && u > 0.0f && ratio < (double) least ? (double) least : ratio;
  ratio = p > 0.0f && u > 0.0f && ratio > (double) most ? (double) most : ratio;
  return (float) (ratio * correction);
}

/** By what OVER_NORM multiplies. Not collective. */
TS_RULE_FUNCTION float ts_update_over_norm(double squares, float eps) {
  return (float) (1.0 / (sqrt(squares) + (double) eps));
}

/* ---- states in 8 bits ---- */

/** A step of a search: \a code, or so many above it where x is.  No loop, so that compilers make vectors of it.
 * Not collective. */
TS_RULE_FUNCTION int ts_update_code_above(int code, int step, float x, const float *map) {
  float middle = (map[code + step - 1] + map[code + step]) * 0.5f;
  return middle < x || (middle == x && step > 1) ? code + step : code; /* code + step is even where step is */
}

/** The code of \a x in [-1, 1]: that of the nearest value of \a map, between two the even one.  A negative number never
 * becomes 0, as in bitsandbytes; nor does a positive one of a map without signs: a root of it divides.
 * \param [in] map  256 ascending values (backend/dynamic_map.h). Not collective. */
TS_RULE_FUNCTION uint8_t ts_update_code(float x, const float *map, bool has_sign) {
  int code = ts_update_code_above(0, 128, x, map);
  code = ts_update_code_above(code, 64, x, map);
  code = ts_update_code_above(code, 32, x, map);
  code = ts_update_code_above(code, 16, x, map);
  code = ts_update_code_above(code, 8, x, map);
  code = ts_update_code_above(code, 4, x, map);
  code = ts_update_code_above(code, 2, x, map);
  code = ts_update_code_above(code, 1, x, map);
  if (has_sign) {
    return (uint8_t) (x < 0.0f && map[code] >= 0.0f ? code - 1 : code);
  }
  return (uint8_t) (x > 0.0f && code == 0 ? 1 : code);
}

#endif
