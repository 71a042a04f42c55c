#include "tools/eval/pictures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fmt/format.h"
#include "tools/eval/attention_loss.h"
#include "tools/eval/clusters.h"
#include "tools/eval/entry_classes.h"
#include "tools/eval/length_study.h"
#include "tools/eval/masks.h"
#include "tools/eval/numbers.h"

namespace hydrant::eval {
namespace {

using Json = nlohmann::json;

constexpr int kWindow = 32;      // queries that measure concentration
constexpr int kCentres = 16;     // SubGen, figure 1
constexpr double kGamma = 0.01;  // CO2, section 3.2
constexpr double kClassesBudget = 0.2;
constexpr double kMaskBudgets[] = {0.05, 0.1, 0.2, 0.4};
constexpr double kWholeBudget = 0.2;  // for masks over a whole text
constexpr int kHistogram = 20;
constexpr size_t kCharactersAToken = 8;

std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (const double value : values) {
    double rank = 0;
    for (const double other : values) rank += other < value ? 1.0 : other == value ? 0.5 : 0.0;
    ranks.push_back(rank);
  }
  return ranks;
}

// The text under analysis.
struct Subject {
  const AnatomyOptions& options;
  std::vector<TokenId> tokens;  // context and continuation
  std::vector<TokenId> longer;  // up to the longest sketch
  Laboratory* laboratory;
  PlainForward* forward;
  Activations activations;        // of `tokens`
  std::vector<double> collected;  // CollectedAttention of the context
  double full_nll = 0;            // of the continuation, by the plain pass

