#include "tests/kernels/backend_test.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

namespace hydrant {
namespace {

class BackendMemoryTest : public BackendTest {};

TEST_P(BackendMemoryTest, AllocatesZeroedAlignedMemory) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{100000},
                       size_t{4} << 20, (size_t{9} << 20) + 5}) {
    auto buffer = backend().Allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    ASSERT_NE(buffer->get(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->get()) % 64, 0u);
    std::vector<uint8_t> host(bytes, 1);
    backend().CopyToHost(host.data(), buffer->get(), bytes);
    EXPECT_EQ(std::count(host.begin(), host.end(), 0), static_cast<int64_t>(bytes));
  }
}

TEST_P(BackendMemoryTest, CopiesAndZeroes) {
  const std::vector<float> values = RandomFloats(1000, 1);
  auto array = Upload(values);
  EXPECT_EQ(array.Read(), values);
  auto copy = Upload(std::vector<float>(1000, kNan));
  backend().CopyOnDevice(copy.data() + 3, array.data(), 997 * sizeof(float));
  const std::vector<float> copied = copy.Read();
  EXPECT_TRUE(std::equal(copied.begin() + 3, copied.end(), values.begin()));
  EXPECT_TRUE(std::isnan(copied[2]));
  backend().Zero(array.data() + 10, 5 * sizeof(float));
  const std::vector<float> after = array.Read();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(after[i], i >= 10 && i < 15 ? 0.0f : values[i]) << i;
}

// Host memory is free when the copy returns, no matter how far behind the device is or how much has
// been copied since.
TEST_P(BackendMemoryTest, TakesHostMemoryAtOnce) {
  constexpr int kCopies = 300;
  constexpr size_t kLimit = 100'000;  // together more than the pinned ring holds
  auto array = Upload(std::vector<uint32_t>(kCopies * kLimit / 8, 0));
  std::vector<uint32_t> expected(array.Read().size(), 0);
  std::mt19937 rng(1);
  for (int i = 0; i < kCopies; ++i) {
    std::vector<uint32_t> host(1 + rng() % (kLimit / 4));
    for (uint32_t& value : host) value = rng();
    const size_t at = rng() % (expected.size() - host.size());
    std::copy(host.begin(), host.end(), expected.begin() + at);
    backend().CopyToDevice(array.data() + at, host.data(), host.size() * sizeof(uint32_t));
    std::fill(host.begin(), host.end(), 0xDEADBEEF);
  }
  EXPECT_EQ(array.Read(), expected);
  std::vector<uint32_t> large(expected.size());
  for (uint32_t& value : large) value = rng();
  const std::vector<uint32_t> kept = large;
  backend().CopyToDevice(array.data(), large.data(), large.size() * sizeof(uint32_t));
  std::fill(large.begin(), large.end(), 0);
  EXPECT_EQ(array.Read(), kept);
}

// A result is a snapshot from when its copy was enqueued, and is available after its event.
TEST_P(BackendMemoryTest, BringsResultsLater) {
  auto array = Upload(std::vector<uint32_t>(5, 0));
  std::vector<DeviceBuffer> results;
  for (int event = 0; event < Backend::kEvents; ++event) {
    auto buffer = backend().AllocateHost(5 * sizeof(uint32_t));
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    results.push_back(*std::move(buffer));
  }
  const auto value = [](int round, int event, int i) {
    return static_cast<uint32_t>(round * 100 + event * 10 + i);
  };
  for (int round = 1; round <= 3; ++round) {
    for (int event = 0; event < Backend::kEvents; ++event) {
      std::vector<uint32_t> host(5);
      for (int i = 0; i < 5; ++i) host[i] = value(round, event, i);
      backend().CopyToDevice(array.data(), host.data(), 5 * sizeof(uint32_t));
      backend().CopyToHostLater(results[event].get(), array.data(), 5 * sizeof(uint32_t));
      backend().RecordEvent(event);
    }
    for (int event = 0; event < Backend::kEvents; ++event) {
      ASSERT_TRUE(backend().WaitForEvent(event).ok());
      const auto* result = static_cast<const uint32_t*>(results[event].get());
      for (int i = 0; i < 5; ++i) EXPECT_EQ(result[i], value(round, event, i));
    }
  }
}

TEST_P(BackendMemoryTest, RefusesUnmappableFiles) {
  const std::pair<size_t, const char*> sizes[] = {
      {SIZE_MAX, "16.0 EiB"}, {SIZE_MAX / 2, "8.0 EiB"}, {size_t{1} << 46, "64.0 TiB"}};
  for (const auto& [bytes, text] : sizes) {
    auto buffer = backend().Allocate(bytes);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(buffer.status().message()), testing::HasSubstr(text));
  }
}

