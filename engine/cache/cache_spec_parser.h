// Parses the cache settings of a command line: a policy and its settings,
// "h2o:cache_ratio=0.2:sink_tokens=4". Pure functions.
#ifndef HYDRANT_ENGINE_CACHE_CACHE_SPEC_PARSER_H_
#define HYDRANT_ENGINE_CACHE_CACHE_SPEC_PARSER_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/cache/cache_spec.h"

namespace hydrant {

// Sets a field of CacheSpec by its name; any other name is a parameter of the policy. False: the
// value does not parse as a number of the field's type.
bool SetCacheField(const std::string& name, const std::string& value, CacheSpec* spec);

// InvalidArgument names the wrong word. PlanCache() checks ranges and names.
absl::StatusOr<CacheSpec> ParseCacheSpec(std::string_view text);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_CACHE_SPEC_PARSER_H_
