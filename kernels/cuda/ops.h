// The operations of the CUDA backend, enqueued on a context's stream. Contracts are in the headers
// of kernels/ops/. They return what the launch returned; a fault while a kernel runs shows at the
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
  Scratch* scratch = nullptr;  // one operation's work space; the next one may overwrite it
  Scratch* operands =
      nullptr;  // what a product reads in the place of its arguments (matmul_kernels.cu)
  Counters* counters = nullptr;
  MatmulRunner* matmul = nullptr;
  int num_sms = 0;
  size_t shared_of_sm = 0;     // bytes of shared memory of a multiprocessor ...
  size_t shared_of_block = 0;  // ... and of a block at most
  bool batch_invariant = false;
  bool fuses_products = false;   // few rows by block_matmul.h, with what is before and after
  bool streams_decode = false;   // by decode_stream.h, where it can be
  bool sm90_attention = false;   // kernels/cuda/sm90_attention.h, where it may be used
  bool sm90_statistics = false;  // the same of kernels/cuda/sm90_statistics.h
};

// Matrix products need a library and its state.
class MatmulRunner {
 public:
  virtual ~MatmulRunner() = default;
  virtual cudaError_t Run(const Context& context, const MatmulArgs& args) = 0;
  virtual uint64_t growths() const { return 0; }  // of work space of its own
  // A clause of the device's description; empty: nothing to say.
  virtual std::string Summary() const { return ""; }
};
std::unique_ptr<MatmulRunner> MakeMatmulRunner();  // null where the library cannot be had

#define HYDRANT_DECLARE_OP(Op, Args) cudaError_t Op(const Context& context, const Args& args);
HYDRANT_FOR_EACH_OP(HYDRANT_DECLARE_OP)
#undef HYDRANT_DECLARE_OP
// PrefillAttention of several runs, none of which reads what another writes, short ones in one
// grid.
cudaError_t PrefillAttentions(const Context& context, std::span<const PrefillAttentionArgs> runs);
cudaError_t DrawNormals(const Context& context, const DrawNormalsArgs& args);
cudaError_t PackTiles(const Context& context, const PackTilesArgs& args);
cudaError_t ReserveForTiles(const Context& context, int rows, int cols);
bool FusesProducts(const Context& context, const CudaWeight& weight, int m);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_OPS_H_
