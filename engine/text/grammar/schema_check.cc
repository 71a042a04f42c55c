#include "engine/text/grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_text.h"
#include "engine/model/text.h"
#include "engine/text/grammar/pattern.h"
#include "engine/text/grammar/pattern_text.h"
#include "engine/text/grammar/schema_keywords.h"
#include "engine/text/grammar/schema_numbers.h"
#include "engine/text/grammar/schema_overlap.h"
#include "engine/text/grammar/schema_reference.h"
#include "engine/text/grammar/string_format.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

// XGrammar's own recursion is no deeper than this.
constexpr int kMaxDepth = 64;

// Keywords that are not implemented.
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

// A schema has exactly one of these keywords, or it has types.
constexpr std::array kForms = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Characters that are unescaped in a JSON string. Patterns match only these.
CodePointSet UnescapedCharacters() { return Complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}); }

// The pattern as a regular expression for the library.
absl::StatusOr<std::string> StringPattern(std::string_view text, PatternMatch match) {
  HYDRANT_ASSIGN_OR_RETURN(Pattern pattern, ParsePattern(text));
  HYDRANT_RETURN_IF_ERROR(ResolveAnchors(match, &pattern));
  if (Restrict(UnescapedCharacters(), &pattern)) return RegexOf(pattern);
  return absl::InvalidArgumentError("matches no text of a JSON string without escapes");
}

// Whether the library can read all numbers in the value: its integers have 64 bits and a sign.
bool IsWritable(const Json& value) {
  if (value.is_number_unsigned())
    return value.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  return !value.is_structured() || std::ranges::all_of(value, IsWritable);
}

// Walks a schema and its referenced schemas, and rewrites them. path_ is the current node's.
class Checker {
 public:
  Checker(const Json& root, size_t most_pattern_bytes)
      : root_(root), most_pattern_bytes_(most_pattern_bytes) {}

  absl::StatusOr<CheckedSchema> CheckAll() {
    Json schema = root_;
    HYDRANT_RETURN_IF_ERROR(Check(&schema));
    Json definitions = Json::object();
    for (size_t i = 0; i < pointers_.size(); ++i) {  // Check() adds to pointers_
      path_ = pointers_[i];
      Json target = *FindByPointer(root_, path_);
      HYDRANT_RETURN_IF_ERROR(Check(&target));
      definitions[NameOfTarget(i)] = std::move(target);
    }
    if (!definitions.empty()) schema["$defs"] = std::move(definitions);
    return CheckedSchema{schema.dump(-1, ' ', false, Json::error_handler_t::replace),
                         std::move(places_)};
  }

