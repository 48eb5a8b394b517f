/** \file
 * Locks on whole files, for one process among all that see the file system (fcntl).  Nothing here is collective.
 */
#ifndef IO_LOCK_H
#define IO_LOCK_H

/** Take the lock on an open file until it is closed, or the process ends.  Not collective.
 * \return 0, or -1 with errno: EACCES or EAGAIN, another process has it; else the file system has no locks. */
int ts_lock_take(int file);

/** Does this errno of ts_lock_take say that another process has the lock?  Not collective. */
int ts_lock_is_held(int error_number);

/** For tests: let every lock from now on fail with \a error_number; 0 switches it off.  Not collective. */
void ts_lock_set_test_failure(int error_number);

#endif
