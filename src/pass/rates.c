#include "pass/rates.h"

/* A core of the last ten years with its share of memory; a GPU of today's. */
static const ts_rates nominal[2] = {{.product = 1e11, .memory = 2e10, .link = 4e9},
                                    {.product = 4e14, .memory = 2e12, .link = 2e11}};

ts_rates ts_rates_of(const ts_deck *deck, const ts_backend *backend) {
  const ts_rates *n = &nominal[backend->device != NULL];
  return (ts_rates){.product = deck->machine.product_flops > 0 ? deck->machine.product_flops : n->product,
                    .memory = deck->machine.memory_bandwidth > 0 ? deck->machine.memory_bandwidth : n->memory,
                    .link = deck->machine.link_bandwidth > 0 ? deck->machine.link_bandwidth : n->link};
}
