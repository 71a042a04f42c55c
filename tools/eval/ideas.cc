#include "tools/eval/ideas.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "engine/text/passages/passages.h"

namespace hydrant::eval {
namespace {

constexpr std::string_view kPrefix = "idea-";
constexpr float kStructureWeight = 1.0f / 3;
constexpr double kKeptValues = 0.05;  // share of the values that kValues keeps
constexpr double kValueNoise = 0.3;   // of its Gumbel noise on the logarithm of the score

constexpr IdeaInfo kIdeas[] = {
    {Idea::kMeanAttention, "mean-attention", "h2o", "h2o by means over the queries, not sums"},
    {Idea::kKeyDiff, "keydiff", "snapkv", "entries with keys unlike the mean key"},
    {Idea::kRanks, "ranks", "echo", "echo by ranks of sums and maxima within a head"},
    {Idea::kCentred, "centred", "echo", "echo, less each head's mean maximum"},
    {Idea::kStructure, "structure", "echo", "echo, white space and punctuation count a third"},
    {Idea::kLayers, "layers", "snapkv", "sums over heads and all layers so far"},
    {Idea::kStructure, "structure-twice", "reconstruct",
     "reconstruct, white space and punctuation count a third"},
    {Idea::kNoise, "noise", "h2o", "h2o with Gumbel noise"},
    {Idea::kValues, "values", "echo", "echo with some noise; the longest values are kept"},
    {Idea::kQuestions, "questions", "reconstruct", "reconstruct by guessed questions"}};

// The rank of each value, 0 to 1; equal values have ranks in the order of their places.
std::vector<float> RanksOf(std::span<const float> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int i) { return values[i]; });
  std::vector<float> ranks(values.size());
  for (size_t i = 0; i < order.size(); ++i)
    ranks[order[i]] = static_cast<float>(i) / static_cast<float>(values.size());
  return ranks;
}

// Minus the cosine of each key with the mean of the normalised keys, plus 1.
void KeyDiff(const PromptLayer& layer, int head, std::span<float> scores) {
  const int dims = layer.kv.head_dim;
  const float* const keys = layer.kv.k.f32() + head * layer.kv.head_stride;
  std::vector<double> mean(dims, 0.0), lengths(scores.size());
  for (size_t j = 0; j < scores.size(); ++j) {
    const std::span key(keys + j * dims, static_cast<size_t>(dims));
    lengths[j] = std::sqrt(std::inner_product(key.begin(), key.end(), key.begin(), 0.0));
    for (int c = 0; c < dims; ++c) mean[c] += key[c] / lengths[j];
  }
  const double length = std::sqrt(std::inner_product(mean.begin(), mean.end(), mean.begin(), 0.0));
  for (size_t j = 0; j < scores.size(); ++j) {
    double product = 0;
    for (int c = 0; c < dims; ++c) product += keys[j * dims + c] * mean[c];
    scores[j] = static_cast<float>(1 - product / (lengths[j] * length));
  }
}

// Multiplies each score by the exponential of Gumbel noise.
void AddNoise(const PromptLayer& layer, int head, double scale, std::span<float> scores) {
  std::mt19937_64 random(1 + layer.layer * layer.num_kv_heads + head);
  std::extreme_value_distribution<double> gumbel;
  for (float& score : scores) score *= static_cast<float>(std::exp(scale * gumbel(random)));
}

// Puts the entries with the longest values above all others.
void KeepValues(const PromptLayer& layer, int head, std::span<float> scores) {
  const int dims = layer.kv.head_dim;
  const float* const values = layer.kv.v.f32() + head * layer.kv.head_stride;
  std::vector<std::pair<double, size_t>> lengths;
  for (size_t j = 0; j < scores.size(); ++j) {
    const float* const value = values + j * dims;
    lengths.emplace_back(std::inner_product(value, value + dims, value, 0.0), j);
  }
  const auto kept =
      static_cast<size_t>(std::ceil(kKeptValues * static_cast<double>(scores.size())));
  std::partial_sort(lengths.begin(), lengths.begin() + static_cast<int64_t>(kept), lengths.end(),
                    std::greater());
  const float highest = *std::ranges::max_element(scores);
  for (size_t i = 0; i < kept; ++i) scores[lengths[i].second] += highest;
}

