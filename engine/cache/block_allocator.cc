#include "engine/cache/block_allocator.h"

#include <algorithm>
#include <random>

#include "kernels/check.h"

namespace hydrant {

BlockAllocator::BlockAllocator(int num_blocks, std::optional<uint64_t> shuffle_seed)
    : free_(num_blocks), live_(num_blocks, false), shared_(num_blocks, false) {
  for (int i = 0; i < num_blocks; ++i) free_[i] = num_blocks - 1 - i;
  if (shuffle_seed.has_value())
    std::shuffle(free_.begin(), free_.end(), std::mt19937_64(*shuffle_seed));
}

BlockAllocator::~BlockAllocator() { HYDRANT_CHECK(free_.size() == live_.size()); }

bool BlockAllocator::Allocate(std::span<int32_t> blocks) {
  if (blocks.size() > free_.size()) return false;
  std::copy_n(free_.rbegin(), blocks.size(), blocks.begin());
  free_.resize(free_.size() - blocks.size());
  for (const int32_t block : blocks) live_[block] = true;
  return true;
}

void BlockAllocator::Share(int32_t block) {
  HYDRANT_CHECK(block >= 0 && block < NumBlocks() && live_[block]);
  shared_[block] = true;
  ++num_spared_;
  ++owners_.try_emplace(block, 1).first->second;
}

int BlockAllocator::NumOwners(int32_t block) const {
  return shared_[block] ? owners_.at(block) : static_cast<int>(live_[block]);
}

void BlockAllocator::Free(int32_t block) {
  HYDRANT_CHECK(block >= 0 && block < NumBlocks());
  HYDRANT_CHECK(live_[block]);
  if (shared_[block]) {
    --num_spared_;
    const auto it = owners_.find(block);
    if (--it->second > 1) return;
    owners_.erase(it);
    shared_[block] = false;
    return;
  }
  live_[block] = false;
  free_.push_back(block);
}

}  // namespace hydrant
