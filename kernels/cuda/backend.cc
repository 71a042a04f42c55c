// Host side of the CUDA backend: loads the shared object, uploads weights, and converts error
// codes to absl::Status.
#include "kernels/backend.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/byte_text.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/tiles.h"
#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/status_macros.h"
#include "kernels/weight_parts.h"

namespace hydrant {
namespace {

static_assert(Backend::kEvents == CudaDevice::kEvents);
constexpr const char* kModule = "libhydrant_cuda.so";

// A weight that owns its device memory.
class OwnedCudaWeight final : public CudaWeight {
 public:
  OwnedCudaWeight(int rows, int cols, DType dtype, DeviceBuffer buffer)
      : CudaWeight(rows, cols, dtype, buffer.get()), buffer_(std::move(buffer)) {}
  OwnedCudaWeight(int rows, int cols, size_t bytes, std::vector<TiledRows> tiled,
                  DeviceBuffer buffer)
      : CudaWeight(rows, cols, bytes, std::move(tiled)), buffer_(std::move(buffer)) {}

 private:
  DeviceBuffer buffer_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<CudaDevice> device, bool batch_invariant)
      : device_(std::move(device)), batch_invariant_(batch_invariant) {}
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
    return DeviceBuffer(pointer,
                        [this](void* p) { RecordError(device_->FreeHost(p), "freeing memory"); });
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

  // Block-quantized weights stay quantized and are multiplied as bf16. f16 becomes
  // bf16, of equal size.
  DType PackedDType(DType stored, WeightDType dtype, int cols) const override {
    const DType kept = KeptDType(stored, dtype, cols);
    return kept == DType::kF16 ? DType::kBF16 : kept;
  }
  DType ActivationDType(DType packed) const override {
    return packed == DType::kF32 ? DType::kF32 : DType::kBF16;
  }
  DType ResultDType(const Weight& weight) const override {
    const auto& own = static_cast<const CudaWeight&>(weight);
    return own.dtype() == DType::kBF16 && !own.InTiles() ? DType::kBF16 : DType::kF32;
  }
  bool FusesProducts(const Weight& weight, int m) const override {
    return device_->FusesProducts(static_cast<const CudaWeight&>(weight), m);
  }
  // The 16-bit type that the tensor cores use.
  DType AttentionDType(DType kv, DType /*weights*/) const override {
    return kv == DType::kF32 || Is16Bits(kv) ? kv : DType::kBF16;
  }
  // Tensor cores read arena rows directly, 16 bytes at a time. bf16 represents every e4m3 value.
  DType ArenaDType(DType kv, int head_dim) const override {
    if (kv == DType::kE4M3) return DType::kBF16;
    return Is16Bits(kv) && head_dim % 8 == 0 ? kv : DType::kF32;
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
    return DeviceBuffer(pointer,
                        [this](void* p) { RecordError(device_->Free(p), "freeing memory"); });
  }

 private:
  // Nothing is enqueued after the first fault: later work would read missing results.
  template <typename Operation>
  void Run(const char* what, Operation operation) {
    if (fault_.ok()) RecordError(operation(), what);
  }
  void RecordError(int error, const char* what) {
    if (error == 0 || !fault_.ok()) return;
    fault_ = absl::InternalError(
        absl::StrCat("CUDA failed while ", what, ": ", device_->ErrorText(error)));
  }

  absl::StatusOr<std::unique_ptr<Weight>> PackRowMajor(const WeightRows& weight, DType dtype);
  absl::StatusOr<std::unique_ptr<Weight>> PackTiled(const WeightRows& weight,
                                                    std::vector<TiledRows> tiled);
  absl::Status FillTiles(const WeightRows& weight, const TiledRows& rows);
  absl::Status BringRows(const WeightRows& weight, int first, int count, DType dtype, void* to);

