// Fields of a config.json, with errors that name them. A field whose value is null is a missing
// one, as transformers has it. Where a field is missing, readers leave *out alone.
#ifndef HYDRANT_ENGINE_MODEL_HF_FIELDS_H_
#define HYDRANT_ENGINE_MODEL_HF_FIELDS_H_

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace hydrant {

// A field that no reader asks for and that changes nothing in the forward pass: whatever it says,
// or where it has the one value that says so.
struct IdleField {
  const char* key;
  const char* only = nullptr;  // that value as JSON; null: any
};

// One object of a config.json that remembers what its readers asked for. So a field that nobody
// knows is refused rather than ignored: it might be what makes the model another one. Borrows the
// object; for one thread.
class HfFields {
 public:
  explicit HfFields(const nlohmann::json& object) : object_(object) {}

  const nlohmann::json* Find(const char* key);  // null: missing
  bool Contains(const char* key);               // a null counts

  // Unimplemented, with name and value, where a field is neither read nor idle.
  absl::Status RefuseUnread(std::span<const std::span<const IdleField>> idle) const;

 private:
  const nlohmann::json& object_;
  std::set<std::string, std::less<>> read_;
};

// "key is 'value', wanted ..."
absl::Status WrongField(const char* key, const nlohmann::json& value, const char* wanted);

// NotFound where the field is required and missing.
absl::Status ReadInt(HfFields& fields, const char* key, bool required, int* out);
absl::Status ReadReal(HfFields& fields, const char* key, bool required, double* out);
absl::Status ReadBool(HfFields& fields, const char* key, bool* out);
absl::Status ReadString(HfFields& fields, const char* key, std::string* out);

// Unimplemented, with the reason, where the field is there and differs from `wanted`.
absl::Status WantValue(HfFields& fields, const char* key, bool wanted, const char* why);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FIELDS_H_
