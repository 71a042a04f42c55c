// The compiled character map of a SentencePiece model's normaliser.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_CHARACTER_MAP_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_CHARACTER_MAP_H_

#include <string_view>

#include "absl/status/status.h"

namespace hydrant {

// The library follows the map's offsets without bounds checks. InvalidArgument if an offset leaves
// the map; an empty map is valid.
absl::Status CheckCharacterMap(std::string_view map);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_CHARACTER_MAP_H_
