// The operations of the CUDA backend, enqueued on a context's stream. Contracts are in the
// headers of kernels/ops/. They return the launch's error; a fault inside a kernel shows at the
// next synchronisation.
#ifndef HYDRANT_KERNELS_CUDA_OPS_H_
#define HYDRANT_KERNELS_CUDA_OPS_H_

#include <cuda_runtime.h>

#include <memory>
#include <span>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/cuda/scratch.h"

namespace hydrant::cuda {

class MatmulRunner;

struct Context {
  cudaStream_t stream = nullptr;
  Scratch* scratch = nullptr;   // one operation's scratch; the next one may overwrite it
  Scratch* operands = nullptr;  // converted operands of a product (matmul_kernels.cu)
  Counters* counters = nullptr;
  MatmulRunner* matmul = nullptr;
  int num_sms = 0;
  size_t shared_of_sm = 0;     // bytes of shared memory per multiprocessor ...
  size_t shared_of_block = 0;  // ... and the most per block
  bool batch_invariant = false;
  bool fuses_products = false;   // few rows use block_matmul.h, with prologue and epilogue
  bool streams_decode = false;   // uses decode_stream.h where supported
  bool sm90_attention = false;   // uses kernels/cuda/sm90_attention.h where supported
  bool sm90_statistics = false;  // uses kernels/cuda/sm90_statistics.h where supported
};

// Matrix products need a library and its state.
class MatmulRunner {
 public:
  virtual ~MatmulRunner() = default;
  virtual cudaError_t Run(const Context& context, const MatmulArgs& args) = 0;
  virtual uint64_t growths() const { return 0; }  // of its own scratch
  // A clause of the device's description, or an empty string.
  virtual std::string Summary() const { return ""; }
};
std::unique_ptr<MatmulRunner> MakeMatmulRunner();  // null if the library is unavailable

#define HYDRANT_DECLARE_OP(Op, Args) cudaError_t Op(const Context& context, const Args& args);
HYDRANT_FOR_EACH_OP(HYDRANT_DECLARE_OP)
#undef HYDRANT_DECLARE_OP
// PrefillAttention of several independent runs; short ones share one grid.
cudaError_t PrefillAttentions(const Context& context, std::span<const PrefillAttentionArgs> runs);
cudaError_t DrawNormals(const Context& context, const DrawNormalsArgs& args);
cudaError_t PackTiles(const Context& context, const PackTilesArgs& args);
cudaError_t ReserveForTiles(const Context& context, int rows, int cols);
bool FusesProducts(const Context& context, const CudaWeight& weight, int m);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_OPS_H_
