#include "tools/eval/fit/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "kernels/check.h"
#include "kernels/ops/predict_scores.h"
#include "tools/eval/fit/pages.h"
#include "tools/eval/fit/ridge.h"

namespace hydrant::eval {
namespace {

constexpr float kEchoMaxWeightOfCheck = 10.0f;  // as `echo` has it
constexpr float kLeastScore = 1e-9f;
// Scores below this part of a page's are never kept at useful budgets, and would take the fit's
// attention: they count as equal.
constexpr double kIgnoredPart = 0.5;
constexpr double kPenalties[] = {1.0, 0.3, 0.1, 0.03, 0.01};
constexpr double kShareOfChoice = 0.1;

// Numbers of all heads of a page: [layers][kv_heads][tokens]; a layer without scores has no heads.
using PageNumbers = std::vector<std::vector<std::vector<float>>>;

// score(layer, head, token) of every head with scores.
template <typename ScoreOf>
PageNumbers LogScores(const std::vector<PageLayer>& page, const ScoreOf& score) {
  PageNumbers all;
  for (const PageLayer& layer : page) {
    auto& heads = all.emplace_back();
    for (size_t head = 0; head < layer.echo.size(); ++head) {
      std::vector<float>& logs = heads.emplace_back(layer.echo[head].sum.size());
      for (size_t token = 0; token < logs.size(); ++token)
        logs[token] = std::log(std::max(score(layer, head, token), kLeastScore));
    }
  }
  return all;
}

PageNumbers TargetsOf(const std::vector<PageLayer>& page, float max_weight) {
  return LogScores(page, [max_weight](const PageLayer& layer, size_t head, size_t token) {
    const HeadAttention &again = layer.repetition[head], &echo = layer.echo[head];
    const float sum = again.sum[token] + echo.sum[token];
    const float max = std::max(again.max[token], echo.max[token]);
    const bool unknown =
        again.sum[token] < 0 || echo.sum[token] < 0 || again.max[token] < 0 || echo.max[token] < 0;
    return unknown ? 0.0f : sum + max_weight * max;
  });
}

PageNumbers EchoOf(const std::vector<PageLayer>& page) {
  return LogScores(page, [](const PageLayer& layer, size_t head, size_t token) {
    return layer.echo[head].sum[token] + kEchoMaxWeightOfCheck * layer.echo[head].max[token];
  });
}

// The number that `part` of all numbers are below.
float Quantile(const PageNumbers& numbers, double part) {
  std::vector<float> all;
  for (const auto& heads : numbers) {
    for (const auto& head : heads) all.insert(all.end(), head.begin(), head.end());
  }
  const auto at = all.begin() + static_cast<int64_t>(part * static_cast<double>(all.size() - 1));
  std::nth_element(all.begin(), at, all.end());
  return *at;
}

void RaiseTo(float least, PageNumbers* numbers) {
  for (auto& heads : *numbers) {
    for (auto& head : heads) {
      for (float& number : head) number = std::max(number, least);
    }
  }
}

// The part of the `share` highest targets that are among the `share` highest numbers.
double Overlap(const PageNumbers& targets, const PageNumbers& numbers, double share) {
  const float needed = Quantile(targets, 1 - share), kept = Quantile(numbers, 1 - share);
  int64_t high = 0, both = 0;
  for (size_t layer = 0; layer < targets.size(); ++layer) {
    for (size_t head = 0; head < targets[layer].size(); ++head) {
      for (size_t token = 0; token < targets[layer][head].size(); ++token) {
        if (targets[layer][head][token] < needed) continue;
        ++high;
        if (numbers[layer][head][token] >= kept) ++both;
      }
    }
  }
  return static_cast<double>(both) / static_cast<double>(std::max<int64_t>(high, 1));
}

// One of each kPagesACheck pages, of another text each time where texts take turns.
bool IsCheckPage(size_t page) {
  return (page + page / kPagesACheck) % kPagesACheck == kPagesACheck - 1;
}

// A page of the check.
struct CheckPage {
  std::vector<std::vector<float>> hidden;  // [layers], normalised
  PageNumbers targets, echo;
};

// Divides each row by its root mean square (PredictScoresArgs).
void NormaliseRows(size_t width, std::vector<float>* rows) {
  for (size_t begin = 0; begin < rows->size(); begin += width) {
    const auto row = rows->begin() + static_cast<int64_t>(begin);
    const double squares = std::inner_product(row, row + static_cast<int64_t>(width), row, 0.0);
    if (squares == 0.0) continue;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(width));
    std::for_each(row, row + static_cast<int64_t>(width),
                  [&](float& x) { x = static_cast<float>(x * factor); });
  }
}

PageNumbers Predict(const ScorePredictor& predictor, const CheckPage& page) {
  PageNumbers all;
  const auto width = static_cast<size_t>(predictor.width);
  for (size_t layer = 0; layer < page.targets.size(); ++layer) {
    auto& heads = all.emplace_back();
    for (size_t head = 0; head < page.targets[layer].size(); ++head) {
      const size_t index = layer * predictor.num_kv_heads + head;
      const auto weights = predictor.weights.begin() + static_cast<int64_t>(index * width);
      std::vector<float>& logs = heads.emplace_back(page.targets[layer][head].size());
      for (size_t token = 0; token < logs.size(); ++token) {
        const auto x = page.hidden[layer].begin() + static_cast<int64_t>(token * width);
        logs[token] = std::inner_product(x, x + static_cast<int64_t>(width), weights,
                                         predictor.biases[index]);
      }
    }
  }
  return all;
}

// The mean over the pages.
double MeanOverlap(const std::vector<CheckPage>& pages, double share,
                   const std::function<PageNumbers(const CheckPage&)>& rank) {
  double sum = 0;
  for (const CheckPage& page : pages) sum += Overlap(page.targets, rank(page), share);
  return sum / static_cast<double>(pages.size());
}

ScorePredictor Solve(const std::vector<Ridge>& layers, double penalty, const ModelConfig& config) {
  ScorePredictor predictor = ScorePredictor::ShapedLike(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.KindOf(layer).window > 0) continue;
    const size_t head = static_cast<size_t>(layer) * config.num_kv_heads;
    layers[layer].Solve(penalty, predictor.weights.data() + head * config.hidden_size,
                        predictor.biases.data() + head);
  }
  return predictor;
}

