// Shared by Matmul and ExpertMatmul: the choice of a kernel, the rows per task, and work space for
// activations in the form that a kernel reads.
#ifndef HYDRANT_KERNELS_CPU_MATMUL_MATMUL_PARTS_H_
#define HYDRANT_KERNELS_CPU_MATMUL_MATMUL_PARTS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul/matmul_kernels.h"
#include "kernels/cpu/matmul/matmul_weight.h"

namespace hydrant::cpu {

// The fastest kernels of this machine. Any thread may call.
const MatmulKernels& ChosenMatmulKernels();

// The kernel for m rows of x. With batch_invariant, all kernels that it may return for a
// weight give the same bits.
MatmulKernel MatmulKernelFor(PanelFormat format, bool round_activations, int m,
                             bool batch_invariant);

// The form of x that a kernel reads (PanelArgs).
enum class ActivationForm : uint8_t { kFloats, kQuantized, kBf16, kQuantized8, kInterleaved8 };
inline constexpr int kActivationForms = 5;
ActivationForm FormFor(MatmulKernel kernel);

// Rows per task out of m, such that a task's converted activations stay in L2. A
// multiple of every kernel's rows.
int RowsOfTask(int m, int cols);

constexpr int kTasksPerThread = 4;
constexpr int kPanelStep = 4;  // panels per call of the kernels for few rows

constexpr size_t NumTiles(int m) { return (static_cast<size_t>(m) + kTileRows - 1) / kTileRows; }

// Grows and never shrinks: decode steps do not allocate after the largest batch.
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

// The calling thread's work space for rows of x, 2 or 1 bytes per value; valid until the next call
// with the same value_bytes.
QuantizedRows QuantizedSpace(size_t tiles, int cols, int value_bytes);
// As QuantizedSpace, for kInterleaved8.
InterleavedRows InterleavedSpace(size_t tiles, int cols);
// As QuantizedSpace, for kBf16.
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
