// The cpu backend's Weight: panels of sixteen rows in one of the forms of matmul_kernels.h. Stacked
// parts with the same packed form share a segment. Immutable once made; any thread may read it.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_WEIGHT_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/matmul/matmul_kernels.h"
#include "kernels/weight.h"

namespace hydrant::cpu {

struct FreeDeleter {
  void operator()(uint8_t* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<uint8_t[], FreeDeleter>;

// Aligned to 64 bytes (2 MiB from that size on, with huge pages if the system provides them),
// contents undefined; null on failure.
AlignedBytes AllocateAligned(size_t bytes);

// Memory for panels, aligned to 64 bytes; null on failure. Weights packed one after another are
// adjacent in large slabs on huge pages: a matrix of a small model is far smaller than a huge page,
// and reading such matrices on ordinary pages was a third slower. A slab is freed with the last of
// its weights. Any thread may call.
std::shared_ptr<uint8_t> AllocatePanels(size_t bytes);

struct Segment {
  PanelFormat format = PanelFormat::kF32;
  DType dtype = DType::kF32;  // of the blocks
  int first_row = 0;          // in the weight
  int rows = 0;
  size_t panel_bytes = 0;
  std::shared_ptr<uint8_t> panels;

  int NumPanels() const { return (rows + kPanelRows - 1) / kPanelRows; }
};

class PackedWeight : public Weight {
 public:
  PackedWeight(int rows, int cols, size_t bytes, bool round_activations,
               std::vector<Segment> segments)
      : Weight(rows, cols, bytes),
        round_activations_(round_activations),
        segments_(std::move(segments)) {}

  // kBFloat16: activations may be rounded to bf16 if the machine has a unit for it.
  bool round_activations() const { return round_activations_; }
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  bool round_activations_;
  std::vector<Segment> segments_;
};

size_t PanelBytes(PanelFormat format, DType dtype, int cols);

// Packs sixteen rows (fewer in a last panel) from their stored form into a panel; rows
// past num_rows become zero. `scratch` holds 16 * cols floats. Returns false if a
// value may not be finite.
bool PackPanel(PanelFormat format, DType packed_dtype, const DType* row_dtypes,
               const uint8_t* const* rows, int num_rows, int cols, float* scratch, uint8_t* panel);

// The exact values of one row of a panel.
void UnpackRow(PanelFormat format, DType dtype, const uint8_t* panel, int row, int cols,
               float* out);

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_WEIGHT_H_
