/* The program: finds the subcommand, starts MPI where it is wanted, prints errors once. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/identity.h"
#include "main/command.h"
#include "slurm/launch.h"

#include <stdlib.h>
#include <string.h>

static const ts_command *find_command(const char *name) {
  for (const ts_command *c = ts_commands; c->name != NULL; ++c) {
    if (strcmp(c->name, name) == 0) {
      return c;
    }
  }
  return NULL;
}

static ts_status unknown_command(const char *name, ts_error *err) {
  const char *names[32];
  size_t n = 0;
  for (const ts_command *c = ts_commands; c->name != NULL && n < 32; ++c) {
    names[n++] = c->name;
  }
  const char *near = ts_nearest(name, names, n);
  return near != NULL ? ts_error_add(err, "unknown command %s; did you mean %s?", name, near)
                      : ts_error_add(err, "unknown command %s; `tessera --help` lists them", name);
}

static int print_whole(ts_text *text) {
  fputs(text->text != NULL ? text->text : "", stdout);
  ts_text_free(text);
  return fflush(stdout) == 0 ? 0 : 1;
}

static int fail_with(ts_error *err) {
  if (err->count > 0) {
    ts_log(TS_LOG_ERROR, "%s", err->text);
  }
  ts_error_clear(err);
  return TS_BAD_INPUT;
}

/* Help is asked for anywhere before a "--". */
static bool wants_help(int argc, char **argv) {
  for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; ++i) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      return true;
    }
  }
  return false;
}

/* `tessera man [COMMAND]`: for `make install`; not in the table because it is not for users. */
static int print_man(int argc, char **argv, ts_error *err) {
  ts_text text = {0};
  const ts_command *command = argc > 0 ? find_command(argv[0]) : NULL;
  if (argc > 0 && command == NULL) {
    unknown_command(argv[0], err);
    return fail_with(err);
  }
  ts_help_man(command, &text);
  return print_whole(&text);
}

static int run_command(const ts_command *command, int ranks, int argc, char **argv, ts_error *err) {
  if (!command->parallel && ranks > 1) {
    ts_error_add(err, "%s runs as one process: start it without %s", command->name, ts_launched()->launcher);
    return ts_launch_exit_code(fail_with(err));
  }
  ts_world *world = command->parallel ? ts_world_create(&argc, &argv) : NULL;
  if (world != NULL) {
    ts_log_configure(TS_LOG_INFO, ts_world_rank(world) == 0);
  }
  ts_arguments arguments;
  int code = TS_BAD_INPUT;
  bool one = world == NULL || ts_identity_check_build(world, err) == TS_OK;
  if (ts_arguments_parse(command, argc, argv, &arguments, err) == TS_OK && one) {
    code = command->run(&arguments, world, err);
  }
  ts_arguments_clear(&arguments);
  if (code == 0 && (fflush(stdout) != 0 || ferror(stdout) != 0)) {
    ts_log(TS_LOG_ERROR, "standard output cannot be written");
    code = 1;
  }
  if (code == TS_BAD_INPUT) {
    fail_with(err);
  }
  ts_error_clear(err);
  ts_world_destroy(&world);
  return ts_launch_exit_code(code);
}

/* A link to this program that has the name of a command is that command. */
static const ts_command *command_of_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return find_command(slash != NULL ? slash + 1 : path);
}

static int run_or_explain(const ts_command *command, int ranks, int argc, char **argv, ts_error *err) {
  if (wants_help(argc, argv)) {
    ts_text text = {0};
    ts_help_command(command, &text);
    return print_whole(&text);
  }
  return run_command(command, ranks, argc, argv, err);
}

int main(int argc, char **argv) {
  ts_error err = {0};
  ts_text text = {0};
  int ranks = ts_launched()->size;
  ts_log_configure(TS_LOG_INFO, ts_launched()->rank == 0);
  const ts_command *named = argc > 0 ? command_of_name(argv[0]) : NULL;
  if (named != NULL) {
    return run_or_explain(named, ranks, argc - 1, argv + 1, &err);
  }
  if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
    ts_help_program(&text);
    int code = print_whole(&text);
    return argc < 2 ? TS_BAD_INPUT : code;
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("tessera %s (build %s)\n", PACKAGE_VERSION, ts_identity_build());
    return 0;
  }
  if (strcmp(argv[1], "man") == 0) {
    return print_man(argc - 2, argv + 2, &err);
  }
  const ts_command *command = find_command(argv[1]);
  if (command == NULL) {
    unknown_command(argv[1], &err);
    return fail_with(&err);
  }
  return run_or_explain(command, ranks, argc - 2, argv + 2, &err);
}
