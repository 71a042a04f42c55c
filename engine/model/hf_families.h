// What a config.json says, family by family: each reads its fields into a ModelConfig, with
// transformers' defaults where models rely on them, and refuses by its name what would change the
// arithmetic in a way that is not implemented. A field is read, or stands in a table of those that
// change nothing, or is refused. ParseHfConfig() validates the result.
#ifndef HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_
#define HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_

#include <span>

#include "absl/status/status.h"
#include "engine/model/hf_fields.h"
#include "engine/model/model_config.h"

namespace hydrant {

absl::Status ReadHfLlama(HfFields& root, ModelConfig* config);
absl::Status ReadHfMistral(HfFields& root, ModelConfig* config);
absl::Status ReadHfOpt(HfFields& root, ModelConfig* config);
absl::Status ReadHfGptNeox(HfFields& root, ModelConfig* config);

// The fields of each that change nothing in transformers' forward pass, besides those of any
// family.
std::span<const IdleField> IdleHfFields();
std::span<const IdleField> IdleHfLlamaFields();  // of Mistral, too
std::span<const IdleField> IdleHfOptFields();
std::span<const IdleField> IdleHfGptNeoxFields();

// What families share.

// What every file has to say: layers, widths (the feed-forward's under the file's key), heads and
// vocabulary. A KV head for each head, until the family says otherwise.
absl::Status ReadHfSizes(HfFields& root, const char* intermediate_key, ModelConfig* config);
// rope_scaling or rope_parameters, over what stands outside them under the family's own names.
// *rotated is the share of a head that turns, where the file says it there.
absl::Status ReadHfRope(HfFields& root, ModelConfig* config, double* rotated);
// Where a head is hidden_size / num_attention_heads wide.
absl::Status SetHeadDim(ModelConfig* config);
// Of a plain feed-forward, under the file's key.
absl::Status ReadHfActivation(HfFields& root, const char* key, const char* otherwise,
                              ModelConfig* config);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FAMILIES_H_
