// Approximate statistics of a tile's queries for every key, for ranking: the sum and the maximum of
// the weights, from 16-bit logarithms. Included once per instruction set, after a
// prefill_attention_panel*-inl.h; in its product, queries are the rows here and keys the lanes.
//
// A word w stands for the weight 2^(w / 128 - 127): its base-2 logarithm with 7 fractional bits,
// which gives the maximum. Read as bf16, it is the same number with a linear instead of an
// exponential mantissa (Schraudolph, "A Fast, Compact Approximation of the Exponential
// Function", Neural Computation 1999): at most 6.2 % more than the weight, and kMeanExcess times
// it on average, which cancels between a query's weights and their sum. So a key costs one
// exponential, not one per query.
//
// Words of two queries share a vector: each 128 bits hold four keys of the first query, then the
// same keys of the second.

#include "kernels/cpu/isa/no_denormals.h"

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

inline constexpr float kLowest = -1e30f;  // of a lane without a key
inline constexpr float kWordsOfOctave = 128.0f;
inline constexpr float kWordOfOne = 127 * kWordsOfOctave;
inline constexpr float kLn2 = 0.69314718f;
// Mean of (1 + f) / 2^f for f from 0 to 1: 1 / (2 ln(2)^2).
inline constexpr float kMeanExcess = 1.0406845f;
inline constexpr int kRankVectors = kQueryTile / kLanes;  // per query and strip of keys
inline constexpr int kPairStride = kQueryTile;  // per two queries and strip, in 32-bit words
inline constexpr int kQueryPairs = kQueryTile / 2;
inline constexpr int kPairSums = 16;
inline constexpr int16_t kNoShare = 32767;  // more than any word: subtracting it leaves no share

struct RankScratch {
  RankLayout layout;
  float* operands;
  float* logits;
  float* origins;      // [rows], the word of a logit of 0
  float* sums;         // [pairs, kPairSums]: sums of weights, in the packing of words
  int16_t* sum_words;  // [pairs, 8]: logarithms of the sums, in the packing of words
  float* factors;      // [pairs, 4]: factors from weights to shares, in the same packing
  int32_t* words;      // [strips, pairs, kPairStride]

  int heads() const { return layout.rows / kQueryTile; }
  int pairs() const { return layout.rows / 2; }
  int32_t* StripWords(int strip) const {
    return words + int64_t{1} * strip * pairs() * kPairStride;
  }
};

HYDRANT_INLINE RankScratch ScratchOf(const PrefillShape& shape, const PrefillTile& tile,
                                     float* scratch) {
  const RankLayout layout = RankLayoutOf(shape, tile);
  return {.layout = layout,
          .operands = scratch + layout.operands,
          .logits = scratch + layout.logits,
          .origins = scratch + layout.origins,
          .sums = scratch + layout.sums,
          .sum_words = reinterpret_cast<int16_t*>(scratch + layout.sum_words),
          .factors = scratch + layout.factors,
          .words = reinterpret_cast<int32_t*>(scratch + layout.words)};
}

// Floats of a strip's keys in the lanes.
HYDRANT_INLINE int64_t StripFloats(int head_dim) {
  return int64_t{1} * LaneWords(head_dim) * kQueryTile;
}
int64_t RankLaneWords(int keys, int head_dim) {
  return (keys + kQueryTile - 1) / kQueryTile * StripFloats(head_dim);
}
void KeysToLanes(const float* keys, int rows, int head_dim, float* to) {
  PrefillShape shape;
  shape.head_dim = head_dim;
  int64_t offsets[kQueryTile];
  for (int first = 0; first < rows; first += kQueryTile, to += StripFloats(head_dim)) {
    for (int i = 0; i < kQueryTile; ++i)
      offsets[i] = first + i < rows ? int64_t{1} * (first + i) * head_dim : -1;
    LoadQueries(shape, keys, offsets, to);
  }
}

