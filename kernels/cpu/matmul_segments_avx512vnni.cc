// Block weights for many rows, in 8 bits by segments: the weights of a panel are rounded once more,
// to 8 bits that share a scale over up to 256 columns instead of 32, and so are the activations. A
// dot product then runs over a whole segment in integers, where blocks of 32 want a conversion, two
// products and one to two sums of floats each; and blocks are unpacked once for all rows.
#include <immintrin.h>

#include "kernels/cpu/matmul_avx512_blocks-inl.h"
#include "kernels/cpu/matmul_rows-inl.h"

namespace hydrant::cpu {
namespace {

// A panel in 8 bits, in PanelArgs::scratch. Value of column k of a row: quant * its segment's
// scale.
struct Panel8 {
  int8_t* quants;   // [cols / 4][16 rows][4]
  float* scales;    // [segments][16]
  int32_t* starts;  // [segments][16]: -128 * sum of the segment's quants; activations are 128 up
};

Panel8 PanelIn(uint8_t* scratch, int cols, int which) {
  const int segments = SegmentsOf(cols).count;
  uint8_t* p = scratch + which * (static_cast<size_t>(cols) * kPanelRows +
                                  segments * kPanelRows * (sizeof(float) + sizeof(int32_t)));
  Panel8 panel;
  panel.quants = reinterpret_cast<int8_t*>(p);
  panel.scales = reinterpret_cast<float*>(p + static_cast<size_t>(cols) * kPanelRows);
  panel.starts = reinterpret_cast<int32_t*>(panel.scales + segments * kPanelRows);
  return panel;
}

// value = scale * quant + least, of a block's half or of the whole block.
struct Line {
  __m512 scale, least;
};

template <DType dtype>
inline Line LineOf(const uint8_t* group, const GroupLayout& layout, int block, int half) {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  Line line = {ScaleOf<dtype>(group, layout, block, half), _mm512_setzero_ps()};
  if constexpr (kTraits.has_min) line.least = MinOf<dtype>(group, layout, block, half);
  if constexpr (kTraits.offset != 0)
    line.least = _mm512_fnmadd_ps(line.scale, _mm512_set1_ps(kTraits.offset), line.least);
  return line;
}

// The largest of the unsigned quants that a format may have. A block has it, or nearly: its scale
// was chosen by that.
template <DType dtype>
constexpr int LargestQuant() {
  constexpr BlockTraits kTraits = BlockTraitsOf(dtype);
  if (kTraits.codebook == Codebook::kNone) return (1 << (kTraits.low_bits + kTraits.high_bits)) - 1;
  int largest = 0;
  for (const uint8_t code : CodeBytesOf(kTraits).bytes) largest = code > largest ? code : largest;
  return largest;
}

// What no value of each row exceeds in the blocks [begin, end).
template <DType dtype>
inline __m512 PeakOf(const uint8_t* group, const GroupLayout& layout, int begin, int end) {
  constexpr int kHalves = BlockTraitsOf(dtype).halves ? 2 : 1;
  __m512 peak = _mm512_setzero_ps();
  for (int block = begin; block < end; ++block) {
    for (int half = 0; half < kHalves; ++half) {
      const Line line = LineOf<dtype>(group, layout, block, half);
      const __m512 other =
          _mm512_fmadd_ps(line.scale, _mm512_set1_ps(LargestQuant<dtype>()), line.least);
      peak = _mm512_max_ps(peak, _mm512_max_ps(_mm512_abs_ps(line.least), _mm512_abs_ps(other)));
    }
  }
  return peak;
}

// Quants of a block to those of its segment, `line` divided by whose scale: of 6 bits at most in
// whole numbers of 1 / 256, which wrap around on the way; of more in floats.
template <bool kFewBits>
struct Requantizer;

template <>
struct Requantizer<true> {
  __m512i scale, least;  // twice in each row's lane

  explicit Requantizer(const Line& line) {
    const auto twice = [](__m512 value) {
      const __m512i steps = _mm512_cvtps_epi32(value);
      return _mm512_or_si512(_mm512_and_si512(steps, _mm512_set1_epi32(0xffff)),
                             _mm512_slli_epi32(steps, 16));
    };
    const __m512 parts = _mm512_set1_ps(256.0f);
    scale = twice(_mm512_mul_ps(line.scale, parts));
    least = twice(_mm512_fmadd_ps(line.least, parts, _mm512_set1_ps(128.0f)));  // to nearest
  }
  __m512i operator()(__m512i quants) const {
    const __m512i low = _mm512_set1_epi16(0xff);
    const __m512i even = _mm512_mullo_epi16(_mm512_and_si512(quants, low), scale);
    const __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(quants, 8), scale);
    return _mm512_or_si512(_mm512_srli_epi16(_mm512_add_epi16(even, least), 8),
                           _mm512_andnot_si512(low, _mm512_add_epi16(odd, least)));
  }
};

template <>
struct Requantizer<false> {
  Line line;

