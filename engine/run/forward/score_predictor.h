// Predictors of entry scores (kernels/ops/predict_scores.h), one of each KV head of each layer. A
// safetensors file, made by `hydrant-eval fit` for a model, holds them:
//
//   weights  F32 [layers, kv_heads, width]
//   biases   F32 [layers, kv_heads]
//
// and names the model in its metadata. Plain data.
#ifndef HYDRANT_ENGINE_RUN_FORWARD_SCORE_PREDICTOR_H_
#define HYDRANT_ENGINE_RUN_FORWARD_SCORE_PREDICTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"

namespace hydrant {

struct ScorePredictor {
  int num_layers = 0;
  int num_kv_heads = 0;
  int width = 0;               // of the model's hidden states
  std::vector<float> weights;  // [layers, kv_heads, width]
  std::vector<float> biases;   // [layers, kv_heads]

  // A predictor of zeros in the model's shape.
  static ScorePredictor ShapedLike(const ModelConfig& config);
  // A hash of the weights and biases; not 0.
  uint32_t Id() const;
};

// The place of a model's predictor: MODEL.scores.safetensors beside a file, or
// scores.safetensors in a folder.
std::string ScorePredictorPath(const std::string& model_path);

// model: HexOf(ModelFingerprint()). Errors begin with the path. NotFound: no file;
// InvalidArgument: damaged or edited, of another shape than the model's, or made for another model.
absl::StatusOr<ScorePredictor> ReadScorePredictor(const std::string& path,
                                                  const ModelConfig& config,
                                                  const std::string& model);
// given: a path, "none", or "" for the model's own, if it is there. Null: none.
absl::StatusOr<std::shared_ptr<const ScorePredictor>> FindScorePredictor(
    const std::string& given, const std::string& model_path, const ModelConfig& config,
    const std::string& model);
// Replaces the file in one step.
absl::Status WriteScorePredictor(const ScorePredictor& predictor, const std::string& model,
                                 const std::string& path);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_FORWARD_SCORE_PREDICTOR_H_
