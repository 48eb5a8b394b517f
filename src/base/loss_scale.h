/** \file
 * Loss scaling: gradients in fp16 that would be zero are kept by multiplying the loss; those that are infinite then
 * tell that the factor was too large.  What is known of it from step to step, and how it changes; written once, for
 * processors and GPUs.  Factors are powers of two, so scaling changes no bit of what fp16 can hold.
 *
 *   DYNAMIC   DynamicLossScaler of DeepSpeed 0.19.8, runtime/fp16/loss_scaler.py
 *   TORCH     torch.amp.GradScaler, that of autocast
 *   STATIC    the same scale always
 *
 * Nothing here is collective.
 */
#ifndef TS_BASE_LOSS_SCALE_H
#define TS_BASE_LOSS_SCALE_H

#include "base/host_device.h"
#include <math.h>

#include <stdbool.h>
#include <stdint.h>

typedef enum ts_loss_scale_rule {
  TS_LOSS_SCALE_NONE, /**< There is no scale: it is 1. */
  TS_LOSS_SCALE_STATIC,
  TS_LOSS_SCALE_DYNAMIC,
  TS_LOSS_SCALE_TORCH
} ts_loss_scale_rule;

typedef struct ts_loss_scaler {
  ts_loss_scale_rule rule;
  double initial;
  double minimum;     /**< DYNAMIC: an overflow at this scale ends the run.  TORCH: those at or below it count as steps
                         that are not finite, as there is no minimum. */
  int64_t window;     /**< Steps without an overflow after which the scale doubles. */
  int64_t hysteresis; /**< DYNAMIC: the scale halves at this overflow, counted since it doubled. */
  bool consecutive;   /**< DYNAMIC: counted anew after each step without one. */
} ts_loss_scaler;

/** What lives from step to step, fp64. */
enum {
  TS_LOSS_SCALE,            /**< Of the next step. */
  TS_LOSS_SCALE_GOOD_STEPS, /**< Since the last overflow, or the first step. */
  TS_LOSS_SCALE_HYSTERESIS, /**< That is left: at 1 the next overflow halves the scale. */
  TS_LOSS_SCALE_SIZE
};

/** GradScaler's defaults. Not collective. */
static inline ts_loss_scaler ts_loss_scaler_torch(void) {
  ts_loss_scaler s = {TS_LOSS_SCALE_TORCH, 65536, 1, 2000, 1, false};
  return s;
}

/** The state before the first step. Not collective. */
static inline void ts_loss_scale_begin(const ts_loss_scaler *s, double state[TS_LOSS_SCALE_SIZE]) {
  state[TS_LOSS_SCALE] = s->initial;
  state[TS_LOSS_SCALE_GOOD_STEPS] = 0;
  state[TS_LOSS_SCALE_HYSTERESIS] = (double) s->hysteresis;
}

/** Does an overflow at this scale only say that the scale is still too large? Not collective. */
static inline bool ts_loss_scale_is_searching(const ts_loss_scaler *s, double scale) {
  return s->rule == TS_LOSS_SCALE_DYNAMIC || (s->rule == TS_LOSS_SCALE_TORCH && scale > s->minimum);
}

/** Does an overflow in this state make the scale smaller? Not collective. */
static inline TS_HOST_DEVICE bool ts_loss_scale_is_halved(const ts_loss_scaler *s,
                                                          const double state[TS_LOSS_SCALE_SIZE]) {
  return s->rule == TS_LOSS_SCALE_TORCH || (s->rule == TS_LOSS_SCALE_DYNAMIC && state[TS_LOSS_SCALE_HYSTERESIS] <= 1);
}

/** The next smaller scale.  GradScaler's is fp32 and ends at zero; here it ends at the last number before. Not
 * collective. */
static inline TS_HOST_DEVICE double ts_loss_scale_half(const ts_loss_scaler *s, double scale) {
  double least = s->rule == TS_LOSS_SCALE_TORCH ? 0x1p-149 : s->minimum;
  return fmax(scale / 2, least);
}

/** Does a good step in this state double the scale?  DeepSpeed looks at the steps before this one, GradScaler counts
 * this one too. Not collective. */
static inline TS_HOST_DEVICE bool ts_loss_scale_is_doubled(const ts_loss_scaler *s,
                                                           const double state[TS_LOSS_SCALE_SIZE]) {
  int64_t good = (int64_t) state[TS_LOSS_SCALE_GOOD_STEPS] + (s->rule == TS_LOSS_SCALE_TORCH);
  bool finite = s->rule != TS_LOSS_SCALE_TORCH || state[TS_LOSS_SCALE] < 0x1p127;
  return s->rule != TS_LOSS_SCALE_STATIC && good > 0 && good % s->window == 0 && finite;
}

/** A step is done.
 * \param [in] overflow  Its gradient was not finite.
 * \return true when the scale is too large and at its minimum; the state is then left as it was. Not collective. */
static inline TS_HOST_DEVICE bool ts_loss_scale_update(const ts_loss_scaler *s, double state[TS_LOSS_SCALE_SIZE],
                                                       bool overflow) {
  bool halved = overflow && ts_loss_scale_is_halved(s, state),
       doubled = !overflow && ts_loss_scale_is_doubled(s, state);
  if (halved && s->rule == TS_LOSS_SCALE_DYNAMIC && state[TS_LOSS_SCALE] == s->minimum) {
    return true;
  }
  if (halved) {
    state[TS_LOSS_SCALE] = ts_loss_scale_half(s, state[TS_LOSS_SCALE]);
  } else if (overflow && s->rule == TS_LOSS_SCALE_DYNAMIC) {
    state[TS_LOSS_SCALE_HYSTERESIS] -= 1;
  }
  if (doubled) {
    state[TS_LOSS_SCALE] *= 2;
  }
  if (doubled || (!overflow && s->consecutive)) {
    state[TS_LOSS_SCALE_HYSTERESIS] = (double) s->hysteresis;
  }
  state[TS_LOSS_SCALE_GOOD_STEPS] = overflow ? 0 : state[TS_LOSS_SCALE_GOOD_STEPS] + 1;
  return false;
}

#endif
