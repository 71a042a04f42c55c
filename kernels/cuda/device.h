// A CUDA device as the shared object of the CUDA backend offers it: a plain interface, so that the
// program knows nothing of CUDA's headers and libraries, and the shared object nothing of abseil's.
// backend.cc makes a Backend of it.
//
// Every operation is enqueued on the device's one stream and returns a cudaError_t as an int, 0 for
// success; ErrorText() puts it into words. One thread drives a device at a time.
#ifndef HYDRANT_KERNELS_CUDA_DEVICE_H_
#define HYDRANT_KERNELS_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/combine_notes.h"
#include "kernels/compact.h"
#include "kernels/count_best.h"
#include "kernels/deal_pages.h"
#include "kernels/decode_attention.h"
#include "kernels/derive_scores.h"
#include "kernels/elementwise.h"
#include "kernels/kcenter.h"
#include "kernels/latest_tokens.h"
#include "kernels/matmul.h"
#include "kernels/penalize.h"
#include "kernels/pool_scores.h"
#include "kernels/prefill_attention.h"
#include "kernels/retained_mass.h"
#include "kernels/revise_scores.h"
#include "kernels/sample.h"
#include "kernels/select.h"
#include "kernels/share_budget.h"
#include "kernels/subgen.h"
#include "kernels/table_update.h"

namespace hydrant {

// A weight matrix in device memory, row-major: f32 or bf16.
class CudaWeight final : public Weight {
 public:
  CudaWeight(int rows, int cols, DType dtype, const void* data)
      : Weight(rows, cols, BytesOf(dtype, static_cast<size_t>(rows) * cols)),
        dtype_(dtype),
        data_(data) {}
  DType dtype() const { return dtype_; }
  const void* data() const { return data_; }

 private:
  DType dtype_;
  const void* data_;
};

// out[i] = value i of the stream times its standard deviation, rounded to bf16 where the model's
// own dtype is that, in `dtype`: f32 or bf16.
struct DrawNormalsArgs {
  NormalStream normals;
  bool rounded_to_bf16 = false;
  DType dtype = DType::kF32;
  int64_t count = 0;
  void* out = nullptr;
};

class CudaDevice {
 public:
  static constexpr int kMarks = 4;

  virtual ~CudaDevice() = default;

  virtual const char* Description() const = 0;  // "NVIDIA H200, compute capability 9.0, 139.8 GiB"
  virtual const char* ErrorText(int error) const = 0;
  virtual int MemoryInfo(size_t* free_bytes, size_t* total_bytes) = 0;

  virtual int Allocate(size_t bytes, void** pointer) = 0;      // zeroed, aligned to 256 bytes
  virtual int Free(void* pointer) = 0;                         // after all that was enqueued before
  virtual int AllocateHost(size_t bytes, void** pointer) = 0;  // pinned, zeroed
  virtual int FreeHost(void* pointer) = 0;
  virtual int CopyToDevice(void* device, const void* host, size_t bytes) = 0;  // has read `host`
  virtual int CopyToHost(void* host, const void* device, size_t bytes) = 0;    // has written it
  virtual int CopyToHostLater(void* pinned, const void* device, size_t bytes) = 0;
  virtual int CopyOnDevice(void* to, const void* from, size_t bytes) = 0;
  virtual int Zero(void* device, size_t bytes) = 0;
  virtual int Synchronize() = 0;
  virtual int Mark(int mark) = 0;     // [0, kMarks): behind all that was enqueued before
  virtual int WaitFor(int mark) = 0;  // until the device has come there

  // Operations that are enqueued many times in the same way, as a CUDA graph. Replay() enqueues the
  // record of this key; without one it leaves *replayed false, and the operations are to be
  // enqueued between BeginRecord() and EndRecord(). Their first time they run as they come, so that
  // whatever is made at first use is there; the second time they are recorded, and run by
  // EndRecord().
  virtual int Replay(uint64_t key, bool* replayed) = 0;
  virtual int BeginRecord(uint64_t key) = 0;
  virtual int EndRecord() = 0;

  virtual int Matmul(const MatmulArgs& args) = 0;
  virtual int Embed(const EmbedArgs& args) = 0;
  virtual int RmsNorm(const RmsNormArgs& args) = 0;
  virtual int LayerNorm(const LayerNormArgs& args) = 0;
  virtual int RopeSplit(const RopeSplitArgs& args) = 0;
  virtual int Swiglu(const SwigluArgs& args) = 0;
  virtual int Activate(const ActivateArgs& args) = 0;
  virtual int PrefillAttention(const PrefillAttentionArgs& args) = 0;
  virtual int DecodeAttention(const DecodeAttentionArgs& args) = 0;
  virtual int ReviseScores(const ReviseScoresArgs& args) = 0;
  virtual int DeriveScores(const DeriveScoresArgs& args) = 0;
  virtual int PoolScores(const PoolScoresArgs& args) = 0;
  virtual int KCenter(const KCenterArgs& args) = 0;
  virtual int Select(const SelectArgs& args) = 0;
  virtual int WritePages(const WritePagesArgs& args) = 0;
  virtual int Compact(const CompactArgs& args) = 0;
  virtual int ShareBudget(const ShareBudgetArgs& args) = 0;
  virtual int DealPages(const DealPagesArgs& args) = 0;
  virtual int CountBest(const CountBestArgs& args) = 0;
  virtual int RetainedMass(const RetainedMassArgs& args) = 0;
  virtual int KeptMass(const KeptMassArgs& args) = 0;
  virtual int CombineNotes(const CombineNotesArgs& args) = 0;
  virtual int KeepForMass(const KeepForMassArgs& args) = 0;
  virtual int SubGenBuild(const SubGenBuildArgs& args) = 0;
  virtual int SubGenInsert(const SubGenInsertArgs& args) = 0;
  virtual int Penalize(const PenalizeArgs& args) = 0;
  virtual int Sample(const SampleArgs& args) = 0;
  virtual int DrawNormals(const DrawNormalsArgs& args) = 0;
  virtual int KeepLatest(const LatestTokensArgs& args) = 0;
  virtual int TakeLatest(const LatestTokensArgs& args) = 0;
  virtual int UpdateTable(const UpdateTableArgs& args) = 0;
};

struct CudaDeviceOptions {
  int device = 0;
  bool batch_invariant = false;
};

// The one function that the shared object exports, under this name. Null where there is no usable
// device, with the reason, cut to `capacity`, in `why`. The caller deletes what it gets.
using OpenCudaDevice = CudaDevice*(const CudaDeviceOptions& options, char* why, size_t capacity);
inline constexpr const char* kOpenCudaDevice = "HydrantOpenCudaDevice";

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_CUDA_DEVICE_H_
