/** \file
 * Templates that say other words than the turn's: thoughts are taken out of answers, or modes out of the system's.
 * Nothing here is collective.
 */
#ifndef TS_CHAT_THINK_H
#define TS_CHAT_THINK_H

#include "chat/template.h"

/** Leave out Python's white space (str.strip) at either end. Not collective. */
void ts_chat_strip(const char **text, size_t *length, bool left, bool right);

/** Qwen3: an answer to the last question begins with its thoughts, if only with none; others have none.
 * Not collective. */
void ts_chat_qwen3_answer(const ts_chat_writer *w, int64_t i);

/** SmolLM3: the system's words may choose between /think and /no_think, or replace everything (/system_override).
 * Not collective. */
void ts_chat_smollm3_system(const ts_chat_writer *w);
void ts_chat_smollm3_open(const ts_chat_writer *w);
void ts_chat_smollm3_answer(const ts_chat_writer *w, int64_t i);

#endif
