#include "engine/run/weight_dtype_names.h"

namespace hydrant {
namespace {

struct NamedWeightDType {
  std::string_view name;
  WeightDType dtype;
};

constexpr NamedWeightDType kNamedWeightDTypes[] = {
    {"float32", WeightDType::kFloat32}, {"bfloat16", WeightDType::kBFloat16},
    {"stored", WeightDType::kStored},   {"q8_0", WeightDType::kQ8_0},
    {"q4_0", WeightDType::kQ4_0},       {"fp8", WeightDType::kFp8}};

}  // namespace

std::vector<std::string> WeightDTypeNames() {
  std::vector<std::string> names;
  for (const NamedWeightDType& named : kNamedWeightDTypes) names.emplace_back(named.name);
  return names;
}

std::optional<WeightDType> WeightDTypeOf(std::string_view name) {
  for (const NamedWeightDType& named : kNamedWeightDTypes) {
    if (named.name == name) return named.dtype;
  }
  return std::nullopt;
}

std::string_view NameOf(WeightDType dtype) {
  for (const NamedWeightDType& named : kNamedWeightDTypes) {
    if (named.dtype == dtype) return named.name;
  }
  return "?";
}

}  // namespace hydrant
