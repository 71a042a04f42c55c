// The CUDA backend, as the program sees it: loads the shared object, makes weights, and turns error
// numbers into words.
#include "kernels/backend.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/weight_parts.h"

namespace hydrant {
namespace {

static_assert(Backend::kMarks == CudaDevice::kMarks);
constexpr const char* kModule = "libhydrant_cuda.so";

// A weight and its memory on the device.
class OwnedCudaWeight final : public Weight {
 public:
  OwnedCudaWeight(const CudaWeight& weight, DeviceBuffer buffer)
      : Weight(weight.rows(), weight.cols(), weight.bytes()),
        weight_(weight),
        buffer_(std::move(buffer)) {}
  const CudaWeight& weight() const { return weight_; }

 private:
  CudaWeight weight_;
  DeviceBuffer buffer_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~CudaBackend() override { (void)device_->Synchronize(); }

  std::string_view Name() const override { return "cuda"; }
  std::string Description() const override {
    return absl::StrCat("cuda: ", device_->Description());
  }

  absl::StatusOr<DeviceMemory> Memory() override {
    DeviceMemory memory;
    Run("asking for the memory",
        [&] { return device_->MemoryInfo(&memory.free_bytes, &memory.total_bytes); });
    if (!fault_.ok()) return fault_;
    return memory;
  }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) override {
    void* pointer = nullptr;
    if (const int error = device_->Allocate(std::max<size_t>(bytes, 1), &pointer); error != 0) {
      size_t free = 0, total = 0;
      (void)device_->MemoryInfo(&free, &total);
      return absl::ResourceExhaustedError(absl::StrCat("the device cannot give ", bytes, " bytes; ",
                                                       free, " of ", total, " are free (",
                                                       device_->ErrorText(error), ")"));
    }
    return DeviceBuffer(pointer, [this](void* p) { Note(device_->Free(p), "freeing memory"); });
  }
  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    Run("copying to the device", [&] { return device_->CopyToDevice(device, host, bytes); });
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    Run("copying from the device", [&] { return device_->CopyToHost(host, device, bytes); });
  }
  void CopyOnDevice(void* to, const void* from, size_t bytes) override {
    Run("copying on the device", [&] { return device_->CopyOnDevice(to, from, bytes); });
  }
  void Zero(void* device, size_t bytes) override {
    Run("zeroing", [&] { return device_->Zero(device, bytes); });
  }
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes) override {
    void* pointer = nullptr;
    if (const int error = device_->AllocateHost(std::max<size_t>(bytes, 1), &pointer); error != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("the system cannot give ", bytes,
                                                       " bytes of pinned memory (",
                                                       device_->ErrorText(error), ")"));
    }
    return DeviceBuffer(pointer, [this](void* p) { Note(device_->FreeHost(p), "freeing memory"); });
  }
  void CopyToHostLater(void* host, const void* device, size_t bytes) override {
    Run("copying from the device", [&] { return device_->CopyToHostLater(host, device, bytes); });
  }
  void Mark(int mark) override {
    Run("marking a step", [&] { return device_->Mark(mark); });
  }
  absl::Status WaitFor(int mark) override {
    Run("running the step", [&] { return device_->WaitFor(mark); });
    return fault_;
  }
  bool RunsBesideHost() const override { return true; }
  absl::Status Synchronize() override {
    Run("running the step", [&] { return device_->Synchronize(); });
    return fault_;
  }

  absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                     WeightDType dtype) override;

  DType ActivationDType(WeightDType dtype) const override {
    return dtype == WeightDType::kBFloat16 ? DType::kBF16 : DType::kF32;
  }
  bool RecordsOperations() const override { return true; }
  void Repeat(uint64_t key, const std::function<void()>& operations) override {
    bool repeated = false;
    Run("repeating operations", [&] { return device_->Replay(key, &repeated); });
    if (repeated || !fault_.ok()) return;
    Run("recording operations", [&] { return device_->BeginRecord(key); });
    operations();
    Run("recording operations", [&] { return device_->EndRecord(); });
  }

  void Matmul(const MatmulArgs& args) override {
    MatmulArgs device_args = args;
    device_args.weight = &static_cast<const OwnedCudaWeight*>(args.weight)->weight();
    Run("Matmul", [&] { return device_->Matmul(device_args); });
  }
  void Embed(const EmbedArgs& args) override {
    EmbedArgs device_args = args;
    device_args.table = &static_cast<const OwnedCudaWeight*>(args.table)->weight();
    Run("Embed", [&] { return device_->Embed(device_args); });
  }
  void RmsNorm(const RmsNormArgs& args) override {
    Run("RmsNorm", [&] { return device_->RmsNorm(args); });
  }
  void LayerNorm(const LayerNormArgs& args) override {
    Run("LayerNorm", [&] { return device_->LayerNorm(args); });
  }
  void RopeSplit(const RopeSplitArgs& args) override {
    Run("RopeSplit", [&] { return device_->RopeSplit(args); });
  }
  void Swiglu(const SwigluArgs& args) override {
    Run("Swiglu", [&] { return device_->Swiglu(args); });
  }
  void Activate(const ActivateArgs& args) override {
    Run("Activate", [&] { return device_->Activate(args); });
  }
  void PrefillAttention(const PrefillAttentionArgs& args) override {
    Run("PrefillAttention", [&] { return device_->PrefillAttention(args); });
  }
  void DecodeAttention(const DecodeAttentionArgs& args) override {
    Run("DecodeAttention", [&] { return device_->DecodeAttention(args); });
  }
  void ReviseScores(const ReviseScoresArgs& args) override {
    Run("ReviseScores", [&] { return device_->ReviseScores(args); });
  }
  void DeriveScores(const DeriveScoresArgs& args) override {
    Run("DeriveScores", [&] { return device_->DeriveScores(args); });
  }
  void PoolScores(const PoolScoresArgs& args) override {
    Run("PoolScores", [&] { return device_->PoolScores(args); });
  }
  void KCenter(const KCenterArgs& args) override {
    Run("KCenter", [&] { return device_->KCenter(args); });
  }
  void Select(const SelectArgs& args) override {
    Run("Select", [&] { return device_->Select(args); });
  }
  void WritePages(const WritePagesArgs& args) override {
    Run("WritePages", [&] { return device_->WritePages(args); });
  }
  void Compact(const CompactArgs& args) override {
    Run("Compact", [&] { return device_->Compact(args); });
  }
  void ShareBudget(const ShareBudgetArgs& args) override {
    Run("ShareBudget", [&] { return device_->ShareBudget(args); });
  }
  void DealPages(const DealPagesArgs& args) override {
    Run("DealPages", [&] { return device_->DealPages(args); });
  }
  void CountBest(const CountBestArgs& args) override {
    Run("CountBest", [&] { return device_->CountBest(args); });
  }
  void RetainedMass(const RetainedMassArgs& args) override {
    Run("RetainedMass", [&] { return device_->RetainedMass(args); });
  }
  void KeptMass(const KeptMassArgs& args) override {
    Run("KeptMass", [&] { return device_->KeptMass(args); });
  }
  void CombineNotes(const CombineNotesArgs& args) override {
    Run("CombineNotes", [&] { return device_->CombineNotes(args); });
  }
  void KeepForMass(const KeepForMassArgs& args) override {
    Run("KeepForMass", [&] { return device_->KeepForMass(args); });
  }
  void SubGenBuild(const SubGenBuildArgs& args) override {
    Run("SubGenBuild", [&] { return device_->SubGenBuild(args); });
  }
  void SubGenInsert(const SubGenInsertArgs& args) override {
    Run("SubGenInsert", [&] { return device_->SubGenInsert(args); });
  }
  void Penalize(const PenalizeArgs& args) override {
    Run("Penalize", [&] { return device_->Penalize(args); });
  }
  void Sample(const SampleArgs& args) override {
    Run("Sample", [&] { return device_->Sample(args); });
  }
  void KeepLatest(const LatestTokensArgs& args) override {
    Run("KeepLatest", [&] { return device_->KeepLatest(args); });
  }
  void TakeLatest(const LatestTokensArgs& args) override {
    Run("TakeLatest", [&] { return device_->TakeLatest(args); });
  }
  void UpdateTable(const UpdateTableArgs& args) override {
    Run("UpdateTable", [&] { return device_->UpdateTable(args); });
  }

 private:
  // After the first fault nothing more is enqueued: what it would read is not there.
  template <typename Operation>
  void Run(const char* what, Operation operation) {
    if (fault_.ok()) Note(operation(), what);
  }
  void Note(int error, const char* what) {
    if (error == 0 || !fault_.ok()) return;
    fault_ = absl::InternalError(
        absl::StrCat("CUDA failed while ", what, ": ", device_->ErrorText(error)));
  }

  std::unique_ptr<CudaDevice> device_;
  absl::Status fault_;
};

