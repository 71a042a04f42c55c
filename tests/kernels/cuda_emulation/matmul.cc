// Emulated matrix product in place of cuBLASLt: fp32 sums over the weight's dtype.
#include <vector>

#include "kernels/cuda/matmul_kernels.h"
#include "kernels/cuda/ops.h"
#include "kernels/float16.h"
#include "kernels/page_element.h"
#include "tests/kernels/cuda_emulation/counts.h"

namespace hydrant::cuda {
namespace {

class PlainRunner final : public MatmulRunner {
 public:
  cudaError_t Run(const Context& context, const MatmulArgs& args) override {
    const CudaWeight weight = static_cast<const CudaWeight&>(*args.weight);
    // Scratch for the rounded rows, allocated as in the real product.
    void* rounded = nullptr;
    if (weight.dtype() != args.x_dtype) {
      const size_t bytes = BytesOf(DType::kBF16, static_cast<size_t>(args.m) * weight.cols());
      cudaError_t error = context.scratch->Get(bytes, &rounded);
      if (error == cudaSuccess)
        error = RoundToBF16(context.stream, static_cast<const float*>(args.x),
                            static_cast<int64_t>(args.m) * weight.cols(),
                            static_cast<uint16_t*>(rounded));
      if (error != cudaSuccess) return error;
    }
    return emulation::Enqueue(
        [=] { return Multiply(args, weight, rounded != nullptr ? rounded : args.x); });
  }

 private:
  static cudaError_t Multiply(const MatmulArgs& args, const CudaWeight& weight,
                              const void* x_rows) {
    const size_t cols = weight.cols(), outputs = weight.rows();
    ++emulation::TheCounts().products;
    emulation::TheCounts().read_bytes +=
        weight.bytes() + BytesOf(weight.dtype(), static_cast<size_t>(args.m) * cols);
    // x_rows has the weight's dtype.
    std::vector<float> x(args.m * cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = LoadPageElement(weight.dtype(), x_rows, i);
    std::vector<float> w(cols);
    for (size_t o = 0; o < outputs; ++o) {
      for (size_t j = 0; j < cols; ++j)
        w[j] = LoadPageElement(weight.dtype(), weight.data(), o * cols + j);
      for (int i = 0; i < args.m; ++i) {
        float sum = 0.0f;
        for (size_t j = 0; j < cols; ++j) sum += x[i * cols + j] * w[j];
        if (args.y_bf16 != nullptr) {
          args.y_bf16[i * outputs + o] = FloatToBF16(sum);
          continue;
        }
        float& y = args.y[i * outputs + o];
        y = args.accumulate ? y + sum : sum;
      }
    }
    return cudaSuccess;
  }
};

}  // namespace

std::unique_ptr<MatmulRunner> MakeMatmulRunner() { return std::make_unique<PlainRunner>(); }

}  // namespace hydrant::cuda
