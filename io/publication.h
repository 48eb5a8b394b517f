/** \file
 * Directories of a run that appear complete or not at all: the part of a checkpoint that is not HDF5.
 *
 *     RUN/step_00000200.tmp/   being written, or left by a run that died; never read, removed by the next save
 *     RUN/step_00000200/       published: every file synced, listed in `manifest`, then the directory renamed
 *     RUN/TAG/                 likewise, under a name that a program chose (engine/checkpoints.h)
 *     RUN/latest               two lines: the name of the directory published last, and the hash of its manifest
 *     RUN/step_00000400.aside/ of a future that was given up: the run was resumed from an earlier step
 *
 * A save is this sequence of states; a crash between any two leaves what was published before as it was:
 *
 *     begin ──> files ──> manifest ──> publish ──> latest ──> prune
 *     (.tmp)   (synced)  (synced)    (rename, sync RUN)  (replaced)  (rename to .tmp, remove)
 *
 * `manifest` is text: "tessera checkpoint VERSION", "step N", a line "file NAME BYTES HASH" per file, names ascending,
 * and last "end FILES HASH" with the hash of all bytes before that line.  Hashes are XXH3 of 128 bits (libxxhash), 32
 * hex digits.  Only these exact bytes are accepted.  A reader that finds a larger VERSION says that a newer version
 * wrote it; the first and the last line stay as they are in every version.
 *
 * Nothing here is collective: the caller agrees with the other ranks.  Messages begin with the path.
 */
#ifndef IO_PUBLICATION_H
#define IO_PUBLICATION_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/** In a checkpoint: bytes that a program gave along, as they are (engine/checkpoints.h). */
#define TS_CLIENT_FILE "client_state"

/** Size and hash of a file. */
typedef struct ts_file_sum {
  char name[32]; /**< In the directory: a plain file name. */
  int64_t bytes;
  uint64_t hash[2]; /**< XXH3-128, high word first. */
} ts_file_sum;

typedef struct ts_manifest {
  int64_t step;
  int n;
  ts_file_sum *file; /**< Owned; names ascend. */
  uint64_t hash[2];  /**< Of the whole manifest file: what `latest` has. */
} ts_manifest;

#define TS_LONGEST_TAG 128

/** Can a checkpoint be called so?  1 to TS_LONGEST_TAG letters, digits, ".", "_" or "-", of which the first is no "."
 * and no "-"; not "latest", nor what ends in ".tmp" or ".aside".  Not collective.
 * \return TS_BAD_INPUT with that rule. */
ts_status ts_tag_check(const char *tag, ts_error *err);

/** "step_00000200"; owned by the caller (ts_free).  Not collective. */
char *ts_step_tag(int64_t step);

/** "RUN/TAG", and the same for the tag of a step, with suffix "", ".tmp" or ".aside"; owned by the caller (ts_free).
 * Not collective. */
char *ts_tag_directory(const char *run, const char *tag, const char *suffix);
char *ts_step_directory(const char *run, int64_t step, const char *suffix);

/** Sum of DIRECTORY/NAME.  Reads the whole file.  Not collective.  \return TS_BAD_INPUT: missing or unreadable. */
ts_status ts_file_sum_make(const char *directory, const char *name, ts_file_sum *sum, ts_error *err);

/* ---- one job at a time ---- */

/** A directory has it once a run has begun to write there; it stays. */
#define TS_RUN_LOCK ".lock"

/** Take RUN for this process until ts_run_unlock or its end: a lock on RUN/.lock (fcntl).  The file stays; its one line
 * is of whoever took RUN last: "job 12 restart 1 host node0 pid 4711", without Slurm "host node0 pid 4711".  Where the
 * file system has no locks, nobody is refused, and a warning says so.  Not collective: one rank of a job does it.
 * \param [out] lock  For ts_run_unlock; -1 on error.
 * \return TS_BAD_INPUT: another job holds it (that line), or it cannot be made. */
ts_status ts_run_lock(const char *run, int *lock, ts_error *err);

/** Give RUN back; -1 is allowed.  Not collective. */
void ts_run_unlock(int lock);

/* ---- writing: rank 0 ---- */

/** Remove every RUN/step_M.tmp that an earlier save left, and its RUN/TAG.tmp (a warning where that fails), check that
 * the file system has room for \a bytes more (and a hundredth), make RUN/TAG.tmp; RUN is there already.
 * Not collective.
 * \param [in] tag  One that ts_tag_check takes, here and below.
 * \return TS_BAD_INPUT with both numbers, or why it cannot be made: RUN/TAG is there and no checkpoint, or RUN/TAG.tmp
 *         has files that no save makes. */
ts_status ts_publication_begin(const char *run, const char *tag, int64_t bytes, ts_error *err);

/** Write and sync RUN/TAG.tmp/manifest.  The files may be in any order; a name has 1 to 31 letters, digits, ".", "_"
 * or "-".  Not collective. */
ts_status ts_publication_manifest(const char *run, const char *tag, int64_t step, const ts_file_sum *file, int n,
                                  ts_error *err);

/** Sync and rename RUN/TAG.tmp to RUN/TAG, and sync RUN.  A directory that has the name already (the run went back
 * before it) is replaced: the two exchange names, or where the file system cannot, the older one becomes RUN/TAG.aside;
 * `latest` names another, of no later a step, before that.  Not collective. */
ts_status ts_publication_publish(const char *run, const char *tag, int64_t step, ts_error *err);

/** Replace RUN/latest: \a tag, which is published, and its manifest's hash.  Not collective. */
ts_status ts_publication_latest(const char *run, const char *tag, ts_error *err);

