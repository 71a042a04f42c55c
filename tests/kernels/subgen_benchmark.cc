// SubGen's error and memory against sequence length, one JSON line each: the difference of one
// head's output from dense attention, compared with a window and greedy k-center of the same
// budget. Keys are clustered around a few points or scattered; the error is |out - dense| /
// |dense|, root mean square over queries. Times are for one head on one thread.
//
//   subgen_benchmark [--quick]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/subgen.h"

namespace hydrant {
namespace {

constexpr int kHeadDim = 64, kQueries = 64, kClusters = 24;
constexpr uint64_t kSeed = 7;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Tokens {
  int n = 0;
  std::vector<float> k, v;  // [n, head_dim]
  std::vector<float> q;     // [queries, head_dim], 1 / sqrt(head_dim) folded in
};

Tokens Draw(int n, bool clustered) {
  std::mt19937_64 engine(kSeed);
  std::normal_distribution<float> normal;
  std::vector<float> points(kClusters * kHeadDim);
  for (float& x : points) x = normal(engine);
  Tokens tokens;
  tokens.n = n;
  for (int j = 0; j < n; ++j) {
    const size_t point = engine() % kClusters;
    for (int d = 0; d < kHeadDim; ++d) {
      tokens.k.push_back(clustered ? points[point * kHeadDim + d] + 0.2f * normal(engine)
                                   : normal(engine));
      tokens.v.push_back(0.5f + normal(engine));
    }
  }
  for (int i = 0; i < kQueries * kHeadDim; ++i) tokens.q.push_back(normal(engine) / 8.0f);
  return tokens;
}

// An entry of a cache, for attention.
struct Entry {
  const float* k;
  const float* v;
  float numerator = 0.0f, denominator = 0.0f;
};

std::vector<double> Attend(const float* q, const std::vector<Entry>& entries) {
  std::vector<double> out(kHeadDim, 0.0);
  double sum = 0.0;
  for (const Entry& entry : entries) {
    const double logit = std::inner_product(q, q + kHeadDim, entry.k, 0.0);
    sum += std::exp(logit + entry.denominator);
    for (int d = 0; d < kHeadDim; ++d) out[d] += std::exp(logit + entry.numerator) * entry.v[d];
  }
  for (double& x : out) x /= sum;
  return out;
}

double Error(const Tokens& tokens, const std::vector<Entry>& entries) {
  std::vector<Entry> all;
  all.reserve(tokens.n);
  for (int j = 0; j < tokens.n; ++j)
    all.push_back({&tokens.k[static_cast<size_t>(j) * kHeadDim],
                   &tokens.v[static_cast<size_t>(j) * kHeadDim]});
  double errors = 0.0;
  for (int i = 0; i < kQueries; ++i) {
    const float* q = &tokens.q[static_cast<size_t>(i) * kHeadDim];
    const std::vector<double> dense = Attend(q, all), out = Attend(q, entries);
    double difference = 0.0, size = 0.0;
    for (int d = 0; d < kHeadDim; ++d) {
      difference += (out[d] - dense[d]) * (out[d] - dense[d]);
      size += dense[d] * dense[d];
    }
    errors += difference / size;
  }
  return std::sqrt(errors / kQueries);
}

// A head's pages, in order, in host memory.
struct Pages {
  explicit Pages(const SubGenRule& subgen) : subgen(subgen) {
    const int blocks = (subgen.Capacity() + 15) / 16;
    layout = {DType::kF32, kHeadDim, 16, blocks};
    keys.resize(static_cast<size_t>(blocks) * 16 * kHeadDim);
    values.resize(keys.size());
    positions.resize(static_cast<size_t>(blocks) * 16);
    scores.resize(positions.size());
    log_weights.resize(2 * positions.size());
    for (int i = 0; i < blocks; ++i) ids.push_back({i, i});
    width = blocks;
    cap = subgen.Capacity();
    rule.weighted = true;
  }
  KvPages pages() {
    return {layout,           keys.data(),   values.data(),
            positions.data(), scores.data(), log_weights.data()};
  }
  SequenceTables tables() {
    SequenceTables t;
    t.num_layers = t.num_kv_heads = 1;
    t.blocks = ids.data();
    t.row_begin = &begin;
    t.row_width = &width;
    t.caps = &cap;
    t.lengths = &length;
    t.victims = &victim;
    t.rules = &rule;
    return t;
  }
  std::vector<Entry> Entries() const {
    std::vector<Entry> entries;
    entries.reserve(cap);
    for (int e = 0; e < cap; ++e)
      entries.push_back({&keys[static_cast<size_t>(e) * kHeadDim],
                         &values[static_cast<size_t>(e) * kHeadDim], log_weights[2 * e],
                         log_weights[2 * e + 1]});
    return entries;
  }

