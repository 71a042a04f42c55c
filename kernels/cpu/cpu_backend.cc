// The cpu backend: combines the vectorised operations of kernels/cpu with one thread pool.
// Operations that it does not override run the reference code: their lists are too small to
// pay for waking a thread.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention/decode_attention.h"
#include "kernels/cpu/attention/prefill_attention.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/elementwise/logprobs.h"
#include "kernels/cpu/elementwise/mask_logits.h"
#include "kernels/cpu/elementwise/sample.h"
#include "kernels/cpu/eviction/count_best.h"
#include "kernels/cpu/eviction/derive_scores.h"
#include "kernels/cpu/eviction/kcenter.h"
#include "kernels/cpu/eviction/pool_scores.h"
#include "kernels/cpu/eviction/predict_scores.h"
#include "kernels/cpu/eviction/retained_mass.h"
#include "kernels/cpu/eviction/select.h"
#include "kernels/cpu/eviction/subgen.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/matmul/experts.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/matmul_experts.h"
#include "kernels/cpu/pages/append_pages.h"
#include "kernels/cpu/pages/compact.h"
#include "kernels/cpu/pages/prefix_blocks.h"
#include "kernels/host_backend.h"
#include "kernels/status_macros.h"
#include "kernels/thread_pool.h"

namespace hydrant {
namespace {

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(const BackendOptions& options)
      : options_(options), threads_(options.num_threads) {}

  std::string_view Name() const override { return "cpu"; }
  std::string Description() const override {
    return absl::StrCat("cpu: ", std::string(cpu::IsaName(cpu::DetectIsa())), ", ",
                        threads_.num_threads(),
                        threads_.num_threads() == 1 ? " thread" : " threads",
                        options_.batch_invariant ? ", batch-invariant" : "");
  }

  absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                     WeightDType dtype) override {
    return cpu::PackWeight(parts, dtype, options_.batch_invariant, threads_);
  }
  // 8-bit activations where they are faster. Machines with bf16 tiles use bf16.
  DType AttentionDType(DType kv, DType weights) const override {
    if (options_.batch_invariant || kv == DType::kF32) return DType::kF32;
    const bool in_blocks = BlockElements(weights) > 1 && weights != DType::kF8_E4M3;
    if (in_blocks && AttendsInBytes()) return DType::kQ8_0;
    return cpu::DetectIsa() >= cpu::Isa::kAvx512Bf16 ? DType::kBF16
                                                     : Backend::AttentionDType(kv, weights);
  }
  // Ranking needs only bf16, or bytes where those are faster, for any weights.
  DType RankingDType(DType kv, DType /*weights*/) const override {
    if (options_.batch_invariant || kv == DType::kF32) return DType::kF32;
    return AttendsInBytes() ? DType::kQ8_0 : DType::kBF16;
  }
  void Matmul(const MatmulArgs& args) override {
    cpu::Matmul(args, options_.batch_invariant, threads_);
  }
  void Embed(const EmbedArgs& args) override { cpu::Embed(args, threads_); }
  void RmsNorm(const RmsNormArgs& args) override { cpu::RmsNorm(args, threads_); }
  void LayerNorm(const LayerNormArgs& args) override { cpu::LayerNorm(args, threads_); }
  void RopeSplit(const RopeSplitArgs& args) override { cpu::RopeSplit(args, threads_); }
  void Activate(const ActivateArgs& args) override { cpu::Activate(args, threads_); }
  void SoftCap(const SoftCapArgs& args) override { cpu::SoftCap(args, threads_); }
  void SumRows(const SumRowsArgs& args) override { cpu::SumRows(args, threads_); }
  void RouteExperts(const RouteExpertsArgs& args) override { cpu::RouteExperts(args, threads_); }
  void ExpertMatmul(const ExpertMatmulArgs& args) override {
    cpu::ExpertMatmul(args, options_.batch_invariant, threads_);
  }
  void CombineExperts(const CombineExpertsArgs& args) override {
    cpu::CombineExperts(args, threads_);
  }
  void SavePrefix(const PrefixBlocksArgs& args) override { cpu::SavePrefix(args, threads_); }
  void LoadPrefix(const PrefixBlocksArgs& args) override { cpu::LoadPrefix(args, threads_); }
  void PrefillAttention(const PrefillAttentionArgs& args) override {
    cpu::PrefillAttention(args, threads_);
  }
  void DecodeAttention(const DecodeAttentionArgs& args) override {
    cpu::DecodeAttention(args, threads_);
  }
  // One task per row: an entry costs little, and most rows have no revision.
  void ReviseScores(const ReviseScoresArgs& args) override {
    threads_.ParallelFor(args.num_rows, [&args](int row, int) {
      ReviseScoresArgs one = args;
      one.num_rows = 1;
      one.slots += row;
      one.positions += row;
      reference::ReviseScores(one);
    });
  }
  void PoolScores(const PoolScoresArgs& args) override { cpu::PoolScores(args, threads_); }
  void PredictScores(const PredictScoresArgs& args) override { cpu::PredictScores(args, threads_); }
  void DeriveScores(const DeriveScoresArgs& args) override { cpu::DeriveScores(args, threads_); }
  void KCenter(const KCenterArgs& args) override { cpu::KCenter(args, threads_); }
  void Select(const SelectArgs& args) override { cpu::Select(args, threads_); }
  void WritePages(const WritePagesArgs& args) override { cpu::WritePages(args, threads_); }
  void Compact(const CompactArgs& args) override { cpu::Compact(args, threads_); }
  void AppendPages(const AppendPagesArgs& args) override { cpu::AppendPages(args, threads_); }
  void CountBest(const CountBestArgs& args) override { cpu::CountBest(args, threads_); }
  void RetainedMass(const RetainedMassArgs& args) override { cpu::RetainedMass(args, threads_); }
  void KeepForMass(const KeepForMassArgs& args) override { cpu::KeepForMass(args, threads_); }
  void SubGenBuild(const SubGenBuildArgs& args) override { cpu::SubGenBuild(args, threads_); }
  void SubGenInsert(const SubGenInsertArgs& args) override { cpu::SubGenInsert(args, threads_); }
  // One task per kPages pages: a page is a few kilobytes.
  void CopyPages(const CopyPagesArgs& args) override {
    constexpr int kPages = 16;
    threads_.ParallelFor((args.count + kPages - 1) / kPages, [&](int task, int) {
      CopyPagesArgs some = args;
      some.copies += task * kPages;
      some.count = std::min(kPages, args.count - task * kPages);
      reference::CopyPages(some);
    });
  }
  void MaskLogits(const MaskLogitsArgs& args) override { cpu::MaskLogits(args, threads_); }
  void Sample(const SampleArgs& args) override { sampler_.Sample(args, threads_); }
  void Logprobs(const LogprobsArgs& args) override { cpu::Logprobs(args, threads_); }

 private:
  static bool AttendsInBytes() { return cpu::HasByteDots() && cpu::DetectIsa() != cpu::Isa::kAmx; }

  const BackendOptions options_;
  ThreadPool threads_;
  cpu::Sampler sampler_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options) {
  HYDRANT_RETURN_IF_ERROR(cpu::CheckIsa());
  cpu::DetectIsa();  // before the first dispatched operation
  return std::make_unique<CpuBackend>(options);
}

}  // namespace hydrant
