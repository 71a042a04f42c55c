// Fields of a config.json, with errors that name them. A field whose value is null is a missing
// one, as transformers has it. Where a field is missing, readers leave *out alone. Stateless.
#ifndef HYDRANT_ENGINE_MODEL_HF_FIELDS_H_
#define HYDRANT_ENGINE_MODEL_HF_FIELDS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace hydrant {

const nlohmann::json* FindField(const nlohmann::json& object, const char* key);  // null: missing

// "key is 'value', wanted ..."
absl::Status WrongField(const char* key, const nlohmann::json& value, const char* wanted);

// NotFound where the field is required and missing.
absl::Status ReadInt(const nlohmann::json& object, const char* key, bool required, int* out);
absl::Status ReadReal(const nlohmann::json& object, const char* key, bool required, double* out);
absl::Status ReadBool(const nlohmann::json& object, const char* key, bool* out);
absl::Status ReadString(const nlohmann::json& object, const char* key, std::string* out);

// Unimplemented, with the reason, where the field is there and differs from `wanted`.
absl::Status WantValue(const nlohmann::json& root, const char* key, bool wanted, const char* why);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_HF_FIELDS_H_
