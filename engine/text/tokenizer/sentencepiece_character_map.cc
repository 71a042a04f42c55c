#include "engine/text/tokenizer/sentencepiece_character_map.h"

#include <cstdint>
#include <cstring>

namespace hydrant {
namespace {

uint32_t ReadU32(std::string_view bytes, size_t index) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + index * sizeof(value), sizeof(value));
  return value;
}

// One node of the double-array trie (Darts-clone). A value has the highest bit set; any other
// node's children are at its index XOR its offset.
struct Unit {
  uint32_t bits;
  bool is_value() const { return bits >> 31 != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  bool has_value() const { return (bits >> 8 & 1) != 0; }
  uint32_t offset() const { return bits >> 10 << ((bits & (1u << 9)) >> 6); }
};

}  // namespace

// The map: the trie's size in bytes, the trie, and the texts that its values point into, each ended
// by 0.
absl::Status CheckCharacterMap(std::string_view map) {
  if (map.empty()) return absl::OkStatus();
  const absl::Status corrupt =
      absl::InvalidArgumentError("tokenizer.model: the normaliser's character map is corrupt");
  if (map.size() < sizeof(uint32_t)) return corrupt;
  const size_t trie_bytes = ReadU32(map, 0);
  map.remove_prefix(sizeof(uint32_t));
  if (trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0 || trie_bytes >= map.size())
    return corrupt;
  const std::string_view trie = map.substr(0, trie_bytes), texts = map.substr(trie_bytes);
  if (texts.back() != '\0') return corrupt;
  const size_t size = trie.size() / sizeof(uint32_t);
  for (size_t i = 0; i < size; ++i) {
    const Unit unit{ReadU32(trie, i)};
    if (unit.is_value()) continue;
    const size_t children = i ^ unit.offset();
    // A child is indexed by the next byte of the text, so all 256 must exist.
    if ((children | 0xFF) >= size) return corrupt;
    if (unit.has_value() && Unit{ReadU32(trie, children)}.value() >= texts.size()) return corrupt;
  }
  return absl::OkStatus();
}

}  // namespace hydrant
