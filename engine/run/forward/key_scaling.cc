#include "engine/run/forward/key_scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "engine/run/forward/rope_table.h"
#include "kernels/dequantize.h"
#include "kernels/status_macros.h"
#include "kernels/weight_parts.h"

namespace hydrant {
namespace {

constexpr double kLeastOfLargest = 1e-4;

// Of the channels of all heads of queries or keys: [heads * head_dim].
struct Channels {
  std::vector<double> constant;  // the part that all tokens share, before RoPE
  std::vector<double> square;    // mean square of the rest
};

// Empty if the model has no such tensor.
std::vector<float> ValuesOf(const TensorView& tensor) {
  if (!tensor.Exists() || tensor.bytes.empty()) return {};
  std::vector<float> values(tensor.NumElements());
  DequantizeRow(tensor.dtype, tensor.bytes.data(), tensor.NumElements(), values.data());
  return values;
}

float At(const std::vector<float>& values, size_t i, float otherwise) {
  return values.empty() ? otherwise : values[i];
}

enum class Kind : uint8_t { kQueries, kKeys };  // in the order of a fused projection

// The rows of a kind and their biases; none: no bias.
struct Projection {
  std::vector<WeightPart> rows;
  std::vector<float> bias;
};

Projection ProjectionOf(Kind kind, const LayerTensors& tensors, const ModelConfig& config) {
  const bool keys = kind == Kind::kKeys;
  if (!tensors.wqkv.Exists())
    return {{PartOf(keys ? tensors.wk : tensors.wq)}, ValuesOf(keys ? tensors.bk : tensors.bq)};
  Projection projection;
  const std::vector<float> biases = ValuesOf(tensors.bqkv);
  const int d = config.head_dim;
  // Drawn weights have no order.
  if (tensors.wqkv.normals.has_value()) return {{PartOf(tensors.wqkv)}, biases};
  for (int head = 0; head < config.num_heads; ++head) {
    const int first = (3 * head + static_cast<int>(kind)) * d;
    projection.rows.push_back(PartOf(tensors.wqkv.Rows(first, d)));
    if (biases.empty()) continue;
    projection.bias.insert(projection.bias.end(), biases.begin() + first,
                           biases.begin() + first + d);
  }
  return projection;
}

absl::StatusOr<Channels> ProjectedChannels(const Projection& projection,
                                           const LayerTensors& tensors, int dim) {
  const std::vector<float> gain = ValuesOf(tensors.attn_norm);
  const std::vector<float> shift = ValuesOf(tensors.attn_norm_bias);
  HYDRANT_ASSIGN_OR_RETURN(const WeightRows rows,
                           WeightRows::Make(projection.rows, WeightDType::kStored));
  std::vector<uint8_t> scratch(rows.scratch_bytes());
  std::vector<float> row(rows.cols());
  Channels channels = {std::vector<double>(dim), std::vector<double>(dim)};
  for (int c = 0; c < dim; ++c) {
    const WeightRows::Row stored = rows.Get(c, scratch.data());
    DequantizeRow(stored.dtype, stored.bytes, rows.cols(), row.data());
    channels.constant[c] = At(projection.bias, c, 0.0f);
    for (int i = 0; i < rows.cols(); ++i) {
      const double weight = row[i], varying = weight * At(gain, i, 1.0f);
      channels.square[c] += varying * varying;
      channels.constant[c] += weight * At(shift, i, 0.0f);
    }
  }
  return channels;
}

Channels NormalisedChannels(const std::vector<float>& norm, int dim) {
  Channels channels = {std::vector<double>(dim), std::vector<double>(dim)};
  for (int c = 0; c < dim; ++c) {
    const double weight = norm[c % norm.size()];  // of one head, or of all
    channels.square[c] = weight * weight;
  }
  return channels;
}

// A channel and the channel that RoPE rotates together with it; the same, if none is.
struct Pair {
  int first, second;
};

std::vector<Pair> PairsOf(const ModelConfig& config, int layer) {
  const int rotary = config.RotaryDimOf(layer), half = rotary / 2;
  std::vector<Pair> pairs;
  for (int i = 0; i < half; ++i) {
    const bool neighbours = config.rope_pairing == RopePairing::kInterleaved;
    pairs.push_back(neighbours ? Pair{2 * i, 2 * i + 1} : Pair{i, i + half});
  }
  for (int c = rotary; c < config.head_dim; ++c) pairs.push_back({c, c});
  return pairs;
}

// Means of the cosine and the sine of a pair's angle.
struct MeanTurn {
  double cos = 1.0, sin = 0.0;
};

std::vector<MeanTurn> MeanTurns(const ModelConfig& config, int layer, size_t pairs) {
  std::vector<MeanTurn> turns(pairs);
  const int rotary = config.RotaryDimOf(layer), half = rotary / 2;
  if (half == 0) return turns;
  const int positions = std::min<int>(kCentrePositions, config.max_context);
  const RopeTable table = MakeRopeTable(config.RopeOf(layer), rotary, positions);
  for (int i = 0; i < half; ++i) {
    MeanTurn sum = {0.0, 0.0};
    for (int p = 0; p < positions; ++p) {
      sum.cos += table.cos[static_cast<size_t>(p) * half + i];
      sum.sin += table.sin[static_cast<size_t>(p) * half + i];
    }
    turns[i] = {sum.cos / positions, sum.sin / positions};
  }
  return turns;
}

// Of one head: [head_dim] each.
struct HeadScaling {
  std::vector<int> powers;  // factors of keys, as powers of two
  std::vector<double> offsets;
};

// Moves the mean of the rotated constant part to `offset`, and the rest of it to the mean square.
void Centre(const Pair& pair, const MeanTurn& turn, const double* constant, double* square,
            double* offset) {
  const auto [a, b] = pair;
  offset[a] = constant[a] * turn.cos - (a == b ? 0.0 : constant[b] * turn.sin);
  if (a != b) offset[b] = constant[b] * turn.cos + constant[a] * turn.sin;
  square[a] += constant[a] * constant[a] - offset[a] * offset[a];
  if (a != b) square[b] += constant[b] * constant[b] - offset[b] * offset[b];
}

// Means of a head's squares over the elements of each pair, at least a share of the largest.
std::vector<double> SquaresOfPairs(const std::vector<Pair>& pairs, std::span<const double> square) {
  std::vector<double> means;
  means.reserve(pairs.size());
  for (const auto& [a, b] : pairs) means.push_back((square[a] + square[b]) / 2);
  const double least = kLeastOfLargest * *std::max_element(means.begin(), means.end());
  for (double& mean : means) mean = std::max(mean, least);
  return means;
}

// Of one head of keys. of_queries: [pairs] of the queries that read it.
HeadScaling ScalingOf(const std::vector<Pair>& pairs, const std::vector<MeanTurn>& turns,
                      std::span<const double> constant, std::span<double> square,
                      std::span<const double> of_queries) {
  HeadScaling scaling = {std::vector<int>(square.size(), 0),
                         std::vector<double>(square.size(), 0.0)};
  for (size_t i = 0; i < pairs.size(); ++i)
    Centre(pairs[i], turns[i], constant.data(), square.data(), scaling.offsets.data());
  const std::vector<double> of_keys = SquaresOfPairs(pairs, square);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (!(of_keys[i] > 0.0) || !(of_queries[i] > 0.0)) continue;
    const auto power = static_cast<int>(std::lround(std::log2(of_queries[i] / of_keys[i]) / 4));
    for (const int c : {pairs[i].first, pairs[i].second}) scaling.powers[c] = power;
  }
  return scaling;
}

absl::StatusOr<Channels> ChannelsOf(Kind kind, const LayerTensors& tensors,
                                    const ModelConfig& config) {
  const bool keys = kind == Kind::kKeys;
  const int dim = keys ? config.KvDim() : config.QDim();
  const std::vector<float> norm = ValuesOf(keys ? tensors.k_norm : tensors.q_norm);
  if (!norm.empty()) return NormalisedChannels(norm, dim);
  return ProjectedChannels(ProjectionOf(kind, tensors, config), tensors, dim);
}

// Mean squares of the channels of the queries that read each KV head: [kv_dim].
absl::StatusOr<std::vector<double>> SquaresOfQueries(const LayerTensors& tensors,
                                                     const ModelConfig& config) {
  HYDRANT_ASSIGN_OR_RETURN(const Channels queries, ChannelsOf(Kind::kQueries, tensors, config));
  const size_t d = config.head_dim, group = config.num_heads / config.num_kv_heads;
  std::vector<double> squares(config.KvDim());
  for (size_t i = 0; i < queries.square.size(); ++i) {
    const double square = queries.square[i] + queries.constant[i] * queries.constant[i];
    squares[i / d / group * d + i % d] += square / static_cast<double>(group);
  }
  return squares;
}

}  // namespace

