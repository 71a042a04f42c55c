#include "server/auth/token_file.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/model/small_file.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr size_t kMaxTokenFileBytes = size_t{4} << 20;
constexpr size_t kMaxTokens = 4096;  // a client's token is compared with each
constexpr size_t kTokenBytes = 32;
constexpr char kTokenPrefix[] = "hyd_";  // lets secret scanners recognize a leaked token

absl::Status WrongTokens(const std::string& why) { return absl::InvalidArgumentError(why); }

// An error in a line. It does not repeat a hash, which may be a token put there by mistake.
absl::Status Wrong(const YAML::Node& node, const std::string& field, const std::string& why) {
  const std::string line = absl::StrCat("line ", node.Mark().line + 1, ": ");
  return WrongTokens(line + (field.empty() ? "" : field + ": ") + why);
}

absl::Status CheckKeys(const YAML::Node& map, std::initializer_list<std::string_view> known) {
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      std::string all;
      for (const std::string_view name : known)
        absl::StrAppend(&all, all.empty() ? "" : ", ", std::string(name));
      return Wrong(entry.first, key, "is not known here; one of " + all);
    }
    if (!seen.insert(key).second) return Wrong(entry.first, key, "is there a second time");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextOf(const YAML::Node& entry, const char* field) {
  const YAML::Node node = entry[field];
  if (!node.IsDefined()) return Wrong(entry, field, "is missing");
  if (!node.IsScalar() || node.Scalar().empty()) return Wrong(node, field, "is no text");
  return node.Scalar();
}

absl::StatusOr<std::optional<double>> LimitOf(const YAML::Node& quotas, const char* field,
                                              bool whole) {
  const YAML::Node node = quotas[field];
  if (!node.IsDefined()) return std::nullopt;
  double value = 0;
  const bool is_number = node.IsScalar() && YAML::convert<double>::decode(node, value);
  if (!is_number || !(value > 0) || value > 1e15 || (whole && value != std::floor(value)))
    return Wrong(node, field, whole ? "is not a whole number above 0" : "is not a number above 0");
  return value;
}

absl::StatusOr<Quotas> QuotasOf(const YAML::Node& node) {
  if (!node.IsMap()) return Wrong(node, "quotas", "is not a map of limits");
  HYDRANT_RETURN_IF_ERROR(
      CheckKeys(node, {"requests_per_minute", "tokens_per_minute", "page_seconds_per_minute",
                       "concurrent_requests", "contexts"}));
  Quotas quotas;
  HYDRANT_ASSIGN_OR_RETURN(quotas.requests_per_minute, LimitOf(node, "requests_per_minute", true));
  HYDRANT_ASSIGN_OR_RETURN(quotas.tokens_per_minute, LimitOf(node, "tokens_per_minute", true));
  HYDRANT_ASSIGN_OR_RETURN(quotas.page_seconds_per_minute,
                           LimitOf(node, "page_seconds_per_minute", false));
  HYDRANT_ASSIGN_OR_RETURN(quotas.concurrent_requests, LimitOf(node, "concurrent_requests", true));
  HYDRANT_ASSIGN_OR_RETURN(quotas.contexts, LimitOf(node, "contexts", true));
  return quotas;
}

