// What the words of a JSON schema are about. For .cc files only: it pulls in the JSON library. Pure
// functions, thread safe.
#ifndef HYDRANT_ENGINE_GRAMMAR_SCHEMA_KEYWORDS_H_
#define HYDRANT_ENGINE_GRAMMAR_SCHEMA_KEYWORDS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

// That the keyword is about, "number" also of integers, "" of "type" itself. Null: it says nothing
// of types.
const std::string_view* TypeOfKeyword(std::string_view keyword);

// Those that the keywords of a schema without "type" are about, each once.
std::vector<std::string> TypesOfKeywords(const nlohmann::ordered_json& schema);

// An integer is a number as well.
bool HasType(const nlohmann::ordered_json& value, std::string_view type);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_GRAMMAR_SCHEMA_KEYWORDS_H_
