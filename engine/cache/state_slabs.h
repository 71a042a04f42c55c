// The placement of entries' state in slabs, pages of the pool that hold lines of block_size floats
// (kernels/entry_state.h). All pages of a sequence need the same number of lines
// (CachePlan::state_lines), and a slab belongs to one sequence. Plain data; ids and counts only.
#ifndef HYDRANT_ENGINE_CACHE_STATE_SLABS_H_
#define HYDRANT_ENGINE_CACHE_STATE_SLABS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "kernels/kv_pages.h"

namespace hydrant {

inline constexpr int64_t kArrayAlignment = 256;  // of the pool's arrays, in bytes

// State lines of a page: none; one score per entry; a score and a pair of numbers per entry
// (kernels/entry_state.h).
inline constexpr int kNoStateLines = 0, kScoreLines = 1, kAllStateLines = 3;

struct SlabShape {
  // The shape for a pool: values begin at the first offset behind the keys that is aligned to
  // kArrayAlignment and to a line.
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

  // The defaults serve scheduler tests without a pool.
  int64_t line_bytes = 64;
  int64_t keys_bytes = 1536;  // of a page's keys; its values have the same size
  int64_t values_line = 0;    // first line of the pool's values; 0: a slab is its keys alone

  // Whole lines in the keys of any page.
  int64_t LinesOfKeys() const {
    const int64_t shift = std::gcd(keys_bytes, line_bytes);
    return std::max<int64_t>(0, (keys_bytes + shift - line_bytes) / line_bytes);
  }
  // States of `lines` lines each in a slab. REQUIRES: lines > 0
  int64_t StatesIn(int lines) const { return (values_line > 0 ? 2 : 1) * (LinesOfKeys() / lines); }
  // The ids of a slab's states. StatesOf() divides: call it once a slab.
  struct States {
    int64_t first = 0;    // line
    int64_t in_keys = 0;  // states in the keys; the others are in the values
    int64_t values_line = 0;
    int lines = 0;  // of a state

    int32_t At(int64_t i) const {
      const int64_t line = i < in_keys ? i * lines : values_line + (i - in_keys) * lines;
      return static_cast<int32_t>(first + line);
    }
  };
  States StatesOf(int32_t slab, int lines) const {
    return {.first = (slab * keys_bytes + line_bytes - 1) / line_bytes,
            .in_keys = LinesOfKeys() / lines,
            .values_line = values_line,
            .lines = lines};
  }
  // Slabs for the state of `pages` pages.
  int64_t SlabsFor(int64_t pages, int lines) const {
    return lines == kNoStateLines ? 0 : PagesOf(pages, StatesIn(lines));
  }
  // Upper bound of state ids.
  int64_t EndOfStates(int64_t num_blocks) const {
    return values_line + (num_blocks * keys_bytes + line_bytes - 1) / line_bytes;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_STATE_SLABS_H_
