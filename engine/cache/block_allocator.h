// Allocates ids of pages ("blocks") of the KV pool; never touches their memory. A block may have
// several owners. Owned by the scheduler's thread. free + live = total at all times; the destructor
// checks that every block is free.
//
// The blocks of one head should be contiguous: a device reads long pieces faster than scattered
// pages of 2 KiB. So a head's blocks come from a run of enough free blocks, with some room after
// them that is left free while there is space elsewhere, and its next blocks are those after its
// last. Nothing is reserved: without such a run, any free blocks are taken.
#ifndef HYDRANT_ENGINE_CACHE_BLOCK_ALLOCATOR_H_
#define HYDRANT_ENGINE_CACHE_BLOCK_ALLOCATOR_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace hydrant {

class BlockAllocator {
 public:
  // Low ids are allocated first; with a seed, ids in an order drawn from it, for tests that results
  // do not depend on the placement of pages.
  explicit BlockAllocator(int num_blocks, std::optional<uint64_t> shuffle_seed = std::nullopt);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // Fills `blocks` with ids, or changes nothing and returns false.
  bool Allocate(std::span<int32_t> blocks);
  // The same for one head with last block `last` (kNone: none), which may need `room` more later.
  // A few operations per block if there is space after it; else a search of the bitmap.
  bool Extend(int32_t last, int32_t room, std::span<int32_t> blocks);
  static constexpr int32_t kNone = -1;
  // Adds an owner. REQUIRES: `block` is live
  void Share(int32_t block);
  // Removes an owner; without owners the block is free. REQUIRES: `block` is live (one Free more
  // than it has owners is a bug and ends the process).
  void Free(int32_t block);

  int64_t NumFree() const { return num_free_; }
  int64_t NumBlocks() const { return static_cast<int64_t>(shared_.size()); }
  bool IsLive(int32_t block) const { return !IsFree(PlaceOf(block)); }
  bool IsShared(int32_t block) const { return shared_[block]; }
  int NumOwners(int32_t block) const;
  // Blocks with several owners.
  int64_t NumShared() const { return static_cast<int64_t>(owners_.size()); }
  // The number of additional blocks that would be needed if each had one owner.
  int64_t NumSpared() const { return num_spared_; }

 private:
  // Contiguous free places.
  struct Run {
    int64_t begin = 0;
    int64_t length = 0;
  };
  static constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

  // The first run of `length` free places from `begin` on, in words before `end`, or else the
  // longest run there.
  Run Search(int64_t begin, int64_t end, int64_t length) const;
  // A run of `length` free places, or else approximately the longest.
  Run FindRun(int64_t length);
  bool IsFree(int64_t place) const { return (free_[place / 64] >> (place % 64) & 1) != 0; }
  int32_t Take(int64_t place);
  // The place of an id: the id itself unless ids are shuffled.
  int64_t PlaceOf(int32_t block) const { return places_.empty() ? block : places_[block]; }

  std::vector<uint64_t> free_;  // bitmap by place, 64 per word
  int64_t num_free_ = 0;
  int64_t first_ = 0;              // the place where a search begins
  int64_t too_long_ = kAnyLength;  // no run of this length has been found since the last Free
  std::vector<int32_t> ids_;       // by place; empty unless shuffled
  std::vector<int32_t> places_;    // by id; the same
  std::vector<bool> shared_;
  std::unordered_map<int32_t, int> owners_;  // of the shared blocks
  int64_t num_spared_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_BLOCK_ALLOCATOR_H_
