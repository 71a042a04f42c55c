#include "server/observe/trace_context.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>

namespace hydrant {
namespace {

constexpr size_t kTraceIdBytes = 16, kSpanIdBytes = 8;
constexpr size_t kMaxStates = 32;
constexpr size_t kMaxStateBytes = 256;  // for a key, and for a value

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLower(char c) { return c >= 'a' && c <= 'z'; }

bool IsLowerHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

// REQUIRES: IsLowerHex(hex), of even length
std::string FromHex(std::string_view hex) {
  const auto value = [](char c) { return IsDigit(c) ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(value(hex[i]) << 4 | value(hex[i + 1]));
  return bytes;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

bool IsZero(std::string_view bytes) { return bytes.find_first_not_of('\0') == bytes.npos; }

// The fields of `traceparent`: version, trace id, parent id, flags, and additions of
// later versions.
struct Fields {
  std::string_view version, trace_id, span_id, flags, rest;
};

std::optional<Fields> Split(std::string_view header) {
  constexpr size_t kSize = 55;
  if (header.size() < kSize) return std::nullopt;
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const Fields fields{header.substr(0, 2), header.substr(3, 32), header.substr(36, 16),
                      header.substr(53, 2), header.substr(kSize)};
  for (const std::string_view hex : {fields.version, fields.trace_id, fields.span_id, fields.flags})
    if (!IsLowerHex(hex)) return std::nullopt;
  return fields;
}

bool IsKeyChar(char c) {
  return IsLower(c) || IsDigit(c) || c == '_' || c == '-' || c == '*' || c == '/';
}

bool IsSimpleKey(std::string_view key, size_t most, bool may_begin_with_digit) {
  if (key.empty() || key.size() > most) return false;
  if (!IsLower(key[0]) && !(may_begin_with_digit && IsDigit(key[0]))) return false;
  return std::all_of(key.begin(), key.end(), IsKeyChar);
}

// A vendor's key, or tenant@vendor.
bool IsKey(std::string_view key) {
  const size_t at = key.find('@');
  if (at == key.npos) return IsSimpleKey(key, kMaxStateBytes, false);
  return IsSimpleKey(key.substr(0, at), 241, true) && IsSimpleKey(key.substr(at + 1), 14, false);
}

bool IsValue(std::string_view value) {
  return !value.empty() && value.size() <= kMaxStateBytes &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

// REQUIRES: size is a multiple of 8
std::string RandomBytes(size_t size) {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  std::string bytes(size, '\0');
  while (IsZero(bytes)) {
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
      const uint64_t number = generator();
      std::memcpy(&bytes[i], &number, sizeof(number));
    }
  }
  return bytes;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  const std::optional<Fields> fields = Split(Trim(header));
  if (!fields.has_value() || fields->version == "ff") return std::nullopt;
  if (!fields->rest.empty() && (fields->version == "00" || fields->rest[0] != '-'))
    return std::nullopt;
  TraceContext context{.trace_id = FromHex(fields->trace_id),
                       .span_id = FromHex(fields->span_id),
                       .sampled = (FromHex(fields->flags)[0] & 1) != 0,
                       .state = {}};
  if (IsZero(context.trace_id) || IsZero(context.span_id)) return std::nullopt;
  return context;
}

std::string JoinTracestate(const std::vector<std::string_view>& headers) {
  std::string joined;
  std::set<std::string_view> keys;
  for (std::string_view header : headers) {
    while (!header.empty()) {
      const size_t comma = std::min(header.find(','), header.size());
      const std::string_view state = Trim(header.substr(0, comma));
      header.remove_prefix(std::min(comma + 1, header.size()));
      if (state.empty()) continue;
      const size_t equals = state.find('=');
      if (equals == state.npos || !IsKey(state.substr(0, equals)) ||
          !IsValue(state.substr(equals + 1)) || !keys.insert(state.substr(0, equals)).second)
        return "";
      if (!joined.empty()) joined += ',';
      joined += state;
    }
  }
  return keys.size() > kMaxStates ? "" : joined;
}

std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char byte : bytes) {
    hex += kDigits[static_cast<uint8_t>(byte) >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string NewTraceId() { return RandomBytes(kTraceIdBytes); }
std::string NewSpanId() { return RandomBytes(kSpanIdBytes); }

bool IsAmong(double ratio, std::string_view trace_id) {
  if (ratio >= 1) return true;
  uint64_t number = 0;
  for (const char byte : trace_id.substr(kTraceIdBytes - sizeof(number)))
    number = number << 8 | static_cast<uint8_t>(byte);
  constexpr double kRange = 0x1p63;
  return static_cast<double>(number >> 1) < ratio * kRange;
}

}  // namespace hydrant
