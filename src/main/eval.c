/* tessera eval */
#include "base/log.h"
#include "base/memory.h"
#include "engine/train.h"
#include "main/command.h"

#include <math.h>
#include <string.h>

static int evaluate(ts_world *world, const ts_deck *deck, bool json, ts_error *err) {
  ts_data *data = NULL;
  ts_engine *engine = NULL;
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_EVALUATE};
  double loss = 0;
  int64_t batches = 0;
  ts_status status = ts_world_agree(world, ts_data_open_deck(deck, &data, err), err);
  status = status == TS_OK ? ts_engine_create(&options, &engine, err) : status;
  status = status == TS_OK ? ts_validate(engine, world, deck, data, &loss, &batches, err) : status;
  if (status == TS_OK && ts_world_rank(world) == 0) {
    printf(json ? "{\"loss\": %.17g, \"perplexity\": %.17g, \"batches\": %lld}\n"
                : "loss %.6f nats a token, perplexity %.4f (%lld global batches)\n",
           loss, exp(loss), (long long) batches);
  }
  ts_engine_destroy(&engine);
  ts_data_close(&data);
  return status;
}

int ts_main_eval(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  ts_deck *deck = NULL;
  const char *format = ts_argument(arguments, "--format");
  bool json = strcmp(format, "json") == 0;
  int code = json || strcmp(format, "text") == 0 ? 0 : ts_error_add(err, "--format %s: text or json is accepted", format);
  code = code == 0 ? (int) ts_read_deck(arguments, world, &deck, err) : code;
  if (code == 0) {
    ts_use_one_micro_batch(deck, ts_world_size(world));
    ts_warn_untrained(deck);
  }
  code = code == 0 ? evaluate(world, deck, json, err) : code;
  ts_deck_destroy(&deck);
  return code;
}