TEST_P(BackendMemoryTest, NamesItself) {
  EXPECT_EQ(backend().Name(), GetParam());
  EXPECT_THAT(backend().Description(), testing::StartsWith(GetParam() + ": "));
  EXPECT_THAT(backend().Description(),
              testing::AnyOf(testing::HasSubstr("thread"), testing::HasSubstr("capability")));
  RecordProperty("description", backend().Description());
}

HYDRANT_FOR_EACH_BACKEND(BackendMemoryTest);

class GraphTest : public BackendTest {
 protected:
  // b = 2 a + b through a graph; `calls` counts how often the operations were enqueued.
  void RunGraph(uint64_t key, const Weight& twice, const float* a, float* b, int* calls) {
    backend().RunGraph(key, [&] {
      ++*calls;
      backend().Matmul({.x = a, .m = 1, .weight = &twice, .y = b, .accumulate = true});
    });
  }
};

// A graph applies the same operations to the current contents, even after scratch has moved.
TEST_P(GraphTest, DoesTheSameEachTime) {
  const float values[] = {2.0f};
  const WeightPart part = {DType::kF32, values, 1, 1, {}};
  const auto twice = backend().PackWeight(std::span(&part, 1), WeightDType::kBFloat16);
  ASSERT_TRUE(twice.ok()) << twice.status();
  auto a = Upload(std::vector<float>{3.0f});
  auto b = Upload(std::vector<float>{0.0f});
  int calls = 0;
  float expected = 0.0f;
  const auto repeat = [&](uint64_t key, float value) {
    backend().CopyToDevice(a.data(), &value, sizeof(value));
    RunGraph(key, **twice, a.data(), b.data(), &calls);
    expected += 2 * value;
    EXPECT_EQ(b.Read(), std::vector<float>{expected});
  };
  for (int i = 1; i <= 5; ++i) repeat(7, static_cast<float>(i));
  EXPECT_EQ(calls, backend().SupportsGraphs() ? 2 : 5);
  repeat(8, 10.0f);
  repeat(7, 20.0f);
  // A product of many rows needs more scratch than before.
  constexpr int kRows = 5000;
  auto x = Upload(RandomFloats(kRows, 1));
  auto y = Output(kRows);
  backend().Matmul({.x = x.data(), .m = kRows, .weight = twice->get(), .y = y.data()});
  for (int i = 1; i <= 4; ++i) repeat(7, static_cast<float>(i));
  // More keys than graphs that a device keeps.
  for (uint64_t key = 100; key < 900; ++key) repeat(key, 1.0f);
  for (uint64_t key = 100; key < 900; key += 300) repeat(key, 1.0f);
  EXPECT_TRUE(backend().Synchronize().ok());
}

HYDRANT_FOR_EACH_BACKEND(GraphTest);

TEST(CreateBackendTest, RefusesUnknownNames) {
  const auto backend = CreateBackend("gpu", {});
  ASSERT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(backend.status().message()),
              testing::AllOf(testing::HasSubstr("gpu"), testing::HasSubstr("reference"),
                             testing::HasSubstr("cpu")));
}

TEST(CreateBackendTest, RefusesNoThreads) {
  for (int num_threads : {0, -3}) {
    for (const char* name : {"reference", "cpu"}) {
      const auto backend = CreateBackend(name, {.num_threads = num_threads});
      EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

#if defined(__x86_64__)
constexpr const char* kLimit = "avx512";
#else
constexpr const char* kLimit = "neon";
#endif

TEST(CreateBackendTest, RefusesUnknownInstructionSets) {
  const char* before = std::getenv("HYDRANT_CPU_ISA");
  const std::string saved = before == nullptr ? "native" : before;
  setenv("HYDRANT_CPU_ISA", "mmx", 1);
  const auto backend = CreateBackend("cpu", {});
  setenv("HYDRANT_CPU_ISA", saved.c_str(), 1);
  ASSERT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(backend.status().message()),
              testing::AllOf(testing::HasSubstr("mmx"), testing::HasSubstr(kLimit)));
}

TEST(CreateBackendTest, DescriptionFollowsTheLimit) {
  const char* limit = std::getenv("HYDRANT_CPU_ISA");
  if (limit == nullptr || std::string(limit) != "avx2") {
    GTEST_SKIP() << "HYDRANT_CPU_ISA is not avx2";
  }
  EXPECT_EQ(MakeBackend("cpu", 2)->Description(), "cpu: AVX2, 2 threads, batch-invariant");
}

}  // namespace
}  // namespace hydrant
