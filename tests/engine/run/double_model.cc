#include "tests/engine/run/double_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "engine/cache/policies/self_tuning.h"
#include "kernels/dequantize.h"
#include "kernels/random.h"
#include "tests/dot.h"
#include "tests/engine/cache/plan_view.h"

namespace hydrant {
namespace {

using Vector = DoubleModel::Vector;
using Matrix = DoubleModel::Matrix;

using Linear = DoubleModel::Linear;

// Empty if the tensor does not exist.
Vector ToVector(const TensorView& tensor) {
  if (!tensor.Exists()) return {};
  std::vector<float> values(tensor.NumElements());
  DequantizeRow(tensor.dtype, tensor.bytes.data(), tensor.NumElements(), values.data());
  return Vector(values.begin(), values.end());
}

Matrix ToMatrix(const TensorView& tensor) {
  if (!tensor.Exists()) return {};
  const Vector flat = ToVector(tensor);
  const int64_t cols = tensor.shape[1];
  Matrix rows;
  for (int64_t r = 0; r < tensor.shape[0]; ++r)
    rows.emplace_back(flat.begin() + r * cols, flat.begin() + (r + 1) * cols);
  return rows;
}

Vector Apply(const Matrix& matrix, const Vector& x) {
  Vector y;
  y.reserve(matrix.size());
  for (const Vector& row : matrix) y.push_back(Dot(row.data(), x.data(), x.size()));
  return y;
}

void Add(Vector* x, const Vector& y) {
  for (size_t i = 0; i < y.size(); ++i) (*x)[i] += y[i];
}

Linear ToLinear(const TensorView& weight, const TensorView& bias) {
  return {ToMatrix(weight), ToVector(bias)};
}

Vector Apply(const Linear& linear, const Vector& x) {
  Vector y = Apply(linear.weight, x);
  Add(&y, linear.bias);
  return y;
}

// The queries (0), keys (1) or values (2) of a fused projection [head, 3, head_dim].
Linear OneOfThree(const Linear& fused, int which, int head_dim) {
  Linear one;
  for (size_t row = 0; row < fused.weight.size(); ++row) {
    if (static_cast<int>(row / head_dim) % 3 != which) continue;
    one.weight.push_back(fused.weight[row]);
    one.bias.push_back(fused.bias[row]);
  }
  return one;
}

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
    case Activation::kGeluTanh:
      return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kIdentity:
      return x;
    case Activation::kClampedSwiglu:
      break;  // takes two numbers
  }
  return NAN;
}

// GPT-OSS's activation, with the constants of its published files.
double ClampedSwiglu(double gate, double up) {
  gate = std::min(gate, 7.0);
  return (std::clamp(up, -7.0, 7.0) + 1) * gate / (1 + std::exp(-1.702 * gate));
}

constexpr double kNoLogit = -std::numeric_limits<double>::infinity();

// sink: one more logit in the denominator, without a weight of its own.
Vector Softmax(Vector logits, double sink = kNoLogit) {
  const double top = std::max(sink, *std::max_element(logits.begin(), logits.end()));
  double sum = std::exp(sink - top);
  for (double& value : logits) sum += value = std::exp(value - top);
  for (double& value : logits) value /= sum;
  return logits;
}

Vector Slice(const Vector& x, int index, int width) {
  return Vector(x.begin() + index * width, x.begin() + (index + 1) * width);
}

}  // namespace

DoubleModel::DoubleModel(const ModelSource& source, std::shared_ptr<const ScorePredictor> predictor)
    : config_(source.config()),
      embedding_(ToMatrix(*source.Embedding())),
      positions_(ToMatrix(*source.Positions())),
      output_(ToMatrix(config_.tied_embeddings ? *source.Embedding() : *source.Output())),
      final_norm_{ToVector(*source.FinalNorm()), ToVector(*source.FinalNormBias())},
      predictor_(std::move(predictor)) {
  for (int i = 0; i < config_.num_layers; ++i) {
    const LayerTensors t = *source.Layer(i);
    layers_.push_back({{ToVector(t.attn_norm), ToVector(t.attn_norm_bias)},
                       {ToVector(t.ffn_norm), ToVector(t.ffn_norm_bias)},
                       {ToVector(t.attn_post_norm), {}},
                       {ToVector(t.ffn_post_norm), {}},
                       ToVector(t.q_norm),
                       ToVector(t.k_norm),
                       ToVector(t.sink_logits),
                       ToLinear(t.wq, t.bq),
                       ToLinear(t.wk, t.bk),
                       ToLinear(t.wv, t.bv),
                       ToLinear(t.wo, t.bo),
                       ToLinear(t.gate, t.gate_bias),
                       ToLinear(t.up, t.up_bias),
                       ToLinear(t.down, t.down_bias),
                       ToLinear(t.router, t.router_bias),
                       {}});
    for (const ExpertTensors& e : t.experts) {
      layers_.back().experts.push_back({ToLinear(e.gate, e.gate_bias), ToLinear(e.up, e.up_bias),
                                        ToLinear(e.down, e.down_bias)});
    }
    if (!t.wqkv.Exists()) continue;
    const Linear fused = ToLinear(t.wqkv, t.bqkv);
    layers_.back().wq = OneOfThree(fused, 0, config_.head_dim);
    layers_.back().wk = OneOfThree(fused, 1, config_.head_dim);
    layers_.back().wv = OneOfThree(fused, 2, config_.head_dim);
  }
}

Vector DoubleModel::Embed(TokenId token, int position) const {
  Vector hidden = embedding_[token];
  for (double& value : hidden) value *= config_.embedding_scale;
  if (config_.learned_positions) Add(&hidden, positions_[position]);
  return hidden;
}

Vector DoubleModel::Normalise(const Vector& x, const Norm& norm) const {
  if (norm.weight.empty()) return x;
  const double n = static_cast<double>(x.size());
  const bool centred = config_.norm == NormKind::kLayer;
  const double mean = centred ? std::accumulate(x.begin(), x.end(), 0.0) / n : 0.0;
  double mean_square = 0;
  for (const double value : x) mean_square += (value - mean) * (value - mean) / n;
  Vector y;
  for (size_t i = 0; i < x.size(); ++i)
    y.push_back((x[i] - mean) / std::sqrt(mean_square + config_.norm_eps) * norm.weight[i]);
  Add(&y, norm.bias);
  return y;
}

