// The CUDA backend, as the program sees it: loads the shared object, makes weights, and turns error
// numbers into words.
#include "kernels/backend.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/byte_text.h"
#include "kernels/cuda/device.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/status_macros.h"
#include "kernels/weight_parts.h"

namespace hydrant {
namespace {

static_assert(Backend::kEvents == CudaDevice::kEvents);
constexpr const char* kModule = "libhydrant_cuda.so";

// A weight and its memory on the device.
class OwnedCudaWeight final : public CudaWeight {
 public:
  OwnedCudaWeight(int rows, int cols, DType dtype, DeviceBuffer buffer)
      : CudaWeight(rows, cols, dtype, buffer.get()), buffer_(std::move(buffer)) {}

 private:
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
      return absl::ResourceExhaustedError(absl::StrCat("the system cannot give ",
                                                       FormatByteSize(bytes), " of pinned memory (",
                                                       device_->ErrorText(error), ")"));
    }
    return DeviceBuffer(pointer, [this](void* p) { Note(device_->FreeHost(p), "freeing memory"); });
  }
  void CopyToHostLater(void* host, const void* device, size_t bytes) override {
    Run("copying from the device", [&] { return device_->CopyToHostLater(host, device, bytes); });
  }
  void RecordEvent(int event) override {
    Run("recording an event", [&] { return device_->RecordEvent(event); });
  }
  absl::Status WaitForEvent(int event) override {
    Run("running the step", [&] { return device_->WaitForEvent(event); });
    return fault_;
  }
  bool IsAsynchronous() const override { return true; }
  absl::Status Synchronize() override {
    Run("running the step", [&] { return device_->Synchronize(); });
    return fault_;
  }

  absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                     WeightDType dtype) override;

  // There are no kernels for blocks: they are unpacked.
  DType PackedDType(DType /*stored*/, WeightDType dtype, int /*cols*/) const override {
    return dtype == WeightDType::kBFloat16 ? DType::kBF16 : DType::kF32;
  }
  DType ActivationDType(WeightDType dtype) const override {
    return dtype == WeightDType::kBFloat16 ? DType::kBF16 : DType::kF32;
  }
  DType ResultDType(const Weight& weight) const override {
    return static_cast<const CudaWeight&>(weight).dtype() == DType::kBF16 ? DType::kBF16
                                                                          : DType::kF32;
  }
  // The tensor cores' of 16 bits.
  DType AttentionDType(DType kv, DType /*weights*/) const override {
    return BlockElements(kv) == 1 ? kv : DType::kBF16;
  }
  // The tensor cores read them as they are, in pieces of 16 bytes.
  DType ArenaDType(DType kv, int head_dim) const override {
    return BlockElements(kv) == 1 && head_dim % 8 == 0 ? kv : DType::kF32;
  }
  void PrefillAttentions(std::span<const PrefillAttentionArgs> runs) override {
    Run("PrefillAttention",
        [&] { return device_->PrefillAttentions(runs.data(), static_cast<int>(runs.size())); });
  }
  bool SupportsGraphs() const override { return true; }
  bool PlansDecode(const KvLayout& layout, int group) const override {
    return device_->PlansDecode(layout, group);
  }
  void RunGraph(uint64_t key, const std::function<void()>& record) override {
    bool replayed = false;
    Run("launching a graph", [&] { return device_->Replay(key, &replayed); });
    if (replayed || !fault_.ok()) return;
    Run("capturing a graph", [&] { return device_->BeginCapture(key); });
    record();
    Run("capturing a graph", [&] { return device_->EndCapture(); });
  }

