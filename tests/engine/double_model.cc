#include "tests/engine/double_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/dequantize.h"

namespace hydrant {
namespace {

using Vector = DoubleModel::Vector;
using Matrix = DoubleModel::Matrix;

Vector ToVector(const TensorView& tensor) {
  std::vector<float> values(tensor.NumElements());
  DequantizeRow(tensor.dtype, tensor.bytes.data(), tensor.NumElements(), values.data());
  return Vector(values.begin(), values.end());
}

Matrix ToMatrix(const TensorView& tensor) {
  const Vector flat = ToVector(tensor);
  const int64_t cols = tensor.shape[1];
  Matrix rows;
  for (int64_t r = 0; r < tensor.shape[0]; ++r)
    rows.emplace_back(flat.begin() + r * cols, flat.begin() + (r + 1) * cols);
  return rows;
}

double Dot(const double* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

Vector Apply(const Matrix& matrix, const Vector& x) {
  Vector y;
  for (const Vector& row : matrix) y.push_back(Dot(row.data(), x.data(), x.size()));
  return y;
}

void Add(Vector* x, const Vector& y) {
  for (size_t i = 0; i < y.size(); ++i) (*x)[i] += y[i];
}

Vector Softmax(Vector logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& value : logits) sum += value = std::exp(value - top);
  for (double& value : logits) value /= sum;
  return logits;
}

Vector Slice(const Vector& x, int index, int width) {
  return Vector(x.begin() + index * width, x.begin() + (index + 1) * width);
}

}  // namespace

DoubleModel::DoubleModel(const ModelSource& source)
    : config_(source.config()),
      embedding_(ToMatrix(*source.Embedding())),
      output_(ToMatrix(config_.tied_embeddings ? *source.Embedding() : *source.Output())),
      final_norm_(ToVector(*source.FinalNorm())) {
  for (int i = 0; i < config_.num_layers; ++i) {
    const LlamaLayerTensors t = *source.Layer(i);
    layers_.push_back({ToVector(t.attn_norm), ToVector(t.ffn_norm), ToMatrix(t.wq), ToMatrix(t.wk),
                       ToMatrix(t.wv), ToMatrix(t.wo), ToMatrix(t.gate), ToMatrix(t.up),
                       ToMatrix(t.down)});
  }
}

Vector DoubleModel::Normalise(const Vector& x, const Vector& weight) const {
  const double mean_square = Dot(x.data(), x.data(), x.size()) / x.size();
  Vector y;
  for (size_t i = 0; i < x.size(); ++i)
    y.push_back(x[i] / std::sqrt(mean_square + config_.norm_eps) * weight[i]);
  return y;
}

void DoubleModel::Rotate(Vector* row, int position) const {
  const int d = config_.head_dim;
  for (size_t head = 0; head < row->size() / d; ++head) {
    for (int i = 0; i < d / 2; ++i) {
      const double angle = position * std::pow(config_.rope_theta, -2.0 * i / d);
      const bool interleaved = config_.rope_pairing == RopePairing::kInterleaved;
      double& a = (*row)[head * d + (interleaved ? 2 * i : i)];
      double& b = (*row)[head * d + (interleaved ? 2 * i + 1 : i + d / 2)];
      const double turned_a = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned_a;
    }
  }
}

Vector DoubleModel::FeedForward(const Layer& layer, const Vector& x) const {
  const Vector normed = Normalise(x, layer.ffn_norm);
  Vector gate = Apply(layer.gate, normed);
  const Vector up = Apply(layer.up, normed);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return Apply(layer.down, gate);
}

Vector DoubleModel::Logits(const Vector& hidden) const {
  return Apply(output_, Normalise(hidden, final_norm_));
}

DoubleModel::Sequence::Sequence(const DoubleModel* model, const CachePlan& plan)
    : model_(model),
      plan_(plan),
      heads_(model->config_.num_layers, std::vector<Head>(model->config_.num_kv_heads)) {}

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

Vector DoubleModel::Sequence::Prefill(const std::vector<TokenId>& prompt) {
  const ModelConfig& config = model_->config_;
  const int n = static_cast<int>(prompt.size()), d = config.head_dim, group = config.GroupSize();
  const bool windowed = plan_.prompt_score == PromptScore::kWindow;
  const int first_summed = windowed ? n - plan_.window.queries : 0;
  Matrix hidden;
  for (const TokenId token : prompt) hidden.push_back(model_->embedding_[token]);
  for (int l = 0; l < config.num_layers; ++l) {
    const Layer& layer = model_->layers_[l];
    Matrix queries;
    for (int i = 0; i < n; ++i) {
      const Vector normed = model_->Normalise(hidden[i], layer.attn_norm);
      Vector q = Apply(layer.wq, normed), k = Apply(layer.wk, normed);
      const Vector v = Apply(layer.wv, normed);
      model_->Rotate(&q, i);
      model_->Rotate(&k, i);
      queries.push_back(q);
      for (int h = 0; h < config.num_kv_heads; ++h)
        heads_[l][h].entries.push_back({i, Slice(k, h, d), Slice(v, h, d)});
    }
    for (int i = 0; i < n; ++i) {
      Vector attended(config.QDim(), 0.0);
      for (int h = 0; h < config.num_kv_heads; ++h) {
        std::vector<Entry>& entries = heads_[l][h].entries;
        Matrix weights;  // [group][i + 1]
        for (int g = 0; g < group; ++g) {
          const double* q = &queries[i][(h * group + g) * d];
          Vector logits;
          for (int j = 0; j <= i; ++j)
            logits.push_back(Dot(q, entries[j].key.data(), d) / std::sqrt(d));
          weights.push_back(Softmax(logits));
          for (int j = 0; j <= i; ++j) {
            for (int c = 0; c < d; ++c)
              attended[(h * group + g) * d + c] += weights[g][j] * entries[j].value[c];
          }
        }
        for (int j = 0; j <= i; ++j) {
          Vector paid;
          for (int g = 0; g < group; ++g) paid.push_back(weights[g][j]);
          if (i >= first_summed) entries[j].score += Reduce(paid);
        }
      }
      Add(&hidden[i], Apply(layer.wo, attended));
      Add(&hidden[i], model_->FeedForward(layer, hidden[i]));
    }
    for (Head& head : heads_[l]) {
      if (windowed) Pool(&head, first_summed);
      if (plan_.prompt_score == PromptScore::kKCenter) RankByKCenter(&head, n - plan_.rule.recent);
      if (plan_.whole_until == 0) Compress(&head, n);
      if (!plan_.mean_scores) continue;
      for (Entry& entry : head.entries) entry.score /= n;
    }
  }
  return model_->Logits(hidden.back());
}

// Scores of the positions before `end` become the maximum or the mean of their neighbours'. What
// lies beyond an edge counts as 0 in a mean.
void DoubleModel::Sequence::Pool(Head* head, int end) const {
  Vector pooled;
  const int reach = plan_.window.kernel / 2;
  for (int j = 0; j < end; ++j) {
    double sum = 0, highest = 0;
    for (int i = std::max(0, j - reach); i <= std::min(end - 1, j + reach); ++i) {
      sum += head->entries[i].score;
      highest = std::max(highest, head->entries[i].score);
    }
    pooled.push_back(plan_.window.pooling == Pooling::kMax ? highest : sum / plan_.window.kernel);
  }
  for (int j = 0; j < end; ++j) head->entries[j].score = pooled[j];
}

// Of the first `end` entries the score is higher the earlier it is chosen as the entry farthest
// from all chosen so far; the first entry comes first.
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

void DoubleModel::Sequence::Compress(Head* head, int n) const {
  if (n > plan_.budget) {
    std::vector<int> middle;  // neither sinks nor recent, best first
    std::vector<bool> keep(n, false);
    int room = plan_.budget;
    for (int j = 0; j < n; ++j) {
      if (j < plan_.rule.sinks || j >= n - plan_.rule.recent) {
        keep[j] = true;
        --room;
      } else {
        middle.push_back(j);
      }
    }
    std::stable_sort(middle.begin(), middle.end(), [&](int a, int b) {
      const double x = head->entries[a].score, y = head->entries[b].score;
      return x != y ? x > y : a > b;
    });
    for (int r = 0; r < room; ++r) keep[middle[r]] = true;
    std::vector<Entry> kept;
    for (int j = 0; j < n; ++j) {
      if (keep[j]) kept.push_back(head->entries[j]);
    }
    head->entries = std::move(kept);
  }
  PickVictim(head, n);
}

void DoubleModel::Sequence::PickVictim(Head* head, int next_position) const {
  head->victim_position = -1;
  if (!plan_.rule.scored || static_cast<int>(head->entries.size()) < plan_.cap) return;
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

Vector DoubleModel::Sequence::Step(TokenId token, int position) {
  if (position > 0 && position == plan_.whole_until) {
    for (std::vector<Head>& layer : heads_) {
      for (Head& head : layer) Compress(&head, position);
    }
  }
  const ModelConfig& config = model_->config_;
  const int d = config.head_dim, group = config.GroupSize();
  Vector hidden = model_->embedding_[token];
  for (int l = 0; l < config.num_layers; ++l) {
    const Layer& layer = model_->layers_[l];
    const Vector normed = model_->Normalise(hidden, layer.attn_norm);
    Vector q = Apply(layer.wq, normed), k = Apply(layer.wk, normed);
    const Vector v = Apply(layer.wv, normed);
    model_->Rotate(&q, position);
    model_->Rotate(&k, position);
    Vector attended(config.QDim(), 0.0);
    for (int h = 0; h < config.num_kv_heads; ++h) {
      Head& head = heads_[l][h];
      std::erase_if(head.entries,
                    [&](const Entry& e) { return e.position == head.victim_position; });
      head.entries.push_back({position, Slice(k, h, d), Slice(v, h, d)});
      Matrix weights;
      for (int g = 0; g < group; ++g) {
        Vector logits;
        for (const Entry& e : head.entries)
          logits.push_back(Dot(&q[(h * group + g) * d], e.key.data(), d) / std::sqrt(d));
        const double top = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
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
      for (size_t j = 0; j < head.entries.size(); ++j) {
        Vector paid;
        for (int g = 0; g < group; ++g) paid.push_back(weights[g][j]);
        head.entries[j].score =
            plan_.rule.decay * head.entries[j].score + plan_.rule.gain * Reduce(paid);
      }
      if (position >= plan_.whole_until) PickVictim(&head, position + 1);
    }
    Add(&hidden, Apply(layer.wo, attended));
    Add(&hidden, model_->FeedForward(layer, hidden));
  }
  return model_->Logits(hidden);
}

}  // namespace hydrant
