#include "scheduler/prefill_planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops/prefill_attention.h"

namespace hydrant {

namespace {

double RemainingCost(const OpenPrompt& prompt, int num_layers, const PrefillCosts& costs) {
  return costs.Of(prompt.cursor.token, prompt.num_tokens) +
         (num_layers - prompt.cursor.layer - 1) * costs.Of(prompt.first_token, prompt.num_tokens);
}

std::vector<double> ShareBudget(std::span<const OpenPrompt> prompts, int num_layers, double budget,
                                const PrefillCosts& costs) {
  std::vector<double> remaining(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i)
    remaining[i] = RemainingCost(prompts[i], num_layers, costs);
  std::vector<int> shortest_first(prompts.size() - 1);
  std::iota(shortest_first.begin(), shortest_first.end(), 1);
  std::stable_sort(shortest_first.begin(), shortest_first.end(),
                   [&](int a, int b) { return remaining[a] < remaining[b]; });
  std::vector<double> share(prompts.size(), 0.0);
  share[0] = std::min(remaining[0], budget / 2);
  double left = budget - share[0];
  for (const int i : shortest_first) {
    share[i] = std::min(remaining[i], left);
    left -= share[i];
  }
  share[0] += left;
  return share;
}

// Whole layers if the share covers about one or more, else an even part of the rest of the layer.
RunPart NextPart(const OpenPrompt& prompt, int num_layers, double share,
                 const PrefillCosts& costs) {
  const auto [layer, token] = prompt.cursor;
  RunPart part = {.layer_begin = layer,
                  .layer_end = layer + 1,
                  .token_begin = token,
                  .token_end = prompt.num_tokens};
  const double layer_rest = costs.Of(token, prompt.num_tokens);
  const double parts = std::round(layer_rest / share);
  if (parts <= 1.0) {
    if (token > prompt.first_token) return part;
    const double layers = std::min<double>(num_layers, std::round(share / layer_rest));
    part.layer_end = std::min(num_layers, layer + std::max(1, static_cast<int>(layers)));
    return part;
  }
  const double end = costs.TokenAt(costs.UpTo(token) + layer_rest / parts);
  const int tiles = std::max(1, static_cast<int>(std::lround((end - token) / kQueryTile)));
  part.token_end = std::min(prompt.num_tokens, token + tiles * kQueryTile);
  return part;
}

}  // namespace

std::vector<PromptPart> PlanPrefill(std::span<const OpenPrompt> prompts, int num_layers,
                                    double budget, const PrefillCosts& costs) {
  std::vector<PromptPart> planned;
  if (prompts.empty()) return planned;
  const std::vector<double> share = ShareBudget(prompts, num_layers, budget, costs);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const OpenPrompt& prompt = prompts[i];
    const int tile_end = std::min(prompt.num_tokens, prompt.cursor.token + kQueryTile);
    const bool worth_a_tile = share[i] >= costs.Of(prompt.cursor.token, tile_end);
    if (i > 0 && !worth_a_tile) continue;
    planned.push_back(
        {static_cast<int>(i), NextPart(prompt, num_layers, std::max(share[i], 1.0), costs)});
  }
  return planned;
}

}  // namespace hydrant
