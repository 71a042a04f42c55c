// The list of all operations, with their contracts. The pure virtuals of Backend, the declarations
// of kernels/reference and kernels/cuda, the interface of the CUDA device and all that forwards
// from one to the other are made of it.
#ifndef HYDRANT_KERNELS_OPS_H_
#define HYDRANT_KERNELS_OPS_H_

#include "kernels/assign_pages.h"
#include "kernels/combine_cached_scores.h"
#include "kernels/compact.h"
#include "kernels/count_best.h"
#include "kernels/decode_attention.h"
#include "kernels/derive_scores.h"
#include "kernels/elementwise.h"
#include "kernels/kcenter.h"
#include "kernels/last_tokens.h"
#include "kernels/matmul.h"
#include "kernels/penalize.h"
#include "kernels/pool_scores.h"
#include "kernels/prefill_attention.h"
#include "kernels/retained_mass.h"
#include "kernels/revise_scores.h"
#include "kernels/sample.h"
#include "kernels/select.h"
#include "kernels/share_budget.h"
#include "kernels/subgen.h"
#include "kernels/table_update.h"

// OP(name, type of its arguments) for each operation.
#define HYDRANT_FOR_EACH_OP(OP)                    \
  OP(Matmul, MatmulArgs)                           \
  OP(Embed, EmbedArgs)                             \
  OP(RmsNorm, RmsNormArgs)                         \
  OP(LayerNorm, LayerNormArgs)                     \
  OP(RopeSplit, RopeSplitArgs)                     \
  OP(Swiglu, SwigluArgs)                           \
  OP(Activate, ActivateArgs)                       \
  OP(PrefillAttention, PrefillAttentionArgs)       \
  OP(DecodeAttention, DecodeAttentionArgs)         \
  OP(ReviseScores, ReviseScoresArgs)               \
  OP(DeriveScores, DeriveScoresArgs)               \
  OP(PoolScores, PoolScoresArgs)                   \
  OP(KCenter, KCenterArgs)                         \
  OP(Select, SelectArgs)                           \
  OP(WritePages, WritePagesArgs)                   \
  OP(Compact, CompactArgs)                         \
  OP(ShareBudget, ShareBudgetArgs)                 \
  OP(AssignPages, AssignPagesArgs)                 \
  OP(CountBest, CountBestArgs)                     \
  OP(RetainedMass, RetainedMassArgs)               \
  OP(KeptMass, KeptMassArgs)                       \
  OP(KeepForMass, KeepForMassArgs)                 \
  OP(CombineCachedScores, CombineCachedScoresArgs) \
  OP(SubGenBuild, SubGenBuildArgs)                 \
  OP(SubGenInsert, SubGenInsertArgs)               \
  OP(Penalize, PenalizeArgs)                       \
  OP(Sample, SampleArgs)                           \
  OP(StoreLastTokens, LastTokensArgs)              \
  OP(ReadLastTokens, LastTokensArgs)               \
  OP(UpdateTable, UpdateTableArgs)

#endif  // HYDRANT_KERNELS_OPS_H_
