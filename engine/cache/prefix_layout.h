// The data of a prompt in prefix blocks (kernels/ops/prefix_blocks.h), by the statistics that its
// plan needs:
//
//   token blocks   [K and V | queries][K and V | queries] ...        queries: only for an echo
//   sum blocks     [up to a checkpoint][up to the next one] ...      only for column statistics, and
//                                                                    for predicted scores
//
// Keys and values serve every plan. An echo needs all queries of the prompt, so the queries of
// cached tokens are kept as well, before RoPE. A statistic over all queries continues from its sums
// over the queries before a checkpoint: the sums are small, but prefill can start at checkpoints
// only. Checkpoints are at the ends of prompts, where two prompts diverged, at the last block where
// the prefill of the same prompt could start, and at regular intervals.
//
// Pure functions; every block has a key of its own (engine/cache/prefix_key.h).
#ifndef HYDRANT_ENGINE_CACHE_PREFIX_LAYOUT_H_
#define HYDRANT_ENGINE_CACHE_PREFIX_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/cache/cache_plan.h"
#include "engine/cache/engine_limits.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/prompt_statistics.h"

namespace hydrant {

// Tokens between regular checkpoints.
inline constexpr int kTokensBetweenCheckpoints = 512;

class PrefixLayout {
 public:
  // read: tokens of the whole prefill, the prompt's and a probe's.
  PrefixLayout(const CachePlan& plan, int read, const EngineLimits& limits);

  // Token blocks per kPrefixBlockTokens tokens: one of keys and values, and those of queries.
  int parts() const { return parts_; }
  // Statistics of the prefill with sums in blocks, each over the queries from the first on.
  std::span<const PromptStatistic> sums() const { return sums_; }
  // Number of blocks with the sums before a checkpoint: the first statistic's, then the next's.
  int SumBlocks(int checkpoint) const {
    return static_cast<int>(sums_.size()) * BlocksOfOne(checkpoint);
  }

  // Below, `keys` are the keys of the prompt's whole blocks, in order; numbers of tokens are
  // multiples of kPrefixBlockTokens.

  // Number of leading tokens that need no prefill, given the blocks that exist.
  int Usable(std::span<const PrefixKey> keys,
             absl::FunctionRef<bool(const PrefixKey&)> is_there) const;
  // The checkpoints of a prefill that starts at `first_token`, of a prompt that diverges from
  // another at `parting`; ascending.
  std::vector<int32_t> Checkpoints(int num_keys, int first_token, int parting) const;
  // Keys of the blocks to read for the tokens before `first_token`: token blocks, then the sums.
  std::vector<PrefixKey> KeysBefore(std::span<const PrefixKey> keys, int first_token) const;
  // Keys of the blocks to fill by the tokens from `first_token` on: token blocks, then the sums
  // before each checkpoint.
  std::vector<PrefixKey> KeysFrom(std::span<const PrefixKey> keys, int first_token,
                                  std::span<const int32_t> checkpoints) const;

 private:
  void AddTokens(std::span<const PrefixKey> keys, std::vector<PrefixKey>* to) const;
  void AddSums(std::span<const PrefixKey> keys, int checkpoint, std::vector<PrefixKey>* to) const;
  int BlocksOfOne(int checkpoint) const { return (checkpoint + sums_a_block_ - 1) / sums_a_block_; }

  uint32_t predictor_ = 0;
  int parts_ = 1;
  int sums_a_block_ = 1;
  int last_start_ = 0;  // tokens from here on need a prefill in any case
  int sums_end_ = 0;    // no sums over later queries
  std::vector<PromptStatistic> sums_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_LAYOUT_H_
