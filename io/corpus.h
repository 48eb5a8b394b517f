/** \file
 * Texts and JSONL files into tokens: encoded by several threads, handed on in the order of the file.
 *
 *     text    the file is one document, however long: it is encoded in windows, with the ids of the whole
 *     jsonl   each line is a document (io/records.h); blank lines are none
 *
 * A text has what the tokenizer's template puts around it, and ends with the end token, where there is one and it does
 * not end with it already.  Bytes that are no UTF-8 become U+FFFD and are counted.
 *
 * The file is cut into windows, of whole lines or where no token is cut, at places that depend on the file and on the
 * window's size alone: each thread, and each of several processes that share the work, finds them by itself.  Some
 * windows and their tokens are in memory at a time, or a line that is longer.  Nothing here is collective.
 */
#ifndef IO_CORPUS_H
#define IO_CORPUS_H

#include "io/records.h"

enum {
  TS_CORPUS_WINDOW = 1 << 18,  /**< Bytes of a window, but for a line that is longer, */
  TS_CORPUS_LONGEST = 1 << 24, /**< of at most so many: some 17 bytes of memory each. */
  TS_CORPUS_UNCUT = 1 << 24    /**< Bytes of a text that windows become together where no token may be cut. */
};

typedef struct ts_corpus_options {
  const char *format; /**< "text" or "jsonl". */
  ts_record_options record;
  int threads;
  int64_t window;      /**< Bytes; 0: TS_CORPUS_WINDOW. */
  int share, n_shares; /**< Encode that one of so many parts of the file, which follow each other; 0 of 1: all of it. */
} ts_corpus_options;

/** What is handed on at a time: tokens, and those among them that documents begin with. */
typedef struct ts_corpus_part {
  const ts_record_ids *ids;
  int64_t bytes; /**< Of the file, in this part. */
} ts_corpus_part;

/** Take a part; called in order by the thread that called ts_corpus_encode.  \return TS_BAD_INPUT to end the walk. */
typedef ts_status ts_corpus_sink(void *user, const ts_corpus_part *part, ts_error *err);

/** Encode a file, or a share of it.  Not collective.
 * \param [out] parts  NULL where there is one share.  False: a share of a text would have to end where no token may be
 *                     cut; what was handed on is of no use, and one process has to encode all of it.
 * \return TS_BAD_INPUT: "PATH: reason", of a line "PATH:LINE: reason" (the first one of the share that is wrong), or
 *         what the sink says. */
ts_status ts_corpus_encode(const ts_tokenizer *tokenizer, const char *path, const ts_corpus_options *options,
                           ts_corpus_sink *sink, void *user, bool *parts, ts_error *err);

#endif
