// Launches and bytes read of a decode step on a CUDA device, counted by the emulation: launches per
// layer, and bytes relative to the least that a step can read. Limits are today's numbers and may
// only fall.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/run/engine.h"
#include "tests/engine/run/equal_batch.h"
#include "tests/engine/run/random_model.h"
#include "tests/kernels/cuda_emulation/counts.h"

namespace hydrant {
namespace {

using emulation::Counts;

// The counters of the emulated device; null if "cuda" is another device or absent.
Counts* EmulatedCounts() {
  const char* module = std::getenv("HYDRANT_CUDA_MODULE");
  void* library = module != nullptr ? dlopen(module, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (library == nullptr) return nullptr;
  auto* counts = reinterpret_cast<Counts* (*)()>(dlsym(library, "HydrantEmulationCounts"));
  return counts != nullptr ? counts() : nullptr;
}

struct Shape {
  std::string policy;
  int sequences = 0;
  int prompt_tokens = 0;
  int num_layers = 0;
};

// Whether products include the operations before and after them (HYDRANT_CUDA_TRIAL=fused).
bool Fuses() {
  const char* trial = std::getenv("HYDRANT_CUDA_TRIAL");
  return trial != nullptr && std::strstr(trial, "fused") != nullptr;
}

constexpr int kHeads = 4, kKvHeads = 1, kHeadDim = 64;
constexpr int kWarmSteps = 2;  // an operation's first run, and its capture

struct Step {
  double launches = 0, copies = 0;
  double read_bytes = 0;
  int entries = 0;  // per head, that the step attends to
  double weight_bytes = 0;
};

// Counts a warm step: its operations are replayed from a graph.
Step CountStep(Counts* counts, const Shape& shape) {
  ModelConfig config = SmallConfig(kHeads, kKvHeads, kHeadDim, shape.num_layers);
  config.max_context = 2048;
  config.vocab_size = 192;
  EngineOptions options;
  options.device = "cuda";
  options.dtype = WeightDType::kBFloat16;
  options.max_num_seqs = shape.sequences;
  options.num_blocks_override = 4096;
  auto engine = Engine::Create(MakeRandomModel(config, 1), options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  EqualBatch batch(engine->get(), shape.policy, shape.sequences, shape.prompt_tokens,
                   kWarmSteps + 1);
  batch.Prefill(shape.prompt_tokens);
  batch.Decode(shape.prompt_tokens, kWarmSteps);
  const Counts before = *counts;
  const int position = shape.prompt_tokens + kWarmSteps;
  counts->trace = true;
  batch.Decode(position, 1);
  counts->trace = false;
  const uint64_t launches = counts->kernels + counts->products;
  return {static_cast<double>(launches - before.kernels - before.products),
          static_cast<double>(counts->copies - before.copies),
          static_cast<double>(counts->read_bytes - before.read_bytes), batch.Entries(position + 1),
          static_cast<double>((*engine)->memory().weights)};
}

class StepCountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    counts_ = EmulatedCounts();
    if (counts_ == nullptr) GTEST_SKIP() << "the device is not the emulated one";
  }
  Counts* counts_ = nullptr;
};

TEST_F(StepCountsTest, Launches) {
  constexpr int kFew = 2, kMany = 6;
  // Fused: both norms, RoPE and activation of a layer, except the first layer's first norm.
  const int of_a_layer = Fuses() ? 5 : 9, of_a_step = Fuses() ? 7 : 6;
  for (const char* policy : {"full", "h2o"}) {
    SCOPED_TRACE(policy);
    const Step few = CountStep(counts_, {policy, 3, 40, kFew});
    const Step many = CountStep(counts_, {policy, 3, 40, kMany});
    const double layer = (many.launches - few.launches) / (kMany - kFew);
    const double rest = few.launches - kFew * layer;
    std::printf("%s: %g launches a layer, %g beside them, %g copies\n", policy, layer, rest,
                few.copies);
    EXPECT_GE(layer, 1);
    EXPECT_LE(layer, of_a_layer) << policy;
    EXPECT_LE(rest, of_a_step) << policy;
    EXPECT_EQ(many.copies, few.copies) << "a layer copies memory";
  }
}

// Bytes that a layer reads, relative to its weights and its cache, each read once. The excess is
// activations, tables and repeated reads by a second block: a larger share than in a large model.
TEST_F(StepCountsTest, BytesOfALayer) {
  if (!counts_->can_trace) GTEST_SKIP() << "the emulation does not count what kernels read";
  constexpr int kFew = 1, kMany = 3, kSequences = 3;
  for (const auto& [policy, state_bytes, most] :
       {std::tuple{"full", 0, 1.14}, std::tuple{"h2o", 8, 1.14}}) {
    const Step few = CountStep(counts_, {policy, kSequences, 40, kFew});
    const Step many = CountStep(counts_, {policy, kSequences, 40, kMany});
    const double bytes = (many.read_bytes - few.read_bytes) / (kMany - kFew);
    const double weights = (many.weight_bytes - few.weight_bytes) / (kMany - kFew);
    const double cache = 1.0 * kSequences * kKvHeads * few.entries * (4 * kHeadDim + state_bytes);
    std::printf("%s: %.0f bytes a layer, of which %.0f weights and %.0f cache: %.3f\n", policy,
                bytes, weights, cache, bytes / (weights + cache));
    EXPECT_GE(bytes, weights + cache) << policy;
    EXPECT_LE(bytes, most * (weights + cache)) << policy;
  }
}

// Steps that differ in their entries alone differ by the reads of attention. The least is a key, a
// value, a position and a score per entry. The larger h2o head is split, and the kernel of the
// scores reads its weights again.
TEST_F(StepCountsTest, BytesOfAnEntry) {
  if (!counts_->can_trace) GTEST_SKIP() << "the emulation does not count what kernels read";
  for (const auto& [policy, few_tokens, state_bytes, most] :
       {std::tuple{"full", 160, 0, 1.07}, std::tuple{"h2o", 640, 8, 1.26}}) {
    const Step few = CountStep(counts_, {policy, 1, few_tokens, 1});
    const Step many = CountStep(counts_, {policy, 1, 2 * few_tokens, 1});
    const double entries = kKvHeads * (many.entries - few.entries);
    const double bytes = (many.read_bytes - few.read_bytes) / entries;
    const double least = 2.0 * kHeadDim * 2 + state_bytes;
    std::printf("%s: %d and %d entries, %.1f bytes an entry, at least %g\n", policy, few.entries,
                many.entries, bytes, least);
    EXPECT_GE(bytes, 2.0 * kHeadDim * 2) << "keys and values are not counted";
    EXPECT_LE(bytes, most * least) << policy;
  }
}

}  // namespace
}  // namespace hydrant
