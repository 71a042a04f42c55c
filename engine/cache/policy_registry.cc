#include "engine/cache/policy_registry.h"

#include <array>
#include <vector>

namespace hydrant {
namespace {

const std::vector<const Policy*>& Table() {
  // Lives as long as the process: policies have no state and no order of destruction to keep.
  static const std::vector<const Policy*>* table = new std::vector<const Policy*>{
      NewFullPolicy().release(),
      NewLocalPolicy().release(),
      NewStreamingPolicy().release(),
      NewH2oPolicy().release(),
  };
  return *table;
}

}  // namespace

const Policy* FindPolicy(std::string_view name) {
  for (const Policy* policy : Table()) {
    if (policy->Info().name == name) return policy;
  }
  return nullptr;
}

std::span<const Policy* const> Policies() { return Table(); }

PolicyParameter MaxCacheTokensParameter() {
  return {"max_cache_tokens", "entries a KV head holds at most", "unset", ">= 1"};
}

PolicyParameter CacheRatioParameter() {
  return {"cache_ratio", "the same as a share of the prompt's tokens", "unset", "(0, 1]"};
}

PolicyParameter MinCacheTokensParameter() {
  return {"min_cache_tokens", "floor of the share, so that short prompts are not starved",
          std::to_string(kDefaultMinCacheTokens), ">= 0"};
}

}  // namespace hydrant