  Trial MakeTrial() const {
    Trial trial;
    const auto context_end = tokens.begin() + options.length;
    trial.context.assign(tokens.begin(), context_end);
    trial.dialogues = {{{.foreseen = {context_end, tokens.end()}}}};
    trial.traced = true;
    return trial;
  }
};

// (a) Ada-KV, theorem 3.1.

// Cost of eviction under a policy: means over layers and queries, and its table row.
struct PolicyLoss {
  double loss = 0;
  double relative = 0;  // relative to the output's norm
  double lost = 0;      // nats per token
  Json row;
};

PolicyLoss LossOf(const std::string& policy, const std::vector<AttentionLoss>& layers,
                  double lost) {
  std::vector<double> of_layers, bounds, own_bounds, shares;
  double worst = 0;
  for (const AttentionLoss& layer : layers) {
    of_layers.push_back(layer.loss);
    bounds.push_back(layer.bound);
    own_bounds.push_back(layer.own_bound);
    shares.push_back(layer.norm > 0 ? layer.loss / layer.norm : 0.0);
    worst = std::max(worst, layer.worst);
  }
  PolicyLoss of = {.loss = Mean(of_layers), .relative = Mean(shares), .lost = lost, .row = {}};
  of.row = {{"policy", policy},
            {"loss", Short(of.loss)},
            {"relative", Short(of.relative)},
            {"bound", Short(Mean(bounds))},
            {"own_bound", Short(Mean(own_bounds))},
            {"worst", Short(worst)},
            {"lost", Short(of.lost)},
            {"layers", ShortAll(of_layers)},
            {"bounds", ShortAll(bounds)}};
  return of;
}

Json LossesJson(double budget, const std::vector<PolicyLoss>& policies) {
  Json rows = Json::array();
  std::vector<double> loss, relative, lost;
  for (const PolicyLoss& policy : policies) {
    rows.push_back(policy.row);
    loss.push_back(policy.loss);
    relative.push_back(policy.relative);
    lost.push_back(policy.lost);
  }
  std::sort(rows.begin(), rows.end(),
            [](const Json& a, const Json& b) { return a["relative"] < b["relative"]; });
  return {{"budget", budget},
          {"rows", rows},
          {"rank_of_loss", Short(RankCorrelation(loss, lost))},
          {"rank_of_relative", Short(RankCorrelation(relative, lost))}};
}

Json LossesAt(const Subject& subject, double budget, std::vector<std::string>* refused) {
  std::vector<Arm> arms = subject.options.arms;
  for (Arm& arm : arms) arm.cache.cache_ratio = budget;
  const std::vector<Outcome> outcomes = subject.laboratory->Run(subject.MakeTrial(), arms);
  std::vector<HeldEntries> held;
  std::vector<size_t> measured;
  for (size_t i = 0; i < arms.size(); ++i) {
    if (!outcomes[i + 1].refused.ok() || outcomes[i + 1].held.empty()) {
      refused->push_back(arms[i].name);
      continue;
    }
    held.push_back({&outcomes[i + 1].held, subject.options.length});
    measured.push_back(i);
  }
  const auto losses =
      AttentionLosses(subject.activations, subject.options.length - 1, held, subject.forward);
  std::vector<PolicyLoss> policies;
  for (size_t i = 0; i < measured.size(); ++i)
    policies.push_back(LossOf(arms[measured[i]].name, losses[i],
                              outcomes[measured[i] + 1].first().nll - outcomes[0].first().nll));
  return LossesJson(budget, policies);
}

Json Losses(const Subject& subject) {
  Json budgets = Json::array();
  std::vector<std::string> refused;
  for (const double budget : subject.options.budgets) {
    subject.options.progress(fmt::format("attention loss at {:g} %", 100 * budget));
    budgets.push_back(LossesAt(subject, budget, &refused));
  }
  std::sort(refused.begin(), refused.end());
  refused.erase(std::unique(refused.begin(), refused.end()), refused.end());
  return {{"budgets", budgets}, {"left_out", refused}};
}

// (b) Ada-KV, figure 1.

Json Concentration(const Subject& subject) {
  const Activations& activations = subject.activations;
  const int n = subject.options.length, first = std::max(0, n - kWindow);
  const size_t heads = static_cast<size_t>(activations.layers) * activations.heads;
  std::vector<double> share95(heads), share99(heads), sparsity(heads, 0.0);
  subject.forward->threads().ParallelFor(
      activations.layers * activations.kv_heads, [&](int task, int /*thread*/) {
        const int layer = task / activations.kv_heads, kv_head = task % activations.kv_heads;
        const GroupAttention keys(activations.Keys(layer, kv_head), n, activations.head_dim);
        std::vector<double> weights(n);
        for (int g = 0; g < activations.Group(); ++g) {
          const int head = kv_head * activations.Group() + g;
          const size_t at = static_cast<size_t>(layer) * activations.heads + head;
          std::vector<double> sums(n, 0.0);
          for (int query = first; query < n; ++query) {
            keys.Weights(activations.Query(layer, head, query), query + 1, weights.data());
            for (int j = 0; j <= query; ++j) sums[j] += weights[j];
            sparsity[at] += SparsityOf(std::span(weights).first(query + 1)) / (n - first);
          }
          share95[at] = static_cast<double>(EntriesHolding(sums, 0.95)) / n;
          share99[at] = static_cast<double>(EntriesHolding(sums, 0.99)) / n;
        }
      });
  std::vector<double> by_layer(activations.layers, 0.0);
  for (size_t at = 0; at < heads; ++at)
    by_layer[at / activations.heads] += sparsity[at] / activations.heads;
  return {{"layers", activations.layers},
          {"heads", activations.heads},
          {"share95", ShortAll(share95)},
          {"share99", ShortAll(share99)},
          {"sparsity", ShortAll(by_layer)}};
}

// (c) SubGen, figure 1.

Json PointsPicture(const Points& points) {
  const Plane plane = PrincipalPlane(points);
  return {{"x", ShortAll(plane.x)},
          {"y", ShortAll(plane.y)},
          {"share", Short(plane.share)},
          {"centres", GreedyCentres(points, std::min(kCentres, points.n)).points}};
}

// The cost of the greedy k-center relative to the points' spread.
double RelativeRadius(const Points& points) {
  const double spread = Spread(points);
  return spread > 0 ? GreedyCentres(points, std::min(kCentres, points.n)).radius / spread : 0.0;
}

Json KeyClusters(const Subject& subject) {
  const Activations& activations = subject.activations;
  const int n = activations.tokens, d = activations.head_dim;
  const size_t heads = static_cast<size_t>(activations.layers) * activations.kv_heads;
  std::vector<double> keys(heads), values(heads), ratios(heads);
  subject.forward->threads().ParallelFor(static_cast<int>(heads), [&](int head, int /*thread*/) {
    const int layer = head / activations.kv_heads, kv_head = head % activations.kv_heads;
    keys[head] = RelativeRadius({activations.Keys(layer, kv_head), n, d});
    values[head] = RelativeRadius({activations.Values(layer, kv_head), n, d});
    ratios[head] = values[head] > 0 ? keys[head] / values[head] : 0.0;
  });
  Json shown = Json::array();
  // The same relative depths as the paper's five layers.
  for (int i = 0; i < 5; ++i) {
    const int layer = i * (activations.layers - 1) / 4;
    if (i > 0 && layer == (i - 1) * (activations.layers - 1) / 4) continue;
    const int kv_head = (i * 7 + 1) % activations.kv_heads;
    shown.push_back({{"layer", layer},
                     {"head", kv_head},
                     {"keys", PointsPicture({activations.Keys(layer, kv_head), n, d})},
                     {"values", PointsPicture({activations.Values(layer, kv_head), n, d})}});
  }
  return {{"centres", kCentres},
          {"layers", activations.layers},
          {"heads", activations.kv_heads},
          {"keys", ShortAll(keys)},
          {"values", ShortAll(values)},
          {"ratios", ShortAll(ratios)},
          {"median", Short(Median(ratios))},
          {"shown", shown}};
}

// (d) CO2, section 3.

Json Replacements(const Subject& subject, const Outcome& outcome, int fifo) {
  std::vector<double> indices;
  std::vector<std::vector<double>> of_layers;
  const int kv_heads = subject.activations.kv_heads;
  for (int layer = 0; layer < subject.activations.layers; ++layer) {
    std::vector<double>& of_layer = of_layers.emplace_back();
    for (int head = 0; head < kv_heads; ++head) {
      std::vector<std::vector<int32_t>> moments;
      for (const auto& moment : outcome.held) moments.push_back(moment[layer * kv_heads + head]);
      const std::vector<double> of_head = ReplacementIndices(moments, fifo);
      of_layer.insert(of_layer.end(), of_head.begin(), of_head.end());
    }
    indices.insert(indices.end(), of_layer.begin(), of_layer.end());
  }
  const auto share_from = [](const std::vector<double>& values, double least) {
    return values.empty()
               ? 0.0
               : static_cast<double>(std::count_if(values.begin(), values.end(),
                                                   [&](double v) { return v >= least; })) /
                     static_cast<double>(values.size());
  };
  std::vector<int> histogram(kHistogram);
  for (const double index : indices)
    ++histogram[std::min(kHistogram - 1, static_cast<int>(index * kHistogram))];
  std::vector<double> late;
  late.reserve(of_layers.size());
  for (const std::vector<double>& of_layer : of_layers) late.push_back(share_from(of_layer, 0.9));
  return {{"count", indices.size()},
          {"histogram", histogram},
          {"late", Short(share_from(indices, 0.9))},
          {"newest", Short(share_from(indices, 1.0))},
          {"late_of_layers", ShortAll(late)}};
}

Json EntryCourses(const Subject& subject) {
  const Activations& activations = subject.activations;
  std::vector<Arm> arms(2);
  arms[0].name = arms[0].cache.policy = "h2o";
  arms[1].name = arms[1].cache.policy = "co2";
  for (Arm& arm : arms) {
    arm.cache.cache_ratio = kClassesBudget;
    arm.cache.min_cache_tokens = 0;
  }
  Trial trial = subject.MakeTrial();
  trial.append = false;
  const std::vector<Outcome> outcomes = subject.laboratory->Run(trial, arms);
  const int budget = Entries(kClassesBudget, subject.options.length);
  Json policies = Json::array();
  for (size_t i = 0; i < arms.size(); ++i) {
    const Outcome& outcome = outcomes[i + 1];
    if (!outcome.refused.ok()) continue;
    // The paper's layers 6 and 17 of 32.
    std::vector<HeadClasses> shown = {{activations.layers * 6 / 32, 0, {}},
                                      {activations.layers * 17 / 32, 0, {}}};
    if (shown[0].layer == shown[1].layer) shown.pop_back();
    const std::vector<EntryClasses> classes =
        ClassifyEntries(activations, {&outcome.held, subject.options.length}, kGamma,
                        &subject.forward->threads(), &shown);
    Json layers = Json::array(), courses = Json::array();
    for (const EntryClasses& layer : classes) {
      layers.push_back(ShortAll({layer.activated_cached, layer.activated_uncached,
                                 layer.inactive_cached, layer.threshold}));
    }
    for (const HeadClasses& head : shown) {
      courses.push_back({{"layer", head.layer}, {"head", head.kv_head}, {"steps", head.steps}});
    }
    const int fifo = arms[i].name == "h2o" ? budget / 2 : budget / 4;
    policies.push_back({{"policy", arms[i].name},
                        {"layers", layers},
                        {"courses", courses},
                        {"replaced", Replacements(subject, outcome, fifo)}});
  }
  return {{"budget", kClassesBudget}, {"gamma", kGamma}, {"policies", policies}};
}

// (e) H2O, tables 2 and 8.

double MaskedLoss(const Subject& subject, const MaskRule& rule, bool whole) {
  const Activations& activations = subject.activations;
  const int context = subject.options.length;
  const AttentionMask mask =
      MakeMask(rule, activations.layers, activations.kv_heads, activations.Group(),
               whole ? std::vector<double>() : subject.collected);
  const Activations masked = subject.forward->Read(
      subject.tokens, mask, whole ? nullptr : &activations, whole ? 0 : context);
  std::vector<double> nll = subject.forward->NegativeLogLikelihoods(masked, subject.tokens);
  // The first continuation token is predicted by the context's last, which saw everything.
  if (whole) nll.erase(nll.begin(), nll.begin() + context);
  return Mean(nll) - subject.full_nll;
}

Json Masks(const Subject& subject) {
  Json rows = Json::array();
  for (const MaskPattern pattern :
       {MaskPattern::kLocal, MaskPattern::kStrided, MaskPattern::kFixed, MaskPattern::kTopK}) {
    for (const bool heavy_hitters : {false, true}) {
      MaskRule rule = {.pattern = pattern,
                       .heavy_hitters = heavy_hitters,
                       .budget = 2,
                       .tokens = static_cast<int>(subject.tokens.size())};
      subject.options.progress("masks: " + NameOf(rule));
      Json lost = Json::array();
      for (const double budget : kMaskBudgets) {
        rule.budget = Entries(budget, subject.options.length);
        lost.push_back(Short(MaskedLoss(subject, rule, false)));
      }
      rule.budget = Entries(kWholeBudget, subject.options.length);
      rows.push_back({{"mask", NameOf(rule)},
                      {"heavy_hitters", heavy_hitters},
                      {"lost", lost},
                      {"whole", Short(MaskedLoss(subject, rule, true))}});
    }
  }
  return {{"budgets", kMaskBudgets},
          {"whole_budget", kWholeBudget},
          {"rows", rows},
          {"full", Short(subject.full_nll)}};
}

// Tokens from the middle of the text, starting at a line.
std::vector<TokenId> Middle(const std::string& text, int tokens, const Laboratory& laboratory) {
  const size_t line = text.find('\n', text.size() / 2);
  const size_t begin = line == std::string::npos ? 0 : line + 1;
  std::vector<TokenId> ids =
      laboratory.Encode(std::string_view(text).substr(begin, kCharactersAToken * tokens));
  if (static_cast<int>(ids.size()) > tokens) ids.resize(tokens);
  return ids;
}

}  // namespace

