// Loading of weights into an engine: quantisation, memory, progress reports and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/gguf.h"
#include "engine/run/engine.h"
#include "tests/device.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/model/tiny_model.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

ModelConfig Config() {
  ModelConfig config = TinyLlamaConfig();
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.head_dim = 32;
  return config;
}

// Unique to the process: the test runs in parallel for several devices.
std::string TempPath(const std::string& name) {
  return testing::TempDir() + "/" + std::to_string(getpid()) + "_" + name;
}

std::string ModelPath(DType dtype) {
  return WriteTinyLlamaGguf(TempPath("weights_" + std::string(DTypeName(dtype))), Config(), dtype,
                            5);
}

absl::StatusOr<std::unique_ptr<Engine>> Load(
    const std::string& path, WeightDType dtype, const std::string& device,
    const std::function<void(double)>& progress = nullptr) {
  absl::StatusOr<std::unique_ptr<ModelSource>> source = OpenModel(path, LoadFormat::kAuto);
  if (!source.ok()) return source.status();
  EngineOptions options;
  options.batch_invariant = true;  // else 8 or more rows use 8-bit activations
  options.device = device;
  options.num_threads = 2;
  options.dtype = dtype;
  options.kv_cache_dtype = DType::kF32;
  options.num_blocks_override = 256;
  options.max_num_seqs = 2;
  return Engine::Create(std::shared_ptr<const ModelSource>(*std::move(source)), options, progress);
}

std::vector<float> LogitsOf(Engine* engine) {
  const std::vector<TokenId> ids = {257, 10, 200, 30, 7, 99, 258, 64};
  eval::EngineDriver driver(engine, 1);
  const int slot = driver.Add(ids, *PlanCache({}, {static_cast<int64_t>(ids.size())}), 1);
  driver.PrefillAll(slot);
  driver.Step();
  return driver.Logits(slot);
}

double Largest(const std::vector<float>& logits) {
  double largest = 0;
  for (const float logit : logits) largest = std::max(largest, std::abs(double{logit}));
  return largest;
}

double WorstDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

class WeightLoadingTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { HYDRANT_SKIP_WITHOUT_DEVICE(GetParam()); }
  std::unique_ptr<Engine> MustLoad(DType stored, WeightDType dtype) {
    auto engine = Load(ModelPath(stored), dtype, GetParam());
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, WeightLoadingTest, testing::Values("reference", "cpu", "cuda"),
                         [](const auto& info) { return info.param; });

// 8 bits are close to the floats, 4 bits less so; matmul_test.cc and dequantize_test.cc check the
// values themselves. All backends agree.
TEST_P(WeightLoadingTest, QuantisedWhileLoaded) {
  const auto floats = Load(ModelPath(DType::kF32), WeightDType::kFloat32, "reference");
  ASSERT_TRUE(floats.ok());
  const std::vector<float> exact = LogitsOf(floats->get());
  const double size = Largest(exact);
  for (const auto& [dtype, tolerance] :
       {std::pair{WeightDType::kQ8_0, 0.05}, std::pair{WeightDType::kQ4_0, 0.6},
        std::pair{WeightDType::kFp8, 0.15}}) {
    const std::unique_ptr<Engine> engine = MustLoad(DType::kF32, dtype);
    const std::vector<float> logits = LogitsOf(engine.get());
    EXPECT_LT(WorstDifference(logits, exact), tolerance * size);
    EXPECT_GT(WorstDifference(logits, exact), 1e-4 * size);
    const auto reference = Load(ModelPath(DType::kF32), dtype, "reference");
    ASSERT_TRUE(reference.ok());
    // A GPU rounds activations to bf16.
    EXPECT_LT(WorstDifference(logits, LogitsOf(reference->get())),
              (GetParam() == "cuda" ? 4e-3 : 1e-3) * size);
  }
}

