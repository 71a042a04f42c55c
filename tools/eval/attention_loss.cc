#include "tools/eval/attention_loss.h"

#include <algorithm>
#include <cmath>

namespace hydrant::eval {
namespace {

// Per-layer results, one row per arm and query.
struct LayerWork {
  std::vector<float> difference;  // [arms, rows, heads * head_dim]
  std::vector<double> gone;       // [arms, rows, heads]
};

void CompareHead(const Activations& activations, int layer, int kv_head, int first_query,
                 const std::vector<HeldEntries>& arms, LayerWork* work) {
  const int d = activations.head_dim, n = activations.tokens, heads = activations.heads;
  const int rows = n - first_query;
  const GroupAttention keys(activations.Keys(layer, kv_head), n, d);
  std::vector<double> weights(static_cast<size_t>(activations.Group()) * n);
  std::vector<uint8_t> held(n);
  for (int query = first_query; query < n; ++query) {
    const size_t count = query + 1;
    for (int g = 0; g < activations.Group(); ++g)
      keys.Weights(activations.Query(layer, kv_head * activations.Group() + g, query), query + 1,
                   &weights[g * count]);
    for (size_t arm = 0; arm < arms.size(); ++arm) {
      arms[arm].Mark(layer * activations.kv_heads + kv_head, query, {held.data(), count});
      for (int g = 0; g < activations.Group(); ++g) {
        const int head = kv_head * activations.Group() + g;
        const size_t row = (arm * rows + query - first_query) * heads + head;
        const size_t attended_row =
            (static_cast<size_t>(layer) * activations.Rows() + query - activations.first) * heads +
            head;
        work->gone[row] = EvictionDifference(
            {&weights[g * count], count}, {held.data(), count}, activations.Values(layer, kv_head),
            &activations.attended[attended_row * d], d, &work->difference[row * d]);
      }
    }
  }
}

double L1(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::abs(x[i]);
  return sum;
}

// The running maximum over tokens of each head's row norms: [heads, n].
void RunningMaximum(std::vector<double>* norms, int n) {
  for (size_t i = 1; i < norms->size(); ++i) {
    if (i % n != 0) (*norms)[i] = std::max((*norms)[i], (*norms)[i - 1]);
  }
}

}  // namespace

void HeldEntries::Mark(int head, int query, std::span<uint8_t> held) const {
  std::fill(held.begin(), held.end(), 0);
  const size_t moment = std::max(0, query - context + 1);
  const bool appends = moments->size() == 1;
  for (const int32_t position : (*moments)[appends ? 0 : moment][head]) {
    if (position <= query) held[position] = 1;
  }
  if (appends) std::fill(held.begin() + std::min<int>(context, held.size()), held.end(), 1);
}

double EvictionDifference(std::span<const double> weights, std::span<const uint8_t> held,
                          const float* values, const float* attended, int head_dim, float* out) {
  double gone = 0, stays = 0;
  for (size_t j = 0; j < weights.size(); ++j) (held[j] != 0 ? stays : gone) += weights[j];
  std::fill(out, out + head_dim, 0.0f);
  if (gone == 0) return 0;
  std::vector<double> sum(head_dim, 0.0);
  for (size_t j = 0; j < weights.size() && stays > 0; ++j) {
    if (held[j] == 0) continue;
    for (int c = 0; c < head_dim; ++c) sum[c] += weights[j] / stays * values[j * head_dim + c];
  }
  for (int c = 0; c < head_dim; ++c) out[c] = static_cast<float>(sum[c] - attended[c]);
  return gone / (gone + stays);
}

std::vector<std::vector<AttentionLoss>> AttentionLosses(const Activations& activations,
                                                        int first_query,
                                                        const std::vector<HeldEntries>& arms,
                                                        PlainForward* forward) {
  const int heads = activations.heads, d = activations.head_dim, n = activations.tokens;
  const size_t rows = n - first_query, width = static_cast<size_t>(heads) * d;
  const size_t hidden = forward->config().hidden_size;
  std::vector<std::vector<AttentionLoss>> losses(arms.size(),
                                                 std::vector<AttentionLoss>(activations.layers));
  LayerWork work;
  work.difference.resize(arms.size() * rows * width);
  work.gone.resize(arms.size() * rows * heads);
  for (int layer = 0; layer < activations.layers; ++layer) {
    forward->threads().ParallelFor(activations.kv_heads, [&](int kv_head, int /*thread*/) {
      CompareHead(activations, layer, kv_head, first_query, arms, &work);
    });
    std::vector<double> norms = forward->OutputNorms(activations, layer);
    RunningMaximum(&norms, n);
    const size_t attended_row =
        static_cast<size_t>(layer) * activations.Rows() + first_query - activations.first;
    const std::vector<float> outputs =
        forward->Output(layer, {&activations.attended[attended_row * width], rows * width});
    for (size_t arm = 0; arm < arms.size(); ++arm) {
      const std::vector<float> apart =
          forward->Output(layer, {&work.difference[arm * rows * width], rows * width});
      AttentionLoss& loss = losses[arm][layer];
      for (size_t row = 0; row < rows; ++row) {
        double largest = 0, gone = 0, own_bound = 0;
        for (int head = 0; head < heads; ++head) {
          const double norm = norms[static_cast<size_t>(head) * n + first_query + row];
          const double of_head = work.gone[(arm * rows + row) * heads + head];
          largest = std::max(largest, norm);
          gone += of_head;
          own_bound += 2 * norm * of_head;
        }
        const double distance = L1(&apart[row * hidden], hidden), bound = 2 * largest * gone;
        loss.loss += distance / static_cast<double>(rows);
        loss.bound += bound / static_cast<double>(rows);
        loss.own_bound += own_bound / static_cast<double>(rows);
        loss.norm += L1(&outputs[row * hidden], hidden) / static_cast<double>(rows);
        if (bound > 0) loss.worst = std::max(loss.worst, distance / bound);
      }
    }
  }
  return losses;
}

}  // namespace hydrant::eval
