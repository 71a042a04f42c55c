#include "engine/cache/prefix_layout.h"

#include <algorithm>

#include "kernels/ops/prefix_blocks.h"

namespace hydrant {
namespace {

// The key of a block with other data of the same tokens. what: the kind of data, above 0.
PrefixKey Derived(PrefixKey key, uint8_t what, int index) {
  key[0] ^= what;
  key[1] ^= static_cast<uint8_t>(index);
  key[2] ^= static_cast<uint8_t>(index >> 8);
  return key;
}

// Tells the numbers of two predictors apart.
void XorInto(uint32_t id, PrefixKey* key) {
  for (size_t i = 0; i < sizeof(id); ++i) (*key)[4 + i] ^= static_cast<uint8_t>(id >> (8 * i));
}

constexpr uint8_t kQueries = 1;
constexpr uint8_t kSums = 2;  // and the values after it

constexpr int kReductions = 4;
constexpr uint8_t kPredicted = 128;

uint8_t SumsOf(const PromptStatistic& one) {
  if (one.predicted) return kPredicted;
  const ColumnStatistic& statistic = *one.reading;
  return static_cast<uint8_t>(kSums + static_cast<int>(statistic.kind) * kReductions +
                              static_cast<int>(statistic.reduce));
}

}  // namespace

PrefixLayout::PrefixLayout(const CachePlan& plan, int read, const EngineLimits& limits)
    : predictor_(limits.score_predictor),
      sums_a_block_(limits.sums_a_prefix_block),
      sums_end_(read) {
  last_start_ = static_cast<int>(plan.prompt.tokens) - 1;  // its logits give the next token
  for (const PromptStatistic& one : StatisticsOf(plan, read)) {
    if (one.echo.has_value()) parts_ = 1 + limits.query_blocks;
    if (one.predicted) sums_.push_back(one);
    if (!one.reading.has_value() || one.reading->end_query <= 0) continue;  // no queries
    const ColumnStatistic& reading = *one.reading;
    if (reading.first_query > 0) {
      last_start_ = std::min(last_start_, reading.first_query);
    } else {
      sums_end_ = std::min(sums_end_, reading.end_query);
      sums_.push_back(one);
    }
  }
}

int PrefixLayout::Usable(std::span<const PrefixKey> keys,
                         absl::FunctionRef<bool(const PrefixKey&)> is_there) const {
  const auto all_there = [&](const std::vector<PrefixKey>& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), is_there);
  };
  const int last = sums_.empty() ? last_start_ : std::min(last_start_, sums_end_);
  const size_t most = std::min<size_t>(keys.size(), std::max(last, 0) / kPrefixBlockTokens);
  size_t blocks = 0;
  std::vector<PrefixKey> wanted;
  for (; blocks < most; ++blocks) {
    wanted.clear();
    AddTokens(keys.subspan(blocks, 1), &wanted);
    if (!all_there(wanted)) break;
  }
  for (; blocks > 0 && !sums_.empty(); --blocks) {
    wanted.clear();
    AddSums(keys, static_cast<int>(blocks) * kPrefixBlockTokens, &wanted);
    if (all_there(wanted)) break;
  }
  return static_cast<int>(blocks) * kPrefixBlockTokens;
}

std::vector<int32_t> PrefixLayout::Checkpoints(int num_keys, int first_token, int parting) const {
  std::vector<int32_t> checkpoints;
  if (sums_.empty()) return checkpoints;
  const int end = std::min(num_keys, sums_end_ / kPrefixBlockTokens) * kPrefixBlockTokens;
  for (int at = kTokensBetweenCheckpoints; at < end; at += kTokensBetweenCheckpoints)
    checkpoints.push_back(at);
  const int again = last_start_ / kPrefixBlockTokens * kPrefixBlockTokens;
  for (const int checkpoint : {parting, again, end}) {
    if (checkpoint <= end) checkpoints.push_back(checkpoint);
  }
  std::erase_if(checkpoints, [&](int checkpoint) { return checkpoint <= first_token; });
  std::sort(checkpoints.begin(), checkpoints.end());
  checkpoints.erase(std::unique(checkpoints.begin(), checkpoints.end()), checkpoints.end());
  return checkpoints;
}

std::vector<PrefixKey> PrefixLayout::KeysBefore(std::span<const PrefixKey> keys,
                                                int first_token) const {
  std::vector<PrefixKey> all;
  AddTokens(keys.first(first_token / kPrefixBlockTokens), &all);
  AddSums(keys, first_token, &all);
  return all;
}

std::vector<PrefixKey> PrefixLayout::KeysFrom(std::span<const PrefixKey> keys, int first_token,
                                              std::span<const int32_t> checkpoints) const {
  std::vector<PrefixKey> all;
  AddTokens(keys.subspan(first_token / kPrefixBlockTokens), &all);
  for (const int checkpoint : checkpoints) AddSums(keys, checkpoint, &all);
  return all;
}

void PrefixLayout::AddTokens(std::span<const PrefixKey> keys, std::vector<PrefixKey>* to) const {
  for (const PrefixKey& key : keys) {
    to->push_back(key);
    for (int i = 1; i < parts_; ++i) to->push_back(Derived(key, kQueries, i));
  }
}

void PrefixLayout::AddSums(std::span<const PrefixKey> keys, int checkpoint,
                           std::vector<PrefixKey>* to) const {
  if (checkpoint == 0) return;
  const PrefixKey& key = keys[checkpoint / kPrefixBlockTokens - 1];
  for (const PromptStatistic& one : sums_) {
    for (int i = 0; i < BlocksOfOne(checkpoint); ++i) {
      PrefixKey derived = Derived(key, SumsOf(one), i);
      if (one.predicted) XorInto(predictor_, &derived);
      to->push_back(derived);
    }
  }
}

}  // namespace hydrant