class Changed final : public PromptScorer {
 public:
  Changed(Idea idea, std::shared_ptr<const PromptScorer> base, std::vector<bool> is_structure)
      : idea_(idea), base_(std::move(base)), is_structure_(std::move(is_structure)) {}

  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int read) const override {
    return base_->Statistics(plan, read);
  }
  std::vector<ColumnStatistic> Echo(const CachePlan& plan) const override {
    return base_->Echo(plan);
  }
  bool ReadsProbe() const override { return base_->ReadsProbe(); }
  std::optional<EchoScore> TurnScore() const override { return base_->TurnScore(); }

  const float* Score(const PromptLayer& layer) const override {
    if (idea_ == Idea::kCentred) {
      for (int head = 0; head < layer.num_kv_heads; ++head) Centre(OfHead(layer, 1, head));
    }
    if (idea_ == Idea::kRanks) return ByRanks(layer);
    const float* const scores = base_->Score(layer);
    if (scores != layer.scores) {
      std::copy_n(scores, layer.num_kv_heads * layer.stride, layer.scores);
    }
    if (idea_ == Idea::kLayers) AddLayers(layer);
    for (int head = 0; head < layer.num_kv_heads; ++head)
      Change(layer, head, {layer.scores + head * layer.stride, static_cast<size_t>(layer.n)});
    return layer.scores;
  }

 private:
  static std::span<float> OfHead(const PromptLayer& layer, int statistic, int head) {
    return {layer.statistics[statistic] + head * layer.stride, static_cast<size_t>(layer.n)};
  }

  static void Centre(std::span<float> maxima) {
    const double sum = std::accumulate(maxima.begin(), maxima.end(), 0.0);
    const auto mean = static_cast<float>(sum / static_cast<double>(maxima.size()));
    for (float& maximum : maxima) maximum = std::max(0.0f, maximum - mean);
  }

  static const float* ByRanks(const PromptLayer& layer) {
    for (int head = 0; head < layer.num_kv_heads; ++head) {
      const std::vector<float> sums = RanksOf(OfHead(layer, 0, head));
      const std::vector<float> maxima = RanksOf(OfHead(layer, 1, head));
      for (int j = 0; j < layer.n; ++j) layer.scores[head * layer.stride + j] = sums[j] + maxima[j];
    }
    return layer.scores;
  }

  // The sums over all heads of this layer and of those before, the same for every head.
  void AddLayers(const PromptLayer& layer) const {
    if (layer.layer == 0) sums_.assign(layer.n, 0.0f);
    for (int j = 0; j < layer.n; ++j) {
      for (int head = 0; head < layer.num_kv_heads; ++head)
        sums_[j] += layer.scores[head * layer.stride + j];
      for (int head = 0; head < layer.num_kv_heads; ++head)
        layer.scores[head * layer.stride + j] = sums_[j];
    }
  }

  void Change(const PromptLayer& layer, int head, std::span<float> scores) const {
    if (idea_ == Idea::kMeanAttention) {
      for (size_t j = 0; j < scores.size(); ++j) scores[j] /= static_cast<float>(scores.size() - j);
    } else if (idea_ == Idea::kKeyDiff) {
      KeyDiff(layer, head, scores);
    } else if (idea_ == Idea::kStructure) {
      for (size_t j = 0; j < scores.size(); ++j) {
        if (is_structure_[j]) scores[j] *= kStructureWeight;
      }
    } else if (idea_ == Idea::kNoise) {
      AddNoise(layer, head, 1.0, scores);
    } else if (idea_ == Idea::kValues) {
      AddNoise(layer, head, kValueNoise, scores);
      KeepValues(layer, head, scores);
    }
  }

  const Idea idea_;
  const std::shared_ptr<const PromptScorer> base_;
  const std::vector<bool> is_structure_;
  mutable std::vector<float> sums_;  // of kLayers: one prompt's layers come in order
};

}  // namespace

std::span<const IdeaInfo> ListIdeas() { return kIdeas; }

const IdeaInfo* FindIdea(std::string_view arm) {
  if (!arm.starts_with(kPrefix)) return nullptr;
  const auto found = std::ranges::find(kIdeas, arm.substr(kPrefix.size()), &IdeaInfo::name);
  return found == std::end(kIdeas) ? nullptr : found;
}

std::shared_ptr<const PromptScorer> ChangedScorer(Idea idea,
                                                  std::shared_ptr<const PromptScorer> scorer,
                                                  std::vector<bool> is_structure) {
  return std::make_shared<Changed>(idea, std::move(scorer), std::move(is_structure));
}

std::vector<TokenId> GuessedQuestions(const std::vector<TokenId>& context,
                                      const Tokenizer& tokenizer) {
  const auto encode = [&](std::string_view text) {
    return *tokenizer.Encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
  };
  const std::vector<TokenId> question = encode("\nQuestion: which words follow \"");
  const std::vector<TokenId> answer = encode("\"? Answer:");
  std::vector<Passage> passages = SplitPassages(tokenizer, context);
  std::ranges::shuffle(passages, std::mt19937_64(1));
  std::vector<TokenId> read;
  const auto append = [&](auto begin, auto end) { read.insert(read.end(), begin, end); };
  for (size_t i = 0; read.size() < context.size() && !passages.empty(); ++i) {
    const Passage& passage = passages[i % passages.size()];
    const auto begin = context.begin() + passage.begin, end = context.begin() + passage.end;
    append(question.begin(), question.end());
    append(begin, begin + (end - begin) / 2);
    append(answer.begin(), answer.end());
    append(begin + (end - begin) / 2, end);
  }
  if (passages.empty()) read = context;
  read.resize(context.size());
  return read;
}

std::vector<bool> StructureOf(const std::vector<TokenId>& tokens, const Tokenizer& tokenizer) {
  std::vector<bool> is_structure;
  for (const TokenId token : tokens) {
    const std::string bytes = tokenizer.TokenBytes(token, /*skip_special=*/false, false);
    is_structure.push_back(std::ranges::all_of(
        bytes, [](unsigned char c) { return std::isspace(c) != 0 || std::ispunct(c) != 0; }));
  }
  return is_structure;
}

}  // namespace hydrant::eval
