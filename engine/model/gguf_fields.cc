#include "engine/model/gguf_fields.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/model/gguf_value.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

std::optional<double> NumberOf(const GgufValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  if (const int64_t* number = std::get_if<int64_t>(&value)) return static_cast<double>(*number);
  if (const double* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

std::string ValueText(const GgufValue& value) {
  if (const std::optional<double> number = NumberOf(value)) return absl::StrCat(*number);
  if (const std::string* text = std::get_if<std::string>(&value)) return Quoted(*text);
  return absl::StrCat("an ", std::string(GgufTypeName(value)));
}

}  // namespace

bool GgufFields::Has(std::string_view key) {
  const std::string name = Name(key);
  read_.insert(name);
  return file_.Has(name);
}

absl::Status GgufFields::ReadInt(std::string_view key, bool required, int* out) {
  if (!Has(key) && !required) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Name(key)));
  constexpr int kMax = std::numeric_limits<int>::max();
  if (value < 0 || value > kMax) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key ", Quoted(Name(key)), " is ",
                                                   value, ", the limit is 0 to ", kMax));
  }
  *out = static_cast<int>(value);
  return absl::OkStatus();
}

absl::Status GgufFields::ReadFloat(std::string_view key, bool required, double* out) {
  if (!Has(key) && !required) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(*out, file_.GetFloat(Name(key)));
  return absl::OkStatus();
}

absl::Status GgufFields::ReadString(std::string_view key, std::string* out) {
  if (!Has(key)) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(*out, file_.GetString(Name(key)));
  return absl::OkStatus();
}

absl::Status GgufFields::RefuseUnread(std::span<const IdleKey> idle) const {
  for (const auto& item : file_.metadata()) {
    const std::string& name = item.first;
    const GgufValue& value = item.second;
    if (!name.starts_with(prefix_) || read_.contains(name)) continue;
    const std::string_view key = std::string_view(name).substr(prefix_.size());
    const bool is_idle = std::any_of(idle.begin(), idle.end(), [&](const IdleKey& known) {
      return known.key == key && (!known.only.has_value() || NumberOf(value) == known.only);
    });
    if (is_idle) continue;
    return absl::UnimplementedError(absl::StrCat("metadata key ", Quoted(name), " is ",
                                                 ValueText(value), "; this is not supported"));
  }
  return absl::OkStatus();
}

}  // namespace hydrant
