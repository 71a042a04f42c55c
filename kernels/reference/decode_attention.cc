#include "kernels/ops/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/page_element.h"
#include "kernels/reference/attention_weights.h"
#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

// One KV head of one row.
struct Head {
  const DecodeAttentionArgs& args;
  int row;
  int kv_head;
  int slot;
  const PageIds* blocks;
  const DecodeRule& rule;
  int32_t& length;

  bool HasLogWeights() const { return rule.weighted && args.pages.log_weights != nullptr; }
  int32_t& Position(int entry) const {
    return args.pages.positions[PageIndex(args.pages.layout, blocks, entry)];
  }
  // Element i of an entry's key, as the logit wants it.
  double KeyElement(int entry, int i) const {
    const size_t offset = ElementOffset(entry);
    const auto element = [&](int j) {
      return static_cast<double>(
          LoadPageElement(args.pages.layout.dtype, args.pages.keys, offset + j));
    };
    if (!rule.rolling) return element(i);
    return RotatedBack(args.rotary, length - 1 - Position(entry), i, element);
  }
  size_t ElementOffset(int entry) const {
    return PageIndex(args.pages.layout, blocks, entry) * args.pages.layout.head_dim;
  }
};

// The entry is about to leave: ranks above its own go down.
void CloseRanks(const Head& head, int entry) {
  const int32_t rank = head.Position(entry);
  for (int e = 0; e < head.length; ++e) {
    if (head.Position(e) > rank) --head.Position(e);
  }
}

void StoreEntry(const Head& head, int entry) {
  const DecodeAttentionArgs& args = head.args;
  const KvPages& pages = args.pages;
  const int d = pages.layout.head_dim;
  const size_t in = (static_cast<size_t>(head.row) * args.tables.num_kv_heads + head.kv_head) * d;
  const size_t out = head.ElementOffset(entry);
  for (int i = 0; i < d; ++i) {
    StorePageElement(pages.layout.dtype, pages.keys, out + i, args.k[in + i]);
    StorePageElement(pages.layout.dtype, pages.values, out + i, args.v[in + i]);
  }
  head.Position(entry) = head.rule.rolling ? head.length - 1 : args.positions[head.row];
  const size_t state = StateIndex(pages.layout, head.blocks, entry);
  if (head.rule.scored) pages.scores[state] = 0.0f;
  if (head.HasLogWeights()) pages.log_weights[2 * state] = pages.log_weights[2 * state + 1] = 0.0f;
}

// Attends with one query head and returns every entry's share of the denominator.
std::vector<double> Attend(const Head& head, int query_head) {
  const DecodeAttentionArgs& args = head.args;
  const KvPages& pages = args.pages;
  const int d = pages.layout.head_dim;
  const size_t row_offset = (static_cast<size_t>(head.row) * args.num_heads + query_head) * d;
  std::vector<double> numerators(head.length), shares(head.length);
  for (int e = 0; e < head.length; ++e) {
    double dot = 0.0;
    for (int i = 0; i < d; ++i) {
      dot += static_cast<double>(args.q[row_offset + i]) * head.KeyElement(e, i);
    }
    numerators[e] = shares[e] = SoftCap(dot * args.scale, args.softcap);
    if (!head.HasLogWeights()) continue;
    const float* log_weights = pages.log_weights + 2 * StateIndex(pages.layout, head.blocks, e);
    numerators[e] += log_weights[0];
    shares[e] += log_weights[1];
  }
  const double sink = SinkLogit(args.sink_logits, query_head);
  const double highest = std::max(sink, *std::max_element(shares.begin(), shares.end()));
  double sum = std::exp(sink - highest);
  for (double& share : shares) sum += share = std::exp(share - highest);
  for (double& share : shares) share /= sum;
  std::vector<double> out(d, 0.0);
  for (int e = 0; e < head.length; ++e) {
    const size_t offset = head.ElementOffset(e);
    const double weight = std::exp(numerators[e] - highest) / sum;
    for (int i = 0; i < d; ++i) {
      out[i] += weight * LoadPageElement(pages.layout.dtype, pages.values, offset + i);
    }
  }
  for (int i = 0; i < d; ++i)
    StorePageElement(args.out_dtype, args.out, row_offset + i, static_cast<float>(out[i]));
  return shares;
}

void UpdateScores(const Head& head, const std::vector<std::vector<double>>& weights) {
  const KvPages& pages = head.args.pages;
  for (int e = 0; e < head.length; ++e) {
    const size_t index = StateIndex(pages.layout, head.blocks, e);
    const double w = ReduceGroup(head.rule.reduce, weights, e);
    pages.scores[index] =
        static_cast<float>(static_cast<double>(head.rule.decay) * pages.scores[index] +
                           static_cast<double>(head.rule.gain) * w);
  }
}

void DecodeHead(const DecodeAttentionArgs& args, int row, int kv_head) {
  const SequenceTables& tables = args.tables;
  const int slot = args.slots[row];
  const size_t head_index = tables.HeadIndex(slot, args.layer, kv_head);
  const Head head{args,
                  row,
                  kv_head,
                  slot,
                  tables.HeadBlocks(slot, args.layer, kv_head),
                  tables.rules[slot],
                  tables.lengths[head_index]};
  const int32_t cap = tables.caps[head_index];
  const bool append = head.length < cap;
  const int entry = append ? head.length++ : tables.victims[head_index];
  if (head.rule.rolling && !append) CloseRanks(head, entry);
  StoreEntry(head, entry);

  const int group = args.num_heads / tables.num_kv_heads;
  std::vector<std::vector<double>> weights;
  weights.reserve(group);
  for (int g = 0; g < group; ++g) weights.push_back(Attend(head, kv_head * group + g));
  if (!head.rule.scored) return;
  if (!head.rule.by_position) UpdateScores(head, weights);
  if (head.length == cap) {
    const int32_t next = head.rule.rolling ? head.length : args.positions[row] + 1;
    tables.victims[head_index] = PickVictim(args.pages, head.blocks, head.length, head.rule, next);
  }
}

}  // namespace

void DecodeAttention(const DecodeAttentionArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.slots[row] < 0) continue;
    for (int h = 0; h < args.tables.num_kv_heads; ++h) DecodeHead(args, row, h);
  }
}

}  // namespace hydrant::reference
