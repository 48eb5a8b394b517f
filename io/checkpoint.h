/** \file
 * What a checkpoint is made of, on disk.  A directory that is complete or absent (io/publication.h):
 *
 *     shard_00000.h5 ...  what one rank owns: per part and state a flat dataset PART/STATE of cuts[s + 1] - cuts[s]
 *                         elements, chunked, each chunk with a fletcher32 checksum; an empty one is not there.  Shards
 *                         are cut over all ranks; where only some of them hold a part, the others' are empty
 *     model.h5            the index: all tables below, and every tensor as one virtual dataset with its real shape,
 *                         /STATE/NAME ("/parameter/model.norm.weight"), whose fill value is NaN
 *     manifest            size and hash of every other file (io/publication.h)
 *
 * The index is a copy of the layout it was saved with (parts, cuts, pieces), so that a reader on any other grid or
 * stage computes which elements of which shard files it needs.  Nothing of Tessera reads through the virtual datasets:
 * HDF5 reads a missing shard as fill values, with success.
 *
 * Tables are datasets of the group /layout of the index, a row per part, state, parameter, piece or fact.  Three
 * versions of them are written and read, by the attribute tessera_checkpoint:
 *
 *     1   every parameter is one whole piece: parameter_part, parameter_offset; parameters lie in this order
 *     2   pieces, those of a parameter together: parameter_dim, parameter_pieces (how many), and piece_part,
 *         piece_offset, piece_pitch, piece_length; a piece begins along parameter_dim where the one before ends;
 *         state_block, state_own: states that do not have an element for each of the part's; they are in the shards,
 *         and not among the virtual datasets
 *     3   and piece_rows: pieces of the first rows, each of which begins along parameter_dim where the one before ends,
 *         then those of the next rows
 *
 * This build reads all.  Each is written only for what those before it cannot say: builds that know 1 alone read whole
 * parameters as ever, and refuse pieces as "written by a newer version".
 *
 * Shards and counts are in elements, sizes in bytes where they say so.  HDF5 is not thread-safe: every function of this
 * header takes the lock of io/hdf5.h around its calls, so they may be called beside each other and beside io/tokens.h.
 * What is read is untrusted: every number is checked before it is used.  Nothing here is collective.
 */
#ifndef IO_CHECKPOINT_H
#define IO_CHECKPOINT_H

#include "base/dtype.h"
#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

#define TS_CHECKPOINT_VERSION 3 /**< A reader refuses larger ones: "written by a newer version". */
#define TS_CHECKPOINT_LARGEST_RANK 8

/** X (type, name): what a run continues from, beside tensors; and what earlier versions did not write, which is then
 * 0. */
#define TS_CHECKPOINT_NUMBERS(X)                                                   \
  X(int64_t, step)           /* steps finished, skipped ones included */           \
  X(int64_t, samples)        /* sequences trained on: position in the data */      \
  X(int64_t, updates)        /* steps that updated: position of the lr schedule */ \
  X(int64_t, optimizer_step) /* of the bias correction */                          \
  X(int64_t, skipped)        /* steps without an update */                         \
  X(int64_t, skipped_in_a_row)                                                     \
  X(double, loss_scale) /* of the next step; 1 without loss scaling */
#define TS_CHECKPOINT_LATER_NUMBERS(X)                                                                           \
  X(int64_t, loss_scale_good_steps) /* since the last overflow */                                                \
  X(int64_t, loss_scale_hysteresis) /* left; 0: the scale is static */                                           \
  X(int64_t, by_program)  /* 1: saved by a program of its own (engine/checkpoints.h): samples are not counted */ \
  X(int64_t, micro_steps) /* by hand, since the last update */

/** "HDF5 1.10.8": the library that is loaded.  Not collective. */
const char *ts_hdf5_library(void);

/** A state of a part: its dataset is PART/NAME. */
typedef struct ts_saved_state {
  char *name; /**< Owned: "parameter", "exp_avg", "exp_avg_sq". */
  ts_dtype dtype;
  int64_t
      block; /**< Elements of the part that one of the state's stands for, which divides all cuts but the last; 0: 1. */
  int64_t own; /**< > 0: it has a shape of its own, so many elements (no more than the part), in the first shard that
                  * has any of the part. */
} ts_saved_state;

