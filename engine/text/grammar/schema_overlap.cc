#include "engine/text/grammar/schema_overlap.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/grammar/schema_keywords.h"
#include "engine/text/grammar/schema_reference.h"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

// Maximum nesting of references, alternatives and properties; deeper schemas count as overlapping.
constexpr int kMaxComparisonDepth = 8;
// Maximum number of comparisons; a list that needs more counts as overlapping.
constexpr int64_t kMaxComparisons = 1'000'000;

class Comparison {
 public:
  explicit Comparison(const Json& root) : root_(root) {}

  bool MayOverlap(const Json& a, const Json& b, int depth) {
    if (!a.is_object() || !b.is_object() || depth == 0 || --comparisons_left_ < 0) return true;
    if (const Json* target = TargetOf(a); target != &a) {
      return target == nullptr || MayOverlap(*target, b, depth - 1);
    }
    if (const std::vector<const Json*> branches = BranchesOf(a); !branches.empty()) {
      return std::ranges::any_of(
          branches, [&](const Json* branch) { return MayOverlap(*branch, b, depth - 1); });
    }
    if (IsSplit(b)) return MayOverlap(b, a, depth);
    const std::vector<Json> a_values = ValuesOf(a), b_values = ValuesOf(b);
    if (!a_values.empty()) return AnyOf(a_values, b, b_values);
    if (!b_values.empty()) return AnyOf(b_values, a, a_values);
    const std::vector<std::string> types = CommonTypes(TypesOf(a), TypesOf(b));
    const bool only_objects = types.size() == 1 && types.front() == "object";
    return only_objects ? ObjectsMayOverlap(a, b, depth) : !types.empty();
  }

 private:
  // Whether the schema is defined by other schemas (a reference or alternatives).
  static bool IsSplit(const Json& schema) {
    return schema.contains("$ref") || !BranchesOf(schema).empty();
  }

  // The target of "$ref", or the schema itself without "$ref". Null if the target is missing.
  const Json* TargetOf(const Json& schema) const {
    const auto reference = schema.find("$ref");
    if (reference == schema.end()) return &schema;
    if (!reference->is_string()) return nullptr;
    const auto pointer = PointerOfReference(reference->get_ref<const std::string&>());
    return pointer.ok() ? FindByPointer(root_, *pointer) : nullptr;
  }

  static std::vector<const Json*> BranchesOf(const Json& schema) {
    std::vector<const Json*> branches;
    for (const char* form : {"anyOf", "oneOf", "allOf"}) {
      const auto list = schema.find(form);
      if (list == schema.end() || !list->is_array()) continue;
      for (const Json& branch : *list) branches.push_back(&branch);
    }
    return branches;
  }

  static std::vector<Json> ValuesOf(const Json& schema) {
    if (schema.contains("const")) return {schema.at("const")};
    const auto list = schema.find("enum");
    if (list == schema.end() || !list->is_array()) return {};
    return {list->begin(), list->end()};
  }

  static std::vector<std::string> TypesOf(const Json& schema) {
    if (!schema.contains("type")) return TypesOfKeywords(schema);
    std::vector<std::string> types;
    const Json& given = schema.at("type");
    for (const Json& type : given.is_array() ? given : Json::array({given})) {
      if (type.is_string()) types.push_back(type);
    }
    return types;
  }

  bool AnyOf(const std::vector<Json>& values, const Json& other,
             const std::vector<Json>& other_values) {
    const std::vector<std::string> types = TypesOf(other);
    comparisons_left_ -= static_cast<int64_t>(values.size() * (other_values.size() + 1));
    if (comparisons_left_ < 0) return true;
    return std::ranges::any_of(values, [&](const Json& value) {
      if (!other_values.empty())
        return std::ranges::find(other_values, value) != other_values.end();
      return types.empty() || std::ranges::any_of(types, [&](const std::string& type) {
               return HasType(value, type) || (type == "integer" && value.is_number());
             });
    });
  }

  // The types in both lists; an empty list means all types.
  static std::vector<std::string> CommonTypes(std::vector<std::string> a,
                                              std::vector<std::string> b) {
    for (auto* types : {&a, &b}) std::ranges::replace(*types, "integer", "number");
    if (a.empty() || b.empty()) return {"any"};
    std::erase_if(a,
                  [&](const std::string& type) { return std::ranges::find(b, type) == b.end(); });
    return a;
  }

  bool ObjectsMayOverlap(const Json& a, const Json& b, int depth) {
    const auto requires_name = [](const Json& schema, const std::string& name) {
      const auto list = schema.find("required");
      return list != schema.end() && list->is_array() &&
             std::ranges::find(*list, Json(name)) != list->end();
    };
    const auto properties = a.find("properties"), others = b.find("properties");
    if (properties == a.end() || others == b.end() || !properties->is_object() ||
        !others->is_object())
      return true;
    for (const auto& [name, property] : properties->items()) {
      const auto other = others->find(name);
      if (other == others->end() || !requires_name(a, name) || !requires_name(b, name)) continue;
      if (!MayOverlap(property, *other, depth - 1)) return false;
    }
    return true;
  }

  const Json& root_;
  int64_t comparisons_left_ = kMaxComparisons;
};

}  // namespace

std::optional<std::pair<size_t, size_t>> OverlappingPair(const Json& schemas, const Json& root) {
  Comparison comparison(root);
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (comparison.MayOverlap(schemas[i], schemas[j], kMaxComparisonDepth))
        return std::pair(j, i);
    }
  }
  return std::nullopt;
}

}  // namespace hydrant
