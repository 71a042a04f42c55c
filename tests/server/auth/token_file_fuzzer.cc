// Parses any bytes as the file of --auth-tokens: tokens and tenants, or an error with its place; no
// crash. A parsed file always satisfies the rules of the format.
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>

#include "server/auth/token_file.h"

namespace {

using namespace hydrant;  // NOLINT(google-build-using-namespace): a fuzzer

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckLimit(const std::optional<double>& limit) {
  Check(!limit.has_value() || (std::isfinite(*limit) && *limit > 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<TokenFile> file =
      ParseTokenFile(std::string(reinterpret_cast<const char*>(data), size));
  if (!file.ok()) {
    Check(absl::IsInvalidArgument(file.status()) && !file.status().message().empty());
    return 0;
  }
  std::set<Sha256Digest> digests;
  for (const TokenEntry& entry : file->tokens) {
    Check(CheckTenantName(entry.tenant).ok());
    Check(file->tenants.contains(entry.tenant));
    Check(digests.insert(entry.sha256).second);
  }
  for (const auto& [tenant, quotas] : file->tenants) {
    CheckLimit(quotas.requests_per_minute);
    CheckLimit(quotas.tokens_per_minute);
    CheckLimit(quotas.page_seconds_per_minute);
    Check(quotas.concurrent_requests.value_or(1) > 0 && quotas.contexts.value_or(1) > 0);
  }
  Check(file->Find("a token that nobody has, and whose hash nobody guesses") == nullptr);
  return 0;
}
