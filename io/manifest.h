/** \file
 * Private to io: the names, hashes and texts behind io/publication.h.  Nothing here is collective.
 */
#ifndef IO_MANIFEST_H
#define IO_MANIFEST_H

#include "base/text.h"
#include "io/publication.h"

#define TS_MANIFEST_VERSION 1

/** Two 64-bit words as they stand in texts: 32 hex digits. */
#define TS_HASH_FORMAT "%016llx%016llx"
#define TS_HASH_WORDS(hash) (unsigned long long) (hash)[0], (unsigned long long) (hash)[1]

/** XXH3-128, high word first.  Not collective. */
void ts_hash_bytes(const void *bytes, size_t count, uint64_t hash[2]);

/** The bytes of the manifest file.  Not collective. */
void ts_manifest_print(const ts_manifest *manifest, ts_text *to);

/** The two lines of `latest`; \a hash is that of the manifest of \a tag.  Not collective. */
void ts_latest_print(const char *tag, const uint64_t hash[2], ts_text *to);

/** Can this stand in a manifest: 1 to 31 letters, digits, ".", "_" or "-", not first a dot, and not "manifest".  Not
 * collective. */
bool ts_is_listed_name(const char *name);

/** The step of "step_00000200" and what follows the number ("" or, say, ".tmp"; borrowed from \a name); NULL when
 * \a name is not what ts_step_directory makes.  Not collective. */
const char *ts_step_of_name(const char *name, int64_t *step);

#endif
