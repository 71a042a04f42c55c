// Where the state of entries lies: in lines (kernels/kv_pages.h) of pages that the pool lends for
// it, slabs. What a page needs is the same for all pages of a sequence (CachePlan::state_lines),
// whose slabs are its own. Plain data; ids and counts only.
#ifndef HYDRANT_ENGINE_CACHE_STATE_SLABS_H_
#define HYDRANT_ENGINE_CACHE_STATE_SLABS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "kernels/kv_pages.h"

namespace hydrant {

inline constexpr int64_t kArrayAlignment = 256;  // of the pool's arrays, in bytes

// Of a page: none; a score an entry; and a pair of numbers (kernels/entry_state.h).
inline constexpr int kNoStateLines = 0, kScoreLines = 1, kAllStateLines = 3;

struct SlabShape {
  // Of a pool whose values begin as soon as the widest access of a kernel, and a line, may.
  static SlabShape Of(const KvLayout& layout) {
    SlabShape shape;
    shape.line_bytes = static_cast<int64_t>(layout.block_size * sizeof(float));
    shape.keys_bytes = static_cast<int64_t>(
        BytesOf(layout.dtype, static_cast<size_t>(layout.block_size) * layout.head_dim));
    const int64_t whole = std::lcm<int64_t>(kArrayAlignment, shape.line_bytes);
    const int64_t values =
        PagesOf(std::max(layout.num_blocks, 1) * shape.keys_bytes, whole) * whole;
    shape.values_line = values / shape.line_bytes;
    return shape;
  }

  // As they are where nobody has a pool, in tests of a scheduler.
  int64_t line_bytes = 64;
  int64_t keys_bytes = 1536;  // of a page, and as many of its values
  int64_t values_line = 0;    // where the pool's values begin; 0: a slab is its keys alone

  // In a page's keys, wherever the page is.
  int64_t LinesOfKeys() const {
    const int64_t shift = std::gcd(keys_bytes, line_bytes);
    return std::max<int64_t>(0, (keys_bytes + shift - line_bytes) / line_bytes);
  }
  // Pages whose state, of so many lines each, a slab holds. REQUIRES: lines > 0
  int64_t StatesIn(int lines) const { return (values_line > 0 ? 2 : 1) * (LinesOfKeys() / lines); }
  // The id of the i-th of these.
  int32_t StateAt(int32_t slab, int64_t i, int lines) const {
    const int64_t first = (slab * keys_bytes + line_bytes - 1) / line_bytes;
    const int64_t in_keys = LinesOfKeys() / lines;
    const int64_t line = i < in_keys ? i * lines : values_line + (i - in_keys) * lines;
    return static_cast<int32_t>(first + line);
  }
  // Slabs that hold the state of so many pages.
  int64_t SlabsFor(int64_t pages, int lines) const {
    return lines == kNoStateLines ? 0 : PagesOf(pages, StatesIn(lines));
  }
  // Ids are below it.
  int64_t EndOfStates(int64_t num_blocks) const {
    return values_line + (num_blocks * keys_bytes + line_bytes - 1) / line_bytes;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_STATE_SLABS_H_
