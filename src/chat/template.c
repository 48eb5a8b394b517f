#include "chat/template.h"

#include "chat/think.h"

#include <string.h>
#include <xxhash.h>

#define BOS TS_CHAT_BOS
#define EOS TS_CHAT_EOS
#define DATE TS_CHAT_DATE

#define CHATML                                                                                        \
  .system = {"<|im_start|>system\n", "<|im_end|>\n"}, .user = {"<|im_start|>user\n", "<|im_end|>\n"}, \
  .assistant = {"<|im_start|>assistant\n", "", "<|im_end|>", "\n"}

#define LLAMA_SYSTEM "<|start_header_id|>system<|end_header_id|>\n\n"
#define LLAMA                                                                                                        \
  .start = BOS, .trimmed = TS_CHAT_TRIM_ALL, .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"}, \
  .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "", "<|eot_id|>", ""}

#define GEMMA                                                                                                \
  .start = BOS, .alternates = true, .trimmed = TS_CHAT_TRIM(TS_CHAT_USER) | TS_CHAT_TRIM(TS_CHAT_ASSISTANT), \
  .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},                                                      \
  .assistant = {"<start_of_turn>model\n", "", "<end_of_turn>", "\n"}

#define MISTRAL(before, after_user, lead) \
  .start = BOS, .system = {"", "\n\n"}, .user = {before, after_user}, .assistant = {"", lead, EOS, ""}

#define PHI3                                                                    \
  .system = {"<|system|>\n", "<|end|>\n"}, .user = {"<|user|>\n", "<|end|>\n"}, \
  .assistant = {"<|assistant|>\n", "", "<|end|>", "\n"}, .finish = EOS

#define GRANITE                                                              \
  .system = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"}, \
  .user = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},     \
  .assistant = {"<|start_of_role|>assistant<|end_of_role|>", "", "<|end_of_text|>", "\n"}

#define GRANITE_DATED(before, between, behind)                                                                    \
  GRANITE, .date = "%B %d, %Y",                                                                                   \
           .default_system = before "Knowledge Cutoff Date: April 2024." between "Today's Date: " DATE "." behind \
                                    "You are Granite, developed by IBM. You are a helpful AI assistant."