// With RMSNorm per head or over the whole row, by the length of `norm`.
Vector DoubleModel::Heads(const Linear& linear, const Vector& norm, const Vector& x) const {
  Vector row = Apply(linear, x);
  if (norm.empty()) return row;
  Vector normed;
  for (size_t i = 0; i < row.size() / norm.size(); ++i) {
    const Vector part = Slice(row, static_cast<int>(i), static_cast<int>(norm.size()));
    const Vector one = Normalise(part, {norm, {}});
    normed.insert(normed.end(), one.begin(), one.end());
  }
  return normed;
}

void DoubleModel::RotateQueries(int layer, Vector* row, int position) const {
  const double factor = config_.RopeOf(layer).attention_factor;
  Rotate(layer, row, position, factor * factor);
}

void DoubleModel::Rotate(int layer, Vector* row, int position, double scale) const {
  const int d = config_.head_dim;
  const int turned = config_.KindOf(layer).rotated ? config_.RotaryDim() : 0;
  for (size_t head = 0; head < row->size() / d; ++head) {
    for (int i = 0; i < turned / 2; ++i) {
      const double angle = position * std::pow(config_.RopeOf(layer).theta, -2.0 * i / turned);
      const bool interleaved = config_.rope_pairing == RopePairing::kInterleaved;
      double& a = (*row)[head * d + (interleaved ? 2 * i : i)];
      double& b = (*row)[head * d + (interleaved ? 2 * i + 1 : i + turned / 2)];
      const double turned_a = a * std::cos(angle) - b * std::sin(angle);
      b = scale * (a * std::sin(angle) + b * std::cos(angle));
      a = scale * turned_a;
    }
  }
}

Vector DoubleModel::Gated(const Linear& gate, const Linear& up, const Linear& down,
                          const Vector& x) const {
  Vector gates = Apply(gate, x);
  const Vector ups = Apply(up, x);
  for (size_t i = 0; i < gates.size(); ++i)
    gates[i] = config_.activation == Activation::kClampedSwiglu
                   ? ClampedSwiglu(gates[i], ups[i])
                   : Activated(config_.activation, gates[i]) * ups[i];
  return Apply(down, gates);
}

// Weights: the softmax over all experts; unless kOfAll, the chosen ones are divided by their sum.
void DoubleModel::AddExperts(const Layer& layer, const Vector& normed, Vector* sum) const {
  const Experts& experts = *config_.experts;
  const Vector weights = Softmax(Apply(layer.router, normed));
  std::vector<int> order(experts.count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return weights[a] > weights[b]; });
  order.resize(experts.per_token);
  double total = 0;
  for (const int e : order) total += weights[e];
  for (const int e : order) {
    const Expert& expert = layer.experts[e];
    const double weight =
        experts.weights == ExpertWeights::kOfAll ? weights[e] : weights[e] / total;
    Vector added = Gated(expert.gate, expert.up, expert.down, normed);
    for (double& value : added) value *= weight;
    Add(sum, added);
  }
}

Vector DoubleModel::FeedForward(const Layer& layer, const Vector& x) const {
  const Vector normed = Normalise(x, layer.ffn_norm);
  Vector sum(x.size(), 0.0);
  if (!layer.experts.empty()) AddExperts(layer, normed, &sum);
  if (layer.up.weight.empty()) return sum;
  if (config_.gated) {
    Add(&sum, Gated(layer.gate, layer.up, layer.down, normed));
    return sum;
  }
  Vector up = Apply(layer.up, normed);
  for (double& value : up) value = Activated(config_.activation, value);
  return Apply(layer.down, up);
}

void DoubleModel::AddResidual(const Vector& x, const Norm& post_norm, Vector* hidden) const {
  const Vector normed = Normalise(x, post_norm);
  for (size_t i = 0; i < normed.size(); ++i) (*hidden)[i] += config_.residual_scale * normed[i];
}

void DoubleModel::FinishLayer(const Layer& layer, const Vector& attended, Vector* hidden) const {
  const Vector input = *hidden;
  AddResidual(Apply(layer.wo, attended), layer.attn_post_norm, hidden);
  const Vector forward = FeedForward(layer, config_.parallel_residual ? input : *hidden);
  AddResidual(forward, layer.ffn_post_norm, hidden);
}

Vector DoubleModel::Logits(const Vector& hidden) const {
  Vector logits = Apply(output_, Normalise(hidden, final_norm_));
  const double cap = config_.logit_softcap;
  for (double& logit : logits) {
    logit *= config_.logit_scale;
    if (cap > 0) logit = cap * std::tanh(logit / cap);
  }
  return logits;
}

double DoubleModel::SinkLogit(int layer, int head) const {
  return config_.sink_logits ? layers_[layer].sink_logits[head] : kNoLogit;
}

double DoubleModel::PredictedScore(int layer, int kv_head, const Vector& hidden) const {
  const double rms = std::sqrt(Dot(hidden.data(), hidden.data(), hidden.size()) / hidden.size());
  const size_t index = layer * config_.num_kv_heads + kv_head;
  double product = 0;
  for (size_t i = 0; i < hidden.size(); ++i)
    product += predictor_->weights[index * hidden.size() + i] * hidden[i];
  return std::exp(predictor_->biases[index] + product / rms);
}

double DoubleModel::LogitOf(const double* query, const Vector& key) const {
  const double logit = Dot(query, key.data(), key.size()) * config_.AttentionScale();
  const double cap = config_.attention_softcap;
  return cap > 0 ? cap * std::tanh(logit / cap) : logit;
}

