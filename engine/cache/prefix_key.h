// Keys of a prompt's blocks: the key of a block identifies its tokens and all tokens before them,
// so that two prompts have a block in common exactly if they are equal up to its end. Safe from any
// thread, but for SharePrefixKeys().
#ifndef HYDRANT_ENGINE_CACHE_PREFIX_KEY_H_
#define HYDRANT_ENGINE_CACHE_PREFIX_KEY_H_

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cache/sha256.h"

namespace hydrant {

// SHA-256 of the process's secret, the salt, the key of the block before and the block's tokens. A
// client can neither find tokens that collide with another client's key, nor learn from a hit about
// prompts sent under a salt unknown to it.
using PrefixKey = Sha256Digest;

struct PrefixKeyHash {
  size_t operator()(const PrefixKey& key) const {
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof(hash));
    return hash;
  }
};

// Makes the keys equal in all processes with this secret, for blocks that outlive the process
// (scheduler/prefix_archive.h). REQUIRES: no key has been made; called from one thread
void SharePrefixKeys(const Sha256Digest& secret);

// The key of every whole block of kPrefixBlockTokens tokens, in order.
std::vector<PrefixKey> PrefixKeys(std::span<const uint32_t> tokens, std::string_view salt);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_KEY_H_
