#include "base/memory.h"
#include "main/command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int count_options(const ts_command *command) {
  int n = 0;
  while (command->options[n].name != NULL) {
    ++n;
  }
  return n;
}

/* DeepSpeed's programs have an underscore where these have a dash. */
static bool is_spelt(const char *option, const char *word, size_t length) {
  bool same = strlen(option) == length;
  for (size_t i = 0; i < length && same; ++i) {
    same = option[i] == word[i] || (i > 1 && option[i] == '-' && word[i] == '_');
  }
  return same;
}

static int find_option(const ts_command *command, const char *name, size_t length) {
  for (int i = 0; command->options[i].name != NULL; ++i) {
    if (is_spelt(command->options[i].name, name, length)) {
      return i;
    }
  }
  return -1;
}

static ts_status unknown_option(const ts_command *command, const char *word, ts_error *err) {
  int n = count_options(command);
  const char **names = ts_malloc(((size_t) n + 1) * sizeof *names);
  for (int i = 0; i < n; ++i) {
    names[i] = command->options[i].name;
  }
  const char *near = ts_nearest(word, names, (size_t) n);
  ts_status status = near != NULL
                         ? ts_error_add(err, "%s: unknown option %s; did you mean %s?", command->name, word, near)
                         : ts_error_add(err, "%s: unknown option %s; `tessera %s --help` lists them", command->name,
                                        word, command->name);
  ts_free(names);
  return status;
}

/* Words with one dash are arguments, unless the command has such an option. */
static bool is_option(const ts_command *command, const char *word) {
  return word[0] == '-' && (word[1] == '-' || find_option(command, word, strlen(word)) >= 0);
}

static bool may_be_left_out(const ts_option *option) {
  return option->argument != NULL && option->argument[0] == '[';
}

/* Is a word one of "[text|csv]"? */
static bool is_one_of(const char *argument, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = argument; *at == '[' || *at == '|'; at += 1 + strcspn(at + 1, "|]")) {
    if (strcspn(at + 1, "|]") == length && strncmp(at + 1, word, length) == 0) {
      return true;
    }
  }
  return false;
}

/* Does a word end as the value that may be left out: ".svg" of "[FILE.svg]"; or is it one of several? */
static bool may_be_value(const char *argument, const char *word) {
  if (strchr(argument, '|') != NULL) {
    return is_one_of(argument, word);
  }
  const char *ending = strrchr(argument, '.'), *end = strrchr(word, '.');
  size_t length = strcspn(ending, "]");
  return end != NULL && end > word && strlen(end) == length && strncasecmp(end, ending, length) == 0;
}

/* One option at argv[*i]; *i is left at the last word it took. */
static ts_status take_option(ts_arguments *out, int argc, char **argv, int *i, ts_error *err) {
  const ts_command *command = out->command;
  const char *word = argv[*i], *equals = strchr(word, '=');
  int index = find_option(command, word, equals != NULL ? (size_t) (equals - word) : strlen(word));
  if (index < 0) {
    return unknown_option(command, word, err);
  }
  const ts_option *option = &command->options[index];
  const char *value = "";
  if (option->argument == NULL) {
    if (equals != NULL) {
      return ts_error_add(err, "%s: %s takes no value", command->name, option->name);
    }
  } else if (equals != NULL) {
    value = equals + 1;
  } else if (*i + 1 < argc && (!may_be_left_out(option) || may_be_value(option->argument, argv[*i + 1]))) {
    value = argv[++*i];
  } else if (!may_be_left_out(option)) {
    return ts_error_add(err, "%s: %s needs a value: %s %s", command->name, option->name, option->name,
                        option->argument);
  }
  if (option->many) {
    out->sets[out->n_sets++] = (char *) value;
  } else if (out->value[index] != NULL) {
    return ts_error_add(err, "%s: %s is given twice", command->name, option->name);
  }
  out->value[index] = value;
  return TS_OK;
}

ts_status ts_arguments_parse(const ts_command *command, int argc, char **argv, ts_arguments *out, ts_error *err) {
  *out = (ts_arguments){.command = command};
  out->positional = ts_calloc((size_t) argc + 1, sizeof *out->positional);
  out->sets = ts_calloc((size_t) argc + 1, sizeof *out->sets);
  out->value = ts_calloc((size_t) count_options(command) + 1, sizeof *out->value);
  ts_status status = TS_OK;
  bool options = true;
  for (int i = 0; i < argc && status == TS_OK; ++i) {
    if (options && strcmp(argv[i], "--") == 0) {
      options = false;
    } else if (options && is_option(command, argv[i])) {
      status = take_option(out, argc, argv, &i, err);
    } else {
      out->positional[out->n_positional++] = argv[i];
    }
  }
  if (status == TS_OK && (out->n_positional < command->min_positional || out->n_positional > command->max_positional)) {
    status = ts_error_add(err, "usage: tessera %s %s [OPTION]...; `tessera %s --help` says more", command->name,
                          command->usage, command->name);
  }
  return status;
}

void ts_arguments_clear(ts_arguments *arguments) {
  ts_free(arguments->positional);
  ts_free(arguments->sets);
  ts_free(arguments->value);
  *arguments = (ts_arguments){0};
}

const char *ts_argument(const ts_arguments *arguments, const char *name) {
  int index = find_option(arguments->command, name, strlen(name));
  TS_ASSERT(index >= 0);
  const char *value = arguments->value[index];
  return value != NULL ? value : arguments->command->options[index].fallback;
}

ts_status ts_argument_int(const ts_arguments *arguments, const char *name, int64_t low, int64_t high, int64_t *value,
                          ts_error *err) {
  const char *text = ts_argument(arguments, name);
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (end == text || *end != 0 || errno != 0 || number < low || number > high) {
    return ts_error_add(err, "%s %s: an integer from %lld to %lld is accepted", name, text, (long long) low,
                        (long long) high);
  }
  *value = number;
  return TS_OK;
}

ts_status ts_argument_double(const ts_arguments *arguments, const char *name, double low, double high, double *value,
                             ts_error *err) {
  const char *text = ts_argument(arguments, name);
  char *end;
  double number = strtod(text, &end);
  if (end == text || *end != 0 || !(number >= low && number <= high)) {
    return ts_error_add(err, "%s %s: a number from %g to %g is accepted", name, text, low, high);
  }
  *value = number;
  return TS_OK;
}

ts_status ts_argument_bytes(const ts_arguments *arguments, const char *name, int64_t *bytes, ts_error *err) {
  const char *word = ts_argument(arguments, name);
  return ts_parse_bytes(word, bytes)
             ? TS_OK
             : ts_error_add(err, "%s %s: a size such as 5GB, 500MB or 10MiB is accepted", name, word);
}
