/* DeepSpeed's keys for looking at a run: what it sends, computes, holds. */
#include "deck/schema_rows.h"

static const ts_key rows[] = {
    FLAG(memory_breakdown, "false", 0,
         "Print what memory is planned for, and what is used after the first step and with each printed line."),
    FLAG(dump_state, "false", 0, "Print the whole deck as it is understood, the grid and the programs before a run."),

    FLAG(comms_logger.enabled, "false", 0,
         "Print a table of what ranks sent one another at the end, and write it to comms.csv of the run's directory."),
    FLAG(comms_logger.verbose, "false", 0, "Also a line for each message of the third step, and of each 200th behind."),
    FLAG(comms_logger.prof_all, "true", 0, "Count all operations; false: those of prof_ops."),
    STRINGS(comms_logger.prof_ops, "[]", TS_KEY_ONE,
            "The operations that count where prof_all is false, by DeepSpeed's names: all_reduce, "
            "all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single, all_to_all (rows of experts), send, "
            "recv."),
    FLAG(comms_logger.debug, "false", 0, "A row for each node of the graph that sends, by its name."),

    FLAG(flops_profiler.enabled, "false", 0, "Print FLOPs, times and rates of a step, by module."),
    INTEGER(flops_profiler.profile_step, "1", 0, LARGE, 0,
            "Steps done before the one that is observed, as DeepSpeed counts: 1 is the second step."),
    NUMBER(flops_profiler.recompute_fwd_factor, "0.0", 0, 1000, 0,
           "Forwards that the backward is said to repeat, for the rates of DeepSpeed's formula."),
    INTEGER(flops_profiler.module_depth, "-1", -1, SIZE, 0,
            "How deep modules are listed; -1: to the innermost, 0: the model alone."),
    INTEGER(flops_profiler.top_modules, "1", 1, SIZE, 0, "Of each depth list so many kinds of modules."),
    FLAG(flops_profiler.detailed, "true", 0, "Also list every module."),
    WORD(flops_profiler.output_file, "", NULL, NULL, 0, "The file for all that; empty: print it."),
};

TABLE(ts_keys_observe, rows);
