// What the policies that choose by an observation window have in common.
#ifndef HYDRANT_ENGINE_CACHE_POLICIES_SNAPKV_H_
#define HYDRANT_ENGINE_CACHE_POLICIES_SNAPKV_H_

#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_plan.h"

namespace hydrant {

// Window, pooling and decode_cap (SnapKV, arXiv 2404.14469, section 4).
absl::Status FillSnapKv(const CacheSpec& spec, CachePlan* plan);
std::vector<PolicyParameter> SnapKvParameters();

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICIES_SNAPKV_H_
