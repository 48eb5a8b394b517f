#include "engine/identity.h"

#include "base/log.h"
#include "base/memory.h"
#include "io/checkpoint.h"
#include "io/mapping.h"

#include <pthread.h>
#include <string.h>
#include <xxhash.h>

/* ---- comparing ---- */

enum { MOST_PLACES = 8, MOST_VALUES = 8 };

/* "node0 (ranks 0-3), node1 (ranks 4-7)": those with rank \a like's hash, where the ranks of a node follow each
 * other. */
static void add_places(const ts_world *world, const uint64_t *hash, int like, ts_text *to) {
  int ranks = ts_world_size(world), places = 0;
  for (int first = 0, last; first < ranks; first = last) {
    last = first + 1;
    if (hash[first] != hash[like]) {
      continue;
    }
    while (last < ranks && hash[last] == hash[like] && ts_world_node(world, last) == ts_world_node(world, first)) {
      ++last;
    }
    if (places++ < MOST_PLACES) {
      ts_text_add(to, "%s%s (rank%s %d", places > 1 ? ", " : "", ts_world_node_name(world, first),
                  last - first > 1 ? "s" : "", first);
      ts_text_add(to, last - first > 1 ? "-%d)" : ")", last - 1);
    }
  }
  if (places > MOST_PLACES) {
    ts_text_add(to, " and %d more", places - MOST_PLACES);
  }
}

static bool is_first_of_its_value(const uint64_t *hash, int rank) {
  for (int r = 0; r < rank; ++r) {
    if (hash[r] == hash[rank]) {
      return false;
    }
  }
  return true;
}

static void describe_difference(ts_world *world, const ts_trait *trait, const uint64_t *hash, ts_text *to) {
  int values = 0;
  ts_text_add(to, "%s: ", trait->name);
  for (int r = 0; r < ts_world_size(world) && values < MOST_VALUES; ++r) {
    if (is_first_of_its_value(hash, r)) {
      char *value = ts_world_share_text(world, trait->value, r);
      ts_text_add(to, "%s", values++ > 0 ? "; " : "");
      add_places(world, hash, r, to);
      ts_text_add(to, " has %s", value);
      ts_free(value);
    }
  }
}

bool ts_identity_compare(ts_world *world, const ts_trait *trait, ts_text *difference) {
  uint64_t mine = XXH3_64bits(trait->value, strlen(trait->value)), *hash = ts_world_gather(world, &mine, sizeof mine);
  bool same = true;
  for (int r = 1; r < ts_world_size(world); ++r) {
    same = same && hash[r] == hash[0];
  }
  if (!same) {
    describe_difference(world, trait, hash, difference);
  }
  ts_free(hash);
  return same;
}

/* ---- the facts ---- */

static char build[17] = "unknown";

static void hash_program(void) {
  ts_mapping program;
  if (ts_mapping_open("/proc/self/exe", &program, NULL) == TS_OK) {
    snprintf(build, sizeof build, "%016llx", (unsigned long long) XXH3_64bits(program.bytes, program.size));
    ts_mapping_close(&program);
  }
}

const char *ts_identity_build(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, hash_program);
  return build;
}

ts_status ts_identity_check_build(ts_world *world, ts_error *err) {
  char *value = ts_format("%s %s", PACKAGE_VERSION, ts_identity_build());
  ts_text difference = {0};
  ts_status status = TS_OK;
  if (!ts_identity_compare(world, &(ts_trait){"build", value}, &difference)) {
    status =
        ts_error_add(err, "the ranks are not one program: %s: install the same tessera on every node", difference.text);
  }
  ts_text_free(&difference);
  ts_free(value);
  return status;
}

static ts_status check_deck(ts_world *world, const ts_deck *deck, ts_error *err) {
  ts_text text = {0}, difference = {0};
  ts_deck_print(deck, &text);
  char value[17];
  snprintf(value, sizeof value, "%016llx", (unsigned long long) XXH3_64bits(text.text, text.length));
  ts_status status = TS_OK;
  if (!ts_identity_compare(world, &(ts_trait){"hash of the deck", value}, &difference)) {
    status = ts_error_add(err, "the ranks read different decks: %s", difference.text);
  }
  ts_text_free(&difference);
  ts_text_free(&text);
  return status;
}

ts_status ts_identity_check(ts_world *world, const ts_deck *deck, const ts_backend *backend, ts_error *err) {
  const ts_trait traits[] = {
      {"communication", ts_world_libraries()},
      {"HDF5", ts_hdf5_library()},
      {backend->device != NULL ? "device and its libraries" : "processor and its libraries", backend->describe()}};
  for (size_t i = 0; i < sizeof traits / sizeof *traits; ++i) {
    ts_text difference = {0};
    if (!ts_identity_compare(world, &traits[i], &difference)) {
      bool copies = deck->tensor_parallel.autotp_size > 1;
      ts_log(TS_LOG_WARNING, "nodes differ (another job on other nodes may give other last digits): %s%s",
             difference.text,
             copies ? "; ranks that share a model should have the same, or what is whole drifts apart" : "");
    }
    ts_text_free(&difference);
  }
  return check_deck(world, deck, err);
}
