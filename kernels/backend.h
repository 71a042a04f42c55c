// A Backend runs the operations of a step on one device. The operations are listed in
// kernels/ops.h, each has a contract header of its own; the same tests run over every backend, and
// "reference" (plain loops, double accumulation) is the truth the others are held to.
//
// Operations are enqueued in order; their arguments are taken at once, what they point to on the
// device must stay until they have run. A fault of the device is sticky: later operations do
// nothing and Synchronize() reports the first one. Shapes are the caller's responsibility (our bug,
// not the user's). One thread drives a Backend at a time.
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
  bool batch_invariant =
      false;  // a row's result never depends on the other rows (docs: --batch-invariant)
};

// Owns device memory; freed by the backend that made it.
using DeviceBuffer = std::unique_ptr<void, std::function<void(void*)>>;

struct DeviceMemory {
  size_t free_bytes = 0;  // as the system tells it; on a host what could be freed does not count
  size_t total_bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view Name() const = 0;
  // One line for the start message: instruction set, threads, device name.
  virtual std::string Description() const = 0;

  virtual absl::StatusOr<DeviceMemory> Memory() = 0;
  // Zeroed memory, aligned to 64 bytes. ResourceExhausted says how much was asked for.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) {
    absl::StatusOr<DeviceBuffer> buffer = TakeMemory(bytes);
    if (buffer.ok()) allocated_bytes_ += bytes;
    return buffer;
  }
  // What Allocate has given since the backend was made; packed weights are not among it.
  size_t allocated_bytes() const { return allocated_bytes_; }
  // `host` has been read, or written, when these return.
  virtual void CopyToDevice(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t bytes) = 0;
  // Between areas of the device's memory and of AllocateHost()'s, that do not overlap; in the order
  // of what is enqueued.
  virtual void CopyOnDevice(void* to, const void* from, size_t bytes) = 0;
  virtual void Zero(void* device, size_t bytes) = 0;
  virtual absl::Status Synchronize() = 0;

  // Results that the device brings while the host does something else. What CopyToHostLater()
  // enqueues is in `host`, which is of AllocateHost(), once an event recorded later has been waited
  // for; recording an event again makes it a new one. On a host everything is there at once.
  static constexpr int kEvents = 4;
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes) { return TakeMemory(bytes); }
  virtual void CopyToHostLater(void* host, const void* device, size_t bytes) {
    CopyToHost(host, device, bytes);
  }
  virtual void RecordEvent(int /*event*/) {}  // [0, kEvents)
  virtual absl::Status WaitForEvent(int /*event*/) { return Synchronize(); }
  // Whether the device works while the host goes on.
  virtual bool IsAsynchronous() const { return false; }

  // Stacks the parts on top of each other (equal cols) into one matrix. InvalidArgument on shapes
  // that do not fit, and where a value is not finite.
  virtual absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                             WeightDType dtype) = 0;

  // What PackWeight keeps rows of `stored` as: how much memory they will take.
  virtual DType PackedDType(DType stored, WeightDType dtype, int cols) const {
    return KeptDType(stored, dtype, cols);
  }

  // The dtype in which Matmul takes its rows as they are, beside weights that PackWeight keeps as
  // `packed`: what the operations that make them should write. Matmul takes fp32 too, and beside
  // any weight also this dtype, and converts it itself.
  virtual DType ActivationDType(DType /*packed*/) const { return DType::kF32; }

  // kBF16 where a product by this weight may write its results in bf16 (MatmulArgs::y_bf16), which
  // saves memory traffic; else kF32.
  virtual DType ResultDType(const Weight& /*weight*/) const { return DType::kF32; }

  // Whether Matmul of m rows by this weight takes x_norm, y_norm and gate (MatmulArgs): norms and
  // a gate as parts of the product.
  virtual bool FusesProducts(const Weight& /*weight*/, int /*m*/) const { return false; }

  // What PrefillAttention may round to (PrefillAttentionArgs::precision) where keys and values lie
  // in pages of `kv`, and the model's matrices are packed as `weights`: a type of as many bits as
  // the pages', or of more, of those that are multiplied faster than fp32; or kQ8_0, where matrix
  // products take activations of 8 bits, too.
  virtual DType AttentionDType(DType kv, DType /*weights*/) const {
    return Is16Bits(kv) ? kv : DType::kF32;
  }
  // The same where only statistics are wanted, by which entries are ranked.
  virtual DType RankingDType(DType kv, DType weights) const { return AttentionDType(kv, weights); }
  // How queries, keys and values of a layer of a prompt lie between its operations (ArenaRows),
  // where pages are of `kv`: fp32, or 16 bits where that loses nothing of what the pages hold, and
  // PrefillAttention takes them so beside that precision.
  virtual DType ArenaDType(DType /*kv*/, int /*head_dim*/) const { return DType::kF32; }

  // PrefillAttention of several runs, none of which reads what another writes (two may write the
  // same output, with the same bits): as one after the other, and on a device in fewer launches.
  virtual void PrefillAttentions(std::span<const PrefillAttentionArgs> runs) {
    for (const PrefillAttentionArgs& run : runs) PrefillAttention(run);
  }

  // Enqueues what `record` enqueues. Under one key these must be the same operations with the same
  // arguments each time, and copies only on the device: a device that SupportsGraphs() may capture
  // them as a graph, and later launch the graph without calling `record`.
  virtual void RunGraph(uint64_t /*key*/, const std::function<void()>& record) { record(); }
  virtual bool SupportsGraphs() const { return false; }
  // Whether DecodeAttention over pages of this layout, with so many query heads to a KV head, reads
  // lengths on the device and plans its work there: max_entries and mean_entries are not looked at,
  // and a graph is right for heads of any length.
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
// InvalidArgument where the machine lacks AVX2, FMA and F16C, the least the cpu backend runs on.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options);

// Unavailable, with the reason, where there is no usable device. The device stays with the process:
// its shared object is loaded once and never closed.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options);

// "reference", "cpu" or "cuda"; InvalidArgument lists the names.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_BACKEND_H_
