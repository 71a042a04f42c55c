// PredictScores of every backend against arithmetic in double, and StoreNewScores against the
// entries that DecodeAttention appends; other memory is unchanged.
#include "kernels/ops/predict_scores.h"

#include <cmath>
#include <vector>

#include "tests/kernels/backend_test.h"
#include "tests/kernels/paged_pool.h"

namespace hydrant {
namespace {

class PredictScoresTest : public BackendTest {
 protected:
  // [heads, rows + 3], poisoned past the rows.
  std::vector<float> Predict(const std::vector<float>& x, int rows, int width,
                             const std::vector<float>& weights, const std::vector<float>& biases) {
    const int heads = static_cast<int>(biases.size());
    auto device_x = Upload(x), device_weights = Upload(weights), device_biases = Upload(biases);
    auto out = Output(static_cast<size_t>(heads) * (rows + 3));
    backend().PredictScores({.x = device_x.data(),
                             .num_rows = rows,
                             .width = width,
                             .weights = device_weights.data(),
                             .biases = device_biases.data(),
                             .num_kv_heads = heads,
                             .out = out.data(),
                             .stride = rows + 3});
    return out.Read();
  }
};

double LogScore(const float* x, const float* weights, float bias, int width) {
  double squares = 0, product = 0;
  for (int d = 0; d < width; ++d) {
    squares += double{x[d]} * x[d];
    product += double{weights[d]} * x[d];
  }
  return squares > 0 ? bias + product / std::sqrt(squares / width) : bias;
}

TEST_P(PredictScoresTest, IsTheExponentialOfALinearFunctionOfTheNormalisedRow) {
  for (const int width : {1, 7, 64, 576, 1000}) {
    for (const int rows : {0, 1, 31, 33, 70}) {
      for (const int heads : {1, 2, 5}) {
        SCOPED_TRACE(testing::Message() << width << " wide, " << rows << " rows, " << heads);
        const std::vector<float> x = RandomFloats(static_cast<size_t>(rows) * width, 1 + rows);
        std::vector<float> weights = RandomFloats(static_cast<size_t>(heads) * width, 2 + width);
        for (float& weight : weights) weight /= std::sqrt(static_cast<float>(width));
        const std::vector<float> biases = RandomFloats(heads, 3 + heads);
        const std::vector<float> out = Predict(x, rows, width, weights, biases);
        for (int h = 0; h < heads; ++h) {
          const float* row = out.data() + static_cast<size_t>(h) * (rows + 3);
          for (int i = 0; i < rows; ++i) {
            const double expected =
                LogScore(x.data() + static_cast<size_t>(i) * width,
                         weights.data() + static_cast<size_t>(h) * width, biases[h], width);
            ASSERT_NEAR(std::log(row[i]), expected, 1e-5 * (1 + std::abs(expected))) << i;
          }
          for (int i = rows; i < rows + 3; ++i) ASSERT_TRUE(std::isnan(row[i])) << i;
        }
      }
    }
  }
}

// A residual stream has rows of any size, and padding may be zero.
TEST_P(PredictScoresTest, DependsOnDirectionsAloneAndStaysFinite) {
  const std::vector<float> unit = {1, -2, 2, 0.5};
  std::vector<float> x;
  for (const float factor : {1.0f, 1e-15f, 1e15f, 0.0f}) {
    for (const float element : unit) x.push_back(factor * element);
  }
  const std::vector<float> weights = {1, 1, 1, 1, 500, 0, 0, 0, -500, 0, 0, 0};
  const std::vector<float> out = Predict(x, 4, 4, weights, {0.25f, 0, 0});
  EXPECT_FLOAT_EQ(out[1], out[0]);
  EXPECT_FLOAT_EQ(out[2], out[0]);
  EXPECT_FLOAT_EQ(out[3], std::exp(0.25f));
  EXPECT_FLOAT_EQ(out[7], std::exp(kMaxLogScore));
  EXPECT_FLOAT_EQ(out[14], std::exp(-kMaxLogScore));
}

TEST_P(PredictScoresTest, ARowsBitsDoNotDependOnItsNeighbours) {
  constexpr int kRows = 40, kWidth = 129;
  const std::vector<float> x = RandomFloats(size_t{kRows} * kWidth, 5);
  const std::vector<float> weights = RandomFloats(kWidth, 6);
  const std::vector<float> together = Predict(x, kRows, kWidth, weights, {0.0f});
  for (const int row : {0, 17, 39}) {
    const std::vector<float> one(x.begin() + row * kWidth, x.begin() + (row + 1) * kWidth);
    EXPECT_EQ(Predict(one, 1, kWidth, weights, {0.0f})[0], together[row]);
  }
}

TEST_P(PredictScoresTest, StoresScoresOfNewEntriesOfPredictedRowsBelowTheirCap) {
  PagedPool pool({.num_slots = 4, .num_layers = 2, .num_kv_heads = 2, .width = 3, .block_size = 4},
                 7);
  constexpr int kLayer = 1;
  for (const int slot : {0, 2, 3}) pool.rules[slot].predicted = true;
  for (int slot = 0; slot < 4; ++slot) {
    for (int head = 0; head < 2; ++head)
      pool.lengths[pool.Head(slot, kLayer, head)] = 3 + 2 * head + slot;
  }
  pool.caps[pool.Head(2, kLayer, 1)] = pool.lengths[pool.Head(2, kLayer, 1)];
  const std::vector<int32_t> slots = {2, -1, 1, 0};
  const std::vector<float> scores = {10, 11, 12, 13, -1, 20, 21, 22, 23, -1};
  DevicePool device(backend(), pool);
  auto device_slots = Upload(slots);
  auto device_scores = Upload(scores);
  backend().StoreNewScores({.num_rows = 4,
                            .slots = device_slots.data(),
                            .layer = kLayer,
                            .scores = device_scores.data(),
                            .stride = 5,
                            .pages = device.Pages(),
                            .tables = device.Tables()});
  PagedPool after = pool;
  device.ReadBack(&after);
  ChangedPlaces changed(pool);
  const auto expect = [&](int slot, int head, float score) {
    const size_t place =
        pool.Place(slot, kLayer, head, pool.lengths[pool.Head(slot, kLayer, head)]);
    EXPECT_EQ(after.scores[pool.State(place)], score) << "slot " << slot << " head " << head;
    changed.state[place] = true;
  };
  expect(2, 0, 10);
  expect(0, 0, 13);
  expect(0, 1, 23);
  ExpectNothingElseChanged(pool, after, changed, 0, kLayer);
}

HYDRANT_FOR_EACH_BACKEND(PredictScoresTest);

}  // namespace
}  // namespace hydrant
