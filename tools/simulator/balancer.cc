#include "tools/simulator/balancer.h"

#include <algorithm>
#include <list>
#include <numeric>
#include <random>
#include <unordered_map>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace hydrant::sim {
namespace {

int LeastLoaded(std::span<const OutstandingTokens> loads) {
  return static_cast<int>(std::min_element(loads.begin(), loads.end()) - loads.begin());
}

OutstandingTokens Mean(std::span<const OutstandingTokens> loads) {
  return std::accumulate(loads.begin(), loads.end(), OutstandingTokens{0}) /
         static_cast<OutstandingTokens>(loads.size());
}

class RandomBalancer final : public Balancer {
 public:
  explicit RandomBalancer(uint64_t seed) : random_(seed) {}

  int Pick(std::span<const OutstandingTokens> loads, std::span<const uint32_t>) override {
    return std::uniform_int_distribution<int>(0, static_cast<int>(loads.size()) - 1)(random_);
  }

 private:
  std::mt19937_64 random_;
};

class LeastLoadedBalancer final : public Balancer {
 public:
  int Pick(std::span<const OutstandingTokens> loads, std::span<const uint32_t>) override {
    return LeastLoaded(loads);
  }
};

class PrefixAwareBalancer final : public Balancer {
 public:
  PrefixAwareBalancer(int num_replicas, int64_t known_tokens)
      : most_pieces_(std::max<int64_t>(1, known_tokens / kPieceTokens)), known_(num_replicas) {}

  int Pick(std::span<const OutstandingTokens> loads, std::span<const uint32_t> prompt) override {
    const std::vector<Piece> pieces = PiecesOf(prompt);
    const int least = LeastLoaded(loads);
    int best = least;
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
      const auto found = holders_.find(*piece);
      if (found == holders_.end()) continue;
      best = *std::min_element(found->second.begin(), found->second.end(),
                               [&](int a, int b) { return loads[a] < loads[b]; });
      const int64_t saved = kPieceTokens * (pieces.rend() - piece);
      if (loads[best] - loads[least] > saved + Mean(loads)) best = least;
      break;
    }
    // Last piece first, so that a prompt's first piece is the newest.
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) Remember(best, *piece);
    return best;
  }

 private:
  static constexpr int64_t kPieceTokens = 256;
  using Piece = uint64_t;  // hash of its tokens and all before them
  struct Known {
    std::list<Piece> newest;
    std::unordered_map<Piece, std::list<Piece>::iterator> places;
  };

  static std::vector<Piece> PiecesOf(std::span<const uint32_t> prompt) {
    std::vector<Piece> pieces;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < prompt.size(); ++i) {
      hash = (hash ^ prompt[i]) * 0x100000001b3ull;
      hash ^= hash >> 32;
      if ((i + 1) % kPieceTokens == 0) pieces.push_back(hash);
    }
    return pieces;
  }

  void Remember(int replica, Piece piece) {
    Known& known = known_[replica];
    const auto place = known.places.find(piece);
    if (place != known.places.end()) {
      known.newest.splice(known.newest.begin(), known.newest, place->second);
      return;
    }
    known.newest.push_front(piece);
    known.places.emplace(piece, known.newest.begin());
    holders_[piece].push_back(replica);
    if (std::cmp_greater(known.places.size(), most_pieces_)) Forget(replica, known.newest.back());
  }

  void Forget(int replica, Piece piece) {
    known_[replica].places.erase(piece);
    known_[replica].newest.pop_back();
    const auto holders = holders_.find(piece);
    std::erase(holders->second, replica);
    if (holders->second.empty()) holders_.erase(holders);
  }

  const int64_t most_pieces_;
  std::vector<Known> known_;  // [replicas]
  std::unordered_map<Piece, std::vector<int>> holders_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Balancer>> MakeBalancer(std::string_view name, int num_replicas,
                                                       int64_t known_tokens, uint64_t seed) {
  if (name == "random") return std::make_unique<RandomBalancer>(seed);
  if (name == "least-loaded") return std::make_unique<LeastLoadedBalancer>();
  if (name == "prefix-aware")
    return std::make_unique<PrefixAwareBalancer>(num_replicas, known_tokens);
  return absl::InvalidArgumentError(
      fmt::format("balancer: '{}' is none of {}", name, fmt::join(kBalancerNames, ", ")));
}

}  // namespace hydrant::sim
