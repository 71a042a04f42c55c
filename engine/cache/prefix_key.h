// Names for the blocks of a prompt by what they hold: the key of a block stands for its tokens and
// all that come before them, so that two prompts have a block in common exactly where they begin
// alike up to its end. Pure; safe from any thread.
#ifndef HYDRANT_ENGINE_CACHE_PREFIX_KEY_H_
#define HYDRANT_ENGINE_CACHE_PREFIX_KEY_H_

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cache/sha256.h"

namespace hydrant {

// SHA-256 of the process's secret, the salt, the key of the block before and the block's tokens:
// nobody can find tokens that have another's key, nor learn from a hit what another has sent under
// a salt that they do not know.
using PrefixKey = Sha256Digest;

struct PrefixKeyHash {
  size_t operator()(const PrefixKey& key) const {
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof(hash));
    return hash;
  }
};

// From now on keys are those of every process that was given the same secret, where blocks outlive
// the process (scheduler/prefix_archive.h). Before any key is made, and from one thread.
void SharePrefixKeys(const Sha256Digest& secret);

// Of every whole block of kPrefixBlockTokens tokens.
std::vector<PrefixKey> PrefixKeys(std::span<const uint32_t> tokens, std::string_view salt);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_KEY_H_
