#include <cstring>

#include "kernels/backend.h"
#include "kernels/host_memory.h"
#include "kernels/reference/ops.h"

namespace hydrant {
namespace {

class ReferenceBackend : public Backend {
 public:
  std::string_view Name() const override { return "reference"; }
  std::string Description() const override { return "reference: plain loops, 1 thread"; }

  absl::StatusOr<DeviceMemory> Memory() override { return HostMemory(); }
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) override { return AllocateHostMemory(bytes); }
  void CopyToDevice(void* device, const void* host, size_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void CopyToHost(void* host, const void* device, size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void CopyOnDevice(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Zero(void* device, size_t bytes) override {
    if (bytes > 0) std::memset(device, 0, bytes);
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                     WeightDType dtype) override {
    return reference::PackWeight(parts, dtype);
  }
  void Matmul(const MatmulArgs& args) override { reference::Matmul(args); }
  void Embed(const EmbedArgs& args) override { reference::Embed(args); }
  void RmsNorm(const RmsNormArgs& args) override { reference::RmsNorm(args); }
  void LayerNorm(const LayerNormArgs& args) override { reference::LayerNorm(args); }
  void RopeSplit(const RopeSplitArgs& args) override { reference::RopeSplit(args); }
  void Swiglu(const SwigluArgs& args) override { reference::Swiglu(args); }
  void Activate(const ActivateArgs& args) override { reference::Activate(args); }
  void PrefillAttention(const PrefillAttentionArgs& args) override {
    reference::PrefillAttention(args);
  }
  void DecodeAttention(const DecodeAttentionArgs& args) override {
    reference::DecodeAttention(args);
  }
  void ReviseScores(const ReviseScoresArgs& args) override { reference::ReviseScores(args); }
  void DeriveScores(const DeriveScoresArgs& args) override { reference::DeriveScores(args); }
  void PoolScores(const PoolScoresArgs& args) override { reference::PoolScores(args); }
  void KCenter(const KCenterArgs& args) override { reference::KCenter(args); }
  void Select(const SelectArgs& args) override { reference::Select(args); }
  void WritePages(const WritePagesArgs& args) override { reference::WritePages(args); }
  void Compact(const CompactArgs& args) override { reference::Compact(args); }
  void ShareBudget(const ShareBudgetArgs& args) override { reference::ShareBudget(args); }
  void DealPages(const DealPagesArgs& args) override { reference::DealPages(args); }
  void CountBest(const CountBestArgs& args) override { reference::CountBest(args); }
  void RetainedMass(const RetainedMassArgs& args) override { reference::RetainedMass(args); }
  void KeptMass(const KeptMassArgs& args) override { reference::KeptMass(args); }
  void CombineNotes(const CombineNotesArgs& args) override { reference::CombineNotes(args); }
  void KeepForMass(const KeepForMassArgs& args) override { reference::KeepForMass(args); }
  void SubGenBuild(const SubGenBuildArgs& args) override { reference::SubGenBuild(args); }
  void SubGenInsert(const SubGenInsertArgs& args) override { reference::SubGenInsert(args); }
  void Sample(const SampleArgs& args) override { reference::Sample(args); }
  void Penalize(const PenalizeArgs& args) override { reference::Penalize(args); }
  void KeepLatest(const LatestTokensArgs& args) override { reference::KeepLatest(args); }
  void TakeLatest(const LatestTokensArgs& args) override { reference::TakeLatest(args); }
  void UpdateTable(const UpdateTableArgs& args) override { reference::UpdateTable(args); }
};

}  // namespace

std::unique_ptr<Backend> CreateReferenceBackend(const BackendOptions&) {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace hydrant
