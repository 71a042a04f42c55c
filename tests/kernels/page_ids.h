// State for tests of what reads and writes pages: each page names a state of another id. Who takes
// one's id for the other's is found out.
#ifndef HYDRANT_TESTS_KERNELS_PAGE_IDS_H_
#define HYDRANT_TESTS_KERNELS_PAGE_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kv_pages.h"

namespace hydrant {

// The last state is the first page's, and so on: there are as many.
inline PageIds WithState(int32_t data, int num_blocks) { return {data, num_blocks - 1 - data}; }

inline std::vector<PageIds> WithStates(const std::vector<int32_t>& data, int num_blocks) {
  std::vector<PageIds> pages;
  pages.reserve(data.size());
  for (const int32_t id : data) pages.push_back(WithState(id, num_blocks));
  return pages;
}

// Where the score lies of an entry whose position lies at `slot`.
inline size_t StateSlot(size_t slot, int block_size, int num_blocks) {
  return (num_blocks - 1 - slot / block_size) * block_size + slot % block_size;
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_PAGE_IDS_H_
