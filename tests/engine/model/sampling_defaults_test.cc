// Recommended parameters in generation_config.json and in a GGUF file's metadata, and invalid
// values.
#include "engine/model/sampling_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/model/gguf.h"
#include "engine/model/model_source.h"
#include "tests/engine/model/gguf_writer.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

// A model source with a folder or a GGUF file, without tensors.
class Source final : public ModelSource {
 public:
  explicit Source(std::string folder, const GgufFile* file = nullptr)
      : folder_(std::move(folder)), file_(file) {}
  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<TensorView> Embedding() const override { return TensorView(); }
  absl::StatusOr<TensorView> FinalNorm() const override { return TensorView(); }
  absl::StatusOr<TensorView> Output() const override { return TensorView(); }
  absl::StatusOr<LayerTensors> Layer(int) const override { return LayerTensors(); }
  const GgufFile* gguf() const override { return file_; }
  std::string folder() const override { return folder_; }

 private:
  const ModelConfig config_;
  const std::string folder_;
  const GgufFile* const file_;
};

TEST(SamplingDefaults, OfAFolder) {
  const std::string folder = testing::TempDir() + "/sampling_defaults_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto read = [&](const std::string& json) {
    std::ofstream(folder + "/generation_config.json") << json;
    return ReadSamplingDefaults(Source(folder));
  };
  EXPECT_EQ(*ReadSamplingDefaults(Source(folder)), SamplingDefaults()) << "without the file";
  // The file of Qwen2.5-0.5B-Instruct.
  EXPECT_EQ(
      *read(R"({"bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
      "repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8})"),
      (SamplingDefaults{.temperature = 0.7, .top_p = 0.8, .repetition_penalty = 1.1, .top_k = 20}));
  EXPECT_EQ(*read(R"({"temperature": null, "min_p": 0})"), (SamplingDefaults{.min_p = 0.0}));
  EXPECT_THAT(std::string(read(R"({"top_p": "a"})").status().message()), HasSubstr("top_p: is no"));
  EXPECT_THAT(std::string(read(R"({"top_k": 1e300})").status().message()), HasSubstr("no count"));
  EXPECT_FALSE(read("[").ok());
}

TEST(SamplingDefaults, OfAGgufFile) {
  GgufWriter writer;
  writer.AddFloat("general.sampling.temp", 0.5f);
  writer.AddFloat("general.sampling.penalty_repeat", 1.25f);
  writer.AddUint32("general.sampling.top_k", 40);
  const std::vector<uint8_t> bytes = writer.Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*ReadSamplingDefaults(Source("", file->get())),
            (SamplingDefaults{.temperature = 0.5, .repetition_penalty = 1.25, .top_k = 40}));
}

}  // namespace
}  // namespace hydrant
