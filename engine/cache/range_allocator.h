// Contiguous ranges of a line of `size` units, first fit; ids only, no memory. Serves the table
// arena (units: block ids) and the prefill arena (units: tokens). Owned by the scheduler's thread.
// Free neighbours are always joined; the destructor checks that every range has come home.
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

  // Where a range of `length` begins, or nullopt with nothing changed. REQUIRES: length >= 1
  std::optional<int64_t> Allocate(int64_t length);
  // Takes back just this range. REQUIRES: all of it is free.
  void AllocateAt(int64_t begin, int64_t length);
  // REQUIRES: [begin, begin + length) was allocated, as one range or as neighbours.
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
