// What Matmul and ExpertMatmul share: the choice of a kernel, how many rows a task takes, and work
// space for activations in the form that a kernel reads.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_PARTS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_PARTS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul/matmul_kernels.h"
#include "kernels/cpu/matmul/matmul_weight.h"

namespace hydrant::cpu {

// The fastest of what this machine has. Any thread may call.
const MatmulKernels& ChosenMatmulKernels();

// The kernel for m rows of x. With batch_invariant all that it may answer for a weight give the
// same bits.
MatmulKernel MatmulKernelFor(PanelFormat format, bool round_activations, int m,
                             bool batch_invariant);

// What a kernel reads of x: PanelArgs.
enum class ActivationForm : uint8_t { kFloats, kQuantized, kBf16, kQuantized8, kInterleaved8 };
inline constexpr int kActivationForms = 5;
ActivationForm FormFor(MatmulKernel kernel);

// Of m rows: those of one task, whose converted activations stay in the second cache. A whole
// number of every kernel's rows.
int RowsOfTask(int m, int cols);

constexpr int kTasksPerThread = 4;
constexpr int kPanelStep = 4;  // panels that the kernels for few rows take at once

constexpr size_t NumTiles(int m) { return (static_cast<size_t>(m) + kTileRows - 1) / kTileRows; }

// Grows, never shrinks: a decode step allocates nothing once the largest batch has been seen.
class Arena {
 public:
  uint8_t* Get(size_t bytes) {
    if (bytes > bytes_) {
      buffer_ = AllocateAligned(bytes);
      bytes_ = buffer_ == nullptr ? 0 : bytes;
    }
    return buffer_.get();
  }

 private:
  AlignedBytes buffer_;
  size_t bytes_ = 0;
};

// The calling thread's work space for rows of x, 2 or 1 bytes a value; valid until it asks for as
// many again.
QuantizedRows QuantizedSpace(size_t tiles, int cols, int value_bytes);
// The same for kInterleaved8.
InterleavedRows InterleavedSpace(size_t tiles, int cols);
// The same for kBf16.
uint16_t* Bf16Space(size_t tiles, int cols);

// PanelArgs::scratch of the calling thread: MatmulScratchBytes(cols).
uint8_t* PanelScratch(int cols);

// The rows from a tile on.
QuantizedRows FromTile(const QuantizedRows& rows, size_t tile, int cols, int value_bytes);
InterleavedRows FromTile(const InterleavedRows& rows, size_t tile, int cols);
constexpr size_t Bf16TileElements(int cols) {
  return static_cast<size_t>(kTileRows) * ((static_cast<size_t>(cols) + 31) / 32 * 32);
}

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_MATMUL_MATMUL_PARTS_H_
