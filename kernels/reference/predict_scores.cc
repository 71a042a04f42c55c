#include "kernels/ops/predict_scores.h"

#include <algorithm>
#include <cmath>

#include "kernels/entry_state.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {

void PredictScores(const PredictScoresArgs& args) {
  for (int i = 0; i < args.num_rows; ++i) {
    const float* x = args.x + int64_t{i} * args.width;
    double squares = 0.0;
    for (int d = 0; d < args.width; ++d) squares += double{x[d]} * x[d];
    const double rms = std::sqrt(squares / args.width);
    for (int h = 0; h < args.num_kv_heads; ++h) {
      const float* weights = args.weights + int64_t{h} * args.width;
      double product = 0.0;
      for (int d = 0; d < args.width; ++d) product += double{weights[d]} * x[d];
      const double log_score = args.biases[h] + (rms > 0.0 ? product / rms : 0.0);
      args.out[h * args.stride + i] =
          static_cast<float>(std::exp(std::clamp<double>(log_score, -kMaxLogScore, kMaxLogScore)));
    }
  }
}

void StoreNewScores(const StoreNewScoresArgs& args) {
  const SequenceTables& tables = args.tables;
  for (int row = 0; row < args.num_rows; ++row) {
    const int slot = args.slots[row];
    if (slot < 0 || !tables.rules[slot].predicted) continue;
    for (int h = 0; h < tables.num_kv_heads; ++h) {
      const size_t head = tables.HeadIndex(slot, args.layer, h);
      const int32_t length = tables.lengths[head];
      if (length == tables.caps[head]) continue;
      const PageIds* blocks = tables.HeadBlocks(slot, args.layer, h);
      args.pages.scores[StateIndex(args.pages.layout, blocks, length)] =
          args.scores[h * args.stride + row];
    }
  }
}

}  // namespace hydrant::reference
