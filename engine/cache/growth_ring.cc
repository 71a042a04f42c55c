#include "engine/cache/growth_ring.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace hydrant {

void GrowthRing::Order(int block_size) {
  std::erase_if(heads_,
                [&](const GrowingHead& growing) { return growing.HasAllPages(block_size); });
  std::sort(heads_.begin(), heads_.end(), [&](const GrowingHead& a, const GrowingHead& b) {
    return std::pair(a.FullAt(block_size), a.head) < std::pair(b.FullAt(block_size), b.head);
  });
  HYDRANT_CHECK(heads_.empty() ||
                heads_.back().FullAt(block_size) < heads_.front().FullAt(block_size) + block_size);
  Rewind();
}

void GrowthRing::Prefetch() const {
  constexpr int kLine = 64, kLines = 6;
  const auto* next = reinterpret_cast<const char*>(heads_.data() + next_);
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(next + i * kLine);
}

}  // namespace hydrant
