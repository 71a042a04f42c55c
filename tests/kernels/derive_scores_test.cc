// DeriveScores of every backend against plain arithmetic, bit for bit; memory past n is unchanged.
#include "kernels/ops/derive_scores.h"

#include <cmath>
#include <set>
#include <vector>

#include "kernels/random.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

constexpr int kSizes[] = {0, 1, 2, 31, 255, 256, 257, 1000};

class DeriveScoresTest : public BackendTest {
 protected:
  // Runs on `heads` rows of n + 3; out is poisoned, or aliases a.
  std::vector<float> Run(DeriveScoresArgs args, const std::vector<float>& a,
                         const std::vector<float>& b, bool in_place) {
    args.stride = args.n + 3;
    auto device_a = Upload(a), device_b = Upload(b);
    auto out = Output(static_cast<size_t>(args.num_kv_heads * args.stride));
    args.a = device_a.data();
    args.b = b.empty() ? nullptr : device_b.data();
    args.out = in_place ? device_a.data() : out.data();
    backend().DeriveScores(args);
    return in_place ? device_a.Read() : out.Read();
  }

  // Row h of `actual` must be expected(h, j) for j < n, then the old contents.
  template <typename Expected>
  void ExpectRows(const std::vector<float>& actual, int heads, int n, bool in_place,
                  const std::vector<float>& a, const Expected& expected) {
    for (int h = 0; h < heads; ++h) {
      for (int j = 0; j < n + 3; ++j) {
        const size_t i = static_cast<size_t>(h) * (n + 3) + j;
        if (j < n) {
          ASSERT_EQ(actual[i], expected(h, j)) << "head " << h << " position " << j;
        } else {
          ASSERT_TRUE(in_place ? actual[i] == a[i] : std::isnan(actual[i])) << "past n, head " << h;
        }
      }
    }
  }
};

TEST_P(DeriveScoresTest, CombinesWithoutContraction) {
  for (const int heads : {1, 2, 5}) {
    for (const int n : kSizes) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << heads << " heads, n " << n << ", in place " << in_place);
        const size_t size = static_cast<size_t>(heads) * (n + 3);
        const std::vector<float> a = RandomFloats(size, 10 + n), b = RandomFloats(size, 20 + n);
        DeriveScoresArgs args = {.weight_a = 0.3f, .weight_b = 5.1f, .num_kv_heads = heads, .n = n};
        const auto index = [n](int h, int j) { return static_cast<size_t>(h) * (n + 3) + j; };
        ExpectRows(Run(args, a, b, in_place), heads, n, in_place, a, [&](int h, int j) {
          const volatile float x = 0.3f * a[index(h, j)], y = 5.1f * b[index(h, j)];
          return x + y;
        });
        args.weight_a = -1.0f;
        ExpectRows(Run(args, a, {}, in_place), heads, n, in_place, a,
                   [&](int h, int j) { return -a[index(h, j)]; });
      }
    }
  }
}

TEST_P(DeriveScoresTest, AveragesHeads) {
  for (const int heads : {1, 2, 3, 8}) {
    for (const int n : kSizes) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << heads << " heads, n " << n << ", in place " << in_place);
        const std::vector<float> a = RandomFloats(static_cast<size_t>(heads) * (n + 3), 30 + n);
        const DeriveScoresArgs args = {
            .step = ScoreStep::kAverageHeads, .num_kv_heads = heads, .n = n};
        ExpectRows(Run(args, a, {}, in_place), heads, n, in_place, a, [&](int, int j) {
          double sum = 0;
          for (int h = 0; h < heads; ++h) sum += a[static_cast<size_t>(h) * (n + 3) + j];
          return static_cast<float>(sum / heads);
        });
      }
    }
  }
}

TEST_P(DeriveScoresTest, TimesTheLengthOfARow) {
  for (const int dims : {1, 7, 64}) {
    for (const int n : {1, 33, 300}) {
      for (const bool in_place : {false, true}) {
        const int heads = 3;
        const int64_t head_stride = int64_t{n} * dims + 5;
        const std::vector<float> a = RandomFloats(heads * (n + 3), 51);
        const std::vector<float> rows = RandomFloats(heads * head_stride, 52);
        auto device_rows = Upload(rows);
        const DeriveScoresArgs args = {.step = ScoreStep::kTimesLength,
                                       .num_kv_heads = heads,
                                       .n = n,
                                       .rows = device_rows.data(),
                                       .row_head_stride = head_stride,
                                       .dims = dims};
        ExpectRows(Run(args, a, {}, in_place), heads, n, in_place, a, [&](int h, int j) {
          long double squares = 0;
          for (int i = 0; i < dims; ++i) {
            const long double x = rows[h * head_stride + int64_t{j} * dims + i];
            squares += x * x;
          }
          return a[static_cast<size_t>(h) * (n + 3) + j] *
                 static_cast<float>(std::sqrt(static_cast<double>(squares)));
        });
      }
    }
  }
}

// Numbers depend on (seed, layer, head, position) alone and are uniform: chi-squared over 16 parts
// of the unit interval, 99.9 % quantile of 15 degrees of freedom.
TEST_P(DeriveScoresTest, Draws) {
  constexpr int kHeads = 3, kCount = 1000;
  DeriveScoresArgs args = {
      .step = ScoreStep::kRandom, .seed = 4, .layer = 2, .num_kv_heads = kHeads, .n = kCount};
  const std::vector<float> drawn = Run(args, {0.0f}, {}, false);
  std::vector<int> counts(16, 0);
  std::set<float> distinct;
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < kCount; ++j) {
      const float score = drawn[static_cast<size_t>(h) * (kCount + 3) + j];
      ASSERT_GE(score, 0.0f);
      ASSERT_LT(score, 1.0f);
      ++counts[static_cast<int>(score * 16)];
      distinct.insert(score);
    }
  }
  EXPECT_GT(distinct.size(), 2990u) << "of 3000 draws of 24 bits hardly two are equal";
  double chi_squared = 0;
  for (const int count : counts)
    chi_squared += std::pow(count - kHeads * kCount / 16.0, 2) / (kHeads * kCount / 16.0);
  EXPECT_LT(chi_squared, 37.7);

  args.n = 10;
  const std::vector<float> fewer = Run(args, {0.0f}, {}, false);
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < args.n; ++j)
      EXPECT_EQ(fewer[h * (args.n + 3) + j], drawn[static_cast<size_t>(h) * (kCount + 3) + j]);
  }
  args.seed = 5;
  EXPECT_NE(Run(args, {0.0f}, {}, false)[0], fewer[0]);
  args.seed = 4;
  args.layer = 3;
  EXPECT_NE(Run(args, {0.0f}, {}, false)[0], fewer[0]);
}

// The bits of a published generator: random scores must never change.
TEST(RandomBits, AreThoseOfSplitMix64) {
  // Output i of splitmix64 from state s is MixBits(s + (i + 1) * kRandomStep).
  uint64_t state = MixBits(uint64_t{0} + kRandomStep);
  for (int position = 0; position < 5; ++position) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    EXPECT_EQ(RandomBits(0, position), z ^ (z >> 31));
  }
  EXPECT_EQ(kRandomStep, 0x9e3779b97f4a7c15u);
}

HYDRANT_FOR_EACH_BACKEND(DeriveScoresTest);

}  // namespace
}  // namespace hydrant