// Loads queries of some heads as rows; zero where there is none.
void LoadRows(const PrefillShape& shape, const PrefillTile& tile, int first_head, int rows,
              float* to) {
  const int stride = OperandStride(shape.head_dim);
  for (int i = 0; i < rows; ++i, to += stride) {
    const int head = first_head + i / kQueryTile, query = i % kQueryTile;
    if (head < shape.group && query < tile.num_queries) {
      RoundKeys(tile.q + query * shape.query_stride + head * shape.head_dim, 1, shape.head_dim, to);
    } else {
      for (int d = 0; d < stride; ++d) to[d] = 0.0f;
    }
  }
}

// Unscaled logits of a head's queries and a strip: [kQueryTile, kQueryTile].
void BlockLogits(const PrefillShape& shape, const PrefillTile& tile, const RankScratch& scratch,
                 int strip, int head, float* logits) {
  PrefillShape unscaled = shape;
  unscaled.scale = 1.0f;
  const float* const rows =
      scratch.operands + int64_t{1} * head * kQueryTile * OperandStride(shape.head_dim);
  const float* const keys = tile.k + strip * StripFloats(shape.head_dim);
  PanelLogits(unscaled, {rows, nullptr}, kQueryTile, keys, logits);
  const int left = tile.num_keys() - strip * kQueryTile;
  for (int r = 0; left < kQueryTile && r < kQueryTile; ++r) {
    for (int i = left; i < kQueryTile; ++i) logits[r * kQueryTile + i] = kLowest;
  }
}

// The largest element of each of kLanes rows of kQueryTile.
HYDRANT_INLINE Vec LargestOfRows(const float* rows) {
  Vec quads[kLanes / 4];
  Unroll<kLanes / 4>(HYDRANT_UNROLLED(quad) {
    Vec largest[4];
    Unroll<4>(HYDRANT_UNROLLED(i) {
      const float* const row = rows + (quad * 4 + i) * kQueryTile;
      largest[i] = Load(row);
      for (int v = 1; v < kRankVectors; ++v)
        largest[i] = hn::Max(largest[i], Load(row + v * kLanes));
    });
    quads[quad] = FoldQuad(Largest(), largest[0], largest[1], largest[2], largest[3]);
  });
  return JoinQuads(Largest(), quads);
}

// Sets the origins so that the largest logit of strips [0, strips) gets the word of 1.
void FindOrigins(const PrefillShape& shape, const PrefillTile& tile, const RankScratch& scratch,
                 float step, int strips) {
  float* const origins = scratch.origins;
  for (int r = 0; r < scratch.layout.rows; ++r) origins[r] = kLowest;
  for (int block = 0; block < strips * scratch.heads(); ++block) {
    const int head = block % scratch.heads();
    BlockLogits(shape, tile, scratch, block / scratch.heads(), head, scratch.logits);
    for (int r = 0; r < kQueryTile; r += kLanes) {
      float* const to = origins + head * kQueryTile + r;
      Store(to, hn::Max(Load(to), LargestOfRows(scratch.logits + r * kQueryTile)));
    }
  }
  for (int r = 0; r < scratch.layout.rows; ++r) origins[r] = kWordOfOne - origins[r] * step;
}

// The nearest words, at least 0.
HYDRANT_INLINE IntVec WordsOf(Vec a, Vec b) {
  const WordVec words = hn::ReorderDemote2To(kWords, RoundToInts(a), RoundToInts(b));
  return hn::BitCast(kInts, hn::Max(words, hn::Zero(kWords)));
}

// In each 128 bits the larger of words i and 4 + i, which are at least 0.
HYDRANT_INLINE IntVec LargestOfPair(WordVec words) {
  const IntVec turned = hn::Shuffle1032(hn::BitCast(kInts, words));
  const WordVec larger = hn::Max(words, hn::BitCast(kWords, turned));
  return hn::BitCast(kInts, hn::InterleaveLower(larger, hn::Zero(kWords)));
}

