// SubGen in scalar code, over the pages of one head (algorithm and state layout:
// kernels/ops/subgen.h). Host backends differ in the summation of squares, the
// template parameter Distances:
//
//   static void SquaredDistances(const float* row, const float* rows, int count, int head_dim,
//                                float* out);   // rows: [count, head_dim], out: [count]
//
// An object works on one head for the duration of one operation, in a thread's scratch.
#ifndef HYDRANT_KERNELS_OPS_SUBGEN_HEAD_H_
#define HYDRANT_KERNELS_OPS_SUBGEN_HEAD_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/ops/subgen.h"
#include "kernels/page_row.h"
#include "kernels/victim.h"

namespace hydrant {

struct SubGenScratch {
  std::vector<float> counts;      // [max_clusters], 0: free
  std::vector<float> centres;     // [max_clusters, head_dim]
  std::vector<float> distances;   // [max_clusters]
  std::vector<float> key, value;  // [head_dim] the current token
  std::vector<float> zeros;       // [head_dim]
};

template <typename Distances>
class SubGenHead {
 public:
  SubGenHead(const KvPages& pages, const PageIds* blocks, const SubGenRule& rule, int layer,
             int head, SubGenScratch* scratch)
      : pages_(pages),
        blocks_(blocks),
        rule_(rule),
        value_key_(SubGenKey(rule, SubGenPurpose::kValueSample, layer, head)),
        cluster_key_(SubGenKey(rule, SubGenPurpose::kClusterSample, layer, head)),
        merge_key_(SubGenKey(rule, SubGenPurpose::kMerge, layer, head)),
        counts_(scratch->counts),
        centres_(scratch->centres),
        distances_(scratch->distances),
        key_(scratch->key),
        value_(scratch->value),
        zeros_(scratch->zeros) {
    counts_.assign(rule.max_clusters, 0.0f);
    centres_.resize(static_cast<size_t>(rule.max_clusters) * dim());
    distances_.resize(rule.max_clusters);
    key_.resize(dim());
    value_.resize(dim());
    zeros_.assign(dim(), 0.0f);
  }

  // Empties all samples and clusters.
  void Begin() {
    mu_ = 0.0f;
    radius_squared_ = rule_.radius_squared;
    for (int32_t entry = rule_.ExactEntries(); entry < rule_.Capacity(); ++entry) {
      StoreRow(zeros_.data(), pages_.keys, entry);
      StoreRow(zeros_.data(), pages_.values, entry);
      pages_.positions[Index(entry)] = -1;
      pages_.scores[State(entry)] = 0.0f;
    }
  }

  // Loads the state from the pages.
  void Load() {
    mu_ = pages_.scores[State(kSubGenMuEntry)];
    radius_squared_ = pages_.scores[State(kSubGenRadiusEntry)];
    for (int i = 0; i < rule_.max_clusters; ++i) {
      counts_[i] = pages_.scores[State(rule_.ClusterEntry(i))];
      if (counts_[i] > 0.0f) LoadRow(pages_.values, rule_.ClusterEntry(i), Centre(i));
    }
  }

  // Streams a token; k, v: [head_dim].
  void Stream(const float* k, const float* v, int32_t position) {
    RoundRow(k, key_.data());
    RoundRow(v, value_.data());
    SampleValue(position);
    SampleKey(position);
  }
  void StreamEntry(int32_t entry) {
    LoadRow(pages_.keys, entry, key_.data());
    LoadRow(pages_.values, entry, value_.data());
    SampleValue(pages_.positions[Index(entry)]);
    SampleKey(pages_.positions[Index(entry)]);
  }

  void WriteExact(const float* k, const float* v, int32_t position) {
    const int32_t entry = rule_.ExactEntry(position);
    StoreRow(k, pages_.keys, entry);
    StoreRow(v, pages_.values, entry);
    pages_.positions[Index(entry)] = position;
    pages_.scores[State(entry)] = 0.0f;
    SetLogWeights(entry, 0.0f, 0.0f);
  }