DoubleModel::Sequence::Sequence(const DoubleModel* model, const CachePlan& plan)
    : model_(model), plan_(plan) {
  for (int l = 0; l < model->config_.num_layers; ++l) {
    const bool windowed =
        plan.prompt.num_layers < model->config_.num_layers && model->config_.KindOf(l).window > 0;
    std::vector<std::vector<Head>>& layers = windowed ? in_windows_ : heads_;
    place_.push_back({windowed, static_cast<int>(layers.size())});
    layers.emplace_back(model->config_.num_kv_heads);
  }
}

std::vector<DoubleModel::Head>& DoubleModel::Sequence::HeadsOf(int layer) {
  const auto [windowed, index] = place_[layer];
  return windowed ? in_windows_[index] : heads_[index];
}

double DoubleModel::Sequence::Reduce(const Vector& weights) const {
  switch (plan_.rule.reduce) {
    case GroupReduce::kMax:
      return *std::max_element(weights.begin(), weights.end());
    case GroupReduce::kSumOfSquares:
      return Dot(weights.data(), weights.data(), weights.size());
    case GroupReduce::kMean:
      break;
  }
  return std::accumulate(weights.begin(), weights.end(), 0.0) / weights.size();
}

Vector DoubleModel::Sequence::Prefill(const std::vector<TokenId>& reading) {
  const ModelConfig& config = model_->config_;
  const int n = static_cast<int>(reading.size()), d = config.head_dim, group = config.GroupSize();
  const auto kept = static_cast<int>(plan_.prompt.tokens);
  const bool windowed = plan_.scorer->Name() == "window" || plan_.scorer->Name() == "layer-mean" ||
                        plan_.scorer->Name() == "below-mean";
  const bool both = plan_.scorer->Name() == "probe+echo";
  const bool probed = plan_.scorer->Name() == "probe" || both;
  const bool with_echo = plan_.scorer->Name() == "predicted+echo";
  const bool predicted = plan_.scorer->Name() == "predicted" || with_echo;
  const bool echoed = plan_.scorer->Name() == "echo" || both || with_echo;
  const int first_summed = windowed ? n - WindowOf(plan_) : probed ? n - kept : 0;
  Matrix hidden;
  for (int i = 0; i < n; ++i) hidden.push_back(model_->Embed(reading[i], i));
  for (int l = 0; l < config.num_layers; ++l) {
    const Layer& layer = model_->layers_[l];
    std::vector<Head>& heads = HeadsOf(l);
    const bool in_window = place_[l].first;
    Matrix queries, later;
    for (int i = 0; i < n; ++i) {
      const Vector normed = model_->Normalise(hidden[i], layer.attn_norm);
      Vector q = model_->Heads(layer.wq, layer.q_norm, normed);
      Vector k = model_->Heads(layer.wk, layer.k_norm, normed);
      const Vector v = Apply(layer.wv, normed);
      later.push_back(q);
      model_->RotateQueries(l, &later.back(), kept);
      model_->RotateQueries(l, &q, i);
      model_->Rotate(l, &k, i);
      queries.push_back(q);
      for (int h = 0; h < config.num_kv_heads; ++h) {
        heads[h].entries.push_back({i, Slice(k, h, d), Slice(v, h, d)});
        if (predicted) heads[h].entries.back().earned = model_->PredictedScore(l, h, hidden[i]);
      }
    }
    for (int i = 0; i < n; ++i) {
      const int first = in_window ? std::max(0, i + 1 - config.Window()) : 0;
      Vector attended(config.QDim(), 0.0);
      for (int h = 0; h < config.num_kv_heads; ++h) {
        std::vector<Entry>& entries = heads[h].entries;
        Matrix weights;  // [group][i + 1]
        for (int g = 0; g < group; ++g) {
          const double* q = &queries[i][(h * group + g) * d];
          Vector logits;
          for (int j = 0; j <= i; ++j)
            logits.push_back(j < first ? -std::numeric_limits<double>::infinity()
                                       : model_->LogitOf(q, entries[j].key));
          weights.push_back(Softmax(logits, model_->SinkLogit(l, h * group + g)));
          for (int j = 0; j <= i; ++j) {
            for (int c = 0; c < d; ++c)
              attended[(h * group + g) * d + c] += weights[g][j] * entries[j].value[c];
          }
        }
        for (int j = 0; j <= i && !in_window; ++j) {
          Vector received;
          for (int g = 0; g < group; ++g) received.push_back(weights[g][j]);
          if (i < kept && i >= kept - 32)
            entries[j].late += std::accumulate(received.begin(), received.end(), 0.0) / group;
          if (i < first_summed) continue;
          entries[j].score += Reduce(received);
          entries[j].received.resize(i, 0.0);
          entries[j].received.push_back(Reduce(received));
          CountIfBelowMean(Reduce(received), i + 1, i, &entries[j]);
          entries[j].most =
              std::max(entries[j].most, *std::max_element(received.begin(), received.end()));
        }
      }
      model_->FinishLayer(layer, attended, &hidden[i]);
    }
    if (in_window) {
      for (Head& head : heads) KeepWindow(l, &head);
      continue;
    }
    if (echoed) {
      for (Head& head : heads) {
        for (Entry& entry : head.entries) {
          if (!both) entry.score = entry.most = 0;
          if (plan_.scorer->MeasuresMassByEcho()) entry.late = 0;
        }
      }
      AddEcho(l, later, kept);
    }
    for (Head& head : heads) {
      for (Entry& entry : head.entries) {
        if (plan_.rule.rolling) model_->Rotate(l, &entry.key, -entry.position);
      }
      if (plan_.scorer->Name() == "window") Pool(&head, first_summed);
      if (plan_.scorer->Name() == "k-center") RankByKCenter(&head, n - plan_.rule.recent);
      head.entries.resize(kept);
      if (probed || echoed) MakeScores(&head);
      for (Entry& entry : head.entries) {
        if (predicted) entry.score = entry.earned + (with_echo ? entry.score : 0.0);
        entry.score *= plan_.scorer->Scale(plan_);
        entry.earned = entry.score;
      }
    }
    if (plan_.resolve_at == ResolveAt::kPrefilled) {  // Resolve() adds the late queries
      for (Head& head : heads) {
        for (Entry& entry : head.entries)
          entry.score =
              std::accumulate(entry.received.begin(), entry.received.end() - std::min(n, 160), 0.0);
      }
    }
    Revise(place_[l].second, 0, -1);
  }
  if (DelayedUntil(plan_) == 0) CompressAll(kept);
  return model_->Logits(hidden[kept - 1]);
}

