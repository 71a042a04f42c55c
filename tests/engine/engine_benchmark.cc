// Measures the engine in process, without server or scheduler: prefill and decode of one model at
// several batch sizes and contexts. Prints one JSON object per line and figure; scripts/bench puts
// them beside a peer's.
//
//   engine_benchmark --model FILE [--dtype stored|bfloat16|float32] [--threads N] [--policy
//   full|h2o|...] [--repeat N]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "engine/engine.h"
#include "tests/engine/equal_batch.h"

namespace hydrant {
namespace {

void Report(const char* what, int batch, int context, const std::string& dtype,
            const std::string& policy, double tokens_per_s) {
  std::printf(
      "{\"what\": \"%s\", \"batch\": %d, \"context\": %d, \"dtype\": \"%s\", \"policy\": \"%s\", "
      "\"tokens_per_s\": %.1f}\n",
      what, batch, context, dtype.c_str(), policy.c_str(), tokens_per_s);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {{"model", ""},    {"dtype", "stored"},
                                              {"threads", "2"}, {"policy", "full"},
                                              {"repeat", "3"},  {"seconds", "2"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strncmp(argv[i], "--", 2) != 0 || flags.count(argv[i] + 2) == 0) {
      std::fprintf(stderr, "unknown flag %s\n", argv[i]);
      return 1;
    }
    flags[argv[i] + 2] = argv[i + 1];
  }
  absl::StatusOr<std::unique_ptr<ModelSource>> source =
      OpenModel(flags["model"], LoadFormat::kAuto);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", std::string(source.status().message()).c_str());
    return 1;
  }
  const std::map<std::string, WeightDType> dtypes = {{"stored", WeightDType::kStored},
                                                     {"bfloat16", WeightDType::kBFloat16},
                                                     {"float32", WeightDType::kFloat32}};
  EngineOptions options;
  options.num_threads = std::atoi(flags["threads"].c_str());
  options.dtype = dtypes.at(flags["dtype"]);
  options.max_num_seqs = 32;
  const ModelConfig& config = (*source)->config();
  options.num_blocks_override = 32 * 60 * config.num_layers * config.num_kv_heads;
  auto engine =
      Engine::Create(std::shared_ptr<const ModelSource>(*std::move(source)), options, nullptr);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", std::string(engine.status().message()).c_str());
    return 1;
  }
  std::fprintf(stderr, "%s, %.0f MB of weights\n", (*engine)->Description().c_str(),
               (*engine)->weight_bytes() / 1e6);
  const int repeat = std::atoi(flags["repeat"].c_str());
  const auto best =
      [&](auto measure) {  // the fastest of the repeats: others are noise of the machine
        double seconds = 1e30;
        for (int i = 0; i < repeat; ++i) seconds = std::min(seconds, measure());
        return seconds;
      };
  for (const int n : {512, 1024}) {
    const double seconds = best([&] {
      EqualBatch bench(engine->get(), flags["policy"], 1, n, 16);
      return bench.Prefill(n);
    });
    Report("prefill", 1, n, flags["dtype"], flags["policy"], n / seconds);
  }
  for (const int context : {0, 512}) {
    for (const int batch : {1, 4, 8, 16, 32}) {
      const int steps = batch == 1 ? 64 : 32;
      // One prompt serves all repeats: they follow each other, so the context grows a little.
      EqualBatch bench(engine->get(), flags["policy"], batch, context, repeat * steps);
      if (context > 0) bench.Prefill(context);
      int at = context;
      const double seconds = best([&] {
        const double taken = bench.Decode(at, steps);
        at += steps;
        return taken;
      });
      Report("decode", batch, context, flags["dtype"], flags["policy"], batch * steps / seconds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
