// The fixture of the kernel tests: every backend runs the same tests, each test compares with plain
// arithmetic of its own. Arguments go through the backend's own memory, so that a device backend
// can join.
#ifndef HYDRANT_TESTS_KERNELS_BACKEND_TEST_H_
#define HYDRANT_TESTS_KERNELS_BACKEND_TEST_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace hydrant {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kFloatEpsilon = 1.0 / (1 << 24);  // relative error of one rounding to float

inline std::unique_ptr<Backend> MakeBackend(const std::string& name, int num_threads = 2) {
  auto backend = CreateBackend(name, {.num_threads = num_threads, .batch_invariant = true});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// A vector in the memory of a backend. Between its end and the end of the allocation lie guard
// elements; Read() fails the test where an operation wrote on them.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, std::vector<T> values) : backend_(backend), size_(values.size()) {
    for (int i = 0; i < kGuards; ++i) values.push_back(static_cast<T>(kGuardValue));
    auto buffer = backend.Allocate(values.size() * sizeof(T));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    buffer_ = *std::move(buffer);
    backend.CopyToDevice(buffer_.get(), values.data(), values.size() * sizeof(T));
  }
  T* data() { return static_cast<T*>(buffer_.get()); }
  size_t size() const { return size_; }
  std::vector<T> Read() {
    std::vector<T> values(size_ + kGuards);
    EXPECT_TRUE(backend_.Synchronize().ok());
    backend_.CopyToHost(values.data(), data(), values.size() * sizeof(T));
    for (int i = 0; i < kGuards; ++i) {
      EXPECT_EQ(values[size_ + i], static_cast<T>(kGuardValue))
          << "written past the end, at +" << i;
    }
    values.resize(size_);
    return values;
  }

 private:
  static constexpr int kGuards = 64;
  static constexpr int kGuardValue = 77;
  Backend& backend_;
  size_t size_;
  DeviceBuffer buffer_;
};

class BackendTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { backend_ = MakeBackend(GetParam()); }
  Backend& backend() { return *backend_; }

  template <typename T>
  DeviceArray<T> Upload(std::vector<T> values) {
    return DeviceArray<T>(*backend_, std::move(values));
  }
  // Poisoned, so that an element the operation forgets is seen.
  DeviceArray<float> Output(size_t size) { return Upload(std::vector<float>(size, kNan)); }

 private:
  std::unique_ptr<Backend> backend_;
};

#define HYDRANT_FOR_EACH_BACKEND(suite)             \
  INSTANTIATE_TEST_SUITE_P(                         \
      , suite, testing::Values("reference", "cpu"), \
      [](const testing::TestParamInfo<std::string>& info) { return info.param; })

inline std::vector<float> RandomFloats(size_t count, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

// |actual - expected| <= tolerance, element by element; reports the worst one. NaN equals NaN, and
// an infinity itself.
inline void ExpectNear(const std::vector<float>& actual, const std::vector<double>& expected,
                       const std::vector<double>& tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0.0;
  size_t worst_index = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    if (actual[i] == static_cast<float>(expected[i])) continue;
    const double error = std::abs(actual[i] - expected[i]);
    const double ratio = std::isnan(error) ? INFINITY : error / tolerance[i];
    if (ratio > worst) {
      worst = ratio;
      worst_index = i;
    }
  }
  EXPECT_LE(worst, 1.0) << what << ": worst element " << worst_index << " of " << actual.size()
                        << ": " << actual[worst_index] << " for " << expected[worst_index]
                        << ", tolerance " << tolerance[worst_index];
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_BACKEND_TEST_H_
