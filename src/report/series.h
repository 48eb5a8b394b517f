/** \file
 * The steps of a run, thinned: each point is what a piece of neighbouring steps came to, so that the size of a page is
 * bounded, however long the run.  Nothing here is collective.
 */
#ifndef TS_REPORT_SERIES_H
#define TS_REPORT_SERIES_H

#include "report/table.h"

/** X (NAME, json, text, timed): what is drawn over the steps.  Timed ones leave out steps that were observed. */
#define TS_SERIES(X)                                                     \
  X(LOSS, "loss", "loss (nats per token)", false)                        \
  X(LR, "lr", "learning rate", false)                                    \
  X(NORM, "norm", "gradient norm", false)                                \
  X(SCALE, "scale", "loss scale", false)                                 \
  X(SPEED, "speed", "tokens/s/device", true)                             \
  X(MFU, "mfu", "MFU (%)", true)                                         \
  X(STEP, "whole", "whole step (ms)", true)                              \
  X(DATA, "data", "data (ms)", true)                                     \
  X(FORWARD, "forward", "forward (ms)", true)                            \
  X(BACKWARD, "backward", "backward (ms)", true)                         \
  X(UPDATE, "update", "update (ms)", true)                               \
  X(REST, "rest", "rest (ms)", true)                                     \
  X(COMMUNICATION, "communication", "communication (% of a step)", true) \
  X(EXPOSED, "exposed", "exposed communication (% of a step)", true)     \
  X(MEMORY, "memory", "most memory so far (GB)", false)                  \
  X(SLOWEST, "slowest", "busy time of the slowest rank (ms)", true)

typedef enum ts_series_name {
#define X(name, json, text, timed) TS_SERIES_##name,
  TS_SERIES(X)
#undef X
      TS_N_SERIES
} ts_series_name;

typedef struct ts_series_row {
  const char *json, *text;
  bool timed;
} ts_series_row;

extern const ts_series_row ts_series_rows[TS_N_SERIES];

typedef struct ts_series {
  int64_t n;
  double *step, *tokens, *hours; /**< Owned; of the last step of each piece. */
  double *value[TS_N_SERIES];    /**< Owned; means of what is finite, of rates by time; NAN: nothing is. */
  double *smooth;                /**< Owned; running mean of the loss over a thirtieth of the run, centred. */
} ts_series;

/** At most \a points of a run. The caller's, end with ts_series_clear. Not collective. */
ts_series ts_series_make(const ts_report_run *run, const ts_report_units *units, int64_t points);
void ts_series_clear(ts_series *series);

/** Has it a finite value other than 0? Not collective. */
bool ts_series_has(const ts_series *series, ts_series_name name);

/** Tokens and hours at the end of a step, by the run's rows; NAN before the first. Not collective. */
void ts_series_place(const ts_report_run *run, double step, double *tokens, double *hours);

#endif
