#include "chat/turns.h"

#include "base/memory.h"
#include "base/text.h"

#include <string.h>

static const char *const role_names[TS_CHAT_ROLES] = {"system", "user", "assistant"};

static const struct {
  const char *name;
  ts_chat_role role;
} accepted[] = {{"system", TS_CHAT_SYSTEM},  {"user", TS_CHAT_USER},     {"assistant", TS_CHAT_ASSISTANT},
                {"human", TS_CHAT_USER},     {"gpt", TS_CHAT_ASSISTANT}, {"bot", TS_CHAT_ASSISTANT},
                {"model", TS_CHAT_ASSISTANT}};
#define ACCEPTED "accepted are system; user, human; assistant, gpt, bot, model"

const char *ts_chat_role_name(ts_chat_role role) {
  return role_names[role];
}

static ts_status read_role(const json_t *value, const char *where, size_t i, const char *member, ts_chat_role *role,
                           ts_error *err) {
  if (!json_is_string(value)) {
    return ts_error_add(err, "%s[%zu].%s: no text; %s", where, i, member, ACCEPTED);
  }
  for (size_t k = 0; k < sizeof accepted / sizeof accepted[0]; ++k) {
    if (strcmp(json_string_value(value), accepted[k].name) == 0) {
      *role = accepted[k].role;
      return TS_OK;
    }
  }
  return ts_error_add(err, "%s[%zu].%s: \"%.40s\": %s", where, i, member, json_string_value(value), ACCEPTED);
}

static ts_status read_turn(const json_t *message, const char *where, size_t i, ts_chat_turn *turn, ts_error *err) {
  if (!json_is_object(message)) {
    return ts_error_add(err, "%s[%zu]: no object {\"role\": ..., \"content\": ...}", where, i);
  }
  bool from = json_object_get(message, "role") == NULL && json_object_get(message, "from") != NULL;
  const char *role = from ? "from" : "role", *content = from ? "value" : "content";
  ts_status status = read_role(json_object_get(message, role), where, i, role, &turn->role, err);
  if (status != TS_OK) {
    return status;
  }
  const json_t *calls = json_object_get(message, "tool_calls");
  if (calls != NULL && !json_is_null(calls) && !(json_is_array(calls) && json_array_size(calls) == 0)) {
    return ts_error_add(err, "%s[%zu].tool_calls: calls of tools are not known here", where, i);
  }
  const json_t *said = json_object_get(message, content);
  if (!json_is_string(said)) {
    return ts_error_add(err, "%s[%zu].%s: no text%s", where, i, content,
                        said == NULL          ? ": it is missing"
                        : json_is_array(said) ? ": lists of parts are not known here"
                                              : "");
  }
  turn->content = json_string_value(said);
  turn->length = json_string_length(said);
  return TS_OK;
}

ts_status ts_chat_read_turns(const json_t *messages, const char *where, ts_chat_turns *to, ts_error *err) {
  to->n = 0;
  if (!json_is_array(messages)) {
    return ts_error_add(err, "%s: no list of {\"role\": ..., \"content\": ...}", where);
  }
  for (size_t i = 0; i < json_array_size(messages); ++i) {
    TS_GROW(to->turn, to->n, to->capacity);
    ts_status status = read_turn(json_array_get(messages, i), where, i, &to->turn[to->n], err);
    if (status != TS_OK) {
      return status;
    }
    ++to->n;
  }
  return TS_OK;
}

void ts_chat_turns_clear(ts_chat_turns *turns) {
  ts_free(turns->turn);
  *turns = (ts_chat_turns){0};
}