// Computes the words of a block and adds their weights to the sums. From 32640 on a word is
// infinite or NaN as bf16, so a sum shows if a logit is too far above its origin. (A logit ten
// million above it overflows 32 bits, and counts as 0.)
HYDRANT_INLINE void PackBlock(const float* logits, const float* origins, float step, int32_t* words,
                              float* sums) {
  for (int pair = 0; pair < kQueryPairs; ++pair, words += kPairStride, sums += kPairSums) {
    const float* const first = logits + 2 * pair * kQueryTile;
    const Vec origin_a = Set(origins[2 * pair]), origin_b = Set(origins[2 * pair + 1]);
    Vec sum = Load(sums);
    Unroll<kRankVectors>(HYDRANT_UNROLLED(v) {
      const Vec a = hn::MulAdd(Load(first + v * kLanes), Set(step), origin_a);
      const Vec b = hn::MulAdd(Load(first + kQueryTile + v * kLanes), Set(step), origin_b);
      const IntVec w = WordsOf(a, b);
      hn::StoreU(w, kInts, words + v * kLanes);
      sum = hn::Add(sum, hn::Add(EvenWeights(w), OddWeights(w)));
    });
    Store(sums, sum);
  }
}

// Computes the words of every strip, and the sums of their weights.
void FindWords(const PrefillShape& shape, const PrefillTile& tile, const RankScratch& scratch,
               float step) {
  const int heads = scratch.heads();
  for (int i = 0; i < scratch.pairs() * kPairSums; ++i) scratch.sums[i] = 0.0f;
  for (int block = 0; block < scratch.layout.strips * heads; ++block) {
    const int head = block % heads;
    BlockLogits(shape, tile, scratch, block / heads, head, scratch.logits);
    PackBlock(scratch.logits, scratch.origins + head * kQueryTile, step,
              scratch.words + int64_t{1} * block * kQueryPairs * kPairStride,
              scratch.sums + head * kQueryPairs * kPairSums);
  }
}

// The sums of a pair's two rows. Lanes alternate: two of the first row, two of the second.
struct PairSum {
  float of[2];
};

HYDRANT_INLINE PairSum SumsOf(const RankScratch& scratch, int pair) {
  const float* const lanes = scratch.sums + pair * kPairSums;
  float folded[4];
  for (int i = 0; i < 4; ++i) {
    folded[i] = lanes[i];
    for (int block = 4; block < kLanes; block += 4) folded[i] += lanes[block + i];
  }
  return {{folded[0] + folded[1], folded[2] + folded[3]}};
}

// The logarithm of a positive number in words, with an error below one word: its exponent, and a
// parabola for its mantissa.
HYDRANT_INLINE float LogWords(float x) {
  const auto bits = __builtin_bit_cast(int32_t, x);
  const auto mantissa = __builtin_bit_cast(float, (bits & 0x7fffff) | 0x3f800000);
  const auto exponent = static_cast<float>((bits >> 23) - 127);
  return kWordsOfOctave *
         (exponent + (-0.34484843f * mantissa + 2.02466578f) * mantissa - 1.67487759f);
}

// Computes the factors from each row's words to shares of its sum; 0 for rows that do not count.
void FindShares(const PrefillShape& shape, const TileStatistic& statistic, int first_head,
                const RankScratch& scratch) {
  for (int pair = 0; pair < scratch.pairs(); ++pair) {
    const PairSum sum = SumsOf(scratch, pair);
    int16_t* const words = scratch.sum_words + pair * 8;
    float* const factors = scratch.factors + pair * 4;
    for (int i = 0; i < 2; ++i) {
      const int query = (2 * pair + i) % kQueryTile;
      const bool counts = first_head + pair / kQueryPairs < shape.group &&
                          query >= statistic.begin && query < statistic.end;
      const float log = LogWords(sum.of[i] * (1.0f / kMeanExcess));
      const auto word = counts ? static_cast<int16_t>(log) : kNoShare;
      const float factor = counts ? 1.0f / (sum.of[i] * static_cast<float>(shape.group)) : 0.0f;
      words[4 * i] = words[4 * i + 1] = words[4 * i + 2] = words[4 * i + 3] = word;
      factors[2 * i] = factors[2 * i + 1] = factor;
    }
  }
}

bool SumsAreFinite(const RankScratch& scratch) {
  bool finite = true;
  for (int pair = 0; pair < scratch.pairs(); ++pair) {
    const PairSum sum = SumsOf(scratch, pair);
    finite = finite && sum.of[0] + sum.of[1] < __builtin_inff();
  }
  return finite;
}

