#include "kernels/ops/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/page_element.h"
#include "kernels/page_row.h"
#include "kernels/reference/attention_weights.h"
#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

// One KV head of one row.
struct DecodedHead {
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
  std::vector<float> Row(const void* rows, int entry) const {
    const KvLayout& layout = args.pages.layout;
    std::vector<float> row(layout.head_dim);
    LoadPageRow(layout.dtype, rows, ElementOffset(entry), layout.head_dim, row.data());
    return row;
  }
  // An entry's key for the logit: rotated by its distance in rolling heads.
  std::vector<double> Key(int entry) const {
    const std::vector<float> row = Row(args.pages.keys, entry);
    std::vector<double> key(row.begin(), row.end());
    if (!rule.rolling) return key;
    const auto element = [&](int j) { return static_cast<double>(row[j]); };
    for (size_t i = 0; i < key.size(); ++i)
      key[i] = RotatedBack(args.rotary, length - 1 - Position(entry), static_cast<int>(i), element);
    return key;
  }
  size_t ElementOffset(int entry) const {
    return PageIndex(args.pages.layout, blocks, entry) * args.pages.layout.head_dim;
  }
};

// Before an eviction: decreases the ranks above the entry's rank.
void CloseRanks(const DecodedHead& head, int entry) {
  const int32_t rank = head.Position(entry);
  for (int e = 0; e < head.length; ++e) {
    if (head.Position(e) > rank) --head.Position(e);
  }
}

void StoreEntry(const DecodedHead& head, int entry) {
  const DecodeAttentionArgs& args = head.args;
  const KvPages& pages = args.pages;
  const int d = pages.layout.head_dim;
  const size_t in = (static_cast<size_t>(head.row) * args.tables.num_kv_heads + head.kv_head) * d;
  const size_t out = head.ElementOffset(entry);
  StorePageRow(pages.layout.dtype, args.k + in, d, pages.keys, out);
  StorePageRow(pages.layout.dtype, args.v + in, d, pages.values, out);
  head.Position(entry) = head.rule.rolling ? head.length - 1 : args.positions[head.row];
  if (head.rule.ScoresEntries()) pages.scores[StateIndex(pages.layout, head.blocks, entry)] = 0.0f;
  if (head.HasLogWeights()) {
    float* log_weights = LogWeightsOf(pages, head.blocks, entry);
    log_weights[0] = log_weights[1] = 0.0f;
  }
}

// Attends with one query head and returns every entry's share of the denominator.
std::vector<double> Attend(const DecodedHead& head, int query_head) {
  const DecodeAttentionArgs& args = head.args;
  const KvPages& pages = args.pages;
  const int d = pages.layout.head_dim;
  const size_t row_offset = (static_cast<size_t>(head.row) * args.num_heads + query_head) * d;
  std::vector<double> numerators(head.length), shares(head.length);
  for (int e = 0; e < head.length; ++e) {
    double dot = 0.0;
    const std::vector<double> key = head.Key(e);
    for (int i = 0; i < d; ++i) dot += static_cast<double>(args.q[row_offset + i]) * key[i];
    numerators[e] = shares[e] = SoftCap(dot * args.scale, args.softcap);
    if (!head.HasLogWeights()) continue;
    const float* log_weights = LogWeightsOf(pages, head.blocks, e);
    numerators[e] += log_weights[0];
    shares[e] += log_weights[1];
  }
  const double sink = SinkLogit(args.sink_logits, query_head);
  const double highest = std::max(sink, *std::max_element(shares.begin(), shares.end()));
  double sum = std::exp(sink - highest);
  for (double& share : shares) sum += share = std::exp(share - highest);
  for (double& share : shares) share /= sum;
  const double excess = *std::max_element(numerators.begin(), numerators.end()) - highest;
  const double top = highest + std::max(0.0, excess - kMaxLogExcess);
  std::vector<double> out(d, 0.0);
  for (int e = 0; e < head.length; ++e) {
    const std::vector<float> value = head.Row(pages.values, e);
    const double weight = std::exp(numerators[e] - top) / sum;
    for (int i = 0; i < d; ++i) out[i] += weight * value[i];
  }
  for (int i = 0; i < d; ++i)
    StorePageElement(args.out_dtype, args.out, row_offset + i, static_cast<float>(out[i]));
  return shares;
}

void UpdateScores(const DecodedHead& head, const std::vector<std::vector<double>>& weights) {
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
  const DecodedHead head{args,
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