absl::StatusOr<Sha256Digest> DigestOf(const YAML::Node& entry) {
  HYDRANT_ASSIGN_OR_RETURN(const std::string hex, TextOf(entry, "sha256"));
  const bool is_hex = std::all_of(hex.begin(), hex.end(),
                                  [](unsigned char c) { return absl::ascii_isxdigit(c) != 0; });
  Sha256Digest digest;
  if (!is_hex || hex.size() != 2 * digest.size())
    return Wrong(entry["sha256"], "sha256",
                 "is not the 64 hexadecimal digits of a token's SHA-256 (hydrantd --new-token "
                 "prints them)");
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

absl::StatusOr<TokenEntry> EntryOf(const YAML::Node& node) {
  if (!node.IsMap()) return Wrong(node, "tokens", "an entry is not a map of fields");
  HYDRANT_RETURN_IF_ERROR(CheckKeys(node, {"tenant", "sha256", "expires", "admin", "quotas"}));
  TokenEntry entry;
  HYDRANT_ASSIGN_OR_RETURN(entry.tenant, TextOf(node, "tenant"));
  if (const absl::Status name = CheckTenantName(entry.tenant); !name.ok())
    return Wrong(node["tenant"], "tenant", std::string(name.message()));
  HYDRANT_ASSIGN_OR_RETURN(entry.sha256, DigestOf(node));
  if (node["expires"].IsDefined()) {
    HYDRANT_ASSIGN_OR_RETURN(const std::string text, TextOf(node, "expires"));
    std::string why;
    if (!absl::ParseTime(absl::RFC3339_full, text, &entry.expires, &why))
      return Wrong(node["expires"], "expires",
                   "'" + text + "' is not a time such as 2027-01-01T00:00:00Z");
  }
  if (const YAML::Node admin = node["admin"]; admin.IsDefined()) {
    if (!admin.IsScalar() || !YAML::convert<bool>::decode(admin, entry.admin))
      return Wrong(admin, "admin", "is neither true nor false");
  }
  return entry;
}

absl::Status Add(const YAML::Node& node, TokenFile* file, std::set<std::string>* limited) {
  HYDRANT_ASSIGN_OR_RETURN(TokenEntry entry, EntryOf(node));
  for (const TokenEntry& other : file->tokens) {
    if (other.sha256 == entry.sha256)
      return Wrong(node["sha256"], "sha256", "is that of another entry, too");
  }
  Quotas& quotas = file->tenants[entry.tenant];
  if (node["quotas"].IsDefined()) {
    HYDRANT_ASSIGN_OR_RETURN(quotas, QuotasOf(node["quotas"]));
    if (!limited->insert(entry.tenant).second)
      return Wrong(node["quotas"], "quotas",
                   "another entry of tenant " + entry.tenant +
                       " has some already; they are the tenant's, so one entry has them");
  }
  file->tokens.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::StatusOr<TokenFile> ParseLoaded(const YAML::Node& root) {
  if (!root.IsMap() || !root["tokens"].IsDefined())
    return WrongTokens("tokens: is missing; the file is a map with a list of that name");
  HYDRANT_RETURN_IF_ERROR(CheckKeys(root, {"tokens"}));
  const YAML::Node tokens = root["tokens"];
  if (!tokens.IsSequence()) return Wrong(tokens, "tokens", "is not a list of entries");
  if (tokens.size() > kMaxTokens)
    return Wrong(
        tokens, "tokens",
        absl::StrCat("has ", tokens.size(), " entries; at most ", kMaxTokens, " are allowed"));
  TokenFile file;
  std::set<std::string> limited;  // tenants with quotas read so far
  for (const YAML::Node& node : tokens) HYDRANT_RETURN_IF_ERROR(Add(node, &file, &limited));
  return file;
}

}  // namespace

const TokenEntry* TokenFile::Find(std::string_view token) const {
  Sha256 hash;
  hash.Add(token);
  const Sha256Digest digest = hash.Finish();
  const TokenEntry* found = nullptr;
  for (const TokenEntry& entry : tokens) {
    if (CRYPTO_memcmp(entry.sha256.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  return found;
}

absl::StatusOr<TokenFile> ParseTokenFile(const std::string& yaml) {
  try {
    return ParseLoaded(YAML::Load(yaml));
  } catch (const YAML::Exception& error) {  // the library throws
    return WrongTokens(absl::StrCat("line ", error.mark.line + 1, ": ", error.msg));
  }
}

absl::StatusOr<TokenFile> ReadTokenFile(const std::string& path) {
  const absl::StatusOr<std::string> yaml = ReadSmallFile(path, kMaxTokenFileBytes);
  if (!yaml.ok()) return WrongTokens(std::string(yaml.status().message()));
  absl::StatusOr<TokenFile> parsed = ParseTokenFile(*yaml);
  if (!parsed.ok()) return WrongTokens(absl::StrCat(path, ": ", parsed.status().message()));
  return parsed;
}

absl::Status CheckTenantName(const std::string& tenant) {
  if (tenant.empty() || tenant.size() > kMaxTenantBytes)
    return WrongTokens(
        absl::StrCat("has ", tenant.size(), " bytes; 1 to ", kMaxTenantBytes, " are allowed"));
  const bool printable = std::all_of(tenant.begin(), tenant.end(),
                                     [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (!printable) return WrongTokens("holds what is not printable ASCII, or a space");
  return absl::OkStatus();
}

absl::StatusOr<std::string> DescribeNewToken(const std::string& tenant) {
  if (const absl::Status name = CheckTenantName(tenant); !name.ok())
    return WrongTokens(absl::StrCat("--new-token: the tenant's name ", name.message()));
  std::array<unsigned char, kTokenBytes> random;
  if (RAND_bytes(random.data(), random.size()) != 1)
    return absl::InternalError("--new-token: the system has no random numbers");
  const std::string token =
      kTokenPrefix +
      absl::WebSafeBase64Escape({reinterpret_cast<const char*>(random.data()), random.size()});
  Sha256 hash;
  hash.Add(token);
  YAML::Emitter name;
  name << YAML::DoubleQuoted << tenant;
  return absl::StrCat(
      "# The token, for the client alone; nobody can find it out from the file:\n", token,
      "\n\n# Its entry in the file of --auth-tokens, in the list `tokens:`\n  - tenant: ",
      name.c_str(), "\n    sha256: ", HexOf(hash.Finish()), "\n");
}

}  // namespace hydrant
