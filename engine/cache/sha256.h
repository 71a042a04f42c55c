// SHA-256 over bytes in pieces.
#ifndef HYDRANT_ENGINE_CACHE_SHA256_H_
#define HYDRANT_ENGINE_CACHE_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace hydrant {

using Sha256Digest = std::array<uint8_t, 32>;
// 64 digits, 0-9 and a-f.
std::string HexOf(const Sha256Digest& digest);

class Sha256 {
 public:
  Sha256();
  void Add(const void* bytes, size_t size);
  void Add(std::string_view bytes) { Add(bytes.data(), bytes.size()); }
  // The digest of the bytes added since the last Finish().
  Sha256Digest Finish();

 private:
  void Begin();
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_SHA256_H_
