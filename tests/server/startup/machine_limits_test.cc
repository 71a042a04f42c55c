// Fake /proc and /sys files as in containers, and the parsing of sizes.
#include "server/startup/machine_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <vector>

#include "server/startup/daemon_options.h"
#include "server/startup/model_argument.h"

namespace hydrant {
namespace {

using testing::HasSubstr;
using testing::Not;

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
  // A quota below the number of cores is the limit.
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
  EXPECT_EQ(ParseByteSize("2Gi").value(), 2 * kGiB);
  EXPECT_EQ(ParseByteSize("3k").value(), 3072);
  EXPECT_EQ(ParseByteSize("1000").value(), 1000);
  EXPECT_EQ(ParseByteSize("1000B").value(), 1000);
  for (const char* bad : {"", "G", "-1", "1.5G", "1Q", "1GG", "9999999999T", "1 G"}) {
    EXPECT_FALSE(ParseByteSize(bad).ok()) << bad;
  }
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

TEST(CommandLine, LeavesUnsetOptionsToTheDevice) {
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
  EXPECT_EQ(Parse({"--model", "m.gguf", "--dtype", "fp8"}).options->engine.dtype,
            WeightDType::kFp8);
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
      {"--model", "m", "--policy-under-pressure", "h3o"},
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
  for (const char* help : {"--help", "-h", "--help-all"}) {
    const CommandLine line = Parse({help});
    EXPECT_EQ(line.exit_code, 0);
    for (const char* word : {"Examples:", "--model", "50051", "quarter of the memory"}) {
      EXPECT_NE(line.text.find(word), std::string::npos) << word;
    }
  }
}

TEST(CommandLine, HelpIsShortAndNamesTheLongOne) {
  const std::string some = Parse({"--help"}).text, all = Parse({"--help-all"}).text;
  EXPECT_LT(std::ranges::count(some, '\n'), 80);
  EXPECT_THAT(some, HasSubstr("--help-all"));
  EXPECT_THAT(some, Not(HasSubstr("--max-metadata-bytes")));
  EXPECT_THAT(all, HasSubstr("--max-metadata-bytes"));
}

TEST(CommandLine, TheModelMayStandAlone) {
  for (const std::vector<const char*>& arguments :
       {std::vector<const char*>{"m.gguf", "--port", "0"},
        {"--port", "0", "m.gguf"},
        {"-m", "m.gguf", "--port", "0"},
        {"--model=m.gguf", "--port", "0"}}) {
    const CommandLine line = Parse(arguments);
    ASSERT_TRUE(line.options.has_value()) << line.text;
    EXPECT_EQ(line.options->model_path, "m.gguf");
    EXPECT_EQ(line.options->flags.at("model"), "m.gguf");
  }
  EXPECT_THAT(Parse({"m.gguf", "n.gguf"}).text, HasSubstr("n.gguf is one argument too many"));
  EXPECT_THAT(Parse({"--port", "0"}).text, HasSubstr("no model is given"));
}

TEST(CommandLine, UnknownFlagsAreAnsweredWithTheNearest) {
  EXPECT_THAT(Parse({"m", "--max-num-seq", "4"}).text,
              HasSubstr("--max-num-seq is not known; the nearest flag is --max-num-seqs"));
  EXPECT_THAT(Parse({"m", "--kv-cache-memory=1G"}).text,
              HasSubstr("--kv-cache-memory is not known; the nearest flag is "
                        "--kv-cache-memory-bytes"));
}

TEST(CommandLine, AbsurdNumbersAreRefusedInOneLine) {
  for (const auto& [arguments, mentions] :
       std::vector<std::pair<std::vector<const char*>, std::vector<std::string>>>{
           {{"--max-num-queued-reqs", "0"}, {"--max-num-queued-reqs", "1", "1000000"}},
           {{"--max-num-queued-tokens", "0"}, {"--max-num-queued-tokens"}},
           {{"--max-num-batched-tokens", "0"}, {"--max-num-batched-tokens"}},
           {{"--threads", "100000"}, {"--threads: 100000 is outside [1, ", "CPUs"}},
           {{"--swap-space", "4"}, {"--swap-space: 4 is 4 bytes; did you mean 4G?"}},
           {{"--kv-cache-memory-bytes", "2"}, {"did you mean 2G?"}},
           {{"--context-memory-bytes", "500000"}, {"did you mean 500000K?"}},
           {{"--served-model-name", "\xFF"}, {"--served-model-name: is no name", "UTF-8"}},
           {{"--served-model-name", "two\nlines"}, {"--served-model-name: is no name"}}}) {
    std::vector<const char*> all = {"m.gguf"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const CommandLine line = Parse(all);
    EXPECT_FALSE(line.options.has_value()) << arguments[0];
    EXPECT_EQ(line.text.find('\n'), line.text.size() - 1) << line.text;
    EXPECT_LT(line.text.size(), 250u) << line.text;
    for (const std::string& mention : mentions) EXPECT_THAT(line.text, HasSubstr(mention));
  }
  EXPECT_TRUE(Parse({"m.gguf", "--swap-space", "0"}).options.has_value());
  EXPECT_TRUE(Parse({"m.gguf", "--swap-space", "4000B"}).options.has_value());
}

TEST(ModelArgument, IsAPathOrAModelOfTheHub) {
  const std::string folder = testing::TempDir() + "/model_argument_test";
  std::filesystem::create_directories(folder + "/models");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  EXPECT_EQ(ModelOfArgument("some-org/some-model"), "hf:some-org/some-model");
  EXPECT_EQ(ModelOfArgument("some-org/some-model:Q4_K_M"), "hf:some-org/some-model:Q4_K_M");
  EXPECT_EQ(ModelOfArgument("hf:a/b"), "hf:a/b");
  for (const char* path : {"models", "./models", "models/absent", "/no/model", "absent", "a/b/c",
                           "../x", "some-org/model.gguf", ""})
    EXPECT_EQ(ModelOfArgument(path), path);
  std::filesystem::current_path(before);
  ASSERT_EQ(setenv("HOME", "/home/one", 1), 0);
  EXPECT_EQ(ModelOfArgument("~/m.gguf"), "/home/one/m.gguf");
  EXPECT_EQ(WithHome("~other/m"), "~other/m");
  EXPECT_EQ(Parse({"--model=~/m.gguf"}).options->model_path, "/home/one/m.gguf");
}

TEST(ModelArgument, AModelIsCalledAsItsFileIs) {
  EXPECT_EQ(NameOfPath("/models/Qwen2.5-0.5B-Instruct-Q8_0.gguf"), "Qwen2.5-0.5B-Instruct-Q8_0");
  EXPECT_EQ(NameOfPath("/models/Llama-3.2-1B"), "Llama-3.2-1B");
  EXPECT_EQ(NameOfPath("/models/Llama-3.2-1B/"), "Llama-3.2-1B");
  EXPECT_EQ(NameOfPath("/models/x/../Llama-3.2-1B/."), "Llama-3.2-1B");
  EXPECT_EQ(NameOfPath("big-00001-of-00003.gguf"), "big");
  EXPECT_TRUE(IsModelName("a \u00e9"));
  EXPECT_FALSE(IsModelName("\xC3"));
  EXPECT_FALSE(IsModelName(""));
}

}  // namespace
}  // namespace hydrant
