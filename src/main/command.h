/** \file
 * The subcommands of `tessera`: a row each.  The same rows drive the parser, `--help` and the man pages.
 */
#ifndef TS_MAIN_COMMAND_H
#define TS_MAIN_COMMAND_H

#include "base/status.h"
#include "base/text.h"
#include "comm/comm.h"
#include "deck/deck.h"
#include "engine/workings.h"

#include <stdbool.h>

typedef struct ts_option {
  const char *name; /**< "--ranks" */
  /** What the value is called in the help; NULL for a switch; "[FILE.svg]" or "[text|csv]" for one that may be left
   * out: it is the next word where that ends so, or is one of them. */
  const char *argument;
  const char *fallback; /**< Value when it is not given; NULL for none. */
  const char *help;
  bool many; /**< May be given several times (--set). */
} ts_option;

typedef struct ts_arguments {
  const struct ts_command *command;
  char **positional; /**< Owned array of borrowed strings. */
  int n_positional;
  char **sets; /**< Values of --set. */
  int n_sets;
  const char **value; /**< Per option of the command: the value, "" for a switch that was given, NULL when absent. */
} ts_arguments;

/** A subcommand.  \return its exit code. */
typedef int ts_command_run(const ts_arguments *arguments, ts_world *world, ts_error *err);

typedef struct ts_command {
  const char *name;
  ts_command_run *run;
  const char *usage; /**< Positional arguments, as in a synopsis. */
  int min_positional, max_positional;
  const char *summary; /**< One line. */
  const char *description;
  const ts_option *options; /**< Ended by a NULL name. */
  const char *example;
  bool parallel; /**< Runs under mpiexec on several ranks; the others refuse more than one. */
} ts_command;

/** The table, ended by a NULL name. */
extern const ts_command ts_commands[];

/** The value of option \a name ("--ranks"): what was given, else the row's fallback. Not collective. */
const char *ts_argument(const ts_arguments *arguments, const char *name);

/** An option's value as an integer in [low, high]. Not collective.
 * \return TS_BAD_INPUT with the option and what is accepted. */
ts_status ts_argument_int(const ts_arguments *arguments, const char *name, int64_t low, int64_t high, int64_t *value,
                          ts_error *err);
ts_status ts_argument_double(const ts_arguments *arguments, const char *name, double low, double high, double *value,
                             ts_error *err);

/** The same of a size in bytes, at least 1: "5GB", "500MB", "1.5GiB", or a number. Not collective. */
ts_status ts_argument_bytes(const ts_arguments *arguments, const char *name, int64_t *bytes, ts_error *err);

/** Parse the words after the subcommand. Not collective.
 * \return TS_BAD_INPUT for an unknown option (with the nearest), a missing value, too few or many arguments. */
ts_status ts_arguments_parse(const ts_command *command, int argc, char **argv, ts_arguments *out, ts_error *err);

/** Free what parsing allocated. Not collective. */
void ts_arguments_clear(ts_arguments *arguments);

/** `tessera --help`, `tessera COMMAND --help`, and the man page (roff) of a command or, with NULL, of the program. Not
 * collective. */
void ts_help_program(ts_text *to);
void ts_help_command(const ts_command *command, ts_text *to);
void ts_help_man(const ts_command *command, ts_text *to);

/** Say what a deck has that is without effect, and the like; on standard error where \a stdout_is_result, as stdout
 * belongs to what eval, plan and the others print then. Not collective. */
void ts_say_notes(const ts_deck *deck, bool stdout_is_result);

/** Read the deck named by the first positional argument with the --set values on rank 0 and give it to every rank.
 * \param [in] world  NULL for a single process without MPI. Collective over the world.
 * \return TS_BAD_INPUT, agreed. */
ts_status ts_read_deck(const ts_arguments *arguments, ts_world *world, ts_deck **deck, ts_error *err);

/** As ts_read_deck, where the first argument may also be a model: a run or checkpoint directory (whose deck is read),
 * or a Hugging Face directory (whose deck is `model = { from = ...; }`).
 * \param [out] checkpoint  Owned by the caller (ts_free): what to load the weights from; NULL for none.
 * Collective over the world.  \return TS_BAD_INPUT, agreed; also for a program's own model, which no command has. */
ts_status ts_read_deck_or_model(const ts_arguments *arguments, ts_world *world, ts_deck **deck, char **checkpoint,
                                ts_error *err);

/** An engine with the weights of \a checkpoint or, when that is NULL, of the deck (with a warning when they come from
 * nowhere but the seed), for commands that train nothing: one micro-batch a rank, as large as the deck says (1 when it
 * does not), whatever the batch triple is for training.  Collective over the world.
 * \param [in] wanted  Of which abilities, context and texts are read.
 * \return TS_BAD_INPUT, agreed; *engine is NULL then. */
ts_status ts_create_engine(ts_world *world, ts_deck *deck, const ts_engine_options *wanted, const char *checkpoint,
                           ts_engine **engine, ts_error *err);

/** The subcommands. `train`, `bench`, `eval` and `generate` are collective over the world; the others not
 * collective. */
ts_command_run ts_main_train, ts_main_plan, ts_main_tune, ts_main_bench, ts_main_graph, ts_main_eval, ts_main_generate,
    ts_main_tokenize, ts_main_compare, ts_main_deck, ts_main_keys, ts_main_plot, ts_main_report, ts_main_status,
    ts_main_verify, ts_main_watch, ts_main_zero_to_fp32;

#endif
