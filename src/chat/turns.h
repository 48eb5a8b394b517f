/** \file
 * Who said what: a list of turns from JSON.  Nothing here is collective.
 */
#ifndef TS_CHAT_TURNS_H
#define TS_CHAT_TURNS_H

#include "base/status.h"

#include <jansson.h>
#include <stdint.h>

typedef enum ts_chat_role {
  TS_CHAT_SYSTEM,
  TS_CHAT_USER,
  TS_CHAT_ASSISTANT,
  TS_CHAT_ROLES /**< How many there are. */
} ts_chat_role;

typedef struct ts_chat_turn {
  ts_chat_role role;
  const char *content; /**< Borrowed, \a length bytes of UTF-8. */
  size_t length;
} ts_chat_turn;

/** Zero-initialise, end with ts_chat_turns_clear. */
typedef struct ts_chat_turns {
  ts_chat_turn *turn; /**< Owned. */
  int64_t n, capacity;
} ts_chat_turns;

/** "system", "user", "assistant". Not collective. */
const char *ts_chat_role_name(ts_chat_role role);

/** Set \a to to the turns of a list: objects {"role": ..., "content": ...}, or ShareGPT's {"from": ..., "value": ...}.
 * Roles are "system"; "user", "human"; "assistant", "gpt", "bot", "model".  Other members are ignored but for calls of
 * tools, which are refused as their roles are.
 * \param [in]  messages  Contents are borrowed from it.  NULL and what is no list are refused.
 * \param [in]  where     What messages call it: "chats.jsonl:3: messages".
 * \return TS_BAD_INPUT: "WHERE[2].role: ...", with what is accepted; \a to has the turns before it. Not collective. */
ts_status ts_chat_read_turns(const json_t *messages, const char *where, ts_chat_turns *to, ts_error *err);

/** Free. Not collective. */
void ts_chat_turns_clear(ts_chat_turns *turns);

#endif
