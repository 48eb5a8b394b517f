/** \file
 * How much is said.
 */
#ifndef TS_BASE_LOG_LEVEL_H
#define TS_BASE_LOG_LEVEL_H

#include <stdbool.h>

typedef enum ts_log_level {
  TS_LOG_ERROR,   /**< The run cannot go on, or did not do what was asked.  Never in a clean run. */
  TS_LOG_WARNING, /**< It goes on, but the user should know. */
  TS_LOG_INFO,    /**< What a user wants to see of a healthy run. */
  TS_LOG_DEBUG    /**< For the developers: passes, buckets, plans. */
} ts_log_level;

/** Choose what is printed.  Where a program of its own does not, warnings are, by the first rank of each world.
 * Not collective.
 * \param [in] speaks  False on every rank that is not to print. */
void ts_log_configure(ts_log_level level, bool speaks);

#endif
