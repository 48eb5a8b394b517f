/** \file
 * GPUs of which nobody has measured one, by what their makers say: for plans before there is a machine to measure.
 * What real kernels and messages reach of these peaks is a range, and whatever is planned by it is one, too.  None of
 * these functions is collective.
 */
#ifndef TS_RUN_DATASHEET_H
#define TS_RUN_DATASHEET_H

#include "base/text.h"
#include "run/machine.h"

/** A GPU and the nodes that it is sold in. */
typedef struct ts_datasheet {
  const char *name;           /**< "h100", as the command line has it. */
  const char *device;         /**< As its maker calls it. */
  double product[TS_N_RATED]; /**< FLOP/s of dense products: in fp32 without TF32, in bf16. */
  double memory_rate;         /**< Bytes/s. */
  double link[TS_N_LINKS];    /**< Bytes/s of a GPU in one direction: to others of its node, to other nodes. */
  double host_rate;           /**< Bytes/s of the host's memory, a GPU's share. */
  int64_t memory;             /**< Bytes. */
  int node;                   /**< GPUs of a node. */
} ts_datasheet;

/** The end of a range. */
typedef enum ts_end { TS_END_FAST, TS_END_SLOW, TS_N_ENDS } ts_end;

/** The row of a name; NULL for none. Not collective. */
const ts_datasheet *ts_datasheet_find(const char *name);

/** Append the names there are: "a100, h100". Not collective. */
void ts_datasheet_list(ts_text *to);

/** A machine of such GPUs, without a sample: all is at the floor that parts of the peaks are.
 * \param [out] machine  The caller's (ts_machine_clear). Not collective. */
void ts_datasheet_machine(const ts_datasheet *sheet, ts_end end, ts_machine *machine);

#endif
