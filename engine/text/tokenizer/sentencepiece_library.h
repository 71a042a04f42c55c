// SentencePiece models of every kind, encoded by the SentencePiece library.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_LIBRARY_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_LIBRARY_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/subword_model.h"

namespace hydrant {

// `bytes`: a whole tokenizer.model. The model normalizes its text itself, so it takes text, not
// pieces. Immutable, thread safe. FailedPrecondition if the module that wraps the library was not
// built or is not found; InvalidArgument if the library refuses the bytes.
absl::StatusOr<std::unique_ptr<SubwordModel>> MakeSentencePieceLibraryModel(std::string_view bytes);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_LIBRARY_H_
