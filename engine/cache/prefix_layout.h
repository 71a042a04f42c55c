// What of a prompt lies in prefix blocks (kernels/ops/prefix_blocks.h), by what its plan asks of
// it:
//
//   blocks of tokens   [K and V | queries][K and V | queries] ...   queries: for an echo alone
//   blocks of sums     [to a checkpoint][to the next one] ...       for column statistics alone
//
// Keys and values serve every plan. An echo asks all queries of the prompt, so those of tokens that
// are not read must be there too, as they were before RoPE. A statistic over all queries goes on
// from its sums over the queries before a checkpoint: these are small, but a prompt can be read
// from a checkpoint on alone. They lie where prompts ended, where they parted, where the same
// prompt could be read from, and every so often.
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

// Tokens between checkpoints, of a prompt that has none elsewhere.
inline constexpr int kTokensBetweenCheckpoints = 512;

class PrefixLayout {
 public:
  // Of a prompt of which `read` tokens are read, a probe's included.
  PrefixLayout(const CachePlan& plan, int read, const EngineLimits& limits);

  // Blocks of kPrefixBlockTokens tokens: one of keys and values, and those of queries.
  int parts() const { return parts_; }
  // Statistics of the reading whose sums are kept, each over the queries from the first on.
  std::span<const PromptStatistic> sums() const { return sums_; }
  // Blocks that sums before a checkpoint take: those of the first statistic, then of the next.
  int SumBlocks(int checkpoint) const {
    return static_cast<int>(sums_.size()) * BlocksOfOne(checkpoint);
  }

  // `keys` are those of the prompt's whole blocks, in order; tokens are multiples of
  // kPrefixBlockTokens.

  // Tokens from the first on that need not be read, by which blocks are there.
  int Usable(std::span<const PrefixKey> keys,
             absl::FunctionRef<bool(const PrefixKey&)> is_there) const;
  // Where sums are kept of a prompt that is read from `first_token` on, and parts from another at
  // `parting`; ascending.
  std::vector<int32_t> Checkpoints(int num_keys, int first_token, int parting) const;
  // What is needed of the tokens before `first_token`: all their blocks of tokens, then the sums.
  std::vector<PrefixKey> KeysBefore(std::span<const PrefixKey> keys, int first_token) const;
  // What the tokens from there on leave: their blocks of tokens, then the sums before each
  // checkpoint.
  std::vector<PrefixKey> KeysFrom(std::span<const PrefixKey> keys, int first_token,
                                  std::span<const int32_t> checkpoints) const;

 private:
  void AddTokens(std::span<const PrefixKey> keys, std::vector<PrefixKey>* to) const;
  void AddSums(std::span<const PrefixKey> keys, int checkpoint, std::vector<PrefixKey>* to) const;
  int BlocksOfOne(int checkpoint) const { return (checkpoint + sums_a_block_ - 1) / sums_a_block_; }

  int parts_ = 1;
  int sums_a_block_ = 1;
  int last_start_ = 0;  // no token from here on may be left unread
  int sums_end_ = 0;    // there are no sums over later queries
  std::vector<PromptStatistic> sums_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_PREFIX_LAYOUT_H_
