/** \file
 * Private to the token formats: what each of them fills in.  Nothing here is collective.
 */
#ifndef IO_TOKENS_FORMAT_H
#define IO_TOKENS_FORMAT_H

#include "io/mapping.h"
#include "io/tokens.h"

/** A format of token files. */
typedef struct ts_tokens_format {
  const char *name;
  const char *magic[2];      /**< First bytes of such a file; NULL when there are fewer. */
  size_t magic_bytes;        /**< of each. */
  const char *extensions[2]; /**< With the dot; NULL when there are fewer. */
  ts_status (*open)(ts_tokens *tokens,
                    ts_error *err); /**< Fill in count and data; clean up through close on error too. */
  ts_status (*read)(ts_tokens *tokens, int64_t first, int64_t count, int32_t *out, ts_error *err);
  void (*close)(ts_tokens *tokens);
  /* Only where files of the format may have an index of their documents: */
  ts_status (*find_documents)(ts_tokens *tokens, int64_t *n, ts_error *err);
  ts_status (*read_documents)(ts_tokens *tokens, int64_t first, int64_t count, int64_t *out, ts_error *err);
  /* Only where they may have a loss mask: */
  ts_status (*read_mask)(ts_tokens *tokens, int64_t first, int64_t count, uint8_t *out, ts_error *err);
} ts_tokens_format;

/** An open file. */
struct ts_tokens {
  const ts_tokens_format *format;
  char *path;    /**< Owned. */
  char *dataset; /**< Owned. */
  int64_t vocab_size;
  int64_t count;
  bool masked;                   /**< There is a loss mask. */
  ts_mapping mapping;            /**< text, bin, uint16; megatron: the .bin */
  size_t head;                   /**< bin, uint16: bytes before the first token, */
  int width;                     /**< and of a token. */
  int64_t data, documents, mask; /**< hdf5: the datasets' hid_t; 0 when there is none. */
  ts_mapping index;              /**< megatron: the .idx, */
  int kind;                      /**< its type of a token, */
  int64_t n_sequences, n_entries;
  int64_t *starts; /**< the first token of each sequence, and the end; owned. */
};

/** The rows of HDF5 files, and of Megatron's pairs. */
extern const ts_tokens_format ts_tokens_hdf5, ts_tokens_megatron;

/** Is \a path one of Megatron's: X.idx, X.bin, or X where there is no X, by the first bytes of the .idx?  Not
 * collective. */
bool ts_tokens_is_megatron(const char *path);

/** The error of a token outside the vocabulary; \a offset in tokens.  Not collective. */
ts_status ts_tokens_outside(const ts_tokens *tokens, int64_t offset, int64_t value, ts_error *err);

/** True when \a path ends in \a extension (".bin"), in either case; NULL is no extension.  Not collective. */
bool ts_tokens_is_called(const char *path, const char *extension);

/** Is this one of the files that hold no tokens as they lie (compressed, a table, json): by its first bytes, or by its
 * name.  Not collective.
 * \return TS_BAD_INPUT with what it is and the command that makes a text or tokens of it. */
ts_status ts_tokens_check_head(const char *path, const ts_mapping *file, ts_error *err);
ts_status ts_tokens_check_name(const char *path, ts_error *err);

#endif
