/** \file
 * The documents of a token file, as ranges of its tokens: they follow each other without a gap and none is empty.
 *
 *     the file's own index   entries of its dataset `documents` or of its .idx (io/tokens.h)
 *     end tokens             a document ends with each of them, and the last one with the file
 *
 * An index goes before end tokens.  Where documents are found by end tokens the whole file is read here, once.  The
 * list takes 8 bytes a document (twice that while it grows).  Counts are in tokens.  No function here is collective.
 */
#ifndef IO_DOCUMENTS_H
#define IO_DOCUMENTS_H

#include "io/tokens.h"

typedef struct ts_documents {
  int64_t n;
  int64_t *first; /**< Owned, n + 1: document i is the tokens [first[i], first[i + 1]) of the file. */
} ts_documents;

/** Find the documents of a file.  Not collective.
 * \param [in]  end_token  Closes a document, and belongs to it; -1: none, and the file must have an index.
 * \param [out] out        Empty on error; end with ts_documents_clear.
 * \return TS_BAD_INPUT: no index and no end token; an index that does not begin with 0, descends or leaves the tokens
 *         (file, entry and values); a token outside the vocabulary, or what cannot be read (io/tokens.h). */
ts_status ts_documents_find(ts_tokens *tokens, int32_t end_token, ts_documents *out, ts_error *err);

/** The document that token \a offset of the file is in.  Not collective. */
int64_t ts_documents_at(const ts_documents *documents, int64_t offset);

/** Free and zero; zeroed documents are allowed.  Not collective. */
void ts_documents_clear(ts_documents *documents);

#endif
