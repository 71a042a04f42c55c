// Matrix products by cuBLASLt: bf16 or fp32 weights, fp32 sums, results in fp32 or bf16. The
// library's candidate algorithms are timed once per bucket of similar shapes, and the fastest
// is kept in a file (matmul_choices.h). With batch-invariant results the library's first
// candidate is used.
#include <cublasLt.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_choices.h"
#include "kernels/cuda/matmul_kernels.h"
#include "kernels/cuda/ops.h"

namespace hydrant::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kMaxCandidates = 16;
// Rows per product with batch-invariant results: the library's summation order
// depends on the shape.
constexpr int kInvariantRows = 128;

static_assert(sizeof(AlgorithmWords) == sizeof(cublasLtMatmulAlgo_t));
AlgorithmWords WordsOf(const cublasLtMatmulAlgo_t& algorithm) {
  AlgorithmWords words;
  std::memcpy(words.data(), &algorithm, sizeof(algorithm));
  return words;
}

// y^T [n, m] = W [n, k] * x^T [k, m] in the library's column-major terms: A is W read as k x n and
// transposed, B is x read as k x m, C and D are y read as n x m.
class Plan {
 public:
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (a_ != nullptr) cublasLtMatrixLayoutDestroy(a_);
    if (b_ != nullptr) cublasLtMatrixLayoutDestroy(b_);
    if (c_ != nullptr) cublasLtMatrixLayoutDestroy(c_);
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }

  cublasStatus_t Describe(const ProductShape& shape) {
    const cudaDataType_t in = shape.bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    cublasStatus_t status = cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto then = [&status](auto step) {
      if (status == CUBLAS_STATUS_SUCCESS) status = step();
    };
    then([&] {
      return cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                            sizeof(transpose));
    });
    const int k = shape.inner;
    then([&] { return cublasLtMatrixLayoutCreate(&a_, in, k, shape.outputs, k); });
    then([&] { return cublasLtMatrixLayoutCreate(&b_, in, k, shape.rows, k); });
    const cudaDataType_t out = shape.bf16_result ? CUDA_R_16BF : CUDA_R_32F;
    then([&] {
      return cublasLtMatrixLayoutCreate(&c_, out, shape.outputs, shape.rows, shape.outputs);
    });
    bf16_result_ = shape.bf16_result;
    beta_ = shape.accumulate ? 1.0f : 0.0f;
    return status;
  }

  // Up to `most` algorithms, at most kMaxCandidates, in the library's order of expected speed.
  // Empty if it has none, or failed. REQUIRES: described
  std::vector<AlgorithmWords> Candidates(cublasLtHandle_t library, int most) const {
    cublasLtMatmulPreference_t preference = nullptr;
    if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return {};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    // y may begin at any row of an array; the library assumes 256 bytes by default.
    constexpr uint32_t kAlignment = 16;
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
    // Excludes sums of parts that were rounded to bf16.
    constexpr uint32_t kInFloat =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (bf16_result_) prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kInFloat);
    std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> found = {};
    int count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulAlgoGetHeuristic(library, operation_, a_, b_, c_, c_, preference, most,
                                              found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    std::vector<AlgorithmWords> algorithms;
    for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; ++i) {
      if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(WordsOf(found[i].algo));
    }
    return algorithms;
  }

  void Take(const AlgorithmWords& words) {
    std::memcpy(&algorithm_, words.data(), sizeof(algorithm_));
  }
  // The same; false if it does not support this product. REQUIRES: described
  bool TakeIfPossible(cublasLtHandle_t library, const AlgorithmWords& words) {
    Take(words);
    cublasLtMatmulHeuristicResult_t result = {};
    return cublasLtMatmulAlgoCheck(library, operation_, a_, b_, c_, c_, &algorithm_, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  }
  cublasStatus_t Run(cublasLtHandle_t library, const void* weight, const void* x, void* y,
                     void* workspace, cudaStream_t stream) const {
    const float alpha = 1.0f;
    return cublasLtMatmul(library, operation_, &alpha, weight, a_, x, b_, &beta_, y, c_, y, c_,
                          &algorithm_, workspace, kWorkspaceBytes, stream);
  }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
  float beta_ = 0.0f;
  bool bf16_result_ = false;
};

