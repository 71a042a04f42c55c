// The list of all operations, with their contract headers. It generates the pure virtuals of
// Backend, the declarations of kernels/reference and kernels/cuda, the interface of the CUDA device
// and the forwarding between them.
#ifndef HYDRANT_KERNELS_OPS_H_
#define HYDRANT_KERNELS_OPS_H_

#include "kernels/ops/append_pages.h"
#include "kernels/ops/assign_pages.h"
#include "kernels/ops/combine_cached_scores.h"
#include "kernels/ops/compact.h"
#include "kernels/ops/copy_pages.h"
#include "kernels/ops/count_best.h"
#include "kernels/ops/decode_attention.h"
#include "kernels/ops/derive_scores.h"
#include "kernels/ops/edit_logits.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/kcenter.h"
#include "kernels/ops/last_tokens.h"
#include "kernels/ops/logprobs.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/penalize.h"
#include "kernels/ops/pool_scores.h"
#include "kernels/ops/predict_scores.h"
#include "kernels/ops/prefill_attention.h"
#include "kernels/ops/prefix_blocks.h"
#include "kernels/ops/retained_mass.h"
#include "kernels/ops/revise_scores.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/select.h"
#include "kernels/ops/share_budget.h"
#include "kernels/ops/subgen.h"
#include "kernels/ops/table_update.h"

// OP(name, argument type) for each operation.
#define HYDRANT_FOR_EACH_OP(OP)                    \
  OP(Matmul, MatmulArgs)                           \
  OP(Embed, EmbedArgs)                             \
  OP(RmsNorm, RmsNormArgs)                         \
  OP(LayerNorm, LayerNormArgs)                     \
  OP(RopeSplit, RopeSplitArgs)                     \
  OP(Activate, ActivateArgs)                       \
  OP(SoftCap, SoftCapArgs)                         \
  OP(SumRows, SumRowsArgs)                         \
  OP(RouteExperts, RouteExpertsArgs)               \
  OP(ExpertMatmul, ExpertMatmulArgs)               \
  OP(CombineExperts, CombineExpertsArgs)           \
  OP(SavePrefix, PrefixBlocksArgs)                 \
  OP(LoadPrefix, PrefixBlocksArgs)                 \
  OP(PrefillAttention, PrefillAttentionArgs)       \
  OP(DecodeAttention, DecodeAttentionArgs)         \
  OP(ReviseScores, ReviseScoresArgs)               \
  OP(PredictScores, PredictScoresArgs)             \
  OP(StoreNewScores, StoreNewScoresArgs)           \
  OP(DeriveScores, DeriveScoresArgs)               \
  OP(PoolScores, PoolScoresArgs)                   \
  OP(KCenter, KCenterArgs)                         \
  OP(Select, SelectArgs)                           \
  OP(WritePages, WritePagesArgs)                   \
  OP(Compact, CompactArgs)                         \
  OP(AppendPages, AppendPagesArgs)                 \
  OP(GatherScores, ScoreRowsArgs)                  \
  OP(ScatterScores, ScoreRowsArgs)                 \
  OP(TimesValueLengths, ScoreRowsArgs)             \
  OP(ShareBudget, ShareBudgetArgs)                 \
  OP(AssignPages, AssignPagesArgs)                 \
  OP(ReturnPages, ReturnPagesArgs)                 \
  OP(CountBest, CountBestArgs)                     \
  OP(RetainedMass, RetainedMassArgs)               \
  OP(KeptMass, KeptMassArgs)                       \
  OP(KeepForMass, KeepForMassArgs)                 \
  OP(CombineCachedScores, CombineCachedScoresArgs) \
  OP(SubGenBuild, SubGenBuildArgs)                 \
  OP(SubGenInsert, SubGenInsertArgs)               \
  OP(BiasLogits, BiasLogitsArgs)                   \
  OP(MaskLogits, MaskLogitsArgs)                   \
  OP(Penalize, PenalizeArgs)                       \
  OP(Sample, SampleArgs)                           \
  OP(Logprobs, LogprobsArgs)                       \
  OP(StoreLastTokens, LastTokensArgs)              \
  OP(ReadLastTokens, LastTokensArgs)               \
  OP(UpdateTable, UpdateTableArgs)                 \
  OP(CopyPages, CopyPagesArgs)

#endif  // HYDRANT_KERNELS_OPS_H_
