// Fixture of the kernel tests: every backend runs the same tests, each compared with plain
// arithmetic. Arguments pass through the backend's own memory, so device backends are covered too.
#ifndef HYDRANT_TESTS_KERNELS_BACKEND_TEST_H_
#define HYDRANT_TESTS_KERNELS_BACKEND_TEST_H_

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"

namespace hydrant {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kFloatEpsilon = 1.0 / (1 << 24);  // relative error of one rounding to float

inline absl::StatusOr<std::unique_ptr<Backend>> TryBackend(const std::string& name,
                                                           int num_threads = 2) {
  // HYDRANT_TEST_FAST: enables fast-mode optimizations, with which bits depend on the batch.
  const bool fast = std::getenv("HYDRANT_TEST_FAST") != nullptr;
  return CreateBackend(name, {.num_threads = num_threads, .batch_invariant = !fast});
}

inline std::unique_ptr<Backend> MakeBackend(const std::string& name, int num_threads = 2) {
  auto backend = TryBackend(name, num_threads);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// The backend of single-backend tests: HYDRANT_TEST_BACKEND, or cpu by default.
inline std::string TestBackendName() {
  const char* name = std::getenv("HYDRANT_TEST_BACKEND");
  return name == nullptr ? "cpu" : name;
}

// A vector in a backend's memory, followed by guard elements up to the end of the allocation;
// Read() fails the test if an operation overwrote them.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, const std::vector<T>& values)
      : backend_(backend), size_(values.size()) {
    auto buffer = backend.Allocate((size_ + kGuards) * sizeof(T));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    buffer_ = *std::move(buffer);
    const std::vector<T> guards(kGuards, Guard());
    if (size_ > 0) backend.CopyToDevice(data(), values.data(), size_ * sizeof(T));
    backend.CopyToDevice(data() + size_, guards.data(), kGuards * sizeof(T));
  }
  T* data() { return static_cast<T*>(buffer_.get()); }
  size_t size() const { return size_; }
  std::vector<T> Read() {
    std::vector<T> values(size_);
    ReadInto(&values);
    return values;
  }
  // Tests of many steps read into the same memory.
  void ReadInto(std::vector<T>* values) {
    values->resize(size_);
    std::vector<T> guards(kGuards);
    EXPECT_TRUE(backend_.Synchronize().ok());
    if (size_ > 0) backend_.CopyToHost(values->data(), data(), size_ * sizeof(T));
    backend_.CopyToHost(guards.data(), data() + size_, kGuards * sizeof(T));
    for (int i = 0; i < kGuards; ++i)
      EXPECT_EQ(BytesIn(guards[i]), BytesIn(Guard())) << "written past the end, at +" << i;
  }

 private:
  static constexpr int kGuards = 64;
  using Bytes = std::array<uint8_t, sizeof(T)>;
  static Bytes BytesIn(const T& value) {
    Bytes bytes;
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static T Guard() {
    T guard;
    std::memset(static_cast<void*>(&guard), 77, sizeof(T));
    return guard;
  }
  Backend& backend_;
  size_t size_;
  DeviceBuffer buffer_;
};

// The backend under test (TestBackendName), created once per number of threads; null if the
// device is missing.
inline Backend* TestBackend(int num_threads) {
  static std::map<int, std::unique_ptr<Backend>> backends;
  auto& backend = backends[num_threads];
  if (backend == nullptr) {
    auto made = TryBackend(TestBackendName(), num_threads);
    if (absl::IsUnavailable(made.status())) return nullptr;
    backend = *std::move(made);
  }
  return backend.get();
}

// Skips all tests of the program if the backend under test is missing.
class SkipWithoutTestBackend : public testing::Environment {
  void SetUp() override {
    if (TestBackend(1) == nullptr) GTEST_SKIP() << TryBackend(TestBackendName()).status().message();
  }
};

// Gives an operation host vectors in place, or copies in device memory that are
// copied back afterwards.
class Mirror {
 public:
  explicit Mirror(Backend& backend) : backend_(backend) {}
  // `count` elements at `host`, as the operation's pointer.
  template <typename T>
  T* Map(const T* host, size_t count) {
    auto buffer = backend_.Allocate(count * sizeof(T));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    auto* mutable_host = const_cast<std::remove_const_t<T>*>(host);
    backend_.CopyToDevice(buffer->get(), host, count * sizeof(T));
    copies_.push_back({*std::move(buffer), mutable_host, count * sizeof(T)});
    return static_cast<T*>(copies_.back().device.get());
  }
  void ReadBack() {
    EXPECT_TRUE(backend_.Synchronize().ok()) << backend_.Synchronize();
    for (const Copy& copy : copies_) backend_.CopyToHost(copy.host, copy.device.get(), copy.bytes);
  }

 private:
  struct Copy {
    DeviceBuffer device;
    void* host;
    size_t bytes;
  };
  Backend& backend_;
  std::vector<Copy> copies_;
};

class BackendTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto backend = TryBackend(GetParam());
    if (absl::IsUnavailable(backend.status())) GTEST_SKIP() << backend.status().message();
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  Backend& backend() { return *backend_; }

  template <typename T>
  DeviceArray<T> Upload(std::vector<T> values) {
    return DeviceArray<T>(*backend_, std::move(values));
  }
  // Poisoned, so that unwritten elements are detected.
  DeviceArray<float> Output(size_t size) { return Upload(std::vector<float>(size, kNan)); }

 private:
  std::unique_ptr<Backend> backend_;
};

#define HYDRANT_FOR_EACH_BACKEND(suite)                     \
  INSTANTIATE_TEST_SUITE_P(                                 \
      , suite, testing::Values("reference", "cpu", "cuda"), \
      [](const testing::TestParamInfo<std::string>& info) { return info.param; })

inline std::vector<float> RandomFloats(size_t count, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

// actual - expected| <= tolerance, element by element; reports the worst one. NaN equals NaN, and
// infinities equal themselves.
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

// Equal values; NaN equals NaN.
inline void ExpectSame(const std::vector<float>& actual, const std::vector<float>& expected,
                       const std::string& what) {
  ExpectNear(actual, {expected.begin(), expected.end()}, std::vector<double>(expected.size()),
             what);
}

}  // namespace hydrant

#endif  // HYDRANT_TESTS_KERNELS_BACKEND_TEST_H_
