#include "kernels/cpu/elementwise/mask_logits.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace hydrant::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Most words of a grammar's mask are 0, and most of the others nearly full.
void MaskRow(const uint32_t* mask, int vocab, float* logits) {
  for (int first = 0; first < vocab; first += 32, ++mask) {
    const int tokens = std::min(32, vocab - first);
    if (*mask == 0) {
      std::fill_n(logits + first, tokens, kNever);
      continue;
    }
    for (uint32_t never = ~*mask; never != 0; never &= never - 1) {
      const int token = std::countr_zero(never);
      if (token < tokens) logits[first + token] = kNever;
    }
  }
}

}  // namespace

void MaskLogits(const MaskLogitsArgs& args, ThreadPool& threads) {
  const size_t words = MaskWords(args.vocab);
  threads.ParallelFor(args.num_masks, [&](int i, int /*thread*/) {
    MaskRow(args.masks + i * words, args.vocab,
            args.logits + static_cast<size_t>(args.rows[i]) * args.vocab);
  });
}

}  // namespace hydrant::cpu
