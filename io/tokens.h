/** \file
 * A file of tokens: a sequence of integers that is read in ranges.  One row of a table per format:
 *
 *     text      each byte is a token, 0..255; memory-mapped
 *     jsonl     a line is an object; refused: a tokenizer makes tokens of it (io/corpus.h)
 *     bin       llm.c's: 256 little-endian int32 (magic, version, number of tokens, 0...), then tokens; memory-mapped.
 *               Magic and version are 20240520 and 1 where tokens are uint16 (GPT-2's), 20240801 and 7 where they are
 *               uint32 (Llama 3's)
 *     uint16    nanoGPT's: uint16 tokens and nothing else; memory-mapped
 *     hdf5      a 1-dimensional dataset of any integer type, contiguous or chunked, filtered or not; read in windows
 *     megatron  Megatron-LM's indexed dataset, X.idx and X.bin, named by either or as X; memory-mapped.  Its index has
 *               the documents
 *
 * Beside its dataset of tokens, in the same group, an HDF5 file may have two more of one dimension and any integer
 * type:
 *
 *     documents   an entry a document: the offset of its first token.  The first is 0, none is below the one before it
 *                 or above the number of tokens; a document ends where the next one begins, the last with the tokens
 *     loss_mask   an entry a token: 1, or 0 for one that is read but not to be learned: it is no label of the token
 *                 before it
 *
 * "auto" takes megatron where the .idx of such a pair is one by its magic, else the format whose magic the file starts
 * with, else the one of its extension (.bin, .h5, .hdf5, .jsonl, .ndjson), else text; it refuses what is known to be
 * none of these (compressed files, tables, json), with the command that helps.
 * Offsets and counts are in tokens.  Nothing here is collective.
 */
#ifndef IO_TOKENS_H
#define IO_TOKENS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
  TS_TOKENS_BIN_MAGIC = 20240520, /**< With uint16 tokens, as written here. */
  TS_TOKENS_BIN_VERSION = 1,
  TS_TOKENS_BIN_HEADER = 1024 /**< Bytes of the header of a bin file. */
};

typedef struct ts_tokens ts_tokens;

/** The format of a file: what is said, or what "auto" takes.  Not collective.
 * \param [out] name  A row of the table above; static.
 * \return TS_BAD_INPUT: no such file or format, or a file that holds no tokens as it lies. */
ts_status ts_tokens_guess(const char *path, const char *format, const char **name, ts_error *err);

/** Open a file of tokens and check its header against its size.  Not collective.
 * \param [in]  format      "auto", or a name of the table above.
 * \param [in]  dataset     Name inside an HDF5 file; otherwise unused.
 * \param [in]  vocab_size  Tokens are in [0, vocab_size); 1..INT32_MAX.  Texts and bin files that could hold others are
 *                          read here once, all of them, and so are uint16 files of up to 2^31 tokens; the tokens of
 *                          others are checked by ts_tokens_read.
 * \param [out] out         The caller's, end with ts_tokens_close; NULL on error.
 * \return TS_BAD_INPUT: missing, unknown format, a file of another kind, bad magic or version, size other than the
 *         header says, no such dataset or not one-dimensional integers, a loss mask of another length, an .idx that
 *         is no index of its .bin, a token outside the vocabulary.  Every message starts with the path. */
ts_status ts_tokens_open(const char *path, const char *format, const char *dataset, int64_t vocab_size, ts_tokens **out,
                         ts_error *err);

/** Number of tokens.  Not collective. */
int64_t ts_tokens_count(const ts_tokens *tokens);

/** Copy the tokens [first, first + count), which must be in the file, to \a out.  Not collective.  Thread-safe but
 * for HDF5: an HDF5 file (the library is not thread-safe) must be read by one thread of the process at a time.
 * \return TS_BAD_INPUT naming the file, offset in tokens and value of the first token outside the vocabulary, or
 *         that HDF5 could not read; \a out is undefined then. */
ts_status ts_tokens_read(ts_tokens *tokens, int64_t first, int64_t count, int32_t *out, ts_error *err);

/** Path as it was given to ts_tokens_open; borrowed.  Not collective. */
const char *ts_tokens_path(const ts_tokens *tokens);

/** Look for the file's own index of its documents.  Not collective.
 * \param [out] n  Its entries; -1 where the file has none.
 * \return TS_BAD_INPUT: there is one and it is not a one-dimensional dataset of integers. */
ts_status ts_tokens_find_documents(ts_tokens *tokens, int64_t *n, ts_error *err);

/** Copy the entries [first, first + count) of the index, which ts_tokens_find_documents has found: offsets of first
 * tokens, unchecked.  Not collective.
 * \return TS_BAD_INPUT when HDF5 could not read. */
ts_status ts_tokens_read_documents(ts_tokens *tokens, int64_t first, int64_t count, int64_t *out, ts_error *err);

/** Does the file have a loss mask?  Not collective. */
bool ts_tokens_are_masked(const ts_tokens *tokens);

/** Copy the mask of the tokens [first, first + count), 0 or 1, of a file that has one.  Not collective; threads as
 * ts_tokens_read.
 * \return TS_BAD_INPUT naming file, offset and value of an entry that is neither, or that HDF5 could not read. */
ts_status ts_tokens_read_mask(ts_tokens *tokens, int64_t first, int64_t count, uint8_t *out, ts_error *err);

/** Close and free; NULL handles are allowed; sets the handle to NULL.  Not collective. */
void ts_tokens_close(ts_tokens **tokens);

#endif
