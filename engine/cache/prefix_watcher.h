// Callbacks for changes of prefix blocks, on the thread of their cache; they must not block.
#ifndef HYDRANT_ENGINE_CACHE_PREFIX_WATCHER_H_
#define HYDRANT_ENGINE_CACHE_PREFIX_WATCHER_H_

#include <cstdint>
#include <span>

#include "engine/cache/prefix_key.h"

namespace hydrant {

// A prompt that may be published.
struct PrefixText {
  std::span<const PrefixKey> keys{};   // of its whole blocks, in order
  std::span<const uint32_t> tokens{};  // at least kPrefixBlockTokens per key
};

class PrefixWatcher {
 public:
  virtual ~PrefixWatcher() = default;
  // Blocks of a prompt have been filled. filled: their keys; those of K and V are in text.keys,
  // those of other data are not. text: empty for a private prompt.
  virtual void OnFilled(const PrefixText& text, std::span<const PrefixKey> filled) = 0;
  // The block with this key has been evicted.
  virtual void OnEvicted(const PrefixKey& key) = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_WATCHER_H_
