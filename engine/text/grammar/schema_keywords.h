// The types that JSON schema keywords apply to. For .cc files only: it includes the JSON library.
// Pure functions, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_KEYWORDS_H_
#define HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_KEYWORDS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

// The type that the keyword applies to: "number" stands for integers too, and "type" itself has "".
// Null: the keyword applies to values of every type.
const std::string_view* TypeOfKeyword(std::string_view keyword);

// The types that the schema's keywords apply to, each once. For schemas without "type".
std::vector<std::string> TypesOfKeywords(const nlohmann::ordered_json& schema);

// Whether the value has the type of this name; an integer also has the type "number".
bool HasType(const nlohmann::ordered_json& value, std::string_view type);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_GRAMMAR_SCHEMA_KEYWORDS_H_
