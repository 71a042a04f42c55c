#include "engine/model/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace hydrant {

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxShown = 100;
  const bool cut = text.size() > kMaxShown;
  const absl::string_view shown(text.data(), cut ? kMaxShown : text.size());
  return absl::StrCat("'", absl::CHexEscape(shown), cut ? "..." : "", "'");
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(), absl::StrCat(std::string(context), ": ", absl::string_view(status.message())));
}

}  // namespace hydrant