  // Stores the state in the pages.
  void Finish() {
    pages_.scores[State(kSubGenMuEntry)] = mu_;
    pages_.scores[State(kSubGenRadiusEntry)] = radius_squared_;
    for (int j = 0; j < rule_.value_samples; ++j) {
      const int32_t entry = rule_.ValueEntry(j);
      const float weight = pages_.scores[State(entry)];
      const float share = mu_ / (static_cast<float>(rule_.value_samples) * weight);
      SetLogWeights(entry, weight > 0.0f ? std::log(share) : kNothing, kNothing);
    }
    for (int i = 0; i < rule_.max_clusters; ++i) {
      pages_.scores[State(rule_.ClusterEntry(i))] = counts_[i];
      const float share = counts_[i] / static_cast<float>(rule_.cluster_samples);
      for (int j = 0; j < rule_.cluster_samples; ++j) {
        SetLogWeights(rule_.ClusterEntry(i) + j, kNothing,
                      counts_[i] > 0.0f ? std::log(share) : kNothing);
      }
    }
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kNothing = -kInfinity;

  struct Nearest {
    int cluster = -1;  // -1: none
    float distance = kInfinity;
    int free = -1;  // the lowest free cluster, -1: none
  };

  int dim() const { return pages_.layout.head_dim; }
  float* Centre(int cluster) { return &centres_[static_cast<size_t>(cluster) * dim()]; }
  size_t Index(int32_t entry) const { return PageIndex(pages_.layout, blocks_, entry); }
  size_t State(int32_t entry) const { return StateIndex(pages_.layout, blocks_, entry); }
  void LoadRow(const void* rows, int32_t entry, float* out) const {
    LoadPageRow(pages_.layout.dtype, rows, Index(entry) * dim(), dim(), out);
  }
  void StoreRow(const float* row, void* rows, int32_t entry) const {
    StorePageRow(pages_.layout.dtype, row, dim(), rows, Index(entry) * dim());
  }
  void RoundRow(const float* row, float* out) const {
    std::copy_n(row, dim(), out);
    RoundPageRow(pages_.layout.dtype, dim(), out);
  }
  void SetLogWeights(int32_t entry, float numerator, float denominator) const {
    float* log_weights = LogWeightsOf(pages_, blocks_, entry);
    log_weights[0] = numerator;
    log_weights[1] = denominator;
  }

  void SampleValue(int32_t position) {
    float weight = 0.0f;
    Distances::SquaredDistances(value_.data(), zeros_.data(), 1, dim(), &weight);
    if (!(weight > 0.0f)) return;
    const uint64_t bits = RandomBits(value_key_, position);
    for (int j = 0; j < rule_.value_samples; ++j) {
      if (!SubGenTakesValue(SubBits(bits, j), mu_, weight)) continue;
      const int32_t entry = rule_.ValueEntry(j);
      StoreRow(key_.data(), pages_.keys, entry);
      StoreRow(value_.data(), pages_.values, entry);
      pages_.positions[Index(entry)] = position;
      pages_.scores[State(entry)] = weight;
    }
    mu_ += weight;
  }

  void SampleKey(int32_t position) {
    Nearest nearest = FindNearest();
    if (!IsWithin(nearest.distance) && nearest.free < 0) {
      radius_squared_ =
          SubGenWiden(rule_, radius_squared_, std::min(nearest.distance, LeastDistance()));
      Merge(position);
      nearest = FindNearest();
    }
    if (nearest.cluster >= 0 && IsWithin(nearest.distance)) {
      Join(nearest.cluster, position);
    } else {
      Found(nearest.free, position);
    }
  }
  bool IsWithin(float distance_squared) const { return distance_squared <= radius_squared_; }

  // Squared distances of `row` to the centres [first, m), in distances_; infinite
  // for free clusters and NaN.
  void MeasureFrom(const float* row, int first) {
    Distances::SquaredDistances(row, Centre(0) + static_cast<size_t>(first) * dim(),
                                rule_.max_clusters - first, dim(), &distances_[first]);
    for (int i = first; i < rule_.max_clusters; ++i) {
      if (counts_[i] == 0.0f || std::isnan(distances_[i])) distances_[i] = kInfinity;
    }
  }
  Nearest FindNearest() {
    MeasureFrom(key_.data(), 0);
    Nearest nearest;
    for (int i = 0; i < rule_.max_clusters; ++i) {
      if (counts_[i] == 0.0f) {
        if (nearest.free < 0) nearest.free = i;
      } else if (nearest.cluster < 0 || distances_[i] < nearest.distance) {
        nearest.cluster = i;
        nearest.distance = distances_[i];
      }
    }
    return nearest;
  }
  float LeastDistance() {
    float least = kInfinity;
    for (int i = 0; i + 1 < rule_.max_clusters; ++i) {
      if (counts_[i] == 0.0f) continue;
      MeasureFrom(Centre(i), i + 1);
      least = std::min(least, *std::min_element(distances_.begin() + i + 1, distances_.end()));
    }
    return least;
  }

  void Join(int cluster, int32_t position) {
    counts_[cluster] += 1.0f;
    const uint64_t bits = RandomBits(cluster_key_, position);
    for (int j = 0; j < rule_.cluster_samples; ++j) {
      if (SubGenTakesKey(SubBits(bits, j), 1.0f, counts_[cluster]))
        SetSample(rule_.ClusterEntry(cluster) + j, position);
    }
  }
  void Found(int cluster, int32_t position) {
    counts_[cluster] = 1.0f;
    std::copy(key_.begin(), key_.end(), Centre(cluster));
    StoreRow(key_.data(), pages_.values, rule_.ClusterEntry(cluster));
    for (int j = 0; j < rule_.cluster_samples; ++j)
      SetSample(rule_.ClusterEntry(cluster) + j, position);
  }
  void SetSample(int32_t entry, int32_t position) const {
    StoreRow(key_.data(), pages_.keys, entry);
    pages_.positions[Index(entry)] = position;
  }

  void Merge(int32_t position) {
    for (int i = 0; i + 1 < rule_.max_clusters; ++i) {
      if (counts_[i] == 0.0f) continue;
      MeasureFrom(Centre(i), i + 1);
      for (int j = i + 1; j < rule_.max_clusters; ++j) {
        if (counts_[j] > 0.0f && IsWithin(distances_[j])) Absorb(i, j, position);
      }
    }
  }
  void Absorb(int into, int from, int32_t position) {
    const float all = counts_[into] + counts_[from];
    const uint64_t bits = RandomBits(merge_key_, position);
    for (int j = 0; j < rule_.cluster_samples; ++j) {
      const uint64_t sample_bits = SubBits(bits, from * rule_.cluster_samples + j);
      if (SubGenTakesKey(sample_bits, counts_[from], all))
        CopyKey(rule_.ClusterEntry(from) + j, rule_.ClusterEntry(into) + j);
      pages_.positions[Index(rule_.ClusterEntry(from) + j)] = -1;
    }
    counts_[into] = all;
    counts_[from] = 0.0f;
  }
  void CopyKey(int32_t from, int32_t to) const {
    const size_t row = BytesOf(pages_.layout.dtype, dim());
    char* keys = static_cast<char*>(pages_.keys);
    std::memcpy(keys + Index(to) * row, keys + Index(from) * row, row);
    pages_.positions[Index(to)] = pages_.positions[Index(from)];
  }

  const KvPages& pages_;
  const PageIds* blocks_;
  const SubGenRule rule_;
  const uint64_t value_key_, cluster_key_, merge_key_;
  float mu_ = 0.0f;
  float radius_squared_ = 0.0f;
  std::vector<float>& counts_;
  std::vector<float>& centres_;
  std::vector<float>& distances_;
  std::vector<float>& key_;
  std::vector<float>& value_;
  std::vector<float>& zeros_;
};

// One head (index `head`) of SubGenBuild.
template <typename Distances>
void BuildSubGenHead(const SubGenBuildArgs& args, int head) {
  const SequenceTables& tables = args.tables;
  const PageIds* blocks = tables.HeadBlocks(args.slot, args.layer, head);
  const size_t d = args.pages.layout.head_dim;
  const float* k = args.k.f32() + head * args.kv_head_stride;
  const float* v = args.v.f32() + head * args.kv_head_stride;
  thread_local SubGenScratch scratch;
  SubGenHead<Distances> state(args.pages, blocks, args.rule, args.layer, head, &scratch);
  state.Begin();
  const int window = args.n - args.rule.recent;
  for (int j = 0; j < args.rule.sinks; ++j) state.WriteExact(k + j * d, v + j * d, j);
  for (int j = args.rule.sinks; j < window; ++j) state.Stream(k + j * d, v + j * d, j);
  for (int j = window; j < args.n; ++j) state.WriteExact(k + j * d, v + j * d, j);
  state.Finish();
  tables.lengths[tables.HeadIndex(args.slot, args.layer, head)] = args.rule.Capacity();
}

// Calls build(args) with keys and values in fp32 rows, loaded from the pages if args.k is null.
template <typename Build>
void WithSubGenRows(SubGenBuildArgs args, const Build& build) {
  std::vector<float> k, v;
  if (args.k == nullptr) {
    const KvLayout& layout = args.pages.layout;
    args.kv_head_stride = static_cast<int64_t>(args.n) * layout.head_dim;
    k.resize(args.kv_head_stride * args.tables.num_kv_heads);
    v.resize(k.size());
    for (int h = 0; h < args.tables.num_kv_heads; ++h) {
      const PageIds* blocks = args.tables.HeadBlocks(args.slot, args.layer, h);
      for (int entry = 0; entry < args.n; ++entry) {
        const size_t from = PageIndex(layout, blocks, entry) * layout.head_dim;
        const size_t to = h * args.kv_head_stride + static_cast<size_t>(entry) * layout.head_dim;
        LoadPageRow(layout.dtype, args.pages.keys, from, layout.head_dim, &k[to]);
        LoadPageRow(layout.dtype, args.pages.values, from, layout.head_dim, &v[to]);
      }
    }
    args.k = k.data();
    args.v = v.data();
  }
  build(args);
}

// One (row, head) of SubGenInsert.
template <typename Distances>
void InsertSubGenHead(const SubGenInsertArgs& args, int row, int head) {
  const SequenceTables& tables = args.tables;
  const int slot = args.slots[row];
  if (slot < 0 || !tables.rules[slot].weighted) return;
  const size_t head_index = tables.HeadIndex(slot, args.layer, head);
  if (tables.lengths[head_index] != tables.caps[head_index]) return;
  const PageIds* blocks = tables.HeadBlocks(slot, args.layer, head);
  const int32_t oldest = args.rules[slot].ExactEntry(args.positions[row]);
  thread_local SubGenScratch scratch;
  SubGenHead<Distances> state(args.pages, blocks, args.rules[slot], args.layer, head, &scratch);
  state.Load();
  state.StreamEntry(oldest);
  state.Finish();
  tables.victims[head_index] = oldest;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SUBGEN_HEAD_H_