int EntriesHolding(std::vector<double> weights, double share) {
  std::sort(weights.begin(), weights.end(), std::greater<>());
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  int count = 0;
  // A sum of many weights may round below the total.
  while (count < static_cast<int>(weights.size()) && sum < share * all * (1 - 1e-12))
    sum += weights[count++];
  return count;
}

double SparsityOf(std::span<const double> weights) {
  const double least = 0.01 * *std::ranges::max_element(weights);
  const auto below =
      std::ranges::count_if(weights, [least](double weight) { return weight < least; });
  return static_cast<double>(below) / static_cast<double>(weights.size());
}

double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = Ranks(a), y = Ranks(b);
  const double mean_x = Mean(x), mean_y = Mean(y);
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0.0;
}

absl::StatusOr<Json> DrawAnatomy(const std::string& name, const std::string& text,
                                 const AnatomyOptions& options, Laboratory* laboratory,
                                 PlainForward* forward) {
  const int all = options.length + options.given;
  const int longest = std::min(forward->config().max_context, kLongestStudy);
  Subject subject = {.options = options,
                     .tokens = {},
                     .longer = Middle(text, std::max(all, longest), *laboratory),
                     .laboratory = laboratory,
                     .forward = forward,
                     .activations = {},
                     .collected = {},
                     .full_nll = 0};
  if (static_cast<int>(subject.longer.size()) < all) {
    return absl::InvalidArgumentError(
        absl::StrCat("--anatomy: ", name, " has ", subject.longer.size(),
                     " tokens behind its middle; ", all, " are needed"));
  }
  subject.tokens.assign(subject.longer.begin(), subject.longer.begin() + all);
  options.progress("plain forward pass");
  subject.activations = forward->Read(subject.tokens);
  subject.collected = CollectedAttention(subject.activations, options.length, &forward->threads());
  std::vector<double> nll = forward->NegativeLogLikelihoods(subject.activations, subject.tokens);
  nll.erase(nll.begin(), nll.begin() + options.length);
  subject.full_nll = Mean(nll);

  Json drawn = {{"text", name}, {"context", options.length}, {"given", options.given}};
  options.progress("concentration and key clusters");
  drawn["concentration"] = Concentration(subject);
  drawn["clusters"] = KeyClusters(subject);
  drawn["loss"] = Losses(subject);
  options.progress("activated and cached entries");
  drawn["courses"] = EntryCourses(subject);
  drawn["masks"] = Masks(subject);
  drawn["sketches"] = StudyLengths(subject.longer, forward, options.progress);
  return drawn;
}

}  // namespace hydrant::eval
