#include "kernels/ops/combine_cached_scores.h"

#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {

void CombineCachedScores(const CombineCachedScoresArgs& args) {
  const SequenceTables& tables = args.tables;
  for (int layer = 0; layer < tables.num_layers; ++layer) {
    for (int h = 0; h < tables.num_kv_heads; ++h) {
      const PageIds* blocks = tables.HeadBlocks(args.slot, layer, h);
      for (int e = 0; e < tables.lengths[tables.HeadIndex(args.slot, layer, h)]; ++e) {
        const size_t index = StateIndex(args.pages.layout, blocks, e);
        const float part = args.weight_score * args.pages.scores[index];
        args.pages.scores[index] = part + args.weight_second * SecondScoreOf(args.pages, blocks, e);
      }
    }
  }
}

}  // namespace hydrant::reference