// Buffers for timing candidates: x and y, and enough copies of a weight that fits a cache that each
// run reads one from memory. Freed at the end.
class TimingGround {
 public:
  TimingGround() = default;
  TimingGround(const TimingGround&) = delete;
  TimingGround& operator=(const TimingGround&) = delete;
  ~TimingGround() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaFree(memory_);
  }

  cudaError_t Open(const ProductShape& shape, const void* weight, int num_events,
                   cudaStream_t stream) {
    const DType dtype = shape.bf16 ? DType::kBF16 : DType::kF32;
    weight_ = weight;
    weight_bytes_ = RoundUp(BytesOf(dtype, size_t{1} * shape.outputs * shape.inner));
    const size_t x_bytes = RoundUp(BytesOf(dtype, size_t{1} * shape.rows * shape.inner));
    const size_t y_bytes = RoundUp(size_t{1} * shape.rows * shape.outputs * sizeof(float));
    int device = 0, cache_bytes = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
      error = cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device);
    if (error != cudaSuccess) return error;
    const size_t cached = 2 * static_cast<size_t>(cache_bytes);
    copies_ = weight_bytes_ < cached ? static_cast<int>(cached / weight_bytes_) + 1 : 0;
    const size_t bytes = copies_ * weight_bytes_ + x_bytes + y_bytes;
    error = cudaMalloc(&memory_, bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();  // clears the allocation error
      return error;
    }
    x_ = static_cast<char*>(memory_) + copies_ * weight_bytes_;
    y_ = x_ + x_bytes;
    // 0.0115 as bf16 and as fp32: zeros would draw less power.
    constexpr int kByte = 0x3c;
    error = cudaMemsetAsync(memory_, kByte, bytes, stream);
    events_.reserve(num_events);
    for (int i = 0; i < num_events && error == cudaSuccess; ++i) {
      cudaEvent_t event = nullptr;
      error = cudaEventCreate(&event);
      if (error == cudaSuccess) events_.push_back(event);
    }
    return error;
  }

  const void* NextWeight() {
    if (copies_ == 0) return weight_;
    next_ = (next_ + 1) % copies_;
    return static_cast<const char*>(memory_) + next_ * weight_bytes_;
  }
  const void* x() const { return x_; }
  void* y() const { return y_; }
  cudaEvent_t event(int i) const { return events_[i]; }

 private:
  static constexpr size_t RoundUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

  const void* weight_ = nullptr;
  size_t weight_bytes_ = 0;
  int copies_ = 0, next_ = 0;
  void* memory_ = nullptr;
  char *x_ = nullptr, *y_ = nullptr;
  std::vector<cudaEvent_t> events_;
};

class CublasRunner final : public MatmulRunner {
 public:
  ~CublasRunner() override {
    plans_.clear();
    cudaFree(workspace_);
    if (library_ != nullptr) cublasLtDestroy(library_);
  }
  bool Start() {
    if (cublasLtCreate(&library_) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(&workspace_, kWorkspaceBytes) != cudaSuccess)
      return false;
    const ChoiceSettings settings =
        ChoiceSettingsOf([](const char* name) { return std::getenv(name); });
    int device = 0, driver = 0;
    cudaDeviceProp card = {};
    if (!settings.timed || cudaGetDevice(&device) != cudaSuccess ||
        cudaGetDeviceProperties(&card, device) != cudaSuccess ||
        cudaDriverGetVersion(&driver) != cudaSuccess)
      return true;
    choices_ = std::make_unique<ChoiceFile>(settings.path,
                                            ChoiceOwner{card.name, cublasLtGetVersion(), driver});
    return true;
  }

  std::string Summary() const override {
    if (choices_ == nullptr) return "matrix products untimed";
    if (choices_->path().empty()) return "matrix products timed anew";
    if (choices_->damaged()) return choices_->path() + " is damaged and ignored";
    return std::to_string(choices_->found()) + " timed matrix products in " + choices_->path();
  }

  uint64_t growths() const override { return tail_.growths(); }

  cudaError_t Run(const Context& context, const MatmulArgs& args) override {
    if (args.m == 0) return cudaSuccess;
    return context.batch_invariant ? RunInvariant(context, args) : RunRows(context, args);
  }