// Keeps the prompt's last entries in a layer with a window. When full, the oldest is the victim.
void DoubleModel::Sequence::KeepWindow(int layer, Head* head) const {
  const auto kept = static_cast<int>(plan_.prompt.tokens), window = model_->config_.Window();
  head->entries.resize(kept);
  head->cap = window;
  for (Entry& entry : head->entries) {
    if (plan_.rule.rolling) model_->Rotate(layer, &entry.key, -entry.position);
  }
  head->entries.erase(head->entries.begin(), head->entries.begin() + std::max(0, kept - window));
  head->victim_position = kept >= window ? kept - window : -1;
}

void DoubleModel::Sequence::AddEcho(int layer, const Matrix& queries, int most) {
  const ModelConfig& config = model_->config_;
  const int d = config.head_dim, asked = std::min(most, static_cast<int>(queries.size()));
  for (int h = 0; h < config.num_kv_heads; ++h) {
    std::vector<Entry>& entries = HeadsOf(layer)[h].entries;
    const int keys = std::min(most, static_cast<int>(entries.size()));
    for (int i = 0; i < asked; ++i) {
      Matrix weights;  // [group][keys]
      for (int g = 0; g < config.GroupSize(); ++g) {
        const double* q = &queries[i][(h * config.GroupSize() + g) * d];
        Vector logits;
        for (int j = 0; j < keys; ++j) logits.push_back(model_->LogitOf(q, entries[j].key));
        weights.push_back(Softmax(logits, model_->SinkLogit(layer, h * config.GroupSize() + g)));
      }
      for (int j = 0; j < keys; ++j) {
        Vector received;
        for (const Vector& of_head : weights) received.push_back(of_head[j]);
        entries[j].score += Reduce(received);
        entries[j].most =
            std::max(entries[j].most, *std::max_element(received.begin(), received.end()));
        if (plan_.scorer->MeasuresMassByEcho())
          entries[j].late +=
              std::accumulate(received.begin(), received.end(), 0.0) / received.size();
      }
    }
  }
}

// From sums and maxima to scores.
void DoubleModel::Sequence::MakeScores(Head* head) const {
  const int d = model_->config_.head_dim;
  for (Entry& entry : head->entries) {
    entry.score = ProbeOf(plan_).sum * entry.score + ProbeOf(plan_).max * entry.most;
    if (ProbeOf(plan_).value_norms)
      entry.score *= std::sqrt(Dot(entry.value.data(), entry.value.data(), d));
  }
}

// Replaces the scores of positions before `end` by the maximum or mean over their neighbours.
// Positions beyond an edge count as 0 in a mean.
void DoubleModel::Sequence::Pool(Head* head, int end) const {
  Vector pooled;
  const auto& pooled_scorer = *ScorerAs<PooledWindow>(plan_);
  const int kernel = pooled_scorer.kernel(), reach = kernel / 2;
  for (int j = 0; j < end; ++j) {
    double sum = 0, highest = 0;
    for (int i = std::max(0, j - reach); i <= std::min(end - 1, j + reach); ++i) {
      sum += head->entries[i].score;
      highest = std::max(highest, head->entries[i].score);
    }
    pooled.push_back(pooled_scorer.pooling() == Pooling::kMax ? highest : sum / kernel);
  }
  for (int j = 0; j < end; ++j) head->entries[j].score = pooled[j];
}

// Greedy k-center over the first `end` entries: starts with the first one and always adds the entry
// farthest from all chosen so far. Earlier choices score higher.
void DoubleModel::Sequence::RankByKCenter(Head* head, int end) const {
  std::vector<Entry>& entries = head->entries;
  for (Entry& entry : entries) entry.score = 0;
  for (int rank = end; rank > 0; --rank) {
    int farthest = -1;
    double most = -1;
    for (int j = 0; j < end; ++j) {
      if (entries[j].score > 0) continue;
      double nearest = std::numeric_limits<double>::infinity();
      for (int i = 0; i < end; ++i) {
        double distance = 0;
        for (size_t c = 0; c < entries[j].key.size(); ++c)
          distance += std::pow(entries[j].key[c] - entries[i].key[c], 2);
        if (entries[i].score > 0) nearest = std::min(nearest, distance);
      }
      if (nearest > most) {
        most = nearest;
        farthest = j;
      }
    }
    entries[farthest].score = rank;
  }
}

// Moving average of the queries before `end` in two parts, the last `late` ones and all others:
// each part has one weight, the mean of its queries' exact weights.
double DoubleModel::Sequence::TwoPartAverage(const Vector& received, double alpha, int late,
                                             int end) const {
  double average = 0;
  for (const auto& [first, last] :
       {std::pair(0, std::max(0, end - late)), std::pair(std::max(0, end - late), end)}) {
    double weights = 0, sum = 0;
    for (int i = first; i < last; ++i) {
      weights += alpha == 0 ? 1.0 : alpha * std::pow(1.0 - alpha, end - 1 - i);
      sum += received[i];
    }
    if (first < last) average += sum * weights / (last - first);
  }
  return average;
}

