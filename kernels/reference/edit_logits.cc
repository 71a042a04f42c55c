#include "kernels/ops/edit_logits.h"

#include <cstddef>
#include <limits>

#include "kernels/reference/ops.h"

namespace hydrant::reference {

void BiasLogits(const BiasLogitsArgs& args) {
  for (int i = 0; i < args.num_biases; ++i) {
    const TokenBias& bias = args.biases[i];
    args.logits[static_cast<size_t>(args.rows[i]) * args.vocab + bias.token] += bias.bias;
  }
}

void MaskLogits(const MaskLogitsArgs& args) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < args.num_masks; ++i) {
    float* logits = args.logits + static_cast<size_t>(args.rows[i]) * args.vocab;
    const uint32_t* mask = args.masks + static_cast<size_t>(i) * MaskWords(args.vocab);
    for (int token = 0; token < args.vocab; ++token) {
      if ((mask[token / 32] >> (token % 32) & 1) == 0) logits[token] = kNever;
    }
  }
}

}  // namespace hydrant::reference
