#include <charconv>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/startup/daemon_options.h"

namespace hydrant {
namespace {

// The power of 1024 for a suffix; -1: unknown suffix.
int PowerOf(std::string_view suffix) {
  if (suffix.empty() || suffix == "B") return 0;
  const size_t letter = std::string_view("KMGT").find(suffix[0] & ~0x20);
  const std::string_view rest = suffix.substr(1);
  if (letter == std::string_view::npos ||
      !(rest.empty() || rest == "B" || rest == "i" || rest == "iB"))
    return -1;
  return static_cast<int>(letter) + 1;
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const int power = PowerOf({end, text.data() + text.size()});
  if (error != std::errc() || power < 0 || value < 0 ||
      value > (std::numeric_limits<int64_t>::max() >> (10 * power))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is not a size; write a whole number with K, M, G or T, such as 512M"));
  }
  return value << (10 * power);
}

}  // namespace hydrant
