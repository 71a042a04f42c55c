#include "scheduler/output_history.h"

#include <algorithm>

namespace hydrant {

void OutputHistory::Observe(int64_t generated, int64_t most) {
  shares_[next_] = std::min(1.0, static_cast<double>(generated) / static_cast<double>(most));
  next_ = (next_ + 1) % kMost;
  size_ = std::min(size_ + 1, kMost);
  std::copy_n(shares_.begin(), size_, sorted_.begin());
  std::sort(sorted_.begin(), sorted_.begin() + size_);
  sum_from_[size_] = 0;
  for (size_t i = size_; i-- > 0;) sum_from_[i] = sum_from_[i + 1] + sorted_[i];
}

double OutputHistory::MeanOf(int64_t most) const {
  const double mean = size_ == 0 ? 1.0 : sum_from_[0] / static_cast<double>(size_);
  return mean * static_cast<double>(most);
}

double OutputHistory::RestOf(int64_t generated, int64_t most) const {
  if (!IsKnown()) return 0;
  const double done = static_cast<double>(generated) / static_cast<double>(most);
  const auto end = sorted_.begin() + static_cast<std::ptrdiff_t>(size_);
  const auto further = std::upper_bound(sorted_.begin(), end, done);
  if (further == end) return 0;
  const auto count = static_cast<double>(end - further);
  const double mean = sum_from_[static_cast<size_t>(further - sorted_.begin())] / count;
  return (mean - done) * static_cast<double>(most);
}

}  // namespace hydrant
