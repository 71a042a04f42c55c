// The victim rule of kernels/kv_pages.h in plain code, over the pages of one head. Stateless.
#ifndef HYDRANT_KERNELS_VICTIM_H_
#define HYDRANT_KERNELS_VICTIM_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/entry_state.h"
#include "kernels/kv_pages.h"

namespace hydrant {

// The entry that the token at next_position overwrites, in a head with `length` entries. A NaN
// score counts as -infinity. Entry 0 where every entry is protected (a cap below sinks + recent,
// which the engine refuses).
inline int32_t PickVictim(const KvPages& pages, const PageIds* blocks, int32_t length,
                          const DecodeRule& rule, int32_t next_position) {
  int32_t victim = -1;
  float lowest = 0.0f;
  int32_t victim_position = 0;
  for (int32_t entry = 0; entry < length; ++entry) {
    const int32_t position = pages.positions[PageIndex(pages.layout, blocks, entry)];
    if (position < rule.sinks || position > next_position - rule.recent) continue;
    float score = rule.by_position ? static_cast<float>(position)
                                   : pages.scores[StateIndex(pages.layout, blocks, entry)];
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
    if (victim < 0 || score < lowest || (score == lowest && position < victim_position)) {
      victim = entry;
      lowest = score;
      victim_position = position;
    }
  }
  return victim < 0 ? 0 : victim;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_VICTIM_H_
