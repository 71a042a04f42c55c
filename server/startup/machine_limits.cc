#include "server/startup/machine_limits.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hydrant {
namespace {

constexpr int64_t kFallbackKvCacheBytes = int64_t{1} << 30;  // if memory is unknown
// cgroup v1 writes "no limit" as a number near 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The first number of the text; nullopt for "max".
std::optional<int64_t> FirstNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  return text.has_value() ? FirstNumber(*text) : std::nullopt;
}

// "/a/b" -> {"/a/b", "/a", ""}: limits of outer groups apply to inner ones.
std::vector<std::string> WithParents(std::string path) {
  std::vector<std::string> paths;
  while (!path.empty() && path != "/") {
    paths.push_back(path);
    path.resize(path.find_last_of('/'));
  }
  paths.push_back("");
  return paths;
}

// "cpu,cpuacct" contains "cpu"; the unified hierarchy's empty list contains "".
bool HasController(std::string_view list, std::string_view controller) {
  while (true) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == controller) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

// Lines of /proc/self/cgroup: "0::/path" (v2), "4:cpu,cpuacct:/path" (v1).
std::optional<std::string> GroupPath(const std::string& root, std::string_view controller) {
  const std::optional<std::string> text = ReadFile(root + "/proc/self/cgroup");
  if (!text.has_value()) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const bool wanted =
        HasController(std::string_view(line).substr(first + 1, second - first - 1), controller);
    if (wanted && line.size() > second + 1 && line[second + 1] == '/')
      return line.substr(second + 1);
  }
  return std::nullopt;
}

template <typename T>
void KeepMin(std::optional<T>* least, std::optional<T> value) {
  if (value.has_value() && (!least->has_value() || *value < **least)) *least = value;
}

