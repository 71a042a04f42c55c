// The attention mass that a compressed cache retains, and the number of entries
// needed to retain a given mass.
//
// Each entry of a prompt has received attention from the prompt's last queries. If entries are
// evicted only after they are in pages, WritePages stores that attention with each entry
// (WritePagesArgs::beside, the entry's window sum of kernels/entry_state.h). The sum over a head's
// entries divided by the number of queries is the head's retained mass: in [0, 1] up to rounding, 1
// if every entry is kept.
#ifndef HYDRANT_KERNELS_OPS_RETAINED_MASS_H_
#define HYDRANT_KERNELS_OPS_RETAINED_MASS_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// Sums are integers in units of 2^-32, so that every backend and every order of
// addition gives the same bits.
constexpr int64_t MassUnits(float weight) {
  return weight > 0.0f ? static_cast<int64_t>(static_cast<double>(weight) * 4294967296.0) : 0;
}

// mass[layer, h] of every head of a slot.
struct RetainedMassArgs {
  int slot = 0;
  int queries = 0;     // >= 1
  int max_length = 0;  // upper bound of every head's length, for a device's work plan
  KvPages pages;
  SequenceTables tables;
  float* mass = nullptr;  // [num_layers, num_kv_heads]
};

// Retained mass from a prompt's scratch, for a layer that is cut before it is written, or for
// a trial choice: mass[h] = the attention that the kept positions of a layer received, divided
// by the number of queries.
struct KeptMassArgs {
  // [num_kv_heads, window_stride] the attention each position received from the last queries
  const float* window_sums = nullptr;
  int64_t window_stride = 0;  // elements
  // [num_kv_heads, kept_stride] positions; null: 0 .. keep[h] - 1
  const int32_t* kept = nullptr;
  int64_t kept_stride = 0;        // elements
  const int32_t* keep = nullptr;  // [num_kv_heads] number of kept positions
  int num_kv_heads = 0;
  int queries = 0;        // >= 1
  float* mass = nullptr;  // [num_kv_heads]

  constexpr int32_t PositionOf(int head, int32_t i) const {
    return kept == nullptr ? i : kept[head * kept_stride + i];
  }
};

// Raises keep[layer, h] to the smallest number of entries that retains min_mass, in the order in
// which Compact keeps entries (kernels/ops/compact.h): protected first, then best score. If that
// exceeds `most`, the head keeps all its entries. REQUIRES: keep >= its protected entries.
struct KeepForMassArgs {
  int slot = 0;
  int queries = 0;
  float min_mass = 0.0f;
  int32_t most = 0;
  int sinks = 0;
  int recent = 0;
  int next_position = 0;
  int max_length = 0;
  KvPages pages;
  SequenceTables tables;
  int32_t* keep = nullptr;  // [num_layers, num_kv_heads]

  constexpr bool IsProtected(int32_t position) const {
    return position < sinks || position >= next_position - recent;
  }
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_RETAINED_MASS_H_
