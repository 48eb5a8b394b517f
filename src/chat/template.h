/** \file
 * Chat templates as rows: what stands before and behind each role's words.  To add one: a row in template.c, its text
 * in regression/chat/make_chats.py.  Nothing here is collective.
 */
#ifndef TS_CHAT_TEMPLATE_H
#define TS_CHAT_TEMPLATE_H

#include "base/text.h"
#include "chat/turns.h"

#include <time.h>

/** In a row's texts: the tokens of tokenizer_config.json, and the date as the row's \a date spells it. */
#define TS_CHAT_BOS "\1"
#define TS_CHAT_EOS "\2"
#define TS_CHAT_DATE "\3"

/** Who the system's words go to. */
typedef enum ts_chat_system {
  TS_CHAT_SYSTEM_SPEAKS, /**< A turn of its own. */
  TS_CHAT_SYSTEM_REFUSED,
  TS_CHAT_SYSTEM_IN_FIRST, /**< In front of the first words of the user. */
  TS_CHAT_SYSTEM_IN_LAST   /**< In front of the last turn's words if they are the user's; else they are lost. */
} ts_chat_system;

/** A chat while it is written. */
typedef struct ts_chat_writer {
  const struct ts_chat_template *row;
  const char *bos, *eos;
  const ts_chat_turn *turn; /* the system's left out */
  int64_t n;
  const ts_chat_turn *system; /* NULL: it does not speak */
  const struct tm *today;
  ts_text *to;
} ts_chat_writer;

typedef struct ts_chat_words {
  const char *before, *after;
} ts_chat_words;

typedef struct ts_chat_template {
  const char *name; /**< Of several rows of one name it calls the first. */
  struct {
    const char *hash, *model; /* XXH3-128 of the text, newlines at its end left out; who ships it */
  } known[3];

  const char *start; /**< NULL: nothing, here and below. */
  ts_chat_words system, user;
  struct {
    const char *before; /**< Also what a prompt ends in. */
    const char *lead;   /**< Learned, as the words and \a end. */
    const char *end;
    const char *after;
  } assistant;
  const char *prompt; /**< Behind assistant.before where the assistant is to speak. */
  const char *finish; /**< At the end of a text that is no prompt. */

  const char *default_system; /**< What a system says that says nothing; NULL: it has no turn. */
  const char *date;           /**< strftime's. */
  ts_chat_system place;
  unsigned trimmed;     /**< TS_CHAT_TRIM of the roles whose words are. */
  bool alternates;      /**< Refuses other than user, assistant, user, ... */
  bool always_prompts;  /**< Asked or not. */
  bool empty_is_silent; /**< A system that says "" says nothing. */
  bool bare_at_end;     /**< Nothing behind the last turn's assistant.end. */

  void (*say_system)(const ts_chat_writer *w);            /**< In place of the system's words. */
  void (*say_answer)(const ts_chat_writer *w, int64_t i); /**< In place of the words of an assistant's turn. */
  void (*open_answer)(const ts_chat_writer *w);           /**< Behind assistant.before, in a prompt too. */
} ts_chat_template;

#define TS_CHAT_TRIM(role) (1U << (role))
#define TS_CHAT_TRIM_ALL 7U

/** What ts_chat_open found; chat.h has its operations. */
struct ts_chat {
  const ts_chat_template *row;
  char *bos, *eos; /**< Owned. */
};

/** The row of a name, NULL: none; the error is added. Not collective. */
const ts_chat_template *ts_chat_template_named(const char *name, ts_error *err);

/** The row of a template's text, NULL: none; \a hash then has 33 bytes with it. Not collective. */
const ts_chat_template *ts_chat_template_of(const char *text, size_t length, char hash[33]);

/** Append "chatml, qwen2, ...". Not collective. */
void ts_chat_template_names(ts_text *to);

/** Append a row's text, tokens and date in place. Not collective. */
void ts_chat_write(const ts_chat_writer *w, const char *text);

#endif
