// The parameters of a decode step's operations besides the contents of fixed arrays. A device that
// records graphs keeps one per shape, so sizes are rounded up there to get few shapes: rows are
// padded, bounds are loose.
#ifndef HYDRANT_ENGINE_RUN_STEP_GRAPH_SHAPE_H_
#define HYDRANT_ENGINE_RUN_STEP_GRAPH_SHAPE_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "engine/cache/cache_group.h"

namespace hydrant {

// The shape for the layers of one cache group.
struct GroupShape {
  int max_entries = 0;
  int max_scored_entries = 0;
  int mean_entries = 0;
  bool weighted = false;
  bool revised = false;
  bool predicted = false;
};

struct GraphShape {
  int rows = 0;
  int max_entries = 0;
  int max_scored_entries = 0;
  bool weighted = false;
  bool revised = false;    // some row's rule revises scores
  bool predicted = false;  // some row's rule has predicted scores
  int mean_entries = 0;
  int max_in_window = 0;  // maximum of entries in the window group
  // Which kinds of sampling the step includes; kNotHere: tokens are sampled after it.
  enum Sampling : uint8_t { kNotHere = 0, kGreedy = 1, kDraws = 2, kTopK = 4, kTopP = 8 };
  uint8_t sampling = kNotHere;

  GroupShape Of(GroupKind kind) const {
    if (kind == GroupKind::kWindow) return {max_in_window, max_in_window, max_in_window};
    return {max_entries, max_scored_entries, mean_entries, weighted, revised, predicted};
  }

  // Unique among shapes that RoundedUp() returns.
  uint64_t Key() const {
    const auto log = [](int n) {
      return static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(n)));
    };
    return static_cast<uint64_t>(rows) | static_cast<uint64_t>(sampling) << 24 |
           log(max_entries) << 32 | log(max_scored_entries) << 40 |
           static_cast<uint64_t>(weighted) << 48 | static_cast<uint64_t>(revised) << 49 |
           log(max_in_window) << 50 | log(mean_entries) << 56 |
           static_cast<uint64_t>(predicted) << 62;
  }
};

// Rows: exact up to 8, then four sizes per doubling, so at most a fifth is padding. Entries:
// rounded to powers of two.
inline GraphShape RoundedUp(const GraphShape& shape, int max_rows) {
  const auto power = [](int n) {
    return n == 0 ? 0 : static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
  };
  const int step = std::max(power(shape.rows) / 8, 1);
  const int rows = (shape.rows + step - 1) / step * step;
  return {std::min(rows, max_rows),
          power(shape.max_entries),
          power(shape.max_scored_entries),
          shape.weighted,
          shape.revised,
          shape.predicted,
          power(shape.mean_entries),
          power(shape.max_in_window),
          shape.sampling};
}

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_STEP_GRAPH_SHAPE_H_
