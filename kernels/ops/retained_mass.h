// How much attention a compressed cache retains, and how much must stay so that it retains enough.
//
// Each entry of a prompt has received attention from the prompt's last queries. Where entries leave
// only when they lie in pages, WritePages leaves it with them (WritePagesArgs::beside, as the
// entry's window sum, kernels/entry_state.h). Their sum
// over a head's entries, divided by the number of queries, is the head's retained mass: in [0, 1]
// up to rounding, 1 where everything stayed.
#ifndef HYDRANT_KERNELS_OPS_RETAINED_MASS_H_
#define HYDRANT_KERNELS_OPS_RETAINED_MASS_H_

#include <cstdint>

#include "kernels/kv_pages.h"

namespace hydrant {

// The sums are whole numbers of 2^-32 for the device's sake, so that every backend and every order
// gives the same bits.
constexpr int64_t MassUnits(float weight) {
  return weight > 0.0f ? static_cast<int64_t>(static_cast<double>(weight) * 4294967296.0) : 0;
}

// mass[layer, h] of every head of a slot.
struct RetainedMassArgs {
  int slot = 0;
  int queries = 0;     // >= 1
  int max_length = 0;  // no head holds more: a device plans its work by it
  KvPages pages;
  SequenceTables tables;
  float* mass = nullptr;  // [num_layers, num_kv_heads]
};

// The same of a prompt's scratch, where a layer is cut before it is written, or a choice is only
// tried: mass[h] = the attention that the kept positions of a layer received, divided by the number
// of queries.
struct KeptMassArgs {
  // [num_kv_heads, window_stride] the attention each position received from the last queries
  const float* window_sums = nullptr;
  int64_t window_stride = 0;  // elements
  // [num_kv_heads, kept_stride] positions; null: 0 .. keep[h] - 1
  const int32_t* kept = nullptr;
  int64_t kept_stride = 0;        // elements
  const int32_t* keep = nullptr;  // [num_kv_heads] how many there are
  int num_kv_heads = 0;
  int queries = 0;        // >= 1
  float* mass = nullptr;  // [num_kv_heads]

  constexpr int32_t PositionOf(int head, int32_t i) const {
    return kept == nullptr ? i : kept[head * kept_stride + i];
  }
};

// Raises keep[layer, h] to the least number of entries that retains min_mass, best score first
// after the protected ones (kernels/ops/compact.h: the entries that Compact would keep), but to no
// more than most; a head that would need more keeps all it has. REQUIRES: keep >= its protected
// entries.
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
