#include "engine/cache/block_allocator.h"

#include "kernels/check.h"

namespace hydrant {

BlockAllocator::BlockAllocator(int num_blocks) : free_(num_blocks), live_(num_blocks, false) {
  for (int i = 0; i < num_blocks; ++i) free_[i] = num_blocks - 1 - i;  // low ids leave first
}

BlockAllocator::~BlockAllocator() { HYDRANT_CHECK(free_.size() == live_.size()); }

bool BlockAllocator::Allocate(std::span<int32_t> blocks) {
  if (blocks.size() > free_.size()) return false;
  for (int32_t& block : blocks) {
    block = free_.back();
    free_.pop_back();
    live_[block] = true;
  }
  return true;
}

void BlockAllocator::Free(int32_t block) {
  HYDRANT_CHECK(block >= 0 && block < NumBlocks());
  HYDRANT_CHECK(live_[block]);
  live_[block] = false;
  free_.push_back(block);
}

}  // namespace hydrant
