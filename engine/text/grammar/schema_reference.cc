#include "engine/text/grammar/schema_reference.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

bool IsHexDigit(char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }

const Json* MemberOf(const Json& value, const std::string& step) {
  if (value.is_object()) {
    const auto member = value.find(step);
    return member == value.end() ? nullptr : &*member;
  }
  size_t index = 0;
  const bool is_index = value.is_array() && !step.empty() && (step == "0" || step[0] != '0') &&
                        absl::ascii_isdigit(static_cast<unsigned char>(step[0])) &&
                        absl::SimpleAtoi(step, &index) && index < value.size();
  return is_index ? &value[index] : nullptr;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PointerSteps(std::string_view pointer) {
  if (pointer.empty()) return std::vector<std::string>();
  std::vector<std::string> steps = absl::StrSplit(std::string(pointer.substr(1)), '/');
  for (std::string& step : steps) {
    for (size_t i = 0; i < step.size(); ++i) {
      if (step[i] != '~' || (i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1')))
        continue;
      return absl::InvalidArgumentError("has a '~' that is not of '~0' or '~1'");
    }
    step = absl::StrReplaceAll(step, {{"~1", "/"}, {"~0", "~"}});
  }
  return steps;
}

std::string PointerStep(std::string_view step) {
  return "/" + absl::StrReplaceAll(std::string(step), {{"~", "~0"}, {"/", "~1"}});
}

absl::StatusOr<std::string> PointerOfReference(std::string_view reference) {
  if (reference != "#" && !reference.starts_with("#/")) {
    return absl::InvalidArgumentError(
        "does not begin with '#/', and is not '#': only the schema itself is read");
  }
  std::string pointer;
  for (size_t i = 1; i < reference.size(); ++i) {
    if (reference[i] != '%') {
      pointer.push_back(reference[i]);
      continue;
    }
    const std::string digits(reference.substr(i + 1, 2));
    if (digits.size() != 2 || !std::ranges::all_of(digits, IsHexDigit)) {
      return absl::InvalidArgumentError("has a '%' without two hexadecimal digits");
    }
    pointer += absl::HexStringToBytes(digits);
    i += 2;
  }
  return pointer;
}

const Json* FindByPointer(const Json& document, std::string_view pointer) {
  const absl::StatusOr<std::vector<std::string>> steps = PointerSteps(pointer);
  if (!steps.ok()) return nullptr;
  const Json* value = &document;
  for (const std::string& step : *steps) {
    value = MemberOf(*value, step);
    if (value == nullptr) return nullptr;
  }
  return value;
}

}  // namespace hydrant