  SubGenRule subgen;
  KvLayout layout;
  std::vector<float> keys, values, scores, log_weights;
  std::vector<int32_t> positions;
  std::vector<PageIds> ids;
  int64_t begin = 0;
  int32_t width = 0, cap = 0, length = 0, victim = 0;
  DecodeRule rule;
};

std::vector<Entry> LastEntries(const Tokens& tokens, int count) {
  std::vector<Entry> entries;
  for (int j = tokens.n - count; j < tokens.n; ++j)
    entries.push_back({&tokens.k[static_cast<size_t>(j) * kHeadDim],
                       &tokens.v[static_cast<size_t>(j) * kHeadDim]});
  return entries;
}

std::vector<Entry> KCenterEntries(Backend& backend, const Tokens& tokens, int budget) {
  std::vector<Entry> entries = LastEntries(tokens, budget / 2);
  const int n = tokens.n - budget / 2, centres = budget - budget / 2;
  std::vector<float> scores(n);
  backend.KCenter({.k = tokens.k.data(),
                   .num_kv_heads = 1,
                   .head_dim = kHeadDim,
                   .n = n,
                   .centres = centres,
                   .scores = scores.data()});
  for (int j = 0; j < n; ++j) {
    if (scores[j] > 0)
      entries.push_back({&tokens.k[static_cast<size_t>(j) * kHeadDim],
                         &tokens.v[static_cast<size_t>(j) * kHeadDim]});
  }
  return entries;
}

void Measure(Backend& backend, int n, bool clustered, int budget, float growth) {
  const Tokens tokens = Draw(n, clustered);
  const int clusters = budget / 16;
  Pages head({.recent = budget / 2,
              .value_samples = budget / 4,
              .cluster_samples = 4,
              .max_clusters = clusters,
              .growth = growth,
              .seed = kSeed});
  auto start = std::chrono::steady_clock::now();
  backend.SubGenBuild({.k = tokens.k.data(),
                       .v = tokens.v.data(),
                       .n = n,
                       .rule = head.subgen,
                       .pages = head.pages(),
                       .tables = head.tables()});
  const double build_us = 1e6 * SecondsSince(start) / n;
  const double subgen = Error(tokens, head.Entries());
  int used = 0;
  for (int i = 0; i < clusters; ++i) used += head.scores[head.subgen.ClusterEntry(i)] > 0 ? 1 : 0;

  constexpr int kInserts = 100;  // of the same token repeatedly
  const int32_t slot = 0, position = n;
  start = std::chrono::steady_clock::now();
  for (int i = 0; i < kInserts; ++i)
    backend.SubGenInsert({.num_rows = 1,
                          .slots = &slot,
                          .positions = &position,
                          .rules = &head.subgen,
                          .pages = head.pages(),
                          .tables = head.tables()});
  const double insert_us = 1e6 * SecondsSince(start) / kInserts;
  std::printf(
      "{\"keys\": \"%s\", \"tokens\": %d, \"budget\": %d, \"growth\": %.1f, \"share_of_memory\": "
      "%.4f, "
      "\"clusters\": %d, \"radius\": %.3f, \"error_subgen\": %.4f, \"error_window\": %.4f, "
      "\"error_kcenter\": %.4f, \"build_us_a_token\": %.2f, \"insert_us\": %.2f}\n",
      clustered ? "clustered" : "scattered", n, budget, growth, static_cast<double>(budget) / n,
      used, std::sqrt(head.scores[kSubGenRadiusEntry]), subgen,
      Error(tokens, LastEntries(tokens, budget)),
      Error(tokens, KCenterEntries(backend, tokens, budget)), build_us, insert_us);
}

int Run(bool quick) {
  auto backend = CreateBackend("cpu", {.num_threads = 1});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", std::string(backend.status().message()).c_str());
    return 1;
  }
  for (const bool clustered : {true, false}) {
    for (int n = 1024; n <= (quick ? 1024 : 16384); n *= 2) {
      for (const int budget : {256, 512}) {
        for (const float growth : {2.0f, 1.1f}) Measure(**backend, n, clustered, budget, growth);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  return hydrant::Run(argc > 1 && std::string_view(argv[1]) == "--quick");
}
