/** \file
 * A Hugging Face tokenizer: the file tokenizer.json of a model's directory, read into what it says.
 *
 *     text ──▶ added tokens ──▶ normalizer ──▶ added tokens ──▶ splitter ──▶ bpe ──▶ template ──▶ ids
 *     text ◀── decoder ◀── tokens ◀── ids
 *
 * Ids are those of tokenizers.Tokenizer.from_file (...).encode (text), with truncation and padding off: tokens that
 * the text itself spells are found in it too, special ones among them.  Models are BPE: of bytes, or of characters with
 * or without a fallback to bytes.  What a file asks for and is not known here is refused by name.
 *
 * A tokenizer is not changed after it was read and may be used by all threads; an encoder is a thread's own.  Texts are
 * UTF-8, which is checked; ts_utf8_repair makes valid ones.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_TOKENIZER_H
#define TS_TOKENIZER_TOKENIZER_H

#include "base/text.h"
#include "tokenizer/bpe.h"

typedef struct ts_tokenizer ts_tokenizer;

/** Read DIRECTORY/tokenizer.json.  The file is untrusted.
 * \param [out] out  The caller's, end with ts_tokenizer_close; NULL on error.
 * \return TS_BAD_INPUT: missing, no json, a part that is wrong or not known; each message begins with the path.
 * Not collective. */
ts_status ts_tokenizer_open(const char *directory, ts_tokenizer **out, ts_error *err);

/** NULL is allowed; sets the handle to NULL.  Encoders and decoders end before. Not collective. */
void ts_tokenizer_close(ts_tokenizer **tokenizer);

/** One above the largest id. Not collective. */
int64_t ts_tokenizer_size(const ts_tokenizer *tokenizer);

/** The id of a token, -1: there is none. Not collective. */
int32_t ts_tokenizer_id(const ts_tokenizer *tokenizer, const char *token);

/** The ids that the file's template puts before and after a text; borrowed. Not collective. */
const ts_ids *ts_tokenizer_before(const ts_tokenizer *tokenizer);
const ts_ids *ts_tokenizer_after(const ts_tokenizer *tokenizer);

/** Is it an added token that is not shown by default? Not collective. */
bool ts_tokenizer_is_special(const ts_tokenizer *tokenizer, int32_t id);

/** A thread's memory for encoding: words that it has seen are not encoded again. */
typedef struct ts_encoder ts_encoder;

/** Make one of a tokenizer, which is borrowed; end it: NULL is allowed, the handle becomes NULL. Not collective. */
ts_encoder *ts_encoder_create(const ts_tokenizer *tokenizer);
void ts_encoder_destroy(ts_encoder **encoder);

/** Whose it is; borrowed. Not collective. */
const ts_tokenizer *ts_encoder_tokenizer(const ts_encoder *encoder);

/** Append the ids of a text.
 * \param [in] text     \a n bytes of UTF-8, at most 2^30.
 * \param [in] special  With the tokens that the file's template puts around a text (<s> and the like).
 * \return TS_BAD_INPUT: no UTF-8, too long, or a pattern of the file takes too many steps here; what was appended is
 * of no use. Not collective. */
ts_status ts_encode(ts_encoder *encoder, const char *text, size_t n, bool special, ts_ids *to, ts_error *err);

/** A place in a text. */
typedef enum ts_joint {
  TS_JOINT_NONE,   /**< A token has something of both sides, or nobody knows. */
  TS_JOINT_INSIDE, /**< No token has. */
  TS_JOINT_BEHIND, /**< Likewise, directly behind an added token. */
  TS_JOINT_BEGIN   /**< The beginning of the text. */
} ts_joint;

/** Append the ids of a part of a long text, without the template's tokens.
 *
 * Parts that follow each other have the ids of the whole, where each but the last is found to part there: its end is in
 * no added token, in no match of a pattern, at the end of a word, and the normalizer makes the same of both sides apart
 * and together.  \a text + n .. + ahead is looked at for this: what reaches farther (a pattern that looks ahead, a run
 * of space, a longer added token) may be cut wrongly.
 * \param [in]  n      Bytes of the part, whole characters.
 * \param [in]  ahead  Bytes of the text behind it, whole characters; 0 at the end of the text alone.
 * \param [in]  begins Where it begins: what \a ends was of the part before.
 * \param [out] ends   Where it ends; where that is TS_JOINT_NONE the ids are of no use.
 * \return As ts_encode. Not collective. */
ts_status ts_encode_part(ts_encoder *encoder, const char *text, size_t n, size_t ahead, ts_joint begins, ts_joint *ends,
                         ts_ids *to, ts_error *err);

/** Append the text of ids; those that are no token are left out.
 * \param [in] show_special  Special tokens too. Not collective. */
void ts_decode(ts_encoder *encoder, const int32_t *id, int64_t n, bool show_special, ts_text *to);

/** A text that grows by a token: whole characters come out as soon as they are there, which those that end in U+FFFD
 * may not be yet; at the end of the ids such a rest is not shown.  What a decoder would write otherwise afterwards (a
 * byte token that was a character, and is none with what follows) stays.  Zero-initialise. */
typedef struct ts_decode_stream {
  ts_ids ids;
  int64_t before; /* ids that were shown, kept because what follows may look otherwise without them */
  size_t shown;   /* bytes of their text */
} ts_decode_stream;

/** Add a token and append to \a to what can be shown now. Not collective. */
void ts_decode_next(ts_decode_stream *stream, ts_encoder *encoder, int32_t id, bool show_special, ts_text *to);

/** Free. Not collective. */
void ts_decode_stream_clear(ts_decode_stream *stream);

#endif
