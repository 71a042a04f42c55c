// Fake /proc and /sys files of the shapes that containers show, and the texts of sizes.
#include "server/machine_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <vector>

#include "server/daemon_options.h"

namespace hydrant {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<int> Cpus(int count) {
  std::vector<int> cpus(count);
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

class FakeMachine : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/machine_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(FakeMachine, WithoutACgroupTheMachineLimits) {
  const MachineLimits limits = ReadMachineLimits(root_, Cpus(8));
  EXPECT_EQ(limits.cpus, 8);
  EXPECT_EQ(limits.cpu_source, "affinity");
  EXPECT_EQ(limits.memory_bytes, 16 * kGiB);
  EXPECT_EQ(limits.available_bytes, 12 * kGiB);
  EXPECT_EQ(DefaultThreads(limits), 8);
  EXPECT_EQ(DefaultKvCacheBytes(limits), 3 * kGiB);
  EXPECT_EQ(DefaultReuseBytes(limits), 3 * kGiB / 2);
}

// Two sockets of two cores with two hyper-threads each, numbered as Linux does.
TEST_F(FakeMachine, HyperThreadsOfACoreGetOneThread) {
  for (int cpu = 0; cpu < 8; ++cpu) {
    Write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4) + "\n");
  }
  Write("/sys/devices/system/node/online", "0-1\n");
  Write("/sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
  Write("/sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
  const MachineLimits whole = ReadMachineLimits(root_, Cpus(8));
  EXPECT_EQ(whole.cpus, 8);
  EXPECT_EQ(whole.cores, 4);
  EXPECT_EQ(DefaultThreads(whole), 4);
  EXPECT_EQ(whole.numa_nodes, (std::vector<int>{0, 1}));
  // One core and a half of another, all of the first socket.
  const MachineLimits part = ReadMachineLimits(root_, {0, 1, 4});
  EXPECT_EQ(part.cores, 2);
  EXPECT_EQ(DefaultThreads(part), 2);
  EXPECT_EQ(part.numa_nodes, std::vector<int>{0});
  // A quota of less than the cores is the limit.
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(DefaultThreads(ReadMachineLimits(root_, Cpus(8))), 3);
}

TEST_F(FakeMachine, CgroupV2LimitsOfTheGroupAndItsParents) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  Write("/sys/fs/cgroup/outer/cpu.max", "250000 100000\n");
  Write("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/outer/memory.max", "max\n");
  Write("/sys/fs/cgroup/outer/inner/memory.max", "4294967296\n");
  Write("/sys/fs/cgroup/outer/inner/memory.current", "2147483648\n");
  const MachineLimits limits = ReadMachineLimits(root_, Cpus(8));
  EXPECT_EQ(limits.cpus, 2.5);
  EXPECT_EQ(limits.cpu_source, "cgroup v2");
  EXPECT_EQ(limits.memory_bytes, 4 * kGiB);
  EXPECT_EQ(limits.memory_source, "cgroup v2");
  EXPECT_EQ(limits.available_bytes, 3 * kGiB);
  EXPECT_EQ(DefaultThreads(limits), 2);
}

TEST_F(FakeMachine, CgroupV2InAContainerSeesItsGroupAsTheRoot) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  const MachineLimits limits = ReadMachineLimits(root_, Cpus(8));
  EXPECT_EQ(limits.cpus, 0.5);
  EXPECT_EQ(DefaultThreads(limits), 1);
  EXPECT_EQ(limits.memory_bytes, kGiB);
}

TEST_F(FakeMachine, CgroupV1) {
  Write("/proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n");
  Write("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000\n");
  Write("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2147483648\n");
  const MachineLimits limits = ReadMachineLimits(root_, Cpus(8));
  EXPECT_EQ(limits.cpus, 3);
  EXPECT_EQ(limits.cpu_source, "cgroup v1");
  EXPECT_EQ(limits.memory_bytes, 2 * kGiB);
}

