/** \file
 * Event files as TensorBoard reads them: curves of numbers over steps, in
 * DIRECTORY/events.out.tfevents.SECONDS.HOST.PID.0.
 *
 *   file    = record ...           the first one: the version of what follows, "brain.Event:2"
 *   record  = bytes of event : 8, masked CRC-32C of these 8 : 4, event, masked CRC-32C of event : 4, little-endian
 *   event   = protobuf: 1 wall time (double), 2 step (varint), 3 version (string), 5 summary, 7 session
 *   summary = 1 value ...,  value = 1 tag (string), 2 number (float);  session = 1 status (1: start)
 *   masked  = the checksum's bits turned right by 15, plus 0xa282ead8
 *
 * A record is written whole, so a process that dies leaves whole records; on a full disk they wait, and records may be
 * held for a while (io/rows.h).
 * TensorBoard reads the files of a directory in the order of their names: a file that is begun later comes last, also
 * where clocks differ.  Nothing here is collective: one rank writes.
 */
#ifndef IO_EVENTS_H
#define IO_EVENTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ts_events ts_events;

/** Has the directory an event file, whoever wrote it?  Not collective. */
bool ts_events_are_in(const char *directory);

/** Begin a file in an existing directory.  Not collective.
 * \param [in] from  The first step to come, not negative.  What earlier files of the directory have from it on is given
 *                   up: a session starts at it, and readers drop what is behind the start of every session but a run's
 *                   first.  So the first file of a run has a session, too.
 * \param [in] hold  Seconds that records may be held (ts_rows_hold); 0: none.
 * \param [out] out  The caller's, end with ts_events_close; NULL on error.
 * \return TS_BAD_INPUT with "PATH: reason" when the file cannot be written. */
ts_status ts_events_open(const char *directory, int64_t from, double hold, ts_events **out, ts_error *err);

/** Put a number into the event that is next written, as a float: what is larger becomes infinite.  Not collective.
 * \param [in] tag  The curve's name: any bytes but 0; readers want UTF-8. */
void ts_events_scalar(ts_events *events, const char *tag, double value);

/** Write the event, of now, which may be held, and begin the next one; one without numbers is not written.
 * Not collective.
 * \param [in] step  Not negative. */
void ts_events_write(ts_events *events, int64_t step);

/** Write the records that are held, and try again those that wait.  Not collective. */
void ts_events_flush(ts_events *events);

/** Close and free; NULL handles are allowed; sets the handle to NULL.  Not collective. */
void ts_events_close(ts_events **events);

#endif