 private:
  // x in the weight's dtype, `rows` rows, the last of which may be padding. x is fp32 or has
  // the weight's dtype.
  cudaError_t Prepare(const Context& context, const MatmulArgs& args, int rows, bool pad,
                      const void** x) {
    const auto& weight = static_cast<const CudaWeight&>(*args.weight);
    const int64_t count = static_cast<int64_t>(args.m) * weight.cols();
    const bool rounds = weight.dtype() != args.x_dtype;
    *x = args.x;
    if (!rounds && !pad) return cudaSuccess;
    const size_t bytes = BytesOf(weight.dtype(), static_cast<size_t>(rows) * weight.cols());
    void* copy = nullptr;
    cudaError_t error = context.scratch->Get(bytes, &copy);
    if (error != cudaSuccess) return error;
    *x = copy;
    if (rows > args.m) error = cudaMemsetAsync(copy, 0, bytes, context.stream);
    if (error != cudaSuccess) return error;
    if (rounds)
      return RoundToBF16(context.stream, static_cast<const float*>(args.x), count,
                         static_cast<uint16_t*>(copy));
    return cudaMemcpyAsync(copy, args.x, BytesOf(args.x_dtype, static_cast<size_t>(count)),
                           cudaMemcpyDeviceToDevice, context.stream);
  }

  cudaError_t RunRows(const Context& context, const MatmulArgs& args) {
    const void* x = nullptr;
    const cudaError_t error = Prepare(context, args, args.m, false, &x);
    return error != cudaSuccess ? error : Multiply(context, args, args.m, x, Result(args));
  }

  // Always kInvariantRows rows at a time: whole chunks straight into y, the padded last
  // one through scratch.
  cudaError_t RunInvariant(const Context& context, const MatmulArgs& args) {
    const auto& weight = static_cast<const CudaWeight&>(*args.weight);
    const int cols = weight.cols(), outputs = weight.rows();
    const int whole = args.m / kInvariantRows * kInvariantRows, rest = args.m - whole;
    const int padded = CeilDiv(args.m, kInvariantRows) * kInvariantRows;
    const void* x = nullptr;
    cudaError_t error = Prepare(context, args, padded, rest > 0, &x);
    const size_t row_bytes = BytesOf(weight.dtype(), cols);
    const size_t y_bytes = outputs * (args.y_bf16 != nullptr ? sizeof(uint16_t) : sizeof(float));
    for (int row = 0; row < whole && error == cudaSuccess; row += kInvariantRows) {
      error = Multiply(context, args, kInvariantRows, static_cast<const char*>(x) + row * row_bytes,
                       Result(args) + row * y_bytes);
    }
    if (rest == 0 || error != cudaSuccess) return error;
    void* result = nullptr;
    const size_t rest_bytes = rest * y_bytes;
    error = tail_.Get(kInvariantRows * y_bytes, &result);
    char* y = Result(args) + whole * y_bytes;
    const auto copy = [&](void* to, const void* from) {
      if (error == cudaSuccess)
        error = cudaMemcpyAsync(to, from, rest_bytes, cudaMemcpyDeviceToDevice, context.stream);
    };
    if (args.accumulate) copy(result, y);
    if (error == cudaSuccess)
      error = Multiply(context, args, kInvariantRows,
                       static_cast<const char*>(x) + whole * row_bytes, result);
    copy(y, result);
    return error;
  }

  static char* Result(const MatmulArgs& args) {
    return args.y_bf16 != nullptr ? reinterpret_cast<char*>(args.y_bf16)
                                  : reinterpret_cast<char*>(args.y);
  }

  cudaError_t Multiply(const Context& context, const MatmulArgs& args, int m, const void* x,
                       void* y) {
    const auto& weight = static_cast<const CudaWeight&>(*args.weight);
    const ProductShape shape = {.rows = m,
                                .outputs = weight.rows(),
                                .inner = weight.cols(),
                                .bf16 = weight.dtype() == DType::kBF16,
                                .bf16_result = args.y_bf16 != nullptr,
                                .accumulate = args.accumulate};
    auto found = plans_.find(shape);
    if (found == plans_.end()) {
      auto plan = std::make_unique<Plan>();
      const cudaError_t error = MakePlan(context, shape, weight.data(), plan.get());
      if (error != cudaSuccess) return error;
      found = plans_.emplace(shape, std::move(plan)).first;
    }
    const cublasStatus_t status =
        found->second->Run(library_, weight.data(), x, y, workspace_, context.stream);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure;
  }

