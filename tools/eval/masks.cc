#include "tools/eval/masks.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

namespace hydrant::eval {
namespace {

// The `count` largest of the candidates, ties to the lower position.
void KeepLargest(std::span<const double> values, int count, std::vector<int>* candidates) {
  if (static_cast<int>(candidates->size()) <= count) return;
  std::nth_element(
      candidates->begin(), candidates->begin() + count, candidates->end(),
      [&](int a, int b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  candidates->resize(count);
}

class Mask {
 public:
  Mask(const MaskRule& rule, int layers, int kv_heads, int group,
       const std::vector<double>& collected)
      : rule_(rule), kv_heads_(kv_heads), group_(group), of_pattern_(rule.budget) {
    if (rule.heavy_hitters) of_pattern_ = rule.budget / 2;
    collected_.resize(static_cast<size_t>(layers) * kv_heads);
    const size_t known = collected.size() / collected_.size();
    for (size_t head = 0; head < collected_.size(); ++head) {
      collected_[head].assign(collected.begin() + head * known,
                              collected.begin() + (head + 1) * known);
      collected_[head].resize(rule.tokens, 0.0);
    }
  }

  void Show(int layer, int kv_head, int query, std::span<const double> weights,
            std::span<uint8_t> visible) {
    std::vector<double>& collected = collected_[static_cast<size_t>(layer) * kv_heads_ + kv_head];
    const int count = query + 1;
    for (int g = 0; g < group_; ++g) {
      const auto of_head = weights.subspan(static_cast<size_t>(g) * count, count);
      const auto seen = visible.subspan(static_cast<size_t>(g) * count, count);
      ShowPattern(query, of_head, seen);
      if (rule_.heavy_hitters) ShowHeavyHitters(collected, seen);
    }
    if (rule_.heavy_hitters) Collect(weights, visible, count, &collected);
  }

 private:
  void ShowPattern(int query, std::span<const double> weights, std::span<uint8_t> seen) const {
    if (rule_.pattern != MaskPattern::kTopK) {
      for (int j = 0; j <= query; ++j) seen[j] = PatternShows(rule_, of_pattern_, query, j) ? 1 : 0;
      return;
    }
    std::vector<int> best(query + 1);
    std::iota(best.begin(), best.end(), 0);
    KeepLargest(weights, of_pattern_, &best);
    std::fill(seen.begin(), seen.end(), 0);
    for (const int j : best) seen[j] = 1;
  }

  void ShowHeavyHitters(const std::vector<double>& collected, std::span<uint8_t> seen) const {
    std::vector<int> others;
    for (size_t j = 0; j < seen.size(); ++j) {
      if (seen[j] == 0) others.push_back(static_cast<int>(j));
    }
    KeepLargest(collected, rule_.budget - of_pattern_, &others);
    for (const int j : others) seen[j] = 1;
  }

  void Collect(std::span<const double> weights, std::span<const uint8_t> visible, int count,
               std::vector<double>* collected) const {
    for (int g = 0; g < group_; ++g) {
      const size_t begin = static_cast<size_t>(g) * count;
      double sum = 0;
      for (int j = 0; j < count; ++j) sum += visible[begin + j] != 0 ? weights[begin + j] : 0.0;
      for (int j = 0; j < count; ++j) {
        if (visible[begin + j] != 0) (*collected)[j] += weights[begin + j] / sum / group_;
      }
    }
  }

  MaskRule rule_;
  int kv_heads_;
  int group_;
  int of_pattern_;
  std::vector<std::vector<double>> collected_;  // [layers * kv_heads][tokens]
};

}  // namespace

std::string NameOf(const MaskRule& rule) {
  std::string name;
  switch (rule.pattern) {
    case MaskPattern::kLocal:
      name = "local";
      break;
    case MaskPattern::kStrided:
      name = "strided";
      break;
    case MaskPattern::kFixed:
      name = "fixed";
      break;
    case MaskPattern::kTopK:
      name = "top-k";
      break;
  }
  return rule.heavy_hitters ? name + " + heavy hitters" : name;
}

bool PatternShows(const MaskRule& rule, int b, int i, int j) {
  const int far = rule.pattern == MaskPattern::kLocal ? 0 : b / 2;
  const int near = b - far;
  const int stride = far > 0 ? (rule.tokens + far - 1) / far : 0;
  if (rule.pattern == MaskPattern::kFixed)
    return i / near == j / near || (far > 0 && j % stride == stride - 1);
  return i - j < near || (far > 0 && (i - j) % stride == 0);
}

AttentionMask MakeMask(const MaskRule& rule, int layers, int kv_heads, int group,
                       const std::vector<double>& collected) {
  auto mask = std::make_shared<Mask>(rule, layers, kv_heads, group, collected);
  return
      [mask](int layer, int kv_head, int query, std::span<const double> weights,
             std::span<uint8_t> visible) { mask->Show(layer, kv_head, query, weights, visible); };
}

std::vector<double> CollectedAttention(const Activations& activations, int m, ThreadPool* threads) {
  std::vector<double> collected(static_cast<size_t>(activations.layers) * activations.kv_heads * m);
  threads->ParallelFor(activations.layers * activations.kv_heads, [&](int task, int /*thread*/) {
    const int layer = task / activations.kv_heads, kv_head = task % activations.kv_heads;
    const GroupAttention keys(activations.Keys(layer, kv_head), m, activations.head_dim);
    std::vector<double> weights(m);
    double* sums = &collected[static_cast<size_t>(task) * m];
    for (int query = 0; query < m; ++query) {
      for (int g = 0; g < activations.Group(); ++g) {
        keys.Weights(activations.Query(layer, kv_head * activations.Group() + g, query), query + 1,
                     weights.data());
        for (int j = 0; j <= query; ++j) sums[j] += weights[j] / activations.Group();
      }
    }
  });
  return collected;
}

}  // namespace hydrant::eval
