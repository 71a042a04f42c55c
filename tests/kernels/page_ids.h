// State ids for tests of page operations: each page has a state with a different id, so that
// confusing the two is detected.
#ifndef HYDRANT_TESTS_KERNELS_PAGE_IDS_H_
#define HYDRANT_TESTS_KERNELS_PAGE_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kv_pages.h"

namespace hydrant {

// State ids are the page ids in reverse order; both have the same number.
inline PageIds WithState(int32_t data, int num_blocks) { return {data, num_blocks - 1 - data}; }

inline std::vector<PageIds> WithStates(const std::vector<int32_t>& data, int num_blocks) {
  std::vector<PageIds> pages;
  pages.reserve(data.size());
  for (const int32_t id : data) pages.push_back(WithState(id, num_blocks));
  return pages;
}

// Index of the score of an entry with its position at `slot`.
inline size_t StateSlot(size_t slot, int block_size, int num_blocks) {
  return (num_blocks - 1 - slot / block_size) * block_size + slot % block_size;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_PAGE_IDS_H_
