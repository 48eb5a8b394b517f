/** \file
 * Private to io: HDF5 for more than one thread, and files whose failures are known.  Nothing here is collective.
 *
 * HDF5 is not built thread-safe, and a run reads tokens while a thread of its own writes a checkpoint.  So every call
 * of the library lies between ts_hdf5_lock and ts_hdf5_unlock, held for one read or write of about a chunk at a time.
 *
 * A file that is written goes through a driver of our own (an HDF5 virtual file driver over pwrite): the first failure
 * is remembered with its errno and everything after it is thrown away while HDF5 is told that all is well.  HDF5 closes
 * a file after a failed write badly (open handles, messages at exit); this way it never sees one.
 */
#ifndef IO_HDF5_H
#define IO_HDF5_H

#include "base/dtype.h"
#include "base/status.h"

#include <hdf5.h>

/** Take and leave the process-wide lock; not recursive.  The first lock switches off HDF5's own error messages.  Not
 * collective. */
void ts_hdf5_lock(void);
void ts_hdf5_unlock(void);

/** The type in files of F32, BF16 (a float of 16 bits with 8 of exponent, which HDF5 and h5py convert), F16 or U8; to
 * be closed (H5Tclose).  The lock must be held.  Not collective. */
hid_t ts_hdf5_type(ts_dtype dtype);

/** Open a file for reading, without HDF5's lock on it: file systems of clusters often have none, and a checkpoint that
 * somebody looks at must not be refused.  The lock of this header must be held.  Not collective.  \return the file
 * (H5Fclose), or a negative number. */
hid_t ts_hdf5_open(const char *path);

/** Create \a path (an older file is replaced) for writing through the driver, in the newest file format of HDF5 1.10.
 * The lock must be held.  Not collective.  \return the file, or a negative number with the reason in \a err. */
hid_t ts_hdf5_create(const char *path, ts_error *err);

/** Properties to create a dataset with: no time in it, so that equal states are equal files.  Not collective.
 * \return to be closed by H5Pclose. */
hid_t ts_hdf5_dataset_properties(void);

/** Make the group /NAME unless it is there, likewise without times.  Not collective.
 * \return false when it cannot be made. */
bool ts_hdf5_make_group(hid_t file, const char *name);

/** Close a file of ts_hdf5_create, sync it to the disk, and tell whether everything was written.  Not collective.  The
 * lock must not be held: closing takes it, syncing does not.
 * \return TS_BAD_INPUT with "PATH: reason" (the first failure). */
ts_status ts_hdf5_finish(hid_t file, const char *path, ts_error *err);

/** For tests: how many files this process has asked ts_hdf5_open for.  The lock must not be held.  Not collective. */
int64_t ts_hdf5_test_opens(void);

/** For tests: let the \a nth write from now on (counted over all files of this process, from 1) and all later ones fail
 * with \a error_number; 0 switches it off.  Not collective. */
void ts_hdf5_set_test_failure(int64_t nth, int error_number);

#endif