static const ts_chat_template rows[] = {
    {.name = "chatml",
     CHATML,
     .known = {{"f0a6a8278439fdb056191e205a440263", "OpenHermes-2.5-Mistral-7B"},
               {"a344e8c84fb0282dda206a9e46a4ac01", "dolphin-2.5-mixtral-8x7b"},
               {"cc9ddd5a40bc1c0c8fb5d937b1e8f5d0", "Qwen3-4B-Instruct-2507"}}},
    {.name = "qwen2",
     CHATML,
     .default_system = "You are a helpful assistant.",
     .known = {{"e580c2da83415028d5d943bd0bd9082f", "Qwen2-0.5B-Instruct"}}},
    {.name = "qwen2.5",
     CHATML,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .known = {{"e392aa06018503fd2469c9508f79506e", "Qwen2.5-7B-Instruct"},
               {"5fdb9fce4071098def2b96adf9b87224", "Qwen2.5-0.5B-Instruct, first version"}}},
    {.name = "qwen3",
     CHATML,
     .say_answer = ts_chat_qwen3_answer,
     .known = {{"0fab82ce8f4d5175c9e0155c80737cf2", "Qwen3-4B"},
               {"4457e3d12b367a860283f874ff58d644", "Qwen3-0.6B, first version"}}},
    {.name = "qwen3-thinking",
     CHATML,
     .say_answer = ts_chat_qwen3_answer,
     .prompt = "<think>\n",
     .known = {{"cb53a145cfc5e326bdee364f122d2352", "Qwen3-Next-80B-A3B-Thinking"}}},

    {.name = "llama3",
     LLAMA,
     .system = {LLAMA_SYSTEM, "<|eot_id|>"},
     .known = {{"09facc0e4aa943189799ad6e2dea0594", "Meta-Llama-3-8B-Instruct"}}},
    {.name = "llama3",
     LLAMA,
     .system = {LLAMA_SYSTEM, "<|eot_id|>"},
     .always_prompts = true,
     .known = {{"8f20b9eda669ce10b97891b7adc1beb8", "Meta-Llama-3-8B-Instruct, first version"}}},
    {.name = "llama3.1",
     LLAMA,
     .default_system = "",
     .system = {LLAMA_SYSTEM "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", "<|eot_id|>"},
     .known = {{"9ddcd6cd71f96dd76ca7779b7730196a", "Llama-3.1-8B-Instruct"}}},
    {.name = "llama3.2",
     LLAMA,
     .default_system = "",
     .date = "%d %b %Y",
     .system = {LLAMA_SYSTEM "Cutting Knowledge Date: December 2023\nToday Date: " DATE "\n\n", "<|eot_id|>"},
     .known = {{"573e1bcc8c56f178c3d57e38f5ff0756", "Llama-3.2-3B-Instruct"}}},

    {.name = "gemma",
     GEMMA,
     .place = TS_CHAT_SYSTEM_REFUSED,
     .known = {{"8b30bb763d138e692c2e86beabccd2a4", "gemma-2-2b-it"}}},
    {.name = "gemma3",
     GEMMA,
     .place = TS_CHAT_SYSTEM_IN_FIRST,
     .system = {"", "\n\n"},
     .known = {{"6c84c2da794fd4c1d9c620dcaf86f38d", "gemma-3-4b-it"}}},

    {.name = "mistral-v0.1",
     .start = BOS,
     .place = TS_CHAT_SYSTEM_REFUSED,
     .alternates = true,
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", "", EOS, " "},
     .known = {{"70bf874ad98f31f4b7f52373b11c60d7", "Mistral-7B-Instruct-v0.1"}}},
    {.name = "mistral-v0.2",
     MISTRAL("[INST] ", " [/INST]", ""),
     .place = TS_CHAT_SYSTEM_REFUSED,
     .alternates = true,
     .known = {{"f395fc5daa794129a5d004210ebce758", "Mixtral-8x7B-Instruct-v0.1, first version"}}},
    {.name = "mistral-v1",
     MISTRAL(" [INST] ", " [/INST]", " "),
     .place = TS_CHAT_SYSTEM_IN_FIRST,
     .alternates = true,
     .known = {{"6aef58edf0d62df9f89cfc57f651ff3d", "Mixtral-8x7B-Instruct-v0.1"}}},
    {.name = "mistral-v3",
     MISTRAL("[INST] ", "[/INST]", " "),
     .place = TS_CHAT_SYSTEM_IN_LAST,
     .alternates = true,
     .trimmed = TS_CHAT_TRIM(TS_CHAT_ASSISTANT),
     .known = {{"df3ebcd92fa9a63fc6614466504d495b", "Mistral-7B-Instruct-v0.3"}}},
    {.name = "mistral-v3",
     MISTRAL("[INST] ", "[/INST]", " "),
     .place = TS_CHAT_SYSTEM_IN_LAST,
     .alternates = true,
     .known = {{"c7c5aba43d0f450f797fff16f26a5c01", "Mixtral-8x22B-Instruct-v0.1"}}},
    {.name = "mistral-v3-tekken",
     MISTRAL("[INST]", "[/INST]", ""),
     .place = TS_CHAT_SYSTEM_IN_LAST,
     .alternates = true,
     .known = {{"638e5c8b05f6278ccae647ce0048756b", "Mistral-Nemo-Instruct-2407"},
               {"2c0f75201f5fbcae6a6adf55847af499", "Mistral-Nemo-Instruct-2407, first version"}}},
    {.name = "mistral-v7",
     .start = BOS,
     .system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {"", " ", EOS, ""},
     .known = {{"5b658f89dcb1716f11381d1c62000f60", "Mistral-Large-Instruct-2411"}}},
    {.name = "mistral-v7-tekken",
     .start = BOS,
     .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", "", EOS, ""},
     .known = {{"3210f443f276f16a02cdc546cb24cabe", "Mistral-Small-24B-Instruct-2501 from a GGUF"}}},

    {.name = "phi3", PHI3, .known = {{"0850c77e9e7c37ed82fc89c04c54ba66", "Phi-3-mini-4k-instruct"}}},
    {.name = "phi3.5",
     PHI3,
     .empty_is_silent = true,
     .known = {{"ceaa31b1554ec3f5cd8aff863abd4554", "Phi-3.5-mini-instruct"}}},
    {.name = "phi4",
     .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
     .user = {"<|im_start|>user<|im_sep|>", "<|im_end|><|im_start|>assistant<|im_sep|>"},
     .assistant = {"", "", "<|im_end|>", ""},
     .known = {{"a50143285cdef922bc5711ad3f99d670", "phi-4"}}},
    {.name = "phi4-mini",
     .system = {"<|system|>", "<|end|>"},
     .user = {"<|user|>", "<|end|>"},
     .assistant = {"<|assistant|>", "", "<|end|>", ""},
     .finish = EOS,
     .known = {{"f4ba63d66919b6d41c0680782a7c9316", "Phi-4-mini-instruct"}}},

    {.name = "smollm2",
     CHATML,
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     .known = {{"98f63cc3d421d28f99ab995e9629dacd", "SmolLM2-1.7B-Instruct"}}},
    {.name = "smollm3",
     .default_system = "",
     .date = "%d %B %Y",
     .system = {"<|im_start|>system\n", ""},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "", "<|im_end|>", "\n"},
     .say_system = ts_chat_smollm3_system,
     .say_answer = ts_chat_smollm3_answer,
     .open_answer = ts_chat_smollm3_open,
     .known = {{"9408eaaa587ef819a7378c92fb95c56c", "SmolLM3-3B"},
               {"3dd0d766ec8a9ef7e3379c76787e4ac0", "SmolLM3-3B, first version"}}},

    {.name = "olmo2",
     .start = BOS,
     .bare_at_end = true,
     .system = {"<|system|>\n", "\n"},
     .user = {"<|user|>\n", "\n"},
     .assistant = {"<|assistant|>\n", "", EOS, "\n"},
     .known = {{"2ef1dbbe37b5241f2cf6c80e0c47b498", "OLMo-2-1124-7B-Instruct"}}},

    {.name = "granite3.0", GRANITE, .known = {{"54581ea7c7166920ad20145afdf4bf61", "granite-3.0-8b-instruct"}}},
    {.name = "granite3.1",
     GRANITE_DATED("", "\n", "\n"),
     .known = {{"fef56ce965aab0c8cfd8ed9072b4cd0f", "granite-3.1-1b-a400m-instruct"},
               {"cb1c9b71550d107db20bed472a0b8eee", "granite-3.2-8b-instruct"}}},
    {.name = "granite3.3",
     GRANITE_DATED("", "\n", "\n"),
     .known = {{"43cdebef85cbabd4be7ec7588a4b1513", "granite-3.3-8b-instruct"}}},
    {.name = "granite3.3",
     GRANITE_DATED("", " ", " "),
     .known = {{"c8297af664a8a1413ecf25733ce105a3", "granite-3.3-2b-instruct as llama.cpp has it"}}},
    {.name = "granite3.3",
     GRANITE_DATED(" ", "\n ", " "),
     .known = {{"b13392e8055e03294b313ff2b8746170", "granite-3.3-2b-instruct from a GGUF"}}},
    {.name = "granite4.0",
     GRANITE,
     .empty_is_silent = true,
     .default_system = "You are a helpful assistant. Please ensure responses are professional, accurate, and safe.",
     .known = {{"3e2b9bf1cf22417175747bf030c148b2", "granite-4.0-h-tiny"}}},
    {.name = "granite4.1",
     GRANITE,
     .empty_is_silent = true,
     .known = {{"61c54e9923acd337fe537cbb17987158", "granite-4.1-3b"}}},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static int list_row_names(const char *names[ROWS]) {
  int n = 0;
  for (int i = 0; i < ROWS; ++i) {
    if (i == 0 || strcmp(rows[i].name, rows[i - 1].name) != 0) {
      names[n++] = rows[i].name;
    }
  }
  return n;
}