Matrix DoubleModel::Sequence::TrialMasses() const {
  Matrix masses;
  const int end = static_cast<int>(plan_.prompt.tokens) - 32;
  const auto mass_of = [&](const Head& head, int recent, const auto& score_of) {
    Vector held_out;
    std::vector<std::pair<double, int>> open;
    double mass = 0;
    for (int j = 0; j < end; ++j) {
      const Vector& received = head.entries[j].received;
      held_out.push_back(std::accumulate(received.begin() + end, received.end(), 0.0) / 32);
      if (j >= end - recent) {
        mass += held_out[j];
      } else {
        open.emplace_back(score_of(received), j);
      }
    }
    std::sort(open.rbegin(), open.rend());
    for (int i = 0; i < plan_.cap - recent; ++i) mass += held_out[open[i].second];
    return mass;
  };
  const auto try_all = [&](double rho, const auto& score_of) {
    const int least = plan_.share.scope == BudgetScope::kHead || rho == 0 ? 0 : 1;
    masses.emplace_back();
    for (const std::vector<Head>& layer : heads_) {
      for (const Head& head : layer)
        masses.back().push_back(
            mass_of(head, std::max(least, static_cast<int>(rho * plan_.cap)), score_of));
    }
  };
  for (const double alpha : {0.0, 1.0 / 1024, 1.0 / 256, 1.0 / 64}) {
    for (const double rho : {0.1, 0.25, 0.5})
      try_all(rho,
              [&](const Vector& received) { return TwoPartAverage(received, alpha, 128, end); });
  }
  try_all(0.0, [&](const Vector& received) {
    return std::accumulate(received.begin() + end, received.end(), 0.0);
  });
  return masses;
}

void DoubleModel::Sequence::Decide(const CachePlan& plan) {
  plan_ = plan;
  for (std::vector<Head>& layer : heads_) {
    for (Head& head : layer) {
      for (Entry& entry : head.entries) {
        entry.score = TwoPartAverage(entry.received, SelfTuningOf(plan)->alpha, 160,
                                     static_cast<int>(plan.prompt.tokens));
      }
    }
  }
}

// Unprotected positions of a prompt of n tokens, highest score first.
std::vector<int> DoubleModel::Sequence::BestFirst(const Head& head, int n) const {
  std::vector<int> open;
  for (int j = plan_.rule.sinks; j < n - plan_.rule.recent; ++j) open.push_back(j);
  std::stable_sort(open.begin(), open.end(), [&](int a, int b) {
    const double x = head.entries[a].score, y = head.entries[b].score;
    return x != y ? x > y : a > b;
  });
  return open;
}

// Ada-KV's budgets of the heads of a range of layers: a uniform part (floor_ppm), the rest by each
// head's number of the best entries. Rounded to whole entries by largest remainder.
std::vector<int> DoubleModel::Sequence::Shares(int layer_begin, int layer_end, int n) const {
  const int guarded = plan_.rule.sinks + plan_.rule.recent;
  const int base = plan_.LayerBudget(layer_begin) - guarded;
  std::vector<std::tuple<double, int, int>> all;  // score, position, minus the head
  int heads = 0;
  for (int l = layer_begin; l < layer_end; ++l) {
    for (const Head& head : heads_[l]) {
      std::vector<int> open = BestFirst(head, n);
      if (plan_.share.scope == BudgetScope::kModel && HasCandidates(plan_) && MaxKeep(plan_) < n)
        open.resize(MaxKeep(plan_) - guarded);
      for (const int j : open) all.emplace_back(head.entries[j].score, j, -heads);
      ++heads;
    }
  }
  std::sort(all.rbegin(), all.rend());
  std::vector<int64_t> best(heads, 0);
  for (int i = 0; i < heads * base; ++i) ++best[-std::get<2>(all[i])];
  std::vector<int> keep;
  std::vector<std::pair<int64_t, int>> remainders;  // minus the remainder, the head
  int left = heads * base;
  for (int h = 0; h < heads; ++h) {
    const int64_t millionths =
        plan_.share.floor_ppm * int64_t{base} + (1000000 - plan_.share.floor_ppm) * best[h];
    keep.push_back(static_cast<int>(millionths / 1000000) + guarded);
    left -= keep.back() - guarded;
    remainders.emplace_back(-(millionths % 1000000), h);
  }
  std::sort(remainders.begin(), remainders.end());
  for (int i = 0; i < left; ++i) ++keep[remainders[i].second];
  return keep;
}

void DoubleModel::Sequence::CompressAll(int n) {
  const int layers = static_cast<int>(heads_.size()), heads = model_->config_.num_kv_heads;
  const int64_t growth = plan_.cap == kNoCap ? kNoCap : plan_.cap - plan_.budget;
  std::vector<int> keep;
  for (int l = 0; l < layers; ++l) {
    std::vector<int> of_layer(heads, std::min(n, plan_.LayerBudget(l)));
    if (n > plan_.LayerBudget(l) && plan_.share.scope == BudgetScope::kLayer)
      of_layer = Shares(l, l + 1, n);
    keep.insert(keep.end(), of_layer.begin(), of_layer.end());
  }
  if (n > plan_.budget && plan_.share.scope == BudgetScope::kModel) keep = Shares(0, layers, n);
  for (int l = 0; l < layers; ++l) {
    for (int h = 0; h < heads; ++h) {
      const int kept = keep[l * heads + h];
      heads_[l][h].cap = kept < n ? kept + growth : int64_t{plan_.LayerBudget(l)} + growth;
      Compress(&heads_[l][h], n, kept);
    }
  }
}

void DoubleModel::Sequence::Compress(Head* head, int n, int keep_count) const {
  if (n > keep_count) {
    const std::vector<int> open = BestFirst(*head, n);
    std::vector<bool> keep(n, true);
    for (const int j : open) keep[j] = false;
    for (int r = 0; r < keep_count - (n - static_cast<int>(open.size())); ++r) keep[open[r]] = true;
    std::vector<Entry> kept;
    for (int j = 0; j < n; ++j) {
      if (keep[j]) kept.push_back(head->entries[j]);
    }
    for (Entry& entry : kept) entry.below_mean.clear();
    head->entries = std::move(kept);
  }
  PickVictim(head, n);
}

void DoubleModel::Sequence::PickVictim(Head* head, int next_position) const {
  head->victim_position = -1;
  if (!plan_.rule.scored || DropOf(plan_) > 0 ||
      static_cast<int64_t>(head->entries.size()) < head->cap)
    return;
  double lowest = 0;
  for (const Entry& entry : head->entries) {
    if (entry.position < plan_.rule.sinks || entry.position > next_position - plan_.rule.recent)
      continue;
    const double score = plan_.rule.by_position ? entry.position : entry.score;
    if (head->victim_position < 0 || score < lowest ||
        (score == lowest && entry.position < head->victim_position)) {
      lowest = score;
      head->victim_position = entry.position;
    }
  }
}

