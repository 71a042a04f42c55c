// The reference meaning of every operation: plain loops, double accumulation, no threads. Contracts
// are in the headers of kernels/. Stateless: any thread may call.
#ifndef HYDRANT_KERNELS_REFERENCE_OPS_H_
#define HYDRANT_KERNELS_REFERENCE_OPS_H_

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/combine_notes.h"
#include "kernels/compact.h"
#include "kernels/count_best.h"
#include "kernels/deal_pages.h"
#include "kernels/decode_attention.h"
#include "kernels/derive_scores.h"
#include "kernels/elementwise.h"
#include "kernels/kcenter.h"
#include "kernels/latest_tokens.h"
#include "kernels/matmul.h"
#include "kernels/pool_scores.h"
#include "kernels/prefill_attention.h"
#include "kernels/retained_mass.h"
#include "kernels/revise_scores.h"
#include "kernels/sample.h"
#include "kernels/select.h"
#include "kernels/share_budget.h"
#include "kernels/subgen.h"
#include "kernels/table_update.h"
#include "kernels/weight.h"

namespace hydrant::reference {

// kFloat32 and kStored hold the dequantised values; kBFloat16 holds them rounded to bf16 (nearest
// even), and Matmul then rounds x in the same way, as bf16 units do.
absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> parts,
                                                   WeightDType dtype);
// The weights of Matmul and Embed come from reference::PackWeight.
void Matmul(const MatmulArgs& args);
void Embed(const EmbedArgs& args);

void RmsNorm(const RmsNormArgs& args);
void LayerNorm(const LayerNormArgs& args);
void RopeSplit(const RopeSplitArgs& args);
void Swiglu(const SwigluArgs& args);
void Activate(const ActivateArgs& args);
void PrefillAttention(const PrefillAttentionArgs& args);
void DecodeAttention(const DecodeAttentionArgs& args);
void ReviseScores(const ReviseScoresArgs& args);
void DeriveScores(const DeriveScoresArgs& args);
void PoolScores(const PoolScoresArgs& args);
void KCenter(const KCenterArgs& args);
void Select(const SelectArgs& args);
void WritePages(const WritePagesArgs& args);
void Compact(const CompactArgs& args);
void ShareBudget(const ShareBudgetArgs& args);
void DealPages(const DealPagesArgs& args);
void CountBest(const CountBestArgs& args);
void RetainedMass(const RetainedMassArgs& args);
void KeptMass(const KeptMassArgs& args);
void KeepForMass(const KeepForMassArgs& args);
void CombineNotes(const CombineNotesArgs& args);
void SubGenBuild(const SubGenBuildArgs& args);
void SubGenInsert(const SubGenInsertArgs& args);
void Sample(const SampleArgs& args);
void KeepLatest(const LatestTokensArgs& args);
void TakeLatest(const LatestTokensArgs& args);
void UpdateTable(const UpdateTableArgs& args);
void Penalize(const PenalizeArgs& args);

}  // namespace hydrant::reference

#endif  // HYDRANT_KERNELS_REFERENCE_OPS_H_
