// Which tokens have an entry in each head of a cache. Plain data.
#ifndef HYDRANT_ENGINE_RUN_STEP_KEPT_ENTRIES_H_
#define HYDRANT_ENGINE_RUN_STEP_KEPT_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hydrant {

// A bit for each head and token: set if the head holds the token's entry. An entry that stands for
// several tokens has the position of one of them.
class KeptEntries {
 public:
  KeptEntries() = default;
  KeptEntries(int num_layers, int num_kv_heads, int num_tokens)
      : num_layers_(num_layers),
        num_kv_heads_(num_kv_heads),
        num_tokens_(num_tokens),
        bits_(static_cast<size_t>(num_layers) * num_kv_heads * BytesOfHead()) {}

  int num_layers() const { return num_layers_; }
  int num_kv_heads() const { return num_kv_heads_; }
  int num_tokens() const { return num_tokens_; }

  // Tokens past num_tokens() are ignored.
  void Add(int layer, int head, std::span<const int32_t> positions) {
    uint8_t* const bits = bits_.data() + Offset(layer, head);
    for (const int32_t position : positions) {
      if (position >= 0 && position < num_tokens_) bits[position / 8] |= 1 << position % 8;
    }
  }
  // Token t is bit t % 8, from the lowest, of byte t / 8.
  std::span<const uint8_t> OfHead(int layer, int head) const {
    return std::span(bits_).subspan(Offset(layer, head), BytesOfHead());
  }

  bool operator==(const KeptEntries&) const = default;

 private:
  size_t BytesOfHead() const { return (static_cast<size_t>(num_tokens_) + 7) / 8; }
  size_t Offset(int layer, int head) const {
    return (static_cast<size_t>(layer) * num_kv_heads_ + head) * BytesOfHead();
  }

  int num_layers_ = 0;
  int num_kv_heads_ = 0;
  int num_tokens_ = 0;
  std::vector<uint8_t> bits_;  // [layers, heads, BytesOfHead()]
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_STEP_KEPT_ENTRIES_H_
