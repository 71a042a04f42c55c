#include "engine/model/hub/blob_digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "kernels/check.h"

namespace hydrant::hub {

BlobDigest::BlobDigest(const RepoFile& file) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  const bool is_large = !file.sha256.empty();
  HYDRANT_CHECK(context_ != nullptr);
  HYDRANT_CHECK(EVP_DigestInit_ex(context_.get(), is_large ? EVP_sha256() : EVP_sha1(), nullptr) ==
                1);
  if (!is_large) {
    const std::string header = fmt::format("blob {}", file.size);
    Add({header.c_str(), header.size() + 1});
  }
}

void BlobDigest::Add(std::string_view bytes) {
  HYDRANT_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string BlobDigest::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  HYDRANT_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace hydrant::hub
