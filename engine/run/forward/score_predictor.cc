#include "engine/run/forward/score_predictor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "engine/cache/sha256.h"
#include "engine/model/safetensors.h"
#include "engine/model/text.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "hydrant.model";
constexpr const char* kDigest = "hydrant.sha256";
constexpr const char* kMakeAnother = "make another with hydrant-eval fit";

Sha256Digest DigestOf(const ScorePredictor& predictor) {
  Sha256 hash;
  for (const std::vector<float>* numbers : {&predictor.weights, &predictor.biases})
    hash.Add(numbers->data(), numbers->size() * sizeof(float));
  return hash.Finish();
}

std::vector<int64_t> ShapeOfBiases(const ScorePredictor& predictor) {
  return {predictor.num_layers, predictor.num_kv_heads};
}
std::vector<int64_t> ShapeOfWeights(const ScorePredictor& predictor) {
  return {predictor.num_layers, predictor.num_kv_heads, predictor.width};
}

absl::Status ReadTensor(const SafetensorsFile& file, const std::string& name,
                        const std::vector<int64_t>& shape, std::vector<float>* to) {
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor tensor, file.FindRaw(name));
  if (tensor.type != "F32" || tensor.shape != shape) {
    return absl::InvalidArgumentError(fmt::format("{} is {} {}, the model needs F32 {}", name,
                                                  tensor.type, ShapeText(tensor.shape),
                                                  ShapeText(shape)));
  }
  std::memcpy(to->data(), tensor.bytes.data(), tensor.bytes.size());
  const auto is_finite = [](float number) { return std::isfinite(number); };
  if (std::ranges::all_of(*to, is_finite)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("{} holds a number that is not finite", name));
}

absl::StatusOr<ScorePredictor> Read(const SafetensorsFile& file, const ModelConfig& config,
                                    const std::string& model) {
  const std::string made_for = file.Metadata(kModel);
  if (made_for.empty()) return absl::InvalidArgumentError("not a file of score predictors");
  if (made_for != model) {
    return absl::InvalidArgumentError(fmt::format(
        "made for another model ({:.16}, this one is {:.16}); {}", made_for, model, kMakeAnother));
  }
  ScorePredictor predictor = ScorePredictor::ShapedLike(config);
  HYDRANT_RETURN_IF_ERROR(
      ReadTensor(file, "weights", ShapeOfWeights(predictor), &predictor.weights));
  HYDRANT_RETURN_IF_ERROR(ReadTensor(file, "biases", ShapeOfBiases(predictor), &predictor.biases));
  if (file.Metadata(kDigest) != HexOf(DigestOf(predictor))) {
    return absl::InvalidArgumentError(
        fmt::format("its numbers do not match its checksum; {}", kMakeAnother));
  }
  return predictor;
}

// The header of a safetensors file: its length in eight bytes, then JSON.
std::string HeaderOf(const ScorePredictor& predictor, const std::string& model) {
  const size_t biases = predictor.biases.size() * sizeof(float);
  const size_t weights = predictor.weights.size() * sizeof(float);
  const auto tensor = [](const std::vector<int64_t>& shape, size_t begin, size_t end) {
    return nlohmann::json{{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, end}}};
  };
  const nlohmann::json header = {
      {"__metadata__", {{kModel, model}, {kDigest, HexOf(DigestOf(predictor))}}},
      {"weights", tensor(ShapeOfWeights(predictor), 0, weights)},
      {"biases", tensor(ShapeOfBiases(predictor), weights, weights + biases)}};
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

}  // namespace

ScorePredictor ScorePredictor::ShapedLike(const ModelConfig& config) {
  ScorePredictor predictor = {.num_layers = config.num_layers,
                              .num_kv_heads = config.num_kv_heads,
                              .width = config.hidden_size,
                              .weights = {},
                              .biases = {}};
  predictor.biases.resize(static_cast<size_t>(config.num_layers) * config.num_kv_heads);
  predictor.weights.resize(predictor.biases.size() * config.hidden_size);
  return predictor;
}

uint32_t ScorePredictor::Id() const {
  uint32_t id = 0;
  std::memcpy(&id, DigestOf(*this).data(), sizeof(id));
  return std::max(id, 1u);
}

std::string ScorePredictorPath(const std::string& model_path) {
  std::error_code error;
  if (fs::is_directory(model_path, error)) return fs::path(model_path) / "scores.safetensors";
  return model_path + ".scores.safetensors";
}

absl::StatusOr<ScorePredictor> ReadScorePredictor(const std::string& path,
                                                  const ModelConfig& config,
                                                  const std::string& model) {
  HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file,
                           SafetensorsFile::Open(path));
  absl::StatusOr<ScorePredictor> predictor = Read(*file, config, model);
  if (!predictor.ok()) {
    return WithContext(absl::InvalidArgumentError(predictor.status().message()), Quoted(path));
  }
  return predictor;
}

absl::StatusOr<std::shared_ptr<const ScorePredictor>> FindScorePredictor(
    const std::string& given, const std::string& model_path, const ModelConfig& config,
    const std::string& model) {
  const std::string path = given.empty() ? ScorePredictorPath(model_path) : given;
  std::error_code error;
  if (given == "none" || (given.empty() && !fs::exists(path, error))) return nullptr;
  HYDRANT_ASSIGN_OR_RETURN(ScorePredictor predictor, ReadScorePredictor(path, config, model));
  return std::make_shared<ScorePredictor>(std::move(predictor));
}

absl::Status WriteScorePredictor(const ScorePredictor& predictor, const std::string& model,
                                 const std::string& path) {
  const std::string part = path + ".part";
  const auto bytes = [](const std::vector<float>& numbers) {
    return std::string_view(reinterpret_cast<const char*>(numbers.data()),
                            numbers.size() * sizeof(float));
  };
  std::ofstream file(part, std::ios::binary);
  file << HeaderOf(predictor, model) << bytes(predictor.weights) << bytes(predictor.biases);
  file.close();
  std::error_code error;
  if (file.good()) fs::rename(part, path, error);
  if (file.good() && !error) return absl::OkStatus();
  fs::remove(part, error);
  return absl::UnavailableError(fmt::format("{}: cannot be written", Quoted(path)));
}

}  // namespace hydrant
