// First-fit allocator of contiguous ranges in [0, size); offsets only, no memory. Used for the
// table arena (units: block ids) and the prefill arena (units: tokens). Owned by the scheduler's
// thread. Adjacent free ranges are always merged; the destructor checks that everything is free.
#ifndef HYDRANT_ENGINE_CACHE_RANGE_ALLOCATOR_H_
#define HYDRANT_ENGINE_CACHE_RANGE_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <optional>

namespace hydrant {

class RangeAllocator {
 public:
  explicit RangeAllocator(int64_t size);
  ~RangeAllocator();
  RangeAllocator(const RangeAllocator&) = delete;
  RangeAllocator& operator=(const RangeAllocator&) = delete;

  // The begin of a range of `length`, or nullopt with nothing changed. REQUIRES: length >= 1
  std::optional<int64_t> Allocate(int64_t length);
  // Allocates exactly this range. REQUIRES: all of it is free.
  void AllocateAt(int64_t begin, int64_t length);
  // REQUIRES: [begin, begin + length) was allocated, as one range or as adjacent ranges.
  void Free(int64_t begin, int64_t length);

  int64_t size() const { return size_; }
  int64_t NumFree() const { return num_free_; }

 private:
  int64_t size_;
  int64_t num_free_;
  std::map<int64_t, int64_t> free_;  // begin -> length
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_RANGE_ALLOCATOR_H_
