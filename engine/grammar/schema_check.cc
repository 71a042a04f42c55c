#include "engine/grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_text.h"
#include "engine/model/text.h"
#include "engine/text/utf8.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

// XGrammar's own recursion is no deeper than this.
constexpr int kMaxDepth = 64;

// Words that ask for something that is not made.
constexpr std::array kUnsupported = {
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "additionalItems",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "else",
    "extends",
    "if",
    "maxContains",
    "maxProperties",
    "minContains",
    "minProperties",
    "not",
    "patternProperties",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
};

// A schema is one of these, and then nothing else; or it has types.
constexpr std::array kForms = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

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

// Not a keyword of the table: nullptr.
const TypedKeyword* FindTyped(std::string_view keyword) {
  const auto found = std::ranges::find(kTypedKeywords, keyword, &TypedKeyword::keyword);
  return found == kTypedKeywords.end() ? nullptr : &*found;
}

// The pattern in ASCII: of other characters the library takes a way on which a pattern may end its
// string.
std::string AsciiPattern(std::string_view pattern) {
  std::string ascii;
  bool is_escaped = false;  // by a backslash before it
  while (!pattern.empty()) {
    const Utf8Front front = ReadUtf8(pattern);
    if (front.code_point < 0x80) {
      ascii += pattern.substr(0, front.length);
    } else {
      ascii += absl::StrCat(is_escaped ? "u{" : "\\u{",
                            absl::Hex(static_cast<uint32_t>(front.code_point)), "}");
    }
    is_escaped = pattern.front() == '\\' && !is_escaped;
    pattern.remove_prefix(front.length);
  }
  return ascii;
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

// Walks a schema and changes it in place. The path is that of the node at work.
class Checker {
 public:
  explicit Checker(size_t most_pattern_bytes) : most_pattern_bytes_(most_pattern_bytes) {}

  absl::Status Check(Json* schema) {
    if (schema->is_boolean()) {
      return schema->get<bool>() ? absl::OkStatus() : Error("false admits nothing");
    }
    if (!schema->is_object()) return Error("is neither an object nor a boolean");
    for (const char* keyword : kUnsupported) {
      if (schema->contains(keyword)) return Error(absl::StrCat("'", keyword, "' is not supported"));
    }
    for (const char* definitions : {"$defs", "definitions"}) {
      if (schema->contains(definitions)) HYDRANT_RETURN_IF_ERROR(CheckEach(schema, definitions));
    }
    const auto form = std::ranges::find_if(
        kForms, [&](const char* candidate) { return schema->contains(candidate); });
    return form == kForms.end() ? CheckTyped(schema) : CheckForm(schema, *form);
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_.empty() ? "the schema" : Quoted(path_), " ", what));
  }

  // The schema below `keyword`, or the one that it has below `key`.
  absl::Status CheckBelow(Json* schema, const std::string& step) {
    const size_t length = path_.size();
    absl::StrAppend(&path_, "/", step);
    HYDRANT_RETURN_IF_ERROR(Check(schema));
    path_.resize(length);
    return absl::OkStatus();
  }

  // All schemas of an object or a list.
  absl::Status CheckEach(Json* schema, const std::string& keyword) {
    Json& members = (*schema)[keyword];
    const bool is_list = keyword == "prefixItems" || keyword.ends_with("Of");
    if (is_list ? !members.is_array() : !members.is_object()) {
      return Error(absl::StrCat("'", keyword, "' is no ", is_list ? "list" : "object"));
    }
    if (is_list && members.empty()) return Error(absl::StrCat("'", keyword, "' is empty"));
    for (const auto& [key, member] : members.items()) {
      HYDRANT_RETURN_IF_ERROR(CheckBelow(&member, absl::StrCat(keyword, "/", key)));
    }
    return absl::OkStatus();
  }

  // A type beside schemas is each one's.
  absl::Status GiveType(Json* schema, const std::string& form) const {
    if (!form.ends_with("Of") || !schema->contains("type") || !schema->at(form).is_array())
      return absl::OkStatus();
    const Json type = schema->at("type");
    schema->erase("type");
    for (Json& branch : schema->at(form)) {
      if (branch == true) branch = Json::object();
      if (!branch.is_object()) continue;
      if (branch.contains("$ref")) return Error("'type' beside a '$ref' is not supported");
      if (branch.value("type", type) != type)
        return Error(absl::StrCat("'type' beside '", form, "' is not the one of its schemas"));
      branch["type"] = type;
    }
    return absl::OkStatus();
  }

  absl::Status CheckForm(Json* schema, const std::string& form) {
    HYDRANT_RETURN_IF_ERROR(GiveType(schema, form));
    const bool is_value = form == "const" || form == "enum";
    for (const auto& [keyword, value] : schema->items()) {
      const bool is_other_form =
          keyword != form && std::ranges::find(kForms, keyword) != kForms.end();
      const bool constrains = FindTyped(keyword) != nullptr && !(is_value && keyword == "type");
      if (!is_other_form && !constrains) continue;
      return Error(absl::StrCat("'", keyword, "' beside '", form, "' is not supported"));
    }
    if (is_value) return CheckValues(*schema, form);
    if (form == "$ref") return CheckReference(schema->at("$ref"));
    if (form == "allOf" && schema->at("allOf").size() != 1) {
      return Error("'allOf' of other than one schema is not supported");
    }
    return CheckEach(schema, form);
  }

  absl::Status CheckReference(const Json& reference) const {
    const std::string* target = reference.get_ptr<const std::string*>();
    if (target != nullptr && (*target == "#" || target->starts_with("#/"))) return absl::OkStatus();
    return Error("'$ref' does not begin with '#': only the schema itself is read");
  }

  absl::Status CheckValues(const Json& schema, const std::string& form) {
    const Json& given = schema.at(form);
    if (form == "enum" && (!given.is_array() || given.empty())) {
      return Error("'enum' is no list of at least one value");
    }
    if (!schema.contains("type")) return absl::OkStatus();
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<std::string> types, Types(schema.at("type")));
    const Json values = form == "enum" ? given : Json::array({given});
    for (const Json& value : values) {
      const bool fits =
          std::ranges::any_of(types, [&](const std::string& type) { return HasType(value, type); });
      if (!fits) return Error(absl::StrCat("'", form, "' has a value that is not of 'type'"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Types(const Json& value) const {
    static constexpr std::array kTypes = {"object",  "array",   "string", "number",
                                          "integer", "boolean", "null"};
    std::vector<std::string> types;
    for (const Json& type : value.is_array() ? value : Json::array({value})) {
      const std::string* name = type.get_ptr<const std::string*>();
      if (name == nullptr || std::ranges::find(kTypes, *name) == kTypes.end()) {
        return Error("'type' is none of object, array, string, number, integer, boolean, null");
      }
      if (std::ranges::find(types, *name) == types.end()) types.push_back(*name);
    }
    if (types.empty()) return Error("'type' is empty");
    return types;
  }

  absl::Status CheckTyped(Json* schema) {
    if (!schema->contains("type")) {
      HYDRANT_ASSIGN_OR_RETURN(const std::string type, InferredType(*schema));
      if (type.empty()) return absl::OkStatus();
      (*schema)["type"] = type;
    }
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<std::string> types, Types(schema->at("type")));
    if (types.size() == 1) {
      (*schema)["type"] = types.front();
    } else {
      (*schema)["type"] = types;
    }
    if (schema->contains("pattern")) {
      Json& pattern = (*schema)["pattern"];
      if (!pattern.is_string()) return Error("'pattern' is no string");
      if (const size_t bytes = pattern.get_ref<const std::string&>().size();
          bytes > most_pattern_bytes_) {
        return Error(absl::StrCat("'pattern' has ", bytes, " bytes, at most ", most_pattern_bytes_,
                                  " are read"));
      }
      pattern = AsciiPattern(pattern.get_ref<const std::string&>());
    }
    for (const std::string& type : types) {
      if (type == "object") HYDRANT_RETURN_IF_ERROR(CheckObject(schema));
      if (type == "array") HYDRANT_RETURN_IF_ERROR(CheckArray(schema));
    }
    return absl::OkStatus();
  }

  // The type that the keywords are about; "" where there are none.
  absl::StatusOr<std::string> InferredType(const Json& schema) const {
    std::string type;
    for (const auto& [keyword, value] : schema.items()) {
      const TypedKeyword* typed = FindTyped(keyword);
      if (typed == nullptr || typed->type == type) continue;
      if (!type.empty()) return Error("has keywords of several types, and no 'type'");
      type = typed->type;
    }
    return type;
  }

  // XGrammar makes other names of bytes: behind the first byte of a character that a name begins
  // with it would admit what is no character.
  absl::Status CheckNames(const Json& properties) const {
    for (const auto& [name, schema] : properties.items()) {
      const auto is_ascii = [](char c) {
        return absl::ascii_isascii(static_cast<unsigned char>(c));
      };
      if (std::ranges::all_of(name, is_ascii)) continue;
      return Error(absl::StrCat("'additionalProperties' beside the name ", Quoted(name),
                                ", which is not ASCII, is not supported"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckObject(Json* schema) {
    const bool has_properties = schema->contains("properties") && !schema->at("properties").empty();
    if (has_properties) HYDRANT_RETURN_IF_ERROR(CheckEach(schema, "properties"));
    if (!schema->contains("additionalProperties")) {
      (*schema)["additionalProperties"] = !has_properties;
    } else if (Json& additional = (*schema)["additionalProperties"]; !additional.is_boolean()) {
      HYDRANT_RETURN_IF_ERROR(CheckBelow(&additional, "additionalProperties"));
    }
    if (has_properties && schema->at("additionalProperties") != false) {
      HYDRANT_RETURN_IF_ERROR(CheckNames(schema->at("properties")));
    }
    if (!schema->contains("required")) return absl::OkStatus();
    if (!schema->at("required").is_array()) return Error("'required' is no list");
    for (const Json& name : schema->at("required")) {
      const std::string* text = name.get_ptr<const std::string*>();
      if (text == nullptr) return Error("'required' has a value that is no string");
      if (!has_properties || !schema->at("properties").contains(*text)) {
        return Error(absl::StrCat("'required' names ", Quoted(*text), ", 'properties' does not"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckArray(Json* schema) {
    if (schema->contains("prefixItems")) HYDRANT_RETURN_IF_ERROR(CheckEach(schema, "prefixItems"));
    if (schema->contains("uniqueItems") && schema->at("uniqueItems") != false) {
      return Error("'uniqueItems' is not supported");
    }
    if (!schema->contains("items")) {
      if (!schema->contains("prefixItems")) (*schema)["items"] = true;
      return absl::OkStatus();
    }
    Json& items = (*schema)["items"];
    return items == false ? absl::OkStatus() : CheckBelow(&items, "items");
  }

  const size_t most_pattern_bytes_;
  std::string path_;  // a JSON pointer
};

}  // namespace

absl::StatusOr<std::string> CheckedSchema(std::string_view text, size_t most_pattern_bytes) {
  HYDRANT_ASSIGN_OR_RETURN(Json schema, ParseOrderedJson(text, kMaxDepth));
  HYDRANT_RETURN_IF_ERROR(Checker(most_pattern_bytes).Check(&schema));
  return schema.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace hydrant
