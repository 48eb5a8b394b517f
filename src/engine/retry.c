#include "engine/retry.h"

#include <math.h>

void ts_retry_failed(ts_retry *r, double now) {
  r->first = r->n++ == 0 ? now : r->first;
  r->last = now;
}

void ts_retry_succeeded(ts_retry *r) {
  r->n = 0;
}

ts_retry_answer ts_retry_ask(const ts_retry *r, double now, double end) {
  double limit = fmin(r->timeout > 0 ? r->first + r->timeout : INFINITY, end);
  if (r->n > 0 && now >= limit) {
    return TS_RETRY_LAST;
  }
  return r->n > 0 && now >= r->last + r->every ? TS_RETRY_AGAIN : TS_RETRY_NO;
}
