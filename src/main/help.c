/* Help and man pages, from the table. */
#include "main/command.h"

#include <string.h>

static void add_options(const ts_command *command, ts_text *to) {
  for (const ts_option *o = command->options; o->name != NULL; ++o) {
    char left[64];
    snprintf(left, sizeof left, "%s %s", o->name, o->argument != NULL ? o->argument : "");
    ts_text_add(to, "  %-24s %s", left, o->help);
    if (o->fallback != NULL) {
      ts_text_add(to, " (default: %s)", o->fallback);
    }
    ts_text_add(to, "\n");
  }
  ts_text_add(to, "  %-24s %s\n", "--help", "print this help");
}

/* Text in lines of at most 78 characters. */
static void add_wrapped(ts_text *to, const char *text) {
  size_t column = 0;
  while (*text != 0) {
    while (*text == ' ') {
      ++text;
    }
    size_t word = strcspn(text, " ");
    if (column > 0 && column + 1 + word > 78) {
      ts_text_add(to, "\n");
      column = 0;
    }
    ts_text_add(to, column > 0 ? " %.*s" : "%.*s", (int) word, text);
    column += word + (column > 0);
    text += word;
  }
  ts_text_add(to, "\n");
}

void ts_help_command(const ts_command *command, ts_text *to) {
  ts_text_add(to, "usage: tessera %s %s%s[OPTION]...\n\n", command->name, command->usage, *command->usage ? " " : "");
  add_wrapped(to, command->description);
  ts_text_add(to, "\nOptions:\n");
  add_options(command, to);
  ts_text_add(to, "\nExample:\n  %s\n", command->example);
}

void ts_help_program(ts_text *to) {
  ts_text_add(to, "Tessera %s trains transformer language models from one input deck.\n\n", PACKAGE_VERSION);
  ts_text_add(to,
              "usage: tessera COMMAND ...   or, on several ranks,   mpiexec -n N tessera COMMAND ...\n\nCommands:\n");
  for (const ts_command *c = ts_commands; c->name != NULL; ++c) {
    ts_text_add(to, "  %-10s %s\n", c->name, c->summary);
  }
  ts_text_add(to, "\n`tessera COMMAND --help` says more of each.  Exit codes: 0 finished; 2 the input is wrong,\n"
                  "or there was no room to save; 75 unfinished and saved; 1 or a signal otherwise.\n");
}

/* roff takes a leading dot or quote, and backslashes, as its own. */
static void add_roff(ts_text *to, const char *text) {
  if (*text == '.' || *text == '\'') {
    ts_text_add(to, "\\&");
  }
  for (; *text != 0; ++text) {
    ts_text_add(to, *text == '\\' ? "\\e" : *text == '-' ? "\\-" : "%c", *text);
  }
}

static void man_options(const ts_command *command, ts_text *to) {
  ts_text_add(to, ".SH OPTIONS\n");
  for (const ts_option *o = command->options; o->name != NULL; ++o) {
    ts_text_add(to, ".TP\n.B ");
    add_roff(to, o->name);
    if (o->argument != NULL) {
      ts_text_add(to, " \\fI%s\\fP", o->argument);
    }
    ts_text_add(to, "\n");
    add_roff(to, o->help);
    if (o->fallback != NULL) {
      ts_text_add(to, " (default: %s)", o->fallback);
    }
    ts_text_add(to, "\n");
  }
}

void ts_help_man(const ts_command *command, ts_text *to) {
  if (command == NULL) {
    ts_text_add(to, ".TH TESSERA 1 \"\" \"Tessera %s\"\n.SH NAME\ntessera \\- train transformer language models\n",
                PACKAGE_VERSION);
    ts_text_add(to, ".SH SYNOPSIS\n.B tessera\n.I COMMAND\n[\\fIOPTION\\fP]...\n.SH COMMANDS\n");
    for (const ts_command *c = ts_commands; c->name != NULL; ++c) {
      ts_text_add(to, ".TP\n.BR tessera\\-%s (1)\n", c->name);
      add_roff(to, c->summary);
      ts_text_add(to, "\n");
    }
    ts_text_add(to, ".SH EXIT STATUS\n0 finished; 2 the input is wrong, or there was no room to save; 75 unfinished "
                    "and saved; 1 or a signal otherwise.\n");
    return;
  }
  ts_text_add(to, ".TH TESSERA\\-%s 1 \"\" \"Tessera %s\"\n.SH NAME\ntessera\\-%s \\- ", command->name, PACKAGE_VERSION,
              command->name);
  add_roff(to, command->summary);
  ts_text_add(to, "\n.SH SYNOPSIS\n.B tessera %s\n%s [\\fIOPTION\\fP]...\n.SH DESCRIPTION\n", command->name,
              command->usage);
  add_roff(to, command->description);
  ts_text_add(to, "\n");
  man_options(command, to);
  ts_text_add(to, ".SH EXAMPLE\n.nf\n");
  add_roff(to, command->example);
  ts_text_add(to, "\n.fi\n.SH SEE ALSO\n.BR tessera (1)\n");
}