// Logit of a query of the newest token and an entry of its cache. A rolling rule uses positions
// within the cache.
double DoubleModel::Sequence::Logit(int layer, Vector query, const Head& head, size_t rank) const {
  Vector key = head.entries[rank].key;
  if (plan_.rule.rolling) {
    model_->RotateQueries(layer, &query, static_cast<int>(head.entries.size()) - 1);
    model_->Rotate(layer, &key, static_cast<int>(rank));
  }
  return model_->LogitOf(query.data(), key);
}

void DoubleModel::Sequence::CountIfBelowMean(double weight, int length, int query,
                                             Entry* entry) const {
  if (weight * length < 1.0 - 1.0 / 65536) entry->below_mean.push_back(query);
}

// Revises the scores of a layer after the newest query's weights were added. first: the oldest
// query that counts; next_position: of the next token.
void DoubleModel::Sequence::Revise(int l, int first, int next_position) {
  std::vector<Head>& layer = heads_[l];
  for (size_t h = 0; h < layer.size(); ++h) {
    for (size_t e = 0; e < layer[h].entries.size(); ++e) {
      Entry& entry = layer[h].entries[e];
      switch (plan_.rule.revision) {
        case Revision::kNone:
          break;
        case Revision::kLayerMean:
          if (h > 0) {
            entry.score = layer[0].entries[e].score;
            break;
          }
          for (size_t other = 1; other < layer.size(); ++other)
            entry.score += layer[other].entries[e].score;
          entry.score /= static_cast<double>(layer.size());
          break;
        case Revision::kRandom:
          entry.score = Draw(l, static_cast<int>(h), next_position, entry.position);
          break;
        case Revision::kBelowMean:
          entry.score = 0;
          for (const int query : entry.below_mean) entry.score -= query >= first ? 1 : 0;
          break;
      }
    }
  }
}

// Random scores of the prompt (next_position < 0) and of later steps, by the formulas of
// kernels/ops/derive_scores.h and kernels/ops/revise_scores.h: draws must have the same bits.
double DoubleModel::Sequence::Draw(int layer, int head, int next_position, int position) const {
  uint64_t key = plan_.rule.seed ^ (uint64_t(layer) << 40) ^ (uint64_t(head) << 20);
  if (next_position >= 0) key = SubBits(key, next_position);
  return static_cast<double>(RandomBits(key, position) >> 40) / (1 << 24);
}

// Scissorhands: a head at its cap evicts the entries that were most often below the mean; of equal
// ones, the older.
void DoubleModel::Sequence::DropMany(Head* head, int next_position) const {
  std::vector<std::pair<double, int>> open;
  for (const Entry& entry : head->entries) {
    if (entry.position >= plan_.rule.sinks && entry.position < next_position - plan_.rule.recent)
      open.emplace_back(entry.score, entry.position);
  }
  std::sort(open.begin(), open.end());
  for (int i = 0; i < DropOf(plan_); ++i) {
    std::erase_if(head->entries,
                  [&](const Entry& entry) { return entry.position == open[i].second; });
  }
  for (Entry& entry : head->entries) entry.below_mean.clear();
}

// After the attention of the token at `position`. layer: index among layers without a window.
void DoubleModel::Sequence::ChooseVictims(int layer, int position) {
  const Head& first = heads_[layer][0];
  const int64_t next_drop = position + 1 + first.cap - static_cast<int64_t>(first.entries.size());
  Revise(layer, static_cast<int>(std::min<int64_t>(next_drop, kNoCap) - plan_.rule.history),
         position + 1);
  for (Head& head : heads_[layer]) {
    if (position >= DelayedUntil(plan_)) PickVictim(&head, position + 1);
  }
}

Vector DoubleModel::Sequence::Step(TokenId token, int position) {
  for (std::vector<Head>& layer : heads_) {
    for (Head& head : layer) {
      if (DropOf(plan_) > 0 && static_cast<int64_t>(head.entries.size()) == head.cap)
        DropMany(&head, position);
    }
  }
  if (position > 0 && position == DelayedUntil(plan_)) {
    CompressAll(position);
  }
  const ModelConfig& config = model_->config_;
  const int d = config.head_dim, group = config.GroupSize();
  Vector hidden = model_->Embed(token, position);
  for (int l = 0; l < config.num_layers; ++l) {
    const Layer& layer = model_->layers_[l];
    const bool in_window = place_[l].first;
    const Vector normed = model_->Normalise(hidden, layer.attn_norm);
    Vector q = model_->Heads(layer.wq, layer.q_norm, normed);
    Vector k = model_->Heads(layer.wk, layer.k_norm, normed);
    const Vector v = Apply(layer.wv, normed);
    if (!plan_.rule.rolling) {
      model_->RotateQueries(l, &q, position);
      model_->Rotate(l, &k, position);
    }
    Vector attended(config.QDim(), 0.0);
    for (int h = 0; h < config.num_kv_heads; ++h) {
      Head& head = HeadsOf(l)[h];
      std::erase_if(head.entries,
                    [&](const Entry& e) { return e.position == head.victim_position; });
      head.entries.push_back({position, Slice(k, h, d), Slice(v, h, d)});
      if (plan_.rule.predicted && !in_window)
        head.entries.back().earned = model_->PredictedScore(l, h, hidden);
      Matrix weights;
      for (int g = 0; g < group; ++g) {
        Vector logits;
        for (size_t rank = 0; rank < head.entries.size(); ++rank)
          logits.push_back(Logit(l, Slice(q, h * group + g, d), head, rank));
        const double sink = model_->SinkLogit(l, h * group + g);
        const double top = std::max(sink, *std::max_element(logits.begin(), logits.end()));
        double sum = std::exp(sink - top);
        for (size_t j = 0; j < logits.size(); ++j)
          sum += std::exp(logits[j] - top + head.entries[j].denominator);
        weights.emplace_back();
        for (size_t j = 0; j < logits.size(); ++j) {
          const Entry& e = head.entries[j];
          weights[g].push_back(std::exp(logits[j] - top + e.denominator) / sum);
          const double weight = std::exp(logits[j] - top + e.numerator) / sum;
          for (int c = 0; c < d; ++c) attended[(h * group + g) * d + c] += weight * e.value[c];
        }
      }
      if (in_window) {
        if (static_cast<int64_t>(head.entries.size()) == head.cap)
          head.victim_position = head.entries[0].position;
        continue;
      }
      for (size_t j = 0; j < head.entries.size(); ++j) {
        Vector received;
        for (int g = 0; g < group; ++g) received.push_back(weights[g][j]);
        head.entries[j].score = plan_.rule.predicted ? head.entries[j].earned
                                                     : plan_.rule.decay * head.entries[j].score +
                                                           plan_.rule.gain * Reduce(received);
        CountIfBelowMean(Reduce(received), static_cast<int>(head.entries.size()), position,
                         &head.entries[j]);
      }
    }
    if (!in_window) ChooseVictims(place_[l].second, position);
    model_->FinishLayer(layer, attended, &hidden);
  }
  return model_->Logits(hidden);
}

