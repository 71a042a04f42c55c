// Hands out ids of pages ("blocks") of the KV pool; never touches their memory. A block may have
// several owners. Owned by the scheduler's thread. free + live = total at all times; the destructor
// checks that every block has come home.
//
// Blocks of one head should follow each other in memory: a device reads long pieces faster than
// scattered pages of 2 KiB. So a head's blocks are taken from where enough free ones lie side by
// side, with room behind them that is left free as long as there is other place, and the next ones
// are those behind its last. Nothing is reserved: who finds no such place takes what there is.
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
  // Low ids leave first; with a seed, in an order drawn from it: for tests that no result depends
  // on where pages lie.
  explicit BlockAllocator(int num_blocks, std::optional<uint64_t> shuffle_seed = std::nullopt);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // Fills `blocks` with ids, or changes nothing and returns false.
  bool Allocate(std::span<int32_t> blocks);
  // The same for one head, which holds `last` (kNone: nothing) and may want `room` more later.
  // A few operations a block where there is place; else the words of a bit a block are searched.
  bool Extend(int32_t last, int32_t room, std::span<int32_t> blocks);
  static constexpr int32_t kNone = -1;
  // One more owner. REQUIRES: `block` is live
  void Share(int32_t block);
  // Of one owner; the last one's frees the block. REQUIRES: `block` is live (one Free more than it
  // has owners is a bug and ends the process).
  void Free(int32_t block);

  int64_t NumFree() const { return num_free_; }
  int64_t NumBlocks() const { return static_cast<int64_t>(shared_.size()); }
  bool IsLive(int32_t block) const { return !IsFree(PlaceOf(block)); }
  bool IsShared(int32_t block) const { return shared_[block]; }
  int NumOwners(int32_t block) const;
  // Blocks with several owners.
  int64_t NumShared() const { return static_cast<int64_t>(owners_.size()); }
  // Blocks more that there would have to be if each had one owner.
  int64_t NumSpared() const { return num_spared_; }

 private:
  // Free places side by side.
  struct Run {
    int64_t begin = 0;
    int64_t length = 0;
  };
  static constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

  // The first run of so many free places from `begin` on and in words before `end`, or else the
  // longest.
  Run Search(int64_t begin, int64_t end, int64_t length) const;
  // One that is as long as wished, or as there is one, more or less.
  Run FindRun(int64_t length);
  bool IsFree(int64_t place) const { return (free_[place / 64] >> (place % 64) & 1) != 0; }
  int32_t Take(int64_t place);
  // A place is an id, but where these are shuffled.
  int64_t PlaceOf(int32_t block) const { return places_.empty() ? block : places_[block]; }

  std::vector<uint64_t> free_;  // a bit a place, 64 a word
  int64_t num_free_ = 0;
  int64_t first_ = 0;              // the place where a search begins; since the last Free ..
  int64_t too_long_ = kAnyLength;  // .. no run of this length has been found anywhere
  std::vector<int32_t> ids_;       // of places, where they are shuffled
  std::vector<int32_t> places_;
  std::vector<bool> shared_;
  std::unordered_map<int32_t, int> owners_;  // of the shared ones
  int64_t num_spared_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_BLOCK_ALLOCATOR_H_
