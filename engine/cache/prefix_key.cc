#include "engine/cache/prefix_key.h"

#include <random>

#include "engine/cache/sha256.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {
namespace {

PrefixKey& Secret() {
  static PrefixKey secret = [] {
    std::random_device device;  // the system's entropy, not a generator
    PrefixKey bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(device());
    return bytes;
  }();
  return secret;
}

}  // namespace

void SharePrefixKeys(const Sha256Digest& secret) { Secret() = secret; }

std::vector<PrefixKey> PrefixKeys(std::span<const uint32_t> tokens, std::string_view salt) {
  Sha256 hash;
  hash.Add(Secret().data(), Secret().size());
  hash.Add(salt);
  PrefixKey before = hash.Finish();
  std::vector<PrefixKey> keys;
  keys.reserve(tokens.size() / kPrefixBlockTokens);
  for (; tokens.size() >= kPrefixBlockTokens; tokens = tokens.subspan(kPrefixBlockTokens)) {
    hash.Add(before.data(), before.size());
    hash.Add(tokens.data(), kPrefixBlockTokens * sizeof(uint32_t));
    before = hash.Finish();
    keys.push_back(before);
  }
  return keys;
}

}  // namespace hydrant
