/** \file
 * Files that are made of another file once and found again by whoever needs them: NAME.KEY.h5, whose KEY is a hash of
 * all that its contents depend on.  One job makes it at a time, with a lock on NAME.KEY.h5.lock.  Nothing here is
 * collective: one process of a job asks.
 */
#ifndef IO_CACHE_H
#define IO_CACHE_H

#include "base/status.h"
#include "base/text.h"

/** The name of what is made of \a file: of \a how (all bytes count) and of the file its size, time of change and blocks
 * of 64 KiB, 16 of them spread evenly: whoever changes a file and keeps its size and time has changed it unseen.
 * Not collective.
 * \param [in]  directory  To lie in, made here; NULL or "": beside the file.
 * \param [out] path       The caller's (ts_free); NULL on error.
 * \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_cache_path(const char *file, const char *directory, const ts_text *how, char **path, ts_error *err);

/** Wait until no other job makes \a path; the lock is held then until ts_cache_unlock, and of what a dead job left,
 * PATH.*, nothing is there any more.  Where the file system has no locks, nobody waits and
 * nothing is removed: two jobs that make the same at once disturb each other.  Not collective.
 * \param [in] wait  Called every second of waiting, with true the first time.
 * \return TS_BAD_INPUT with "PATH: reason": the directory cannot be written. */
ts_status ts_cache_lock(const char *path, void (*wait)(void *user, bool first), void *user, int *lock, ts_error *err);

/** Let others go on; removes the lock's file.  -1 is allowed.  Not collective. */
void ts_cache_unlock(const char *path, int lock);

#endif