void ts_chat_template_names(ts_text *to) {
  const char *names[ROWS];
  int n = list_row_names(names);
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, "%s%s", i > 0 ? ", " : "", names[i]);
  }
}

const ts_chat_template *ts_chat_template_named(const char *name, ts_error *err) {
  for (int i = 0; i < ROWS; ++i) {
    if (strcmp(rows[i].name, name) == 0) {
      return &rows[i];
    }
  }
  const char *names[ROWS], *near = ts_nearest(name, names, (size_t) list_row_names(names));
  ts_text known = {0};
  ts_chat_template_names(&known);
  ts_error_add(err, "no chat template is called \"%.40s\"%s%s%s; there are %s", name,
               near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "",
               known.text);
  ts_text_free(&known);
  return NULL;
}

const ts_chat_template *ts_chat_template_of(const char *text, size_t length, char hash[33]) {
  while (length > 0 && text[length - 1] == '\n') {
    --length;
  }
  XXH128_hash_t h = XXH3_128bits(text, length);
  snprintf(hash, 33, "%016llx%016llx", (unsigned long long) h.high64, (unsigned long long) h.low64);
  for (int i = 0; i < ROWS; ++i) {
    for (size_t k = 0; k < sizeof rows[i].known / sizeof rows[i].known[0] && rows[i].known[k].hash != NULL; ++k) {
      if (strcmp(rows[i].known[k].hash, hash) == 0) {
        return &rows[i];
      }
    }
  }
  return NULL;
}
