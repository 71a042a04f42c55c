// Fields of a config.json, with errors that name them. As in transformers, a null field counts as
// missing. If a field is missing, readers leave *out unchanged.
#ifndef HYDRANT_ENGINE_MODEL_HF_FIELDS_H_
#define HYDRANT_ENGINE_MODEL_HF_FIELDS_H_

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace hydrant {

// A field that is not read and does not change the forward pass: with any value, or only with the
// value `only`.
struct IdleField {
  const char* key;
  const char* only = nullptr;  // as JSON; null: any value
};

// One object of a config.json. Remembers which fields were read, so that an unknown field is
// refused rather than ignored: it might change the model. Borrows the object; for one thread.
class HfFields {
 public:
  explicit HfFields(const nlohmann::json& object) : object_(object) {}

  const nlohmann::json* Find(const char* key);  // null: missing
  bool Contains(const char* key);               // a null counts

  // Unimplemented, with name and value, if a field is neither read nor idle.
  absl::Status RefuseUnread(std::span<const std::span<const IdleField>> idle) const;

 private:
  const nlohmann::json& object_;
  std::set<std::string, std::less<>> read_;
};

// "key is 'value', wanted ..."
absl::Status WrongField(const char* key, const nlohmann::json& value, const char* wanted);

// NotFound if the field is required and missing.
absl::Status ReadInt(HfFields& fields, const char* key, bool required, int* out);
absl::Status ReadReal(HfFields& fields, const char* key, bool required, double* out);
absl::Status ReadBool(HfFields& fields, const char* key, bool* out);
absl::Status ReadString(HfFields& fields, const char* key, std::string* out);

// Unimplemented, with the reason, if the field is present and differs from `wanted`.
absl::Status WantValue(HfFields& fields, const char* key, bool wanted, const char* why);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FIELDS_H_
