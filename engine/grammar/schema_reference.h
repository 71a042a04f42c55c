// What a "$ref" of a JSON schema names. For .cc files only: it pulls in the JSON library. Pure
// functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_SCHEMA_REFERENCE_H_
#define HYDRANT_ENGINE_GRAMMAR_SCHEMA_REFERENCE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hydrant {

// Of a JSON pointer, with ~1 and ~0 read; "": the whole document. InvalidArgument says what is
// wrong.
absl::StatusOr<std::vector<std::string>> PointerSteps(std::string_view pointer);

// "/" and a step, to stand at the end of a pointer.
std::string PointerStep(std::string_view step);

// The pointer of a reference into the schema itself, "#/$defs/a%20b": percent escapes are read.
absl::StatusOr<std::string> PointerOfReference(std::string_view reference);

// Null: there is nothing.
const nlohmann::ordered_json* FindByPointer(const nlohmann::ordered_json& document,
                                            std::string_view pointer);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_SCHEMA_REFERENCE_H_