#define HYDRANT_ENQUEUE_OP(Op, Args)             \
  void Op(const Args& args) override {           \
    Run(#Op, [&] { return device_->Op(args); }); \
  }
  HYDRANT_FOR_EACH_OP(HYDRANT_ENQUEUE_OP)
#undef HYDRANT_ENQUEUE_OP

 protected:
  absl::StatusOr<DeviceBuffer> TakeMemory(size_t bytes) override {
    void* pointer = nullptr;
    if (const int error = device_->Allocate(std::max<size_t>(bytes, 1), &pointer); error != 0) {
      size_t free = 0, total = 0;
      (void)device_->MemoryInfo(&free, &total);
      return absl::ResourceExhaustedError(absl::StrCat(
          "the device cannot give ", FormatByteSize(bytes), "; ", FormatByteSize(free), " of ",
          FormatByteSize(total), " are free (", device_->ErrorText(error), ")"));
    }
    return DeviceBuffer(pointer, [this](void* p) { Note(device_->Free(p), "freeing memory"); });
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

// Rows [first, first + count) of a weight, dequantised, in `dtype`.
absl::StatusOr<std::vector<uint8_t>> ConvertRows(const WeightRows& weight, int first, int count,
                                                 DType dtype) {
  std::vector<float> row(weight.cols());
  std::vector<uint8_t> scratch(weight.scratch_bytes());
  std::vector<uint8_t> out(BytesOf(dtype, static_cast<size_t>(count) * weight.cols()));
  for (int i = 0; i < count; ++i) {
    const WeightRows::Row stored = weight.Get(first + i, scratch.data());
    DequantizeRow(stored.dtype, stored.bytes, weight.cols(), row.data());
    if (!AllFinite(row)) HYDRANT_RETURN_IF_ERROR(weight.CheckFinite(first + i));
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
  HYDRANT_ASSIGN_OR_RETURN(const WeightRows weight, WeightRows::Make(parts, weight_dtype));
  const int rows = weight.rows(), cols = weight.cols();
  const DType dtype = PackedDType(parts[0].dtype, weight_dtype, cols);
  HYDRANT_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                           TakeMemory(BytesOf(dtype, static_cast<size_t>(rows) * cols)));
  auto* at = static_cast<uint8_t*>(buffer.get());
  int first_row = 0;
  for (const WeightPart& part : parts) {
    const int64_t count = int64_t{part.rows} * part.cols;
    if (part.normals.has_value() && !Quantises(weight_dtype)) {
      Run("drawing weights", [&] {
        return device_->DrawNormals({*part.normals, part.dtype == DType::kBF16, dtype, count, at});
      });
    } else {
      HYDRANT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                               ConvertRows(weight, first_row, part.rows, dtype));
      CopyToDevice(at, bytes.data(), bytes.size());
      HYDRANT_RETURN_IF_ERROR(Synchronize());  // `bytes` goes
    }
    at += BytesOf(dtype, count);
    first_row += part.rows;
  }
  HYDRANT_RETURN_IF_ERROR(Synchronize());
  return std::make_unique<OwnedCudaWeight>(rows, cols, dtype, std::move(buffer));
}

// The CUDA that the driver is of, 12040 for 12.4. A machine without a driver, or with an old one,
// must not pay for loading cuBLAS to find that out.
constexpr int kLeastDriver = 13000;
absl::Status CheckDriver() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr)
    return absl::UnavailableError(
        "device cuda: there is no NVIDIA driver (libcuda.so.1); install version 580 or later, or "
        "give the container a GPU (--gpus all, or the limit nvidia.com/gpu)");
  auto* ask = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDriverGetVersion"));
  int version = kLeastDriver;
  const bool known = ask != nullptr && ask(&version) == 0;
  dlclose(driver);
  if (!known || version >= kLeastDriver) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("device cuda: the NVIDIA driver is too old, of CUDA ",
                                             version / 1000, ".", version % 1000 / 10,
                                             "; CUDA 13 needs version 580 or later on the host"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options) {
  // Another shared object with the same function: tests have one that needs no device.
  const char* replacement = std::getenv("HYDRANT_CUDA_MODULE");
  if (replacement == nullptr) HYDRANT_RETURN_IF_ERROR(CheckDriver());
  const char* path = replacement == nullptr ? kModule : replacement;
  void* module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    return absl::UnavailableError(
        absl::StrCat("device cuda: the CUDA backend cannot be loaded (", dlerror(),
                     "); it is in the image's target cuda and the package hydrant-cuda, and is "
                     "built where nvcc 13 is"));
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
