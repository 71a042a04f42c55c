// Hands out ids of pages ("blocks") of the KV pool; never touches their memory. A block may have
// several owners. Owned by the scheduler's thread. free + live = total at all times; the destructor
// checks that every block has come home.
#ifndef HYDRANT_ENGINE_CACHE_BLOCK_ALLOCATOR_H_
#define HYDRANT_ENGINE_CACHE_BLOCK_ALLOCATOR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace hydrant {

class BlockAllocator {
 public:
  // Low ids leave first; with a seed, in an order drawn from it: for tests that no result depends
  // on where pages lie.
  explicit BlockAllocator(int num_blocks, std::optional<uint64_t> shuffle_seed = std::nullopt);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // Fills `blocks` with ids, or changes nothing and returns false. O(1) a block.
  bool Allocate(std::span<int32_t> blocks);
  // One more owner. REQUIRES: `block` is live
  void Share(int32_t block);
  // Of one owner; the last one's frees the block. REQUIRES: `block` is live (one Free more than it
  // has owners is a bug and ends the process).
  void Free(int32_t block);

  int64_t NumFree() const { return static_cast<int64_t>(free_.size()); }
  int64_t NumBlocks() const { return static_cast<int64_t>(live_.size()); }
  bool IsLive(int32_t block) const { return live_[block]; }
  bool IsShared(int32_t block) const { return shared_[block]; }
  int NumOwners(int32_t block) const;
  // Blocks with several owners.
  int64_t NumShared() const { return static_cast<int64_t>(owners_.size()); }
  // Blocks more that there would have to be if each had one owner.
  int64_t NumSpared() const { return num_spared_; }

 private:
  std::vector<int32_t> free_;  // a stack: what was freed last is still warm in the cache
  // [num_blocks]; bits, so that millions of pages stay in the cache.
  std::vector<bool> live_;
  std::vector<bool> shared_;
  std::unordered_map<int32_t, int> owners_;  // of the shared ones
  int64_t num_spared_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_BLOCK_ALLOCATOR_H_
