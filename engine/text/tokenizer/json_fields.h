// Typed look-ups in one JSON object that remember the first error. For .cc files only (it includes
// the JSON library). Borrows the object; not thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_JSON_FIELDS_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_JSON_FIELDS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hydrant {

class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) Fail("", "is not an object");
  }

  const absl::Status& status() const { return status_; }

  // An absent field and null give the default; another type is an error.
  std::string String(const char* name, const std::string& otherwise) {
    const nlohmann::json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (value->is_string()) return value->get<std::string>();
    Fail(name, "is not a string");
    return otherwise;
  }
  bool Bool(const char* name, bool otherwise) {
    const nlohmann::json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    Fail(name, "is not true or false");
    return otherwise;
  }
  int64_t Int(const char* name, int64_t otherwise) {
    const nlohmann::json* value = Find(name);
    if (value == nullptr) return otherwise;
    if (value->is_number_integer()) return value->get<int64_t>();
    Fail(name, "is not an integer");
    return otherwise;
  }
  const nlohmann::json* Find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

 private:
  void Fail(const char* name, const char* what) {
    const std::string field = *name != '\0' ? absl::StrCat(where_, ".", name) : where_;
    status_.Update(absl::InvalidArgumentError(absl::StrCat(field, " ", what)));
  }

  const nlohmann::json& object_;
  const std::string where_;
  absl::Status status_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_JSON_FIELDS_H_
