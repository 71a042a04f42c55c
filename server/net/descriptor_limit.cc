#include "server/net/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <climits>

namespace hydrant {
namespace {

constexpr int kReserve = 160;  // for other files; the metrics port alone may use 64

}  // namespace

int DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
}

int RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return DescriptorLimit();
}

// The reserve is at most a quarter of a small limit.
int DescriptorsForConnections(int limit) { return limit - std::min(kReserve, limit / 4); }

}  // namespace hydrant
