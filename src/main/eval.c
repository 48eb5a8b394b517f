/* tessera eval */
#include "base/log.h"
#include "base/memory.h"
#include "main/command.h"
#include "train/train.h"

#include <math.h>
#include <string.h>

static void print_loss(double loss, int64_t batches) {
  printf("loss %.6f nats a token, perplexity %.4f (%lld global batches)\n", loss, exp(loss), (long long) batches);
}

static void print_loss_json(double loss, int64_t batches) {
  char a[32], b[32];
  printf("{\"loss\": %s, \"perplexity\": %s, \"batches\": %lld}\n", ts_json_number(loss, a),
         ts_json_number(exp(loss), b), (long long) batches);
}

static int evaluate_checkpoint(ts_world *world, ts_deck *deck, const char *checkpoint, bool json, ts_error *err) {
  ts_data *data = NULL;
  ts_engine *engine = NULL;
  const ts_engine_options wanted = {.abilities = TS_CAN_EVALUATE};
  double loss = 0;
  int64_t batches = 0;
  ts_status status = ts_data_open_deck(world, deck, &data, err);
  status = status == TS_OK ? ts_create_engine(world, deck, &wanted, checkpoint, &engine, err) : status;
  status = status == TS_OK ? ts_validate(engine, world, deck, data, &loss, &batches, err) : status;
  if (status == TS_OK && ts_world_rank(world) == 0) {
    (json ? print_loss_json : print_loss)(loss, batches);
  }
  ts_engine_destroy(&engine);
  ts_data_close(&data);
  return status;
}

int ts_main_eval(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  ts_deck *deck = NULL;
  char *checkpoint = NULL;
  const char *format = ts_argument(arguments, "--format");
  bool json = strcmp(format, "json") == 0;
  int code =
      json || strcmp(format, "text") == 0 ? 0 : ts_error_add(err, "--format %s: text or json is accepted", format);
  code = code == 0 ? (int) ts_read_deck_or_model(arguments, world, &deck, &checkpoint, err) : code;
  code = code == 0 ? evaluate_checkpoint(world, deck, checkpoint, json, err) : code;
  ts_free(checkpoint);
  ts_deck_destroy(&deck);
  return code;
}
