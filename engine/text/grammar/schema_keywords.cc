#include "engine/text/grammar/schema_keywords.h"

#include <algorithm>
#include <array>

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

struct TypedKeyword {
  std::string_view keyword, type;
};
constexpr std::array<TypedKeyword, 18> kTypedKeywords = {{
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"uniqueItems", "array"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
    {"type", ""},
}};

}  // namespace

const std::string_view* TypeOfKeyword(std::string_view keyword) {
  const auto found = std::ranges::find(kTypedKeywords, keyword, &TypedKeyword::keyword);
  return found == kTypedKeywords.end() ? nullptr : &found->type;
}

std::vector<std::string> TypesOfKeywords(const Json& schema) {
  std::vector<std::string> types;
  for (const auto& [keyword, value] : schema.items()) {
    const std::string_view* type = TypeOfKeyword(keyword);
    if (type == nullptr || type->empty()) continue;
    if (std::ranges::find(types, *type) == types.end()) types.emplace_back(*type);
  }
  return types;
}

bool HasType(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return type == "integer" && value.is_number_integer();
}

}  // namespace hydrant
