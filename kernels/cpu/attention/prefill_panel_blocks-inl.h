// Register blocking of prefill attention's products. Included once per instruction set, after
// attention_simd.h.

namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE {

inline constexpr int kPair = 2 * kLanes;

inline constexpr float kMinusInfinity = -__builtin_inff();
// Below every logit, but finite: -infinity minus a maximum of -infinity would be NaN.
inline constexpr float kPastLogit = -1e30f;

// A panel's operands: the keys and values in place, or copies in scratch.
struct PanelOperands {
  const float* k;
  const float* v;
};

// Transposes query rows to lanes: to[column * kQueryTile + i] is word `column` of query i, for
// `words` words. words_of(row, lane, first): words [first, first + kLanes) of the lane's query
// `row`, zero past the end. Lanes with a negative offset have no query and are zero.
template <typename WordsOf>
HYDRANT_INLINE void RowsToLanes(const float* q, const int64_t* offsets, int words, float* to,
                                const WordsOf& words_of) {
  for (int lane = 0; lane < kQueryTile; lane += kLanes) {
    for (int first = 0; first < words; first += kLanes) {
      Vec rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int64_t offset = offsets[lane + i];
        rows[i] = offset >= 0 ? words_of(q + offset, lane + i, first) : Zero();
      }
      Transpose(rows);
      for (int i = 0; i < kLanes && first + i < words; ++i)
        Store(to + (first + i) * kQueryTile + lane, rows[i]);
    }
  }
}

// Calls block(Int<n>, first) for pieces of [0, count) of at most kPanelTile, as equal as possible,
// so that the last piece uses the registers too.
template <int kSize, typename Block>
HYDRANT_INLINE void CallBlock(int size, int first, const Block& block) {
  if constexpr (kSize > 1) {
    if (size < kSize) return CallBlock<kSize - 1>(size, first, block);
  }
  block(Int<kSize>(), first);
}

template <typename Block>
HYDRANT_INLINE void ForBlocks(int count, const Block& block) {
  const int blocks = (count + kPanelTile - 1) / kPanelTile;
  for (int i = 0, first = 0; i < blocks; ++i) {
    const int size = (count - first + blocks - i - 1) / (blocks - i);
    CallBlock<kPanelTile>(size, first, block);
    first += size;
  }
}

}  // namespace hydrant::cpu::HYDRANT_SIMD_NAMESPACE