  explicit Requantizer(const Line& divided) : line(divided) {}
  __m512i operator()(__m512i quants) const {
    const __m512i byte = _mm512_set1_epi32(255);
    __m512i packed = _mm512_setzero_si512();
    for (int i = 3; i >= 0; --i) {
      const __m512i quant = _mm512_and_si512(_mm512_srli_epi32(quants, 8 * i), byte);
      const __m512i rounded =
          _mm512_cvtps_epi32(_mm512_fmadd_ps(line.scale, _mm512_cvtepi32_ps(quant), line.least));
      packed = _mm512_or_si512(_mm512_slli_epi32(packed, 8), _mm512_and_si512(rounded, byte));
    }
    return packed;
  }
};

template <DType dtype>
void Requantize(const PanelArgs& args, int panel, const Panel8& out) {
  constexpr int kHalves = BlockTraitsOf(dtype).halves ? 2 : 1;
  constexpr int kSteps = 8 / kHalves;
  const int num_blocks = args.cols / kBlock;
  const GroupLayout layout = GroupLayoutOf(BlockTraitsOf(dtype), num_blocks);
  const uint8_t* group = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
  const SegmentCut cut = SegmentsOf(args.cols);
  const int segment_blocks = cut.length / kBlock;
  for (int segment = 0; segment < cut.count; ++segment) {
    const int begin = segment * segment_blocks;
    const int end = begin + segment_blocks < num_blocks ? begin + segment_blocks : num_blocks;
    const __m512 peak = PeakOf<dtype>(group, layout, begin, end);
    const __mmask16 usual = _mm512_cmp_ps_mask(peak, _mm512_set1_ps(kSmallestPeak), _CMP_GT_OQ);
    const __m512 inverse = _mm512_maskz_div_ps(usual, _mm512_set1_ps(127.0f), peak);
    __m512i sum = _mm512_setzero_si512();
    for (int block = begin; block < end; ++block) {
      __m512i quants[8];
      UnpackBlock<dtype>(group, layout, block, quants);
      for (int half = 0; half < kHalves; ++half) {
        Line line = LineOf<dtype>(group, layout, block, half);
        line.scale = _mm512_mul_ps(line.scale, inverse);
        line.least = _mm512_mul_ps(line.least, inverse);
        const Requantizer<LargestQuant<dtype>() < 64> requantized(line);
        for (int i = half * kSteps; i < (half + 1) * kSteps; ++i) {
          const __m512i bytes = requantized(quants[i]);
          _mm512_store_si512(out.quants + (static_cast<size_t>(block) * 8 + i) * 64, bytes);
          sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), bytes);
        }
      }
    }
    _mm512_store_ps(out.scales + segment * kPanelRows,
                    _mm512_mul_ps(peak, _mm512_set1_ps(1.0f / 127.0f)));
    _mm512_store_si512(out.starts + segment * kPanelRows,
                       _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7)));
  }
}

template <int kValue>
struct Int {
  constexpr operator int() const { return kValue; }  // NOLINT(google-explicit-constructor)
};
// Calls body(Int<0>()) .. body(Int<kCount - 1>()), unrolled before the compiler decides what lives
// in registers.
template <int kCount, int kFrom = 0, typename Body>
inline __attribute__((always_inline)) void Unroll(const Body& body) {
  if constexpr (kFrom < kCount) {
    body(Int<kFrom>());
    Unroll<kCount, kFrom + 1>(body);
  }
}

// sum += dot products of four unsigned and four signed bytes each. GCC 12 copies the sums of its
// own intrinsic back and forth where a loop carries them.
inline __attribute__((always_inline)) void AddProducts(__m512i bytes, __m512i signed_bytes,
                                                       __m512i* sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(bytes), "v"(signed_bytes));
}