// The statistics of a strip's keys over the current rows: [kQueryTile].
struct StripStatistics {
  Vec sums[kRankVectors];
  Vec largest[kRankVectors];
};

HYDRANT_INLINE StripStatistics CountStrip(const RankScratch& scratch, int strip) {
  WordVec largest[kRankVectors];
  Vec even[kRankVectors], odd[kRankVectors];
  Unroll<kRankVectors>(HYDRANT_UNROLLED(v) {
    largest[v] = hn::Zero(kWords);
    even[v] = odd[v] = Zero();
  });
  const int32_t* words = scratch.StripWords(strip);
  for (int pair = 0; pair < scratch.pairs(); ++pair, words += kPairStride) {
    for (int v = 0; v < kRankVectors; ++v)
      __builtin_prefetch(words + scratch.pairs() * kPairStride + v * kLanes);
    const WordVec sum_words = hn::LoadDup128(kWords, scratch.sum_words + pair * 8);
    const Vec factors = hn::LoadDup128(kFloats, scratch.factors + pair * 4);
    Unroll<kRankVectors>(HYDRANT_UNROLLED(v) {
      const IntVec w = hn::LoadU(kInts, words + v * kLanes);
      largest[v] = hn::Max(largest[v], hn::SaturatedSub(hn::BitCast(kWords, w), sum_words));
      even[v] = hn::MulAdd(EvenWeights(w), factors, even[v]);
      odd[v] = hn::MulAdd(OddWeights(w), factors, odd[v]);
    });
  }
  StripStatistics found;
  Unroll<kRankVectors>(HYDRANT_UNROLLED(v) {
    found.sums[v] = hn::Add(hn::InterleaveLower(even[v], odd[v]),
                            hn::InterleaveUpper(kFloats, even[v], odd[v]));
    const Vec logarithm =
        hn::Sub(hn::ConvertTo(kFloats, LargestOfPair(largest[v])), Set(kWordOfOne));
    found.largest[v] = Exp(hn::Mul(logarithm, Set(kLn2 / kWordsOfOctave)));
  });
  return found;
}

// Writes the tile's statistics for the first rows, and accumulates for later ones.
void CountStrips(const PrefillTile& tile, const RankScratch& scratch, bool first, float* sums,
                 float* largest) {
  for (int strip = 0; strip < scratch.layout.strips; ++strip) {
    const StripStatistics found = CountStrip(scratch, strip);
    for (int v = 0; v < kRankVectors; ++v) {
      const int key = strip * kQueryTile + v * kLanes;
      const int there = tile.num_keys() > key ? tile.num_keys() - key : 0;
      const Vec sum = first ? Zero() : LoadFirst(there, sums + key);
      const Vec max = first ? Zero() : LoadFirst(there, largest + key);
      StoreFirst(there, sums + key, hn::Add(sum, found.sums[v]));
      StoreFirst(there, largest + key, hn::Max(max, found.largest[v]));
    }
  }
}

void RankTile(const PrefillShape& shape, const PrefillTile& tile, float* memory) {
  // Words of the denormals' octave would cost a microcode assist per vector.
  const NoDenormals no_denormals;
  const RankScratch scratch = ScratchOf(shape, tile, memory);
  const float step = shape.scale * kLog2E * kWordsOfOctave;
  for (int head = 0; head < shape.group; head += scratch.heads()) {
    LoadRows(shape, tile, head, scratch.layout.rows, scratch.operands);
    // Uses the first strip, which contains the key with the most attention in most heads: words
    // have room for logits 88 above it.
    FindOrigins(shape, tile, scratch, step, 1);
    FindWords(shape, tile, scratch, step);
    if (!SumsAreFinite(scratch)) {
      FindOrigins(shape, tile, scratch, step, scratch.layout.strips);
      FindWords(shape, tile, scratch, step);
    }
    FindShares(shape, tile.statistics[0], head, scratch);
    CountStrips(tile, scratch, head == 0, tile.statistics[0].out, tile.statistics[1].out);
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
