/* Checks of what a model computes in, and of what its gradients are. */
#include "deck/reader.h"

#include <math.h>

/* Flags of a type that is off. */
static void check_flags(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const struct {
    bool set;
    const char *type, *path;
  } rows[] = {{d->bf16.stochastic_rounding, "bf16", "bf16.stochastic_rounding"},
              {d->bf16.bf16_master_weights_and_grads, "bf16", "bf16.bf16_master_weights_and_grads"},
              {d->fp16.fp16_master_weights_and_grads, "fp16", "fp16.fp16_master_weights_and_grads"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    bool on = *rows[i].type == 'b' ? d->bf16.enabled != TS_SWITCH_OFF : d->fp16.enabled;
    if (rows[i].set && !on) {
      ts_reader_report(reader, TS_CHECK_FLAGS, rows[i].path,
                       "%s.enabled is false; accepted: %s.enabled = true with it, or neither", rows[i].type,
                       rows[i].type);
    }
  }
}

static void check_types(ts_reader *reader) {
  if (reader->deck->fp16.enabled && reader->deck->bf16.enabled == TS_SWITCH_ON) {
    ts_reader_report(reader, TS_CHECK_PRECISION, "fp16.enabled",
                     "bf16.enabled is true too, and a model computes in one type; accepted: one of the two (--set "
                     "fp16.enabled=false or --set bf16.enabled=false leaves the other one)");
  }
  const ts_deck *d = reader->deck;
  if (d->data_types.grad_accum_dtype == TS_F16 && d->torch_autocast.enabled) {
    ts_reader_report(reader, TS_CHECK_PRECISION, "data_types.grad_accum_dtype",
                     "fp16, and with torch_autocast parameters and their gradients are fp32; accepted: fp32 or bf16");
  } else if (d->data_types.grad_accum_dtype == TS_F16 && !d->fp16.enabled) {
    ts_reader_report(reader, TS_CHECK_PRECISION, "data_types.grad_accum_dtype",
                     "fp16 without a loss scale: small gradients would vanish; accepted: fp16.enabled = true with it, "
                     "or fp32 or bf16");
  }
  double initial = ldexp(1, (int) d->fp16.initial_scale_power);
  if (d->fp16.enabled && d->fp16.loss_scale == 0 && (double) d->fp16.min_loss_scale > initial) {
    ts_reader_report(reader, TS_CHECK_PRECISION, "fp16.min_loss_scale",
                     "%lld is above the scale that is begun with, 2 to fp16.initial_scale_power = %lld; accepted: at "
                     "most %.0f",
                     (long long) d->fp16.min_loss_scale, (long long) d->fp16.initial_scale_power, initial);
  }
}

/* Keys of a precision that is off, and of a scale that changes where it does not. */
static void note_precision(ts_reader *reader) {
  static const char *const dynamic[] = {"fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis",
                                        "fp16.consecutive_hysteresis", "fp16.min_loss_scale"};
  const ts_deck *d = reader->deck;
  const char *why = !d->fp16.enabled         ? "fp16.enabled is false"
                    : d->fp16.loss_scale > 0 ? "fp16.loss_scale is set"
                                             : NULL;
  if (!d->fp16.enabled) {
    ts_reader_note_idle(reader, "fp16.loss_scale", why);
  }
  for (size_t i = 0; i < sizeof dynamic / sizeof *dynamic && why != NULL; ++i) {
    ts_reader_note_idle(reader, dynamic[i], why);
  }
  if ((ts_deck_autocasts(d) ? ts_deck_products(d) : ts_deck_wire(d)) != TS_F16) {
    ts_reader_note_idle(reader, "prescale_gradients", "gradients do not travel in fp16");
    ts_reader_note_idle(reader, "gradient_predivide_factor", "gradients do not travel in fp16");
  } else if (d->prescale_gradients) {
    ts_reader_note_idle(reader, "gradient_predivide_factor", "prescale_gradients is true");
  }
  if (!d->fp16.enabled && !ts_deck_autocasts(d) && ts_deck_wire(d) == TS_F16) {
    ts_reader_note(reader,
                   "communication_data_type: \"fp16\" without a loss scale: gradients below 6e-8 vanish on the way");
  }
  if (d->bf16.enabled == TS_SWITCH_OFF) {
    ts_reader_note_idle(reader, "bf16.check_grad_overflow", "bf16.enabled is false");
  }
}

void ts_reader_check_precision(ts_reader *reader) {
  check_flags(reader);
  check_types(reader);
  note_precision(reader);
}