// Attention of a row of queries over the entries of each head but the last `unseen`. Adds its
// weights to their scores.
Vector DoubleModel::Sequence::Attend(int l, const Vector& query, size_t unseen,
                                     std::vector<Head>* heads) const {
  const ModelConfig& config = model_->config_;
  const int d = config.head_dim, group = config.GroupSize();
  Vector attended(config.QDim(), 0.0);
  for (int h = 0; h < config.num_kv_heads; ++h) {
    std::vector<Entry>& entries = (*heads)[h].entries;
    Matrix weights;
    for (int g = 0; g < group; ++g) {
      Vector logits;
      for (size_t j = 0; j + unseen < entries.size(); ++j)
        logits.push_back(model_->LogitOf(&query[(h * group + g) * d], entries[j].key));
      weights.push_back(Softmax(logits, model_->SinkLogit(l, h * group + g)));
      for (size_t j = 0; j < weights[g].size(); ++j) {
        for (int c = 0; c < d; ++c)
          attended[(h * group + g) * d + c] += weights[g][j] * entries[j].value[c];
      }
    }
    for (size_t j = 0; j < weights[0].size(); ++j) {
      Vector received;
      for (int g = 0; g < group; ++g) received.push_back(weights[g][j]);
      entries[j].score += Reduce(received);
    }
  }
  return attended;
}

void DoubleModel::Sequence::DropTo(int64_t keep, int next_position, int recent, Head* head) const {
  head->left.clear();
  while (static_cast<int64_t>(head->entries.size()) > keep) {
    auto lowest = head->entries.end();
    const auto score = [&](const Entry& e) {
      return plan_.rule.by_position ? e.position : e.score;
    };
    for (auto it = head->entries.begin(); it != head->entries.end(); ++it) {
      if (it->position < plan_.rule.sinks || it->position >= next_position - recent) continue;
      if (lowest == head->entries.end() || score(*it) < score(*lowest)) lowest = it;
    }
    head->left.push_back(*lowest);
    head->entries.erase(lowest);
  }
}

void DoubleModel::Sequence::Shrink(int mean, int next_position) {
  double sum = 0, count = 0, fewest = mean;
  for (const std::vector<Head>& layer : heads_) {
    for (const Head& head : layer) {
      const auto size = static_cast<double>(head.entries.size());
      sum += size;
      count += 1;
      fewest = std::min(fewest, size);
    }
  }
  DecodeRule& rule = plan_.rule;
  double recent = rule.recent;
  recent = plan_.cap != kNoCap ? std::floor(recent * mean / plan_.cap)
                               : std::max(recent, std::floor(mean / 4.0));
  rule.recent = static_cast<int>(std::min(recent, fewest - rule.sinks));
  plan_.cap = mean;
  for (std::vector<Head>& layer : heads_) {
    for (Head& head : layer) {
      const double part = std::floor(static_cast<double>(head.entries.size()) * mean * count / sum);
      head.cap =
          std::max<int64_t>(static_cast<int64_t>(part), rule.sinks + std::max(rule.recent, 1));
      DropTo(head.cap, next_position, rule.recent, &head);
      PickVictim(&head, next_position);
    }
  }
}

// One token through a layer with a window, as in decode.
void DoubleModel::Sequence::StepInWindow(int l, int position, Vector* hidden) {
  const ModelConfig& config = model_->config_;
  const Layer& layer = model_->layers_[l];
  const Vector normed = model_->Normalise(*hidden, layer.attn_norm);
  Vector q = model_->Heads(layer.wq, layer.q_norm, normed);
  Vector k = model_->Heads(layer.wk, layer.k_norm, normed);
  const Vector v = Apply(layer.wv, normed);
  model_->RotateQueries(l, &q, position);
  model_->Rotate(l, &k, position);
  for (int h = 0; h < config.num_kv_heads; ++h) {
    Head& head = HeadsOf(l)[h];
    head.entries.push_back({position, Slice(k, h, config.head_dim), Slice(v, h, config.head_dim)});
    std::erase_if(head.entries,
                  [&](const Entry& e) { return e.position <= position - config.Window(); });
    const bool full = static_cast<int64_t>(head.entries.size()) == head.cap;
    head.victim_position = full ? head.entries[0].position : -1;
  }
  model_->FinishLayer(layer, Attend(l, q, 0, &HeadsOf(l)), hidden);
}