bool MayCentreKeys(const ModelConfig& config, const LayerTensors& tensors) {
  return !tensors.sink_logits.Exists() && config.attention_softcap == 0.0;
}

absl::StatusOr<KeyScaling> KeyScalingOf(const LayerTensors& tensors, const ModelConfig& config,
                                        int layer, bool centre) {
  HYDRANT_ASSIGN_OR_RETURN(Channels keys, ChannelsOf(Kind::kKeys, tensors, config));
  HYDRANT_ASSIGN_OR_RETURN(const std::vector<double> queries, SquaresOfQueries(tensors, config));
  const size_t d = config.head_dim, heads = config.num_heads;
  const size_t group = heads / config.num_kv_heads;
  const std::vector<Pair> pairs = PairsOf(config, layer);
  std::vector<MeanTurn> turns(pairs.size(), MeanTurn{0.0, 0.0});
  if (centre) turns = MeanTurns(config, layer, pairs.size());
  KeyScaling scaling = {std::vector<float>((heads + config.num_kv_heads) * d),
                        std::vector<float>(config.KvDim())};
  bool centred = false;
  for (size_t head = 0; head < static_cast<size_t>(config.num_kv_heads); ++head) {
    const HeadScaling of_head =
        ScalingOf(pairs, turns, std::span(keys.constant).subspan(head * d, d),
                  std::span(keys.square).subspan(head * d, d),
                  SquaresOfPairs(pairs, std::span(queries).subspan(head * d, d)));
    for (size_t c = 0; c < d; ++c) {
      const int power = of_head.powers[c];
      scaling.factors[(heads + head) * d + c] = std::ldexp(1.0f, power);
      for (size_t query = head * group; query < (head + 1) * group; ++query)
        scaling.factors[query * d + c] = std::ldexp(1.0f, -power);
      const double offset = std::ldexp(of_head.offsets[c], power);
      scaling.offsets[head * d + c] = static_cast<float>(offset);
      centred = centred || offset != 0.0;
    }
  }
  if (!centred) scaling.offsets.clear();
  return scaling;
}

}  // namespace hydrant
