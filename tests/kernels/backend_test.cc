#include "tests/kernels/backend_test.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>

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

TEST_P(BackendMemoryTest, RefusesWhatCannotBeMapped) {
  for (size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 46}) {
    auto buffer = backend().Allocate(bytes);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(buffer.status().message()), testing::HasSubstr(std::to_string(bytes)));
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

TEST(CreateBackendTest, RefusesUnknownInstructionSets) {
  const char* before = std::getenv("HYDRANT_CPU_ISA");
  const std::string saved = before == nullptr ? "native" : before;
  setenv("HYDRANT_CPU_ISA", "mmx", 1);
  const auto backend = CreateBackend("cpu", {});
  setenv("HYDRANT_CPU_ISA", saved.c_str(), 1);
  ASSERT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(backend.status().message()),
              testing::AllOf(testing::HasSubstr("mmx"), testing::HasSubstr("avx512")));
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