std::optional<double> CpuOfV2(const std::string& folder) {
  const std::optional<std::string> text =
      ReadFile(folder + "/cpu.max");  // "200000 100000" or "max 100000"
  if (!text.has_value()) return std::nullopt;
  const std::optional<int64_t> quota = FirstNumber(*text);
  const size_t space = text->find(' ');
  if (!quota.has_value() || space == std::string::npos) return std::nullopt;
  const std::optional<int64_t> period = FirstNumber(std::string_view(*text).substr(space + 1));
  if (!period.has_value() || *period <= 0 || *quota <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<double> CpuOfV1(const std::string& folder) {
  const std::optional<int64_t> quota = ReadNumber(folder + "/cpu.cfs_quota_us");  // -1: no limit
  const std::optional<int64_t> period = ReadNumber(folder + "/cpu.cfs_period_us");
  if (!quota.has_value() || !period.has_value() || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

void ApplyCpu(std::optional<double> cpus, const char* source, MachineLimits* limits) {
  if (!cpus.has_value() || *cpus >= limits->cpus) return;
  limits->cpus = *cpus;
  limits->cpu_source = source;
}

// A limit and its current use. The use includes page cache, which can be reclaimed, so half of it
// counts as free.
void ApplyMemory(std::optional<int64_t> limit, std::optional<int64_t> used, const char* source,
                 MachineLimits* limits) {
  if (!limit.has_value() || *limit <= 0 || *limit >= kNoLimit) return;
  if (limits->memory_bytes == 0 || *limit < limits->memory_bytes) {
    limits->memory_bytes = *limit;
    limits->memory_source = source;
  }
  const int64_t left = *limit - std::min(*limit, used.value_or(0) / 2);
  if (limits->available_bytes == 0 || left < limits->available_bytes)
    limits->available_bytes = left;
}

void ReadMemInfo(const std::string& root, MachineLimits* limits) {
  std::istringstream lines(ReadFile(root + "/proc/meminfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t digits = line.find_first_of("0123456789");
    if (digits == std::string::npos) continue;
    const int64_t bytes = FirstNumber(std::string_view(line).substr(digits)).value_or(0) * 1024;
    if (line.starts_with("MemTotal:")) limits->memory_bytes = bytes;
    if (line.starts_with("MemAvailable:")) limits->available_bytes = bytes;
  }
  limits->memory_source = "machine";
}

void ReadV2(const std::string& root, MachineLimits* limits) {
  const std::optional<std::string> group = GroupPath(root, "");
  if (!group.has_value()) return;
  for (const std::string& path : WithParents(*group)) {
    const std::string folder = root + "/sys/fs/cgroup" + path;
    ApplyCpu(CpuOfV2(folder), "cgroup v2", limits);
    ApplyMemory(ReadNumber(folder + "/memory.max"), ReadNumber(folder + "/memory.current"),
                "cgroup v2", limits);
  }
}

void ReadV1(const std::string& root, MachineLimits* limits) {
  for (const std::string& path : WithParents(GroupPath(root, "cpu").value_or(""))) {
    ApplyCpu(CpuOfV1(root + "/sys/fs/cgroup/cpu" + path), "cgroup v1", limits);
  }
  for (const std::string& path : WithParents(GroupPath(root, "memory").value_or(""))) {
    const std::string folder = root + "/sys/fs/cgroup/memory" + path;
    ApplyMemory(ReadNumber(folder + "/memory.limit_in_bytes"),
                ReadNumber(folder + "/memory.usage_in_bytes"), "cgroup v1", limits);
  }
}

// "0-3,8,10-11", the kernel's format for sets of CPUs.
std::vector<int> ParseCpuList(const std::string& text) {
  std::vector<int> cpus;
  for (const std::string& range : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t dash = range.find('-');
    const std::optional<int64_t> first = FirstNumber(range);
    const std::optional<int64_t> last =
        dash == std::string::npos ? first : FirstNumber(range.substr(dash + 1));
    if (!first.has_value() || !last.has_value()) continue;
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

// A core is identified by the first of its hyper-threads.
int CoresOf(const std::string& root, const std::vector<int>& cpus) {
  std::set<int> cores;
  for (const int cpu : cpus) {
    const std::vector<int> siblings =
        ParseCpuList(ReadFile(absl::StrCat(root, "/sys/devices/system/cpu/cpu", cpu,
                                           "/topology/thread_siblings_list"))
                         .value_or(""));
    cores.insert(siblings.empty() ? cpu : siblings.front());
  }
  return std::max(static_cast<int>(cores.size()), 1);
}

std::vector<int> NumaNodesOf(const std::string& root, const std::vector<int>& cpus) {
  const std::string folder = root + "/sys/devices/system/node";
  std::vector<int> nodes;
  for (const int node : ParseCpuList(ReadFile(folder + "/online").value_or(""))) {
    const std::vector<int> local =
        ParseCpuList(ReadFile(absl::StrCat(folder, "/node", node, "/cpulist")).value_or(""));
    const auto allowed = [&](int cpu) {
      return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end();
    };
    if (std::any_of(local.begin(), local.end(), allowed)) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

MachineLimits ReadMachineLimits(const std::string& root, const std::vector<int>& affinity) {
  MachineLimits limits;
  limits.cpus = static_cast<double>(std::max<size_t>(affinity.size(), 1));
  limits.cores = CoresOf(root, affinity);
  limits.numa_nodes = NumaNodesOf(root, affinity);
  limits.cpu_source = "affinity";
  ReadMemInfo(root, &limits);
  ReadV2(root, &limits);
  ReadV1(root, &limits);
  return limits;
}

std::vector<int> AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int DefaultThreads(const MachineLimits& limits) {
  return std::clamp(static_cast<int>(limits.cpus), 1, limits.cores);
}

int64_t DefaultKvCacheBytes(const MachineLimits& limits) {
  if (limits.available_bytes <= 0) return kFallbackKvCacheBytes;
  return limits.available_bytes / 4;
}

int64_t DefaultReuseBytes(const MachineLimits& limits) { return DefaultKvCacheBytes(limits) / 2; }

}  // namespace hydrant
