// The hash that names a blob: SHA-256 of a large file's bytes; for any other file git's SHA-1 of
// "blob SIZE\0" and the bytes. Not thread safe.
#ifndef HYDRANT_ENGINE_MODEL_HUB_BLOB_DIGEST_H_
#define HYDRANT_ENGINE_MODEL_HUB_BLOB_DIGEST_H_

#include <memory>
#include <string>
#include <string_view>

#include "engine/model/hub/repo_listing.h"

struct evp_md_ctx_st;

namespace hydrant::hub {

class BlobDigest {
 public:
  explicit BlobDigest(const RepoFile& file);

  void Add(std::string_view bytes);
  std::string Finish();  // in hexadecimal; call once

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_BLOB_DIGEST_H_
