#include "kernels/prefill_attention.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/reference/attention_weights.h"
#include "kernels/reference/ops.h"

namespace hydrant::reference {
namespace {

// Attends with one head of one query over keys 0 .. last_key and returns the weights.
std::vector<double> Attend(const PrefillAttentionArgs& args, int query, int head, int last_key) {
  const int d = args.head_dim;
  const int kv_head = head / (args.num_heads / args.num_kv_heads);
  const size_t row = (static_cast<size_t>(query) * args.num_heads + head) * d;
  const float* keys = args.k + kv_head * args.kv_head_stride;
  const float* values = args.v + kv_head * args.kv_head_stride;
  std::vector<double> weights(last_key + 1);
  for (int j = 0; j <= last_key; ++j) {
    double dot = 0.0;
    for (int i = 0; i < d; ++i) {
      dot += static_cast<double>(args.q[row + i]) * keys[static_cast<size_t>(j) * d + i];
    }
    weights[j] = dot * args.scale;
  }
  Softmax(weights);
  std::vector<double> sum(d, 0.0);
  for (int j = 0; j <= last_key; ++j) {
    for (int i = 0; i < d; ++i) sum[i] += weights[j] * values[static_cast<size_t>(j) * d + i];
  }
  for (int i = 0; i < d; ++i) args.out[row + i] = static_cast<float>(sum[i]);
  return weights;
}

// Queries [begin, end) of one KV head: a tile, whose column sums enter the total as one number.
void AttendTile(const PrefillAttentionArgs& args, int kv_head, int begin, int end) {
  const int group = args.num_heads / args.num_kv_heads;
  std::vector<double> sums(args.first_position + end, 0.0);
  for (int query = begin; query < end; ++query) {
    const int last_key = args.first_position + query;
    std::vector<std::vector<double>> weights;
    weights.reserve(group);
    for (int g = 0; g < group; ++g) {
      weights.push_back(Attend(args, query, kv_head * group + g, last_key));
    }
    if (args.column_sums == nullptr || last_key < args.first_summed_position) continue;
    for (int j = 0; j <= last_key; ++j) sums[j] += ReduceGroup(args.reduce, weights, j);
  }
  if (args.column_sums == nullptr) return;
  float* column_sums = args.column_sums + kv_head * args.column_stride;
  for (size_t j = 0; j < sums.size(); ++j) column_sums[j] += static_cast<float>(sums[j]);
}

}  // namespace

void PrefillAttention(const PrefillAttentionArgs& args) {
  for (int h = 0; h < args.num_kv_heads; ++h) {
    for (int begin = 0; begin < args.num_queries; begin += kQueryTile) {
      AttendTile(args, h, begin, std::min(begin + kQueryTile, args.num_queries));
    }
  }
}

}  // namespace hydrant::reference
