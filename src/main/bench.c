/* tessera bench: measures this machine for `tessera plan --machine`. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/measure.h"
#include "main/command.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

static void set_string(char **to, const char *text) {
  ts_free(*to);
  *to = ts_strdup(text);
}

static void note_machine(ts_machine *machine, const ts_backend *backend) {
  time_t now = time(NULL);
  struct tm local;
  char date[32] = "unknown";
  if (localtime_r(&now, &local) != NULL) {
    strftime(date, sizeof date, "%Y-%m-%d", &local);
  }
  set_string(&machine->backend, backend->name);
  set_string(&machine->device, backend->describe());
  set_string(&machine->libraries, ts_world_libraries());
  set_string(&machine->date, date);
}

/* A file that is there is added to: what it has of the same ranks and threads is replaced. */
static ts_status read_file(const char *path, const ts_backend *backend, ts_machine *machine, ts_error *err) {
  ts_status status = ts_try_writing(path, err);
  if (status != TS_OK || access(path, F_OK) != 0) {
    return status;
  }
  status = ts_machine_read(path, machine, err);
  if (status != TS_OK) {
    return ts_error_add(err, "%s is there already and cannot be added to: give -o another name, or remove it", path);
  }
  if (status == TS_OK &&
      (strcmp(machine->backend, backend->name) != 0 || strcmp(machine->device, backend->describe()) != 0)) {
    status = ts_error_add(err, "%s is of another device (%s; here: %s): give -o another name", path, machine->device,
                          backend->describe());
  }
  return status;
}

static ts_status write_machine(ts_machine *machine, const ts_measuring *of, const char *path, ts_error *err) {
  note_machine(machine, of->backend);
  return ts_machine_write(machine, path, err);
}

/* What is done, and how long it took. */
static double say_time(const char *what, double start) {
  double now = ts_seconds();
  ts_log(TS_LOG_INFO, "%s: %.1f s", what, now - start);
  return now;
}

static ts_status measure_all(const ts_measuring *of, const char *files, ts_measured *measured, ts_error *err) {
  double start = ts_seconds();
  measured->n = 0;
  ts_measure_floors(of, measured);
  start = say_time("the best product, a copy", start);
  ts_status status = ts_measure_copies(of, files, measured, err);
  if (status != TS_OK) {
    return status;
  }
  start = say_time("copies between memories, files", start);
  ts_measure_products(of, measured);
  start = say_time("products", start);
  ts_measure_messages(of, measured);
  start = say_time("messages", start);
  status = ts_measure_models(of, measured, err);
  (void) say_time("steps of small models", start);
  return status;
}

/* How far what will be planned by these times is off. */
static void say_step(const ts_measured_step *step) {
  ts_log(TS_LOG_INFO, "a step: %.1f ms, the fastest quarter of %d; planned by its nodes: %.1f ms (%+.1f %%)%s",
         1e3 * step->measured, step->turns, 1e3 * step->planned, 100 * (step->planned / step->measured - 1),
         step->in_turns ? "" : ", which were observed behind these, by an engine of their own");
}

/* The deck that is given, if one is: where it runs and with how many threads is where and with how many all is
 * measured. */
static ts_status read_own_deck(const ts_arguments *arguments, ts_measuring *of, ts_deck **deck, ts_error *err) {
  if (arguments->n_positional == 0) {
    return arguments->n_sets == 0 ? TS_OK : ts_error_add(err, "--set changes a DECK, and none is given");
  }
  ts_status status = ts_read_deck(arguments, of->world, deck, err);
  if (status == TS_OK) {
    ts_deck *d = *deck;
    if (strcmp(of->device, "auto") != 0) {
      ts_free(d->run.device);
      d->run.device = ts_strdup(of->device);
    }
    of->device = d->run.device;
    of->threads = (int) d->run.threads;
  }
  return status;
}

int ts_main_bench(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  const char *path = ts_argument(arguments, "-o");
  ts_measuring of = {.world = world,
                     .device = ts_argument(arguments, "--target"),
                     .low = TS_BF16,
                     .quick = ts_argument(arguments, "--quick") != NULL};
  ts_machine machine = {0};
  ts_deck *deck = NULL;
  double start = ts_seconds();
  bool first = ts_world_rank(world) == 0;
  int ranks = ts_world_local_size(world);
  ts_status status = read_own_deck(arguments, &of, &deck, err);
  status = status == TS_OK ? ts_measure_open(&of, err) : status;
  if (status != TS_OK) {
    ts_deck_destroy(&deck);
    return status;
  }
  status = ts_world_agree(world, first ? read_file(path, of.backend, &machine, err) : TS_OK, err);
  if (status == TS_OK) {
    ts_measured *measured = ts_machine_of(&machine, ranks, of.threads);
    int known = measured->n > 0 && deck != NULL, *all = ts_world_gather(world, &known, sizeof known);
    if (!all[0]) {
      status = measure_all(&of, ts_argument(arguments, "--files"), measured, err);
      status = ts_world_agree(world, status == TS_OK && first ? write_machine(&machine, &of, path, err) : status, err);
    }
    if (status == TS_OK && deck != NULL) {
      ts_log(TS_LOG_INFO, "steps of %s", arguments->positional[0]);
      ts_measured_step step;
      status = ts_measure_deck(world, deck, measured, &step, err);
      if (status == TS_OK && first) {
        say_step(&step);
        status = write_machine(&machine, &of, path, err);
      }
    }
    ts_free(all);
    if (status == TS_OK && first) {
      ts_log(TS_LOG_INFO, "%s: %d samples of %d rank%s a node x %d thread%s, in %.0f s", path, measured->n, ranks,
             ranks > 1 ? "s" : "", of.threads, of.threads > 1 ? "s" : "", ts_seconds() - start);
    }
    status = ts_world_agree(world, status, err);
  }
  ts_deck_destroy(&deck);
  ts_machine_clear(&machine);
  return status;
}
