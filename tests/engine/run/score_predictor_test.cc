// Files of score predictors: written and read again, and damaged in all ways.
#include "engine/run/forward/score_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "tests/engine/run/random_model.h"

namespace hydrant {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "0123456789abcdef0123456789abcdef";

class ScorePredictorTest : public testing::Test {
 protected:
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::string Refusal(const std::string& bytes, const std::string& model = kModel) const {
    const std::string path = path_ + ".changed";
    std::ofstream(path, std::ios::binary) << bytes;
    const absl::Status status = ReadScorePredictor(path, config_, model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(".changed'"));
    return std::string(status.message());
  }

  const ModelConfig config_ = SmallConfig(6, 2);
  const std::shared_ptr<const ScorePredictor> predictor_ = MakeRandomPredictor(config_);
  const std::string path_ = testing::TempDir() + "predictor.safetensors";
};

TEST_F(ScorePredictorTest, IsReadAsItWasWritten) {
  ASSERT_TRUE(WriteScorePredictor(*predictor_, kModel, path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
  const auto read = ReadScorePredictor(path_, config_, kModel);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->weights, predictor_->weights);
  EXPECT_EQ(read->biases, predictor_->biases);
  EXPECT_EQ(read->num_layers, config_.num_layers);
  EXPECT_EQ(read->Id(), predictor_->Id());
  ScorePredictor other = *predictor_;
  other.biases.back() += 1;
  EXPECT_NE(other.Id(), predictor_->Id());
}

TEST_F(ScorePredictorTest, DamagedFilesAreRefused) {
  ASSERT_TRUE(WriteScorePredictor(*predictor_, kModel, path_).ok());
  const std::string bytes = Read(path_);
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 16) Refusal(bytes.substr(0, size));
  std::string edited = bytes;
  edited[edited.size() - 5] ^= 1;
  EXPECT_THAT(Refusal(edited), HasSubstr("checksum; make another with hydrant-eval fit"));
  EXPECT_THAT(Refusal(bytes, "fedcba9876543210"), HasSubstr("made for another model"));
  Refusal("not a file of tensors");
}

TEST_F(ScorePredictorTest, OtherShapesAndNumbersAreRefused) {
  ASSERT_TRUE(WriteScorePredictor(*MakeRandomPredictor(SmallConfig(6, 3)), kModel, path_).ok());
  EXPECT_THAT(Refusal(Read(path_)),
              HasSubstr("weights is F32 [2, 3, 64], the model needs F32 [2, 2"));
  ScorePredictor infinite = *predictor_;
  infinite.weights[3] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(WriteScorePredictor(infinite, kModel, path_).ok());
  EXPECT_THAT(Refusal(Read(path_)), HasSubstr("weights holds a number that is not finite"));
}

TEST_F(ScorePredictorTest, AFolderThatCannotBeWrittenIsNamed) {
  const absl::Status status = WriteScorePredictor(*predictor_, kModel, "/nowhere/at all/scores");
  EXPECT_THAT(std::string(status.message()), HasSubstr("'/nowhere/at all/scores'"));
}

TEST_F(ScorePredictorTest, IsFoundBesideTheModel) {
  const std::string model = testing::TempDir() + "model.gguf";
  EXPECT_EQ(ScorePredictorPath(model), model + ".scores.safetensors");
  EXPECT_EQ(ScorePredictorPath(testing::TempDir()), testing::TempDir() + "scores.safetensors");
  const auto find = [&](const std::string& given) {
    return FindScorePredictor(given, model, config_, kModel);
  };
  EXPECT_EQ(*find(""), nullptr);
  ASSERT_TRUE(WriteScorePredictor(*predictor_, kModel, ScorePredictorPath(model)).ok());
  ASSERT_NE(*find(""), nullptr);
  EXPECT_EQ((*find(""))->Id(), predictor_->Id());
  EXPECT_EQ(*find("none"), nullptr);
  EXPECT_FALSE(find(model + ".nothing").ok()) << "a file that is named must be there";
  std::filesystem::remove(ScorePredictorPath(model));
}

}  // namespace
}  // namespace hydrant
