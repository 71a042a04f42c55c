#include "kernels/ops/prefill_attention.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/page_element.h"
#include "kernels/page_row.h"
#include "kernels/reference/attention_weights.h"
#include "kernels/reference/dot.h"
#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

// Keys and values of one KV head: the prefix, then the suffix up to the run's last query.
struct Keys {
  std::vector<float> k, v;  // [prefix + suffix, head_dim]
  int prefix = 0;
};

Keys KeysOf(const PrefillAttentionArgs& args, int kv_head) {
  Keys keys;
  if (args.prefix != nullptr) {
    const PagedPrefix& prefix = *args.prefix;
    const SequenceTables& tables = prefix.tables;
    const KvLayout& layout = prefix.pages.layout;
    const PageIds* blocks = tables.HeadBlocks(prefix.slot, prefix.layer, kv_head);
    keys.prefix = tables.lengths[tables.HeadIndex(prefix.slot, prefix.layer, kv_head)];
    keys.k.resize(static_cast<size_t>(keys.prefix) * args.head_dim);
    keys.v.resize(keys.k.size());
    for (int entry = 0; entry < keys.prefix; ++entry) {
      const size_t index = PageIndex(layout, blocks, entry), row = index * args.head_dim;
      // A window counts keys in the order of their positions.
      const int place = args.window == kNoWindow
                            ? entry
                            : keys.prefix - prefix.next_position + prefix.pages.positions[index];
      const size_t to = static_cast<size_t>(place) * args.head_dim;
      LoadPageRow(layout.dtype, prefix.pages.keys, row, args.head_dim, &keys.k[to]);
      LoadPageRow(layout.dtype, prefix.pages.values, row, args.head_dim, &keys.v[to]);
    }
  }
  const float* k = args.k.f32() + kv_head * args.kv_head_stride;
  const float* v = args.v.f32() + kv_head * args.kv_head_stride;
  const size_t suffix = static_cast<size_t>(args.NumKeys()) * args.head_dim;
  keys.k.insert(keys.k.end(), k, k + suffix);
  keys.v.insert(keys.v.end(), v, v + suffix);
  return keys;
}

// Attends with one head of one query over the keys [begin, count) and returns the
// weights, starting with key 0.
std::vector<double> Attend(const PrefillAttentionArgs& args, const Keys& keys, int query, int head,
                           int begin, int count) {
  const int d = args.head_dim;
  const size_t row = (static_cast<size_t>(query) * args.num_heads + head) * d;
  std::vector<double> weights(count, -std::numeric_limits<double>::infinity());
  for (int j = begin; j < count; ++j) {
    const double dot = Dot(args.q.f32() + row, &keys.k[static_cast<size_t>(j) * d], d);
    weights[j] = SoftCap(dot * args.scale, args.softcap);
  }
  Softmax(weights, SinkLogit(args.sink_logits, head));
  if (args.out == nullptr) return weights;
  std::vector<double> sum(d, 0.0);
  for (int j = begin; j < count; ++j) {
    for (int i = 0; i < d; ++i) sum[i] += weights[j] * keys.v[static_cast<size_t>(j) * d + i];
  }
  for (int i = 0; i < d; ++i)
    StorePageElement(args.out_dtype, args.out, row + i, static_cast<float>(sum[i]));
  return weights;
}

using Kind = ColumnStatistic::Kind;

// The contribution of one query to a statistic of a key that it sees: its weight, or whether that
// is below the mean of `count` weights.
double Contribution(Kind kind, double weight, int count) {
  if (kind != Kind::kBelowMean) return weight;
  return weight * count < 1.0 - kBelowMeanMargin ? 1.0 : 0.0;
}

// Adds a tile's values, prefix first, to the totals that have an output.
void AddTile(const ColumnStatistic& statistic, int kv_head, int prefix,
             const std::vector<double>& tile) {
  const auto add = [&](float* totals, size_t begin, size_t end) {
    for (size_t j = begin; totals != nullptr && j < end; ++j) {
      float& total = totals[j - begin];
      const auto value = static_cast<float>(tile[j]);
      total = statistic.kind == Kind::kMax ? std::max(total, value) : total + value;
    }
  };
  const auto row = [&](float* totals, int64_t stride) {
    return totals == nullptr ? nullptr : totals + kv_head * stride;
  };
  add(row(statistic.prefix_out, statistic.prefix_stride), 0, prefix);
  add(row(statistic.out, statistic.stride), prefix, tile.size());
}

// The first key that a query at `position` sees, counted from the prefix's first.
int FirstSeen(const PrefillAttentionArgs& args, const Keys& keys, int position) {
  if (args.window == kNoWindow) return 0;
  return std::max(0, keys.prefix + position - args.window + 1);
}

// Queries [begin, end) of one KV head: a tile. Its sum is added to each total once.
void AttendTile(const PrefillAttentionArgs& args, const Keys& keys, int kv_head, int begin,
                int end) {
  const int group = args.num_heads / args.num_kv_heads;
  const size_t num_keys = keys.prefix + args.KeysSeenAt(args.first_position + end - 1);
  std::vector<std::vector<double>> tiles(args.statistics.size(), std::vector<double>(num_keys));
  for (int query = begin; query < end; ++query) {
    const int position = args.first_position + query;
    const int count = keys.prefix + args.KeysSeenAt(position);
    std::vector<std::vector<double>> weights;
    weights.reserve(group);
    for (int g = 0; g < group; ++g) {
      weights.push_back(
          Attend(args, keys, query, kv_head * group + g, FirstSeen(args, keys, position), count));
    }
    for (size_t s = 0; s < tiles.size(); ++s) {
      const ColumnStatistic& statistic = args.statistics[s];
      if (!statistic.Touches(position, position + 1)) continue;
      for (int j = 0; j < count; ++j) {
        const double weight = ReduceGroup(statistic.reduce, weights, j);
        const double value = Contribution(statistic.kind, weight, count);
        tiles[s][j] =
            statistic.kind == Kind::kMax ? std::max(tiles[s][j], value) : tiles[s][j] + value;
      }
    }
  }
  for (size_t s = 0; s < tiles.size(); ++s) {
    if (args.statistics[s].Touches(args.first_position + begin, args.first_position + end))
      AddTile(args.statistics[s], kv_head, keys.prefix, tiles[s]);
  }
}

}  // namespace

void PrefillAttention(const PrefillAttentionArgs& args) {
  HYDRANT_CHECK(args.WindowIsValid());
  for (int h = 0; h < args.num_kv_heads; ++h) {
    const Keys keys = KeysOf(args, h);
    for (int begin = 0; begin < args.num_queries; begin += kQueryTile) {
      AttendTile(args, keys, h, begin, std::min(begin + kQueryTile, args.num_queries));
    }
  }
}

}  // namespace hydrant::reference