/** Remove the directories of the oldest published steps but the \a keep newest (0: remove none); what has another tag
 * stays.  Call it only after a publication of a step whose `latest` was written: the newest is intact then and is never
 * removed.  What cannot be removed is left, with a warning.  Not collective. */
void ts_publication_prune(const char *run, int64_t keep);

/** Remove RUN/TAG.tmp, as far as that is possible.  Not collective. */
void ts_publication_abandon(const char *run, const char *tag);

/** Rename every published RUN/step_M with M > \a step to RUN/step_M.aside (one that has this name is removed), newest
 * first, and make `latest` name the newest of those that stay and have a manifest (none: it is removed).  Not
 * collective.  \return TS_BAD_INPUT when one cannot be renamed. */
ts_status ts_publication_set_aside(const char *run, int64_t step, ts_error *err);

/** For tests: let the \a count system calls of this section that change something, from the \a nth from now on (from
 * 1), fail with \a error_number and do nothing; 0, 0, 0 switches it off.  From the nth for ever is what a crash leaves.
 * Not collective. */
void ts_publication_set_test_failure(int64_t nth, int64_t count, int error_number);

/** For tests: let the file system have \a bytes free; -1 asks it again.  Not collective. */
void ts_publication_set_test_space(int64_t bytes);

/* ---- reading ---- */

/** The steps M with a directory RUN/step_M\a suffix, newest first; *steps is owned by the caller (ts_free).  Not
 * collective.  \return their number; 0 also when RUN is not there. */
int ts_steps_with_suffix(const char *run, const char *suffix, int64_t **steps);

/** The steps that are published in RUN, newest first; *steps is owned by the caller (ts_free).  Not collective.
 * \return their number; 0 also when RUN is not there. */
int ts_published_steps(const char *run, int64_t **steps);

/** A checkpoint of a run. */
typedef struct ts_published {
  char tag[TS_LONGEST_TAG + 1];
  int64_t step; /**< -1: it has a tag that does not say it, and a manifest that cannot be read. */
} ts_published;

/** All that is published in RUN, of most steps first, of one step the one that is called by it first; *list is owned by
 * the caller (ts_free).  A directory of another name than a step's is a checkpoint when it has a manifest.
 * Not collective.
 * \return their number; 0 also when RUN is not there. */
int ts_published_list(const char *run, ts_published **list);

/** The tag that RUN/latest has in its first line, whether there is such a checkpoint or not; owned by the caller
 * (ts_free); NULL without one that can be read.  Not collective. */
char *ts_latest_tag(const char *run);

/** True when \a path is a directory that has the files of a checkpoint (a manifest or a model.h5).  Not collective. */
bool ts_is_checkpoint(const char *path);

/** The newest checkpoint of a run, or the one itself: \a path is a RUN (what is published there of most steps; \a tag,
 * such as "step_00000200", names another) or a checkpoint directory.  Not collective.
 * \param [out] directory  Owned by the caller (ts_free); NULL on error.
 * \return TS_BAD_INPUT: neither (for a Hugging Face directory or a checkpoint of DeepSpeed with what to do), no such
 *         tag (the ones there are named). */
ts_status ts_checkpoint_locate(const char *path, const char *tag, char **directory, ts_error *err);

/** Refuse a checkpoint of DeepSpeed (what holds its `latest`, or the directory of a step) with the command that makes
 * weights of it.  Not collective.  \return TS_OK when \a path is none. */
ts_status ts_deepspeed_refuse(const char *path, ts_error *err);

/** Read and check DIRECTORY/manifest.  Not collective.
 * \param [out] manifest  End with ts_manifest_clear, on error too.
 * \return TS_BAD_INPUT: gone, damaged (its own hash), of a newer version, or its step is not the one that
 *         the directory's name says (a name that says none is fine). */
ts_status ts_manifest_read(const char *directory, ts_manifest *manifest, ts_error *err);

/** Index of the file of this name, -1 for none.  Not collective. */
int ts_manifest_find(const ts_manifest *manifest, const char *name);

/** Free and zero.  Not collective. */
void ts_manifest_clear(ts_manifest *manifest);

/** Compare files I with I mod \a share_count == \a share of the manifest with what is there: size, then hash, on up to
 * \a threads threads (one file each).  Share 0 also looks for shards and a model.h5 that the manifest does not list;
 * files of other names are the user's.  Not collective: the ranks of a job give their rank and size and agree on the
 * result.
 * \return TS_BAD_INPUT with a line for each file: missing, cut (both sizes), contents that are not those of the
 *         manifest. */
ts_status ts_checkpoint_verify(const char *directory, const ts_manifest *manifest, int share, int share_count,
                               int threads, ts_error *err);

/** The index against the manifest: \a step and \a n_shards are what model.h5 says.  Not collective.
 * \return TS_BAD_INPUT: another step, or the manifest lists other shards than shard_00000.h5 to the last. */
ts_status ts_manifest_match(const char *directory, const ts_manifest *manifest, int64_t step, int n_shards,
                            ts_error *err);

/** One file of a checkpoint against its manifest.  Not collective.  \return as ts_checkpoint_verify. */
ts_status ts_checkpoint_verify_file(const char *directory, const ts_manifest *manifest, const char *name,
                                    ts_error *err);

/** What RUN/latest says against what is there.  Not collective.
 * \return TS_BAD_INPUT: missing though several are published, not two such lines, names what is not there, the hash is
 *         not that of its manifest, or, in a run of `tessera train` (which has a deck.cfg), it is older than it can be:
 *         a latest that is one publication behind (a crash came between) is fine. */
ts_status ts_latest_verify(const char *run, ts_error *err);

#endif
