#include "kernels/ops/penalize.h"

#include "kernels/ops/sample.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {

void Penalize(const PenalizeArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    const Penalties& penalties = args.rows[row].penalties;
    if (!penalties.Any()) continue;
    float* logits = args.logits + static_cast<size_t>(row) * args.vocab;
    uint16_t* seen = args.seen + static_cast<size_t>(args.slots[row]) * args.vocab;
    if (args.newest[row] != UINT32_MAX) {
      seen[args.newest[row]] = SeenWith(seen[args.newest[row]], true);
    }
    for (int token = 0; token < args.vocab; ++token) {
      logits[token] = PenalizedLogit(logits[token], seen[token], penalties);
    }
  }
}

}  // namespace hydrant::reference
