#include "server/startup/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

constexpr int kMaxNodes = 1024;
constexpr int kWordBits =
    sizeof(unsigned long) * CHAR_BIT;  // NOLINT(google-runtime-int): the kernel's

absl::Status ErrorOf(const char* call) {
  return absl::FailedPreconditionError(absl::StrCat(call, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status InterleaveMemory(const std::vector<int>& nodes) {
  int mode = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) != 0)
    return ErrorOf("get_mempolicy");
  if (mode != MPOL_DEFAULT) return absl::OkStatus();
  unsigned long mask[kMaxNodes / kWordBits] = {};  // NOLINT(google-runtime-int)
  for (const int node : nodes) {
    if (node >= 0 && node < kMaxNodes) mask[node / kWordBits] |= 1UL << (node % kWordBits);
  }
  if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, kMaxNodes) != 0)
    return ErrorOf("set_mempolicy");
  return absl::OkStatus();
}

}  // namespace hydrant