 private:
  absl::Status Check(Json* schema) {
    if (schema->is_boolean()) {
      return schema->get<bool>() ? absl::OkStatus() : Error("false admits nothing");
    }
    if (!schema->is_object()) return Error("is neither an object nor a boolean");
    for (const char* keyword : kUnsupported) {
      if (schema->contains(keyword)) return Error(absl::StrCat("'", keyword, "' is not supported"));
    }
    for (const char* definitions : {"$defs", "definitions"}) schema->erase(definitions);
    const auto form = std::ranges::find_if(
        kForms, [&](const char* candidate) { return schema->contains(candidate); });
    return form == kForms.end() ? CheckTyped(schema) : CheckForm(schema, *form);
  }

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_.empty() ? "the schema" : Quoted(path_), " ", what));
  }
  absl::Status Located(const absl::Status& status) const {
    return status.ok() ? status : Error(std::string(status.message()));
  }

  // Checks the schema below a keyword; `steps` is the path from the current node to that schema.
  absl::Status CheckBelow(Json* schema, const std::string& steps) {
    const size_t length = path_.size();
    path_ += steps;
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
      HYDRANT_RETURN_IF_ERROR(CheckBelow(&member, PointerStep(keyword) + PointerStep(key)));
    }
    return absl::OkStatus();
  }

  // A type beside alternatives applies to each of them.
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
      const bool constrains = TypeOfKeyword(keyword) != nullptr && !(is_value && keyword == "type");
      if (!is_other_form && !constrains) continue;
      return Error(absl::StrCat("'", keyword, "' beside '", form, "' is not supported"));
    }
    if (is_value) return CheckValues(*schema, form);
    if (form == "$ref") return CheckReference(&schema->at("$ref"));
    if (form == "allOf" && schema->at("allOf").size() != 1) {
      return Error("'allOf' of other than one schema is not supported");
    }
    return form == "oneOf" ? CheckOneOf(schema) : CheckEach(schema, form);
  }

  // Replaces a reference by a plain name, because the library does not read escapes in references.
  // CheckAll() checks each target once.
  absl::Status CheckReference(Json* reference) {
    if (!reference->is_string()) return Error("'$ref' is no string");
    const std::string& text = reference->get_ref<const std::string&>();
    const absl::StatusOr<std::string> pointer = PointerOfReference(text);
    if (!pointer.ok()) return Error(absl::StrCat("'$ref' ", pointer.status().message()));
    if (const auto steps = PointerSteps(*pointer); !steps.ok())
      return Error(absl::StrCat("'$ref' ", steps.status().message()));
    if (FindByPointer(root_, *pointer) == nullptr) {
      return Error(absl::StrCat("'$ref' names ", Quoted(text), ", which is not in the schema"));
    }
    if (pointer->empty()) return absl::OkStatus();
    const auto [known, is_new] = targets_.emplace(*pointer, pointers_.size());
    if (is_new) pointers_.push_back(*pointer);
    *reference = absl::StrCat("#/$defs/", NameOfTarget(known->second));
    return absl::OkStatus();
  }

  static std::string NameOfTarget(size_t index) { return absl::StrCat("d", index); }

  // Replaces oneOf by anyOf: they are the same if no value matches two of the schemas.
  absl::Status CheckOneOf(Json* schema) {
    const Json given = schema->at("oneOf");
    HYDRANT_RETURN_IF_ERROR(CheckEach(schema, "oneOf"));
    if (const auto pair = OverlappingPair(given, root_); pair.has_value()) {
      return Error(absl::StrCat(
          "'oneOf' has schemas that one value may be of, ", pair->first, " and ", pair->second,
          ", as far as can be told: give them different types, or a required property with "
          "different constants, or write 'anyOf'"));
    }
    (*schema)["anyOf"] = std::move(schema->at("oneOf"));
    schema->erase("oneOf");
    return absl::OkStatus();
  }

  absl::Status CheckValues(const Json& schema, const std::string& form) {
    const Json& given = schema.at(form);
    if (form == "enum" && (!given.is_array() || given.empty())) {
      return Error("'enum' is no list of at least one value");
    }
    if (!IsWritable(given)) return Error(absl::StrCat("'", form, "' has an integer above 2^63"));
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
    HYDRANT_ASSIGN_OR_RETURN(std::vector<std::string> types, Types(schema->at("type")));
    // Every integer is a number.
    if (std::ranges::find(types, "number") != types.end()) std::erase(types, "integer");
    if (types.size() == 1) {
      (*schema)["type"] = types.front();
    } else {
      (*schema)["type"] = types;
    }
    for (const std::string& type : types) HYDRANT_RETURN_IF_ERROR(CheckOfType(type, schema));
    return absl::OkStatus();
  }

  absl::Status CheckOfType(const std::string& type, Json* schema) {
    if (type == "object") return CheckObject(schema);
    if (type == "array") return CheckArray(schema);
    if (type == "string") return CheckString(schema);
    if (type == "integer") return Located(NormalizeIntegerBounds(schema));
    return type == "number" ? Located(CheckNumberBounds(*schema)) : absl::OkStatus();
  }

  // The type implied by the keywords; "" if there are none.
  absl::StatusOr<std::string> InferredType(const Json& schema) const {
    const std::vector<std::string> types = TypesOfKeywords(schema);
    if (types.size() > 1) return Error("has keywords of several types, and no 'type'");
    return types.empty() ? "" : types.front();
  }

  // Replaces a format by a pattern: the library's own formats ignore the escapes of JSON strings.
  absl::Status CheckString(Json* schema) {
    HYDRANT_RETURN_IF_ERROR(Located(NormalizeCounts("minLength", "maxLength", schema)));
    std::optional<std::string> of_format;
    if (schema->contains("format")) {
      const Json& format = schema->at("format");
      if (!format.is_string()) return Error("'format' is no string");
      of_format = PatternOfFormat(format.get_ref<const std::string&>());
      schema->erase("format");
    }
    const bool has_pattern = schema->contains("pattern");
    if (!has_pattern && !of_format.has_value()) return absl::OkStatus();
    if (has_pattern && of_format.has_value())
      return Error("'pattern' beside 'format' is not supported");
    const std::string keyword = has_pattern ? "pattern" : "format";
    for (const char* length : {"minLength", "maxLength"}) {
      if (schema->contains(length))
        return Error(absl::StrCat("'", length, "' beside '", keyword, "' is not supported"));
    }
    if (has_pattern) return CheckPattern(&schema->at("pattern"));
    HYDRANT_ASSIGN_OR_RETURN(const std::string pattern,
                             StringPattern(*of_format, PatternMatch::kWhole));
    (*schema)["pattern"] = pattern;
    places_.emplace(pattern, Place("format"));
    return absl::OkStatus();
  }

  std::string Place(const std::string& keyword) const {
    return absl::StrCat(path_.empty() ? "the schema" : Quoted(path_), " '", keyword, "'");
  }

  absl::Status CheckPattern(Json* pattern) {
    if (!pattern->is_string()) return Error("'pattern' is no string");
    const std::string& text = pattern->get_ref<const std::string&>();
    if (text.size() > most_pattern_bytes_) {
      return Error(absl::StrCat("'pattern' has ", text.size(), " bytes, at most ",
                                most_pattern_bytes_, " are read"));
    }
    absl::StatusOr<std::string> read = StringPattern(text, PatternMatch::kPart);
    if (!read.ok()) return Error(absl::StrCat("'pattern' ", read.status().message()));
    places_.emplace(*read, Place("pattern"));
    *pattern = *std::move(read);
    return absl::OkStatus();
  }

  // XGrammar builds other names from bytes: after the first byte of a name that begins with a
  // multi-byte character, it would admit invalid UTF-8.
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
      HYDRANT_RETURN_IF_ERROR(CheckBelow(&additional, "/additionalProperties"));
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
    HYDRANT_RETURN_IF_ERROR(Located(NormalizeCounts("minItems", "maxItems", schema)));
    if (schema->contains("uniqueItems") && schema->at("uniqueItems") != false) {
      return Error("'uniqueItems' is not supported");
    }
    if (schema->contains("items")) {
      Json& items = (*schema)["items"];
      if (items.is_array()) return Error("'items' is a list; that is 'prefixItems' now");
      if (items != false) HYDRANT_RETURN_IF_ERROR(CheckBelow(&items, "/items"));
    }
    if (schema->contains("prefixItems")) return CheckTuple(schema);
    if (!schema->contains("items")) (*schema)["items"] = true;
    const bool wants_items = schema->value("minItems", int64_t{0}) > 0;
    return wants_items && schema->at("items") == false
               ? Error("'minItems' is above 0, and 'items' admits none")
               : absl::OkStatus();
  }

  absl::Status CheckTuple(Json* schema) {
    HYDRANT_RETURN_IF_ERROR(CheckEach(schema, "prefixItems"));
    Json& places = schema->at("prefixItems");
    for (Json& place : places) {
      if (place == true) place = Json::object();  // the library expects an object here
    }
    const auto count = static_cast<int64_t>(places.size());
    const bool is_open = schema->contains("items") && schema->at("items") != false;
    if (!is_open && schema->value("minItems", int64_t{0}) > count) {
      return Error(absl::StrCat("'minItems' is above the ", count,
                                " items that 'prefixItems' has, and 'items' admits no others"));
    }
    const int64_t most = schema->value("maxItems", count);
    if (most >= count) return absl::OkStatus();
    (*schema)["items"] = false;
    places.erase(places.begin() + most, places.end());
    if (places.empty()) schema->erase("prefixItems");
    return absl::OkStatus();
  }

  const Json& root_;
  const size_t most_pattern_bytes_;
  std::string path_;                           // a JSON pointer
  std::map<std::string, std::string> places_;  // CheckedSchema::places
  std::vector<std::string> pointers_;          // targets of references, in order of discovery
  std::map<std::string, size_t> targets_;      // target -> its index in pointers_
};

}  // namespace

absl::StatusOr<CheckedSchema> CheckSchema(std::string_view text, size_t most_pattern_bytes) {
  HYDRANT_ASSIGN_OR_RETURN(const Json given, ParseOrderedJson(text, kMaxDepth));
  return Checker(given, most_pattern_bytes).CheckAll();
}

}  // namespace hydrant
