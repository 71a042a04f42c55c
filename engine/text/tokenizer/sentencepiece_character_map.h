// The compiled character map of a SentencePiece model's normaliser.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_CHARACTER_MAP_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_CHARACTER_MAP_H_

#include <string_view>

#include "absl/status/status.h"

namespace hydrant {

// The library follows the map's offsets without looking where they lead. InvalidArgument where one
// leads out of the map; an empty map is fine.
absl::Status CheckCharacterMap(std::string_view map);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_CHARACTER_MAP_H_