typedef struct ts_saved_part {
  char *name; /**< Owned. */
  bool trainable;
  int64_t count; /**< Elements of the flat range, gaps included. */
  int64_t *cuts; /**< Owned: n_shards + 1, from 0 to count. */
  /** At least 1: the first is "parameter", fp32 master where there is one, else working values. */
  int n_states;
  ts_saved_state *state; /**< Owned. */
} ts_saved_part;

/** The elements of a parameter whose index along its \a dim lies in [begin, begin + length), as rows: one per index
 * before \a dim, or for some of them, `length` times the extents behind \a dim long.  Rows of other pieces may lie
 * between these, as many and with the same pitch (columns of one matrix of a rank); nothing else may, and no two pieces
 * overlap.  Where several ranks keep equal copies, only the owner's are saved, and nothing tells of the others. */
typedef struct ts_saved_piece {
  int part;
  int64_t offset;    /**< Of the first row, in the part's flat range. */
  int64_t pitch;     /**< From the beginning of a row to that of the next; at least a row. */
  int64_t first_row; /**< The first of the parameter's rows that it has, */
  int64_t rows;      /**< and their number: most have all, others those of some indices of the first dimension. */
  int64_t begin, length;
} ts_saved_piece;

typedef struct ts_saved_parameter {
  char *name; /**< Owned. */
  int n_dims;
  int64_t shape[TS_CHECKPOINT_LARGEST_RANK]; /**< Of the whole tensor. */
  int64_t count;                             /**< Elements of the whole tensor. */
  int dim;                                   /**< Which the pieces cut. */
  int n_pieces;
  /** Owned; ascending, from 0 to shape[dim] without a gap, of the first rows, then of the next.  Their parts have equal
   * states and are trained alike. */
  ts_saved_piece *piece;
} ts_saved_parameter;

/** Something recorded to be shown when it differs: "ranks" "4", "zero stage" "2", "device" "...". */
typedef struct ts_saved_fact {
  char *name, *value; /**< Owned. */
} ts_saved_fact;

/** All of model.h5 but the virtual datasets. */
typedef struct ts_checkpoint {
#define X(type, name) type name;
  TS_CHECKPOINT_NUMBERS(X)
  TS_CHECKPOINT_LATER_NUMBERS(X)
#undef X
  char *deck;   /**< Owned: the whole deck, as ts_deck_print writes it. */
  char *source; /**< Owned: the Hugging Face directory the run began from (absolute), "" for none. */
  int n_shards;
  int n_parts, n_parameters, n_facts;
  ts_saved_part *part;           /**< Owned. */
  ts_saved_parameter *parameter; /**< Owned; in the layout's order. */
  ts_saved_fact *fact;           /**< Owned. */
} ts_checkpoint;

/** Free and set to NULL; NULL is allowed.  All members were allocated with base/memory.h.  Not collective. */
void ts_checkpoint_destroy(ts_checkpoint **checkpoint);

/** "shard_00003.h5"; owned by the caller (ts_free).  Not collective. */
char *ts_checkpoint_shard_name(int shard);

/** Bytes that all shard files together will have, a little more than less.  Not collective. */
int64_t ts_checkpoint_bytes(const ts_checkpoint *checkpoint);

/** Index of the parameter of this name, -1 for none; of a part; and of a state of a part.  Not collective. */
int ts_checkpoint_find(const ts_checkpoint *checkpoint, const char *name);
int ts_checkpoint_find_part(const ts_checkpoint *checkpoint, const char *name);
int ts_checkpoint_find_state(const ts_saved_part *part, const char *name);

/** Elements of a state of a part in the shards before \a shard; with the number of shards, in all.  Not collective. */
int64_t ts_saved_state_cut(const ts_saved_part *part, int state, int shard);

/** Make the pieces of a parameter whose shape and count are set: one, the whole tensor as it is, from \a offset of a
 * part on.  Not collective. */
void ts_saved_parameter_set_whole(ts_saved_parameter *parameter, int part, int64_t offset);

/** Do the pieces have each element of the parameter once, in the order that is asked of them?  Not collective. */
bool ts_saved_parameter_is_covered(const ts_saved_parameter *parameter);

/** The part of a parameter's first piece: what it says of states and training holds for all pieces.  Not collective. */
const ts_saved_part *ts_checkpoint_part(const ts_checkpoint *checkpoint, const ts_saved_parameter *parameter);

/** Elements [first, first + count) of the flat range of a part. */
typedef struct ts_checkpoint_run {
  int part;
  int64_t first, count;
} ts_checkpoint_run;

