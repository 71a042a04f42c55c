// Matrix products by cuBLASLt: bf16 or fp32 weights, fp32 sums, fp32 in and out. The library's
// choice of algorithm is asked for once a shape and kept.
#include <cublasLt.h>

#include <map>
#include <tuple>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul_kernels.h"
#include "kernels/cuda/ops.h"

namespace hydrant::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// The number of rows that one product always has where results must not depend on the batch: the
// library's order of summation is a matter of the shape.
constexpr int kInvariantRows = 128;

struct Shape {
  int m, n, k;
  bool bf16, accumulate;
  auto Key() const { return std::tie(m, n, k, bf16, accumulate); }
  bool operator<(const Shape& other) const { return Key() < other.Key(); }
};

// y^T [n, m] = W [n, k] * x^T [k, m] in the library's column-major words: A is W read as k x n and
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

  cublasStatus_t Make(cublasLtHandle_t library, const Shape& shape) {
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
    then([&] { return cublasLtMatrixLayoutCreate(&a_, in, shape.k, shape.n, shape.k); });
    then([&] { return cublasLtMatrixLayoutCreate(&b_, in, shape.k, shape.m, shape.k); });
    then([&] { return cublasLtMatrixLayoutCreate(&c_, CUDA_R_32F, shape.n, shape.m, shape.n); });
    cublasLtMatmulPreference_t preference = nullptr;
    then([&] { return cublasLtMatmulPreferenceCreate(&preference); });
    then([&] {
      return cublasLtMatmulPreferenceSetAttribute(preference,
                                                  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &kWorkspaceBytes, sizeof(kWorkspaceBytes));
    });
    int found = 0;
    then([&] {
      return cublasLtMatmulAlgoGetHeuristic(library, operation_, a_, b_, c_, c_, preference, 1,
                                            &algorithm_, &found);
    });
    if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
    return status;
  }

  cublasStatus_t Run(cublasLtHandle_t library, const void* weight, const void* x, float* y,
                     bool accumulate, void* workspace, cudaStream_t stream) const {
    const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(library, operation_, &alpha, weight, a_, x, b_, &beta, y, c_, y, c_,
                          &algorithm_.algo, workspace, kWorkspaceBytes, stream);
  }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm_ = {};
};

class CublasRunner final : public MatmulRunner {
 public:
  ~CublasRunner() override {
    plans_.clear();
    cudaFree(workspace_);
    if (library_ != nullptr) cublasLtDestroy(library_);
  }
  bool Start() {
    return cublasLtCreate(&library_) == CUBLAS_STATUS_SUCCESS &&
           cudaMalloc(&workspace_, kWorkspaceBytes) == cudaSuccess;
  }

  uint64_t growths() const override { return tail_.growths(); }

  cudaError_t Run(const Context& context, const MatmulArgs& args) override {
    if (args.m == 0) return cudaSuccess;
    return context.batch_invariant ? RunInvariant(context, args) : RunRows(context, args);
  }

 private:
  // x as the weight's dtype wants it, `rows` rows of which the last may be padding. x is fp32 or
  // has the weight's dtype.
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
    return error != cudaSuccess ? error : Multiply(context, args, args.m, x, args.y);
  }

  // Always kInvariantRows rows at once: whole chunks straight into y, the last one, padded, by way
  // of scratch.
  cudaError_t RunInvariant(const Context& context, const MatmulArgs& args) {
    const auto& weight = static_cast<const CudaWeight&>(*args.weight);
    const int cols = weight.cols(), outputs = weight.rows();
    const int whole = args.m / kInvariantRows * kInvariantRows, rest = args.m - whole;
    const int padded = CeilDiv(args.m, kInvariantRows) * kInvariantRows;
    const void* x = nullptr;
    cudaError_t error = Prepare(context, args, padded, rest > 0, &x);
    const size_t row_bytes = BytesOf(weight.dtype(), cols);
    for (int row = 0; row < whole && error == cudaSuccess; row += kInvariantRows) {
      error = Multiply(context, args, kInvariantRows, static_cast<const char*>(x) + row * row_bytes,
                       args.y + static_cast<size_t>(row) * outputs);
    }
    if (rest == 0 || error != cudaSuccess) return error;
    void* result = nullptr;
    const size_t rest_bytes = static_cast<size_t>(rest) * outputs * sizeof(float);
    error = tail_.Get(static_cast<size_t>(kInvariantRows) * outputs * sizeof(float), &result);
    float* y = args.y + static_cast<size_t>(whole) * outputs;
    const auto copy = [&](void* to, const void* from) {
      if (error == cudaSuccess)
        error = cudaMemcpyAsync(to, from, rest_bytes, cudaMemcpyDeviceToDevice, context.stream);
    };
    if (args.accumulate) copy(result, y);
    if (error == cudaSuccess)
      error =
          Multiply(context, args, kInvariantRows, static_cast<const char*>(x) + whole * row_bytes,
                   static_cast<float*>(result));
    copy(y, result);
    return error;
  }

  cudaError_t Multiply(const Context& context, const MatmulArgs& args, int m, const void* x,
                       float* y) {
    const auto& weight = static_cast<const CudaWeight&>(*args.weight);
    const Shape shape = {m, weight.rows(), weight.cols(), weight.dtype() == DType::kBF16,
                         args.accumulate};
    auto found = plans_.find(shape);
    if (found == plans_.end()) {
      auto plan = std::make_unique<Plan>();
      if (plan->Make(library_, shape) != CUBLAS_STATUS_SUCCESS) return cudaErrorNotSupported;
      found = plans_.emplace(shape, std::move(plan)).first;
    }
    const cublasStatus_t status = found->second->Run(library_, weight.data(), x, y, args.accumulate,
                                                     workspace_, context.stream);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorLaunchFailure;
  }

  cublasLtHandle_t library_ = nullptr;
  void* workspace_ = nullptr;
  Scratch tail_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace

std::unique_ptr<MatmulRunner> MakeMatmulRunner() {
  auto runner = std::make_unique<CublasRunner>();
  if (!runner->Start()) return nullptr;
  return runner;
}

}  // namespace hydrant::cuda
