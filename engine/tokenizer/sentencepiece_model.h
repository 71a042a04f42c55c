// Reads a SentencePiece model file (tokenizer.model) into a TokenizerSpec. The file is one protobuf
// message, read here by its wire format: the library that would do it exports a protobuf of its
// own, which crashes any program that also holds gRPC's.
#ifndef HYDRANT_ENGINE_TOKENIZER_SENTENCEPIECE_MODEL_H_
#define HYDRANT_ENGINE_TOKENIZER_SENTENCEPIECE_MODEL_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace hydrant {

struct SentencePieceModel {
  TokenizerSpec spec;  // without prefix and suffix
  int64_t eos_id = -1;
};

// InvalidArgument where the bytes are no such message; Unimplemented where the model is not BPE or
// rewrites its text first.
absl::StatusOr<SentencePieceModel> ReadSentencePieceModel(std::string_view bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TOKENIZER_SENTENCEPIECE_MODEL_H_
