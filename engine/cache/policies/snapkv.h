// Shared by the policies with an observation window: SnapKV and PyramidKV.
#ifndef HYDRANT_ENGINE_CACHE_POLICIES_SNAPKV_H_
#define HYDRANT_ENGINE_CACHE_POLICIES_SNAPKV_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/prompt_scorer.h"

namespace hydrant {

// Scores by the attention of the last queries, pooled over neighbours before the window.
class PooledWindow final : public WindowScorer {
 public:
  // kernel: odd, positions that are pooled; 1: no pooling.
  PooledWindow(int32_t queries, Pooling pooling, int32_t kernel)
      : WindowScorer(queries), pooling_(pooling), kernel_(kernel) {}
  std::string_view Name() const override { return "window"; }
  Pooling pooling() const { return pooling_; }
  int32_t kernel() const { return kernel_; }
  const float* Score(const PromptLayer& layer) const override;

 private:
  Pooling pooling_;
  int32_t kernel_;
};

// Fills in window, pooling and decode_cap (SnapKV, arXiv 2404.14469, section 4).
absl::Status FillSnapKv(const CacheSpec& spec, CachePlan* plan);
std::vector<PolicyParameter> SnapKvParameters();

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_POLICIES_SNAPKV_H_
