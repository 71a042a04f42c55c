#include "engine/cache/kv_cache_dtype.h"

namespace hydrant {
namespace {

struct Named {
  std::string_view name;
  DType dtype;
};

constexpr Named kNamed[] = {{"float32", DType::kF32},   {"float16", DType::kF16},
                            {"bfloat16", DType::kBF16}, {"fp8", DType::kE4M3},
                            {"int8", DType::kQ8_0},     {"int4", DType::kQ4_0}};

}  // namespace

std::vector<std::string> KvCacheDTypeNames() {
  std::vector<std::string> names = {"auto"};
  for (const Named& named : kNamed) names.emplace_back(named.name);
  return names;
}

std::optional<DType> KvCacheDTypeOf(std::string_view name) {
  for (const Named& named : kNamed) {
    if (named.name == name) return named.dtype;
  }
  return std::nullopt;
}

std::string_view NameOfKvCacheDType(DType dtype) {
  for (const Named& named : kNamed) {
    if (named.dtype == dtype) return named.name;
  }
  return "?";
}

}  // namespace hydrant