  std::unique_ptr<CudaDevice> device_;
  const bool batch_invariant_;
  absl::Status fault_;
};

// Rows [first, first + count) of a weight in `dtype`: f32, bf16, or the stored blocks.
absl::StatusOr<std::vector<uint8_t>> ConvertRows(const WeightRows& weight, int first, int count,
                                                 DType dtype) {
  std::vector<float> row(weight.cols());
  std::vector<uint8_t> scratch(weight.scratch_bytes());
  const size_t row_bytes = BytesOf(dtype, weight.cols());
  std::vector<uint8_t> out(row_bytes * count);
  for (int i = 0; i < count; ++i) {
    const WeightRows::Row stored = weight.Get(first + i, scratch.data());
    DequantizeRow(stored.dtype, stored.bytes, weight.cols(), row.data());
    if (!AllFinite(row)) HYDRANT_RETURN_IF_ERROR(weight.CheckFinite(first + i));
    uint8_t* const to = out.data() + i * row_bytes;
    if (dtype == DType::kF32) {
      std::copy(row.begin(), row.end(), reinterpret_cast<float*>(to));
    } else if (dtype == DType::kBF16) {
      auto* halves = reinterpret_cast<uint16_t*>(to);
      for (size_t j = 0; j < row.size(); ++j) halves[j] = FloatToBF16(row[j]);
    } else {
      std::copy(stored.bytes, stored.bytes + row_bytes, to);
    }
  }
  return out;
}

// Groups neighbouring parts of the same kept type; addresses are not set yet. Empty: keep the
// weight row-major, the layout that cuBLAS multiplies.
std::vector<TiledRows> PlanTiles(const CudaBackend& backend, const WeightRows& weight,
                                 WeightDType weight_dtype, bool batch_invariant) {
  std::vector<TiledRows> tiled;
  bool blocks = false, any_f32 = false;
  int first_row = 0;
  for (const WeightPart& part : weight.parts()) {
    const DType kept = backend.PackedDType(part.dtype, weight_dtype, part.cols);
    const bool is_block = BlockElements(kept) > 1;
    blocks |= is_block;
    any_f32 |= kept == DType::kF32;
    const DType dtype = is_block ? kept : DType::kBF16;  // floats beside blocks use the same kernel
    if (tiled.empty() || tiled.back().dtype != dtype)
      tiled.push_back({.dtype = dtype, .first_row = first_row});
    tiled.back().rows += part.rows;
    first_row += part.rows;
  }
  constexpr int kColumnStep = 8;
  const bool own_product = batch_invariant && !any_f32 && weight.cols() % kColumnStep == 0;
  if (!blocks && !own_product) tiled.clear();
  return tiled;
}

absl::StatusOr<std::unique_ptr<Weight>> CudaBackend::PackWeight(std::span<const WeightPart> parts,
                                                                WeightDType weight_dtype) {
  HYDRANT_ASSIGN_OR_RETURN(const WeightRows weight, WeightRows::Make(parts, weight_dtype));
  std::vector<TiledRows> tiled = PlanTiles(*this, weight, weight_dtype, batch_invariant_);
  if (!tiled.empty()) return PackTiled(weight, std::move(tiled));
  bool bf16 = true;
  for (const WeightPart& part : parts)
    bf16 &= PackedDType(part.dtype, weight_dtype, part.cols) == DType::kBF16;
  return PackRowMajor(weight, bf16 ? DType::kBF16 : DType::kF32);
}

absl::StatusOr<std::unique_ptr<Weight>> CudaBackend::PackRowMajor(const WeightRows& weight,
                                                                  DType dtype) {
  const int rows = weight.rows(), cols = weight.cols();
  HYDRANT_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                           TakeMemory(BytesOf(dtype, static_cast<size_t>(rows) * cols)));
  HYDRANT_RETURN_IF_ERROR(BringRows(weight, 0, rows, dtype, buffer.get()));
  HYDRANT_RETURN_IF_ERROR(Synchronize());
  return std::make_unique<OwnedCudaWeight>(rows, cols, dtype, std::move(buffer));
}

