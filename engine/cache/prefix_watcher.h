// Hears what becomes of prefix blocks, on the thread of their cache; must not block.
#ifndef HYDRANT_ENGINE_CACHE_PREFIX_WATCHER_H_
#define HYDRANT_ENGINE_CACHE_PREFIX_WATCHER_H_

#include <cstdint>
#include <span>

#include "engine/cache/prefix_key.h"

namespace hydrant {

// A prompt that may be told of.
struct PrefixText {
  std::span<const PrefixKey> keys{};   // of its whole blocks, in order
  std::span<const uint32_t> tokens{};  // kPrefixBlockTokens for each of them, or more
};

class PrefixWatcher {
 public:
  virtual ~PrefixWatcher() = default;
  // Of a prompt, `filled` was filled: blocks of its tokens, which have keys of the text, and
  // others.
  virtual void OnFilled(const PrefixText& text, std::span<const PrefixKey> filled) = 0;
  // It is filled no more.
  virtual void OnEvicted(const PrefixKey& key) = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_WATCHER_H_
