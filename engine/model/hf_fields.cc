#include "engine/model/hf_fields.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {

using nlohmann::json;

namespace {

std::string ValueText(const json& value) {
  return Quoted(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

bool IsIdle(const IdleField& field, const std::string& key, const json& value) {
  return key == field.key && (field.only == nullptr || value == json::parse(field.only));
}

}  // namespace

const json* HfFields::Find(const char* key) {
  read_.insert(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool HfFields::Contains(const char* key) {
  read_.insert(key);
  return object_.contains(key);
}

absl::Status HfFields::RefuseUnread(std::span<const std::span<const IdleField>> idle) const {
  for (const auto& item : object_.items()) {
    const std::string& key = item.key();
    const auto& value = item.value();
    if (value.is_null() || read_.contains(key)) continue;
    const auto is_idle = [&](std::span<const IdleField> table) {
      return std::any_of(table.begin(), table.end(),
                         [&](const IdleField& field) { return IsIdle(field, key, value); });
    };
    if (std::any_of(idle.begin(), idle.end(), is_idle)) continue;
    return absl::UnimplementedError(
        absl::StrCat(Quoted(key), " is ", ValueText(value),
                     "; it is not known what this field changes in the model. Where it changes "
                     "nothing, take it out of the file"));
  }
  return absl::OkStatus();
}

absl::Status WrongField(const char* key, const json& value, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is ", ValueText(value), ", wanted ", wanted));
}

absl::Status ReadInt(HfFields& fields, const char* key, bool required, int* out) {
  const json* value = fields.Find(key);
  if (value == nullptr) {
    return required ? absl::NotFoundError(absl::StrCat(key, " is missing")) : absl::OkStatus();
  }
  constexpr int kMax = std::numeric_limits<int>::max();
  if (!value->is_number_unsigned() || value->get<uint64_t>() > uint64_t{kMax}) {
    return WrongField(key, *value, "an integer from 0 to 2147483647");
  }
  *out = static_cast<int>(value->get<uint64_t>());
  return absl::OkStatus();
}

absl::Status ReadReal(HfFields& fields, const char* key, bool required, double* out) {
  const json* value = fields.Find(key);
  if (value == nullptr) {
    return required ? absl::NotFoundError(absl::StrCat(key, " is missing")) : absl::OkStatus();
  }
  if (!value->is_number()) return WrongField(key, *value, "a number");
  *out = value->get<double>();
  return absl::OkStatus();
}

absl::Status ReadBool(HfFields& fields, const char* key, bool* out) {
  const json* value = fields.Find(key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return WrongField(key, *value, "true or false");
  *out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadString(HfFields& fields, const char* key, std::string* out) {
  const json* value = fields.Find(key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return WrongField(key, *value, "a string");
  *out = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status WantValue(HfFields& fields, const char* key, bool wanted, const char* why) {
  bool value = wanted;
  HYDRANT_RETURN_IF_ERROR(ReadBool(fields, key, &value));
  if (value == wanted) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(key, " is ", value ? "true" : "false", "; ", why));
}

}  // namespace hydrant
