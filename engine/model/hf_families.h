// What a config.json says, family by family: each reads its fields into a ModelConfig, with
// transformers' defaults where models rely on them, and refuses by its name what would change the
// arithmetic in a way that is not implemented. ParseHfConfig() validates the result.
#ifndef HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_
#define HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "engine/model/model_config.h"

namespace hydrant {

absl::Status ReadHfLlama(const nlohmann::json& root, ModelConfig* config);
absl::Status ReadHfMistral(const nlohmann::json& root, ModelConfig* config);
absl::Status ReadHfOpt(const nlohmann::json& root, ModelConfig* config);
absl::Status ReadHfGptNeox(const nlohmann::json& root, ModelConfig* config);

// What families share.

// What every file has to say: layers, widths (the feed-forward's under the file's key), heads and
// vocabulary. A KV head for each head, until the family says otherwise.
absl::Status ReadHfSizes(const nlohmann::json& root, const char* intermediate_key,
                         ModelConfig* config);
// rope_theta, rope_scaling, rope_parameters. *rotated is the share of a head that turns, where the
// file says it there.
absl::Status ReadHfRope(const nlohmann::json& root, ModelConfig* config, double* rotated);
// Where a head is hidden_size / num_attention_heads wide.
absl::Status SetHeadDim(ModelConfig* config);
// Of a plain feed-forward, under the file's key.
absl::Status ReadHfActivation(const nlohmann::json& root, const char* key, const char* otherwise,
                              ModelConfig* config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_
