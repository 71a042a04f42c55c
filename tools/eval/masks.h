// Sparse attention patterns that H2O (arXiv 2306.14048) compares itself with, in its tables 2 and
// 8: static patterns (Sparse Transformer, arXiv 1904.10509, section 4.2), and the largest weights
// of each query; each alone, or sharing its budget with heavy hitters. They are visibility
// functions of a plain forward pass.
//
// A query sees `budget` entries at most, its own included. The Sparse Transformer's single length l
// is both its window and its stride, which fixes the budget. Here the window takes half of the
// entries, and the other half determines the stride:
//
//   local    the last b
//   strided  the last b - b/2, and each s-th before: (i - j) mod s = 0, s = ceil(n / (b/2))
//   fixed    its own block of b - b/2, and the last of each s: j mod s = s - 1
//   top-k    per query head the b largest weights; needs the whole cache
//
// b is the budget, or with heavy hitters floor(budget / 2); the rest then goes to those of the
// other entries that accumulated most attention from earlier queries, the mean over a KV head's
// group, ties to the lower position. A query's weights are normalised over its visible keys. With
// the local pattern that is H2O's greedy eviction: an evicted entry accumulates nothing more.
#ifndef HYDRANT_TOOLS_EVAL_MASKS_H_
#define HYDRANT_TOOLS_EVAL_MASKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/eval/anatomy.h"

namespace hydrant::eval {

enum class MaskPattern : uint8_t { kLocal, kStrided, kFixed, kTopK };

struct MaskRule {
  MaskPattern pattern = MaskPattern::kLocal;
  bool heavy_hitters = false;
  int budget = 1;  // entries, >= 2
  int tokens = 1;  // n: length of the whole text
};

std::string NameOf(const MaskRule& rule);  // "strided + heavy hitters"

// Whether the pattern alone, b entries wide, shows key j to query i >= j. REQUIRES: not kTopK
bool PatternShows(const MaskRule& rule, int b, int i, int j);

// `collected` [layers, kv_heads, m]: attention accumulated by the first m keys from earlier
// queries, the mean over the group (CollectedAttention); empty: none.
AttentionMask MakeMask(const MaskRule& rule, int layers, int kv_heads, int group,
                       const std::vector<double>& collected);

// For the first m tokens of a pass from token 0 on, the sum of the m queries' weights.
std::vector<double> CollectedAttention(const Activations& activations, int m, ThreadPool* threads);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_MASKS_H_