// One part's rows, dequantised, in the weight's dtype.
std::vector<uint8_t> ConvertPart(const WeightPart& part, DType dtype) {
  const size_t row_bytes = BytesOf(part.dtype, part.cols);
  std::vector<float> row(part.cols);
  std::vector<uint8_t> out(BytesOf(dtype, static_cast<size_t>(part.rows) * part.cols));
  for (int i = 0; i < part.rows; ++i) {
    DequantizeRow(part.dtype, static_cast<const uint8_t*>(part.data) + i * row_bytes, part.cols,
                  row.data());
    if (dtype == DType::kF32) {
      std::copy(row.begin(), row.end(), reinterpret_cast<float*>(out.data()) + i * row.size());
      continue;
    }
    auto* halves = reinterpret_cast<uint16_t*>(out.data()) + i * row.size();
    for (size_t j = 0; j < row.size(); ++j) halves[j] = FloatToBF16(row[j]);
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Weight>> CudaBackend::PackWeight(std::span<const WeightPart> parts,
                                                                WeightDType weight_dtype) {
  if (absl::Status status = CheckWeightParts(parts); !status.ok()) return status;
  const DType dtype = weight_dtype == WeightDType::kBFloat16 ? DType::kBF16 : DType::kF32;
  int rows = 0;
  for (const WeightPart& part : parts) rows += part.rows;
  const int cols = parts[0].cols;
  absl::StatusOr<DeviceBuffer> buffer = Allocate(BytesOf(dtype, static_cast<size_t>(rows) * cols));
  if (!buffer.ok()) return buffer.status();
  auto* at = static_cast<uint8_t*>(buffer->get());
  for (const WeightPart& part : parts) {
    const int64_t count = int64_t{part.rows} * part.cols;
    if (part.normals.has_value()) {
      Run("drawing weights", [&] {
        return device_->DrawNormals({*part.normals, part.dtype == DType::kBF16, dtype, count, at});
      });
    } else {
      const std::vector<uint8_t> bytes = ConvertPart(part, dtype);
      CopyToDevice(at, bytes.data(), bytes.size());
      if (absl::Status status = Synchronize(); !status.ok()) return status;  // `bytes` goes
    }
    at += BytesOf(dtype, count);
  }
  if (absl::Status status = Synchronize(); !status.ok()) return status;
  const CudaWeight weight(rows, cols, dtype, buffer->get());
  return std::make_unique<OwnedCudaWeight>(weight, *std::move(buffer));
}

// A machine without a driver must not pay for loading cuBLAS to find that out.
bool HasDriver() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  dlclose(driver);
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options) {
  // Another shared object with the same function: tests have one that needs no device.
  const char* replacement = std::getenv("HYDRANT_CUDA_MODULE");
  if (replacement == nullptr && !HasDriver())
    return absl::UnavailableError("device cuda: there is no NVIDIA driver (libcuda.so.1)");
  const char* path = replacement == nullptr ? kModule : replacement;
  void* module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    return absl::UnavailableError(
        absl::StrCat("device cuda: the CUDA backend is not there; build "
                     "where nvcc is (",
                     dlerror(), ")"));
  auto* open = reinterpret_cast<OpenCudaDevice*>(dlsym(module, kOpenCudaDevice));
  if (open == nullptr)
    return absl::UnavailableError(absl::StrCat("device cuda: ", path, " is no CUDA backend"));
  std::array<char, 512> why = {};
  std::unique_ptr<CudaDevice> device(
      open({.device = 0, .batch_invariant = options.batch_invariant}, why.data(), why.size()));
  if (device == nullptr) return absl::UnavailableError(absl::StrCat("device cuda: ", why.data()));
  return std::make_unique<CudaBackend>(std::move(device));
}

}  // namespace hydrant
