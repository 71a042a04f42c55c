// The shared object's device: memory, the stream, and the operations of ops.h.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/cuda/decode_stream.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/error_text.h"
#include "kernels/cuda/graphs.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sm90_attention.h"
#include "kernels/cuda/staging.h"

namespace hydrant::cuda {
namespace {

constexpr int kOldestCapability = 80;  // Ampere: bf16, asynchronous copies

// Probes kernel support: all kernels are compiled for the same GPUs.
__global__ void EmptyKernel() {}

// Kernels enabled only by HYDRANT_CUDA_TRIAL, a comma-separated list: they have not run on a device
// yet, unlike the kernels that they replace.
constexpr std::string_view kTrials[] = {"decode", "fused", "overlap", "sums"};

std::string_view Trials() {
  const char* names = std::getenv("HYDRANT_CUDA_TRIAL");
  return names == nullptr ? "" : names;
}

// Calls visit(name) for each name in HYDRANT_CUDA_TRIAL.
template <typename Visit>
void ForEachTrial(const Visit& visit) {
  for (std::string_view rest = Trials(); !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    if (end > 0) visit(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

bool OnTrial(std::string_view kernel) {
  bool is = false;
  ForEachTrial([&](std::string_view name) { is |= name == kernel; });
  return is;
}

// Returns an error message for an unknown name, or an empty string.
std::string WrongTrial() {
  std::string wrong;
  ForEachTrial([&](std::string_view name) {
    if (std::find(std::begin(kTrials), std::end(kTrials), name) == std::end(kTrials))
      wrong = "HYDRANT_CUDA_TRIAL: there are no kernels '" + std::string(name) +
              "' on trial; the names are decode, fused, overlap, sums";
  });
  return wrong;
}

class Device final : public CudaDevice {
 public:
  ~Device() override {
    graphs_.reset();
    scratch_.reset();
    operands_.reset();
    counters_.reset();
    matmul_.reset();
    staging_.reset();
    for (cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // Returns an error message, or an empty string.
  std::string Open(const CudaDeviceOptions& options) {
    if (const std::string wrong = WrongTrial(); !wrong.empty()) return wrong;
    int count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0)
      return NoDeviceReason(error == cudaSuccess ? cudaErrorNoDevice : error);
    if (options.device >= count)
      return "there is no CUDA device " + std::to_string(options.device) + "; there are " +
             std::to_string(count);
    cudaDeviceProp properties = {};
    cudaError_t error = cudaSetDevice(options.device);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, options.device);
    int major = 0, minor = 0;
    const auto ask = [&](cudaDeviceAttr attribute, int* value) {
      if (error == cudaSuccess) error = cudaDeviceGetAttribute(value, attribute, options.device);
    };
    ask(cudaDevAttrComputeCapabilityMajor, &major);
    ask(cudaDevAttrComputeCapabilityMinor, &minor);
    ask(cudaDevAttrMultiProcessorCount, &context_.num_sms);
    int shared_of_sm = 0, shared_of_block = 0;
    ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &shared_of_sm);
    ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_of_block);
    size_t free = 0, total = 0;
    if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
    // Not synchronized with the default stream.
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (error != cudaSuccess) return "the CUDA device does not start: " + ErrorWithNextStep(error);
    const std::string capability = std::to_string(major) + "." + std::to_string(minor);
    if (major * 10 + minor < kOldestCapability)
      return std::string(properties.name) + " has compute capability " + capability +
             "; 8.0 is the least that is supported: use another GPU, or --device cpu";
    cudaFuncAttributes attributes = {};
    if (error = cudaFuncGetAttributes(&attributes, EmptyKernel); error != cudaSuccess)
      return std::string(properties.name) + " has compute capability " + capability + ": " +
             ErrorWithNextStep(error);
    char memory[32];
    std::snprintf(memory, sizeof(memory), "%.1f GiB", static_cast<double>(total) / (1 << 30));
    overlap_kernels = major >= 9 && OnTrial("overlap");
    const bool is_sm90 = major == 9 && minor == 0;
    description_ = std::string(properties.name) + ", compute capability " + capability + ", " +
                   memory + (options.batch_invariant ? ", batch-invariant" : "") +
                   (overlap_kernels ? ", overlapped kernels" : "") +
                   (OnTrial("decode") ? ", decode attention on trial" : "") +
                   (OnTrial("sums") && is_sm90 ? ", column sums on trial" : "") +
                   (OnTrial("fused") ? ", fused products on trial" : "");
    matmul_ = MakeMatmulRunner();
    if (matmul_ == nullptr)
      return "cuBLASLt does not start; most likely the GPU has too little free memory, see "
             "nvidia-smi";
    if (const std::string products = matmul_->Summary();
        !products.empty() && !options.batch_invariant)
      description_ += ", " + products;
    staging_ = std::make_unique<Staging>();
    error = staging_->Open();
    for (cudaEvent_t& event : events_) {
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    if (error != cudaSuccess)
      return "there is no pinned memory for the CUDA device: " + ErrorWithNextStep(error);
    scratch_ = std::make_unique<Scratch>();
    operands_ = std::make_unique<Scratch>();
    graphs_ = std::make_unique<Graphs>();
    context_.stream = stream_;
    context_.scratch = scratch_.get();
    context_.operands = operands_.get();
    counters_ = std::make_unique<Counters>();
    context_.counters = counters_.get();
    context_.matmul = matmul_.get();
    context_.shared_of_sm = shared_of_sm;
    context_.shared_of_block = shared_of_block;
    context_.batch_invariant = options.batch_invariant;
    context_.streams_decode = OnTrial("decode");
    context_.sm90_statistics = is_sm90 && OnTrial("sums");
    context_.fuses_products = OnTrial("fused");
    return is_sm90 ? OpenSm90Attention() : "";
  }

  // Enables wgmma prefill if this device computes it correctly. Not with batch invariance: the
  // choice depends on run lengths, which depend on other requests in the batch.
  std::string OpenSm90Attention() {
    const char* const wish = std::getenv("HYDRANT_SM90_ATTENTION");
    if (!HasSm90Attention() || context_.batch_invariant ||
        (wish != nullptr && std::string_view(wish) == "0"))
      return "";
    const Sm90Verdict verdict = CheckSm90Attention(context_);
    if (verdict.fatal)
      return "prompt attention by wgmma fails on it (" + verdict.why_not +
             "); start with HYDRANT_SM90_ATTENTION=0 in the environment";
    context_.sm90_attention = verdict.why_not.empty();
    description_ += context_.sm90_attention ? ", prompts by wgmma"
                                            : ", prompts not by wgmma, as " + verdict.why_not;
    return "";
  }

  const char* Description() const override { return description_.c_str(); }
  const char* ErrorText(int error) override {
    error_text_ = ErrorWithNextStep(static_cast<cudaError_t>(error));
    return error_text_.c_str();
  }
  int MemoryInfo(size_t* free_bytes, size_t* total_bytes) override {
    return cudaMemGetInfo(free_bytes, total_bytes);
  }

  bool PlansDecode(const KvLayout& layout, int group) const override {
    return StreamsDecode(context_, layout, group);
  }

  bool FusesProducts(const CudaWeight& weight, int m) const override {
    return cuda::FusesProducts(context_, weight, m);
  }

  int Allocate(size_t bytes, void** pointer) override {
    const cudaError_t error = cudaMalloc(pointer, bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();  // clears the allocation error
      return error;
    }
    return cudaMemsetAsync(*pointer, 0, bytes, stream_);
  }
  int Free(void* pointer) override { return cudaFree(pointer); }
  int AllocateHost(size_t bytes, void** pointer) override {
    const cudaError_t error = cudaMallocHost(pointer, bytes);
    if (error == cudaSuccess) {
      std::memset(*pointer, 0, bytes);
    } else {
      cudaGetLastError();
    }
    return error;
  }
  int FreeHost(void* pointer) override { return cudaFreeHost(pointer); }
  int CopyToDevice(void* device, const void* host, size_t bytes) override {
    return staging_->CopyToDevice(device, host, bytes, stream_);
  }
  int CopyToHost(void* host, const void* device, size_t bytes) override {
    const cudaError_t error = cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_);
    return error == cudaSuccess ? cudaStreamSynchronize(stream_) : error;
  }
  int CopyToHostLater(void* pinned, const void* device, size_t bytes) override {
    return cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream_);
  }
  int CopyOnDevice(void* to, const void* from, size_t bytes) override {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_);
  }
  int Zero(void* device, size_t bytes) override {
    return cudaMemsetAsync(device, 0, bytes, stream_);
  }
  int Synchronize() override { return cudaStreamSynchronize(stream_); }
  int RecordEvent(int event) override { return cudaEventRecord(events_[event], stream_); }
  int WaitForEvent(int event) override { return cudaEventSynchronize(events_[event]); }

