// A Backend runs the operations of a step on one device. The operations are listed in
// kernels/ops.h; each has a contract header. The same tests run over every backend and compare it
// with "reference" (plain loops, double accumulation).
//
// Operations are enqueued in order. Arguments are copied at the call; device memory they point to
// must stay valid until the operation has run. A device fault is sticky: later operations do
// nothing and Synchronize() reports the first fault. Shapes are the caller's responsibility (a bug
// in this program, never user input). One thread drives a Backend at a time.
#ifndef HYDRANT_KERNELS_BACKEND_H_
#define HYDRANT_KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/weight.h"

namespace hydrant {

struct BackendOptions {
  int num_threads = 1;  // host backends
  // A row's result never depends on the other rows (docs: --batch-invariant).
  bool batch_invariant = false;
};

// Owns device memory; freed by the backend that made it.
using DeviceBuffer = std::unique_ptr<void, std::function<void(void*)>>;

struct DeviceMemory {
  size_t free_bytes = 0;  // as the system reports it; on a host, reclaimable memory is not counted
  size_t total_bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view Name() const = 0;
  // One line for the start message: instruction set, threads, device name.
  virtual std::string Description() const = 0;

  virtual absl::StatusOr<DeviceMemory> Memory() = 0;
  // Zeroed memory, aligned to 64 bytes. ResourceExhausted names the requested size.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) {
    absl::StatusOr<DeviceBuffer> buffer = TakeMemory(bytes);
    if (buffer.ok()) allocated_bytes_ += bytes;
    return buffer;
  }
  // Total of all Allocate calls since the backend was created; packed weights are not included.
  size_t allocated_bytes() const { return allocated_bytes_; }
  // Synchronous: `host` has been read or written on return.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t bytes) = 0;
  // Copies between areas of device memory and AllocateHost() memory that do not
  // overlap, in stream order.
  virtual void CopyOnDevice(void* to, const void* from, size_t bytes) = 0;
  virtual void Zero(void* device, size_t bytes) = 0;
  virtual absl::Status Synchronize() = 0;

  // Asynchronous copies to the host. The result of CopyToHostLater() is in `host` (memory from
  // AllocateHost()) after a wait for an event that was recorded after the copy. Recording an event
  // again replaces it. On a host backend the copy is immediate.
  static constexpr int kEvents = 4;
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes) { return TakeMemory(bytes); }
  virtual void CopyToHostLater(void* host, const void* device, size_t bytes) {
    CopyToHost(host, device, bytes);
  }
  virtual void RecordEvent(int /*event*/) {}  // [0, kEvents)
  virtual absl::Status WaitForEvent(int /*event*/) { return Synchronize(); }
  // Whether the device runs asynchronously to the host.
  virtual bool IsAsynchronous() const { return false; }

  // Stacks the parts on top of each other (equal cols) into one matrix. InvalidArgument on shapes
  // that do not fit and on values that are not finite.
  virtual absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                             WeightDType dtype) = 0;

  // The dtype in which PackWeight stores rows of `stored`, for memory estimates.
  virtual DType PackedDType(DType stored, WeightDType dtype, int cols) const {
    return KeptDType(stored, dtype, cols);
  }

  // The dtype that Matmul reads without conversion for weights packed as `packed`; producers of
  // its rows should write this dtype. Matmul also takes fp32 and, with any weight, this dtype,
  // and converts them itself.
  virtual DType ActivationDType(DType /*packed*/) const { return DType::kF32; }

  // kBF16 where a product with this weight may write bf16 results (MatmulArgs::y_bf16), which saves
  // memory traffic; else kF32.
  virtual DType ResultDType(const Weight& /*weight*/) const { return DType::kF32; }

  // Whether Matmul of m rows with this weight takes x_norm, y_norm and gate
  // (MatmulArgs): fused norms and gate.
  virtual bool FusesProducts(const Weight& /*weight*/, int /*m*/) const { return false; }

  // The dtype to which PrefillAttention may round (PrefillAttentionArgs::precision) for pages of
  // dtype `kv` and matrices packed as `weights`: a type with at least as many bits as the pages'
  // that multiplies faster than fp32; or kQ8_0, where matrix products take 8-bit activations too.
  virtual DType AttentionDType(DType kv, DType /*weights*/) const {
    return Is16Bits(kv) ? kv : DType::kF32;
  }
  // As AttentionDType, for runs that only compute statistics that rank entries.
  virtual DType RankingDType(DType kv, DType weights) const { return AttentionDType(kv, weights); }
  // The dtype of a prompt layer's queries, keys and values between operations (ArenaRows) for pages
  // of dtype `kv`: fp32, or a 16-bit type where the stored pages lose nothing by it and
  // PrefillAttention takes it at that precision.
  virtual DType ArenaDType(DType /*kv*/, int /*head_dim*/) const { return DType::kF32; }

  // PrefillAttention of several runs. No run reads memory that another writes (two may write the
  // same output, with the same bits). Equals sequential calls, in fewer launches on a device.
  virtual void PrefillAttentions(std::span<const PrefillAttentionArgs> runs) {
    for (const PrefillAttentionArgs& run : runs) PrefillAttention(run);
  }

  // Enqueues the operations that `record` enqueues. Each use of a key must enqueue the
  // same operations with the same arguments, and copies only on the device. A device
  // that SupportsGraphs() may capture them as a graph and later launch the graph
  // without calling `record`.
  virtual void RunGraph(uint64_t /*key*/, const std::function<void()>& record) { record(); }
  virtual bool SupportsGraphs() const { return false; }
  // Whether DecodeAttention over pages of this layout, with `group` query heads per KV head, reads
  // lengths and plans its work on the device: then max_entries and mean_entries are ignored, and
  // one graph is valid for heads of any length.
  virtual bool PlansDecode(const KvLayout& /*layout*/, int /*group*/) const { return false; }

#define HYDRANT_DECLARE_OP(Op, Args) virtual void Op(const Args& args) = 0;
  HYDRANT_FOR_EACH_OP(HYDRANT_DECLARE_OP)
#undef HYDRANT_DECLARE_OP

 protected:
  virtual absl::StatusOr<DeviceBuffer> TakeMemory(size_t bytes) = 0;  // as Allocate

 private:
  size_t allocated_bytes_ = 0;
};

std::unique_ptr<Backend> CreateReferenceBackend(const BackendOptions& options);
// InvalidArgument where the machine lacks the minimum of the cpu backend (kernels/cpu/isa/isa.h).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options);

// Unavailable, with the reason, where there is no usable device. The shared object is loaded once
// and stays loaded for the life of the process.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options);

// "reference", "cpu" or "cuda"; InvalidArgument lists the names.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_BACKEND_H_
