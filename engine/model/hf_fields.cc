#include "engine/model/hf_fields.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"

namespace hydrant {

using nlohmann::json;

const json* FindField(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status WrongField(const char* key, const json& value, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is ", Quoted(value.dump(-1, ' ', true, json::error_handler_t::replace)),
                   ", wanted ", wanted));
}

absl::Status ReadInt(const json& object, const char* key, bool required, int* out) {
  const json* value = FindField(object, key);
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

absl::Status ReadReal(const json& object, const char* key, bool required, double* out) {
  const json* value = FindField(object, key);
  if (value == nullptr) {
    return required ? absl::NotFoundError(absl::StrCat(key, " is missing")) : absl::OkStatus();
  }
  if (!value->is_number()) return WrongField(key, *value, "a number");
  *out = value->get<double>();
  return absl::OkStatus();
}

absl::Status ReadBool(const json& object, const char* key, bool* out) {
  const json* value = FindField(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return WrongField(key, *value, "true or false");
  *out = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadString(const json& object, const char* key, std::string* out) {
  const json* value = FindField(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return WrongField(key, *value, "a string");
  *out = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status WantValue(const json& root, const char* key, bool wanted, const char* why) {
  bool value = wanted;
  if (absl::Status s = ReadBool(root, key, &value); !s.ok()) return s;
  if (value == wanted) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(key, " is ", value ? "true" : "false", "; ", why));
}

}  // namespace hydrant
