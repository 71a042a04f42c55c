#include "engine/cache/sha256.h"

#include <openssl/evp.h>

#include "kernels/check.h"

namespace hydrant {

std::string HexOf(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  HYDRANT_CHECK(context_ != nullptr);
  Begin();
}

void Sha256::Begin() {
  HYDRANT_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Add(const void* bytes, size_t size) {
  HYDRANT_CHECK(EVP_DigestUpdate(context_.get(), bytes, size) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  HYDRANT_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  Begin();
  return digest;
}

}  // namespace hydrant
