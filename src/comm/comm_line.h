/** \file
 * What lines of messages of every kind begin with.  Private to this room.
 */
#ifndef TS_COMM_LINE_H
#define TS_COMM_LINE_H

#include "comm/comm_mpi.h"

typedef struct ts_message_line_ops {
  void (*announce)(ts_message_line *line);
  void (*start)(ts_message_line *line);
  bool (*poll)(ts_message_line *line); /**< Of one that is under way: is it complete? */
  void (*wait)(ts_message_line *line); /**< Of one that is under way. */
  void (*destroy)(ts_message_line *line);
} ts_message_line_ops;

struct ts_message_line {
  const ts_message_line_ops *ops;
  bool sends, open;
};

enum { TS_FIRST_LINE_TAG = 16 /**< Of MPI, plus a line's number; lower ones are the collectives'. */ };

#endif
