// A cache as people write it on a command line: a policy and its settings,
// "h2o:cache_ratio=0.2:sink_tokens=4". Pure.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_SPEC_PARSER_H_
#define HYDRANT_ENGINE_CACHE_CACHE_SPEC_PARSER_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/cache/cache_spec.h"

namespace hydrant {

// A setting of CacheSpec by its name; any other name is a parameter of the policy. False where the
// value is no number of the setting's kind.
bool SetCacheField(const std::string& name, const std::string& value, CacheSpec* spec);

// InvalidArgument names the word that is wrong. Ranges, names of policies and of their parameters
// are PlanCache()'s to check.
absl::StatusOr<CacheSpec> ParseCacheSpec(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_SPEC_PARSER_H_
