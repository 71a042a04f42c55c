#include "tools/eval/entry_classes.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hydrant::eval {
namespace {

// Weights in each step, averaged over the group: [steps][query + 1].
std::vector<std::vector<double>> GroupWeights(const Activations& activations, int layer,
                                              int kv_head, int first_query) {
  const GroupAttention keys(activations.Keys(layer, kv_head), activations.tokens,
                            activations.head_dim);
  std::vector<std::vector<double>> steps;
  std::vector<double> weights(activations.tokens);
  for (int query = first_query; query < activations.tokens; ++query) {
    std::vector<double>& mean = steps.emplace_back(query + 1, 0.0);
    for (int g = 0; g < activations.Group(); ++g) {
      keys.Weights(activations.Query(layer, kv_head * activations.Group() + g, query), query + 1,
                   weights.data());
      for (int j = 0; j <= query; ++j) mean[j] += weights[j] / activations.Group();
    }
  }
  return steps;
}

char ClassOf(bool activated, bool cached) {
  if (activated) return cached ? 'b' : 'o';
  return cached ? 'g' : '.';
}

EntryClasses ClassifyLayer(const Activations& activations, const HeldEntries& held, int layer,
                           double gamma, std::vector<HeadClasses>* shown) {
  std::vector<std::vector<std::vector<double>>> heads;  // [kv_heads][steps][query + 1]
  double largest = 0;
  for (int head = 0; head < activations.kv_heads; ++head) {
    heads.push_back(GroupWeights(activations, layer, head, held.context));
    for (const std::vector<double>& step : heads.back())
      largest = std::max(largest, *std::max_element(step.begin(), step.end()));
  }
  EntryClasses classes;
  classes.threshold = gamma * largest;
  std::vector<uint8_t> cached(activations.tokens);
  const double share =
      1.0 / (activations.kv_heads * std::max(1, activations.tokens - held.context));
  for (int head = 0; head < activations.kv_heads; ++head) {
    const auto head_classes = std::find_if(
        shown->begin(), shown->end(),
        [&](const HeadClasses& each) { return each.layer == layer && each.kv_head == head; });
    for (const std::vector<double>& step : heads[head]) {
      held.Mark(layer * activations.kv_heads + head, static_cast<int>(step.size()) - 1,
                {cached.data(), step.size()});
      std::string line;
      for (size_t j = 0; j < step.size(); ++j) {
        line += ClassOf(step[j] > classes.threshold, cached[j] != 0);
        classes.activated_cached += line.back() == 'b' ? share : 0;
        classes.activated_uncached += line.back() == 'o' ? share : 0;
        classes.inactive_cached += line.back() == 'g' ? share : 0;
      }
      if (head_classes != shown->end()) head_classes->steps.push_back(std::move(line));
    }
  }
  return classes;
}

}  // namespace

std::vector<EntryClasses> ClassifyEntries(const Activations& activations, const HeldEntries& held,
                                          double gamma, ThreadPool* threads,
                                          std::vector<HeadClasses>* shown) {
  std::vector<EntryClasses> classes(activations.layers);
  threads->ParallelFor(activations.layers, [&](int layer, int /*thread*/) {
    classes[layer] = ClassifyLayer(activations, held, layer, gamma, shown);
  });
  return classes;
}

std::vector<double> ReplacementIndices(const std::vector<std::vector<int32_t>>& moments, int fifo) {
  std::vector<double> indices;
  for (size_t i = 1; i < moments.size(); ++i) {
    const std::vector<int32_t>& before = moments[i - 1];
    std::vector<int32_t> left;
    std::set_difference(before.begin(), before.end(), moments[i].begin(), moments[i].end(),
                        std::back_inserter(left));
    // The new token is one of the newest, too.
    const int candidates = static_cast<int>(before.size()) - std::max(0, fifo - 1);
    if (left.size() != 1 || candidates < 2) continue;
    const auto place = std::find(before.begin(), before.end(), left[0]) - before.begin();
    if (place >= candidates) continue;  // evicted by the FIFO
    indices.push_back(static_cast<double>(place) / (candidates - 1));
  }
  return indices;
}

}  // namespace hydrant::eval