// kRows rows of a tile from `row` on by two panels; of the second panel nothing is stored where it
// is past the last. Integer and float sums all stay in registers, which more rows have no room for.
template <int kRows>
void SegmentsTile(const PanelArgs& args, const Panel8& one, const Panel8& other, int row,
                  int panel) {
  const SegmentCut cut = SegmentsOf(args.cols);
  const size_t tile = static_cast<size_t>(row / kTileRows);
  const uint8_t* x = args.segments.quants + tile * args.cols * kTileRows + row % kTileRows * 4;
  const float* scales = args.segments.scales + tile * cut.count * kTileRows + row % kTileRows;
  const int8_t* one_quants = one.quants;
  const int8_t* other_quants = other.quants;
  __m512 sums[kRows], other_sums[kRows];
  Unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    sums[r] = other_sums[r] = _mm512_setzero_ps();
  });
  for (int segment = 0; segment < cut.count; ++segment, scales += kTileRows) {
    __m512i dots[kRows], other_dots[kRows];
    Unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      dots[r] = _mm512_load_si512(one.starts + segment * kPanelRows);
      other_dots[r] = _mm512_load_si512(other.starts + segment * kPanelRows);
    });
    const int left = args.cols - segment * cut.length;
    const int steps = (left < cut.length ? left : cut.length) / 4;
    for (int step = 0; step < steps; ++step) {
      const __m512i a = _mm512_load_si512(one_quants), b = _mm512_load_si512(other_quants);
      Unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        const __m512i values = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x + r * 4));
        AddProducts(values, a, &dots[r]);
        AddProducts(values, b, &other_dots[r]);
      });
      x += 4 * kTileRows;
      one_quants += 64;
      other_quants += 64;
    }
    const __m512 scale = _mm512_load_ps(one.scales + segment * kPanelRows);
    const __m512 other_scale = _mm512_load_ps(other.scales + segment * kPanelRows);
    Unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const __m512 of_row = _mm512_set1_ps(scales[r]);
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), _mm512_mul_ps(scale, of_row), sums[r]);
      other_sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(other_dots[r]),
                                      _mm512_mul_ps(other_scale, of_row), other_sums[r]);
    });
  }
  Unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    if (row + r >= args.end_row) return;
    StoreRow(args, row + r, panel, sums[r]);
    if (panel + 1 < args.end_panel) StoreRow(args, row + r, panel + 1, other_sums[r]);
  });
}

// The rows of a tile in three parts.
template <DType dtype>
struct SegmentRange {
  static void Run(const PanelArgs& args) {
    for (int panel = args.first_panel; panel < args.end_panel; panel += 2) {
      const Panel8 one = PanelIn(args.scratch, args.cols, 0);
      Panel8 other = one;
      Requantize<dtype>(args, panel, one);
      if (panel + 1 < args.end_panel) {
        other = PanelIn(args.scratch, args.cols, 1);
        Requantize<dtype>(args, panel + 1, other);
      }
      for (int row = args.first_row; row < args.end_row; row += kTileRows) {
        SegmentsTile<6>(args, one, other, row, panel);
        if (row + 6 < args.end_row) SegmentsTile<6>(args, one, other, row + 6, panel);
        if (row + 12 < args.end_row) SegmentsTile<4>(args, one, other, row + 12, panel);
      }
    }
  }
};

// One row's segment: `count` values, a multiple of 32, four bytes every kTileRows * 4. Returns the
// scale; NaN where a value is not finite, and 0 where all are zero, or too small for 1 / scale.
float QuantizeSegment(const float* x, int count, uint8_t* out) {
  __m512 peaks = _mm512_setzero_ps();
  __mmask16 nan = 0;
  for (int i = 0; i < count; i += 16) {
    const __m512 value = _mm512_loadu_ps(x + i);
    peaks = _mm512_max_ps(peaks, _mm512_abs_ps(value));
    nan |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  }
  const float peak = _mm512_reduce_max_ps(peaks);
  const bool finite = nan == 0 && peak <= kLargestFloat;
  const bool usual = finite && peak >= kSmallestPeak;
  const __m512 inverse = _mm512_set1_ps(usual ? kQuantLimit8 / peak : 0.0f);
  for (int i = 0; i < count; i += 16) {
    __m512i ints = _mm512_set1_epi32(128);
    if (usual) {
      const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), inverse);
      ints = _mm512_add_epi32(_mm512_cvtps_epi32(scaled), ints);
    }
    const __m128i bytes = _mm512_cvtepi32_epi8(ints);
    alignas(16) int32_t fours[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(fours), bytes);
    for (int j = 0; j < 4; ++j)
      *reinterpret_cast<int32_t*>(out + (i / 4 + j) * (kTileRows * 4)) = fours[j];
  }
  if (!finite) return __builtin_nanf("");
  return usual ? peak / kQuantLimit8 : 0.0f;
}

void QuantizeSegments(const float* x, int cols, int first_row, int end_row,
                      const SegmentRows& out) {
  const SegmentCut cut = SegmentsOf(cols);
  for (int row = first_row; row < end_row; ++row) {
    const float* values = x + static_cast<size_t>(row - first_row) * cols;
    const size_t tile = static_cast<size_t>(row / kTileRows);
    uint8_t* quants = out.quants + tile * cols * kTileRows + row % kTileRows * 4;
    float* scales = out.scales + tile * cut.count * kTileRows + row % kTileRows;
    for (int segment = 0; segment < cut.count; ++segment) {
      const int begin = segment * cut.length;
      const int count = cols - begin < cut.length ? cols - begin : cut.length;
      scales[segment * kTileRows] =
          QuantizeSegment(values + begin, count, quants + static_cast<size_t>(begin) * kTileRows);
    }
  }
}

}  // namespace

const MatmulKernels& MatmulKernelsSegments() {
  static constexpr MatmulKernels kKernels = {.blocks_segments = ForFormat<SegmentRange>,
                                             .quantize_segments = QuantizeSegments};
  return kKernels;
}

}  // namespace hydrant::cpu
