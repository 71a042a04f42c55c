// The file of --auth-tokens: YAML with the hashes of tokens, each with its tenant.
//
//   tokens:
//     - tenant: acme
//       sha256: 9f86d081...                 # of the token; hydrantd --new-token prints both
//       expires: 2027-01-01T00:00:00Z       # RFC 3339; default: never
//       admin: false                        # may call methods that change the server
//       quotas:                             # of the tenant; in one of its entries
//         requests_per_minute: 600
//         tokens_per_minute: 200000
//         page_seconds_per_minute: 50000
//         concurrent_requests: 16
//         contexts: 100
//
// A token is 256 random bits and cannot be guessed, so its hash needs no salt and no slow function.
// Immutable; any thread may read.
#ifndef HYDRANT_SERVER_AUTH_TOKEN_FILE_H_
#define HYDRANT_SERVER_AUTH_TOKEN_FILE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/cache/sha256.h"
#include "server/auth/tenant_account.h"

namespace hydrant {

struct TokenEntry {
  std::string tenant;
  Sha256Digest sha256{};
  absl::Time expires = absl::InfiniteFuture();
  bool admin = false;
};

struct TokenFile {
  std::vector<TokenEntry> tokens;
  std::map<std::string, Quotas> tenants;  // all tenants of the tokens

  // Null if the token is unknown. Takes equally long for every token.
  const TokenEntry* Find(std::string_view token) const;
};

// InvalidArgument names the line, and the field if the error is in one.
absl::StatusOr<TokenFile> ParseTokenFile(const std::string& yaml);
// As ParseTokenFile(), for a file; errors begin with its path.
absl::StatusOr<TokenFile> ReadTokenFile(const std::string& path);

// OK for a valid tenant name: 1 to kMaxTenantBytes of printable ASCII.
absl::Status CheckTenantName(const std::string& tenant);

// A new token and its entry for the file, as text to print.
absl::StatusOr<std::string> DescribeNewToken(const std::string& tenant);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_AUTH_TOKEN_FILE_H_
