#include "engine/cache/range_allocator.h"

#include <iterator>

#include "kernels/check.h"

namespace hydrant {

RangeAllocator::RangeAllocator(int64_t size) : size_(size), num_free_(size) {
  if (size > 0) free_.emplace(0, size);
}

RangeAllocator::~RangeAllocator() { HYDRANT_CHECK(num_free_ == size_); }

std::optional<int64_t> RangeAllocator::Allocate(int64_t length) {
  HYDRANT_CHECK(length >= 1);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [begin, room] = *it;
    if (room < length) continue;
    free_.erase(it);
    if (room > length) free_.emplace(begin + length, room - length);
    num_free_ -= length;
    return begin;
  }
  return std::nullopt;
}

void RangeAllocator::AllocateAt(int64_t begin, int64_t length) {
  auto it = free_.upper_bound(begin);
  HYDRANT_CHECK(it != free_.begin());
  const auto [room_begin, room] = *--it;
  const int64_t room_end = room_begin + room;
  HYDRANT_CHECK(begin + length <= room_end);
  free_.erase(it);
  if (room_begin < begin) free_.emplace(room_begin, begin - room_begin);
  if (begin + length < room_end) free_.emplace(begin + length, room_end - begin - length);
  num_free_ -= length;
}

void RangeAllocator::Free(int64_t begin, int64_t length) {
  HYDRANT_CHECK(length >= 1 && begin >= 0 && begin + length <= size_);
  num_free_ += length;
  auto next = free_.lower_bound(begin);
  HYDRANT_CHECK(next == free_.end() || begin + length <= next->first);
  if (next != free_.end() && begin + length == next->first) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    HYDRANT_CHECK(before->first + before->second <= begin);
    if (before->first + before->second == begin) {
      before->second += length;
      return;
    }
  }
  free_.emplace(begin, length);
}

}  // namespace hydrant
