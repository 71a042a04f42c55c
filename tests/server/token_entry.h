// Entries of a token file (docs/guide/security.md) for tests.
#ifndef HYDRANT_TESTS_SERVER_TOKEN_ENTRY_H_
#define HYDRANT_TESTS_SERVER_TOKEN_ENTRY_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/cache/sha256.h"

namespace hydrant {

// A line of `tokens:`; `more`: further fields, each after a comma.
inline std::string EntryOf(const std::string& tenant, const std::string& token,
                           const std::string& more = "") {
  Sha256 hash;
  hash.Add(token);
  return absl::StrCat("  - {tenant: ", tenant, ", sha256: ", HexOf(hash.Finish()), more, "}\n");
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_TOKEN_ENTRY_H_
