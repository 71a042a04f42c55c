#include "tools/eval/length_study.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "tools/eval/clusters.h"
#include "tools/eval/numbers.h"
#include "tools/eval/sketch.h"

namespace hydrant::eval {
namespace {

using Json = nlohmann::json;

constexpr int kSketchLengths[] = {250, 500, 1000, 2000, 4000};
constexpr int kSketchQueries = 16;
static_assert(kLongestStudy == 4000 + kSketchQueries);
constexpr int kSketchSeeds = 3;
constexpr int kSketchEntries = 128;  // for every length
constexpr double kSketchShare = 0.2;
constexpr int kSketchLayers = 6;  // the first layers, computed for a long text
constexpr int kClustersAtFirst = 32;

// Relative errors by method.
using Errors = std::map<std::string, std::vector<double>>;

// Results for the first n tokens of a head and the queries after them.
struct LengthPoint {
  int n = 0;
  Errors of_share, of_memory;
  double clusters = 0;
};

// The largest of all but the last `recent` entries, plus the recent ones.
std::vector<int> Largest(const std::vector<double>& values, int count, int recent, int n) {
  std::vector<int> entries(n - recent);
  std::iota(entries.begin(), entries.end(), 0);
  std::stable_sort(entries.begin(), entries.end(),
                   [&](int a, int b) { return values[a] > values[b]; });
  entries.resize(std::min<size_t>(entries.size(), count));
  for (int j = n - recent; j < n; ++j) entries.push_back(j);
  return entries;
}

// A head of a long pass.
struct LongHead {
  const Activations& activations;
  int layer = 0;
  int kv_head = 0;
  GroupAttention keys;

  Head First(int n) const {
    return {activations.Keys(layer, kv_head), activations.Values(layer, kv_head), n,
            activations.head_dim};
  }
  const float* Query(int group_head, int token) const {
    return activations.Query(layer, kv_head * activations.Group() + group_head, token);
  }
};

// Errors for `memory` of the first n entries and the queries after them.
Errors MeasureErrors(const LongHead& long_head, int n, int memory,
                     const std::vector<double>& collected) {
  const Head head = long_head.First(n);
  const int recent = memory / 2, others = memory - recent;
  const SketchRule rule = {.recent = recent,
                           .value_samples = others / 2,
                           .cluster_samples = 4,
                           .clusters = std::max(1, (others - others / 2) / 4)};
  std::vector<SubGenSketch> sketches;
  sketches.reserve(kSketchSeeds);
  for (int seed = 0; seed < kSketchSeeds; ++seed) sketches.emplace_back(head, rule, seed);
  std::vector<int> centres = GreedyCentres({head.keys, n - recent, head.d}, others).points;
  for (int j = n - recent; j < n; ++j) centres.push_back(j);
  std::vector<int> sinks = {0, 1, 2, 3};
  for (int j = n - memory + 4; j < n; ++j) sinks.push_back(j);
  const std::vector<int> heavy = Largest(collected, others, recent, n);
  Errors errors;
  std::vector<double> weights(n);
  for (int query = n; query < n + kSketchQueries; ++query) {
    const float* q = long_head.Query(query % long_head.activations.Group(), query);
    const std::vector<double> exact = AttendToAll(head, q);
    for (const SubGenSketch& sketch : sketches)
      errors["subgen"].push_back(RelativeError(sketch.Attend(q), exact));
    long_head.keys.Weights(q, n, weights.data());
    const std::pair<const char*, std::vector<int>> subsets[] = {
        {"heavy", heavy},
        {"centres", centres},
        {"sinks", sinks},
        {"best", Largest(weights, memory, 0, n)}};
    for (const auto& [name, entries] : subsets)
      errors[name].push_back(RelativeError(AttendTo(head, q, entries), exact));
  }
  return errors;
}

std::vector<LengthPoint> MeasureHead(const LongHead& head, const std::vector<int>& lengths) {
  const int group = head.activations.Group();
  std::vector<LengthPoint> points;
  std::vector<double> collected(lengths.back(), 0.0), weights(lengths.back());
  double radius = 0;
  int query = 0;
  for (const int n : lengths) {
    for (; query < n; ++query) {
      for (int g = 0; g < group; ++g) {
        head.keys.Weights(head.Query(g, query), query + 1, weights.data());
        for (int j = 0; j <= query; ++j) collected[j] += weights[j];
      }
    }
    if (radius == 0) radius = ClusterInto(head.First(n), n, kClustersAtFirst).radius;
    points.push_back(
        {.n = n,
         .of_share = MeasureErrors(head, n, Entries(kSketchShare, n), collected),
         .of_memory = MeasureErrors(head, n, kSketchEntries, collected),
         .clusters = static_cast<double>(ClusterKeys(head.First(n), n, radius).members.size())});
  }
  return points;
}

// The medians of several heads' errors at a length.
Json MediansOf(int n, int memory, const std::vector<const Errors*>& of_heads) {
  Errors all;
  for (const Errors* errors : of_heads) {
    for (const auto& [name, values] : *errors)
      all[name].insert(all[name].end(), values.begin(), values.end());
  }
  Json medians = {{"n", n}, {"memory", memory}};
  for (const auto& [name, values] : all) medians[name] = Short(Median(values));
  return medians;
}

}  // namespace

nlohmann::json StudyLengths(std::span<const TokenId> text, PlainForward* forward,
                            const std::function<void(const std::string&)>& progress) {
  std::vector<int> lengths;
  for (const int n : kSketchLengths) {
    if (n + kSketchQueries <= static_cast<int>(text.size())) lengths.push_back(n);
  }
  if (lengths.empty()) return nullptr;
  const int layers = std::min(kSketchLayers, forward->config().num_layers);
  const int tokens = lengths.back() + kSketchQueries;
  progress(fmt::format("activations {} tokens, {} layers", tokens, layers));
  const Activations activations =
      forward->Read(text.subspan(0, tokens), nullptr, nullptr, 0, layers);
  progress("SubGen's errors");
  std::vector<std::vector<LengthPoint>> heads(layers);
  forward->threads().ParallelFor(layers, [&](int layer, int /*thread*/) {
    const int kv_head = layer % activations.kv_heads;
    heads[layer] = MeasureHead({activations,
                                layer,
                                kv_head,
                                {activations.Keys(layer, kv_head), tokens, activations.head_dim}},
                               lengths);
  });
  Json share = Json::array(), memory = Json::array(), clusters = Json::array();
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int n = lengths[i];
    std::vector<const Errors*> of_share, of_memory;
    std::vector<double> counts;
    for (const std::vector<LengthPoint>& head : heads) {
      of_share.push_back(&head[i].of_share);
      of_memory.push_back(&head[i].of_memory);
      counts.push_back(head[i].clusters);
    }
    share.push_back(MediansOf(n, Entries(kSketchShare, n), of_share));
    memory.push_back(MediansOf(n, kSketchEntries, of_memory));
    clusters.push_back({{"n", n}, {"mean", Short(Mean(counts))}});
  }
  return {{"layers", layers},
          {"share", kSketchShare},
          {"of_share", share},
          {"of_memory", memory},
          {"clusters", clusters}};
}

}  // namespace hydrant::eval