  // A shape's plan is made once and never changes, which fixes its summation order.
  cudaError_t MakePlan(const Context& context, const ProductShape& shape, const void* weight,
                       Plan* plan) {
    if (plan->Describe(shape) != CUBLAS_STATUS_SUCCESS) return cudaErrorNotSupported;
    if (choices_ != nullptr && !context.batch_invariant) {
      ProductShape bucket = shape;
      bucket.rows = RowsBucket(shape.rows);
      if (choices_->Find(bucket) == nullptr) {
        const cudaError_t error = Time(context, bucket, weight);
        if (error != cudaSuccess) return error;
      }
      const AlgorithmWords* chosen = choices_->Find(bucket);
      if (chosen != nullptr && plan->TakeIfPossible(library_, *chosen)) return cudaSuccess;
    }
    const std::vector<AlgorithmWords> candidates = plan->Candidates(library_, 1);
    if (candidates.empty()) return cudaErrorNotSupported;
    plan->Take(candidates[0]);
    return cudaSuccess;
  }

  // Picks an algorithm for a bucket, unless the stream is being captured (timing is impossible) or
  // memory is short. Synchronizes with the device.
  cudaError_t Time(const Context& context, const ProductShape& bucket, const void* weight) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(context.stream, &capture);
    if (error != cudaSuccess || capture != cudaStreamCaptureStatusNone) return error;
    Plan plan;
    if (plan.Describe(bucket) != CUBLAS_STATUS_SUCCESS) return cudaSuccess;
    const std::vector<AlgorithmWords> candidates = plan.Candidates(library_, kMaxCandidates);
    if (candidates.empty()) return cudaSuccess;
    const int count = static_cast<int>(candidates.size());
    TimingGround ground;
    error = ground.Open(bucket, weight, 2 * count * kRounds, context.stream);
    if (error == cudaErrorMemoryAllocation) return cudaSuccess;
    if (error != cudaSuccess) return error;
    // Interleaves candidates in rounds, so that all see the same clocks; the first round loads
    // code and is discarded.
    std::vector<bool> failed(count, false);
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < count && error == cudaSuccess; ++i) {
        if (failed[i]) continue;
        const int event = 2 * (round * count + i);
        plan.Take(candidates[i]);
        error = cudaEventRecord(ground.event(event), context.stream);
        failed[i] = plan.Run(library_, ground.NextWeight(), ground.x(), ground.y(), workspace_,
                             context.stream) != CUBLAS_STATUS_SUCCESS;
        if (error == cudaSuccess) error = cudaEventRecord(ground.event(event + 1), context.stream);
      }
    }
    if (error == cudaSuccess) error = cudaStreamSynchronize(context.stream);
    if (error != cudaSuccess) return error;
    std::vector<std::vector<float>> times(count);
    for (int i = 0; i < count; ++i) {
      for (int round = 1; round < kRounds && !failed[i]; ++round) {
        const int event = 2 * (round * count + i);
        times[i].push_back(0.0f);
        error =
            cudaEventElapsedTime(&times[i].back(), ground.event(event), ground.event(event + 1));
        if (error != cudaSuccess) return error;
      }
    }
    const int fastest = FastestOf(times);
    if (fastest >= 0) (void)choices_->Keep(bucket, candidates[fastest]);
    return cudaSuccess;
  }

  static constexpr int kRounds = 4;

  cublasLtHandle_t library_ = nullptr;
  void* workspace_ = nullptr;
  Scratch tail_;
  std::map<ProductShape, std::unique_ptr<Plan>> plans_;
  std::unique_ptr<ChoiceFile> choices_;  // null: nothing is timed
};

}  // namespace

std::unique_ptr<MatmulRunner> MakeMatmulRunner() {
  auto runner = std::make_unique<CublasRunner>();
  if (!runner->Start()) return nullptr;
  return runner;
}

}  // namespace hydrant::cuda