Fit Choose(const std::vector<Ridge>& layers, const std::vector<CheckPage>& checks,
           const ModelConfig& config) {
  Fit best;
  double most = -1;
  for (const double penalty : kPenalties) {
    ScorePredictor predictor = Solve(layers, penalty, config);
    const double overlap = MeanOverlap(
        checks, kShareOfChoice, [&](const CheckPage& page) { return Predict(predictor, page); });
    if (overlap <= most) continue;
    most = overlap;
    best.predictor = std::move(predictor);
    best.penalty = penalty;
  }
  for (const double share : best.check.shares) {
    best.check.learned.push_back(MeanOverlap(
        checks, share, [&](const CheckPage& page) { return Predict(best.predictor, page); }));
    best.check.echo.push_back(
        MeanOverlap(checks, share, [](const CheckPage& page) { return page.echo; }));
  }
  return best;
}

}  // namespace

bool FitCheck::LearnedIsAhead() const {
  return std::accumulate(learned.begin(), learned.end(), 0.0) >
         std::accumulate(echo.begin(), echo.end(), 0.0);
}

absl::StatusOr<std::vector<std::vector<TokenId>>> CutPages(const std::vector<std::string>& texts,
                                                           const FitOptions& options,
                                                           const Tokenizer& tokenizer) {
  const auto num_texts = static_cast<int>(texts.size());
  HYDRANT_CHECK(num_texts > 0);
  std::vector<std::vector<std::vector<TokenId>>> of_texts;
  for (int text = 0; text < num_texts; ++text) {
    const int wanted = (options.pages - text + num_texts - 1) / num_texts;
    auto ids =
        tokenizer.Encode(texts[text], {.add_special_tokens = false, .parse_special_tokens = false});
    if (!ids.ok()) return ids.status();
    const auto size = static_cast<int64_t>(ids->size());
    if (size < int64_t{wanted} * options.page_tokens) {
      return absl::InvalidArgumentError(fmt::format(
          "--text: text {} has {} tokens, too few for its {} pages of {}; give longer texts, or "
          "fewer or shorter pages",
          text + 1, size, wanted, options.page_tokens));
    }
    auto& pages = of_texts.emplace_back();
    for (int page = 0; page < wanted; ++page) {
      const auto begin = ids->begin() + page * (size / wanted);
      pages.emplace_back(begin, begin + options.page_tokens);
    }
  }
  std::vector<std::vector<TokenId>> pages;
  pages.reserve(options.pages);
  for (int i = 0; i < options.pages; ++i)
    pages.push_back(std::move(of_texts[i % num_texts][i / num_texts]));
  return pages;
}

absl::StatusOr<Fit> FitPredictor(const std::vector<std::vector<TokenId>>& pages,
                                 std::span<const TokenId> instruction, const FitOptions& options,
                                 Engine* engine) {
  const ModelConfig& config = engine->config();
  const size_t width = config.hidden_size;
  std::vector<Ridge> layers;
  layers.reserve(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer)
    layers.emplace_back(config.hidden_size, config.num_kv_heads);
  std::vector<CheckPage> checks;
  for (size_t i = 0; i < pages.size(); ++i) {
    if (options.interrupted && options.interrupted()) return absl::CancelledError("interrupted");
    std::vector<PageLayer> page = ReadPage(engine, pages[i], instruction);
    PageNumbers targets = TargetsOf(page, options.max_weight);
    for (PageLayer& layer : page) NormaliseRows(width, &layer.hidden);
    if (IsCheckPage(i)) {
      CheckPage& check = checks.emplace_back();
      check.echo = EchoOf(page);
      check.targets = std::move(targets);
      for (PageLayer& layer : page) check.hidden.push_back(std::move(layer.hidden));
    } else {
      RaiseTo(Quantile(targets, kIgnoredPart), &targets);
      for (int layer = 0; layer < config.num_layers; ++layer) {
        if (targets[layer].empty()) continue;
        layers[layer].Add(page[layer].hidden.data(), static_cast<int>(pages[i].size()),
                          targets[layer]);
      }
    }
    if (options.progress) options.progress(static_cast<int>(i) + 1);
  }
  return Choose(layers, checks, config);
}

}  // namespace hydrant::eval
