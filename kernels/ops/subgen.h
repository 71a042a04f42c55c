// SubGen (arXiv 2402.06082, algorithm 1): entries that leave the window of recent entries
// are streamed into two sets of samples, from which attention estimates the result of
// dense attention. Per KV head:
//
//   value samples  s entries (k, v). A token (k, v) replaces each independently with probability
//                  |v|^2 / (mu + |v|^2); then mu += |v|^2. A sample represents mu / (s |v|^2)
//                  entries in the numerator. (The paper's lemma 1 says |k|^2; its algorithm and
//                  proof |v|^2.)
//   clusters       at most m, each with a centre (its first key), a count n_i and t samples of its
//                  keys. A key joins the nearest centre (on a tie the lower cluster) if it lies
//                  within the radius: n_i += 1, and it replaces each sample with probability
//                  1 / n_i. Otherwise it founds the lowest free cluster, with t copies of itself. A
//                  sample represents n_i / t entries in the denominator.
//
// The paper lets clusters grow without bound. Here a key outside the radius of all m clusters
// widens the radius, as in the incremental k-center of Charikar et al. (STOC 1997) on which the
// paper builds: the radius doubles (or grows by another factor, g) until two centres, or a centre
// and the key, lie within it; a radius of 0 becomes the smallest of the distances. Then, in cluster
// order, each cluster absorbs all later ones with centres within the radius of its own. When i
// absorbs j, each sample of i is replaced by that of j with probability n_j / (n_i + n_j), so it
// stays uniform over the cluster; then n_i += n_j. So centres are always more than the radius
// apart; a key moved by every widening may lie as far as g / (g - 1) radii, twice the radius, from
// its centre.
//
// Tokens are streamed in the order of their positions, rounded to the pages' dtype. Random numbers
// are keyed by (seed, purpose, layer, head, position of the current token, index of the sample), so
// a state depends on the tokens alone, not on how many were streamed in one call.
//
// All state lies in the head's own slots. The head holds Capacity() entries, all with log weights
// (kernels/ops/decode_attention.h):
//
//   ExactEntry(p)      the token at p: its own key, value and position; log weights (0, 0)
//   ValueEntry(j)      value sample j: key, value and position of its token; score |v|^2, 0 for
//                      none; log weights (log(mu / (s |v|^2)), -inf)
//   ClusterEntry(i)+j  sample j of cluster i: key and position of its token; log weights (-inf,
//                      log(n_i / t)). For j = 0 the value is the centre and the score n_i, 0 for a
//                      free cluster; the other values are 0.
//
// An unused entry has position -1, log weights (-inf, -inf), and a finite key and value. The scores
// of entries 0 and 1 are mu and the squared radius.
//
// Distances and |v|^2 are sums of squares in fp32 (in the reference in double, then rounded), in an
// order that follows from head_dim alone. A NaN distance counts as infinite.
#ifndef HYDRANT_KERNELS_OPS_SUBGEN_H_
#define HYDRANT_KERNELS_OPS_SUBGEN_H_

#include <cstdint>

#include "kernels/arena_rows.h"
#include "kernels/kv_pages.h"
#include "kernels/random.h"

namespace hydrant {

struct SubGenRule {
  int32_t sinks = 0;            // the first tokens, always exact (0 in the paper)
  int32_t recent = 0;           // the last tokens, exact, >= 2
  int32_t value_samples = 0;    // s >= 1
  int32_t cluster_samples = 0;  // t >= 1
  int32_t max_clusters = 0;     // m >= 1
  float radius_squared = 0.0f;  // initial
  float growth = 2.0f;          // factor of the radius when it widens, > 1
  uint64_t seed = 0;

  constexpr int32_t Capacity() const {
    return ExactEntries() + value_samples + max_clusters * cluster_samples;
  }
  constexpr int32_t ExactEntries() const { return sinks + recent; }
  // The exact entry of the token at a position.
  constexpr int32_t ExactEntry(int32_t position) const {
    return position < sinks ? position : sinks + position % recent;
  }
  constexpr int32_t ValueEntry(int32_t sample) const { return ExactEntries() + sample; }
  constexpr int32_t ClusterEntry(int32_t cluster) const {
    return ExactEntries() + value_samples + cluster * cluster_samples;
  }
};

// The scores of these entries hold state of the whole head.
inline constexpr int32_t kSubGenMuEntry = 0;
inline constexpr int32_t kSubGenRadiusEntry = 1;

// Purposes of a head's random numbers. For kMerge the index is that of the absorbed sample.
enum class SubGenPurpose : uint32_t { kValueSample, kClusterSample, kMerge };

// The key of one head; SubBits(RandomBits(key, position), index) are the bits of a choice.
constexpr uint64_t SubGenKey(const SubGenRule& rule, SubGenPurpose purpose, int layer, int head) {
  const uint64_t key = SubBits(rule.seed, static_cast<uint32_t>(purpose));
  return SubBits(SubBits(key, static_cast<uint32_t>(layer)), static_cast<uint32_t>(head));
}

// Whether a value of squared norm `weight` > 0 replaces a sample.
constexpr bool SubGenTakesValue(uint64_t bits, float mu, float weight) {
  return RandomUnit(bits) * (static_cast<double>(mu) + static_cast<double>(weight)) <
         static_cast<double>(weight);
}
// Whether a sample that represents `count` of `all` >= 1 keys replaces another.
constexpr bool SubGenTakesKey(uint64_t bits, float count, float all) {
  return RandomBelow(bits, static_cast<uint64_t>(all)) < static_cast<uint64_t>(count);
}

// The squared radius widened to include `least`, the smallest squared distance.
constexpr float SubGenWiden(const SubGenRule& rule, float radius_squared, float least) {
  if (radius_squared <= 0.0f) return least;
  while (radius_squared < least) radius_squared *= rule.growth * rule.growth;
  return radius_squared;
}

// Builds the state of one (slot, layer) from tokens 0 .. n - 1: the first `sinks` and the last
// `recent` are written exactly, all others are streamed. Sets lengths[...] = Capacity() of every
// head. REQUIRES: n >= Capacity() = caps[...], with pages for as many.
struct SubGenBuildArgs {
  ArenaRows k = nullptr;  // token j of head h at k + h * kv_head_stride + j * head_dim; null: k and
                          // v are read from the head's pages, entry j is token j
  ArenaRows v = nullptr;
  int64_t kv_head_stride = 0;  // elements
  int n = 0;
  SubGenRule rule;
  int slot = 0;
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

// Makes room for the new token of each row with a weighted rule and heads at their caps: streams
// the oldest exact entry that is not a sink, and makes it the victim that DecodeAttention
// overwrites. Other rows are skipped.
struct SubGenInsertArgs {
  int num_rows = 0;
  const int32_t* slots = nullptr;      // [num_rows] below 0: padding
  const int32_t* positions = nullptr;  // [num_rows] position of the new token
  const SubGenRule* rules = nullptr;   // [max_seqs]
  int layer = 0;
  KvPages pages;
  SequenceTables tables;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_OPS_SUBGEN_H_
