// A model with seeded random fp32 weights, in memory: for tests that need a model but no file.
#ifndef HYDRANT_TESTS_ENGINE_RUN_RANDOM_MODEL_H_
#define HYDRANT_TESTS_ENGINE_RUN_RANDOM_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engine/model/model_source.h"
#include "engine/run/forward/score_predictor.h"

namespace hydrant {

// A small shape; heads / kv_heads choose MHA, GQA or MQA.
ModelConfig SmallConfig(int num_heads, int num_kv_heads, int head_dim = 16, int num_layers = 2);

// The same sizes in another family (model_type); "llama" is unchanged. "qwen3_moe" has a dense
// layer, and expert weights from the softmax over all experts; "granitemoeshared" has all optional
// parts of a mixture of experts, biases included. REQUIRES: MHA if gpt_neox
ModelConfig InFamily(ModelConfig config, const std::string& architecture);

// Query and key weights are scaled up so that attention has clear heavy hitters.
std::shared_ptr<const ModelSource> MakeRandomModel(const ModelConfig& config, uint64_t seed);

// Scores of random directions, which differ by factors of about ten.
std::shared_ptr<const ScorePredictor> MakeRandomPredictor(const ModelConfig& config);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_ENGINE_RUN_RANDOM_MODEL_H_