/** Where elements [first, first + count) of a parameter lie, in the row-major order of the whole tensor: the longest
 * run from \a first on, which a whole parameter has but one of.  A reader takes all of them so:
 *
 *     for (int64_t at = first; at < end; at += run.count) {
 *       run = ts_checkpoint_run_at (p, at, end - at);
 *       ...
 *     }
 *
 * Not collective.
 * \param [in] count  At least 1; not beyond the parameter's end. */
ts_checkpoint_run ts_checkpoint_run_at(const ts_saved_parameter *parameter, int64_t first, int64_t count);

/* ---- writing ---- */

/** Where the elements of a shard come from: give elements [first, first + count) of state \a state of part \a part,
 * counted from the shard's first one, in the state's dtype. */
typedef void ts_checkpoint_source(void *user, int part, int state, int64_t first, int64_t count, void *to);

/** Write and sync DIRECTORY/shard_N.h5.  Not collective.
 * \param [in] source  Asked for every element once, in order, a chunk at a time, from the calling thread.
 * \return TS_BAD_INPUT with "PATH: reason" when it cannot be written (a full disk, EIO); the file is useless then. */
ts_status ts_checkpoint_write_shard(const char *directory, const ts_checkpoint *checkpoint, int shard,
                                    ts_checkpoint_source *source, void *user, ts_error *err);

/** Write and sync DIRECTORY/model.h5.  Not collective.  Errors as ts_checkpoint_write_shard. */
ts_status ts_checkpoint_write_index(const char *directory, const ts_checkpoint *checkpoint, ts_error *err);

/* ---- reading ---- */

/** Read and check DIRECTORY/model.h5.  Not collective.
 * \param [out] out  The caller's, end with ts_checkpoint_destroy; NULL on error.
 * \return TS_BAD_INPUT: not there, not HDF5, a table missing or inconsistent, a newer version. */
ts_status ts_checkpoint_read_index(const char *directory, ts_checkpoint **out, ts_error *err);

/** Append all of a checkpoint to \a to, as bytes for ts_checkpoint_unpack in another process of this job.  Not
 * collective.
 * \param [in] checkpoint  As it was afterwards. */
void ts_checkpoint_pack(ts_checkpoint *checkpoint, ts_text *to);

/** What ts_checkpoint_pack packed; the bytes are believed.  Not collective.
 * \return the caller's, end with ts_checkpoint_destroy. */
ts_checkpoint *ts_checkpoint_unpack(const char *bytes);

/** Where elements go that are not read into memory: \a count values, \a at elements from the piece's first. */
typedef void ts_checkpoint_sink(void *user, int64_t at, int64_t count, const void *values);

/** Elements [first, first + count) of a state of a part, wherever they lie: of the flat range, in its blocks. */
typedef struct ts_checkpoint_piece {
  int part, state;
  int64_t first, count;
  ts_dtype dtype;           /**< Converted to this (float types). */
  void *to;                 /**< Borrowed: \a count elements of \a dtype; or NULL, then: */
  ts_checkpoint_sink *sink; /**< Called as they are read, in any order, from the calling thread. */
  void *user;               /**< Borrowed. */
} ts_checkpoint_piece;

typedef struct ts_checkpoint_reader ts_checkpoint_reader;

/** A reader keeps at most TS_CHECKPOINT_OPEN_FILES shard files open, whatever their number, and 16 chunks in memory.
 * The directory's name is copied, \a checkpoint borrowed for its life.  Not collective. */
#define TS_CHECKPOINT_OPEN_FILES 8
ts_checkpoint_reader *ts_checkpoint_reader_open(const char *directory, const ts_checkpoint *checkpoint);

/** Read pieces, shard by shard: each shard that is needed is opened once for all of them.  Each chunk's checksum is
 * checked; one that the reader still has of a call before is not read again.  Not collective; one thread at a time per
 * reader.
 * \return TS_BAD_INPUT naming the file and dataset: missing, another size or type than the index says, a checksum that
 *         does not hold; what was read is undefined then. */
ts_status ts_checkpoint_read(ts_checkpoint_reader *reader, const ts_checkpoint_piece *piece, int n, ts_error *err);

/** Close and set to NULL; NULL is allowed.  Not collective. */
void ts_checkpoint_reader_close(ts_checkpoint_reader **reader);

#endif
