#include "scheduler/mass_summary.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace hydrant {

RetainedMass Summarize(std::vector<float> mass_of_heads) {
  std::sort(mass_of_heads.begin(), mass_of_heads.end());
  const size_t count = mass_of_heads.size();
  const double sum = std::accumulate(mass_of_heads.begin(), mass_of_heads.end(), 0.0);
  return {.mean = static_cast<float>(sum / static_cast<double>(count)),
          .minimum = mass_of_heads.front(),
          .p10 = mass_of_heads[(count + 9) / 10 - 1]};
}

}  // namespace hydrant
