// Launches the open kernel (kernels/cuda/sm90_attention.h): a cubin per head_dim, and tensor maps
// made by the driver, which is loaded at run time, so that nothing links to it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernel_128.h"
#include "kernel_64.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sm90_attention.h"

namespace hydrant::cuda {
namespace {

constexpr int kThreads = 384;

struct Kernel {
  cudaKernel_t kernel = nullptr;
  int shared_bytes = 0;
};

cudaError_t Load(const void* cubin, const char* name, int shared_bytes, Kernel* loaded) {
  cudaLibrary_t library = nullptr;  // lives as long as the process
  cudaError_t error =
      cudaLibraryLoadData(&library, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error == cudaSuccess) error = cudaLibraryGetKernel(&loaded->kernel, library, name);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(loaded->kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  loaded->shared_bytes = shared_bytes;
  return error;
}

#define HYDRANT_SM90_NAME(head_dim)                                              \
  "cudnn_generated_oss_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x" #head_dim \
  "_4x1x1_cga1x1x1_kernel0_0"

cudaError_t KernelFor(int head_dim, Kernel* found) {
  static Kernel of_64, of_128;
  Kernel& kernel = head_dim == 64 ? of_64 : of_128;
  cudaError_t error = cudaSuccess;
  if (kernel.kernel == nullptr)
    error = head_dim == 64 ? Load(kSm90Kernel64, HYDRANT_SM90_NAME(64), 120 * 1024, &kernel)
                           : Load(kSm90Kernel128, HYDRANT_SM90_NAME(128), 227 * 1024, &kernel);
  *found = kernel;
  return error;
}

using EncodeTiled = CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                             const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                             const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

EncodeTiled* FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled*>(function);
}

// The kernel only moves 16-bit words, which it calls fp16.
bool Encode(const Sm90Tensor& tensor, CUtensorMap* map) {
  static EncodeTiled* const encode = FindEncodeTiled();
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  static_assert(sizeof(cuuint64_t) == sizeof(uint64_t) && sizeof(cuuint32_t) == sizeof(uint32_t));
  return encode != nullptr && encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, tensor.data,
                                     reinterpret_cast<const cuuint64_t*>(tensor.dims),
                                     reinterpret_cast<const cuuint64_t*>(tensor.strides),
                                     tensor.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool HasSm90Attention() { return true; }

cudaError_t Sm90Attention(const Context& context, const PrefillAttentionArgs& args,
                          const Sm90Results& results) {
  Sm90Plan plan = Sm90PlanOf(args, results.maxima != nullptr);
  CUtensorMap q, k, v, out;
  if (!Encode(plan.q, &q) || !Encode(plan.k, &k) || !Encode(plan.v, &v) || !Encode(plan.out, &out))
    return cudaErrorInvalidValue;
  Kernel kernel;
  cudaError_t error = KernelFor(args.head_dim, &kernel);
  if (error == cudaSuccess)
    error = cudaMemsetAsync(results.counter, 0, sizeof(int32_t), context.stream);
  if (error != cudaSuccess) return error;
  float scale = args.scale, masked = -INFINITY;
  Sm90Results to = results;
  void* parameters[] = {
      &plan.sizes, &plan.num_tiles, &plan.tiles_of_batch, &plan.heads, &to.counter, &q, &k,  &scale,
      &masked,     &to.maxima,      &plan.rows,           &to.sums,    &plan.rows,  &v, &out};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel.kernel),
                          dim3(std::min(context.num_sms, plan.num_tiles)), dim3(kThreads),
                          parameters, kernel.shared_bytes, context.stream);
}

}  // namespace hydrant::cuda
