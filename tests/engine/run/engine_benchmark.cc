// Measures the engine in process, without server or scheduler: prefill and decode of one model at
// several batch sizes and contexts. Prints one JSON object per line and figure; scripts/bench
// compares them with a peer's.
//
//   engine_benchmark --model FILE [--dtype stored|bfloat16|float32] [--threads N]
//                    [--policy full|h2o|...] [--repeat N] [--prompts 512,1024]
//                    [--batches 1,4,8,16,32] [--contexts 0,512] [--steps 32]
//                    [--pages consecutive] [--kv-cache-dtype auto|int8|...]
//
// --pages shuffled: pages in random order, as in a pool that has been in use.
// The last line is memory: weights, pool, workspace, and the process's peak resident size.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "engine/cache/kv_cache_dtype.h"
#include "engine/run/engine.h"
#include "tests/engine/run/equal_batch.h"

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

std::vector<int> Numbers(const std::string& list) {
  std::vector<int> numbers;
  for (const auto part : absl::StrSplit(list, ',')) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) {
      std::fprintf(stderr, "not a list of numbers: %s\n", list.c_str());
      std::exit(1);
    }
  }
  return numbers;
}

using Flags = std::map<std::string, std::string>;

Flags ParseFlags(int argc, char** argv) {
  Flags flags = {
      {"model", ""},   {"dtype", "stored"},      {"threads", "2"},           {"policy", "full"},
      {"repeat", "3"}, {"prompts", "512,1024"},  {"batches", "1,4,8,16,32"}, {"contexts", "0,512"},
      {"steps", "32"}, {"pages", "consecutive"}, {"kv-cache-dtype", "auto"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strncmp(argv[i], "--", 2) != 0 || flags.count(argv[i] + 2) == 0) {
      std::fprintf(stderr, "unknown flag %s\n", argv[i]);
      std::exit(1);
    }
    flags[argv[i] + 2] = argv[i + 1];
  }
  return flags;
}

// Steps of one repeat; twice as many for a batch of one, which is fast.
int StepsOf(int steps, int batch) { return batch == 1 ? 2 * steps : steps; }

// Pages of the largest case.
int64_t PagesOfCases(Flags& flags, const ModelConfig& config, int repeat, int steps) {
  EngineLimits limits;
  limits.num_layers = config.num_layers;
  limits.num_kv_heads = config.num_kv_heads;
  const std::string& policy = flags["policy"];
  int64_t pages = 0;
  for (const int n : Numbers(flags["prompts"])) {
    pages = std::max(pages, EqualBatch::Pages(limits, policy, 1, n, 16));
  }
  for (const int context : Numbers(flags["contexts"])) {
    for (const int batch : Numbers(flags["batches"])) {
      pages = std::max(
          pages, EqualBatch::Pages(limits, policy, batch, context, repeat * StepsOf(steps, batch)));
    }
  }
  return pages;
}

// A value of /proc/self/status, in bytes.
int64_t ProcessBytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

void ReportMemory(const Engine& engine) {
  const EngineMemory memory = engine.memory();
  std::printf(
      "{\"what\": \"memory\", \"weight_bytes\": %lld, \"pool_bytes\": %lld, "
      "\"workspace_bytes\": %lld, \"resident_bytes\": %lld}\n",
      static_cast<long long>(memory.weights), static_cast<long long>(memory.kv_pool),
      static_cast<long long>(memory.workspace), static_cast<long long>(ProcessBytes("VmHWM")));
}

int Main(int argc, char** argv) {
  Flags flags = ParseFlags(argc, argv);
  absl::StatusOr<std::unique_ptr<ModelSource>> source =
      OpenModel(flags["model"], LoadFormat::kAuto);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", std::string(source.status().message()).c_str());
    return 1;
  }
  const std::map<std::string, WeightDType> dtypes = {{"stored", WeightDType::kStored},
                                                     {"bfloat16", WeightDType::kBFloat16},
                                                     {"float32", WeightDType::kFloat32}};
  const std::vector<int> batches = Numbers(flags["batches"]);
  const std::vector<int> prompts = Numbers(flags["prompts"]);
  const std::vector<int> contexts = Numbers(flags["contexts"]);
  const int repeat = std::atoi(flags["repeat"].c_str());
  const int least_steps = std::atoi(flags["steps"].c_str());
  EngineOptions options;
  options.num_threads = std::atoi(flags["threads"].c_str());
  options.dtype = dtypes.at(flags["dtype"]);
  options.kv_cache_dtype = KvCacheDTypeOf(flags["kv-cache-dtype"]);
  options.max_num_seqs = *std::max_element(batches.begin(), batches.end());
  options.max_model_len =
      std::max(*std::max_element(prompts.begin(), prompts.end()) + 16,
               *std::max_element(contexts.begin(), contexts.end()) + repeat * 2 * least_steps);
  options.num_blocks_override =
      static_cast<int>(PagesOfCases(flags, (*source)->config(), repeat, least_steps));
  auto engine =
      Engine::Create(std::shared_ptr<const ModelSource>(*std::move(source)), options, nullptr);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", std::string(engine.status().message()).c_str());
    return 1;
  }
  std::fprintf(stderr, "%s, %.0f MB of weights\n", (*engine)->Description().c_str(),
               (*engine)->memory().weights / 1e6);
  // The fastest repeat; the slower ones contain the machine's noise.
  const auto best = [&](auto measure) {
    double seconds = 1e30;
    for (int i = 0; i < repeat; ++i) seconds = std::min(seconds, measure());
    return seconds;
  };
  for (const int n : prompts) {
    const double seconds = best([&] {
      EqualBatch bench(engine->get(), flags["policy"], 1, n, 16);
      return bench.Prefill(n);
    });
    Report("prefill", 1, n, flags["dtype"], flags["policy"], n / seconds);
  }
  for (const int context : contexts) {
    for (const int batch : batches) {
      const int steps = StepsOf(least_steps, batch);
      // All repeats continue one prefill, so the context grows a little.
      EqualBatch bench(engine->get(), flags["policy"], batch, context, repeat * steps,
                       flags["pages"] == "shuffled");
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
  ReportMemory(**engine);
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
