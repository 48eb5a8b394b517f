// doc/examples/first.c in C++: the header compiles, and the numbers are the same.
#include <tessera.h>

#include <cstdio>
#include <vector>

namespace {

constexpr std::int64_t vocabulary = 32, length = 16, width = 32;

void write_model(ts_builder *b, void *) {
  const std::int64_t table[] = {vocabulary, width};
  const ts_tid tokens = ts_builder_input(b, "tokens", TS_I32, 1, &length, 1);
  const ts_tid labels = ts_builder_input(b, "labels", TS_I32, 1, &length, 1);
  ts_builder_unit(b, "embed");
  ts_tid x = ts_builder_embedding(b, "tokens", tokens, vocabulary, width);
  ts_builder_unit(b, "block");
  ts_tid y = ts_builder_layernorm(b, "norm", x, 1e-5);
  y = ts_builder_activation(b, "act", ts_builder_linear(b, "up", y, 4 * width, true), TS_ACTIVATION_GELU);
  x = ts_builder_add(b, "add", x, ts_builder_linear(b, "down", y, width, true));
  ts_builder_unit(b, "head");
  ts_builder_head_loss(b, "loss", x, ts_builder_parameter(b, "weight", 2, table, ts_init{TS_INIT_NORMAL, 0.02}), labels,
                       1);
}

struct source {
  std::int64_t step = 0;
  std::vector<std::int32_t> tokens, labels;

  static void feed(ts_engine *engine, std::int64_t micro_batch, void *user) {
    auto &s = *static_cast<source *>(user);
    const auto each = ts_train_micro_batch_size(engine);
    const auto n = s.step * ts_gradient_accumulation_steps(engine) + micro_batch;
    const auto first = (n * ts_data_parallel_size(engine) + ts_data_parallel_rank(engine)) * each;
    s.tokens.clear();
    s.labels.clear();
    for (std::int64_t i = 0; i < each * length; ++i) {
      s.tokens.push_back(static_cast<std::int32_t>(((first + i / length) * 7 + 3 * (i % length)) % vocabulary));
      s.labels.push_back((s.tokens.back() + 3) % static_cast<std::int32_t>(vocabulary));
    }
    ts_set_input(engine, "tokens", s.tokens.data(), nullptr);
    ts_set_input(engine, "labels", s.labels.data(), nullptr);
  }
};

} // namespace

int main(int argc, char **argv) {
  int provided;
  ts_mpi_prepare();
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  ts_world *world = nullptr;
  ts_deck *deck = nullptr;
  ts_engine *engine = nullptr;
  ts_error err{};
  const ts_own_model model{"counter", write_model, nullptr};
  source from;
  const ts_feed feed{source::feed, nullptr, &from};
  bool ok = ts_world_join(MPI_COMM_WORLD, &world, &err) == TS_OK &&
            ts_deck_read_shared(world, argv[1], nullptr, 0, &deck, &err) == TS_OK &&
            ts_initialize(&model, deck, world, TS_CAN_TRAIN, &engine, &err) == TS_OK;
  for (ts_step_result r; ok && from.step < 60; ++from.step) {
    ok = ts_train_batch(engine, &feed, &r, &err) == TS_OK;
    if (ok && ts_world_rank(world) == 0 && (from.step + 1) % 10 == 0) {
      std::printf("step %lld  loss %.6f\n", static_cast<long long>(from.step + 1), r.loss);
    }
  }
  if (!ok) {
    std::fprintf(stderr, "%s\n", err.text);
  }
  ts_error_clear(&err);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  ts_world_destroy(&world);
  MPI_Finalize();
  ts_mpi_conclude();
  return ok ? 0 : 2;
}
