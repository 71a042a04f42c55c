#include "engine/cache/prefix_key.h"

#include <openssl/evp.h>

#include <memory>
#include <random>

#include "kernels/check.h"
#include "kernels/ops/prefix_blocks.h"

namespace hydrant {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) { HYDRANT_CHECK(context_ != nullptr); }

  void Begin() { HYDRANT_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1); }
  void Add(const void* bytes, size_t size) {
    HYDRANT_CHECK(EVP_DigestUpdate(context_.get(), bytes, size) == 1);
  }
  PrefixKey Finish() {
    PrefixKey key;
    HYDRANT_CHECK(EVP_DigestFinal_ex(context_.get(), key.data(), nullptr) == 1);
    return key;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

const PrefixKey& Secret() {
  static const PrefixKey secret = [] {
    std::random_device device;  // the system's, not a generator
    PrefixKey bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(device());
    return bytes;
  }();
  return secret;
}

}  // namespace

std::vector<PrefixKey> PrefixKeys(std::span<const uint32_t> tokens, std::string_view salt) {
  Sha256 hash;
  hash.Begin();
  hash.Add(Secret().data(), Secret().size());
  hash.Add(salt.data(), salt.size());
  PrefixKey before = hash.Finish();
  std::vector<PrefixKey> keys;
  keys.reserve(tokens.size() / kPrefixBlockTokens);
  for (; tokens.size() >= kPrefixBlockTokens; tokens = tokens.subspan(kPrefixBlockTokens)) {
    hash.Begin();
    hash.Add(before.data(), before.size());
    hash.Add(tokens.data(), kPrefixBlockTokens * sizeof(uint32_t));
    before = hash.Finish();
    keys.push_back(before);
  }
  return keys;
}

}  // namespace hydrant
