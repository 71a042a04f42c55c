// Names a model by what it is, so that what was computed with it is not taken for another's.
#ifndef HYDRANT_SERVER_STARTUP_MODEL_FINGERPRINT_H_
#define HYDRANT_SERVER_STARTUP_MODEL_FINGERPRINT_H_

#include "absl/status/statusor.h"
#include "engine/cache/sha256.h"
#include "engine/model/model_source.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

// SHA-256 over the model's shape, samples of each of its tensors, and its vocabulary. Two models
// with different weights differ all over their tensors, so pieces of them tell as much as the
// whole, in milliseconds; who wants to deceive a server by a crafted file can.
absl::StatusOr<Sha256Digest> ModelFingerprint(const ModelSource& source,
                                              const Tokenizer& tokenizer);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MODEL_FINGERPRINT_H_