// Weights that are stored as blocks keep their type.
TEST_P(WeightLoadingTest, BlocksAreNotQuantisedAgain) {
  for (const DType stored : {DType::kQ8_0, DType::kQ5_1, DType::kQ4_0}) {
    const std::vector<float> logits = LogitsOf(MustLoad(stored, WeightDType::kStored).get());
    EXPECT_EQ(LogitsOf(MustLoad(stored, WeightDType::kQ4_0).get()), logits);
  }
}

// Rows are whole blocks of every type.
ModelConfig ConfigOfBlocks() {
  ModelConfig config = Config();
  config.hidden_size = 256;
  config.head_dim = 64;
  return config;
}

void ExpectTheReferencesLogits(const ModelConfig& config, DType stored, const std::string& device) {
  SCOPED_TRACE(DTypeName(stored));
  const std::string path = WriteTinyLlamaGguf(TempPath("blocks"), config, stored, 9);
  const auto reference = Load(path, WeightDType::kFloat32, "reference");
  ASSERT_TRUE(reference.ok()) << reference.status();
  const std::vector<float> expected = LogitsOf(reference->get());
  for (const WeightDType dtype : {WeightDType::kFloat32, WeightDType::kStored}) {
    const auto engine = Load(path, dtype, device);
    ASSERT_TRUE(engine.ok()) << engine.status();
    // With weights in blocks a GPU rounds activations to bf16.
    const bool rounds = device == "cuda" && dtype == WeightDType::kStored;
    EXPECT_LT(WorstDifference(LogitsOf(engine->get()), expected),
              rounds ? 3e-3 * Largest(expected) : 0.02);
  }
}

TEST_P(WeightLoadingTest, EveryTypeHasTheReferencesLogits) {
  for (const DType stored : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ8_0, DType::kQ2_K,
                             DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4})
    ExpectTheReferencesLogits(ConfigOfBlocks(), stored, GetParam());
}

// Experts' matrices are parts of one tensor, as in GGUF files.
TEST_P(WeightLoadingTest, ExpertsOfBlocksHaveTheReferencesLogits) {
  ModelConfig config = ConfigOfBlocks();
  config.experts = {.count = 3, .per_token = 2, .intermediate_size = 256};
  for (const DType stored : {DType::kQ4_0, DType::kQ8_0, DType::kQ3_K, DType::kMXFP4})
    ExpectTheReferencesLogits(config, stored, GetParam());
}

// Experts are quantised like other matrices; a router is not.
TEST(WeightBytesTest, OfExperts) {
  ModelConfig c = Config();
  c.experts = {.count = 4, .per_token = 2, .intermediate_size = 64};
  const std::string path = WriteTinyLlamaGguf(TempPath("experts"), c, DType::kF32, 5);
  const auto engine = Load(path, WeightDType::kQ4_0, "cpu");
  ASSERT_TRUE(engine.ok()) << engine.status();
  const int64_t attention = int64_t{2} * (c.QDim() + c.KvDim()) * c.hidden_size;
  const int64_t experts = int64_t{4} * 3 * 64 * c.hidden_size;
  // A router's four rows are padded to a group of sixteen.
  const int64_t router = BytesOf(DType::kF32, int64_t{16} * c.hidden_size);
  EXPECT_EQ((*engine)->memory().weights,
            static_cast<int64_t>(BytesOf(DType::kQ4_0, (attention + experts) * c.num_layers) +
                                 BytesOf(DType::kQ8_0, int64_t{c.vocab_size} * c.hidden_size)) +
                router * c.num_layers);
}

// The vocabulary's rows keep 8 bits if the other weights have 4.
TEST(WeightBytesTest, EqualTheBlocksBytes) {
  const ModelConfig c = Config();
  const int64_t vocabulary = int64_t{c.vocab_size} * c.hidden_size;
  const int64_t layer = int64_t{2} * c.QDim() * c.hidden_size +
                        int64_t{2} * c.KvDim() * c.hidden_size +
                        int64_t{3} * c.hidden_size * c.intermediate_size;
  const auto bytes = [&](DType dtype, DType of_vocabulary) {
    return static_cast<int64_t>(BytesOf(dtype, layer * c.num_layers) +
                                BytesOf(of_vocabulary, vocabulary));
  };
  const auto loaded = [&](WeightDType dtype) {
    return (*Load(ModelPath(DType::kF32), dtype, "cpu"))->memory().weights;
  };
  EXPECT_EQ(loaded(WeightDType::kFloat32), bytes(DType::kF32, DType::kF32));
  EXPECT_EQ(loaded(WeightDType::kQ8_0), bytes(DType::kQ8_0, DType::kQ8_0));
  EXPECT_EQ(loaded(WeightDType::kQ4_0), bytes(DType::kQ4_0, DType::kQ8_0));
  EXPECT_EQ(loaded(WeightDType::kFp8), bytes(DType::kF8_E4M3, DType::kF8_E4M3));
}

