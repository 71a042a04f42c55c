#include "engine/cache/block_allocator.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "kernels/check.h"

namespace hydrant {
namespace {

constexpr int kWordBits = 64;

int64_t NumWords(int64_t num_blocks) { return (num_blocks + kWordBits - 1) / kWordBits; }

}  // namespace

BlockAllocator::BlockAllocator(int num_blocks, std::optional<uint64_t> shuffle_seed)
    : free_(NumWords(num_blocks), ~uint64_t{0}), num_free_(num_blocks), shared_(num_blocks, false) {
  if (num_blocks % kWordBits != 0) free_.back() >>= kWordBits - num_blocks % kWordBits;
  if (!shuffle_seed.has_value()) return;
  ids_.resize(num_blocks);
  std::iota(ids_.begin(), ids_.end(), 0);
  std::shuffle(ids_.begin(), ids_.end(), std::mt19937_64(*shuffle_seed));
  places_.resize(num_blocks);
  for (int i = 0; i < num_blocks; ++i) places_[ids_[i]] = i;
}

BlockAllocator::~BlockAllocator() { HYDRANT_CHECK(num_free_ == NumBlocks()); }

BlockAllocator::Run BlockAllocator::Search(int64_t begin, int64_t end, int64_t length) const {
  Run longest, run;
  for (int64_t word = begin / kWordBits; word < end; ++word) {
    uint64_t bits = free_[word];
    if (word == begin / kWordBits) bits &= ~uint64_t{0} << (begin % kWordBits);
    for (int at = 0; at < kWordBits;) {
      const int free = std::countr_one(bits >> at);
      if (run.length == 0) run.begin = word * kWordBits + at;
      run.length += free;
      at += free;
      if (run.length >= length) return run;
      if (at == kWordBits) break;  // it may go on in the next word
      if (run.length > longest.length) longest = run;
      run.length = 0;
      at += std::min(std::countr_zero(bits >> at), kWordBits - at);
    }
  }
  return run.length > longest.length ? run : longest;
}

// A length known to be too long is halved, so that a fragmented pool is searched a few times, not
// for every head.
BlockAllocator::Run BlockAllocator::FindRun(int64_t length) {
  const auto words = static_cast<int64_t>(free_.size());
  while (length >= too_long_) length = (length + 1) / 2;
  Run run = Search(first_, words, length);
  if (run.length < length && first_ > 0) {
    const Run before = Search(0, std::min(words, NumWords(first_ + length)), length);
    if (before.length > run.length) run = before;
  }
  if (run.length < length) too_long_ = length;
  return run;
}

int32_t BlockAllocator::Take(int64_t place) {
  free_[place / kWordBits] &= ~(uint64_t{1} << (place % kWordBits));
  --num_free_;
  return ids_.empty() ? static_cast<int32_t>(place) : ids_[place];
}

bool BlockAllocator::Extend(int32_t last, int32_t room, std::span<int32_t> blocks) {
  if (static_cast<int64_t>(blocks.size()) > num_free_) return false;
  auto block = blocks.begin();
  if (last != kNone) {
    for (int64_t next = PlaceOf(last) + 1;
         block != blocks.end() && next < NumBlocks() && IsFree(next); ++next)
      *block++ = Take(next);
  }
  while (block != blocks.end()) {
    const int64_t missing = blocks.end() - block;
    const Run run = FindRun(missing + room);
    const int64_t taken = std::min(missing, run.length);
    for (int64_t i = 0; i < taken; ++i) *block++ = Take(run.begin + i);
    first_ = run.begin + std::min(taken + room, run.length);
  }
  return true;
}

bool BlockAllocator::Allocate(std::span<int32_t> blocks) { return Extend(kNone, 0, blocks); }

void BlockAllocator::Share(int32_t block) {
  HYDRANT_CHECK(block >= 0 && block < NumBlocks() && IsLive(block));
  shared_[block] = true;
  ++num_spared_;
  ++owners_.try_emplace(block, 1).first->second;
}

int BlockAllocator::NumOwners(int32_t block) const {
  return shared_[block] ? owners_.at(block) : static_cast<int>(IsLive(block));
}

void BlockAllocator::Free(int32_t block) {
  HYDRANT_CHECK(block >= 0 && block < NumBlocks() && IsLive(block));
  if (shared_[block]) {
    --num_spared_;
    const auto it = owners_.find(block);
    if (--it->second > 1) return;
    owners_.erase(it);
    shared_[block] = false;
    return;
  }
  const int64_t place = PlaceOf(block);
  free_[place / kWordBits] |= uint64_t{1} << (place % kWordBits);
  ++num_free_;
  first_ = std::min(first_, place);
  too_long_ = kAnyLength;
}

}  // namespace hydrant