TEST_F(FakeMachine, CgroupV1WithoutLimits) {
  Write("/proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const MachineLimits limits = ReadMachineLimits(root_, Cpus(8));
  EXPECT_EQ(limits.cpus, 8);
  EXPECT_EQ(limits.memory_bytes, 16 * kGiB);
}

TEST_F(FakeMachine, NonsenseDoesNotLimit) {
  Write("/proc/self/cgroup", "garbage\n::\n0:\n0::relative\n");
  Write("/proc/meminfo", "MemTotal: lots\n");
  Write("/sys/fs/cgroup/cpu.max", "0 0");
  Write("/sys/fs/cgroup/memory.max", "-5");
  const MachineLimits limits = ReadMachineLimits(root_, {});
  EXPECT_EQ(limits.cpus, 1);
  EXPECT_EQ(limits.memory_bytes, 0);
  EXPECT_GT(DefaultKvCacheBytes(limits), 0);
}

TEST(ByteSize, Parses) {
  EXPECT_EQ(ParseByteSize("512M").value(), 512 << 20);
  EXPECT_EQ(ParseByteSize("2G").value(), 2 * kGiB);
  EXPECT_EQ(ParseByteSize("2GiB").value(), 2 * kGiB);
  EXPECT_EQ(ParseByteSize("3k").value(), 3072);
  EXPECT_EQ(ParseByteSize("1000").value(), 1000);
  EXPECT_EQ(ParseByteSize("1000B").value(), 1000);
  for (const char* bad : {"", "G", "-1", "1.5G", "1Q", "1GG", "9999999999T", "1 G"}) {
    EXPECT_FALSE(ParseByteSize(bad).ok()) << bad;
  }
  EXPECT_EQ(FormatByteSize(1536), "1.5 KiB");
}

CommandLine Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "hydrantd");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(CommandLine, FillsTheOptions) {
  const CommandLine line = Parse(
      {"--model", "m.gguf", "--kv-cache-memory-bytes", "1G", "--port", "0", "--dtype", "bfloat16",
       "--kv-cache-dtype", "float32", "--shutdown-timeout", "1.5", "--watermark", "0.1",
       "--policy-under-pressure", "h2o:cache_ratio=0.2", "--tenant-weights", "gold=3,iron=0.5"});
  ASSERT_TRUE(line.options.has_value()) << line.text;
  EXPECT_EQ(line.options->model_path, "m.gguf");
  EXPECT_EQ(line.options->listen, "127.0.0.1:0");
  EXPECT_EQ(line.options->engine.kv_cache_memory_bytes, kGiB);
  EXPECT_EQ(line.options->engine.dtype, WeightDType::kBFloat16);
  EXPECT_EQ(line.options->engine.kv_cache_dtype, DType::kF32);
  EXPECT_EQ(line.options->shutdown_timeout.count(), 1500);
  EXPECT_EQ(line.options->scheduler.watermark, 0.1);
  CacheSpec h2o;
  h2o.policy = "h2o";
  h2o.cache_ratio = 0.2;
  EXPECT_EQ(line.options->scheduler.policy_under_pressure, h2o);
  EXPECT_EQ(line.options->scheduler.tenant_weights,
            (std::map<std::string, double>{{"gold", 3}, {"iron", 0.5}}));
  EXPECT_EQ(line.options->flags.at("block-size"), "16");
  EXPECT_EQ(line.options->flags.at("model"), "m.gguf");
}

TEST(CommandLine, LeavesToTheDeviceWhatIsNotSaid) {
  const CommandLine line = Parse({"--model", "m.gguf"});
  ASSERT_TRUE(line.options.has_value()) << line.text;
  EXPECT_EQ(line.options->engine.device, "auto");
  EXPECT_FALSE(line.options->engine.dtype.has_value());
  EXPECT_FALSE(line.options->engine.async_scheduling.has_value());
  EXPECT_EQ(line.options->scheduler.policy_under_pressure, CacheSpec());
  const CommandLine asked = Parse(
      {"--model", "m.gguf", "--device", "cpu", "--dtype", "stored", "--async-scheduling", "off"});
  ASSERT_TRUE(asked.options.has_value()) << asked.text;
  EXPECT_EQ(asked.options->engine.device, "cpu");
  EXPECT_EQ(asked.options->engine.dtype, WeightDType::kStored);
  EXPECT_EQ(Parse({"--model", "m.gguf", "--dtype", "q8_0"}).options->engine.dtype,
            WeightDType::kQ8_0);
  EXPECT_EQ(Parse({"--model", "m.gguf", "--dtype", "q4_0"}).options->engine.dtype,
            WeightDType::kQ4_0);
  EXPECT_EQ(asked.options->engine.async_scheduling, false);
}

TEST(CommandLine, BadFlagsAreOneLineAndExitOne) {
  const std::vector<std::vector<const char*>> bad = {
      {},
      {"--model", "m", "--nonsense"},
      {"--model", "m", "--threads", "0"},
      {"--model", "m", "--dtype", "int3"},
      {"--model", "m", "--kv-cache-memory-bytes", "much"},
      {"--model", "m", "--watermark", "2"},
      {"--model", "m", "--policy-under-pressure", "h2o"},
      {"--model", "m", "--tenant-weights", "gold"},
      {"--model", "m", "--port", "70000"}};
  for (const auto& arguments : bad) {
    const CommandLine line = Parse(arguments);
    EXPECT_FALSE(line.options.has_value());
    EXPECT_EQ(line.exit_code, 1);
    EXPECT_EQ(line.text.find('\n'), line.text.size() - 1) << line.text;
  }
}

TEST(CommandLine, HelpShowsExamplesAndDefaults) {
  const CommandLine line = Parse({"--help"});
  EXPECT_EQ(line.exit_code, 0);
  for (const char* word : {"Examples:", "--model", "50051", "quarter of the memory"}) {
    EXPECT_NE(line.text.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace hydrant
