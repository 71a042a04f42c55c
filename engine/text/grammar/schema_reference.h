// References ("$ref") within a JSON schema. For .cc files only: it includes the JSON library. Pure
// functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_REFERENCE_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_REFERENCE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant {

// The steps of a JSON pointer, with ~1 and ~0 decoded; no steps for "", the whole document.
// InvalidArgument names the fault.
absl::StatusOr<std::vector<std::string>> PointerSteps(std::string_view pointer);

// "/" and an escaped step, to append to a JSON pointer.
std::string PointerStep(std::string_view step);

// The JSON pointer of a reference into the schema itself, such as "#/$defs/a%20b". Percent escapes
// are decoded. InvalidArgument if it is not such a reference.
absl::StatusOr<std::string> PointerOfReference(std::string_view reference);

// The value at the pointer; null if there is none.
const nlohmann::ordered_json* FindByPointer(const nlohmann::ordered_json& document,
                                            std::string_view pointer);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_REFERENCE_H_