  int Replay(uint64_t key, bool* replayed) override {
    return graphs_->Replay(key, WorkSpace(), stream_, replayed);
  }
  int BeginCapture(uint64_t key) override { return graphs_->Begin(key, stream_); }
  int EndCapture() override { return graphs_->End(WorkSpace(), stream_); }

#define HYDRANT_ENQUEUE_OP(Op, Args) \
  int Op(const Args& args) override { return cuda::Op(context_, args); }
  HYDRANT_FOR_EACH_OP(HYDRANT_ENQUEUE_OP)
#undef HYDRANT_ENQUEUE_OP
  int PrefillAttentions(const PrefillAttentionArgs* runs, int count) override {
    return cuda::PrefillAttentions(context_, {runs, static_cast<size_t>(count)});
  }
  int DrawNormals(const DrawNormalsArgs& args) override {
    return cuda::DrawNormals(context_, args);
  }
  int PackTiles(const PackTilesArgs& args) override { return cuda::PackTiles(context_, args); }
  int ReserveForTiles(int rows, int cols) override {
    return cuda::ReserveForTiles(context_, rows, cols);
  }

 private:
  static std::string NoDeviceReason(cudaError_t error) {
    return "no CUDA device can be used: " + ErrorWithNextStep(error);
  }

  // Changes when scratch addresses change (graphs.h).
  uint64_t WorkSpace() const {
    return scratch_->growths() + operands_->growths() + counters_->growths() + matmul_->growths();
  }

  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kEvents> events_ = {};
  std::string description_;
  std::string error_text_;
  std::unique_ptr<MatmulRunner> matmul_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Scratch> scratch_, operands_;
  std::unique_ptr<Counters> counters_;
  std::unique_ptr<Graphs> graphs_;
  Context context_;
};

}  // namespace
}  // namespace hydrant::cuda

extern "C" hydrant::CudaDevice* HydrantOpenCudaDevice(const hydrant::CudaDeviceOptions& options,
                                                      char* why, size_t capacity) {
  auto device = std::make_unique<hydrant::cuda::Device>();
  const std::string error = device->Open(options);
  if (error.empty()) return device.release();
  std::snprintf(why, capacity, "%s", error.c_str());
  return nullptr;
}
