// The operations of the CUDA backend, enqueued on a context's stream. Contracts are in the headers
// of kernels/. They return what the launch returned; a fault while a kernel runs shows at the next
// synchronisation.
#ifndef HYDRANT_KERNELS_CUDA_OPS_H_
#define HYDRANT_KERNELS_CUDA_OPS_H_

#include <cuda_runtime.h>

#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/scratch.h"

namespace hydrant::cuda {

struct Context {
  cudaStream_t stream = nullptr;
  Scratch* scratch = nullptr;  // one operation's work space; the next one may overwrite it
  Counters* counters = nullptr;
  int num_sms = 0;
  bool batch_invariant = false;
};

// Matrix products need a library and its state.
class MatmulRunner {
 public:
  virtual ~MatmulRunner() = default;
  virtual cudaError_t Run(const Context& context, const MatmulArgs& args) = 0;
  virtual uint64_t growths() const { return 0; }  // of work space of its own
};
std::unique_ptr<MatmulRunner> MakeMatmulRunner();  // null where the library cannot be had

cudaError_t Embed(const Context& context, const EmbedArgs& args);
cudaError_t RmsNorm(const Context& context, const RmsNormArgs& args);
cudaError_t LayerNorm(const Context& context, const LayerNormArgs& args);
cudaError_t RopeSplit(const Context& context, const RopeSplitArgs& args);
cudaError_t Swiglu(const Context& context, const SwigluArgs& args);
cudaError_t Activate(const Context& context, const ActivateArgs& args);
cudaError_t PrefillAttention(const Context& context, const PrefillAttentionArgs& args);
cudaError_t DecodeAttention(const Context& context, const DecodeAttentionArgs& args);
cudaError_t ReviseScores(const Context& context, const ReviseScoresArgs& args);
cudaError_t DeriveScores(const Context& context, const DeriveScoresArgs& args);
cudaError_t PoolScores(const Context& context, const PoolScoresArgs& args);
cudaError_t KCenter(const Context& context, const KCenterArgs& args);
cudaError_t Select(const Context& context, const SelectArgs& args);
cudaError_t WritePages(const Context& context, const WritePagesArgs& args);
cudaError_t Compact(const Context& context, const CompactArgs& args);
cudaError_t ShareBudget(const Context& context, const ShareBudgetArgs& args);
cudaError_t DealPages(const Context& context, const DealPagesArgs& args);
cudaError_t CountBest(const Context& context, const CountBestArgs& args);
cudaError_t RetainedMass(const Context& context, const RetainedMassArgs& args);
cudaError_t KeptMass(const Context& context, const KeptMassArgs& args);
cudaError_t CombineNotes(const Context& context, const CombineNotesArgs& args);
cudaError_t KeepForMass(const Context& context, const KeepForMassArgs& args);
cudaError_t SubGenBuild(const Context& context, const SubGenBuildArgs& args);
cudaError_t SubGenInsert(const Context& context, const SubGenInsertArgs& args);
cudaError_t Penalize(const Context& context, const PenalizeArgs& args);
cudaError_t Sample(const Context& context, const SampleArgs& args);
cudaError_t DrawNormals(const Context& context, const DrawNormalsArgs& args);
cudaError_t KeepLatest(const Context& context, const LatestTokensArgs& args);
cudaError_t TakeLatest(const Context& context, const LatestTokensArgs& args);
cudaError_t UpdateTable(const Context& context, const UpdateTableArgs& args);

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_OPS_H_
