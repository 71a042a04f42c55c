// Pages of text as a model reads them: the input of every layer, and the statistics of attention
// that score predictors are fitted to.
#ifndef HYDRANT_TOOLS_EVAL_FIT_PAGES_H_
#define HYDRANT_TOOLS_EVAL_FIT_PAGES_H_

#include <span>
#include <vector>

#include "engine/run/engine.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::eval {

// The attention that a head's entries receive from some queries, times the length of the entry's
// value: its total and its largest weight. [tokens] each; below 0: unknown.
struct HeadAttention {
  std::vector<float> sum;
  std::vector<float> max;
};

struct PageLayer {
  std::vector<float> hidden;              // [tokens, width] the layer's input
  std::vector<HeadAttention> repetition;  // [kv_heads] by the page, repeated (`reconstruct`)
  std::vector<HeadAttention> echo;        // [kv_heads] by the page, from right after it (`echo`)
};

// Caches that ReadPage() opens, and the tokens of its prefill.
inline constexpr int kPageCaches = 4;
inline int PagePrefill(int page, int instruction) { return 2 * page + instruction; }

// [layers of the model]; windowed layers have no attention. instruction: between the page and its
// repetition. REQUIRES: the engine has room for kPageCaches caches and the prefill; two tokens
std::vector<PageLayer> ReadPage(Engine* engine, std::span<const TokenId> page,
                                std::span<const TokenId> instruction);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_FIT_PAGES_H_
