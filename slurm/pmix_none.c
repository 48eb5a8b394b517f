/* Built without PMIx: there is never a server. */
#include "slurm/pmix.h"

bool ts_pmix_open(ts_launch *launch) {
  (void) launch;
  return false;
}

bool ts_pmix_built(void) {
  return false;
}

char *ts_pmix_mapping(void) {
  return NULL;
}

void ts_pmix_abort(int exit_code, const char *reason) {
  (void) exit_code;
  (void) reason;
}

void ts_pmix_close(void) {
}

const ts_pmi1_store ts_pmix_store = {0};
