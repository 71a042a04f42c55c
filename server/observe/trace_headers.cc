#include "server/observe/trace_headers.h"

#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hydrant {
namespace {

// nullopt where two hexadecimal digits do not follow a '%'.
std::optional<std::string> PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const absl::string_view digits = text.substr(i + 1, 2);
    uint8_t byte = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (error != std::errc() || end - digits.data() != 2) return std::nullopt;
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

// gRPC aborts on illegal headers, and drops headers with reserved names.
bool IsLegal(const std::string& key, const std::string& value) {
  const grpc_slice name = grpc_slice_from_static_buffer(key.data(), key.size());
  if (grpc_header_key_is_legal(name) == 0 || key.starts_with("grpc-")) return false;
  return grpc_is_binary_header(name) != 0 ||
         grpc_header_nonbin_value_is_legal(
             grpc_slice_from_static_buffer(value.data(), value.size())) != 0;
}

}  // namespace

absl::StatusOr<TraceHeaders> ParseTraceHeaders(absl::string_view text) {
  TraceHeaders headers;
  int place = 0;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    ++place;
    if (absl::StripAsciiWhitespace(entry).empty()) continue;
    const auto wrong = [place](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("entry ", place, " ", why));
    };
    const size_t equals = entry.find('=');
    if (equals == entry.npos) return wrong("is not KEY=VALUE");
    const auto key = PercentDecoded(absl::StripAsciiWhitespace(entry.substr(0, equals)));
    const auto value = PercentDecoded(absl::StripAsciiWhitespace(entry.substr(equals + 1)));
    if (!key || !value) return wrong("has a % without two hexadecimal digits");
    const std::string name = absl::AsciiStrToLower(*key);
    if (!IsLegal(name, *value)) {
      return wrong(
          "cannot be sent: a key has letters, digits, '-', '_' and '.', and does not begin with "
          "grpc-; a value is printable ASCII");
    }
    headers.insert_or_assign(name, *value);
  }
  return headers;
}

}  // namespace hydrant
