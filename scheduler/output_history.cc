#include "scheduler/output_history.h"

#include <algorithm>

namespace hydrant {

void OutputHistory::Window::Add(double value) {
  values_[next_] = value;
  next_ = (next_ + 1) % kLimit;
  size_ = std::min(size_ + 1, kLimit);
  std::copy_n(values_.begin(), size_, sorted_.begin());
  std::sort(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(size_));
  sum_from_[size_] = 0;
  for (size_t i = size_; i-- > 0;) sum_from_[i] = sum_from_[i + 1] + sorted_[i];
}

double OutputHistory::Window::MeanExcess(double value) const {
  const auto end = sorted_.begin() + static_cast<std::ptrdiff_t>(size_);
  const auto above = std::upper_bound(sorted_.begin(), end, value);
  if (above == end) return 0;
  const double sum = sum_from_[static_cast<size_t>(above - sorted_.begin())];
  return sum / static_cast<double>(end - above) - value;
}

void OutputHistory::Observe(int64_t generated, int64_t most) {
  shares_.Add(std::min(1.0, static_cast<double>(generated) / static_cast<double>(most)));
  tokens_.Add(static_cast<double>(generated));
}

double OutputHistory::MeanOf(int64_t most) const {
  const auto all = static_cast<double>(most);
  return tokens_.size() == 0 ? all : std::min(all * shares_.Mean(), tokens_.Mean());
}

double OutputHistory::RestOf(int64_t generated, int64_t most) const {
  if (!IsKnown()) return 0;
  const auto done = static_cast<double>(generated), all = static_cast<double>(most);
  return std::min(shares_.MeanExcess(done / all) * all, tokens_.MeanExcess(done));
}

}  // namespace hydrant