Vector DoubleModel::Sequence::Append(const std::vector<TokenId>& tokens, int position) {
  const int n = static_cast<int>(tokens.size());
  Matrix hidden;
  for (int i = 0; i < n; ++i) hidden.push_back(model_->Embed(tokens[i], position + i));
  for (int l = 0; l < model_->config_.num_layers; ++l) {
    ReadRun(l, position, &hidden, nullptr);
    if (place_[l].first) continue;
    for (Head& head : HeadsOf(l)) {
      DropTo(head.cap, position + n, plan_.rule.recent, &head);
      PickVictim(&head, position + n);
    }
  }
  return model_->Logits(hidden.back());
}

Vector DoubleModel::Sequence::AppendTurn(const std::vector<TokenId>& tokens, int position,
                                         const TurnRun& turn) {
  const int n = static_cast<int>(tokens.size());
  Matrix hidden;
  for (int i = 0; i < n; ++i) hidden.push_back(model_->Embed(tokens[i], position + i));
  for (int l = 0; l < model_->config_.num_layers; ++l) ReadRun(l, position, &hidden, &turn);
  for (std::vector<Head>& layer : heads_) {
    for (Head& head : layer) head.left.clear();
  }
  if (!turn.keep.empty()) CompactTurn(n, position + n, turn);
  return model_->Logits(hidden.back());
}

// Takes a run through a layer. turn: null where it is none.
void DoubleModel::Sequence::ReadRun(int l, int position, Matrix* hidden, const TurnRun* turn) {
  const ModelConfig& config = model_->config_;
  const int n = static_cast<int>(hidden->size()), d = config.head_dim;
  if (place_[l].first) {
    for (int i = 0; i < n; ++i) StepInWindow(l, position + i, &(*hidden)[i]);
    return;
  }
  const Layer& layer = model_->layers_[l];
  std::vector<Head>& heads = HeadsOf(l);
  Matrix queries, unrotated;
  for (int i = 0; i < n; ++i) {
    const Vector normed = model_->Normalise((*hidden)[i], layer.attn_norm);
    unrotated.push_back(model_->Heads(layer.wq, layer.q_norm, normed));
    queries.push_back(unrotated.back());
    Vector k = model_->Heads(layer.wk, layer.k_norm, normed);
    const Vector v = Apply(layer.wv, normed);
    model_->RotateQueries(l, &queries.back(), position + i);
    model_->Rotate(l, &k, position + i);
    for (int h = 0; h < config.num_kv_heads; ++h) {
      heads[h].entries.push_back({position + i, Slice(k, h, d), Slice(v, h, d)});
      if (plan_.rule.predicted)
        heads[h].entries.back().earned = model_->PredictedScore(l, h, (*hidden)[i]);
    }
  }
  for (int i = 0; i < n; ++i) {
    if (turn != nullptr && i == std::max(0, n - 32)) {  // earlier queries do not count
      for (Head& head : heads) {
        for (Entry& entry : head.entries) entry.score = 0;
      }
    }
    model_->FinishLayer(layer, Attend(l, queries[i], n - 1 - i, &heads), &(*hidden)[i]);
  }
  if (turn != nullptr) return ScoreTurn(l, position, unrotated, *turn);
  for (Head& head : heads) {
    for (Entry& entry : head.entries) {
      if (plan_.rule.predicted) entry.score = entry.earned;
    }
  }
}

// Scores hold the attention of the turn's last 32 queries. Adds what the entries had.
void DoubleModel::Sequence::ScoreTurn(int l, int position, const Matrix& unrotated,
                                      const TurnRun& turn) {
  const bool echoes = plan_.scorer->TurnScore().has_value();
  const int n = static_cast<int>(unrotated.size());
  const bool predicted = plan_.rule.predicted;
  for (Head& head : HeadsOf(l)) {
    for (Entry& entry : head.entries) {
      if (echoes || predicted) entry.score = entry.most = 0;
    }
  }
  if (echoes) {
    Matrix later = unrotated;
    for (Vector& query : later) model_->RotateQueries(l, &query, position + n);
    AddEcho(l, later, std::numeric_limits<int>::max());
  }
  for (Head& head : HeadsOf(l)) {
    if (echoes) MakeScores(&head);
    for (Entry& entry : head.entries) {
      if (predicted || entry.position < turn.scored_end) entry.score += entry.earned;
      entry.earned = entry.score;
    }
  }
}

void DoubleModel::Sequence::CompactTurn(int n, int next_position, const TurnRun& turn) {
  const int layers = static_cast<int>(heads_.size());
  if (plan_.share.scope == BudgetScope::kModel) return DropHeads(0, layers, n, next_position, turn);
  for (int l = 0; l < layers; ++l) DropHeads(l, l + 1, n, next_position, turn);
}

// The heads of the layers put their entries together, unless each keeps its own number.
void DoubleModel::Sequence::DropHeads(int layer_begin, int layer_end, int n, int next_position,
                                      const TurnRun& turn) {
  const int kv_heads = model_->config_.num_kv_heads;
  const int recent = std::min(plan_.rule.recent, n), guarded = plan_.rule.sinks + recent;
  const size_t first = layer_begin * kv_heads, count = (layer_end - layer_begin) * kv_heads;
  std::vector<int64_t> keep(turn.keep.begin() + first, turn.keep.begin() + first + count);
  const auto head = [&](size_t i) -> Head& {
    return heads_[layer_begin + i / kv_heads][i % kv_heads];
  };
  if (plan_.share.scope != BudgetScope::kHead) {
    const int64_t mean = std::accumulate(keep.begin(), keep.end(), int64_t{0}) / count;
    std::vector<std::tuple<double, int, int>> all;  // score, position, minus the head
    for (size_t i = 0; i < count; ++i) {
      for (const Entry& entry : head(i).entries) {
        const bool is_open =
            entry.position >= plan_.rule.sinks && entry.position < next_position - recent;
        if (is_open) all.emplace_back(entry.score, entry.position, -static_cast<int>(i));
      }
    }
    std::sort(all.rbegin(), all.rend());
    keep.assign(count, guarded);
    for (size_t i = 0; i < count * (mean - guarded); ++i) ++keep[-std::get<2>(all[i])];
  }
  for (size_t i = 0; i < count; ++i) DropTo(keep[i], next_position, recent, &head(i));
}

}  // namespace hydrant
