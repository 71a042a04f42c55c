#include "scheduler/store/context_store.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "scheduler/store/directory_store.h"
#include "scheduler/store/redis_store.h"

namespace hydrant {
namespace {

constexpr size_t kMaxKeyBytes = 200;

bool IsKeyChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// "%40" is '@'.
absl::StatusOr<std::string> Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    uint8_t byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() < 2 || error != std::errc() || end != digits.data() + 2)
      return Invalid("a '%' is to be followed by two hexadecimal digits");
    plain += static_cast<char>(byte);
    i += 2;
  }
  return plain;
}

absl::StatusOr<int> Number(const char* what, std::string_view text, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= 0 && number <= most)
    return number;
  return Invalid(absl::StrCat(what, " '", std::string(text), "' is no number in [0, ", most, "]"));
}

constexpr int kMaxDatabases = 1 << 20;

// db=1&prefix=name
absl::Status ParseQuery(std::string_view query, RedisAddress* address) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.starts_with("db=")) {
      HYDRANT_ASSIGN_OR_RETURN(address->database,
                               Number("database", pair.substr(3), kMaxDatabases));
    } else if (pair.starts_with("prefix=")) {
      HYDRANT_ASSIGN_OR_RETURN(address->prefix, Unescaped(pair.substr(7)));
    } else {
      return Invalid(absl::StrCat("'", std::string(pair), "' is none of db=, prefix="));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseHost(std::string_view text, RedisAddress* address) {
  std::string_view host = text, port;
  if (text.starts_with('[')) {  // an IPv6 address contains colons
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return Invalid("a '[' is not closed");
    host = text.substr(1, close - 1);
    port = text.substr(close + 1);
    if (!port.empty() && port.front() != ':') return Invalid("a port follows a ':'");
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (host.empty()) return Invalid("the host is missing");
  address->host = std::string(host);
  if (port.empty()) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(address->port, Number("port", port.substr(1), 65535));
  return absl::OkStatus();
}

// Parses the part after "redis://".
absl::StatusOr<RedisAddress> ParseRedis(std::string_view text) {
  RedisAddress address;
  if (const size_t query = text.find('?'); query != std::string_view::npos) {
    HYDRANT_RETURN_IF_ERROR(ParseQuery(text.substr(query + 1), &address));
    text = text.substr(0, query);
  }
  if (const size_t at = text.rfind('@'); at != std::string_view::npos) {
    const std::string_view who = text.substr(0, at);
    const size_t colon = who.find(':');
    if (colon == std::string_view::npos) return Invalid("a password follows a ':'");
    HYDRANT_ASSIGN_OR_RETURN(address.user, Unescaped(who.substr(0, colon)));
    HYDRANT_ASSIGN_OR_RETURN(address.password, Unescaped(who.substr(colon + 1)));
    text = text.substr(at + 1);
  }
  if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
    const std::string_view database = text.substr(slash + 1);
    if (!database.empty()) {
      HYDRANT_ASSIGN_OR_RETURN(address.database, Number("database", database, kMaxDatabases));
    }
    text = text.substr(0, slash);
  }
  HYDRANT_RETURN_IF_ERROR(ParseHost(text, &address));
  return address;
}

// Parses the part after "unix:".
absl::StatusOr<RedisAddress> ParseSocket(std::string_view text) {
  RedisAddress address;
  const size_t query = std::min(text.find('?'), text.size());
  address.socket = std::string(text.substr(0, query));
  if (address.socket.empty()) return Invalid("the path is missing");
  if (query < text.size()) HYDRANT_RETURN_IF_ERROR(ParseQuery(text.substr(query + 1), &address));
  return address;
}

}  // namespace

absl::Status CheckStoreKey(std::string_view key) {
  const bool good = !key.empty() && key.size() <= kMaxKeyBytes && key.front() != '.' &&
                    std::all_of(key.begin(), key.end(), IsKeyChar);
  return good ? absl::OkStatus()
              : Invalid("a key has 1 to 200 of A-Z, a-z, 0-9, '.', '_' and '-', no '.' first");
}

absl::Status TooManyKeys(const std::string& store) {
  return absl::ResourceExhaustedError(absl::StrCat(
      store, " has more than ", kMaxListedKeys, " of these keys: too many to list; delete some"));
}

absl::Status DeadlineError(const std::string& store) {
  return absl::UnavailableError(absl::StrCat(store, " did not answer in time"));
}

absl::StatusOr<std::unique_ptr<ContextStore>> OpenContextStore(const std::string& uri,
                                                               const ContextStoreOptions& options) {
  if (uri.starts_with("dir:") && uri.size() > 4)
    return OpenDirectoryStore(uri.substr(4), options.max_bytes);
  if (uri.starts_with("redis://")) {
    HYDRANT_ASSIGN_OR_RETURN(RedisAddress address, ParseRedis(std::string_view(uri).substr(8)));
    return OpenRedisStore(std::move(address));
  }
  if (uri.starts_with("unix:")) {
    HYDRANT_ASSIGN_OR_RETURN(RedisAddress address, ParseSocket(std::string_view(uri).substr(5)));
    return OpenRedisStore(std::move(address));
  }
  if (uri.starts_with("rediss://"))
    return Invalid(
        "TLS (rediss://) is not built in; put a TLS proxy before the Redis, or use "
        "redis:// or unix:");
  return Invalid("one of dir:PATH, redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], unix:PATH");
}

}  // namespace hydrant
