// Interface of the shared object's CUDA device. It is plain C++: the program needs no CUDA headers
// or libraries, and the shared object no abseil. backend.cc wraps it in a Backend.
//
// Every operation is enqueued on the device's one stream and returns a cudaError_t as an int, 0 for
// success; ErrorText() describes it. One thread drives a device at a time.
#ifndef HYDRANT_KERNELS_CUDA_DEVICE_H_
#define HYDRANT_KERNELS_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace hydrant {

// Rows of a weight in tiles (kernels/cuda/tiles.h).
struct TiledRows {
  DType dtype = DType::kBF16;
  int first_row = 0;  // in the weight
  int rows = 0;
  const uint8_t* tiles = nullptr;  // BytesOfTiles(), aligned to 16 bytes
};

// A weight matrix in device memory: row-major (f32 or bf16), or in tiles, with columns a multiple
// of 8. Does not own the memory.
class CudaWeight : public Weight {
 public:
  CudaWeight(int rows, int cols, DType dtype, const void* data)
      : Weight(rows, cols, BytesOf(dtype, static_cast<size_t>(rows) * cols)),
        dtype_(dtype),
        data_(data) {}
  CudaWeight(int rows, int cols, size_t bytes, std::vector<TiledRows> tiled)
      : Weight(rows, cols, bytes), tiled_(std::move(tiled)) {}

  bool InTiles() const { return !tiled_.empty(); }
  const std::vector<TiledRows>& tiled() const { return tiled_; }  // in row order
  DType dtype() const { return dtype_; }      // dtype of the product: bf16 if in tiles
  const void* data() const { return data_; }  // null if in tiles

 private:
  DType dtype_ = DType::kBF16;
  const void* data_ = nullptr;
  std::vector<TiledRows> tiled_;
};

// Packs rows in the file's layout, in device memory, into tiles.
struct PackTilesArgs {
  DType dtype = DType::kBF16;
  int rows = 0;  // a multiple of kTileRows, except in the last call
  int cols = 0;
  const void* stored = nullptr;  // [rows, BytesOf(dtype, cols)], aligned to 2 bytes
  void* tiles = nullptr;
};

// out[i] = value first + i of the stream times its standard deviation, in `dtype` (f32 or bf16),
// rounded to bf16 if that is the model's own dtype.
struct DrawNormalsArgs {
  NormalStream normals;
  bool rounded_to_bf16 = false;
  DType dtype = DType::kF32;
  int64_t count = 0;
  void* out = nullptr;
  int64_t first = 0;
};

class CudaDevice {
 public:
  static constexpr int kEvents = 4;

  virtual ~CudaDevice() = default;

  virtual const char* Description() const = 0;   // "NVIDIA H200, compute capability 9.0, 139.8 GiB"
  virtual const char* ErrorText(int error) = 0;  // with the next step; valid until the next call
  virtual int MemoryInfo(size_t* free_bytes, size_t* total_bytes) = 0;
  virtual bool PlansDecode(const KvLayout& layout, int group) const = 0;  // Backend's
  virtual bool FusesProducts(const CudaWeight& weight, int m) const = 0;  // the same

  virtual int Allocate(size_t bytes, void** pointer) = 0;      // zeroed, aligned to 256 bytes
  virtual int Free(void* pointer) = 0;                         // after all work enqueued before
  virtual int AllocateHost(size_t bytes, void** pointer) = 0;  // pinned, zeroed
  virtual int FreeHost(void* pointer) = 0;
  virtual int CopyToDevice(void* device, const void* host, size_t bytes) = 0;  // `host` is reusable
  virtual int CopyToHost(void* host, const void* device, size_t bytes) = 0;    // synchronous
  virtual int CopyToHostLater(void* pinned, const void* device, size_t bytes) = 0;
  virtual int CopyOnDevice(void* to, const void* from, size_t bytes) = 0;
  virtual int Zero(void* device, size_t bytes) = 0;
  virtual int Synchronize() = 0;
  virtual int RecordEvent(int event) = 0;   // [0, kEvents): after all work enqueued before
  virtual int WaitForEvent(int event) = 0;  // until the device reaches it

  // Runs a repeated sequence of operations as a CUDA graph. Replay() launches the graph of this
  // key; if there is none, it sets *replayed to false, and the operations are enqueued between
  // BeginCapture() and EndCapture(). The first time they run normally, so that first-use
  // allocations are made; the second time they are captured, and EndCapture() runs them.
  virtual int Replay(uint64_t key, bool* replayed) = 0;
  virtual int BeginCapture(uint64_t key) = 0;
  virtual int EndCapture() = 0;

#define HYDRANT_DECLARE_OP(Op, Args) virtual int Op(const Args& args) = 0;
  HYDRANT_FOR_EACH_OP(HYDRANT_DECLARE_OP)
#undef HYDRANT_DECLARE_OP
  virtual int PrefillAttentions(const PrefillAttentionArgs* runs, int count) = 0;
  virtual int DrawNormals(const DrawNormalsArgs& args) = 0;
  virtual int PackTiles(const PackTilesArgs& args) = 0;
  // Reserves the scratch for products with a tiled weight of this shape.
  virtual int ReserveForTiles(int rows, int cols) = 0;
};

struct CudaDeviceOptions {
  int device = 0;
  bool batch_invariant = false;
};

// The function that the shared object exports under this name. Returns null if there is no usable
// device, with the reason, truncated to `capacity`, in `why`. The caller deletes the result.
using OpenCudaDevice = CudaDevice*(const CudaDeviceOptions& options, char* why, size_t capacity);
inline constexpr const char* kOpenCudaDevice = "HydrantOpenCudaDevice";

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_CUDA_DEVICE_H_