// On a GPU. Hosts pad differently, and the reference keeps floats.
TEST_P(WeightLoadingTest, BlocksTakeTheBytesOfTheFile) {
  if (GetParam() != "cuda") GTEST_SKIP() << "of a GPU";
  const ModelConfig c = ConfigOfBlocks();
  const int64_t weights = int64_t{c.vocab_size} * c.hidden_size +
                          c.num_layers * (int64_t{2} * c.QDim() * c.hidden_size +
                                          int64_t{2} * c.KvDim() * c.hidden_size +
                                          int64_t{3} * c.hidden_size * c.intermediate_size);
  for (const DType stored : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0}) {
    const std::string path = WriteTinyLlamaGguf(TempPath("bytes"), c, stored, 9);
    const auto engine = Load(path, WeightDType::kStored, GetParam());
    ASSERT_TRUE(engine.ok()) << engine.status();
    // The vocabulary's last rows are padded to a tile.
    const int64_t bytes = static_cast<int64_t>(BytesOf(stored, weights));
    EXPECT_GE((*engine)->memory().weights, bytes) << DTypeName(stored);
    EXPECT_LE((*engine)->memory().weights, bytes + int64_t(BytesOf(stored, 64 * c.hidden_size)))
        << DTypeName(stored);
  }
}

TEST(ProgressTest, IsAFractionOfTheBytes) {
  std::vector<double> heard;
  const auto engine = Load(ModelPath(DType::kF32), WeightDType::kStored, "cpu",
                           [&](double fraction) { heard.push_back(fraction); });
  ASSERT_TRUE(engine.ok());
  ASSERT_GE(heard.size(), 9u);  // each matrix of two layers, and the vocabulary
  EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
  EXPECT_DOUBLE_EQ(heard.back(), 1.0);
  const ModelConfig c = Config();
  const double qkv = static_cast<double>(4 * (c.QDim() + 2 * c.KvDim()) * c.hidden_size);
  EXPECT_NEAR(heard.front(), qkv / static_cast<double>((*engine)->memory().weights), 1e-9);
}

// --- Values that are not finite

// Writes the model's file with one bad float in a tensor.
std::string SpoiltModel(const std::string& tensor, float bad) {
  const std::string path = ModelPath(DType::kF32) + ".spoilt";
  std::vector<uint8_t> bytes = BuildTinyLlamaGguf(Config(), DType::kF32, 5);
  const auto file = GgufFile::Parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto& view = (*file)->tensors().at(tensor);
  std::memcpy(&bytes[view.bytes.data() - bytes.data() + 20], &bad, sizeof bad);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return path;
}

TEST_P(WeightLoadingTest, NonFiniteWeightsAreRefusedWithFileAndTensor) {
  for (const char* tensor : {"blk.1.ffn_up.weight", "token_embd.weight", "output_norm.weight",
                             "blk.0.attn_norm.weight"}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const std::string path = SpoiltModel(tensor, bad);
      for (const WeightDType dtype : {WeightDType::kFloat32, WeightDType::kBFloat16,
                                      WeightDType::kStored, WeightDType::kQ8_0}) {
        const absl::Status status = Load(path, dtype, GetParam()).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tensor;
        const std::string message(status.message());
        EXPECT_THAT(message, HasSubstr("'" + path + "': tensor '" + tensor + "'"));
        EXPECT_EQ(message.find('\n'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace hydrant