absl::StatusOr<std::unique_ptr<Weight>> CudaBackend::PackTiled(const WeightRows& weight,
                                                               std::vector<TiledRows> tiled) {
  const int rows = weight.rows(), cols = weight.cols();
  size_t bytes = 0;
  for (const TiledRows& some : tiled) bytes += BytesOfTiles(some.dtype, some.rows, cols);
  HYDRANT_ASSIGN_OR_RETURN(DeviceBuffer buffer, TakeMemory(bytes));
  const auto* at = static_cast<const uint8_t*>(buffer.get());
  for (TiledRows& some : tiled) {
    some.tiles = at;
    HYDRANT_RETURN_IF_ERROR(FillTiles(weight, some));
    at += BytesOfTiles(some.dtype, some.rows, cols);
  }
  Run("allocating", [&] { return device_->ReserveForTiles(rows, cols); });
  HYDRANT_RETURN_IF_ERROR(Synchronize());
  return std::make_unique<OwnedCudaWeight>(rows, cols, bytes, std::move(tiled), std::move(buffer));
}

// Writes rows [first, first + count) to device memory `to`, row-major. Random weights
// are generated there.
absl::Status CudaBackend::BringRows(const WeightRows& weight, int first, int count, DType dtype,
                                    void* to) {
  auto* at = static_cast<uint8_t*>(to);
  int part_begin = 0;
  for (const WeightPart& part : weight.parts()) {
    const int begin = std::max(first, part_begin);
    const int rows = std::min(first + count, part_begin + part.rows) - begin;
    const int in_part = begin - part_begin;
    part_begin += part.rows;
    if (rows <= 0) continue;
    if (part.normals.has_value() && BlockElements(dtype) == 1) {
      Run("drawing weights", [&] {
        return device_->DrawNormals({.normals = *part.normals,
                                     .rounded_to_bf16 = part.dtype == DType::kBF16,
                                     .dtype = dtype,
                                     .count = int64_t{rows} * part.cols,
                                     .out = at,
                                     .first = int64_t{in_part} * part.cols});
      });
    } else {
      HYDRANT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                               ConvertRows(weight, begin, rows, dtype));
      CopyToDevice(at, bytes.data(), bytes.size());
    }
    at += BytesOf(dtype, static_cast<size_t>(rows) * part.cols);
  }
  return absl::OkStatus();
}

// Uploads rows in the file's layout, one chunk at a time, and converts them to tiles on the device.
absl::Status CudaBackend::FillTiles(const WeightRows& weight, const TiledRows& rows) {
  constexpr size_t kMaxBytes = size_t{32} << 20;
  const int cols = weight.cols();
  const size_t row_bytes = BytesOf(rows.dtype, cols);
  const int panels = static_cast<int>(std::max<size_t>(1, kMaxBytes / (row_bytes * kTileRows)));
  const int step = std::min((rows.rows + kTileRows - 1) / kTileRows, panels) * kTileRows;
  HYDRANT_ASSIGN_OR_RETURN(const DeviceBuffer stored, TakeMemory(step * row_bytes));
  for (int first = 0; first < rows.rows; first += step) {
    const int count = std::min(step, rows.rows - first);
    HYDRANT_RETURN_IF_ERROR(
        BringRows(weight, rows.first_row + first, count, rows.dtype, stored.get()));
    Run("packing weights", [&] {
      return device_->PackTiles(
          {.dtype = rows.dtype,
           .rows = count,
           .cols = cols,
           .stored = stored.get(),
           .tiles = const_cast<uint8_t*>(rows.tiles) + BytesOfTiles(rows.dtype, first, cols)});
    });
    HYDRANT_RETURN_IF_ERROR(Synchronize());
  }
  return absl::OkStatus();
}

// CUDA version of the driver: 12040 is 12.4. Checked before cuBLAS is loaded, which is slow, so
// that a machine without a usable driver fails fast.
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
  // Replaces the shared object; tests use one that needs no device.
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
  return std::make_unique<CudaBackend>(std::move(device), options.batch_invariant);
}

}  // namespace hydrant
