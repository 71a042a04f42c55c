// Identifies a model by its contents, so that saved caches are not used with another model.
#ifndef HYDRANT_ENGINE_RUN_MODEL_FINGERPRINT_H_
#define HYDRANT_ENGINE_RUN_MODEL_FINGERPRINT_H_

#include "absl/status/statusor.h"
#include "engine/cache/sha256.h"
#include "engine/model/model_source.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

// SHA-256 over the model's shape, samples of its tensors, and its vocabulary. Two models with
// different weights differ in all their tensors, so samples distinguish them, in milliseconds. It
// does not protect against crafted files.
absl::StatusOr<Sha256Digest> ModelFingerprint(const ModelSource& source,
                                              const Tokenizer& tokenizer);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_MODEL_FINGERPRINT_H_
