#include "tools/load/report/hit_rates.h"

#include <algorithm>

#include "fmt/format.h"

namespace hydrant::load {
namespace {

constexpr double kAlike = 0.05;

}  // namespace

std::string WarnOfHitRates(std::span<const HitRate> rates) {
  if (rates.empty()) return {};
  const auto [least, most] =
      std::minmax_element(rates.begin(), rates.end(),
                          [](const HitRate& a, const HitRate& b) { return a.share < b.share; });
  if (most->share - least->share <= kAlike) return {};
  return fmt::format(
      "the prefix cache had {:.1f} % of the prompts of {}, and {:.1f} % of {}: their times differ "
      "by that too; `reuse=off` in both leaves it out",
      100 * most->share, most->name, 100 * least->share, least->name);
}

}  // namespace hydrant::load
